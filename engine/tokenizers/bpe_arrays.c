/* bpe_arrays.c: see bpe.h.
 *
 * "gpt2": the vocabulary and merges of a byte-level BPE. What the file does not hold, which
 * normaliser and which splitters the model's tokenizer.json has, follows from the name in
 * tokenizer.ggml.pre: a row of a table, with the expressions that those files have. A name that has
 * no row, or none at all, is refused: a guess would give other ids.
 *
 * "llama": SentencePiece's BPE (Kudo and Richardson 2018). It has no merges: whichever two
 * neighbours make the token with the highest score are joined first, the leftmost of equals. That
 * is a merge for each way to cut a token into two tokens, its rank the place of its score among all
 * scores; equal scores have one rank. */
#include "engine/tokenizers/bpe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizers/bpe_parts.h"

#define GPT2 SL_BPE_GPT2
#define LATER(numbers)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers                          \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 LATER("\\p{N}{1,3}")
#define QWEN2 LATER("\\p{N}")

enum { SPLITS_MAX = 4 };

struct step {
    const char *regex; /* NULL: no more steps */
    enum sl_bpe_behavior behavior;
    bool to_bytes; /* the pieces become bytes' characters */
};

static const struct pre {
    const char *name;
    bool nfc, ignore_merges;
    struct step steps[SPLITS_MAX];
} pres[] = {
    {"gpt-2", false, false, {{GPT2, SL_BPE_ISOLATED, true}}},
    {"phi-2", false, false, {{GPT2, SL_BPE_ISOLATED, true}}},
    {"mpt", true, false, {{GPT2, SL_BPE_ISOLATED, true}}},
    {"olmo", true, false, {{GPT2, SL_BPE_ISOLATED, true}}},
    {"llama-bpe", false, true, {{LLAMA3, SL_BPE_ISOLATED, true}}},
    {"llama3", false, true, {{LLAMA3, SL_BPE_ISOLATED, true}}},
    {"llama-v3", false, true, {{LLAMA3, SL_BPE_ISOLATED, true}}},
    {"dbrx", false, false, {{LLAMA3, SL_BPE_ISOLATED, true}}},
    {"smaug-bpe", false, false, {{LLAMA3, SL_BPE_ISOLATED, true}}},
    {"qwen2", true, false, {{QWEN2, SL_BPE_ISOLATED, true}}},
    {"deepseek-r1-qwen", true, false, {{QWEN2, SL_BPE_ISOLATED, true}}},
    {"falcon",
     false,
     false,
     {{SL_BPE_PUNCTUATION, SL_BPE_CONTIGUOUS, false},
      {GPT2, SL_BPE_ISOLATED, true},
      {"\\p{N}", SL_BPE_CONTIGUOUS, false},
      {"[0-9][0-9][0-9]", SL_BPE_ISOLATED, false}}},
    {"starcoder",
     false,
     false,
     {{"\\p{N}", SL_BPE_ISOLATED, false}, {GPT2, SL_BPE_ISOLATED, true}}},
    {"refact", false, false, {{"\\p{N}", SL_BPE_ISOLATED, false}, {GPT2, SL_BPE_ISOLATED, true}}},
    {"smollm", false, false, {{"\\p{N}", SL_BPE_ISOLATED, false}, {GPT2, SL_BPE_ISOLATED, true}}},
    {"command-r", true, false, {{"\\p{N}", SL_BPE_ISOLATED, false}, {GPT2, SL_BPE_ISOLATED, true}}},
};

struct maker {
    const struct sl_bpe_arrays *a;
    struct sl_bpe *b;
    const char *name;
    struct sl_error *err;
};

static enum sl_code no_memory(const struct maker *k)
{
    return sl_fail(k->err, SL_E_NO_MEMORY, "no memory for the tokenizer \"%s\"", k->name);
}

static enum sl_code bad_token(const struct maker *k, size_t id, const char *why)
{
    return sl_fail(k->err, SL_E_FILE_CORRUPT, "the tokenizer \"%s\", tokens[%zu]: %s", k->name, id,
                   why);
}

/* What err says already (code c), with its place. */
static enum sl_code placed(const struct maker *k, const char *place, size_t index, enum sl_code c)
{
    struct sl_error what;
    if (!c)
        return c;
    what = *k->err;
    if (index == SIZE_MAX)
        return sl_fail(k->err, c, "the tokenizer \"%s\", %s: %s", k->name, place, what.message);
    return sl_fail(k->err, c, "the tokenizer \"%s\", %s[%zu]: %s", k->name, place, index,
                   what.message);
}

/* --- the vocabulary -----------------------------------------------------------------------------
 */

static enum sl_bpe_type type_of(const struct sl_bpe_arrays *a, size_t id)
{
    return a->types ? (enum sl_bpe_type)a->types[id] : SL_BPE_NORMAL;
}

static enum sl_code check_tokens(const struct maker *k, size_t *ret_bytes, size_t *ret_added)
{
    const struct sl_bpe_arrays *a = k->a;
    if (!a->n_tokens || a->n_tokens > SL_VOCAB_ID_MAX + 1)
        return sl_fail(k->err, SL_E_FILE_CORRUPT,
                       "the tokenizer \"%s\": %zu tokens; 1 to %d are possible", k->name,
                       a->n_tokens, SL_VOCAB_ID_MAX + 1);
    for (size_t i = 0; i < a->n_tokens; i++) {
        enum sl_bpe_type type = type_of(a, i);
        if (type < SL_BPE_NORMAL || type > SL_BPE_BYTE)
            return bad_token(k, i, "its type is none of 1 to 6");
        if (!sl_utf8_valid(a->tokens[i].s, a->tokens[i].n))
            return bad_token(k, i, "is not UTF-8");
        if (a->tokens[i].n > SL_BPE_MERGE_TEXT_MAX)
            return bad_token(k, i, "is too long");
        *ret_bytes += a->tokens[i].n;
        *ret_added +=
            type == SL_BPE_CONTROL || type == SL_BPE_UNKNOWN || type == SL_BPE_USER_DEFINED;
    }
    return *ret_added <= SL_BPE_ADDED_MAX
               ? SL_OK
               : sl_fail(k->err, SL_E_FILE_CORRUPT,
                         "the tokenizer \"%s\": more than %d special tokens", k->name,
                         SL_BPE_ADDED_MAX);
}

static enum sl_code add_token(const struct maker *k, uint32_t id, bool special)
{
    const struct sl_bpe_text *t = &k->a->tokens[id];
    struct sl_bpe_added *added = &k->b->added[k->b->n_added++];
    *added = (struct sl_bpe_added){.id = id, .n_content = t->n, .special = special};
    added->content = (unsigned char *)sl_strndup(t->s, t->n);
    return added->content ? SL_OK : no_memory(k);
}

/* Unused tokens have no text: they are never found and never read. */
static enum sl_code make_vocab(const struct maker *k)
{
    const struct sl_bpe_arrays *a = k->a;
    struct sl_bpe_vocab *v = &k->b->vocab;
    size_t n_bytes = 0, n_added = 0;
    enum sl_code c = check_tokens(k, &n_bytes, &n_added);
    if (c)
        return c;
    v->blob = sl_malloc(n_bytes + 1);
    v->texts = sl_calloc(a->n_tokens, sizeof *v->texts);
    k->b->added = sl_calloc(n_added + 1, sizeof *k->b->added);
    if (!v->blob || !v->texts || !k->b->added)
        return no_memory(k);
    v->n_ids = a->n_tokens;
    v->unk = SL_BPE_NONE;
    for (uint32_t i = 0; !c && i < a->n_tokens; i++) {
        enum sl_bpe_type type = type_of(a, i);
        if (type == SL_BPE_UNUSED || !a->tokens[i].n)
            continue;
        v->texts[i] =
            (struct sl_token_span){.offset = (uint32_t)v->n_blob, .n = (uint32_t)a->tokens[i].n};
        memcpy(v->blob + v->n_blob, a->tokens[i].s, a->tokens[i].n);
        v->n_blob += a->tokens[i].n;
        v->n_tokens++;
        if (type == SL_BPE_UNKNOWN)
            v->unk = i;
        if (type != SL_BPE_NORMAL && type != SL_BPE_BYTE)
            c = add_token(k, i, type != SL_BPE_USER_DEFINED);
    }
    uint32_t twin = 0;
    return c ? c : placed(k, "tokens", SIZE_MAX, sl_bpe_vocab_index(v, &twin, k->err));
}

/* --- "gpt2" -------------------------------------------------------------------------------------
 */

static const struct pre *find_pre(const char *name)
{
    for (size_t i = 0; name && i < sizeof pres / sizeof *pres; i++)
        if (strcmp(pres[i].name, name) == 0)
            return &pres[i];
    return NULL;
}

static enum sl_code make_splits(const struct maker *k, const struct pre *pre)
{
    struct sl_bpe *b = k->b;
    enum sl_code c = SL_OK;
    if (pre->nfc)
        b->normals[b->n_normals++].kind = SL_BPE_NFC;
    for (size_t i = 0; !c && i < SPLITS_MAX && pre->steps[i].regex; i++) {
        const struct step *s = &pre->steps[i];
        struct sl_bpe_split *split = &b->splits[b->n_splits++];
        split->kind = s->to_bytes ? SL_BPE_BYTE_LEVEL : SL_BPE_SPLIT;
        split->behavior = s->behavior;
        c = sl_bpe_pattern_regex(&split->pattern, s->regex, strlen(s->regex), k->err);
    }
    return c;
}

static enum sl_code make_merges(const struct maker *k)
{
    const struct sl_bpe_arrays *a = k->a;
    enum sl_code c = sl_bpe_merges_init(&k->b->vocab, a->n_merges, k->err);
    for (size_t i = 0; !c && i < a->n_merges; i++) {
        const char *s = a->merges[i].s;
        size_t n = a->merges[i].n;
        const char *blank = n > 2 ? memchr(s + 1, ' ', n - 2) : NULL;
        if (!blank)
            return sl_fail(k->err, SL_E_FILE_CORRUPT,
                           "the tokenizer \"%s\", merges[%zu]: must be two tokens, \"a b\"",
                           k->name, i);
        size_t n_left = (size_t)(blank - s);
        c = placed(k, "merges", i,
                   sl_bpe_merges_join(&k->b->vocab, s, n_left, blank + 1, n - n_left - 1,
                                      (uint32_t)i, k->err));
    }
    return c;
}

static enum sl_code make_gpt2(const struct maker *k)
{
    const char *name = k->a->pre;
    const struct pre *pre = find_pre(name);
    if (!pre)
        return sl_fail(k->err, SL_E_FILE_UNSUPPORTED,
                       "the tokenizer \"%s\": its pre-tokenizer, tokenizer.ggml.pre, is %s%.60s%s; "
                       "give the model's tokenizer.json with --tokenizer",
                       k->name, name ? "\"" : "", name ? name : "not given",
                       name ? "\", which is not known here" : "");
    enum sl_code c = make_vocab(k);
    if (!c)
        c = make_splits(k, pre);
    k->b->vocab.ignore_merges = pre->ignore_merges;
    k->b->decodes[k->b->n_decodes++].kind = SL_BPE_DECODE_BYTE_LEVEL;
    return c ? c : make_merges(k);
}

/* --- "llama" ------------------------------------------------------------------------------------
 */

static int compare_scores(const void *a, const void *b) /* the highest first */
{
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

static uint32_t rank_of(const float *sorted, size_t n, float score)
{
    size_t lo = 0, hi = n; /* the first one that is not higher */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (sorted[mid] > score)
            lo = mid + 1;
        else
            hi = mid;
    }
    return (uint32_t)lo;
}

/* The cuts of a token into two tokens: how many there are. `add`: each becomes a merge. */
static size_t cut_token(struct sl_bpe_vocab *v, uint32_t id, uint32_t rank, bool add)
{
    const struct sl_token_span *t = &v->texts[id];
    const unsigned char *s = v->blob + t->offset;
    size_t n = 0;
    for (size_t i = 1; i < t->n; i++) {
        if ((s[i] & 0xC0) == 0x80)
            continue;
        uint32_t left = sl_bpe_vocab_find(v, s, i), right = sl_bpe_vocab_find(v, s + i, t->n - i);
        if (left == SL_BPE_NONE || right == SL_BPE_NONE)
            continue;
        n++;
        if (add)
            sl_bpe_merges_add(v, left, right, rank, id);
    }
    return n;
}

/* Merges begin at characters; where one were no token, SentencePiece could still join it. */
static enum sl_code check_characters(const struct maker *k, uint32_t id)
{
    const struct sl_bpe_vocab *v = &k->b->vocab;
    const struct sl_token_span *t = &v->texts[id];
    for (size_t i = 0, len; i < t->n; i += len) {
        const unsigned char *s = v->blob + t->offset + i;
        (void)sl_bpe_get_char(s, &len);
        if (sl_bpe_vocab_find(v, s, len) == SL_BPE_NONE)
            return sl_fail(k->err, SL_E_FILE_UNSUPPORTED,
                           "the tokenizer \"%s\", tokens[%u]: has a character that is no token by "
                           "itself",
                           k->name, (unsigned)id);
    }
    return SL_OK;
}

static enum sl_code make_score_merges(const struct maker *k)
{
    const struct sl_bpe_arrays *a = k->a;
    struct sl_bpe_vocab *v = &k->b->vocab;
    size_t n = 0;
    float *sorted = sl_malloc(a->n_tokens * sizeof *sorted);
    if (!sorted)
        return no_memory(k);
    memcpy(sorted, a->scores, a->n_tokens * sizeof *sorted);
    qsort(sorted, a->n_tokens, sizeof *sorted, compare_scores);
    enum sl_code c = SL_OK;
    for (uint32_t i = 0; !c && i < a->n_tokens; i++) {
        if (type_of(a, i) != SL_BPE_NORMAL)
            continue;
        c = check_characters(k, i);
        n += c ? 0 : cut_token(v, i, 0, false);
    }
    if (!c)
        c = sl_bpe_merges_init(v, n, k->err);
    for (uint32_t i = 0; !c && i < a->n_tokens; i++)
        if (type_of(a, i) == SL_BPE_NORMAL)
            cut_token(v, i, rank_of(sorted, a->n_tokens, a->scores[i]), true);
    sl_free(sorted);
    return c;
}

static enum sl_code put_text(const struct maker *k, const char *s, unsigned char **ret,
                             size_t *ret_n)
{
    *ret = (unsigned char *)sl_strdup(s);
    *ret_n = strlen(s);
    return *ret ? SL_OK : no_memory(k);
}

static enum sl_code make_blanks(const struct maker *k)
{
    static const char mark[] = "\xE2\x96\x81";
    struct sl_bpe *b = k->b;
    enum sl_code c = SL_OK;
    if (k->a->add_space_prefix) {
        struct sl_bpe_normal *p = &b->normals[b->n_normals++];
        p->kind = SL_BPE_PREPEND;
        c = put_text(k, mark, &p->content, &p->n_content);
    }
    struct sl_bpe_normal *r = &b->normals[b->n_normals++];
    r->kind = SL_BPE_REPLACE;
    if (!c)
        c = put_text(k, mark, &r->content, &r->n_content);
    if (!c)
        c = sl_bpe_pattern_literal(&r->pattern, " ", 1, k->err);
    struct sl_bpe_decode *d = &b->decodes[b->n_decodes++];
    d->kind = SL_BPE_DECODE_REPLACE;
    if (!c)
        c = put_text(k, " ", &d->content, &d->n_content);
    if (!c)
        c = sl_bpe_pattern_literal(&d->pattern, mark, strlen(mark), k->err);
    b->decodes[b->n_decodes++].kind = SL_BPE_DECODE_BYTE_FALLBACK;
    b->decodes[b->n_decodes++].kind = SL_BPE_DECODE_FUSE;
    if (!c && k->a->add_space_prefix) {
        d = &b->decodes[b->n_decodes++];
        *d = (struct sl_bpe_decode){.kind = SL_BPE_DECODE_STRIP, .start = 1};
        c = put_text(k, " ", &d->content, &d->n_content);
    }
    return c;
}

static enum sl_code make_llama(const struct maker *k)
{
    const struct sl_bpe_arrays *a = k->a;
    if (!a->scores)
        return sl_fail(k->err, SL_E_FILE_CORRUPT, "the tokenizer \"%s\": has no scores", k->name);
    for (size_t i = 0; i < a->n_tokens; i++)
        if (isnan(a->scores[i]))
            return sl_fail(k->err, SL_E_FILE_CORRUPT,
                           "the tokenizer \"%s\", scores[%zu]: is not a number", k->name, i);
    enum sl_code c = make_vocab(k);
    k->b->vocab.byte_fallback = true;
    k->b->vocab.fuse_unk = true;
    if (!c)
        c = make_score_merges(k);
    return c ? c : make_blanks(k);
}

/* --- all of it ----------------------------------------------------------------------------------
 */

static enum sl_code check_ends(const struct maker *k)
{
    const struct sl_bpe_arrays *a = k->a;
    if (a->begin >= (int64_t)a->n_tokens)
        return sl_fail(k->err, SL_E_FILE_CORRUPT,
                       "the tokenizer \"%s\": the begin token %lld is none of the %zu", k->name,
                       (long long)a->begin, a->n_tokens);
    if (a->n_ends > SL_TOKENIZER_ENDS_MAX)
        return sl_fail(k->err, SL_E_TOO_LARGE, "the tokenizer \"%s\": more than %d end tokens",
                       k->name, SL_TOKENIZER_ENDS_MAX);
    for (size_t i = 0; i < a->n_ends; i++)
        if (a->ends[i] >= a->n_tokens)
            return sl_fail(k->err, SL_E_FILE_CORRUPT,
                           "the tokenizer \"%s\": the end token %u is none of the %zu", k->name,
                           (unsigned)a->ends[i], a->n_tokens);
    return SL_OK;
}

static enum sl_code make(const struct maker *k, struct sl_tokenizer *t)
{
    const char *place = NULL;
    size_t index = SIZE_MAX;
    enum sl_code c = check_ends(k);
    if (c)
        return c;
    if (strcmp(k->a->model, "gpt2") == 0)
        c = make_gpt2(k);
    else if (strcmp(k->a->model, "llama") == 0)
        c = make_llama(k);
    else
        c = sl_fail(k->err, SL_E_FILE_UNSUPPORTED,
                    "the tokenizer \"%s\": its model, tokenizer.ggml.model, is \"%.60s\"; gpt2 and "
                    "llama are known here",
                    k->name, k->a->model);
    if (c)
        return c;
    c = sl_bpe_finish(t, k->b, &place, &index, k->err);
    if (c)
        return placed(k, place, index, c);
    t->begin = k->a->begin;
    sl_tokenizer_set_ends(t, k->a->ends, k->a->n_ends);
    return SL_OK;
}

enum sl_code sl_tokenizer_open_arrays(struct sl_tokenizer **ret, const struct sl_bpe_arrays *arrays,
                                      const char *name, struct sl_error *err)
{
    struct sl_error own;
    struct sl_tokenizer *t = sl_calloc(1, sizeof *t);
    struct sl_bpe *b = sl_calloc(1, sizeof *b);
    const struct maker k = {.a = arrays, .b = b, .name = name, .err = err ? err : &own};
    enum sl_code c = t && b ? SL_OK : no_memory(&k);
    if (!c) {
        t->kind = &sl_tokenizer_bpe;
        t->begin = -1;
        c = make(&k, t);
    }
    if (c) {
        sl_bpe_free(b);
        sl_free(t);
        return c;
    }
    sl_tokenizer_finish(t);
    *ret = t;
    return SL_OK;
}
