/* quants.c: see quants.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/floats.h"
#include "tests/support/quants.h"

const enum sl_dtype quant_types[QUANT_TYPES] = {SL_DTYPE_Q8, SL_DTYPE_Q4, SL_DTYPE_Q4_0};

float *quant_floats(size_t n)
{
    float *p = sl_malloc(n * sizeof *p);
    assert_non_null(p);
    return p;
}

const int quant_levels[16] = {-16, -13, -11, -9, -7, -5, -3, -1, 0, 2, 4, 6, 8, 10, 12, 15};

struct quant_place quant_place_of(enum sl_dtype type, size_t n_in, size_t o, size_t k)
{
    size_t groups = (n_in + 31) / 32, scales = (groups * 32 + 63) / 64 * 64;
    size_t group_bytes = type == SL_DTYPE_Q8 ? 512 : 256;
    size_t panel = o / 16 * (scales + groups * group_bytes);
    size_t in_step = o % 16 * 4 + k % 4, step = k % 32 / 4;
    struct quant_place p = {.scale = panel + k / 32 * 32 + o % 16 * 2};
    p.code = panel + scales + k / 32 * group_bytes;
    if (type == SL_DTYPE_Q8) {
        p.code += step * 64 + in_step;
    } else {
        p.code += step * 32 + in_step % 32;
        p.shift = in_step >= 32 ? 4 : 0;
    }
    return p;
}

static int code_at(const unsigned char *panels, enum sl_dtype type, struct quant_place p)
{
    if (type == SL_DTYPE_Q8)
        return (int8_t)panels[p.code];
    int code = panels[p.code] >> p.shift & 15;
    return type == SL_DTYPE_Q4_0 ? code - 8 : quant_levels[code];
}

double quant_weight_at(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t o,
                       size_t k)
{
    struct quant_place p = quant_place_of(type, n_in, o, k);
    float scale;
    sl_widen(&scale, panels + p.scale, SL_DTYPE_F16, 1);
    return (double)scale * code_at(panels, type, p);
}

unsigned char *quant_from_blocks(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed,
                                 unsigned char **ret)
{
    size_t bytes = sl_pack_bytes(type, n_out, n_in), block = type == SL_DTYPE_Q8 ? 34 : 18;
    size_t groups = (n_in + 31) / 32, n = n_out * groups * block;
    unsigned char *b = sl_malloc(n ? n : 1), *p = sl_aligned_calloc(bytes ? bytes : 1);
    assert_true(b && p);
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)next_random(&seed);
    for (size_t i = 0; i < n; i += block) {
        uint16_t scale = (uint16_t)(0x2000 + next_random(&seed) % 0x1000);
        memcpy(b + i, &scale, sizeof scale);
    }
    memset(p, 0xA5, bytes);
    sl_pack_blocks(p, type, b, n_out, groups * 32, 0, sl_panels(n_out));
    if (ret)
        *ret = b;
    else
        sl_free(b);
    return p;
}

unsigned char *quant_pack(enum sl_dtype type, const float *w, size_t n_out, size_t n_in)
{
    if (type == SL_DTYPE_Q4_0) /* comes from files only; here any codes will do */
        return quant_from_blocks(type, n_out, n_in, (uint64_t)(n_in * 7 + n_out), NULL);
    size_t bytes = sl_pack_bytes(type, n_out, n_in);
    unsigned char *p = sl_aligned_calloc(bytes ? bytes : 1);
    assert_non_null(p);
    memset(p, 0xA5, bytes); /* nothing may be left as it was */
    sl_pack_matrix(p, type, w, SL_DTYPE_F32, n_out, n_in, n_in, 1, 0, sl_panels(n_out));
    return p;
}
