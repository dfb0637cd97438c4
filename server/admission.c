/* admission.c: from a request's prompt to a place in the engine: tokenising (long texts as long
 * work), the limits on what waits, the line (first in, first out). See turns.h. */
#include "server/residency.h"
#include "server/turns_priv.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

void sl_run_forget_queued(struct sl_run *r)
{
    r->ts->queued_prefill -= r->queued;
    r->queued = 0;
}

/* What it has used of its tenant's tokens: those that it is told of as its usage; where it did not
 * happen, those that were computed for it all the same. */
static uint64_t used_tokens(const struct sl_run *r)
{
    const struct sl_run_result *res = &r->result;
    bool happened = !res->error.code && !r->roll_back;
    uint64_t n =
        happened ? res->prompt_tokens + res->n_tokens : (uint64_t)res->timings.computed_tokens;
    return n < r->taken ? n : r->taken;
}

void sl_run_return_tokens(struct sl_run *r)
{
    uint64_t left = r->taken - used_tokens(r);
    r->taken = 0;
    sl_tenant_return_tokens(r->spec.tenant, left, uv_now(r->ts->loop));
}

enum { CLOCK_MS = 20 };

/* --- the way into the engine ----------------------------------------------------------------- */

void sl_run_leave_line(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    struct sl_run **p = &ts->line;
    while (*p != r)
        p = &(*p)->next_in_line;
    *p = r->next_in_line;
    if (ts->line_end == &r->next_in_line)
        ts->line_end = p;
    ts->n_waiting--;
}

static const void *base_of(const struct sl_run *r)
{
    if (r->spec.replayed)
        return r->spec.base;
    return r->session ? r->session->state : r->ts->opt.initial_state;
}

static void enter_engine(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    r->live = sl_slab_take(ts->slab);
    r->shadow = sl_slab_take(ts->slab);
    assert(r->live && r->shadow); /* nobody else takes of those that has_room() counts */
    r->n_slots = 2;
    ts->n_slots += r->n_slots;
    struct sl_turn_states states = {.base = base_of(r), .live = r->live, .shadow = r->shadow};
    r->state = RUNNING;
    ts->n_running++;
    enum sl_code c = sl_engine_submit(ts->engine, r->turn, &states, NULL);
    assert(c == SL_OK); /* n_running is the engine's count */
}

static bool has_room(const struct sl_turns *ts)
{
    return ts->n_running < ts->opt.max_running && ts->opt.max_slots - ts->n_slots >= 2;
}

void sl_turns_pump(struct sl_turns *ts)
{
    while (ts->line && has_room(ts)) {
        struct sl_run *r = ts->line;
        sl_run_leave_line(r);
        enter_engine(r);
    }
}

static bool is_over_time(const struct sl_run *r)
{
    return r->spec.max_time_ms &&
           (int64_t)uv_now(r->ts->loop) - r->started_ms >= r->spec.max_time_ms;
}

static struct sl_run *first_over_time(const struct sl_turns *ts)
{
    struct sl_run *r = ts->line;
    while (r && !is_over_time(r))
        r = r->next_in_line;
    return r;
}

/* From the line's begin each time: what waits for the session of one that ends may take any other
 * one out of the line. */
void sl_turns_on_clock(uv_timer_t *clock)
{
    struct sl_turns *ts = clock->data;
    for (struct sl_run *r; (r = first_over_time(ts));) {
        sl_run_leave_line(r);
        sl_run_end_with(r, SL_FINISH_TIMEOUT);
    }
    if (!ts->line)
        uv_timer_stop(clock);
}

const struct sl_penalty_ring *sl_run_ring_before(const struct sl_run *r)
{
    if (r->continuation.paused)
        return &r->continuation.paused->ring;
    if (r->ring)
        return r->ring;
    return r->session ? r->session->ring : NULL;
}

/* Of max_time_ms, for the engine, which counts from now. */
static int64_t time_left(const struct sl_run *r)
{
    if (!r->spec.max_time_ms)
        return 0;
    int64_t left = r->spec.max_time_ms - ((int64_t)uv_now(r->ts->loop) - r->started_ms);
    return left > 1 ? left : 1;
}

/* What a paused turn goes on with: its held tokens come again, after what is pending before them.
 */
static void go_on(const struct sl_run *r, struct sl_turn_spec *spec)
{
    const struct sl_paused_turn *p = r->continuation.paused;
    spec->n_prompt -= p->n_held;
    spec->held = spec->prompt + spec->n_prompt;
    spec->n_held = p->n_held;
    spec->draws = p->draws;
    spec->generated = p->generated;
    spec->n_generated = p->n_generated;
}

/* Fewer tokens, where they will do: at least those that a pause has held. False: they will not. */
static bool make_do(struct sl_run *r, uint64_t most)
{
    struct sl_run_spec *s = &r->spec;
    size_t n_held = s->resume ? r->n_drop : 0;
    if (s->max_tokens <= most)
        return true;
    if (!s->fewer_will_do || !most || most < n_held)
        return false;
    s->max_tokens = (size_t)most;
    return true;
}

/* A turn that was computed must not fail because its answer is too long to be kept, or told: see
 * answer_room.h. */
static enum sl_code fit_answer(struct sl_run *r, struct sl_error *err)
{
    const struct sl_run_spec *s = &r->spec;
    size_t max = r->key ? SL_ANSWER_BYTES_MAX : s->answer_max;
    if (!max)
        return SL_OK;
    assert(max > SL_ANSWER_ROOM_FIXED);
    size_t each = sl_answer_room(&r->ts->token_room, s->dialect, s->logprobs);
    size_t most = (max - SL_ANSWER_ROOM_FIXED) / each;
    const char *what = s->logprobs < 0 ? "its text" : "its text and logprobs",
               *why = r->key ? "with an Idempotency-Key the answer is kept"
                             : "an answer that is not streamed is told at once";
    if (make_do(r, most))
        return SL_OK;
    if (s->resume)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "resume",
                             "%s, up to %zu MiB; what the paused turn asks for each token (%s) "
                             "fits for up to %zu tokens, and it has up to %zu to go; with stream: "
                             "true and without an Idempotency-Key it can be resumed",
                             why, max >> 20, what, most, s->max_tokens);
    return sl_fail_param(err, SL_E_INVALID_VALUE, "max_tokens",
                         "%s, up to %zu MiB; what this request asks for each token (%s) fits for "
                         "max_tokens up to %zu, got %zu%s",
                         why, max >> 20, what, most, s->max_tokens,
                         r->key ? "" : "; with stream: true any number does");
}

/* The prompt's tokens are there: admission by their number, then the line. */
static enum sl_code enqueue(struct sl_run *r, struct sl_error *err)
{
    struct sl_turns *ts = r->ts;
    size_t max = ts->opt.max_queued_prefill, n_new = r->n_tokens - r->n_lead;
    enum sl_code c = fit_answer(r, err);
    if (c)
        return c;
    if (n_new > max)
        return sl_fail_param(err, SL_E_TOO_LARGE, "prompt",
                             "the prompt has %zu tokens; a prompt of more than %zu is never "
                             "admitted (--max-queued-prefill)",
                             n_new, max);
    /* With what the session has to read again there may be more than that: they must pass. */
    size_t n_queued = r->n_tokens < max ? r->n_tokens : max;
    if (n_queued > max - ts->queued_prefill) {
        sl_metric_add(ts->metrics, SL_M_TURNS_REFUSED, 1);
        return sl_fail(err, SL_E_SERVER_FULL,
                       "%zu prompt tokens are waiting to be read and this prompt has %zu; the "
                       "limit is %zu (--max-queued-prefill)",
                       ts->queued_prefill, r->n_tokens, max);
    }
    const struct sl_run_spec *s = &r->spec;
    uint64_t quota = sl_tenant_tokens_most(s->tenant);
    (void)make_do(r, quota > n_new ? quota - n_new : 0); /* the tenant tells what is too much */
    uint64_t wanted = n_new + s->max_tokens;
    c = sl_tenant_take_tokens(s->tenant, wanted, uv_now(ts->loop), err);
    if (c)
        return c;
    r->taken = wanted;
    struct sl_turn_spec spec = {.prompt = r->prompt.v,
                                .n_prompt = r->n_tokens,
                                .max_tokens = s->max_tokens,
                                .deadline_ms = time_left(r),
                                .sampling = s->sampling,
                                .stops = s->stops,
                                .n_stops = s->n_stops,
                                .stop_tokens = s->stop_tokens,
                                .n_stop_tokens = s->n_stop_tokens,
                                .ignore_eos = s->ignore_eos,
                                .logprobs = s->logprobs,
                                .ring = sl_run_ring_before(r),
                                .keep_state = r->session != NULL || s->replayed,
                                .user = r};
    if (r->continuation.paused)
        go_on(r, &spec);
    c = sl_turn_create(ts->engine, &spec, &r->turn, err);
    if (c)
        return c;
    sl_token_list_done(&r->prompt);
    r->queued = n_queued;
    ts->queued_prefill += r->queued;
    sl_free(r->owned_prompt);
    r->owned_prompt = NULL;
    if (r->pause) {
        sl_run_pause_unread(r);
        return SL_OK;
    }
    r->state = WAITING;
    r->next_in_line = NULL;
    *ts->line_end = r;
    ts->line_end = &r->next_in_line;
    ts->n_waiting++;
    sl_turns_pump(ts);
    if (ts->line && r->spec.max_time_ms && !uv_is_active((uv_handle_t *)&ts->clock))
        uv_timer_start(&ts->clock, sl_turns_on_clock, CLOCK_MS, CLOCK_MS);
    return SL_OK;
}

/* --- tokenising ------------------------------------------------------------------------------ */

static enum sl_code tokenise(struct sl_run *r, struct sl_error *err)
{
    const struct sl_run_spec *s = &r->spec;
    struct sl_tokenizer_text text = {.s = s->text->s,
                                     .n = s->text->n,
                                     .continues = r->n_lead > 0,
                                     .verbatim = s->verbatim,
                                     .n_verbatim = s->n_verbatim};
    enum sl_code c = sl_tokenizer_encode(r->ts->tokenizer, &text, &r->prompt, err);
    if (c == SL_E_INVALID_VALUE || c == SL_E_TOO_LARGE)
        snprintf(err->param, sizeof err->param, "prompt");
    r->n_tokens = r->prompt.n;
    return c;
}

static struct sl_run *of_job(struct sl_long_job *j)
{
    return (struct sl_run *)(void *)((char *)j - offsetof(struct sl_run, tokenising));
}

/* The loop does not look at the result before on_tokenised(). */
static void tokenise_long(struct sl_long_job *j)
{
    struct sl_run *r = of_job(j);
    (void)tokenise(r, &r->result.error);
}

/* Its tokens are there, unless something was wrong meanwhile. */
static enum sl_code take_tokens(struct sl_run *r, const struct sl_error *failed,
                                struct sl_error *err)
{
    if (r->lost)
        sl_run_tell_lost(r, err);
    else if (failed->code)
        *err = *failed;
    return r->lost || failed->code ? err->code : enqueue(r, err);
}

static void on_tokenised(struct sl_long_job *j)
{
    struct sl_run *r = of_job(j);
    struct sl_turns *ts = r->ts;
    struct sl_error failed = r->result.error;
    r->result.error = (struct sl_error){.code = SL_OK};
    ts->n_waiting--;
    if (!r->lost && r->cancelled) {
        sl_run_end_with(r, SL_FINISH_CANCELLED);
    } else if (!r->lost && is_over_time(r)) {
        sl_run_end_with(r, SL_FINISH_TIMEOUT);
    } else if (take_tokens(r, &failed, &r->result.error)) {
        sl_run_end_later(r);
    }
}

/* The caller's arrays are gone when the session has to be loaded or the text is tokenised
 * elsewhere, and a pause writes the settings down: one block for all of them but the prompt. */
static enum sl_code own_settings(struct sl_run *r, struct sl_error *err)
{
    struct sl_run_spec *s = &r->spec;
    size_t n_bias = s->sampling.n_bias * sizeof *s->sampling.bias;
    size_t n_stops = s->n_stops * sizeof *s->stops;
    size_t n_ids = s->n_stop_tokens * sizeof *s->stop_tokens;
    size_t n = n_stops + n_bias + n_ids;
    for (size_t i = 0; i < s->n_stops; i++)
        n += s->stops[i].n;
    char *p = r->owned = sl_malloc(n);
    if (!p)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a turn's settings");
    struct sl_stop *stops = (struct sl_stop *)(void *)p;
    char *bias = (char *)stops + n_stops, *ids = bias + n_bias, *bytes = ids + n_ids;
    for (size_t i = 0; i < s->n_stops; i++) {
        stops[i] = (struct sl_stop){.bytes = (unsigned char *)bytes, .n = s->stops[i].n};
        memcpy(bytes, s->stops[i].bytes, s->stops[i].n);
        bytes += s->stops[i].n;
    }
    if (n_bias)
        memcpy(bias, s->sampling.bias, n_bias);
    if (n_ids)
        memcpy(ids, s->stop_tokens, n_ids);
    s->stops = stops;
    s->sampling.bias = (const struct sl_logit_bias *)(void *)bias;
    s->stop_tokens = (const uint32_t *)(void *)ids;
    return SL_OK;
}

static enum sl_code own_prompt(struct sl_run *r, struct sl_error *err)
{
    struct sl_run_spec *s = &r->spec;
    size_t n = s->text ? s->text->n : s->n_tokens * sizeof *s->tokens;
    size_t n_ranges = s->n_verbatim * sizeof *s->verbatim;
    struct sl_text *p = r->owned_prompt = sl_malloc(sizeof *p + n_ranges + n);
    if (!p)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a prompt of %zu bytes", n);
    struct sl_range *ranges = (struct sl_range *)(void *)(p + 1);
    char *bytes = (char *)ranges + n_ranges;
    if (n_ranges)
        memcpy(ranges, s->verbatim, n_ranges);
    if (n)
        memcpy(bytes, s->text ? (const void *)s->text->s : s->tokens, n);
    *p = (struct sl_text){.s = bytes, .n = n};
    s->verbatim = ranges;
    if (s->text)
        s->text = p;
    else
        s->tokens = (const uint32_t *)(void *)bytes;
    return SL_OK;
}

static enum sl_code put_tokens(struct sl_run *r, const uint32_t *ids, size_t n,
                               struct sl_error *err)
{
    enum sl_code c = sl_token_list_add(&r->prompt, ids, n, err);
    r->n_tokens = r->prompt.n;
    return c;
}

/* Pending tokens or the begin token. */
static enum sl_code lead(struct sl_run *r, struct sl_error *err)
{
    const struct sl_run_spec *s = &r->spec;
    const struct sl_session *session = r->session;
    size_t n = s->text ? s->text->n : s->n_tokens;
    if (s->replayed) {
        r->n_lead = n;
        return SL_OK;
    }
    if (session && session->n_pending) {
        size_t n_gone = s->resume ? 0 : r->n_drop;
        assert(n_gone < session->n_pending);
        r->n_lead = session->n_pending - n_gone;
        return put_tokens(r, session->pending, r->n_lead, err);
    }
    if (r->ts->opt.begin_token >= 0) {
        uint32_t id = (uint32_t)r->ts->opt.begin_token;
        return put_tokens(r, &id, 1, err);
    }
    if (!n)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "prompt",
                             "the prompt is empty and there is nothing to continue: %s",
                             session ? "the session is empty" : "no session was given");
    return SL_OK;
}

static enum sl_code read_prompt(struct sl_run *r, struct sl_error *err)
{
    const struct sl_run_spec *s = &r->spec;
    enum sl_code c = lead(r, err);
    if (c)
        return c;
    if (s->text && s->text->n > SL_LONG_BYTES) {
        c = r->owned_prompt ? SL_OK : own_prompt(r, err);
        if (!c && !r->owned)
            c = own_settings(r, err);
        if (c)
            return c;
        r->state = TOKENISING;
        r->tokenising = (struct sl_long_job){.work = tokenise_long, .done = on_tokenised};
        sl_longwork_add(r->ts->opt.longwork, &r->tokenising, s->text->n);
        r->ts->n_waiting++;
        return SL_OK;
    }
    c = s->text ? tokenise(r, err) : put_tokens(r, s->tokens, s->n_tokens, err);
    return c ? c : enqueue(r, err);
}

/* --- the session's memory -----------------------------------------------------------------------
 */

/* Its settings come from the paused turn. */
static enum sl_code take_paused(struct sl_run *r, struct sl_error *err)
{
    const struct sl_session *s = r->session;
    struct sl_run_spec *spec = &r->spec;
    if (!s->paused)
        return sl_fail_param(err, SL_E_NOTHING_PAUSED, "resume",
                             "session '%s' has no paused turn to resume", s->id);
    enum sl_code c =
        sl_continuation_read(&r->continuation, s->paused, s->n_paused, r->ts->vocab_size, err);
    if (c)
        return c;
    const struct sl_paused_turn *p = r->continuation.paused;
    spec->max_tokens = p->max_tokens;
    spec->fewer_will_do = p->fewer_will_do;
    r->n_drop = p->n_held;
    if (r->ts->opt.max_tokens && !make_do(r, r->ts->opt.max_tokens))
        return sl_fail_param(err, SL_E_INVALID_VALUE, "resume",
                             "the paused turn of session '%s' wants %zu tokens more; this server's "
                             "limit is %zu (--max-tokens-limit)",
                             s->id, p->max_tokens, r->ts->opt.max_tokens);
    spec->text = NULL;
    spec->n_verbatim = 0;
    spec->tokens = NULL;
    spec->n_tokens = 0;
    spec->sampling = p->sampling;
    spec->stops = p->stops;
    spec->n_stops = p->n_stops;
    spec->stop_tokens = p->stop_tokens;
    spec->n_stop_tokens = p->n_stop_tokens;
    spec->ignore_eos = p->ignore_eos;
    spec->logprobs = p->logprobs;
    spec->chat_template = p->chat_template;
    return SL_OK;
}

/* Another turn than the paused one's end goes on from what the client has seen: what the pause has
 * held back is in no answer. */
static enum sl_code drop_held(struct sl_run *r, struct sl_error *err)
{
    const struct sl_session *s = r->session;
    struct sl_continuation was = {.pool = SL_POOL_INIT};
    if (!s->paused)
        return SL_OK;
    enum sl_code c = sl_continuation_read(&was, s->paused, s->n_paused, r->ts->vocab_size, err);
    if (c || !was.paused->n_held)
        goto out;
    r->ring = sl_malloc(sizeof *r->ring);
    if (!r->ring) {
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a turn");
        goto out;
    }
    sl_paused_ring(was.paused, r->ring);
    r->n_drop = was.paused->n_held;
out:
    sl_continuation_done(&was);
    return c;
}

static enum sl_code go(struct sl_run *r, struct sl_error *err)
{
    enum sl_code c = r->spec.resume ? take_paused(r, err) : drop_held(r, err);
    return c ? c : read_prompt(r, err);
}

static void on_ready(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_run *r = arg;
    struct sl_error *to = &r->result.error;
    enum sl_code c = SL_OK;
    (void)s;
    r->is_ready = true;
    if (!r->starting)
        r->ts->n_waiting--;
    if (err) {
        *to = *err;
        c = err->code;
    } else if (r->lost) {
        sl_run_tell_lost(r, to);
        c = to->code;
    } else if (r->cancelled) {
        r->result.finish = SL_FINISH_CANCELLED;
        c = SL_E_INTERNAL; /* nobody reads it: the finish says what it is */
    } else if (!r->starting && is_over_time(r)) {
        r->result.finish = SL_FINISH_TIMEOUT;
        c = SL_E_INTERNAL; /* likewise */
    } else {
        c = go(r, to);
    }
    if (r->starting)
        r->start_code = c;
    else if (c)
        sl_run_end_later(r);
}

/* The lease is the store's too. */
static void on_taken(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_run *r = arg;
    if (err || r->cancelled)
        on_ready(r, s, err);
    else
        sl_sessions_ready(r->ts->sessions, s, on_ready, r);
}

enum sl_code sl_run_admit(struct sl_run *r, struct sl_error *err)
{
    if (!r->session)
        return read_prompt(r, err);
    enum sl_code c = own_settings(r, err);
    if (!c && (!r->session->in_memory || !r->session->has_place ||
               sl_sessions_are_shared(r->ts->sessions))) /* it will take a while */
        c = own_prompt(r, err);
    if (c)
        return c;
    r->starting = true;
    sl_sessions_take(r->ts->sessions, r->session, r->key,
                     r->spec.strict ? SL_TAKE_STRICT : SL_TAKE_ANY, on_taken, r);
    r->starting = false;
    if (!r->is_ready)
        r->ts->n_waiting++;
    if (r->start_code && err)
        *err = r->result.error;
    return r->start_code;
}
