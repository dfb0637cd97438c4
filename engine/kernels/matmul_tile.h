/* matmul_tile.h: what the matrix products of the vector tables have in common before matmul_of.h:
 * how a tile is told what to do. Private to kernels/.
 *
 * A tile is some rows × panels of a product, all of whose sums are in registers. */
#ifndef SLATE_KERNELS_MATMUL_TILE_H
#define SLATE_KERNELS_MATMUL_TILE_H

#include "engine/kernels/tables.h"

enum {
    K_BLOCK = 128,
    GROUP_PANELS = 4, /* panels whose block is in the buffer: 32 KiB, for the second cache */
    AHEAD_BYTES = 8192
};

/* Types as tables are indexed. */
enum weights { F32, F16, BF16, N_WEIGHTS };

static ALWAYS_INLINE size_t group_bytes(const enum weights type)
{
    return type == F32 ? 64 : 32;
}

/* A tile over n_k inputs. */
struct job {
    float *y;
    size_t ldy;
    const float *x;
    size_t ldx;
    const char *w; /* the first panel's first group; others are w_panel bytes apart */
    size_t w_panel;
    size_t n_k;
    bool first;        /* sums start here, else they go on from y */
    float *wide;       /* where weights are left as f32, K_BLOCK groups a panel; or NULL */
    const char *ahead; /* what will be needed: of each panel, ahead_step bytes per k */
    size_t ahead_panel, ahead_step;
};

#endif
