/* limits.h: what the machine can do, and the rounds of a measurement: for benches.
 *
 * The limits are measured with code that does nothing else: reading memory in one and in four
 * streams a thread, and on registers f32 fused multiply-adds and products of bytes, as the table's
 * instructions have them: with a sum in 32 bits after every product (what 8-bit weights need), and
 * after every eighth one (what 4-bit weights allow). Of `ref` they are plain loops, as it has them.
 */
#ifndef SLATE_CLI_LIMITS_H
#define SLATE_CLI_LIMITS_H

#include <stddef.h>

#include "engine/workers.h"
#include "slate/base.h"

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
    struct series read_1, read_4;    /* GB/s */
    struct series fma, bytes, fours; /* operations per ns */
};

/* What bounds products of a matrix of this type. */
const struct series *limits_arithmetic(const struct limits *l, enum sl_dtype type);

/* One round on all of w's threads, for a table that runs here; reads n_bytes of memory, which
 * should be larger than any cache and lie in huge pages. */
void limits_measure(struct limits *l, struct sl_workers *w, const char *table, const void *memory,
                    size_t n_bytes);

#endif
