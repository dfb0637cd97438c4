/* vector_of.h: every kernel of kernels.h but the products, for one instruction set: the text that
 * the vector tables (avx2.c, avx512.c, neon.c) have in common. Included once by each of them, after
 * it has said what a register is and has defined these few operations on it:
 *
 *   vec                        a register of LANES floats, a type whose operators work lane by lane
 *   ints, uints                the same bits as LANES int32_t and uint32_t
 *   v_all(x)                   x in every lane
 *   v_load(p), v_store(p, v)   LANES floats, aligned as floats are
 *   v_load_first(p, n)         the first n < LANES of them, the others zero; nothing else is read
 *   v_store_first(p, n, v)     the first n < LANES of them; nothing else is written
 *   v_keep_first(n, a, b)      the first n < LANES lanes of a, the others of b
 *   v_fma(a, b, c)             a·b + c, rounded once
 *   v_max(a, b), v_min(a, b)   a > b ? a : b and a < b ? a : b: b where one is a NaN
 *   v_if_less(a, b, yes, no)   a < b ? yes : no
 *   v_fold(v)                  lane j += lane j + LANES/2, and so on down to one
 *   v_largest(v)               the largest lane; there is no NaN
 *   v_any(m)                   whether any bit of uints is set
 *   v_pack(p, m, v)            the lanes of v that m has all bits of go to p, one after another
 *                              (LANES floats may be overwritten); returns how many they are
 *   wide                       a register of LANES/2 doubles
 *   v_widen_low(v)             the first LANES/2 lanes of v
 *   v_widen_high(v)            the last ones
 *
 * and the constants LANES; WIDE: three times WIDE registers, and some more, are there to be used;
 * HOLD_ROWS: likewise twice HOLD_ROWS, and four; REREAD: 1 where there are 32 registers.
 *
 * The same operations on the same operands in the same order as ref.c, LANES outputs at a time;
 * where ref.c sums in 16 lanes, they are 16/LANES registers. What is left over at the end of a
 * vector goes through the same instructions, loaded and stored in part; lanes of a sum that have no
 * element there keep their value (adding a zero could turn -0 into +0).
 *
 * Constants are written as floats (2.0F, not 2): an operator takes one of those beside a vector.
 * VECTOR_KERNELS are the rows of the table. No guard: once for each instruction set. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/kernels/poly.h"

static_assert(SL_PANEL % LANES == 0, "lanes of a sum are whole registers");

/* --- functions --- */

static inline vec neg(vec x)
{
    return (vec)((uints)x ^ 0x80000000U);
}

static inline vec magnitude(vec x)
{
    return (vec)((uints)x & 0x7fffffffU);
}

/* 2^i for -126 ≤ i ≤ 127. */
static inline vec pow2(ints i)
{
    return (vec)((uints)(i + 127) << 23U);
}

/* e^x = 2^k · what is returned; k as SL_EXP_MAGIC leaves it, in the last bits. */
static inline vec exp_rest(vec x, vec *ret_k)
{
    vec k = v_fma(x, v_all(SL_EXP_LOG2E), v_all(SL_EXP_MAGIC));
    vec n = k - SL_EXP_MAGIC;
    vec r = v_fma(n, v_all(-SL_EXP_LN2_LO), v_fma(n, v_all(-SL_EXP_LN2_HI), x));
    vec p = v_fma(v_all(SL_EXP_C7), r, v_all(SL_EXP_C6));
    p = v_fma(p, r, v_all(SL_EXP_C5));
    p = v_fma(p, r, v_all(SL_EXP_C4));
    p = v_fma(p, r, v_all(SL_EXP_C3));
    p = v_fma(p, r, v_all(SL_EXP_C2));
    p = v_fma(p, r, v_all(1));
    p = v_fma(p, r, v_all(1));
    *ret_k = k;
    return p;
}

static inline vec exp1(vec x)
{
    x = v_max(v_all(SL_EXP_LO), x); /* NaN stays */
    x = v_min(v_all(SL_EXP_HI), x);
    vec k, p = exp_rest(x, &k);
    ints i = (ints)k - SL_EXP_MAGIC_BITS, half = i >> 1;
    return p * pow2(half) * pow2(i - half);
}

static inline vec tanh1(vec x)
{
    vec a = magnitude(x), z = a * a;
    vec p = v_fma(v_all(SL_TANH_P5), z, v_all(SL_TANH_P4));
    p = v_fma(p, z, v_all(SL_TANH_P3));
    p = v_fma(p, z, v_all(SL_TANH_P2));
    p = v_fma(p, z, v_all(SL_TANH_P1));
    p = v_fma(p, z, v_all(SL_TANH_P0));
    vec small = v_fma(a * z, p, a), large = 1.0F - 2.0F / (exp1(a + a) + 1.0F);
    vec y = v_if_less(a, v_all(SL_TANH_SMALL), small, large);
    return (vec)((uints)y | ((uints)x & 0x80000000U));
}

static inline vec sigmoid1(vec x)
{
    return 1.0F / (1.0F + exp1(neg(x)));
}

static inline vec silu1(vec x)
{
    return x / (1.0F + exp1(neg(x)));
}

static inline vec relu1(vec x)
{
    return v_max(v_all(0), x); /* NaN and -0 stay */
}

static inline vec relu2_1(vec x)
{
    vec t = relu1(x);
    return t * t;
}

static inline vec softplus1(vec x)
{
    vec u = exp1((vec)((uints)x | 0x80000000U));
    vec s = u / (u + 2.0F);
    vec z = s * s, two = s + s;
    vec q = v_fma(v_all(SL_LOG1P_Q3), z, v_all(SL_LOG1P_Q2));
    q = v_fma(q, z, v_all(SL_LOG1P_Q1));
    q = v_fma(q, z, v_all(SL_LOG1P_Q0));
    return relu1(x) + v_fma(two * z, q, two);
}

static inline vec elu1_1(vec x)
{
    return v_if_less(v_all(0), x, x + 1.0F, exp1(x));
}

static inline vec gelu1(vec x)
{
    vec t = magnitude(x) * SL_GELU_SQRT_HALF, z = t * t;
    vec p = v_fma(v_all(SL_GELU_P6), z, v_all(SL_GELU_P5));
    p = v_fma(p, z, v_all(SL_GELU_P4));
    p = v_fma(p, z, v_all(SL_GELU_P3));
    p = v_fma(p, z, v_all(SL_GELU_P2));
    p = v_fma(p, z, v_all(SL_GELU_P1));
    p = v_fma(p, z, v_all(SL_GELU_P0));
    vec small = v_fma(neg(t), p, v_all(1));
    vec u = v_min(v_all(SL_GELU_FAR), t); /* NaN stays */
    vec q = v_fma(v_all(SL_GELU_Q7), u, v_all(SL_GELU_Q6));
    q = v_fma(q, u, v_all(SL_GELU_Q5));
    q = v_fma(q, u, v_all(SL_GELU_Q4));
    q = v_fma(q, u, v_all(SL_GELU_Q3));
    q = v_fma(q, u, v_all(SL_GELU_Q2));
    q = v_fma(q, u, v_all(SL_GELU_Q1));
    q = v_fma(q, u, v_all(SL_GELU_Q0));
    vec large = exp1(neg(z + q));
    vec half = v_if_less(t, v_all(SL_GELU_SMALL), small, large) * 0.5F;
    return x * v_if_less(x, v_all(0), half, 1.0F - half);
}

/* y = f(x), in whole registers, then in the first lanes of one. */
#define MAP1(f)                                                                                    \
    size_t i = 0;                                                                                  \
    for (; i + LANES <= n; i += LANES)                                                             \
        v_store(y + i, f(v_load(x + i)));                                                          \
    if (i < n)                                                                                     \
        v_store_first(y + i, n - i, f(v_load_first(x + i, n - i)));

#define MAP2(f, a, b)                                                                              \
    size_t i = 0;                                                                                  \
    for (; i + LANES <= n; i += LANES)                                                             \
        v_store(y + i, f(v_load((a) + i), v_load((b) + i)));                                       \
    if (i < n)                                                                                     \
        v_store_first(y + i, n - i, f(v_load_first((a) + i, n - i), v_load_first((b) + i, n - i)));

#define MAP3(f, a, b, c)                                                                           \
    size_t i = 0;                                                                                  \
    for (; i + LANES <= n; i += LANES)                                                             \
        v_store(y + i, f(v_load((a) + i), v_load((b) + i), v_load((c) + i)));                      \
    if (i < n)                                                                                     \
        v_store_first(y + i, n - i,                                                                \
                      f(v_load_first((a) + i, n - i), v_load_first((b) + i, n - i),                \
                        v_load_first((c) + i, n - i)));

static void vexp(float *y, const float *x, size_t n)
{
    MAP1(exp1)
}

static void vtanh(float *y, const float *x, size_t n)
{
    MAP1(tanh1)
}

static void vsigmoid(float *y, const float *x, size_t n)
{
    MAP1(sigmoid1)
}

static void vsilu(float *y, const float *x, size_t n)
{
    MAP1(silu1)
}

static void vsoftplus(float *y, const float *x, size_t n)
{
    MAP1(softplus1)
}

static void velu1(float *y, const float *x, size_t n)
{
    MAP1(elu1_1)
}

static void vrelu(float *y, const float *x, size_t n)
{
    MAP1(relu1)
}

static void vgelu(float *y, const float *x, size_t n)
{
    MAP1(gelu1)
}

static void vrelu2(float *y, const float *x, size_t n)
{
    MAP1(relu2_1)
}

#define SCALED(v) ((v)*s)
static void vscale(float *y, const float *x, float s, size_t n)
{
    MAP1(SCALED)
}

#define SUM(u, v) ((u) + (v))
static void vadd(float *y, const float *a, const float *b, size_t n)
{
    MAP2(SUM, a, b)
}

#define PRODUCT(u, v) ((u) * (v))
static void vmul(float *y, const float *a, const float *b, size_t n)
{
    MAP2(PRODUCT, a, b)
}

static void vfma(float *y, const float *a, const float *b, const float *c, size_t n)
{
    MAP3(v_fma, a, b, c)
}

static inline vec lerp1(vec x, vec prev, vec m)
{
    return v_fma(prev - x, m, x);
}

static void lerp(float *y, const float *x, const float *prev, const float *m, size_t n)
{
    MAP3(lerp1, x, prev, m)
}

/* --- sums in 16 lanes --- */

enum { SUMS = SL_PANEL / LANES };

static ALWAYS_INLINE float fold16(vec *l)
{
    for (int half = SUMS / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            l[j] = l[j] + l[j + half];
    return v_fold(l[0]);
}

/* The fold of lanes that start from zero and take n elements, a register at i at a time: STEP(acc,
 * LOAD, i), where LOAD is to load it. */
#define SUM16(n, STEP)                                                                             \
    vec l[SUMS];                                                                                   \
    size_t i = 0;                                                                                  \
    for (int j = 0; j < SUMS; j++)                                                                 \
        l[j] = v_all(0);                                                                           \
    for (; i + SL_PANEL <= (n); i += SL_PANEL)                                                     \
        for (int j = 0; j < SUMS; j++)                                                             \
            l[j] = STEP(l[j], WHOLE, i + (size_t)j * LANES);                                       \
    for (int j = 0; j < SUMS && i < (n); j++, i += LANES) {                                        \
        size_t left = (n)-i;                                                                       \
        if (left >= LANES)                                                                         \
            l[j] = STEP(l[j], WHOLE, i);                                                           \
        else                                                                                       \
            l[j] = v_keep_first(left, STEP(l[j], PART, i), l[j]);                                  \
    }                                                                                              \
    return fold16(l);
#define WHOLE(p) v_load(p)
#define PART(p) v_load_first(p, left)

static float sum16(const float *x, size_t n)
{
#define STEP(acc, LOAD, i) ((acc) + LOAD(x + (i)))
    SUM16(n, STEP)
#undef STEP
}

static float dot16(const float *x, const float *y, size_t n)
{
#define STEP(acc, LOAD, i) v_fma(LOAD(x + (i)), LOAD(y + (i)), acc)
    SUM16(n, STEP)
#undef STEP
}

static float sum16_of_squares(const float *x, float mean, size_t n)
{
#define SQUARE(d, acc) v_fma(d, d, acc)
#define STEP(acc, LOAD, i) SQUARE(LOAD(x + (i)) - mean, acc)
    SUM16(n, STEP)
#undef STEP
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, size_t n,
                       float eps)
{
    float mean = sum16(x, n) / (float)n;
    float rstd = 1 / sqrtf(sum16_of_squares(x, mean, n) / (float)n + eps);
    if (b) {
#define WITH_BIAS(v, vw, vb) v_fma(((v)-mean) * rstd, vw, vb)
        MAP3(WITH_BIAS, x, w, b)
    } else {
#define WITHOUT_BIAS(v, vw) (((v)-mean) * rstd * (vw))
        MAP2(WITHOUT_BIAS, x, w)
    }
}

static void rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    float r = 1 / sqrtf(dot16(x, x, n) / (float)n + eps);
    if (w) {
#define WEIGHTED(v, vw) ((v)*r * (vw))
        MAP2(WEIGHTED, x, w)
    } else {
#define BARE(v) ((v)*r)
        MAP1(BARE)
    }
}

static float max(const float *x, size_t n)
{
    assert(n >= 1);
    const vec first = v_all(x[0]);
    vec best = first;
    uints nan = (uints)v_all(0);
    for (size_t i = 0; i < n; i += LANES) {
        size_t left = n - i;
        vec v =
            left >= LANES ? v_load(x + i) : v_keep_first(left, v_load_first(x + i, left), first);
        best = v_max(best, v);
        nan |= (uints)(v != v);
    }
    return v_any(nan) ? NAN : v_largest(best) + 0.0F; /* of two zeros the positive one */
}

#include "engine/kernels/state_of.h"

#include "engine/kernels/choice_of.h"

/* --- RWKV-4 --- */

/* Some channels; those beyond `lanes` are zeros on the way and not written. */
static ALWAYS_INLINE void wkv4_block(const size_t lanes, float *out, float *num, float *den,
                                     float *peak, const float *decay, const float *bonus,
                                     const float *k, const float *v)
{
    const vec key = load_lanes(k, lanes), val = load_lanes(v, lanes);
    const vec sum = load_lanes(num, lanes), weight = load_lanes(den, lanes);
    const vec top = load_lanes(peak, lanes), now = load_lanes(bonus, lanes) + key;
    vec p = v_max(top, now), a = exp1(top - p), b = exp1(now - p);
    store_lanes(out, lanes, v_fma(a, sum, b * val) / v_fma(a, weight, b));
    const vec old = top + load_lanes(decay, lanes);
    p = v_max(old, key), a = exp1(old - p), b = exp1(key - p);
    store_lanes(num, lanes, v_fma(a, sum, b * val));
    store_lanes(den, lanes, v_fma(a, weight, b));
    store_lanes(peak, lanes, p);
}

static void wkv4(float *out, float *num, float *den, float *peak, const float *decay,
                 const float *bonus, const float *k, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        wkv4_block(n - i < LANES ? n - i : LANES, out + i, num + i, den + i, peak + i, decay + i,
                   bonus + i, k + i, v + i);
}

/* --- RWKV-7 --- */

/* As wkv4_block(). κ is not yet made one long, and a is -α. */
static ALWAYS_INLINE void wkv7_block(const size_t lanes, const struct sl_wkv7_gates *g, size_t i)
{
    const vec key = load_lanes(g->key + i, lanes);
    const vec w = load_lanes(g->w + i, lanes) + load_lanes(g->w0 + i, lanes);
    const vec alpha = sigmoid1(load_lanes(g->a + i, lanes) + load_lanes(g->a0 + i, lanes));
    store_lanes(g->w + i, lanes, exp1(sigmoid1(w) * g->decay_scale));
    store_lanes(g->kappa + i, lanes, key * load_lanes(g->k_k + i, lanes));
    store_lanes(g->k_tilde + i, lanes,
                v_fma(key * alpha - key, load_lanes(g->k_a + i, lanes), key));
    store_lanes(g->a + i, lanes, neg(alpha));
    if (g->gate) {
        const vec v = load_lanes(g->v + i, lanes);
        const vec gate = load_lanes(g->gate + i, lanes) + load_lanes(g->v0 + i, lanes);
        store_lanes(g->v + i, lanes, lerp1(v, load_lanes(g->v_first + i, lanes), sigmoid1(gate)));
    }
}

static void wkv7_gates(const struct sl_wkv7_gates *g, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        wkv7_block(LANES, g, i);
    if (i < n)
        wkv7_block(n - i, g, i);
    const float norm = sqrtf(dot16(g->kappa, g->kappa, n) + g->eps);
    vscale(g->kappa, g->kappa, 1 / (norm < g->least ? g->least : norm), n);
    vmul(g->a, g->a, g->kappa, n);
}

static float wkv7_bonus(const struct sl_wkv7_out *o, size_t n)
{
#define BONUS(acc, LOAD, i)                                                                        \
    v_fma(LOAD(o->r + (i)) * LOAD(o->r_k + (i)), LOAD(o->k_tilde + (i)), acc)
    SUM16(n, BONUS)
}

static void wkv7_out(const struct sl_wkv7_out *o, size_t n)
{
    const float bonus = wkv7_bonus(o, n);
    float *y = o->out;
    layer_norm(y, y, o->w, o->b, n, o->eps);
#define GATED(vy, vv, vg) (((vy) + (vv)*bonus) * (vg))
    MAP3(GATED, y, o->v, o->g)
}

/* Rows of the table. */
#define VECTOR_KERNELS                                                                             \
    .layer_norm = layer_norm, .rms_norm = rms_norm, .lerp = lerp, .vexp = vexp, .vtanh = vtanh,    \
    .vsigmoid = vsigmoid, .vsilu = vsilu, .vsoftplus = vsoftplus, .velu1 = velu1, .vrelu = vrelu,  \
    .vrelu2 = vrelu2, .vgelu = vgelu, .vadd = vadd, .vmul = vmul, .vfma = vfma, .vscale = vscale,  \
    .sum16 = sum16, .dot16 = dot16, .max = max, .tops = tops, .weigh = weigh, .drop = drop,        \
    .part = part, .state_read = state_read, .state_step = state_step, .state_run = state_run,      \
    .wkv4 = wkv4, .wkv7_gates = wkv7_gates, .wkv7_out = wkv7_out
