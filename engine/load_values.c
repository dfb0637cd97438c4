/* load_values.c: one tensor of a file whose values have to be computed: quantised blocks, and what
 * a file holds divided by a power of two. See load_priv.h.
 *
 * Some rows at a time become F32 values, which are checked and then packed or kept; what is hashed
 * are the bytes of the file. Blocks lie along the rows of what was written, which load.c takes as
 * the matrix's rows, so that a transposed view is read as it lies. */
#include <assert.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/load_priv.h"

enum { PIECE = 16 << 10 }; /* values, at least a panel's rows of them */

struct reading {
    struct sl_load_job *j;
    const struct sl_tensors *ts;
    struct sl_digest digest;
    float *values; /* of a piece */
};

/* Elements [begin, end), which are whole blocks. */
static void look(struct reading *r, size_t begin, size_t end)
{
    struct sl_load_job *j = r->j;
    const unsigned char *from = sl_tensor_at(j->t, (ptrdiff_t)begin);
    size_t bytes = (size_t)(sl_tensor_at(j->t, (ptrdiff_t)end) - from);
    sl_digest_add(&r->digest, from, bytes);
    if (j->bad != SIZE_MAX)
        return;
    sl_tensor_values(j->t, (ptrdiff_t)begin, end - begin, r->values);
    size_t bad = sl_find_bad(r->values, SL_DTYPE_F32, end - begin, j->type);
    j->bad = bad == SIZE_MAX ? SIZE_MAX : begin + bad;
    if (j->kind != SL_JOB_ROWS)
        sl_tensors_forget(r->ts, from, bytes);
}

static void pack_rows(struct reading *r, unsigned char *to, size_t panels_each)
{
    struct sl_load_job *j = r->j;
    size_t step = panels_each * SL_PANEL, bytes = sl_pack_bytes(j->type, step, j->n_in);
    for (size_t row = 0; row < j->n_out; row += step, to += bytes) {
        size_t n = j->n_out - row < step ? j->n_out - row : step;
        bool as_it_is = j->t->block && sl_block_kept(j->t->block) == j->type && !j->t->exponent;
        if (as_it_is && j->copied)
            sl_pack_blocks(to, j->type, sl_tensor_at(j->t, (ptrdiff_t)(row * j->n_in)), n, j->n_in,
                           0, sl_panels(n));
        look(r, row * j->n_in, (row + n) * j->n_in);
        if (j->bad == SIZE_MAX && j->copied && !as_it_is)
            sl_pack_matrix(to, j->type, r->values, SL_DTYPE_F32, n, j->n_in, j->n_in, 1, 0,
                           sl_panels(n));
    }
}

/* Where a value of COLUMNS goes, or of any other list. */
static void keep(const struct sl_load_job *j, float *y, const float *values, size_t begin, size_t n)
{
    if (j->kind == SL_JOB_F32)
        memcpy(y + begin, values, n * sizeof *y);
    for (size_t i = begin; j->kind == SL_JOB_COLUMNS && i < begin + n; i++)
        y[i % j->n_in * j->n_out + i / j->n_in] = values[i - begin];
}

static void take_values(struct reading *r, unsigned char *to)
{
    struct sl_load_job *j = r->j;
    size_t n = j->t->n_elements;
    float *y = (float *)(void *)to;
    for (size_t i = 0; i < n; i += PIECE) {
        size_t m = n - i < PIECE ? n - i : PIECE;
        look(r, i, i + m);
        if (j->bad == SIZE_MAX && j->copied)
            keep(j, y, r->values, i, m);
    }
    if (!j->copied || j->bad != SIZE_MAX)
        return;
    memset(y + n, 0, (sl_whole_panels(n) - n) * sizeof *y);
    if (!j->map)
        return;
    j->map(y, n);
    j->bad = sl_find_bad(y, SL_DTYPE_F32, n, SL_DTYPE_F32);
}

void sl_load_values_run(struct sl_load_job *j, const struct sl_tensors *ts, unsigned char *arena)
{
    _Static_assert(PIECE % SL_BLOCK_WEIGHTS_MAX == 0, "whole blocks");
    bool matrix = j->kind == SL_JOB_MATRIX;
    assert(matrix ? j->layout == SL_OUT_IN : j->t->contiguous);
    assert(j->kind != SL_JOB_ROWS || !j->copied);
    size_t panel = SL_PANEL * j->n_in, panels_each = matrix && panel < PIECE ? PIECE / panel : 1;
    struct reading r = {.j = j, .ts = ts};
    r.values = sl_malloc((matrix ? panels_each * panel : PIECE) * sizeof *r.values);
    if (!r.values) {
        j->code = SL_E_NO_MEMORY;
        return;
    }
    j->bad = SIZE_MAX;
    sl_digest_begin(&r.digest);
    if (matrix)
        pack_rows(&r, arena + j->offset, panels_each);
    else
        take_values(&r, arena + j->offset);
    sl_digest_end(&r.digest, j->digest);
    if (j->bad != SIZE_MAX)
        j->code = SL_E_MODEL_INVALID;
    sl_free(r.values);
    sl_tensor_forget(ts, j->t);
}
