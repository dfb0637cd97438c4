/* wkv.c: the recurrence of the delta rules for training, forward and backward.
 *
 * One head holds a state S of N x N floats, rows i = value index, columns j = key index:
 *     sa_i = sum_j S[i][j] a_j        S' = S diag(w) + sa b^T + v k^T        y_i = sum_j S'[i][j]
 * r_j RWKV-7 (Peng 2025, eq. 17):  w the decay of each channel, a = -kk, b = kk * in-context rate
 * DeltaNet:                    w = 1, a = k, b = -beta k, v times beta
 * GLA, RetNet, linear:         w as the rule has it, no a and b (delta = 0)
 *
 * Tensors are float32 [B][T][H][N], states [B][H][N][N]. The forward pass keeps the state at the
 * start of each chunk of CHUNK tokens; the backward pass computes one chunk's states anew into a
 * scratch that fits the L2 cache, then walks the chunk backwards (truncated: no gradient leaves the
 * first state). One thread. The compiler vectorises the inner loops for each N. */
#include <stddef.h>
#include <string.h>

#define CHUNK 16
#define N_MAX 64
#define INLINE static inline __attribute__((always_inline))

/* What one head reads at time t: pointers to N floats each. */
struct inputs {
    const float *restrict r, *restrict w, *restrict k, *restrict v, *restrict a, *restrict b;
};

/* One token: the next state from the last (they may be the same), y and sa where not NULL. */
INLINE void step(int N, int delta, const float *last, float *next, const struct inputs *x,
                 float *restrict y, float *restrict sa)
{
    for (int i = 0; i < N; i += 2) {
        const float *p0 = last + (ptrdiff_t)i * N, *p1 = p0 + N;
        float *q0 = next + (ptrdiff_t)i * N, *q1 = q0 + N;
        float s0 = 0, s1 = 0, y0 = 0, y1 = 0, v0 = x->v[i], v1 = x->v[i + 1];
        for (int j = 0; delta && j < N; j++) {
            s0 += p0[j] * x->a[j];
            s1 += p1[j] * x->a[j];
        }
#pragma GCC ivdep
        for (int j = 0; j < N; j++) {
            float z0 = p0[j] * x->w[j] + v0 * x->k[j], z1 = p1[j] * x->w[j] + v1 * x->k[j];
            if (delta) {
                z0 += s0 * x->b[j];
                z1 += s1 * x->b[j];
            }
            q0[j] = z0;
            q1[j] = z1;
            y0 += z0 * x->r[j];
            y1 += z1 * x->r[j];
        }
        if (y) {
            y[i] = y0;
            y[i + 1] = y1;
        }
        if (sa) {
            sa[i] = s0;
            sa[i + 1] = s1;
        }
    }
}

struct tensors {
    const float *r, *w, *k, *v, *a, *b;
};

INLINE struct inputs at(const struct tensors *t, ptrdiff_t o)
{
    return (struct inputs){t->r + o, t->w + o, t->k + o, t->v + o, t->a + o, t->b + o};
}

INLINE void forward(int N, int delta, long T, ptrdiff_t stride, const struct tensors *x, float *S,
                    float *y, float *kept)
{
    for (long t = 0; t < T; t++) {
        if (t % CHUNK == 0)
            memcpy(kept + (t / CHUNK) * N * N, S, sizeof(float) * (size_t)N * (size_t)N);
        struct inputs in = at(x, t * stride);
        step(N, delta, S, S, &in, y + t * stride, NULL);
    }
}

struct gradients {
    float *r, *w, *k, *v, *a, *b;
};

/* One token backwards. dS: in the gradient of the state after it, out of the state before. */
INLINE void step_back(int N, int delta, const float *restrict last, const float *restrict next,
                      const float *restrict sa, const struct inputs *x, const float *restrict dy,
                      float *restrict dS, const struct gradients *g, ptrdiff_t o)
{
    _Alignas(64) float dr[N_MAX] = {0}, dw[N_MAX] = {0}, dk[N_MAX] = {0}, da[N_MAX] = {0},
                       db[N_MAX] = {0};
    for (int i = 0; i < N; i += 2) {
        const float *restrict p0 = last + (ptrdiff_t)i * N, *restrict p1 = p0 + N;
        const float *restrict q0 = next + (ptrdiff_t)i * N, *restrict q1 = q0 + N;
        float *restrict d0 = dS + (ptrdiff_t)i * N, *restrict d1 = d0 + N;
        float g0 = dy[i], g1 = dy[i + 1], v0 = x->v[i], v1 = x->v[i + 1];
        float e0 = 0, e1 = 0, f0 = 0, f1 = 0;
        for (int j = 0; j < N; j++) {
            float z0 = d0[j] + g0 * x->r[j], z1 = d1[j] + g1 * x->r[j];
            d0[j] = z0;
            d1[j] = z1;
            e0 += z0 * x->k[j];
            e1 += z1 * x->k[j];
            dr[j] += q0[j] * g0 + q1[j] * g1;
            dk[j] += z0 * v0 + z1 * v1;
            dw[j] += z0 * p0[j] + z1 * p1[j];
        }
        g->v[o + i] = e0;
        g->v[o + i + 1] = e1;
        for (int j = 0; delta && j < N; j++) {
            f0 += d0[j] * x->b[j];
            f1 += d1[j] * x->b[j];
            db[j] += d0[j] * sa[i] + d1[j] * sa[i + 1];
        }
        for (int j = 0; j < N; j++) {
            da[j] += delta ? f0 * p0[j] + f1 * p1[j] : 0;
            d0[j] = d0[j] * x->w[j] + (delta ? f0 * x->a[j] : 0);
            d1[j] = d1[j] * x->w[j] + (delta ? f1 * x->a[j] : 0);
        }
    }
    size_t n = sizeof(float) * (size_t)N;
    memcpy(g->r + o, dr, n);
    memcpy(g->w + o, dw, n);
    memcpy(g->k + o, dk, n);
    memcpy(g->a + o, da, n);
    memcpy(g->b + o, db, n);
}

INLINE void backward(int N, int delta, long T, ptrdiff_t stride, const struct tensors *x,
                     const float *dy, const float *kept, const struct gradients *g)
{
    static _Alignas(64) float states[(CHUNK + 1) * N_MAX * N_MAX];
    static _Alignas(64) float sas[CHUNK * N_MAX], dS[N_MAX * N_MAX];
    const ptrdiff_t n = (ptrdiff_t)N * N;
    memset(dS, 0, sizeof dS);
    for (long c = (T + CHUNK - 1) / CHUNK - 1; c >= 0; c--) {
        long t0 = c * CHUNK, t1 = t0 + CHUNK < T ? t0 + CHUNK : T;
        memcpy(states, kept + c * n, sizeof(float) * (size_t)n);
        for (long t = t0; t < t1; t++) {
            struct inputs in = at(x, t * stride);
            float *p = states + (t - t0) * n;
            step(N, delta, p, p + n, &in, NULL, sas + (t - t0) * N);
        }
        for (long t = t1 - 1; t >= t0; t--) {
            struct inputs in = at(x, t * stride);
            const float *p = states + (t - t0) * n;
            step_back(N, delta, p, p + n, sas + (t - t0) * N, &in, dy + t * stride, dS, g,
                      t * stride);
        }
    }
}

/* The head sizes there is code for; delta is a constant in each, too. */
#define FOR_SIZES(CALL)                                                                            \
    if (N == 64 && delta)                                                                          \
        CALL(64, 1);                                                                               \
    else if (N == 64)                                                                              \
        CALL(64, 0);                                                                               \
    else if (N == 32 && delta)                                                                     \
        CALL(32, 1);                                                                               \
    else if (N == 32)                                                                              \
    CALL(32, 0)

/* S: [B][H][N][N], read and updated. kept: [B][H][ceil(T/CHUNK)][N][N]. N is 32 or 64. */
void wkv_forward(long B, long T, long H, long N, const float *r, const float *w, const float *k,
                 const float *v, const float *a, const float *b, float *S, float *y, float *kept,
                 long delta);
void wkv_forward(long B, long T, long H, long N, const float *r, const float *w, const float *k,
                 const float *v, const float *a, const float *b, float *S, float *y, float *kept,
                 long delta)
{
    for (long i = 0; i < B * H; i++) {
        ptrdiff_t o = (i / H) * T * H * N + (i % H) * N;
        struct tensors x = {r + o, w + o, k + o, v + o, a + o, b + o};
        float *chunks = kept + i * ((T + CHUNK - 1) / CHUNK) * N * N;
#define CALL(n, d) forward(n, d, T, H *(n), &x, S + i * (n) * (n), y + o, chunks)
        FOR_SIZES(CALL);
#undef CALL
    }
}

/* The gradients d* of everything but the first state, from dy and what forward kept. */
void wkv_backward(long B, long T, long H, long N, const float *r, const float *w, const float *k,
                  const float *v, const float *a, const float *b, const float *dy,
                  const float *kept, float *dr, float *dw, float *dk, float *dv, float *da,
                  float *db, long delta);
void wkv_backward(long B, long T, long H, long N, const float *r, const float *w, const float *k,
                  const float *v, const float *a, const float *b, const float *dy,
                  const float *kept, float *dr, float *dw, float *dk, float *dv, float *da,
                  float *db, long delta)
{
    for (long i = 0; i < B * H; i++) {
        ptrdiff_t o = (i / H) * T * H * N + (i % H) * N;
        struct tensors x = {r + o, w + o, k + o, v + o, a + o, b + o};
        struct gradients g = {dr + o, dw + o, dk + o, dv + o, da + o, db + o};
        const float *chunks = kept + i * ((T + CHUNK - 1) / CHUNK) * N * N;
#define CALL(n, d) backward(n, d, T, H *(n), &x, dy + o, chunks, &g)
        FOR_SIZES(CALL);
#undef CALL
    }
}
