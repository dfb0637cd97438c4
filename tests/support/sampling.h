/* sampling.h: choices by a slow version of the sampler that sorts everything, in double precision,
 * written from the definitions in engine/sampler.h; by an exact one; and what tests of the sampler
 * share. */
#ifndef SLATE_TESTS_SAMPLING_H
#define SLATE_TESTS_SAMPLING_H

#include "engine/sampler.h"
#include "engine/select.h"

/* One seeded generator for a whole test program. */
void slow_seed(uint64_t seed);
uint32_t slow_rnd(uint32_t below);
double slow_uniform(void); /* in (0, 1) */
double slow_gauss(void);

/* A zeroed row of logits; freed with sl_free(). */
float *make_row(size_t n);
struct sl_sampler *open_sampler(const char *kernels, size_t vocab_size);

/* Of that vocabulary, for whoever asks next; freed at the end. */
struct sl_sampler_scratch *scratch_for(size_t vocab_size);

/* One choice from a copy of l: the sampler overwrites its row. Every other time with its tops. */
uint32_t choose(struct sl_sampler *s, const float *l, size_t n);

/* Settings at random; each its own field, set_all some of all. */
void set_plain(struct sl_sampling *p, size_t vocab_size);
void set_top_k(struct sl_sampling *p, size_t vocab_size);
void set_top_p(struct sl_sampling *p, size_t vocab_size);
void set_min_p(struct sl_sampling *p, size_t vocab_size);
void set_typical_p(struct sl_sampling *p, size_t vocab_size);
void set_all(struct sl_sampling *p, size_t vocab_size);

/* All penalties and the ring, at random. */
void set_penalties(struct sl_sampling *p);

/* Number i of a seed, in [0, 1). */
double slow_draw(uint64_t seed, uint64_t i);

/* The token for draw number i from penalised logits, or SIZE_MAX where rounding could decide: a sum
 * lies within 1e-5 of its bound, or two tokens at a cut within that of each other. */
size_t slow_choose(const double *l, size_t n_vocab, const struct sl_sampling *p, uint64_t i);

/* The same token as the sampler's, to the last bit of each sum: a plain way through the definitions
 * of engine/sampler.h with the scalar kernels, one pass for each step over the whole row. The cuts
 * are those of sl_select_exactly(). */
uint32_t exact_choose(const float *l, size_t n_vocab, const struct sl_sampling *p, uint64_t i);

/* Penalties and bias, on n_history generated tokens, oldest first. */
void slow_penalise(double *l, size_t n, const struct sl_sampling *p, const uint32_t *history,
                   size_t n_history);

#endif
