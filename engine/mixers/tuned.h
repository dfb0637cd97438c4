/* tuned.h: what the memory of RWKV-5, 6 or 7 holds before the first token, where that was learned
 * (BlinkDL's "state tuning"). Private to libslate.
 *
 * A trained beginning is a tensor blocks.N.att.time_state [head][value][key] of each layer,
 * whatever the version; a slot has [head][key][value]. It comes in a file of its own
 * (snapshot_initial.c), or merged into the model's: then it is how the model begins. */
#ifndef SLATE_MIXERS_TUNED_H
#define SLATE_MIXERS_TUNED_H

#include "engine/load.h"

struct sl_tuned {
    const float *v; /* NULL: zeros */
    size_t n_heads, n;
};

/* Layer i's, where the model's file has one. */
void sl_tuned_load(struct sl_load *l, struct sl_tuned *t, size_t n_heads, size_t n, size_t i);

/* An error where a file of web-rwkv has one: its converters have exchanged the axes since 2025, and
 * which one made a file does not show. */
void sl_tuned_refuse(struct sl_load *l);

/* Into a layer's zeroed matrices. */
void sl_tuned_init(const struct sl_tuned *t, float *state);

#endif
