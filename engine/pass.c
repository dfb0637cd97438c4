/* pass.c: what stages have in common. See pass.h for the rules.
 *
 * A product walks blocks of rows that stay in the second-level cache beside a panel, and in each
 * block runs of panels whose outputs stay there until after() has used them. Many rows read a panel
 * once per block; one row reads long runs of panels, so that memory streams. */
#include "engine/pass.h"

#include <assert.h>
#include <string.h>

enum {
    ROW_BLOCK = 96,          /* rows of x per block at most: 288 KiB at d_model 768 */
    TILE_FLOATS = 32 * 1024, /* outputs between two calls of after() */
    TILE_PANELS_MIN = 4      /* but not fewer panels than this */
};

float *sl_pass_take(const struct sl_pass *p, size_t *used, size_t row_floats)
{
    assert(row_floats % SL_PANEL == 0);
    float *v = p->scratch + *used;
    *used += p->n_rows * row_floats + SL_TAKE_GAP;
    return v;
}

struct norm_job {
    const struct sl_pass *p;
    const struct sl_norm *norm;
};

static void norm_part(void *arg, size_t part, size_t n_parts)
{
    const struct norm_job *j = arg;
    const struct sl_pass *p = j->p;
    size_t begin, end;
    sl_work_range(p->n_rows, 1, part, n_parts, &begin, &end);
    for (size_t r = begin; r < end; r++)
        sl_norm_row(p->k, j->norm, p->xn + r * p->ld, p->x + r * p->ld, p->d_model);
}

void sl_pass_norm(const struct sl_pass *p, const struct sl_norm *norm)
{
    struct norm_job j = {p, norm};
    sl_workers_run(p->workers, norm_part, &j);
}

const float *sl_pass_norm_row(const struct sl_pass *p, const struct sl_norm *norm, size_t r,
                              bool first, size_t shift, float *tmp)
{
    const struct sl_span *span = &p->spans[p->row_span[r]];
    const float *prev = tmp;
    if (r == span->row)
        prev = (const float *)(const void *)(span->state + shift);
    else if (first)
        sl_norm_row(p->k, norm, tmp, p->x + (r - 1) * p->ld, p->d_model);
    else
        prev = p->xn + (r - 1) * p->ld;
    sl_norm_row(p->k, norm, p->xn + r * p->ld, p->x + r * p->ld, p->d_model);
    return prev;
}

void sl_pass_mix(const struct sl_pass *p, const struct sl_norm *norm, size_t shift,
                 float *const *mixed, const float *const *mix, size_t n, size_t part,
                 size_t n_parts)
{
    size_t begin, end;
    sl_work_range(p->n_rows, 1, part, n_parts, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        const float *prev = sl_pass_norm_row(p, norm, r, r == begin, shift, sl_pass_part(p, part));
        for (size_t i = 0; i < n; i++)
            p->k->lerp(mixed[i] + r * p->ld, p->xn + r * p->ld, prev, mix[i], p->d_model);
    }
}

void sl_pass_keep_shift(const struct sl_pass *p, const struct sl_span *span, size_t shift,
                        size_t begin, size_t end)
{
    const float *last = p->xn + (span->row + span->n_rows - 1) * p->ld;
    float *kept = (float *)(void *)(span->state + shift);
    memcpy(kept + begin, last + begin, (end - begin) * sizeof *kept);
}

static void product_panels(const struct sl_pass *p, const struct sl_product *v, const void *arg,
                           size_t begin, size_t end)
{
    size_t n_blocks = (p->n_rows + ROW_BLOCK - 1) / ROW_BLOCK;
    for (size_t i = 0, row = 0, rows; i < n_blocks; i++, row += rows) {
        rows = (p->n_rows - row) / (n_blocks - i); /* alike, that none is a small rest */
        size_t run = TILE_FLOATS / (rows * SL_PANEL);
        run = run < TILE_PANELS_MIN ? TILE_PANELS_MIN : run;
        for (size_t b = begin; b < end; b += run) {
            size_t e = end - b < run ? end : b + run;
            p->k->matmul(v->y + row * v->ldy, v->ldy, v->x + row * v->ldx, v->ldx, rows,
                         v->w->panels, v->w->type, v->w->n_in, b, e);
            if (!v->after)
                continue;
            size_t col_end = e * SL_PANEL < v->w->n_out ? e * SL_PANEL : v->w->n_out;
            v->after(arg, &(struct sl_tile){row, row + rows, b * SL_PANEL, col_end});
        }
    }
}

/* How many of n items, cost each, begin before `limit`, when the first begins at `start`. */
static size_t items_before(size_t limit, size_t start, size_t cost, size_t n)
{
    if (limit <= start)
        return 0;
    size_t k = (limit - start + cost - 1) / cost;
    return k < n ? k : n;
}

void sl_pass_products(const struct sl_pass *p, const struct sl_product *v, size_t n,
                      const void *arg, size_t part, size_t n_parts)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += sl_panels(v[i].w->n_out) * v[i].w->n_in;
    /* An item belongs to the part in whose share of the cost it begins. */
    size_t lo = total / n_parts * part + total % n_parts * part / n_parts;
    size_t hi = total / n_parts * (part + 1) + total % n_parts * (part + 1) / n_parts;
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        size_t panels = sl_panels(v[i].w->n_out), cost = v[i].w->n_in;
        size_t b = items_before(lo, start, cost, panels);
        size_t e = items_before(hi, start, cost, panels);
        if (b < e)
            product_panels(p, &v[i], arg, b, e);
        start += panels * cost;
    }
}

void sl_pass_heads(const struct sl_pass *p, size_t n_heads,
                   void (*fn)(const void *arg, const struct sl_span *span, size_t head, float *tmp),
                   const void *arg, size_t part, size_t n_parts)
{
    size_t total = p->n_rows * n_heads;
    size_t lo = total * part / n_parts, hi = total * (part + 1) / n_parts;
    for (size_t s = 0; s < p->n_spans; s++) {
        const struct sl_span *span = &p->spans[s];
        size_t start = span->row * n_heads;
        size_t b = items_before(lo, start, span->n_rows, n_heads);
        size_t e = items_before(hi, start, span->n_rows, n_heads);
        for (size_t h = b; h < e; h++)
            fn(arg, span, h, sl_pass_part(p, part));
    }
}

struct add_job {
    const struct sl_pass *p;
    struct sl_product product;
    const float *gate, *bias; /* at most one of them */
};

static void add_tile(const void *arg, const struct sl_tile *t)
{
    const struct add_job *j = arg;
    const struct sl_kernels *k = j->p->k;
    size_t n = t->col_end - t->col;
    for (size_t r = t->row; r < t->row_end; r++) {
        size_t at = r * j->p->ld + t->col;
        float *x = j->p->x + at, *y = j->product.y + at;
        if (j->bias)
            k->vadd(y, y, j->bias + t->col, n);
        if (j->gate)
            k->vfma(x, j->gate + at, y, x, n);
        else
            k->vadd(x, x, y, n);
    }
}

static void add_part(void *arg, size_t part, size_t n_parts)
{
    const struct add_job *j = arg;
    sl_pass_products(j->p, &j->product, 1, j, part, n_parts);
}

static void add(const struct sl_pass *p, const struct sl_matrix *w, const float *x, size_t ldx,
                const float *gate, const float *bias, float *y)
{
    struct add_job j = {p, {w, x, ldx, y, p->ld, add_tile}, gate, bias};
    sl_workers_run(p->workers, add_part, &j);
}

void sl_pass_add_gated(const struct sl_pass *p, const struct sl_matrix *w, const float *x,
                       size_t ldx, const float *gate, float *y)
{
    add(p, w, x, ldx, gate, NULL, y);
}

void sl_pass_add_biased(const struct sl_pass *p, const struct sl_matrix *w, const float *x,
                        size_t ldx, const float *bias, float *y)
{
    add(p, w, x, ldx, NULL, bias, y);
}

void sl_pass_add_product(const struct sl_pass *p, const struct sl_matrix *w, const float *x,
                         size_t ldx, float *y)
{
    add(p, w, x, ldx, NULL, NULL, y);
}
