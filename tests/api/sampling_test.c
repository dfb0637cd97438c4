/* sampling_test.c: every sampler over HTTP, held to what the model's own log probabilities say.
 *
 * `logprobs: 20` lists the most likely tokens as the model has them, before penalties, bias and
 * temperature; so each rule of engine.h can be checked from outside, token by token. The embedded
 * model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"

#define STORY "Once upon a time there was a little"

static struct api tiny;

static int start(void **state)
{
    (void)state;
    api_start(&tiny, (const char *const[]){NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_stop(&tiny);
    return 0;
}

/* n tokens after STORY with these fields, the 20 most likely listed with each. */
static void run(struct gen *g, int n, const char *fields)
{
    generate_both(tiny.client, g,
                  "'prompt':'" STORY "','max_tokens':%d,'ignore_eos':true,'return_tokens':true,"
                  "'logprobs':20,%s",
                  n, quoted(fields));
    assert_int_equal(g->o.n_tokens, n);
    assert_int_equal(json_array_size(g->o.logprobs), n);
}

static uint32_t top_id(const struct gen *g, size_t i, size_t k)
{
    char path[40];
    snprintf(path, sizeof path, "%zu.top.%zu.token_id", i, k);
    return (uint32_t)int_at(g->o.logprobs, path);
}

static double top_lp(const struct gen *g, size_t i, size_t k)
{
    char path[40];
    snprintf(path, sizeof path, "%zu.top.%zu.logprob", i, k);
    return num_at(g->o.logprobs, path);
}

static double lp(const struct gen *g, size_t i)
{
    char path[40];
    snprintf(path, sizeof path, "%zu.logprob", i);
    return num_at(g->o.logprobs, path);
}

/* --- log probabilities -------------------------------------------------------------------------*/

static void test_logprobs(void **state)
{
    (void)state;
    struct gen g;
    run(&g, 40, "'temperature':1,'seed':11");
    for (size_t i = 0; i < 40; i++) {
        double sum = 0;
        char path[40];
        snprintf(path, sizeof path, "%zu.top", i);
        assert_int_equal(len_at(g.o.logprobs, path), 20);
        for (size_t k = 0; k < 20; k++) {
            assert_true(top_lp(&g, i, k) <= 0);
            assert_true(k == 0 || top_lp(&g, i, k) < top_lp(&g, i, k - 1) ||
                        (top_lp(&g, i, k) == top_lp(&g, i, k - 1) &&
                         top_id(&g, i, k) > top_id(&g, i, k - 1)));
            if (top_id(&g, i, k) == g.o.tokens[i])
                assert_true(top_lp(&g, i, k) == lp(&g, i));
            sum += exp(top_lp(&g, i, k));
        }
        assert_true(sum > 0.05 && sum <= 1 + 1e-5);
        assert_true(lp(&g, i) <= top_lp(&g, i, 0));
        snprintf(path, sizeof path, "%zu.token_id", i);
        assert_int_equal(int_at(g.o.logprobs, path), g.o.tokens[i]);
    }
    gen_done(&g);
}

/* The text beside a log probability is the token's. */
static void test_logprob_texts(void **state)
{
    (void)state;
    struct gen g;
    run(&g, 12, "'temperature':0");
    size_t n = 0;
    for (size_t i = 0; i < 12; i++) {
        char path[40];
        snprintf(path, sizeof path, "%zu.text", i);
        const char *text = str_at(g.o.logprobs, path);
        assert_memory_equal(g.o.text + n, text, strlen(text));
        n += strlen(text);
    }
    assert_int_equal(n, g.o.n_text);
    gen_done(&g);
    generate(tiny.client, &g, "'prompt':'a','max_tokens':2,'logprobs':0,'ignore_eos':true");
    assert_int_equal(len_at(g.o.logprobs, "1.top"), 0);
    gen_done(&g);
}

/* --- greedy ------------------------------------------------------------------------------------*/

static void test_greedy(void **state)
{
    (void)state;
    struct gen zero, again;
    run(&zero, 40, "'temperature':0,'seed':1");
    for (size_t i = 0; i < 40; i++) {
        assert_int_equal(top_id(&zero, i, 0), zero.o.tokens[i]);
        assert_true(top_lp(&zero, i, 0) == lp(&zero, i));
    }
    static const char *const same[] = {
        "'temperature':0,'seed':2",
        "'temperature':1.7,'top_k':1,'seed':3",
        "'temperature':2,'top_p':0.000001,'seed':4",
        "'temperature':2,'min_p':1,'seed':5",
        "'temperature':0.0001,'seed':6",
        "'temperature':0,'top_k':7,'top_p':0.5,'min_p':0.3,'typical_p':0.5,'seed':7",
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        run(&again, 40, same[i]);
        output_same(&zero.o, &again.o);
        gen_done(&again);
    }
    gen_done(&zero);
}

/* --- seeds -------------------------------------------------------------------------------------*/

static void test_seeds(void **state)
{
    (void)state;
    struct gen a, b, c;
    run(&a, 40, "'temperature':1,'seed':123456789012345678");
    run(&b, 40, "'temperature':1,'seed':123456789012345678");
    run(&c, 40, "'temperature':1,'seed':123456789012345679");
    assert_true(int_at(a.r->json, "seed") == 123456789012345678);
    output_same(&a.o, &b.o);
    assert_memory_not_equal(a.o.tokens, c.o.tokens, 40 * sizeof(uint32_t));
    gen_done(&a);
    gen_done(&b);
    gen_done(&c);
    /* Without one, one is drawn and told. */
    struct gen x, y;
    generate(tiny.client, &x, "'prompt':'a','max_tokens':24,'return_tokens':true");
    generate(tiny.client, &y, "'prompt':'a','max_tokens':24,'return_tokens':true");
    int64_t seed = int_at(x.r->json, "seed");
    assert_true(seed != int_at(y.r->json, "seed"));
    gen_done(&y);
    generate(tiny.client, &y, "'prompt':'a','max_tokens':24,'return_tokens':true,'seed':%lld",
             (long long)seed);
    output_same(&x.o, &y.o);
    gen_done(&x);
    gen_done(&y);
}

/* 400 first tokens with 400 seeds: each of the likely ones as often as the model says. */
static void test_distribution(void **state)
{
    (void)state;
    enum { N = 400 };
    struct gen g;
    run(&g, 1, "'temperature':0");
    uint32_t ids[5];
    double p[5];
    unsigned count[5] = {0}, n_calls = 0;
    for (size_t k = 0; k < 5; k++) {
        ids[k] = top_id(&g, 0, k);
        p[k] = exp(top_lp(&g, 0, k));
    }
    gen_done(&g);
    struct call *calls[20];
    for (unsigned seed = 0; seed < N; seed += 20) {
        for (unsigned i = 0; i < 20; i++)
            calls[i] = generate_start(tiny.client,
                                      "'prompt':'" STORY
                                      "','max_tokens':1,'ignore_eos':true,'return_tokens':true,"
                                      "'seed':%u",
                                      seed + i);
        for (unsigned i = 0; i < 20; i++) {
            struct reply *r = expect(call_finish(calls[i]), 200);
            uint32_t id = (uint32_t)int_at(r->json, "tokens.0");
            for (size_t k = 0; k < 5; k++)
                count[k] += id == ids[k];
            n_calls++;
            reply_free(r);
        }
    }
    assert_int_equal(n_calls, N);
    for (size_t k = 0; k < 5; k++) {
        double sigma = sqrt(N * p[k] * (1 - p[k]));
        if (fabs(count[k] - N * p[k]) > 4.5 * sigma + 1)
            fail_msg("token %u: p %g, drawn %u times of %d", ids[k], p[k], count[k], N);
    }
}

/* --- what is left to choose from ---------------------------------------------------------------*/

static void test_filters(void **state)
{
    (void)state;
    struct gen g;
    bool other = false;
    run(&g, 60, "'temperature':3,'top_k':4,'seed':21");
    for (size_t i = 0; i < 60; i++) {
        size_t k = 0;
        while (k < 4 && top_id(&g, i, k) != g.o.tokens[i])
            k++;
        assert_true(k < 4);
        other |= k > 0;
    }
    assert_true(other);
    gen_done(&g);

    run(&g, 60, "'temperature':3,'top_p':0.6,'seed':22");
    for (size_t i = 0; i < 60; i++) { /* what is more likely than the chosen one is below top_p */
        double above = 0;
        for (size_t k = 0; k < 20 && top_lp(&g, i, k) > lp(&g, i); k++)
            above += exp(top_lp(&g, i, k));
        assert_true(above < 0.6 + 1e-4);
    }
    gen_done(&g);

    run(&g, 60, "'temperature':3,'min_p':0.2,'seed':23");
    for (size_t i = 0; i < 60; i++)
        assert_true(lp(&g, i) >= top_lp(&g, i, 0) + log(0.2) - 1e-4);
    gen_done(&g);

    run(&g, 60, "'temperature':3,'seed':24"); /* and without a filter others are met */
    other = false;
    for (size_t i = 0; i < 60; i++)
        other |= lp(&g, i) < top_lp(&g, i, 0) + log(0.2) && lp(&g, i) < top_lp(&g, i, 4);
    assert_true(other);
    gen_done(&g);
}

/* typical_p changes what is drawn, and nothing where it is 1. */
static void test_typical(void **state)
{
    (void)state;
    struct gen off, one, on;
    run(&off, 40, "'temperature':1.5,'seed':31");
    run(&one, 40, "'temperature':1.5,'seed':31,'typical_p':1");
    run(&on, 40, "'temperature':1.5,'seed':31,'typical_p':0.2");
    output_same(&off.o, &one.o);
    assert_memory_not_equal(off.o.tokens, on.o.tokens, 40 * sizeof(uint32_t));
    gen_done(&off);
    gen_done(&one);
    gen_done(&on);
}

/* --- bias --------------------------------------------------------------------------------------*/

static void test_bias(void **state)
{
    (void)state;
    struct gen base, g;
    run(&base, 24, "'temperature':0");
    run(&g, 24, "'temperature':0,'logit_bias':{'777':100}"); /* forces */
    for (size_t i = 0; i < 24; i++)
        assert_int_equal(g.o.tokens[i], 777);
    gen_done(&g);
    run(&g, 24, "'temperature':1.3,'seed':1,'logit_bias':[[777,100]]");
    for (size_t i = 0; i < 24; i++)
        assert_int_equal(g.o.tokens[i], 777);
    gen_done(&g);
    char fields[120]; /* forbids: up to there the same, then the next best */
    snprintf(fields, sizeof fields, "'temperature':0,'logit_bias':{'%u':-100}", base.o.tokens[3]);
    run(&g, 24, fields);
    for (size_t i = 0; i < 24; i++)
        assert_int_not_equal(g.o.tokens[i], base.o.tokens[3]);
    for (size_t i = 0; base.o.tokens[i] != base.o.tokens[3]; i++)
        assert_int_equal(g.o.tokens[i], base.o.tokens[i]);
    gen_done(&g);
    /* A bias of less than what the best is ahead changes nothing; of more, it does. */
    double gap = top_lp(&base, 0, 0) - top_lp(&base, 0, 1);
    for (int more = 0; more < 2; more++) {
        snprintf(fields, sizeof fields, "'temperature':0,'logit_bias':{'%u':%.6f}",
                 top_id(&base, 0, 1), gap + (more ? 1e-3 : -1e-3));
        run(&g, 1, fields);
        assert_int_equal(g.o.tokens[0], top_id(&base, 0, (size_t)more));
        gen_done(&g);
    }
    gen_done(&base);
}

/* --- penalties ---------------------------------------------------------------------------------*/

struct penalties {
    double presence, frequency, decay;
    size_t last_n; /* 0: all */
};

/* How often a token counts before the i-th is chosen. */
static double count_of(const struct gen *g, size_t i, uint32_t id, const struct penalties *p)
{
    double n = 0;
    for (size_t j = p->last_n && i > p->last_n ? i - p->last_n : 0; j < i; j++)
        n = n * p->decay + (g->o.tokens[j] == id);
    return n;
}

/* Greedy with penalties: no listed token would have been better than the chosen one. */
static void check_penalties(const char *fields, const struct penalties *p)
{
    struct gen base, g;
    run(&base, 80, "'temperature':0");
    run(&g, 80, fields);
    assert_memory_not_equal(base.o.tokens, g.o.tokens, 80 * sizeof(uint32_t));
    for (size_t i = 0; i < 80; i++) {
        double n = count_of(&g, i, g.o.tokens[i], p);
        double mine = lp(&g, i) - p->frequency * n - (n > 0 ? p->presence : 0);
        for (size_t k = 0; k < 20; k++) {
            n = count_of(&g, i, top_id(&g, i, k), p);
            double other = top_lp(&g, i, k) - p->frequency * n - (n > 0 ? p->presence : 0);
            if (other > mine + 1e-4)
                fail_msg("%s: token %zu is %u (%g), %u would be %g", fields, i, g.o.tokens[i], mine,
                         top_id(&g, i, k), other);
        }
    }
    gen_done(&g);
    gen_done(&base);
}

static void test_penalties(void **state)
{
    (void)state;
    check_penalties("'temperature':0,'presence_penalty':1.5", &(struct penalties){1.5, 0, 1, 0});
    check_penalties("'temperature':0,'frequency_penalty':0.7", &(struct penalties){0, 0.7, 1, 0});
    check_penalties("'temperature':0,'frequency_penalty':2,'presence_penalty':-0.5",
                    &(struct penalties){-0.5, 2, 1, 0});
    check_penalties("'temperature':0,'frequency_penalty':2,'penalty_decay':0.9",
                    &(struct penalties){0, 2, 0.9, 0});
    check_penalties("'temperature':0,'presence_penalty':3,'penalty_last_n':12",
                    &(struct penalties){3, 0, 1, 12});
}

/* A repetition penalty works on the logits, which are not told: it only has to keep from repeating
 * what is repeated without it. */
static void test_repetition_penalty(void **state)
{
    (void)state;
    struct gen base, g, off;
    size_t repeats[2] = {0, 0};
    run(&base, 100, "'temperature':0");
    run(&off, 100, "'temperature':0,'repetition_penalty':1");
    run(&g, 100, "'temperature':0,'repetition_penalty':3");
    output_same(&base.o, &off.o);
    for (size_t i = 0; i < 100; i++) {
        for (size_t j = 0; j < i; j++) {
            repeats[0] += base.o.tokens[i] == base.o.tokens[j];
            repeats[1] += g.o.tokens[i] == g.o.tokens[j];
        }
    }
    assert_true(repeats[0] > 20);
    assert_true(repeats[1] * 4 < repeats[0]);
    gen_done(&base);
    gen_done(&g);
    gen_done(&off);
}

/* Only penalty_last_n carries over to the next turn of a session; without it each turn counts its
 * own tokens. */
static void test_penalties_across_turns(void **state)
{
    (void)state;
    enum { N = 30, M = 34 };
    struct client *c = tiny.client;
    static const struct {
        const char *fields;
        bool carries;
    } row[] = {
        {"'temperature':0,'frequency_penalty':1.5,'penalty_last_n':1024", true},
        {"'temperature':0,'presence_penalty':2,'penalty_last_n':40", true},
        {"'temperature':0,'frequency_penalty':1.5", false},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct gen all, head, tail;
        const char *id = new_session(c), *fields = quoted(row[i].fields);
        run(&all, N + M, row[i].fields);
        generate(c, &head,
                 "'session':'%s','prompt':'" STORY "','max_tokens':%d,'ignore_eos':true,"
                 "'return_tokens':true,%s",
                 id, N, fields);
        generate(c, &tail,
                 "'session':'%s','prompt':'','max_tokens':%d,'ignore_eos':true,"
                 "'return_tokens':true,%s",
                 id, M, fields);
        assert_memory_equal(head.o.tokens, all.o.tokens, N * sizeof(uint32_t));
        bool same = !memcmp(tail.o.tokens, all.o.tokens + N, M * sizeof(uint32_t));
        if (same != row[i].carries)
            fail_msg("%s: the second turn is %s", row[i].fields, same ? "the same" : "another one");
        gen_done(&all);
        gen_done(&head);
        gen_done(&tail);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logprob_texts),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_typical),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_repetition_penalty),
        cmocka_unit_test(test_penalties_across_turns),
    };
    return cmocka_run_group_tests_name("sampling", tests, start, stop);
}
