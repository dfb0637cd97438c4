/* pass.h: a step, or a chunk of one, on its way through the layers, as mixers and blocks see it.
 * Private to libslate.
 *
 * It is a ragged batch: spans (one per segment) of consecutive rows, one row per token. A layer is
 * a list of stages; a stage is one sl_workers_run(), in which every part computes a range of
 * rows, of panels of outputs, or of (span, head) pairs, and what it writes no other part of the
 * same stage reads. Between two stages all is visible. How a stage is cut never shows in the bits:
 * a sum is always one kernel call of one part, in the kernel's fixed order.
 *
 * Rows of activations are `ld` floats apart (sl_row_floats()); what lies beyond d_model is never
 * read. */
#ifndef SLATE_ENGINE_PASS_H
#define SLATE_ENGINE_PASS_H

#include "engine/forms.h"
#include "engine/kernels/kernels.h"
#include "engine/workers.h"

/* A packed matrix of a model; y = W·x. */
struct sl_matrix {
    const void *panels; /* 64-byte aligned */
    enum sl_dtype type;
    size_t n_out, n_in;
};

/* A LayerNorm's parameters, or an RMSNorm's (b is NULL then). */
struct sl_norm {
    const float *w, *b;
    float eps;
    bool rms;
};

static inline void sl_norm_row(const struct sl_kernels *k, const struct sl_norm *norm, float *y,
                               const float *x, size_t n)
{
    if (norm->rms)
        k->rms_norm(y, x, norm->w, n, norm->eps);
    else
        k->layer_norm(y, x, norm->w, norm->b, n, norm->eps);
}

struct sl_span {
    unsigned char *state; /* the slot's start: offsets of state tensors count from here */
    size_t row, n_rows;   /* n_rows ≥ 1 */
    uint64_t position;    /* of its first row: tokens that its session had consumed before */
};

struct sl_pass {
    const struct sl_kernels *k;
    enum sl_form form; /* of recurrences that have several: recur.h */
    struct sl_workers *workers;
    size_t d_model, ld;
    size_t n_rows, n_spans;
    const struct sl_span *spans;
    const uint32_t *row_span; /* which span a row belongs to */
    float *x;                 /* [n_rows][ld] the residual stream */
    float *xn;                /* [n_rows][ld] the normalised rows of the sublayer at work */
    float *carry;             /* [n_rows][…] what layers of the step hand on to later ones */
    float *scratch;           /* activations of the sublayer at work; nothing outlives it */
    float *parts;             /* scratch of the parts, part_floats each */
    size_t part_floats;
    struct sl_group *inputs; /* [n_rows][input_groups] of the stage at work, in 8 bits */
    size_t input_groups;     /* 0: no matrix needs any */
};

/* The stages of products have at most so many, with so many different inputs of quantised matrices
 * as long as a row. */
enum { SL_PRODUCTS_MAX = 8, SL_INPUTS_MAX = 4 };

/* ld of a row of n floats: an odd number of lines of a cache, so that the same place of as many
 * rows as a product takes at once is in as many of its sets. (With rows of 4 KiB all are in one:
 * Zen 4, BF16, 1024 inputs, 32 and 85 rows: 1.1 to 1.15 times as fast so.) */
static inline size_t sl_row_floats(size_t n)
{
    return (sl_panels(n) | 1) * SL_PANEL;
}

/* Takes [n_rows][row_floats] floats of p->scratch, 64-byte aligned; *used counts what was taken and
 * starts at 0. A load declares the sum of its rows' floats with sl_load_scratch(). */
float *sl_pass_take(const struct sl_pass *p, size_t *used, size_t row_floats);

/* Floats that sl_pass_take() wastes at most for each buffer, so that equal rows of several buffers
 * do not fall on the same lines of a cache. */
enum { SL_TAKE_GAP = 3 * SL_PANEL, SL_TAKES_MAX = 64 };

static inline float *sl_pass_part(const struct sl_pass *p, size_t part)
{
    return p->parts + part * p->part_floats;
}

/* xn = norm(x), all rows: one whole stage. */
void sl_pass_norm(const struct sl_pass *p, const struct sl_norm *norm);

/* xn[r] = norm(x[r]), and returns the normalised row before it: xn[r-1] within a span, else what
 * the span's state keeps at byte `shift` (of the last step; sl_pass_keep_shift() writes it). `tmp`
 * has room for a row. A part calls it for its rows in order, first = true for the first of them,
 * whose predecessor may belong to another part and is then normalised once more into tmp. */
const float *sl_pass_norm_row(const struct sl_pass *p, const struct sl_norm *norm, size_t r,
                              bool first, size_t shift, float *tmp);

/* The token shift of n inputs, for this part's share of the rows: mixed[i][r] = xn[r] + (prev -
 * xn[r]) ⊙ mix[i], xn[r] = norm(x[r]), prev as sl_pass_norm_row() says; [n_rows][ld] each. */
void sl_pass_mix(const struct sl_pass *p, const struct sl_norm *norm, size_t shift,
                 float *const *mixed, const float *const *mix, size_t n, size_t part,
                 size_t n_parts);

/* Columns [begin, end) of the span's last normalised row -> its state. In a later stage than the
 * one that calls sl_pass_norm_row(). */
void sl_pass_keep_shift(const struct sl_pass *p, const struct sl_span *span, size_t shift,
                        size_t begin, size_t end);

/* Outputs that are done: columns [col, col_end) of all rows. */
struct sl_tile {
    size_t col, col_end;
};

/* One product of a stage, over all rows: y = W·x, then after() on each finished tile, by the part
 * that computed it. after() may use anything that was ready before the stage, and the tile. */
struct sl_product {
    const struct sl_matrix *w;
    const float *x;
    size_t ldx;
    float *y;
    size_t ldy;
    void (*after)(const void *arg, const struct sl_tile *tile); /* NULL: nothing */
};

/* n products, cut by their cost: one whole stage, with one before it where rows of x have to be
 * brought to 8 bits: once for all matrices that read them. Each part ends with also(), which may
 * use anything that was ready before the stage; NULL: nothing. */
void sl_pass_products(const struct sl_pass *p, const struct sl_product *v, size_t n,
                      const void *arg, void (*also)(const void *arg, size_t part, size_t n_parts));

/* Calls fn for all (span, head) pairs, whose cost is their span's rows: one whole stage. tmp: the
 * part's own (sl_load_scratch). */
void sl_pass_heads(const struct sl_pass *p, size_t n_heads,
                   void (*fn)(const void *arg, const struct sl_span *span, size_t head, float *tmp),
                   const void *arg);

/* A product y = W·x whose result is added to the residual stream: one whole stage. y: [n_rows][ld]
 * of scratch. */
void sl_pass_add_product(const struct sl_pass *p, const struct sl_matrix *w, const float *x,
                         size_t ldx, float *y);

/* The same with x += gate ⊙ (W·x); gate [n_rows][ld], NULL: without. */
void sl_pass_add_gated(const struct sl_pass *p, const struct sl_matrix *w, const float *x,
                       size_t ldx, const float *gate, float *y);

/* The same with x += W·x + bias; bias NULL: without. */
void sl_pass_add_biased(const struct sl_pass *p, const struct sl_matrix *w, const float *x,
                        size_t ldx, const float *bias, float *y);

#endif
