/* log.h: the one log that all sessions of a `dir:` store share.
 *
 * One file, so that one fdatasync serves all commits that wait. Records (record.h) are appended and
 * never changed. What is needed no longer is dropped by a rewrite into a new file, a piece at a
 * time.
 *
 * A failed append is cut off again. When that fails too, or the sync did (the system may then think
 * clean what never reached the disk), the file is not trusted any more: `broken`. A rewrite from
 * the records that are known, each read back and verified, mends it. What cannot be cut off is
 * overwritten in place. Only where the disk takes neither (nor the rewrite, which is tried before
 * every further write), and the server then ends, can a turn that was answered with an error be
 * there after all; so its retry is a 412 with If-Match, and with an Idempotency-Key its answer.
 *
 * Threads: append, fetch and a rewrite's steps run in libuv's pool and change only their own
 * structs; one append or step at a time, but for a rewrite's sync. */
#ifndef SLATE_SERVER_STORE_LOG_H
#define SLATE_SERVER_STORE_LOG_H

#include "server/store/index.h"
#include "server/store/io.h"

#define SL_LOG_NAME "log"
#define SL_LOG_NEW_NAME "log.new"

/* An open log. Loads read from it while a rewrite puts another in its place, so it is counted;
 * loop's thread. */
struct sl_log_file {
    int fd;
    uint64_t id;
    unsigned refs;
    struct sl_log_file *next; /* of those that nobody has any more */
};

/* Where a log is: what every call needs. */
struct sl_log_place {
    const struct sl_store_io *io;
    int dir;
    const char *root; /* for messages */
};

/* A random number. Errors: IO. */
SL_NODISCARD enum sl_code sl_log_new_id(uint64_t *ret, struct sl_error *err);

/* --- opening (scan.c) ----------------------------------------------------------------------------
 */

struct sl_log_scan {
    uint64_t log_id;
    uint64_t size; /* of the file */
    uint64_t end;  /* of what is valid: what lies behind was never acknowledged */
    uint64_t n_records, n_damaged;
    bool marked; /* the last record is a MARK */
};

/* Reads the log from its start into ix. Errors: IO, NO_MEMORY, STORE_CORRUPT (names the offset),
 * FILE_UNSUPPORTED. */
SL_NODISCARD enum sl_code sl_log_scan(const struct sl_log_place *lp, int fd, struct sl_index *ix,
                                      struct sl_log_scan *ret, struct sl_error *err);

/* The id of a log whose header (its first bytes) is damaged, where the records or the header's hash
 * prove it (header.c). Errors: STORE_CORRUPT (says what cannot be proven), IO, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_log_find_id(const struct sl_log_place *lp, int fd,
                                         const unsigned char header[SL_LOG_HEADER],
                                         uint64_t *ret_id, struct sl_error *err);

/* The same over what it would be refused for: a damaged header of the file, whose id can be proven
 * (`header` is told); and bytes from `from` on that are no valid record though
 * valid ones of later batches follow, the first of which is at `to`. p: n ≥ 1 bytes of what begins
 * at `from`. For repair.c: sessions that miss a record of theirs are damaged afterwards where a
 * later one of them shows it. */
struct sl_log_bridge {
    void (*header)(void *arg);
    enum sl_code (*gap)(void *arg, uint64_t from, uint64_t to, const unsigned char *p, size_t n);
    void *arg;
};
SL_NODISCARD enum sl_code sl_log_scan_over(const struct sl_log_place *lp, int fd,
                                           struct sl_index *ix, const struct sl_log_bridge *bridge,
                                           struct sl_log_scan *ret, struct sl_error *err);

/* --- appending -----------------------------------------------------------------------------------
 */

/* n bytes of records, made for the offset `end`. False and *err: nothing of it counts; *ret_broken
 * says whether the log has to be rewritten before the next. */
bool sl_log_append(const struct sl_log_place *lp, int fd, uint64_t end, const void *p, size_t n,
                   bool *ret_broken, struct sl_error *err);

/* Cuts the file to `end`, synced. */
SL_NODISCARD enum sl_code sl_log_cut(const struct sl_log_place *lp, int fd, uint64_t end,
                                     struct sl_error *err);

/* --- reading -------------------------------------------------------------------------------------
 */

/* Memory that grows; sl_free(p). */
struct sl_bytes {
    unsigned char *p;
    size_t cap;
};
/* Room for n bytes; the contents are kept. False: no memory. */
bool sl_bytes_reserve(struct sl_bytes *b, size_t n);

/* Whose record it must be; NULL: anybody's, and its payload stands anywhere. */
struct sl_owner {
    const char *tenant, *id;
    const unsigned char *incarnation;
};

/* The record at `place`, whole and verified, into b at the offset `room` (so that its payload
 * stands at a multiple of 8 there): *ret_payload. Errors: IO, NO_MEMORY, STORE_CORRUPT (names file
 * and offset). */
SL_NODISCARD enum sl_code sl_log_fetch(const struct sl_log_place *lp, const struct sl_log_file *f,
                                       const struct sl_owner *o, const struct sl_place *place,
                                       struct sl_bytes *b, struct sl_record *ret,
                                       unsigned char **ret_payload, struct sl_error *err);

/* --- rewriting (rewrite.c) -----------------------------------------------------------------------
 *
 * In steps, between which batches are appended to the old log:
 *
 *   - slices: sessions are copied, each whole, as it is then. Behind them comes the tail: the
 *     records that were appended since of sessions that had been copied before, in their order (at
 *     least twice as much of it as came since the last slice, so that it has an end)
 *   - a sync of the new file, beside batches: what is appended meanwhile is tail again
 *   - the finish, when little of it is left: no batch until it is over. The last of the tail, a
 *     MARK, sync, rename, sync of the folder
 *
 * Nothing changes before the rename but the new file: a rewrite can be dropped at any time. */

enum {
    SL_REWRITE_SLICE = 256 << 10, /* bytes of a slice, by default; more only for one session */
    SL_REWRITE_SYNCS = 8          /* beside batches; then it is finished, whatever is left */
};

struct sl_rewrite {
    struct sl_log_place lp;
    const struct sl_log_file *old; /* NULL: there is none; the new log is empty */
    struct sl_index *ix;
    size_t n_walked;          /* buckets whose sessions are listed */
    bool is_listed;           /* all of them */
    struct sl_ix_session **v; /* n of cap, NULL: deleted since. The rewrite's (sl_free) */
    size_t n, cap, next;      /* those before `next` are copied */
    struct sl_moved *tail;    /* likewise */
    size_t n_tail, tail_cap, tail_next;
    uint64_t tail_left;  /* bytes of those from tail_next on */
    uint64_t tail_grown; /* bytes that came since the last slice */
    int64_t now;
    size_t slice;  /* bytes; 0: default */
    bool by_other; /* not by the store's server: fails where the new log cannot be whose the old is
                    */

    struct sl_bytes in, out; /* n_out bytes of out are not written yet; they begin at `flushed` */
    size_t n_out;
    uint64_t flushed, synced; /* synced: the first so many bytes of the file */
    unsigned n_syncs;

    /* Afterwards. */
    enum sl_code code;
    struct sl_error err;
    int fd; /* -1: it is not open */
    uint64_t id, end;
    uint64_t n_damaged; /* sessions of which something could not be read */
    bool renamed; /* after a failure: `log` may be either file. The old one may not be written */
};

/* What is to be done next. */
enum sl_rewrite_step { SL_REWRITE_COPY, SL_REWRITE_SYNC, SL_REWRITE_FINISH };

/* Nothing is open yet. The caller has set lp, old, now, slice, by_other. Then all sessions in ix
 * are listed, some buckets at a time, and it is said in each where in the list it is. Nothing else
 * comes before is_listed but notes. Owner's thread. Errors: NO_MEMORY. */
void sl_rewrite_open(struct sl_rewrite *w, struct sl_index *ix);
SL_NODISCARD enum sl_code sl_rewrite_list(struct sl_rewrite *w, size_t n_buckets);
/* Both, whole. */
SL_NODISCARD enum sl_code sl_rewrite_begin(struct sl_rewrite *w, struct sl_index *ix);
/* A record of s was appended to the old log at `at` and is not applied yet. False: no memory to
 * remember it, so that the rewrite must be dropped. Owner's thread, no step under way but a sync.
 */
SL_NODISCARD bool sl_rewrite_note(struct sl_rewrite *w, struct sl_ix_session *s,
                                  const struct sl_record *r, uint64_t at);
enum sl_rewrite_step sl_rewrite_next(const struct sl_rewrite *w);
/* The steps; in the pool. Result: w->code. No record may be applied during copy and finish. */
void sl_rewrite_copy(struct sl_rewrite *w);
void sl_rewrite_finish(struct sl_rewrite *w);
/* In the pool. Changes nothing of w, so that sl_rewrite_note() may be called beside it. 0, or an
 * errno: for sl_rewrite_synced(), on the owner's thread. */
int sl_rewrite_sync(const struct sl_rewrite *w);
void sl_rewrite_synced(struct sl_rewrite *w, int errnum);
/* The new file is closed and removed where it is not in place; in the pool. */
void sl_rewrite_drop(struct sl_rewrite *w);
/* Frees memory. After success the file is the caller's. */
void sl_rewrite_done(struct sl_rewrite *w);

/* All steps at once, where nobody appends meanwhile. On success the new file is in place. */
void sl_rewrite_run(struct sl_rewrite *w);

#endif
