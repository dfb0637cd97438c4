/* engine.c: the engine thread: inbox, step, events (engine.h).
 *
 * One step: take what was submitted, end what was cancelled or is over time, let batch.c pick the
 * rows, run the forward pass, choose tokens (each turn on one worker), advance every turn, tell the
 * owner. Everything that a step needs is made at open; the thread does not allocate (a test
 * counts). It sleeps in the mailbox only when there is no turn at all: then a cancel can wait,
 * because there is nothing to cancel.
 *
 * A turn is in exactly one of: the inbox, the running list, the outbox with the DONE flag. After
 * the DONE flag was posted the engine never touches it again. */
#include "slate/engine.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/turn.h"

enum { NEWS = 1, DONE = 2 }; /* flags of mail to the owner */
enum { DEFAULT_RUNNING = 32, DEFAULT_STEP_ROWS = 512, RUNNING_MAX = 4096, STEP_ROWS_MAX = 65536 };
enum { PREFILL_ROOM = 16 }; /* rows of a step that decoding can never take up */

struct sl_engine {
    struct sl_turn_env env;
    struct sl_workers *workers;
    struct sl_forward *forward;
    struct sl_batch batch;
    size_t max_running;

    struct sl_mailbox inbox, outbox;
    bool inbox_made, outbox_made, thread_made;
    pthread_t thread;
    _Atomic bool stopping;
    void (*wake)(void *);
    void *wake_arg;

    size_t n_submitted; /* owner: turns that are not reported as DONE yet */

    /* The engine thread's. */
    struct sl_turn **running; /* n_running of max_running */
    size_t n_running;
    struct sl_batch_entry *entries; /* by place in running */
    struct sl_segment *segments;
    struct sl_turn **stepping; /* the turns of the segments */
    size_t *takes;
    size_t n_stepping;
    struct sl_sampler **samplers; /* a stack of those not lent */
    float **rows;                 /* likewise; each one row of logits */
    size_t n_lendable;
    float *logits;
    struct sl_sampler_scratch **scratches; /* one for each worker */

    _Atomic uint64_t steps, prefill_tokens, decode_tokens, replay_tokens, turns_done, busy_us;
};

static int64_t now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static void count(_Atomic uint64_t *c, uint64_t n)
{
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

/* --- the engine thread ------------------------------------------------------------------------ */

static void tell(struct sl_engine *e, struct sl_turn *t, unsigned flags)
{
    if (sl_mailbox_post(&e->outbox, &t->to_owner, flags) && e->wake)
        e->wake(e->wake_arg);
}

/* Takes a turn that is DONE from its place in the running list. */
static void retire(struct sl_engine *e, size_t place)
{
    struct sl_turn *t = e->running[place];
    e->running[place] = e->running[--e->n_running];
    e->samplers[e->n_lendable] = t->sampler;
    e->rows[e->n_lendable++] = t->logits;
    count(&e->turns_done, 1);
    tell(e, t, DONE);
}

static void check_part(void *arg, size_t part, size_t n_parts)
{
    struct sl_engine *e = arg;
    for (size_t i = part; i < e->n_running; i += n_parts)
        if (sl_turn_leaves_state(e->running[i]))
            sl_turn_check_state(e->running[i], &e->env, now_us());
}

/* One pass over a state at a turn's end: each token that it was fed took more than that. */
static void check_states(struct sl_engine *e)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_running; i++)
        n += sl_turn_leaves_state(e->running[i]);
    if (n)
        sl_workers_run(e->workers, check_part, e);
}

static void retire_done(struct sl_engine *e)
{
    check_states(e);
    for (size_t i = e->n_running; i-- > 0;)
        if (e->running[i]->phase == SL_TURN_DONE)
            retire(e, i);
}

static void admit(struct sl_engine *e)
{
    unsigned flags;
    struct sl_mail *m;
    while ((m = sl_mailbox_take(&e->inbox, &flags))) {
        struct sl_turn *t = (struct sl_turn *)((char *)m - offsetof(struct sl_turn, to_engine));
        assert(e->n_running < e->max_running && e->n_lendable > 0);
        e->n_lendable--;
        sl_turn_begin(t, &e->env, e->samplers[e->n_lendable], e->rows[e->n_lendable], now_us());
        e->running[e->n_running++] = t;
    }
}

static void pick(struct sl_engine *e)
{
    for (size_t i = 0; i < e->n_running; i++)
        sl_turn_want(e->running[i], &e->entries[i]);
    sl_batch_pick(&e->batch, e->entries, e->n_running);
    e->n_stepping = 0;
    for (size_t i = 0; i < e->n_running; i++) {
        if (e->entries[i].take) {
            e->takes[e->n_stepping] = e->entries[i].take;
            e->stepping[e->n_stepping++] = e->running[i];
        }
    }
    assert(e->n_stepping > 0);
}

static void prepare_part(void *arg, size_t part, size_t n_parts)
{
    struct sl_engine *e = arg;
    for (size_t i = part; i < e->n_stepping; i += n_parts) {
        sl_turn_prepare(e->stepping[i], &e->env, e->takes[i]);
        sl_turn_segment(e->stepping[i], e->takes[i], &e->segments[i]);
    }
}

static void choose_part(void *arg, size_t part, size_t n_parts)
{
    struct sl_engine *e = arg;
    for (size_t i = part; i < e->n_stepping; i += n_parts)
        sl_turn_choose(e->stepping[i], &e->env, e->scratches[part], e->takes[i]);
}

static void count_rows(struct sl_engine *e, int64_t us)
{
    size_t rows[3] = {0};
    for (size_t i = 0; i < e->n_running; i++)
        rows[e->entries[i].kind] += e->entries[i].take;
    count(&e->steps, 1);
    count(&e->decode_tokens, rows[SL_BATCH_DECODE]);
    count(&e->prefill_tokens, rows[SL_BATCH_PREFILL]);
    count(&e->replay_tokens, rows[SL_BATCH_REPLAY]);
    count(&e->busy_us, (uint64_t)us);
    sl_batch_observe(&e->batch, rows[SL_BATCH_DECODE],
                     rows[SL_BATCH_PREFILL] + rows[SL_BATCH_REPLAY], (double)us);
}

static void step(struct sl_engine *e)
{
    int64_t begin = now_us();
    pick(e);
    sl_workers_run(e->workers, prepare_part, e);
    sl_forward_run(e->forward, e->segments, e->n_stepping);
    sl_workers_run(e->workers, choose_part, e);
    int64_t end = now_us();
    for (size_t i = 0; i < e->n_stepping; i++) {
        struct sl_turn *t = e->stepping[i];
        size_t released = sl_turn_released(t);
        bool prefilled = sl_turn_prefilled(t);
        sl_turn_advance(t, &e->env, e->takes[i], end);
        if (t->phase != SL_TURN_DONE &&
            (sl_turn_released(t) != released || sl_turn_prefilled(t) != prefilled))
            tell(e, t, NEWS);
    }
    count_rows(e, end - begin);
    retire_done(e);
}

static void interrupt_all(struct sl_engine *e, bool stopping)
{
    int64_t now = now_us();
    for (size_t i = 0; i < e->n_running; i++) {
        if (stopping)
            atomic_store(&e->running[i]->cancel, SL_FINISH_CANCELLED);
        sl_turn_interrupt(e->running[i], &e->env, now);
    }
    retire_done(e);
}

static void *engine_main(void *arg)
{
    struct sl_engine *e = arg;
    for (;;) {
        bool stopping = atomic_load(&e->stopping);
        admit(e);
        interrupt_all(e, stopping);
        if (e->n_running)
            step(e);
        else if (stopping)
            return NULL;
        else
            sl_mailbox_wait(&e->inbox);
    }
}

/* --- open and close --------------------------------------------------------------------------- */

static enum sl_code make_lists(struct sl_engine *e, size_t n, struct sl_error *err)
{
    const struct sl_kernels *k = sl_kernels_find(sl_model_info(e->env.model)->kernels);
    size_t stride = sl_model_logits_stride(e->env.model);
    e->running = sl_calloc(n, sizeof(struct sl_turn *));
    e->entries = sl_calloc(n, sizeof *e->entries);
    e->segments = sl_calloc(n, sizeof *e->segments);
    e->stepping = sl_calloc(n, sizeof(struct sl_turn *));
    e->takes = sl_calloc(n, sizeof *e->takes);
    e->samplers = sl_calloc(n, sizeof(struct sl_sampler *));
    e->rows = sl_calloc(n, sizeof *e->rows);
    e->logits = sl_aligned_calloc(n * stride * sizeof *e->logits);
    if (!e->running || !e->entries || !e->segments || !e->stepping || !e->takes || !e->samplers ||
        !e->rows || !e->logits)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu turns at once", n);
    for (; e->n_lendable < n; e->n_lendable++) {
        enum sl_code c = sl_sampler_open(&e->samplers[e->n_lendable], k,
                                         sl_model_info(e->env.model)->vocab_size, err);
        if (c)
            return c;
        e->rows[e->n_lendable] = e->logits + e->n_lendable * stride;
    }
    return SL_OK;
}

static enum sl_code make_scratches(struct sl_engine *e, struct sl_error *err)
{
    size_t n = sl_workers_threads(e->workers);
    enum sl_code c = SL_OK;
    e->scratches = sl_calloc(n, sizeof(struct sl_sampler_scratch *));
    if (!e->scratches)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu workers", n);
    for (size_t i = 0; i < n && !c; i++)
        c = sl_sampler_scratch_open(&e->scratches[i], sl_model_info(e->env.model)->vocab_size, err);
    return c;
}

static enum sl_code make_thread(struct sl_engine *e, struct sl_error *err)
{
    /* Signals are the loop's. */
    sigset_t all, old;
    sigfillset(&all);
    int rc = sl_mailbox_init(&e->inbox);
    e->inbox_made = rc == 0;
    if (!rc)
        rc = sl_mailbox_init(&e->outbox);
    e->outbox_made = e->inbox_made && rc == 0;
    if (!rc) {
        pthread_sigmask(SIG_SETMASK, &all, &old);
        rc = pthread_create(&e->thread, NULL, engine_main, e);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        e->thread_made = rc == 0;
    }
    return rc ? sl_fail(err, SL_E_INTERNAL, "no engine thread: %s", strerror(rc)) : SL_OK;
}

enum sl_code sl_engine_open(struct sl_engine **ret, const struct sl_model *model,
                            const struct sl_tokenizer *tokenizer,
                            const struct sl_engine_options *opt, struct sl_error *err)
{
    size_t running = opt->max_running ? opt->max_running : DEFAULT_RUNNING;
    size_t rows = opt->max_step_rows ? opt->max_step_rows : DEFAULT_STEP_ROWS;
    if (running > RUNNING_MAX || rows > STEP_ROWS_MAX)
        return sl_fail(err, SL_E_INVALID_VALUE,
                       "%zu turns at once in steps of %zu rows; allowed are %d and %d", running,
                       rows, RUNNING_MAX, STEP_ROWS_MAX);
    if (rows < running + PREFILL_ROOM)
        rows = running + PREFILL_ROOM;
    struct sl_engine *e = sl_calloc(1, sizeof *e);
    if (!e)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the engine");
    e->env = (struct sl_turn_env){
        .model = model, .tokenizer = tokenizer, .state_bytes = sl_model_info(model)->state_bytes};
    e->max_running = running;
    e->wake = opt->wake;
    e->wake_arg = opt->wake_arg;
    sl_batch_init(&e->batch, rows);
    enum sl_code c = make_lists(e, running, err);
    if (!c)
        c = sl_workers_open(&e->workers, opt->n_threads ? opt->n_threads : sl_processors(), err);
    if (!c)
        c = make_scratches(e, err);
    if (!c)
        c = sl_forward_open(&e->forward, model, e->workers, rows, running, err);
    if (!c)
        c = make_thread(e, err);
    if (c) {
        sl_engine_close(e);
        return c;
    }
    *ret = e;
    return SL_OK;
}

void sl_engine_close(struct sl_engine *e)
{
    if (!e)
        return;
    if (e->thread_made) {
        atomic_store(&e->stopping, true);
        sl_mailbox_poke(&e->inbox);
        pthread_join(e->thread, NULL);
    }
    if (e->inbox_made)
        sl_mailbox_done(&e->inbox);
    if (e->outbox_made)
        sl_mailbox_done(&e->outbox);
    sl_forward_close(e->forward);
    for (size_t i = 0; e->scratches && i < sl_workers_threads(e->workers); i++)
        sl_sampler_scratch_close(e->scratches[i]);
    sl_free((void *)e->scratches);
    sl_workers_close(e->workers);
    for (size_t i = 0; i < e->n_lendable; i++)
        sl_sampler_close(e->samplers[i]);
    sl_free(e->running);
    sl_free(e->entries);
    sl_free(e->segments);
    sl_free(e->stepping);
    sl_free(e->takes);
    sl_free((void *)e->samplers);
    sl_free((void *)e->rows);
    sl_free(e->logits);
    sl_free(e);
}

/* --- the owner's side ------------------------------------------------------------------------- */

enum sl_code sl_turn_create(struct sl_engine *e, const struct sl_turn_spec *spec,
                            struct sl_turn **ret, struct sl_error *err)
{
    return sl_turn_open(ret, &e->env, spec, now_us(), err);
}

enum sl_code sl_engine_submit(struct sl_engine *e, struct sl_turn *t,
                              const struct sl_turn_states *states, struct sl_error *err)
{
    if (e->n_submitted == e->max_running)
        return sl_fail(err, SL_E_SERVER_FULL, "%zu turns are running, which is the limit",
                       e->n_submitted);
    assert(states->live && (states->shadow || (!t->spec.keep_state && t->spec.logprobs < 0)));
    t->states = *states;
    e->n_submitted++;
    (void)sl_mailbox_post(&e->inbox, &t->to_engine, 0);
    return SL_OK;
}

void sl_engine_cancel(struct sl_engine *e, struct sl_turn *t, enum sl_finish finish)
{
    (void)e;
    assert(finish == SL_FINISH_CANCELLED || finish == SL_FINISH_PAUSED);
    int none = SL_FINISH_NONE;
    atomic_compare_exchange_strong(&t->cancel, &none, (int)finish);
}

void sl_engine_poll(struct sl_engine *e, void (*news)(struct sl_turn *t, void *user, void *arg),
                    void *arg)
{
    unsigned flags;
    struct sl_mail *m;
    while ((m = sl_mailbox_take(&e->outbox, &flags))) {
        struct sl_turn *t = (struct sl_turn *)((char *)m - offsetof(struct sl_turn, to_owner));
        if (flags & DONE) {
            t->reported = true;
            e->n_submitted--;
        }
        news(t, t->spec.user, arg);
    }
}

void sl_engine_wait(struct sl_engine *e)
{
    sl_mailbox_wait(&e->outbox);
}

void sl_engine_stats(const struct sl_engine *e, struct sl_engine_stats *ret)
{
    ret->steps = atomic_load_explicit(&e->steps, memory_order_relaxed);
    ret->prefill_tokens = atomic_load_explicit(&e->prefill_tokens, memory_order_relaxed);
    ret->decode_tokens = atomic_load_explicit(&e->decode_tokens, memory_order_relaxed);
    ret->replay_tokens = atomic_load_explicit(&e->replay_tokens, memory_order_relaxed);
    ret->turns_done = atomic_load_explicit(&e->turns_done, memory_order_relaxed);
    ret->busy_us = atomic_load_explicit(&e->busy_us, memory_order_relaxed);
}
