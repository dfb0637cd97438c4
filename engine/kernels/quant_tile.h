/* quant_tile.h: what the products of Q8 and Q4 matrices with vectors have in common before
 * quant_of.h: how a tile is told what to do. Private to kernels/.
 *
 * A tile is some rows × panels of a product, all of whose sums are in registers. */
#ifndef SLATE_KERNELS_QUANT_TILE_H
#define SLATE_KERNELS_QUANT_TILE_H

#include "engine/kernels/quant.h"

enum {
    K_GROUPS = 32,     /* of a block of k: 16 KiB of codes */
    AHEAD_BYTES = 8192 /* that a tile asks memory for, over all its panels: what the processor's own
                          prefetching does not do */
};

/* A tile over n_groups groups. */
struct job {
    float *y;
    size_t ldy;
    const struct sl_group *x;
    size_t ldx, n_groups;
    const uint8_t *scales, *w; /* the first panel's */
    size_t panel;              /* bytes from one panel to the next */
    bool first;                /* sums start here, else they go on from y */
    const uint8_t *levels;     /* of 4-bit codes */
};

/* How far on lies what to ask memory for, from group g of one of the `panels` panels that are read
 * side by side: some groups on in the same panel, or at the start of the panel that is its place in
 * the next round. */
static inline size_t ahead_of(enum sl_dtype type, size_t n_groups, size_t panel, size_t panels,
                              size_t g)
{
    size_t bytes = sl_group_bytes(type), far = AHEAD_BYTES / panels / bytes;
    return far * bytes + (g + far < n_groups ? 0 : panels * panel - n_groups * bytes);
}

#endif
