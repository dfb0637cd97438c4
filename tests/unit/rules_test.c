/* rules_test.c: what must hold whatever the memory rule is, on a seeded model of each (rules.h): it
 * gives what a plain version in double precision gives; a
 * session's bits depend on its own tokens alone; every table of kernels gives the same; a state
 * that was written down and read into another program's model goes on as if nothing had happened,
 * also in the middle of a turn of the engine; forks go their own ways; a bad neighbour stays alone.
 */
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
#include "slate/snapshot.h"
#include "tests/support/among.h"
#include "tests/support/fla_slow.h"
#include "tests/support/rules.h"
#include "tests/support/rules_slow.h"
#include "tests/support/tables.h"
#include "tests/support/turns.h"

enum { T = 40, MAX_ROWS = 192, N_RULES_MAX = 64 };
enum { LONG = 120, LONG_STEP = 110 }; /* more rows than go through a layer at once */

static struct hashes run_with(const struct sl_model *m, size_t threads, size_t n_others,
                              size_t chunk, size_t n_tokens)
{
    struct runner r;
    struct others o;
    runner_open(&r, m, threads, MAX_ROWS, AMONG_MAX + 1);
    others_open(&o, m, n_others);
    struct hashes h = run_among(&r, chunk, n_tokens, &o);
    others_close(&o);
    runner_close(&r);
    return h;
}

/* Logits that are numbers, of a size that means something, and not all the same. */
static void check_sane(const struct rule *rule, const struct sl_model *m)
{
    struct runner r;
    uint32_t tokens[T];
    size_t vocab = sl_model_info(m)->vocab_size;
    runner_open(&r, m, 1, T, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, T);
    for (size_t i = 0; i < T; i++)
        tokens[i] = token_of(m, 0, i);
    runner_feed(&r, state, tokens, T, T, logits);
    double largest = 0;
    for (size_t i = 0; i < vocab; i++) {
        assert_true(isfinite(logits[(T - 1) * r.stride + i]));
        largest = fmax(largest, fabs((double)logits[(T - 1) * r.stride + i]));
    }
    if (largest < 1 || largest > 50)
        fail_msg("%s: the largest logit is %g", rule->title, largest);
    assert_string_equal(sl_model_info(m)->arch, rule->arch);
    assert_int_equal(sl_model_info(m)->n_unused, 0);
    sl_free(logits);
    sl_free(state);
    runner_close(&r);
}

static struct sl_model *open_with(const struct rule *rule, const char *kernels,
                                  enum sl_dtype weights)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    struct sl_model_options opt = {.kernels = kernels, .weights = weights};
    if (rule_try(&m, rule, opt, &err) != SL_OK)
        fail_msg("%s: %s", rule->title, err.message);
    return m;
}

static void check_invariance(const struct rule *rule, enum sl_dtype weights)
{
    static const struct {
        size_t threads, others, chunk;
    } ways[] = {{1, 0, T}, {1, 5, 1}, {2, 0, 3}, {2, 9, 7}, {2, 32, 1}, {7, 0, 9}, {3, 2, T}};
    struct sl_model *m = open_with(rule, NULL, weights);
    check_sane(rule, m);
    struct hashes want = run_with(m, 1, 0, 1, T);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char what[128];
        (void)snprintf(what, sizeof what, "%s: %zu threads, %zu others, chunks of %zu", rule->title,
                       ways[i].threads, ways[i].others, ways[i].chunk);
        assert_same(run_with(m, ways[i].threads, ways[i].others, ways[i].chunk, T), want, what);
    }
    assert_same(run_with(m, 2, 9, LONG_STEP, LONG), run_with(m, 1, 0, T, LONG), "long steps");
    for (const char *const *k = sl_kernels_names(); *k; k++) {
        struct sl_model *other = open_with(rule, *k, weights);
        assert_string_equal(sl_model_info(other)->kernels, *k);
        assert_memory_equal(sl_model_info(other)->fingerprint, sl_model_info(m)->fingerprint, 16);
        assert_same(run_with(other, 2, 2, 5, T), want, *k);
        sl_model_close(other);
    }
    sl_model_close(m);
}

static void test_invariance(void **prestate)
{
    check_invariance(*prestate, SL_DTYPE_NONE);
}

/* Logits of T tokens, fed in chunks that have rows enough for a form and one that has not. */
static float *logits_of(const struct sl_model *m, size_t *ret_n)
{
    struct runner r;
    uint32_t tokens[T];
    runner_open(&r, m, 2, T, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, T);
    for (size_t i = 0; i < T; i++)
        tokens[i] = token_of(m, 0, i);
    runner_feed(&r, state, tokens, T, 18, logits);
    *ret_n = T * r.stride;
    sl_free(state);
    runner_close(&r);
    return logits;
}

/* With 8 and 4 bits: the same bits in any company and with any kernels, logits that are near those
 * of the file's weights, nearer with 8, less memory, and a name of its own for what snapshots say.
 */
static void test_quantised(void **prestate)
{
    const struct rule *rule = *prestate;
    static const enum sl_dtype types[] = {SL_DTYPE_Q8, SL_DTYPE_Q4};
    double error[2], size = 0;
    struct sl_model *plain = open_with(rule, NULL, SL_DTYPE_F32);
    size_t n;
    float *want = logits_of(plain, &n);
    for (size_t i = 0; i < n; i++)
        size += (double)want[i] * (double)want[i];
    for (size_t t = 0; t < 2; t++) {
        check_invariance(rule, types[t]);
        struct sl_model *m = open_with(rule, NULL, types[t]);
        assert_int_equal(sl_model_info(m)->weights, types[t]);
        assert_true(sl_model_info(m)->weight_bytes < sl_model_info(plain)->weight_bytes);
        assert_string_not_equal(sl_numerics(m), sl_numerics(plain));
        float *got = logits_of(m, &n);
        error[t] = 0;
        for (size_t i = 0; i < n; i++)
            error[t] += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        error[t] = sqrt(error[t] / size);
        sl_free(got);
        sl_model_close(m);
    }
    printf("  %s: error of the logits %.4f with 8 bits, %.4f with 4\n", rule->title, error[0],
           error[1]);
    assert_true(error[0] > 0 && error[0] < 0.03);
    assert_true(error[1] > error[0] && error[1] < 0.2);
    sl_free(want);
    sl_model_close(plain);
}

/* Rules whose recurrence has several forms, and what says so. */
static bool has_forms(const struct rule *rule)
{
    static const char *const archs[] = {"linear", "retnet", "gla", "delta_net", "gated_delta_net"};
    if (strcmp(rule->arch, "performer") == 0)
        return rule->choices != NULL; /* its default's features depend on what came before */
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(rule->arch, archs[i]) == 0)
            return true;
    return false;
}

/* One function to rounding, not in bits: where no bit differs, another form did not run. */
static void test_forms(void **prestate)
{
    static const char *const modes[] = {"chunkwise", "parallel"};
    const struct rule *rule = *prestate;
    struct sl_error err;
    struct sl_model *m = rule_open(rule, NULL), *other;
    size_t n;
    float *want = logits_of(m, &n);
    assert_string_equal(sl_numerics(m), "slate-1 exact");
    for (size_t i = 0; i < 2; i++) {
        struct sl_model_options opt = {.prefill_mode = modes[i]};
        assert_int_equal(rule_try(&other, rule, opt, &err), SL_E_INVALID_VALUE);
        assert_non_null(strstr(err.message, "numerics fast"));
        opt.fast = true;
        if (!has_forms(rule)) {
            assert_int_equal(rule_try(&other, rule, opt, &err), SL_E_INVALID_VALUE);
            assert_non_null(strstr(err.message, "recurrent form only"));
            continue;
        }
        assert_int_equal(rule_try(&other, rule, opt, &err), SL_OK);
        assert_non_null(strstr(sl_numerics(other), modes[i]));
        float *got = logits_of(other, &n);
        double off = 0, largest = 0;
        for (size_t k = 0; k < n; k++) {
            off = fmax(off, fabs((double)got[k] - (double)want[k]));
            largest = fmax(largest, fabs((double)want[k]));
        }
        if (!(off > 0 && off <= 1e-5 * largest))
            fail_msg("%s, %s: off by %g, the largest logit is %g", rule->title, modes[i], off,
                     largest);
        sl_free(got);
        sl_model_close(other);
    }
    assert_int_equal(rule_try(&other, rule, (struct sl_model_options){.prefill_mode = "odd"}, &err),
                     SL_E_INVALID_VALUE);
    assert_non_null(strstr(err.message, "\"odd\""));
    assert_int_equal(rule_try(&other, rule, (struct sl_model_options){.fast = true}, &err), SL_OK);
    sl_model_close(other); /* it has picked one */
    sl_free(want);
    sl_model_close(m);
}

/* RWKV-5.2 with another name for its bonus, as converters give it: it is no exponent all the same,
 * as one per head is. */
static void rwkv5_renamed(struct seeded *s)
{
    const struct rule *r = rules;
    while (strcmp(r->title, "rwkv5.2") != 0)
        r++;
    r->list(s);
    for (size_t i = 0; i < s->n; i++) {
        char *name = strstr(s->v[i].name, "time_faaaa");
        if (name)
            (void)snprintf(name, sizeof "time_first", "time_first");
    }
}

static void rwkv5_per_head(struct seeded *s)
{
    rwkv5_renamed(s);
    for (size_t i = 0; i < s->n; i++)
        if (strstr(s->v[i].name, "time_first"))
            s->v[i].rank = 1;
}

static const struct rule renamed[] = {
    {"rwkv5.2, time_first per channel", "rwkv5", NULL, rwkv5_renamed, NULL},
    {"rwkv5.2, time_first per head", "rwkv5", NULL, rwkv5_per_head, NULL},
};
enum { N_RENAMED = sizeof renamed / sizeof *renamed };

static double *slow_logits(const struct rule *rule, const struct sl_tensors *t,
                           const uint32_t *tokens, size_t n, size_t *ret_vocab)
{
    if (rule->settings)
        return fla_slow(t, tokens, n, ret_vocab);
    if (strcmp(rule->arch, "performer") == 0)
        return performer_slow(t, rule->choices, tokens, n, ret_vocab);
    return rwkv_slow(t, rule->choices, tokens, n, ret_vocab);
}

/* Every logit against the slow one's, in the measure of the largest. */
static void test_slow(void **prestate)
{
    const struct rule *rule = *prestate;
    struct rule_files f;
    struct sl_error err;
    struct sl_tensors *t = NULL;
    struct runner r;
    uint32_t tokens[T];
    size_t vocab;
    struct sl_model *m = rule_open(rule, NULL);
    rule_write(rule, &f);
    if (sl_tensors_open(&t, f.path, &err) != SL_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < T; i++)
        tokens[i] = token_of(m, 0, i);
    double *want = slow_logits(rule, t, tokens, T, &vocab), largest = 0;
    assert_int_equal(vocab, sl_model_info(m)->vocab_size);
    runner_open(&r, m, 1, T, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, T);
    runner_feed(&r, state, tokens, T, 9, logits);
    for (size_t i = 0; i < T * vocab; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < T * vocab; i++) {
        double got = (double)logits[i / vocab * r.stride + i % vocab];
        if (!(fabs(got - want[i]) <= 2e-5 * largest))
            fail_msg("%s, token %zu, logit %zu: %g, not %g", rule->title, i / vocab, i % vocab, got,
                     want[i]);
    }
    free(want);
    sl_free(logits);
    sl_free(state);
    runner_close(&r);
    sl_tensors_close(t);
    rule_remove(&f);
    sl_model_close(m);
}

static void test_bad_neighbour(void **prestate)
{
    const struct rule *rule = *prestate;
    struct sl_model *m = rule_open(rule, NULL);
    struct runner r;
    struct others o;
    size_t n;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    struct hashes want = run_with(m, 2, 2, 5, T);
    runner_open(&r, m, 2, MAX_ROWS, AMONG_MAX + 1);
    others_open(&o, m, 2);
    for (size_t i = 0; i < n; i++)
        if (t[i].dtype == SL_DTYPE_F32)
            ((float *)(void *)((unsigned char *)o.states[1] + t[i].offset))[3] =
                i % 2 ? NAN : INFINITY;
    assert_same(run_among(&r, 5, T, &o), want, "beside NaN");
    assert_true(isnan(o.logits[1][0]));
    others_close(&o);
    runner_close(&r);
    sl_model_close(m);
}

static void test_allocation(void **prestate)
{
    struct sl_model *m = rule_open(*prestate, NULL);
    struct runner r;
    uint32_t tokens[T];
    for (size_t i = 0; i < T; i++)
        tokens[i] = token_of(m, 0, i);
    runner_open(&r, m, 2, T, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, T);
    uint64_t before = sl_mem_count();
    runner_feed(&r, state, tokens, T, 17, logits);
    assert_true(sl_mem_count() == before);
    sl_free(logits);
    sl_free(state);
    runner_close(&r);
    sl_model_close(m);
}

/* --- the engine
 * -----------------------------------------------------------------------------------
 */

static struct sl_turn_spec spec_of(const uint32_t *prompt, size_t n, size_t max_tokens)
{
    struct sl_turn_spec spec = {.prompt = prompt,
                                .n_prompt = n,
                                .max_tokens = max_tokens,
                                .sampling = SL_SAMPLING_DEFAULT,
                                .ignore_eos = true,
                                .logprobs = -1,
                                .keep_state = true};
    spec.sampling.temperature = 0;
    return spec;
}

/* `state` written down by one and read by another, which must find it the same. */
static void *moved(const struct stand *from, const void *state, struct stand *to)
{
    struct sl_error err;
    struct sl_snapshot_info info = {.dtype = SL_DTYPE_F32}, got;
    unsigned char *p = NULL;
    size_t n;
    if (sl_snapshot_write(from->model, from->tokenizer, state, &info, &p, &n, &err) != SL_OK)
        fail_msg("%s", err.message);
    void *slot = sl_slab_take(to->slab);
    assert_non_null(slot);
    memset(slot, 0xa5, to->state_bytes);
    if (sl_snapshot_read(to->model, to->tokenizer, p, n, slot, &got, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_memory_equal(slot, state, to->state_bytes);
    sl_free(got.text);
    sl_free(p);
    return slot;
}

/* A turn of 20 tokens, whole; and its first 8, moved to another program, and 12 more. */
static void check_resume(struct stand *a, struct stand *b)
{
    static const uint32_t prompt[] = {7, 100, 42, 42, 3, 250, 99, 1, 8};
    enum { N = sizeof prompt / sizeof *prompt };
    struct outcome whole, first, rest;
    struct sl_turn_spec spec = spec_of(prompt, N, 20);
    stand_run(a, &spec, NULL, &whole);
    spec = spec_of(prompt, N, 8);
    stand_run(a, &spec, NULL, &first);
    assert_int_equal(first.result->n_pending, 1);
    assert_int_equal(first.result->n_tokens, 8);
    void *state = moved(a, first.live, b);
    uint32_t pending = *sl_turn_pending(first.turn);
    spec = spec_of(&pending, 1, 12);
    stand_run(b, &spec, state, &rest);
    assert_int_equal(rest.result->n_tokens, 12);
    assert_memory_equal(sl_turn_tokens(first.turn), sl_turn_tokens(whole.turn), 8 * 4);
    assert_memory_equal(sl_turn_tokens(rest.turn), sl_turn_tokens(whole.turn) + 8, 12 * 4);
    assert_memory_equal(rest.live, whole.live, a->state_bytes);
    sl_slab_unref(b->slab, state);
    outcome_done(a, &whole);
    outcome_done(a, &first);
    outcome_done(b, &rest);
}

/* Three turns at once on one state, which stays as it was; each as if it were alone. */
static void check_forks(struct stand *s)
{
    static const uint32_t prompt[] = {5, 6, 7, 8, 9, 200, 201},
                          more[3][2] = {{1, 2}, {3, 4}, {1, 9}};
    struct outcome base, alone, together[3];
    struct sl_turn_spec spec = spec_of(prompt, 7, 0);
    stand_run(s, &spec, NULL, &base);
    void *kept = malloc(s->state_bytes);
    assert_non_null(kept);
    memcpy(kept, base.live, s->state_bytes);
    for (size_t i = 0; i < 3; i++) {
        spec = spec_of(more[i], 2, 10);
        stand_start(s, &spec, base.live, &together[i]);
    }
    stand_finish(s, together, 3);
    assert_memory_equal(base.live, kept, s->state_bytes);
    for (size_t i = 0; i < 3; i++) {
        spec = spec_of(more[i], 2, 10);
        stand_run(s, &spec, base.live, &alone);
        assert_memory_equal(alone.live, together[i].live, s->state_bytes);
        assert_memory_equal(sl_turn_tokens(alone.turn), sl_turn_tokens(together[i].turn), 10 * 4);
        outcome_done(s, &alone);
    }
    assert_memory_not_equal(together[0].live, together[1].live, s->state_bytes);
    for (size_t i = 0; i < 3; i++)
        outcome_done(s, &together[i]);
    outcome_done(s, &base);
    free(kept);
}

static void test_engine(void **prestate)
{
    const struct rule *rule = *prestate;
    struct rule_files f;
    struct stand a, b;
    rule_write(rule, &f);
    const struct sl_model_options opt = {.path = f.path, .rule = rule->choices};
    stand_open_with(&a, &opt, &(struct sl_engine_options){.n_threads = 2, .max_running = 4});
    stand_open_with(&b, &opt, &(struct sl_engine_options){.n_threads = 1, .max_running = 2});
    check_resume(&a, &b);
    check_forks(&a);
    stand_close(&a);
    stand_close(&b);
    rule_remove(&f);
}

int main(void)
{
    static const struct {
        const char *what;
        CMUnitTestFunction f;
    } each[] = {
        {"against the slow one", test_slow},      {"same bits", test_invariance},
        {"8 and 4 bits", test_quantised},         {"other forms", test_forms},
        {"beside a bad one", test_bad_neighbour}, {"no allocation in a step", test_allocation},
        {"resume and forks", test_engine}};
    enum { N_EACH = sizeof each / sizeof *each };
    static struct CMUnitTest tests[N_RULES_MAX * N_EACH + N_RENAMED + 1];
    static char titles[N_RULES_MAX * N_EACH][80];
    size_t n = 0;
    for (size_t i = 0; rules[i].title; i++)
        for (size_t k = 0; k < N_EACH; k++) {
            if (each[k].f == test_slow && strcmp(rules[i].arch, "rwkv7") == 0)
                continue; /* forward_test.c holds it to a slow one of its own */
            (void)snprintf(titles[n], sizeof titles[n], "%s: %s", rules[i].title, each[k].what);
            tests[n] =
                (struct CMUnitTest){titles[n], each[k].f, NULL, NULL, (void *)(uintptr_t)&rules[i]};
            n++;
        }
    for (size_t i = 0; i < N_RENAMED; i++)
        tests[n++] = (struct CMUnitTest){renamed[i].title, test_slow, NULL, NULL,
                                         (void *)(uintptr_t)&renamed[i]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(every_table_runs_here);
    return _cmocka_run_group_tests("rules", tests, n, NULL, NULL);
}
