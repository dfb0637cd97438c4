/* workers.h: the engine thread's helpers. Each call runs one function in parts, on all of them.
 *
 * Owner: the engine thread. A worker spins for a short while for the next call (a step is some
 * hundred calls) and sleeps on a futex after that; it never holds a lock that the engine waits
 * for. How work is cut into parts must not change any result: parts are ranges of outputs, rows or
 * heads, never of a sum. */
#ifndef SLATE_ENGINE_WORKERS_H
#define SLATE_ENGINE_WORKERS_H

#include "slate/err.h"

struct sl_workers;

enum { SL_MAX_THREADS = 1024 };

/* part: 0 … n_parts - 1. Part 0 runs on the calling thread, and so may others, one after another,
 * whose workers are late: no part may wait for another one, and what a function keeps is the
 * part's, not the thread's. Must not allocate or block. */
typedef void sl_work_fn(void *arg, size_t part, size_t n_parts);

/* Processors that this process may run on. */
size_t sl_processors(void);

/* 1 ≤ n_threads ≤ SL_MAX_THREADS, and counts the caller. Errors: NO_MEMORY, INVALID_VALUE, INTERNAL
 * (no thread). */
SL_NODISCARD enum sl_code sl_workers_open(struct sl_workers **ret, size_t n_threads,
                                          struct sl_error *err);
void sl_workers_close(struct sl_workers *w); /* NULL is fine */
size_t sl_workers_threads(const struct sl_workers *w);

/* Returns when every part has returned; all they wrote is visible. */
void sl_workers_run(struct sl_workers *w, sl_work_fn *fn, void *arg);

/* How many calls there have been: each is a barrier for all threads. */
uint64_t sl_workers_calls(const struct sl_workers *w);

/* The half-open range of n items, in whole grains, that a part works on. */
static inline void sl_work_range(size_t n, size_t grain, size_t part, size_t n_parts,
                                 size_t *ret_begin, size_t *ret_end)
{
    size_t grains = (n + grain - 1) / grain;
    size_t b = grains * part / n_parts * grain;
    size_t e = grains * (part + 1) / n_parts * grain;
    *ret_begin = b < n ? b : n;
    *ret_end = e < n ? e : n;
}

#endif
