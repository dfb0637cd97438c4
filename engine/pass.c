/* pass.c: what stages have in common. See pass.h for the rules.
 *
 * A product goes over runs of panels whose outputs stay in the second-level cache until after() has
 * used them: for many rows a few panels, for one row long runs, so that memory streams. */
#include "engine/pass.h"

#include <assert.h>
#include <string.h>

enum {
    TILE_FLOATS = 32 * 1024, /* outputs between two calls of after() */
    TILE_PANELS_MIN = 4,     /* but not fewer panels than this */
    ALONE_FLOATS = 4096,     /* inputs that one thread brings to 8 bits before all could start */
    READ_COST = 7            /* of a byte of weights, where 32 is one input's of an F32 panel */
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

/* --- products -----------------------------------------------------------------------------------
 */

/* Rows that are brought to 8 bits. */
struct input {
    const float *x;
    size_t ldx, n_in;
    struct sl_group *q; /* [n_rows][sl_groups(n_in)] */
};

struct stage {
    const struct sl_pass *p;
    const struct sl_product *v;
    size_t n;
    const void *arg;
    void (*also)(const void *arg, size_t part, size_t n_parts);
    struct input inputs[SL_PRODUCTS_MAX];
    size_t n_inputs;
    const struct sl_group *q[SL_PRODUCTS_MAX]; /* of each product; NULL: x as it is */
};

static void quantise_part(void *arg, size_t part, size_t n_parts)
{
    const struct stage *st = arg;
    size_t begin, end;
    sl_work_range(st->p->n_rows, 1, part, n_parts, &begin, &end);
    for (size_t i = 0; i < st->n_inputs; i++) {
        const struct input *in = &st->inputs[i];
        for (size_t r = begin; r < end; r++)
            st->p->k->quantise(in->q + r * sl_groups(in->n_in), in->x + r * in->ldx, in->n_in);
    }
}

/* Lists the different inputs of quantised matrices, and brings them to 8 bits. */
static void quantise(struct stage *st)
{
    const struct sl_pass *p = st->p;
    size_t used = 0, floats = 0;
    for (size_t i = 0; i < st->n; i++) {
        const struct sl_product *v = &st->v[i];
        size_t k = 0;
        st->q[i] = NULL;
        if (!sl_is_quantised(v->w->type))
            continue;
        while (k < st->n_inputs && st->inputs[k].x != v->x)
            k++;
        if (k == st->n_inputs) {
            st->inputs[st->n_inputs++] =
                (struct input){v->x, v->ldx, v->w->n_in, p->inputs + used * p->n_rows};
            used += sl_groups(v->w->n_in);
            floats += v->w->n_in * p->n_rows;
            assert(used <= p->input_groups);
        }
        assert(st->inputs[k].n_in == v->w->n_in && st->inputs[k].ldx == v->ldx);
        st->q[i] = st->inputs[k].q;
    }
    if (floats > ALONE_FLOATS)
        sl_workers_run(p->workers, quantise_part, st);
    else if (floats > 0)
        quantise_part(st, 0, 1);
}

static void multiply(const struct sl_pass *p, const struct sl_product *v, const struct sl_group *q,
                     size_t begin, size_t end)
{
    const struct sl_matrix *w = v->w;
    if (q)
        p->k->matmul_q(v->y, v->ldy, q, sl_groups(w->n_in), p->n_rows, w->panels, w->type, w->n_in,
                       begin, end);
    else
        p->k->matmul(v->y, v->ldy, v->x, v->ldx, p->n_rows, w->panels, w->type, w->n_in, begin,
                     end);
}

static void product_panels(const struct stage *st, size_t i, size_t begin, size_t end)
{
    const struct sl_pass *p = st->p;
    const struct sl_product *v = &st->v[i];
    size_t run = TILE_FLOATS / (p->n_rows * SL_PANEL);
    run = run < TILE_PANELS_MIN ? TILE_PANELS_MIN : run;
    for (size_t b = begin; b < end; b += run) {
        size_t e = end - b < run ? end : b + run;
        multiply(p, v, st->q[i], b, e);
        if (!v->after)
            continue;
        size_t col_end = e * SL_PANEL < v->w->n_out ? e * SL_PANEL : v->w->n_out;
        v->after(st->arg, &(struct sl_tile){b * SL_PANEL, col_end});
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

/* Of a panel: the time that its bytes take to come, or its arithmetic, whichever is longer. */
static size_t panel_cost(const struct sl_pass *p, const struct sl_matrix *w)
{
    size_t reading = READ_COST * sl_pack_bytes(w->type, SL_PANEL, w->n_in);
    size_t arithmetic = p->k->row_cost[w->type] * p->n_rows * w->n_in;
    return reading > arithmetic ? reading : arithmetic;
}

static void products_part(void *arg, size_t part, size_t n_parts)
{
    const struct stage *st = arg;
    size_t total = 0;
    for (size_t i = 0; i < st->n; i++)
        total += sl_panels(st->v[i].w->n_out) * panel_cost(st->p, st->v[i].w);
    /* An item belongs to the part in whose share of the cost it begins. */
    size_t lo = total / n_parts * part + total % n_parts * part / n_parts;
    size_t hi = total / n_parts * (part + 1) + total % n_parts * (part + 1) / n_parts;
    size_t start = 0;
    for (size_t i = 0; i < st->n; i++) {
        size_t panels = sl_panels(st->v[i].w->n_out), cost = panel_cost(st->p, st->v[i].w);
        size_t b = items_before(lo, start, cost, panels);
        size_t e = items_before(hi, start, cost, panels);
        if (b < e)
            product_panels(st, i, b, e);
        start += panels * cost;
    }
    if (st->also)
        st->also(st->arg, part, n_parts);
}

void sl_pass_products(const struct sl_pass *p, const struct sl_product *v, size_t n,
                      const void *arg, void (*also)(const void *arg, size_t part, size_t n_parts))
{
    assert(n <= SL_PRODUCTS_MAX);
    struct stage st = {.p = p, .v = v, .n = n, .arg = arg, .also = also};
    quantise(&st);
    sl_workers_run(p->workers, products_part, &st);
}

struct heads_stage {
    const struct sl_pass *p;
    size_t n_heads;
    void (*fn)(const void *arg, const struct sl_span *span, size_t head, float *tmp);
    const void *arg;
};

static void heads_part(void *arg, size_t part, size_t n_parts)
{
    const struct heads_stage *h = arg;
    const struct sl_pass *p = h->p;
    size_t n = h->n_heads, total = p->n_rows * n;
    size_t lo = total * part / n_parts, hi = total * (part + 1) / n_parts;
    for (size_t s = 0; s < p->n_spans; s++) {
        const struct sl_span *span = &p->spans[s];
        size_t start = span->row * n;
        size_t begin = items_before(lo, start, span->n_rows, n);
        size_t end = items_before(hi, start, span->n_rows, n);
        for (size_t i = begin; i < end; i++)
            h->fn(h->arg, span, i, sl_pass_part(p, part));
    }
}

void sl_pass_heads(const struct sl_pass *p, size_t n_heads,
                   void (*fn)(const void *arg, const struct sl_span *span, size_t head, float *tmp),
                   const void *arg)
{
    struct heads_stage h = {p, n_heads, fn, arg};
    sl_workers_run(p->workers, heads_part, &h);
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
    for (size_t r = 0; r < j->p->n_rows; r++) {
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

static void add(const struct sl_pass *p, const struct sl_matrix *w, const float *x, size_t ldx,
                const float *gate, const float *bias, float *y)
{
    struct add_job j = {p, {w, x, ldx, y, p->ld, add_tile}, gate, bias};
    sl_pass_products(p, &j.product, 1, &j, NULL);
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
