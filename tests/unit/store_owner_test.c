/* store_owner_test.c: whose the files of a store are that take the place of others: those of the
 * server's user stay his, also where root repairs the store. */
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
#include "server/store/repair.h"
#include "tests/support/stores.h"

enum { SOMEBODY = 43210, SOME_GROUP = 43211, LOG_MAX = 1 << 20, SHARED = 0640 };

static struct shop st;
static struct sl_store_io io; /* the system's; a test takes from it what a user may not do */

static const char *path_of(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", st.path, name);
    return path;
}

static struct stat stat_of(const char *name)
{
    struct stat s;
    assert_int_equal(stat(path_of(name), &s), 0);
    return s;
}

static void expect_mode(const char *name, mode_t mode)
{
    assert_int_equal(stat_of(name).st_mode & 07777, mode);
}

/* The second turn of three in the log's own order is damaged. */
static void damage(void)
{
    static unsigned char log[LOG_MAX];
    FILE *f = fopen(path_of("log"), "r+b");
    assert_non_null(f);
    size_t n = fread(log, 1, sizeof log, f), n_turns = 0;
    uint64_t id;
    struct sl_record r;
    assert_int_equal(sl_log_header_read(log, n, "log", &id, NULL), SL_OK);
    for (size_t at = SL_LOG_HEADER; at < n; at += sl_record_size(&r)) {
        assert_true(sl_record_read(&r, log + at, n - at, id, at));
        if (r.kind != SL_RECORD_TURN || ++n_turns != 2)
            continue;
        assert_int_equal(fseek(f, (long)at + 8, SEEK_SET), 0);
        assert_int_equal(fputc(log[at + 8] ^ 1, f), log[at + 8] ^ 1);
        assert_int_equal(fclose(f), 0);
        return;
    }
    fail_msg("there are not two turns");
}

static int make(void **state)
{
    (void)state;
    io = sl_store_io_system;
    shop_init(&st, &io, 0);
    shop_must_open(&st);
    do_create(&st, 0);
    for (int k = 0; k < 3; k++) {
        do_turn(&st, 0, false);
        shop_run(&st);
    }
    shop_close(&st);
    damage();
    return st.n_failed != 0;
}

static int unmake(void **state)
{
    (void)state;
    shop_done(&st);
    return 0;
}

static bool take_line(void *arg, const char *text)
{
    (void)arg;
    (void)text;
    return true;
}

static enum sl_code mend(bool repair, struct sl_error *err)
{
    struct sl_repair_report r;
    return sl_store_repair(st.path, &io, repair, take_line, NULL, &r, err);
}

static void must_mend(void)
{
    struct sl_error err;
    if (mend(true, &err))
        fail_msg("%s", err.message);
}

/* --- another user's store ----------------------------------------------------------------------
 */

static int give_away(const char *path, const struct stat *s, int kind, struct FTW *f)
{
    (void)s;
    (void)kind;
    (void)f;
    return lchown(path, SOMEBODY, SOME_GROUP);
}

/* The whole folder becomes somebody's. */
static bool is_somebodys(void)
{
    char folder[160];
    shop_folder(&st, folder, sizeof folder);
    if (geteuid() == 0 && nftw(folder, give_away, 16, FTW_PHYS) == 0)
        return true;
    print_message("skipped: a store of another user: this one may not give files away\n");
    return false;
}

/* As a server of that user does. */
static bool somebody_can_open_it(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct sl_error err;
        if (setresgid(SOME_GROUP, SOME_GROUP, SOME_GROUP) != 0 ||
            setresuid(SOMEBODY, SOMEBODY, SOMEBODY) != 0)
            _exit(2);
        enum sl_code c = mend(false, &err);
        if (c)
            print_message("%s\n", err.message);
        _exit(c ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void expect_somebodys(const char *name)
{
    struct stat s = stat_of(name);
    assert_int_equal(s.st_uid, SOMEBODY);
    assert_int_equal(s.st_gid, SOME_GROUP);
}

static void test_root_repairs(void **state)
{
    (void)state;
    if (!is_somebodys())
        skip();
    must_mend();
    assert_true(somebody_can_open_it());
    expect_somebodys("log");
    expect_mode("log", 0600);
}

/* In a copy of a store it may be missing; also who only checks makes it. */
static void test_root_makes_the_lock(void **state)
{
    (void)state;
    struct sl_error err;
    if (!is_somebodys())
        skip();
    assert_int_equal(unlink(path_of("lock")), 0);
    assert_int_equal(mend(false, &err), SL_OK);
    assert_true(somebody_can_open_it());
    expect_somebodys("lock");
}

/* --- what may be refused -----------------------------------------------------------------------
 */

static int refuse_mode(int fd, mode_t mode)
{
    (void)fd;
    (void)mode;
    errno = EPERM;
    return -1;
}

static void share(const char *name)
{
    assert_int_equal(chmod(path_of(name), SHARED), 0);
}

static void test_modes_stay(void **state)
{
    (void)state;
    share("log");
    share("format");
    assert_int_equal(unlink(path_of("lock")), 0);
    must_mend();
    expect_mode("log", SHARED);
    expect_mode("lock", SHARED);
}

static int count_entry(void *arg, const char *name)
{
    (void)name;
    ++*(size_t *)arg;
    return 0;
}

static size_t entries(void)
{
    size_t n = 0;
    int fd = sl_io_open_root(&io, st.path);
    assert_true(fd >= 0);
    assert_int_equal(io.list(fd, count_entry, &n), 0);
    close(fd);
    return n;
}

static void expect_refusal(const char *name)
{
    struct sl_error err;
    struct stat before = stat_of("log");
    size_t n = entries();
    io.chmod = refuse_mode;
    assert_int_equal(mend(true, &err), SL_E_IO);
    if (!strstr(err.message, "giving owner, group and mode of") || !strstr(err.message, name) ||
        !strstr(err.message, "Operation not permitted"))
        fail_msg("it says: %s", err.message);
    assert_int_equal(entries(), n);
    assert_int_equal(stat_of("log").st_ino, before.st_ino);
    io.chmod = fchmod;
}

/* Then nothing is changed, and the old log is not kept twice. */
static void test_a_repair_that_is_refused(void **state)
{
    (void)state;
    share("log");
    expect_refusal("/log.new: ");
    share("format");
    assert_int_equal(unlink(path_of("lock")), 0);
    expect_refusal("/lock: ");
    must_mend();
    expect_mode("log", SHARED);
}

/* --- the server's own rewrites -----------------------------------------------------------------
 */

static uint64_t n_rewrites(void)
{
    struct sl_store_stats s;
    sl_store_stats(st.store, &s);
    return s.rewrites;
}

static void rewritten(void)
{
    enum { ENOUGH = 1000 };
    uint64_t before = n_rewrites();
    for (int k = 0; n_rewrites() == before; k++) {
        assert_true(k < ENOUGH);
        do_patch(&st, 1);
        shop_run(&st);
    }
}

/* A server goes on with a log of its own where it may not give it away: who shares a store by its
 * group cannot. */
static void test_a_server_rewrites(void **state)
{
    (void)state;
    shop_done(&st);
    shop_init(&st, &io, 2000);
    shop_must_open(&st);
    do_create(&st, 1);
    share("log");
    rewritten();
    expect_mode("log", SHARED);
    io.chmod = refuse_mode;
    rewritten();
    expect_mode("log", 0600);
    assert_int_equal(st.n_failed, 0);
    shop_close(&st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    stores_quiet = getenv("NOISY") == NULL;
#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)
    const struct CMUnitTest tests[] = {
        TEST(test_root_repairs),      TEST(test_root_makes_the_lock),
        TEST(test_modes_stay),        TEST(test_a_repair_that_is_refused),
        TEST(test_a_server_rewrites),
    };
    return cmocka_run_group_tests_name("store_owner", tests, NULL, NULL);
}
