/* tensor.c: the tensors of a file, once they are known: found by name, measured, read. See
 * tensors.h. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/formats/tensors.h"
#include "engine/kernels/kernels.h"

const struct sl_tensor *sl_tensors_find(const struct sl_tensors *t, const char *name)
{
    size_t lo = 0, hi = t->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int cmp = strcmp(name, t->v[mid].name);
        if (cmp == 0)
            return &t->v[mid];
        if (cmp < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const char *sl_tensors_meta(const struct sl_tensors *t, const char *key)
{
    for (size_t i = 0; i < t->n_meta; i++)
        if (strcmp(t->meta[i].key, key) == 0)
            return t->meta[i].value;
    return NULL;
}

/* One line along the last axis; the size is a constant in each branch, so that the copies become
 * loads and stores. The data may be unaligned, hence memcpy and not a cast. */
static void copy_line(unsigned char *dst, const unsigned char *src, size_t n, ptrdiff_t step,
                      size_t size)
{
#define LINE(s)                                                                                    \
    case s:                                                                                        \
        for (size_t i = 0; i < n; i++)                                                             \
            memcpy(dst + i * (s), src + (ptrdiff_t)i * step * (s), (s));                           \
        break;
    switch (size) {
        LINE(1)
        LINE(2)
        LINE(4)
        LINE(8)
    default:
        assert(false && "a size that no dtype has");
    }
#undef LINE
}

const char *sl_tensor_type(const struct sl_tensor *t)
{
    return t->block ? sl_block_name(t->block) : sl_dtype_name(t->dtype);
}

size_t sl_tensor_bytes(const struct sl_tensor *t)
{
    if (t->scales)
        return t->shape[0] * sl_code_bytes(t->dtype, t->shape[1]);
    return t->block ? t->n_elements / sl_block_weights(t->block) * sl_block_bytes(t->block)
                    : t->n_elements * sl_dtype_size(t->dtype);
}

size_t sl_tensor_scale_bytes(const struct sl_tensor *t)
{
    return t->scales ? t->shape[0] * sl_groups(t->shape[1]) * sizeof(uint16_t) : 0;
}

const unsigned char *sl_tensor_at(const struct sl_tensor *t, ptrdiff_t at)
{
    if (t->scales) {
        assert(at >= 0 && (size_t)at % t->shape[1] == 0);
        return t->data + (size_t)at / t->shape[1] * sl_code_bytes(t->dtype, t->shape[1]);
    }
    ptrdiff_t weights = (ptrdiff_t)sl_block_weights(t->block);
    assert(at % weights == 0);
    return t->data + at / weights *
                         (ptrdiff_t)(t->block ? sl_block_bytes(t->block) : sl_dtype_size(t->dtype));
}

/* Of codes and scales, row by row. */
static void coded_values(const struct sl_tensor *t, size_t at, size_t n, float *y)
{
    size_t n_in = t->shape[1], row_bytes = sl_code_bytes(t->dtype, n_in);
    for (size_t i = 0, m; i < n; i += m) {
        size_t row = (at + i) / n_in, k = (at + i) % n_in;
        m = n - i < n_in - k ? n - i : n_in - k;
        sl_code_values(y + i, t->dtype, t->data + row * row_bytes,
                       t->scales + row * sl_groups(n_in) * sizeof(uint16_t), k, m);
    }
}

void sl_tensor_values(const struct sl_tensor *t, ptrdiff_t at, size_t n, float *y)
{
    if (t->scales)
        coded_values(t, (size_t)at, n, y);
    else if (t->block)
        sl_block_dequantise_row(y, sl_tensor_at(t, at), t->block, n);
    else
        sl_widen(y, sl_tensor_at(t, at), t->dtype, n);
    for (size_t i = 0; t->exponent && i < n; i++)
        y[i] = ldexpf(y[i], t->exponent);
}

bool sl_tensor_turned(const struct sl_tensor *t)
{
    unsigned axis[2] = {0}, n = 0;
    for (unsigned i = 0; i < t->rank; i++)
        if (t->shape[i] != 1) {
            axis[n < 2 ? n : 1] = i;
            n++;
        }
    return n == 2 && t->stride[axis[0]] == 1 && t->stride[axis[1]] == (ptrdiff_t)t->shape[axis[0]];
}

void sl_tensor_copy(const struct sl_tensor *t, void *dst)
{
    if (t->n_elements == 0)
        return;
    if (t->contiguous) {
        memcpy(dst, t->data, sl_tensor_bytes(t));
        return;
    }
    assert(t->rank > 0 && !t->block);
    size_t size = sl_dtype_size(t->dtype);
    unsigned last = t->rank - 1;
    size_t index[SL_TENSOR_RANK_MAX] = {0};
    unsigned char *d = dst;
    size_t n_lines = t->n_elements / t->shape[last];
    for (size_t line = 0; line < n_lines; line++) {
        ptrdiff_t at = 0;
        for (unsigned i = 0; i < last; i++)
            at += (ptrdiff_t)index[i] * t->stride[i];
        copy_line(d, t->data + at * (ptrdiff_t)size, t->shape[last], t->stride[last], size);
        d += t->shape[last] * size;
        for (unsigned i = last; i-- > 0;) {
            if (++index[i] < t->shape[i])
                break;
            index[i] = 0;
        }
    }
}
