/* dir.h: the `dir:` store's insides, shared by dir.c (open, close), ops.c (what was asked for, in
 * order), writer.c and rewriting.c (the log's writer) and load.c.
 *
 *   call ──> session's queue ──> check ──┬─> files ─┬─> batch ──> done ──> trash
 *            (one at a time)             ├──────────┘   (group commit)
 *                                        └─> loads ──> done
 *
 * Files: a snapshot is written. Loads: the log and the snapshot are read.
 *
 * What is asked of one session is done in order, each after the one before it: a check sees all
 * that came before, and a load never meets a file that is being replaced. Sessions do not wait for
 * each other: their records gather while a batch is being written and synced, and go together in
 * the next. The memory (index.h) changes on the loop, after the disk did.
 *
 * Blocking work is done in libuv's pool: at most one writer, a rewrite's sync, and a few files and
 * loads, so that they leave threads to others. A job touches only what is its own; results are
 * taken on the loop.
 */
#ifndef SLATE_SERVER_STORE_DIR_H
#define SLATE_SERVER_STORE_DIR_H

#include "server/store/files.h"
#include "server/store/kind.h"
#include "server/store/log.h"

enum {
    SL_STORE_REWRITE_BYTES = 64 << 20, /* of dead records, by default */
    SL_STORE_BATCH_BYTES = 16 << 20,   /* of a batch of more than one record */
    SL_STORE_FILES_MAX = 2,            /* snapshots being written at once */
    SL_STORE_LOADS_MAX = 2,
    SL_STORE_SPARES = SL_STORE_LOADS_MAX, /* buffers kept for snapshots to be read */
    SL_STORE_RESERVE = 1024               /* calls that wait to be told that there is no memory */
};

enum sl_op_kind {
    SL_OP_HEAD,
    SL_OP_TURN,
    SL_OP_SNAP,
    SL_OP_ANSWER,
    SL_OP_NAME,
    SL_OP_UNNAME,
    SL_OP_REMOVE,
    SL_OP_LOAD,
    SL_OP_POINTS
};

struct sl_load; /* load.c */

/* One call of store.h, from the call to its callback, and what it leaves to be removed. */
struct sl_op {
    struct sl_op *next;  /* in a queue */
    struct sl_op *after; /* the next one of its session */
    struct sl_dir *d;
    struct sl_ix_session *s; /* NULL: there was no memory for it; code says so */
    struct sl_ix_tenant *tenant;
    enum sl_op_kind kind;
    sl_store_done *done;
    sl_store_loaded *loaded;
    sl_store_pointed *pointed;
    sl_store_decode *decode; /* LOAD; NULL: none */
    void *arg;
    enum sl_code code;
    struct sl_error err;

    unsigned char incarnation[16];
    uint64_t now;     /* NAME, UNNAME: the version that the session is at */
    uint64_t version; /* of the session after it; LOAD: to be read, or SL_STORE_LAST; NAME: that is
                         named; UNNAME, REMOVE: any */
    bool with_head;   /* HEAD; SNAP: writes `head`, too */
    struct sl_head_payload head;

    unsigned char *payload; /* payload_n bytes of the record */
    size_t payload_n;
    struct sl_ix_entry *entry; /* TURN, ANSWER */
    struct sl_ix_name *name;   /* NAME, UNNAME */
    struct sl_ix_snap *place;  /* HEAD, SNAP, REMOVE: for the snapshot that goes */
    struct sl_record record;
    uint64_t at;

    unsigned char *data; /* SNAP: n_data bytes */
    size_t n_data;
    struct sl_snapfile snap;
    struct sl_folders folders;
    bool written; /* the file is there */

    struct sl_load *load;
    struct sl_store_point *points; /* POINTS: n_points of them */
    struct sl_store_name *names;   /* likewise */
    size_t n_points, n_names;
    struct sl_ix_snap *trash; /* files that nobody needs any more */
    uv_work_t work;
    char id[SL_SESSION_ID_MAX + 1];
};

struct sl_queue {
    struct sl_op *head, **tail;
};
void sl_queue_init(struct sl_queue *q);
void sl_queue_push(struct sl_queue *q, struct sl_op *op);
struct sl_op *sl_queue_pop(struct sl_queue *q); /* NULL: empty */

/* A call for which not even an op could be had. */
struct sl_starved {
    sl_store_done *done;
    sl_store_loaded *loaded;
    sl_store_pointed *pointed;
    void *arg;
};

/* What the writer's job is given, and gives. */
struct sl_batch {
    struct sl_queue ops;
    bool mark; /* a MARK alone */
    int fd;
    uint64_t log_id, at;
    struct sl_bytes out;
    size_t n_out;
    bool broken;
    enum sl_code code;
    struct sl_error err;
};

/* Of a rewrite, in the writer's place. */
enum sl_step { SL_STEP_COPY, SL_STEP_FINISH, SL_STEP_DROP };

enum sl_dir_state { SL_DIR_OPEN, SL_DIR_CLOSING, SL_DIR_MARKING, SL_DIR_CLOSED };

struct sl_dir {
    struct sl_store base;
    const struct sl_store_io *io;
    char *path;
    int root, lock;
    struct sl_files files;
    struct sl_log_place place;
    uint64_t rewrite_bytes;
    size_t rewrite_slice;
    size_t max_names; /* of a session */
    uv_loop_t *loop;
    uv_async_t wake;
    enum sl_dir_state state;
    void (*closed)(void *arg);
    void *closed_arg;

    struct sl_index ix;
    uint64_t last_number; /* of a snapshot's file */
    struct sl_log_file *log;
    uint64_t log_end;      /* everything before is valid and synced */
    uint64_t rewrite_from; /* no rewrite while the log is shorter: the last one failed */
    bool marked;           /* the last record is a MARK */
    bool broken;           /* the log may not be written before it was rewritten */
    struct sl_error broken_by;

    size_t n_ops; /* calls that have not called back */
    struct sl_queue arrivals, to_write, to_file, to_load, finished, to_trash;
    bool writing, trashing;
    unsigned n_filing, n_loading;
    uv_work_t writer, trasher;
    struct sl_batch batch;
    bool rewriting;    /* a rewrite is under way */
    bool syncing;      /* its sync, beside the writer */
    bool step_next;    /* rather than a batch: they take turns */
    enum sl_step step; /* that the writer is at */
    uv_work_t syncer;  /* its job */
    int sync_errno;    /* and what came of it */
    struct sl_rewrite rewrite;
    struct sl_log_file *rewritten; /* for the new one */
    struct sl_queue trash;         /* being removed */
    struct sl_log_file *to_close, *closing;
    struct sl_starved *starved; /* SL_STORE_RESERVE of them */
    size_t n_starved;
    struct sl_bytes spares[SL_STORE_SPARES]; /* p NULL: none */
    struct sl_store_stats stats;
};

/* Opens PATH with these system calls. */
SL_NODISCARD enum sl_code sl_dir_open(struct sl_store **ret, const char *path,
                                      const struct sl_store_options *opt,
                                      const struct sl_store_io *io,
                                      void (*head)(void *arg, const struct sl_store_head *h),
                                      void *arg, struct sl_error *err);

/* The folder alone, locked: nothing is read but its format, nothing is made. sl_dir_free(). */
SL_NODISCARD enum sl_code sl_dir_open_folder(struct sl_dir **ret, const char *path,
                                             const struct sl_store_io *io, struct sl_error *err);

/* --- ops.c: loop's thread ------------------------------------------------------------------------
 */
void sl_dir_put_head(struct sl_store *st, const struct sl_store_head *h, sl_store_done *cb,
                     void *arg);
void sl_dir_append_turn(struct sl_store *st, const struct sl_store_key *k,
                        const struct sl_store_turn *t, sl_store_done *cb, void *arg);
void sl_dir_put_snapshot(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                         const struct sl_store_head *head, unsigned char *data, size_t n,
                         sl_store_done *cb, void *arg);
void sl_dir_put_answer(struct sl_store *st, const struct sl_store_key *k,
                       const struct sl_store_answer *a, sl_store_done *cb, void *arg);
void sl_dir_load(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                 sl_store_decode *decode, sl_store_loaded *cb, void *arg);
void sl_dir_points(struct sl_store *st, const struct sl_store_key *k, sl_store_pointed *cb,
                   void *arg);
void sl_dir_put_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                     const char *name, uint64_t version, sl_store_done *cb, void *arg);
void sl_dir_drop_name(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                      const char *name, sl_store_done *cb, void *arg);
void sl_dir_remove(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg);

/* --- pump.c: loop's thread -----------------------------------------------------------------------
 */
/* Calls back what is finished and starts what can be started. Not from inside a call. */
void sl_dir_pump(struct sl_dir *d);
void sl_dir_wake(uv_async_t *a);
/* A load that nothing of its session comes before: it begins at once where it can, since the way
 * over the loop is a good part of what a small one takes. From inside a call; calls nothing back.
 */
void sl_dir_load_now(struct sl_op *op);
/* Calls back: there was no memory for it. */
void sl_dir_starve(struct sl_dir *d, const struct sl_starved *v);
/* Everything but the handle on the loop. */
void sl_dir_free(struct sl_dir *d);

/* --- writer.c ------------------------------------------------------------------------------------
 */
void sl_dir_write(struct sl_dir *d); /* starts the writer, when there is something for it */
/* One MARK; at open, blocking. A failure does no harm, but may leave the log broken. */
void sl_dir_mark(struct sl_dir *d);
void sl_dir_mark_async(struct sl_dir *d); /* calls sl_dir_pump() afterwards */
/* Makes op->record from what is known of the session now. */
void sl_dir_make_record(struct sl_op *op);
void sl_dir_unref_log(struct sl_dir *d, struct sl_log_file *f);
/* Its record is not there: its file, where it has written one, is not needed. */
void sl_dir_trash_written(struct sl_op *op);
void sl_dir_set_broken(struct sl_dir *d, const struct sl_error *why);

/* --- rewriting.c: loop's thread ------------------------------------------------------------------
 */
/* Starts a rewrite where one is due, and its sync where that is next. */
void sl_rewriting_consider(struct sl_dir *d);
/* Is one under way that waits for the writer? */
bool sl_rewriting_wants(const struct sl_dir *d);
void sl_rewriting_step(struct sl_dir *d); /* as the writer's job */
/* The record was written, and is not applied yet. */
void sl_rewriting_note(struct sl_dir *d, struct sl_ix_session *s, const struct sl_record *r,
                       uint64_t at);

/* --- load.c --------------------------------------------------------------------------------------
 */
void sl_load_start(struct sl_op *op); /* finishes into d->finished and pumps */
/* The callback of a finished load. */
void sl_load_tell(struct sl_op *op);
void sl_load_free(struct sl_op *op);

/* The head as store.h has it; metadata is left empty. */
void sl_dir_head(const struct sl_ix_session *s, struct sl_store_head *ret);

#endif
