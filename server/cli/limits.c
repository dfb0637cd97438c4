/* limits.c: see limits.h. */
#include "server/cli/limits.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/kernels/kernels.h"

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- series --- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void series_add(struct series *s, double v)
{
    if (s->n < SERIES_MAX)
        s->value[s->n++] = v;
}

double series_quantile(const struct series *s, double q)
{
    double x[SERIES_MAX];
    memcpy(x, s->value, s->n * sizeof *x);
    qsort(x, s->n, sizeof *x, by_size);
    return x[(size_t)((double)(s->n - 1) * q + 0.5)];
}

double series_median(const struct series *s)
{
    return series_quantile(s, 0.5);
}

/* --- limits --- */

struct span {
    const char *p;
    size_t n;
};

static _Thread_local volatile uint64_t sink;

/* One load per cache line would measure memory as well, but a product has to load all of it. */
#define READER(streams)                                                                            \
    static void read_##streams(void *arg, size_t part, size_t n_parts)                             \
    {                                                                                              \
        const struct span *job = arg;                                                              \
        size_t share = job->n / n_parts / 256 * 256, run = share / (streams);                      \
        const char *p = job->p + part * share;                                                     \
        u64x4 sum[2 * (size_t)(streams)] = {{0}};                                                  \
        for (size_t i = 0; i < run; i += 64)                                                       \
            for (size_t s = 0; s < (streams); s++) {                                               \
                sum[2 * s] ^= *(const u64x4 *)(const void *)(p + s * run + i);                     \
                sum[2 * s + 1] ^= *(const u64x4 *)(const void *)(p + s * run + i + 32);            \
            }                                                                                      \
        for (size_t s = 1; s < 2 * (size_t)(streams); s++)                                         \
            sum[0] ^= sum[s];                                                                      \
        sink = sum[0][0] ^ sum[0][1] ^ sum[0][2] ^ sum[0][3];                                      \
    }
typedef uint64_t u64x4 __attribute__((vector_size(32)));
#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("avx2")
#pragma GCC optimize("O3")
READER(1)
READER(4)
#pragma GCC pop_options
#else
READER(1)
READER(4)
#endif

enum {
    FMA_TURNS = 1000000,
    FMA_SUMS = 12,
    BYTES_TURNS = 1000000,
    BYTES_PRODUCTS = 8,  /* of 32 bytes, a turn */
    FOURS_PRODUCTS = 16, /* likewise */
    DOTS = 12            /* of a register each */
};

#ifdef __x86_64__
#define FMA4(r, a, b, c, d)                                                                        \
    "vfmadd231ps %%" r "15, %%" r "15, %%" r a "\n\tvfmadd231ps %%" r "15, %%" r "15, %%" r b      \
    "\n\tvfmadd231ps %%" r "15, %%" r "15, %%" r c "\n\tvfmadd231ps %%" r "15, %%" r "15, %%" r d  \
    "\n\t"
#define ALL_XMM                                                                                    \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc"
#define FMA_LOOP(r)                                                                                \
    long n = FMA_TURNS;                                                                            \
    (void)arg, (void)part, (void)n_parts;                                                          \
    __asm__ volatile("vzeroall\n1:\n\t" FMA4(r, "0", "1", "2", "3") FMA4(r, "4", "5", "6", "7")    \
                         FMA4(r, "8", "9", "10", "11") "dec %0\n\tjnz 1b\n\tvzeroupper"            \
                     : "+r"(n)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",    \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc")
static void fma_8(void *arg, size_t part, size_t n_parts)
{
    FMA_LOOP("ymm");
}
static void fma_16(void *arg, size_t part, size_t n_parts)
{
    FMA_LOOP("zmm");
}

/* 32 products of bytes, added up in 32 bits; eight of those with one widening. */
#define PRODUCT(t) "vpmaddubsw %%ymm15, %%ymm15, %%ymm" t "\n\t"
#define WIDEN(t, sum)                                                                              \
    "vpmaddwd %%ymm14, %%ymm" t ", %%ymm" t "\n\tvpaddd %%ymm" t ", %%ymm" sum ", %%ymm" sum "\n"  \
    "\t"
#define MORE(t, u) PRODUCT(u) "vpaddw %%ymm" u ", %%ymm" t ", %%ymm" t "\n\t"
#define BYTES_LOOP(body)                                                                           \
    long n = BYTES_TURNS;                                                                          \
    (void)arg, (void)part, (void)n_parts;                                                          \
    __asm__ volatile("vzeroall\n1:\n\t" body "dec %0\n\tjnz 1b\n\tvzeroupper" : "+r"(n)::ALL_XMM)
#define BYTE(t, sum) PRODUCT(t) WIDEN(t, sum)
#define EIGHT(t, u, sum)                                                                           \
    PRODUCT(t)                                                                                     \
    MORE(t, u) MORE(t, u) MORE(t, u) MORE(t, u) MORE(t, u) MORE(t, u) MORE(t, u) WIDEN(t, sum)

static void bytes_avx2(void *arg, size_t part, size_t n_parts)
{
    BYTES_LOOP(BYTE("8", "0") BYTE("9", "1") BYTE("10", "2") BYTE("11", "3") BYTE("8", "4")
                   BYTE("9", "5") BYTE("10", "6") BYTE("11", "7"));
}

static void fours_avx2(void *arg, size_t part, size_t n_parts)
{
    BYTES_LOOP(EIGHT("8", "12", "0") EIGHT("9", "13", "1"));
}

#define DOT2(enc, r, a, b)                                                                         \
    enc "vpdpbusd %%" r "15, %%" r "15, %%" r a "\n\t" enc "vpdpbusd %%" r "15, %%" r "15, %%" r b \
        "\n\t"
#define DOTS_LOOP(enc, r)                                                                          \
    BYTES_LOOP(DOT2(enc, r, "0", "1") DOT2(enc, r, "2", "3") DOT2(enc, r, "4", "5")                \
                   DOT2(enc, r, "6", "7") DOT2(enc, r, "8", "9") DOT2(enc, r, "10", "11"))
static void dots_32(void *arg, size_t part, size_t n_parts)
{
    DOTS_LOOP("%{vex%} ", "ymm");
}
static void dots_64(void *arg, size_t part, size_t n_parts)
{
    DOTS_LOOP("", "zmm");
}
#endif

static double seconds_of(struct sl_workers *w, sl_work_fn *fn, void *arg)
{
    double t = bench_now();
    sl_workers_run(w, fn, arg);
    return bench_now() - t;
}

const struct series *limits_arithmetic(const struct limits *l, enum sl_dtype type)
{
    if (!sl_is_quantised(type))
        return &l->fma;
    return type == SL_DTYPE_Q8 || type == SL_DTYPE_Q6_K ? &l->bytes : &l->fours;
}

void limits_measure(struct limits *l, struct sl_workers *w, const char *table, const void *memory,
                    size_t n_bytes)
{
    struct span s = {memory, n_bytes};
    series_add(&l->read_1, (double)s.n / 1e9 / seconds_of(w, read_1, &s));
    series_add(&l->read_4, (double)s.n / 1e9 / seconds_of(w, read_4, &s));
#ifdef __x86_64__
    double threads = (double)sl_workers_threads(w);
    double flop = 2e-9 * FMA_TURNS * FMA_SUMS * threads;
    double products = 2e-9 * BYTES_TURNS * BYTES_PRODUCTS * 32 * threads;
    double fours = 2e-9 * BYTES_TURNS * FOURS_PRODUCTS * 32 * threads;
    double dots = 2e-9 * BYTES_TURNS * DOTS * threads; /* of a byte of the registers */
    bool avx512 = strncmp(table, "avx512", 6) == 0, avx2 = strncmp(table, "avx2", 4) == 0;
    bool vnni = strstr(table, "vnni") != NULL;
    if (avx512)
        series_add(&l->fma, flop * 16 / seconds_of(w, fma_16, NULL));
    else if (avx2)
        series_add(&l->fma, flop * 8 / seconds_of(w, fma_8, NULL));
    if (vnni) {
        double rate = avx512 ? dots * 64 / seconds_of(w, dots_64, NULL)
                             : dots * 32 / seconds_of(w, dots_32, NULL);
        series_add(&l->bytes, rate);
        series_add(&l->fours, rate);
    } else if (avx512 || avx2) {
        series_add(&l->bytes, products / seconds_of(w, bytes_avx2, NULL));
        series_add(&l->fours, fours / seconds_of(w, fours_avx2, NULL));
    }
#else
    (void)table;
#endif
}
