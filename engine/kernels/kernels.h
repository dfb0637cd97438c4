/* kernels.h: all arithmetic that costs time, behind one table of functions.
 *
 * Kernels take primitives, never a model; they do not allocate, keep nothing and may run on any
 * thread. There is a scalar truth (ref.c) and a vector version per instruction set; each gives the
 * same bits as ref.c, for every shape, row count and split, because the order of additions of
 * every output is written down here and no kernel may choose another one:
 *
 *   matmul   output o of row r:  acc = +0;  for k = 0 … n_in-1 in order: acc = fma(w[o][k],
 *            x[r][k], acc), in f32, weights widened exactly. The vector's lanes are outputs.
 *   matmul_q output o of row r:  acc = +0;  for each group g of 32 inputs in order:
 *            acc = fma((float)I, d[o][g] · s[r][g], acc), where d is the group's scale of the
 *            output, s the one of the row, and I = Σ (c[o][k] - zero) · q[r][k] over the group's
 *            inputs, which is exact, in whatever order and width it is added up. Inputs beyond
 *            n_in are zero.
 *            Of Q4_K and Q6_K d is that of the block of 256 inputs, and I has the whole-number
 *            scales in it: I = Σ scale · (c - zero) · q, |I| < 2^24. After that Q4_K takes its
 *            minima off: acc = fma(m[o][g], (float)offset[r][g] · s[r][g], acc), where m is the
 *            block's times the group's / 16, exact in f32, and offset is -16 Σ q.
 *   sum16    lane j (0 … 15) adds x[j], x[j+16], … in order starting from +0; then lanes are
 *            folded: l[j] += l[j+8] (j < 8), l[j] += l[j+4] (j < 4), l[j] += l[j+2], l[0] += l[1].
 *            A dot product is the same with acc = fma(x, y, acc).
 *   state    sums over the key index, k = 0 … n_k-1 in order, with fma; lanes are values.
 *   exp, tanh, sigmoid, softplus: the polynomials of ref.c, operation by operation.
 *
 * fma is one rounding everywhere (fmaf in ref.c); everything is built with -ffp-contract=off, so
 * that no compiler fuses or splits on its own. Denormals are kept. A NaN is a NaN at the same place
 * in every table; its sign and payload are not promised.
 *
 * Packed matrices: outputs in panels of 16. Panel p holds outputs 16p … 16p+15 as n_in groups of
 * 16 consecutive elements (the 16 outputs' weights for k = 0, then for k = 1, …); outputs beyond
 * n_out are zero. Panels are contiguous, 64-byte aligned. Written by sl_pack_matrix(). Panels of
 * Q8, Q5 and Q4: quant.h. */
#ifndef SLATE_KERNELS_H
#define SLATE_KERNELS_H

#include "slate/err.h"

enum { SL_PANEL = 16, SL_GROUP = 32, SL_TOPS = 64 };

/* exp(-87) is the last that is no denormal number. Those take processors ten times as long, and a
 * row of logits would give many: all that was dropped, and most of it at a low temperature. */
#define SL_WEIGH_MIN (-87.0F)
#define SL_WEIGH_MAX 88.0F

static inline size_t sl_panels(size_t n_out)
{
    return (n_out + SL_PANEL - 1) / SL_PANEL;
}

/* n and what fills up the last panel. */
static inline size_t sl_whole_panels(size_t n)
{
    return sl_panels(n) * SL_PANEL;
}

static inline size_t sl_groups(size_t n_in)
{
    return (n_in + SL_GROUP - 1) / SL_GROUP;
}

static inline size_t sl_tops(size_t n)
{
    return (n + SL_TOPS - 1) / SL_TOPS;
}

/* 32 inputs of a row as matmul_q reads them: x ≈ scale · q. Written by quantise(). */
struct sl_group {
    float scale;
    int32_t offset;  /* -16 · Σ q: what levels counted from 16 add too much */
    int16_t half[2]; /* likewise of the first 16 inputs, and of the last: |.| ≤ 16 · 16 · 127 */
    int16_t pair[2]; /* likewise of the first two inputs of each four, and of the last two */
    int8_t q[SL_GROUP];
};

/* So many groups are whole cache lines. */
enum { SL_GROUPS_ALIGN = 16 };
_Static_assert(SL_GROUPS_ALIGN * sizeof(struct sl_group) % SL_ALIGN == 0, "whole cache lines");

/* Consecutive tokens that go through one head's state s [n_k][n_v], in place. Token t's vectors lie
 * t·ld floats behind the first one's; ld 0: one for all tokens. For each token in turn:
 *   u[v]    = Σ_k s[k][v]·read[k]                             where there is read, of the old s
 *   a = u                                                     where there is b (RWKV-7)
 *   val[v]  = ((u[v]·-decay[0]) + val[v])·beta                where there is beta (delta rules);
 *                                                             without a decay u[v]·-1
 *   s[k][v] = fma(key[k], val[v], fma(b[k], a[v], s[k][v]·decay[k]))
 *   out[v]  = Σ_k s[k][v]·q[k]                                of the new s
 * What there is not is left out, as in state_step. Where there is a bonus (RWKV-5 and 6: Peng 2024,
 * arXiv:2404.05892, equations 9 and 16) the token itself is read with it, in the decay's place:
 *   out[v]  = Σ_k fma(bonus[k]·key[k], val[v], s[k][v])·q[k]  of the old s
 * out overlaps nothing else. */
struct sl_state_run {
    size_t n, n_k, n_v; /* n tokens; all ≥ 1 */
    float *out;
    size_t ld_out;
    const float *key, *val, *q;
    size_t ld_key, ld_val, ld_q;
    const float *decay; /* NULL: none */
    size_t ld_decay;
    bool one_decay;        /* decay[0] is for all keys */
    const float *read;     /* NULL: the rule does not read before it writes; else there is … */
    const float *b, *beta; /* … one of these: n_k a token, or one a token */
    size_t ld_read, ld_b, ld_beta;
    const float *bonus; /* n_k, for all tokens; NULL: none */
};

static inline bool sl_state_run_is_valid(const struct sl_state_run *r)
{
    bool reads = r->read != NULL, erases = r->b != NULL, corrects = r->beta != NULL;
    return r->n >= 1 && r->n_k >= 1 && r->n_v >= 1 && r->out && r->key && r->val && r->q &&
           reads == (erases != corrects) && !(erases && corrects) && (!erases || r->decay) &&
           (!corrects || !r->decay || r->one_decay) && (!r->bonus || (r->decay && !reads));
}

/* What RWKV-7 makes of a token before it goes through a head's state (Peng 2025, arXiv:2503.14456,
 * section 4): n channels of each, in place where in and out are one.
 *   w       = exp(decay_scale · sigmoid(w + w0))
 *   α       = sigmoid(a + a0)
 *   k_tilde = fma(key·α - key, k_a, key)
 *   κ       = key·k_k, times 1 / max(sqrt(dot16(κ, κ) + eps), least)
 *   a       = κ · -α
 *   v       = fma(v_first - v, sigmoid(gate + v0), v)        where there is a gate */
struct sl_wkv7_gates {
    float *w, *a, *v; /* in: what the low-rank pairs give for w and a */
    float *kappa, *k_tilde;
    const float *key, *w0, *a0, *k_k, *k_a;
    const float *gate, *v0, *v_first; /* gate NULL: without */
    float decay_scale, eps, least;
};

/* And of what comes out: out = (layer_norm(out, w, b, eps) + v · Σ (r·r_k)·k_tilde) · g; the sum as
 * in sum16, the norm as layer_norm() says. */
struct sl_wkv7_out {
    float *out;
    const float *r, *r_k, *k_tilde, *v, *g, *w, *b;
    float eps;
};

struct sl_kernels {
    const char *name;

    /* What many rows take by the weights' type, F32's 32: by it threads share products of several
     * types. Measured where nothing else is said; no result depends on it. */
    uint8_t row_cost[SL_DTYPE_KINDS];

    /* y[r*ldy + o] for every r < rows and every output o of panels [panel_begin, panel_end) (all
     * 16 of each: rows of y have room for whole panels). x rows are ldx floats apart and hold n_in.
     * type: F32, BF16 or F16; `panels` points at panel 0. y must not overlap x. Each panel is read
     * from memory once for all rows. */
    void (*matmul)(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                   const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                   size_t panel_end);

    /* A row of n floats -> sl_groups(n) groups. m = the group's largest magnitude (inputs beyond n
     * are zero); scale = m/127 and q[i] = x[i] · (127/m) rounded to nearest, ties to even. m below
     * 2^-100: scale and q are zero. m infinite or NaN: q is zero and the scale NaN, so that every
     * sum the row enters is NaN. */
    void (*quantise)(struct sl_group *y, const float *x, size_t n);

    /* As matmul, of Q8, Q5, Q4, Q4_0, Q4_K and Q6_K panels with rows of groups, ldx groups apart.
     * n_in of the last two is a multiple of 256. */
    void (*matmul_q)(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                     const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                     size_t panel_end);

    /* y[i] = (x[i] - mean) · rstd · w[i] + b[i] as fma((x - mean)·rstd, w, b); mean = sum16(x)/n,
     * variance = dot16(x - mean, x - mean)/n (biased), rstd = 1/sqrt(variance + eps). b may be NULL
     * (then y = (x - mean)·rstd·w). In place is allowed. (Ba 2016; GroupNorm per head is this over
     * the head's values.) */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, size_t n,
                       float eps);

    /* y[i] = (x[i] · r) · w[i], r = 1/sqrt(dot16(x, x)/n + eps); w NULL: x[i] · r. In place is
     * allowed. (RMSNorm, Zhang and Sennrich 2019.) */
    void (*rms_norm)(float *y, const float *x, const float *w, size_t n, float eps);

    /* y[i] = fma(prev[i] - x[i], m[i], x[i]): the token shift of RWKV-6/7. In place is allowed. */
    void (*lerp)(float *y, const float *x, const float *prev, const float *m, size_t n);

    /* Elementwise; in place is allowed. */
    void (*vexp)(float *y, const float *x, size_t n);
    void (*vtanh)(float *y, const float *x, size_t n);
    void (*vsigmoid)(float *y, const float *x, size_t n);  /* 1 / (1 + exp(-x)) */
    void (*vsilu)(float *y, const float *x, size_t n);     /* x / (1 + exp(-x)) */
    void (*vsoftplus)(float *y, const float *x, size_t n); /* ln(1 + exp(x)) */
    void (*velu1)(float *y, const float *x, size_t n);     /* elu(x) + 1: x > 0 ? x + 1 : exp(x) */
    void (*vrelu)(float *y, const float *x, size_t n);     /* max(x, 0) */
    void (*vgelu)(float *y, const float *x, size_t n);     /* x (1 + erf(x/√2)) / 2 */
    void (*vrelu2)(float *y, const float *x, size_t n);    /* max(x, 0)² */
    void (*vadd)(float *y, const float *a, const float *b, size_t n);
    void (*vmul)(float *y, const float *a, const float *b, size_t n);
    void (*vfma)(float *y, const float *a, const float *b, const float *c, size_t n); /* a·b + c */
    void (*vscale)(float *y, const float *x, float s, size_t n);

    float (*sum16)(const float *x, size_t n);
    float (*dot16)(const float *x, const float *y, size_t n);
    /* The largest value, NaN if there is one; n ≥ 1. A zero is the positive one. */
    float (*max)(const float *x, size_t n);
    /* The same of each SL_TOPS values, the last ones of what is left: sl_tops(n) of them: the tops
     * of x. */
    void (*tops)(float *top, const float *x, size_t n);

    /* The weights that logits x have beside one of m: t = (x[i] - m) / temperature, y[i] = exp(t),
     * 0 where t < SL_WEIGH_MIN and anything where t > SL_WEIGH_MAX. Returns sum16(y). m is finite,
     * temperature > 0, and no x is a NaN or +inf. In place is allowed. */
    float (*weigh)(float *y, const float *x, float m, float temperature, size_t n);
    /* y[i] = 0 where key[i] < least. Returns sum16(y). */
    float (*drop)(float *y, const float *key, float least, size_t n);
    /* Σ w[i] of the keys ≥ high, in double: lanes and their folds as in sum16. The items with a key
     * ≥ low and < high go to part_key and part_w, *ret_n of them in their order; what lies behind
     * them there, up to n, is undefined. No key is a NaN. w NULL: each weighs 1. part_w NULL: the
     * keys alone, and where part_key is NULL, too, the sum alone. A part may take its list's place.
     */
    double (*part)(float *part_key, float *part_w, size_t *ret_n, const float *key, const float *w,
                   size_t n, float low, float high);

    /* out[v] = Σ_k s[k][v]·q[k]; s is [n_k][n_v], row-major. */
    void (*state_read)(float *out, const float *s, const float *q, size_t n_k, size_t n_v);

    /* One token of S_t = f(S_{t-1}) + g, in place, and the read after it:
     *   s[k][v] = fma(key[k], val[v], fma(b[k], a[v], s[k][v]·decay[k]))
     *   out[v]  = Σ_k s[k][v]·q[k]                      (of the new s)
     * decay NULL: no multiplication. b and a NULL (both): without that term.
     *   linear attention                 neither
     *   RetNet, GLA, Mamba-2             decay alone (one value for all keys is a vector of it)
     *   RWKV-5 and 6                     read before: see struct sl_state_run
     *   delta rules                      val[v] = β(v - Σ_k s[k][v]·key[k]) of the old s
     *   RWKV-7                           decay = w, b = kk·α, a[v] = Σ_k s[k][v]·(-kk[k]) likewise
     */
    void (*state_step)(float *out, float *s, const float *decay, const float *b, const float *a,
                       const float *key, const float *val, const float *q, size_t n_k, size_t n_v);

    /* Consecutive tokens of one head; what is said of one above happens to each in turn, with its
     * own vectors: struct sl_state_run. */
    void (*state_run)(float *s, const struct sl_state_run *r);

    /* One token of RWKV-4's memory, channel by channel (Peng 2023, appendix D): two sums of values
     * and of weights, both divided by e^peak. With p = max(peak, bonus + k), a = exp(peak - p) and
     * b = exp((bonus + k) - p):
     *   out  = fma(a, num, b·v) / fma(a, den, b)
     * then, with p = max(peak + decay, k), a = exp((peak + decay) - p) and b = exp(k - p):
     *   num  = fma(a, num, b·v)    den = fma(a, den, b)    peak = p
     * max(x, y) is x > y ? x : y. num, den and peak in place. */
    void (*wkv4)(float *out, float *num, float *den, float *peak, const float *decay,
                 const float *bonus, const float *k, const float *v, size_t n);

    /* One token of one head of RWKV-7, n ≥ 1 channels. What is written overlaps nothing else. */
    void (*wkv7_gates)(const struct sl_wkv7_gates *g, size_t n);
    void (*wkv7_out)(const struct sl_wkv7_out *o, size_t n);
};

/* Angles as whole fractions of a turn, 2^64 to one turn; for rotations by position · frequency.
 * sl_turn: 0 ≤ turns < 1 per position -> such a fraction. sl_turns: ret_cos[i] and ret_sin[i] of
 * turn[i] · position, exact modulo a turn, to within 1e-12 before the rounding to f32, in the same
 * instructions for any position; the same bits on every machine. */
uint64_t sl_turn(double turns);
void sl_turns(float *ret_cos, float *ret_sin, const uint64_t *turn, uint64_t position, size_t n);

/* The table by name, or the best that this machine can run for NULL. NULL when there is no such
 * table or the machine cannot run it. */
const struct sl_kernels *sl_kernels_find(const char *name);

/* Names of all tables that this machine can run, best first; ends with NULL. The thread's own. */
const char *const *sl_kernels_names(void);
/* Likewise of those that this architecture has and this machine cannot run. */
const char *const *sl_kernels_missing(void);

/* Exact widening of n contiguous elements (F32, F16, BF16, F64 is rounded) to f32. */
void sl_widen(float *y, const void *x, enum sl_dtype type, size_t n);

/* Of blocks of 256 inputs. */
static inline bool sl_is_k(enum sl_dtype type)
{
    return type == SL_DTYPE_Q4_K || type == SL_DTYPE_Q6_K;
}

static inline bool sl_is_quantised(enum sl_dtype type)
{
    return type == SL_DTYPE_Q8 || type == SL_DTYPE_Q5 || type == SL_DTYPE_Q4 ||
           type == SL_DTYPE_Q4_0 || sl_is_k(type);
}

/* Bytes that a packed matrix takes. */
size_t sl_pack_bytes(enum sl_dtype type, size_t n_out, size_t n_in);

/* Panels of Q8, Q4_0, Q4_K or Q6_K from rows of GGUF's blocks of that name (34 and 18 bytes for 32
 * weights, 144 and 210 for 256; n_in is a multiple of that), with the codes and scales that they
 * hold. */
void sl_pack_blocks(void *dst, enum sl_dtype type, const void *rows, size_t n_out, size_t n_in,
                    size_t panel_begin, size_t panel_end);

/* Rows of Q8, Q5 and Q4 codes as `slate convert` writes them (engine/converted.h): a row is
 * sl_code_bytes() of codes, Q8 one byte each, Q4 two of them in a byte (n_in is even), the low four
 * bits first, Q5 eight of them in five bytes (n_in is a multiple of eight): their low four bits as
 * Q4 has them, then a byte of their highest, the first code's lowest; and sl_groups(n_in) scales,
 * F16, which may be unaligned. A group's last codes may be absent. */
bool sl_code_can(enum sl_dtype type, size_t n_in);
size_t sl_code_bytes(enum sl_dtype type, size_t n_in);
/* From n_in weights: what sl_pack_matrix() makes of them. */
void sl_code_row(uint8_t *codes, uint16_t *scales, enum sl_dtype type, const float *w, size_t n_in);
/* y[n]: the values of a row from weight `begin` on. */
void sl_code_values(float *y, enum sl_dtype type, const uint8_t *codes, const void *scales,
                    size_t begin, size_t n);
/* Panels [panel_begin, panel_end) of n_out such rows. */
void sl_pack_codes(void *dst, enum sl_dtype type, const void *codes, const void *scales,
                   size_t n_out, size_t n_in, size_t panel_begin, size_t panel_end);

/* Packs W[o][k] = element at src + (o·stride_out + k·stride_in) elements of src_type (F32, F16,
 * BF16, F64) into panels of `type`, rounding to nearest even where it narrows. A transposed matrix
 * is packed by swapped strides. Panels [panel_begin, panel_end) only, so that workers share it.
 *
 * Q8: the scale is the group's largest magnitude / 127 as F16, codes are what is nearest. Q5, Q4:
 * of some scales the one with the least sum of squared errors (quant.c). */
void sl_pack_matrix(void *dst, enum sl_dtype type, const void *src, enum sl_dtype src_type,
                    size_t n_out, size_t n_in, size_t stride_out, size_t stride_in,
                    size_t panel_begin, size_t panel_end);

#endif
