/* redis.h: the `redis://` store's insides, shared by redis.c (open, close), redis_pump.c (what is
 * sent when), redis_ops.c (the calls of store.h), redis_reply.c (what came back), redis_load.c
 * (snapshots read and written in pieces, the pool's part) and redis_owed.c (leases that are to be
 * given back).
 *
 *   call ──> session's line ──> (pool: digest) ──> to send ──> in flight ──> reply ──┬──> callback
 *            (one at a time)                          ^                              │
 *                                                     └── next piece, connection ────┘
 *                                                         lost, Redis is loading
 *
 * What is asked of one session is done in order, each after the one before it; but its lease is
 * renewed at once, also while a snapshot of it is on its way. What an op sends is made once and
 * sent again as it was when the connection broke before the answer came: the scripts (redis_lua.h)
 * give the same answer then, unless others came between. Each op has a deadline, which does not run
 * while it waits for others, as long as there is a connection; one that has reached it before it
 * was sent did nothing (STORE_UNAVAILABLE); a write that was sent is not known about
 * (COMMIT_UNKNOWN), nor is one that finds at its repetition that others came, or that Redis
 * refuses then.
 *
 * Snapshots go in pieces of 1 MiB, one in flight for each: a turn's commit waits for a piece at
 * most, neither the loop nor Redis is held up by a long copy, and hiredis, which moves what it
 * could not send yet with every write, has little to move. They are written under a name of their
 * own first, which ends by itself; the script that puts it into the head makes it stay.
 *
 * Loop's thread but for the pool's jobs, which touch only what is their op's. */
#ifndef SLATE_SERVER_STORE_REDIS_H
#define SLATE_SERVER_STORE_REDIS_H

#include "server/store/kind.h"
#include "server/store/log.h"
#include "server/store/redis_conn.h"
#include "server/store/redis_lua.h"

enum {
    SL_REDIS_TIMEOUT_MS = 5000,
    SL_REDIS_LEASE_MS = 15000,
    SL_REDIS_TICK_MS = 50,          /* deadlines are looked at so often */
    SL_REDIS_VALUE_MAX = 256 << 20, /* bytes of one value: a turn, an answer, a head's metadata */
    SL_REDIS_SNAPSHOT_MAX = 511 << 20, /* below Redis' proto-max-bulk-len */
    SL_REDIS_PIECE = 1 << 20,          /* bytes of a snapshot in one command */
    SL_REDIS_IN_FLIGHT_MAX = 16 << 20, /* bytes of commands without an answer */
    SL_REDIS_OPS_MAX = 100000,         /* calls that have not called back */
    SL_REDIS_TRANSFERS_MAX = 4,        /* snapshots on their way at once */
    SL_REDIS_UPLOAD_LIFE_MS = 600000,  /* of pieces that no head speaks of */
    SL_REDIS_RELOADS_MAX = 3,          /* a snapshot that was replaced while it was read */
    SL_REDIS_RESERVE = 1024,           /* calls that wait to be told that there is no memory */
    SL_REDIS_ARGS_MAX = 32,
    SL_REDIS_NAME_MAX = SL_TENANT_MAX + SL_SESSION_ID_MAX + 64,
    SL_REDIS_SWEEP = 64,  /* sessions that one sweep removes */
    SL_REDIS_ASKED = 256, /* of what others ask that is heard at once */
    SL_REDIS_HOLDER_MAX = 63,
    SL_REDIS_OWED_MAX = 1024, /* leases that are to be given back */
    SL_REDIS_LINES = 1024,    /* buckets; a power of two */
};

enum sl_rd_kind {
    SL_RD_LOOK,
    SL_RD_TAKE,
    SL_RD_RENEW,
    SL_RD_RELEASE,
    SL_RD_HEAD,
    SL_RD_TURN,
    SL_RD_SNAP,
    SL_RD_NAME,
    SL_RD_UNNAME,
    SL_RD_REMOVE,
    SL_RD_LOAD,
    SL_RD_POINTS,
    SL_RD_LIST,
    SL_RD_SWEEP,
    SL_RD_ASK,
    SL_RD_ASKED,
    SL_RD_KINDS
};

/* A command's arguments behind each other in one memory. */
struct sl_rd_args {
    char *mem;
    size_t used, cap;
    int n;
    size_t at[SL_REDIS_ARGS_MAX], len[SL_REDIS_ARGS_MAX];
    bool failed; /* no memory */
};

/* Sessions that something is asked of. */
struct sl_rd_line {
    struct sl_rd_line *next; /* in its bucket */
    struct sl_rd_op *first, *last;
    char name[SL_TENANT_MAX + SL_SESSION_ID_MAX + 2]; /* "TENANT/ID" */
};

struct sl_rd_op;

/* Who is to be called back. */
struct sl_rd_call {
    enum sl_rd_kind kind;
    union {
        sl_store_done *done;
        sl_store_seen *seen;       /* LOOK, TAKE */
        sl_store_loaded *loaded;   /* LOAD */
        sl_store_pointed *pointed; /* POINTS */
        sl_store_listed *listed;   /* LIST */
        sl_store_told *told;       /* ASK */
        sl_store_heard *heard;     /* ASKED */
    } cb;
    void *arg;
};

/* A lease that is to be given back. */
struct sl_rd_owed {
    struct sl_rd_owed *next;
    int64_t until_ms; /* of the loop: then it is over */
    uint64_t fence;
    char holder[SL_REDIS_HOLDER_MAX + 1]; /* as the store has it; "": by its fence */
    char tenant[SL_TENANT_MAX + 1], id[SL_SESSION_ID_MAX + 1];
};

/* A command in flight; the op may have ended meanwhile. */
struct sl_rd_flight {
    struct sl_redis *r;
    struct sl_rd_op *op; /* NULL: nobody waits for it any more */
    size_t bytes;
};

struct sl_rd_op {
    struct sl_rd_op *next;          /* in to_send, later or finished */
    struct sl_rd_op *after;         /* in its line */
    struct sl_rd_op *newer, *older; /* all ops, by age */
    struct sl_redis *r;
    struct sl_rd_line *line; /* NULL: of no session, RENEW, or what is owed */
    struct sl_rd_call call;
    enum sl_code code;
    struct sl_error err;
    int64_t deadline_ms, asked_ms; /* of the loop; asked: what it is at now went out last */
    unsigned sent;                 /* how often that did */
    bool write_sent;               /* what changes the session went out */
    bool untold;                   /* and the answer was lost: it may have been done */
    bool whole_script;             /* Redis has forgotten it */
    bool working;                  /* in the pool */
    bool over;                     /* finished, and not told yet */
    bool given_up;                 /* its time was over */
    struct sl_rd_flight *flight;
    struct sl_rd_args args; /* of its script */
    enum sl_rd_script script;
    struct sl_store_view *view; /* n_view of them, into the reply: told before that goes */
    size_t n_view;
    bool more;
    char tenant[SL_TENANT_MAX + 1], id[SL_SESSION_ID_MAX + 1]; /* LIST: id is the prefix */
    unsigned char incarnation[16];
    uint64_t version; /* that it speaks of; LOAD: SL_STORE_LAST, or an earlier one */
    size_t limit;     /* LIST */
    char name[SL_SESSION_ID_MAX + 1];     /* NAME, UNNAME */
    uint64_t named;                       /* NAME: the version */
    bool runs;                            /* ASK */
    uint64_t fence;                       /* ASK, RELEASE */
    char holder[SL_REDIS_HOLDER_MAX + 1]; /* TAKE: as the store has it then */
    struct sl_rd_owed *owed;              /* that it gives back */
    struct sl_store_asked *asked;         /* ASKED: n_view of them */

    /* SNAP, LOAD: bytes in pieces */
    uv_work_t work;
    char number[33]; /* of the snapshot's key */
    unsigned char *data;
    size_t n_data, at;
    unsigned char digest[16];
    bool with_head;              /* SNAP */
    struct sl_stamp stamp;       /* SNAP: that its version gets, or has; "*": any */
    struct sl_rd_args switching; /* SNAP: of the script that comes after the pieces */
    bool is_transfer, in_pieces; /* counts among the transfers; the pieces are at work */
    bool waits_turn;             /* until it counts among them */
    unsigned n_reloads;
    char missed[33]; /* the snapshot whose bytes were not there the last time */
    sl_store_decode *decode;
    struct sl_store_head head;
    struct sl_store_record record;
    struct sl_store_turn *turns;
    struct sl_store_answer *answers;
    struct sl_store_point *points; /* POINTS: n_points of them */
    struct sl_store_name *names;   /* likewise */
    size_t n_points, n_names;
    unsigned char *memory; /* payloads, aligned */
    char *texts;           /* of the head */
};

struct sl_rd_queue {
    struct sl_rd_op *head, **tail;
};

struct sl_redis {
    struct sl_store base;
    uv_loop_t *loop;
    const struct sl_redis_io *io;
    struct sl_rd_address address;
    struct sl_rd_conn conn;
    char shas[SL_LUA_N][SL_REDIS_SHA_BYTES + 1];
    uv_async_t wake;
    uv_timer_t tick;
    unsigned n_handles;
    bool closing, closed;
    bool leads_astray; /* it says that it is a replica: the name may lead to another one by now */
    void (*closed_cb)(void *arg);
    void *closed_arg;
    size_t max_sessions, max_names, state_bytes, token_bytes;
    uint64_t keep_turns;
    uint64_t timeout_ms, lease_ms;
    char node[17];         /* this process among those that share the store */
    uint64_t n_calls;      /* so far: names them */
    int64_t down_since_ms; /* of the loop; 0: there is a connection */
    int64_t clock_ms;      /* Redis' clock less the loop's; 0: not known */

    size_t n_ops;
    struct sl_rd_op *newest, *oldest;
    struct sl_rd_line *lines[SL_REDIS_LINES];
    uint64_t line_seed; /* drawn at open: clients name sessions (index.h has one, too) */
    struct sl_rd_queue arrivals, to_send, later, transfers, finished;
    size_t in_flight; /* bytes */
    unsigned n_transfers;
    struct sl_rd_owed *owed, **owed_end; /* as their calls were given up */
    size_t n_owed;
    struct sl_rd_call *starved; /* SL_REDIS_RESERVE of them */
    size_t n_starved;
    struct sl_store_stats stats;
};

/* --- redis_pump.c
 * -------------------------------------------------------------------------------------
 */
/* An op in its session's line (id NULL: none), counted; NULL: there is no memory for it, which the
 * callback will be told. */
struct sl_rd_op *sl_rd_new_op(struct sl_redis *r, const struct sl_rd_call *call, const char *tenant,
                              const char *id);
/* It is over, or goes on. Both are followed by sl_rd_pump() before the loop waits. */
void sl_rd_finish(struct sl_rd_op *op);
void sl_rd_send_soon(struct sl_rd_op *op);
/* Redis cannot do it now: again at the next tick. */
void sl_rd_send_later(struct sl_rd_op *op);
void sl_rd_pump(struct sl_redis *r);
void sl_rd_on_wake(uv_async_t *a);
void sl_rd_on_tick(uv_timer_t *t);
void sl_rd_on_up(void *arg);
void sl_rd_on_down(void *arg, const struct sl_error *why);
/* Its pieces are sent when not too many others' are. */
void sl_rd_transfer(struct sl_rd_op *op);
/* It got on: a transfer may take longer than one call. */
void sl_rd_touch(struct sl_rd_op *op);

/* --- redis.c ------------------------------------------------------------------------------------
 */
SL_NODISCARD enum sl_code sl_rd_open(struct sl_store **ret, const char *rest,
                                     const struct sl_store_options *opt,
                                     void (*head)(void *arg, const struct sl_store_head *h),
                                     void *arg, struct sl_error *err);
void sl_rd_close(struct sl_store *st, void (*closed)(void *arg), void *arg);
void sl_rd_close_handles(struct sl_redis *r); /* then everything is freed */
struct sl_stamp sl_rd_stamp(struct sl_store *st);

/* --- redis_ops.c: the table's functions ----------------------------------------------------------
 */
extern const struct sl_store_kind sl_store_redis;
extern const char *const sl_rd_asks[SL_ASKS]; /* as the store has them */
void sl_rd_tell(struct sl_rd_op *op);         /* its callback */
void sl_rd_tell_error(const struct sl_rd_call *call, const struct sl_error *err);
void sl_rd_free_op(struct sl_rd_op *op);
void sl_rd_list_on(struct sl_rd_op *op, const char *last); /* LIST again, behind that id */

/* Arguments. */
void sl_rd_arg(struct sl_rd_args *a, const void *p, size_t n);
void sl_rd_arg_text(struct sl_rd_args *a, const char *s);
void sl_rd_arg_number(struct sl_rd_args *a, uint64_t v);
void sl_rd_arg_version(struct sl_rd_args *a, uint64_t v); /* 20 digits */
void sl_rd_arg_hex(struct sl_rd_args *a, const unsigned char *p, size_t n);

/* --- redis_reply.c -------------------------------------------------------------------------------
 */
/* What came for an op: finishes it, or sends what is next. */
void sl_rd_take(struct sl_rd_op *op, redisReply *reply);
/* A view out of a script's answer, whose first element is at `first`; *ret points into it. False:
 * it is none. */
bool sl_rd_view(const redisReply *r, const char *tenant, const char *id, struct sl_store_view *ret);
bool sl_rd_number(const redisReply *r, uint64_t *ret); /* digits */
bool sl_rd_hex(const redisReply *r, unsigned char *ret, size_t n);
/* op->code and err: Redis answered with something that no script gives. */
void sl_rd_strange(struct sl_rd_op *op, const char *what);

/* --- redis_kept.c: what is kept to rewind to -----------------------------------------------------
 */
/* Out of a LOAD's answer, whose head is op->head: what leads to the version that is asked for. A
 * snapshot (number "": none), its size and digest into op; *ret_base: its version. Or, for POINTS,
 * op->points. Errors: CHECKPOINT_NOT_FOUND, STORE_CORRUPT, NO_MEMORY; into op. */
struct sl_rd_kept {
    const redisReply *snaps, *turns, *before; /* before: turns that the snapshot holds */
    const redisReply *names;
    const redisReply *number, *size, *digest, *tokens, *at; /* of the snapshot */
};
SL_NODISCARD enum sl_code sl_rd_find_kept(struct sl_rd_op *op, const struct sl_rd_kept *k,
                                          uint64_t *ret_base, uint64_t *ret_size);
/* An element of a list of turns or answers, its payload copied to `to`, a multiple of 8. n_front:
 * of what stands before the payload. False: it is not what was written. */
bool sl_rd_payload(const redisReply *r, size_t n_front, unsigned char *to, uint64_t *ret_version,
                   size_t *ret_n);
bool sl_rd_digits(const char *p, size_t n, unsigned base, uint64_t *ret);
enum { SL_RD_TURN_FRONT = 20 + 10 + 16, SL_RD_ANSWER_FRONT = 20 + 16 };

/* --- redis_owed.c --------------------------------------------------------------------------------
 */
/* The op is over: if it may leave a lease behind, that is to be given back. */
void sl_rd_owe(struct sl_rd_op *op);
void sl_rd_give_back_owed(struct sl_redis *r); /* there is a connection */
void sl_rd_forget_owed(struct sl_redis *r);

/* --- redis_load.c --------------------------------------------------------------------------------
 */
void sl_rd_begin_snap(struct sl_rd_op *op);   /* digest, then the pieces */
void sl_rd_begin_pieces(struct sl_rd_op *op); /* again from the first */
void sl_rd_next_piece(struct sl_rd_op *op);   /* it went: the next, or the script */
/* LOAD's head, turns and answers came; then its pieces. */
void sl_rd_take_load(struct sl_rd_op *op, redisReply *reply);
void sl_rd_take_piece(struct sl_rd_op *op, redisReply *reply);
void sl_rd_free_load(struct sl_rd_op *op);

#endif
