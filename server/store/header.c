/* header.c: the id of a log whose header is damaged: proven, or not told.
 *
 * Every record's hash is seeded with the id (record.h), so one record that fits proves an id, and
 * so does the header's own hash. Tried are the id that the header has, and those that differ from
 * it in one byte or two: a few million, where a hash of 64 bits decides. An id of which more is
 * lost cannot be found again, and without it no record can be told from bytes that look like one.
 */
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/log.h"

enum {
    WINDOW = 1 << 18,
    SAMPLE = SL_RECORD_HEADER + SL_RECORD_NAMES_MAX,
    SAMPLES = 32,      /* places that look like a record; one that is one is enough */
    SAMPLES_TRIED = 4, /* with each of the millions */
    HASH_AT = 56
};

struct samples {
    struct sample {
        uint64_t at;
        size_t n;
        unsigned char p[SAMPLE];
    } v[SAMPLES];
    size_t n;
};

/* The records of a window that begins at `at`. */
static void collect(struct samples *s, const unsigned char *p, size_t n, uint64_t at)
{
    for (size_t i = 0; i + SL_RECORD_HEADER <= n && s->n < SAMPLES; i += 8) {
        if (!sl_record_looks(p + i))
            continue;
        struct sample *x = &s->v[s->n++];
        *x = (struct sample){.at = at + i, .n = n - i < SAMPLE ? n - i : SAMPLE};
        memcpy(x->p, p + i, x->n);
    }
}

static enum sl_code find_samples(struct samples *s, const struct sl_log_place *lp, int fd,
                                 struct sl_error *err)
{
    unsigned char *window = sl_malloc(WINDOW + SAMPLE);
    enum sl_code c = SL_OK;
    if (!window)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to read %s/%s", lp->root, SL_LOG_NAME);
    for (uint64_t at = SL_LOG_HEADER; s->n < SAMPLES; at += WINDOW) {
        size_t n;
        int e = sl_io_read(lp->io, fd, window, WINDOW + SAMPLE, at, &n);
        if (e)
            c = sl_io_fail(err, "read from", (struct sl_where){lp->root, SL_LOG_NAME}, e);
        if (e || !n)
            break;
        collect(s, window, n, at);
    }
    sl_free(window);
    return c;
}

static bool hash_proves(const unsigned char *header, uint64_t id)
{
    unsigned char whole[SL_LOG_HEADER];
    sl_log_header_write(whole, id);
    return memcmp(header + HASH_AT, whole + HASH_AT, SL_LOG_HEADER - HASH_AT) == 0;
}

static bool proves(const struct samples *s, size_t n, const unsigned char *header, uint64_t id)
{
    struct sl_record r;
    for (size_t i = 0; i < s->n && i < n; i++)
        if (sl_record_read(&r, s->v[i].p, s->v[i].n, id, s->v[i].at))
            return true;
    return hash_proves(header, id);
}

/* With another value in the byte at `shift`, and in one above it where there is one to be tried. */
static bool try_byte(const struct samples *s, const unsigned char *header, uint64_t id,
                     unsigned shift, bool two, uint64_t *ret)
{
    for (uint64_t v = 1; v < 256; v++) {
        *ret = id ^ v << shift;
        if (!two && proves(s, SAMPLES_TRIED, header, *ret))
            return true;
        for (unsigned above = shift + 8; two && above < 64; above += 8)
            if (try_byte(s, header, id ^ v << shift, above, false, ret))
                return true;
    }
    return false;
}

static bool find_id(const struct samples *s, const unsigned char *header, uint64_t *ret)
{
    uint64_t id = sl_log_header_id(header);
    *ret = id;
    if (proves(s, SAMPLES, header, id))
        return true;
    for (int two = 0; two < 2; two++)
        for (unsigned shift = 0; shift < 64; shift += 8)
            if (try_byte(s, header, id, shift, two, ret))
                return true;
    return false;
}

enum sl_code sl_log_find_id(const struct sl_log_place *lp, int fd,
                            const unsigned char header[SL_LOG_HEADER], uint64_t *ret_id,
                            struct sl_error *err)
{
    uint32_t format = sl_log_header_format(header);
    uint64_t id;
    struct samples *s = sl_calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to read %s/%s", lp->root, SL_LOG_NAME);
    enum sl_code c = find_samples(s, lp, fd, err);
    bool found = !c && find_id(s, header, &id);
    sl_free(s);
    if (c)
        return c;
    if (!found)
        return sl_fail(err, SL_E_STORE_CORRUPT,
                       "%s/%s: its header (offset 0) is damaged, and with it the log's id, without "
                       "which no record can be told from bytes that look like one: nothing of it "
                       "can be proven",
                       lp->root, SL_LOG_NAME);
    if (format != SL_LOG_FORMAT && !hash_proves(header, id))
        return sl_fail(err, SL_E_STORE_CORRUPT,
                       "%s/%s: its header (offset 0) is damaged, and names the format %u: nothing "
                       "proves that it is of the format %d, which this version of slate reads",
                       lp->root, SL_LOG_NAME, (unsigned)format, SL_LOG_FORMAT);
    *ret_id = id;
    return SL_OK;
}
