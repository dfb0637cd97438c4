/* disk_test.c: the disk under a server (issue 3, point 6): somebody else has the folder, it cannot
 * be written, it is full. The error names the cause; what was acknowledged stays; memory and disk
 * agree afterwards; when there is room again the server goes on by itself.
 *
 * A full disk is a small tmpfs, in a mount namespace of this process; where that is not allowed,
 * and besides, it is a limit on the size of files, set on the running server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/support/node.h"
#include "tests/support/stores.h"

static struct node node;
static char mounted[400]; /* the tmpfs; "": none */

static struct client *client(void)
{
    return node.a.client;
}

static void up(const char *name)
{
    node_init(&node, name,
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--sessions-in-memory=4", NULL});
}

static void make(const char *id)
{
    struct gen g;
    reply_free(expect(post(client(), "/v1/sessions", "{'id':'%s','prompt':'abc'}", id), 201));
    turn_of(client(), &g, id, "def", 3);
    gen_done(&g);
}

static void same_next(const char *a, const char *b)
{
    struct gen x, y;
    turn_of(client(), &x, a, "ghi", 11);
    turn_of(client(), &y, b, "ghi", 11);
    output_same(&x.o, &y.o);
    gen_done(&x);
    gen_done(&y);
}

/* `slate serve` on the node's folder does not start: exit code, and what it says. */
static void refused(int code, const char *what)
{
    char *err = NULL;
    const char *const args[] = {"serve",
                                "--listen",
                                "127.0.0.1:0",
                                "--tokenizer=bytes",
                                "--model",
                                seeded_bytes_model(),
                                "--sessions-in-memory=4",
                                "--store",
                                node.store,
                                NULL};
    int got = program_run(args, NULL, &err);
    if (got != code || !strstr(err, what) || !strstr(err, node.dir))
        fail_msg("exit code %d (not %d), or what it says names neither %s nor \"%s\":\n%s", got,
                 code, node.dir, what, err);
    free(err);
}

/* --- somebody else, something else -------------------------------------------------------------*/

static void two_servers(void **state)
{
    (void)state;
    up("lock");
    node_start(&node);
    make("a");
    refused(1, "another server");
    make("b"); /* the first does not notice */
    node_kill(&node);
    node_start(&node); /* a lock does not outlive its process */
    same_next("a", "b");
    node_done(&node);
}

static void no_folder(void **state)
{
    (void)state;
    up("file");
    int fd = open(node.dir, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0 && write(fd, "x", 1) == 1);
    close(fd);
    refused(3, "Not a directory");
    assert_int_equal(unlink(node.dir), 0);
    /* A folder with other things in it is not taken. */
    char path[400];
    assert_int_equal(mkdir(node.dir, 0700), 0);
    snprintf(path, sizeof path, "%s/holiday.jpg", node.dir);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
    refused(2, "holds other things ('holiday.jpg')");
    assert_int_equal(access(path, F_OK), 0);
    node_done(&node);
}

/* --- a disk of our own -------------------------------------------------------------------------*/

static bool in_namespace(void)
{
    static int allowed = -1;
    if (allowed < 0) {
        allowed = unshare(CLONE_NEWNS) == 0;
        if (!allowed)
            allowed = unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
        if (allowed)
            allowed = mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
    }
    return allowed > 0;
}

/* The node's folder lies on a small disk of its own. */
static bool small_disk(const char *size)
{
    char options[64];
    snprintf(options, sizeof options, "size=%s", size);
    snprintf(mounted, sizeof mounted, "%s.disk", node.dir);
    remove_tree(mounted);
    if (!in_namespace() || mkdir(mounted, 0700) != 0 ||
        mount("none", mounted, "tmpfs", 0, options) != 0) {
        *mounted = '\0';
        print_message("skipped: a small disk: mounts are not allowed here\n");
        return false;
    }
    snprintf(node.dir, sizeof node.dir, "%.280s/data", mounted);
    snprintf(node.store, sizeof node.store, "dir:%s", node.dir);
    return true;
}

static void no_disk(void)
{
    if (!*mounted)
        return;
    (void)umount2(mounted, MNT_DETACH);
    (void)rmdir(mounted);
    *mounted = '\0';
}

static void read_only(void **state)
{
    (void)state;
    up("ro");
    if (!small_disk("8m"))
        skip();
    node_start(&node);
    make("a");
    make("b");
    node_kill(&node);
    assert_int_equal(mount("none", mounted, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    refused(3, "Read-only file system");
    assert_int_equal(mount("none", mounted, NULL, MS_REMOUNT, NULL), 0);
    node_start(&node);
    same_next("a", "b");
    node_stop(&node);
    no_disk();
}

/* --- full --------------------------------------------------------------------------------------*/

/* Fills it to the last byte; returns the ballast's descriptor. */
static int fill_disk(void)
{
    char path[420];
    static char block[4096];
    snprintf(path, sizeof path, "%s/ballast", mounted);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, block, sizeof block) > 0)
        ;
    assert_int_equal(errno, ENOSPC);
    return fd;
}

static void empty_disk(int fd)
{
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
}

/* Turns on `a` until one is refused: some may find room in what is allocated already. Each that is
 * answered is run on `twin_turns`, later. */
static unsigned until_refused(long status, const char *code, const char *what)
{
    for (unsigned i = 0; i < 2000; i++) {
        int64_t version = session_version(client(), "a");
        struct reply *r = call_finish(turn_start(client(), "a", "more", i));
        if (r->status == 200) {
            assert_int_equal(int_at(r->json, "version"), version + 1);
            reply_free(r);
            continue;
        }
        assert_non_null(strstr(r->body, what));
        assert_non_null(strstr(r->body, node.dir)); /* and where */
        expect_error(r, status, code, NULL);
        assert_int_equal(session_version(client(), "a"), version);
        return i;
    }
    fail_msg("the disk does not become full");
    return 0;
}

/* While nothing can be written: reads go on, changes are refused, nothing spins. */
static void while_nothing_can_be_written(long status, const char *code)
{
    struct bytes b = snapshot_get(client(), "a", "");
    sl_free(b.p);
    b = snapshot_get(client(), "stored", ""); /* from the store */
    sl_free(b.p);
    expect_error(post(client(), "/v1/sessions", "{'id':'new'}"), status, code, NULL);
    expect_error(get(client(), "/v1/sessions/new"), 404, "session_not_found", "session");
    expect_error(patch(client(), "/v1/sessions/a", "{'metadata':{'x':1}}"), status, code, NULL);
    struct reply *r = session_get(client(), "a");
    assert_null(at(r->json, "metadata.x"));
    reply_free(r);
    expect_error(post(client(), "/v1/sessions/a/fork", "{'id':'new'}"), status, code, NULL);
    expect_error(session_post(client(), "a", "/pause"), status, code, NULL);
    assert_false(session_busy(client(), "a"));
    /* Turns that keep nothing go on. */
    struct gen g;
    generate(client(), &g, "'prompt':'abc','max_tokens':3");
    gen_done(&g);
    /* Nothing is tried again and again by itself. */
    double before = metric(client(), "slate_session_failures_total");
    for (int i = 0; i < 50; i++)
        reply_free(session_get(client(), "a"));
    assert_true(metric(client(), "slate_session_failures_total") < before + 10);
}

/* Afterwards: a and its twin have seen the same. */
static void same_history(unsigned n_turns)
{
    for (unsigned i = 0; i < n_turns; i++) {
        struct gen g;
        turn_of(client(), &g, "twin", "more", i);
        gen_done(&g);
    }
    assert_int_equal(session_version(client(), "a"), session_version(client(), "twin"));
    same_next("a", "twin");
}

static void prepare(void)
{
    node_start(&node);
    make("a");
    make("twin");
    make("stored");
    reply_free(expect(session_post(client(), "stored", "/pause"), 200));
    reply_free(expect(session_post(client(), "stored", "/resume"), 200));
}

static void full_disk(void **state)
{
    (void)state;
    up("full");
    if (!small_disk("2m"))
        skip();
    prepare();
    int fd = fill_disk();
    unsigned n = until_refused(503, "store_full", "No space left on device");
    while_nothing_can_be_written(503, "store_full");
    empty_disk(fd);
    same_history(n); /* by itself, without a restart */
    node_kill(&node);
    node_start(&node);
    same_next("a", "twin");
    expect_error(get(client(), "/v1/sessions/new"), 404, "session_not_found", "session");
    /* Full when it is told to end: what is only in memory stays in the log, and it says so. */
    node_stop(&node);
    no_disk();
}

/* More sessions than places, none of which can be put away: they are refused, not left waiting. */
static void full_disk_and_full_memory(void **state)
{
    (void)state;
    struct call *k[8];
    char id[24];
    up("fuller");
    if (!small_disk("2m"))
        skip();
    node_start(&node);
    for (int i = 0; i < 8; i++) {
        snprintf(id, sizeof id, "s%d", i);
        make(id);
    }
    int fd = fill_disk();
    int64_t version[8];
    size_t n_refused = 0;
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 8; i++) {
            snprintf(id, sizeof id, "s%d", i);
            version[i] = session_version(client(), id);
            k[i] = turn_start(client(), id, "x", 1);
        }
        for (int i = 0; i < 8; i++) {
            struct reply *r = call_finish(k[i]);
            snprintf(id, sizeof id, "s%d", i);
            assert_int_equal(session_version(client(), id), version[i] + (r->status == 200));
            n_refused += r->status != 200;
            if (r->status != 200)
                expect_error(r, 503, "store_full", NULL);
            else
                reply_free(r);
        }
    }
    assert_true(n_refused > 0);
    empty_disk(fd);
    for (int i = 0; i < 8; i++) {
        struct gen g;
        snprintf(id, sizeof id, "s%d", i);
        turn_of(client(), &g, id, "y", 1);
        gen_done(&g);
    }
    node_stop(&node);
    no_disk();
}

/* The same by a limit on the size of files, which every machine has. */
static void files_that_may_not_grow(void **state)
{
    (void)state;
    up("limit");
    prepare();
    node_limit_files(&node, 400); /* of a new log there would be as little room */
    unsigned n = until_refused(503, "store_full", "File too large");
    while_nothing_can_be_written(503, "store_full");
    node_limit_files(&node, 0);
    same_history(n);
    node_kill(&node);
    node_start(&node);
    same_next("a", "twin");
    node_done(&node);
}

/* SIGTERM where there is no room for a snapshot: it says so, and why, and ends with that status. */
static void ends_without_room(const char *log, int status)
{
    node_limit_files(&node, 400);
    node_signal(&node, SIGTERM);
    server_wait_log(node.a.server, log);
    assert_non_null(strstr(node.a.server->log, "File too large"));
    client_close(node.a.client);
    assert_int_equal(server_end(node.a.server, 0), status);
    node.a = (struct api){0};
}

/* At a drain of sessions that are only in memory it fails: it says how many, why, and so. */
static void full_at_the_end(void **state)
{
    (void)state;
    node_init(&node, "end",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--sessions-in-memory=4", "--durability=drain", NULL});
    node_start(&node);
    make("a");
    ends_without_room("sessions could not be stored", 1);
    node_done(&node);
}

/* One of sessions whose turns are stored has lost nothing, and says no more than that. */
static void full_at_the_end_of_stored_turns(void **state)
{
    (void)state;
    up("end");
    node_start(&node);
    make("a");
    make("twin");
    ends_without_room("a session's last turns are stored without a snapshot", 0);
    node_start(&node);
    same_next("a", "twin");
    node_done(&node);
}

static int after(void **state)
{
    (void)state;
    node_abandon(&node);
    no_disk();
    return 0;
}

#define TEST(f) cmocka_unit_test_teardown(f, after)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(two_servers),
        TEST(no_folder),
        TEST(read_only),
        TEST(full_disk),
        TEST(full_disk_and_full_memory),
        TEST(files_that_may_not_grow),
        TEST(full_at_the_end),
        TEST(full_at_the_end_of_stored_turns),
    };
    return cmocka_run_group_tests_name("disk", tests, NULL, NULL);
}
