/* turns.c: see turns.h.
 *
 * Runs are in one list from start to close; those that wait are also in a FIFO. The engine wakes
 * the loop through one uv_async_t, which also carries what must not happen inside a caller's call
 * (the end of a run that never reached the engine). */
#include "server/turns_priv.h"

#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"

static void on_wake(uv_async_t *handle);

static void on_closed(uv_handle_t *handle)
{
    sl_free(handle->data);
}

/* The engine's thread. */
static void wake_loop(void *arg)
{
    struct sl_turns *ts = arg;
    uv_async_send(&ts->wake);
}

static void measure_tokens(struct sl_turns *ts)
{
    for (size_t i = 0; i < ts->vocab_size; i++) {
        size_t n = 0;
        const unsigned char *bytes = sl_tokenizer_bytes(ts->tokenizer, (uint32_t)i, &n);
        sl_token_room_add(&ts->token_room, bytes, bytes ? n : 0);
    }
}

enum sl_code sl_turns_open(struct sl_turns **ret, uv_loop_t *loop, const struct sl_model *model,
                           const struct sl_tokenizer *tokenizer, struct sl_sessions *sessions,
                           struct sl_metrics *metrics, const struct sl_turns_options *opt,
                           struct sl_error *err)
{
    assert(opt->max_slots >= 2);
    struct sl_turns *ts = sl_calloc(1, sizeof *ts);
    if (!ts)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the turns");
    *ts = (struct sl_turns){.loop = loop,
                            .tokenizer = tokenizer,
                            .sessions = sessions,
                            .slab = sl_sessions_slab(sessions),
                            .metrics = metrics,
                            .opt = *opt,
                            .vocab_size = sl_model_info(model)->vocab_size};
    measure_tokens(ts);
    ts->line_end = &ts->line;
    ts->ending_end = &ts->ending;
    ts->wake.data = ts;
    sl_sessions_on_run(sessions,
                       &(struct sl_run_events){.lost = sl_run_lost, .asked = sl_run_asked});
    sl_sessions_on_replay(sessions, sl_turns_replay, ts);
    int rc = uv_timer_init(loop, &ts->clock);
    ts->clock.data = ts;
    if (!rc)
        rc = uv_async_init(loop, &ts->wake, on_wake);
    if (rc) {
        uv_close((uv_handle_t *)&ts->clock, on_closed);
        return sl_fail(err, SL_E_INTERNAL, "no wake-up for the engine: %s", uv_strerror(rc));
    }
    enum sl_code c = sl_engine_open(&ts->engine, model, tokenizer,
                                    &(struct sl_engine_options){.n_threads = opt->n_threads,
                                                                .max_running = opt->max_running,
                                                                .max_step_rows = opt->max_step_rows,
                                                                .wake = wake_loop,
                                                                .wake_arg = ts},
                                    err);
    if (c) {
        sl_turns_close(ts);
        return c;
    }
    *ret = ts;
    return SL_OK;
}

/* --- the end of a run ------------------------------------------------------------------------ */

static void free_run(struct sl_run *r)
{
    assert(!r->session && !r->live && !r->shadow);
    sl_turn_close(r->turn);
    sl_continuation_done(&r->continuation);
    sl_free(r->ring);
    sl_free(r->owned_prompt);
    sl_free(r->key);
    sl_token_list_done(&r->prompt);
    sl_free(r->owned);
    sl_free(r);
}

static void release(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    sl_run_forget_queued(r);
    sl_run_return_tokens(r);
    sl_slab_unref(ts->slab, r->live);
    sl_slab_unref(ts->slab, r->shadow);
    r->live = r->shadow = NULL;
    ts->n_slots -= r->n_slots;
    r->n_slots = 0;
    if (r->session) {
        r->result.version = r->session->version;
        if (r->spec.keeps_lease)
            r->session->run = NULL;
        else
            sl_sessions_give_back(ts->sessions, r->session);
        r->session = NULL;
    }
}

/* The run has its result and holds nothing any more. */
static void over(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    bool detached = r->detached;
    r->state = OVER;
    ts->n_runs--;
    sl_tenant_end_turn(r->spec.tenant);
    if (detached)
        sl_run_close(r);
    else
        r->spec.done(r, r->spec.user);
    if (ts->draining && !ts->n_runs && ts->drained) {
        void (*drained)(void *) = ts->drained;
        ts->drained = NULL;
        drained(ts->drained_arg);
    }
}

static void end_later(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    r->state = ENDING;
    r->next_in_line = NULL;
    *ts->ending_end = r;
    ts->ending_end = &r->next_in_line;
    uv_async_send(&ts->wake);
}

void sl_run_end_later(struct sl_run *r)
{
    release(r);
    end_later(r);
}

void sl_run_pause_unread(struct sl_run *r)
{
    r->unread = true;
    end_later(r);
}

void sl_run_end_with(struct sl_run *r, enum sl_finish finish)
{
    r->result.finish = finish;
    sl_run_end_later(r);
}

/* --- the public calls ------------------------------------------------------------------------ */

static void link_run(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    r->next = ts->runs;
    if (ts->runs)
        ts->runs->prev = r;
    ts->runs = r;
}

static void unlink_run(struct sl_run *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        r->ts->runs = r->next;
    if (r->next)
        r->next->prev = r->prev;
}

static enum sl_code take_key(struct sl_run *r, struct sl_error *err)
{
    if (!r->spec.idempotency_key)
        return SL_OK;
    r->key = sl_strdup(r->spec.idempotency_key);
    r->spec.idempotency_key = r->key;
    return r->key ? SL_OK : sl_fail(err, SL_E_NO_MEMORY, "no memory for a turn");
}

/* It counts for its tenant already. */
static enum sl_code begin_run(struct sl_turns *ts, const struct sl_run_spec *spec,
                              struct sl_run **ret, struct sl_error *err)
{
    /* Those that are being tokenised or loaded wait, too, though the engine may have room. */
    if (ts->n_running + ts->n_waiting >= ts->opt.max_running + ts->opt.max_waiting) {
        sl_metric_add(ts->metrics, SL_M_TURNS_REFUSED, 1);
        return sl_fail(err, SL_E_SERVER_FULL,
                       "%zu turns are running and %zu are waiting, which are the limits "
                       "(--max-running, --max-waiting)",
                       ts->n_running, ts->n_waiting);
    }
    struct sl_run *r = sl_calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a turn");
    r->ts = ts;
    r->spec = *spec;
    r->started_ms = (int64_t)uv_now(ts->loop);
    r->continuation.pool = (struct sl_pool)SL_POOL_INIT;
    r->result.stop_index = -1;
    enum sl_code c = SL_OK;
    if (spec->session)
        c = sl_session_lease(spec->session, r, err);
    if (!c) {
        r->session = spec->session;
        c = take_key(r, err);
    }
    if (!c) {
        c = sl_run_admit(r, err);
    }
    if (c) {
        r->spec.keeps_lease = false; /* done() does not come */
        release(r);
        free_run(r);
        return c;
    }
    link_run(r);
    ts->n_runs++;
    *ret = r;
    return SL_OK;
}

enum sl_code sl_run_start(struct sl_turns *ts, const struct sl_run_spec *spec, struct sl_run **ret,
                          struct sl_error *err)
{
    if (ts->draining)
        return sl_fail(err, SL_E_DRAINING, "the server is shutting down and takes no new turns");
    if (spec->session && spec->session->leased)
        return sl_session_lease(spec->session, NULL, err); /* says who is busy */
    enum sl_code c = sl_tenant_begin_turn(spec->tenant, err);
    if (c)
        return c;
    c = begin_run(ts, spec, ret, err);
    if (c)
        sl_tenant_end_turn(spec->tenant);
    return c;
}

void sl_run_cancel(struct sl_run *r, bool commit)
{
    if (!commit)
        r->roll_back = true;
    r->cancelled = true;
    bool is_waiting = r->state == WAITING;
    if (is_waiting)
        sl_run_leave_line(r);
    if (r->state == TOKENISING && sl_longwork_remove(r->ts->opt.longwork, &r->tokenising)) {
        is_waiting = true;
        r->ts->n_waiting--;
    }
    if (is_waiting) {
        if (r->lost)
            sl_run_tell_lost(r, &r->result.error);
        sl_run_end_with(r, r->lost ? SL_FINISH_NONE : SL_FINISH_CANCELLED);
    } else if (r->state == RUNNING) {
        sl_engine_cancel(r->ts->engine, r->turn, SL_FINISH_CANCELLED);
    }
}

void sl_run_pause(struct sl_run *r)
{
    r->pause = true;
    if (r->state == WAITING) {
        sl_run_leave_line(r);
        sl_run_pause_unread(r);
    } else if (r->state == RUNNING) {
        sl_engine_cancel(r->ts->engine, r->turn, SL_FINISH_PAUSED);
    }
}

void sl_run_detach(struct sl_run *r)
{
    if (r->state == OVER)
        sl_run_close(r);
    else
        r->detached = true;
}

void sl_run_close(struct sl_run *r)
{
    assert(r->state == OVER);
    unlink_run(r);
    free_run(r);
}

void sl_run_tell_lost(const struct sl_run *r, struct sl_error *err)
{
    (void)sl_fail(err, SL_E_LEASE_LOST,
                  "the lease of session '%s' could not be renewed in time, and another server may "
                  "have the session; nothing of the turn was kept",
                  r->session ? r->session->id : "");
}

void sl_run_lost(struct sl_run *r)
{
    if (r->state >= COMMITTING) /* the store decides */
        return;
    r->lost = true;
    sl_run_cancel(r, false);
}

void sl_run_asked(struct sl_run *r, enum sl_store_ask what)
{
    if (what == SL_ASK_CANCEL)
        sl_run_cancel(r, true);
    else
        sl_run_pause(r);
}

const struct sl_turn *sl_run_turn(const struct sl_run *r)
{
    return r->live || r->state == COMMITTING || r->state == OVER ? r->turn : NULL;
}

const struct sl_run_result *sl_run_result(const struct sl_run *r)
{
    return r->state == OVER || r->state == COMMITTING ? &r->result : NULL;
}

const struct sl_paused_turn *sl_run_paused(const struct sl_run *r)
{
    return r->continuation.paused;
}

const char *sl_run_idempotency_key(const struct sl_run *r)
{
    return r->key;
}

struct sl_session *sl_run_session(const struct sl_run *r)
{
    return r->session;
}

/* --- events of the engine -------------------------------------------------------------------- */

static void take_result(struct sl_run *r, const struct sl_turn_result *t)
{
    struct sl_run_result *res = &r->result;
    res->timings = (struct sl_timings){.queue_us = t->queue_us,
                                       .prefill_us = t->prefill_us,
                                       .decode_us = t->decode_us,
                                       .computed_tokens = t->computed_tokens};
    if (t->code) {
        (void)sl_fail(&res->error, t->code, "%s", sl_turn_error(r->turn));
        return;
    }
    res->finish = t->finish;
    if (!t->complete)
        return;
    res->n_tokens = t->n_tokens - t->n_held;
    res->stop_index = t->stop_index;
    res->prompt_tokens = r->n_tokens - r->n_lead;
    res->timings.prefill_tokens = r->n_tokens;
    res->timings.decode_tokens = t->n_tokens;
}

/* Of a turn at rest: only a cut would need it (engine/turn.h). */
static void give_back_shadow(struct sl_run *r)
{
    if (!r->shadow) /* nothing was read */
        return;
    sl_slab_unref(r->ts->slab, r->shadow);
    r->shadow = NULL;
    r->n_slots--;
    r->ts->n_slots--;
}

static void on_committed(void *arg, struct sl_session *s, const struct sl_error *err)
{
    struct sl_run *r = arg;
    struct sl_turns *ts = r->ts;
    ts->n_committing--;
    if (err) {
        r->result.error = *err;
        r->result.finish = SL_FINISH_NONE;
        r->result.committed = false;
        release(r);
    } else {
        r->result.version = s->version;
        r->session = NULL;
        r->live = NULL;
        release(r);
    }
    sl_turns_pump(ts); /* its slot was what the line may have waited for */
    over(r);
}

static enum sl_code ask_answer(struct sl_run *r, struct sl_buf *b, struct sl_answer *ret,
                               struct sl_error *err)
{
    r->spec.answer(r, r->spec.user, b);
    enum sl_code c = sl_buf_code(b, err);
    *ret = (struct sl_answer){.key = r->key, .body = b->data, .n_body = b->len};
    memcpy(ret->request_hash, r->spec.request_hash, sizeof ret->request_hash);
    return c;
}

/* Of the session before the turn, without what a pause held. What is pending was seen: a snapshot
 * from outside may say less, or nothing. */
static uint64_t seen_before(const struct sl_run *r)
{
    const struct sl_session *s = r->session;
    uint64_t seen = s->tokens_seen > s->n_pending ? s->tokens_seen : s->n_pending;
    assert(r->n_drop <= seen);
    return seen - r->n_drop;
}

/* The turn becomes part of the session; on_committed() follows. */
static void commit(struct sl_run *r, const struct sl_turn_result *t)
{
    struct sl_session *s = r->session;
    struct sl_penalty_ring ring;
    struct sl_paused_turn paused;
    struct sl_answer answer;
    struct sl_error err;
    struct sl_buf body;
    uint32_t *generated = NULL;
    size_t n_prompt = r->n_tokens - r->n_lead;
    enum sl_code c = SL_OK;
    sl_buf_init(&body, SL_ANSWER_BYTES_MAX);
    sl_turn_ring(r->turn, &ring);
    give_back_shadow(r);
    if (!r->live && s->state) { /* nothing was read: the state stays */
        sl_slab_ref(r->ts->slab, s->state);
        r->live = s->state;
    }
    struct sl_commit k = {.state = r->live,
                          .tokens_seen = seen_before(r) + n_prompt + t->n_tokens,
                          .pending = sl_turn_pending(r->turn),
                          .n_pending = t->n_pending,
                          .ring = &ring,
                          .n_drop = r->n_drop,
                          .tokens = sl_turn_tokens(r->turn) - n_prompt,
                          .n_tokens = n_prompt + t->n_tokens,
                          .n_generated = t->n_tokens};
    r->state = COMMITTING;
    r->ts->n_committing++;
    r->result.version = s->version + 1;
    r->result.committed = true;
    if (t->finish == SL_FINISH_PAUSED) {
        c = sl_run_leave_paused(r, t, &paused, &generated, &err);
        k.paused = &paused;
    }
    if (!c && r->key && r->spec.answer) { /* also of a paused one: its prompt must not come twice */
        c = ask_answer(r, &body, &answer, &err);
        k.answer = &answer;
    }
    if (c)
        on_committed(r, s, &err);
    else
        sl_sessions_commit(r->ts->sessions, s, &k, on_committed, r);
    sl_buf_done(&body);
    sl_free(generated);
}

/* The turn is DONE: it is committed, or did not happen. */
static void end_with_result(struct sl_run *r)
{
    const struct sl_turn_result *result = sl_turn_result(r->turn);
    take_result(r, result);
    if (r->lost) {
        r->result.finish = SL_FINISH_NONE;
        sl_run_tell_lost(r, &r->result.error);
    }
    if (r->session && !r->lost && !result->code && result->complete && !r->roll_back) {
        commit(r, result);
    } else {
        /* One that is paused is whole, too, and has not read all of its tokens. */
        if (r->spec.replayed && !result->code && result->complete &&
            result->finish != SL_FINISH_PAUSED)
            r->spec.replayed(r, r->spec.user, r->live);
        release(r);
        over(r);
    }
}

static void on_turn(struct sl_turn *t, void *user, void *arg)
{
    struct sl_run *r = user;
    struct sl_turns *ts = arg;
    const struct sl_turn_result *result = sl_turn_result(t);
    if (r->queued && sl_turn_prefilled(t))
        sl_run_forget_queued(r);
    if (!result) {
        if (r->spec.news && !r->detached)
            r->spec.news(r, r->spec.user);
        return;
    }
    sl_metric_observe(ts->metrics, SL_M_QUEUE_TIME, (double)result->queue_us / 1e6);
    ts->n_running--;
    end_with_result(r);
}

static void end_ending(struct sl_turns *ts)
{
    struct sl_run *r = ts->ending;
    ts->ending = NULL;
    ts->ending_end = &ts->ending;
    while (r) {
        struct sl_run *next = r->next_in_line;
        if (r->unread) {
            sl_turn_pause_unread(r->turn);
            end_with_result(r);
        } else {
            over(r);
        }
        r = next;
    }
}

static void on_wake(uv_async_t *handle)
{
    struct sl_turns *ts = handle->data;
    end_ending(ts);
    sl_engine_poll(ts->engine, on_turn, ts);
    sl_turns_pump(ts);
}

/* --- drain, close, figures ------------------------------------------------------------------- */

void sl_turns_drain(struct sl_turns *ts, void (*drained)(void *arg), void *arg)
{
    ts->draining = true;
    ts->drained = drained;
    ts->drained_arg = arg;
    if (!ts->n_runs) {
        ts->drained = NULL;
        drained(arg);
    }
}

void sl_turns_drain_limit(struct sl_turns *ts)
{
    for (struct sl_run *r = ts->runs; r; r = r->next)
        sl_run_pause(r);
}

static void on_wake_closed(uv_handle_t *handle)
{
    struct sl_turns *ts = handle->data;
    uv_close((uv_handle_t *)&ts->clock, on_closed);
}

void sl_turns_close(struct sl_turns *ts)
{
    if (!ts)
        return;
    sl_engine_close(ts->engine);
    for (struct sl_run *r = ts->runs, *next; r; r = next) {
        next = r->next;
        r->spec.keeps_lease = false;
        release(r);
        free_run(r);
    }
    uv_timer_stop(&ts->clock);
    uv_close((uv_handle_t *)&ts->wake, on_wake_closed);
}

void sl_turns_collect(const struct sl_turns *ts, struct sl_metrics *m)
{
    struct sl_engine_stats e;
    sl_engine_stats(ts->engine, &e);
    size_t slots = sl_slab_slots(ts->slab), used = sl_slab_used(ts->slab);
    sl_metric_set(m, SL_M_QUEUED, (double)ts->n_waiting);
    sl_metric_set(m, SL_M_RUNNING, (double)ts->n_running);
    sl_metric_set(m, SL_M_COMMITTING, (double)ts->n_committing);
    sl_metric_set(m, SL_M_QUEUED_PREFILL, (double)ts->queued_prefill);
    sl_metric_set(m, SL_M_SLOTS, (double)slots);
    sl_metric_set(m, SL_M_SLOTS_USED, (double)used);
    sl_metric_set(m, SL_M_SLOT_USE, (double)used / (double)slots);
    sl_metric_set(m, SL_M_STATE_BYTES, (double)sl_slab_slot_bytes(ts->slab));
    sl_metric_set(m, SL_M_STEPS, (double)e.steps);
    sl_metric_set(m, SL_M_PREFILL_ROWS, (double)e.prefill_tokens);
    sl_metric_set(m, SL_M_DECODE_ROWS, (double)e.decode_tokens);
    sl_metric_set(m, SL_M_REPLAY_ROWS, (double)e.replay_tokens);
    sl_metric_set(m, SL_M_ENGINE_BUSY, (double)e.busy_us / 1e6);
}
