/* kernels_ref_test.c: the scalar kernels against the same sums in double precision, against values
 * worked out by hand, and against the orders of addition that kernels.h lays down. (Its functions:
 * kernels_functions_test.c. The other tables are held to the scalar one in kernels_test.c.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct sl_kernels *ref;

/* --- vectors --- */

static void simple_vectors(void **state)
{
    (void)state;
    const float a[] = {1, -2, 3}, b[] = {0.5F, 4, -8}, c[] = {10, 20, 30};
    float y[3];
#define EXPECT(call, u, v, w)                                                                      \
    call;                                                                                          \
    assert_true(y[0] == (u) && y[1] == (v) && y[2] == (w))
    EXPECT(ref->vadd(y, a, b, 3), 1.5F, 2, -5);
    EXPECT(ref->vmul(y, a, b, 3), 0.5F, -8, -24);
    EXPECT(ref->vfma(y, a, b, c, 3), 10.5F, 12, 6);
    EXPECT(ref->vscale(y, a, -2, 3), -2, 4, -6);
    EXPECT(ref->lerp(y, a, b, c, 3), -4, 118, -327); /* a + (b - a)·c */
#undef EXPECT
    /* One rounding: (1 + 2^-12)² - (1 + 2^-11) is 2^-24, and 0 with two. */
    const float p[] = {1 + 0x1p-12F}, q[] = {-(1 + 0x1p-11F)};
    ref->vfma(y, p, p, q, 1);
    assert_true(y[0] == 0x1p-24F);
}

/* --- sums --- */

/* 2^24 swallows a 1 that is added to it alone (a tie, to even). */
#define BIG 0x1p24F

static void sums_follow_their_order(void **state)
{
    (void)state;
    float x[48] = {0}, one[48];
    for (size_t i = 0; i < COUNT(one); i++)
        one[i] = 1;
    /* One lane: in order, each 1 is lost. */
    x[0] = BIG, x[16] = 1, x[32] = 1;
    assert_true(ref->sum16(x, 48) == BIG);
    assert_true(ref->dot16(x, one, 48) == BIG);
    x[0] = 1, x[16] = 1, x[32] = BIG;
    assert_true(ref->sum16(x, 48) == BIG + 2);
    assert_true(ref->dot16(x, one, 48) == BIG + 2);
    /* Folding: 8 meets 0 first, so 8's 1 is lost; 4 + 12 is 2 before it meets 0. */
    memset(x, 0, sizeof x);
    x[0] = BIG, x[8] = 1;
    assert_true(ref->sum16(x, 16) == BIG);
    x[8] = 0, x[4] = 1, x[12] = 1;
    assert_true(ref->sum16(x, 16) == BIG + 2);
    /* 2 (with 6) before 1: 0 + 2 loses, and so does 1 after it. */
    memset(x, 0, sizeof x);
    x[0] = BIG, x[2] = 1, x[1] = 1;
    assert_true(ref->sum16(x, 16) == BIG);
    /* 1 and 3 are added up before they meet 0. */
    x[2] = 0, x[3] = 1;
    assert_true(ref->sum16(x, 16) == BIG + 2);
    assert_true(ref->sum16(x, 0) == 0 && ref->dot16(x, x, 0) == 0);
}

static void sums_are_accurate(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float x[N], y[N];
    fill_uniform(x, N, 1);
    fill_uniform(y, N, 2);
    double sum = 0, dot = 0;
    for (size_t i = 0; i < N; i++) {
        sum += (double)x[i];
        dot += (double)x[i] * (double)y[i];
    }
    /* N/16 roundings a lane and 4 of the folding, of partial sums below 100. */
    double tolerance = (N / 16 + 4) * 100 * 0x1p-24;
    assert_true(fabs((double)ref->sum16(x, N) - sum) < tolerance);
    assert_true(fabs((double)ref->dot16(x, y, N) - dot) < tolerance);
}

static void max_finds_the_largest(void **state)
{
    (void)state;
    const float x[] = {-3, 7, -INFINITY, 2, 7}, minus[] = {-5, -4, -6}, zeros[] = {-0.0F, 0.0F};
    const float nans[][3] = {{NAN, 1, 2}, {1, NAN, 2}, {1, 2, NAN}, {INFINITY, NAN, 3}};
    assert_true(ref->max(x, 5) == 7);
    assert_true(ref->max(x, 1) == -3);
    assert_true(ref->max(minus, 3) == -4);
    assert_true(ref->max(&x[2], 1) == -INFINITY);
    assert_int_equal(float_bits(ref->max(zeros, 2)), 0);
    assert_int_equal(float_bits(ref->max(zeros, 1)), 0);
    for (size_t i = 0; i < COUNT(nans); i++)
        assert_true(isnan(ref->max(nans[i], 3)));
}

static void check_norm(size_t n, bool has_bias, float eps)
{
    float x[300], w[300], b[300], y[300];
    assert_true(n <= COUNT(x));
    fill_uniform(x, n, n);
    fill_uniform(w, n, n + 1);
    fill_uniform(b, n, n + 2);
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] * 3 + 2; /* a mean that matters */
    ref->layer_norm(y, x, w, has_bias ? b : NULL, n, eps);
    double mean = 0, variance = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)x[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        variance += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++) {
        double want = ((double)x[i] - mean) / sqrt(variance + (double)eps) * (double)w[i];
        want += has_bias ? (double)b[i] : 0;
        if (fabs((double)y[i] - want) > 1e-5)
            fail_msg("n = %zu: y[%zu] is %.8g, not %.8g", n, i, (double)y[i], want);
    }
}

static void layer_norm_is_accurate(void **state)
{
    (void)state;
    static const size_t lengths[] = {2, 3, 16, 64, 65, 300};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        check_norm(lengths[i], true, 1e-5F);
        check_norm(lengths[i], false, 64e-5F);
    }
    /* By hand: mean 2, variance 1, eps 3: (x - 2)/2·w + b. */
    const float x[] = {1, 3}, w[] = {4, 6}, b[] = {10, 20};
    float y[2];
    ref->layer_norm(y, x, w, b, 2, 3);
    assert_true(y[0] == 8 && y[1] == 23);
    /* Nothing varies: only eps is left under the root. */
    const float same[] = {5, 5, 5};
    float z[3];
    ref->layer_norm(z, same, same, NULL, 3, 1e-5F);
    assert_true(z[0] == 0 && z[1] == 0 && z[2] == 0);
}

static void check_rms(size_t n, bool has_weight, float eps)
{
    float x[300], w[300], y[300];
    assert_true(n <= COUNT(x));
    fill_uniform(x, n, n);
    fill_uniform(w, n, n + 1);
    ref->rms_norm(y, x, has_weight ? w : NULL, n, eps);
    double square = 0;
    for (size_t i = 0; i < n; i++)
        square += (double)x[i] * (double)x[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        double want = (double)x[i] / sqrt(square + (double)eps) * (has_weight ? (double)w[i] : 1);
        if (fabs((double)y[i] - want) > 2e-6)
            fail_msg("n = %zu: y[%zu] is %.8g, not %.8g", n, i, (double)y[i], want);
    }
}

static void rms_norm_is_accurate(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 3, 16, 64, 65, 300};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        check_rms(lengths[i], true, 1e-6F);
        check_rms(lengths[i], false, 1e-2F);
    }
    /* By hand: the mean square 5, eps 4: x/3·w. */
    const float x[] = {1, 3}, w[] = {6, 2};
    float y[2];
    ref->rms_norm(y, x, w, 2, 4);
    assert_true(fabs((double)y[0] - 2) < 1e-6 && fabs((double)y[1] - 2) < 1e-6);
}

/* --- products --- */

static void matmul_in_order_with_one_rounding(void **state)
{
    (void)state;
    float panel[4 * SL_PANEL] = {0}, y[SL_PANEL];
    for (size_t k = 0; k < 4; k++)
        panel[k * SL_PANEL] = panel[k * SL_PANEL + 5] = 1;
    /* 2^24 + 1 + 1 - 2^24 in this order is 0, from behind 2. */
    const float x[] = {BIG, 1, 1, -BIG}, back[] = {-BIG, 1, 1, BIG};
    ref->matmul(y, SL_PANEL, x, 4, 1, panel, SL_DTYPE_F32, 4, 0, 1);
    assert_true(y[0] == 0 && y[5] == 0 && y[1] == 0);
    ref->matmul(y, SL_PANEL, back, 4, 1, panel, SL_DTYPE_F32, 4, 0, 1);
    assert_true(y[0] == 2); /* below 2^24 a 1 is not lost */
    panel[0] = -(1 + 0x1p-11F);
    panel[SL_PANEL] = 1 + 0x1p-12F;
    const float fused[] = {1, 1 + 0x1p-12F};
    ref->matmul(y, SL_PANEL, fused, 2, 1, panel, SL_DTYPE_F32, 2, 0, 1);
    assert_true(y[0] == 0x1p-24F);
}

static void matmul_is_accurate(void **state)
{
    (void)state;
    static const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    enum { IN = 130, OUT = 40, ROWS = 3, LDX = 140, LDY = 48 };
    static float w[OUT * IN], wide[OUT * IN], x[ROWS * LDX], y[ROWS * LDY];
    static _Alignas(64) char panels[48 * IN * 4];
    fill_uniform(w, OUT * IN, 3);
    fill_uniform(x, ROWS * LDX, 4);
    for (size_t t = 0; t < COUNT(types); t++) {
        /* What the weights are once they were narrowed: 11 and 8 bits of fraction. */
        double scale = types[t] == SL_DTYPE_F16 ? 0x1p10 : 0x1p7;
        for (size_t i = 0; i < OUT * IN; i++) {
            int e;
            double m = frexp((double)w[i], &e);
            wide[i] = types[t] == SL_DTYPE_F32
                          ? w[i]
                          : (float)ldexp(nearbyint(m * 2 * scale), e - 1) / (float)scale;
        }
        sl_pack_matrix(panels, types[t], wide, SL_DTYPE_F32, OUT, IN, IN, 1, 0, 3);
        ref->matmul(y, LDY, x, LDX, ROWS, panels, types[t], IN, 0, 3);
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t o = 0; o < LDY; o++) {
                double sum = 0;
                for (size_t k = 0; o < OUT && k < IN; k++)
                    sum += (double)wide[o * IN + k] * (double)x[r * LDX + k];
                /* 130 roundings of sums below 30. */
                if (fabs((double)y[r * LDY + o] - sum) > IN * 30 * 0x1p-24)
                    fail_msg("%s: row %zu output %zu is %.8g, not %.8g", sl_dtype_name(types[t]), r,
                             o, (double)y[r * LDY + o], sum);
            }
        }
    }
}

/* --- states --- */

enum { K = 5, V = 3 };

static void check_step(bool decays, bool adds)
{
    float s[K * V], decay[K], b[K], key[K], q[K], a[V], val[V], out[V];
    double want[K * V];
    fill_uniform(s, K * V, 1);
    fill_uniform(decay, K, 2);
    fill_uniform(b, K, 3);
    fill_uniform(key, K, 4);
    fill_uniform(q, K, 5);
    fill_uniform(a, V, 6);
    fill_uniform(val, V, 7);
    ref->state_read(out, s, q, K, V);
    for (size_t v = 0; v < V; v++) {
        double sum = 0;
        for (size_t k = 0; k < K; k++)
            sum += (double)s[k * V + v] * (double)q[k];
        assert_true(fabs((double)out[v] - sum) < 1e-6);
    }
    for (size_t k = 0; k < K; k++)
        for (size_t v = 0; v < V; v++)
            want[k * V + v] = (double)s[k * V + v] * (decays ? (double)decay[k] : 1) +
                              (adds ? (double)b[k] * (double)a[v] : 0) +
                              (double)key[k] * (double)val[v];
    ref->state_step(out, s, decays ? decay : NULL, adds ? b : NULL, adds ? a : NULL, key, val, q, K,
                    V);
    for (size_t v = 0; v < V; v++) {
        double sum = 0;
        for (size_t k = 0; k < K; k++) {
            assert_true(fabs((double)s[k * V + v] - want[k * V + v]) < 1e-6);
            sum += want[k * V + v] * (double)q[k];
        }
        assert_true(fabs((double)out[v] - sum) < 1e-6);
    }
}

static void states_are_right(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++)
        check_step(form & 1, form & 2);
    /* Keys in order: 2^24 first swallows the ones after it. */
    const float s[] = {BIG, 1, 1}, back[] = {1, 1, BIG}, q[] = {1, 1, 1};
    float out;
    ref->state_read(&out, s, q, 3, 1);
    assert_true(out == BIG);
    ref->state_read(&out, back, q, 3, 1);
    assert_true(out == BIG + 2);
}

/* One token by hand, in numbers that are exact: what is read is the state before the token, and
 * the token itself with its bonus. */
static void a_bonus_is_right(void **state)
{
    (void)state;
    float s[2][3] = {{1, 2, 3}, {-4, 5, 6}}, out[3];
    const float decay[] = {0.5F, 0.25F}, bonus[] = {2, -1}, key[] = {3, 8}, q[] = {1, 0.5F};
    const float val[] = {1, -1, 0.25F};
    /* bonus·key = 6, -8 */
    const float want[] = {1 + 6 + 0.5F * (-4 - 8), 2 - 6 + 0.5F * (5 + 8),
                          3 + 1.5F + 0.5F * (6 - 2)};
    const float after[2][3] = {{0.5F + 3, 1 - 3, 1.5F + 0.75F}, {-1 + 8, 1.25F - 8, 1.5F + 2}};
    struct sl_state_run r = {.n = 1,
                             .n_k = 2,
                             .n_v = 3,
                             .out = out,
                             .key = key,
                             .val = val,
                             .q = q,
                             .decay = decay,
                             .bonus = bonus};
    ref->state_run(s[0], &r);
    assert_memory_equal(out, want, sizeof want);
    assert_memory_equal(s, after, sizeof after);
    /* Keys in order: 2^24 first swallows the ones after it. */
    float t[] = {BIG, 1, 1}, back[] = {1, 1, BIG};
    const float one[] = {1, 1, 1}, zero[] = {0, 0, 0};
    r = (struct sl_state_run){.n = 1,
                              .n_k = 3,
                              .n_v = 1,
                              .out = out,
                              .key = zero,
                              .val = one,
                              .q = one,
                              .decay = one,
                              .bonus = zero};
    ref->state_run(t, &r);
    assert_true(out[0] == BIG);
    ref->state_run(back, &r);
    assert_true(out[0] == BIG + 2);
}

/* Tokens in one call are the same tokens one after another, each a read and a step. */
static void check_run(bool decays, bool erases, bool corrects)
{
    enum { T = 4, LD = 7 };
    float key[T * LD], q[T * LD], decay[T * LD], reads[T * LD], b[T * LD], val[T * LD], beta[T];
    float s[2][K * V], out[T * LD], want[V], read[V], written[V];
    float *const all[] = {key, q, decay, reads, b, val};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        fill_uniform(all[i], (size_t)T * LD, (uint32_t)i + 1);
    fill_uniform(beta, T, 8);
    fill_uniform(s[0], K * V, 9);
    memcpy(s[1], s[0], sizeof s[0]);
    const struct sl_state_run r = {.n = T,
                                   .n_k = K,
                                   .n_v = V,
                                   .out = out,
                                   .ld_out = LD,
                                   .key = key,
                                   .val = val,
                                   .q = q,
                                   .ld_key = LD,
                                   .ld_val = LD,
                                   .ld_q = LD,
                                   .decay = decays ? decay : NULL,
                                   .ld_decay = LD,
                                   .one_decay = corrects,
                                   .read = erases || corrects ? reads : NULL,
                                   .ld_read = LD,
                                   .b = erases ? b : NULL,
                                   .ld_b = LD,
                                   .beta = corrects ? beta : NULL,
                                   .ld_beta = 1};
    ref->state_run(s[0], &r);
    for (size_t t = 0; t < T; t++) {
        float all_alike[K], *w = decay + t * LD;
        for (size_t i = 0; i < K; i++)
            all_alike[i] = w[0];
        ref->state_read(read, s[1], reads + t * LD, K, V);
        for (size_t v = 0; v < V; v++)
            written[v] = corrects ? (read[v] * -(decays ? w[0] : 1) + val[t * LD + v]) * beta[t]
                                  : val[t * LD + v];
        ref->state_step(want, s[1], decays ? (corrects ? all_alike : w) : NULL,
                        erases ? b + t * LD : NULL, erases ? read : NULL, key + t * LD, written,
                        q + t * LD, K, V);
        assert_memory_equal(out + t * LD, want, sizeof want);
    }
    assert_memory_equal(s[0], s[1], sizeof s[0]);
}

static void runs_are_right(void **state)
{
    (void)state;
    check_run(false, false, false);
    check_run(true, false, false);
    check_run(true, true, false);
    check_run(false, false, true);
    check_run(true, false, true);
}

static void wkv4_is_right(void **state)
{
    (void)state;
    enum { T = 60, C = 5 };
    /* From a memory of one token to one that keeps everything; a bonus against and for the new. */
    const float w[C] = {-3, -0.5F, -0.01F, -1e-6F, -20}, u[C] = {0, -2, 1, 0.5F, 3};
    float num[C] = {0}, den[C] = {0}, peak[C], out[C], k[T][C], v[T][C];
    for (size_t i = 0; i < C; i++)
        peak[i] = -1e30F;
    fill_uniform(k[0], (size_t)T * C, 1);
    fill_uniform(v[0], (size_t)T * C, 2);
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < C; i++)
            k[t][i] *= t % 7 == 3 ? 20 : 4;
        ref->wkv4(out, num, den, peak, w, u, k[t], v[t], C);
        for (size_t i = 0; i < C; i++) {
            double top = exp((double)u[i] + (double)k[t][i]), sum = top * (double)v[t][i];
            for (size_t j = 0; j < t; j++) {
                double e = exp((double)(t - 1 - j) * (double)w[i] + (double)k[j][i]);
                sum += e * (double)v[j][i], top += e;
            }
            if (!(fabs((double)out[i] - sum / top) < 2e-6))
                fail_msg("token %zu, channel %zu: %g, should be %g", t, i, (double)out[i],
                         sum / top);
            assert_true(peak[i] >= k[t][i]);
        }
    }
    /* Keys beyond what exp can hold change nothing but the exponent. */
    float far = 1e4F, value = 7, zero = 0, n1 = 0, d1 = 0, p1 = -1e30F;
    ref->wkv4(out, &n1, &d1, &p1, &w[0], &zero, &far, &value, 1);
    assert_true(out[0] == 7 && p1 == 1e4F && n1 == 7 && d1 == 1);
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_vectors),
        cmocka_unit_test(sums_follow_their_order),
        cmocka_unit_test(sums_are_accurate),
        cmocka_unit_test(max_finds_the_largest),
        cmocka_unit_test(layer_norm_is_accurate),
        cmocka_unit_test(rms_norm_is_accurate),
        cmocka_unit_test(matmul_in_order_with_one_rounding),
        cmocka_unit_test(matmul_is_accurate),
        cmocka_unit_test(states_are_right),
        cmocka_unit_test(a_bonus_is_right),
        cmocka_unit_test(runs_are_right),
        cmocka_unit_test(wkv4_is_right),
    };
    return cmocka_run_group_tests_name("kernels_ref", tests, NULL, NULL);
}
