/* fused.c: the element-wise parts of RWKV-7 that are slow as separate torch calls on a processor
 * core.
 *
 * Forward and backward of the token shift, of what wkv.c reads, of what follows it, and of relu
 * squared. float32, row major; rows = B * T; heads of at most 64. Gradients of parameters are added
 * into buffers that the caller zeroed. Equations: Peng et al. 2025 ("RWKV-7 Goose"), section 4. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#define DECAY 0.606531f /* exp(-0.5): w = exp(-DECAY * sigmoid(x)) */
#define GN_EPS 64e-5f   /* of the group norm, as RWKV-7 has it */
#define N_MAX 64

/* e^x to 2e-7 relative: 2^n times e^r, |r| <= ln 2 / 2, by its series. expf() would keep the
 * compiler from vectorising the loops around it. */
static inline float exp_of(float x)
{
    x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
    float n = floorf(x * 1.44269504f + 0.5f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float e = 1.0f / 720 * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = (e * r + 1.0f) * r + 1.0f;
    int bits = ((int)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return e * scale;
}

static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + exp_of(-x));
}

/* out[m][row][c] = x + (x_before - x) * mu[m][c]; prev [B][C] is before each row's first. */
void mix_forward(long B, long T, long C, long M, const float *x, const float *prev, const float *mu,
                 float *out);
void mix_forward(long B, long T, long C, long M, const float *x, const float *prev, const float *mu,
                 float *out)
{
    for (long row = 0; row < B * T; row++) {
        const float *restrict now = x + row * C;
        const float *restrict last = row % T ? now - C : prev + row / T * C;
        for (long m = 0; m < M; m++) {
            float *restrict q = out + (m * B * T + row) * C;
            for (long i = 0; i < C; i++)
                q[i] = now[i] + (last[i] - now[i]) * mu[m * C + i];
        }
    }
}

/* dout: M pointers. dx is written, dmu added to. No gradient goes into prev. */
void mix_backward(long B, long T, long C, long M, const float *x, const float *prev,
                  const float *mu, const float *const *dout, float *dx, float *dmu);
void mix_backward(long B, long T, long C, long M, const float *x, const float *prev,
                  const float *mu, const float *const *dout, float *dx, float *dmu)
{
    memset(dx, 0, sizeof(float) * (size_t)(B * T * C));
    for (long row = 0; row < B * T; row++) {
        const float *restrict now = x + row * C;
        const float *restrict last = row % T ? now - C : prev + row / T * C;
        float *restrict d = dx + row * C, *restrict before = row % T ? d - C : NULL;
        for (long m = 0; m < M; m++) {
            const float *restrict g = dout[m] + row * C, *restrict u = mu + m * C;
            float *restrict du = dmu + m * C;
            for (long i = 0; i < C; i++) {
                d[i] += g[i] - g[i] * u[i];
                du[i] += g[i] * (last[i] - now[i]);
            }
            for (long i = 0; before && i < C; i++)
                before[i] += g[i] * u[i];
        }
    }
}

/* From the key and the two low-rank outputs: the decay w, the key k2 as it is written, and the
 * delta rule's vectors -kk and kk * a. */
void prep_forward(long rows, long H, long N, const float *k, const float *wr, const float *ar,
                  const float *k_k, const float *k_a, float *restrict w, float *restrict k2,
                  float *restrict na, float *restrict b);
void prep_forward(long rows, long H, long N, const float *k, const float *wr, const float *ar,
                  const float *k_k, const float *k_a, float *restrict w, float *restrict k2,
                  float *restrict na, float *restrict b)
{
    for (long i = 0; i < rows * H; i++) {
        long o = i * N, c = i % H * N;
        float ss = 0;
        for (long j = 0; j < N; j++)
            ss += k[o + j] * k_k[c + j] * k[o + j] * k_k[c + j];
        float inv = 1.0f / fmaxf(sqrtf(ss), 1e-12f);
        for (long j = 0; j < N; j++) {
            float kk = k[o + j] * k_k[c + j] * inv, a = sigmoid(ar[o + j]);
            w[o + j] = exp_of(-DECAY * sigmoid(wr[o + j]));
            k2[o + j] = k[o + j] * (1.0f + (a - 1.0f) * k_a[c + j]);
            na[o + j] = -kk;
            b[o + j] = kk * a;
        }
    }
}

void prep_backward(long rows, long H, long N, const float *k, const float *wr, const float *ar,
                   const float *k_k, const float *k_a, const float *dw, const float *dk2,
                   const float *dna, const float *db, float *restrict dk, float *restrict dwr,
                   float *restrict dar, float *restrict dk_k, float *restrict dk_a);
void prep_backward(long rows, long H, long N, const float *k, const float *wr, const float *ar,
                   const float *k_k, const float *k_a, const float *dw, const float *dk2,
                   const float *dna, const float *db, float *restrict dk, float *restrict dwr,
                   float *restrict dar, float *restrict dk_k, float *restrict dk_a)
{
    float z[N_MAX], rate[N_MAX], dkk[N_MAX];
    for (long i = 0; i < rows * H; i++) {
        long o = i * N, c = i % H * N;
        float ss = 0, dot = 0;
        for (long j = 0; j < N; j++) {
            z[j] = k[o + j] * k_k[c + j];
            ss += z[j] * z[j];
        }
        float inv = 1.0f / fmaxf(sqrtf(ss), 1e-12f);
        for (long j = 0; j < N; j++) {
            z[j] *= inv;
            rate[j] = sigmoid(ar[o + j]);
            dkk[j] = db[o + j] * rate[j] - dna[o + j];
            dot += dkk[j] * z[j];
        }
        for (long j = 0; j < N; j++) {
            float a = rate[j], kj = k[o + j], s = sigmoid(wr[o + j]), w = exp_of(-DECAY * s);
            float through_norm = (dkk[j] - z[j] * dot) * inv;
            float da = db[o + j] * z[j] + dk2[o + j] * kj * k_a[c + j];
            dwr[o + j] = dw[o + j] * w * -DECAY * s * (1.0f - s);
            dar[o + j] = da * a * (1.0f - a);
            dk[o + j] = dk2[o + j] * (1.0f + (a - 1.0f) * k_a[c + j]) + through_norm * k_k[c + j];
            dk_a[c + j] += dk2[o + j] * kj * (a - 1.0f);
            dk_k[c + j] += through_norm * kj;
        }
    }
}

/* One head's mean of y, 1 / standard deviation, and sum of r * k * r_k. */
static void moments(long N, const float *y, const float *r, const float *k, const float *r_k,
                    float *mean, float *rs, float *sum)
{
    float m = 0, var = 0, s = 0;
    for (long j = 0; j < N; j++) {
        m += y[j];
        s += r[j] * k[j] * r_k[j];
    }
    m /= (float)N;
    for (long j = 0; j < N; j++)
        var += (y[j] - m) * (y[j] - m);
    *mean = m;
    *rs = 1.0f / sqrtf(var / (float)N + GN_EPS);
    *sum = s;
}

/* out = (group norm of y + (sum of r * k * r_k) v) * g */
void post_forward(long rows, long H, long N, const float *y, const float *r, const float *k,
                  const float *v, const float *g, const float *r_k, const float *gw,
                  const float *gb, float *out);
void post_forward(long rows, long H, long N, const float *y, const float *r, const float *k,
                  const float *v, const float *g, const float *r_k, const float *gw,
                  const float *gb, float *out)
{
    for (long i = 0; i < rows * H; i++) {
        long o = i * N, c = i % H * N;
        float m, rs, s;
        moments(N, y + o, r + o, k + o, r_k + c, &m, &rs, &s);
        for (long j = 0; j < N; j++)
            out[o + j] = ((y[o + j] - m) * rs * gw[c + j] + gb[c + j] + s * v[o + j]) * g[o + j];
    }
}

void post_backward(long rows, long H, long N, const float *y, const float *r, const float *k,
                   const float *v, const float *g, const float *r_k, const float *gw,
                   const float *gb, const float *dout, float *dy, float *dr, float *dk, float *dv,
                   float *dg, float *dr_k, float *dgw, float *dgb);
void post_backward(long rows, long H, long N, const float *y, const float *r, const float *k,
                   const float *v, const float *g, const float *r_k, const float *gw,
                   const float *gb, const float *dout, float *dy, float *dr, float *dk, float *dv,
                   float *dg, float *dr_k, float *dgw, float *dgb)
{
    float xh[N_MAX], dx[N_MAX];
    for (long i = 0; i < rows * H; i++) {
        long o = i * N, c = i % H * N;
        float m, rs, s, ds = 0, m1 = 0, m2 = 0;
        moments(N, y + o, r + o, k + o, r_k + c, &m, &rs, &s);
        for (long j = 0; j < N; j++) {
            float x = (y[o + j] - m) * rs, d = dout[o + j] * g[o + j];
            dg[o + j] = dout[o + j] * (x * gw[c + j] + gb[c + j] + s * v[o + j]);
            dgw[c + j] += d * x;
            dgb[c + j] += d;
            ds += d * v[o + j];
            dv[o + j] = d * s;
            xh[j] = x;
            dx[j] = d * gw[c + j];
            m1 += dx[j];
            m2 += dx[j] * x;
        }
        m1 /= (float)N;
        m2 /= (float)N;
        for (long j = 0; j < N; j++) {
            dy[o + j] = rs * (dx[j] - m1 - xh[j] * m2);
            dr[o + j] = ds * k[o + j] * r_k[c + j];
            dk[o + j] = ds * r[o + j] * r_k[c + j];
            dr_k[c + j] += ds * r[o + j] * k[o + j];
        }
    }
}

void relu2_forward(long n, const float *restrict x, float *restrict y);
void relu2_forward(long n, const float *restrict x, float *restrict y)
{
    for (long i = 0; i < n; i++) {
        float h = x[i] > 0 ? x[i] : 0;
        y[i] = h * h;
    }
}

void relu2_backward(long n, const float *restrict x, const float *restrict dy, float *restrict dx);
void relu2_backward(long n, const float *restrict x, const float *restrict dy, float *restrict dx)
{
    for (long i = 0; i < n; i++)
        dx[i] = 2.0f * (x[i] > 0 ? x[i] : 0) * dy[i];
}
