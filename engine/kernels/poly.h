/* poly.h: the constants of exp and tanh, shared by ref.c and every vector table. Private to
 * kernels/. The polynomials are minimax fits in the relative error, made for this file.
 *
 * exp(x), x first clamped to [SL_EXP_LO, SL_EXP_HI] (NaN passes):
 *   k = fma(x, log2(e), magic), whose low bits are the nearest integer i to x·log2(e), and
 *   n = k - magic, the same as a float; r = fma(n, -ln2_lo, fma(n, -ln2_hi, x)), |r| ≤ 0.347;
 *   p = 1 + r(1 + r(c2 + … + r·c7)) in Horner's order with fma (relative error 2^-31);
 *   exp = p · 2^(i/2) · 2^(i - i/2): two exact powers, so that only the last product can round,
 *   overflow to infinity or go down through the denormals to zero.
 *
 * tanh(x), a = |x|: below SL_TANH_SMALL  fma(a·z, P(z), a) with z = a² (error 2^-32), else
 *   1 - 2/(exp(2a) + 1); the sign of x is put back by its bit.
 *
 * softplus(x) = max(x, 0) + log1p(exp(-|x|)); log1p(u) for 0 ≤ u ≤ 1 is 2·atanh(s), s = u/(2 + u):
 *   fma(2s·z, Q(z), 2s) with z = s² (error 2^-27). */
#ifndef SLATE_KERNELS_POLY_H
#define SLATE_KERNELS_POLY_H

/* exp rounds to zero at and below LO, to infinity at and above HI. */
#define SL_EXP_LO (-104.0F)
#define SL_EXP_HI 89.0F
#define SL_EXP_LOG2E 0x1.715476p+0F
#define SL_EXP_LN2_HI 0x1.62e43p-1F
#define SL_EXP_LN2_LO (-0x1.05c61p-29F)
/* 1.5 · 2^23: adding it leaves the nearest integer in the low bits of the fraction. */
#define SL_EXP_MAGIC 0x1.8p+23F
#define SL_EXP_MAGIC_BITS 0x4b400000
#define SL_EXP_C2 0x1p-1F
#define SL_EXP_C3 0x1.55553cp-3F
#define SL_EXP_C4 0x1.5554f2p-5F
#define SL_EXP_C5 0x1.11372ap-7F
#define SL_EXP_C6 0x1.6d40a4p-10F
#define SL_EXP_C7 0x1.6b6d1ep-13F

#define SL_TANH_SMALL 0.625F
#define SL_TANH_P0 (-0x1.555554p-2F)
#define SL_TANH_P1 0x1.11107ap-3F
#define SL_TANH_P2 (-0x1.b9f188p-5F)
#define SL_TANH_P3 0x1.63a55p-6F
#define SL_TANH_P4 (-0x1.0c5edp-7F)
#define SL_TANH_P5 0x1.1a2816p-9F

#define SL_LOG1P_Q0 0x1.555502p-2F
#define SL_LOG1P_Q1 0x1.99d208p-3F
#define SL_LOG1P_Q2 0x1.1ebd0cp-3F
#define SL_LOG1P_Q3 0x1.1ed7c6p-3F

/* gelu(x) = x·Φ(x), with t = |x|·sqrt(1/2) and h = erfc(t): below SL_GELU_SMALL  fma(-t, P(t²), 1)
 * in Horner's order with fma (relative error of erf 2^-29), else exp(-(t² + Q(min(t,
 * SL_GELU_FAR)))) with Q likewise (error 6e-10; beyond FAR, where h is below 2e-10, Q stays as it
 * is there). Φ = h/2 for x < 0, else 1 - h/2. */
#define SL_GELU_SQRT_HALF 0x1.6a09e6p-1F
#define SL_GELU_SMALL 1.0F
#define SL_GELU_FAR 4.5F
#define SL_GELU_P0 0x1.20dd74p+0F
#define SL_GELU_P1 (-0x1.81273ep-2F)
#define SL_GELU_P2 0x1.ce2cf8p-4F
#define SL_GELU_P3 (-0x1.b7f90cp-6F)
#define SL_GELU_P4 0x1.5405b2p-8F
#define SL_GELU_P5 (-0x1.a3f6fcp-11F)
#define SL_GELU_P6 0x1.496a28p-14F
#define SL_GELU_Q0 (-0x1.ff77e8p-18F)
#define SL_GELU_Q1 0x1.20f6cep+0F
#define SL_GELU_Q2 (-0x1.7603a8p-2F)
#define SL_GELU_Q3 0x1.b5acaep-4F
#define SL_GELU_Q4 (-0x1.8db96ap-6F)
#define SL_GELU_Q5 0x1.fc966ap-9F
#define SL_GELU_Q6 (-0x1.8f1efcp-12F)
#define SL_GELU_Q7 0x1.1cdec6p-16F

#endif
