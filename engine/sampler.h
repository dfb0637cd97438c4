/* sampler.h: from one row of logits to one token. Private to libslate.
 *
 * One sl_sampler belongs to one running turn and holds what a turn's choices depend on beyond the
 * logits: the penalty counts and how many random numbers were drawn. Samplers of different turns
 * may run at the same time on different workers, each of which has scratch of its own, which it
 * uses for one turn after the other: so it stays in the cache. All is made at open: nothing
 * allocates afterwards.
 *
 * A choice, step by step. l is the row of logits, c[t] the count of token t.
 *
 *   counts    Of the tokens generated in this turn or, with penalty_last_n > 0, of the last n
 *             generated on the session. A token generated a tokens ago (0: the last one) counts
 *             penalty_decay^a, so c[t] = Σ penalty_decay^a over its occurrences (RWKV's alpha
 *             decay: each token multiplies the earlier counts). Tokens of the prompt do not count.
 *             Counts are floats; one that has decayed to 0 is none.
 *   penalties for every t with c[t] > 0, in this order
 *             repetition (Keskar 2019): l = l > 0 ? l / θ : l · θ
 *             presence, frequency (as OpenAI): l = l - presence - frequency · c[t]
 *   bias      l = l + bias, of each entry. All of this in double, then rounded to float and held
 *             within ±FLT_MAX; a logit of -inf (a token that cannot come) stays -inf.
 *   greedy    temperature 0: the largest l, the smallest id among equals. No draw; what follows is
 *             not done.
 *   top_k     keeps the k largest l. Off with 0 or where k is not less than what there is.
 *   typical_p (Meister 2022) p = softmax of what is left, H its entropy: keeps, in ascending order
 *             of |-ln p - H|, the fewest tokens whose p sum to at least typical_p.
 *   top_p     (Holtzman 2020) p = softmax of what is left: keeps, in descending order of p, the
 *             fewest tokens whose p sum to at least top_p.
 *   min_p     (Nguyen 2024) keeps p ≥ min_p · (the largest p of what is left).
 *             In these four the smaller id goes first among equals, and one token always stays:
 *             each keeps at least the first in its order, typical_p or top_p of 0 that alone. Where
 *             rounding lets no sum reach its bound, all are kept.
 *   draw      weights w = exp((l - max l) / temperature) of what is left; one uniform number u; the
 *             first token in the order of ids at which the running sum of w exceeds u · Σ w.
 *
 * -ln p - H is computed as Σ p·l - l, which is the same number. exp, sums and maxima are those of
 * kernels.h, so every kernel table chooses the same token from the same logits; exp below -87 is 0
 * here. A sum over tokens: blocks of 256 in the order of ids by sum16 (or dot16), the blocks' sums
 * in order in double. (Where a top_k of a 256th of the vocabulary or less leaves few, blocks are
 * made of those that are at least the k-th largest of the maxima of each 64 tokens.) The sums at a
 * cut: select.h. At temperature 1 behind typical_p, top_p or min_p, w is taken from there: exp(l -
 * the largest l before them). How all this is done in less time than it takes to say, and to the
 * same bits: candidates.h.
 *
 * The generator is SplitMix64 (Steele, Lea, Flood 2014): number i of a seed is a pure function of
 * (seed, i): z = mix(seed + (i + 1) · 0x9E3779B97F4A7C15), u = (z >> 11) · 2^-53. One number for
 * each choice at temperature > 0, also where only one token is left. So a continuation needs two
 * integers, and the counts come back by accepting the turn's tokens again.
 *
 * Log probabilities are those of the logits as they came, before all of this: l - (max + ln Σ
 * exp(l - max)), in double from the sum on. */
#ifndef SLATE_ENGINE_SAMPLER_H
#define SLATE_ENGINE_SAMPLER_H

#include "engine/kernels/kernels.h"
#include "slate/engine.h"

struct sl_sampler;
struct sl_sampler_scratch;

/* Checks what a client gave; errors: INVALID_VALUE, with the field's name as param. The functions
 * below assert what this refuses. */
SL_NODISCARD enum sl_code sl_sampling_check(const struct sl_sampling *p, size_t vocab_size,
                                            struct sl_error *err);

/* 8 bytes per token of the vocabulary, of which penalties touch those of the tokens they count.
 * Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_sampler_open(struct sl_sampler **ret, const struct sl_kernels *k,
                                          size_t vocab_size, struct sl_error *err);
void sl_sampler_close(struct sl_sampler *s); /* NULL is fine */

/* About 40 bytes per token of the vocabulary; pages of it that the settings in use do not need are
 * never touched: without a filter on all tokens those are most. Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_sampler_scratch_open(struct sl_sampler_scratch **ret,
                                                  size_t vocab_size, struct sl_error *err);
void sl_sampler_scratch_close(struct sl_sampler_scratch *x); /* NULL is fine */

/* Starts a turn. `p` (and its bias) must stay valid until the next start; `ring` may be NULL.
 * `draws` is 0 at the start of a turn and what sl_sampler_draws() said where one goes on. */
void sl_sampler_start(struct sl_sampler *s, const struct sl_sampling *p,
                      const struct sl_penalty_ring *ring, uint64_t draws);

/* Chooses a token; x is for the sampler's vocabulary. `logits` (vocab_size floats, 64-byte aligned)
 * and `tops` (kernels.h; NULL: they are looked for) may be overwritten. With n_top ≥ 0 writes the
 * model's own log probabilities of the choice and of the n_top most likely to *lp. Returns
 * SL_E_MODEL_NOT_FINITE, and nothing else changes, when a logit is NaN or +inf or all are -inf (a
 * single -inf is a token that cannot come). Does not count the token: see accept. */
enum sl_code sl_sampler_choose(struct sl_sampler *s, struct sl_sampler_scratch *x, float *logits,
                               float *tops, int n_top, uint32_t *ret_token,
                               struct sl_token_logprobs *lp);

/* Log probabilities of a given token under untouched logits, for tokens that were not chosen here
 * (a replayed head). The same errors. */
enum sl_code sl_sampler_logprobs(const struct sl_sampler *s, struct sl_sampler_scratch *x,
                                 const float *logits, const float *tops, uint32_t token, int n_top,
                                 struct sl_token_logprobs *lp);

/* The token was generated: it counts for the penalties from now on. */
void sl_sampler_accept(struct sl_sampler *s, uint32_t token);

uint64_t sl_sampler_draws(const struct sl_sampler *s);

#endif
