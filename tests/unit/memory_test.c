/* memory_test.c: norms, effective ranks and half-lives against what theory says of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "slate/memory.h"
#include "tests/support/rules.h"
#include "tests/support/runner.h"

enum { N = 64, HEADS_MAX = 64 };

static const struct rule *rule_of(const char *arch)
{
    for (size_t i = 0; rules[i].title; i++)
        if (strcmp(rules[i].arch, arch) == 0)
            return &rules[i];
    fail_msg("no rule %s", arch);
    return NULL;
}

static uint32_t token_at(const struct sl_model *m, size_t i)
{
    return (uint32_t)((i * 7919 + 13) % sl_model_info(m)->vocab_size);
}

/* A state after n tokens. */
static void *state_after(const struct sl_model *m, size_t n)
{
    struct runner r;
    void *state = runner_state(m);
    runner_open(&r, m, 1, 1, 1);
    for (size_t i = 0; i < n; i++) {
        uint32_t token = token_at(m, i);
        runner_feed(&r, state, &token, 1, 1, NULL);
    }
    runner_close(&r);
    return state;
}

static void half_lives(const struct sl_model *m, const void *state, struct sl_memory_head *h)
{
    uint32_t tokens[N];
    struct sl_error err;
    for (size_t i = 0; i < N; i++)
        tokens[i] = token_at(m, 100 + i);
    assert_int_equal(sl_memory_half_lives(m, state, tokens, N, N, h, &err), SL_OK);
}

/* γ_h = 1 - 2^(-5-h), whatever is fed. */
static void test_half_lives_of_retnet(void **state)
{
    (void)state;
    struct sl_model *m = rule_open(rule_of("retnet"), NULL);
    struct sl_memory_head h[HEADS_MAX];
    size_t n = sl_memory_heads(m);
    assert_in_range(n, 1, HEADS_MAX);
    for (size_t age = 0; age < 60; age += 59) {
        void *s = state_after(m, age);
        assert_int_equal(sl_memory_measure(m, s, h, NULL), SL_OK);
        half_lives(m, s, h);
        for (size_t i = 0; i < n; i++) {
            double want = -1 / log2(1 - ldexp(1, -5 - (int)h[i].head));
            assert_true(fabs(h[i].half_life - want) < 2e-3 * want);
        }
        sl_free(s);
    }
    sl_model_close(m);
}

/* It adds and never forgets; a delta rule erases what its keys meet. */
static void test_half_lives_of_the_additive_and_the_delta_rule(void **state)
{
    (void)state;
    static const char *const archs[] = {"linear", "delta_net"};
    for (int k = 0; k < 2; k++) {
        struct sl_model *m = rule_open(rule_of(archs[k]), NULL);
        struct sl_memory_head h[HEADS_MAX];
        void *s = state_after(m, 10);
        assert_int_equal(sl_memory_measure(m, s, h, NULL), SL_OK);
        half_lives(m, s, h);
        for (size_t i = 0; i < sl_memory_heads(m); i++) {
            if (k == 0)
                assert_true(isinf(h[i].half_life));
            else
                assert_true(h[i].half_life > 0 && h[i].half_life < 1e4);
        }
        sl_free(s);
        sl_model_close(m);
    }
}

/* A matrix with r equal singular values has the effective rank r; one of a single product k vᵀ has
 * 1; the norm is what it is. */
static void test_norm_and_rank(void **state)
{
    (void)state;
    struct sl_model *m = rule_open(rule_of("retnet"), NULL);
    struct sl_memory_head h[HEADS_MAX];
    void *s = runner_state(m);
    assert_int_equal(sl_memory_measure(m, s, h, NULL), SL_OK);
    for (size_t i = 0; i < sl_memory_heads(m); i++)
        assert_true(h[i].norm == 0 && h[i].effective_rank == 0 && isnan(h[i].half_life));
    const struct sl_state_tensor *t = runner_tensor(m, "layers.0.mixer.state");
    float *x = (float *)(void *)((unsigned char *)s + t->offset);
    size_t rows = t->shape[1], cols = t->shape[2];
    assert_true(rows >= 3 && cols >= 3);
    for (size_t i = 0; i < 3; i++)
        x[i * cols + i] = -2; /* head 0: three directions */
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            x[rows * cols + i * cols + j] = (float)(i + 1) * (float)(j + 2); /* head 1: one */
    assert_int_equal(sl_memory_measure(m, s, h, NULL), SL_OK);
    assert_int_equal(h[0].rows, rows);
    assert_int_equal(h[0].cols, cols);
    assert_true(fabs(h[0].norm - sqrt(12)) < 1e-12);
    assert_true(fabs(h[0].effective_rank - 3) < 1e-9);
    assert_true(fabs(h[1].effective_rank - 1) < 1e-6);
    x[5] = NAN;
    struct sl_error err;
    assert_int_equal(sl_memory_measure(m, s, h, &err), SL_E_MODEL_NOT_FINITE);
    assert_non_null(strstr(err.message, "layer 0, head 0"));
    sl_free(s);
    sl_model_close(m);
}

/* Every rule has matrices, measuring leaves the state alone, and without memory it says so. */
static void test_every_rule(void **state)
{
    (void)state;
    for (size_t i = 0; rules[i].title; i++) {
        struct sl_model *m = rule_open(&rules[i], NULL);
        struct sl_memory_head h[HEADS_MAX];
        size_t n = sl_memory_heads(m), bytes = sl_model_info(m)->state_bytes;
        void *s = state_after(m, 20), *before = sl_aligned_calloc(bytes);
        assert_in_range(n, sl_model_info(m)->n_layers, HEADS_MAX);
        memcpy(before, s, bytes);
        assert_int_equal(sl_memory_measure(m, s, h, NULL), SL_OK);
        half_lives(m, s, h);
        assert_memory_equal(before, s, bytes);
        for (size_t k = 0; k < n; k++) {
            double side = (double)(h[k].rows < h[k].cols ? h[k].rows : h[k].cols);
            if (!(h[k].norm > 0 && h[k].half_life > 0))
                fail_msg("%s: layer %zu, head %zu: norm %g, half-life %g", rules[i].title,
                         h[k].layer, h[k].head, h[k].norm, h[k].half_life);
            assert_true(h[k].effective_rank >= 1 - 1e-9 && h[k].effective_rank <= side + 1e-9);
        }
        sl_free(before);
        sl_free(s);
        sl_model_close(m);
    }
}

/* A model with a table of positions: as far as that, and no further. */
static void test_the_end_of_positions(void **state)
{
    (void)state;
    struct sl_model *m = rule_open(rule_of("performer"), NULL);
    struct sl_memory_head h[HEADS_MAX];
    size_t max = sl_model_info(m)->max_tokens;
    uint32_t token = 1;
    struct sl_error err;
    assert_true(max > 8);
    void *s = state_after(m, max - 3);
    assert_int_equal(sl_model_room(m, s), 3);
    assert_int_equal(sl_memory_half_lives(m, s, &token, 1, 3, h, &err), SL_OK);
    assert_int_equal(sl_memory_half_lives(m, s, &token, 1, 4, h, &err), SL_E_CONTEXT_EXCEEDED);
    assert_non_null(strstr(err.message, "3 more positions"));
    sl_free(s);
    sl_model_close(m);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct sl_model *m = rule_open(rule_of("retnet"), NULL);
    struct sl_memory_head h[HEADS_MAX];
    uint32_t token = 1;
    void *s = runner_state(m);
    enum sl_code c = SL_E_NO_MEMORY;
    size_t n_failed = 0;
    for (int64_t n = 0; c; n++) {
        struct sl_error err;
        assert_true(n < 100);
        sl_mem_fail_after(n);
        c = sl_memory_measure(m, s, h, &err);
        if (!c)
            c = sl_memory_half_lives(m, s, &token, 1, 4, h, &err);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || c == SL_E_NO_MEMORY);
        n_failed += c != SL_OK;
    }
    assert_true(n_failed > 5);
    sl_free(s);
    sl_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_and_rank),
        cmocka_unit_test(test_half_lives_of_retnet),
        cmocka_unit_test(test_half_lives_of_the_additive_and_the_delta_rule),
        cmocka_unit_test(test_every_rule),
        cmocka_unit_test(test_the_end_of_positions),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
