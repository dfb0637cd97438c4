/* log.c: see log.h. */
#include "server/store/log.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/mem.h"

static struct sl_where where(const struct sl_log_place *lp)
{
    return (struct sl_where){lp->root, SL_LOG_NAME};
}

enum sl_code sl_log_new_id(uint64_t *ret, struct sl_error *err)
{
    if (getrandom(ret, sizeof *ret, 0) != (ssize_t)sizeof *ret)
        return sl_fail(err, SL_E_IO, "getrandom: %s", strerror(errno));
    return SL_OK;
}

enum sl_code sl_log_cut(const struct sl_log_place *lp, int fd, uint64_t end, struct sl_error *err)
{
    int e = lp->io->truncate(fd, (off_t)end) < 0 ? errno : 0;
    if (e)
        return sl_io_fail(err, "truncate of", where(lp), e);
    e = sl_io_fdatasync(lp->io, fd);
    return e ? sl_io_fail(err, "fdatasync of", where(lp), e) : SL_OK;
}

/* What was not acknowledged must not come back when the log is read again, so a file that could not
 * be cut loses the beginning of the batch: its other records then belong to a torn end (scan.c).
 * That needs neither room on the disk nor a change of the file's length. It is all that can be
 * done, so its failure tells nobody anything new: see log.h for what is left then. */
static void blot(const struct sl_log_place *lp, int fd, uint64_t end)
{
    static const unsigned char zeros[SL_RECORD_HEADER];
    if (!sl_io_write(lp->io, fd, zeros, sizeof zeros, end))
        (void)!sl_io_fdatasync(lp->io, fd);
}

bool sl_log_append(const struct sl_log_place *lp, int fd, uint64_t end, const void *p, size_t n,
                   bool *ret_broken, struct sl_error *err)
{
    *ret_broken = false;
    int e = sl_io_write(lp->io, fd, p, n, end);
    if (e) {
        sl_io_fail(err, "write to", where(lp), e);
        *ret_broken = sl_log_cut(lp, fd, end, NULL) != SL_OK;
        if (*ret_broken)
            blot(lp, fd, end);
        return false;
    }
    e = sl_io_fdatasync(lp->io, fd);
    if (e) {
        sl_io_fail(err, "fdatasync of", where(lp), e);
        /* So that what was not acknowledged does not come back; the file is not used again, whether
         * this works or not. */
        if (sl_log_cut(lp, fd, end, NULL))
            blot(lp, fd, end);
        *ret_broken = true;
        return false;
    }
    return true;
}

bool sl_bytes_reserve(struct sl_bytes *b, size_t n)
{
    if (n <= b->cap)
        return true;
    size_t cap = n < 2 * b->cap ? 2 * b->cap : n;
    unsigned char *p = sl_realloc(b->p, cap, 1);
    if (!p)
        return false;
    b->p = p;
    b->cap = cap;
    return true;
}

static bool is_owner(const struct sl_owner *o, const struct sl_record *r)
{
    return strlen(o->tenant) == r->tenant_n && memcmp(o->tenant, r->tenant, r->tenant_n) == 0 &&
           strlen(o->id) == r->id_n && memcmp(o->id, r->id, r->id_n) == 0 &&
           memcmp(o->incarnation, r->incarnation, 16) == 0;
}

enum sl_code sl_log_fetch(const struct sl_log_place *lp, const struct sl_log_file *f,
                          const struct sl_owner *o, const struct sl_place *place,
                          struct sl_bytes *b, struct sl_record *ret, unsigned char **ret_payload,
                          struct sl_error *err)
{
    /* Tokens are read in place: the payload stands at a multiple of 8. */
    size_t names = o ? strlen(o->tenant) + strlen(o->id) : 0, room = (8 - names % 8) % 8, got = 0;
    assert(place->size > 0);
    if (!sl_bytes_reserve(b, place->size + room))
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a record of %u bytes",
                       (unsigned)place->size);
    int e = sl_io_read(lp->io, f->fd, b->p + room, place->size, place->at, &got);
    if (e)
        return sl_io_fail(err, "read from", where(lp), e);
    struct sl_record r;
    if (got != place->size || !sl_record_read(&r, b->p + room, got, f->id, place->at) ||
        (o && !is_owner(o, &r)) || sl_record_size(&r) != place->size)
        return sl_fail(err, SL_E_STORE_CORRUPT, "%s/%s: the record at offset %llu is damaged",
                       lp->root, SL_LOG_NAME, (unsigned long long)place->at);
    unsigned char *payload = b->p + room + sl_record_payload_at(&r);
    if (sl_record_hash(payload, r.payload_n) != r.payload_hash)
        return sl_fail(err, SL_E_STORE_CORRUPT,
                       "%s/%s: the record at offset %llu is damaged: its payload has another hash",
                       lp->root, SL_LOG_NAME, (unsigned long long)place->at);
    *ret = r;
    *ret_payload = payload;
    return SL_OK;
}
