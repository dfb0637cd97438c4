/* load_codes.c: a matrix of a converted file that is codes with scales (formats/coded.h): hashed,
 * checked, laid out as panels; or, where it is wanted in another type, as the values that it stands
 * for. See load_priv.h. What is hashed is both tensors, each by itself, so that pieces can be of
 * any size. */
#include <assert.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/load_priv.h"

enum {
    PIECE_BYTES = 128 << 10,
    FORGET_BYTES = 4 << 20 /* a call for each piece would cost more than it gives */
};

struct reading {
    struct sl_load_job *j;
    const struct sl_tensors *ts;
    struct sl_digest codes, scales;
    size_t row_codes, row_scales; /* bytes */
    size_t forgotten;             /* rows whose pages were given back */
    float *values;                /* of a piece, where they are wanted */
};

/* Rows [begin, end): hashed, and their scales checked. */
static void look(struct reading *r, size_t begin, size_t end)
{
    struct sl_load_job *j = r->j;
    const struct sl_tensor *t = j->t;
    const unsigned char *scales = t->scales + begin * r->row_scales;
    size_t n = (end - begin) * r->row_scales;
    sl_digest_add(&r->codes, t->data + begin * r->row_codes, (end - begin) * r->row_codes);
    sl_digest_add(&r->scales, scales, n);
    if (j->bad != SIZE_MAX)
        return;
    size_t bad = sl_find_bad(scales, SL_DTYPE_F16, n / sizeof(uint16_t), SL_DTYPE_F32);
    j->bad_scale = bad != SIZE_MAX;
    j->bad = bad == SIZE_MAX ? SIZE_MAX : begin * r->row_scales / sizeof(uint16_t) + bad;
}

/* Rows from `begin` on, n of them, as values of another type. */
static void pack_values(struct reading *r, unsigned char *to, size_t begin, size_t n)
{
    struct sl_load_job *j = r->j;
    size_t at = begin * j->n_in;
    sl_tensor_values(j->t, (ptrdiff_t)at, n * j->n_in, r->values);
    size_t bad = sl_find_bad(r->values, SL_DTYPE_F32, n * j->n_in, j->type);
    j->bad = bad == SIZE_MAX ? SIZE_MAX : at + bad;
    if (j->copied && bad == SIZE_MAX)
        sl_pack_matrix(to, j->type, r->values, SL_DTYPE_F32, n, j->n_in, j->n_in, 1, 0,
                       sl_panels(n));
}

/* Rows up to `end` are done with. */
static void forget(struct reading *r, size_t end)
{
    const struct sl_tensor *t = r->j->t;
    size_t from = r->forgotten, n = end - from;
    if (n * r->row_codes < FORGET_BYTES && end < r->j->n_out)
        return;
    sl_tensors_forget(r->ts, t->data + from * r->row_codes, n * r->row_codes);
    sl_tensors_forget(r->ts, t->scales + from * r->row_scales, n * r->row_scales);
    r->forgotten = end;
}

static void pack(struct reading *r, unsigned char *to, size_t step)
{
    struct sl_load_job *j = r->j;
    const struct sl_tensor *t = j->t;
    size_t panel = sl_pack_bytes(j->type, SL_PANEL, j->n_in);
    for (size_t row = 0; row < j->n_out; row += step) {
        size_t n = j->n_out - row < step ? j->n_out - row : step;
        unsigned char *dst = to + row / SL_PANEL * panel;
        look(r, row, row + n);
        if (j->bad == SIZE_MAX && j->type != t->dtype)
            pack_values(r, dst, row, n);
        else if (j->bad == SIZE_MAX && j->copied)
            sl_pack_codes(dst, j->type, t->data + row * r->row_codes,
                          t->scales + row * r->row_scales, n, j->n_in, 0, sl_panels(n));
        forget(r, row + n);
    }
}

void sl_load_codes_run(struct sl_load_job *j, const struct sl_tensors *ts, unsigned char *arena)
{
    const struct sl_tensor *t = j->t;
    struct reading r = {.j = j, .ts = ts};
    unsigned char digests[2][sizeof j->digest];
    assert(j->kind == SL_JOB_MATRIX && j->layout == SL_OUT_IN && t->shape[1] == j->n_in);
    r.row_codes = sl_code_bytes(t->dtype, j->n_in);
    r.row_scales = sl_groups(j->n_in) * sizeof(uint16_t);
    size_t step = (PIECE_BYTES / (r.row_codes * SL_PANEL) + 1) * SL_PANEL;
    step = step < j->n_out ? step : (j->n_out + SL_PANEL - 1) / SL_PANEL * SL_PANEL;
    if (j->type != t->dtype) {
        r.values = sl_malloc(step * j->n_in * sizeof *r.values);
        if (!r.values) {
            j->code = SL_E_NO_MEMORY;
            return;
        }
    }
    j->bad = SIZE_MAX;
    sl_digest_begin(&r.codes);
    sl_digest_begin(&r.scales);
    pack(&r, arena + j->offset, step);
    sl_digest_end(&r.codes, digests[0]);
    sl_digest_end(&r.scales, digests[1]);
    sl_digest_begin(&r.codes);
    sl_digest_add(&r.codes, digests, sizeof digests);
    sl_digest_end(&r.codes, j->digest);
    if (j->bad != SIZE_MAX)
        j->code = SL_E_MODEL_INVALID;
    sl_free(r.values);
}
