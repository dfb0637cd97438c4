/* longwork_test.c: the thread of long work: its order, its priority, and that the loop waits for
 * what is under way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/longwork.h"

struct job {
    struct sl_long_job job;
    char name;
    uv_sem_t *until; /* NULL: it does not wait */
    int priority;    /* of the thread that ran it */
    pid_t thread;
};

static struct {
    uv_loop_t loop;
    struct sl_longwork *work;
    char ran[64], done[64];
    size_t n_ran, n_done;
} f;

static int setup(void **state)
{
    (void)state;
    struct sl_error err;
    memset(&f, 0, sizeof f);
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(sl_longwork_open(&f.work, &f.loop, &err), SL_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sl_longwork_close(f.work);
    assert_int_equal(uv_run(&f.loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    return 0;
}

static void work(struct sl_long_job *j)
{
    struct job *t = (struct job *)(void *)j;
    if (t->until)
        uv_sem_wait(t->until);
    t->thread = gettid();
    t->priority = getpriority(PRIO_PROCESS, (id_t)t->thread);
    f.ran[f.n_ran++] = t->name;
}

static void done(struct sl_long_job *j)
{
    struct job *t = (struct job *)(void *)j;
    assert_int_not_equal(t->thread, gettid());
    f.done[f.n_done++] = t->name;
}

static void add(struct job *t, char name, size_t size, uv_sem_t *until)
{
    *t = (struct job){.job = {.work = work, .done = done}, .name = name, .until = until};
    sl_longwork_add(f.work, &t->job, size);
}

static void test_short_ones_pass_and_long_ones_get_their_turn(void **state)
{
    (void)state;
    struct job first, large, small[8];
    uv_sem_t go;
    assert_int_equal(uv_sem_init(&go, 0), 0);
    add(&first, '0', 0, &go);
    add(&large, 'L', 1000, NULL);
    for (int i = 0; i < 4; i++) /* all before it, in their order */
        add(&small[i], (char)('a' + i), 300, NULL);
    uv_sem_post(&go);
    assert_int_equal(uv_run(&f.loop, UV_RUN_DEFAULT), 0); /* until nothing is left */
    assert_string_equal(f.ran, "0abcdL");
    assert_string_equal(f.done, f.ran);
    memset(f.ran, 0, sizeof f.ran);
    f.n_ran = 0;
    add(&first, '0', 0, &go);
    add(&large, 'L', 1000, NULL);
    for (int i = 0; i < 8; i++) { /* each comes when the one before it runs */
        add(&small[i], (char)('a' + i), 300, &go);
        uv_sem_post(&go);
        for (size_t n = f.n_done; f.n_done == n;)
            uv_run(&f.loop, UV_RUN_ONCE);
    }
    uv_sem_post(&go);
    assert_int_equal(uv_run(&f.loop, UV_RUN_DEFAULT), 0);
    const char *at = strchr(f.ran, 'L');
    assert_non_null(at);
    assert_in_range(at - f.ran, 3, 6); /* after about as much as it brought itself */
    uv_sem_destroy(&go);
}

/* Also before those of the turn that is on, which came together. */
static void test_first_is_before_all_that_wait(void **state)
{
    (void)state;
    struct job begun, same[3], freeing;
    uv_sem_t go;
    assert_int_equal(uv_sem_init(&go, 0), 0);
    add(&begun, '0', 0, &go);
    for (int i = 0; i < 3; i++)
        add(&same[i], (char)('a' + i), 1000, &go);
    uv_sem_post(&go);
    while (f.n_done == 0)
        uv_run(&f.loop, UV_RUN_ONCE);
    uv_sem_post(&go);
    while (f.n_done == 1)
        uv_run(&f.loop, UV_RUN_ONCE);
    freeing = (struct job){.job = {.work = work, .done = done}, .name = 'F'};
    sl_longwork_add_first(f.work, &freeing.job); /* b is begun, or it is the next but for this */
    uv_sem_post(&go);
    uv_sem_post(&go);
    assert_int_equal(uv_run(&f.loop, UV_RUN_DEFAULT), 0);
    assert_true(!strcmp(f.ran, "0abFc") || !strcmp(f.ran, "0aFbc"));
    uv_sem_destroy(&go);
}

static void test_jobs_can_be_taken_back(void **state)
{
    (void)state;
    struct job first, gone, kept;
    uv_sem_t go;
    assert_int_equal(uv_sem_init(&go, 0), 0);
    add(&first, 'a', 1, &go);
    add(&gone, 'b', 2, NULL);
    add(&kept, 'c', 3, NULL);
    assert_true(sl_longwork_remove(f.work, &gone.job));
    assert_false(sl_longwork_remove(f.work, &gone.job));
    uv_sem_post(&go);
    assert_int_equal(uv_run(&f.loop, UV_RUN_DEFAULT), 0);
    assert_string_equal(f.done, "ac");
    uv_sem_destroy(&go);
}

static void test_its_priority_is_low(void **state)
{
    (void)state;
    struct job t;
    int own = getpriority(PRIO_PROCESS, (id_t)gettid());
    add(&t, 'a', 1, NULL);
    assert_int_equal(uv_run(&f.loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(t.priority, own + 10 < 19 ? own + 10 : 19);
    assert_int_equal(getpriority(PRIO_PROCESS, (id_t)gettid()), own);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_short_ones_pass_and_long_ones_get_their_turn),
        T(test_first_is_before_all_that_wait),
        T(test_jobs_can_be_taken_back),
        T(test_its_priority_is_low),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
