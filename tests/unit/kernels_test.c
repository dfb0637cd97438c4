/* kernels_test.c: every table of kernels against the scalar one, bit for bit, over shapes that do
 * not fit whole registers, panels or blocks. All buffers are exactly as large as the contract says,
 * so that the address sanitizer sees a read too far. What ref.c itself computes is tested in
 * kernels_ref_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/floats.h"
#include "tests/support/tables.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};

static const struct sl_kernels *ref;

static void assert_same_floats(const float *got, const float *want, size_t n, const char *what)
{
    size_t i = first_difference(got, want, n);
    if (i < n)
        fail_msg("%s: element %zu of %zu is %a (%08x), not %a (%08x)", what, i, n, (double)got[i],
                 float_bits(got[i]), (double)want[i], float_bits(want[i]));
}

static float *floats(size_t n)
{
    float *p = sl_malloc(n * sizeof *p);
    assert_non_null(p);
    return p;
}

/* A packed matrix of random weights. */
static void *packed(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed, bool special)
{
    float *w = floats(n_out * n_in);
    if (special)
        fill_special(w, n_out * n_in, seed, true);
    else
        fill_uniform(w, n_out * n_in, seed);
    void *p = sl_aligned_calloc(sl_pack_bytes(type, n_out, n_in));
    assert_non_null(p);
    sl_pack_matrix(p, type, w, SL_DTYPE_F32, n_out, n_in, n_in, 1, 0, sl_panels(n_out));
    sl_free(w);
    return p;
}

/* Panels [begin, end) of one product; the rest of y must stay as it was. */
static void check_matmul(const struct sl_kernels *k, const void *panels, enum sl_dtype type,
                         const float *x, size_t rows, size_t n_in, size_t n_out, size_t begin,
                         size_t end)
{
    char what[128];
    size_t ldx = n_in + 1, ldy = sl_panels(n_out) * SL_PANEL + 3, n = rows * ldy - 3;
    float *got = floats(n), *want = floats(n);
    for (size_t i = 0; i < n; i++)
        got[i] = want[i] = 12345;
    ref->matmul(want, ldy, x, ldx, rows, panels, type, n_in, begin, end);
    k->matmul(got, ldy, x, ldx, rows, panels, type, n_in, begin, end);
    (void)snprintf(what, sizeof what, "%s matmul %s, %zu rows of %zu to %zu, panels %zu to %zu",
                   k->name, sl_dtype_name(type), rows, n_in, n_out, begin, end);
    assert_same_floats(got, want, n, what);
    sl_free(got);
    sl_free(want);
}

static void check_matmul_shape(enum sl_dtype type, size_t n_in, size_t n_out, bool special)
{
    static const size_t many[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                  11, 12, 13, 64, 14, 16, 18, 20, 22, 24};
    /* The longest sums for fewer of them: the scalar side takes its time. */
    const size_t n_many = n_in < 500 ? COUNT(many) : 14;
    void *panels = packed(type, n_out, n_in, n_in * 1000 + n_out, special);
    size_t end = sl_panels(n_out);
    for (size_t i = 0; i < n_many; i++) {
        size_t n = many[i] * (n_in + 1) - 1;
        float *x = floats(n);
        if (special)
            fill_special(x, n, n, true);
        else
            fill_uniform(x, n, n);
        FOR_TABLES(k, ref)
        {
            check_matmul(k, panels, type, x, many[i], n_in, n_out, 0, end);
            if (end > 2)
                check_matmul(k, panels, type, x, many[i], n_in, n_out, 1, end - 1);
        }
        sl_free(x);
    }
    sl_free(panels);
}

static void matmul_odd_shapes(void **state)
{
    (void)state;
    static const size_t ins[] = {1, 7, 64, 65, 300, 768}, outs[] = {1, 12, 16, 17, 33, 192};
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < COUNT(ins); i++)
            for (size_t o = 0; o < COUNT(outs); o++)
                check_matmul_shape(types[t], ins[i], outs[o], false);
}

/* Zeros of both signs, denormals, overflow, infinities and NaNs on both sides. Short sums, so that
 * not all of them end as NaN. */
static void matmul_special_values(void **state)
{
    (void)state;
    static const size_t ins[] = {1, 2, 5};
    for (size_t t = 0; t < COUNT(types); t++)
        for (size_t i = 0; i < COUNT(ins); i++)
            check_matmul_shape(types[t], ins[i], 1600, true);
}

static void matmul_longest_rows(void **state)
{
    (void)state;
    const size_t n_in = 32768, n_out = 40;
    for (size_t t = 0; t < COUNT(types); t++) {
        void *panels = packed(types[t], n_out, n_in, 5, false);
        for (size_t rows = 1; rows <= 9; rows += 4) {
            float *x = floats(rows * (n_in + 1) - 1);
            fill_uniform(x, rows * (n_in + 1) - 1, rows);
            FOR_TABLES(k, ref)
            check_matmul(k, panels, types[t], x, rows, n_in, n_out, 0, 3);
            sl_free(x);
        }
        sl_free(panels);
    }
}

/* A sum over nothing is zero; no rows and no panels write nothing. */
static void matmul_empty(void **state)
{
    (void)state;
    for (const char *const *name = sl_kernels_names(); *name; name++) {
        const struct sl_kernels *k = sl_kernels_find(*name);
        float y[20 * SL_PANEL], x[20] = {0};
        for (size_t i = 0; i < COUNT(y); i++)
            y[i] = 7;
        k->matmul(y, SL_PANEL, x, 1, 0, x, SL_DTYPE_F32, 1, 0, 1);
        k->matmul(y, SL_PANEL, x, 1, 20, x, SL_DTYPE_F32, 1, 0, 0);
        for (size_t i = 0; i < COUNT(y); i++)
            assert_true(y[i] == 7);
        k->matmul(y, SL_PANEL, x, 1, 20, x, SL_DTYPE_F32, 0, 0, 1);
        for (size_t i = 0; i < COUNT(y); i++)
            assert_int_equal(float_bits(y[i]), 0);
    }
}

/* Every 16-bit weight there is, through the few-rows and the many-rows widening. */
static void matmul_every_16_bit_weight(void **state)
{
    (void)state;
    const size_t n_out = 65536;
    uint16_t *all = sl_malloc(n_out * sizeof *all);
    enum { ROWS = 14 }; /* many, to every table */
    float x[ROWS];
    for (size_t i = 0; i < ROWS; i++)
        x[i] = 1;
    assert_non_null(all);
    for (size_t i = 0; i < n_out; i++)
        all[i] = (uint16_t)i;
    FOR_TABLES(k, ref)
    {
        for (size_t t = 1; t < COUNT(types); t++) {
            check_matmul(k, all, types[t], x, 1, 1, n_out, 0, sl_panels(n_out));
            check_matmul(k, all, types[t], x, 4, 1, n_out, 0, sl_panels(n_out));
        }
        float *got = floats(ROWS * n_out), *want = floats(ROWS * n_out);
        for (size_t t = 1; t < COUNT(types); t++) {
            ref->matmul(want, n_out, x, 1, ROWS, all, types[t], 1, 0, sl_panels(n_out));
            k->matmul(got, n_out, x, 1, ROWS, all, types[t], 1, 0, sl_panels(n_out));
            assert_same_floats(got, want, ROWS * n_out, "many rows of every weight");
        }
        sl_free(got);
        sl_free(want);
    }
    sl_free(all);
}

/* --- vectors --- */

enum { N_OPERANDS = 4 };

/* A function of vectors under one signature: in[0] … in[3] are the operands. */
struct vector_fn {
    const char *name;
    void (*call)(const struct sl_kernels *k, float *y, float *const *in, size_t n);
};

#define VECTOR_FN(name, ...)                                                                       \
    static void call_##name(const struct sl_kernels *k, float *y, float *const *in, size_t n)      \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
VECTOR_FN(vexp, k->vexp(y, in[0], n))
VECTOR_FN(vtanh, k->vtanh(y, in[0], n))
VECTOR_FN(vsigmoid, k->vsigmoid(y, in[0], n))
VECTOR_FN(vsilu, k->vsilu(y, in[0], n))
VECTOR_FN(vsoftplus, k->vsoftplus(y, in[0], n))
VECTOR_FN(velu1, k->velu1(y, in[0], n))
VECTOR_FN(vrelu, k->vrelu(y, in[0], n))
VECTOR_FN(vrelu2, k->vrelu2(y, in[0], n))
VECTOR_FN(vgelu, k->vgelu(y, in[0], n))
VECTOR_FN(vadd, k->vadd(y, in[0], in[1], n))
VECTOR_FN(vmul, k->vmul(y, in[0], in[1], n))
VECTOR_FN(vfma, k->vfma(y, in[0], in[1], in[2], n))
VECTOR_FN(vscale, k->vscale(y, in[0], n ? in[1][0] : 1, n))
VECTOR_FN(lerp, k->lerp(y, in[0], in[1], in[2], n))
VECTOR_FN(layer_norm, if (n) k->layer_norm(y, in[0], in[1], in[2], n, 1e-5F))
VECTOR_FN(layer_norm_no_bias, if (n) k->layer_norm(y, in[0], in[1], NULL, n, 64e-5F))
VECTOR_FN(rms_norm, if (n) k->rms_norm(y, in[0], in[1], n, 1e-5F))
VECTOR_FN(rms_norm_no_weight, if (n) k->rms_norm(y, in[0], NULL, n, 1e-6F))
/* One float each, at the place of the result's first element. */
VECTOR_FN(sum16, if (n) y[0] = k->sum16(in[0], n))
VECTOR_FN(dot16, if (n) y[0] = k->dot16(in[0], in[1], n))
VECTOR_FN(max, if (n) y[0] = k->max(in[0], n))
/* One for each SL_TOPS elements. */
VECTOR_FN(tops, k->tops(y, in[0], n))

static const struct vector_fn vector_fns[] = {
#define ROW(name)                                                                                  \
    {                                                                                              \
#name, call_##name                                                                         \
    }
    ROW(vexp),       ROW(vgelu),
    ROW(vtanh),      ROW(vsigmoid),
    ROW(vrelu2),     ROW(vsilu),
    ROW(vsoftplus),  ROW(velu1),
    ROW(vrelu),      ROW(vadd),
    ROW(vmul),       ROW(vfma),
    ROW(vscale),     ROW(lerp),
    ROW(layer_norm), ROW(sum16),
    ROW(dot16),      ROW(max),
    ROW(tops),       ROW(layer_norm_no_bias),
    ROW(rms_norm),   ROW(rms_norm_no_weight),
#undef ROW
};

/* Vectors of exactly n floats. values: 0 uniform, 1 special and finite, 2 special. */
static void open_vectors(float **v, size_t n_vectors, size_t n, int values)
{
    for (size_t i = 0; i < n_vectors; i++) {
        v[i] = floats(n);
        if (values == 0)
            fill_uniform(v[i], n, n * 10 + i);
        else
            fill_special(v[i], n, n * 10 + i, values == 2);
    }
}

static void close_vectors(float **v, size_t n_vectors)
{
    for (size_t i = 0; i < n_vectors; i++)
        sl_free(v[i]);
}

static void check_vector_fn(const struct sl_kernels *k, const struct vector_fn *f, size_t n,
                            int values, bool in_place)
{
    char what[128];
    float *in[N_OPERANDS];
    open_vectors(in, N_OPERANDS, n, values);
    float *want = floats(n), *got = in_place ? in[0] : floats(n);
    memset(want, 0, n * sizeof *want);
    if (in_place)
        memcpy(want, got, n * sizeof *want);
    else
        memset(got, 0, n * sizeof *got);
    f->call(ref, want, in, n);
    f->call(k, got, in, n);
    (void)snprintf(what, sizeof what, "%s %s, n = %zu, values %d%s", k->name, f->name, n, values,
                   in_place ? ", in place" : "");
    assert_same_floats(got, want, n, what);
    if (!in_place)
        sl_free(got);
    close_vectors(in, N_OPERANDS);
    sl_free(want);
}

static void vectors(void **state)
{
    (void)state;
    static const size_t longer[] = {127, 128, 129, 768, 1000, 4099};
    FOR_TABLES(k, ref)
    for (size_t f = 0; f < COUNT(vector_fns); f++) {
        for (int values = 0; values < 3; values++) {
            for (size_t n = 0; n <= 70; n++)
                check_vector_fn(k, &vector_fns[f], n, values, n % 2);
            for (size_t i = 0; i < COUNT(longer); i++)
                check_vector_fn(k, &vector_fns[f], longer[i], values, i % 2);
        }
    }
}

/* A stride through all floats there are, of both signs, infinities and NaNs with them. */
static void functions_over_all_floats(void **state)
{
    (void)state;
    enum { N = 4096, STRIDE = 641 };
    static float x[N], got[N], want[N];
    static const size_t fns[] = {0, 1, 2, 3, 4, 5, 6, 7, 8}; /* of one operand */
    FOR_TABLES(k, ref)
    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += (uint64_t)N * STRIDE) {
        for (size_t i = 0; i < N; i++)
            x[i] = float_from_bits((uint32_t)(u + i * STRIDE));
        float *in[] = {x};
        for (size_t f = 0; f < COUNT(fns); f++) {
            vector_fns[fns[f]].call(ref, want, in, N);
            vector_fns[fns[f]].call(k, got, in, N);
            assert_same_floats(got, want, N, vector_fns[fns[f]].name);
        }
    }
}

/* --- states --- */

static void check_state(const struct sl_kernels *k, size_t n_k, size_t n_v, int form, bool special)
{
    char what[128];
    (void)snprintf(what, sizeof what, "%s state %zu x %zu, form %d", k->name, n_k, n_v, form);
    float *s[2], *out[2], *by_key[4], *by_value[2]; /* decay, b, key, q; a, val */
    for (size_t i = 0; i < 4; i++) {
        by_key[i] = floats(n_k);
        fill_special(by_key[i], n_k, i + n_k, special);
    }
    for (size_t i = 0; i < 2; i++) {
        by_value[i] = floats(n_v);
        fill_special(by_value[i], n_v, 10 + i + n_v, special);
        s[i] = floats(n_k * n_v);
        fill_special(s[i], n_k * n_v, n_k + n_v, special);
        out[i] = floats(n_v);
    }
    ref->state_read(out[0], s[0], by_key[3], n_k, n_v);
    k->state_read(out[1], s[1], by_key[3], n_k, n_v);
    assert_same_floats(out[1], out[0], n_v, what);
    const float *decay = form & 1 ? by_key[0] : NULL;
    const float *b = form & 2 ? by_key[1] : NULL, *a = form & 2 ? by_value[0] : NULL;
    for (int t = 0; t < 2; t++) { /* the second token reads what the first wrote */
        ref->state_step(out[0], s[0], decay, b, a, by_key[2], by_value[1], by_key[3], n_k, n_v);
        k->state_step(out[1], s[1], decay, b, a, by_key[2], by_value[1], by_key[3], n_k, n_v);
        assert_same_floats(out[1], out[0], n_v, what);
        assert_same_floats(s[1], s[0], n_k * n_v, what);
    }
    for (size_t i = 0; i < 4; i++)
        sl_free(by_key[i]);
    for (size_t i = 0; i < 2; i++) {
        sl_free(by_value[i]);
        sl_free(s[i]);
        sl_free(out[i]);
    }
}

static void states(void **state)
{
    (void)state;
    static const size_t keys[] = {1, 3, 16, 64, 65};
    static const size_t values[] = {1, 7, 8, 9, 17, 63, 64, 65, 72, 80, 128, 201};
    FOR_TABLES(k, ref)
    for (size_t i = 0; i < COUNT(keys); i++)
        for (size_t j = 0; j < COUNT(values); j++)
            for (int form = 0; form < 8; form++)
                check_state(k, keys[i], values[j], form & 3, form & 4);
}

/* The rules' ways through a state: what each has. */
static const struct run_kind {
    const char *name;
    bool decays, one_decay, erases, corrects, has_bonus;
} run_kinds[] = {
    {"adds", false, false, false, false, false},
    {"decays", true, false, false, false, false},
    {"has one decay", true, true, false, false, false},
    {"has a bonus", true, false, false, false, true},
    {"has a bonus and one decay", true, true, false, false, true},
    {"erases", true, false, true, false, false},
    {"erases with one decay", true, true, true, false, false},
    {"corrects", false, false, false, true, false},
    {"corrects what decays", true, true, false, true, false},
};

enum { RUN_MAX = 19 };

/* n tokens in one call, whose vectors lie further apart than they are long. */
static void check_run(const struct sl_kernels *k, size_t n_k, size_t n_v,
                      const struct run_kind *kind, size_t n, bool special)
{
    enum { KEY, Q, DECAY, READ, B, VECTORS };
    char what[128];
    (void)snprintf(what, sizeof what, "%s: %zu tokens, state %zu x %zu, that %s", k->name, n, n_k,
                   n_v, kind->name);
    size_t ld_k = n_k + 3, ld_v = n_v + 5;
    float *by_key[VECTORS], *bonus = floats(n_k), *beta = floats(2 * n), *val = floats(n * ld_v);
    float *s[2], *out[2];
    for (size_t i = 0; i < VECTORS; i++) {
        by_key[i] = floats(n * ld_k);
        fill_special(by_key[i], n * ld_k, i + n_k, special);
    }
    fill_special(bonus, n_k, 7, special);
    fill_special(beta, 2 * n, 8, special);
    fill_special(val, n * ld_v, 9, special);
    for (size_t i = 0; i < 2; i++) {
        s[i] = floats(n_k * n_v);
        fill_special(s[i], n_k * n_v, n_k + n_v, special);
        out[i] = floats(n * ld_v);
        memset(out[i], 0, n * ld_v * sizeof *out[i]);
    }
    struct sl_state_run r = {.n = n,
                             .n_k = n_k,
                             .n_v = n_v,
                             .ld_out = ld_v,
                             .key = by_key[KEY],
                             .val = val,
                             .q = by_key[Q],
                             .ld_key = ld_k,
                             .ld_val = ld_v,
                             .ld_q = ld_k,
                             .decay = kind->decays ? by_key[DECAY] : NULL,
                             .ld_decay = n % 2 ? ld_k : 0,
                             .one_decay = kind->one_decay,
                             .read = kind->erases || kind->corrects ? by_key[READ] : NULL,
                             .ld_read = ld_k,
                             .b = kind->erases ? by_key[B] : NULL,
                             .ld_b = ld_k,
                             .beta = kind->corrects ? beta : NULL,
                             .ld_beta = 2,
                             .bonus = kind->has_bonus ? bonus : NULL};
    r.out = out[0];
    ref->state_run(s[0], &r);
    r.out = out[1];
    k->state_run(s[1], &r);
    assert_same_floats(out[1], out[0], n * ld_v, what);
    assert_same_floats(s[1], s[0], n_k * n_v, what);
    for (size_t i = 0; i < VECTORS; i++)
        sl_free(by_key[i]);
    for (size_t i = 0; i < 2; i++) {
        sl_free(s[i]);
        sl_free(out[i]);
    }
    sl_free(bonus);
    sl_free(beta);
    sl_free(val);
}

static void state_runs(void **state)
{
    (void)state;
    static const size_t keys[] = {1, 3, 8, 64, 65};
    static const size_t values[] = {1, 7, 17, 64, 65, 72, 201};
    static const size_t tokens[] = {1, 2, 7, 8, RUN_MAX};
    FOR_TABLES(k, ref)
    for (size_t i = 0; i < COUNT(keys); i++)
        for (size_t j = 0; j < COUNT(values); j++)
            for (size_t t = 0; t < COUNT(tokens); t++)
                for (size_t f = 0; f < COUNT(run_kinds); f++)
                    for (int special = 0; special < 2; special++)
                        check_run(k, keys[i], values[j], &run_kinds[f], tokens[t], special);
}

/* Eight vectors: out, num, den, peak, decay, bonus, k, v; each exactly n long. */
static void check_wkv4(const struct sl_kernels *k, size_t n, int values)
{
    enum { OUT, NUM, DEN, PEAK, DECAY, BONUS, K, V, N };
    char what[128];
    (void)snprintf(what, sizeof what, "%s wkv4, n = %zu, values %d", k->name, n, values);
    float *x[2][N];
    for (size_t i = 0; i < 2; i++)
        open_vectors(x[i], N, n, values);
    for (size_t i = 0; i < 2; i++) /* as in an initial state */
        for (size_t c = 0; c < n; c += 3)
            x[i][NUM][c] = x[i][DEN][c] = 0, x[i][PEAK][c] = -1e30F;
    for (int t = 0; t < 3; t++) {
        for (size_t i = 0; i < 2; i++)
            (i ? k : ref)
                ->wkv4(x[i][OUT], x[i][NUM], x[i][DEN], x[i][PEAK], x[i][DECAY], x[i][BONUS],
                       x[i][K], x[i][V], n);
        for (size_t j = OUT; j <= PEAK; j++)
            assert_same_floats(x[1][j], x[0][j], n, what);
    }
    for (size_t i = 0; i < 2; i++)
        close_vectors(x[i], N);
}

static void wkv4(void **state)
{
    (void)state;
    FOR_TABLES(k, ref)
    for (int values = 0; values < 3; values++) {
        for (size_t n = 0; n <= 40; n++)
            check_wkv4(k, n, values);
        check_wkv4(k, 1003, values);
    }
}

/* Of one token, whose vectors are exactly n long each; with a gate of values and without. */
static void check_wkv7(const struct sl_kernels *k, size_t n, int values, bool gated)
{
    enum { W, A, V, KAPPA, K_TILDE, OUT, N_WRITTEN, N = 19 };
    char what[128];
    (void)snprintf(what, sizeof what, "%s wkv7, n = %zu, values %d, gated %d", k->name, n, values,
                   gated);
    float *x[2][N];
    for (size_t i = 0; i < 2; i++) {
        open_vectors(x[i], N, n, values);
        float **v = x[i], **in = v + N_WRITTEN;
        /* clang-format off */
        const struct sl_wkv7_gates gates = {
            .w = v[W], .a = v[A], .v = v[V], .kappa = v[KAPPA], .k_tilde = v[K_TILDE],
            .key = in[0], .w0 = in[1], .a0 = in[2], .k_k = in[3], .k_a = in[4],
            .gate = gated ? in[5] : NULL, .v0 = in[6], .v_first = in[7],
            .decay_scale = -0.6F, .eps = gated ? 1e-6F : 0, .least = 1e-12F};
        const struct sl_wkv7_out out = {
            .out = v[OUT], .r = in[8], .r_k = in[9], .k_tilde = v[K_TILDE], .v = v[V],
            .g = in[10], .w = in[11], .b = in[12], .eps = 64e-5F};
        /* clang-format on */
        (i ? k : ref)->wkv7_gates(&gates, n);
        (i ? k : ref)->wkv7_out(&out, n);
    }
    for (size_t j = 0; j < N_WRITTEN; j++)
        assert_same_floats(x[1][j], x[0][j], n, what);
    for (size_t i = 0; i < 2; i++)
        close_vectors(x[i], N);
}

static void wkv7(void **state)
{
    (void)state;
    FOR_TABLES(k, ref)
    for (int values = 0; values < 3; values++) {
        for (size_t n = 1; n <= 40; n++)
            check_wkv7(k, n, values, n % 2);
        check_wkv7(k, 64, values, false);
        check_wkv7(k, 64, values, true);
        check_wkv7(k, 509, values, true);
    }
}

/* --- tables --- */

static void tables_have_names_and_costs(void **state)
{
    (void)state;
    const char *const *names = sl_kernels_names();
    assert_non_null(names[0]);
    assert_ptr_equal(sl_kernels_find(NULL), sl_kernels_find(names[0]));
    bool has_ref = false;
    for (size_t i = 0; names[i]; i++) {
        const struct sl_kernels *k = sl_kernels_find(names[i]);
        assert_non_null(k);
        assert_string_equal(k->name, names[i]);
        for (enum sl_dtype t = 0; t < SL_DTYPE_KINDS; t++) {
            bool matrix = t == SL_DTYPE_F32 || t == SL_DTYPE_F16 || t == SL_DTYPE_BF16;
            assert_int_equal(k->row_cost[t] > 0, matrix || sl_is_quantised(t));
        }
        has_ref |= strcmp(names[i], "ref") == 0;
        printf("tested here: %s\n", names[i]);
    }
    assert_true(has_ref);
    assert_null(sl_kernels_find("no such table"));
    assert_null(sl_kernels_find(""));
}

int main(void)
{
    ref = sl_kernels_find("ref");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(tables_have_names_and_costs),
        cmocka_unit_test(matmul_odd_shapes),
        cmocka_unit_test(matmul_special_values),
        cmocka_unit_test(matmul_longest_rows),
        cmocka_unit_test(matmul_empty),
        cmocka_unit_test(matmul_every_16_bit_weight),
        cmocka_unit_test(vectors),
        cmocka_unit_test(functions_over_all_floats),
        cmocka_unit_test(states),
        cmocka_unit_test(state_runs),
        cmocka_unit_test(wkv4),
        cmocka_unit_test(wkv7),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
