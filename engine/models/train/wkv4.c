/* wkv4.c: the recurrence of RWKV-4 for training, forward and backward (Peng et al. 2023, eq. 16 to
 * 20).
 *
 * Per channel, with w = exp(time_decay) and u = time_first:
 *     y_t = (A_t + e^(u + k_t) v_t) / (B_t + e^(u + k_t))
 *     A_{t+1} = e^-w A_t + e^(k_t) v_t        B_{t+1} = e^-w B_t + e^(k_t)
 * from A = B = 0. Sums are doubles, so no running maximum is needed while |k| < 300. k, v, y and
 * their gradients are float32 [B][T][C]; kept, doubles [T][2][C], is the caller's scratch. */
#include <math.h>
#include <stddef.h>
#include <string.h>

/* A and B before each token of one row. */
static void sums(long T, long C, const float *k, const float *v, const float *w, double *kept)
{
    memset(kept, 0, sizeof(double) * 2 * (size_t)C);
    for (long t = 0; t + 1 < T; t++)
        for (long c = 0; c < C; c++) {
            const double *last = kept + t * 2 * C;
            double *next = kept + (t + 1) * 2 * C;
            double e = exp(k[t * C + c]), decay = exp(-(double)w[c]);
            next[c] = decay * last[c] + e * v[t * C + c];
            next[C + c] = decay * last[C + c] + e;
        }
}

void wkv4_forward(long B, long T, long C, const float *k, const float *v, const float *w,
                  const float *u, float *y, double *kept);
void wkv4_forward(long B, long T, long C, const float *k, const float *v, const float *w,
                  const float *u, float *y, double *kept)
{
    for (long b = 0; b < B; b++, k += T * C, v += T * C, y += T * C) {
        sums(T, C, k, v, w, kept);
        for (long i = 0; i < T * C; i++) {
            const double *s = kept + i / C * 2 * C + i % C;
            double e = exp((double)u[i % C] + k[i]);
            y[i] = (float)((s[0] + e * v[i]) / (s[C] + e));
        }
    }
}

/* dw and du [C] are added to. */
void wkv4_backward(long B, long T, long C, const float *k, const float *v, const float *w,
                   const float *u, const float *y, const float *dy, double *kept, double *scratch,
                   float *dk, float *dv, float *dw, float *du);
void wkv4_backward(long B, long T, long C, const float *k, const float *v, const float *w,
                   const float *u, const float *y, const float *dy, double *kept, double *scratch,
                   float *dk, float *dv, float *dw, float *du)
{
    for (long b = 0; b < B; b++) {
        ptrdiff_t o = b * T * C;
        double *dA = scratch, *dB = scratch + C; /* of the sums after token t */
        sums(T, C, k + o, v + o, w, kept);
        memset(scratch, 0, sizeof(double) * 2 * (size_t)C);
        for (long i = T * C - 1; i >= 0; i--) {
            long c = i % C;
            const double *s = kept + i / C * 2 * C + c;
            double e = exp(k[o + i]), now = exp((double)u[c] + k[o + i]),
                   decay = exp(-(double)w[c]);
            double dnum = dy[o + i] / (s[C] + now), dden = -dnum * y[o + i];
            double here = now * (v[o + i] * dnum + dden);
            dk[o + i] = (float)(here + e * (v[o + i] * dA[c] + dB[c]));
            dv[o + i] = (float)(now * dnum + e * dA[c]);
            du[c] += (float)here;
            dw[c] -= (float)(decay * (s[0] * dA[c] + s[C] * dB[c]));
            dA[c] = dnum + decay * dA[c];
            dB[c] = dden + decay * dB[c];
        }
    }
}
