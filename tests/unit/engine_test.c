/* engine_test.c: turns on the embedded model: what they give, how they end, what their states hold.
 *
 * Expected tokens come from a plain loop over the forward pass, expected cuts from a search in the
 * whole text, expected states from a session that was fed the returned tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "tests/support/floats.h"
#include "tests/support/turns.h"

static struct stand stand;

static const char story[] = "User: my name is Kate. i have a dog called Rex.\n\nAssistant:";

static int open_stand(void **state)
{
    (void)state;
    stand_open(&stand, NULL, &(struct sl_engine_options){.n_threads = 2, .max_running = 33});
    return 0;
}

static int close_stand(void **state)
{
    (void)state;
    stand_close(&stand);
    return 0;
}

static void test_greedy_is_the_plain_loop(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 60, &ids);
    struct outcome o;
    struct plain p;
    spec.sampling.temperature = 0;
    spec.logprobs = 3;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_LENGTH);
    assert_int_equal(o.result->n_tokens, 60);
    assert_int_equal(sl_turn_released(o.turn), 60);
    plain_open(&p, &stand);
    for (size_t i = 0; i < spec.n_prompt; i++)
        plain_feed(&p, ids[i]);
    for (size_t i = 0; i < 60; i++) {
        uint32_t token = sl_turn_tokens(o.turn)[i];
        assert_int_equal(token, plain_argmax(p.logits, p.vocab));
        assert_logprobs(&p, &sl_turn_logprobs(o.turn)[i], token);
        if (i < 59)
            plain_feed(&p, token);
    }
    assert_memory_equal(o.live, p.state, stand.state_bytes);
    assert_at_rest(&stand, &spec, NULL, &o);
    plain_close(&p);
    outcome_done(&stand, &o);
    free(ids);
}

/* n tokens, then m more with nothing but the pending token: what n + m at once give. */
static void test_an_empty_prompt_continues(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 50, &ids);
    spec.sampling.temperature = 0;
    struct outcome whole;
    stand_run(&stand, &spec, NULL, &whole);
    for (size_t n = 0; n <= 50; n += 7) {
        struct outcome first, second;
        spec.max_tokens = n;
        stand_run(&stand, &spec, NULL, &first);
        struct sl_turn_spec next = spec;
        next.prompt = sl_turn_pending(first.turn);
        next.n_prompt = 1;
        next.max_tokens = 50 - n;
        stand_run(&stand, &next, first.live, &second);
        assert_memory_equal(sl_turn_tokens(first.turn), sl_turn_tokens(whole.turn), n * 4);
        assert_memory_equal(sl_turn_tokens(second.turn), sl_turn_tokens(whole.turn) + n,
                            (50 - n) * 4);
        assert_memory_equal(second.live, whole.live, stand.state_bytes);
        assert_int_equal(*sl_turn_pending(second.turn), *sl_turn_pending(whole.turn));
        outcome_done(&stand, &first);
        outcome_done(&stand, &second);
    }
    outcome_done(&stand, &whole);
    free(ids);
}

static void test_reading_only(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 0, &ids);
    struct outcome o, one;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_LENGTH);
    assert_int_equal(o.result->tokens_seen, spec.n_prompt - 1);
    assert_int_equal(o.result->computed_tokens, spec.n_prompt - 1);
    spec.n_prompt = 1; /* nothing to compute at all */
    stand_run(&stand, &spec, o.live, &one);
    assert_int_equal(one.result->computed_tokens, 0);
    assert_int_equal(*sl_turn_pending(one.turn), ids[0]);
    assert_memory_equal(one.live, o.live, stand.state_bytes);
    outcome_done(&stand, &one);
    outcome_done(&stand, &o);
    free(ids);
}

/* 33 turns of different lengths, seeds and stops at once: each as if it were alone. */
static void test_many_at_once_are_as_alone(void **state)
{
    (void)state;
    enum { N = 33 };
    struct sl_turn_spec spec[N];
    uint32_t *ids[N];
    struct outcome alone, o[N];
    struct sl_stop stop = {(const unsigned char *)"the", 3};
    for (size_t i = 0; i < N; i++) {
        char text[600] = "";
        for (size_t k = 0; k <= i % 9; k++)
            strncat(text, story, sizeof text - strlen(text) - 1);
        spec[i] = stand_spec(&stand, text, 10 + i, &ids[i]);
        spec[i].sampling.seed = i;
        spec[i].sampling.frequency_penalty = i % 3 ? 0 : 0.5f;
        spec[i].sampling.top_p = i % 2 ? 0.9f : 1;
        spec[i].stops = &stop;
        spec[i].n_stops = i % 4 == 0;
        spec[i].logprobs = i % 5 ? -1 : 1;
        stand_start(&stand, &spec[i], NULL, &o[i]);
    }
    stand_finish(&stand, o, N);
    for (size_t i = 0; i < N; i++) {
        stand_run(&stand, &spec[i], NULL, &alone);
        assert_int_equal(alone.result->n_tokens, o[i].result->n_tokens);
        assert_memory_equal(sl_turn_tokens(alone.turn), sl_turn_tokens(o[i].turn),
                            alone.result->n_tokens * 4);
        if (sl_turn_logprobs(alone.turn))
            for (size_t k = 0; k < alone.result->n_tokens; k++)
                assert_memory_equal(&sl_turn_logprobs(alone.turn)[k].chosen,
                                    &sl_turn_logprobs(o[i].turn)[k].chosen,
                                    sizeof(struct sl_logprob));
        assert_memory_equal(alone.live, o[i].live, stand.state_bytes);
        assert_at_rest(&stand, &spec[i], NULL, &o[i]);
        outcome_done(&stand, &alone);
        outcome_done(&stand, &o[i]);
        free(ids[i]);
    }
}

static void test_a_bad_state_ends_alone(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec good = stand_spec(&stand, story, 20, &ids), bad = good;
    struct outcome read, alone, o[2];
    stand_run(&stand, &good, NULL, &alone);
    bad.max_tokens = 0;
    stand_run(&stand, &bad, NULL, &read);
    bad.max_tokens = 20;
    float *values = read.live;
    for (size_t i = 64; i < stand.state_bytes / sizeof *values; i++)
        values[i] = NAN;
    stand_start(&stand, &good, NULL, &o[0]);
    stand_start(&stand, &bad, read.live, &o[1]);
    stand_finish(&stand, o, 2);
    assert_int_equal(o[1].result->code, SL_E_MODEL_NOT_FINITE);
    assert_false(o[1].result->complete);
    assert_int_equal(o[1].result->n_tokens, 0);
    assert_true(strlen(sl_turn_error(o[1].turn)) > 0);
    assert_memory_equal(sl_turn_tokens(o[0].turn), sl_turn_tokens(alone.turn), 20 * 4);
    assert_memory_equal(o[0].live, alone.live, stand.state_bytes);
    outcome_done(&stand, &o[0]);
    outcome_done(&stand, &o[1]);
    outcome_done(&stand, &read);
    outcome_done(&stand, &alone);
    free(ids);
}

/* Closing ends what runs. */
static void test_close_ends_all(void **state)
{
    (void)state;
    struct sl_engine *e;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 1000000, &ids);
    struct sl_turn *t[4], *fifth;
    struct sl_error err;
    assert_int_equal(sl_engine_open(&e, stand.model, stand.tokenizer,
                                    &(struct sl_engine_options){.n_threads = 2, .max_running = 4},
                                    NULL),
                     SL_OK);
    void *slot[8];
    for (size_t i = 0; i < 8; i++)
        slot[i] = sl_slab_take(stand.slab);
    for (size_t i = 0; i < 4; i++) {
        struct sl_turn_states states = {.live = slot[2 * i], .shadow = slot[2 * i + 1]};
        assert_int_equal(sl_turn_create(e, &spec, &t[i], NULL), SL_OK);
        assert_int_equal(sl_engine_submit(e, t[i], &states, NULL), SL_OK);
    }
    struct sl_turn_states states = {.live = slot[0], .shadow = slot[1]};
    assert_int_equal(sl_turn_create(e, &spec, &fifth, NULL), SL_OK);
    assert_int_equal(sl_engine_submit(e, fifth, &states, &err), SL_E_SERVER_FULL);
    sl_turn_close(fifth);
    sl_engine_close(e);
    for (size_t i = 0; i < 4; i++)
        sl_turn_close(t[i]);
    for (size_t i = 0; i < 8; i++)
        sl_slab_unref(stand.slab, slot[i]);
    free(ids);
}

static void refused(struct sl_turn_spec spec, const char *param)
{
    struct sl_turn *t = NULL;
    struct sl_error err = {.code = SL_OK};
    assert_int_equal(sl_turn_create(stand.engine, &spec, &t, &err), SL_E_INVALID_VALUE);
    assert_null(t);
    assert_string_equal(err.param, param);
    assert_non_null(strstr(err.message, param));
}

static void test_bad_specs_are_named(void **state)
{
    (void)state;
    uint32_t *ids, beyond = 2048;
    struct sl_turn_spec good = stand_spec(&stand, story, 5, &ids), s;
    struct sl_logit_bias bias = {.token = 2048};
    s = good, s.prompt = &beyond, s.n_prompt = 1, refused(s, "prompt");
    s = good, s.n_prompt = 0, refused(s, "prompt");
    s = good, s.stop_tokens = &beyond, s.n_stop_tokens = 1, refused(s, "stop_tokens");
    s = good, s.sampling.bias = &bias, s.sampling.n_bias = 1, refused(s, "logit_bias");
    bias = (struct sl_logit_bias){.token = 1, .bias = NAN};
    refused(s, "logit_bias");
    s = good, s.sampling.temperature = NAN, refused(s, "temperature");
    s = good, s.sampling.temperature = -1, refused(s, "temperature");
    s = good, s.sampling.top_p = -1, refused(s, "top_p");
    s = good, s.sampling.min_p = 1.5f, refused(s, "min_p");
    s = good, s.sampling.typical_p = -1, refused(s, "typical_p");
    s = good, s.sampling.repetition_penalty = 0, refused(s, "repetition_penalty");
    s = good, s.sampling.presence_penalty = INFINITY, refused(s, "presence_penalty");
    s = good, s.sampling.frequency_penalty = NAN, refused(s, "frequency_penalty");
    s = good, s.sampling.penalty_decay = 2, refused(s, "penalty_decay");
    s = good, s.sampling.penalty_last_n = 1025, refused(s, "penalty_last_n");
    s = good, s.logprobs = 21, refused(s, "logprobs");
    s = good, s.max_tokens = SIZE_MAX / 2, refused(s, "max_tokens");
    static const uint32_t held[6];
    s = good, s.held = held, s.n_held = 6, refused(s, "held"); /* of five */
    s = good, s.held = &beyond, s.n_held = 1, refused(s, "held");
    struct {
        struct sl_penalty_ring ring;
        uint32_t good[4]; /* what would be read behind its end */
    } with = {.ring = {.n = 1, .tokens = {beyond}}};
    s = good, s.ring = &with.ring, refused(s, "ring");
    with.ring = (struct sl_penalty_ring){.n = SL_PENALTY_LAST_N_MAX + 1};
    refused(s, "ring");
    free(ids);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 5, &ids);
    struct sl_stop stop = {(const unsigned char *)"x", 1};
    struct sl_penalty_ring ring = {.n = 1};
    spec.stops = &stop;
    spec.n_stops = 1;
    spec.ring = &ring;
    spec.logprobs = 1;
    for (int n = 0, done = 0; !done; n++) {
        struct sl_turn *t = NULL;
        sl_mem_fail_after(n);
        enum sl_code c = sl_turn_create(stand.engine, &spec, &t, NULL);
        sl_mem_fail_after(-1);
        done = c == SL_OK;
        assert_true(done || (c == SL_E_NO_MEMORY && !t));
        assert_true(!done || n > 4);
        sl_turn_close(t);
    }
    for (int n = 0, done = 0; !done; n++) {
        struct sl_engine *e = NULL;
        sl_mem_fail_after(n);
        enum sl_code c =
            sl_engine_open(&e, stand.model, stand.tokenizer,
                           &(struct sl_engine_options){.n_threads = 2, .max_running = 2}, NULL);
        sl_mem_fail_after(-1);
        done = c == SL_OK;
        assert_true(done || (c == SL_E_NO_MEMORY && !e));
        assert_true(!done || n > 8);
        sl_engine_close(e);
    }
    free(ids);
}

static void test_the_ring_is_carried(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 40, &ids);
    struct sl_penalty_ring ring = {.n = 0}, next;
    struct outcome o;
    for (uint32_t i = 0; i < SL_PENALTY_LAST_N_MAX - 10; i++)
        ring.tokens[ring.n++] = i;
    spec.ring = &ring;
    stand_run(&stand, &spec, NULL, &o);
    sl_turn_ring(o.turn, &next);
    assert_int_equal(next.n, SL_PENALTY_LAST_N_MAX);
    assert_int_equal(next.tokens[0], 30);
    assert_memory_equal(next.tokens + SL_PENALTY_LAST_N_MAX - 40, sl_turn_tokens(o.turn), 40 * 4);
    outcome_done(&stand, &o);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_is_the_plain_loop),
        cmocka_unit_test(test_an_empty_prompt_continues),
        cmocka_unit_test(test_reading_only),
        cmocka_unit_test(test_many_at_once_are_as_alone),
        cmocka_unit_test(test_a_bad_state_ends_alone),
        cmocka_unit_test(test_close_ends_all),
        cmocka_unit_test(test_bad_specs_are_named),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_the_ring_is_carried),
    };
    return cmocka_run_group_tests(tests, open_stand, close_stand);
}
