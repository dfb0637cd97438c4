/* bits.c: what every rule's forward pass gives, to the bit, on whatever this was built for.
 *
 *   bits [table]           (default: the best table of kernels)
 *
 * One line for a model: its title, a hash of the logits and one of the state, after some tokens in
 * chunks and one by one, alone and beside others. suite.sh compares the lines of two architectures.
 * Models are seeded, in memory or in a temporary folder, or GGUF files of tests/vectors. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "tests/support/among.h"
#include "tests/support/must.h"
#include "tests/support/rules.h"
#include "tests/support/seeded.h"

enum { TOKENS = 24, MAX_ROWS = 64, THREADS = 2, OTHERS = 2 };

static void print_bits(const char *title, const struct sl_model *m)
{
    static const size_t chunks[] = {7, 1};
    for (size_t i = 0; i < 2; i++) {
        struct runner r;
        struct others o;
        runner_open(&r, m, THREADS, MAX_ROWS, OTHERS + 1);
        others_open(&o, m, i == 0 ? OTHERS : 0);
        struct hashes h = run_among(&r, chunks[i], TOKENS, &o);
        printf("%s, chunks of %zu: logits %016" PRIx64 ", state %016" PRIx64 "\n", title, chunks[i],
               h.logits, h.state);
        others_close(&o);
        runner_close(&r);
    }
}

/* A seeded model of a file of one type, kept as another. */
static void print_seeded(enum sl_dtype dtype, enum sl_dtype weights, const char *kernels)
{
    const struct sl_model_options opt = {.weights = weights, .kernels = kernels};
    struct seeded_shape shape = SEEDED_ODD;
    unsigned char *bytes;
    size_t n_bytes;
    char title[64];
    shape.dtype = dtype;
    struct sl_model *m = seeded_open(&shape, &opt, &bytes, &n_bytes);
    (void)snprintf(title, sizeof title, "seeded rwkv7 %s", sl_dtype_name(weights));
    print_bits(title, m);
    sl_model_close(m);
    free(bytes);
}

/* A file whose own codes run. */
static void print_file(const char *name, const char *kernels)
{
    char path[128];
    struct sl_error err;
    struct sl_model *m = NULL;
    (void)snprintf(path, sizeof path, "tests/vectors/gguf/%s.gguf", name);
    must(sl_model_open(&m, &(struct sl_model_options){.path = path, .kernels = kernels}, &err),
         &err);
    print_bits(name, m);
    sl_model_close(m);
}

int main(int argc, char **argv)
{
    const char *kernels = argc > 1 ? argv[1] : NULL;
    print_seeded(SL_DTYPE_F32, SL_DTYPE_F32, kernels);
    print_seeded(SL_DTYPE_F16, SL_DTYPE_F16, kernels);
    print_seeded(SL_DTYPE_BF16, SL_DTYPE_BF16, kernels);
    print_seeded(SL_DTYPE_F32, SL_DTYPE_Q8, kernels);
    print_seeded(SL_DTYPE_F32, SL_DTYPE_Q4, kernels);
    print_file("rwkv7-q4_q8", kernels);
    print_file("mamba2-q4_k_m", kernels);
    for (const struct rule *r = rules; r->title; r++) {
        struct sl_model *m = rule_open(r, kernels);
        print_bits(r->title, m);
        sl_model_close(m);
    }
    return 0;
}
