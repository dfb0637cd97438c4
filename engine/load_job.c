/* load_job.c: one tensor of a file becomes what a model computes with: hashed, checked, packed. See
 * load_priv.h.
 *
 * A file is read once. Whole rows are taken in pieces that stay in a core's second cache between
 * being hashed, checked and packed, and the pages behind are given back to the system as the work
 * goes on: at no time are more of the file's pages held than a few pieces for each thread, so that
 * loading takes the memory of the packed weights and little more. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/load_priv.h"

enum {
    PIECE_BYTES = 128 << 10,
    FORGET_BYTES = 4 << 20, /* a call for each piece would cost more than it gives */
    BLOCK = 4096
};

/* --- values that cannot be used ------------------------------------------------------------------
 */

/* The smallest magnitude that a type cannot hold: what rounds to infinity. */
static float limit_of(enum sl_dtype type)
{
    switch (type) {
    case SL_DTYPE_F16:
        return 65520.0f;
    case SL_DTYPE_BF16:
        return 0x1.ffp127f;
    case SL_DTYPE_Q8: /* the largest F16 scale times its last code */
        return 65504.0f * 127;
    case SL_DTYPE_Q5:
    case SL_DTYPE_Q4: /* the last levels are 15 and -16; a scale fitted to them is a little larger
                       */
        return 65504.0f * 12;
    default:
        return INFINITY;
    }
}

/* Magnitudes compare as their bits do. Those of `type` from *ret on are too large. False: not a
 * type whose bits are asked. */
static bool limit_bits(enum sl_dtype type, float limit, uint32_t *ret)
{
    uint32_t bits;
    memcpy(&bits, &limit, sizeof bits);
    if (type == SL_DTYPE_F32)
        *ret = bits;
    else if (type == SL_DTYPE_BF16)
        *ret = (bits + 0xffff) >> 16;
    else if (type == SL_DTYPE_F16)
        *ret = 0x7c00; /* every finite one is below every limit */
    else
        return false;
    return true;
}

static bool any_from_16(const unsigned char *p, size_t n, uint32_t limit)
{
    int16_t bad = 0, last = (int16_t)(limit - 1);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + i * sizeof h, sizeof h);
        bad = (int16_t)(bad | ((int16_t)(h & 0x7fff) > last ? -1 : 0));
    }
    return bad != 0;
}

static bool any_from_32(const unsigned char *p, size_t n, uint32_t limit)
{
    int32_t bad = 0, last = (int32_t)(limit - 1);
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, p + i * sizeof u, sizeof u);
        bad |= (int32_t)(u & 0x7fffffff) > last ? -1 : 0;
    }
    return bad != 0;
}

size_t sl_find_bad(const void *data, enum sl_dtype type, size_t n, enum sl_dtype to)
{
    const unsigned char *p = data;
    float block[BLOCK], limit = limit_of(to);
    size_t size = sl_dtype_size(type);
    uint32_t bits;
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t m = n - i < BLOCK ? n - i : BLOCK;
        if (limit_bits(type, limit, &bits) &&
            !(size == sizeof(uint16_t) ? any_from_16(p + i * size, m, bits)
                                       : any_from_32(p + i * size, m, bits)))
            continue;
        sl_widen(block, p + i * size, type, m);
        for (size_t j = 0; j < m; j++)
            if (!(fabsf(block[j]) < limit))
                return i + j;
    }
    return SIZE_MAX;
}

/* --- one job -------------------------------------------------------------------------------------
 */

static void write_copy(const struct sl_load_job *j, unsigned char *dst, const unsigned char *src)
{
    const struct sl_tensor *t = j->t;
    size_t n = t->n_elements;
    if (j->kind == SL_JOB_MATRIX) {
        assert(j->layout == SL_IN_OUT);
        sl_pack_matrix(dst, j->type, src, t->dtype, j->n_out, j->n_in, 1, j->n_out, 0,
                       sl_panels(j->n_out));
    } else if (j->kind == SL_JOB_COLUMNS) {
        float *y = (float *)(void *)dst;
        size_t size = sl_dtype_size(t->dtype);
        for (size_t i = 0; i < n; i++)
            sl_widen(y + i % j->n_in * j->n_out + i / j->n_in, src + i * size, t->dtype, 1);
        memset(y + n, 0, (sl_whole_panels(n) - n) * sizeof *y);
    } else if (j->kind == SL_JOB_F32) {
        float *y = (float *)(void *)dst;
        sl_widen(y, src, t->dtype, n);
        memset(y + n, 0, (sl_whole_panels(n) - n) * sizeof *y);
        if (j->map)
            j->map(y, n);
    } else {
        memcpy(dst, src, n * sl_dtype_size(t->dtype));
    }
}

struct pass {
    struct sl_load_job *j;
    const struct sl_tensors *ts;
    struct sl_digest digest;
    const unsigned char *src;
    size_t forgotten; /* bytes of src whose pages were given back */
};

/* Elements [begin, end): they are in the cache afterwards. */
static void look(struct pass *p, size_t begin, size_t end)
{
    struct sl_load_job *j = p->j;
    size_t size = sl_dtype_size(j->t->dtype);
    sl_digest_add(&p->digest, p->src + begin * size, (end - begin) * size);
    if (j->bad != SIZE_MAX)
        return;
    size_t bad = sl_find_bad(p->src + begin * size, j->t->dtype, end - begin, j->type);
    j->bad = bad == SIZE_MAX ? SIZE_MAX : begin + bad;
}

/* Bytes [0, end) of src are done with. */
static void forget(struct pass *p, size_t end, size_t at_least)
{
    if (p->src != p->j->t->data || end - p->forgotten < at_least)
        return;
    sl_tensors_forget(p->ts, p->src + p->forgotten, end - p->forgotten);
    p->forgotten = end;
}

/* A matrix whose rows are outputs, by panels; `to` its copy. */
static void pack_rows(struct pass *p, unsigned char *to)
{
    struct sl_load_job *j = p->j;
    size_t row = j->n_in * sl_dtype_size(j->t->dtype), panels = sl_panels(j->n_out);
    size_t step = PIECE_BYTES / (row * SL_PANEL) + 1;
    for (size_t i = 0; i < panels; i += step) {
        size_t end = i + step < panels ? i + step : panels;
        size_t last = end * SL_PANEL < j->n_out ? end * SL_PANEL : j->n_out;
        look(p, i * SL_PANEL * j->n_in, last * j->n_in);
        if (j->bad == SIZE_MAX && j->copied)
            sl_pack_matrix(to, j->type, p->src, j->t->dtype, j->n_out, j->n_in, j->n_in, 1, i, end);
        forget(p, last * row, FORGET_BYTES);
    }
}

static void look_at_all(struct pass *p)
{
    size_t size = sl_dtype_size(p->j->t->dtype), step = PIECE_BYTES / size;
    for (size_t i = 0; i < p->j->t->n_elements; i += step) {
        size_t end = i + step < p->j->t->n_elements ? i + step : p->j->t->n_elements;
        look(p, i, end);
        if (!p->j->copied)
            forget(p, end * size, FORGET_BYTES);
    }
}

void sl_load_job_run(struct sl_load_job *j, const struct sl_tensors *ts, unsigned char *arena)
{
    const struct sl_tensor *t = j->t;
    size_t bytes = t->n_elements * sl_dtype_size(t->dtype);
    unsigned char *dense = NULL, *to = arena + j->offset;
    struct pass p = {.j = j, .ts = ts, .src = t->data};
    if (t->scales) {
        sl_load_codes_run(j, ts, arena);
        return;
    }
    if (t->block || t->exponent) {
        sl_load_values_run(j, ts, arena);
        return;
    }
    if (!t->contiguous) {
        dense = sl_malloc(bytes);
        if (!dense) {
            j->code = SL_E_NO_MEMORY;
            return;
        }
        sl_tensor_copy(t, dense);
        p.src = dense;
    }
    j->bad = SIZE_MAX;
    sl_digest_begin(&p.digest);
    if (j->kind == SL_JOB_MATRIX && j->layout == SL_OUT_IN) {
        pack_rows(&p, to);
    } else {
        look_at_all(&p);
        if (j->bad == SIZE_MAX && j->copied)
            write_copy(j, to, p.src);
    }
    sl_digest_end(&p.digest, j->digest);
    if (j->bad == SIZE_MAX && j->map)
        j->bad = sl_find_bad(to, SL_DTYPE_F32, t->n_elements, SL_DTYPE_F32);
    if (j->bad != SIZE_MAX)
        j->code = SL_E_MODEL_INVALID;
    sl_free(dense);
    /* The embedding's pages too: they come back one by one, for the rows that are used. */
    sl_tensor_forget(ts, t);
}
