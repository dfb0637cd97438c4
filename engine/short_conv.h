/* short_conv.h: the short causal convolution that several rules run over their projections. Private
 * to libslate.
 *
 *   y_t[c] = b[c] + Σ_i w[i][c] · x_{t - taps + 1 + i}[c]        (depthwise: each channel by
 * itself)
 *
 * summed in the order of i (the oldest input first), starting from b, or from +0 without one. The
 * state keeps the last taps - 1 inputs, [taps - 1][channels], oldest first; before the first token
 * they are zero. */
#ifndef SLATE_ENGINE_SHORT_CONV_H
#define SLATE_ENGINE_SHORT_CONV_H

#include "engine/load.h"
#include "engine/pass.h"

struct sl_conv {
    const float *w; /* [taps][d] */
    const float *b; /* NULL: none */
    size_t d, taps; /* taps 0: there is no convolution */
    size_t state;   /* offset in a slot */
};

/* Channels of one item of work. */
enum { SL_CONV_BLOCK = 64 };

static inline size_t sl_conv_blocks(const struct sl_conv *c)
{
    return c->taps ? (c->d + SL_CONV_BLOCK - 1) / SL_CONV_BLOCK : 0;
}

/* Declares `name`.weight [d, 1, taps], with `bias` also `name`.bias [d], and the state tensor
 * `state`, and asks for the scratch of a part. */
void sl_conv_load(struct sl_load *l, struct sl_conv *c, size_t d, size_t taps, bool bias,
                  const char *name, const char *state);

/* All rows of one span, in place, channels of one block; columns of x are [n_rows][ldx] of the
 * whole step. Updates the state. tmp: a part's scratch. Returns the block's first channel and, in
 * *ret_n, how many it has. */
size_t sl_conv_block(const struct sl_pass *p, const struct sl_conv *c, const struct sl_span *span,
                     float *x, size_t ldx, size_t block, float *tmp, size_t *ret_n);

#endif
