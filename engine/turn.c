/* turn.c: see turn.h. */
#include "engine/turn.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

/* --- opening and closing: the owner's thread ------------------------------------------------- */

static enum sl_code check_ids(const char *what, const uint32_t *ids, size_t n, size_t vocab,
                              struct sl_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return sl_fail_param(err, SL_E_INVALID_VALUE, what,
                                 "%s: token id %u (number %zu) is not below the model's "
                                 "vocabulary of %zu",
                                 what, ids[i], i, vocab);
    return SL_OK;
}

static enum sl_code check_spec(const struct sl_turn_spec *s, size_t vocab, struct sl_error *err)
{
    if (!s->n_prompt)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "prompt", "the prompt is empty");
    if (s->max_tokens > SIZE_MAX / 256 - s->n_prompt)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "max_tokens", "max_tokens is too large");
    if (s->n_held > s->max_tokens)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "held",
                             "%zu tokens are held; max_tokens allows %zu", s->n_held,
                             s->max_tokens);
    if (s->ring && s->ring->n > SL_PENALTY_LAST_N_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "ring",
                             "the ring holds %u tokens; up to %d are allowed", (unsigned)s->ring->n,
                             SL_PENALTY_LAST_N_MAX);
    if (s->n_stops > SL_STOPS_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "stop",
                             "%zu stop strings; up to %d are "
                             "allowed",
                             s->n_stops, SL_STOPS_MAX);
    if (s->n_stop_tokens > SL_STOP_TOKENS_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "stop_tokens",
                             "%zu stop tokens; up to %d "
                             "are allowed",
                             s->n_stop_tokens, SL_STOP_TOKENS_MAX);
    if (s->logprobs > SL_TOP_LOGPROBS_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "logprobs",
                             "logprobs is %d; up to %d are "
                             "allowed",
                             s->logprobs, SL_TOP_LOGPROBS_MAX);
    enum sl_code c = check_ids("prompt", s->prompt, s->n_prompt, vocab, err);
    if (!c)
        c = check_ids("held", s->held, s->n_held, vocab, err);
    if (!c)
        c = check_ids("generated", s->generated, s->n_generated, vocab, err);
    if (!c)
        c = check_ids("stop_tokens", s->stop_tokens, s->n_stop_tokens, vocab, err);
    if (!c && s->ring)
        c = check_ids("ring", s->ring->tokens, s->ring->n, vocab, err);
    return c ? c : sl_sampling_check(&s->sampling, vocab, err);
}

static void *copy_of(const void *src, size_t n, size_t size)
{
    void *p = sl_malloc(n * size);
    if (p && n)
        memcpy(p, src, n * size);
    return p;
}

static bool copy_spec(struct sl_turn *t, const struct sl_turn_spec *s)
{
    t->spec = *s;
    t->spec.prompt = NULL; /* it is in seq */
    t->spec.stops = NULL;  /* they are in the matcher */
    t->spec.sampling.bias = copy_of(s->sampling.bias, s->sampling.n_bias, sizeof *s->sampling.bias);
    t->spec.stop_tokens = copy_of(s->stop_tokens, s->n_stop_tokens, sizeof *s->stop_tokens);
    t->spec.ring = s->ring ? copy_of(s->ring, 1, sizeof *s->ring) : NULL;
    t->spec.generated = copy_of(s->generated, s->n_generated, sizeof *s->generated);
    t->spec.held = copy_of(s->held, s->n_held, sizeof *s->held);
    /* A divided token's head can have more tokens than the one it was. Memory that is not reached
     * is not touched. */
    t->seq = sl_malloc((s->n_prompt + s->max_tokens + SL_TOKEN_BYTES_MAX) * sizeof *t->seq);
    if (s->logprobs >= 0)
        t->logprobs = sl_malloc((s->max_tokens + SL_TOKEN_BYTES_MAX) * sizeof *t->logprobs);
    if (!t->spec.sampling.bias || !t->spec.stop_tokens || !t->spec.generated || !t->spec.held ||
        (s->ring && !t->spec.ring) || !t->seq || (s->logprobs >= 0 && !t->logprobs))
        return false;
    memcpy(t->seq, s->prompt, s->n_prompt * sizeof *t->seq);
    t->n_prompt = t->n_seq = s->n_prompt;
    return true;
}

enum sl_code sl_turn_open(struct sl_turn **ret, const struct sl_turn_env *env,
                          const struct sl_turn_spec *spec, int64_t now_us, struct sl_error *err)
{
    enum sl_code c = check_spec(spec, sl_model_info(env->model)->vocab_size, err);
    if (c)
        return c;
    struct sl_turn *t = sl_calloc(1, sizeof *t);
    if (!t || !copy_spec(t, spec)) {
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a turn of %zu tokens",
                    spec->n_prompt + spec->max_tokens);
        goto out;
    }
    if (spec->n_stops) {
        c = sl_stops_open(&t->stops, spec->stops, spec->n_stops, err);
        if (c)
            goto out;
    }
    t->created_us = now_us;
    t->deadline_us = spec->deadline_ms > 0 ? now_us + spec->deadline_ms * 1000 : 0;
    t->result.stop_index = -1;
    t->result.stop_token = -1;
    *ret = t;
    t = NULL;
out:
    sl_turn_close(t);
    return c;
}

void sl_turn_close(struct sl_turn *t)
{
    if (!t)
        return;
    sl_stops_close(t->stops);
    sl_free((void *)t->spec.sampling.bias);
    sl_free((void *)t->spec.stop_tokens);
    sl_free((void *)t->spec.ring);
    sl_free((void *)t->spec.generated);
    sl_free((void *)t->spec.held);
    sl_free(t->seq);
    sl_free(t->logprobs);
    sl_free(t);
}

/* --- running: the engine's thread ------------------------------------------------------------- */

static void restart(struct sl_turn *t, const struct sl_turn_env *env, const void *from)
{
    if (from)
        memcpy(t->states.live, from, env->state_bytes);
    else
        sl_model_state_init(env->model, t->states.live);
}

static size_t prompt_end(const struct sl_turn *t)
{
    /* Where nothing is generated the last token of the prompt stays pending. */
    return t->spec.max_tokens ? t->n_prompt : t->n_prompt - 1;
}

/* The result; all of it is released but the last n_held tokens. Of a turn that failed what was
 * released stays so, though nothing of it is to be kept. */
static void settle(struct sl_turn *t, enum sl_finish reason, bool complete, size_t n_held,
                   int64_t now_us)
{
    struct sl_turn_result *r = &t->result;
    const struct sl_state_header *h = t->states.live;
    r->finish = reason;
    r->complete = complete;
    r->n_tokens = complete ? t->n_seq - t->n_prompt : 0;
    r->n_held = n_held;
    r->n_pending = t->n_seq - t->fed;
    r->tokens_seen = h->tokens_seen;
    r->draws = sl_sampler_draws(t->sampler);
    r->queue_us = t->started_us - t->created_us;
    r->prefill_us = (t->prefilled_us ? t->prefilled_us : now_us) - t->started_us;
    r->decode_us = t->prefilled_us ? now_us - t->prefilled_us : 0;
    if (complete)
        atomic_store_explicit(&t->released, r->n_tokens - n_held, memory_order_release);
    t->phase = SL_TURN_DONE;
}

static void finish(struct sl_turn *t, enum sl_finish reason, bool complete, int64_t now_us)
{
    assert(!complete || !t->spec.keep_state || t->fed == t->n_seq - 1);
    settle(t, reason, complete, 0, now_us);
}

static void fail(struct sl_turn *t, enum sl_code c, int64_t now_us)
{
    finish(t, SL_FINISH_NONE, false, now_us);
    t->result.code = c;
}

/* `need` more tokens would have to be fed than there are positions left. */
static void fail_room(struct sl_turn *t, const struct sl_turn_env *env, size_t need, int64_t now_us)
{
    size_t max = sl_model_info(env->model)->max_tokens;
    (void)snprintf(t->error, sizeof t->error,
                   "the model has %zu positions, of which %zu are left; this request needs %zu",
                   max, t->room, need);
    fail(t, SL_E_CONTEXT_EXCEEDED, now_us);
}

/* Where the model has an end: the prompt must fit, and what is generated ends with it. The last
 * token that is generated is not fed. */
static bool find_room(struct sl_turn *t, const struct sl_turn_env *env)
{
    t->room = sl_model_room(env->model, t->states.live);
    if (t->room == SIZE_MAX)
        return true;
    if (prompt_end(t) > t->room)
        return false;
    if (t->spec.max_tokens > t->room - prompt_end(t) + 1)
        t->spec.max_tokens = t->room - prompt_end(t) + 1;
    return true;
}

void sl_turn_begin(struct sl_turn *t, const struct sl_turn_env *env, struct sl_sampler *sampler,
                   float *logits, int64_t now_us)
{
    t->sampler = sampler;
    t->logits = logits;
    t->started_us = now_us;
    restart(t, env, t->states.base);
    sl_sampler_start(sampler, &t->spec.sampling, t->spec.ring, t->spec.draws);
    for (size_t i = 0; i < t->spec.n_generated; i++)
        sl_sampler_accept(sampler, t->spec.generated[i]);
    t->phase = SL_TURN_PREFILL;
    if (!find_room(t, env)) {
        fail_room(t, env, prompt_end(t), now_us);
    } else if (prompt_end(t) == 0) {
        t->prefilled_us = now_us;
        finish(t, SL_FINISH_LENGTH, true, now_us);
    }
}

void sl_turn_want(const struct sl_turn *t, struct sl_batch_entry *ret)
{
    ret->take = 0;
    switch (t->phase) {
    case SL_TURN_PREFILL:
        ret->kind = SL_BATCH_PREFILL;
        ret->want = prompt_end(t) - t->fed;
        ret->whole = prompt_end(t);
        return;
    case SL_TURN_REPLAY:
        ret->kind = SL_BATCH_REPLAY;
        if (t->logprobs && t->head_begin < t->n_seq) /* the head's rows one by one */
            ret->want = t->fed + 1 < t->head_begin ? t->head_begin - 1 - t->fed : 1;
        else
            ret->want = t->n_seq - 1 - t->fed;
        return;
    default:
        assert(t->phase == SL_TURN_DECODE);
        ret->kind = SL_BATCH_DECODE;
        ret->want = 1;
    }
}

static bool gives_logits(const struct sl_turn *t, size_t take)
{
    switch (t->phase) {
    case SL_TURN_PREFILL:
        return t->spec.max_tokens && t->fed + take == t->n_prompt;
    case SL_TURN_REPLAY:
        return t->logprobs && t->head_begin < t->n_seq && t->fed + 1 >= t->head_begin;
    default:
        return true;
    }
}

void sl_turn_prepare(struct sl_turn *t, const struct sl_turn_env *env, size_t take)
{
    if (!t->states.shadow || t->phase == SL_TURN_REPLAY)
        return;
    bool due;
    if (t->phase == SL_TURN_PREFILL)
        due = t->fed && gives_logits(t, take);
    else
        due = (!t->stops || !sl_stops_open_bytes(t->stops)) &&
              (t->fed == t->n_prompt || t->fed - t->shadow_fed >= SL_SHADOW_EVERY);
    if (due) {
        memcpy(t->states.shadow, t->states.live, env->state_bytes);
        t->shadow_taken = true;
        t->shadow_fed = t->fed;
    }
}

void sl_turn_segment(const struct sl_turn *t, size_t take, struct sl_segment *ret)
{
    bool logits = gives_logits(t, take);
    *ret = (struct sl_segment){.state = t->states.live,
                               .tokens = t->seq + t->fed,
                               .n_tokens = take,
                               .logits = logits ? t->logits : NULL,
                               .n_logits = logits};
}

void sl_turn_choose(struct sl_turn *t, const struct sl_turn_env *env,
                    struct sl_sampler_scratch *scratch, size_t take)
{
    float *tops = sl_model_logits_tops(env->model, t->logits);
    int n_top = t->spec.logprobs;
    if (!gives_logits(t, take)) {
        t->chosen_code = SL_OK;
    } else if (t->phase == SL_TURN_REPLAY) {
        size_t i = t->fed + take; /* the head's token that these logits are about */
        t->chosen_code = sl_sampler_logprobs(t->sampler, scratch, t->logits, tops, t->seq[i], n_top,
                                             &t->logprobs[i - t->n_prompt]);
    } else {
        size_t i = t->n_seq - t->n_prompt;
        struct sl_token_logprobs *lp = t->logprobs ? &t->logprobs[i] : NULL;
        if (i >= t->spec.n_held) {
            t->chosen_code =
                sl_sampler_choose(t->sampler, scratch, t->logits, tops, n_top, &t->chosen, lp);
            return;
        }
        t->chosen = t->spec.held[i]; /* it was chosen before the pause */
        t->chosen_code =
            lp ? sl_sampler_logprobs(t->sampler, scratch, t->logits, tops, t->chosen, n_top, lp)
               : SL_OK;
    }
}

/* The sequence ends after n_keep tokens, the last of which come from a head from head_begin on. */
static void cut(struct sl_turn *t, const struct sl_turn_env *env, enum sl_finish reason,
                size_t n_keep, size_t head_begin, int64_t now_us)
{
    if (n_keep - 1 > t->room) { /* a divided token's head has more tokens than it */
        fail_room(t, env, n_keep - 1, now_us);
        return;
    }
    bool head_logprobs = t->logprobs && head_begin < n_keep;
    bool at_rest = t->fed == n_keep - 1 && t->fed <= head_begin; /* nothing of a head was fed as
                                                                    another token */
    t->n_seq = n_keep;
    t->head_begin = head_begin;
    t->result.finish = reason;
    if (!head_logprobs && (!t->spec.keep_state || at_rest)) {
        finish(t, reason, true, now_us);
        return;
    }
    assert(t->shadow_fed < n_keep && (!head_logprobs || t->shadow_fed < head_begin));
    restart(t, env, t->shadow_taken ? t->states.shadow : t->states.base);
    t->fed = t->shadow_fed;
    t->phase = SL_TURN_REPLAY;
    if (t->fed == n_keep - 1 && !head_logprobs)
        finish(t, reason, true, now_us);
}

/* A stop string was complete; its first byte lies n_back bytes before the end of the text of seq,
 * in which the last token ends (whatever of that token came after the stop is cut with it). */
static void cut_at_stop(struct sl_turn *t, const struct sl_turn_env *env, size_t n_back,
                        int64_t now_us)
{
    size_t i = t->n_seq, n = 0;
    const unsigned char *bytes = NULL;
    while (n_back) {
        assert(i > t->n_prompt);
        bytes = sl_tokenizer_bytes(env->tokenizer, t->seq[--i], &n);
        if (n >= n_back)
            break;
        n_back -= n;
    }
    size_t n_head = n_back ? n - n_back : 0;
    size_t n_keep =
        i + (n_head ? sl_tokenizer_encode_part(env->tokenizer, bytes, n_head, t->seq + i) : 0);
    cut(t, env, SL_FINISH_STOP, n_keep, i, now_us);
}

/* Tokens none of whose bytes could belong to a stop string are the client's. */
static void release(struct sl_turn *t, const struct sl_turn_env *env)
{
    size_t open = t->stops ? sl_stops_open_bytes(t->stops) : 0, n_seq = t->n_seq;
    while (open) {
        size_t n;
        (void)sl_tokenizer_bytes(env->tokenizer, t->seq[--n_seq], &n);
        open -= n < open ? n : open;
    }
    atomic_store_explicit(&t->released, n_seq - t->n_prompt, memory_order_release);
}

static bool is_stop_token(const struct sl_turn *t, const struct sl_turn_env *env, uint32_t token,
                          enum sl_finish *ret)
{
    for (size_t i = 0; i < t->spec.n_stop_tokens; i++) {
        if (t->spec.stop_tokens[i] == token) {
            *ret = SL_FINISH_STOP;
            return true;
        }
    }
    *ret = SL_FINISH_EOS;
    return !t->spec.ignore_eos && sl_tokenizer_is_eos(env->tokenizer, token);
}

static void take_token(struct sl_turn *t, const struct sl_turn_env *env, int64_t now_us)
{
    enum sl_finish reason;
    if (is_stop_token(t, env, t->chosen, &reason)) {
        t->result.stop_token = t->chosen;
        cut(t, env, reason, t->n_seq, t->n_seq, now_us);
        return;
    }
    t->seq[t->n_seq++] = t->chosen;
    sl_sampler_accept(t->sampler, t->chosen);
    t->phase = SL_TURN_DECODE;
    if (t->stops) {
        size_t n, used, match;
        const unsigned char *bytes = sl_tokenizer_bytes(env->tokenizer, t->chosen, &n);
        if (n && sl_stops_feed(t->stops, bytes, n, &used, &match, &t->result.stop_index)) {
            cut_at_stop(t, env, n - used + match, now_us);
            return;
        }
    }
    if (t->n_seq - t->n_prompt >= t->spec.max_tokens)
        finish(t, SL_FINISH_LENGTH, true, now_us);
    else
        release(t, env);
}

void sl_turn_advance(struct sl_turn *t, const struct sl_turn_env *env, size_t take, int64_t now_us)
{
    bool had_logits = gives_logits(t, take);
    t->fed += take;
    t->result.computed_tokens += take;
    if (t->chosen_code) {
        fail(t, t->chosen_code, now_us);
        return;
    }
    if (t->phase == SL_TURN_REPLAY) {
        if (t->fed == t->n_seq - 1)
            finish(t, t->result.finish, true, now_us);
        return;
    }
    if (t->phase == SL_TURN_PREFILL && t->fed == prompt_end(t)) {
        t->prefilled_us = now_us;
        atomic_store_explicit(&t->prefilled, true, memory_order_relaxed);
        if (!had_logits)
            finish(t, SL_FINISH_LENGTH, true, now_us);
    }
    if (had_logits)
        take_token(t, env, now_us);
}

/* What was chosen before an earlier pause and not released is still to come. */
static void keep_held(struct sl_turn *t)
{
    for (size_t i = t->n_seq - t->n_prompt; i < t->spec.n_held; i++)
        t->seq[t->n_seq++] = t->spec.held[i];
}

static void pause_turn(struct sl_turn *t, const struct sl_turn_env *env, int64_t now_us)
{
    size_t n_open = t->stops ? sl_stops_open_bytes(t->stops) : 0;
    size_t n_done = t->n_seq - t->n_prompt;
    if (t->phase == SL_TURN_DECODE && (n_open || n_done < t->spec.n_held)) {
        keep_held(t);
        restart(t, env, t->shadow_taken ? t->states.shadow : t->states.base);
        t->fed = t->shadow_fed;
    } else if (t->phase == SL_TURN_PREFILL) {
        keep_held(t);
    }
    settle(t, SL_FINISH_PAUSED, true, t->n_seq - t->n_prompt - sl_turn_released(t), now_us);
}

void sl_turn_interrupt(struct sl_turn *t, const struct sl_turn_env *env, int64_t now_us)
{
    enum sl_finish reason = (enum sl_finish)atomic_load_explicit(&t->cancel, memory_order_relaxed);
    if (!reason && t->deadline_us && now_us >= t->deadline_us)
        reason = SL_FINISH_TIMEOUT;
    if (!reason || t->phase == SL_TURN_REPLAY || t->phase == SL_TURN_DONE)
        return; /* a turn in replay has ended already and only comes to rest */
    if (reason == SL_FINISH_PAUSED)
        pause_turn(t, env, now_us);
    else
        finish(t, reason, t->phase == SL_TURN_DECODE, now_us);
}

bool sl_turn_leaves_state(const struct sl_turn *t)
{
    return t->phase == SL_TURN_DONE && t->result.complete && t->spec.keep_state && t->fed;
}

void sl_turn_check_state(struct sl_turn *t, const struct sl_turn_env *env, int64_t now_us)
{
    assert(sl_turn_leaves_state(t));
    if (!sl_model_state_is_finite(env->model, t->states.live))
        fail(t, SL_E_MODEL_NOT_FINITE, now_us);
}

void sl_turn_pause_unread(struct sl_turn *t)
{
    struct sl_turn_result *r = &t->result;
    assert(!t->sampler && t->phase != SL_TURN_DONE);
    keep_held(t);
    r->finish = SL_FINISH_PAUSED;
    r->complete = true;
    r->n_tokens = r->n_held = t->n_seq - t->n_prompt;
    r->n_pending = t->n_seq;
    r->draws = t->spec.draws;
    t->phase = SL_TURN_DONE;
    t->reported = true;
}

/* --- reading: the owner's thread -------------------------------------------------------------- */

size_t sl_turn_released(const struct sl_turn *t)
{
    return atomic_load_explicit(&t->released, memory_order_acquire);
}

const uint32_t *sl_turn_tokens(const struct sl_turn *t)
{
    return t->seq + t->n_prompt;
}

const uint32_t *sl_turn_pending(const struct sl_turn *t)
{
    return t->seq + t->n_seq - t->result.n_pending;
}

const struct sl_token_logprobs *sl_turn_logprobs(const struct sl_turn *t)
{
    return t->logprobs;
}

const struct sl_turn_result *sl_turn_result(const struct sl_turn *t)
{
    return t->reported ? &t->result : NULL;
}

bool sl_turn_prefilled(const struct sl_turn *t)
{
    return atomic_load_explicit(&t->prefilled, memory_order_relaxed);
}

/* The last n tokens of a list, as many as there is room for before what comes after it. */
static void prepend(struct sl_penalty_ring *ring, const uint32_t *tokens, size_t n)
{
    size_t room = SL_PENALTY_LAST_N_MAX - ring->n, k = n < room ? n : room;
    memmove(ring->tokens + k, ring->tokens, ring->n * sizeof *tokens);
    memcpy(ring->tokens, tokens + n - k, k * sizeof *tokens);
    ring->n += (uint32_t)k;
}

void sl_turn_ring(const struct sl_turn *t, struct sl_penalty_ring *ret)
{
    const struct sl_penalty_ring *old = t->spec.ring;
    ret->n = 0;
    prepend(ret, sl_turn_tokens(t), t->result.n_tokens);
    prepend(ret, t->spec.generated, t->spec.n_generated);
    if (old)
        prepend(ret, old->tokens, old->n);
}

const char *sl_turn_error(const struct sl_turn *t)
{
    return *t->error ? t->error : sl_code_text(t->result.code);
}

const char *sl_finish_name(enum sl_finish f)
{
    static const char *const name[] = {
        [SL_FINISH_NONE] = "none",           [SL_FINISH_STOP] = "stop",
        [SL_FINISH_LENGTH] = "length",       [SL_FINISH_EOS] = "eos",
        [SL_FINISH_CANCELLED] = "cancelled", [SL_FINISH_PAUSED] = "paused",
        [SL_FINISH_TIMEOUT] = "timeout"};
    assert((size_t)f < sizeof name / sizeof *name);
    return name[f];
}
