/* settings.c: config.json -> a flat, sorted list. See settings.h.
 *
 * Python writes numbers that JSON has no word for as bare words. Before the JSON reader sees the
 * text, each such word outside a string becomes a string that begins with the character U+0001,
 * which is how it is known again afterwards. (A file can spell the same string; it then means the
 * same number.) Transformers 5 spells them {"__float__": "Infinity"}. Python also writes whole
 * numbers of any length (a tokenizer's model_max_length is 10^30); those too long for the JSON
 * reader's integers become the same number with a point. */
#include "engine/formats/settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/arena.h"
#include "engine/formats/jansson_parse.h"

struct reading { /* what sl_settings.priv points to; it contains the sl_settings itself */
    struct sl_settings pub;
    struct sl_arena strings;
    size_t cap;
    struct sl_error *err; /* while reading */
};

static const struct {
    const char *word, *string; /* as JSON */
    const char *value;         /* as its reader gives it */
    double number;
} words[] = {
    {"Infinity", "\"\\u0001Infinity\"", "\1Infinity", INFINITY},
    {"-Infinity", "\"\\u0001-Infinity\"", "\1-Infinity", -INFINITY},
    {"NaN", "\"\\u0001NaN\"", "\1NaN", NAN},
};
enum { N_WORDS = sizeof words / sizeof *words, GROWTH = 4 /* at most, of a word */ };

/* --- bare words ---------------------------------------------------------------------------------
 */

static size_t word_at(const char *s, size_t n)
{
    size_t i = 0;
    while (i < N_WORDS &&
           (strlen(words[i].word) > n || memcmp(s, words[i].word, strlen(words[i].word)) != 0))
        i++;
    return i;
}

/* Is s[i] the first digit of a whole number that has more of them than an integer? */
static bool is_long_number(const char *s, size_t i, size_t n)
{
    enum { INTEGER_DIGITS = 18 };
    size_t end = i;
    if (i > 0 && strchr("0123456789.eE+", s[i - 1]))
        return false;
    while (end < n && s[end] >= '0' && s[end] <= '9')
        end++;
    return end - i > INTEGER_DIGITS && (end == n || !strchr(".eE", s[end]));
}

/* Copies the text with its bare words quoted; dst has room for GROWTH · n bytes. */
static size_t quote_words(char *dst, const char *s, size_t n)
{
    size_t len = 0;
    bool in_string = false;
    for (size_t i = 0; i < n;) {
        size_t w = in_string ? N_WORDS : word_at(s + i, n - i);
        if (w < N_WORDS) {
            size_t k = strlen(words[w].string);
            memcpy(dst + len, words[w].string, k);
            len += k;
            i += strlen(words[w].word);
            continue;
        }
        if (!in_string && is_long_number(s, i, n)) {
            while (i < n && s[i] >= '0' && s[i] <= '9')
                dst[len++] = s[i++];
            dst[len++] = '.';
            dst[len++] = '0';
            continue;
        }
        if (in_string && s[i] == '\\' && i + 1 < n)
            dst[len++] = s[i++];
        else if (s[i] == '"')
            in_string = !in_string;
        dst[len++] = s[i++];
    }
    return len;
}

/* --- flattening ---------------------------------------------------------------------------------
 */

static enum sl_code no_memory(const struct reading *r)
{
    return sl_fail(r->err, SL_E_NO_MEMORY, "%.160s: not enough memory to read it", r->pub.name);
}

static const char *copy_bytes(struct reading *r, const char *s, size_t n)
{
    char *p = sl_arena_alloc(&r->strings, n + 1);
    if (!p)
        return NULL;
    memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

static const char *copy(struct reading *r, const char *s)
{
    return copy_bytes(r, s, strlen(s));
}

static struct sl_setting *add(struct reading *r)
{
    struct sl_settings *s = &r->pub;
    if (s->n == r->cap) {
        size_t want = r->cap ? r->cap * 2 : 64;
        void *p = sl_realloc(s->v, want, sizeof *s->v);
        if (!p)
            return NULL;
        s->v = p;
        r->cap = want;
    }
    return &s->v[s->n++];
}

/* An object that stands for a number that JSON cannot write. */
static bool is_tagged_number(const json_t *v, double *ret)
{
    const char *word = json_string_value(json_object_get(v, "__float__"));
    for (size_t i = 0; word && json_object_size(v) == 1 && i < N_WORDS; i++)
        if (strcmp(word, words[i].word) == 0) {
            *ret = words[i].number;
            return true;
        }
    return false;
}

static bool fill(struct reading *r, struct sl_setting *e, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        e->kind = SL_SETTING_NULL;
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        e->kind = SL_SETTING_BOOL;
        e->flag = json_is_true(v);
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        e->kind = SL_SETTING_NUMBER;
        e->number = json_number_value(v);
        break;
    case JSON_STRING:
        e->kind = SL_SETTING_TEXT;
        for (size_t i = 0; i < N_WORDS; i++)
            if (strcmp(json_string_value(v), words[i].value) == 0) {
                e->kind = SL_SETTING_NUMBER;
                e->number = words[i].number;
            }
        if (e->kind == SL_SETTING_TEXT)
            e->text = copy(r, json_string_value(v));
        return e->kind == SL_SETTING_NUMBER || e->text;
    case JSON_ARRAY:
        e->kind = SL_SETTING_LIST;
        e->n = json_array_size(v);
        break;
    case JSON_OBJECT:
        e->kind = is_tagged_number(v, &e->number) ? SL_SETTING_NUMBER : SL_SETTING_OBJECT;
        e->n = json_object_size(v);
        break;
    }
    return true;
}

static enum sl_code flatten(struct reading *r, const char *key, json_t *v, unsigned depth);

/* One of the values below `key` ("" at the top). */
static enum sl_code flatten_below(struct reading *r, const char *key, const char *name, json_t *v,
                                  unsigned depth)
{
    char full[SL_SETTING_KEY_MAX + 1];
    int n = snprintf(full, sizeof full, *key ? "%s.%s" : "%s%s", key, name);
    if (n < 0 || (size_t)n >= sizeof full)
        return sl_fail(r->err, SL_E_TOO_LARGE, "%.160s: a key is longer than %zu bytes (%.40s…)",
                       r->pub.name, SL_SETTING_KEY_MAX, full);
    return flatten(r, full, v, depth);
}

/* The entries of what `v` holds. */
static enum sl_code flatten_all(struct reading *r, const char *key, json_t *v, unsigned depth)
{
    enum sl_code c = SL_OK;
    const char *name;
    json_t *item;
    size_t i;
    if (json_is_object(v)) {
        json_object_foreach(v, name, item)
        {
            c = flatten_below(r, key, name, item, depth);
            if (c)
                return c;
        }
    }
    if (json_is_array(v)) {
        json_array_foreach(v, i, item)
        {
            char number[24];
            (void)snprintf(number, sizeof number, "%zu", i);
            c = flatten_below(r, key, number, item, depth);
            if (c)
                return c;
        }
    }
    return c;
}

static enum sl_code flatten(struct reading *r, const char *key, json_t *v, unsigned depth)
{
    if (depth > SL_SETTINGS_DEPTH_MAX)
        return sl_fail(r->err, SL_E_TOO_LARGE, "%.160s: %.80s… lies more than %d levels deep",
                       r->pub.name, key, SL_SETTINGS_DEPTH_MAX);
    if (r->pub.n >= SL_SETTINGS_MAX)
        return sl_fail(r->err, SL_E_TOO_LARGE, "%.160s: more than %zu settings", r->pub.name,
                       SL_SETTINGS_MAX);
    struct sl_setting e = {.key = copy(r, key)}, *at;
    if (!e.key || !fill(r, &e, v) || !(at = add(r)))
        return no_memory(r);
    *at = e;
    return e.kind == SL_SETTING_NUMBER ? SL_OK : flatten_all(r, key, v, depth + 1);
}

static int by_key(const void *a, const void *b)
{
    const struct sl_setting *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static enum sl_code sort(struct reading *r)
{
    struct sl_settings *s = &r->pub;
    if (s->n)
        qsort(s->v, s->n, sizeof *s->v, by_key);
    for (size_t i = 1; i < s->n; i++)
        if (strcmp(s->v[i - 1].key, s->v[i].key) == 0)
            return sl_fail(r->err, SL_E_FILE_CORRUPT, "%.160s: says %.80s twice", s->name,
                           s->v[i].key);
    return SL_OK;
}

/* --- reading ------------------------------------------------------------------------------------
 */

static enum sl_code parse(struct reading *r, const char *text, size_t n, json_t **ret)
{
    json_error_t e = {0};
    char *quoted = sl_malloc(GROWTH * n + 1);
    if (!quoted)
        return no_memory(r);
    n = quote_words(quoted, text, n);
    *ret = sl_jansson_parse(quoted, n, 0, &e);
    sl_free(quoted);
    if (*ret && json_is_object(*ret))
        return SL_OK;
    if (*ret)
        return sl_fail(r->err, SL_E_FILE_CORRUPT, "%.160s: is not a JSON object", r->pub.name);
    if (!*e.text)
        return no_memory(r);
    return sl_fail(r->err, SL_E_FILE_CORRUPT, "%.160s: is not valid JSON: line %d: %.120s",
                   r->pub.name, e.line, e.text);
}

enum sl_code sl_settings_read(struct sl_settings **ret, const char *text, size_t n,
                              const char *name, struct sl_error *err)
{
    if (n > SL_SETTINGS_BYTES_MAX)
        return sl_fail(err, SL_E_TOO_LARGE, "%.160s: has %zu bytes; at most %zu", name, n,
                       SL_SETTINGS_BYTES_MAX);
    enum sl_code c = SL_OK;
    json_t *root = NULL;
    struct reading *r = sl_calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_E_NO_MEMORY, "%.160s: not enough memory to read it", name);
    r->pub.priv = r;
    r->pub.name = name;
    r->err = err;
    c = parse(r, text, n, &root);
    if (!c)
        c = flatten_all(r, "", root, 1);
    if (!c)
        c = sort(r);
    r->pub.name = copy(r, name);
    r->pub.text = copy_bytes(r, text, n);
    r->pub.n_text = n;
    if (!c && (!r->pub.name || !r->pub.text))
        c = sl_fail(err, SL_E_NO_MEMORY, "%.160s: not enough memory to read it", name);
    json_decref(root);
    if (c)
        sl_settings_close(&r->pub);
    else
        *ret = &r->pub;
    return c;
}

void sl_settings_close(struct sl_settings *s)
{
    if (!s)
        return;
    struct reading *r = s->priv;
    sl_arena_done(&r->strings);
    sl_free(r->pub.v);
    sl_free(r);
}

const struct sl_setting *sl_settings_find(const struct sl_settings *s, const char *key)
{
    const struct sl_setting want = {.key = key};
    return s->n ? bsearch(&want, s->v, s->n, sizeof *s->v, by_key) : NULL;
}
