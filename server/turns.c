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

/* The engine's thread. */
static void wake_loop(void *arg)
{
    struct sl_turns *ts = arg;
    uv_async_send(&ts->wake);
}

enum sl_code sl_turns_open(struct sl_turns **ret, uv_loop_t *loop, const struct sl_model *model,
                           const struct sl_tokenizer *tokenizer, struct sl_sessions *sessions,
                           struct sl_metrics *metrics, const struct sl_turns_options *opt,
                           struct sl_error *err)
{
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
    ts->line_end = &ts->line;
    ts->ending_end = &ts->ending;
    ts->wake.data = ts;
    int rc = uv_async_init(loop, &ts->wake, on_wake);
    if (rc) {
        sl_free(ts);
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

/* --- the end of a run --------------------------------------------------------------------------
 */

static void free_run(struct sl_run *r)
{
    assert(!r->session && !r->live && !r->shadow);
    sl_turn_close(r->turn);
    sl_free(r->tokens);
    sl_free(r->owned);
    sl_free(r);
}

static void release(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    sl_run_forget_queued(r);
    sl_slab_unref(ts->slab, r->live);
    sl_slab_unref(ts->slab, r->shadow);
    r->live = r->shadow = NULL;
    if (r->session) {
        r->result.version = r->session->version;
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

/* It ends without the engine: `done` comes from the loop's next turn. */
void sl_run_end_later(struct sl_run *r)
{
    struct sl_turns *ts = r->ts;
    release(r);
    r->state = ENDING;
    r->next_in_line = NULL;
    *ts->ending_end = r;
    ts->ending_end = &r->next_in_line;
    uv_async_send(&ts->wake);
}

void sl_run_end_with(struct sl_run *r, enum sl_finish finish)
{
    r->result.finish = finish;
    sl_run_end_later(r);
}

static void end_ending(struct sl_turns *ts)
{
    struct sl_run *r = ts->ending;
    ts->ending = NULL;
    ts->ending_end = &ts->ending;
    while (r) {
        struct sl_run *next = r->next_in_line;
        over(r);
        r = next;
    }
}

/* --- the public calls ---------------------------------------------------------------------------
 */

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

enum sl_code sl_run_start(struct sl_turns *ts, const struct sl_run_spec *spec, struct sl_run **ret,
                          struct sl_error *err)
{
    if (ts->draining)
        return sl_fail(err, SL_E_DRAINING, "the server is shutting down and takes no new turns");
    if (spec->session && spec->session->lease)
        return sl_session_lease(spec->session, NULL, err); /* says who is busy */
    if (ts->n_running >= ts->opt.max_running && ts->n_waiting >= ts->opt.max_waiting) {
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
    r->result.stop_index = -1;
    enum sl_code c = SL_OK;
    if (spec->session)
        c = sl_session_lease(spec->session, r, err);
    if (!c) {
        r->session = spec->session;
        c = sl_run_read_prompt(r, err);
    }
    if (c) {
        release(r);
        free_run(r);
        return c;
    }
    link_run(r);
    ts->n_runs++;
    *ret = r;
    return SL_OK;
}

void sl_run_cancel(struct sl_run *r, bool commit)
{
    if (!commit)
        r->roll_back = true;
    r->cancelled = true;
    if (r->state == WAITING) {
        sl_run_leave_line(r);
        sl_run_end_with(r, SL_FINISH_CANCELLED);
    } else if (r->state == RUNNING) {
        sl_engine_cancel(r->ts->engine, r->turn, SL_FINISH_CANCELLED);
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

const struct sl_turn *sl_run_turn(const struct sl_run *r)
{
    return r->live || r->state == OVER ? r->turn : NULL;
}

const struct sl_run_result *sl_run_result(const struct sl_run *r)
{
    return r->state == OVER ? &r->result : NULL;
}

struct sl_session *sl_run_session(const struct sl_run *r)
{
    return r->session;
}

/* --- events of the engine ------------------------------------------------------------------------
 */

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
    res->n_tokens = t->n_tokens;
    res->stop_index = t->stop_index;
    res->prompt_tokens = r->n_tokens - r->n_lead;
    res->timings.prefill_tokens = r->n_tokens;
    res->timings.decode_tokens = t->n_tokens;
}

static void commit(struct sl_run *r, const struct sl_turn_result *t)
{
    struct sl_session *s = r->session;
    struct sl_penalty_ring ring;
    if (!s || t->code || !t->complete || r->roll_back)
        return;
    sl_turn_ring(r->turn, &ring);
    if (sl_sessions_commit(r->ts->sessions, s, r->live, t->tokens_seen, sl_turn_pending(r->turn),
                           t->n_pending, &ring, &r->result.error))
        return; /* rolled back by release() */
    r->result.version = s->version;
    r->result.committed = true;
    r->live = NULL;
    r->session = NULL;
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
    take_result(r, result);
    sl_metric_observe(ts->metrics, SL_M_QUEUE_TIME, (double)result->queue_us / 1e6);
    commit(r, result);
    release(r);
    ts->n_running--;
    over(r);
}

static void on_wake(uv_async_t *handle)
{
    struct sl_turns *ts = handle->data;
    end_ending(ts);
    sl_engine_poll(ts->engine, on_turn, ts);
    sl_turns_expire_waiting(ts);
    sl_turns_pump(ts);
}

/* --- drain, close, figures
 * ------------------------------------------------------------------------ */

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
    for (struct sl_run *r = ts->runs; r; r = r->next) {
        r->cancelled = true;
        if (r->state == RUNNING) {
            sl_engine_cancel(ts->engine, r->turn, SL_FINISH_PAUSED);
        } else if (r->state == WAITING) {
            sl_run_leave_line(r);
            (void)sl_fail(&r->result.error, SL_E_DRAINING,
                          "the server shut down before the turn began");
            sl_run_end_later(r);
        }
    }
}

static void on_closed(uv_handle_t *handle)
{
    sl_free(handle->data);
}

void sl_turns_close(struct sl_turns *ts)
{
    if (!ts)
        return;
    sl_engine_close(ts->engine);
    for (struct sl_run *r = ts->runs, *next; r; r = next) {
        next = r->next;
        release(r);
        free_run(r);
    }
    uv_close((uv_handle_t *)&ts->wake, on_closed);
}

void sl_turns_collect(const struct sl_turns *ts, struct sl_metrics *m)
{
    struct sl_engine_stats e;
    sl_engine_stats(ts->engine, &e);
    size_t slots = sl_slab_slots(ts->slab), used = sl_slab_used(ts->slab);
    sl_metric_set(m, SL_M_QUEUED, (double)ts->n_waiting);
    sl_metric_set(m, SL_M_RUNNING, (double)ts->n_running);
    sl_metric_set(m, SL_M_QUEUED_PREFILL, (double)ts->queued_prefill);
    sl_metric_set(m, SL_M_SLOTS, (double)slots);
    sl_metric_set(m, SL_M_SLOTS_USED, (double)used);
    sl_metric_set(m, SL_M_SLOT_USE, (double)used / (double)slots);
    sl_metric_set(m, SL_M_STATE_BYTES, (double)sl_slab_slot_bytes(ts->slab));
    sl_metric_set(m, SL_M_SESSIONS, (double)sl_sessions_count(ts->sessions));
    sl_metric_set(m, SL_M_STEPS, (double)e.steps);
    sl_metric_set(m, SL_M_PREFILL_ROWS, (double)e.prefill_tokens);
    sl_metric_set(m, SL_M_DECODE_ROWS, (double)e.decode_tokens);
    sl_metric_set(m, SL_M_REPLAY_ROWS, (double)e.replay_tokens);
    sl_metric_set(m, SL_M_ENGINE_BUSY, (double)e.busy_us / 1e6);
}
