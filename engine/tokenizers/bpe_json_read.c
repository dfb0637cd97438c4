/* bpe_json_read.c: see bpe_json.h. */
#include "engine/tokenizers/bpe_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

enum { PLACE_BYTES = 160, WHAT_BYTES = 300, DEPTH_MAX = 8 };

static size_t put_place(char dst[PLACE_BYTES], const struct place *at)
{
    size_t n = at->up ? put_place(dst, at->up) : 0;
    int len;
    if (at->key)
        len = snprintf(dst + n, PLACE_BYTES - n, "%s%s", n ? "." : "", at->key);
    else
        len = snprintf(dst + n, PLACE_BYTES - n, "[%zu]", at->index);
    n += len > 0 ? (size_t)len : 0;
    return n < PLACE_BYTES ? n : PLACE_BYTES - 1;
}

static enum sl_code fail(const struct json_reader *r, enum sl_code c, const struct place *at,
                         const char *what)
{
    char place[PLACE_BYTES] = "";
    put_place(place, at);
    return sl_fail(r->err, c, "the tokenizer \"%s\", %s: %s", r->name, place, what);
}

#define FAIL_WITH(code)                                                                            \
    char what[WHAT_BYTES];                                                                         \
    va_list ap;                                                                                    \
    va_start(ap, fmt);                                                                             \
    vsnprintf(what, sizeof what, fmt, ap);                                                         \
    va_end(ap);                                                                                    \
    return fail(r, code, at, what)

enum sl_code(sl_bpe_json_bad)(const struct json_reader *r, const struct place *at, const char *fmt,
                              ...)
{
    FAIL_WITH(SL_E_FILE_CORRUPT);
}

enum sl_code(sl_bpe_json_unknown)(const struct json_reader *r, const struct place *at,
                                  const char *fmt, ...)
{
    FAIL_WITH(SL_E_FILE_UNSUPPORTED);
}

enum sl_code sl_bpe_json_placed(const struct json_reader *r, const struct place *at, enum sl_code c)
{
    char what[WHAT_BYTES];
    if (!c)
        return c;
    snprintf(what, sizeof what, "%.*s", WHAT_BYTES - 1, r->err->message);
    return fail(r, c, at, what);
}

enum sl_code(sl_bpe_json_no_memory)(const struct json_reader *r)
{
    return sl_fail(r->err, SL_E_NO_MEMORY, "no memory for the tokenizer \"%s\"", r->name);
}

enum sl_code sl_bpe_json_bool(const struct json_reader *r, const struct place *at,
                              const json_t *object, const char *key, bool *ret)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v))
        return SL_OK;
    if (!json_is_boolean(v))
        return sl_bpe_json_bad(r, AT(at, key), "must be true or false");
    *ret = json_is_true(v);
    return SL_OK;
}

enum sl_code sl_bpe_json_text(const struct json_reader *r, const struct place *at,
                              const json_t *object, const char *key, const char **ret,
                              size_t *ret_n)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v))
        return SL_OK;
    if (!json_is_string(v))
        return sl_bpe_json_bad(r, AT(at, key), "must be a string");
    *ret = json_string_value(v);
    *ret_n = json_string_length(v);
    return SL_OK;
}

enum sl_code sl_bpe_json_count(const struct json_reader *r, const struct place *at,
                               const json_t *object, const char *key, uint64_t max, uint64_t *ret)
{
    const json_t *v = json_object_get(object, key);
    json_int_t x = json_is_integer(v) ? json_integer_value(v) : -1;
    if (x < 0 || (uint64_t)x > max)
        return sl_bpe_json_bad(r, AT(at, key), "must be a whole number from 0 to %llu",
                               (unsigned long long)max);
    *ret = (uint64_t)x;
    return SL_OK;
}

enum sl_code sl_bpe_json_list(const struct json_reader *r, const struct place *at,
                              const json_t *object, const char *key, const json_t **ret)
{
    *ret = json_object_get(object, key);
    return json_is_array(*ret) ? SL_OK : sl_bpe_json_bad(r, AT(at, key), "must be a list");
}

enum sl_code sl_bpe_json_bytes(const struct json_reader *r, const struct place *at,
                               const json_t *object, const char *key, unsigned char **ret,
                               size_t *ret_n)
{
    const char *s = NULL;
    size_t n = 0;
    enum sl_code c = sl_bpe_json_text(r, at, object, key, &s, &n);
    if (c)
        return c;
    if (!s)
        return sl_bpe_json_bad(r, AT(at, key), "must be there, a string");
    if (n > SL_BPE_PATTERN_MAX)
        return sl_bpe_json_bad(r, AT(at, key), "has more than %d bytes", SL_BPE_PATTERN_MAX);
    *ret = (unsigned char *)sl_strndup(s, n);
    *ret_n = n;
    return *ret ? SL_OK : sl_bpe_json_no_memory(r);
}

enum sl_code sl_bpe_json_pattern(const struct json_reader *r, const struct place *at,
                                 const json_t *object, struct sl_bpe_pattern *ret)
{
    const json_t *v = json_object_get(object, "pattern");
    const struct place *here = AT(at, "pattern");
    const char *literal = NULL, *regex = NULL;
    size_t n = 0;
    if (!json_is_object(v))
        return sl_bpe_json_bad(r, here, "must be an object with String or Regex");
    enum sl_code c = sl_bpe_json_text(r, here, v, "String", &literal, &n);
    if (!c && !literal)
        c = sl_bpe_json_text(r, here, v, "Regex", &regex, &n);
    if (c)
        return c;
    if (literal)
        return sl_bpe_json_placed(r, AT(here, "String"),
                                  sl_bpe_pattern_literal(ret, literal, n, r->err));
    if (regex)
        return sl_bpe_json_placed(r, AT(here, "Regex"),
                                  sl_bpe_pattern_regex(ret, regex, n, r->err));
    return sl_bpe_json_bad(r, here, "must have String or Regex");
}

static size_t depth_of(const struct place *at)
{
    size_t n = 0;
    for (; at; at = at->up)
        n++;
    return n;
}

enum sl_code sl_bpe_json_typed(const struct json_reader *r, const struct json_type *types,
                               size_t n_types, const char *list_key, void *dst,
                               const struct place *at, const json_t *v)
{
    const char *type = NULL;
    size_t n = 0;
    if (!json_is_object(v))
        return sl_bpe_json_bad(r, at, "must be an object or null");
    enum sl_code c = sl_bpe_json_text(r, at, v, "type", &type, &n);
    if (c)
        return c;
    if (!type)
        return sl_bpe_json_bad(r, AT(at, "type"), "must be there");
    for (size_t i = 0; i < n_types; i++)
        if (strcmp(types[i].name, type) == 0)
            return types[i].read(r, dst, at, v);
    if (strcmp(type, "Sequence") != 0)
        return sl_bpe_json_unknown(r, at, "the type \"%.60s\" is not known here", type);
    const json_t *list, *element;
    size_t i;
    c = sl_bpe_json_list(r, at, v, list_key, &list);
    if (!c && depth_of(at) > (size_t)2 * DEPTH_MAX)
        c = sl_bpe_json_bad(r, at, "sequences within sequences, more than %d deep", DEPTH_MAX);
    if (c)
        return c;
    const struct place *here = AT(at, list_key);
    json_array_foreach(list, i, element)
    {
        c = sl_bpe_json_typed(r, types, n_types, list_key, dst, AT_INDEX(here, i), element);
        if (c)
            return c;
    }
    return SL_OK;
}
