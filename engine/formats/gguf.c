/* gguf.c: see gguf.h.
 *
 * One cursor goes over the header; whatever it takes is checked against what is left of the file
 * first, so that counts and lengths that lie end in an error and never in an allocation: a table of
 * keys or tensors is only made when the file has room for that many. Keys, tensors and the ranges
 * of data are then sorted, which is how what comes twice or overlaps shows. */
#include "engine/formats/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

enum {
    ALIGNMENT = 32,
    ALIGNMENT_MAX = 1 << 20,
    KEY_BYTES_MIN = 8 + 4 + 1, /* of an entry with a name of no bytes */
    TENSOR_BYTES_MIN = 8 + 4 + 4 + 8,
    WHERE_BYTES = 120,
    SHOWN_MAX = 60 /* bytes of a name in a message */
};

/* --- the cursor ---------------------------------------------------------------------------------
 */

struct cursor {
    struct sl_reader *r;
    size_t at;
    char where[WHERE_BYTES]; /* what is being read, for messages */
};

static void set_where(struct cursor *c, const char *fmt, ...) SL_PRINTF(2, 3);

static void set_where(struct cursor *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->where, sizeof c->where, fmt, ap);
    va_end(ap);
}

/* `return FAIL(c, FILE_CORRUPT, "…", …);`: the file, the place, and then the text. */
#define FAIL(c, code, fmt, ...)                                                                    \
    SL_READER_FAIL((c)->r, code, "%s, at byte %zu: " fmt, (c)->where, (c)->at, __VA_ARGS__)

static size_t left(const struct cursor *c)
{
    return c->r->n - c->at;
}

static enum sl_code take(struct cursor *c, void *dst, size_t n, const char *what)
{
    if (n > left(c))
        return FAIL(c, FILE_TRUNCATED, "%s takes %zu bytes, but the file has %zu more", what, n,
                    left(c));
    memcpy(dst, c->r->data + c->at, n);
    c->at += n;
    return SL_OK;
}

static enum sl_code take_u32(struct cursor *c, uint32_t *ret, const char *what)
{
    *ret = 0;
    return take(c, ret, sizeof *ret, what);
}

static enum sl_code take_u64(struct cursor *c, uint64_t *ret, const char *what)
{
    *ret = 0;
    return take(c, ret, sizeof *ret, what);
}

static enum sl_code take_text(struct cursor *c, struct sl_gguf_text *ret, const char *what)
{
    uint64_t n = 0;
    enum sl_code code = take_u64(c, &n, what);
    if (code)
        return code;
    if (n > left(c))
        return FAIL(c, FILE_TRUNCATED,
                    "%s is a string of %" PRIu64 " bytes, but the file has %zu more", what, n,
                    left(c));
    *ret = (struct sl_gguf_text){(const char *)c->r->data + c->at, (size_t)n};
    c->at += (size_t)n;
    return SL_OK;
}

static int shown(struct sl_gguf_text t)
{
    return t.n < SHOWN_MAX ? (int)t.n : SHOWN_MAX;
}

/* --- values -------------------------------------------------------------------------------------
 */

static const struct value_type {
    const char *name;
    size_t bytes; /* 0: not of one size */
} value_types[SL_GGUF_TYPES] = {
    [SL_GGUF_U8] = {"u8", 1},       [SL_GGUF_I8] = {"i8", 1},     [SL_GGUF_U16] = {"u16", 2},
    [SL_GGUF_I16] = {"i16", 2},     [SL_GGUF_U32] = {"u32", 4},   [SL_GGUF_I32] = {"i32", 4},
    [SL_GGUF_F32] = {"f32", 4},     [SL_GGUF_BOOL] = {"bool", 1}, [SL_GGUF_STRING] = {"string", 0},
    [SL_GGUF_ARRAY] = {"array", 0}, [SL_GGUF_U64] = {"u64", 8},   [SL_GGUF_I64] = {"i64", 8},
    [SL_GGUF_F64] = {"f64", 8},
};

const char *sl_gguf_type_name(enum sl_gguf_type t)
{
    return value_types[t].name;
}

static enum sl_code take_type(struct cursor *c, enum sl_gguf_type *ret)
{
    uint32_t t;
    enum sl_code code = take_u32(c, &t, "the value's type");
    if (code)
        return code;
    if (t >= SL_GGUF_TYPES)
        return FAIL(c, FILE_CORRUPT, "there is no value type %" PRIu32 "; the last one is %d", t,
                    SL_GGUF_TYPES - 1);
    *ret = (enum sl_gguf_type)t;
    return SL_OK;
}

static enum sl_code check_bools(struct cursor *c, const unsigned char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] > 1)
            return FAIL(c, FILE_CORRUPT, "a bool is %u; 0 and 1 are possible", (unsigned)at[i]);
    return SL_OK;
}

/* Goes over n values of one type. */
static enum sl_code skip_values(struct cursor *c, enum sl_gguf_type type, uint64_t n)
{
    size_t bytes = value_types[type].bytes;
    if (n > left(c) / (bytes ? bytes : 8)) /* a string takes 8 bytes at least */
        return FAIL(c, FILE_TRUNCATED, "%" PRIu64 " values of type %s cannot lie in %zu bytes", n,
                    value_types[type].name, left(c));
    if (bytes) {
        const unsigned char *at = c->r->data + c->at;
        c->at += (size_t)n * bytes;
        return type == SL_GGUF_BOOL ? check_bools(c, at, (size_t)n) : SL_OK;
    }
    for (uint64_t i = 0; i < n; i++) {
        struct sl_gguf_text t;
        enum sl_code code = take_text(c, &t, "a value");
        if (code)
            return code;
    }
    return SL_OK;
}

static enum sl_code take_key(struct cursor *c, struct sl_gguf_key *k, size_t i, size_t of)
{
    uint64_t n = 1;
    set_where(c, "key %zu of %zu", i + 1, of);
    enum sl_code code = take_text(c, &k->name, "its name");
    if (code)
        return code;
    if (k->name.n == 0 || k->name.n > SL_TENSOR_NAME_MAX)
        return FAIL(c, FILE_CORRUPT, "its name has %zu bytes; 1 to %zu are possible", k->name.n,
                    SL_TENSOR_NAME_MAX);
    if (memchr(k->name.s, '\0', k->name.n) || !sl_utf8_valid(k->name.s, k->name.n))
        return FAIL(c, FILE_CORRUPT, "its name, \"%.*s\", is not UTF-8 without zero bytes",
                    shown(k->name), k->name.s);
    set_where(c, "key %zu of %zu, \"%.*s\"", i + 1, of, shown(k->name), k->name.s);
    code = take_type(c, &k->type);
    if (!code && k->type == SL_GGUF_ARRAY) {
        k->array = true;
        code = take_type(c, &k->type);
        if (!code && k->type == SL_GGUF_ARRAY)
            return FAIL(c, FILE_UNSUPPORTED, "it is an array of %s; values must be plain",
                        "arrays");
        if (!code)
            code = take_u64(c, &n, "the array's length");
    }
    if (code)
        return code;
    k->at = c->r->data + c->at;
    code = skip_values(c, k->type, n);
    k->n = (size_t)n;
    return code;
}

bool sl_gguf_is(struct sl_gguf_text t, const char *s)
{
    return strlen(s) == t.n && memcmp(t.s, s, t.n) == 0;
}

static double integer(const unsigned char *p, size_t bytes, bool is_signed)
{
    uint64_t u = 0;
    for (size_t i = bytes; i-- > 0;)
        u = u << 8 | p[i];
    if (is_signed && bytes < 8 && p[bytes - 1] & 0x80)
        u |= UINT64_MAX << 8 * bytes;
    return is_signed ? (double)(int64_t)u : (double)u;
}

bool sl_gguf_number(const struct sl_gguf_key *k, size_t i, double *ret)
{
    if (i >= k->n || !value_types[k->type].bytes || k->type == SL_GGUF_BOOL)
        return false;
    const unsigned char *p = k->at + i * value_types[k->type].bytes;
    float f;
    switch (k->type) {
    case SL_GGUF_F32:
        memcpy(&f, p, sizeof f);
        *ret = (double)f;
        break;
    case SL_GGUF_F64:
        memcpy(ret, p, sizeof *ret);
        break;
    default:
        *ret = integer(p, value_types[k->type].bytes,
                       k->type == SL_GGUF_I8 || k->type == SL_GGUF_I16 || k->type == SL_GGUF_I32 ||
                           k->type == SL_GGUF_I64);
    }
    return true;
}

struct sl_gguf_text sl_gguf_next(const unsigned char **at)
{
    uint64_t n;
    memcpy(&n, *at, sizeof n);
    struct sl_gguf_text t = {(const char *)*at + 8, (size_t)n};
    *at += 8 + (size_t)n;
    return t;
}

const unsigned char *sl_gguf_end(const struct sl_gguf_key *k)
{
    const unsigned char *at = k->at;
    for (size_t i = 0; k->type == SL_GGUF_STRING && i < k->n; i++)
        (void)sl_gguf_next(&at);
    return at + k->n * value_types[k->type].bytes;
}

bool sl_gguf_text(const struct sl_gguf_key *k, struct sl_gguf_text *ret)
{
    if (k->type != SL_GGUF_STRING || k->array)
        return false;
    const unsigned char *at = k->at;
    *ret = sl_gguf_next(&at);
    return true;
}

/* --- tensors ------------------------------------------------------------------------------------
 */

static const struct tensor_type {
    uint32_t id; /* in files */
    enum sl_dtype dtype;
    enum sl_block_type block;
} tensor_types[] = {
    {0, SL_DTYPE_F32, SL_BLOCK_NONE},      {1, SL_DTYPE_F16, SL_BLOCK_NONE},
    {24, SL_DTYPE_I8, SL_BLOCK_NONE},      {25, SL_DTYPE_I16, SL_BLOCK_NONE},
    {26, SL_DTYPE_I32, SL_BLOCK_NONE},     {27, SL_DTYPE_I64, SL_BLOCK_NONE},
    {28, SL_DTYPE_F64, SL_BLOCK_NONE},     {30, SL_DTYPE_BF16, SL_BLOCK_NONE},
    {2, SL_DTYPE_NONE, SL_BLOCK_Q4_0},     {3, SL_DTYPE_NONE, SL_BLOCK_Q4_1},
    {6, SL_DTYPE_NONE, SL_BLOCK_Q5_0},     {7, SL_DTYPE_NONE, SL_BLOCK_Q5_1},
    {8, SL_DTYPE_NONE, SL_BLOCK_Q8_0},     {9, SL_DTYPE_NONE, SL_BLOCK_Q8_1},
    {10, SL_DTYPE_NONE, SL_BLOCK_Q2_K},    {11, SL_DTYPE_NONE, SL_BLOCK_Q3_K},
    {12, SL_DTYPE_NONE, SL_BLOCK_Q4_K},    {13, SL_DTYPE_NONE, SL_BLOCK_Q5_K},
    {14, SL_DTYPE_NONE, SL_BLOCK_Q6_K},    {15, SL_DTYPE_NONE, SL_BLOCK_Q8_K},
    {16, SL_DTYPE_NONE, SL_BLOCK_IQ2_XXS}, {17, SL_DTYPE_NONE, SL_BLOCK_IQ2_XS},
    {18, SL_DTYPE_NONE, SL_BLOCK_IQ3_XXS}, {19, SL_DTYPE_NONE, SL_BLOCK_IQ1_S},
    {20, SL_DTYPE_NONE, SL_BLOCK_IQ4_NL},  {21, SL_DTYPE_NONE, SL_BLOCK_IQ3_S},
    {22, SL_DTYPE_NONE, SL_BLOCK_IQ2_S},   {23, SL_DTYPE_NONE, SL_BLOCK_IQ4_XS},
    {29, SL_DTYPE_NONE, SL_BLOCK_IQ1_M},   {34, SL_DTYPE_NONE, SL_BLOCK_TQ1_0},
    {35, SL_DTYPE_NONE, SL_BLOCK_TQ2_0},   {39, SL_DTYPE_NONE, SL_BLOCK_MXFP4},
    {40, SL_DTYPE_NONE, SL_BLOCK_NVFP4},   {41, SL_DTYPE_NONE, SL_BLOCK_Q1_0},
    {42, SL_DTYPE_NONE, SL_BLOCK_Q2_0},
};

static enum sl_code take_tensor_type(struct cursor *c, struct sl_gguf_tensor *t)
{
    uint32_t id;
    enum sl_code code = take_u32(c, &id, "its type");
    if (code)
        return code;
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++)
        if (tensor_types[i].id == id) {
            t->dtype = tensor_types[i].dtype;
            t->block = tensor_types[i].block;
            return SL_OK;
        }
    return FAIL(c, FILE_UNSUPPORTED, "its type is number %" PRIu32 ", which is not known", id);
}

/* Bytes of the tensor, once shape and type are known. */
static enum sl_code measure(struct cursor *c, struct sl_gguf_tensor *t)
{
    size_t n = 1, weights = sl_block_weights(t->block);
    size_t bytes = t->block ? sl_block_bytes(t->block) : sl_dtype_size(t->dtype);
    for (unsigned i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n))
            return FAIL(c, FILE_CORRUPT, "its %u axes make more elements than there can be",
                        t->rank);
    size_t row = t->rank ? t->shape[t->rank - 1] : 1;
    if (row % weights != 0)
        return FAIL(c, FILE_CORRUPT, "its rows of %zu are not whole blocks of %s, of %zu weights",
                    row, sl_block_name(t->block), weights);
    if (__builtin_mul_overflow(n / weights, bytes, &t->n_bytes) || t->n_bytes > PTRDIFF_MAX)
        return FAIL(c, FILE_CORRUPT, "its %zu elements do not fit in any memory", n);
    return SL_OK;
}

static enum sl_code take_tensor(struct cursor *c, struct sl_gguf_tensor *t, size_t i, size_t of)
{
    uint32_t rank = 0;
    uint64_t size, offset = 0;
    set_where(c, "tensor %zu of %zu", i + 1, of);
    enum sl_code code = take_text(c, &t->name, "its name");
    if (code)
        return code;
    if (t->name.n == 0 || t->name.n > SL_TENSOR_NAME_MAX)
        return FAIL(c, FILE_CORRUPT, "its name has %zu bytes; 1 to %zu are possible", t->name.n,
                    SL_TENSOR_NAME_MAX);
    set_where(c, "tensor %zu of %zu, \"%.*s\"", i + 1, of, shown(t->name), t->name.s);
    code = take_u32(c, &rank, "its number of axes");
    if (code)
        return code;
    if (rank > SL_GGUF_RANK_MAX)
        return FAIL(c, FILE_CORRUPT, "it has %" PRIu32 " axes; at most %d", rank, SL_GGUF_RANK_MAX);
    t->rank = rank;
    for (unsigned k = 0; k < rank && !code; k++) {
        code = take_u64(c, &size, "an axis");
        t->shape[rank - 1 - k] = (size_t)size;
    }
    if (!code)
        code = take_tensor_type(c, t);
    if (!code)
        code = take_u64(c, &offset, "its offset");
    t->offset = (size_t)offset;
    return code ? code : measure(c, t);
}

/* --- what must not come twice or overlap --------------------------------------------------------
 */

static int compare_texts(struct sl_gguf_text a, struct sl_gguf_text b)
{
    int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int by_key(const void *a, const void *b)
{
    return compare_texts(((const struct sl_gguf_key *)a)->name,
                         ((const struct sl_gguf_key *)b)->name);
}

static int by_name(const void *a, const void *b)
{
    return compare_texts(((const struct sl_gguf_tensor *)a)->name,
                         ((const struct sl_gguf_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
    const struct sl_gguf_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes); /* the empty ones first */
}

static enum sl_code sort_keys(struct sl_gguf *g)
{
    if (g->n_keys)
        qsort(g->keys, g->n_keys, sizeof *g->keys, by_key);
    for (size_t i = 1; i < g->n_keys; i++)
        if (by_key(&g->keys[i - 1], &g->keys[i]) == 0)
            return SL_READER_FAIL(g->r, FILE_CORRUPT, "the key \"%.*s\" comes twice",
                                  shown(g->keys[i].name), g->keys[i].name.s);
    return SL_OK;
}

static enum sl_code check_range(const struct sl_gguf *g, const struct sl_gguf_tensor *t,
                                const struct sl_gguf_tensor *before, size_t alignment)
{
    if (t->offset % alignment != 0)
        return SL_READER_FAIL(
            g->r, FILE_CORRUPT,
            "tensor \"%.*s\" begins at byte %zu of the data, which is no multiple "
            "of the alignment, %zu",
            shown(t->name), t->name.s, t->offset, alignment);
    if (t->offset > g->data_n || t->n_bytes > g->data_n - t->offset)
        return SL_READER_FAIL(g->r, FILE_TRUNCATED,
                              "tensor \"%.*s\" takes bytes %zu to %zu + %zu of the data, of which "
                              "there are %zu",
                              shown(t->name), t->name.s, t->offset, t->offset, t->n_bytes,
                              g->data_n);
    if (before && before->offset + before->n_bytes > t->offset)
        return SL_READER_FAIL(
            g->r, FILE_CORRUPT, "tensors \"%.*s\" and \"%.*s\" overlap at byte %zu of the data",
            shown(before->name), before->name.s, shown(t->name), t->name.s, t->offset);
    return SL_OK;
}

static enum sl_code sort_tensors(struct sl_gguf *g, size_t alignment)
{
    if (g->n_tensors)
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_offset);
    for (size_t i = 0; i < g->n_tensors; i++) {
        enum sl_code c = check_range(g, &g->tensors[i], i ? &g->tensors[i - 1] : NULL, alignment);
        if (c)
            return c;
    }
    if (g->n_tensors)
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_name(&g->tensors[i - 1], &g->tensors[i]) == 0)
            return SL_READER_FAIL(g->r, FILE_CORRUPT, "two tensors are named \"%.*s\"",
                                  shown(g->tensors[i].name), g->tensors[i].name.s);
    return SL_OK;
}

/* --- the file -----------------------------------------------------------------------------------
 */

static enum sl_code check_version(struct cursor *c, unsigned *ret)
{
    uint32_t version;
    set_where(c, "the version");
    enum sl_code code = take_u32(c, &version, "it");
    if (code)
        return code;
    if (version > 0 && (version & 0xffff) == 0)
        return SL_READER_FAIL(c->r, FILE_UNSUPPORTED,
                              "is a big-endian GGUF file; only little-endian ones can be read");
    if (version != 2 && version != 3)
        return SL_READER_FAIL(c->r, FILE_UNSUPPORTED,
                              "is a GGUF file of version %" PRIu32 "; versions 2 and 3 can be read",
                              version);
    *ret = version;
    return SL_OK;
}

/* A table of `count` entries that the file says it has; NULL for none. */
static enum sl_code make_table(struct cursor *c, void **ret, size_t *ret_n, uint64_t count,
                               size_t max, size_t bytes_min, size_t size, const char *what)
{
    if (count > max)
        return FAIL(c, TOO_LARGE, "%" PRIu64 " %s; at most %zu", count, what, max);
    if (count > left(c) / bytes_min)
        return FAIL(c, FILE_TRUNCATED, "%" PRIu64 " %s cannot lie in the %zu bytes that follow",
                    count, what, left(c));
    *ret_n = (size_t)count;
    *ret = count ? sl_calloc((size_t)count, size) : NULL;
    if (count && !*ret)
        return SL_READER_FAIL(c->r, NO_MEMORY, "not enough memory for its %" PRIu64 " %s", count,
                              what);
    return SL_OK;
}

/* general.alignment, a power of two. */
static enum sl_code find_alignment(const struct sl_gguf *g, size_t *ret)
{
    const struct sl_gguf_key *k = sl_gguf_find(g, "general.alignment");
    double x = ALIGNMENT;
    if (k && (k->array || k->type != SL_GGUF_U32))
        return SL_READER_FAIL(g->r, FILE_CORRUPT, "general.alignment is no u32");
    if (k)
        (void)sl_gguf_number(k, 0, &x);
    *ret = (size_t)x;
    if (*ret == 0 || *ret > ALIGNMENT_MAX || (*ret & (*ret - 1)) != 0)
        return SL_READER_FAIL(g->r, FILE_CORRUPT,
                              "general.alignment is %zu; a power of two up to %d is possible", *ret,
                              ALIGNMENT_MAX);
    return SL_OK;
}

static enum sl_code find_data(struct sl_gguf *g, struct cursor *c, size_t alignment)
{
    size_t pad = (alignment - c->at % alignment) % alignment;
    if (g->n_tensors && pad > left(c))
        return SL_READER_FAIL(g->r, FILE_TRUNCATED,
                              "ends at byte %zu, in the padding before the data", g->r->n);
    pad = pad < left(c) ? pad : left(c);
    g->data = g->r->data + c->at + pad;
    g->data_n = left(c) - pad;
    return SL_OK;
}

enum sl_code sl_gguf_parse(struct sl_gguf *ret, struct sl_reader *r)
{
    struct cursor c = {.r = r, .at = 4};
    uint64_t n_tensors = 0, n_keys = 0;
    size_t alignment = ALIGNMENT;
    void *table = NULL;
    *ret = (struct sl_gguf){.r = r};
    enum sl_code code = check_version(&c, &ret->version);
    set_where(&c, "the header");
    if (!code)
        code = take_u64(&c, &n_tensors, "the number of tensors");
    if (!code)
        code = take_u64(&c, &n_keys, "the number of keys");
    if (!code)
        code = make_table(&c, &table, &ret->n_keys, n_keys, SL_GGUF_KEYS_MAX, KEY_BYTES_MIN,
                          sizeof *ret->keys, "keys");
    ret->keys = table;
    for (size_t i = 0; i < ret->n_keys && !code; i++)
        code = take_key(&c, &ret->keys[i], i, ret->n_keys);
    if (!code)
        code = sort_keys(ret);
    if (!code)
        code = find_alignment(ret, &alignment);
    set_where(&c, "the header");
    table = NULL;
    if (!code)
        code = make_table(&c, &table, &ret->n_tensors, n_tensors, SL_TENSORS_MAX, TENSOR_BYTES_MIN,
                          sizeof *ret->tensors, "tensors");
    ret->tensors = table;
    for (size_t i = 0; i < ret->n_tensors && !code; i++)
        code = take_tensor(&c, &ret->tensors[i], i, ret->n_tensors);
    if (!code)
        code = find_data(ret, &c, alignment);
    return code ? code : sort_tensors(ret, alignment);
}

void sl_gguf_done(struct sl_gguf *g)
{
    sl_free(g->keys);
    sl_free(g->tensors);
    g->keys = NULL;
    g->tensors = NULL;
}

static int name_of_key(const void *name, const void *k)
{
    const char *s = name;
    return compare_texts((struct sl_gguf_text){s, strlen(s)},
                         ((const struct sl_gguf_key *)k)->name);
}

static int name_of_tensor(const void *name, const void *t)
{
    const char *s = name;
    return compare_texts((struct sl_gguf_text){s, strlen(s)},
                         ((const struct sl_gguf_tensor *)t)->name);
}

const struct sl_gguf_key *sl_gguf_find(const struct sl_gguf *g, const char *name)
{
    return g->n_keys ? bsearch(name, g->keys, g->n_keys, sizeof *g->keys, name_of_key) : NULL;
}

const struct sl_gguf_tensor *sl_gguf_find_tensor(const struct sl_gguf *g, const char *name)
{
    return g->n_tensors
               ? bsearch(name, g->tensors, g->n_tensors, sizeof *g->tensors, name_of_tensor)
               : NULL;
}
