/* constant_work_test.c: a token costs the same whether the session has seen ten tokens or a million
 * million, by every memory rule: equal instruction counts, counted by valgrind's callgrind on this
 * program itself.
 *
 * All ages are measured in one run, on the same memory: libc's copies take an instruction more or
 * less by where memory happens to lie, and that differs from run to run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "tests/support/callgrind.h"
#include "tests/support/rules.h"
#include "tests/support/runner.h"

void measured_step(struct sl_forward *f, const struct sl_segment *s);

/* Alone in its function, so that callgrind can be told to count in here only. */
__attribute__((noinline)) void measured_step(struct sl_forward *f, const struct sl_segment *s)
{
    sl_forward_run(f, s, 1);
}

static const uint64_t ages[] = {10, 10, 1000000, 1000000000000}; /* the first one warms up */
enum { N_AGES = sizeof ages / sizeof *ages };

/* Every counter of a state: the header's and those of the rule. */
static void set_age(const struct sl_model *m, void *state, uint64_t age)
{
    size_t n;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    ((struct sl_state_header *)state)->tokens_seen = age;
    for (size_t i = 0; i < n; i++)
        if (t[i].dtype == SL_DTYPE_I64)
            memcpy((unsigned char *)state + t[i].offset, &age, sizeof age);
}

/* One token on a state that says it has seen so many, for each age. */
static int measure_model(struct sl_model *m)
{
    struct sl_workers *w;
    struct sl_forward *f;
    uint32_t token = 299;
    int bad = 0;
    if (sl_workers_open(&w, 1, NULL) || sl_forward_open(&f, m, w, 1, 1, NULL))
        return 1;
    void *state = sl_aligned_calloc(sl_model_info(m)->state_bytes);
    float *logits = sl_aligned_calloc(sl_model_logits_stride(m) * sizeof *logits);
    struct sl_segment s = {
        .state = state, .tokens = &token, .n_tokens = 1, .logits = logits, .n_logits = 1};
    struct sl_state_header *h = state;
    for (size_t i = 0; i < N_AGES; i++) {
        /* The oldest that a model with an end can get. */
        size_t end = sl_model_info(m)->max_tokens;
        uint64_t age = end && ages[i] >= end ? end - 1 : ages[i];
        sl_model_state_init(m, state);
        set_age(m, state, age);
        measured_step(f, &s);
        bad |= h->tokens_seen != age + 1;
    }
    sl_forward_close(f);
    sl_workers_close(w);
    sl_model_close(m);
    sl_free(state);
    sl_free(logits);
    return bad;
}

/* The child: the embedded model, then one of each rule. */
static int measure(void)
{
    struct sl_model *m;
    if (sl_model_open(&m, &(struct sl_model_options){.path = NULL}, NULL))
        return 1;
    int bad = measure_model(m);
    for (const struct rule *r = rules; r->title; r++)
        bad |= measure_model(rule_open(r, NULL));
    return bad;
}

static size_t n_models(void)
{
    size_t n = 1;
    while (rules[n - 1].title)
        n++;
    return n;
}

static void test_a_token_costs_the_same_at_any_age(void **state)
{
    (void)state;
    callgrind_or_skip("constant work");
    size_t n = n_models();
    uint64_t *counts = calloc(n * N_AGES, sizeof *counts);
    assert_non_null(counts);
    callgrind_count("measured_step", counts, n * N_AGES);
    for (size_t k = 0; k < n; k++) {
        const uint64_t *of = counts + k * N_AGES;
        assert_true(of[1] > 5000);
        for (size_t i = 2; i < N_AGES; i++)
            if (of[i] != of[1])
                fail_msg("%s: %" PRIu64 " instructions after %" PRIu64 " tokens, %" PRIu64
                         " after %" PRIu64,
                         k ? rules[k - 1].title : "embedded", of[i], ages[i], of[1], ages[1]);
    }
    assert_true(counts[1] > 1000000);
    free(counts);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "measure") == 0)
        return measure();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_token_costs_the_same_at_any_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
