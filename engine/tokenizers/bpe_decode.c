/* bpe_decode.c: the bytes of every token, once, when a tokenizer is opened: see bpe_parts.h.
 *
 * The library decodes a list of tokens at once, but of all decoders that are accepted (the reader
 * of the JSON sees to it) what a token becomes depends on the token alone, and on whether it is the
 * first one: a Strip after Fuse and Metaspace take a blank from the beginning of the text, and no
 * decoder at all puts one between two tokens. So there are two entries for a token, one for the
 * middle of a text and one for its beginning, and text can be streamed.
 *
 * One difference is left, where bytes are no UTF-8: of byte tokens that are no character together
 * the library makes one U+FFFD each, a stream one for each part that cannot be one.
 *
 * Special tokens have no bytes. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/bpe_parts.h"

struct work {
    struct sl_bpe *b;
    struct sl_bpe_matcher m;
    struct sl_bpe_buf now, next; /* the token on its way */
    struct sl_bpe_buf all;       /* the blob */
    bool first;                  /* as the first token */
    struct sl_error *err;
};

static void swap(struct work *w)
{
    struct sl_bpe_buf b = w->now;
    w->now = w->next;
    w->next = b;
}

/* Where one character is not of the alphabet, the token stays as it is. */
static enum sl_code byte_level(struct work *w)
{
    enum sl_code c = sl_bpe_buf_reserve(&w->next, w->now.n, w->err);
    for (size_t i = 0, len; !c && i < w->now.n; i += len) {
        int byte = sl_bpe_byte_of_char(sl_bpe_get_char(w->now.v + i, &len));
        if (byte < 0)
            return SL_OK;
        w->next.v[w->next.n++] = (unsigned char)byte;
    }
    swap(w);
    return c;
}

static enum sl_code replace(struct work *w, const struct sl_bpe_decode *d)
{
    if (w->now.n == 0) /* and an empty match is none */
        return SL_OK;
    enum sl_code c = sl_bpe_replace(&w->next, &d->pattern, d->content, d->n_content, &w->m, NULL,
                                    w->now.v, w->now.n, w->err);
    swap(w);
    return c;
}

static enum sl_code metaspace(struct work *w, const struct sl_bpe_decode *d)
{
    enum sl_code c = sl_bpe_buf_reserve(&w->next, w->now.n, w->err);
    for (size_t i = 0; !c && i < w->now.n;) {
        if (w->now.n - i >= d->n_content && memcmp(w->now.v + i, d->content, d->n_content) == 0) {
            if (!w->first || !d->drops_first)
                w->next.v[w->next.n++] = ' ';
            i += d->n_content;
        } else {
            w->next.v[w->next.n++] = w->now.v[i++];
        }
    }
    swap(w);
    return c;
}

static int hex(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void byte_fallback(struct work *w)
{
    const unsigned char *s = w->now.v;
    if (w->now.n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return;
    /* As Rust's from_str_radix, which takes a sign. */
    int high = s[3] == '+' ? 0 : hex(s[3]), low = hex(s[4]);
    if (high < 0 || low < 0)
        return;
    w->now.v[0] = (unsigned char)(high << 4 | low);
    w->now.n = 1;
}

/* Up to `start` of the character from the left, then up to `stop` from the right. */
static void strip(struct work *w, const struct sl_bpe_decode *d)
{
    size_t k = d->n_content, begin = 0, end = w->now.n;
    const unsigned char *s = w->now.v;
    for (size_t i = 0; i < d->start && end - begin >= k; i++) {
        if (memcmp(s + begin, d->content, k) != 0)
            break;
        begin += k;
    }
    for (size_t i = 0; i < d->stop && end - begin >= k; i++) {
        if (memcmp(s + end - k, d->content, k) != 0)
            break;
        end -= k;
    }
    if (begin)
        memmove(w->now.v, s + begin, end - begin);
    w->now.n = end - begin;
}

static enum sl_code decode_step(struct work *w, const struct sl_bpe_decode *d, bool *fused)
{
    w->next.n = 0;
    switch (d->kind) {
    case SL_BPE_DECODE_BYTE_LEVEL:
        *fused = true;
        return byte_level(w);
    case SL_BPE_DECODE_REPLACE:
        return replace(w, d);
    case SL_BPE_DECODE_METASPACE:
        return metaspace(w, d);
    case SL_BPE_DECODE_BYTE_FALLBACK:
        byte_fallback(w);
        return SL_OK;
    case SL_BPE_DECODE_FUSE:
        *fused = true;
        return SL_OK;
    case SL_BPE_DECODE_STRIP:
        if (!*fused || w->first)
            strip(w, d);
        return SL_OK;
    case SL_BPE_DECODE_JOIN:
        if (w->first)
            return SL_OK;
        swap(w);
        enum sl_code c = sl_bpe_buf_put(&w->now, " ", 1, w->err);
        return c ? c : sl_bpe_buf_put(&w->now, w->next.v, w->next.n, w->err);
    }
    return SL_OK;
}

/* The token's text through all decoders; the result is w->now. */
static enum sl_code decode(struct work *w, const unsigned char *s, size_t n, bool first)
{
    bool fused = false;
    w->first = first;
    w->now.n = 0;
    enum sl_code c = sl_bpe_buf_put(&w->now, s, n, w->err);
    for (size_t i = 0; !c && i < w->b->n_decodes; i++)
        c = decode_step(w, &w->b->decodes[i], &fused);
    return c;
}

/* Its place in the blob. */
static enum sl_code keep(struct work *w, struct sl_token_span *ret)
{
    if (w->now.n > SL_TOKEN_BYTES_MAX)
        return sl_fail(w->err, SL_E_TOO_LARGE, "a token of %zu bytes; %d are possible", w->now.n,
                       SL_TOKEN_BYTES_MAX);
    *ret = (struct sl_token_span){.offset = (uint32_t)w->all.n, .n = (uint32_t)w->now.n};
    return sl_bpe_buf_put(&w->all, w->now.v, w->now.n, w->err);
}

static enum sl_code decode_token(struct work *w, uint32_t id, const unsigned char *s, size_t n,
                                 bool *differs)
{
    struct sl_bpe *b = w->b;
    enum sl_code c = decode(w, s, n, false);
    if (!c)
        c = keep(w, &b->spans[id]);
    if (!c)
        c = decode(w, s, n, true);
    if (c)
        return c;
    struct sl_token_span *other = &b->first_spans[id];
    *other = b->spans[id];
    if (w->now.n == other->n && memcmp(w->now.v, w->all.v + other->offset, other->n) == 0)
        return SL_OK;
    *differs = true;
    return keep(w, other);
}

static enum sl_code decode_added(struct work *w, uint32_t *ret_id, bool *differs)
{
    for (size_t i = 0; i < w->b->n_added; i++) {
        const struct sl_bpe_added *a = &w->b->added[i];
        *ret_id = a->id;
        w->b->spans[a->id] = w->b->first_spans[a->id] = (struct sl_token_span){0};
        enum sl_code c = a->special ? SL_OK : decode_token(w, a->id, a->text, a->n_text, differs);
        if (c)
            return c;
    }
    return SL_OK;
}

static enum sl_code decode_vocab(struct work *w, uint32_t *ret_id, bool *differs)
{
    const struct sl_bpe_vocab *v = &w->b->vocab;
    for (uint32_t id = 0; id < v->n_ids; id++) {
        *ret_id = id;
        if (!v->texts[id].n)
            continue;
        enum sl_code c =
            decode_token(w, id, v->blob + v->texts[id].offset, v->texts[id].n, differs);
        if (c)
            return c;
    }
    return SL_OK;
}

enum sl_code sl_bpe_decode_all(struct sl_tokenizer *t, struct sl_bpe *b, uint32_t *ret_id,
                               struct sl_error *err)
{
    struct work w = {.b = b, .err = err};
    bool differs = false;
    enum sl_code c = sl_bpe_matcher_open(&w.m, b->vocab.n_blob, err);
    b->spans = sl_calloc(b->n_ids + 1, sizeof *b->spans);
    b->first_spans = sl_calloc(b->n_ids + 1, sizeof *b->first_spans);
    if (!c && (!b->spans || !b->first_spans))
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu tokens", b->n_ids);
    if (!c)
        c = decode_vocab(&w, ret_id, &differs);
    if (!c)
        c = decode_added(&w, ret_id, &differs);
    sl_bpe_matcher_done(&w.m);
    sl_bpe_buf_done(&w.now);
    sl_bpe_buf_done(&w.next);
    b->blob = w.all.v;
    if (c)
        return c;
    if (!differs) {
        sl_free(b->first_spans);
        b->first_spans = NULL;
    }
    t->blob = b->blob;
    t->spans = b->spans;
    t->first_spans = b->first_spans;
    t->n_ids = b->n_ids;
    return SL_OK;
}
