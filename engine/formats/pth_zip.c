/* pth_zip.c: the zip container of PyTorch's checkpoints: stored records, found by the directory.
 *
 * Only the directory at the end counts, as for every reader of zip files; a local header is looked
 * at because it says where the bytes begin, and must agree in the name. Writers leave the sizes to
 * a data descriptor behind the bytes (flag 3) or to a zip64 extra field; the directory has them in
 * any case. Records are stored, never compressed, so that they can be mapped.
 *
 * The CRCs are not checked: that would read the whole file before the first use, and torch itself
 * can write files without them. Layout: PKWARE's APPNOTE 6.3, sections 4.3.7 to 4.3.16. */
#include <stdlib.h>
#include <string.h>

#include "engine/formats/pth.h"

enum {
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    COMMENT_MAX = 65535,
    FLAG_ENCRYPTED = 1 << 0,
    FLAG_DESCRIPTOR = 1 << 3,
    EXTRA_ZIP64 = 1,
};

#define SATURATED_16 UINT16_MAX
#define SATURATED_32 UINT32_MAX

/* A checkpoint has one record per storage and a handful besides. */
#define ENTRIES_MAX (SL_TENSORS_MAX + 1024)

static uint16_t get16(const unsigned char *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t get32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t get64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

struct directory {
    uint64_t n_entries, n, at;
    size_t end; /* of the space it must lie in */
};

/* The end record is the last 22 bytes, but for a comment whose length it gives. */
static enum sl_code find_end(struct sl_reader *r, size_t *ret)
{
    size_t lowest = r->n > END_BYTES + COMMENT_MAX ? r->n - END_BYTES - COMMENT_MAX : 0;
    if (r->n >= END_BYTES)
        for (size_t at = r->n - END_BYTES + 1; at-- > lowest;)
            if (memcmp(r->data + at, "PK\5\6", 4) == 0 &&
                get16(r->data + at + 20) == r->n - END_BYTES - at) {
                *ret = at;
                return SL_OK;
            }
    return SL_READER_FAIL(r, FILE_TRUNCATED,
                          "is a zip file whose directory is missing at the end: the file was cut "
                          "(it has %zu bytes)",
                          r->n);
}

/* Large archives say so in a second end record before the first. */
static enum sl_code read_end64(struct sl_reader *r, size_t end_at, struct directory *d)
{
    if (end_at < LOCATOR_BYTES || memcmp(r->data + end_at - LOCATOR_BYTES, "PK\6\7", 4) != 0)
        return SL_OK; /* the first one's values stand as they are */
    uint64_t at = get64(r->data + end_at - LOCATOR_BYTES + 8);
    if (at > end_at - LOCATOR_BYTES || end_at - LOCATOR_BYTES - at < END64_BYTES ||
        memcmp(r->data + at, "PK\6\6", 4) != 0)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "is a zip file whose zip64 end record is not at byte %ju, where it "
                              "should be",
                              (uintmax_t)at);
    const unsigned char *p = r->data + at;
    d->n_entries = get64(p + 32);
    d->n = get64(p + 40);
    d->at = get64(p + 48);
    d->end = (size_t)at;
    return SL_OK;
}

static enum sl_code find_directory(struct sl_reader *r, struct directory *d)
{
    size_t end_at = 0;
    enum sl_code c = find_end(r, &end_at);
    if (c)
        return c;
    const unsigned char *p = r->data + end_at;
    *d = (struct directory){get16(p + 10), get32(p + 12), get32(p + 16), end_at};
    if (d->n_entries == SATURATED_16 || d->n == SATURATED_32 || d->at == SATURATED_32)
        c = read_end64(r, end_at, d);
    if (c)
        return c;
    if (d->at > d->end || d->n > d->end - d->at)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "is a zip file whose directory (%ju bytes at byte %ju) does not fit "
                              "before its end record at byte %zu",
                              (uintmax_t)d->n, (uintmax_t)d->at, d->end);
    if (d->n_entries > ENTRIES_MAX)
        return SL_READER_FAIL(r, TOO_LARGE, "is a zip file of %ju records; at most %zu",
                              (uintmax_t)d->n_entries, ENTRIES_MAX);
    if (d->n_entries > d->n / CENTRAL_BYTES)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "is a zip file whose directory of %ju bytes cannot hold its %ju "
                              "records",
                              (uintmax_t)d->n, (uintmax_t)d->n_entries);
    return SL_OK;
}

struct sizes {
    uint64_t n, stored_n, header_at;
};

/* The zip64 extra field has, in this order, those of the values that are saturated. */
static bool read_extra(const unsigned char *p, size_t n, struct sizes *s)
{
    bool open = s->n == SATURATED_32 || s->stored_n == SATURATED_32 || s->header_at == SATURATED_32;
    while (open && n >= 4) {
        size_t id = get16(p), len = get16(p + 2);
        if (len > n - 4)
            return false;
        const unsigned char *q = p + 4;
        p += 4 + len;
        n -= 4 + len;
        if (id != EXTRA_ZIP64)
            continue;
        uint64_t *want[] = {&s->n, &s->stored_n, &s->header_at};
        for (size_t i = 0; i < 3; i++) {
            if (*want[i] != SATURATED_32)
                continue;
            if (len < 8)
                return false;
            *want[i] = get64(q);
            q += 8;
            len -= 8;
        }
        open = false;
    }
    return true; /* without one the value is meant: a file of 4 GiB - 1 */
}

/* One entry of the directory at p, of which n bytes are left. *ret_used is its length. */
static enum sl_code read_entry(struct sl_reader *r, const struct directory *d,
                               const unsigned char *p, size_t n, size_t *ret_used,
                               struct sl_zip_entry *ret)
{
    size_t at = (size_t)(p - r->data);
    if (n < CENTRAL_BYTES || memcmp(p, "PK\1\2", 4) != 0)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "is a zip file without a directory entry at byte %zu, where one "
                              "should be",
                              at);
    size_t name_n = get16(p + 28), extra_n = get16(p + 30), comment_n = get16(p + 32);
    if (name_n + extra_n + comment_n > n - CENTRAL_BYTES)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "is a zip file whose directory entry at byte %zu is longer than the "
                              "directory",
                              at);
    struct sizes s = {get32(p + 24), get32(p + 20), get32(p + 42)};
    const char *name = (const char *)p + CENTRAL_BYTES;
    int shown = name_n < 120 ? (int)name_n : 120;
    if (!read_extra(p + CENTRAL_BYTES + name_n, extra_n, &s))
        return SL_READER_FAIL(r, FILE_CORRUPT, "zip record \"%.*s\": its extra field is broken",
                              shown, name);
    if (s.header_at > d->at || s.stored_n > d->at - s.header_at)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "zip record \"%.*s\" (%ju bytes at byte %ju) reaches beyond byte "
                              "%ju, where the data ends",
                              shown, name, (uintmax_t)s.stored_n, (uintmax_t)s.header_at,
                              (uintmax_t)d->at);
    *ret = (struct sl_zip_entry){.name = name,
                                 .name_n = name_n,
                                 .method = get16(p + 10),
                                 .flags = get16(p + 8),
                                 .stored_n = (size_t)s.stored_n,
                                 .n = (size_t)s.n,
                                 .header_at = (size_t)s.header_at};
    *ret_used = CENTRAL_BYTES + name_n + extra_n + comment_n;
    return SL_OK;
}

static int compare(const char *a, size_t a_n, const char *b, size_t b_n)
{
    int cmp = memcmp(a, b, a_n < b_n ? a_n : b_n);
    return cmp ? cmp : (a_n > b_n) - (a_n < b_n);
}

static int by_name(const void *a, const void *b)
{
    const struct sl_zip_entry *x = a, *y = b;
    return compare(x->name, x->name_n, y->name, y->name_n);
}

static enum sl_code sort_entries(struct sl_reader *r, struct sl_zip *z)
{
    if (z->n)
        qsort(z->v, z->n, sizeof *z->v, by_name);
    for (size_t i = 1; i < z->n; i++)
        if (by_name(&z->v[i - 1], &z->v[i]) == 0)
            return SL_READER_FAIL(r, FILE_CORRUPT, "two zip records are named \"%.*s\"",
                                  z->v[i].name_n < 160 ? (int)z->v[i].name_n : 160, z->v[i].name);
    return SL_OK;
}

enum sl_code sl_zip_read(struct sl_reader *r, struct sl_arena *a, struct sl_zip *ret)
{
    struct directory d;
    enum sl_code c = find_directory(r, &d);
    if (c)
        return c;
    struct sl_zip z = {.n = (size_t)d.n_entries, .directory_at = (size_t)d.at};
    z.v = sl_arena_alloc(a, z.n * sizeof *z.v);
    if (!z.v)
        return SL_READER_FAIL(r, NO_MEMORY, "not enough memory for %zu zip records", z.n);
    size_t at = 0, used = 0;
    for (size_t i = 0; i < z.n; i++, at += used) {
        c = read_entry(r, &d, r->data + d.at + at, (size_t)d.n - at, &used, &z.v[i]);
        if (c)
            return c;
    }
    if (at != d.n)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "is a zip file whose directory has %zu bytes more than its %zu "
                              "records take",
                              (size_t)d.n - at, z.n);
    c = sort_entries(r, &z);
    if (!c)
        *ret = z;
    return c;
}

const struct sl_zip_entry *sl_zip_find(const struct sl_zip *z, const char *prefix, size_t prefix_n,
                                       const char *name, size_t name_n)
{
    size_t lo = 0, hi = z->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct sl_zip_entry *e = &z->v[mid];
        int cmp = compare(prefix, prefix_n, e->name, e->name_n < prefix_n ? e->name_n : prefix_n);
        if (!cmp)
            cmp = compare(name, name_n, e->name + prefix_n, e->name_n - prefix_n);
        if (!cmp)
            return e;
        if (cmp < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

enum sl_code sl_zip_data(struct sl_reader *r, const struct sl_zip *z, const struct sl_zip_entry *e,
                         const unsigned char **ret)
{
    int shown = e->name_n < 120 ? (int)e->name_n : 120;
    if (e->flags & FLAG_ENCRYPTED)
        return SL_READER_FAIL(r, FILE_UNSUPPORTED, "zip record \"%.*s\" is encrypted", shown,
                              e->name);
    if (e->method != 0)
        return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                              "zip record \"%.*s\" is compressed (method %u); only stored records "
                              "can be mapped. Torch writes them so: save the file again",
                              shown, e->name, e->method);
    if (e->stored_n != e->n)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "zip record \"%.*s\" is stored, yet has two sizes: %zu and %zu",
                              shown, e->name, e->stored_n, e->n);
    size_t room = z->directory_at - e->header_at;
    const unsigned char *p = r->data + e->header_at;
    if (room < LOCAL_BYTES || memcmp(p, "PK\3\4", 4) != 0)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "zip record \"%.*s\" has no header at byte %zu, where it should be",
                              shown, e->name, e->header_at);
    size_t name_n = get16(p + 26), head = LOCAL_BYTES + name_n + get16(p + 28);
    if (head > room || e->n > room - head)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "zip record \"%.*s\" (%zu bytes) reaches into the directory at byte "
                              "%zu",
                              shown, e->name, e->n, z->directory_at);
    if (compare((const char *)p + LOCAL_BYTES, name_n, e->name, e->name_n) != 0)
        return SL_READER_FAIL(r, FILE_CORRUPT, "zip record \"%.*s\" has another name in its header",
                              shown, e->name);
    uint32_t size = get32(p + 18);
    if (!(get16(p + 6) & FLAG_DESCRIPTOR) && size != SATURATED_32 && size != e->n)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "zip record \"%.*s\" has %zu bytes in the directory and %ju in its "
                              "header",
                              shown, e->name, e->n, (uintmax_t)size);
    *ret = p + head;
    return SL_OK;
}
