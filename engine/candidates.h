/* candidates.h: the tokens of one row of logits that may still be chosen: what sampler.h says of
 * top_k, typical_p, top_p, min_p and the draw. Private to libslate.
 *
 * Speed, for a vocabulary of 65,536, of which a model that has learnt something makes few likely.
 * Nothing is sorted (select.h). The maxima of a row's blocks (`top`) come with it, made while it
 * was in the cache, and what these say is not read again:
 *
 *   top_k     if k blocks have a maximum ≥ b then k tokens are ≥ b, so the k largest are: a list is
 *             made of these, and all other blocks are passed over.
 *   top_p     if the weights of the maxima that are ≥ b sum to the share, the tokens ≥ b do, and
 *             the cut is among these; typical_p the same in its order. All weights are needed once,
 *             for the sum of which it is a share.
 *   min_p     a block whose maximum lies below the bound is dropped unread.
 *   weights   are not kept for the draw: the sums of blocks are, and the one block in which it
 *             falls is weighed again. Blocks of which all is dropped are passed over.
 *
 * A token that a filter drops gets the weight 0, in its place; top_k gives it the logit -inf. Only
 * where a small top_k leaves few is the row made a short list. */
#ifndef SLATE_ENGINE_CANDIDATES_H
#define SLATE_ENGINE_CANDIDATES_H

#include "engine/kernels/kernels.h"
#include "engine/select.h"
#include "slate/engine.h"

/* Scratch for any row, one after the other. One thread at a time. */
struct sl_candidates {
    size_t vocab_size;
    float *tops;   /* [sl_tops(vocab_size)] where they do not come with the row */
    float *e;      /* [vocab_size] exp(l - m) */
    float *order;  /* [vocab_size] what typical_p goes by */
    float *listed; /* [vocab_size] the logits of a list */
    uint32_t *ids; /* [vocab_size] and its tokens */
    double *block; /* [blocks of vocab_size] sums of weights */
    struct sl_select select;

    /* The row at hand: token i has the logit l[i] or, where it is a list, token ids[i] has. */
    const struct sl_kernels *k;
    float *l;
    float *top; /* the blocks' largest logits */
    size_t n;
    float m; /* the largest, before anything was dropped */
    bool is_list;
    bool has_e;        /* e is there, and block its sums */
    bool peak_dropped; /* the token with m may be dropped */
    bool dropped;      /* what has e = 0 is dropped, and a block whose sum is 0 may hold any e */
};

SL_NODISCARD bool sl_candidates_init(struct sl_candidates *c, size_t vocab_size);
void sl_candidates_done(struct sl_candidates *c); /* zeros are fine */

/* All tokens of a row, which must stay; top_k changes it, but never a token that it keeps. top: the
 * row's tops (kernels.h), which are changed with it; NULL: they are looked for. Returns the largest
 * logit, NaN if there is one. */
float sl_candidates_begin(struct sl_candidates *c, const struct sl_kernels *k, float *l,
                          float *top);

/* Some logits were changed: what this one was, after all of them are what they will be … */
void sl_candidates_changed(struct sl_candidates *c, size_t token, float was);
/* … and each was told: what is known is that of the logits as they are now. */
void sl_candidates_settle(struct sl_candidates *c);

/* Σ exp(l - m) of all tokens. */
double sl_candidates_sum(struct sl_candidates *c);
/* The n largest logits, the first of equals first. */
void sl_candidates_largest(const struct sl_candidates *c, size_t n, struct sl_logprob *top);
/* The first token with the largest logit. */
uint32_t sl_candidates_first(const struct sl_candidates *c);

/* Drops what p's filters drop. */
void sl_candidates_filter(struct sl_candidates *c, const struct sl_sampling *p);
/* The token in whose weight u · Σ w falls, 0 ≤ u < 1. */
uint32_t sl_candidates_draw(struct sl_candidates *c, float temperature, double u);

#endif
