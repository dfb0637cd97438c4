/* short_conv.c: see short_conv.h.
 *
 * In place means from the last row to the first: a row's inputs are itself and rows before it. So
 * what the state will hold is set aside first, and what it held is read until the first row is
 * done. */
#include "engine/short_conv.h"

#include <assert.h>
#include <string.h>

void sl_conv_load(struct sl_load *l, struct sl_conv *c, size_t d, size_t taps, bool bias,
                  const char *name, const char *state)
{
    assert(taps >= 1 && taps <= SL_TAPS_MAX);
    c->d = d, c->taps = taps;
    sl_load_columns(l, &c->w, d, taps, "%s.weight", name);
    if (bias)
        sl_load_vector(l, &c->b, d, "%s.bias", name);
    if (taps > 1)
        c->state = sl_load_state(l, SL_DTYPE_F32, 2, (size_t[]){taps - 1, d}, "%s", state);
    sl_load_scratch(l, 0, taps * SL_CONV_BLOCK);
}

/* The input i rows after the oldest that row t of the span needs: a row of the span, or one that
 * the state keeps. */
static const float *input(const struct sl_conv *c, const float *kept, const float *x, size_t ldx,
                          size_t t, size_t i)
{
    size_t past = c->taps - 1;
    return t + i < past ? kept + (t + i) * c->d : x + (t + i - past) * ldx;
}

size_t sl_conv_block(const struct sl_pass *p, const struct sl_conv *c, const struct sl_span *span,
                     float *x, size_t ldx, size_t block, float *tmp, size_t *ret_n)
{
    size_t first = block * SL_CONV_BLOCK, past = c->taps - 1;
    size_t n = c->d - first < SL_CONV_BLOCK ? c->d - first : SL_CONV_BLOCK;
    float *kept = (float *)(void *)(span->state + c->state) + first;
    float *acc = tmp + past * SL_CONV_BLOCK;
    x += span->row * ldx + first;
    for (size_t i = 0; i < past; i++)
        memcpy(tmp + i * SL_CONV_BLOCK, input(c, kept, x, ldx, span->n_rows, i), n * sizeof *tmp);
    for (size_t t = span->n_rows; t-- > 0;) {
        if (c->b)
            memcpy(acc, c->b + first, n * sizeof *acc);
        else
            memset(acc, 0, n * sizeof *acc);
        for (size_t i = 0; i < past; i++)
            p->k->vfma(acc, c->w + i * c->d + first, input(c, kept, x, ldx, t, i), acc, n);
        float *y = x + t * ldx;
        p->k->vfma(y, c->w + past * c->d + first, y, acc, n);
    }
    for (size_t i = 0; i < past; i++)
        memcpy(kept + i * c->d, tmp + i * SL_CONV_BLOCK, n * sizeof *tmp);
    *ret_n = n;
    return first;
}
