/* memory.h: how a state looks inside: how much its matrices hold, and for how long. Diagnostics.
 *
 * A state fills silently: nothing fails when a matrix holds more than it can give back. Three
 * numbers per head tell something of it:
 *
 *   norm            Frobenius norm of its matrix. One that grows with the tokens adds without
 *                   forgetting; one that stays has a decay or erases.
 *   effective rank  e^H of the singular values' shares σ_i / Σ σ (Roy and Vetterli, "The effective
 *                   rank", 2007): in how many directions it holds something. At most the smaller
 *                   side of the matrix, which is also the number of keys that it can keep apart.
 *   half-life       tokens in which half of what was written is gone, by decay or by being erased.
 *                   Measured, not read from weights, so the same for every rule: a copy of the
 * state in which one layer's matrices were disturbed is fed the same tokens; what is left of the
 * disturbance after them is what is left of anything written.
 *
 * RWKV-4 keeps one number per channel: a matrix of one row. */
#ifndef SLATE_MEMORY_H
#define SLATE_MEMORY_H

#include "slate/model.h"

struct sl_memory_head {
    size_t layer, head;
    size_t rows, cols;
    double norm;
    double effective_rank; /* 0: the matrix is zero */
    double half_life;      /* tokens; infinity: nothing is lost; NaN: not measured, or not finite */
};

/* How many matrices the states of a model have. */
size_t sl_memory_heads(const struct sl_model *m);

/* Norm and effective rank of each matrix of a state (64-byte aligned, read only), half_life NaN;
 * ret has sl_memory_heads() entries. Any thread. Errors: NO_MEMORY, MODEL_NOT_FINITE (the state
 * holds a value that is no number). */
SL_NODISCARD enum sl_code sl_memory_measure(const struct sl_model *m, const void *state,
                                            struct sl_memory_head *ret, struct sl_error *err);

/* Fills in half_life, over the next n tokens after `state`, which is only read: the n_tokens given
 * ones (≥ 1), then those that the model itself would choose, always the most likely one. Takes
 * n_layers + 1 states of memory and feeds n · (n_layers + 1) tokens on the calling thread. Any
 * thread. Errors: NO_MEMORY, CONTEXT_EXCEEDED (the model has fewer positions left than n). */
SL_NODISCARD enum sl_code sl_memory_half_lives(const struct sl_model *m, const void *state,
                                               const uint32_t *tokens, size_t n_tokens, size_t n,
                                               struct sl_memory_head *ret, struct sl_error *err);

#endif
