/* stores.h: a store under test, `dir:` or another, beside a model of what must be in it.
 *
 * The model is plain copies of what was acknowledged, nothing else. Every change goes through a
 * `do_` function: it asks the store and remembers the change; when the store says SL_OK it is made
 * in the model. Contents are drawn from a seed, so that any two differ.
 *
 * After a crash, what was asked for and not acknowledged may be there or not (`crashed`): then each
 * state that the session would have passed through is right, and the model becomes the one that is
 * found. */
#ifndef SLATE_TESTS_STORES_H
#define SLATE_TESTS_STORES_H

#include "server/store/dir.h"
#include "tests/support/tree.h"

enum {
    SHOP_SESSIONS = 24,
    SHOP_TURNS = 64,
    SHOP_AHEAD = 12,
    SHOP_SNAPSHOTS = 128,
    SHOP_NAMES = 4 /* as many as a session may have */
};

/* What is wrong is counted only, and not told line by line: for tests that damage on purpose. */
extern bool stores_quiet;

struct model_turn {
    uint64_t version, seed, tokens_seen;
    bool answer;
};

struct model_snapshot {
    uint64_t version, seed;
    size_t n;
};

struct model_name {
    char name[16]; /* "": none */
    uint64_t version;
};

struct model_session {
    bool exists, was_empty; /* it began so: at version 0 */
    unsigned char incarnation[16];
    uint64_t version, tokens_seen;
    int64_t created_at, used_at, ttl_s;
    uint64_t metadata_seed;    /* 0: none */
    uint64_t snapshot_version; /* 0: none */
    uint64_t snapshot_seed;
    size_t snapshot_n;
    struct model_turn turns[SHOP_TURNS]; /* of this life */
    size_t n_turns;
    struct model_snapshot
        snapshots[SHOP_SNAPSHOTS]; /* of this life, the last one of each version */
    size_t n_snapshots;
    struct model_name names[SHOP_NAMES];
    size_t n_names;
};

/* One change that was asked for: what it sets. */
struct model_op {
    enum sl_op_kind kind;
    bool create, answer; /* HEAD, SNAP: of a session that is not there; TURN: with an answer */
    uint64_t serial;
    unsigned char incarnation[16];
    uint64_t version, tokens_seen, seed, metadata_seed;
    int64_t created_at, used_at, ttl_s;
    bool with_head; /* SNAP */
    size_t n;       /* SNAP: bytes */
    char name[16];  /* NAME, UNNAME */
    uint64_t named; /* NAME */
};

struct shop {
    uv_loop_t loop;
    struct sl_store *store;
    const char *spec;             /* NULL: a `dir:` of its own, with `io` */
    struct sl_store_options more; /* of another kind than `dir:` */
    const struct sl_store_io *io;
    char path[160];
    uint64_t rewrite_bytes;
    uint64_t keep_turns; /* set before it is opened */
    size_t slice_bytes;  /* of a rewrite; set before it is opened */
    bool crashed;
    int64_t base; /* what times are reckoned from */
    struct model_session v[SHOP_SESSIONS];
    struct model_op ahead[SHOP_SESSIONS][SHOP_AHEAD]; /* asked for, oldest first */
    size_t n_ahead[SHOP_SESSIONS];
    size_t n_waiting;          /* calls that have not called back */
    size_t n_failed, n_ok;     /* so far */
    struct sl_error last;      /* of the last failure */
    uint64_t n_seeds, n_asked; /* drawn, and asked for, so far */
    size_t n_told;             /* heads told by open */
    size_t n_wrong;            /* differences found, each told on stderr */
};

/* A new temporary folder; the store is made in a folder in it by shop_open(). */
void shop_init(struct shop *st, const struct sl_store_io *io, uint64_t rewrite_bytes);
/* The same for a store of another kind; `more` but spec and loop. */
void shop_init_spec(struct shop *st, const char *spec, const struct sl_store_options *more);
void shop_done(struct shop *st); /* removes the folder; the store is closed */
/* The folder that shop_init() made. */
void shop_folder(const struct shop *st, char *ret, size_t n);
/* Opens it, and compares the heads that are told with the model. */
enum sl_code shop_open(struct shop *st, struct sl_error *err);
void shop_close(struct shop *st);
/* Opens it; ends the test when it cannot, or when not all heads are told (a crash aside). */
void shop_must_open(struct shop *st);

/* One call each, not waited for. i: which session of the model. */
void do_create(struct shop *st, size_t i);
void do_patch(struct shop *st, size_t i);
void do_turn(struct shop *st, size_t i, bool answer);
void do_snapshot(struct shop *st, size_t i, size_t n);
/* Of so many turns before, as far as the last snapshot. */
void do_old_snapshot(struct shop *st, size_t i, size_t back, size_t n);
void do_restore(struct shop *st, size_t i, size_t n); /* also of one that does not exist */
/* So many versions further than one: what several turns have left that were not written. */
void do_far_restore(struct shop *st, size_t i, size_t ahead, size_t n);
void do_remove(struct shop *st, size_t i);
/* Names the version so many before the last one, or the oldest above that of which it is sure that
 * it is within reach; the oldest name goes where there are as many as there may be. */
void do_name(struct shop *st, size_t i, size_t back);
/* The n-th name goes, where there is one. */
void do_unname(struct shop *st, size_t i, size_t n);
/* Runs the loop until nothing is waited for. */
void shop_run(struct shop *st);

/* Loads and compares every session with the model; returns n_wrong. */
size_t shop_check(struct shop *st);
/* The same without waiting first for what was asked for before (of a session, a load comes after
 * it). */
size_t shop_check_soon(struct shop *st);
/* Loads every version of every session that may be kept: those with a name, and the last keep_turns
 * before the one that it is at must be there, as far as anything was written that leads there;
 * whatever else is there must be right, too. So must the list of them. Returns n_wrong. */
size_t shop_check_past(struct shop *st);
/* How many sessions the store says there are. */
size_t shop_sessions(struct shop *st);
/* Loads one, without comparing; SL_OK or its error. */
enum sl_code shop_load(struct shop *st, size_t i, struct sl_error *err);
/* Will it exist once all that was asked for is done? */
bool shop_has(const struct shop *st, size_t i);
/* The key of a session as the model has it. */
struct sl_store_key shop_key(const struct shop *st, size_t i);

/* The path of a session's snapshot file; false: there is none. */
bool shop_snapshot_path(struct shop *st, size_t i, char *ret, size_t n);

#endif
