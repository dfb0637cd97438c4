/* forms.c: see forms.h.
 *
 * Decays are kept as logarithms and only differences that are ≤ 0 are exponentiated, so nothing
 * overflows however strong a decay is. With one decay a token that is a matrix D of differences.
 * With one a channel D cannot be taken out of the sum over channels; there the tokens of a chunk
 * are cut into blocks of BLOCK. Between two blocks the decay is split at the blocks' borders (both
 * factors ≤ 1); within a block it is split at the block's start, where one factor is ≥ 1 but small,
 * unless the block decays by more than RANGE: then pair by pair. (Yang 2023 calls the blocks
 * secondary chunks.) */
#include "engine/forms.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/kernels/blas.h"

#ifdef SL_FORMS_DOUBLE
#define sl_real double
#define SL_FORMS_NAME(name) name##_f64
#define gemm sl_gemm_f64
#define trmm sl_trmm_f64
#define trsm sl_trsm_f64
#define real_exp exp
#else
#define sl_real float
#define SL_FORMS_NAME(name) name
#define gemm sl_gemm_f32
#define trmm sl_trmm_f32
#define trsm sl_trsm_f32
#define real_exp expf
#endif

#define recurrence SL_FORMS_NAME(sl_recurrence)

enum {
    BLOCK = 16,
    RANGE = 16 /* e^16 · 2^-24 is far below what the result is rounded to anyway */
};

/* --- token by token --------------------------------------------------------------------------- */

static void decay_key(const struct recurrence *r, size_t i, sl_real d)
{
    for (size_t j = 0; j < r->n_v; j++)
        r->s[i * r->n_v + j] *= d;
    if (r->z)
        r->z[i] *= d;
}

static sl_real dot(const sl_real *x, const sl_real *y, size_t n)
{
    sl_real sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* out = Sᵀ x */
static void read_state(const struct recurrence *r, const sl_real *x, sl_real *out)
{
    memset(out, 0, r->n_v * sizeof *out);
    for (size_t i = 0; i < r->n_k; i++)
        for (size_t j = 0; j < r->n_v; j++)
            out[j] += r->s[i * r->n_v + j] * x[i];
}

static void recurrent(const struct recurrence *r, sl_real *w)
{
    for (size_t t = 0; t < r->n; t++) {
        const sl_real *k = r->k + t * r->ld_k, *v = r->v + t * r->ld_v;
        for (size_t i = 0; r->decay && i < r->n_k; i++)
            decay_key(r, i, real_exp(r->g[t * r->ld_g + (r->decay == SL_DECAY_CHANNEL ? i : 0)]));
        if (r->beta) {
            sl_real beta = r->beta[t * r->ld_beta];
            read_state(r, k, w);
            for (size_t j = 0; j < r->n_v; j++)
                w[j] = beta * (v[j] - w[j]);
            v = w;
        }
        for (size_t i = 0; i < r->n_k; i++)
            for (size_t j = 0; j < r->n_v; j++)
                r->s[i * r->n_v + j] += k[i] * v[j];
        read_state(r, r->q + t * r->ld_q, r->o + t * r->ld_o);
        for (size_t i = 0; r->z && i < r->n_k; i++)
            r->z[i] += k[i];
        if (r->z)
            r->den[t] = dot(r->q + t * r->ld_q, r->z, r->n_k);
    }
}

/* --- a chunk at once -------------------------------------------------------------------------- */

/* Scratch of a chunk of c tokens. */
struct chunk {
    size_t c;
    double *sum; /* [c] one decay a token: g_1 + … + g_t. Thousands where decays are strong, and
                  * differences of them count: so in double. */
    sl_real *a;  /* [c][c] what tokens say to each other; later its decayed lower half */
    sl_real *l;  /* [c][c] delta rules: the system */
    sl_real *w;  /* [c][n_v] what is written */
    sl_real *x, *y; /* [c][n_k] queries and keys with their decays */
    sl_real *part;  /* [c][n_k] one decay a channel: g summed from the start of t's block to t */
    sl_real *total; /* [blocks][n_k] … to the block's end */
};

static size_t n_blocks(size_t c)
{
    return (c + BLOCK - 1) / BLOCK;
}

static size_t chunk_elements(size_t c, size_t n_k, size_t n_v)
{
    size_t doubles = c * sizeof(double) / sizeof(sl_real);
    return doubles + 2 * c * c + c * n_v + 3 * c * n_k + n_blocks(c) * n_k;
}

static void lay_out(struct chunk *h, size_t c, size_t n_k, size_t n_v, sl_real *p)
{
    h->c = c;
    h->sum = (double *)(void *)p, p += c * sizeof(double) / sizeof(sl_real);
    h->a = p, p += c * c;
    h->l = p, p += c * c;
    h->w = p, p += c * n_v;
    h->x = p, p += c * n_k;
    h->y = p, p += c * n_k;
    h->part = p, p += c * n_k;
    h->total = p;
}

/* a = Q Kᵀ and, for delta rules, l = K Kᵀ; then both with D. */
static void scores(const struct recurrence *r, const struct chunk *h)
{
    size_t c = h->c;
    gemm(false, true, c, c, r->n_k, r->q, r->ld_q, r->k, r->ld_k, 0, h->a, c);
    if (r->beta)
        gemm(false, true, c, c, r->n_k, r->k, r->ld_k, r->k, r->ld_k, 0, h->l, c);
    for (size_t t = 0; t < c; t++) {
        sl_real beta = r->beta ? r->beta[t * r->ld_beta] : 1;
        for (size_t s = 0; s <= t; s++) {
            sl_real d = r->decay ? real_exp((sl_real)(h->sum[t] - h->sum[s])) : 1;
            h->a[t * c + s] *= d;
            if (r->beta)
                h->l[t * c + s] *= beta * d;
        }
    }
}

/* w: the values, or what the delta rule makes of them. */
static void writes(const struct recurrence *r, const struct chunk *h)
{
    size_t c = h->c;
    for (size_t t = 0; t < c; t++)
        memcpy(h->w + t * r->n_v, r->v + t * r->ld_v, r->n_v * sizeof *h->w);
    if (!r->beta)
        return;
    for (size_t t = 0; t < c; t++) { /* x = -(K ⊙ decay) */
        sl_real d = r->decay ? real_exp((sl_real)h->sum[t]) : 1;
        for (size_t i = 0; i < r->n_k; i++)
            h->x[t * r->n_k + i] = -d * r->k[t * r->ld_k + i];
    }
    gemm(false, false, c, r->n_v, r->n_k, h->x, r->n_k, r->s, r->n_v, 1, h->w, r->n_v);
    for (size_t t = 0; t < c; t++)
        for (size_t j = 0; j < r->n_v; j++)
            h->w[t * r->n_v + j] *= r->beta[t * r->ld_beta];
    trsm(c, r->n_v, h->l, c, h->w, r->n_v);
}

static void sums_scalar(const struct recurrence *r, const struct chunk *h)
{
    double sum = 0;
    for (size_t t = 0; r->decay && t < h->c; t++)
        h->sum[t] = sum += r->g[t * r->ld_g];
}

/* Queries with the decay since the chunk's start, keys with that until its end. */
static void ends_scalar(const struct recurrence *r, const struct chunk *h)
{
    for (size_t t = 0; t < h->c; t++) {
        sl_real since = r->decay ? real_exp((sl_real)h->sum[t]) : 1;
        sl_real until = r->decay ? real_exp((sl_real)(h->sum[h->c - 1] - h->sum[t])) : 1;
        for (size_t i = 0; i < r->n_k; i++) {
            h->x[t * r->n_k + i] = since * r->q[t * r->ld_q + i];
            h->y[t * r->n_k + i] = until * r->k[t * r->ld_k + i];
        }
    }
}

/* --- one decay a channel ---------------------------------------------------------------------- */

static void sums_channel(const struct recurrence *r, const struct chunk *h)
{
    for (size_t t = 0; t < h->c; t++)
        for (size_t i = 0; i < r->n_k; i++) {
            sl_real before = t % BLOCK ? h->part[(t - 1) * r->n_k + i] : 0;
            h->part[t * r->n_k + i] = before + r->g[t * r->ld_g + i];
        }
    for (size_t b = 0; b < n_blocks(h->c); b++) {
        size_t last = (b + 1) * BLOCK < h->c ? (b + 1) * BLOCK - 1 : h->c - 1;
        memcpy(h->total + b * r->n_k, h->part + last * r->n_k, r->n_k * sizeof *h->total);
    }
}

static sl_real strongest(const struct recurrence *r, const struct chunk *h, size_t b)
{
    sl_real least = 0;
    for (size_t i = 0; i < r->n_k; i++)
        least = h->total[b * r->n_k + i] < least ? h->total[b * r->n_k + i] : least;
    return least;
}

/* a of the tokens of one block among themselves. */
static void own_block(const struct recurrence *r, const struct chunk *h, size_t b)
{
    size_t from = b * BLOCK, to = from + BLOCK < h->c ? from + BLOCK : h->c, n_k = r->n_k;
    if (strongest(r, h, b) >= -(sl_real)RANGE) {
        for (size_t t = from; t < to; t++)
            for (size_t i = 0; i < n_k; i++) {
                sl_real d = real_exp(h->part[t * n_k + i]);
                h->x[t * n_k + i] = r->q[t * r->ld_q + i] * d;
                h->y[t * n_k + i] = r->k[t * r->ld_k + i] / d;
            }
        gemm(false, true, to - from, to - from, n_k, h->x + from * n_k, n_k, h->y + from * n_k, n_k,
             0, h->a + from * h->c + from, h->c);
        return;
    }
    for (size_t t = from; t < to; t++)
        for (size_t s = from; s <= t; s++) {
            sl_real sum = 0;
            for (size_t i = 0; i < n_k; i++)
                sum += r->q[t * r->ld_q + i] * r->k[s * r->ld_k + i] *
                       real_exp(h->part[t * n_k + i] - h->part[s * n_k + i]);
            h->a[t * h->c + s] = sum;
        }
}

/* a of block b's queries with all keys of the blocks before. y holds the keys, decayed until the
 * end of their own block; here they decay on, block by block, as b moves forward. */
static void earlier_blocks(const struct recurrence *r, const struct chunk *h, size_t b)
{
    size_t from = b * BLOCK, to = from + BLOCK < h->c ? from + BLOCK : h->c, n_k = r->n_k;
    for (size_t t = from; t < to; t++)
        for (size_t i = 0; i < n_k; i++)
            h->x[t * n_k + i] = r->q[t * r->ld_q + i] * real_exp(h->part[t * n_k + i]);
    if (b)
        gemm(false, true, to - from, from, n_k, h->x + from * n_k, n_k, h->y, n_k, 0,
             h->a + from * h->c, h->c);
}

/* Keys of the blocks before b decay through block b; those of b itself until its end. */
static void pass_block(const struct recurrence *r, const struct chunk *h, size_t b)
{
    size_t from = b * BLOCK, to = from + BLOCK < h->c ? from + BLOCK : h->c, n_k = r->n_k;
    const sl_real *total = h->total + b * n_k;
    for (size_t i = 0; i < n_k; i++) {
        sl_real d = real_exp(total[i]);
        for (size_t s = 0; s < from; s++)
            h->y[s * n_k + i] *= d;
    }
    for (size_t s = from; s < to; s++)
        for (size_t i = 0; i < n_k; i++)
            h->y[s * n_k + i] = r->k[s * r->ld_k + i] * real_exp(total[i] - h->part[s * n_k + i]);
}

/* a; then x and y as ends_scalar() leaves them. */
static void scores_channel(const struct recurrence *r, const struct chunk *h)
{
    size_t n_k = r->n_k;
    for (size_t b = 0; b < n_blocks(h->c); b++) {
        own_block(r, h, b);
        earlier_blocks(r, h, b);
        pass_block(r, h, b);
    }
    /* the queries have the decay since their block's start */
    for (size_t b = 1; b < n_blocks(h->c); b++)
        for (size_t i = 0; i < n_k; i++) {
            sl_real sum = 0;
            for (size_t e = 0; e < b; e++)
                sum += h->total[e * n_k + i];
            sl_real d = real_exp(sum);
            for (size_t t = b * BLOCK; t < h->c && t < (b + 1) * BLOCK; t++)
                h->x[t * n_k + i] *= d;
        }
}

/* --- all together ----------------------------------------------------------------------------- */

static void decay_over_chunk(const struct recurrence *r, const struct chunk *h)
{
    for (size_t i = 0; r->decay && i < r->n_k; i++) {
        sl_real sum = 0;
        if (r->decay == SL_DECAY_SCALAR)
            sum = (sl_real)h->sum[h->c - 1];
        else
            for (size_t b = 0; b < n_blocks(h->c); b++)
                sum += h->total[b * r->n_k + i];
        decay_key(r, i, real_exp(sum));
    }
}

/* What the outputs are divided by. z is still that of the chunk's start. */
static void denominators(const struct recurrence *r, const struct chunk *h)
{
    for (size_t t = 0; t < h->c; t++) {
        r->den[t] = dot(h->x + t * r->n_k, r->z, r->n_k);
        for (size_t s = 0; s <= t; s++)
            r->den[t] += h->a[t * h->c + s];
    }
}

static void sum_keys(const struct recurrence *r, const struct chunk *h)
{
    for (size_t t = 0; t < h->c; t++)
        for (size_t i = 0; i < r->n_k; i++)
            r->z[i] += h->y[t * r->n_k + i];
}

static void run_chunk(const struct recurrence *r, const struct chunk *h)
{
    size_t c = h->c, n_k = r->n_k, n_v = r->n_v;
    if (r->decay == SL_DECAY_CHANNEL) {
        sums_channel(r, h);
        scores_channel(r, h);
        writes(r, h);
    } else {
        sums_scalar(r, h);
        scores(r, h);
        writes(r, h);
        ends_scalar(r, h);
    }
    for (size_t t = 0; t < c; t++)
        memcpy(r->o + t * r->ld_o, h->w + t * n_v, n_v * sizeof *r->o);
    trmm(c, n_v, h->a, c, r->o, r->ld_o);
    gemm(false, false, c, n_v, n_k, h->x, n_k, r->s, n_v, 1, r->o, r->ld_o);
    if (r->z)
        denominators(r, h);
    decay_over_chunk(r, h);
    if (r->z)
        sum_keys(r, h);
    gemm(true, false, n_k, n_v, c, h->y, n_k, h->w, n_v, 1, r->s, n_v);
}

static void run_chunks(const struct recurrence *whole, size_t size, sl_real *scratch)
{
    struct chunk h;
    struct recurrence r = *whole;
    for (size_t t = 0; t < whole->n; t += r.n) {
        r.n = whole->n - t < size ? whole->n - t : size;
        r.q = whole->q + t * r.ld_q;
        r.k = whole->k + t * r.ld_k;
        r.v = whole->v + t * r.ld_v;
        r.o = whole->o + t * r.ld_o;
        r.den = r.z ? whole->den + t : NULL;
        r.g = r.decay ? whole->g + t * r.ld_g : NULL;
        r.beta = r.beta ? whole->beta + t * r.ld_beta : NULL;
        lay_out(&h, r.n, r.n_k, r.n_v, scratch);
        run_chunk(&r, &h);
    }
}

size_t SL_FORMS_NAME(sl_form_scratch)(enum sl_form form, size_t n, size_t n_k, size_t n_v)
{
    if (form == SL_FORM_RECURRENT)
        return n_v;
    return chunk_elements(form == SL_FORM_CHUNKWISE && n > SL_CHUNK ? SL_CHUNK : n, n_k, n_v);
}

void SL_FORMS_NAME(sl_form_run)(enum sl_form form, const struct recurrence *r, sl_real *scratch)
{
    assert(!r->beta || (r->decay != SL_DECAY_CHANNEL && !r->z));
    if (form == SL_FORM_RECURRENT)
        recurrent(r, scratch);
    else
        run_chunks(r, form == SL_FORM_CHUNKWISE ? SL_CHUNK : r->n, scratch);
}

#ifndef SL_FORMS_DOUBLE /* its names are there already */
const char *const sl_form_names[SL_FORM_COUNT] = {"recurrent", "chunkwise", "parallel"};
#endif
