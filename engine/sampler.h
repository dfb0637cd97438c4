/* sampler.h: from one row of logits to one token. Private to libslate.
 *
 * One sl_sampler belongs to one running turn and holds what a turn's choices depend on beyond the
 * logits: the penalty counts and how many random numbers were drawn. The generator is SplitMix64
 * (Steele, Lea, Flood 2014): number i of a seed is a pure function of (seed, i), so a continuation
 * needs two integers. Samplers of different turns may run at the same time on different workers;
 * each has its own scratch, made at open: nothing allocates afterwards. */
#ifndef SLATE_ENGINE_SAMPLER_H
#define SLATE_ENGINE_SAMPLER_H

#include "engine/kernels/kernels.h"
#include "slate/engine.h"

struct sl_sampler;

SL_NODISCARD enum sl_code sl_sampler_open(struct sl_sampler **ret, const struct sl_kernels *k,
                                          size_t vocab_size, struct sl_error *err);
void sl_sampler_close(struct sl_sampler *s);

/* Starts a turn. `p` (and its bias) must stay valid until the next start; `ring` may be NULL.
 * `draws` is 0 at the start of a turn and what sl_sampler_draws() said where one goes on. */
void sl_sampler_start(struct sl_sampler *s, const struct sl_sampling *p,
                      const struct sl_penalty_ring *ring, uint64_t draws);

/* Chooses a token; `logits` (vocab_size floats, 64-byte aligned) is overwritten. With n_top ≥ 0
 * writes the model's own log probabilities of the choice and of the n_top most likely to *lp.
 * Returns SL_E_MODEL_NOT_FINITE, and nothing else changes, when a logit is NaN or +inf or all are
 * -inf (a single -inf is a token that cannot come). Does not count the token: see accept. */
enum sl_code sl_sampler_choose(struct sl_sampler *s, float *logits, int n_top, uint32_t *ret_token,
                               struct sl_token_logprobs *lp);

/* Log probabilities of a given token under untouched logits, for tokens that were not chosen here
 * (a replayed head). The same errors. */
enum sl_code sl_sampler_logprobs(struct sl_sampler *s, const float *logits, uint32_t token,
                                 int n_top, struct sl_token_logprobs *lp);

/* The token was generated: it counts for the penalties from now on. */
void sl_sampler_accept(struct sl_sampler *s, uint32_t token);

uint64_t sl_sampler_draws(const struct sl_sampler *s);

#endif
