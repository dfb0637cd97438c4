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

/* A spec that reads begin token and text. The ids are the caller's to free. */
static struct sl_turn_spec spec_of(const char *text, size_t max_tokens, uint32_t **ret_ids)
{
    size_t n;
    uint32_t *ids = stand_ids(&stand, text, &n);
    uint32_t *all = malloc((n + 1) * sizeof *all);
    all[0] = 0;
    memcpy(all + 1, ids, n * sizeof *ids);
    free(ids);
    *ret_ids = all;
    return (struct sl_turn_spec){.prompt = all,
                                 .n_prompt = n + 1,
                                 .max_tokens = max_tokens,
                                 .sampling = SL_SAMPLING_DEFAULT,
                                 .ignore_eos = true,
                                 .logprobs = -1,
                                 .keep_state = true};
}

/* prompt + tokens fed by a turn that generates nothing: what a rested state must be equal to. */
static void fed(const struct sl_turn_spec *like, const void *base, const uint32_t *tokens, size_t n,
                struct outcome *o)
{
    uint32_t *all = malloc((like->n_prompt + n) * sizeof *all);
    memcpy(all, like->prompt, like->n_prompt * sizeof *all);
    if (n)
        memcpy(all + like->n_prompt, tokens, n * sizeof *all);
    struct sl_turn_spec spec = {.prompt = all,
                                .n_prompt = like->n_prompt + n,
                                .sampling = SL_SAMPLING_DEFAULT,
                                .logprobs = -1,
                                .keep_state = true};
    stand_run(&stand, &spec, base, o);
    free(all);
}

static void assert_at_rest(const struct sl_turn_spec *spec, const void *base,
                           const struct outcome *o)
{
    struct outcome want;
    assert_int_equal(o->result->code, SL_OK);
    assert_true(o->result->complete);
    fed(spec, base, sl_turn_tokens(o->turn), o->result->n_tokens, &want);
    assert_int_equal(o->result->n_pending, 1);
    assert_int_equal(*sl_turn_pending(o->turn), *sl_turn_pending(want.turn));
    assert_int_equal(o->result->tokens_seen, want.result->tokens_seen);
    assert_memory_equal(o->live, want.live, stand.state_bytes);
    outcome_done(&stand, &want);
}

static size_t argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* The logits after each token of a sequence, one token a step, on one thread. */
struct plain {
    struct sl_workers *workers;
    struct sl_forward *forward;
    void *state;
    float *logits;
    size_t vocab;
};

static void plain_open(struct plain *p)
{
    p->vocab = sl_model_info(stand.model)->vocab_size;
    p->state = sl_aligned_calloc(stand.state_bytes);
    p->logits = sl_aligned_calloc(sl_model_logits_stride(stand.model) * sizeof(float));
    assert_int_equal(sl_workers_open(&p->workers, 1, NULL), SL_OK);
    assert_int_equal(sl_forward_open(&p->forward, stand.model, p->workers, 1, 1, NULL), SL_OK);
    sl_model_state_init(stand.model, p->state);
}

static void plain_feed(struct plain *p, uint32_t token)
{
    struct sl_segment seg = {
        .state = p->state, .tokens = &token, .n_tokens = 1, .logits = p->logits, .n_logits = 1};
    sl_forward_run(p->forward, &seg, 1);
}

static void plain_close(struct plain *p)
{
    sl_forward_close(p->forward);
    sl_workers_close(p->workers);
    sl_free(p->state);
    sl_free(p->logits);
}

static double log_sum_exp(const float *x, size_t n)
{
    double max = x[argmax(x, n)], sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

static void assert_logprobs(const struct plain *p, const struct sl_token_logprobs *lp,
                            uint32_t token)
{
    assert_int_equal(lp->chosen.token, token);
    double want = (double)p->logits[token] - log_sum_exp(p->logits, p->vocab);
    assert_true(fabs((double)lp->chosen.logprob - want) < 1e-4);
    assert_int_equal(lp->top[0].token, argmax(p->logits, p->vocab));
}

static void test_greedy_is_the_plain_loop(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = spec_of(story, 60, &ids);
    struct outcome o;
    struct plain p;
    spec.sampling.temperature = 0;
    spec.logprobs = 3;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_LENGTH);
    assert_int_equal(o.result->n_tokens, 60);
    assert_int_equal(sl_turn_released(o.turn), 60);
    plain_open(&p);
    for (size_t i = 0; i < spec.n_prompt; i++)
        plain_feed(&p, ids[i]);
    for (size_t i = 0; i < 60; i++) {
        uint32_t token = sl_turn_tokens(o.turn)[i];
        assert_int_equal(token, argmax(p.logits, p.vocab));
        assert_logprobs(&p, &sl_turn_logprobs(o.turn)[i], token);
        if (i < 59)
            plain_feed(&p, token);
    }
    assert_memory_equal(o.live, p.state, stand.state_bytes);
    assert_at_rest(&spec, NULL, &o);
    plain_close(&p);
    outcome_done(&stand, &o);
    free(ids);
}

/* n tokens, then m more with nothing but the pending token: what n + m at once give. */
static void test_an_empty_prompt_continues(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = spec_of(story, 50, &ids);
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
    assert_at_rest(&spec, NULL, &o);
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
        struct sl_turn_spec spec = spec_of(story, 40, &ids);
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
        struct sl_turn_spec spec = spec_of(story, 24, &ids);
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
        plain_open(&p);
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
        struct sl_turn_spec spec = spec_of(story, 40, &ids);
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
        assert_at_rest(&spec, NULL, &o);
        outcome_done(&stand, &o);
        outcome_done(&stand, &whole);
        free(ids);
    }
}

static void test_the_end_token_ends(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = spec_of(story, 40, &ids);
    struct outcome o;
    struct sl_logit_bias bias = {.token = 0, .bias = 1000};
    spec.sampling.bias = &bias;
    spec.sampling.n_bias = 1;
    stand_run(&stand, &spec, NULL, &o); /* ignored: a token like any other */
    assert_int_equal(o.result->n_tokens, 40);
    assert_int_equal(sl_turn_tokens(o.turn)[39], 0);
    assert_at_rest(&spec, NULL, &o);
    outcome_done(&stand, &o);
    spec.ignore_eos = false;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_EOS);
    assert_int_equal(o.result->n_tokens, 0);
    assert_int_equal(*sl_turn_pending(o.turn), ids[spec.n_prompt - 1]);
    assert_at_rest(&spec, NULL, &o);
    outcome_done(&stand, &o);
    free(ids);
}

static void test_reading_only(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = spec_of(story, 0, &ids);
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
        spec[i] = spec_of(text, 10 + i, &ids[i]);
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
        assert_at_rest(&spec[i], NULL, &o[i]);
        outcome_done(&stand, &alone);
        outcome_done(&stand, &o[i]);
        free(ids[i]);
    }
}

static void test_a_bad_state_ends_alone(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec good = spec_of(story, 20, &ids), bad = good;
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
    struct sl_turn_spec spec = spec_of(story, 100000, &ids);
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
    assert_at_rest(&spec, NULL, &o);
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
    struct sl_turn_spec spec = spec_of(story, 1000000, &ids);
    struct outcome o;
    spec.deadline_ms = 100;
    stand_run(&stand, &spec, NULL, &o);
    assert_int_equal(o.result->finish, SL_FINISH_TIMEOUT);
    assert_true(o.result->complete);
    assert_at_rest(&spec, NULL, &o);
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
        struct sl_turn_spec spec = spec_of(story, 64, &ids);
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

/* Closing ends what runs. */
static void test_close_ends_all(void **state)
{
    (void)state;
    struct sl_engine *e;
    uint32_t *ids;
    struct sl_turn_spec spec = spec_of(story, 1000000, &ids);
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
    struct sl_turn_spec good = spec_of(story, 5, &ids), s;
    struct sl_logit_bias bias = {.token = 2048};
    s = good, s.prompt = &beyond, s.n_prompt = 1, refused(s, "prompt");
    s = good, s.n_prompt = 0, refused(s, "prompt");
    s = good, s.stop_tokens = &beyond, s.n_stop_tokens = 1, refused(s, "stop_tokens");
    s = good, s.sampling.bias = &bias, s.sampling.n_bias = 1, refused(s, "logit_bias");
    bias = (struct sl_logit_bias){.token = 1, .bias = NAN};
    refused(s, "logit_bias");
    s = good, s.sampling.temperature = NAN, refused(s, "temperature");
    s = good, s.sampling.temperature = -1, refused(s, "temperature");
    s = good, s.sampling.top_p = 0, refused(s, "top_p");
    s = good, s.sampling.min_p = 1.5f, refused(s, "min_p");
    s = good, s.sampling.typical_p = -1, refused(s, "typical_p");
    s = good, s.sampling.repetition_penalty = 0, refused(s, "repetition_penalty");
    s = good, s.sampling.presence_penalty = INFINITY, refused(s, "presence_penalty");
    s = good, s.sampling.frequency_penalty = NAN, refused(s, "frequency_penalty");
    s = good, s.sampling.penalty_decay = 2, refused(s, "penalty_decay");
    s = good, s.sampling.penalty_last_n = 1025, refused(s, "penalty_last_n");
    s = good, s.logprobs = 21, refused(s, "logprobs");
    s = good, s.max_tokens = SIZE_MAX / 2, refused(s, "max_tokens");
    free(ids);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    uint32_t *ids;
    struct sl_turn_spec spec = spec_of(story, 5, &ids);
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
    struct sl_turn_spec spec = spec_of(story, 40, &ids);
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
        cmocka_unit_test(test_a_stop_is_cut_from_the_state),
        cmocka_unit_test(test_logprobs_describe_what_is_kept),
        cmocka_unit_test(test_stop_tokens_are_not_fed),
        cmocka_unit_test(test_the_end_token_ends),
        cmocka_unit_test(test_reading_only),
        cmocka_unit_test(test_many_at_once_are_as_alone),
        cmocka_unit_test(test_a_bad_state_ends_alone),
        cmocka_unit_test(test_cancel_keeps_what_was_generated),
        cmocka_unit_test(test_cancel_in_prefill),
        cmocka_unit_test(test_timeout_commits),
        cmocka_unit_test(test_a_paused_turn_goes_on_byte_for_byte),
        cmocka_unit_test(test_close_ends_all),
        cmocka_unit_test(test_bad_specs_are_named),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_the_ring_is_carried),
    };
    return cmocka_run_group_tests(tests, open_stand, close_stand);
}
