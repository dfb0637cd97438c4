/* bpe_json_ends.c: "decoder" and "post_processor" of a tokenizer.json: see bpe_json.h.
 *
 * Decoders are accepted in orders in which a token's bytes depend on nothing but the token and
 * whether it is the first one (bpe_decode.c): what works on each token, then what turns tokens into
 * bytes (ByteLevel, ByteFallback), then Fuse, then a Strip of one character from the beginning. Of
 * post-processors what concerns a single text: one token before it. */
#include "engine/tokenizers/bpe_json.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

/* --- decoders -----------------------------------------------------------------------------------
 */

struct decoders {
    struct sl_bpe *b;
    bool bytes; /* some tokens are bytes now */
    bool fused; /* there is one text now */
};

static enum sl_code new_decode(const struct json_reader *r, struct decoders *d,
                               const struct place *at, enum sl_bpe_decode_kind kind,
                               struct sl_bpe_decode **ret)
{
    if (d->b->n_decodes == SL_BPE_STEPS_MAX)
        return sl_bpe_json_unknown(r, at, "more than %d steps", SL_BPE_STEPS_MAX);
    *ret = &d->b->decodes[d->b->n_decodes++];
    **ret = (struct sl_bpe_decode){.kind = kind};
    return SL_OK;
}

/* For decoders that look at each token's text. */
static enum sl_code needs_tokens(const struct json_reader *r, const struct decoders *d,
                                 const struct place *at)
{
    if (!d->bytes && !d->fused)
        return SL_OK;
    return sl_bpe_json_unknown(r, at,
                               "after ByteLevel, ByteFallback or Fuse this cannot be done token by "
                               "token");
}

static enum sl_code decode_byte_level(const struct json_reader *r, void *dst,
                                      const struct place *at, const json_t *v)
{
    struct decoders *d = dst;
    struct sl_bpe_decode *k;
    (void)v;
    enum sl_code c = needs_tokens(r, d, at);
    d->bytes = d->fused = true;
    return c ? c : new_decode(r, d, at, SL_BPE_DECODE_BYTE_LEVEL, &k);
}

static enum sl_code decode_byte_fallback(const struct json_reader *r, void *dst,
                                         const struct place *at, const json_t *v)
{
    struct decoders *d = dst;
    struct sl_bpe_decode *k;
    (void)v;
    enum sl_code c = needs_tokens(r, d, at);
    d->bytes = true;
    return c ? c : new_decode(r, d, at, SL_BPE_DECODE_BYTE_FALLBACK, &k);
}

static enum sl_code decode_fuse(const struct json_reader *r, void *dst, const struct place *at,
                                const json_t *v)
{
    struct decoders *d = dst;
    struct sl_bpe_decode *k;
    (void)v;
    d->fused = true;
    return new_decode(r, d, at, SL_BPE_DECODE_FUSE, &k);
}

static enum sl_code decode_replace(const struct json_reader *r, void *dst, const struct place *at,
                                   const json_t *v)
{
    struct decoders *d = dst;
    struct sl_bpe_decode *k = NULL;
    enum sl_code c = needs_tokens(r, d, at);
    if (!c)
        c = new_decode(r, d, at, SL_BPE_DECODE_REPLACE, &k);
    if (!c)
        c = sl_bpe_json_pattern(r, at, v, &k->pattern);
    return c ? c : sl_bpe_json_bytes(r, at, v, "content", &k->content, &k->n_content);
}

/* The one character under `key`, kept as the step's content. */
static enum sl_code decode_char(const struct json_reader *r, const struct place *at,
                                const json_t *v, const char *key, struct sl_bpe_decode *k)
{
    size_t bad;
    enum sl_code c = sl_bpe_json_bytes(r, at, v, key, &k->content, &k->n_content);
    if (c)
        return c;
    if (!k->n_content || sl_utf8_char(k->content, k->n_content, &bad) != k->n_content)
        return sl_bpe_json_bad(r, AT(at, key), "must be one character");
    return SL_OK;
}

static enum sl_code decode_metaspace(const struct json_reader *r, void *dst, const struct place *at,
                                     const json_t *v)
{
    struct decoders *d = dst;
    struct sl_bpe_decode *k = NULL;
    const char *scheme = NULL;
    size_t n = 0;
    bool prefix = true;
    enum sl_code c = needs_tokens(r, d, at);
    if (!c)
        c = new_decode(r, d, at, SL_BPE_DECODE_METASPACE, &k);
    if (!c)
        c = decode_char(r, at, v, "replacement", k);
    if (!c)
        c = sl_bpe_json_text(r, at, v, "prepend_scheme", &scheme, &n);
    if (!c)
        c = sl_bpe_json_bool(r, at, v, "add_prefix_space", &prefix);
    if (c)
        return c;
    if (scheme && strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 &&
        strcmp(scheme, "never") != 0)
        return sl_bpe_json_unknown(r, AT(at, "prepend_scheme"), "\"%.60s\" is not known here",
                                   scheme);
    k->drops_first = prefix && (!scheme || strcmp(scheme, "never") != 0);
    return SL_OK;
}

static enum sl_code decode_strip(const struct json_reader *r, void *dst, const struct place *at,
                                 const json_t *v)
{
    struct decoders *d = dst;
    struct sl_bpe_decode *k = NULL;
    uint64_t start = 0, stop = 0;
    enum sl_code c = new_decode(r, d, at, SL_BPE_DECODE_STRIP, &k);
    if (!c)
        c = decode_char(r, at, v, "content", k);
    if (!c)
        c = sl_bpe_json_count(r, at, v, "start", SL_TOKEN_BYTES_MAX, &start);
    if (!c)
        c = sl_bpe_json_count(r, at, v, "stop", SL_TOKEN_BYTES_MAX, &stop);
    if (c)
        return c;
    k->start = (size_t)start;
    k->stop = (size_t)stop;
    if (!d->fused)
        return needs_tokens(r, d, at);
    if (stop)
        return sl_bpe_json_unknown(r, AT(at, "stop"),
                                   "what is stripped from a text's end is not known while it is "
                                   "generated");
    if (start > 1 || k->n_content > 1)
        return sl_bpe_json_unknown(r, AT(at, start > 1 ? "start" : "content"),
                                   "of a whole text one character of ASCII can be stripped");
    return SL_OK;
}

static const struct json_type decoders[] = {
    {"ByteLevel", decode_byte_level},
    {"ByteFallback", decode_byte_fallback},
    {"Fuse", decode_fuse},
    {"Replace", decode_replace},
    {"Metaspace", decode_metaspace},
    {"Strip", decode_strip},
};

enum sl_code sl_bpe_json_decoder(const struct json_reader *r, struct sl_bpe *b,
                                 const struct place *at, const json_t *v)
{
    struct decoders d = {.b = b};
    struct sl_bpe_decode *k;
    if (!v || json_is_null(v))
        return new_decode(r, &d, at, SL_BPE_DECODE_JOIN, &k);
    return sl_bpe_json_typed(r, decoders, sizeof decoders / sizeof *decoders, "decoders", &d, at,
                             v);
}

/* --- post-processors ----------------------------------------------------------------------------
 */

/* It moves offsets only. */
static enum sl_code post_byte_level(const struct json_reader *r, void *dst, const struct place *at,
                                    const json_t *v)
{
    (void)r;
    (void)dst;
    (void)at;
    (void)v;
    return SL_OK;
}

/* The ids that special_tokens gives a name of the template: exactly one. */
static enum sl_code special_id(const struct json_reader *r, const struct place *at, const json_t *v,
                               const char *name, uint32_t *ret)
{
    const json_t *entry = json_object_get(json_object_get(v, "special_tokens"), name);
    const json_t *ids = json_object_get(entry, "ids"), *id = json_array_get(ids, 0);
    if (!entry)
        return sl_bpe_json_bad(r, AT(at, "special_tokens"), "lacks \"%.60s\"", name);
    if (json_array_size(ids) != 1)
        return sl_bpe_json_unknown(r, AT(at, "special_tokens"),
                                   "\"%.60s\" has %zu ids; one is possible", name,
                                   json_array_size(ids));
    json_int_t x = json_is_integer(id) ? json_integer_value(id) : -1;
    if (x < 0 || x > SL_VOCAB_ID_MAX)
        return sl_bpe_json_bad(r, AT(at, "special_tokens"),
                               "\"%.60s\" must have an id from 0 to %d", name, SL_VOCAB_ID_MAX);
    *ret = (uint32_t)x;
    return SL_OK;
}

static enum sl_code post_piece(const struct json_reader *r, struct sl_tokenizer *t,
                               const struct place *at, const json_t *v, const json_t *piece,
                               bool *has_text, const struct place *top)
{
    const json_t *special = json_object_get(piece, "SpecialToken");
    const json_t *sequence = json_object_get(piece, "Sequence");
    const char *name = NULL;
    size_t n = 0;
    if (!special == !sequence)
        return sl_bpe_json_bad(r, at, "must be a SpecialToken or a Sequence");
    enum sl_code c = sl_bpe_json_text(r, at, special ? special : sequence, "id", &name, &n);
    if (c)
        return c;
    if (!name)
        return sl_bpe_json_bad(r, AT(at, "id"), "must be there");
    if (sequence) {
        if (*has_text || strcmp(name, "A") != 0)
            return sl_bpe_json_unknown(r, at, "one Sequence is possible, \"A\"");
        *has_text = true;
        return SL_OK;
    }
    uint32_t id = 0;
    c = special_id(r, top, v, name, &id);
    if (c)
        return c;
    if (*has_text)
        return sl_bpe_json_unknown(
            r, at,
            "a token after the text, \"%.60s\": a text that goes on cannot have "
            "one",
            name);
    if (t->begin >= 0)
        return sl_bpe_json_unknown(r, at, "more than one token before the text");
    t->begin = id;
    return SL_OK;
}

static enum sl_code post_template(const struct json_reader *r, void *dst, const struct place *at,
                                  const json_t *v)
{
    const json_t *list, *piece;
    size_t i;
    bool has_text = false;
    enum sl_code c = sl_bpe_json_list(r, at, v, "single", &list);
    if (c)
        return c;
    const struct place *here = AT(at, "single");
    json_array_foreach(list, i, piece)
    {
        c = post_piece(r, dst, AT_INDEX(here, i), v, piece, &has_text, at);
        if (c)
            return c;
    }
    return has_text ? SL_OK : sl_bpe_json_bad(r, here, "lacks the Sequence \"A\"");
}

static const struct json_type post_processors[] = {
    {"ByteLevel", post_byte_level},
    {"TemplateProcessing", post_template},
};

enum sl_code sl_bpe_json_post_processor(const struct json_reader *r, struct sl_tokenizer *t,
                                        const struct place *at, const json_t *v)
{
    if (!v || json_is_null(v))
        return SL_OK;
    return sl_bpe_json_typed(r, post_processors, sizeof post_processors / sizeof *post_processors,
                             "processors", t, at, v);
}
