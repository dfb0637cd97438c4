/* safetensors.c: reads the safetensors format, as strictly as its own library does.
 *
 * A file is 8 bytes of header length (little-endian), the header (a JSON object, padded with
 * spaces), and the data. Each key of the header is a tensor: {"dtype", "shape", "data_offsets":
 * [begin, end] in the data}; "__metadata__" maps strings to strings. The tensors' ranges, sorted,
 * must cover the data exactly, without gap or overlap: nothing can hide in the file, and no byte is
 * two tensors. Keys that an entry has besides are ignored, as the format's library does. Headers
 * that hold nothing unusual are read without a JSON parser (safetensors_plain.h). */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/jansson_parse.h"
#include "engine/formats/safetensors_plain.h"

enum { HEADER_BYTES_MAX = 100000000 }; /* the format's own limit */

struct range { /* of one tensor in the data; the tensor owns the name */
    size_t begin, end;
    const char *name;
};

struct state {
    struct sl_reader *r;
    const unsigned char *data; /* behind the header */
    size_t data_n;
    struct range *ranges;
    size_t n_ranges;
};

static enum sl_dtype dtype_of(const char *name)
{
    for (int t = SL_DTYPE_NONE + 1; t < SL_DTYPE_COUNT; t++)
        if (strcmp(name, sl_dtype_name((enum sl_dtype)t)) == 0)
            return (enum sl_dtype)t;
    return SL_DTYPE_NONE;
}

static enum sl_code read_dtype(struct sl_reader *r, const char *name, const json_t *v,
                               enum sl_dtype *ret)
{
    if (!json_is_string(v))
        return SL_READER_FAIL(r, FILE_CORRUPT, "tensor \"%.160s\": \"dtype\" is not a string",
                              name);
    enum sl_dtype t = dtype_of(json_string_value(v));
    if (!t)
        return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                              "tensor \"%.160s\" has dtype %.40s; supported are F64, F32, F16, "
                              "BF16, I64, I32, I16, I8, U8, BOOL",
                              name, json_string_value(v));
    *ret = t;
    return SL_OK;
}

static bool size_of(const json_t *v, size_t *ret)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return false;
    *ret = (size_t)json_integer_value(v);
    return true;
}

static enum sl_code read_shape(struct sl_reader *r, const json_t *v, struct sl_safetensors_entry *e)
{
    if (!json_is_array(v))
        return SL_READER_FAIL(r, FILE_CORRUPT, "tensor \"%.160s\": \"shape\" is not a list",
                              e->name);
    size_t rank = json_array_size(v);
    if (rank > SL_TENSOR_RANK_MAX)
        return SL_READER_FAIL(r, TOO_LARGE, "tensor \"%.160s\" has %zu dimensions; at most %d",
                              e->name, rank, SL_TENSOR_RANK_MAX);
    e->rank = (unsigned)rank;
    for (size_t i = 0; i < rank; i++)
        if (!size_of(json_array_get(v, i), &e->shape[i]))
            return SL_READER_FAIL(r, FILE_CORRUPT,
                                  "tensor \"%.160s\": \"shape\" has something that is no integer "
                                  "≥ 0 at place %zu",
                                  e->name, i);
    return SL_OK;
}

static enum sl_code read_offsets(struct sl_reader *r, const json_t *v,
                                 struct sl_safetensors_entry *e)
{
    if (!json_is_array(v) || json_array_size(v) != 2 || !size_of(json_array_get(v, 0), &e->begin) ||
        !size_of(json_array_get(v, 1), &e->end))
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "tensor \"%.160s\": \"data_offsets\" is not a list of two integers "
                              "≥ 0",
                              e->name);
    return SL_OK;
}

static enum sl_code check_offsets(struct state *s, const struct sl_safetensors_entry *e)
{
    struct sl_reader *r = s->r;
    if (e->end < e->begin)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "tensor \"%.160s\": \"data_offsets\" [%zu, %zu] end before they "
                              "begin",
                              e->name, e->begin, e->end);
    if (e->end > s->data_n)
        return SL_READER_FAIL(r, FILE_TRUNCATED,
                              "tensor \"%.160s\" ends at byte %zu of the data, but the file has "
                              "only %zu bytes of it",
                              e->name, e->end, s->data_n);
    return SL_OK;
}

static enum sl_code add_tensor(struct state *s, const struct sl_safetensors_entry *e)
{
    struct sl_reader *r = s->r;
    struct sl_tensor t = {.dtype = e->dtype, .rank = e->rank};
    memcpy(t.shape, e->shape, sizeof t.shape);
    enum sl_code c = check_offsets(s, e);
    if (c)
        return c;
    size_t bytes;
    if (!sl_tensor_pack(&t, &bytes))
        return SL_READER_FAIL(r, FILE_CORRUPT, "the shape of tensor \"%.160s\" overflows", e->name);
    if (bytes != e->end - e->begin)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "tensor \"%.160s\" takes %zu bytes by shape and dtype, but its "
                              "\"data_offsets\" hold %zu",
                              e->name, bytes, e->end - e->begin);
    t.data = s->data + e->begin;
    c = sl_reader_add(r, &t, e->name, e->name_n);
    if (!c)
        s->ranges[s->n_ranges++] = (struct range){e->begin, e->end, r->t->v[r->t->n - 1].name};
    return c;
}

static enum sl_code read_tensor(struct state *s, const char *name, size_t name_n, const json_t *v)
{
    struct sl_reader *r = s->r;
    struct sl_safetensors_entry e = {.name = name, .name_n = name_n};
    if (!json_is_object(v))
        return SL_READER_FAIL(r, FILE_CORRUPT, "tensor \"%.160s\" is not described by an object",
                              name);
    enum sl_code c = read_dtype(r, name, json_object_get(v, "dtype"), &e.dtype);
    if (!c)
        c = read_shape(r, json_object_get(v, "shape"), &e);
    if (!c)
        c = read_offsets(r, json_object_get(v, "data_offsets"), &e);
    return c ? c : add_tensor(s, &e);
}

static enum sl_code read_metadata(struct sl_reader *r, json_t *meta)
{
    if (!json_is_object(meta))
        return SL_READER_FAIL(r, FILE_CORRUPT, "\"__metadata__\" is not an object");
    const char *key;
    size_t key_n;
    json_t *v;
    json_object_keylen_foreach(meta, key, key_n, v)
    {
        if (!json_is_string(v))
            return SL_READER_FAIL(r, FILE_CORRUPT, "\"__metadata__\": \"%.160s\" is not a string",
                                  key);
        enum sl_code c =
            sl_reader_add_meta(r, key, key_n, json_string_value(v), json_string_length(v));
        if (c)
            return c;
    }
    return SL_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* the empty ones first */
}

/* The ranges cover the data from end to end. */
static enum sl_code check_tiling(struct state *s)
{
    struct sl_reader *r = s->r;
    if (s->n_ranges)
        qsort(s->ranges, s->n_ranges, sizeof *s->ranges, by_begin);
    size_t at = 0;
    for (size_t i = 0; i < s->n_ranges; i++) {
        const struct range *x = &s->ranges[i];
        if (x->begin < at)
            return SL_READER_FAIL(r, FILE_CORRUPT,
                                  "tensors \"%.120s\" and \"%.120s\" overlap at byte %zu of the "
                                  "data",
                                  s->ranges[i - 1].name, x->name, x->begin);
        if (x->begin > at)
            return SL_READER_FAIL(r, FILE_CORRUPT,
                                  "bytes %zu to %zu of the data, before tensor \"%.160s\", belong "
                                  "to no tensor",
                                  at, x->begin, x->name);
        at = x->end;
    }
    if (at != s->data_n)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "the last %zu of %zu bytes of data belong to no tensor",
                              s->data_n - at, s->data_n);
    return SL_OK;
}

static enum sl_code make_ranges(struct state *s, size_t n)
{
    struct sl_reader *r = s->r;
    if (n > SL_TENSORS_MAX + 1)
        return SL_READER_FAIL(r, TOO_LARGE, "%zu tensors; at most %zu", n, SL_TENSORS_MAX);
    s->ranges = sl_calloc(n, sizeof *s->ranges);
    if (!s->ranges)
        return SL_READER_FAIL(r, NO_MEMORY, "not enough memory for %zu tensors", n);
    return SL_OK;
}

static enum sl_code read_header(struct state *s, json_t *header)
{
    enum sl_code c = make_ranges(s, json_object_size(header));
    const char *key;
    size_t key_n;
    json_t *v;
    json_object_keylen_foreach(header, key, key_n, v)
    {
        if (c)
            return c;
        c = strcmp(key, "__metadata__") == 0 ? read_metadata(s->r, v)
                                             : read_tensor(s, key, key_n, v);
    }
    return c ? c : check_tiling(s);
}

static enum sl_code visit_tensor(void *arg, const struct sl_safetensors_entry *e)
{
    return add_tensor(arg, e);
}

static enum sl_code visit_meta(void *arg, const char *key, size_t key_n, const char *value,
                               size_t value_n)
{
    struct state *s = arg;
    return sl_reader_add_meta(s->r, key, key_n, value, value_n);
}

static enum sl_code read_plain(struct state *s, const char *header, size_t n, size_t n_tensors)
{
    struct sl_reader *r = s->r;
    struct sl_safetensors_visitor v = {visit_tensor, visit_meta, s};
    enum sl_code c = make_ranges(s, n_tensors);
    if (c)
        return c;
    char *scratch = sl_malloc(n);
    if (!scratch)
        return SL_READER_FAIL(r, NO_MEMORY, "not enough memory for its header of %zu bytes", n);
    c = sl_safetensors_plain_read(header, n, scratch, &v);
    sl_free(scratch);
    return c ? c : check_tiling(s);
}

static enum sl_code parse_header(struct sl_reader *r, size_t header_n, json_t **ret)
{
    json_error_t e;
    json_t *header = sl_jansson_parse((const char *)r->data + 8, header_n, 0, &e);
    if (header && json_is_object(header)) {
        *ret = header;
        return SL_OK;
    }
    json_decref(header);
    if (!header && !*e.text)
        return SL_READER_FAIL(r, NO_MEMORY, "not enough memory for its header of %zu bytes",
                              header_n);
    return SL_READER_FAIL(r, FILE_CORRUPT, "the header is not a JSON object: %s",
                          header ? "another value" : e.text);
}

enum sl_code sl_safetensors_read(struct sl_reader *r)
{
    uint64_t header_n = 0;
    if (r->n < 8)
        return SL_READER_FAIL(r, FILE_TRUNCATED, "has only %zu bytes of its 8 bytes of length",
                              r->n);
    memcpy(&header_n, r->data, 8);
    if (header_n > HEADER_BYTES_MAX)
        return SL_READER_FAIL(r, TOO_LARGE, "the header's length is %ju bytes; at most %d",
                              (uintmax_t)header_n, HEADER_BYTES_MAX);
    if (header_n > r->n - 8)
        return SL_READER_FAIL(r, FILE_TRUNCATED,
                              "the header's length is %ju bytes, but only %zu follow",
                              (uintmax_t)header_n, r->n - 8);
    struct state s = {.r = r, .data = r->data + 8 + header_n, .data_n = r->n - 8 - header_n};
    const char *text = (const char *)r->data + 8;
    json_t *header = NULL;
    size_t n_tensors;
    enum sl_code c;
    if (sl_safetensors_is_plain(text, (size_t)header_n, &n_tensors)) {
        c = read_plain(&s, text, (size_t)header_n, n_tensors);
    } else {
        c = parse_header(r, (size_t)header_n, &header);
        if (!c)
            c = read_header(&s, header);
    }
    sl_free(s.ranges);
    json_decref(header);
    return c;
}
