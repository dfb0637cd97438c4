/* turns_priv.h: what turns.c (start, end, commit), admission.c (the way into the engine) and those
 * beside them share. */
#ifndef SLATE_SERVER_TURNS_PRIV_H
#define SLATE_SERVER_TURNS_PRIV_H

#include "proto/answer_room.h"
#include "server/turns.h"

enum run_state { READYING, TOKENISING, WAITING, RUNNING, COMMITTING, ENDING, OVER };

struct sl_run {
    struct sl_turns *ts;
    enum run_state state;
    struct sl_run *next, *prev;  /* all runs */
    struct sl_run *next_in_line; /* WAITING: the FIFO; ENDING: the list of those */

    struct sl_run_spec spec;             /* its pointers are valid in start, or into `owned` */
    char *owned;                         /* all of them but the prompt */
    void *owned_prompt;                  /* until it has become tokens */
    char *key;                           /* Idempotency-Key */
    struct sl_continuation continuation; /* resume: the paused turn's */
    struct sl_session *session;          /* while it has the lease */
    struct sl_token_list prompt; /* pending or begin tokens, then the prompt; empty once a turn has
                                    them */
    size_t n_lead;               /* how many of them were pending */
    size_t n_tokens;             /* of all of them */
    size_t queued;               /* prompt tokens counted in the queue */
    uint64_t taken;              /* tokens of the tenant's quota that it may use */
    struct sl_turn *turn;
    void *live, *shadow; /* slots */
    size_t n_slots;      /* of these that are its own: not the session's */
    int64_t started_ms;
    size_t n_drop; /* the last so many of those that were pending: a pause has held them back. They
                      are chosen again (resume), or gone */
    struct sl_penalty_ring *ring; /* gone: the session's without them; else NULL */
    bool roll_back, cancelled, pause, detached;
    bool lost;     /* the store's lease */
    bool is_ready; /* the session is in memory */
    bool starting; /* sl_run_start() is on the stack */
    bool unread;   /* ENDING: it was paused before the engine had it */
    enum sl_code start_code;
    struct sl_long_job tokenising;
    struct sl_run_result result;
};

struct sl_turns {
    uv_loop_t *loop;
    uv_async_t wake;
    uv_timer_t clock; /* ticks while there is a line, for those in it whose time may run out */
    struct sl_engine *engine;
    const struct sl_tokenizer *tokenizer;
    struct sl_sessions *sessions;
    struct sl_slab *slab;
    struct sl_metrics *metrics;
    struct sl_turns_options opt;
    size_t vocab_size;
    struct sl_token_room token_room; /* of the vocabulary */

    struct sl_run *runs;
    size_t n_runs, n_running, n_waiting; /* n_runs: until OVER; n_waiting: not in the engine yet */
    size_t n_committing;
    size_t n_slots; /* of all runs */
    size_t queued_prefill;
    struct sl_run *line, **line_end;
    struct sl_run *ending, **ending_end;
    bool draining;
    void (*drained)(void *arg);
    void *drained_arg;
};

/* turns.c. The run that has lost its session's lease: it ends with an error, as soon as it can. */
void sl_run_lost(struct sl_run *r);
/* Another server asks for its end. */
void sl_run_asked(struct sl_run *r, enum sl_store_ask what);
/* Why it ended: the lease was lost. */
void sl_run_tell_lost(const struct sl_run *r, struct sl_error *err);

/* turns.c. It ends without the engine: `done` comes from the loop's next turn. */
void sl_run_end_later(struct sl_run *r);
void sl_run_end_with(struct sl_run *r, enum sl_finish finish);
/* The same for one that is paused with its tokens there: it is committed then. */
void sl_run_pause_unread(struct sl_run *r);

/* admission.c */

/* The session's memory, tokens of the prompt, here or as long work; then the line, and the
 * engine when there is room. The run has its lease. */
SL_NODISCARD enum sl_code sl_run_admit(struct sl_run *r, struct sl_error *err);
void sl_run_leave_line(struct sl_run *r);    /* WAITING */
void sl_run_forget_queued(struct sl_run *r); /* its prompt was read, or will not be */
/* Of its tenant's quota, what it has taken and not used; it has ended. */
void sl_run_return_tokens(struct sl_run *r);
void sl_turns_pump(struct sl_turns *ts);   /* from the line into the engine */
void sl_turns_on_clock(uv_timer_t *clock); /* ends those of the line whose time is over */

/* As it was before the turn; NULL: empty. */
const struct sl_penalty_ring *sl_run_ring_before(const struct sl_run *r);

/* turns_replay.c; `with`: the turns. */
sl_replay sl_turns_replay;

/* pausing.c: what a paused turn leaves, in *ret; *ret_generated is to be freed. */
SL_NODISCARD enum sl_code sl_run_leave_paused(const struct sl_run *r,
                                              const struct sl_turn_result *t,
                                              struct sl_paused_turn *ret, uint32_t **ret_generated,
                                              struct sl_error *err);

#endif
