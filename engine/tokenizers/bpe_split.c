/* bpe_split.c: a text -> words: see bpe_parts.h.
 *
 * Each splitter cuts what the one before it gave; a piece goes through all of them before the next
 * one is cut, so a splitter that rewrites its piece needs one buffer, and no list of pieces is
 * kept. ("byte level": every byte becomes the character of GPT-2's alphabet that stands for it;
 * Radford et al. 2019.) */
#include <string.h>

#include "engine/tokenizers/bpe_parts.h"

/* --- GPT-2's alphabet ---------------------------------------------------------------------------
 *
 * Bytes that are visible characters of Latin-1 stand for themselves; the 68 others are U+0100 … in
 * their order. */

static bool is_visible(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t sl_bpe_char_of_byte(unsigned char byte)
{
    if (is_visible(byte))
        return byte;
    if (byte <= ' ')
        return 0x100u + byte;
    return byte == 0xAD ? 0x143 : 0x121u + (byte - 0x7Fu);
}

int sl_bpe_byte_of_char(uint32_t c)
{
    if (c < 0x100)
        return is_visible(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

/* --- cutting ------------------------------------------------------------------------------------
 */

static enum sl_code split_from(struct sl_bpe_run *r, size_t stage, const unsigned char *s, size_t n,
                               bool begins);

/* The pieces of one text at one splitter. */
struct cutter {
    struct sl_bpe_run *r;
    size_t stage; /* that the pieces go to */
    const unsigned char *s;
    bool begins, rewrites;
    enum sl_bpe_behavior behavior;
    bool has_open, last_is_match; /* a piece that may still grow */
    struct sl_range open;
};

static enum sl_code put_bytes(struct sl_bpe_buf *b, const unsigned char *s, size_t n,
                              struct sl_error *err)
{
    b->n = 0;
    enum sl_code c = sl_bpe_buf_reserve(b, 2 * n, err);
    for (size_t i = 0; !c && i < n; i++)
        b->n += sl_bpe_put_char(b->v + b->n, sl_bpe_char_of_byte(s[i]));
    return c;
}

static enum sl_code emit(const struct cutter *k, struct sl_range p)
{
    const unsigned char *s = k->s + p.begin;
    size_t n = p.end - p.begin;
    bool begins = k->begins && p.begin == 0;
    if (n == 0)
        return SL_OK;
    if (k->rewrites) {
        struct sl_bpe_buf *b = &k->r->split[k->stage - 1][1];
        enum sl_code c = put_bytes(b, s, n, k->r->err);
        if (c)
            return c;
        s = b->v;
        n = b->n;
    }
    return split_from(k->r, k->stage, s, n, begins);
}

static enum sl_code flush(struct cutter *k)
{
    bool has_open = k->has_open;
    k->has_open = false;
    return has_open ? emit(k, k->open) : SL_OK;
}

/* The next part, a match of the pattern or what lies between two. */
static enum sl_code take(struct cutter *k, struct sl_range p, bool is_match)
{
    bool joins = false; /* the piece that is open */
    switch (k->behavior) {
    case SL_BPE_REMOVED:
        return is_match ? SL_OK : emit(k, p);
    case SL_BPE_ISOLATED:
        return emit(k, p);
    case SL_BPE_CONTIGUOUS:
        joins = k->has_open && is_match == k->last_is_match;
        break;
    case SL_BPE_MERGED_WITH_PREVIOUS:
        joins = k->has_open && is_match && !k->last_is_match;
        break;
    case SL_BPE_MERGED_WITH_NEXT:
        joins = k->has_open && !is_match && k->last_is_match;
        break;
    }
    k->last_is_match = is_match;
    if (joins) {
        k->open.end = p.end;
        return SL_OK;
    }
    enum sl_code c = flush(k);
    k->open = p;
    k->has_open = true;
    return c;
}

static enum sl_code cut(struct cutter *k, const struct sl_bpe_split *split, size_t n)
{
    struct sl_bpe_search search = {
        .pattern = &split->pattern, .s = k->s, .n = n, .last_end = SIZE_MAX};
    struct sl_range match;
    size_t done = 0;
    bool found = true;
    while (found) {
        enum sl_code c = sl_bpe_search_next(&search, &k->r->matcher, &found, &match, k->r->err);
        if (!c && found && match.begin > done)
            c = take(k, (struct sl_range){done, match.begin}, split->invert);
        if (!c && found)
            c = take(k, match, !split->invert);
        if (c)
            return c;
        if (found)
            done = match.end;
    }
    enum sl_code c = SL_OK;
    if (done < n)
        c = take(k, (struct sl_range){done, n}, split->invert);
    return c ? c : flush(k);
}

/* --- the splitters ------------------------------------------------------------------------------
 */

static enum sl_code byte_level(struct cutter *k, const struct sl_bpe_split *split, size_t n)
{
    struct sl_bpe_buf *b = &k->r->split[k->stage - 1][0];
    if (split->add_prefix_space && k->s[0] != ' ' && !(k->begins && k->r->continues)) {
        b->n = 0;
        enum sl_code c = sl_bpe_buf_put(b, " ", 1, k->r->err);
        if (!c)
            c = sl_bpe_buf_put(b, k->s, n, k->r->err);
        if (c)
            return c;
        k->s = b->v;
        n = b->n;
    }
    k->rewrites = true;
    if (split->pattern.regex)
        return cut(k, split, n);
    return emit(k, (struct sl_range){0, n});
}

static bool is_prefixed(const struct cutter *k, const struct sl_bpe_split *split)
{
    if (split->scheme == SL_BPE_NEVER || (k->begins && k->r->continues))
        return false;
    return split->scheme == SL_BPE_ALWAYS || k->begins;
}

static enum sl_code metaspace(struct cutter *k, const struct sl_bpe_split *split, size_t n)
{
    const unsigned char *mark = split->replacement;
    size_t n_mark = split->n_replacement;
    struct sl_bpe_buf *b = &k->r->split[k->stage - 1][0];
    bool has_mark = k->s[0] == ' ' || (n >= n_mark && memcmp(k->s, mark, n_mark) == 0);
    enum sl_code c = SL_OK;
    b->n = 0;
    if (!has_mark && is_prefixed(k, split))
        c = sl_bpe_buf_put(b, mark, n_mark, k->r->err);
    for (size_t i = 0, end; !c && i < n; i = end) {
        const unsigned char *blank = memchr(k->s + i, ' ', n - i);
        end = blank ? (size_t)(blank - k->s) : n;
        c = sl_bpe_buf_put(b, k->s + i, end - i, k->r->err);
        if (!c && blank) {
            c = sl_bpe_buf_put(b, mark, n_mark, k->r->err);
            end++;
        }
    }
    if (c)
        return c;
    k->s = b->v;
    return split->pattern.n ? cut(k, split, b->n) : emit(k, (struct sl_range){0, b->n});
}

static enum sl_code split_from(struct sl_bpe_run *r, size_t stage, const unsigned char *s, size_t n,
                               bool begins)
{
    if (stage == r->b->n_splits)
        return sl_bpe_word(r, s, n);
    const struct sl_bpe_split *split = &r->b->splits[stage];
    struct cutter k = {
        .r = r, .stage = stage + 1, .s = s, .begins = begins, .behavior = split->behavior};
    switch (split->kind) {
    case SL_BPE_SPLIT:
        return cut(&k, split, n);
    case SL_BPE_BYTE_LEVEL:
        return byte_level(&k, split, n);
    case SL_BPE_METASPACE:
        return metaspace(&k, split, n);
    }
    return SL_OK;
}

enum sl_code sl_bpe_split_text(struct sl_bpe_run *r, const unsigned char *s, size_t n, bool begins)
{
    return n ? split_from(r, 0, s, n, begins) : SL_OK;
}
