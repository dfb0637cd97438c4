/* bpe_json.c: a tokenizer.json as Hugging Face's tokenizers library writes it -> a struct sl_bpe.
 *
 * Everything that changes which ids a text becomes, or which text ids become, is either done as
 * that library does it or refused with its place in the file. Keys that change neither (version,
 * truncation and padding, which are for the caller to apply; offsets) are not looked at. An
 * unknown key of a known type cannot be told from one of those, and is not looked at either.
 *
 * Stricter than the library, where a file contradicts itself: two texts of one id, an added token
 * whose id is not the one that the library would give it, a merge of tokens that the vocabulary
 * does not have. */
#include "engine/tokenizers/bpe_json.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/jansson_parse.h"

bool sl_bpe_json_knows(const unsigned char *data, size_t n_bytes)
{
    size_t i = 0;
    while (i < n_bytes && (data[i] == ' ' || (data[i] >= '\t' && data[i] <= '\r')))
        i++;
    return i < n_bytes && data[i] == '{';
}

/* --- the vocabulary -----------------------------------------------------------------------------
 */

/* Ids are checked and counted, so that the tables can be made. */
static enum sl_code measure_vocab(const struct json_reader *r, const struct place *at, json_t *v,
                                  size_t *ret_bytes, size_t *ret_n_ids)
{
    const char *text;
    json_t *id;
    size_t n;
    if (!json_is_object(v))
        return sl_bpe_json_bad(r, at, "must be an object: a token's text and its id");
    json_object_keylen_foreach(v, text, n, id)
    {
        json_int_t x = json_is_integer(id) ? json_integer_value(id) : -1;
        if (x < 0 || x > SL_VOCAB_ID_MAX)
            return sl_bpe_json_bad(r, at, "the token \"%.60s\" must have an id from 0 to %d", text,
                                   SL_VOCAB_ID_MAX);
        *ret_bytes += n;
        if ((size_t)x >= *ret_n_ids)
            *ret_n_ids = (size_t)x + 1;
    }
    if (json_object_size(v) == 0)
        return sl_bpe_json_bad(r, at, "is empty");
    return SL_OK;
}

static enum sl_code fill_vocab(const struct json_reader *r, const struct place *at, json_t *v,
                               struct sl_bpe_vocab *vocab, unsigned char *taken)
{
    const char *text;
    json_t *id;
    size_t n;
    json_object_keylen_foreach(v, text, n, id)
    {
        size_t x = (size_t)json_integer_value(id);
        if (taken[x]) {
            const struct sl_token_span *other = &vocab->texts[x];
            return sl_bpe_json_bad(r, at, "\"%.60s\" and \"%.*s\" have one id, %zu", text,
                                   (int)(other->n < 60 ? other->n : 60),
                                   (const char *)vocab->blob + other->offset, x);
        }
        taken[x] = 1;
        vocab->texts[x] =
            (struct sl_token_span){.offset = (uint32_t)vocab->n_blob, .n = (uint32_t)n};
        memcpy(vocab->blob + vocab->n_blob, text, n);
        vocab->n_blob += n;
    }
    return SL_OK;
}

static enum sl_code read_vocab(const struct json_reader *r, const struct place *at, json_t *v,
                               struct sl_bpe_vocab *vocab)
{
    size_t n_bytes = 0;
    uint32_t twin = 0;
    enum sl_code c = measure_vocab(r, at, v, &n_bytes, &vocab->n_ids);
    if (c)
        return c;
    vocab->n_tokens = json_object_size(v);
    vocab->blob = sl_malloc(n_bytes + 1);
    vocab->texts = sl_calloc(vocab->n_ids, sizeof *vocab->texts);
    unsigned char *taken = sl_calloc(vocab->n_ids, 1);
    if (!vocab->blob || !vocab->texts || !taken)
        c = sl_bpe_json_no_memory(r);
    if (!c)
        c = fill_vocab(r, at, v, vocab, taken);
    sl_free(taken);
    return c ? c : sl_bpe_json_placed(r, at, sl_bpe_vocab_index(vocab, &twin, r->err));
}

/* --- merges -------------------------------------------------------------------------------------
 */

struct half {
    const char *s;
    size_t n;
};

/* "a b" or ["a", "b"] */
static bool halve(const json_t *v, struct half ret[2])
{
    if (json_is_array(v)) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *s = json_array_get(v, i);
            ret[i] = (struct half){.s = json_string_value(s), .n = json_string_length(s)};
        }
        return json_array_size(v) == 2 && ret[0].s && ret[1].s;
    }
    const char *s = json_string_value(v), *blank = s ? strchr(s, ' ') : NULL;
    if (!blank || strchr(blank + 1, ' '))
        return false;
    ret[0] = (struct half){.s = s, .n = (size_t)(blank - s)};
    ret[1] = (struct half){.s = blank + 1, .n = strlen(blank + 1)};
    return true;
}

static enum sl_code read_merge(const struct json_reader *r, const struct place *at, const json_t *v,
                               struct sl_bpe_vocab *vocab, uint32_t rank)
{
    struct half h[2];
    if (!halve(v, h))
        return sl_bpe_json_bad(r, at, "must be two tokens, \"a b\" or [\"a\", \"b\"]");
    return sl_bpe_json_placed(
        r, at, sl_bpe_merges_join(vocab, h[0].s, h[0].n, h[1].s, h[1].n, rank, r->err));
}

static enum sl_code read_merges(const struct json_reader *r, const struct place *at,
                                const json_t *list, struct sl_bpe_vocab *vocab)
{
    const json_t *v;
    size_t i;
    uint32_t rank = 0;
    if (!json_is_array(list))
        return sl_bpe_json_bad(r, at, "must be a list");
    enum sl_code c = sl_bpe_merges_init(vocab, json_array_size(list), r->err);
    if (c)
        return sl_bpe_json_no_memory(r);
    json_array_foreach(list, i, v)
    {
        const char *line = json_string_value(v);
        if (line && strncmp(line, "#version", 8) == 0)
            continue; /* of a merges.txt */
        c = read_merge(r, AT_INDEX(at, i), v, vocab, rank++);
        if (c)
            return c;
    }
    return SL_OK;
}

/* --- the model ----------------------------------------------------------------------------------
 */

static enum sl_code read_affix(const struct json_reader *r, const struct place *at, const json_t *v,
                               const char *key, unsigned char **ret, size_t *ret_n)
{
    const json_t *s = json_object_get(v, key);
    if (!s || json_is_null(s))
        return SL_OK;
    enum sl_code c = sl_bpe_json_bytes(r, at, v, key, ret, ret_n);
    if (!c && *ret_n > SL_TOKEN_BYTES_MAX)
        c = sl_bpe_json_bad(r, AT(at, key), "has more than %d bytes", SL_TOKEN_BYTES_MAX);
    return c;
}

static enum sl_code read_options(const struct json_reader *r, const struct place *at,
                                 const json_t *v, struct sl_bpe_vocab *vocab)
{
    const char *type = NULL;
    size_t n = 0;
    const json_t *dropout = json_object_get(v, "dropout");
    enum sl_code c = sl_bpe_json_text(r, at, v, "type", &type, &n);
    if (!c && type && strcmp(type, "BPE") != 0)
        return sl_bpe_json_unknown(r, at, "the type \"%.60s\" is not known here; BPE is", type);
    if (!c && dropout && !json_is_null(dropout) &&
        (!json_is_number(dropout) || json_number_value(dropout) != 0))
        return sl_bpe_json_unknown(r, AT(at, "dropout"), "merges left out at random");
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "byte_fallback", &vocab->byte_fallback);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "fuse_unk", &vocab->fuse_unk);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "ignore_merges", &vocab->ignore_merges);
    if (!c)
        c = read_affix(r, at, v, "continuing_subword_prefix", &vocab->prefix, &vocab->n_prefix);
    if (!c)
        c = read_affix(r, at, v, "end_of_word_suffix", &vocab->suffix, &vocab->n_suffix);
    return c;
}

static enum sl_code read_model(const struct json_reader *r, struct sl_bpe *b, const json_t *v)
{
    const struct place *at = AT(NULL, "model");
    struct sl_bpe_vocab *vocab = &b->vocab;
    const char *unk = NULL;
    size_t n = 0;
    if (!json_is_object(v))
        return sl_bpe_json_bad(r, at, "must be an object");
    enum sl_code c = read_options(r, at, v, vocab);
    if (!c)
        c = read_vocab(r, AT(at, "vocab"), json_object_get(v, "vocab"), vocab);
    if (!c)
        c = sl_bpe_json_text(r, at, v, "unk_token", &unk, &n);
    if (c)
        return c;
    vocab->unk = unk ? sl_bpe_vocab_find(vocab, unk, n) : SL_BPE_NONE;
    if (unk && vocab->unk == SL_BPE_NONE)
        return sl_bpe_json_bad(r, AT(at, "unk_token"), "the vocabulary does not have \"%.60s\"",
                               unk);
    return read_merges(r, AT(at, "merges"), json_object_get(v, "merges"), vocab);
}

/* --- added tokens -------------------------------------------------------------------------------
 */

static enum sl_code read_added_token(const struct json_reader *r, const struct place *at,
                                     const json_t *v, struct sl_bpe_added *a)
{
    uint64_t id = 0;
    a->normalized = true;
    if (!json_is_object(v))
        return sl_bpe_json_bad(r, at, "must be an object");
    enum sl_code c = sl_bpe_json_count(r, at, v, "id", SL_VOCAB_ID_MAX, &id);
    if (!c)
        c = sl_bpe_json_bytes(r, at, v, "content", &a->content, &a->n_content);
    if (!c && a->n_content == 0)
        c = sl_bpe_json_bad(r, AT(at, "content"), "is empty");
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "single_word", &a->single_word);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "lstrip", &a->lstrip);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "rstrip", &a->rstrip);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "normalized", &a->normalized);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "special", &a->special);
    a->id = (uint32_t)id;
    return c;
}

/* Its id is the vocabulary's, or the next one after it. */
static enum sl_code check_added(const struct json_reader *r, const struct place *at,
                                const struct sl_bpe *b, const struct sl_bpe_added *a,
                                uint32_t *next)
{
    uint32_t id = sl_bpe_vocab_find(&b->vocab, a->content, a->n_content);
    const char *why = "the vocabulary gives";
    if (id == SL_BPE_NONE) {
        id = (*next)++;
        why = "the next free id for";
        if (id < b->vocab.n_ids && b->vocab.texts[id].n)
            return sl_bpe_json_bad(r, AT(at, "id"),
                                   "%u is another token's: the vocabulary has holes", (unsigned)id);
    }
    if (id != a->id)
        return sl_bpe_json_bad(r, AT(at, "id"), "is %u; %s \"%.60s\" is %u", (unsigned)a->id, why,
                               (const char *)a->content, (unsigned)id);
    return SL_OK;
}

static int compare_contents(const void *a, const void *b)
{
    const struct sl_bpe_added *x = *(const struct sl_bpe_added *const *)a;
    const struct sl_bpe_added *y = *(const struct sl_bpe_added *const *)b;
    return sl_bpe_compare(x->content, x->n_content, y->content, y->n_content);
}

static enum sl_code check_twins(const struct json_reader *r, const struct place *at,
                                const struct sl_bpe *b)
{
    enum sl_code c = SL_OK;
    const struct sl_bpe_added **v = sl_malloc((b->n_added + 1) * sizeof(void *));
    if (!v)
        return sl_bpe_json_no_memory(r);
    for (size_t i = 0; i < b->n_added; i++)
        v[i] = &b->added[i];
    qsort(v, b->n_added, sizeof(void *), compare_contents);
    for (size_t i = 1; !c && i < b->n_added; i++) {
        const struct sl_bpe_added *second = v[i] > v[i - 1] ? v[i] : v[i - 1];
        if (compare_contents(&v[i - 1], &v[i]) == 0)
            c = sl_bpe_json_bad(r, AT_INDEX(at, (size_t)(second - b->added)),
                                "\"%.60s\" stands here twice", (const char *)second->content);
    }
    sl_free(v);
    return c;
}

static enum sl_code read_added(const struct json_reader *r, struct sl_bpe *b, const json_t *list)
{
    const struct place *at = AT(NULL, "added_tokens");
    const json_t *v;
    size_t i;
    uint32_t next = (uint32_t)b->vocab.n_tokens;
    if (!list || json_is_null(list))
        return SL_OK;
    if (!json_is_array(list))
        return sl_bpe_json_bad(r, at, "must be a list");
    if (json_array_size(list) > SL_BPE_ADDED_MAX)
        return sl_bpe_json_bad(r, at, "has more than %d elements", SL_BPE_ADDED_MAX);
    b->added = sl_calloc(json_array_size(list) + 1, sizeof *b->added);
    if (!b->added)
        return sl_bpe_json_no_memory(r);
    json_array_foreach(list, i, v)
    {
        struct sl_bpe_added *a = &b->added[b->n_added++];
        enum sl_code c = read_added_token(r, AT_INDEX(at, i), v, a);
        if (!c)
            c = check_added(r, AT_INDEX(at, i), b, a, &next);
        if (c)
            return c;
    }
    return check_twins(r, at, b);
}

/* --- all of it ----------------------------------------------------------------------------------
 */

static enum sl_code read_all(const struct json_reader *r, struct sl_tokenizer *t, struct sl_bpe *b,
                             const json_t *v)
{
    enum sl_code c = read_model(r, b, json_object_get(v, "model"));
    if (!c)
        c = sl_bpe_json_normalizer(r, b, AT(NULL, "normalizer"), json_object_get(v, "normalizer"));
    if (!c)
        c = sl_bpe_json_pre_tokenizer(r, b, AT(NULL, "pre_tokenizer"),
                                      json_object_get(v, "pre_tokenizer"));
    if (!c)
        c = sl_bpe_json_decoder(r, b, AT(NULL, "decoder"), json_object_get(v, "decoder"));
    if (!c)
        c = read_added(r, b, json_object_get(v, "added_tokens"));
    if (!c)
        c = sl_bpe_json_post_processor(r, t, AT(NULL, "post_processor"),
                                       json_object_get(v, "post_processor"));
    return c;
}

enum sl_code sl_bpe_json_read(struct sl_tokenizer *t, struct sl_bpe *b, const unsigned char *data,
                              size_t n_bytes, const char *name, struct sl_error *err)
{
    struct sl_error own;
    const struct json_reader r = {.name = name, .err = err ? err : &own};
    json_error_t why = {0};
    const char *place = NULL;
    size_t index = SIZE_MAX;
    json_t *v = sl_jansson_parse((const char *)data, n_bytes, 0, &why);
    if (!v && !why.text[0])
        return sl_bpe_json_no_memory(&r);
    if (!v)
        return sl_fail(r.err, SL_E_FILE_CORRUPT, "the tokenizer \"%s\", line %d: %s", name,
                       why.line, why.text);
    enum sl_code c = read_all(&r, t, b, v);
    json_decref(v);
    if (c)
        return c;
    c = sl_bpe_finish(t, b, &place, &index, r.err);
    if (c && index != SIZE_MAX)
        return sl_bpe_json_placed(&r, AT_INDEX(AT(NULL, place), index), c);
    return c ? sl_bpe_json_placed(&r, AT(NULL, place), c) : SL_OK;
}
