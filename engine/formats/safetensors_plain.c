/* safetensors_plain.c: see safetensors_plain.h. One grammar, walked twice: first without a visitor,
 * to see that all of it is plain, then with one. */
#include "engine/formats/safetensors_plain.h"

#include <assert.h>
#include <string.h>

enum { META_MAX = 64, DIGITS_MAX = 18 };

struct key {
    const char *s;
    size_t n;
};

struct plain {
    const char *p, *end;
    const struct sl_safetensors_visitor *v; /* NULL: only look */
    char *scratch;
    enum sl_code code; /* the visitor's */
    size_t n_tensors;
    bool has_meta;
    struct key keys[META_MAX]; /* of the metadata: none may come twice */
    size_t n_keys;
};

/* In these loops the place is a local: a char may alias it in the struct, where it would be stored
 * and fetched again for each. */

static void skip(struct plain *t)
{
    const char *p = t->p, *end = t->end;
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++;
    t->p = p;
}

/* The next character that is not space is c, and is taken. */
static bool take(struct plain *t, char c)
{
    skip(t);
    if (t->p == t->end || *t->p != c)
        return false;
    t->p++;
    return true;
}

/* Printable ASCII but the quote and the escape. */
static const bool plain_char[256] = {
    [' '] = true,
    ['!'] = true,
    ['#' ... '['] = true,
    [']' ... '~'] = true,
};

/* A string without escapes, in place. */
static bool take_word(struct plain *t, struct key *ret)
{
    if (!take(t, '"'))
        return false;
    const char *p = t->p, *end = t->end;
    while (p < end && plain_char[(unsigned char)*p])
        p++;
    *ret = (struct key){t->p, (size_t)(p - t->p)};
    if (p == end || *p != '"')
        return false;
    t->p = p + 1;
    return true;
}

static bool is_word(const struct key *k, const char *s)
{
    return k->n == strlen(s) && memcmp(k->s, s, k->n) == 0;
}

static bool take_size(struct plain *t, size_t *ret)
{
    skip(t);
    const char *from = t->p, *end = t->end, *p = from;
    size_t v = 0;
    for (; p < end && *p >= '0' && *p <= '9' && p - from < DIGITS_MAX; p++)
        v = v * 10 + (size_t)(*p - '0');
    *ret = v;
    t->p = p;
    size_t n = (size_t)(p - from);
    return n > 0 && (n == 1 || *from != '0');
}

/* "[1, 2]": at most max of them. */
static bool take_sizes(struct plain *t, size_t *v, size_t max, size_t *ret_n)
{
    *ret_n = 0;
    if (!take(t, '['))
        return false;
    if (take(t, ']'))
        return true;
    do {
        if (*ret_n == max || !take_size(t, &v[*ret_n]))
            return false;
        ++*ret_n;
    } while (take(t, ','));
    return take(t, ']');
}

static enum sl_dtype dtype_of(const struct key *k)
{
    for (int d = SL_DTYPE_NONE + 1; d < SL_DTYPE_COUNT; d++)
        if (is_word(k, sl_dtype_name((enum sl_dtype)d)))
            return (enum sl_dtype)d;
    return SL_DTYPE_NONE;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

static bool take_member(struct plain *t, struct sl_safetensors_entry *e, unsigned *seen)
{
    struct key k, word;
    size_t n, offsets[2];
    unsigned is;
    if (!take_word(t, &k) || !take(t, ':'))
        return false;
    if (is_word(&k, "dtype")) {
        is = HAS_DTYPE;
        if (!take_word(t, &word) || !(e->dtype = dtype_of(&word)))
            return false;
    } else if (is_word(&k, "shape")) {
        is = HAS_SHAPE;
        if (!take_sizes(t, e->shape, SL_TENSOR_RANK_MAX, &n))
            return false;
        e->rank = (unsigned)n;
    } else if (is_word(&k, "data_offsets")) {
        is = HAS_OFFSETS;
        if (!take_sizes(t, offsets, 2, &n) || n != 2)
            return false;
        e->begin = offsets[0];
        e->end = offsets[1];
    } else {
        return false;
    }
    bool first = !(*seen & is);
    *seen |= is;
    return first;
}

static bool take_tensor(struct plain *t, const struct key *name)
{
    char text[SL_TENSOR_NAME_MAX + 1];
    struct sl_safetensors_entry e = {.name = text, .name_n = name->n};
    unsigned seen = 0;
    if (name->n > SL_TENSOR_NAME_MAX || !take(t, '{'))
        return false;
    do {
        if (!take_member(t, &e, &seen))
            return false;
    } while (take(t, ','));
    if (seen != HAS_ALL || !take(t, '}'))
        return false;
    t->n_tensors++;
    if (t->v) {
        memcpy(text, name->s, name->n);
        text[name->n] = '\0';
        t->code = t->v->tensor(t->v->arg, &e);
    }
    return true;
}

/* A string with the short escapes, to dst (NULL: only looked at). */
static bool take_text(struct plain *t, char *dst, size_t *ret_n)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (!take(t, '"'))
        return false;
    const char *p = t->p, *end = t->end;
    size_t n = 0;
    for (; p < end && *p != '"'; n++) {
        const char *from = p;
        while (p < end && plain_char[(unsigned char)*p])
            p++;
        size_t k = (size_t)(p - from);
        if (dst)
            memcpy(dst + n, from, k);
        n += k;
        if (p == end || *p == '"')
            break;
        const char *e = *p == '\\' && ++p < end && *p ? strchr(escapes, *p) : NULL;
        if (!e)
            return false;
        if (dst)
            dst[n] = meant[e - escapes];
        p++;
    }
    *ret_n = n;
    if (p == end)
        return false;
    t->p = p + 1;
    return true;
}

static bool take_meta_entry(struct plain *t)
{
    struct key k;
    size_t n;
    if (t->n_keys == META_MAX || !take_word(t, &k) || !take(t, ':'))
        return false;
    for (size_t i = 0; i < t->n_keys; i++)
        if (t->keys[i].n == k.n && memcmp(t->keys[i].s, k.s, k.n) == 0)
            return false;
    t->keys[t->n_keys++] = k;
    if (!take_text(t, t->scratch, &n))
        return false;
    if (t->v)
        t->code = t->v->meta(t->v->arg, k.s, k.n, t->scratch, n);
    return true;
}

static bool take_meta(struct plain *t)
{
    if (t->has_meta || !take(t, '{'))
        return false;
    t->has_meta = true;
    if (take(t, '}'))
        return true;
    do {
        if (!take_meta_entry(t))
            return false;
    } while (!t->code && take(t, ','));
    return t->code || take(t, '}');
}

static bool walk(struct plain *t)
{
    if (!take(t, '{'))
        return false;
    do {
        struct key name;
        if (!take_word(t, &name) || !take(t, ':'))
            return false;
        if (!(is_word(&name, "__metadata__") ? take_meta(t) : take_tensor(t, &name)))
            return false;
    } while (!t->code && take(t, ','));
    if (t->code)
        return true;
    if (!take(t, '}'))
        return false;
    skip(t);
    return t->p == t->end;
}

bool sl_safetensors_is_plain(const char *s, size_t n, size_t *ret_n_tensors)
{
    struct plain t = {.p = s, .end = s + n};
    bool yes = walk(&t);
    *ret_n_tensors = t.n_tensors;
    return yes;
}

enum sl_code sl_safetensors_plain_read(const char *s, size_t n, char *scratch,
                                       const struct sl_safetensors_visitor *v)
{
    struct plain t = {.p = s, .end = s + n, .v = v, .scratch = scratch};
    bool yes = walk(&t);
    assert(yes);
    return t.code;
}
