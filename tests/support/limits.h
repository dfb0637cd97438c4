/* limits.h: what the machine can do, and the rounds of a measurement: for benches.
 *
 * The limits are measured with code that does nothing else: reading memory in one and in four
 * streams a thread, and f32 fused multiply-adds on registers. */
#ifndef SLATE_TESTS_LIMITS_H
#define SLATE_TESTS_LIMITS_H

#include <stddef.h>

#include "engine/workers.h"

double bench_now(void); /* seconds */

enum { SERIES_MAX = 15 };

/* The rounds of one quantity. Rounds beyond SERIES_MAX are dropped. */
struct series {
    double value[SERIES_MAX];
    size_t n;
};

void series_add(struct series *s, double v);
double series_quantile(const struct series *s, double q); /* n ≥ 1 */
double series_median(const struct series *s);

struct limits {
    struct series read_1, read_4, fma; /* GB/s, GB/s, GFLOP/s; fma.n 0: not known for the table */
};

/* One round on all of w's threads; reads n_bytes of memory, which should be larger than any cache
 * and lie in huge pages. */
void limits_measure(struct limits *l, struct sl_workers *w, const char *table, const void *memory,
                    size_t n_bytes);

#endif
