/* bench_steps.h: `slate bench --shape`: steps of a model of that shape, beside the machine's
 * limits. */
#ifndef SLATE_SERVER_CLI_BENCH_STEPS_H
#define SLATE_SERVER_CLI_BENCH_STEPS_H

#include "slate/err.h"

struct sl_bench_steps {
    const char *shape;   /* a name of shape.h */
    const char *weights; /* "bf16,q8,q4" */
    const char *batch;   /* "1,32": sessions that decode together */
    const char *kernels; /* NULL: the best */
    uint64_t prompt;     /* tokens of a prefill; 0: none is measured */
    uint64_t threads;    /* 0: all processors */
    uint64_t rounds;
    const char *peer; /* a llama.cpp build; NULL: none */
    bool json, csv;   /* instead of a table; one of them at most */
};

/* Prints. Errors: USAGE, NO_MEMORY; with a peer those of peer.h. */
SL_NODISCARD enum sl_code sl_bench_steps(const struct sl_bench_steps *opt, struct sl_error *err);

#endif
