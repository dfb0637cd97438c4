/* probe.h: a memory rule by itself: one head without a model, into which pairs of a key and a value
 * are written and from which values are read back. Diagnostics.
 *
 *     S_t = f(S_{t-1}) + g(k_t, v_t)        v̂ = read(S, k)
 *
 * What a model would choose for each token is chosen here once and for all: a write is a whole one
 * (the delta rules' β and RWKV-7's a are 1), and decays are constant: a rule with one decay forgets
 * half in SL_PROBE_HALF_LIFE tokens, a rule with one per channel has half-lives from a sixteenth to
 * sixteen times of that. The arithmetic is the engine's own kernels.
 *
 * A memory belongs to one thread at a time. */
#ifndef SLATE_PROBE_H
#define SLATE_PROBE_H

#include "slate/err.h"

enum { SL_PROBE_HALF_LIFE = 256, SL_PROBE_SIZE_MAX = 512 };

struct sl_probe_rule {
    const char *name;  /* "delta_net" */
    const char *title; /* "DeltaNet" */
    const char *what;  /* what carries over and what is written, for people */
};

/* All of them; ends with a NULL name. */
extern const struct sl_probe_rule sl_probe_rules[];

struct sl_probe_memory;

/* An empty memory of rule number `rule`; keys and values have `size` channels, an even number from
 * 2 to SL_PROBE_SIZE_MAX. kernels: as in sl_model_options. `seed` is of the Performer's random
 * features. Errors: INVALID_VALUE, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_probe_memory_open(struct sl_probe_memory **ret, size_t rule,
                                               size_t size, const char *kernels, uint64_t seed,
                                               struct sl_error *err);
void sl_probe_memory_close(struct sl_probe_memory *m); /* NULL is fine */

/* Empty again. */
void sl_probe_memory_clear(struct sl_probe_memory *m);

/* One token. `key` has the length 1; rules with a feature map see it √size times as long, so that
 * its channels are of size 1, as a model's are. */
void sl_probe_memory_write(struct sl_probe_memory *m, const float *key, const float *value);

/* What the memory gives for a key, right after the last write; the memory stays as it is. NaN where
 * it is empty and the rule divides. */
void sl_probe_memory_read(struct sl_probe_memory *m, const float *key, float *ret_value);

/* Numbers that the memory is made of. */
size_t sl_probe_memory_values(const struct sl_probe_memory *m);

#endif
