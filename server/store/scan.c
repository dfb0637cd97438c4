/* scan.c: reading the log at open: once, from its start to its end, through one window of memory;
 * payloads are hashed as they pass and stay on the disk.
 *
 * What is not valid is one of three things:
 *   - the torn end of a batch that was being written when the power went: nothing of a later batch
 *     lies behind it. It was never acknowledged and is left out (`end`).
 *   - damage to a payload: the header says whose it is. That session alone is damaged.
 *   - damage to a header, a record's or the file's: what it was is unknown, so nothing may be
 *     assumed. Refused, but for a repair that an operator asked for, which goes on behind it
 *     (sl_log_bridge). */
#define XXH_STATIC_LINKING_ONLY /* the state's layout, to have it on the stack */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "engine/base/mem.h"
#include "server/store/log.h"

enum { WINDOW = 1 << 18, FIXED_MAX = 144, HEADER_MAX = SL_RECORD_HEADER + SL_RECORD_NAMES_MAX };

struct scan {
    const struct sl_log_place *lp;
    int fd;
    struct sl_index *ix;
    struct sl_log_scan *ret;
    struct sl_error *err;
    uint64_t size, batch;  /* batch: where that of the last record begins */
    unsigned char *window; /* n bytes of the file from `at` on */
    uint64_t at;
    size_t n;
    const struct sl_log_bridge *bridge; /* NULL: none */
    bool bridged;                       /* the record before is not known, nor is its batch */
};

static enum sl_code fail_at(struct scan *s, uint64_t at, const char *what)
{
    return sl_fail(s->err, SL_E_STORE_CORRUPT, "%s/%s: offset %llu: %s", s->lp->root, SL_LOG_NAME,
                   (unsigned long long)at, what);
}

/* Up to `want` (≤ WINDOW) bytes at `at`: fewer where the file ends. */
static enum sl_code view(struct scan *s, uint64_t at, size_t want, const unsigned char **ret,
                         size_t *ret_n)
{
    assert(want <= WINDOW && at <= s->size);
    if (s->size - at < want)
        want = (size_t)(s->size - at);
    if (at < s->at || at - s->at > s->n || s->n - (at - s->at) < want) {
        size_t n = s->size - at < WINDOW ? (size_t)(s->size - at) : WINDOW;
        s->at = at;
        s->n = 0;
        int e = sl_io_read(s->lp->io, s->fd, s->window, n, at, &s->n);
        if (e)
            return sl_io_fail(s->err, "read from", (struct sl_where){s->lp->root, SL_LOG_NAME}, e);
        if (s->n < n)
            return fail_at(s, at + s->n, "the file ends here, and was longer a moment ago");
    }
    *ret = s->window + (at - s->at);
    *ret_n = want;
    return SL_OK;
}

/* Is there anything valid, from `from` on, that was written after what stands at `bad` had been
 * synced? */
static enum sl_code later_batch(struct scan *s, uint64_t from, uint64_t bad, bool *ret)
{
    *ret = false;
    for (uint64_t at = from; at < s->size;) {
        const unsigned char *p;
        size_t n;
        enum sl_code c = view(s, at, HEADER_MAX, &p, &n);
        if (c)
            return c;
        struct sl_record r;
        bool valid = sl_record_read(&r, p, n, s->ret->log_id, at);
        if (valid && r.batch > bad) {
            *ret = true;
            return SL_OK;
        }
        at += valid ? sl_record_size(&r) : 8;
    }
    return SL_OK;
}

/* Where the first valid record from `from` on lies. There is one. */
static enum sl_code next_valid(struct scan *s, uint64_t from, uint64_t *ret)
{
    for (uint64_t at = from;; at += 8) {
        const unsigned char *p;
        struct sl_record r;
        size_t n;
        enum sl_code c = view(s, at, HEADER_MAX, &p, &n);
        if (c)
            return c;
        *ret = at;
        if (sl_record_read(&r, p, n, s->ret->log_id, at))
            return SL_OK;
    }
}

/* A damaged header, with valid records behind it. */
static enum sl_code pass_over(struct scan *s, uint64_t at, const unsigned char *head, size_t n,
                              uint64_t *ret_next)
{
    if (!s->bridge)
        return fail_at(s, at,
                       "here begins a record whose header is damaged, with valid ones behind it; "
                       "whose it was is not known (`slate sessions check` says what can be told, "
                       "`slate sessions repair` goes on without it)");
    enum sl_code c = next_valid(s, at + 8, ret_next);
    s->bridged = true;
    return c ? c : s->bridge->gap(s->bridge->arg, at, *ret_next, head, n);
}

/* Hashes the payload; its first bytes go to `fixed`. */
static enum sl_code hash_payload(struct scan *s, uint64_t at, size_t n,
                                 unsigned char fixed[FIXED_MAX], uint64_t *ret)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (size_t done = 0; done < n;) {
        const unsigned char *p;
        size_t k;
        enum sl_code c = view(s, at + done, n - done < WINDOW ? n - done : WINDOW, &p, &k);
        if (c)
            return c;
        if (done == 0)
            memcpy(fixed, p, k < FIXED_MAX ? k : FIXED_MAX);
        XXH3_64bits_update(&state, p, k);
        done += k;
    }
    *ret = XXH3_64bits_digest(&state);
    return SL_OK;
}

/* fixed NULL: the payload is damaged. */
static enum sl_code take(struct scan *s, const struct sl_record *r, uint64_t at,
                         const unsigned char *fixed)
{
    s->ret->n_records++;
    s->ret->marked = r->kind == SL_RECORD_MARK && fixed;
    if (r->kind == SL_RECORD_MARK)
        return SL_OK;
    struct sl_ix_session *ses = sl_index_get(s->ix, r->tenant, r->tenant_n, r->id, r->id_n);
    if (!ses)
        return sl_fail(s->err, SL_E_NO_MEMORY, "no memory for a list of %zu sessions",
                       s->ix->n_nodes);
    bool damaged = ses->exists && ses->damaged.size;
    if (!fixed) {
        s->ret->n_damaged += !damaged;
        sl_index_damage(s->ix, ses, r, at);
        return SL_OK;
    }
    if (damaged && r->kind != SL_RECORD_DELETE)
        return SL_OK; /* something is missing before it */
    struct sl_ix_room room;
    struct sl_ix_snap *old;
    if (!sl_index_make_room(&room, r->kind))
        return sl_fail(s->err, SL_E_NO_MEMORY, "no memory for a list of turns");
    bool ok = sl_index_apply(s->ix, ses, r, fixed, at, &room, &old);
    sl_index_free_snaps(old); /* files that no record names are found later, by their names */
    if (!ok && r->kind != SL_RECORD_DELETE) {
        s->ret->n_damaged++;
        sl_index_damage(s->ix, ses, r, at);
    }
    sl_index_release(s->ix, ses);
    return SL_OK;
}

/* One record. *ret_next is where the next one begins; the record's own place where nothing valid
 * follows. */
static enum sl_code step(struct scan *s, uint64_t at, uint64_t *ret_next)
{
    const unsigned char *p;
    size_t n;
    unsigned char head[HEADER_MAX], fixed[FIXED_MAX];
    enum sl_code c = view(s, at, HEADER_MAX, &p, &n);
    if (c)
        return c;
    memcpy(head, p, n); /* the window moves on */
    struct sl_record r;
    bool later = false;
    *ret_next = at;
    if (!sl_record_read(&r, head, n, s->ret->log_id, at) ||
        (r.batch != at && r.batch != s->batch && !s->bridged)) {
        c = later_batch(s, at + 8, at, &later);
        return !c && later ? pass_over(s, at, head, n, ret_next) : c;
    }
    s->bridged = false;
    if (sl_record_size(&r) > s->size - at)
        return SL_OK;
    uint64_t hash = 0;
    c = hash_payload(s, at + sl_record_payload_at(&r), r.payload_n, fixed, &hash);
    if (c)
        return c;
    bool whole = hash == r.payload_hash;
    if (!whole) {
        c = later_batch(s, at + sl_record_size(&r), at, &later);
        if (c || !later)
            return c;
    }
    *ret_next = at + sl_record_size(&r);
    s->batch = r.batch;
    return take(s, &r, at, whole ? fixed : NULL);
}

static enum sl_code read_header(struct scan *s)
{
    const unsigned char *p;
    char path[512];
    size_t n;
    enum sl_code c = view(s, 0, SL_LOG_HEADER, &p, &n);
    if (c)
        return c;
    snprintf(path, sizeof path, "%s/%s", s->lp->root, SL_LOG_NAME);
    c = sl_log_header_read(p, n, path, &s->ret->log_id, s->err);
    if (c != SL_E_STORE_CORRUPT || n < SL_LOG_HEADER)
        return c;
    if (!s->bridge) {
        size_t used = strlen(s->err->message);
        snprintf(s->err->message + used, sizeof s->err->message - used,
                 " (`slate sessions check` says what can be told, `slate sessions repair` mends "
                 "what can be proven)");
        return c;
    }
    c = sl_log_find_id(s->lp, s->fd, p, &s->ret->log_id, s->err);
    if (!c)
        s->bridge->header(s->bridge->arg);
    return c;
}

static enum sl_code run(struct scan *s)
{
    enum sl_code c = read_header(s);
    if (c)
        return c;
    uint64_t at = SL_LOG_HEADER;
    while (at < s->size) {
        uint64_t next;
        c = step(s, at, &next);
        if (c)
            return c;
        if (next == at)
            break;
        at = next;
    }
    s->ret->end = at;
    return SL_OK;
}

enum sl_code sl_log_scan(const struct sl_log_place *lp, int fd, struct sl_index *ix,
                         struct sl_log_scan *ret, struct sl_error *err)
{
    return sl_log_scan_over(lp, fd, ix, NULL, ret, err);
}

enum sl_code sl_log_scan_over(const struct sl_log_place *lp, int fd, struct sl_index *ix,
                              const struct sl_log_bridge *bridge, struct sl_log_scan *ret,
                              struct sl_error *err)
{
    struct stat st;
    if (lp->io->stat(fd, &st) < 0)
        return sl_io_fail(err, "stat of", (struct sl_where){lp->root, SL_LOG_NAME}, errno);
    if (!S_ISREG(st.st_mode))
        return sl_fail(err, SL_E_STORE_CORRUPT, "%s/%s: is not a regular file", lp->root,
                       SL_LOG_NAME);
    *ret = (struct sl_log_scan){.size = (uint64_t)st.st_size};
    struct scan s = {.lp = lp,
                     .fd = fd,
                     .ix = ix,
                     .ret = ret,
                     .err = err,
                     .size = (uint64_t)st.st_size,
                     .bridge = bridge};
    s.window = sl_malloc(WINDOW);
    if (!s.window)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to read %s/%s", lp->root, SL_LOG_NAME);
    enum sl_code c = run(&s);
    sl_free(s.window);
    return c;
}
