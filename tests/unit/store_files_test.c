/* store_files_test.c: the folder of a `dir:` store: who may open it, what is refused, and snapshot
 * files that are not what was written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "tests/support/disk.h"
#include "tests/support/stores.h"

static const struct sl_store_io *io = &sl_store_io_system;

static struct shop *new_shop(void)
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    shop_init(st, io, 0);
    return st;
}

static void free_shop(struct shop *st)
{
    if (st->store)
        shop_close(st);
    shop_done(st);
    free(st);
}

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void below(const struct shop *st, const char *name, char ret[512])
{
    snprintf(ret, 512, "%s/%s", st->path, name);
}

static void must_refuse(struct shop *st, enum sl_code code, const char *text)
{
    struct sl_error err = {0};
    enum sl_code c = shop_open(st, &err);
    if (c != code || !strstr(err.message, text) || !strstr(err.message, st->path))
        fail_msg("%s '%s' instead of %s '%s'", sl_code_name(c), err.message, sl_code_name(code),
                 text);
}

/* --- snapshot files ------------------------------------------------------------------------------
 */

enum { SIZE = 300 };

static unsigned char bytes[SIZE];

/* Session 0 and 3 have snapshots; gives their paths, and the bytes of the first. */
static struct shop *with_snapshots(char path[512], char other[512])
{
    struct shop *st = new_shop();
    shop_must_open(st);
    for (size_t i = 0; i < 5; i++) {
        do_create(st, i);
        do_turn(st, i, false);
    }
    do_snapshot(st, 0, SIZE);
    do_snapshot(st, 3, SIZE);
    do_turn(st, 0, true);
    shop_run(st);
    assert_true(shop_snapshot_path(st, 0, path, 512));
    assert_true(shop_snapshot_path(st, 3, other, 512));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(bytes, 1, SIZE, f), SIZE);
    fclose(f);
    return st;
}

/* Its load fails and names the file; all other sessions are as they were. */
static void must_be_corrupt(struct shop *st, const char *path, const char *what)
{
    struct sl_error err;
    char text[640];
    snprintf(text, sizeof text, "%s: %s", path, what);
    assert_int_equal(shop_load(st, 0, &err), SL_E_SNAPSHOT_CORRUPT);
    if (strncmp(err.message, text, strlen(text)) != 0)
        fail_msg("'%s' instead of '%s'", err.message, text);
    for (size_t i = 1; i < 5; i++)
        assert_int_equal(shop_load(st, i, &err), SL_OK);
}

static void test_each_byte_of_a_snapshot(void **state)
{
    (void)state;
    char path[512], other[512];
    struct shop *st = with_snapshots(path, other);
    for (size_t k = 0; k < SIZE; k++) {
        unsigned char bad[SIZE];
        memcpy(bad, bytes, SIZE);
        bad[k] ^= (unsigned char)(1u << (k % 8));
        write_file(path, bad, SIZE);
        must_be_corrupt(st, path, "is damaged: its bytes are not those that were written");
    }
    write_file(path, bytes, SIZE);
    assert_int_equal(shop_check(st), 0);
    free_shop(st);
}

static void test_snapshots_of_other_sizes(void **state)
{
    (void)state;
    char path[512], other[512], text[128];
    struct shop *st = with_snapshots(path, other);
    for (size_t n = 0; n <= SIZE + 5; n += n == 0 || n >= SIZE - 1 ? 1 : SIZE - 2) {
        unsigned char bad[SIZE + 6] = {0};
        memcpy(bad, bytes, SIZE);
        write_file(path, bad, n);
        snprintf(text, sizeof text, "is damaged: it has %zu bytes; %d were written", n, SIZE);
        if (n != SIZE)
            must_be_corrupt(st, path, text);
    }
    free_shop(st);
}

/* Missing, swapped with another session's, a link (to what would be right), no file at all. */
static void test_snapshots_that_are_something_else(void **state)
{
    (void)state;
    char path[512], other[512], aside[512], folder[512];
    struct shop *st = with_snapshots(path, other);
    below(st, "aside", aside);
    assert_int_equal(rename(path, aside), 0);
    must_be_corrupt(st, path, "is missing");
    assert_int_equal(symlink(aside, path), 0);
    must_be_corrupt(st, path, "is a link");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    must_be_corrupt(st, path, "is not a regular file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody waits for a writer */
    must_be_corrupt(st, path, "is not a regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(link(other, path), 0); /* another session's, of the same size */
    must_be_corrupt(st, path, "is damaged: its bytes are not those that were written");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(aside, path), 0);
    assert_int_equal(shop_check(st), 0);
    /* A folder on the way is a link, or a file. */
    snprintf(folder, sizeof folder, "%s/sessions/t-default", st->path);
    assert_int_equal(rename(folder, aside), 0);
    assert_int_equal(symlink(aside, folder), 0);
    struct sl_error err;
    assert_int_equal(shop_load(st, 0, &err), SL_E_SNAPSHOT_CORRUPT);
    assert_non_null(strstr(err.message, "link"));
    do_turn(st, 0, false); /* a write does not go through it, either */
    shop_run(st);
    do_snapshot(st, 0, SIZE);
    shop_run(st);
    assert_int_equal(st->n_failed, 1);
    assert_int_equal(st->last.code, SL_E_IO);
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(rename(aside, folder), 0);
    assert_int_equal(shop_check(st), 0);
    free_shop(st);
}

/* A system, or a container's rules, without the call that opens a whole path: the same refusals. */
static int cannot_errno;

static int cannot_open_below(int dir, const char *path)
{
    (void)dir;
    (void)path;
    errno = cannot_errno;
    return -1;
}

static void test_folder_by_folder(void **state)
{
    static const int errnos[] = {ENOSYS, EPERM};
    struct sl_store_io on_foot = sl_store_io_system;
    on_foot.open_below = cannot_open_below;
    io = &on_foot;
    for (size_t i = 0; i < 2; i++) {
        cannot_errno = errnos[i];
        test_snapshots_that_are_something_else(state);
    }
    io = &sl_store_io_system;
}

/* A damaged snapshot is not the end: a new one heals the session. */
static void test_a_new_snapshot_heals(void **state)
{
    (void)state;
    char path[512], other[512], now[512];
    struct shop *st = with_snapshots(path, other);
    write_file(path, "x", 1);
    must_be_corrupt(st, path, "is damaged");
    do_snapshot(st, 0, SIZE);
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    assert_int_equal(shop_check(st), 0);
    do_snapshot(st, 0, SIZE); /* and at the same version once more */
    shop_run(st);
    shop_close(st); /* removes old ones before it is done */
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    assert_true(shop_snapshot_path(st, 0, now, sizeof now));
    assert_string_not_equal(now, path);
    assert_int_equal(access(path, F_OK), -1);
    free_shop(st);
}

/* --- leftovers -----------------------------------------------------------------------------------
 */

static int n_files;

static int count_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)path;
    (void)st;
    (void)ftw;
    n_files += kind != FTW_D;
    return 0;
}

static int files_in(const char *path)
{
    n_files = 0;
    assert_int_equal(nftw(path, count_file, 16, FTW_PHYS), 0);
    return n_files;
}

/* What a crash leaves is removed at open; what is none of ours stays. */
static void test_leftovers(void **state)
{
    (void)state;
    char path[512], other[512], sessions[512], text[1100];
    struct shop *st = with_snapshots(path, other);
    below(st, "sessions", sessions);
    assert_int_equal(files_in(sessions), 2);
    shop_close(st);
    snprintf(text, sizeof text, "%s.tmp", path);
    write_file(text, "x", 1);
    /* The same session, version or number: names that no record has. */
    static const char *const names[] = {
        "s0.00000000000000000000000000000000.1-1.safetensors",
        "nobody.00000000000000000000000000000000.1-1.safetensors",
        "nobody.00000000000000000000000000000000.1-1.safetensors.tmp",
        "a.b.00000000000000000000000000000000.18446744073709551615-99.safetensors",
    };
    static const char *const foreign[] = {
        "notes.txt",
        "x.safetensors",
        ".hidden.00000000000000000000000000000000.1-1.safetensors",
        "s0.0000000000000000000000000000000g.1-1.safetensors",
        "s0.00000000000000000000000000000000.1-.safetensors",
        "s0.00000000000000000000000000000000.-1.safetensors",
        "s0.00000000000000000000000000000000.1-1.safetensors.old",
        "00000000000000000000000000000000.1-1.safetensors",
    };
    enum { N = sizeof names / sizeof *names, F = sizeof foreign / sizeof *foreign };
    *strrchr(path, '/') = '\0';
    for (size_t i = 0; i < N + F; i++) {
        snprintf(text, sizeof text, "%s/%s", path, i < N ? names[i] : foreign[i - N]);
        write_file(text, "x", 1);
    }
    snprintf(text, sizeof text, "%s/readme", sessions);
    write_file(text, "x", 1);
    assert_int_equal(files_in(sessions), 2 + 1 + N + F + 1);
    shop_must_open(st);
    assert_int_equal(files_in(sessions), 2 + F + 1);
    assert_int_equal(shop_check(st), 0);
    /* Nothing of a session that is gone. */
    do_remove(st, 0);
    do_remove(st, 3);
    shop_run(st);
    shop_close(st);
    assert_int_equal(files_in(sessions), F + 1);
    shop_must_open(st);
    free_shop(st);
}

/* --- folders -------------------------------------------------------------------------------------
 */

static int check_mode(const char *path, const struct stat *s, int kind, struct FTW *ftw)
{
    (void)ftw;
    if ((s->st_mode & 0777) != (kind == FTW_D ? 0700 : 0600))
        fail_msg("%s has mode %o", path, s->st_mode & 0777);
    return 0;
}

static void test_nobody_else_may_read(void **state)
{
    (void)state;
    char path[512], other[512];
    mode_t old = umask(0);
    struct shop *st = with_snapshots(path, other);
    assert_int_equal(nftw(st->path, check_mode, 16, FTW_PHYS), 0);
    umask(old);
    free_shop(st);
}

static void test_foreign_folders(void **state)
{
    (void)state;
    char path[512];
    struct shop *st = new_shop();
    assert_int_equal(mkdir(st->path, 0700), 0);
    below(st, "thesis.tex", path);
    write_file(path, "x", 1);
    must_refuse(st, SL_E_USAGE, "holds other things ('thesis.tex') and is no store");
    assert_int_equal(files_in(st->path), 1); /* nothing was written */
    assert_int_equal(unlink(path), 0);
    shop_must_open(st); /* an empty one is taken */
    do_create(st, 0);
    shop_run(st);
    shop_close(st);
    write_file(path, "x", 1); /* beside a store it does no harm */
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    shop_close(st);
    remove_tree(st->path);
    write_file(st->path, "x", 1);
    must_refuse(st, SL_E_IO, "Not a directory");
    remove_tree(st->path);
    size_t n = strlen(st->path);
    snprintf(st->path + n, sizeof st->path - n, "/a/b");
    must_refuse(st, SL_E_IO, "mkdir of ");
    st->path[n] = '\0';
    memset(st->v, 0, sizeof st->v);
    free_shop(st);
}

static void test_missing_parts(void **state)
{
    (void)state;
    static const char *const parts[] = {"format", "log", "sessions"};
    static const char *const said[] = {
        "/format: is missing, but there are files in sessions; nothing was made in its place",
        "/log: is missing; nothing was made in its place", "/sessions: is missing"};
    char path[512], other[512], aside[512], part[512];
    struct shop *st = with_snapshots(path, other);
    shop_close(st);
    shop_folder(st, aside, sizeof aside);
    strncat(aside, "/aside", sizeof aside - strlen(aside) - 1);
    for (size_t i = 0; i < 3; i++) {
        below(st, parts[i], part);
        assert_int_equal(rename(part, aside), 0);
        must_refuse(st, SL_E_STORE_CORRUPT, said[i]);
        must_refuse(st, SL_E_STORE_CORRUPT, said[i]); /* trying made nothing, either */
        assert_int_equal(rename(aside, part), 0);
    }
    /* No format and no snapshots, but a log with sessions. */
    remove_tree(path);
    remove_tree(other);
    below(st, "sessions", part);
    remove_tree(part);
    below(st, "format", part);
    assert_int_equal(rename(part, aside), 0);
    must_refuse(st, SL_E_STORE_CORRUPT, "/format: is missing, but there is a log");
    free_shop(st);
}

static void test_other_formats(void **state)
{
    (void)state;
    char path[512];
    struct shop *st = new_shop();
    shop_must_open(st);
    shop_close(st);
    below(st, "format", path);
    write_file(path, "slate.store 2\nmore\n", 19);
    must_refuse(st, SL_E_FILE_UNSUPPORTED,
                "/format: says 'slate.store 2'; this version of slate knows 'slate.store 1'");
    write_file(path, "", 0);
    must_refuse(st, SL_E_FILE_UNSUPPORTED, "/format: says ''");
    free_shop(st);
}

/* --- locks ---------------------------------------------------------------------------------------
 */

static void test_two_servers(void **state)
{
    (void)state;
    char text[64];
    struct shop *st = new_shop(), *second = new_shop();
    char own[sizeof second->path];
    shop_must_open(st);
    do_create(st, 0);
    shop_run(st);
    snprintf(own, sizeof own, "%s", second->path);
    snprintf(second->path, sizeof second->path, "%s", st->path);
    snprintf(text, sizeof text, "another server has this store (process %ld)", (long)getpid());
    must_refuse(second, SL_E_STORE_LOCKED, text);
    do_turn(st, 0, false); /* the first one is not disturbed */
    shop_run(st);
    assert_int_equal(shop_check(st), 0);
    shop_close(st);
    memcpy(second->v, st->v, sizeof st->v);
    shop_must_open(second);
    must_refuse(st, SL_E_STORE_LOCKED, text);
    shop_close(second);
    snprintf(second->path, sizeof second->path, "%s", own);
    free_shop(second);
    free_shop(st);
}

/* The lock is the system's: a server that was killed leaves none. */
static void test_a_killed_server_leaves_no_lock(void **state)
{
    (void)state;
    struct shop *st = new_shop();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct sl_store_options opt = {.loop = &st->loop};
        struct sl_error err;
        _exit(uv_loop_fork(&st->loop) == 0 &&
                      sl_dir_open(&st->store, st->path, &opt, st->io, NULL, NULL, &err) == SL_OK
                  ? 7
                  : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    shop_must_open(st);
    free_shop(st);
}

/* --- disks that take nothing ---------------------------------------------------------------------
 */

static void test_read_only(void **state)
{
    (void)state;
    struct shop *st = new_shop();
    disk_end();
    st->io = &disk_io;
    disk_refuse_writes(EROFS);
    must_refuse(st, SL_E_IO, "mkdir of ");
    disk_refuse_writes(0);
    shop_must_open(st);
    do_create(st, 0);
    shop_run(st);
    shop_close(st);
    disk_refuse_writes(EROFS);
    must_refuse(st, SL_E_IO, "/lock: Read-only file system");
    disk_refuse_writes(0);
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    free_shop(st);
    disk_end();
}

static void test_specs(void **state)
{
    (void)state;
    struct sl_store *s = NULL;
    struct sl_error err;
    struct shop *st = new_shop();
    char spec[600];
    struct sl_store_options opt = {.loop = &st->loop, .spec = "ftp://x"};
    assert_int_equal(sl_store_open(&s, &opt, NULL, NULL, &err), SL_E_USAGE);
    assert_string_equal(err.message, "a store 'ftp://x' is not known; allowed: dir:PATH, "
                                     "redis://HOST:PORT[/DB], memory");
    opt.spec = "dir:";
    assert_int_equal(sl_store_open(&s, &opt, NULL, NULL, &err), SL_E_USAGE);
    assert_string_equal(err.message, "a store 'dir:' needs a folder: dir:PATH");
    snprintf(spec, sizeof spec, "dir:%s//", st->path);
    opt.spec = spec;
    assert_int_equal(sl_store_open(&s, &opt, NULL, NULL, &err), SL_OK);
    sl_store_close(s, NULL, NULL);
    uv_run(&st->loop, UV_RUN_DEFAULT);
    free_shop(st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_byte_of_a_snapshot),
        cmocka_unit_test(test_snapshots_of_other_sizes),
        cmocka_unit_test(test_snapshots_that_are_something_else),
        cmocka_unit_test(test_folder_by_folder),
        cmocka_unit_test(test_a_new_snapshot_heals),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_nobody_else_may_read),
        cmocka_unit_test(test_foreign_folders),
        cmocka_unit_test(test_missing_parts),
        cmocka_unit_test(test_other_formats),
        cmocka_unit_test(test_two_servers),
        cmocka_unit_test(test_a_killed_server_leaves_no_lock),
        cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_specs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
