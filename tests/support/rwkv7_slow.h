/* rwkv7_slow.h: RWKV-7 once more, in double precision and in the plainest loops, straight from the
 * paper's equations: what the engine's results are compared with where no reference folder is. It
 * shares nothing with the engine but the reader of tensors. */
#ifndef SLATE_TESTS_RWKV7_SLOW_H
#define SLATE_TESTS_RWKV7_SLOW_H

#include "engine/formats/tensors.h"

struct slow;

/* `t` must outlive it. Ends the program when the tensors are not a model. */
struct slow *slow_open(const struct sl_tensors *t);
void slow_close(struct slow *s);

/* The state begins as a state-tuned file says: blocks.N.att.time_state [head][value][key]. */
void slow_begin(struct slow *s, const struct sl_tensors *tuned);

/* One token; logits (may be NULL) has vocab values. The state begins as zeros, where
 * nothing else was said. */
void slow_feed(struct slow *s, uint32_t token, double *logits);

/* The state: [head][value][key] of a layer, and what its two token shifts keep. */
const double *slow_state(const struct slow *s, size_t layer);
const double *slow_shift(const struct slow *s, size_t layer, bool ffn);

#endif
