/* late_patch_test.c: metadata and time to live that are changed while a snapshot of the session is
 * being written: both are kept, whatever that snapshot's write had of them. The server is a part of
 * the test (inside.h), whose syncs therefore wait as long as it likes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
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
    pthread_mutex_unlock(&disk.lock);
    return next(fd);
}

int fsync(int fd)
{
    return sync_when_let("fsync", fd);
}

int fdatasync(int fd)
{
    return sync_when_let("fdatasync", fd);
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

/* --- the test ----------------------------------------------------------------------------------*/

#define TURN(id) "{\"session\":\"" id "\",\"prompt\":\"ab\",\"max_tokens\":3,\"ignore_eos\":true}"

static void start(void)
{
    static char model[300];
    snprintf(model, sizeof model, "--model=%s", seeded_bytes_model());
    assert_int_equal(
        inside_start("dir", false,
                     (const char *const[]){model, "--tokenizer=bytes", "--threads=1",
                                           "--sessions-in-memory=1", "--durability=drain",
                                           "--log-level=error", NULL}),
        0);
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
    start();
    talk_must("POST", "/v1/sessions", "{\"id\":\"old\",\"ttl_s\":3600}", 201);
    talk_must("POST", "/v1/sessions", "{\"id\":\"next\"}", 201);
    talk_must("POST", "/v1/generate", TURN("old"), 200);
    hold(true);
    int connection = talk_begin("POST", "/v1/generate", TURN("next"));
    until_held();
    talk_must("PATCH", "/v1/sessions/old", "{\"ttl_s\":0,\"metadata\":{\"k\":\"new\"}}", 200);
    hold(false);
    assert_true(talk_end(connection));
    assert_int_equal(inside.status, 200);
    assert_int_equal(inside_terminate(), 0);
    assert_int_equal(inside_start_again(), 0);
    must_be("\"metadata\":{\"k\":\"new\"}");
    must_be("\"expires_at\":null");
    assert_int_equal(inside_stop(), 0);
}

/* The same with somebody who waits for that snapshot: a pause returns when all of it is there. */
static void test_with_one_who_waits(void **state)
{
    (void)state;
    start();
    talk_must("POST", "/v1/sessions", "{\"id\":\"old\",\"ttl_s\":3600}", 201);
    talk_must("POST", "/v1/sessions", "{\"id\":\"next\"}", 201);
    talk_must("POST", "/v1/generate", TURN("old"), 200);
    hold(true);
    int connection = talk_begin("POST", "/v1/generate", TURN("next"));
    until_held();
    talk_must("PATCH", "/v1/sessions/old", "{\"ttl_s\":0}", 200);
    int pause = talk_begin("POST", "/v1/sessions/old/pause", "");
    hold(false);
    assert_true(talk_end(pause));
    assert_int_equal(inside.status, 200);
    assert_true(talk_end(connection));
    assert_int_equal(inside.status, 200);
    must_be("\"expires_at\":null");
    assert_int_equal(inside_terminate(), 0);
    assert_int_equal(inside_start_again(), 0);
    must_be("\"expires_at\":null");
    assert_int_equal(inside_stop(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_while_it_is_put_away),
        cmocka_unit_test(test_with_one_who_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
