/* convert_put.c: the bytes of a converted file's tensors, one after the other. See convert_priv.h.
 *
 * Values go through a buffer of some thousands, codes through rows. Scales stand apart from their
 * codes; while codes are written their scales are kept (a 32nd of their number), so that they can
 * follow. Where they stand elsewhere (convert.c), the matrix is quantised once more for them. */
#include "engine/convert_priv.h"

#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/convert.h"
#include "engine/kernels/kernels.h"

enum {
    BLOCK = 16384,  /* values that are converted at a time */
    PIECE = 1 << 20 /* bytes that are handed on at once */
};

enum sl_dtype sl_conversion_plain(const struct sl_tensor *t)
{
    return t->block || t->exponent ? SL_DTYPE_F32 : t->dtype;
}

bool sl_conversion_can_code(const struct sl_tensor *t, enum sl_dtype type, size_t n_in)
{
    return sl_code_can(type, n_in) && n_in > 0 && t->n_elements > 0 && t->rank > 0 &&
           t->shape[t->rank - 1] == n_in;
}

enum sl_dtype sl_conversion_dtype(const struct sl_conversion_entry *e)
{
    switch (e->form) {
    case SL_FORM_CODES:
        return e->type == SL_DTYPE_Q8 ? SL_DTYPE_I8 : SL_DTYPE_U8;
    case SL_FORM_SCALES:
        return SL_DTYPE_F16;
    case SL_FORM_BLOCKS:
        return SL_DTYPE_U8;
    default:
        return e->type;
    }
}

const char *sl_conversion_suffix(const struct sl_conversion_entry *e)
{
    return e->form == SL_FORM_SCALES   ? sl_coded_suffix(e->type, SL_BLOCK_NONE)
           : e->form == SL_FORM_BLOCKS ? sl_coded_suffix(SL_DTYPE_NONE, e->t->block)
                                       : "";
}

unsigned sl_conversion_shape(const struct sl_conversion_entry *e, size_t *ret)
{
    if (!e->t || e->form == SL_FORM_VALUES) {
        memcpy(ret, e->t ? e->t->shape : &e->bytes, (e->t ? SL_TENSOR_RANK_MAX : 1) * sizeof *ret);
        return e->t ? e->t->rank : 1;
    }
    size_t n_in = e->t->shape[e->t->rank - 1];
    ret[0] = e->t->n_elements / n_in;
    ret[1] = e->form == SL_FORM_CODES    ? sl_code_bytes(e->type, n_in)
             : e->form == SL_FORM_SCALES ? sl_groups(n_in)
                                         : sl_tensor_bytes(e->t) / ret[0];
    return 2;
}

/* n bytes as they are; `mapped`: they are a file's, whose pages are given back. */
static enum sl_code put(struct sl_conversion_put *w, const unsigned char *p, size_t n, bool mapped)
{
    enum sl_code rc = SL_OK;
    for (size_t i = 0; i < n && rc == SL_OK; i += PIECE) {
        size_t part = n - i < PIECE ? n - i : PIECE;
        rc = w->sink(w->arg, p + i, part, w->err);
        if (mapped)
            sl_tensors_forget(w->source, p + i, part);
    }
    return rc;
}

/* dst holds n values of `type`. Whether one of them is another number than it was. */
static bool narrow(unsigned char *dst, enum sl_dtype type, const float *x, size_t n)
{
    bool lost = false;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = type == SL_DTYPE_F16 ? sl_f16_from_f32(x[i]) : sl_bf16_from_f32(x[i]);
        lost |= x[i] != (type == SL_DTYPE_F16 ? sl_f32_from_f16(h) : sl_f32_from_bf16(h));
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
    return lost;
}

/* t: its values are to be had one after the other. */
static enum sl_code put_converted(struct sl_conversion_put *w, const struct sl_conversion_entry *e,
                                  const struct sl_tensor *t, bool mapped)
{
    struct buffers {
        float values[BLOCK];
        unsigned char bytes[BLOCK * sizeof(float)];
    } *b = sl_malloc(sizeof *b);
    if (!b)
        return sl_fail(w->err, SL_E_NO_MEMORY, "no memory to convert tensor %s", t->name);
    _Static_assert(BLOCK % SL_BLOCK_WEIGHTS_MAX == 0, "whole blocks");
    size_t to = sl_dtype_size(e->type);
    enum sl_code rc = SL_OK;
    for (size_t i = 0; i < t->n_elements && rc == SL_OK; i += BLOCK) {
        size_t n = t->n_elements - i < BLOCK ? t->n_elements - i : BLOCK;
        sl_tensor_values(t, (ptrdiff_t)i, n, b->values);
        if (e->type == SL_DTYPE_F32)
            memcpy(b->bytes, b->values, n * to);
        else if (narrow(b->bytes, e->type, b->values, n))
            w->narrowed = true;
        rc = w->sink(w->arg, b->bytes, n * to, w->err);
        if (!mapped || t->scales)
            continue;
        const unsigned char *from = sl_tensor_at(t, (ptrdiff_t)i);
        sl_tensors_forget(w->source, from, (size_t)(sl_tensor_at(t, (ptrdiff_t)(i + n)) - from));
    }
    sl_free(b);
    return rc;
}

/* Its elements, or, where it has blocks or an exponent, its values, in order and by themselves;
 * *ret_copy is the caller's. False: no memory. */
static bool lay_out_tensor(const struct sl_tensor *t, struct sl_tensor *ret, void **ret_copy)
{
    bool valued = t->block || t->exponent;
    *ret = (struct sl_tensor){.name = t->name,
                              .dtype = sl_conversion_plain(t),
                              .rank = t->rank,
                              .n_elements = t->n_elements,
                              .contiguous = true};
    memcpy(ret->shape, t->shape, sizeof ret->shape);
    size_t n = t->n_elements, size = sl_dtype_size(ret->dtype);
    float *lying = valued ? sl_malloc(n * sizeof *lying) : NULL;
    unsigned char *copy = sl_malloc(n * size);
    if (!copy || (valued && !lying)) {
        sl_free(lying);
        sl_free(copy);
        return false;
    }
    if (valued) {
        assert(sl_tensor_turned(t));
        sl_tensor_values(t, 0, n, lying);
        struct sl_tensor all = *t;
        all.dtype = SL_DTYPE_F32, all.block = SL_BLOCK_NONE, all.exponent = 0;
        all.data = (unsigned char *)lying;
        sl_tensor_copy(&all, copy);
    } else {
        sl_tensor_copy(t, copy);
    }
    sl_free(lying);
    ret->data = *ret_copy = copy;
    return true;
}

/* A row of a matrix, and the scales of all rows. */
struct rows {
    float *values;
    uint8_t *codes;
    uint16_t *scales;
    float *back; /* what the codes stand for */
};

static bool rows_alloc(struct rows *r, enum sl_dtype type, size_t rows, size_t n_in)
{
    r->values = sl_malloc(n_in * sizeof *r->values);
    r->codes = sl_malloc(sl_code_bytes(type, n_in));
    r->scales = sl_malloc(rows * sl_groups(n_in) * sizeof *r->scales);
    r->back = sl_malloc(n_in * sizeof *r->back);
    return r->values && r->codes && r->scales && r->back;
}

static void rows_free(struct rows *r)
{
    sl_free(r->values);
    sl_free(r->codes);
    sl_free(r->scales);
    sl_free(r->back);
}

static void keep_scales(struct sl_conversion_put *w, const struct sl_tensor *of, uint16_t *scales)
{
    sl_free(w->scales);
    w->scales = scales;
    w->scales_of = of;
}

/* t: e's tensor, its values to be had one after the other. */
static enum sl_code put_coded(struct sl_conversion_put *w, const struct sl_conversion_entry *e,
                              const struct sl_tensor *t, bool mapped)
{
    size_t n_in = t->shape[t->rank - 1], rows = t->n_elements / n_in, n_groups = sl_groups(n_in);
    struct rows r = {0};
    enum sl_code rc = SL_OK;
    if (!rows_alloc(&r, e->type, rows, n_in))
        rc = sl_fail(w->err, SL_E_NO_MEMORY, "no memory to convert tensor %s", t->name);
    for (size_t i = 0; i < rows && rc == SL_OK; i++) {
        uint16_t *scales = r.scales + i * n_groups;
        sl_tensor_values(t, (ptrdiff_t)(i * n_in), n_in, r.values);
        sl_code_row(r.codes, scales, e->type, r.values, n_in);
        sl_code_values(r.back, e->type, r.codes, scales, 0, n_in);
        for (size_t k = 0; k < n_in; k++)
            w->narrowed |= r.back[k] < r.values[k] || r.back[k] > r.values[k];
        if (e->form == SL_FORM_CODES)
            rc = w->sink(w->arg, r.codes, sl_code_bytes(e->type, n_in), w->err);
    }
    if (mapped)
        sl_tensor_forget(w->source, t);
    if (rc == SL_OK) {
        keep_scales(w, e->t, r.scales);
        r.scales = NULL;
    }
    rows_free(&r);
    return rc;
}

static enum sl_code put_scales(struct sl_conversion_put *w, const struct sl_conversion_entry *e)
{
    assert(w->scales && w->scales_of == e->t);
    enum sl_code rc = put(w, (unsigned char *)w->scales, e->bytes, false);
    keep_scales(w, NULL, NULL);
    return rc;
}

void sl_conversion_put_done(struct sl_conversion_put *w)
{
    keep_scales(w, NULL, NULL);
}

/* Of a tensor that is codes already. */
static enum sl_code put_own_codes(struct sl_conversion_put *w, const struct sl_conversion_entry *e)
{
    return e->form == SL_FORM_CODES ? put(w, e->t->data, e->bytes, true)
                                    : put(w, e->t->scales, e->bytes, true);
}

enum sl_code sl_conversion_put(struct sl_conversion_put *w, const struct sl_conversion_entry *e)
{
    if (!e->t)
        return put(w, w->tokenizer, e->bytes, false);
    if (e->form == SL_FORM_BLOCKS)
        return put(w, e->t->data, e->bytes, true);
    if (e->t->scales && e->type == e->t->dtype)
        return put_own_codes(w, e);
    if (e->form == SL_FORM_SCALES && w->scales_of == e->t)
        return put_scales(w, e);
    void *copy = NULL;
    struct sl_tensor t = *e->t;
    enum sl_code rc;
    if (!t.contiguous) {
        if (!lay_out_tensor(e->t, &t, &copy))
            return sl_fail(w->err, SL_E_NO_MEMORY, "no memory to read tensor %s", e->t->name);
        sl_tensor_forget(w->source, e->t);
    }
    if (e->form != SL_FORM_VALUES)
        rc = put_coded(w, e, &t, !copy);
    else if (e->type == t.dtype && !t.exponent)
        rc = put(w, t.data, e->bytes, !copy);
    else
        rc = put_converted(w, e, &t, !copy);
    sl_free(copy);
    if (rc == SL_OK && e->form == SL_FORM_SCALES)
        rc = put_scales(w, e);
    return rc;
}
