/* probe_batch.h: many states read and asked at once, for `slate probe model`: the forward pass
 * without the engine's turns, since a probe looks at states and logits. One thread. */
#ifndef SLATE_SERVER_CLI_PROBE_BATCH_H
#define SLATE_SERVER_CLI_PROBE_BATCH_H

#include "engine/forward.h"
#include "server/cli/load.h"

enum { SL_PROBE_BATCH = 32 }; /* states */

struct sl_probe_batch {
    const struct sl_loaded *loaded;
    const struct sl_model_info *info;
    struct sl_workers *workers;
    struct sl_forward *forward;
    void *state[SL_PROBE_BATCH],
        *fork[SL_PROBE_BATCH];     /* what is read, and copies that are asked */
    float *logits[SL_PROBE_BATCH]; /* after the last token that each was fed */
};

SL_NODISCARD enum sl_code sl_probe_batch_open(struct sl_probe_batch *b,
                                              const struct sl_loaded *loaded, size_t n_threads,
                                              struct sl_error *err);
void sl_probe_batch_close(struct sl_probe_batch *b); /* all zero is fine */

/* All states as at a text's beginning: with the model's begin token, where it has one. */
void sl_probe_begin(struct sl_probe_batch *b, size_t n);

/* Feeds tokens[i][0 … n_tokens[i]) to states[i], for i < n. */
void sl_probe_feed(struct sl_probe_batch *b, void *const *states, uint32_t *const *tokens,
                   const size_t *n_tokens, size_t n);

/* fork[i] = state[i] for i < n. */
void sl_probe_fork(struct sl_probe_batch *b, size_t n);

uint32_t sl_probe_likeliest(const struct sl_probe_batch *b, size_t i);

#endif
