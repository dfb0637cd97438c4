/* slow_disk_test.c: what comes while something of a session is being written. What is changed then
 * is kept, whatever that write had of it; what is being made is not there for others before it is
 * written. The server is a part of the test (inside.h), whose syncs therefore wait as long as it
 * likes, and fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/api.h"
#include "tests/support/inside.h"

/* --- the disk ----------------------------------------------------------------------------------*/

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool holds, held; /* syncs wait; one does */
    bool fails;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int sync_when_let(const char *name, int fd)
{
    int (*next)(int) = (int (*)(int))(uintptr_t)dlsym(RTLD_NEXT, name);
    pthread_mutex_lock(&disk.lock);
    while (disk.holds) {
        disk.held = true;
        pthread_cond_broadcast(&disk.changed);
        pthread_cond_wait(&disk.changed, &disk.lock);
    }
    bool fails = disk.fails;
    pthread_mutex_unlock(&disk.lock);
    if (fails)
        errno = ENOSPC;
    return fails ? -1 : next(fd);
}

int fsync(int fd)
{
    return sync_when_let("fsync", fd);
}

int fdatasync(int fd)
{
    return sync_when_let("fdatasync", fd);
}

static void fail_syncs(bool on)
{
    pthread_mutex_lock(&disk.lock);
    disk.fails = on;
    pthread_mutex_unlock(&disk.lock);
}

static void hold(bool on)
{
    pthread_mutex_lock(&disk.lock);
    disk.holds = on;
    disk.held = false;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

static void until_held(void)
{
    enum { DEADLINE_S = 60 };
    struct timespec deadline;
    int e = 0;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    pthread_mutex_lock(&disk.lock);
    while (!disk.held && !e)
        e = pthread_cond_timedwait(&disk.changed, &disk.lock, &deadline);
    pthread_mutex_unlock(&disk.lock);
    assert_int_equal(e, 0);
}

/* --- changed meanwhile ---------------------------------------------------------------------------
 */

#define TURN(id) "{\"session\":\"" id "\",\"prompt\":\"ab\",\"max_tokens\":3,\"ignore_eos\":true}"

static void start_with(const char *places, const char *durability)
{
    static char model[300];
    snprintf(model, sizeof model, "--model=%s", seeded_bytes_model());
    assert_int_equal(
        inside_start("dir", false,
                     (const char *const[]){model, "--tokenizer=bytes", "--threads=1", places,
                                           durability, "--log-level=error", NULL}),
        0);
}

/* One place, which "old" has; it had a turn, of which the store knows nothing. */
static void start_with_two(void)
{
    start_with("--sessions-in-memory=1", "--durability=drain");
    talk_must("POST", "/v1/sessions", "{\"id\":\"old\",\"ttl_s\":3600}", 201);
    talk_must("POST", "/v1/sessions", "{\"id\":\"next\"}", 201);
    talk_must("POST", "/v1/generate", TURN("old"), 200);
}

/* "next" needs that place; what there is of "old" is being written. The turn of "next". */
static int begin_to_put_away(void)
{
    hold(true);
    int connection = talk_begin("POST", "/v1/generate", TURN("next"));
    until_held();
    return connection;
}

static void start_again(void)
{
    assert_int_equal(inside_terminate(), 0);
    assert_int_equal(inside_start_again(), 0);
}

static void must_be(const char *part)
{
    talk_must("GET", "/v1/sessions/old", "", 200);
    if (!strstr(inside.reply, part))
        fail_msg("'%s' is not in: %s", part, inside.reply);
}

/* "old" is put away because its place is needed; the drain then finds nothing of it in memory. */
static void test_while_it_is_put_away(void **state)
{
    (void)state;
    start_with_two();
    int connection = begin_to_put_away();
    talk_must("PATCH", "/v1/sessions/old", "{\"ttl_s\":0,\"metadata\":{\"k\":\"new\"}}", 200);
    hold(false);
    assert_true(talk_end(connection));
    assert_int_equal(inside.status, 200);
    start_again();
    must_be("\"metadata\":{\"k\":\"new\"}");
    must_be("\"expires_at\":null");
    assert_int_equal(inside_stop(), 0);
}

/* The same with somebody who waits for that snapshot: a pause returns when all of it is there. */
static void test_with_one_who_waits(void **state)
{
    (void)state;
    start_with_two();
    int connection = begin_to_put_away();
    talk_must("PATCH", "/v1/sessions/old", "{\"ttl_s\":0}", 200);
    int pause = talk_begin("POST", "/v1/sessions/old/pause", "");
    hold(false);
    assert_true(talk_end(pause));
    assert_int_equal(inside.status, 200);
    assert_true(talk_end(connection));
    assert_int_equal(inside.status, 200);
    must_be("\"expires_at\":null");
    start_again();
    must_be("\"expires_at\":null");
    assert_int_equal(inside_stop(), 0);
}

/* Its snapshot is there, and what is new of its head cannot be written: who waits for that is told,
 * and it stays in memory. */
static void test_when_a_head_cannot_be_written(void **state)
{
    (void)state;
    start_with_two();
    talk_must("POST", "/v1/sessions/old/checkpoints", "{\"name\":\"x\"}", 201);
    talk_must("PATCH", "/v1/sessions/old", "{\"metadata\":{\"k\":\"new\"}}", 200);
    int connection = begin_to_put_away();
    int pause = talk_begin("POST", "/v1/sessions/old/pause", "");
    talk_must("GET", "/v1/models", "", 200); /* the pause has been read by now */
    fail_syncs(true);
    hold(false);
    assert_true(talk_end(pause));
    assert_int_equal(inside.status, 503);
    assert_true(talk_end(connection));
    assert_int_equal(inside.status, 503);
    fail_syncs(false);
    must_be("\"residency\":\"memory\"");
    start_again();
    must_be("\"metadata\":{\"k\":\"new\"}");
    assert_int_equal(inside_stop(), 0);
}

/* --- made meanwhile ------------------------------------------------------------------------------
 */

#define MAKE "{\"id\":\"new\",\"prompt\":\"My name is Alice\"}"

static int begin_to_make(void)
{
    hold(true);
    int connection = talk_begin("POST", "/v1/sessions", MAKE);
    until_held();
    return connection;
}

/* Its first prompt is read and not written. Nothing of it is given or copied: it may not come to
 * be. */
static void test_what_is_being_made(void **state)
{
    (void)state;
    start_with("--sessions-in-memory=2", "--durability=turn");
    int make = begin_to_make();
    talk_must("POST", "/v1/sessions/new/fork", "{\"id\":\"copy\"}", 409);
    assert_non_null(strstr(inside.reply, "it is being made"));
    talk_must("POST", "/v1/sessions", "{\"id\":\"copy\",\"from\":{\"session\":\"new\"}}", 409);
    talk_must("GET", "/v1/sessions/new/snapshot", "", 409);
    talk_must("GET", "/v1/sessions/new/memory", "", 409);
    fail_syncs(true);
    hold(false);
    assert_true(talk_end(make));
    assert_int_equal(inside.status, 503);
    fail_syncs(false);
    talk_must("GET", "/v1/sessions/new", "", 404);
    talk_must("GET", "/v1/sessions/copy", "", 404);
    talk_must("POST", "/v1/sessions", MAKE, 201);
    talk_must("POST", "/v1/sessions/new/fork", "{\"id\":\"copy\"}", 201);
    assert_int_equal(inside_stop(), 0);
}

/* Its maker goes while it is being written: he cannot know that it is there, so it is not. */
static void test_a_maker_who_goes(void **state)
{
    (void)state;
    start_with("--sessions-in-memory=2", "--durability=turn");
    double aborted = talk_metric("slate_turns_aborted_total");
    int make = begin_to_make();
    assert_int_equal(close(make), 0);
    talk_until("slate_turns_aborted_total", aborted + 1);
    hold(false);
    talk_until("slate_requests_committing", 0);
    talk_until("slate_sessions", 0);
    talk_must("POST", "/v1/sessions", MAKE, 201);
    assert_int_equal(inside_stop(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_while_it_is_put_away),
        cmocka_unit_test(test_with_one_who_waits),
        cmocka_unit_test(test_when_a_head_cannot_be_written),
        cmocka_unit_test(test_what_is_being_made),
        cmocka_unit_test(test_a_maker_who_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
