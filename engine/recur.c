/* recur.c: see recur.h. */
#include "engine/recur.h"

#include <math.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/kernels/blas.h"

/* --- a span ------------------------------------------------------------------------------------*/

static size_t g_floats(const struct sl_recur_shape *s)
{
    return s->decay == SL_DECAY_NONE ? 0 : s->decay == SL_DECAY_SCALAR ? 1 : s->n_k;
}

/* Rows that the recurrent form prepares at a time: they stay in the first-level cache. */
enum { EXACT_ROWS = 16 };

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Of a row: its query, key, decay and β. */
static size_t prepared_floats(const struct sl_recur_shape *s)
{
    return 2 * sl_row_floats(s->n_k) + g_floats(s) + 1;
}

size_t sl_recur_floats(enum sl_form form, const struct sl_recur_shape *s, size_t n)
{
    if (!s->n_k)
        return 0;
    size_t row = prepared_floats(s), exact = sl_row_floats(n + EXACT_ROWS * row);
    if (form == SL_FORM_RECURRENT)
        return exact;
    return most(exact, sl_row_floats(n * (row + 1)) + sl_form_scratch(form, n, s->n_k, s->n_v));
}

/* --- token by token ----------------------------------------------------------------------------*/

/* z and the denominators of r's tokens, whose decays are given as they are. */
static void denominators(const struct sl_kernels *k, const struct sl_recurrence *r)
{
    for (size_t t = 0; t < r->n; t++) {
        const float *g = r->g + t * r->ld_g, *key = r->k + t * r->ld_k;
        if (r->decay == SL_DECAY_CHANNEL)
            k->vmul(r->z, r->z, g, r->n_k);
        else if (r->decay == SL_DECAY_SCALAR)
            k->vscale(r->z, r->z, *g, r->n_k);
        k->vadd(r->z, r->z, key, r->n_k);
        r->den[t] = k->dot16(r->q + t * r->ld_q, r->z, r->n_k);
    }
}

/* The recurrent form, on kernels; r->g: the decays themselves, not their logarithms. */
static void run_exact(const struct sl_kernels *k, const struct sl_recurrence *r)
{
    const struct sl_state_run run = {.n = r->n,
                                     .n_k = r->n_k,
                                     .n_v = r->n_v,
                                     .out = r->o,
                                     .ld_out = r->ld_o,
                                     .key = r->k,
                                     .val = r->v,
                                     .q = r->q,
                                     .ld_key = r->ld_k,
                                     .ld_val = r->ld_v,
                                     .ld_q = r->ld_q,
                                     .decay = r->decay == SL_DECAY_NONE ? NULL : r->g,
                                     .ld_decay = r->ld_g,
                                     .one_decay = r->decay == SL_DECAY_SCALAR,
                                     .read = r->beta ? r->k : NULL,
                                     .ld_read = r->ld_k,
                                     .beta = r->beta,
                                     .ld_beta = r->ld_beta};
    k->state_run(r->s, &run);
    if (r->z)
        denominators(k, r);
}

void sl_recur_exact(const struct sl_kernels *k, const struct sl_recurrence *r, float *scratch)
{
    struct sl_recurrence x = *r;
    if (r->decay != SL_DECAY_NONE) {
        size_t n = r->decay == SL_DECAY_SCALAR ? 1 : r->n_k;
        for (size_t t = 0; t < r->n; t++)
            k->vexp(scratch + t * n, r->g + t * r->ld_g, n);
        x.g = scratch, x.ld_g = n;
    }
    run_exact(k, &x);
}

/* --- a span ------------------------------------------------------------------------------------*/

/* Where the queries, keys, decays and β of n rows are made. */
static void place(struct sl_recurrence *r, size_t n, size_t n_g, bool delta, float *at)
{
    size_t ld = sl_row_floats(r->n_k);
    float *k = at + n * ld, *g = k + n * ld;
    r->q = at, r->k = k, r->g = g, r->beta = delta ? g + n * n_g : NULL;
    r->ld_q = r->ld_k = ld, r->ld_g = n_g, r->ld_beta = 1;
}

static void prepare(const struct sl_recurrence *r, size_t first, size_t n, size_t head,
                    sl_recur_row_fn *row, const void *arg)
{
    for (size_t t = 0; t < n; t++) {
        const struct sl_recur_row x = {(float *)r->q + t * r->ld_q, (float *)r->k + t * r->ld_k,
                                       r->ld_g ? (float *)r->g + t * r->ld_g : NULL,
                                       r->beta ? (float *)r->beta + t : NULL};
        row(arg, first + t, head, &x);
    }
}

static void run_blocks(const struct sl_pass *p, const struct sl_span *span,
                       const struct sl_recurrence *r, size_t head, sl_recur_row_fn *row,
                       const void *arg)
{
    struct sl_recurrence x = *r;
    for (size_t t = 0; t < span->n_rows; t += x.n) {
        x.n = span->n_rows - t < EXACT_ROWS ? span->n_rows - t : EXACT_ROWS;
        x.v = r->v + t * r->ld_v, x.o = r->o + t * r->ld_o, x.den = r->den + t;
        prepare(&x, span->row + t, x.n, head, row, arg);
        run_exact(p->k, &x);
    }
}

void sl_recur_run(const struct sl_pass *p, const struct sl_span *span, struct sl_recurrence *r,
                  bool delta, size_t head, sl_recur_row_fn *row, const void *arg, float *tmp)
{
    const struct sl_recur_shape s = {.n_k = r->n_k, .n_v = r->n_v, .decay = r->decay};
    bool form = sl_recur_has_form(p, span);
    size_t n = span->n_rows, rows = form || n < EXACT_ROWS ? n : EXACT_ROWS;
    r->n = n, r->den = tmp;
    place(r, rows, g_floats(&s), delta, tmp + n);
    if (!form) {
        run_blocks(p, span, r, head, row, arg);
        return;
    }
    prepare(r, span->row, n, head, row, arg);
    sl_form_run(p->form, r, tmp + sl_row_floats(n * (prepared_floats(&s) + 1)));
}

/* --- which one ---------------------------------------------------------------------------------*/

enum { PICK_TOKENS = 128, PICK_ROUNDS = 5 };

static double thread_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static double time_of(enum sl_form form, const struct sl_kernels *k, const struct sl_recurrence *r,
                      float *scratch)
{
    double best = INFINITY;
    for (int i = 0; i < PICK_ROUNDS; i++) {
        double t = thread_s();
        if (form == SL_FORM_RECURRENT)
            sl_recur_exact(k, r, scratch);
        else
            sl_form_run(form, r, scratch);
        t = thread_s() - t;
        best = t < best ? t : best;
    }
    return best;
}

/* Any numbers that neither grow nor become denormal will do. */
static void fill(float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        x[i] = value * (1 + (float)(i % 7));
}

enum sl_form sl_recur_pick(const struct sl_kernels *k, const struct sl_recur_shape *s)
{
    size_t n = PICK_TOKENS, rows = 2 * n * (s->n_k + s->n_v), g = n * g_floats(s),
           state = s->n_k * (s->n_v + 1), scratch = g; /* the recurrent form's */
    for (int f = 0; f < SL_FORM_COUNT; f++) {
        scratch = most(scratch, sl_form_scratch((enum sl_form)f, n, s->n_k, s->n_v));
    }
    float *p = sl_aligned_calloc((scratch + rows + g + 2 * n + state + SL_PANEL) * sizeof *p);
    if (!p)
        return SL_FORM_RECURRENT;
    float *q = p + sl_row_floats(scratch), *key = q + n * s->n_k, *v = key + n * s->n_k,
          *o = v + n * s->n_v, *decay = o + n * s->n_v, *beta = decay + g, *den = beta + n,
          *memory = den + n;
    fill(q, n * (2 * s->n_k + s->n_v), 1e-2f);
    fill(decay, g, -1e-3f);
    fill(beta, n, 1e-2f);
    struct sl_recurrence r = {.n = n,
                              .n_k = s->n_k,
                              .n_v = s->n_v,
                              .q = q,
                              .k = key,
                              .v = v,
                              .o = o,
                              .ld_q = s->n_k,
                              .ld_k = s->n_k,
                              .ld_v = s->n_v,
                              .ld_o = s->n_v,
                              .s = memory,
                              .z = s->denominator ? memory + s->n_k * s->n_v : NULL,
                              .den = den,
                              .decay = s->decay,
                              .g = decay,
                              .ld_g = g_floats(s),
                              .beta = s->delta ? beta : NULL,
                              .ld_beta = 1};
    enum sl_form best = SL_FORM_RECURRENT;
    double least = INFINITY;
    for (int f = 0; f < SL_FORM_COUNT; f++) {
        double t = time_of((enum sl_form)f, k, &r, p);
        if (t < least) {
            least = t;
            best = (enum sl_form)f;
        }
    }
    sl_free(p);
    return best;
}
