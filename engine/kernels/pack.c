/* pack.c: weights from a file's layout and type to the panels that matmul reads (kernels.h).
 *
 * Runs once, at load, on the workers. A block of 16 outputs × BLOCK inputs is read output by
 * output, as f32, into a buffer that stays in the first cache, then written input by input: the
 * file's rows are read in long runs although the panel wants them across. The source need not be
 * aligned: tensors lie in a mapped file wherever its header put them. */
#include <assert.h>

#include "engine/kernels/convert.h"
#include "engine/kernels/kernels.h"

enum { BLOCK = 64 };

void sl_widen(float *y, const void *x, enum sl_dtype type, size_t n)
{
    const char *p = x;
    uint16_t h;
    double d;
    switch (type) {
    case SL_DTYPE_F32:
        memcpy(y, p, n * sizeof *y);
        return;
    case SL_DTYPE_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, p + i * sizeof h, sizeof h);
            y[i] = sl_f32_from_f16(h);
        }
        return;
    case SL_DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, p + i * sizeof h, sizeof h);
            y[i] = sl_f32_from_bf16(h);
        }
        return;
    case SL_DTYPE_F64:
        for (size_t i = 0; i < n; i++) {
            memcpy(&d, p + i * sizeof d, sizeof d);
            y[i] = (float)d;
        }
        return;
    default:
        assert(false && "a type that can be widened");
    }
}

/* n elements of src, `stride` elements apart, to f32. `odd`: f64 is rounded to odd, because the
 * result will be narrowed once more. */
static void load(float *y, const char *src, enum sl_dtype type, size_t stride, size_t n, bool odd)
{
    size_t size = sl_dtype_size(type);
    if (type == SL_DTYPE_F64 && odd) {
        for (size_t i = 0; i < n; i++) {
            double d;
            memcpy(&d, src + i * stride * size, sizeof d);
            y[i] = sl_f32_from_f64_odd(d);
        }
    } else if (stride == 1) {
        sl_widen(y, src, type, n);
    } else {
        for (size_t i = 0; i < n; i++)
            sl_widen(&y[i], src + i * stride * size, type, 1);
    }
}

size_t sl_pack_bytes(enum sl_dtype type, size_t n_out, size_t n_in)
{
    size_t group = SL_PANEL * sl_dtype_size(type);
    size_t panels = n_out / SL_PANEL + (n_out % SL_PANEL != 0);
    if (panels != 0 && n_in > SIZE_MAX / group / panels)
        return SIZE_MAX; /* no allocation grants it */
    return panels * n_in * group;
}

/* dst[i][j] = block[j][i] in the type of dst. */
static void store(char *dst, enum sl_dtype type, float block[SL_PANEL][BLOCK], size_t n)
{
    float f[SL_PANEL];
    uint16_t h[SL_PANEL];
    for (size_t i = 0; i < n; i++) {
        if (type == SL_DTYPE_F32) {
            for (size_t j = 0; j < SL_PANEL; j++)
                f[j] = block[j][i];
            memcpy(dst + i * sizeof f, f, sizeof f);
            continue;
        }
        for (size_t j = 0; j < SL_PANEL; j++)
            h[j] =
                type == SL_DTYPE_F16 ? sl_f16_from_f32(block[j][i]) : sl_bf16_from_f32(block[j][i]);
        memcpy(dst + i * sizeof h, h, sizeof h);
    }
}

/* Where nothing is converted, 16-bit weights are only moved, which is several times as fast. */
static void move_16(char *dst, const char *src, size_t outputs, size_t stride_out, size_t stride_in,
                    size_t n)
{
    uint16_t block[SL_PANEL][BLOCK] = {{0}}, h[SL_PANEL];
    for (size_t j = 0; j < outputs; j++) {
        const char *row = src + j * stride_out * sizeof *h;
        if (stride_in == 1) {
            memcpy(block[j], row, n * sizeof *h);
            continue;
        }
        for (size_t i = 0; i < n; i++)
            memcpy(&block[j][i], row + i * stride_in * sizeof *h, sizeof *h);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < SL_PANEL; j++)
            h[j] = block[j][i];
        memcpy(dst + i * sizeof h, h, sizeof h);
    }
}

static void convert(char *dst, enum sl_dtype type, const char *src, enum sl_dtype src_type,
                    size_t outputs, size_t stride_out, size_t stride_in, size_t n)
{
    float block[SL_PANEL][BLOCK];
    for (size_t j = 0; j < SL_PANEL; j++) {
        if (j < outputs)
            load(block[j], src + j * stride_out * sl_dtype_size(src_type), src_type, stride_in, n,
                 type != SL_DTYPE_F32);
        else
            memset(block[j], 0, sizeof block[j]);
    }
    store(dst, type, block, n);
}

void sl_pack_matrix(void *dst, enum sl_dtype type, const void *src, enum sl_dtype src_type,
                    size_t n_out, size_t n_in, size_t stride_out, size_t stride_in,
                    size_t panel_begin, size_t panel_end)
{
    assert(type == SL_DTYPE_F32 || type == SL_DTYPE_F16 || type == SL_DTYPE_BF16);
    assert(panel_end <= sl_panels(n_out));
    size_t size = sl_dtype_size(type), src_size = sl_dtype_size(src_type);
    for (size_t p = panel_begin; p < panel_end; p++) {
        size_t o = p * SL_PANEL, outputs = n_out - o < SL_PANEL ? n_out - o : SL_PANEL;
        for (size_t k = 0; k < n_in; k += BLOCK) {
            size_t n = n_in - k < BLOCK ? n_in - k : BLOCK;
            const char *from = (const char *)src + (o * stride_out + k * stride_in) * src_size;
            char *to = (char *)dst + (p * n_in + k) * SL_PANEL * size;
            if (type == src_type && size == sizeof(uint16_t))
                move_16(to, from, outputs, stride_out, stride_in, n);
            else
                convert(to, type, from, src_type, outputs, stride_out, stride_in, n);
        }
    }
}
