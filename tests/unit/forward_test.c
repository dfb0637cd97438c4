/* forward_test.c: the forward pass on seeded models: against a slow version in double precision,
 * and promise 2: a session's bits depend on nothing but its own tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/among.h"
#include "tests/support/runner.h"
#include "tests/support/rwkv7_slow.h"
#include "tests/support/seeded.h"
#include "tests/support/tables.h"

enum { T = 70, OTHERS_MAX = AMONG_MAX, MAX_ROWS = 256 };

static const struct seeded_shape odd = SEEDED_ODD;
/* The layers are alike: under a sanitizer one of them tells as much, and in minutes less. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { BIG_LAYERS = 1, LONG = 20000 };
#else
enum { BIG_LAYERS = 12, LONG = 100000 };
#endif

static const struct seeded_shape big = {.n_layers = BIG_LAYERS,
                                        .d_model = 768,
                                        .head_size = 64,
                                        .d_ffn = 3072,
                                        .vocab_size = 4096,
                                        .rank_w = 64,
                                        .rank_a = 64,
                                        .rank_v = 32,
                                        .rank_g = 128,
                                        .dtype = SL_DTYPE_F16,
                                        .seed = 3};

/* --- against the slow one -----------------------------------------------------------------------
 */

static void compare(const char *what, const float *got, const double *want, size_t n, double rtol)
{
    double largest = 0, worst = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        if (!(e <= rtol * largest))
            fail_msg("%s[%zu]: %g, should be %g (largest %g)", what, i, (double)got[i], want[i],
                     largest);
        worst = fmax(worst, e);
    }
    (void)worst;
}

static void compare_states(const struct sl_model *m, const struct slow *slow,
                           const unsigned char *state)
{
    const struct sl_model_info *info = sl_model_info(m);
    size_t n = info->head_size, all = info->n_heads * n * n;
    double *turned = malloc(all * sizeof *turned);
    for (size_t l = 0; l < info->n_layers; l++) {
        char name[64];
        const double *s = slow_state(slow, l);
        for (size_t i = 0; i < all; i++) { /* [h][value][key] -> [h][key][value] */
            size_t h = i / (n * n), k = i / n % n, v = i % n;
            turned[i] = s[(h * n + v) * n + k];
        }
        (void)snprintf(name, sizeof name, "layers.%zu.mixer.state", l);
        const float *got = (const float *)(const void *)(state + runner_tensor(m, name)->offset);
        compare(name, got, turned, all, 1e-4);
        (void)snprintf(name, sizeof name, "layers.%zu.mixer.shift", l);
        got = (const float *)(const void *)(state + runner_tensor(m, name)->offset);
        compare(name, got, slow_shift(slow, l, false), info->d_model, 1e-4);
        (void)snprintf(name, sizeof name, "layers.%zu.ffn.shift", l);
        got = (const float *)(const void *)(state + runner_tensor(m, name)->offset);
        compare(name, got, slow_shift(slow, l, true), info->d_model, 1e-4);
    }
    free(turned);
}

static void check_slow(const struct seeded_shape *shape, size_t n_tokens)
{
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_error err;
    struct sl_tensors *t = NULL;
    struct sl_model *m = seeded_open(shape, NULL, &bytes, &n_bytes);
    assert_int_equal(sl_tensors_open_memory(&t, bytes, n_bytes, "seeded", &err), SL_OK);
    struct slow *slow = slow_open(t);
    struct runner r;
    runner_open(&r, m, 2, MAX_ROWS, 1);
    uint32_t tokens[T];
    for (size_t i = 0; i < n_tokens; i++)
        tokens[i] = token_of(m, 0, i);
    void *state = runner_state(m);
    float *logits = runner_logits(m, n_tokens);
    double *want = malloc(shape->vocab_size * sizeof *want);
    runner_feed(&r, state, tokens, n_tokens, 7, logits);
    for (size_t i = 0; i < n_tokens; i++) {
        slow_feed(slow, tokens[i], want);
        char what[64];
        (void)snprintf(what, sizeof what, "logits of row %zu", i);
        compare(what, logits + i * r.stride, want, shape->vocab_size, 2e-5);
    }
    compare_states(m, slow, state);
    free(want);
    sl_free(logits);
    sl_free(state);
    runner_close(&r);
    slow_close(slow);
    sl_tensors_close(t);
    sl_model_close(m);
    free(bytes);
}

static void test_slow(void **unused)
{
    (void)unused;
    const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    for (size_t i = 0; i < 3; i++) {
        struct seeded_shape s = odd;
        s.dtype = types[i];
        check_slow(&s, 40);
    }
    struct seeded_shape one_head = odd; /* heads of 48, ranks of 1 and 17, a wide feed-forward */
    one_head.head_size = 48;
    one_head.rank_w = 1;
    one_head.rank_g = 17;
    one_head.d_ffn = 401;
    one_head.n_layers = 1;
    check_slow(&one_head, 20);
    struct seeded_shape few = big;
    few.n_layers = 1;
    few.vocab_size = 64;
    check_slow(&few, 6);
}

/* --- promise 2 ----------------------------------------------------------------------------------
 */

static void check_invariance(const struct seeded_shape *shape)
{
    static const size_t n_others[] = {0, 1, 6, 32}, chunks[] = {1, 5, 64, T};
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_model *m = seeded_open(shape, NULL, &bytes, &n_bytes);
    struct hashes want = {0, 0};
    for (size_t threads = 1; threads <= 2; threads++) {
        struct runner r;
        runner_open(&r, m, threads, MAX_ROWS, OTHERS_MAX + 1);
        for (size_t i = 0; i < 4; i++)
            for (size_t c = 0; c < 4; c++) {
                struct others o;
                others_open(&o, m, n_others[i]);
                struct hashes got = run_among(&r, chunks[c], T, &o);
                others_close(&o);
                if (threads == 1 && i == 0 && c == 0)
                    want = got;
                char what[80];
                (void)snprintf(what, sizeof what, "%zu threads, %zu others, chunks of %zu", threads,
                               n_others[i], chunks[c]);
                assert_same(got, want, what);
            }
        runner_close(&r);
    }
    sl_model_close(m);
    free(bytes);
}

static void test_invariance_odd(void **unused)
{
    (void)unused;
    check_invariance(&odd);
}

static void test_invariance_big(void **unused)
{
    (void)unused;
    check_invariance(&big);
}

/* Steps of about as many rows as go through a layer at once, and a few times as many. */
static void test_long_steps(void **unused)
{
    (void)unused;
    static const size_t lengths[] = {95, 96, 97, 180, 192, 193, 230};
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_model *m = seeded_open(&odd, NULL, &bytes, &n_bytes);
    struct runner r;
    runner_open(&r, m, 2, MAX_ROWS, OTHERS_MAX + 1);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const size_t n = lengths[i];
        struct others none = {.n = 0};
        struct hashes want = run_among(&r, 7, n, &none);
        for (size_t n_others = 0; n_others <= 7; n_others += 7) {
            struct others o;
            others_open(&o, m, n_others);
            char what[64];
            (void)snprintf(what, sizeof what, "%zu rows and %zu others", n, n_others);
            assert_same(run_among(&r, n, n, &o), want, what);
            others_close(&o);
        }
    }
    runner_close(&r);
    sl_model_close(m);
    free(bytes);
}

/* More threads than there is work of some kind. */
static void test_many_threads(void **unused)
{
    (void)unused;
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_model *m = seeded_open(&odd, NULL, &bytes, &n_bytes);
    struct hashes got[2];
    for (size_t i = 0; i < 2; i++) {
        struct runner r;
        struct others none = {.n = 0};
        runner_open(&r, m, i == 0 ? 1 : 7, MAX_ROWS, 1);
        got[i] = run_among(&r, 9, 20, &none);
        runner_close(&r);
    }
    assert_same(got[0], got[1], "7 threads");
    sl_model_close(m);
    free(bytes);
}

static void check_tables(const struct seeded_shape *shape, size_t n_tokens)
{
    struct hashes want = {0, 0};
    for (const char *const *k = sl_kernels_names(); *k; k++) {
        unsigned char *bytes;
        size_t n_bytes;
        const struct sl_model_options opt = {.kernels = *k};
        struct sl_model *m = seeded_open(shape, &opt, &bytes, &n_bytes);
        assert_string_equal(sl_model_info(m)->kernels, *k);
        struct runner r;
        struct others o;
        runner_open(&r, m, 2, MAX_ROWS, OTHERS_MAX + 1);
        others_open(&o, m, 2);
        struct hashes got = run_among(&r, 5, n_tokens, &o);
        want = k == sl_kernels_names() ? got : want;
        assert_same(got, want, *k);
        others_close(&o);
        runner_close(&r);
        sl_model_close(m);
        free(bytes);
    }
}

static void test_tables(void **unused)
{
    (void)unused;
    struct seeded_shape s = odd;
    check_tables(&s, T);
    s.dtype = SL_DTYPE_F16;
    check_tables(&s, T);
    s.dtype = SL_DTYPE_BF16;
    check_tables(&s, T);
    s = big;
    s.n_layers = 1;
    check_tables(&s, 5);
}

/* --- the rest of the contract -------------------------------------------------------------------
 */

/* A neighbour whose state is not finite stays alone with it. */
static void test_nan_neighbour(void **unused)
{
    (void)unused;
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_model *m = seeded_open(&odd, NULL, &bytes, &n_bytes);
    struct runner r;
    struct others o;
    runner_open(&r, m, 2, MAX_ROWS, OTHERS_MAX + 1);
    others_open(&o, m, 2);
    struct hashes want = run_among(&r, 5, T, &o);
    others_close(&o);
    others_open(&o, m, 2);
    size_t n;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    for (size_t i = 0; i < n; i++)
        ((float *)(void *)((unsigned char *)o.states[1] + t[i].offset))[3] = i % 2 ? NAN : INFINITY;
    assert_same(run_among(&r, 5, T, &o), want, "beside NaN");
    assert_true(isnan(o.logits[1][0]));
    assert_true(isfinite(o.states[0] ? ((float *)o.states[0])[100] : NAN));
    others_close(&o);
    runner_close(&r);
    sl_model_close(m);
    free(bytes);
}

/* Counters have 64 bits, and nothing else looks at them. */
static void test_counter(void **unused)
{
    (void)unused;
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_model *m = seeded_open(&odd, NULL, &bytes, &n_bytes);
    struct runner r;
    runner_open(&r, m, 1, 16, 1);
    const uint32_t tokens[] = {1, 2, 3};
    struct sl_state_header *a = runner_state(m), *b = runner_state(m);
    float *la = runner_logits(m, 3), *lb = runner_logits(m, 3);
    assert_int_equal(a->tokens_seen, 0);
    b->tokens_seen = UINT64_C(0xfffffffe);
    runner_feed(&r, a, tokens, 3, 3, la);
    runner_feed(&r, b, tokens, 3, 2, lb);
    assert_true(b->tokens_seen == UINT64_C(0x100000001));
    assert_int_equal(a->tokens_seen, 3);
    assert_memory_equal(la, lb, 3 * r.stride * sizeof *la);
    b->tokens_seen = 3;
    assert_memory_equal(a, b, sl_model_info(m)->state_bytes);
    sl_free(la);
    sl_free(lb);
    sl_free(a);
    sl_free(b);
    runner_close(&r);
    sl_model_close(m);
    free(bytes);
}

/* Behind a row of logits the largest of each 64. */
static void check_tops(const struct sl_model *m, float *logits)
{
    const float *tops = sl_model_logits_tops(m, logits);
    size_t n = sl_model_info(m)->vocab_size;
    for (size_t i = 0; i < n; i += SL_TOPS) {
        float most = logits[i];
        for (size_t k = i + 1; k < n && k < i + SL_TOPS; k++)
            most = logits[k] > most ? logits[k] : most;
        assert_true(tops[i / SL_TOPS] == most);
    }
}

/* Logits come for the last n_logits tokens only, oldest first; no other memory is written. */
static void test_asked_logits(void **unused)
{
    (void)unused;
    enum { N = 9 };
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_model *m = seeded_open(&odd, NULL, &bytes, &n_bytes);
    struct runner r;
    runner_open(&r, m, 2, 2 * N, 2);
    uint32_t tokens[N];
    for (size_t i = 0; i < N; i++)
        tokens[i] = token_of(m, 0, i);
    void *state = runner_state(m), *other = runner_state(m);
    float *all = runner_logits(m, N), *some = runner_logits(m, 4);
    runner_feed(&r, state, tokens, N, N, all);
    sl_model_state_init(m, state);
    for (size_t i = 0; i < 4 * r.stride; i++)
        some[i] = -77;
    const struct sl_segment s[] = {
        {.state = other, .tokens = tokens, .n_tokens = N - 2},
        {.state = state, .tokens = tokens, .n_tokens = N, .logits = some, .n_logits = 3}};
    sl_forward_run(r.forward, s, 2);
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(some + i * r.stride, all + (N - 3 + i) * r.stride,
                            sl_model_info(m)->vocab_size * sizeof *all);
    for (size_t i = 3 * r.stride; i < 4 * r.stride; i++)
        assert_true(some[i] == -77);
    for (size_t i = 0; i < N; i++)
        check_tops(m, all + i * r.stride);
    sl_forward_run(r.forward, s, 0);
    sl_free(all);
    sl_free(some);
    sl_free(state);
    sl_free(other);
    runner_close(&r);
    sl_model_close(m);
    free(bytes);
}

/* Seeded models stay well-behaved, so that what is measured on them means something. */
static void test_long_run(void **unused)
{
    (void)unused;
    enum { N = LONG, CHUNK = 250 };
    unsigned char *bytes;
    size_t n_bytes;
    struct seeded_shape s = odd;
    s.n_layers = 2;
    s.vocab_size = 300;
    struct sl_model *m = seeded_open(&s, NULL, &bytes, &n_bytes);
    struct runner r;
    runner_open(&r, m, 2, CHUNK, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, CHUNK);
    uint32_t tokens[CHUNK];
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < N; i += CHUNK) {
        for (size_t t = 0; t < CHUNK; t++)
            tokens[t] = token_of(m, 0, i + t);
        runner_feed(&r, state, tokens, CHUNK, CHUNK, i % (40 * CHUNK) == 0 ? logits : NULL);
        double largest = 0;
        for (size_t v = 0; v < s.vocab_size; v++) {
            assert_true(isfinite(logits[v]));
            largest = fmax(largest, fabs((double)logits[v]));
        }
        low = fmin(low, largest);
        high = fmax(high, largest);
    }
    if (low < 4 || high > 12)
        fail_msg("the largest logits lie between %g and %g", low, high);
    assert_int_equal(((struct sl_state_header *)state)->tokens_seen, N);
    sl_free(logits);
    sl_free(state);
    runner_close(&r);
    sl_model_close(m);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here), cmocka_unit_test(test_slow),
        cmocka_unit_test(test_invariance_odd),   cmocka_unit_test(test_invariance_big),
        cmocka_unit_test(test_long_steps),       cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_tables),           cmocka_unit_test(test_nan_neighbour),
        cmocka_unit_test(test_counter),          cmocka_unit_test(test_asked_logits),
        cmocka_unit_test(test_long_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
