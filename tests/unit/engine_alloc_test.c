/* engine_alloc_test.c: the engine's threads do not allocate after start. This program has its own
 * malloc, which counts what other threads than the main one ask for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/turns.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0 /* the sanitizer has its own */
#else
#define OWN_MALLOC 1
#endif

static _Thread_local bool is_main;
static _Atomic bool armed;
static _Atomic unsigned long n_foreign;

#if OWN_MALLOC
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t align, size_t n);
int posix_memalign(void **ret, size_t align, size_t n);

static void note(void)
{
    if (!is_main && atomic_load(&armed))
        atomic_fetch_add(&n_foreign, 1);
}

void *malloc(size_t n)
{
    note();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    note();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    note();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    note();
    return __libc_memalign(align, n);
}

int posix_memalign(void **ret, size_t align, size_t n)
{
    note();
    *ret = __libc_memalign(align, n);
    return *ret ? 0 : 12;
}
#endif

/* Prefill in several chunks, decode, stops that are found and cut, log probabilities, penalties, a
 * cancel: everything that a step can do. */
static void run_all_kinds(struct stand *s)
{
    enum { N = 12 };
    struct outcome o[N];
    struct sl_stop stop = {(const unsigned char *)"the", 3};
    size_t n;
    uint32_t *ids = stand_ids(s, "User: where do i live?\n\nAssistant:", &n);
    uint32_t *many = malloc(100 * n * sizeof *many);
    for (size_t i = 0; i < 100; i++)
        memcpy(many + i * n, ids, n * sizeof *ids);
    for (size_t i = 0; i < N; i++) {
        struct sl_turn_spec spec = {.prompt = i % 3 ? ids : many,
                                    .n_prompt = i % 3 ? n : 100 * n,
                                    .max_tokens = 30,
                                    .sampling = SL_SAMPLING_DEFAULT,
                                    .stops = &stop,
                                    .n_stops = i % 2,
                                    .ignore_eos = true,
                                    .logprobs = i % 4 ? -1 : 5,
                                    .keep_state = true};
        spec.sampling.seed = i;
        spec.sampling.frequency_penalty = 0.3f;
        spec.sampling.penalty_decay = 0.99f;
        spec.sampling.top_p = i % 2 ? 0.5f : 1;
        spec.sampling.top_k = i % 3 ? 40 : 0;
        spec.sampling.typical_p = i % 5 ? 1 : 0.8f;
        spec.sampling.min_p = i % 4 ? 0 : 0.05f;
        stand_start(s, &spec, NULL, &o[i]);
    }
    sl_engine_cancel(s->engine, o[0].turn, SL_FINISH_CANCELLED);
    stand_finish(s, o, N);
    for (size_t i = 0; i < N; i++)
        outcome_done(s, &o[i]);
    free(many);
    free(ids);
}

static void test_nothing_is_allocated_after_start(void **state)
{
    (void)state;
    if (!OWN_MALLOC)
        skip();
    struct stand s;
    is_main = true;
    stand_open(&s, NULL, &(struct sl_engine_options){.n_threads = 3, .max_running = 16});
    run_all_kinds(&s);
    atomic_store(&armed, true);
    run_all_kinds(&s);
    atomic_store(&armed, false);
    assert_int_equal(atomic_load(&n_foreign), 0);
    stand_close(&s);
}

/* The count is not 0 because nobody counts. */
static void *allocate(void *arg)
{
    (void)arg;
    return malloc(10);
}

static void test_the_count_counts(void **state)
{
    (void)state;
    if (!OWN_MALLOC)
        skip();
    pthread_t t;
    void *p;
    atomic_store(&armed, true);
    assert_int_equal(pthread_create(&t, NULL, allocate, NULL), 0);
    pthread_join(t, &p);
    atomic_store(&armed, false);
    assert_in_range(atomic_load(&n_foreign), 1, 10);
    free(p);
}

int main(void)
{
    is_main = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_allocated_after_start),
        cmocka_unit_test(test_the_count_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
