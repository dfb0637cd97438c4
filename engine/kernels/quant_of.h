/* quant_of.h: the product of Q8, Q5 and Q4 matrices of kernels.h for one instruction set: which
 * tiles it is made of. Included once by each file of such products, which has defined
 *
 *   TYPE_A, TYPE_B, …     the types that it multiplies: Q8, Q4 (with Q4_0), and, where TYPE_C is
 *                         there, Q5
 *   SL_MATMUL_K           the function for those of kquant.h, where they are not these
 *   MANY_ROWS_A           the function for many rows of TYPE_A, where ready tiles are not for it
 *   SL_MATMUL_Q           the function's name
 *   tile(rows, panels, type, ready, job)
 *                         one tile; the first four are constants wherever it is called. ready: its
 *                         codes are what make_ready() returned
 *   make_ready(buffer, type, w, n_groups, levels)
 *                         the codes at w as such a tile reads them, SL_STEP_CODES bytes a step:
 *                         returns where they are, in the buffer or as they were
 *   FEW_ROWS, MAX_PANELS  of a tile
 *   TILES(X, TYPE)        X(rows, panels, TYPE) for every tile that there is; of one panel for any
 *                         number of rows
 *   FEW_ROWS_A, TILES_A(X, TYPE)
 *                         both for TYPE_A, where its rows are fewer than FEW_ROWS
 *   MAX_ROWS, BLOCK_PANELS, READIES(X, TYPE)
 *                         X(rows, panels, TYPE) for every ready tile that there is: what more than
 *                         FEW_ROWS rows are cut into, blocks of MAX_ROWS at most and as equal as
 *                         can be; each of one panel and of BLOCK_PANELS (1 or 2)
 *
 * Few rows: bound by reading the codes; all of k for some rows × panels at once, as many streams as
 * panels. Many rows: bound by arithmetic; blocks of K_GROUPS groups stay in the first cache for all
 * rows, and what there is to do about codes is done once, into a buffer. */
#include <assert.h>

#include "engine/kernels/quant_tile.h"

typedef void tile_fn(const struct job *j);

#define TILE(R, P, TYPE)                                                                           \
    static void tile_##R##_##P##_##TYPE(const struct job *j)                                       \
    {                                                                                              \
        tile(R, P, SL_DTYPE_##TYPE, false, j);                                                     \
    }
#define READY(R, P, TYPE)                                                                          \
    static void ready_##R##_##P##_##TYPE(const struct job *j)                                      \
    {                                                                                              \
        tile(R, P, SL_DTYPE_##TYPE, true, j);                                                      \
    }
#ifndef FEW_ROWS_A
#define FEW_ROWS_A FEW_ROWS
#define TILES_A TILES
#endif
TILES_A(TILE, TYPE_A)
TILES(TILE, TYPE_B)
#ifndef MANY_ROWS_A
READIES(READY, TYPE_A)
#endif
READIES(READY, TYPE_B)
#ifdef TYPE_C
TILES(TILE, TYPE_C)
READIES(READY, TYPE_C)
#endif

#define DTYPE_OF(TYPE) SL_DTYPE_##TYPE
#define IS_A(type, A) ((type) == DTYPE_OF(A))
#ifdef TYPE_C
#define INDEX(type) (IS_A(type, TYPE_A) ? 0 : IS_A(type, TYPE_C) ? 2 : 1)
#else
#define INDEX(type) (IS_A(type, TYPE_A) ? 0 : 1)
#endif
#define TILE_ENTRY(R, P, TYPE) [INDEX(SL_DTYPE_##TYPE)][R][P] = tile_##R##_##P##_##TYPE,
#define READY_ENTRY(R, P, TYPE) [INDEX(SL_DTYPE_##TYPE)][R][P] = ready_##R##_##P##_##TYPE,
static tile_fn *const tiles[3][FEW_ROWS + 1][MAX_PANELS + 1] = {TILES_A(TILE_ENTRY, TYPE_A)
                                                                    TILES(TILE_ENTRY, TYPE_B)
#ifdef TYPE_C
                                                                        TILES(TILE_ENTRY, TYPE_C)
#endif
};
static tile_fn *const readies[3][MAX_ROWS + 1][BLOCK_PANELS + 1] = {
#ifndef MANY_ROWS_A
    READIES(READY_ENTRY, TYPE_A)
#endif
        READIES(READY_ENTRY, TYPE_B)
#ifdef TYPE_C
            READIES(READY_ENTRY, TYPE_C)
#endif
};

static void few_rows(struct job j, size_t rows, enum sl_dtype type, size_t n_panels)
{
    tile_fn *const *wide = tiles[INDEX(type)][rows];
    size_t at_once = MAX_PANELS;
    for (; n_panels > 0; n_panels -= at_once) {
        while (at_once > n_panels || !wide[at_once])
            at_once--;
        wide[at_once](&j);
        j.y += at_once * SL_PANEL;
        j.w += at_once * j.panel;
        j.scales += at_once * j.panel;
    }
}

/* One panel, or BLOCK_PANELS, for all rows. On their way through a block of codes they ask for
 * those that come next, each block of rows for its share of them. */
static void many_rows(const struct job *all, size_t rows, enum sl_dtype type, size_t n_panels)
{
    _Alignas(SL_ALIGN) uint8_t buffer[BLOCK_PANELS][K_GROUPS * SL_Q8_GROUP];
    const size_t n_blocks = (rows + MAX_ROWS - 1) / MAX_ROWS, bytes = sl_group_bytes(type);
    for (size_t g = 0, n; g < all->n_groups; g += n) {
        const uint8_t *codes[BLOCK_PANELS], *packed = all->w + g * bytes;
        n = all->n_groups - g < K_GROUPS ? all->n_groups - g : K_GROUPS;
        for (size_t p = 0; p < n_panels; p++)
            codes[p] = make_ready(buffer[p], type, packed + p * all->panel, n, all->levels);
        struct job j = *all;
        j.n_groups = n;
        j.scales += sl_scales_before(type, g);
        j.w = codes[0];
        j.w_panel = (size_t)(codes[n_panels - 1] - codes[0]); /* of one or two */
        const uint8_t *next =
            g + n < all->n_groups ? packed + n * bytes : all->w + n_panels * all->panel;
        const size_t lines = (bytes / SL_ALIGN + n_blocks - 1) / n_blocks;
        j.ahead_lines = lines;
        j.first = g == 0;
        for (size_t i = 0, r = 0, end; i < n_blocks; i++, r = end) {
            const size_t asked = i * n * lines * SL_ALIGN;
            end = rows * (i + 1) / n_blocks;
            j.ahead = asked < n * bytes ? next + asked : NULL;
            j.y = all->y + r * all->ldy;
            j.x = all->x + r * all->ldx + g;
            sl_ask_outputs(j.y, j.ldy, end - r, n_panels);
            readies[INDEX(type)][end - r][n_panels](&j);
        }
    }
}

void SL_MATMUL_Q(float *y, size_t ldy, const struct sl_group *x, size_t ldx, size_t rows,
                 const void *panels, enum sl_dtype type, size_t n_in, size_t panel_begin,
                 size_t panel_end)
{
#ifdef SL_MATMUL_K
    if (sl_is_k(type)) {
        SL_MATMUL_K(y, ldy, x, ldx, rows, panels, type, n_in, panel_begin, panel_end);
        return;
    }
#endif
    assert(sl_is_quantised(type));
    size_t n_groups = sl_groups(n_in);
    struct job j = {.y = y + panel_begin * SL_PANEL,
                    .ldy = ldy,
                    .x = x,
                    .ldx = ldx,
                    .n_groups = n_groups,
                    .panel = sl_q_panel_bytes(type, n_groups),
                    .w_panel = sl_q_panel_bytes(type, n_groups),
                    .first = true,
                    .levels = sl_levels_of(type)};
    if (panel_begin >= panel_end || rows == 0)
        return;
    j.scales = (const uint8_t *)panels + panel_begin * j.panel;
    j.w = j.scales + sl_scales_bytes(type, n_groups);
    static const size_t most[3] = {FEW_ROWS_A, FEW_ROWS, FEW_ROWS}; /* by INDEX() */
    const size_t few = most[INDEX(type)];
    if (rows <= few || n_in == 0) {
        for (size_t r = 0; r < rows; r += few, j.x += few * ldx, j.y += few * ldy)
            few_rows(j, rows - r < few ? rows - r : few, type, panel_end - panel_begin);
        return;
    }
#ifdef MANY_ROWS_A
    if (IS_A(type, TYPE_A)) {
        MANY_ROWS_A(&j, rows, panel_end - panel_begin);
        return;
    }
#endif
    for (size_t p = panel_begin, n; p < panel_end; p += n) {
        n = panel_end - p < BLOCK_PANELS ? 1 : BLOCK_PANELS;
        many_rows(&j, rows, type, n);
        j.y += n * SL_PANEL;
        j.w += n * j.panel;
        j.scales += n * j.panel;
    }
}
