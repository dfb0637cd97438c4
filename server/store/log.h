/* log.h: the one log that all sessions of a `dir:` store share.
 *
 * One file, so that one fdatasync serves all commits that wait. Records (record.h) are appended and
 * never changed. What is needed no longer is dropped by a rewrite into a new file.
 *
 * A failed append is cut off again. When that fails too, or the sync did (the system may then think
 * clean what never reached the disk), the file is not trusted any more: `broken`. A rewrite from
 * the records that are known, each read back and verified, mends it. What cannot be cut off is
 * overwritten in place. Only where the disk takes neither (nor the rewrite, which is tried before
 * every further write), and the server then ends, can a turn that was answered with an error be
 * there after all; so its retry is a 412 with If-Match, and with an Idempotency-Key its answer.
 *
 * Threads: append, fetch and rewrite run in libuv's pool and change only their own structs; one
 * append or rewrite at a time. */
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

/* The same over what it would be refused for: bytes from `from` on that are no valid record though
 * valid ones of later batches follow, the first of which is at `to`. p: n ≥ 1 bytes of what begins
 * at `from`. For repair.c: sessions that miss a record of theirs are damaged afterwards where a
 * later one of them shows it. */
struct sl_log_bridge {
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

/* Whose record it must be. */
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
 */

struct sl_rewrite {
    struct sl_log_place lp;
    const struct sl_log_file *old; /* NULL: there is none; the new log is empty */
    struct sl_ix_session **v;      /* all of them; the caller's */
    size_t n;
    int64_t now;

    /* Afterwards. */
    enum sl_code code;
    struct sl_error err;
    int fd; /* -1 after a failure */
    uint64_t id, end;
    uint64_t n_damaged; /* sessions of which something could not be read */
    bool renamed; /* after a failure: `log` may be either file. The old one may not be written */
};

/* Writes what is needed into a new file and puts it in the old one's place. On success apply
 * sl_index_moved(). */
void sl_rewrite_run(struct sl_rewrite *w);

#endif
