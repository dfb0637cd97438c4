/* forward.h: the forward pass over a ragged batch, as the engine calls it. Private to libslate.
 *
 * All rows of all segments go through each projection as one matrix product; the mixer then runs
 * per (segment, head). No allocation, no failure: everything was made at open. */
#ifndef SLATE_ENGINE_FORWARD_H
#define SLATE_ENGINE_FORWARD_H

#include "engine/workers.h"
#include "slate/model.h"

/* Bytes at the start of every state: counters. The mixers' tensors follow. */
struct sl_state_header {
    uint64_t tokens_seen; /* consumed since the initial state; the forward pass counts them */
    uint64_t reserved[7];
};

/* One tensor of the state, by the name it has in a snapshot. */
struct sl_state_tensor {
    char name[64];       /* "layers.3.mixer.state" */
    enum sl_dtype dtype; /* F32 or I64 */
    unsigned rank;
    size_t shape[4];
    size_t offset; /* bytes from the slot's start; a multiple of 64 */
};

/* In the order of their offsets. Lives as long as the model. */
const struct sl_state_tensor *sl_model_state_tensors(const struct sl_model *m, size_t *ret_n);

/* Writes the initial state: `state` has info->state_bytes, 64-byte aligned. */
void sl_model_state_init(const struct sl_model *m, void *state);

/* Whether every float of it is finite; only such a state can become a snapshot. In snapshot.c. */
bool sl_model_state_is_finite(const struct sl_model *m, const void *state);

/* Tokens that the state can still be fed: SIZE_MAX but for models with a table of positions. */
size_t sl_model_room(const struct sl_model *m, const void *state);

/* Logits of one row lie this many floats apart: vocab_size rounded up to whole panels, and behind
 * them the row's tops (kernels.h), which are made as the logits are. */
size_t sl_model_logits_stride(const struct sl_model *m);
float *sl_model_logits_tops(const struct sl_model *m, float *logits);

struct sl_segment {
    void *state;            /* updated in place; no two segments of a step share one */
    const uint32_t *tokens; /* n_tokens ≥ 1 ids, all below vocab_size (asserted) */
    size_t n_tokens;
    float *logits;   /* n_logits rows, 64-byte aligned; NULL when n_logits is 0 */
    size_t n_logits; /* logits after each of the last n_logits tokens, oldest first */
};

/* The activations of a step; belongs to one engine thread. */
struct sl_forward;

SL_NODISCARD enum sl_code sl_forward_open(struct sl_forward **ret, const struct sl_model *m,
                                          struct sl_workers *w, size_t max_rows,
                                          size_t max_segments, struct sl_error *err);
void sl_forward_close(struct sl_forward *f);

/* Σ n_tokens ≤ max_rows, n ≤ max_segments (asserted). Feeds every segment's tokens and counts
 * them in the states. The bits of a segment's state and logits do not depend on the others, on
 * how its tokens are cut into steps, or on the number of workers. */
void sl_forward_run(struct sl_forward *f, const struct sl_segment *segments, size_t n);

#endif
