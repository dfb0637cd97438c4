/* bpe_normal.c: what happens to a text before it is cut: see bpe_parts.h.
 *
 * Unicode's normal forms come from utf8proc: a small library (40 files' worth of ICU are not
 * needed for four functions), kept up by the Julia project, tables of Unicode 15. Plain ASCII is
 * its own normal form in all four and is not handed over. Lowercase is the full mapping of each
 * character by itself, as Rust's char::to_lowercase: utf8proc's simple one and U+0130, the only
 * character whose lower case is two. */
#include <string.h>

#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/bpe_parts.h"

enum sl_code sl_bpe_buf_reserve(struct sl_bpe_buf *b, size_t n, struct sl_error *err)
{
    if (b->v && b->room - b->n >= n)
        return SL_OK;
    if (n > SL_BPE_TEXT_MAX || b->n > SL_BPE_TEXT_MAX - n)
        return sl_fail(err, SL_E_TOO_LARGE,
                       "a text that its tokenizer's normaliser makes larger than %d bytes",
                       SL_BPE_TEXT_MAX);
    size_t room = b->room + b->room / 2;
    if (room < b->n + n)
        room = b->n + n;
    unsigned char *v = sl_realloc(b->v, room, 1);
    if (!v)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a text of %zu bytes", b->n + n);
    b->v = v;
    b->room = room;
    return SL_OK;
}

enum sl_code sl_bpe_buf_put(struct sl_bpe_buf *b, const void *s, size_t n, struct sl_error *err)
{
    enum sl_code c = sl_bpe_buf_reserve(b, n, err);
    if (!c && n)
        memcpy(b->v + b->n, s, n);
    if (!c)
        b->n += n;
    return c;
}

void sl_bpe_buf_done(struct sl_bpe_buf *b)
{
    sl_free(b->v);
    *b = (struct sl_bpe_buf){0};
}

/* --- edges -------------------------------------------------------------------------------------*/

static size_t *edge(const struct sl_bpe_edges *e)
{
    return e->at % 2 ? &e->v[e->at / 2].end : &e->v[e->at / 2].begin;
}

void sl_bpe_edges_again(struct sl_bpe_edges *e)
{
    if (e)
        e->at = 0;
}

bool sl_bpe_edge_before(const struct sl_bpe_edges *e, size_t end)
{
    return e && e->at < 2 * e->n && *edge(e) < end;
}

size_t sl_bpe_edge(const struct sl_bpe_edges *e)
{
    return *edge(e);
}

bool sl_bpe_edge_begins(const struct sl_bpe_edges *e)
{
    return e->at % 2 == 0;
}

void sl_bpe_edge_put(struct sl_bpe_edges *e, size_t at)
{
    size_t before = 0;
    if (e->at)
        before = e->at % 2 ? e->v[e->at / 2].begin : e->v[e->at / 2 - 1].end;
    *edge(e) = at > before ? at : before;
    e->at++;
}

/* --- steps -------------------------------------------------------------------------------------*/

size_t sl_bpe_put_char(unsigned char *dst, uint32_t c)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, dst);
}

uint32_t sl_bpe_get_char(const unsigned char *s, size_t *ret_n)
{
    uint32_t c = s[0];
    if (c < 0x80) {
        *ret_n = 1;
    } else if (c < 0xE0) {
        *ret_n = 2;
        c = (c & 0x1F) << 6 | (s[1] & 0x3Fu);
    } else if (c < 0xF0) {
        *ret_n = 3;
        c = (c & 0x0F) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    } else {
        *ret_n = 4;
        c = (c & 0x07) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
    }
    return c;
}

static bool is_ascii(const unsigned char *s, size_t n)
{
    unsigned char all = 0;
    for (size_t i = 0; i < n; i++)
        all |= s[i];
    return all < 0x80;
}

static enum sl_code no_unicode(utf8proc_ssize_t rc, size_t n, struct sl_error *err)
{
    return sl_fail(err, rc == UTF8PROC_ERROR_OVERFLOW ? SL_E_TOO_LARGE : SL_E_NO_MEMORY,
                   "no memory for the normal form of a text of %zu bytes", n);
}

static enum sl_code put_unicode(struct sl_bpe_buf *dst, const unsigned char *s, size_t n,
                                utf8proc_option_t form, struct sl_error *err)
{
    if (is_ascii(s, n))
        return sl_bpe_buf_put(dst, s, n, err);
    utf8proc_option_t options = UTF8PROC_STABLE | form;
    utf8proc_ssize_t len = (utf8proc_ssize_t)n;
    utf8proc_ssize_t n_chars = utf8proc_decompose(s, len, NULL, 0, options);
    if (n_chars < 0)
        return no_unicode(n_chars, n, err);
    if (n_chars > SL_BPE_TEXT_MAX)
        return no_unicode(UTF8PROC_ERROR_OVERFLOW, n, err);
    utf8proc_int32_t *chars = sl_malloc(((size_t)n_chars + 1) * sizeof *chars);
    if (!chars)
        return no_unicode(UTF8PROC_ERROR_NOMEM, n, err);
    enum sl_code c = SL_OK;
    utf8proc_ssize_t got = utf8proc_decompose(s, len, chars, n_chars, options);
    if (got >= 0)
        got = utf8proc_normalize_utf32(chars, n_chars, options);
    if (got < 0)
        c = no_unicode(got, n, err);
    for (utf8proc_ssize_t i = 0; !c && i < got; i++) {
        c = sl_bpe_buf_reserve(dst, 4, err);
        if (!c)
            dst->n += sl_bpe_put_char(dst->v + dst->n, (uint32_t)chars[i]);
    }
    sl_free(chars);
    return c;
}

/* Whether a text can be cut at its byte `at` without changing its normal forms: in all four of them
 * nothing composes with this character or moves over it. Those below U+0300 are all so, ideographs
 * and syllables of Hangul too; that others are as well only costs a longer part to look at. */
static bool is_cut(const unsigned char *s, size_t n, size_t at)
{
    size_t len;
    if (at == n)
        return true;
    if ((s[at] & 0xC0) == 0x80)
        return false;
    uint32_t c = sl_bpe_get_char(s + at, &len);
    return c < 0x300 || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3);
}

/* An edge between two cuts, where the normal form of the whole may have characters of both its
 * sides. What is left outside the range is what its own side gives by itself. */
static enum sl_code put_edge(struct sl_bpe_edges *e, utf8proc_option_t form,
                             const struct sl_bpe_buf *whole, size_t from, const unsigned char *s,
                             size_t n, size_t at, struct sl_error *err)
{
    struct sl_bpe_buf part = {0};
    bool begins = sl_bpe_edge_begins(e);
    enum sl_code c = begins ? put_unicode(&part, s, at, form, err)
                            : put_unicode(&part, s + at, n - at, form, err);
    const unsigned char *w = whole->v + from;
    size_t n_whole = whole->n - from, same = 0, most = part.n < n_whole ? part.n : n_whole;
    if (begins) {
        while (same < most && w[same] == part.v[same])
            same++;
        while (same > 0 && same < n_whole && (w[same] & 0xC0) == 0x80)
            same--;
    } else {
        while (same < most && w[n_whole - 1 - same] == part.v[part.n - 1 - same])
            same++;
        while (same > 0 && (w[n_whole - same] & 0xC0) == 0x80)
            same--;
        same = n_whole - same;
    }
    sl_bpe_buf_done(&part);
    sl_bpe_edge_put(e, from + same);
    return c;
}

static enum sl_code put_form(struct sl_bpe_buf *dst, utf8proc_option_t form, struct sl_bpe_edges *e,
                             const unsigned char *s, size_t n, struct sl_error *err)
{
    enum sl_code c = SL_OK;
    size_t done = 0;
    while (!c && sl_bpe_edge_before(e, n + 1)) {
        size_t begin = sl_bpe_edge(e), end = begin, from;
        while (begin > done && !is_cut(s, n, begin))
            begin--;
        while (!is_cut(s, n, end))
            end++;
        c = put_unicode(dst, s + done, begin - done, form, err);
        from = dst->n;
        if (!c)
            c = put_unicode(dst, s + begin, end - begin, form, err);
        if (begin == end && !c)
            sl_bpe_edge_put(e, from);
        while (!c && sl_bpe_edge_before(e, end))
            c = put_edge(e, form, dst, from, s + begin, end - begin, sl_bpe_edge(e) - begin, err);
        done = end;
    }
    return c ? c : put_unicode(dst, s + done, n - done, form, err);
}

static enum sl_code put_lower(struct sl_bpe_buf *dst, struct sl_bpe_edges *e,
                              const unsigned char *s, size_t n, struct sl_error *err)
{
    enum sl_code c = SL_OK;
    for (size_t i = 0, len; !c && i < n; i += len) {
        uint32_t x = sl_bpe_get_char(s + i, &len);
        while (sl_bpe_edge_before(e, i + len))
            sl_bpe_edge_put(e, dst->n);
        c = sl_bpe_buf_reserve(dst, 4, err);
        if (c)
            break;
        if (x == 0x130)
            c = sl_bpe_buf_put(dst, "i\xCC\x87", 3, err);
        else
            dst->n +=
                sl_bpe_put_char(dst->v + dst->n, (uint32_t)utf8proc_tolower((utf8proc_int32_t)x));
    }
    while (sl_bpe_edge_before(e, n + 1))
        sl_bpe_edge_put(e, dst->n);
    return c;
}

bool sl_bpe_is_white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static enum sl_code put_prepended(struct sl_bpe_buf *dst, const struct sl_bpe_normal *k,
                                  struct sl_bpe_edges *e, const unsigned char *s, size_t n,
                                  struct sl_error *err)
{
    enum sl_code c = n ? sl_bpe_buf_put(dst, k->content, k->n_content, err) : SL_OK;
    size_t moved = dst->n;
    while (sl_bpe_edge_before(e, n + 1))
        sl_bpe_edge_put(e, sl_bpe_edge(e) ? sl_bpe_edge(e) + moved : 0);
    return c ? c : sl_bpe_buf_put(dst, s, n, err);
}

static enum sl_code put_stripped(struct sl_bpe_buf *dst, const struct sl_bpe_normal *k,
                                 struct sl_bpe_edges *e, const unsigned char *s, size_t n,
                                 struct sl_error *err)
{
    size_t begin = 0, end = 0, len;
    while (k->left && begin < n && sl_bpe_is_white(sl_bpe_get_char(s + begin, &len)))
        begin += len;
    for (size_t i = begin; i < n; i += len)
        if (!sl_bpe_is_white(sl_bpe_get_char(s + i, &len)) || !k->right)
            end = i + len;
    while (sl_bpe_edge_before(e, n + 1)) {
        size_t at = sl_bpe_edge(e) < end ? sl_bpe_edge(e) : end;
        sl_bpe_edge_put(e, at > begin ? at - begin : 0);
    }
    return sl_bpe_buf_put(dst, s + begin, end > begin ? end - begin : 0, err);
}

static enum sl_code put_step(struct sl_bpe_buf *dst, const struct sl_bpe_normal *k,
                             struct sl_bpe_matcher *m, struct sl_bpe_edges *e,
                             const unsigned char *s, size_t n, struct sl_error *err)
{
    switch (k->kind) {
    case SL_BPE_NFC:
        return put_form(dst, UTF8PROC_COMPOSE, e, s, n, err);
    case SL_BPE_NFD:
        return put_form(dst, UTF8PROC_DECOMPOSE, e, s, n, err);
    case SL_BPE_NFKC:
        return put_form(dst, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, e, s, n, err);
    case SL_BPE_NFKD:
        return put_form(dst, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, e, s, n, err);
    case SL_BPE_LOWERCASE:
        return put_lower(dst, e, s, n, err);
    case SL_BPE_REPLACE:
        return sl_bpe_replace(dst, &k->pattern, k->content, k->n_content, m, e, s, n, err);
    case SL_BPE_PREPEND:
        return put_prepended(dst, k, e, s, n, err);
    case SL_BPE_STRIP:
        return put_stripped(dst, k, e, s, n, err);
    }
    return SL_OK;
}

enum sl_code sl_bpe_normalise(const struct sl_bpe *b, struct sl_bpe_matcher *m,
                              struct sl_bpe_buf bufs[2], bool continues, struct sl_bpe_edges *e,
                              const unsigned char *s, size_t n, const unsigned char **ret,
                              size_t *ret_n, struct sl_error *err)
{
    struct sl_bpe_buf *dst = &bufs[0];
    for (size_t i = 0; i < b->n_normals; i++) {
        const struct sl_bpe_normal *k = &b->normals[i];
        if (k->kind == SL_BPE_PREPEND && continues)
            continue;
        if (k->kind <= SL_BPE_NFKD && is_ascii(s, n))
            continue;
        dst->n = 0;
        sl_bpe_edges_again(e);
        enum sl_code c = sl_bpe_buf_reserve(dst, 0, err);
        if (!c)
            c = put_step(dst, k, m, e, s, n, err);
        if (c)
            return c;
        s = dst->v;
        n = dst->n;
        dst = dst == &bufs[0] ? &bufs[1] : &bufs[0];
    }
    *ret = s;
    *ret_n = n;
    return SL_OK;
}
