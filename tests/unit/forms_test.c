/* forms_test.c: recurrent, chunkwise and parallel are one function: in double to 1e-12 of the
 * outputs' largest magnitude, in float to 1e-5; for every kind of decay, with the delta rule's
 * correction, with the denominator, at lengths around the borders of blocks and chunks.
 *
 * The truth is the recurrent form in double; that one is checked against sums over pairs of tokens,
 * written out from the definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kernels/blas.h"
#include "tests/support/floats.h"
#include "tests/support/forms_double.h"

struct shape {
    size_t n, n_k, n_v;
    enum sl_decay decay;
    double strength; /* of the decays: g from -strength to 0 */
    bool delta, denominator;
};

/* One problem in double, and its copy in float. Rows of the inputs have gaps between them. */
struct problem {
    struct shape shape;
    double *q, *k, *v, *g, *beta, *s0, *z0; /* inputs */
    double *o, *s, *z, *den;                /* what the last run gave */
    double *scratch;
    size_t ld_k, ld_v;
};

enum { GAP = 3 };

static double *numbers(size_t n)
{
    double *p = calloc(n + 1, sizeof *p);
    assert_non_null(p);
    return p;
}

static void fill(double *p, size_t n, double lo, double hi, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(lo + (hi - lo) * ((double)(next_random(seed) >> 11) * 0x1p-53));
}

/* Keys of the delta rules have length one, as they have in models: else the rule diverges. */
static void normalise(double *k, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += k[i] * k[i];
    for (size_t i = 0; i < n; i++)
        k[i] = (float)(k[i] / sqrt(sum));
}

static void problem_init(struct problem *p, const struct shape *sh, uint64_t seed)
{
    size_t ld_k = sh->n_k + GAP, ld_v = sh->n_v + GAP, n = sh->n;
    /* A denominator is of positive features. Others lean that way too: where all terms of a short
     * sum cancel, its size says nothing about theirs. */
    double lo = sh->denominator ? 0.01 : -0.5;
    *p = (struct problem){.shape = *sh, .ld_k = ld_k, .ld_v = ld_v};
    p->q = numbers(n * ld_k);
    p->k = numbers(n * ld_k);
    p->v = numbers(n * ld_v);
    p->g = numbers(n * ld_k);
    p->beta = numbers(n);
    p->s0 = numbers(sh->n_k * sh->n_v);
    p->z0 = numbers(sh->n_k);
    p->o = numbers(n * ld_v);
    p->s = numbers(sh->n_k * sh->n_v);
    p->z = numbers(sh->n_k);
    p->den = numbers(n);
    p->scratch = numbers(sl_form_scratch_f64(SL_FORM_PARALLEL, n, sh->n_k, sh->n_v) +
                         sl_form_scratch_f64(SL_FORM_CHUNKWISE, n, sh->n_k, sh->n_v));
    fill(p->q, n * ld_k, lo, 1, &seed);
    fill(p->k, n * ld_k, lo, 1, &seed);
    fill(p->v, n * ld_v, -1, 1, &seed);
    fill(p->g, n * ld_k, -sh->strength, 0, &seed);
    fill(p->beta, n, 0, 1, &seed);
    fill(p->s0, sh->n_k * sh->n_v, -1, 1, &seed);
    fill(p->z0, sh->n_k, 0, 1, &seed);
    for (size_t t = 0; sh->delta && t < n; t++)
        normalise(p->k + t * ld_k, sh->n_k);
}

static void problem_done(struct problem *p)
{
    double *all[] = {p->q,  p->k, p->v, p->g, p->beta, p->s0,
                     p->z0, p->o, p->s, p->z, p->den,  p->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void run_double(struct problem *p, enum sl_form form)
{
    const struct shape *sh = &p->shape;
    memcpy(p->s, p->s0, sh->n_k * sh->n_v * sizeof *p->s);
    memcpy(p->z, p->z0, sh->n_k * sizeof *p->z);
    struct sl_recurrence_f64 r = {.n = sh->n,
                                  .n_k = sh->n_k,
                                  .n_v = sh->n_v,
                                  .q = p->q,
                                  .k = p->k,
                                  .v = p->v,
                                  .ld_q = p->ld_k,
                                  .ld_k = p->ld_k,
                                  .ld_v = p->ld_v,
                                  .o = p->o,
                                  .ld_o = p->ld_v,
                                  .s = p->s,
                                  .z = sh->denominator ? p->z : NULL,
                                  .den = p->den,
                                  .decay = sh->decay,
                                  .g = p->g,
                                  .ld_g = p->ld_k,
                                  .beta = sh->delta ? p->beta : NULL,
                                  .ld_beta = 1};
    sl_form_run_f64(form, &r, p->scratch);
}

static float *narrow(const double *x, size_t n)
{
    float *y = malloc((n + 1) * sizeof *y);
    assert_non_null(y);
    for (size_t i = 0; i < n; i++)
        y[i] = (float)x[i];
    return y;
}

static void widen_free(double *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = y[i];
    free(y);
}

static void run_float(struct problem *p, enum sl_form form)
{
    const struct shape *sh = &p->shape;
    size_t n = sh->n, n_s = sh->n_k * sh->n_v;
    float *q = narrow(p->q, n * p->ld_k), *k = narrow(p->k, n * p->ld_k),
          *v = narrow(p->v, n * p->ld_v), *g = narrow(p->g, n * p->ld_k),
          *beta = narrow(p->beta, n), *s = narrow(p->s0, n_s), *z = narrow(p->z0, sh->n_k),
          *o = narrow(p->o, n * p->ld_v), *den = narrow(p->den, n),
          *scratch = malloc(sl_form_scratch(form, n, sh->n_k, sh->n_v) * sizeof *scratch);
    struct sl_recurrence r = {.n = n,
                              .n_k = sh->n_k,
                              .n_v = sh->n_v,
                              .q = q,
                              .k = k,
                              .v = v,
                              .ld_q = p->ld_k,
                              .ld_k = p->ld_k,
                              .ld_v = p->ld_v,
                              .o = o,
                              .ld_o = p->ld_v,
                              .s = s,
                              .z = sh->denominator ? z : NULL,
                              .den = den,
                              .decay = sh->decay,
                              .g = g,
                              .ld_g = p->ld_k,
                              .beta = sh->delta ? beta : NULL,
                              .ld_beta = 1};
    sl_form_run(form, &r, scratch);
    widen_free(p->o, o, n * p->ld_v);
    widen_free(p->s, s, n_s);
    widen_free(p->z, z, sh->n_k);
    widen_free(p->den, den, n);
    free(q), free(k), free(v), free(g), free(beta), free(scratch);
}

/* |x - want| / max |want| over rows of n, ld apart. */
static double distance(const double *x, const double *want, size_t rows, size_t n, size_t ld)
{
    double off = 0, most = 0;
    for (size_t t = 0; t < rows; t++)
        for (size_t j = 0; j < n; j++) {
            double d = fabs(x[t * ld + j] - want[t * ld + j]), m = fabs(want[t * ld + j]);
            off = isnan(d) || d > off ? d : off;
            most = m > most ? m : most;
        }
    return off / most;
}

static double *copy_of(const double *x, size_t n)
{
    return memcpy(numbers(n), x, n * sizeof *x);
}

/* The worst distance of what a run gave from the recurrent form in double. */
static double worst_of(struct problem *p, enum sl_form form, bool in_double)
{
    const struct shape *sh = &p->shape;
    size_t n_o = sh->n * p->ld_v, n_s = sh->n_k * sh->n_v;
    run_double(p, SL_FORM_RECURRENT);
    double *o = copy_of(p->o, n_o), *s = copy_of(p->s, n_s), *z = copy_of(p->z, sh->n_k),
           *den = copy_of(p->den, sh->n);
    memset(p->o, 0, n_o * sizeof *p->o);
    if (in_double)
        run_double(p, form);
    else
        run_float(p, form);
    double worst = distance(p->o, o, sh->n, sh->n_v, p->ld_v);
    worst = fmax(worst, distance(p->s, s, sh->n_k, sh->n_v, sh->n_v));
    if (sh->denominator) {
        worst = fmax(worst, distance(p->z, z, 1, sh->n_k, sh->n_k));
        worst = fmax(worst, distance(p->den, den, 1, sh->n, sh->n));
    }
    free(o), free(s), free(z), free(den);
    return worst;
}

static const struct shape rules[] = {
    {.decay = SL_DECAY_NONE},
    {.decay = SL_DECAY_NONE, .denominator = true},
    {.decay = SL_DECAY_SCALAR, .strength = 0.05},
    {.decay = SL_DECAY_SCALAR, .strength = 40},
    {.decay = SL_DECAY_CHANNEL, .strength = 0.1},
    {.decay = SL_DECAY_CHANNEL, .strength = 1},
    {.decay = SL_DECAY_CHANNEL, .strength = 60},
    {.decay = SL_DECAY_CHANNEL, .strength = 0.1, .denominator = true},
    {.decay = SL_DECAY_NONE, .delta = true},
    {.decay = SL_DECAY_SCALAR, .strength = 0.1, .delta = true},
    {.decay = SL_DECAY_SCALAR, .strength = 40, .delta = true},
};
enum { N_RULES = sizeof rules / sizeof *rules };

static const size_t lengths[] = {1, 2, 15, 16, 17, 33, 63, 64, 65, 128, 200};

static void each(bool in_double, double limit)
{
    for (size_t i = 0; i < N_RULES; i++)
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++)
            for (int form = 0; form < SL_FORM_COUNT; form++) {
                struct problem p;
                struct shape sh = rules[i];
                sh.n = lengths[j];
                sh.n_k = j % 2 ? 24 : 7;
                sh.n_v = j % 3 ? 16 : 5;
                problem_init(&p, &sh, 1 + 100 * i + j);
                double off = worst_of(&p, (enum sl_form)form, in_double);
                if (!(off <= limit))
                    fail_msg("rule %zu, %s, %zu tokens: off by %g of the largest", i,
                             sl_form_names[form], sh.n, off);
                problem_done(&p);
            }
}

static void test_double(void **state)
{
    (void)state;
    each(true, 1e-12);
}

static void test_float(void **state)
{
    (void)state;
    each(false, 1e-5);
}

/* A larger head, as models have them. */
static void test_heads_of_64(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_RULES; i++) {
        struct problem p;
        struct shape sh = rules[i];
        sh.n = 300;
        sh.n_k = sh.n_v = 64;
        problem_init(&p, &sh, 7 + i);
        assert_true(worst_of(&p, SL_FORM_CHUNKWISE, true) <= 1e-12);
        assert_true(worst_of(&p, SL_FORM_PARALLEL, true) <= 1e-12);
        assert_true(worst_of(&p, SL_FORM_CHUNKWISE, false) <= 1e-5);
        assert_true(worst_of(&p, SL_FORM_PARALLEL, false) <= 1e-5);
        problem_done(&p);
    }
}

/* o_t = Σ_{s ≤ t} (Σ_i q_ti k_si e^{g_{s+1,i} + … + g_ti}) v_s from the zero state: the definition
 * of the additive rules, pair by pair. */
static void test_the_recurrent_form_is_the_definition(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_RULES; i++) {
        struct problem p;
        struct shape sh = rules[i];
        if (sh.delta)
            continue;
        sh.n = 20, sh.n_k = 6, sh.n_v = 1;
        problem_init(&p, &sh, 31 + i);
        memset(p.s0, 0, 6 * sizeof *p.s0);
        run_double(&p, SL_FORM_RECURRENT);
        for (size_t t = 0; t < sh.n; t++) {
            double want = 0;
            for (size_t s = 0; s <= t; s++)
                for (size_t c = 0; c < sh.n_k; c++) {
                    double g = 0;
                    for (size_t m = s + 1; sh.decay && m <= t; m++)
                        g += p.g[m * p.ld_k + (sh.decay == SL_DECAY_CHANNEL ? c : 0)];
                    want += p.q[t * p.ld_k + c] * p.k[s * p.ld_k + c] * exp(g) * p.v[s * p.ld_v];
                }
            assert_true(fabs(p.o[t * p.ld_v] - want) < 1e-12 * (1 + fabs(want)));
        }
        problem_done(&p);
    }
}

/* With orthonormal keys and β = 1 the delta rule gives back what was written last under a key, and
 * an additive rule the sum of all that was. */
static void test_the_delta_rule_overwrites(void **state)
{
    (void)state;
    for (int delta = 0; delta < 2; delta++) {
        double k[4] = {1, 0, 1, 0}, v[2] = {3, 5}, beta[2] = {1, 1}, s[2] = {0}, o[2];
        double scratch[64];
        for (int form = 0; form < SL_FORM_COUNT; form++) {
            memset(s, 0, sizeof s);
            struct sl_recurrence_f64 r = {.n = 2,
                                          .n_k = 2,
                                          .n_v = 1,
                                          .q = k,
                                          .k = k,
                                          .v = v,
                                          .ld_q = 2,
                                          .ld_k = 2,
                                          .ld_v = 1,
                                          .o = o,
                                          .ld_o = 1,
                                          .s = s,
                                          .beta = delta ? beta : NULL,
                                          .ld_beta = 1};
            sl_form_run_f64((enum sl_form)form, &r, scratch);
            assert_true(o[0] == 3 && o[1] == (delta ? 5 : 8));
        }
    }
}

int main(void)
{
    sl_blas_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_recurrent_form_is_the_definition),
        cmocka_unit_test(test_the_delta_rule_overwrites),
        cmocka_unit_test(test_double),
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_heads_of_64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
