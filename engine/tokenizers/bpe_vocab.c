/* bpe_vocab.c: hash tables of texts, merges and seams: see bpe_parts.h.
 *
 * All are open addressing at a load of at most a half, so a search for what is not there ends. */
#include <string.h>

#include <xxhash.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/bpe_parts.h"

static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static size_t hash_u64(uint64_t x)
{
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15u;
    return (size_t)(x ^ x >> 29);
}

static enum sl_code no_memory(struct sl_error *err)
{
    return sl_fail(err, SL_E_NO_MEMORY, "no memory for a vocabulary");
}

/* --- texts --------------------------------------------------------------------------------------
 */

static bool has_text(const struct sl_bpe_vocab *v, uint32_t id, const void *s, size_t n)
{
    const struct sl_token_span *t = &v->texts[id];
    return t->n == n && memcmp(v->blob + t->offset, s, n) == 0;
}

/* The place of a text, or the empty one where it would be. */
static size_t place_of(const struct sl_bpe_vocab *v, const void *s, size_t n)
{
    size_t i = (size_t)XXH3_64bits(s, n) & v->by_text_mask;
    while (v->by_text[i] != SL_BPE_NONE && !has_text(v, v->by_text[i], s, n))
        i = (i + 1) & v->by_text_mask;
    return i;
}

uint32_t sl_bpe_vocab_find(const struct sl_bpe_vocab *v, const void *s, size_t n)
{
    return n == 0 || n > v->longest ? SL_BPE_NONE : v->by_text[place_of(v, s, n)];
}

static void find_characters(struct sl_bpe_vocab *v)
{
    unsigned char s[4];
    for (uint32_t c = 0; c < sizeof v->chars / sizeof *v->chars; c++)
        v->chars[c] = sl_bpe_vocab_find(v, s, sl_bpe_put_char(s, c));
    static const char hex[] = "0123456789ABCDEF";
    for (unsigned b = 0; b < 256; b++) {
        char name[] = "<0x00>";
        name[3] = hex[b >> 4];
        name[4] = hex[b & 15];
        v->bytes[b] = sl_bpe_vocab_find(v, name, 6);
    }
}

enum sl_code sl_bpe_vocab_index(struct sl_bpe_vocab *v, uint32_t *ret_id, struct sl_error *err)
{
    size_t size = table_size(v->n_tokens);
    v->by_text = sl_malloc(size * sizeof *v->by_text);
    if (!v->by_text)
        return no_memory(err);
    memset(v->by_text, 0xFF, size * sizeof *v->by_text);
    v->by_text_mask = size - 1;
    for (uint32_t id = 0; id < v->n_ids; id++) {
        const struct sl_token_span *t = &v->texts[id];
        if (!t->n)
            continue;
        if (t->n > v->longest)
            v->longest = t->n;
        size_t i = place_of(v, v->blob + t->offset, t->n);
        if (v->by_text[i] != SL_BPE_NONE) {
            *ret_id = id;
            return sl_fail(err, SL_E_FILE_CORRUPT, "the ids %u and %u have one text",
                           (unsigned)v->by_text[i], (unsigned)id);
        }
        v->by_text[i] = id;
    }
    find_characters(v);
    return SL_OK;
}

/* --- merges -------------------------------------------------------------------------------------
 */

enum sl_code sl_bpe_merges_init(struct sl_bpe_vocab *v, size_t n, struct sl_error *err)
{
    size_t size = table_size(n);
    v->merges = sl_malloc(size * sizeof *v->merges);
    if (!v->merges)
        return no_memory(err);
    for (size_t i = 0; i < size; i++)
        v->merges[i].pair = SL_BPE_NO_PAIR;
    v->merges_mask = size - 1;
    return SL_OK;
}

void sl_bpe_merges_add(struct sl_bpe_vocab *v, uint32_t left, uint32_t right, uint32_t rank,
                       uint32_t id)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t i = hash_u64(pair) & v->merges_mask;
    while (v->merges[i].pair != SL_BPE_NO_PAIR && v->merges[i].pair != pair)
        i = (i + 1) & v->merges_mask;
    v->n_merges += v->merges[i].pair == SL_BPE_NO_PAIR;
    v->merges[i] = (struct sl_bpe_merge){.pair = pair, .rank = rank, .id = id};
}

static size_t first_100(size_t n)
{
    return n < 100 ? n : 100;
}

enum sl_code sl_bpe_merges_join(struct sl_bpe_vocab *v, const char *left, size_t n_left,
                                const char *right, size_t n_right, uint32_t rank,
                                struct sl_error *err)
{
    char both[SL_BPE_MERGE_TEXT_MAX];
    size_t cut = v->n_prefix;
    uint32_t a = sl_bpe_vocab_find(v, left, n_left), b = sl_bpe_vocab_find(v, right, n_right);
    if (a == SL_BPE_NONE || b == SL_BPE_NONE)
        return sl_fail(err, SL_E_FILE_CORRUPT, "the vocabulary does not have \"%.*s\"",
                       (int)first_100(a == SL_BPE_NONE ? n_left : n_right),
                       a == SL_BPE_NONE ? left : right);
    if (n_right < cut || n_left + n_right - cut > sizeof both)
        return sl_fail(err, SL_E_FILE_CORRUPT, "\"%.*s\" and \"%.*s\" cannot be joined",
                       (int)first_100(n_left), left, (int)first_100(n_right), right);
    memcpy(both, left, n_left);
    memcpy(both + n_left, right + cut, n_right - cut);
    size_t n = n_left + n_right - cut;
    uint32_t id = sl_bpe_vocab_find(v, both, n);
    if (id == SL_BPE_NONE)
        return sl_fail(err, SL_E_FILE_CORRUPT, "the vocabulary does not have \"%.*s\"",
                       (int)first_100(n), both);
    sl_bpe_merges_add(v, a, b, rank, id);
    return SL_OK;
}

const struct sl_bpe_merge *sl_bpe_merges_find(const struct sl_bpe_vocab *v, uint32_t left,
                                              uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t i = hash_u64(pair) & v->merges_mask;
    while (v->merges[i].pair != pair) {
        if (v->merges[i].pair == SL_BPE_NO_PAIR)
            return NULL;
        i = (i + 1) & v->merges_mask;
    }
    return &v->merges[i];
}

/* --- seams --------------------------------------------------------------------------------------
 *
 * A merge makes a token of the vocabulary, so two characters that stand side by side in no token
 * are never joined: a word may be cut between them and its parts merged by themselves, in any
 * order. (Merges of different parts do not touch each other.) So a text without splitters, as
 * Llama's, needs memory for its longest such part, not for all of it. This holds for characters
 * that are tokens themselves; others become byte tokens or the unknown one, and next to those
 * nothing is cut. */

static size_t seam_place(const struct sl_bpe_vocab *v, uint64_t pair)
{
    size_t i = hash_u64(pair) & v->seams_mask;
    while (v->seams[i] != SL_BPE_NO_PAIR && v->seams[i] != pair)
        i = (i + 1) & v->seams_mask;
    return i;
}

static enum sl_code grow_seams(struct sl_bpe_vocab *v, struct sl_error *err)
{
    uint64_t *old = v->seams;
    size_t n = old ? v->seams_mask + 1 : 0, size = n ? 2 * n : 1 << 12;
    uint64_t *grown = sl_malloc(size * sizeof *grown);
    if (!grown)
        return no_memory(err);
    memset(grown, 0xFF, size * sizeof *grown);
    v->seams = grown;
    v->seams_mask = size - 1;
    for (size_t i = 0; i < n; i++)
        if (old[i] != SL_BPE_NO_PAIR)
            v->seams[seam_place(v, old[i])] = old[i];
    sl_free(old);
    return SL_OK;
}

enum sl_code sl_bpe_seams_make(struct sl_bpe_vocab *v, struct sl_error *err)
{
    size_t n_pairs = 0;
    enum sl_code c = grow_seams(v, err);
    for (size_t id = 0; !c && id < v->n_ids; id++) {
        const unsigned char *s = v->blob + v->texts[id].offset;
        uint64_t before = 0;
        for (size_t i = 0, len; !c && i < v->texts[id].n; i += len) {
            uint64_t x = sl_bpe_get_char(s + i, &len), pair = before << 32 | x;
            before = x;
            if (i == 0)
                continue;
            size_t k = seam_place(v, pair);
            n_pairs += v->seams[k] == SL_BPE_NO_PAIR;
            v->seams[k] = pair;
            if (2 * n_pairs > v->seams_mask)
                c = grow_seams(v, err);
        }
    }
    return c;
}

bool sl_bpe_is_seam(const struct sl_bpe_vocab *v, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    return v->seams[seam_place(v, pair)] == SL_BPE_NO_PAIR;
}

void sl_bpe_vocab_done(struct sl_bpe_vocab *v)
{
    sl_free(v->blob);
    sl_free(v->texts);
    sl_free(v->by_text);
    sl_free(v->merges);
    sl_free(v->seams);
    sl_free(v->prefix);
    sl_free(v->suffix);
    *v = (struct sl_bpe_vocab){0};
}
