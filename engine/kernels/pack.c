/* pack.c: weights from a file's layout and type to the panels that matmul reads (kernels.h).
 *
 * Runs once, at load, on the workers. A block of 16 outputs × BLOCK inputs is read output by
 * output, as f32, into a buffer that stays in the first cache, then written input by input: the
 * file's rows are read in long runs although the panel wants them across. The source need not be
 * aligned: tensors lie in a mapped file wherever its header put them. */
#include <assert.h>

#include "engine/kernels/quant.h"

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
    if (sl_is_quantised(type)) {
        size_t bytes = n_in > SIZE_MAX / 64 ? SIZE_MAX : sl_q_panel_bytes(type, sl_groups(n_in));
        return panels != 0 && bytes > SIZE_MAX / panels ? SIZE_MAX : panels * bytes;
    }
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

/* --- only moved: where nothing is converted ------------------------------------------------------
 *
 * Across a block in the vectors that every processor has: rows i and i + n/2 of n are zipped, and
 * after log2(n) such rounds rows are columns. */

typedef uint16_t lanes_16 __attribute__((vector_size(16)));
typedef uint32_t lanes_32 __attribute__((vector_size(16)));

enum { VECTOR = sizeof(lanes_16), N_16 = 8, N_32 = 4 }; /* bytes, and lanes */

static void turn_16(lanes_16 row[N_16])
{
    for (size_t round = 0; round < 3; round++) {
        lanes_16 t[N_16];
        for (size_t i = 0; i < N_16 / 2; i++) {
            t[2 * i] = __builtin_shufflevector(row[i], row[i + N_16 / 2], 0, 8, 1, 9, 2, 10, 3, 11);
            t[2 * i + 1] =
                __builtin_shufflevector(row[i], row[i + N_16 / 2], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(row, t, sizeof t);
    }
}

static void turn_32(lanes_32 row[N_32])
{
    for (size_t round = 0; round < 2; round++) {
        lanes_32 t[N_32];
        for (size_t i = 0; i < N_32 / 2; i++) {
            t[2 * i] = __builtin_shufflevector(row[i], row[i + N_32 / 2], 0, 4, 1, 5);
            t[2 * i + 1] = __builtin_shufflevector(row[i], row[i + N_32 / 2], 2, 6, 3, 7);
        }
        memcpy(row, t, sizeof t);
    }
}

/* dst[i][j] = block[j][i] for i < n, of elements of `size` bytes, rows of the block BLOCK of them;
 * dst may have room for n alone. */
static ALWAYS_INLINE void turn_block(char *dst, const char *block, const size_t size, size_t n)
{
    const size_t lanes = VECTOR / size;
    char to[sizeof(uint32_t) * BLOCK * SL_PANEL];
    for (size_t i = 0; i < n; i += lanes)
        for (size_t j = 0; j < SL_PANEL; j += lanes) {
            union {
                lanes_16 of_16[N_16];
                lanes_32 of_32[N_32];
            } rows;
            for (size_t k = 0; k < lanes; k++)
                memcpy((char *)&rows + k * VECTOR, block + ((j + k) * BLOCK + i) * size, VECTOR);
            if (size == sizeof(uint16_t))
                turn_16(rows.of_16);
            else
                turn_32(rows.of_32);
            for (size_t k = 0; k < lanes; k++)
                memcpy(to + ((i + k) * SL_PANEL + j) * size, (char *)&rows + k * VECTOR, VECTOR);
        }
    memcpy(dst, to, n * SL_PANEL * size);
}

/* n elements of a row of `size` bytes each, `step` bytes apart; what is beyond them is zero. */
static void move_row(char *to, const char *row, size_t step, size_t size, size_t n)
{
    if (step == size && n)
        memcpy(to, row, n * size);
    for (size_t i = 0; i < n && step != size; i++)
        memcpy(to + i * size, row + i * step, size);
    memset(to + n * size, 0, (BLOCK - n) * size);
}

static void move(char *dst, const char *src, size_t size, size_t outputs, size_t stride_out,
                 size_t stride_in, size_t n)
{
    char block[sizeof(uint32_t) * SL_PANEL * BLOCK];
    for (size_t j = 0; j < SL_PANEL; j++)
        move_row(block + j * BLOCK * size, j < outputs ? src + j * stride_out * size : NULL,
                 stride_in * size, size, j < outputs ? n : 0);
    if (size == sizeof(uint16_t))
        turn_block(dst, block, sizeof(uint16_t), n);
    else
        turn_block(dst, block, sizeof(uint32_t), n);
}

/* --- the whole -----------------------------------------------------------------------------------
 */

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

void sl_pack_read(float ret[SL_PANEL][SL_GROUP], const struct sl_pack_source *src, size_t o,
                  size_t k)
{
    size_t size = sl_dtype_size(src->type), n = src->n_in - k;
    n = n < SL_GROUP ? n : SL_GROUP;
    memset(ret, 0, SL_PANEL * sizeof *ret);
    for (size_t j = 0; j < SL_PANEL && o + j < src->n_out; j++)
        load(ret[j], src->data + ((o + j) * src->stride_out + k * src->stride_in) * size, src->type,
             src->stride_in, n, false);
}

void sl_pack_matrix(void *dst, enum sl_dtype type, const void *src, enum sl_dtype src_type,
                    size_t n_out, size_t n_in, size_t stride_out, size_t stride_in,
                    size_t panel_begin, size_t panel_end)
{
    assert(panel_end <= sl_panels(n_out));
    if (sl_is_quantised(type)) {
        const struct sl_pack_source s = {src, src_type, n_out, n_in, stride_out, stride_in};
        sl_pack_quantised(dst, type, &s, panel_begin, panel_end);
        return;
    }
    assert(type == SL_DTYPE_F32 || type == SL_DTYPE_F16 || type == SL_DTYPE_BF16);
    size_t size = sl_dtype_size(type), src_size = sl_dtype_size(src_type);
    for (size_t p = panel_begin; p < panel_end; p++) {
        size_t o = p * SL_PANEL, outputs = n_out - o < SL_PANEL ? n_out - o : SL_PANEL;
        for (size_t k = 0; k < n_in; k += BLOCK) {
            size_t n = n_in - k < BLOCK ? n_in - k : BLOCK;
            const char *from = (const char *)src + (o * stride_out + k * stride_in) * src_size;
            char *to = (char *)dst + (p * n_in + k) * SL_PANEL * size;
            if (type == src_type)
                move(to, from, size, outputs, stride_out, stride_in, n);
            else
                convert(to, type, from, src_type, outputs, stride_out, stride_in, n);
        }
    }
}
