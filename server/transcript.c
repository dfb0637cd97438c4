/* transcript.c: see transcript.h. */
#include "server/transcript.h"

#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/buf.h"
#include "proto/decode.h"

enum { ID_BYTES = 4, TEXT_MAX = 16 << 20 };

void sl_transcript_done(struct sl_transcript *t)
{
    sl_free(t->v);
    *t = (struct sl_transcript){0};
}

bool sl_transcript_reserve(struct sl_transcript *t, size_t n)
{
    enum { FEW = 256 };
    if (!t->whole || n > SL_TRANSCRIPT_MAX - t->n || n <= t->cap - t->n)
        return true;
    size_t cap = 2 * t->cap > t->n + n ? 2 * t->cap : t->n + n + FEW;
    uint32_t *v = sl_realloc(t->v, cap, sizeof *v);
    if (!v)
        return false;
    t->v = v;
    t->cap = cap;
    return true;
}

void sl_transcript_add(struct sl_transcript *t, size_t n_drop, const uint32_t *v, size_t n)
{
    if (!t->whole || n_drop > t->n || n > SL_TRANSCRIPT_MAX - t->n) {
        sl_transcript_done(t);
        return;
    }
    assert(n <= t->cap - t->n);
    t->n -= n_drop;
    if (n)
        memcpy(t->v + t->n, v, n * sizeof *v);
    t->n += n;
}

bool sl_transcript_copy(struct sl_transcript *to, const struct sl_transcript *from)
{
    to->whole = from->whole;
    if (!from->whole)
        return true;
    if (!sl_transcript_reserve(to, from->n)) {
        to->whole = false;
        return false;
    }
    sl_transcript_add(to, 0, from->v, from->n);
    return true;
}

bool sl_tokens_end_with(const uint32_t *all, size_t n_all, const uint32_t *v, size_t n)
{
    if (!n || n > n_all)
        return !n && !n_all;
    return memcmp(all + n_all - n, v, n * sizeof *v) == 0;
}

char *sl_transcript_text(const struct sl_transcript *t)
{
    struct sl_buf b;
    size_t n;
    unsigned char *bytes = sl_malloc(t->n * ID_BYTES + 1);
    if (!bytes)
        return NULL;
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < ID_BYTES; k++)
            bytes[ID_BYTES * i + k] = (unsigned char)(t->v[i] >> (8 * k));
    sl_buf_init(&b, TEXT_MAX);
    sl_buf_put_base64(&b, bytes, t->n * ID_BYTES);
    sl_buf_putc(&b, '\0');
    char *text = sl_buf_code(&b, NULL) ? NULL : sl_buf_take(&b, &n);
    sl_buf_done(&b);
    sl_free(bytes);
    return text;
}

static bool take_ids(struct sl_transcript *t, const unsigned char *bytes, size_t n_bytes,
                     size_t vocab_size)
{
    if (n_bytes % ID_BYTES || n_bytes / ID_BYTES > SL_TRANSCRIPT_MAX)
        return false;
    for (size_t i = 0; i < n_bytes; i += ID_BYTES) {
        uint32_t id = 0;
        for (size_t k = 0; k < ID_BYTES; k++)
            id |= (uint32_t)bytes[i + k] << (8 * k);
        if (id >= vocab_size)
            return false;
        t->v[t->n++] = id;
    }
    return true;
}

enum sl_code sl_transcript_read(struct sl_transcript *t, const char *text, size_t vocab_size,
                                struct sl_error *err)
{
    size_t n = strlen(text), bad;
    unsigned char *bytes = sl_malloc(n + 1);
    t->whole = true;
    bool room = bytes && n <= TEXT_MAX && sl_transcript_reserve(t, n / 4 * 3 / ID_BYTES + 1);
    size_t n_bytes = room && n % 4 == 0
                         ? sl_base64_decode(bytes, (const unsigned char *)text, n, &bad)
                         : SIZE_MAX;
    bool good = n_bytes != SIZE_MAX && t->cap >= n_bytes / ID_BYTES &&
                take_ids(t, bytes, n_bytes, vocab_size);
    sl_free(bytes);
    if (good)
        return SL_OK;
    sl_transcript_done(t);
    return room || n > TEXT_MAX
               ? sl_fail(
                     err, SL_E_SNAPSHOT_CORRUPT,
                     "the snapshot's \"transcript\" is not base64 of at most %d token ids below "
                     "%zu",
                     SL_TRANSCRIPT_MAX, vocab_size)
               : sl_fail(err, SL_E_NO_MEMORY, "no memory for a transcript");
}
