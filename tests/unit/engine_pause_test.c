/* engine_pause_test.c: turns that are cut short: cancelled, out of time, paused and gone on with,
 * on the embedded model. */
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

struct watch {
    struct outcome *o;
    size_t cancel_at;
};

static void cancel_late(struct sl_turn *t, void *user, void *arg)
{
    struct watch *w = arg;
    struct outcome *o = user;
    o->result = sl_turn_result(t);
    if (!o->result && sl_turn_released(t) >= w->cancel_at)
        sl_engine_cancel(stand.engine, t, SL_FINISH_CANCELLED);
}

static void test_cancel_keeps_what_was_generated(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 100000, &ids);
    struct outcome o;
    struct watch w = {&o, 5};
    stand_start(&stand, &spec, NULL, &o);
    while (!o.result) {
        sl_engine_wait(stand.engine);
        sl_engine_poll(stand.engine, cancel_late, &w);
    }
    assert_int_equal(o.result->finish, SL_FINISH_CANCELLED);
    assert_in_range(o.result->n_tokens, 5, 99999);
    assert_int_equal(sl_turn_released(o.turn), o.result->n_tokens);
    assert_at_rest(&stand, &spec, NULL, &o);
    outcome_done(&stand, &o);
    free(ids);
}

/* Before the prompt was read there is nothing to keep. */
static void test_cancel_in_prefill(void **state)
{
    (void)state;
    enum { N = 200000 };
    uint32_t *ids = calloc(N, sizeof *ids);
    for (size_t i = 0; i < N; i++)
        ids[i] = (uint32_t)(300 + i % 100);
    struct sl_turn_spec spec = {.prompt = ids,
                                .n_prompt = N,
                                .max_tokens = 10,
                                .sampling = SL_SAMPLING_DEFAULT,
                                .logprobs = -1,
                                .keep_state = true};
    struct outcome o;
    stand_start(&stand, &spec, NULL, &o);
    sl_engine_cancel(stand.engine, o.turn, SL_FINISH_CANCELLED);
    stand_finish(&stand, &o, 1);
    assert_int_equal(o.result->finish, SL_FINISH_CANCELLED);
    assert_false(o.result->complete);
    assert_int_equal(o.result->n_tokens, 0);
    assert_in_range(o.result->computed_tokens, 0, N / 2);
    outcome_done(&stand, &o);
    spec.deadline_ms = 5;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_TIMEOUT);
    assert_false(o.result->complete);
    assert_in_range(o.result->computed_tokens, 0, N / 2);
    outcome_done(&stand, &o);
    free(ids);
}

static void test_timeout_commits(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = stand_spec(&stand, story, 1000000, &ids);
    struct outcome o;
    spec.deadline_ms = 100;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_TIMEOUT);
    assert_true(o.result->complete);
    assert_at_rest(&stand, &spec, NULL, &o);
    outcome_done(&stand, &o);
    free(ids);
}

/* --- pause ------------------------------------------------------------------------------------ */

static void pause_late(struct sl_turn *t, void *user, void *arg)
{
    struct watch *w = arg;
    struct outcome *o = user;
    o->result = sl_turn_result(t);
    if (!o->result && sl_turn_released(t) >= w->cancel_at)
        sl_engine_cancel(stand.engine, t, SL_FINISH_PAUSED);
}

/* What a client has of a turn that is paused again and again. */
struct pieces {
    uint32_t tokens[256];
    struct sl_logprob chosen[256];
    size_t n, n_pauses, n_with_held;
};

static void take_piece(struct pieces *p, const struct outcome *o)
{
    size_t n = sl_turn_released(o->turn);
    memcpy(p->tokens + p->n, sl_turn_tokens(o->turn), n * 4);
    for (size_t i = 0; i < n; i++)
        p->chosen[p->n + i] = sl_turn_logprobs(o->turn)[i].chosen;
    p->n += n;
}

/* Runs a turn to its end with a pause after every `every` tokens or so (0: at once), each time from
 * nothing but what a pause leaves. The last outcome is left in *o. */
static void run_in_pieces(const struct sl_turn_spec *whole, size_t every, struct pieces *p,
                          struct outcome *o)
{
    struct sl_turn_spec spec = *whole;
    struct outcome before = {0};
    uint32_t *prompt = NULL, *held = NULL;
    memset(p, 0, sizeof *p);
    for (;;) {
        struct watch w = {o, every};
        stand_start(&stand, &spec, before.live, o);
        if (!every)
            sl_engine_cancel(stand.engine, o->turn, SL_FINISH_PAUSED);
        while (!o->result) {
            sl_engine_wait(stand.engine);
            sl_engine_poll(stand.engine, pause_late, &w);
        }
        take_piece(p, o);
        if (before.turn)
            outcome_done(&stand, &before);
        if (o->result->finish != SL_FINISH_PAUSED)
            break;
        const struct sl_turn_result *r = o->result;
        const uint32_t *pending = sl_turn_pending(o->turn);
        size_t n_read = r->n_pending - r->n_held;
        free(prompt);
        free(held);
        prompt = malloc((n_read + 1) * sizeof *prompt);
        held = malloc((r->n_held + 1) * sizeof *held);
        memcpy(prompt, pending, n_read * sizeof *prompt);
        memcpy(held, pending + n_read, r->n_held * sizeof *held);
        spec.prompt = prompt;
        spec.n_prompt = n_read;
        spec.max_tokens -= r->n_tokens - r->n_held;
        spec.draws = r->draws;
        spec.generated = p->tokens;
        spec.n_generated = p->n;
        spec.held = held;
        spec.n_held = r->n_held;
        p->n_pauses++;
        p->n_with_held += r->n_held > 0;
        every = every ? every : 1;
        before = *o;
    }
    free(prompt);
    free(held);
}

static void test_a_paused_turn_goes_on_byte_for_byte(void **state)
{
    (void)state;
    uint64_t seed = 77;
    size_t n_pauses = 0, n_with_held = 0, n_stopped = 0;
    for (int round = 0; round < 80 / SHARE; round++) {
        uint32_t *ids;
        struct sl_turn_spec spec = stand_spec(&stand, story, 64, &ids);
        struct sl_penalty_ring ring = {.n = 3, .tokens = {300, 400, 500}};
        struct outcome whole, o;
        struct pieces p;
        spec.sampling.seed = next_random(&seed);
        spec.sampling.frequency_penalty = round % 2 ? 0.7f : 0;
        spec.sampling.penalty_decay = round % 4 ? 1 : 0.9f;
        spec.sampling.penalty_last_n = round % 3 ? 0 : 20;
        spec.ring = &ring;
        spec.logprobs = 1;
        /* one that opens a candidate at every blank and is complete at last, more or less often */
        struct sl_stop stop[2] = {{(const unsigned char *)" the dog", round % 5 ? 8 : 5},
                                  {(const unsigned char *)"e the dog", 9}};
        spec.stops = stop;
        spec.n_stops = 2;
        stand_run(&stand, &spec, NULL, &whole);
        run_in_pieces(&spec, (size_t)round % 8, &p, &o);
        assert_int_equal(o.result->finish, whole.result->finish);
        assert_int_equal(p.n, whole.result->n_tokens);
        assert_memory_equal(p.tokens, sl_turn_tokens(whole.turn), p.n * 4);
        for (size_t i = 0; i < p.n; i++)
            assert_memory_equal(&p.chosen[i], &sl_turn_logprobs(whole.turn)[i].chosen,
                                sizeof p.chosen[i]);
        assert_int_equal(o.result->tokens_seen, whole.result->tokens_seen);
        assert_int_equal(*sl_turn_pending(o.turn), *sl_turn_pending(whole.turn));
        assert_memory_equal(o.live, whole.live, stand.state_bytes);
        n_pauses += p.n_pauses;
        n_with_held += p.n_with_held;
        n_stopped += whole.result->finish == SL_FINISH_STOP;
        outcome_done(&stand, &o);
        outcome_done(&stand, &whole);
        free(ids);
    }
    print_message("%zu pauses, %zu with an open candidate, %zu stopped\n", n_pauses, n_with_held,
                  n_stopped);
    assert_true(n_pauses > 300 || SHARE > 1);
    assert_true(n_with_held > 5 || SHARE > 1);
    assert_true(n_stopped > 5 || SHARE > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_keeps_what_was_generated),
        cmocka_unit_test(test_cancel_in_prefill),
        cmocka_unit_test(test_timeout_commits),
        cmocka_unit_test(test_a_paused_turn_goes_on_byte_for_byte),
    };
    return cmocka_run_group_tests(tests, open_stand, close_stand);
}
