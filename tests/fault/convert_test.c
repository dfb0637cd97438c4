/* convert_test.c: a conversion onto a disk that fails, is full, or loses power: a whole file, or
 * what was there before; never a part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/conversion.h"
#include "tests/support/disk.h"
#include "tests/support/seeded.h"
#include "tests/support/snapshots.h"
#include "tests/support/tree.h"

enum { CASES_MAX = 2000 };

static char root[32], source[64], folder[64], out[96], salvaged[64];
static struct file {
    unsigned char *p;
    size_t n;
} whole, before;

static struct file read_file(const char *path)
{
    struct stat st;
    struct file f = {0};
    if (stat(path, &st) != 0)
        return f;
    f.n = (size_t)st.st_size;
    f.p = malloc(f.n + 1);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    assert_int_equal(fread(f.p, 1, f.n, in), f.n);
    fclose(in);
    return f;
}

static bool same(const struct file *a, const struct file *b)
{
    return a->p && b->p && a->n == b->n && memcmp(a->p, b->p, a->n) == 0;
}

/* Entries of a folder. */
static size_t count(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static int set_up(void **state)
{
    (void)state;
    struct seeded s;
    struct seeded_shape shape = SNAPSHOT_TINY;
    (void)snprintf(root, sizeof root, "/tmp/slate-convert-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    (void)snprintf(source, sizeof source, "%s/m.safetensors", root);
    (void)snprintf(folder, sizeof folder, "%s/disk", root);
    (void)snprintf(out, sizeof out, "%s/out.safetensors", folder);
    (void)snprintf(salvaged, sizeof salvaged, "%s/salvaged", root);
    seeded_init(&s, &shape);
    seeded_write(&s, source);
    seeded_done(&s);
    if (mkdir(folder, 0700) != 0)
        return -1;
    conversion_must(source, out, SL_DTYPE_F32, NULL);
    before = read_file(out);
    conversion_must(source, out, SL_DTYPE_BF16, NULL);
    whole = read_file(out);
    assert_false(same(&before, &whole));
    remove_tree(folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(whole.p);
    free(before.p);
    remove_tree(root);
    return 0;
}

/* The disk, with the old file on it or without. */
static void begin(bool with_old)
{
    assert_int_equal(mkdir(folder, 0700), 0);
    disk_begin(folder);
    if (!with_old)
        return;
    struct sl_error err;
    if (conversion(source, out, SL_DTYPE_F32, NULL, NULL, &disk_io, &err))
        fail_msg("%s", err.message);
}

static void end(void)
{
    assert_int_equal(disk_open_files(), 0);
    disk_end();
    remove_tree(folder);
}

static enum sl_code run(struct sl_error *err)
{
    return conversion(source, out, SL_DTYPE_BF16, NULL, NULL, &disk_io, err);
}

/* What is there after an error: as before; or, where only the folder's sync failed, all of it. */
static void check_after_error(bool with_old, const struct sl_error *err)
{
    struct file f = read_file(out);
    bool is_old = with_old ? same(&f, &before) : !f.p;
    if (!is_old && !(same(&f, &whole) && strstr(err->message, "fsync of the folder")))
        fail_msg("after \"%s\" there are %zu bytes", err->message, f.n);
    assert_int_equal(count(folder), f.p ? 1 : 0);
    free(f.p);
}

/* Each call fails once, for each way to fail. */
static void each_call_fails(bool with_old, int errnum)
{
    enum sl_code c = SL_E_IO;
    int64_t n = 0;
    for (; c; n++) {
        struct sl_error err = {0};
        assert_true(n < CASES_MAX);
        begin(with_old);
        disk_fail_at(n, errnum);
        c = run(&err);
        disk_fail_at(-1, 0);
        if (c) {
            bool full = errnum == ENOSPC;
            assert_int_equal(c, full ? SL_E_STORE_FULL : SL_E_IO);
            assert_non_null(strstr(err.message, full ? "No space left" : "error"));
            assert_non_null(strstr(err.message, "/disk"));
            check_after_error(with_old, &err);
        } else {
            struct file f = read_file(out);
            assert_true(same(&f, &whole));
            free(f.p);
        }
        end();
    }
    /* Opening, two of the header, the tensors, the marks, syncs, closes, renaming. */
    assert_true(n > 40);
}

static void test_each_call_fails(void **state)
{
    (void)state;
    each_call_fails(false, ENOSPC);
    each_call_fails(true, EIO);
}

/* The disk is full from some call on, so that removing fails, too: the old file stays. */
static void test_a_full_disk(void **state)
{
    (void)state;
    struct sl_error err = {0};
    begin(true);
    disk_refuse_writes(ENOSPC);
    assert_int_equal(run(&err), SL_E_STORE_FULL);
    disk_refuse_writes(0);
    check_after_error(true, &err);
    assert_int_equal(run(&err), SL_OK);
    struct file f = read_file(out);
    assert_true(same(&f, &whole));
    free(f.p);
    end();
}

static void test_short_writes_and_signals(void **state)
{
    (void)state;
    struct sl_error err = {0};
    begin(false);
    disk_short_writes(1000);
    disk_interrupt(true);
    if (run(&err))
        fail_msg("%s", err.message);
    disk_short_writes(0);
    disk_interrupt(false);
    struct file f = read_file(out);
    assert_true(same(&f, &whole));
    free(f.p);
    end();
}

/* The power goes at each call; what is found afterwards under the name is one of the two files. */
static void test_power_cuts(void **state)
{
    (void)state;
    bool done = false;
    size_t n_old = 0, n_new = 0;
    for (int64_t n = 0; !done; n++) {
        struct sl_error err;
        char path[128];
        assert_true(n < CASES_MAX);
        begin(true);
        disk_cut_at(n);
        done = run(&err) == SL_OK;
        assert_int_equal(mkdir(salvaged, 0700), 0);
        disk_salvage(salvaged, n % 2 ? DISK_SOME : DISK_SYNCED, (uint64_t)n);
        (void)snprintf(path, sizeof path, "%s/out.safetensors", salvaged);
        struct file f = read_file(path);
        if (!same(&f, &before) && !same(&f, &whole))
            fail_msg("cut at call %d: %zu bytes", (int)n, f.n);
        assert_true(!done || same(&f, &whole));
        n_old += same(&f, &before);
        n_new += same(&f, &whole);
        free(f.p);
        remove_tree(salvaged);
        disk_cut_at(-1);
        disk_end(); /* what a dead process had open is not counted */
        remove_tree(folder);
    }
    assert_true(n_old > 40 && n_new > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_call_fails),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_short_writes_and_signals),
        cmocka_unit_test(test_power_cuts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
