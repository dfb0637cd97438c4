/* limits.c: see limits.h. */
#include "server/cli/limits.h"

#include <assert.h>
#include <math.h>
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
#define READER(name, streams)                                                                      \
    static void name(void *arg, size_t part, size_t n_parts)                                       \
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
#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif
READER(read_1, 1)
READER(read_4, 4)
#if defined(__x86_64__) && !defined(__clang__)
#pragma GCC target("avx2")
READER(read_1_avx2, 1)
READER(read_4_avx2, 4)
#endif
#ifndef __clang__
#pragma GCC pop_options
#endif

/* The reading of memory does not depend on the table that is measured, but on the processor. */
static void readers(sl_work_fn **ret_1, sl_work_fn **ret_4)
{
    *ret_1 = read_1, *ret_4 = read_4;
#if defined(__x86_64__) && !defined(__clang__)
    if (sl_kernels_find("avx2"))
        *ret_1 = read_1_avx2, *ret_4 = read_4_avx2;
#endif
}

/* --- arithmetic: loops, each over its TURNS in every thread -------------------------------------
 */

/* As ref.c has it: what the compiler makes of 16 outputs; codes and inputs are in memory. */
enum { REF_TURNS = 100000 };

static void fma_ref(void *arg, size_t part, size_t n_parts)
{
    float w[SL_PANEL] = {0}, x = 0, acc[SL_PANEL] = {0};
    (void)arg, (void)part, (void)n_parts;
    for (long n = 0; n < REF_TURNS; n++) {
        __asm__ volatile("" : "+m"(w), "+m"(x));
        for (size_t j = 0; j < SL_PANEL; j++)
            acc[j] = fmaf(w[j], x, acc[j]);
    }
    __asm__ volatile("" : "+m"(acc));
}

static void bytes_ref(void *arg, size_t part, size_t n_parts)
{
    int8_t w[4 * SL_PANEL] = {0}, q[4] = {0};
    int32_t sum[SL_PANEL] = {0};
    (void)arg, (void)part, (void)n_parts;
    for (long n = 0; n < REF_TURNS; n++) {
        __asm__ volatile("" : "+m"(w), "+m"(q));
        for (size_t i = 0; i < sizeof w; i++)
            sum[i / 4] += w[i] * q[i % 4];
    }
    __asm__ volatile("" : "+m"(sum));
}

#ifdef __x86_64__
enum {
    FMA_TURNS = 1000000,
    FMA_SUMS = 12,
    BYTES_TURNS = 1000000,
    BYTES_PRODUCTS = 8,  /* of 32 bytes, a turn */
    FOURS_PRODUCTS = 16, /* likewise */
    DOTS = 12            /* of a register each */
};

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

#ifdef __aarch64__
enum {
    NEON_TURNS = 500000,
    NEON_SUMS = 24,  /* of a register each */
    BYTES_STEPS = 2, /* of bytes, eight products of each of NEON_STREAMS, before they are widened */
    FOURS_STEPS = 8, /* likewise of 4 bits */
    NEON_STREAMS = 8
};
#define EIGHT(OP) OP("0") OP("1") OP("2") OP("3") OP("4") OP("5") OP("6") OP("7")
#define TEENS(OP)                                                                                  \
    OP("8") OP("9") OP("10") OP("11") OP("12") OP("13") OP("14") OP("15") OP("16") OP("17")
#define ALL_24(OP) EIGHT(OP) TEENS(OP) OP("18") OP("19") OP("20") OP("21") OP("22") OP("23")
#define NEON_LOOP(body)                                                                            \
    long n = NEON_TURNS;                                                                           \
    (void)arg, (void)part, (void)n_parts;                                                          \
    __asm__ volatile("movi v31.2d, #0\n\t" ALL_24(ZERO) "1:\n\t" body "subs %0, %0, #1\n\tb.ne 1b" \
                     : "+r"(n)::"v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", \
                       "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20",       \
                       "v21", "v22", "v23", "v31", "cc")
#define ZERO(r) "movi v" r ".2d, #0\n\t"
#define FMA(r) "fmla v" r ".4s, v31.4s, v31.4s\n\t"
#define DOT(r) "sdot v" r ".4s, v31.16b, v31.4b[0]\n\t"
/* Sums in 16 bits are 1r, those in 32 bits r. */
#define FIRST(r) "smull v1" r ".8h, v31.8b, v31.8b\n\t"
#define MORE(r) "smlal v1" r ".8h, v31.8b, v31.8b\n\t"
#define WIDEN(r) "sadalp v" r ".4s, v1" r ".8h\n\t"

static void fma_neon(void *arg, size_t part, size_t n_parts)
{
    NEON_LOOP(ALL_24(FMA));
}
static void bytes_neon(void *arg, size_t part, size_t n_parts)
{
    NEON_LOOP(EIGHT(FIRST) EIGHT(MORE) EIGHT(WIDEN));
}
static void fours_neon(void *arg, size_t part, size_t n_parts)
{
    NEON_LOOP(EIGHT(FIRST) EIGHT(MORE) EIGHT(MORE) EIGHT(MORE) EIGHT(MORE) EIGHT(MORE) EIGHT(MORE)
                  EIGHT(MORE) EIGHT(WIDEN));
}
__attribute__((target("arch=armv8.2-a+dotprod"))) static void dots_neon(void *arg, size_t part,
                                                                        size_t n_parts)
{
    NEON_LOOP(ALL_24(DOT));
}
#endif

struct loop {
    sl_work_fn *run;
    double operations; /* of a thread, in thousand millions: a multiply-add is two */
};

static const struct kind {
    const char *table;
    struct loop fma, bytes, fours;
} kinds[] = {
#ifdef __x86_64__
#define FMA_OF(f, lanes)                                                                           \
    {                                                                                              \
        f, 2e-9 * FMA_TURNS *FMA_SUMS *(lanes)                                                     \
    }
#define DOTS_OF(f, bytes)                                                                          \
    {                                                                                              \
        f, 2e-9 * BYTES_TURNS *DOTS *(bytes)                                                       \
    }
#define BYTES_AVX2                                                                                 \
    {                                                                                              \
        bytes_avx2, 2e-9 * BYTES_TURNS *BYTES_PRODUCTS * 32                                        \
    }
#define FOURS_AVX2                                                                                 \
    {                                                                                              \
        fours_avx2, 2e-9 * BYTES_TURNS *FOURS_PRODUCTS * 32                                        \
    }
    {"avx512vnni", FMA_OF(fma_16, 16), DOTS_OF(dots_64, 64), DOTS_OF(dots_64, 64)},
    {"avx512", FMA_OF(fma_16, 16), BYTES_AVX2, FOURS_AVX2},
    {"avx2vnni", FMA_OF(fma_8, 8), DOTS_OF(dots_32, 32), DOTS_OF(dots_32, 32)},
    {"avx2", FMA_OF(fma_8, 8), BYTES_AVX2, FOURS_AVX2},
#endif
#ifdef __aarch64__
#define SUMS_OF(f, lanes)                                                                          \
    {                                                                                              \
        f, 2e-9 * NEON_TURNS *NEON_SUMS *(lanes)                                                   \
    }
#define STEPS_OF(f, steps)                                                                         \
    {                                                                                              \
        f, 2e-9 * NEON_TURNS *NEON_STREAMS * 8 * (steps)                                           \
    }
    {"neondot", SUMS_OF(fma_neon, 4), SUMS_OF(dots_neon, 16), SUMS_OF(dots_neon, 16)},
    {"neon", SUMS_OF(fma_neon, 4), STEPS_OF(bytes_neon, BYTES_STEPS),
     STEPS_OF(fours_neon, FOURS_STEPS)},
#endif
#define BYTES_REF                                                                                  \
    {                                                                                              \
        bytes_ref, 2e-9 * REF_TURNS *SL_PANEL * 4                                                  \
    }
    {"ref", {fma_ref, 2e-9 * REF_TURNS *SL_PANEL}, BYTES_REF, BYTES_REF},
};

static double seconds_of(struct sl_workers *w, sl_work_fn *fn, void *arg)
{
    double t = bench_now();
    sl_workers_run(w, fn, arg);
    return bench_now() - t;
}

static void measure_loop(struct series *s, struct sl_workers *w, const struct loop *l)
{
    double all = l->operations * (double)sl_workers_threads(w);
    series_add(s, all / seconds_of(w, l->run, NULL));
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
    sl_work_fn *one, *four;
    readers(&one, &four);
    series_add(&l->read_1, (double)s.n / 1e9 / seconds_of(w, one, &s));
    series_add(&l->read_4, (double)s.n / 1e9 / seconds_of(w, four, &s));
    const struct kind *k = kinds;
    while (strcmp(k->table, table) != 0) {
        k++;
        assert(k < kinds + sizeof kinds / sizeof *kinds); /* each table has a row */
    }
    measure_loop(&l->fma, w, &k->fma);
    measure_loop(&l->bytes, w, &k->bytes);
    measure_loop(&l->fours, w, &k->fours);
}
