/* snapshot_bench.c: how fast a state becomes a snapshot and a snapshot a state, beside memcpy.
 *
 * On the state of the 0.1B shape (12 layers, 12 heads of 64: 2.4 MB). Many states are gone through
 * in turn, more than caches hold, as sessions of a server are; memcpy goes through the same ones
 * the same way, into memory that was touched before. The rounds alternate; medians of rounds, and
 * of each round's ratio to memcpy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "server/cli/limits.h"
#include "slate/snapshot.h"
#include "tests/support/must.h"
#include "tests/support/seeded.h"

enum { N_STATES = 48, N_ROUNDS = 11, N_DTYPES = 3 };

static const enum sl_dtype dtypes[N_DTYPES] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_I8};

struct bench {
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    size_t bytes; /* of a state */
    unsigned char *states[N_STATES], *copies[N_STATES];
    unsigned char *files[N_STATES];
    size_t file_n[N_STATES];
};

/* Values as a memory has them: of many magnitudes, none special. */
static void fill(const struct bench *b, unsigned char *state, uint64_t seed)
{
    size_t n;
    const struct sl_state_tensor *t = sl_model_state_tensors(b->model, &n);
    sl_model_state_init(b->model, state);
    for (size_t i = 0; i < n; i++) {
        float *v = (float *)(void *)(state + t[i].offset);
        size_t elements = 1;
        for (unsigned a = 0; a < t[i].rank; a++)
            elements *= t[i].shape[a];
        for (size_t k = 0; k < elements; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            v[k] = ((float)(seed >> 40) - 0x1p23f) * 0x1p-23f / (float)(1 + (seed >> 32) % 64);
        }
    }
}

static struct sl_snapshot_info info_of(enum sl_dtype dtype)
{
    return (struct sl_snapshot_info){.session_id = "bench",
                                     .version = 1,
                                     .tokens_seen = 100,
                                     .continuation = "{\"pending\":[1]}",
                                     .dtype = dtype};
}

/* Processor time of this thread: all of it is work, and what else runs counts less. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double copy_all(struct bench *b)
{
    double t = now();
    for (size_t i = 0; i < N_STATES; i++)
        memcpy(b->copies[i], b->states[i], b->bytes);
    return now() - t;
}

/* As a server does: one is written, goes somewhere, and is freed. */
static double write_all(struct bench *b, enum sl_dtype dtype)
{
    struct sl_snapshot_info info = info_of(dtype);
    struct sl_error err;
    double t = now();
    for (size_t i = 0; i < N_STATES; i++) {
        unsigned char *file;
        size_t n;
        must(sl_snapshot_write(b->model, b->tokenizer, b->states[i], &info, &file, &n, &err), &err);
        sl_free(file);
    }
    return now() - t;
}

static double read_all(struct bench *b)
{
    struct sl_error err;
    double t = now();
    for (size_t i = 0; i < N_STATES; i++) {
        struct sl_snapshot_info got;
        must(sl_snapshot_read(b->model, b->tokenizer, b->files[i], b->file_n[i], b->copies[i], &got,
                              &err),
             &err);
        sl_free(got.text);
    }
    return now() - t;
}

static void set_up(struct bench *b, enum sl_dtype dtype)
{
    struct sl_snapshot_info info = info_of(dtype);
    struct sl_error err;
    for (size_t i = 0; i < N_STATES; i++) {
        sl_free(b->files[i]);
        must(sl_snapshot_write(b->model, b->tokenizer, b->states[i], &info, &b->files[i],
                               &b->file_n[i], &err),
             &err);
    }
    (void)copy_all(b);
    (void)write_all(b, dtype);
    (void)read_all(b);
}

static void print(const char *what, const struct series *s, const struct series *ratio,
                  const struct bench *b)
{
    double us = series_median(s) / N_STATES * 1e6;
    printf("  %-22s %8.0f µs  %6.2f GB/s of state", what, us, (double)b->bytes / us / 1e3);
    if (ratio)
        printf("   %3.0f %% of memcpy (%.0f to %.0f)", 100 * series_median(ratio),
               100 * series_quantile(ratio, 0.1), 100 * series_quantile(ratio, 0.9));
    printf("\n");
}

static void measure(struct bench *b, enum sl_dtype dtype)
{
    struct series copy = {.n = 0}, write = {.n = 0}, read = {.n = 0};
    struct series write_ratio = {.n = 0}, read_ratio = {.n = 0};
    char name[32];
    set_up(b, dtype);
    for (size_t i = 0; i < N_ROUNDS; i++) {
        double c = copy_all(b), w = write_all(b, dtype), r = read_all(b);
        series_add(&copy, c);
        series_add(&write, w);
        series_add(&read, r);
        series_add(&write_ratio, c / w);
        series_add(&read_ratio, c / r);
    }
    printf("%s: a file of %zu bytes\n", sl_dtype_name(dtype), b->file_n[0]);
    print("memcpy", &copy, NULL, b);
    (void)snprintf(name, sizeof name, "write %s", sl_dtype_name(dtype));
    print(name, &write, &write_ratio, b);
    (void)snprintf(name, sizeof name, "read %s", sl_dtype_name(dtype));
    print(name, &read, &read_ratio, b);
}

int main(void)
{
    /* The state does not depend on the vocabulary and the feed-forward. */
    struct seeded_shape shape = SEEDED_0_1B;
    shape.vocab_size = 256;
    shape.d_ffn = 768;
    struct bench b = {.bytes = 0};
    struct sl_error err;
    size_t n;
    unsigned char *source = NULL;
    b.model = seeded_open(&shape, NULL, &source, &n);
    must(sl_tokenizer_open(&b.tokenizer, "bytes", &err), &err);
    b.bytes = sl_model_info(b.model)->state_bytes;
    for (size_t i = 0; i < N_STATES; i++) {
        b.states[i] = must_have(sl_aligned_calloc(b.bytes));
        b.copies[i] = must_have(sl_aligned_calloc(b.bytes));
        fill(&b, b.states[i], i);
    }
    printf("snapshots of a state of %zu bytes, %d states in turn, one thread\n", b.bytes, N_STATES);
    for (size_t i = 0; i < N_DTYPES; i++)
        measure(&b, dtypes[i]);
    for (size_t i = 0; i < N_STATES; i++) {
        sl_free(b.states[i]);
        sl_free(b.copies[i]);
        sl_free(b.files[i]);
    }
    sl_tokenizer_close(b.tokenizer);
    sl_model_close(b.model);
    free(source);
    return 0;
}
