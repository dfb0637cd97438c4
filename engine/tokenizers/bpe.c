/* bpe.c: the BPE kind of tokenizer: see bpe_parts.h for its parts and their order.
 *
 * An encoding allocates what it needs for itself and leaves the tokenizer as it was, so any number
 * of threads can encode at once. Its memory is a few times the text (after normalising) and, for
 * the longest word, 36 bytes for each of its bytes; words longer than SL_BPE_WORD_MAX are refused.
 * Texts that are not short keep the ids of words seen before in a small table: in natural text
 * most words come again soon. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizers/bpe_parts.h"

enum {
    CACHE_PLACES = 4096,
    CACHE_TEXT = 36,
    CACHE_IDS = 6,
    CACHE_FROM = 2048, /* bytes of a text for which the table is made */
    PART_ROOM = 1024   /* symbols of a part's word; a part has at most SL_TOKEN_BYTES_MAX bytes */
};

struct sl_bpe_cache {
    struct cached {
        uint8_t n, n_ids; /* n 0: empty */
        unsigned char text[CACHE_TEXT];
        uint32_t ids[CACHE_IDS];
    } places[CACHE_PLACES];
};

/* --- words --------------------------------------------------------------------------------------
 */

static enum sl_code reserve_word(struct sl_bpe_run *r, size_t n)
{
    size_t room = sl_bpe_symbols_max(&r->b->vocab, n);
    if (n > SL_BPE_WORD_MAX)
        return sl_fail(r->err, SL_E_TOO_LARGE,
                       "the tokenizer finds a word of %zu bytes in this text; %d are possible", n,
                       SL_BPE_WORD_MAX);
    if (room > r->space.room) {
        size_t grown = room > 2 * r->space.room ? room : 2 * r->space.room;
        struct sl_bpe_symbol *s = sl_realloc(r->space.symbols, grown, sizeof *s);
        r->space.symbols = s ? s : r->space.symbols;
        struct sl_bpe_entry *q = sl_realloc(r->space.queue, 2 * grown, sizeof *q);
        r->space.queue = q ? q : r->space.queue;
        if (!s || !q)
            return sl_fail(r->err, SL_E_NO_MEMORY, "no memory for a word of %zu bytes", n);
        r->space.room = grown;
    }
    return sl_token_list_reserve(r->out, room, r->err);
}

/* A part of a word that merges for itself. */
static enum sl_code put_word(struct sl_bpe_run *r, const unsigned char *s, size_t n)
{
    struct cached *k = NULL;
    if (r->cache && n <= CACHE_TEXT) {
        k = &r->cache->places[XXH3_64bits(s, n) % CACHE_PLACES];
        if (k->n == n && memcmp(k->text, s, n) == 0) {
            enum sl_code c = sl_token_list_reserve(r->out, k->n_ids, r->err);
            if (!c)
                memcpy(r->out->v + r->out->n, k->ids, k->n_ids * sizeof *k->ids);
            r->out->n += c ? 0 : k->n_ids;
            return c;
        }
    }
    enum sl_code c = reserve_word(r, n);
    if (c)
        return c;
    uint32_t *ids = r->out->v + r->out->n;
    size_t n_ids = sl_bpe_merge_word(&r->b->vocab, s, n, &r->space, ids);
    r->out->n += n_ids;
    if (k && n_ids <= CACHE_IDS) {
        k->n = (uint8_t)n;
        k->n_ids = (uint8_t)n_ids;
        memcpy(k->text, s, n);
        memcpy(k->ids, ids, n_ids * sizeof *ids);
    }
    return SL_OK;
}

static bool is_token(const struct sl_bpe_vocab *v, uint32_t c, const unsigned char *s, size_t len)
{
    return (c < 0x800 ? v->chars[c] : sl_bpe_vocab_find(v, s, len)) != SL_BPE_NONE;
}

enum sl_code sl_bpe_word(struct sl_bpe_run *r, const unsigned char *s, size_t n)
{
    const struct sl_bpe_vocab *v = &r->b->vocab;
    size_t begin = 0, len, before_len = 0;
    uint32_t before = 0;
    if (!v->seams)
        return put_word(r, s, n);
    for (size_t i = 0; i < n; i += len) {
        uint32_t c = sl_bpe_get_char(s + i, &len);
        if (i > begin && sl_bpe_is_seam(v, before, c) && is_token(v, c, s + i, len) &&
            is_token(v, before, s + i - before_len, before_len)) {
            enum sl_code rc = put_word(r, s + begin, i - begin);
            if (rc)
                return rc;
            begin = i;
        }
        before = c;
        before_len = len;
    }
    return put_word(r, s + begin, n - begin);
}

/* --- texts --------------------------------------------------------------------------------------
 */

static enum sl_code put_id(struct sl_bpe_run *r, uint32_t id)
{
    enum sl_code c = sl_token_list_reserve(r->out, 1, r->err);
    if (!c)
        r->out->v[r->out->n++] = id;
    return c;
}

/* The verbatim ranges of a piece of the text, from its begin on; the pieces come in order. */
static enum sl_code take_verbatim(struct sl_bpe_run *r, const struct sl_tokenizer_text *text,
                                  struct sl_range piece, struct sl_bpe_edges *ret)
{
    const struct sl_range *v = text->verbatim;
    while (r->n_passed < text->n_verbatim && v[r->n_passed].end <= piece.begin)
        r->n_passed++;
    size_t begin = r->n_passed, end = begin;
    while (end < text->n_verbatim && v[end].begin < piece.end)
        end++;
    if (begin == end)
        return SL_OK;
    ret->v = sl_malloc((end - begin) * sizeof *ret->v);
    if (!ret->v)
        return sl_fail(r->err, SL_E_NO_MEMORY, "no memory for a text of %zu bytes", text->n);
    for (size_t i = begin; i < end; i++) {
        size_t from = v[i].begin > piece.begin ? v[i].begin : piece.begin;
        size_t to = v[i].end < piece.end ? v[i].end : piece.end;
        ret->v[ret->n++] = (struct sl_range){from - piece.begin, to - piece.begin};
    }
    return SL_OK;
}

/* A normalised piece: added tokens that are looked for there, words between them. */
static enum sl_code put_normalised(struct sl_bpe_run *r, const unsigned char *s, size_t n,
                                   bool begins, const struct sl_range *verbatim, size_t n_verbatim)
{
    struct sl_bpe_added_search search = {
        .set = &r->b->normalised, .s = s, .n = n, .verbatim = verbatim, .n_verbatim = n_verbatim};
    const struct sl_bpe_added *a;
    struct sl_range range;
    size_t done = 0;
    for (;;) {
        enum sl_code c = sl_bpe_added_next(&search, r->b, &r->matcher, &a, &range, r->err);
        if (c || !a)
            return c ? c : sl_bpe_split_text(r, s + done, n - done, begins && done == 0);
        if (done < range.begin)
            c = sl_bpe_split_text(r, s + done, range.begin - done, begins && done == 0);
        if (!c)
            c = put_id(r, a->id);
        if (c)
            return c;
        done = range.end;
    }
}

static enum sl_code put_raw(struct sl_bpe_run *r, const struct sl_tokenizer_text *text,
                            struct sl_range piece)
{
    const unsigned char *s = (const unsigned char *)text->s + piece.begin;
    size_t n = piece.end - piece.begin;
    bool begins = piece.begin == 0;
    struct sl_bpe_edges verbatim = {0};
    enum sl_code c = SL_OK;
    if (r->b->normalised.has_special)
        c = take_verbatim(r, text, piece, &verbatim);
    if (!c)
        c = sl_bpe_normalise(r->b, &r->matcher, r->normal, begins && r->continues, &verbatim, s, n,
                             &s, &n, r->err);
    if (!c && n)
        c = put_normalised(r, s, n, begins, verbatim.v, verbatim.n);
    sl_free(verbatim.v);
    return c;
}

static enum sl_code put_text(struct sl_bpe_run *r, const struct sl_tokenizer_text *text)
{
    struct sl_bpe_added_search search = {.set = &r->b->raw,
                                         .s = text->s,
                                         .n = text->n,
                                         .verbatim = text->verbatim,
                                         .n_verbatim = text->n_verbatim};
    const struct sl_bpe_added *a;
    struct sl_range range;
    size_t done = 0;
    for (;;) {
        enum sl_code c = sl_bpe_added_next(&search, r->b, &r->matcher, &a, &range, r->err);
        if (!c && !a)
            return done < text->n ? put_raw(r, text, (struct sl_range){done, text->n}) : SL_OK;
        if (!c && done < range.begin)
            c = put_raw(r, text, (struct sl_range){done, range.begin});
        if (!c)
            c = put_id(r, a->id);
        if (c)
            return c;
        done = range.end;
    }
}

/* Where text stops being UTF-8. */
static size_t valid_bytes(const unsigned char *s, size_t n)
{
    size_t i = 0, bad;
    for (size_t len; i < n && (len = sl_utf8_char(s + i, n - i, &bad)) != 0;)
        i += len;
    return i;
}

static void run_done(struct sl_bpe_run *r)
{
    sl_bpe_matcher_done(&r->matcher);
    for (size_t k = 0; k < 2; k++) {
        sl_bpe_buf_done(&r->normal[k]);
        for (size_t i = 0; i < r->b->n_splits; i++)
            sl_bpe_buf_done(&r->split[i][k]);
    }
    sl_free(r->space.symbols);
    sl_free(r->space.queue);
    sl_free(r->cache);
}

static enum sl_code bpe_encode(const struct sl_tokenizer *t, const struct sl_tokenizer_text *text,
                               struct sl_token_list *out, struct sl_error *err)
{
    struct sl_bpe_run r = {.b = t->priv, .out = out, .err = err, .continues = text->continues};
    if (text->n > SL_BPE_TEXT_MAX)
        return sl_fail(err, SL_E_TOO_LARGE, "a text of %zu bytes; %d are possible", text->n,
                       SL_BPE_TEXT_MAX);
    size_t n = valid_bytes(text->s, text->n);
    if (n < text->n)
        return sl_fail(err, SL_E_INVALID_VALUE,
                       "the text is not UTF-8 from its byte %zu on, and this model's tokenizer "
                       "reads nothing else",
                       n);
    enum sl_code c = sl_bpe_matcher_open(&r.matcher, text->n, err);
    if (!c && text->n >= CACHE_FROM) {
        r.cache = sl_calloc(1, sizeof *r.cache);
        if (!r.cache)
            c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a text of %zu bytes", text->n);
    }
    if (!c)
        c = put_text(&r, text);
    run_done(&r);
    return c;
}

/* --- parts --------------------------------------------------------------------------------------
 */

/* What the decoders turn into `to` was `from`. */
static void find_blank(const struct sl_bpe *b, const unsigned char **from, size_t *n_from,
                       const unsigned char **to, size_t *n_to)
{
    static const unsigned char blank[] = " ";
    for (size_t i = 0; i < b->n_decodes; i++) {
        const struct sl_bpe_decode *d = &b->decodes[i];
        bool is_meta = d->kind == SL_BPE_DECODE_METASPACE;
        if (!is_meta && (d->kind != SL_BPE_DECODE_REPLACE || !d->pattern.text || !d->n_content))
            continue;
        *from = is_meta ? d->content : d->pattern.text;
        *n_from = is_meta ? d->n_content : d->pattern.n;
        *to = is_meta ? blank : d->content;
        *n_to = is_meta ? 1 : d->n_content;
        return;
    }
}

static bool is_byte_level(const struct sl_bpe *b)
{
    for (size_t i = 0; i < b->n_decodes; i++)
        if (b->decodes[i].kind == SL_BPE_DECODE_BYTE_LEVEL)
            return true;
    return false;
}

/* A part as the vocabulary writes it; returns its bytes, 0 where it does not fit. */
static size_t unread(const struct sl_bpe *b, const unsigned char *s, size_t n,
                     unsigned char dst[PART_ROOM])
{
    const unsigned char *from = NULL, *to = NULL;
    size_t n_from = 0, n_to = 0, at = 0;
    bool bytes = is_byte_level(b);
    find_blank(b, &from, &n_from, &to, &n_to);
    if (!bytes)
        n = valid_bytes(s, n);
    for (size_t i = 0; i < n;) {
        if (at + 4 + n_from > PART_ROOM)
            return 0;
        if (bytes) {
            at += sl_bpe_put_char(dst + at, sl_bpe_char_of_byte(s[i++]));
        } else if (n_to && n - i >= n_to && memcmp(s + i, to, n_to) == 0) {
            memcpy(dst + at, from, n_from);
            at += n_from;
            i += n_to;
        } else {
            dst[at++] = s[i++];
        }
    }
    return at;
}

static size_t bpe_encode_part(const struct sl_tokenizer *t, const unsigned char *part, size_t n,
                              uint32_t *ids)
{
    const struct sl_bpe *b = t->priv;
    unsigned char word[PART_ROOM];
    struct sl_bpe_symbol symbols[PART_ROOM];
    struct sl_bpe_entry queue[2 * PART_ROOM];
    uint32_t all[PART_ROOM];
    struct sl_bpe_space space = {.symbols = symbols, .queue = queue, .room = PART_ROOM};
    assert(n <= SL_TOKEN_BYTES_MAX);
    size_t n_word = unread(b, part, n, word), n_ids = 0, n_all = 0;
    if (n_word && sl_bpe_symbols_max(&b->vocab, n_word) <= PART_ROOM)
        n_all = sl_bpe_merge_word(&b->vocab, word, n_word, &space, all);
    for (size_t at = 0, len; n_ids < n_all; at += len) {
        const unsigned char *bytes = sl_tokenizer_bytes(t, all[n_ids], &len);
        if (!len || len > n - at || memcmp(bytes, part + at, len) != 0)
            break;
        ids[n_ids] = all[n_ids];
        n_ids++;
    }
    return n_ids;
}

/* --- the kind -----------------------------------------------------------------------------------
 */

static int64_t bpe_find(const struct sl_tokenizer *t, const char *text, size_t n)
{
    const struct sl_bpe *b = t->priv;
    for (size_t i = 0; i < b->n_added; i++)
        if (b->added[i].n_content == n && memcmp(b->added[i].content, text, n) == 0)
            return b->added[i].id;
    uint32_t id = sl_bpe_vocab_find(&b->vocab, text, n);
    return id == SL_BPE_NONE ? -1 : (int64_t)id;
}

/* The order of the merges' table is chance, so they are summed. */
static void bpe_fingerprint(const struct sl_tokenizer *t, struct XXH3_state_s *state)
{
    const struct sl_bpe *b = t->priv;
    uint64_t sum = 0;
    for (size_t i = 0; i <= b->vocab.merges_mask; i++) {
        const struct sl_bpe_merge *m = &b->vocab.merges[i];
        uint64_t v[2] = {m->pair, m->rank};
        if (m->pair != SL_BPE_NO_PAIR)
            sum += XXH3_64bits(v, sizeof v);
    }
    (void)XXH3_128bits_update(state, &sum, sizeof sum);
    for (size_t i = 0; i < b->n_added; i++) {
        const struct sl_bpe_added *a = &b->added[i];
        unsigned char flags[] = {a->special, a->normalized, a->lstrip, a->rstrip, a->single_word};
        (void)XXH3_128bits_update(state, &a->id, sizeof a->id);
        (void)XXH3_128bits_update(state, flags, sizeof flags);
        (void)XXH3_128bits_update(state, a->content, a->n_content);
    }
}

static enum sl_code bpe_open(struct sl_tokenizer *t, const unsigned char *data, size_t n_bytes,
                             const char *name, struct sl_error *err)
{
    struct sl_bpe *b = sl_calloc(1, sizeof *b);
    if (!b)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the tokenizer \"%s\"", name);
    enum sl_code c = sl_bpe_json_read(t, b, data, n_bytes, name, err);
    if (c)
        sl_bpe_free(b);
    return c;
}

static void bpe_close(struct sl_tokenizer *t)
{
    sl_bpe_free(t->priv);
}

const struct sl_tokenizer_kind sl_tokenizer_bpe = {
    .name = "bpe",
    .knows = sl_bpe_json_knows,
    .open = bpe_open,
    .close = bpe_close,
    .encode_part = bpe_encode_part,
    .encode = bpe_encode,
    .find = bpe_find,
    .fingerprint = bpe_fingerprint,
};
