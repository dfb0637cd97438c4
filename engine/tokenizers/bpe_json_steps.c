/* bpe_json_steps.c: "normalizer" and "pre_tokenizer" of a tokenizer.json: see bpe_json.h.
 *
 * One row for each type. What a row does with regular expressions says the same as the library's
 * own code for that type: a Digits is a Split at \p{N} (Rust's char::is_numeric), a Punctuation at
 * ASCII's and Unicode's P, a WhitespaceSplit at \s, a Whitespace at Rust's \w, which is more than
 * Oniguruma's. */
#include "engine/tokenizers/bpe_json.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

static enum sl_code too_many(const struct json_reader *r, const struct place *at)
{
    return sl_bpe_json_unknown(r, at, "more than %d steps", SL_BPE_STEPS_MAX);
}

/* --- normalisers --------------------------------------------------------------------------------
 */

static enum sl_code new_normal(const struct json_reader *r, struct sl_bpe *b,
                               const struct place *at, enum sl_bpe_normal_kind kind,
                               struct sl_bpe_normal **ret)
{
    if (b->n_normals == SL_BPE_STEPS_MAX)
        return too_many(r, at);
    *ret = &b->normals[b->n_normals++];
    **ret = (struct sl_bpe_normal){.kind = kind};
    return SL_OK;
}

#define PLAIN_NORMAL(name, kind)                                                                   \
    static enum sl_code name(const struct json_reader *r, void *dst, const struct place *at,       \
                             const json_t *v)                                                      \
    {                                                                                              \
        struct sl_bpe_normal *k;                                                                   \
        (void)v;                                                                                   \
        return new_normal(r, dst, at, kind, &k);                                                   \
    }

PLAIN_NORMAL(read_nfc, SL_BPE_NFC)
PLAIN_NORMAL(read_nfd, SL_BPE_NFD)
PLAIN_NORMAL(read_nfkc, SL_BPE_NFKC)
PLAIN_NORMAL(read_nfkd, SL_BPE_NFKD)
PLAIN_NORMAL(read_lowercase, SL_BPE_LOWERCASE)

static enum sl_code read_replace(const struct json_reader *r, void *dst, const struct place *at,
                                 const json_t *v)
{
    struct sl_bpe_normal *k = NULL;
    enum sl_code c = new_normal(r, dst, at, SL_BPE_REPLACE, &k);
    if (!c)
        c = sl_bpe_json_pattern(r, at, v, &k->pattern);
    return c ? c : sl_bpe_json_bytes(r, at, v, "content", &k->content, &k->n_content);
}

static enum sl_code read_prepend(const struct json_reader *r, void *dst, const struct place *at,
                                 const json_t *v)
{
    struct sl_bpe_normal *k = NULL;
    enum sl_code c = new_normal(r, dst, at, SL_BPE_PREPEND, &k);
    return c ? c : sl_bpe_json_bytes(r, at, v, "prepend", &k->content, &k->n_content);
}

static enum sl_code read_strip(const struct json_reader *r, void *dst, const struct place *at,
                               const json_t *v)
{
    struct sl_bpe_normal *k = NULL;
    enum sl_code c = new_normal(r, dst, at, SL_BPE_STRIP, &k);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "strip_left", &k->left);
    return c ? c : sl_bpe_json_bool(r, at, v, "strip_right", &k->right);
}

/* Removes every mark; the library decomposes nothing first. */
static enum sl_code read_strip_accents(const struct json_reader *r, void *dst,
                                       const struct place *at, const json_t *v)
{
    struct sl_bpe_normal *k = NULL;
    (void)v;
    enum sl_code c = new_normal(r, dst, at, SL_BPE_REPLACE, &k);
    return c ? c
             : sl_bpe_json_placed(
                   r, at, sl_bpe_pattern_regex(&k->pattern, "\\p{M}", strlen("\\p{M}"), r->err));
}

static const struct json_type normalizers[] = {
    {"NFC", read_nfc},
    {"NFD", read_nfd},
    {"NFKC", read_nfkc},
    {"NFKD", read_nfkd},
    {"Lowercase", read_lowercase},
    {"Replace", read_replace},
    {"Prepend", read_prepend},
    {"Strip", read_strip},
    {"StripAccents", read_strip_accents},
};

enum sl_code sl_bpe_json_normalizer(const struct json_reader *r, struct sl_bpe *b,
                                    const struct place *at, const json_t *v)
{
    if (!v || json_is_null(v))
        return SL_OK;
    return sl_bpe_json_typed(r, normalizers, sizeof normalizers / sizeof *normalizers,
                             "normalizers", b, at, v);
}

/* --- splitters ----------------------------------------------------------------------------------
 */

static enum sl_code new_split(const struct json_reader *r, struct sl_bpe *b, const struct place *at,
                              enum sl_bpe_split_kind kind, enum sl_bpe_behavior behavior,
                              struct sl_bpe_split **ret)
{
    if (b->n_splits == SL_BPE_STEPS_MAX)
        return too_many(r, at);
    *ret = &b->splits[b->n_splits++];
    **ret = (struct sl_bpe_split){.kind = kind, .behavior = behavior};
    return SL_OK;
}

static enum sl_code read_behavior(const struct json_reader *r, const struct place *at,
                                  const json_t *v, enum sl_bpe_behavior *ret)
{
    static const char *const names[] = {[SL_BPE_REMOVED] = "Removed",
                                        [SL_BPE_ISOLATED] = "Isolated",
                                        [SL_BPE_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [SL_BPE_MERGED_WITH_NEXT] = "MergedWithNext",
                                        [SL_BPE_CONTIGUOUS] = "Contiguous"};
    const char *s = NULL;
    size_t n = 0;
    enum sl_code c = sl_bpe_json_text(r, at, v, "behavior", &s, &n);
    if (c || !s)
        return c;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], s) == 0) {
            *ret = (enum sl_bpe_behavior)i;
            return SL_OK;
        }
    }
    return sl_bpe_json_unknown(r, AT(at, "behavior"), "\"%.60s\" is not known here", s);
}

static enum sl_code read_split(const struct json_reader *r, void *dst, const struct place *at,
                               const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    enum sl_code c = new_split(r, dst, at, SL_BPE_SPLIT, SL_BPE_ISOLATED, &k);
    if (!c && !json_is_string(json_object_get(v, "behavior")))
        c = sl_bpe_json_bad(r, AT(at, "behavior"), "must be there, a string");
    if (!c)
        c = sl_bpe_json_pattern(r, at, v, &k->pattern);
    if (!c)
        c = read_behavior(r, at, v, &k->behavior);
    return c ? c : sl_bpe_json_bool(r, at, v, "invert", &k->invert);
}

/* A Split at an expression of ours. */
static enum sl_code split_at(const struct json_reader *r, struct sl_bpe *b, const struct place *at,
                             const char *regex, enum sl_bpe_behavior behavior,
                             struct sl_bpe_split **ret)
{
    enum sl_code c = new_split(r, b, at, SL_BPE_SPLIT, behavior, ret);
    if (c)
        return c;
    return sl_bpe_json_placed(r, at,
                              sl_bpe_pattern_regex(&(*ret)->pattern, regex, strlen(regex), r->err));
}

static enum sl_code read_digits(const struct json_reader *r, void *dst, const struct place *at,
                                const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    bool individual = false;
    enum sl_code c = sl_bpe_json_bool(r, at, v, "individual_digits", &individual);
    return c ? c
             : split_at(r, dst, at, "\\p{N}", individual ? SL_BPE_ISOLATED : SL_BPE_CONTIGUOUS, &k);
}

static enum sl_code read_punctuation(const struct json_reader *r, void *dst, const struct place *at,
                                     const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    enum sl_code c = split_at(r, dst, at, SL_BPE_PUNCTUATION, SL_BPE_ISOLATED, &k);
    return c ? c : read_behavior(r, at, v, &k->behavior);
}

static enum sl_code read_whitespace(const struct json_reader *r, void *dst, const struct place *at,
                                    const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    (void)v;
    enum sl_code c =
        split_at(r, dst, at, "[" SL_BPE_WORD "]+|[^" SL_BPE_WORD "\\s]+", SL_BPE_REMOVED, &k);
    if (!c)
        k->invert = true;
    return c;
}

static enum sl_code read_whitespace_split(const struct json_reader *r, void *dst,
                                          const struct place *at, const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    (void)v;
    return split_at(r, dst, at, "\\s", SL_BPE_REMOVED, &k);
}

/* One character under `key`. */
static enum sl_code read_char(const struct json_reader *r, const struct place *at, const json_t *v,
                              const char *key, const char **ret, size_t *ret_n)
{
    size_t bad;
    enum sl_code c = sl_bpe_json_text(r, at, v, key, ret, ret_n);
    if (c)
        return c;
    if (!*ret || !*ret_n || sl_utf8_char((const unsigned char *)*ret, *ret_n, &bad) != *ret_n)
        return sl_bpe_json_bad(r, AT(at, key), "must be there, one character");
    return SL_OK;
}

static enum sl_code read_delimiter(const struct json_reader *r, void *dst, const struct place *at,
                                   const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    const char *s = NULL;
    size_t n = 0;
    enum sl_code c = new_split(r, dst, at, SL_BPE_SPLIT, SL_BPE_REMOVED, &k);
    if (!c)
        c = read_char(r, at, v, "delimiter", &s, &n);
    return c ? c
             : sl_bpe_json_placed(r, AT(at, "delimiter"),
                                  sl_bpe_pattern_literal(&k->pattern, s, n, r->err));
}

static enum sl_code read_byte_level(const struct json_reader *r, void *dst, const struct place *at,
                                    const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    bool use_regex = true;
    enum sl_code c = new_split(r, dst, at, SL_BPE_BYTE_LEVEL, SL_BPE_ISOLATED, &k);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "add_prefix_space", &k->add_prefix_space);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "use_regex", &use_regex);
    if (!c && use_regex)
        c = sl_bpe_json_placed(
            r, at, sl_bpe_pattern_regex(&k->pattern, SL_BPE_GPT2, strlen(SL_BPE_GPT2), r->err));
    return c;
}

static enum sl_code read_scheme(const struct json_reader *r, const struct place *at,
                                const json_t *v, enum sl_bpe_scheme *ret)
{
    static const char *const names[] = {
        [SL_BPE_ALWAYS] = "always", [SL_BPE_FIRST] = "first", [SL_BPE_NEVER] = "never"};
    const char *s = NULL;
    size_t n = 0, i = 0;
    bool prefix = true;
    enum sl_code c = sl_bpe_json_text(r, at, v, "prepend_scheme", &s, &n);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "add_prefix_space", &prefix);
    if (c)
        return c;
    *ret = SL_BPE_ALWAYS;
    while (s && i < sizeof names / sizeof *names && strcmp(names[i], s) != 0)
        i++;
    if (i == sizeof names / sizeof *names)
        return sl_bpe_json_unknown(r, AT(at, "prepend_scheme"), "\"%.60s\" is not known here", s);
    if (s)
        *ret = (enum sl_bpe_scheme)i;
    if (!prefix && *ret != SL_BPE_NEVER)
        return sl_bpe_json_bad(r, AT(at, "add_prefix_space"), "does not match prepend_scheme");
    return SL_OK;
}

static enum sl_code read_metaspace(const struct json_reader *r, void *dst, const struct place *at,
                                   const json_t *v)
{
    struct sl_bpe_split *k = NULL;
    const char *s = NULL;
    size_t n = 0;
    bool split = true;
    enum sl_code c = new_split(r, dst, at, SL_BPE_METASPACE, SL_BPE_MERGED_WITH_NEXT, &k);
    if (!c)
        c = read_char(r, at, v, "replacement", &s, &n);
    if (!c)
        c = read_scheme(r, at, v, &k->scheme);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "split", &split);
    if (c)
        return c;
    memcpy(k->replacement, s, n);
    k->n_replacement = n;
    return split ? sl_bpe_json_placed(r, at, sl_bpe_pattern_literal(&k->pattern, s, n, r->err))
                 : SL_OK;
}

static const struct json_type pre_tokenizers[] = {
    {"ByteLevel", read_byte_level},
    {"Split", read_split},
    {"Digits", read_digits},
    {"Punctuation", read_punctuation},
    {"Metaspace", read_metaspace},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_whitespace_split},
    {"CharDelimiterSplit", read_delimiter},
    {"Delimiter", read_delimiter},
};

enum sl_code sl_bpe_json_pre_tokenizer(const struct json_reader *r, struct sl_bpe *b,
                                       const struct place *at, const json_t *v)
{
    if (!v || json_is_null(v))
        return SL_OK;
    return sl_bpe_json_typed(r, pre_tokenizers, sizeof pre_tokenizers / sizeof *pre_tokenizers,
                             "pretokenizers", b, at, v);
}
