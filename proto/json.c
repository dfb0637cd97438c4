/* json.c: see json.h.
 *
 * Three things jansson does not do for us:
 *
 * - Its lexer ignores it when its buffer cannot grow, and goes on with a token that lacks bytes;
 *   an allocation that succeeds afterwards then works on a wrong token. So an allocation that
 *   fails makes all later ones of the same parse fail (mem.h), and the parse is NO_MEMORY.
 * - A tree of many small values takes up to eighty times the memory of its text, and the time that
 *   goes with it. So a parse has a budget (BUDGET_…), far above what any sensible request needs;
 *   beyond it the request is TOO_LARGE.
 * - A number beyond its range ends the parse, with a position and no name. The few requests that
 *   hold one are parsed again with the literal replaced by huge_literal, which lies outside of
 *   every range and has a field when a getter meets it. */
#include "proto/json.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "proto/ahead.h"

static const char huge_literal[] = {'9', 'e', '3', '0', '7'};
#define HUGE_AS_DOUBLE 9e307

/* Bytes a parse may allocate, all its reallocations counted: so many, and so many per byte of the
 * body. Text takes 4 per byte, a long list of token ids 25. */
enum { BUDGET_BYTES = 64 << 20, BUDGET_PER_BYTE = 8 };

enum { PATCHES_MAX = 8 }; /* numbers beyond the range; each costs one more parse */

static _Thread_local bool parsing, overspent;
static _Thread_local size_t budget;

static void *json_alloc(size_t n)
{
    if (!parsing)
        return sl_malloc(n);
    overspent = overspent || n > budget;
    void *p = overspent ? NULL : sl_malloc(n);
    if (p)
        budget -= n;
    return p;
}

void sl_json_init(void)
{
    json_set_alloc_funcs(json_alloc, sl_free);
    json_object_seed(0);
}

static json_t *load(const void *body, size_t n, json_error_t *error, bool *starved)
{
    parsing = true;
    overspent = false;
    sl_mem_all_or_nothing();
    budget = n > (SIZE_MAX - BUDGET_BYTES) / BUDGET_PER_BYTE ? SIZE_MAX
                                                             : BUDGET_BYTES + BUDGET_PER_BYTE * n;
    json_t *v =
        json_loadb(body, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, error);
    parsing = false;
    *starved = !sl_mem_had_all();
    if (v && (*starved || overspent)) {
        json_decref(v);
        v = NULL;
    }
    return v;
}

static bool in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Replaces the literal that ends at or before `end` by huge_literal and blanks. */
static bool patch_number(char *s, size_t end)
{
    while (end > 0 && !in_number(s[end - 1]))
        end--;
    size_t start = end;
    while (start > 0 && in_number(s[start - 1]))
        start--;
    if (start < end && s[start] == '-')
        start++;
    if (end - start < sizeof huge_literal)
        return false;
    memset(s + start, ' ', end - start);
    memcpy(s + start, huge_literal, sizeof huge_literal);
    return true;
}

static json_t *load_patched(const void *body, size_t n, json_error_t *error, bool *starved)
{
    char *copy = sl_strndup(body, n);
    json_t *v = NULL;
    if (!copy) {
        *starved = true;
        return NULL;
    }
    for (int i = 0; i < PATCHES_MAX && !v; i++) {
        size_t at = error->position < 0 ? 0 : (size_t)error->position;
        if (!patch_number(copy, at < n ? at : n))
            break;
        v = load(copy, n, error, starved);
        if (!v && (*starved || overspent || json_error_code(error) != json_error_numeric_overflow))
            break;
    }
    sl_free(copy);
    return v;
}

static enum sl_code parse(json_t **ret, const void *body, size_t n, struct sl_error *err)
{
    json_error_t error;
    bool starved;
    json_t *v = load(body, n, &error, &starved);
    if (!v && !starved && !overspent && json_error_code(&error) == json_error_numeric_overflow)
        v = load_patched(body, n, &error, &starved);
    if (!v && overspent)
        return sl_fail(err, SL_E_TOO_LARGE,
                       "the body holds too many JSON values: reading its %zu bytes takes more than "
                       "%zu bytes of memory",
                       n, BUDGET_BYTES + BUDGET_PER_BYTE * n);
    if (!v && starved)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory to read a body of %zu bytes", n);
    if (!v)
        return sl_fail(err, SL_E_INVALID_JSON, "the body is not valid JSON: line %d, column %d: %s",
                       error.line, error.column, error.text);
    if (!json_is_object(v)) {
        char given[SL_DESCRIBE_SIZE];
        sl_json_describe(v, given);
        json_decref(v);
        return sl_fail(err, SL_E_INVALID_TYPE, "the body must be a JSON object, got %s", given);
    }
    *ret = v;
    return SL_OK;
}

/* --- reading ahead --------------------------------------------------------------------------- */

struct sl_json_ahead {
    const void *body;
    size_t n;
    json_t *doc;         /* NULL: */
    struct sl_error err; /* why there is none */
    struct sl_json_ahead *next;
};

static _Thread_local struct sl_json_ahead *offered;

struct sl_json_ahead *sl_json_ahead_read(const void *body, size_t n)
{
    struct sl_json_ahead *a = sl_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->body = body;
    a->n = n;
    (void)!parse(&a->doc, body, n, &a->err);
    return a;
}

void sl_json_ahead_offer(struct sl_json_ahead *a)
{
    a->next = offered;
    offered = a;
}

void sl_json_ahead_withdraw(struct sl_json_ahead *a)
{
    struct sl_json_ahead **p = &offered;
    while (*p != a)
        p = &(*p)->next;
    *p = a->next;
}

void sl_json_ahead_free(struct sl_json_ahead *a)
{
    if (!a)
        return;
    json_decref(a->doc);
    sl_free(a);
}

/* --- the body -------------------------------------------------------------------------------- */

enum sl_code sl_json_parse(json_t **ret, const void *body, size_t n, bool empty_is_object,
                           struct sl_error *err)
{
    if (n == 0) {
        if (!empty_is_object)
            return sl_fail(err, SL_E_INVALID_JSON, "the body is empty; it must be a JSON object");
        body = "{}";
        n = 2;
    }
    const struct sl_json_ahead *a = offered;
    while (a && (a->body != body || a->n != n))
        a = a->next;
    if (!a)
        return parse(ret, body, n, err);
    if (a->doc)
        *ret = json_incref(a->doc);
    else if (err)
        *err = a->err;
    return a->doc ? SL_OK : a->err.code;
}

const json_t *sl_json_member(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* It stands for one that no double and no 64 bits hold. (Also for 9e307 itself, which nobody
 * sends.) */
static bool is_huge(const json_t *v)
{
    return json_is_real(v) && fabs(json_real_value(v)) == HUGE_AS_DOUBLE;
}

static void describe_string(const json_t *v, char *ret, size_t size)
{
    enum { SHOWN = 40 };
    char text[SHOWN];
    size_t n = json_string_length(v);
    sl_utf8_sanitize_text(text, sizeof text, json_string_value(v), n < SHOWN ? n : SHOWN,
                          n > SHOWN);
    snprintf(ret, size, "the string \"%s\"", text);
}

void sl_json_describe(const json_t *v, char ret[SL_DESCRIBE_SIZE])
{
    size_t size = SL_DESCRIBE_SIZE;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        snprintf(ret, size, "an object");
        return;
    case JSON_ARRAY:
        snprintf(ret, size, "an array of %zu", json_array_size(v));
        return;
    case JSON_STRING:
        describe_string(v, ret, size);
        return;
    case JSON_INTEGER:
        snprintf(ret, size, "the number %" JSON_INTEGER_FORMAT, json_integer_value(v));
        return;
    case JSON_REAL:
        if (is_huge(v))
            snprintf(ret, size, "a number too large to hold");
        else
            snprintf(ret, size, "the number %.17g", json_real_value(v));
        return;
    case JSON_TRUE:
    case JSON_FALSE:
        snprintf(ret, size, json_is_true(v) ? "true" : "false");
        return;
    case JSON_NULL:
        break;
    }
    snprintf(ret, size, "null");
}

/* As deep as the parser lets it be. */
static bool holds_huge(const json_t *v)
{
    json_t *o = (json_t *)v; /* jansson's iterators want it so; nothing is written */
    bool found = is_huge(v);
    for (size_t i = 0; i < json_array_size(v) && !found; i++)
        found = holds_huge(json_array_get(v, i));
    for (void *it = json_object_iter(o); it && !found; it = json_object_iter_next(o, it))
        found = holds_huge(json_object_iter_value(it));
    return found;
}

enum sl_code sl_json_keepable(const json_t *v, const char *path, struct sl_error *err)
{
    json_t *o = (json_t *)v;
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
        if (holds_huge(json_object_iter_value(it)))
            return sl_fail_param(err, SL_E_INVALID_VALUE, path,
                                 "%s.%.40s holds a number that is too large for 64 bits or for a "
                                 "double; as a string it is kept as it is",
                                 path, json_object_iter_key(it));
    }
    return SL_OK;
}

enum sl_code sl_json_wrong_type(const json_t *v, const char *path, const char *what,
                                struct sl_error *err)
{
    char given[SL_DESCRIBE_SIZE];
    sl_json_describe(v, given);
    return sl_fail_param(err, SL_E_INVALID_TYPE, path, "%s must be %s, got %s", path, what, given);
}

enum sl_code sl_json_bool(const json_t *v, const char *path, bool *ret, struct sl_error *err)
{
    if (!json_is_boolean(v))
        return sl_json_wrong_type(v, path, "true or false", err);
    *ret = json_is_true(v);
    return SL_OK;
}

enum sl_code sl_json_int(const json_t *v, const char *path, int64_t lo, int64_t hi, int64_t *ret,
                         struct sl_error *err)
{
    char what[96], given[SL_DESCRIBE_SIZE];
    snprintf(what, sizeof what, "an integer from %lld to %lld", (long long)lo, (long long)hi);
    bool fits = true;
    int64_t i = 0;
    if (json_is_integer(v)) {
        i = json_integer_value(v);
    } else if (json_is_real(v) && trunc(json_real_value(v)) == json_real_value(v)) {
        double d = json_real_value(v);
        fits = d >= -0x1p63 && d < 0x1p63;
        i = fits ? (int64_t)d : 0;
    } else {
        return sl_json_wrong_type(v, path, what, err);
    }
    if (fits && i >= lo && i <= hi) {
        *ret = i;
        return SL_OK;
    }
    sl_json_describe(v, given);
    return sl_fail_param(err, SL_E_INVALID_VALUE, path, "%s must be %s, got %s", path, what, given);
}

/* Is d, as a float, a bound that no float is? What was read as 0.01 is kept, and written, as a
 * number that is a little less: to be read again it must be in range, too. (Beyond a float's range
 * the conversion is undefined.) */
static bool is_kept_as(double d, double bound)
{
    double largest = (double)FLT_MAX;
    if (fabs(d) > largest || fabs(bound) > largest)
        return false;
    return (double)(float)bound != bound && (float)d == (float)bound;
}

enum sl_code sl_json_float(const json_t *v, const char *path, double lo, double hi, float *ret,
                           struct sl_error *err)
{
    char what[96], given[SL_DESCRIBE_SIZE];
    snprintf(what, sizeof what, "a number from %g to %g", lo, hi);
    if (!json_is_number(v))
        return sl_json_wrong_type(v, path, what, err);
    double d = json_number_value(v);
    if ((d >= lo && d <= hi) || is_kept_as(d, lo) || is_kept_as(d, hi)) {
        *ret = (float)d;
        return SL_OK;
    }
    sl_json_describe(v, given);
    return sl_fail_param(err, SL_E_INVALID_VALUE, path, "%s must be %s, got %s", path, what, given);
}

enum sl_code sl_json_text(const json_t *v, const char *path, size_t max, enum sl_code over,
                          struct sl_text *ret, struct sl_error *err)
{
    if (!json_is_string(v))
        return sl_json_wrong_type(v, path, "a string", err);
    size_t n = json_string_length(v);
    if (n > max)
        return sl_fail_param(err, over, path, "%s has %zu bytes; at most %zu are allowed", path, n,
                             max);
    *ret = (struct sl_text){json_string_value(v), n};
    return SL_OK;
}

enum sl_code sl_json_cstr(const json_t *v, const char *path, size_t max, struct sl_pool *pool,
                          const char **ret, struct sl_error *err)
{
    struct sl_text t = {"", 0};
    enum sl_code c = sl_json_text(v, path, max, SL_E_INVALID_VALUE, &t, err);
    if (c != SL_OK)
        return c;
    if (memchr(t.s, '\0', t.n))
        return sl_fail_param(err, SL_E_INVALID_VALUE, path, "%s must not hold a NUL character",
                             path);
    char *copy = sl_pool_strndup(pool, t.s, t.n);
    if (!copy)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the request");
    *ret = copy;
    return SL_OK;
}

enum sl_code sl_json_array(const json_t *v, const char *path, size_t max, enum sl_code over,
                           size_t *ret_n, struct sl_error *err)
{
    if (!json_is_array(v))
        return sl_json_wrong_type(v, path, "an array", err);
    size_t n = json_array_size(v);
    if (n > max)
        return sl_fail_param(err, over, path, "%s has %zu items; at most %zu are allowed", path, n,
                             max);
    *ret_n = n;
    return SL_OK;
}

enum sl_code sl_json_enum(const json_t *v, const char *path, const char *const *words, size_t n,
                          size_t *ret, struct sl_error *err)
{
    char what[160];
    struct sl_buf b = {.data = what, .cap = sizeof what, .max = sizeof what - 1};
    for (size_t i = 0; i < n; i++) {
        sl_buf_puts(&b, i == 0 ? "\"" : i + 1 < n ? "\", \"" : "\" or \"");
        sl_buf_puts(&b, words[i]);
    }
    sl_buf_putc(&b, '"');
    assert(b.code == SL_OK); /* the words are ours and fit */
    what[b.len] = '\0';
    if (!json_is_string(v))
        return sl_json_wrong_type(v, path, what, err);
    for (size_t i = 0; i < n; i++) {
        if (strlen(words[i]) == json_string_length(v) &&
            memcmp(words[i], json_string_value(v), strlen(words[i])) == 0) {
            *ret = i;
            return SL_OK;
        }
    }
    char given[SL_DESCRIBE_SIZE];
    sl_json_describe(v, given);
    return sl_fail_param(err, SL_E_INVALID_VALUE, path, "%s must be %s, got %s", path, what, given);
}

enum sl_code sl_json_object(const json_t *v, const char *path, struct sl_error *err)
{
    return json_is_object(v) ? SL_OK : sl_json_wrong_type(v, path, "an object", err);
}

static enum sl_code read_row(const json_t *v, const struct sl_json_row *row, void *dst,
                             struct sl_error *err)
{
    unsigned char *at = (unsigned char *)dst + row->offset;
    enum sl_code c;
    int64_t i = 0;
    uint32_t u;
    switch (row->kind) {
    case SL_JSON_BOOL:
        return sl_json_bool(v, row->key, (bool *)at, err);
    case SL_JSON_U32:
        c = sl_json_int(v, row->key, (int64_t)row->lo, (int64_t)row->hi, &i, err);
        if (c == SL_OK) {
            u = (uint32_t)i;
            memcpy(at, &u, sizeof u);
        }
        return c;
    case SL_JSON_FLOAT:
        break;
    }
    float f = 0;
    c = sl_json_float(v, row->key, row->lo, row->hi, &f, err);
    if (c == SL_OK)
        memcpy(at, &f, sizeof f);
    return c;
}

enum sl_code sl_json_rows(const json_t *object, const struct sl_json_row *rows, size_t n_rows,
                          void *dst, struct sl_error *err)
{
    for (size_t i = 0; i < n_rows; i++) {
        const json_t *v = sl_json_member(object, rows[i].key);
        enum sl_code c = v ? read_row(v, &rows[i], dst, err) : SL_OK;
        if (c != SL_OK)
            return c;
    }
    return SL_OK;
}
