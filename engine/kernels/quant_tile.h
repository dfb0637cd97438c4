/* quant_tile.h: what the products of Q8, Q5 and Q4 matrices with vectors have in common before
 * quant_of.h: how a tile is told what to do. Private to kernels/.
 *
 * A tile is some rows × panels of a product, all of whose sums are in registers. */
#ifndef SLATE_KERNELS_QUANT_TILE_H
#define SLATE_KERNELS_QUANT_TILE_H

#include "engine/kernels/quant.h"

enum {
    K_GROUPS = 96,     /* of a block of k: 24 KiB of 4-bit codes, 48 of ready ones */
    AHEAD_BYTES = 8192 /* that a tile asks memory for, over all its panels: what the processor's own
                          prefetching does not do; into which cache, see matmul_of.h */
};

/* A tile over n_groups groups. */
struct job {
    float *y;
    size_t ldy;
    const struct sl_group *x;
    size_t ldx, n_groups;
    const uint8_t *scales, *w; /* the first panel's */
    size_t panel, w_panel;     /* bytes from one panel to the next; from its codes to the next's */
    const uint8_t *ahead;      /* of a ready tile: codes to ask memory for; NULL: none */
    size_t ahead_lines;        /* of them, of the cache, at each group */
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

/* Asks memory for a line: into the first cache, or the second. */
static ALWAYS_INLINE void ask(const bool second, const uint8_t *p)
{
    if (second)
        __builtin_prefetch(p, 0, 2);
    else
        __builtin_prefetch(p);
}

/* A ready tile of a panel, or more, at a group: asks memory for some lines of codes, where there
 * are any to ask for (there are the same of the other panels behind them), and for scales of the
 * next panels. Returns where the next lines are. Codes that tiles read `in_place`, not from a
 * buffer, are asked for into the second cache: those in use fill the first (Zen 4, Q8: 8 rows 1.5
 * times as fast so; others gain nothing, and those of K blocks lose). */
static ALWAYS_INLINE const uint8_t *ask_ahead(const bool in_place, const int panels,
                                              const struct job *j, const uint8_t *ahead,
                                              const uint8_t *scales)
{
    if (!ahead)
        return NULL;
#pragma GCC unroll 2
    for (int p = 0; p < panels; p++)
        ask(in_place, scales + (size_t)(panels + p) * j->panel);
    for (size_t i = 0; i < j->ahead_lines; i++, ahead += SL_ALIGN) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            ask(in_place, ahead + (size_t)p * j->panel);
    }
    return ahead;
}

#endif
