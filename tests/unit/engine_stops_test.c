/* engine_stops_test.c: where turns end: stop strings, stop tokens, the end token, on the embedded
 * model. Expected cuts come from a search in the whole text, expected states from a session that
 * was fed the returned tokens. */
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

/* The thread sanitizer looks for races, which every round has again, and takes minutes for all.
 * What the rounds must have met is asked where all of them run. */
#if defined(__SANITIZE_THREAD__)
enum { SHARE = 10 };
#else
enum { SHARE = 1 };
#endif

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

/* The first place where any of the strings is complete: by trying every end. */
static bool find_stop(const unsigned char *text, size_t n, const struct sl_stop *stops,
                      size_t n_stops, size_t *ret_begin)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stops; i++)
            if (stops[i].n <= end && stops[i].n > longest &&
                !memcmp(text + end - stops[i].n, stops[i].bytes, stops[i].n))
                longest = stops[i].n;
        if (longest) {
            *ret_begin = end - longest;
            return true;
        }
    }
    return false;
}

/* One turn with stops against the same turn without: text, tokens, log probabilities, state. */
static void check_stops(struct sl_turn_spec spec, const unsigned char *text, size_t n_text,
                        const struct sl_stop *stops, size_t n_stops, size_t *n_cut)
{
    struct outcome o;
    size_t begin = n_text, n;
    bool found = find_stop(text, n_text, stops, n_stops, &begin);
    spec.stops = stops;
    spec.n_stops = n_stops;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, found ? SL_FINISH_STOP : SL_FINISH_LENGTH);
    assert_int_equal(o.result->stop_index >= 0, found);
    unsigned char *got = stand_text(&stand, sl_turn_tokens(o.turn), o.result->n_tokens, &n);
    assert_int_equal(n, begin);
    assert_memory_equal(got, text, n);
    assert_int_equal(sl_turn_released(o.turn), o.result->n_tokens);
    assert_at_rest(&stand, &spec, NULL, &o);
    *n_cut += found;
    free(got);
    outcome_done(&stand, &o);
}

/* Stops cut from the text at any place (inside tokens, across them), each with a prefix and a
 * suffix of itself, and with one that overlaps itself. */
static void test_a_stop_is_cut_from_the_state(void **state)
{
    (void)state;
    uint64_t seed = 11;
    size_t n_cut = 0;
    for (int round = 0; round < 60 / SHARE; round++) {
        uint32_t *ids;
        struct sl_turn_spec spec = stand_spec(&stand, story, 40, &ids);
        struct outcome whole;
        size_t n;
        spec.sampling.seed = next_random(&seed);
        stand_run(&stand, &spec, NULL, &whole);
        unsigned char *text = stand_text(&stand, sl_turn_tokens(whole.turn), 40, &n);
        for (int k = 0; k < 4; k++) {
            size_t len = 1 + next_random(&seed) % 12, at = next_random(&seed) % (n - len);
            struct sl_stop stops[4] = {{text + at, len},
                                       {text + at, len > 1 ? len / 2 : 1},
                                       {text + at + len / 2, len - len / 2},
                                       {(const unsigned char *)"aa aa", 5}};
            /* the string alone; the longer and its parts; a short one that completes later */
            const size_t first[] = {0, 0, 0, 3}, many[] = {1, 2, 4, 1};
            check_stops(spec, text, n, stops + first[k], many[k], &n_cut);
        }
        free(text);
        outcome_done(&stand, &whole);
        free(ids);
    }
    assert_true(n_cut > 150 || SHARE > 1);
}

/* The head of a divided token has log probabilities: those of a model that was fed the text. */
static void test_logprobs_describe_what_is_kept(void **state)
{
    (void)state;
    uint64_t seed = 23;
    size_t n_heads = 0;
    for (int round = 0; round < 30 / SHARE; round++) {
        uint32_t *ids;
        struct sl_turn_spec spec = stand_spec(&stand, story, 24, &ids);
        struct outcome whole, o;
        struct plain p;
        size_t n;
        spec.sampling.seed = next_random(&seed);
        stand_run(&stand, &spec, NULL, &whole);
        unsigned char *text = stand_text(&stand, sl_turn_tokens(whole.turn), 24, &n);
        struct sl_stop stop = {text + next_random(&seed) % (n - 3), 3};
        spec.stops = &stop;
        spec.n_stops = 1;
        spec.logprobs = 2;
        spec.keep_state = round % 2;
        stand_run(&stand, &spec, NULL, &o);
        plain_open(&p, &stand);
        for (size_t i = 0; i < spec.n_prompt; i++)
            plain_feed(&p, ids[i]);
        for (size_t i = 0; i < o.result->n_tokens; i++) {
            uint32_t token = sl_turn_tokens(o.turn)[i];
            n_heads += token != sl_turn_tokens(whole.turn)[i];
            assert_logprobs(&p, &sl_turn_logprobs(o.turn)[i], token);
            plain_feed(&p, token);
        }
        plain_close(&p);
        free(text);
        outcome_done(&stand, &o);
        outcome_done(&stand, &whole);
        free(ids);
    }
    assert_true(n_heads > 5 || SHARE > 1);
}

/* Stop tokens and the end token are never fed; what came before is pending. */
static void test_stop_tokens_are_not_fed(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 20 / SHARE; round++) {
        uint32_t *ids;
        struct sl_turn_spec spec = stand_spec(&stand, story, 40, &ids);
        struct outcome whole, o;
        spec.sampling.seed = next_random(&seed);
        stand_run(&stand, &spec, NULL, &whole);
        const uint32_t *all = sl_turn_tokens(whole.turn);
        uint32_t stop = all[next_random(&seed) % 40];
        size_t first = 0;
        while (all[first] != stop)
            first++;
        spec.stop_tokens = &stop;
        spec.n_stop_tokens = 1;
        stand_run(&stand, &spec, NULL, &o);
        assert_int_equal(o.result->finish, SL_FINISH_STOP);
        assert_int_equal(o.result->stop_token, stop);
        assert_int_equal(o.result->n_tokens, first);
        assert_memory_equal(sl_turn_tokens(o.turn), all, first * 4);
        assert_at_rest(&stand, &spec, NULL, &o);
        outcome_done(&stand, &o);
        outcome_done(&stand, &whole);
        free(ids);
    }
}

static void test_the_end_token_ends(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 40, &ids);
    struct outcome o;
    struct sl_logit_bias bias = {.token = 0, .bias = 1000};
    spec.sampling.bias = &bias;
    spec.sampling.n_bias = 1;
    stand_run(&stand, &spec, NULL, &o); /* ignored: a token like any other */
    assert_int_equal(o.result->n_tokens, 40);
    assert_int_equal(sl_turn_tokens(o.turn)[39], 0);
    assert_at_rest(&stand, &spec, NULL, &o);
    outcome_done(&stand, &o);
    spec.ignore_eos = false;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_EOS);
    assert_int_equal(o.result->n_tokens, 0);
    assert_int_equal(*sl_turn_pending(o.turn), ids[spec.n_prompt - 1]);
    assert_at_rest(&stand, &spec, NULL, &o);
    outcome_done(&stand, &o);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stop_is_cut_from_the_state),
        cmocka_unit_test(test_logprobs_describe_what_is_kept),
        cmocka_unit_test(test_stop_tokens_are_not_fed),
        cmocka_unit_test(test_the_end_token_ends),
    };
    return cmocka_run_group_tests(tests, open_stand, close_stand);
}
