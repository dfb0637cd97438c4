/* ref.c: the scalar truth: what every kernel of kernels.h computes, in plain loops.
 *
 * Not written for speed (though it is the table of last resort, on a machine without vector
 * kernels). Each loop says in which order one output is summed; a vector kernel may interleave
 * outputs as it likes, but not change that order. fmaf rounds once, also where the C library has
 * to compute it without an instruction for it.
 *
 * What is promised are the bits of every result that is a number; a NaN is a NaN at the same
 * place, but its sign and payload are the processor's own affair. */
#include <assert.h>

#include "engine/kernels/convert.h"
#include "engine/kernels/poly.h"
#include "engine/kernels/tables.h"

static void matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                   const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                   size_t panel_end)
{
    assert(type == SL_DTYPE_F32 || type == SL_DTYPE_F16 || type == SL_DTYPE_BF16);
    size_t group = SL_PANEL * sl_dtype_size(type);
    for (size_t p = panel_begin; p < panel_end; p++) {
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < SL_PANEL; j++)
                y[r * ldy + p * SL_PANEL + j] = 0;
        for (size_t k = 0; k < n_in; k++) {
            float w[SL_PANEL];
            sl_widen(w, (const char *)panels + (p * n_in + k) * group, type, SL_PANEL);
            for (size_t r = 0; r < rows; r++) {
                float *acc = y + r * ldy + p * SL_PANEL;
                for (size_t j = 0; j < SL_PANEL; j++)
                    acc[j] = fmaf(w[j], x[r * ldx + k], acc[j]);
            }
        }
    }
}

static float fold16(float l[SL_PANEL])
{
    for (size_t half = SL_PANEL / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            l[j] += l[j + half];
    return l[0];
}

static float sum16(const float *x, size_t n)
{
    float l[SL_PANEL] = {0};
    for (size_t i = 0; i < n; i++)
        l[i % SL_PANEL] += x[i];
    return fold16(l);
}

static float dot16(const float *x, const float *y, size_t n)
{
    float l[SL_PANEL] = {0};
    for (size_t i = 0; i < n; i++)
        l[i % SL_PANEL] = fmaf(x[i], y[i], l[i % SL_PANEL]);
    return fold16(l);
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, size_t n,
                       float eps)
{
    float mean = sum16(x, n) / (float)n;
    float l[SL_PANEL] = {0};
    for (size_t i = 0; i < n; i++)
        l[i % SL_PANEL] = fmaf(x[i] - mean, x[i] - mean, l[i % SL_PANEL]);
    float rstd = 1 / sqrtf(fold16(l) / (float)n + eps);
    for (size_t i = 0; i < n; i++) {
        float t = (x[i] - mean) * rstd;
        y[i] = b ? fmaf(t, w[i], b[i]) : t * w[i];
    }
}

static void rms_norm(float *y, const float *x, const float *w, size_t n, float eps)
{
    float r = 1 / sqrtf(dot16(x, x, n) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = w ? x[i] * r * w[i] : x[i] * r;
}

static void lerp(float *y, const float *x, const float *prev, const float *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(prev[i] - x[i], m[i], x[i]);
}

/* 2^i for -126 ≤ i ≤ 127, i given modulo 2^32. */
static float pow2(uint32_t i)
{
    return sl_f32_from_bits((i + 127) << 23);
}

static float exp1(float x)
{
    x = SL_EXP_LO > x ? SL_EXP_LO : x; /* both written so that NaN stays */
    x = SL_EXP_HI < x ? SL_EXP_HI : x;
    float k = fmaf(x, SL_EXP_LOG2E, SL_EXP_MAGIC);
    float n = k - SL_EXP_MAGIC;
    float r = fmaf(n, -SL_EXP_LN2_LO, fmaf(n, -SL_EXP_LN2_HI, x));
    float p = fmaf(SL_EXP_C7, r, SL_EXP_C6);
    p = fmaf(p, r, SL_EXP_C5);
    p = fmaf(p, r, SL_EXP_C4);
    p = fmaf(p, r, SL_EXP_C3);
    p = fmaf(p, r, SL_EXP_C2);
    p = fmaf(p, r, 1);
    p = fmaf(p, r, 1);
    /* i / 2 rounded down, in unsigned arithmetic: i ≥ -150. */
    uint32_t i = sl_f32_bits(k) - SL_EXP_MAGIC_BITS;
    uint32_t half = ((i + 256) >> 1) - 128;
    return p * pow2(half) * pow2(i - half);
}

static float tanh1(float x)
{
    uint32_t sign = sl_f32_bits(x) & 0x80000000;
    float a = sl_f32_from_bits(sl_f32_bits(x) ^ sign);
    float y;
    if (a < SL_TANH_SMALL) {
        float z = a * a;
        float p = fmaf(SL_TANH_P5, z, SL_TANH_P4);
        p = fmaf(p, z, SL_TANH_P3);
        p = fmaf(p, z, SL_TANH_P2);
        p = fmaf(p, z, SL_TANH_P1);
        p = fmaf(p, z, SL_TANH_P0);
        y = fmaf(a * z, p, a);
    } else {
        y = 1 - 2 / (exp1(a + a) + 1);
    }
    return sl_f32_from_bits(sl_f32_bits(y) | sign);
}

static float gelu1(float x)
{
    float t = sl_f32_from_bits(sl_f32_bits(x) & 0x7fffffff) * SL_GELU_SQRT_HALF, z = t * t, h;
    if (t < SL_GELU_SMALL) {
        float p = fmaf(SL_GELU_P6, z, SL_GELU_P5);
        p = fmaf(p, z, SL_GELU_P4);
        p = fmaf(p, z, SL_GELU_P3);
        p = fmaf(p, z, SL_GELU_P2);
        p = fmaf(p, z, SL_GELU_P1);
        p = fmaf(p, z, SL_GELU_P0);
        h = fmaf(-t, p, 1);
    } else {
        float u = SL_GELU_FAR < t ? SL_GELU_FAR : t; /* NaN stays */
        float q = fmaf(SL_GELU_Q7, u, SL_GELU_Q6);
        q = fmaf(q, u, SL_GELU_Q5);
        q = fmaf(q, u, SL_GELU_Q4);
        q = fmaf(q, u, SL_GELU_Q3);
        q = fmaf(q, u, SL_GELU_Q2);
        q = fmaf(q, u, SL_GELU_Q1);
        q = fmaf(q, u, SL_GELU_Q0);
        h = exp1(-(z + q));
    }
    float half = h * 0.5F;
    return x * (x < 0 ? half : 1 - half);
}

static void vexp(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = exp1(x[i]);
}

static void vtanh(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = tanh1(x[i]);
}

static float sigmoid1(float x)
{
    return 1 / (1 + exp1(-x));
}

static void vsigmoid(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = sigmoid1(x[i]);
}

static void vsilu(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / (1 + exp1(-x[i]));
}

static float softplus1(float x)
{
    uint32_t bits = sl_f32_bits(x);
    float u = exp1(sl_f32_from_bits(bits | 0x80000000));
    float s = u / (u + 2);
    float z = s * s, two = s + s;
    float q = fmaf(SL_LOG1P_Q3, z, SL_LOG1P_Q2);
    q = fmaf(q, z, SL_LOG1P_Q1);
    q = fmaf(q, z, SL_LOG1P_Q0);
    return (0 > x ? 0 : x) + fmaf(two * z, q, two);
}

static void vsoftplus(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = softplus1(x[i]);
}

static void velu1(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] > 0 ? x[i] + 1 : exp1(x[i]);
}

static void vrelu(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = 0 > x[i] ? 0 : x[i]; /* NaN stays */
}

static void vgelu(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gelu1(x[i]);
}

static void vrelu2(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float t = 0 > x[i] ? 0 : x[i]; /* NaN stays */
        y[i] = t * t;
    }
}

static void vadd(float *y, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void vmul(float *y, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

static void vfma(float *y, const float *a, const float *b, const float *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(a[i], b[i], c[i]);
}

static void vscale(float *y, const float *x, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

static float max(const float *x, size_t n)
{
    assert(n >= 1);
    float m = x[0];
    for (size_t i = 1; i < n; i++)
        if (x[i] > m || isnan(x[i]))
            m = x[i];
    return m + 0.0F; /* of two zeros the positive one, whichever came first */
}

static void tops(float *top, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += SL_TOPS)
        top[i / SL_TOPS] = max(x + i, n - i < SL_TOPS ? n - i : SL_TOPS);
}

static float weigh(float *y, const float *x, float m, float temperature, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float t = (x[i] - m) / temperature;
        y[i] = t < SL_WEIGH_MIN ? 0 : exp1(t);
    }
    return sum16(y, n);
}

static float drop(float *y, const float *key, float least, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (key[i] < least)
            y[i] = 0;
    return sum16(y, n);
}

static double part(float *part_key, float *part_w, size_t *ret_n, const float *key, const float *w,
                   size_t n, float low, float high)
{
    double l[SL_PANEL] = {0};
    size_t n_part = 0;
    assert(w || !part_w);
    for (size_t i = 0; i < n; i++) {
        if (key[i] >= high) {
            l[i % SL_PANEL] += w ? (double)w[i] : 1;
        } else if (key[i] >= low && part_key) {
            part_key[n_part] = key[i];
            if (part_w)
                part_w[n_part] = w[i];
            n_part++;
        }
    }
    *ret_n = n_part;
    for (size_t half = SL_PANEL / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            l[j] += l[j + half];
    return l[0];
}

static void state_read(float *out, const float *s, const float *q, size_t n_k, size_t n_v)
{
    for (size_t v = 0; v < n_v; v++) {
        float acc = 0;
        for (size_t k = 0; k < n_k; k++)
            acc = fmaf(s[k * n_v + v], q[k], acc);
        out[v] = acc;
    }
}

static void state_step(float *out, float *s, const float *decay, const float *b, const float *a,
                       const float *key, const float *val, const float *q, size_t n_k, size_t n_v)
{
    assert(!a == !b);
    for (size_t v = 0; v < n_v; v++) {
        float acc = 0;
        for (size_t k = 0; k < n_k; k++) {
            float t = s[k * n_v + v];
            if (decay)
                t *= decay[k];
            if (b)
                t = fmaf(b[k], a[v], t);
            t = fmaf(key[k], val[v], t);
            s[k * n_v + v] = t;
            acc = fmaf(t, q[k], acc);
        }
        out[v] = acc;
    }
}

/* Column v of token t. */
static void run_column(float *s, const struct sl_state_run *r, size_t t, size_t v)
{
    const float *key = r->key + t * r->ld_key, *q = r->q + t * r->ld_q;
    const float *decay = r->decay ? r->decay + t * r->ld_decay : NULL;
    const float *b = r->b ? r->b + t * r->ld_b : NULL;
    float val = r->val[t * r->ld_val + v], read = 0, acc = 0;
    for (size_t k = 0; r->read && k < r->n_k; k++)
        read = fmaf(s[k * r->n_v + v], r->read[t * r->ld_read + k], read);
    if (r->beta)
        val = (read * -(decay ? decay[0] : 1) + val) * r->beta[t * r->ld_beta];
    for (size_t k = 0; k < r->n_k; k++) {
        float x = s[k * r->n_v + v];
        if (r->bonus)
            acc = fmaf(fmaf(r->bonus[k] * key[k], val, x), q[k], acc);
        if (decay)
            x *= decay[r->one_decay ? 0 : k];
        if (b)
            x = fmaf(b[k], read, x);
        x = fmaf(key[k], val, x);
        s[k * r->n_v + v] = x;
        if (!r->bonus)
            acc = fmaf(x, q[k], acc);
    }
    r->out[t * r->ld_out + v] = acc;
}

static void state_run(float *s, const struct sl_state_run *r)
{
    assert(sl_state_run_is_valid(r));
    for (size_t t = 0; t < r->n; t++)
        for (size_t v = 0; v < r->n_v; v++)
            run_column(s, r, t, v);
}

static void wkv4(float *out, float *num, float *den, float *peak, const float *decay,
                 const float *bonus, const float *k, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float now = bonus[i] + k[i], p = peak[i] > now ? peak[i] : now;
        float a = exp1(peak[i] - p), b = exp1(now - p);
        out[i] = fmaf(a, num[i], b * v[i]) / fmaf(a, den[i], b);
        float old = peak[i] + decay[i];
        p = old > k[i] ? old : k[i];
        a = exp1(old - p), b = exp1(k[i] - p);
        num[i] = fmaf(a, num[i], b * v[i]);
        den[i] = fmaf(a, den[i], b);
        peak[i] = p;
    }
}

static void wkv7_gates(const struct sl_wkv7_gates *g, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float alpha = sigmoid1(g->a[i] + g->a0[i]), key = g->key[i];
        g->w[i] = exp1(sigmoid1(g->w[i] + g->w0[i]) * g->decay_scale);
        g->kappa[i] = key * g->k_k[i];
        g->k_tilde[i] = fmaf(key * alpha - key, g->k_a[i], key);
        g->a[i] = -alpha;
        if (g->gate)
            g->v[i] = fmaf(g->v_first[i] - g->v[i], sigmoid1(g->gate[i] + g->v0[i]), g->v[i]);
    }
    float norm = sqrtf(dot16(g->kappa, g->kappa, n) + g->eps);
    /* Not fmaxf: a NaN stays one. */
    float inverse = 1 / (norm < g->least ? g->least : norm);
    for (size_t i = 0; i < n; i++) {
        g->kappa[i] *= inverse;
        g->a[i] *= g->kappa[i];
    }
}

static void wkv7_out(const struct sl_wkv7_out *o, size_t n)
{
    float lane[SL_PANEL] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % SL_PANEL] = fmaf(o->r[i] * o->r_k[i], o->k_tilde[i], lane[i % SL_PANEL]);
    float bonus = fold16(lane);
    layer_norm(o->out, o->out, o->w, o->b, n, o->eps);
    for (size_t i = 0; i < n; i++)
        o->out[i] = (o->out[i] + o->v[i] * bonus) * o->g[i];
}

const struct sl_kernels sl_kernels_ref = {
    .name = "ref",
    .row_cost = ROW_COST(32, 32, 32, 32, 32), /* not measured: it is not for speed */
    .matmul = matmul,
    .quantise = sl_ref_quantise,
    .matmul_q = sl_ref_matmul_q,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .lerp = lerp,
    .vexp = vexp,
    .vtanh = vtanh,
    .vsigmoid = vsigmoid,
    .vsilu = vsilu,
    .vsoftplus = vsoftplus,
    .velu1 = velu1,
    .vrelu = vrelu,
    .vrelu2 = vrelu2,
    .vgelu = vgelu,
    .vadd = vadd,
    .vmul = vmul,
    .vfma = vfma,
    .vscale = vscale,
    .sum16 = sum16,
    .dot16 = dot16,
    .max = max,
    .tops = tops,
    .weigh = weigh,
    .drop = drop,
    .part = part,
    .state_read = state_read,
    .state_step = state_step,
    .state_run = state_run,
    .wkv4 = wkv4,
    .wkv7_gates = wkv7_gates,
    .wkv7_out = wkv7_out,
};
