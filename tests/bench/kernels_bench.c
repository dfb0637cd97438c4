/* kernels_bench.c: what the kernels reach, beside what the machine can do, measured in the same
 * run.
 *
 *   kernels_bench [table] [rounds] [type]      (default: the best table, 5 rounds, all types)
 *
 * The limits are measured with code that does nothing else: reading memory in one and in four
 * streams a thread, and f32 fused multiply-adds on registers. Limits and products take turns, round
 * by round; printed are medians and, of the limits, the spread. A product's weights are read from
 * a ring of copies, as large as a model, so few rows show the speed of memory and many rows that of
 * arithmetic. GB/s counts the weights' bytes once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "engine/pass.h"
#include "engine/workers.h"
#include "server/cli/limits.h"
#include "tests/support/floats.h"
#include "tests/support/quants.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX_ROUNDS = SERIES_MAX, MAX_ROWS = 512, MAX_THREADS = 2, MAX_IN = 4096, MAX_OUT = 65536 };

static const size_t RING_BYTES = (size_t)256 << 20;
static const double MIN_SECONDS = 0.008; /* of one measurement */

static const struct {
    size_t n_in, n_out;
} shapes[] = {{768, 768},   {768, 3072},  {3072, 768},  {768, 65536}, /* of RWKV-7 0.1B */
              {1024, 1024}, {1024, 4096}, {4096, 1024}, {1024, 65536} /* and of 0.4B */};
static const size_t rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 512};
static const enum sl_dtype types[] = {SL_DTYPE_F32,  SL_DTYPE_F16,  SL_DTYPE_BF16,
                                      SL_DTYPE_Q8,   SL_DTYPE_Q5,   SL_DTYPE_Q4,
                                      SL_DTYPE_Q4_0, SL_DTYPE_Q6_K, SL_DTYPE_Q4_K};

/* --- products --- */

struct product {
    const struct sl_kernels *k;
    float *y;
    const float *x;
    const struct sl_group *q; /* the same in 8 bits */
    const char *w;
    enum sl_dtype type;
    size_t rows, n_in, n_out;
};

static void product_part(void *arg, size_t part, size_t n_parts)
{
    const struct product *p = arg;
    size_t begin, end, panels = sl_panels(p->n_out);
    size_t ldx = sl_row_floats(p->n_in), ldy = sl_row_floats(p->n_out);
    sl_work_range(panels, 1, part, n_parts, &begin, &end);
    if (p->q)
        p->k->matmul_q(p->y, ldy, p->q, sl_groups(p->n_in), p->rows, p->w, p->type, p->n_in, begin,
                       end);
    else
        p->k->matmul(p->y, ldy, p->x, ldx, p->rows, p->w, p->type, p->n_in, begin, end);
}

/* Seconds of one product. `at`: where in the ring the last one ended. */
static double measure_product(struct product *p, struct sl_workers *w, const char *ring, size_t *at)
{
    size_t bytes = sl_pack_bytes(p->type, p->n_out, p->n_in);
    double begin = bench_now(), t;
    size_t n = 0;
    do {
        if (*at + bytes > RING_BYTES)
            *at = 0;
        p->w = ring + *at;
        *at += bytes;
        sl_workers_run(w, product_part, p);
        n++;
        t = bench_now() - begin;
    } while (t < MIN_SECONDS);
    return t / (double)n;
}

struct bench {
    const struct sl_kernels *k;
    struct sl_workers *w[MAX_THREADS];
    struct limits limits[MAX_THREADS];
    struct series cells[MAX_THREADS][COUNT(shapes)][COUNT(rows)];
    char *ring;
    float *x, *y;
    struct sl_group *q;
};

/* One packed matrix over and over; of the types that come from files only, of random blocks. */
static void fill_ring(struct bench *b, enum sl_dtype type)
{
    enum { N = 768 };
    size_t bytes = sl_pack_bytes(type, N, N);
    float *w = b->y; /* large enough, and free now */
    fill_uniform(w, (size_t)N * N, 1);
    unsigned char *panels =
        sl_is_k(type) ? quant_from_k_blocks(type, N, N, 1, NULL) : quant_pack(type, w, N, N);
    memcpy(b->ring, panels, bytes);
    sl_free(panels);
    for (size_t done = bytes; done < RING_BYTES; done += bytes)
        memcpy(b->ring + done, b->ring, RING_BYTES - done < bytes ? RING_BYTES - done : bytes);
}

static void measure_type(struct bench *b, enum sl_dtype type, size_t n_rounds)
{
    size_t at = 0;
    memset(b->cells, 0, sizeof b->cells);
    for (size_t round = 0; round < n_rounds; round++) {
        for (size_t t = 0; t < MAX_THREADS; t++) {
            limits_measure(&b->limits[t], b->w[t], b->k->name, b->ring, RING_BYTES);
            for (size_t i = 0; i < COUNT(shapes) * COUNT(rows); i++) {
                size_t s = i / COUNT(rows), r = i % COUNT(rows);
                struct product p = {.k = b->k,
                                    .y = b->y,
                                    .x = b->x,
                                    .q = sl_is_quantised(type) ? b->q : NULL,
                                    .type = type,
                                    .rows = rows[r],
                                    .n_in = shapes[s].n_in,
                                    .n_out = shapes[s].n_out};
                series_add(&b->cells[t][s][r], measure_product(&p, b->w[t], b->ring, &at));
            }
        }
    }
}

static void print_limits(const char *name, const struct series *s, const char *unit)
{
    printf("  %s %.1f %s (%.1f to %.1f)", name, series_median(s), unit, series_quantile(s, 0),
           series_quantile(s, 1));
}

static void print_type(const struct bench *b, enum sl_dtype type)
{
    for (size_t t = 0; t < MAX_THREADS; t++) {
        const struct limits *l = &b->limits[t];
        printf("\n%s, %s, %zu thread%s. Limits:", b->k->name, sl_dtype_name(type), t + 1,
               t ? "s" : "");
        print_limits("read, 1 stream", &l->read_1, "GB/s");
        print_limits("4 streams", &l->read_4, "GB/s");
        const struct series *arithmetic = limits_arithmetic(l, type);
        print_limits("arithmetic", arithmetic, "GOP/s");
        printf("\n  rows   in x out         µs     GB/s  of read    GOP/s   of arithmetic\n");
        for (size_t s = 0; s < COUNT(shapes); s++) {
            for (size_t r = 0; r < COUNT(rows); r++) {
                double us = series_median(&b->cells[t][s][r]) * 1e6;
                double n = (double)shapes[s].n_in * (double)shapes[s].n_out;
                size_t bytes = sl_pack_bytes(type, shapes[s].n_out, shapes[s].n_in);
                double gb = (double)bytes / us / 1e3;
                double gflop = 2 * n * (double)rows[r] / us / 1e3;
                printf("  %4zu %5zu x %-6zu %9.1f %8.1f %7.0f%% %8.1f %7.0f%%\n", rows[r],
                       shapes[s].n_in, shapes[s].n_out, us, gb,
                       100 * gb / series_median(&l->read_4), gflop,
                       100 * gflop / series_median(arithmetic));
            }
        }
    }
}

/* --- states and functions, on one thread --- */

enum { HEAD = 64, HEADS = 144, FUNCTION_N = 4096 };

/* Every head of a 12 x 768 model once; seconds of one head. */
static double measure_states(const struct bench *b, bool step)
{
    static float v[6][HEAD], out[HEAD];
    float *s = b->y;
    for (size_t i = 0; i < 6; i++)
        fill_uniform(v[i], HEAD, i);
    for (size_t i = 0; i < HEAD; i++)
        v[0][i] = 0.9F; /* decay: the state stays finite and is not drowned in denormals */
    fill_uniform(s, (size_t)HEADS * HEAD * HEAD, 9);
    double begin = bench_now(), t;
    size_t n = 0;
    do {
        for (size_t h = 0; h < HEADS; h++) {
            float *head = s + h * HEAD * HEAD;
            if (step)
                b->k->state_step(out, head, v[0], v[1], v[2], v[3], v[4], v[5], HEAD, HEAD);
            else
                b->k->state_read(out, head, v[5], HEAD, HEAD);
        }
        n += HEADS;
        t = bench_now() - begin;
    } while (t < MIN_SECONDS);
    return t / (double)n;
}

static double measure_function(void (*f)(float *, const float *, size_t))
{
    static float x[FUNCTION_N], y[FUNCTION_N];
    fill_uniform(x, FUNCTION_N, 3);
    double begin = bench_now(), t;
    size_t n = 0;
    do {
        f(y, x, FUNCTION_N);
        n += FUNCTION_N;
        t = bench_now() - begin;
    } while (t < MIN_SECONDS);
    return t / (double)n;
}

static double measure_norm(const struct bench *b)
{
    static float x[768], y[768];
    fill_uniform(x, 768, 4);
    double begin = bench_now(), t;
    size_t n = 0;
    do {
        b->k->layer_norm(y, x, x, x, 768, 1e-5F);
        n++;
        t = bench_now() - begin;
    } while (t < MIN_SECONDS);
    return t / (double)n;
}

static void measure_small(const struct bench *b, size_t n_rounds)
{
    struct series step = {.n = 0}, read = {.n = 0}, norm = {.n = 0}, fn[3] = {{.n = 0}};
    for (size_t i = 0; i < n_rounds; i++) {
        series_add(&step, measure_states(b, true));
        series_add(&read, measure_states(b, false));
        series_add(&norm, measure_norm(b));
        series_add(&fn[0], measure_function(b->k->vexp));
        series_add(&fn[1], measure_function(b->k->vtanh));
        series_add(&fn[2], measure_function(b->k->vsigmoid));
    }
    printf("\n%s, 1 thread:\n", b->k->name);
    printf("  state_step 64 x 64  %6.3f µs  %6.1f GFLOP/s\n", series_median(&step) * 1e6,
           7e-9 * HEAD * HEAD / series_median(&step));
    printf("  state_read 64 x 64  %6.3f µs  %6.1f GFLOP/s\n", series_median(&read) * 1e6,
           2e-9 * HEAD * HEAD / series_median(&read));
    printf("  layer_norm 768      %6.3f µs\n", series_median(&norm) * 1e6);
    printf("  exp %.2f G/s, tanh %.2f G/s, sigmoid %.2f G/s\n", 1e-9 / series_median(&fn[0]),
           1e-9 / series_median(&fn[1]), 1e-9 / series_median(&fn[2]));
}

static bool prepare(struct bench *b)
{
    for (size_t t = 0; t < MAX_THREADS; t++)
        if (sl_workers_open(&b->w[t], t + 1, NULL) != SL_OK)
            return false;
    /* As the model and the engine allocate them. */
    const size_t n_x = MAX_ROWS * sl_row_floats(MAX_IN), x_bytes = n_x * sizeof(float),
                 y_bytes = MAX_ROWS * sl_row_floats(MAX_OUT) * sizeof(float);
    b->ring = sl_huge_alloc(RING_BYTES);
    b->x = sl_huge_alloc(x_bytes);
    b->y = sl_huge_alloc(y_bytes);
    b->q = sl_huge_alloc(sizeof *b->q * sl_groups((size_t)MAX_ROWS * MAX_IN));
    if (!b->ring || !b->x || !b->y || !b->q)
        return false;
    memset(b->ring, 0, RING_BYTES);
    memset(b->y, 0, y_bytes);
    fill_uniform(b->x, n_x, 2);
    b->k->quantise(b->q, b->x, (size_t)MAX_ROWS * MAX_IN);
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    size_t n_rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 5;
    b.k = sl_kernels_find(argc > 1 && argv[1][0] ? argv[1] : NULL);
    if (!b.k || n_rounds < 1 || n_rounds > MAX_ROUNDS) {
        fprintf(stderr,
                "usage: kernels_bench [table] [1 to %d rounds] [type]; tables:", MAX_ROUNDS);
        for (const char *const *name = sl_kernels_names(); *name; name++)
            fprintf(stderr, " %s", *name);
        fprintf(stderr, "\n");
        return 2;
    }
    if (!prepare(&b)) {
        fprintf(stderr, "kernels_bench: not enough memory\n");
        return 1;
    }
    measure_small(&b, n_rounds);
    for (size_t i = 0; i < COUNT(types); i++) {
        if (argc > 3 && strcmp(argv[3], sl_dtype_name(types[i])) != 0)
            continue;
        memset(b.limits, 0, sizeof b.limits);
        fill_ring(&b, types[i]);
        measure_type(&b, types[i], n_rounds);
        print_type(&b, types[i]);
    }
    for (size_t t = 0; t < MAX_THREADS; t++)
        sl_workers_close(b.w[t]);
    sl_free(b.ring);
    sl_free(b.x);
    sl_free(b.q);
    sl_free(b.y);
    return 0;
}
