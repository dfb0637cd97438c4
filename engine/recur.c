/* recur.c: see recur.h. */
#include "engine/recur.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/kernels/blas.h"

/* --- a span ------------------------------------------------------------------------------------*/

static size_t g_floats(const struct sl_recur_shape *s)
{
    return s->decay == SL_DECAY_NONE ? 0 : s->decay == SL_DECAY_SCALAR ? 1 : s->n_k;
}

size_t sl_recur_floats(enum sl_form form, const struct sl_recur_shape *s, size_t n)
{
    if (form == SL_FORM_RECURRENT || !s->n_k)
        return 0;
    size_t row = 2 * sl_row_floats(s->n_k) + g_floats(s) + 2;
    return sl_row_floats(n * row) + sl_form_scratch(form, n, s->n_k, s->n_v);
}

void sl_recur_run(const struct sl_pass *p, const struct sl_span *span, struct sl_recurrence *r,
                  bool delta, size_t head,
                  void (*row)(const void *arg, size_t t, size_t head, const struct sl_recur_row *x),
                  const void *arg, float *tmp)
{
    const struct sl_recur_shape s = {.n_k = r->n_k, .n_v = r->n_v, .decay = r->decay};
    size_t n = span->n_rows, ld = sl_row_floats(r->n_k), n_g = g_floats(&s);
    float *q = tmp, *k = q + n * ld, *g = k + n * ld, *beta = g + n * n_g, *den = beta + n;
    for (size_t t = 0; t < n; t++) {
        struct sl_recur_row x = {q + t * ld, k + t * ld, n_g ? g + t * n_g : NULL,
                                 delta ? beta + t : NULL};
        row(arg, span->row + t, head, &x);
    }
    r->n = n;
    r->q = q, r->k = k, r->g = g, r->beta = delta ? beta : NULL, r->den = den;
    r->ld_q = r->ld_k = ld, r->ld_g = n_g, r->ld_beta = 1;
    sl_form_run(p->form, r, tmp + sl_row_floats(n * (2 * ld + n_g + 2)));
}

/* --- token by token ----------------------------------------------------------------------------*/

static const float *decay_of(const struct sl_kernels *k, const struct sl_recurrence *r, size_t t,
                             float *decay)
{
    if (r->decay == SL_DECAY_NONE)
        return NULL;
    if (r->decay == SL_DECAY_CHANNEL) {
        k->vexp(decay, r->g + t * r->ld_g, r->n_k);
        return decay;
    }
    float one;
    k->vexp(&one, r->g + t * r->ld_g, 1);
    for (size_t i = 0; i < r->n_k; i++)
        decay[i] = one;
    return decay;
}

void sl_recur_exact(const struct sl_kernels *k, const struct sl_recurrence *r, float *scratch)
{
    float *val = scratch + r->n_k;
    for (size_t t = 0; t < r->n; t++) {
        const float *key = r->k + t * r->ld_k, *v = r->v + t * r->ld_v, *q = r->q + t * r->ld_q;
        const float *decay = decay_of(k, r, t, scratch);
        if (r->beta) {
            float alpha = decay ? decay[0] : 1;
            k->state_read(val, r->s, key, r->n_k, r->n_v);
            for (size_t j = 0; j < r->n_v; j++)
                val[j] = r->beta[t * r->ld_beta] * (v[j] - alpha * val[j]);
            v = val;
        }
        k->state_step(r->o + t * r->ld_o, r->s, decay, NULL, NULL, key, v, q, r->n_k, r->n_v);
        if (r->z) {
            if (decay)
                k->vmul(r->z, r->z, decay, r->n_k);
            k->vadd(r->z, r->z, key, r->n_k);
            r->den[t] = k->dot16(q, r->z, r->n_k);
        }
    }
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
           state = s->n_k * (s->n_v + 1), scratch = 0;
    for (int f = 0; f < SL_FORM_COUNT; f++) {
        size_t want = sl_form_scratch((enum sl_form)f, n, s->n_k, s->n_v) + s->n_k;
        scratch = want > scratch ? want : scratch;
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
