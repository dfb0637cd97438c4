/* forward.c: one step: embedding, the layers, logits, over all rows of a ragged batch.
 *
 * What is here is the same for every model: which row belongs to whom, the residual stream, and the
 * two ends. The layers are the block's and the mixer's business. The stages of a step and what may
 * be shared between parts: pass.h.
 *
 * A step of many rows goes through each layer in chunks, so that what one stage leaves to the next
 * is still in the caches (and their memory is that of a chunk), and the layer's weights too, where
 * they fit. A chunk's spans end where it ends; states carry what goes on from one to the next, as
 * they do from step to step.
 *
 * Memory is taken at open for max_rows and laid out anew in each step for the rows it has, so that
 * a small step touches little of it. */
#include "engine/forward.h"

#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"

enum {
    CHUNK_ROWS = 96,              /* at most */
    LOGIT_TILE_FLOATS = 64 * 1024 /* of a part, before they are copied to their rows */
};

/* Rows that go through a layer together. */
struct chunk {
    size_t row, n_rows;
    size_t span, n_spans; /* of sl_forward.spans */
};

struct sl_forward {
    const struct sl_model *m;
    size_t max_rows, max_segments;
    struct sl_span *spans; /* of all chunks, their rows counted from the chunk's first */
    uint32_t *row_span;    /* counted from the chunk's first */
    struct chunk *chunks;
    size_t n_chunks, n_rows; /* of the step */
    uint32_t *tokens;        /* of the step, in row order */
    float **logits;          /* [max_rows] where the logits of an asked row go */
    uint32_t *asked_row;     /* and which row it is */
    size_t n_asked;
    float *memory, *x, *carry; /* the latter two as sl_pass has them, of the step */
    const struct chunk *at;    /* the chunk at work */
    struct sl_pass pass;       /* of it */
};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t chunks_of(size_t n_rows)
{
    return (n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
}

/* --- opening ------------------------------------------------------------------------------------
 */

/* Rows of the largest chunk that there can be. */
static size_t chunk_most(const struct sl_forward *f)
{
    return f->max_rows < CHUNK_ROWS ? f->max_rows : CHUNK_ROWS;
}

/* Floats of the activations, or SIZE_MAX. The order is that of place(). */
static size_t memory_floats(const struct sl_forward *f, size_t n_parts)
{
    const struct sl_model *m = f->m;
    size_t row = 2 * f->pass.ld + m->carry_floats +
                 m->input_groups * sizeof(struct sl_group) / sizeof(float);
    size_t rows, parts, scratch, all;
    if (__builtin_mul_overflow(row, f->max_rows, &rows) ||
        __builtin_mul_overflow(f->pass.part_floats, n_parts, &parts) ||
        __builtin_mul_overflow(m->scratch_floats, chunk_most(f), &scratch) ||
        __builtin_add_overflow(rows, parts, &all) || __builtin_add_overflow(all, scratch, &all) ||
        all > SIZE_MAX / 8)
        return SIZE_MAX;
    return all + (size_t)SL_TAKES_MAX * SL_TAKE_GAP;
}

static enum sl_code allocate(struct sl_forward *f, struct sl_error *err)
{
    size_t n = memory_floats(f, sl_workers_threads(f->pass.workers));
    if (n == SIZE_MAX)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for steps of %zu rows", f->max_rows);
    size_t chunks = chunks_of(f->max_rows);
    f->spans = sl_calloc(f->max_segments + chunks - 1, sizeof *f->spans);
    f->chunks = sl_calloc(chunks, sizeof *f->chunks);
    f->row_span = sl_calloc(f->max_rows, sizeof *f->row_span);
    f->tokens = sl_calloc(f->max_rows, sizeof *f->tokens);
    f->logits = sl_calloc(f->max_rows, sizeof *f->logits);
    f->asked_row = sl_calloc(f->max_rows, sizeof *f->asked_row);
    f->memory = sl_huge_alloc(n * sizeof *f->memory);
    if (!f->spans || !f->chunks || !f->row_span || !f->tokens || !f->logits || !f->asked_row ||
        !f->memory)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for steps of %zu rows (%zu bytes)",
                       f->max_rows, n * sizeof *f->memory);
    /* Touched now: a step must not meet memory that is not there. */
    memset(f->memory, 0, n * sizeof *f->memory);
    return SL_OK;
}

enum sl_code sl_forward_open(struct sl_forward **ret, const struct sl_model *m,
                             struct sl_workers *w, size_t max_rows, size_t max_segments,
                             struct sl_error *err)
{
    assert(max_rows >= 1 && max_segments >= 1);
    if (max_rows > UINT32_MAX || max_segments > UINT32_MAX)
        return sl_fail(err, SL_E_INVALID_VALUE, "a step can have at most %u rows and segments",
                       UINT32_MAX);
    struct sl_forward *f = sl_calloc(1, sizeof *f);
    if (!f)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for steps of %zu rows", max_rows);
    size_t d = m->info.d_model;
    f->m = m;
    f->max_rows = max_rows;
    f->max_segments = max_segments;
    f->pass = (struct sl_pass){.k = m->kernels,
                               .form = m->form,
                               .workers = w,
                               .d_model = d,
                               .ld = sl_row_floats(d),
                               .input_groups = m->input_groups};
    /* A part's tile of logits has at least SL_TOPS of every row, in a row of at most a panel more.
     */
    size_t mixer = sl_row_floats(m->part_floats) +
                   sl_row_floats(sl_recur_floats(m->form, &m->recurrence, chunk_most(f)));
    f->pass.part_floats =
        max_size(mixer, max_size(LOGIT_TILE_FLOATS, max_rows * (SL_TOPS + SL_PANEL)));
    enum sl_code rc = allocate(f, err);
    if (rc != SL_OK) {
        sl_forward_close(f);
        return rc;
    }
    *ret = f;
    return SL_OK;
}

void sl_forward_close(struct sl_forward *f)
{
    if (!f)
        return;
    sl_free(f->memory);
    sl_free(f->asked_row);
    sl_free(f->logits);
    sl_free(f->tokens);
    sl_free(f->row_span);
    sl_free(f->chunks);
    sl_free(f->spans);
    sl_free(f);
}

/* --- a step -------------------------------------------------------------------------------------
 */

/* The step's chunks, as equal as can be; without their spans. */
static void cut(struct sl_forward *f, size_t n_rows)
{
    f->n_rows = n_rows;
    f->n_chunks = chunks_of(n_rows);
    for (size_t c = 0; c < f->n_chunks; c++) {
        size_t begin, end;
        sl_work_range(n_rows, 1, c, f->n_chunks, &begin, &end);
        f->chunks[c] = (struct chunk){.row = begin, .n_rows = end - begin};
    }
}

/* The spans of a segment whose rows begin at `row`. Those before it filled *chunk chunks, with
 * *n_spans in all. */
static void add_spans(struct sl_forward *f, const struct sl_segment *g, size_t row, size_t *chunk,
                      size_t *n_spans)
{
    const struct sl_state_header *h = g->state;
    const size_t end = row + g->n_tokens;
    for (size_t begin = row, till; begin < end; begin = till) {
        struct chunk *c = &f->chunks[*chunk];
        const size_t chunk_end = c->row + c->n_rows;
        till = chunk_end < end ? chunk_end : end;
        if (begin == c->row)
            c->span = *n_spans;
        for (size_t r = begin; r < till; r++)
            f->row_span[r] = (uint32_t)c->n_spans;
        f->spans[*n_spans] = (struct sl_span){.state = g->state,
                                              .row = begin - c->row,
                                              .n_rows = till - begin,
                                              .position = h->tokens_seen + (begin - row)};
        c->n_spans++;
        *n_spans += 1;
        *chunk += till == chunk_end;
    }
}

/* Segments -> chunks, spans, rows, and the list of rows whose logits are asked for. */
static void plan(struct sl_forward *f, const struct sl_segment *segments, size_t n)
{
    size_t stride = sl_model_logits_stride(f->m), row = 0, chunk = 0, n_spans = 0;
    for (size_t s = 0; s < n; s++) {
        assert(segments[s].n_tokens >= 1 && segments[s].n_tokens <= f->max_rows - row);
        row += segments[s].n_tokens;
    }
    cut(f, row);
    f->n_asked = 0;
    row = 0;
    for (size_t s = 0; s < n; s++) {
        const struct sl_segment *g = &segments[s];
        assert(sl_model_room(f->m, g->state) >= g->n_tokens); /* the turn has seen to it */
        assert(g->n_logits <= g->n_tokens && (g->logits || g->n_logits == 0));
        assert((uintptr_t)g->state % SL_ALIGN == 0 && (uintptr_t)g->logits % SL_ALIGN == 0);
        add_spans(f, g, row, &chunk, &n_spans);
        for (size_t i = 0; i < g->n_tokens; i++) {
            assert(g->tokens[i] < f->m->info.vocab_size);
            f->tokens[row + i] = g->tokens[i];
        }
        for (size_t i = 0; i < g->n_logits; i++) {
            f->asked_row[f->n_asked] = (uint32_t)(row + g->n_tokens - g->n_logits + i);
            f->logits[f->n_asked++] = g->logits + i * stride;
        }
        row += g->n_tokens;
    }
}

/* Where this step's activations lie. */
static void place(struct sl_forward *f)
{
    struct sl_pass *p = &f->pass;
    p->parts = f->memory;
    f->x = p->parts + sl_workers_threads(p->workers) * p->part_floats;
    f->carry = f->x + f->n_rows * p->ld;
    p->xn = f->carry + f->n_rows * f->m->carry_floats;
    p->inputs = (struct sl_group *)(void *)(p->xn + f->n_rows * p->ld);
    /* A step of any rows keeps scratch on a cache line: input_groups is a multiple of
     * SL_GROUPS_ALIGN. */
    p->scratch = (float *)(void *)(p->inputs + f->n_rows * p->input_groups);
}

static void begin_chunk(struct sl_forward *f, const struct chunk *c)
{
    struct sl_pass *p = &f->pass;
    f->at = c;
    p->n_rows = c->n_rows;
    p->n_spans = c->n_spans;
    p->spans = f->spans + c->span;
    p->row_span = f->row_span + c->row;
    p->x = f->x + c->row * p->ld;
    p->carry = f->carry + c->row * f->m->carry_floats;
}

/* How many tokens the row's session had consumed before it. */
static uint64_t position_of(const struct sl_pass *p, size_t row)
{
    const struct sl_span *span = &p->spans[p->row_span[row]];
    return span->position + (row - span->row);
}

static void embed_part(void *arg, size_t part, size_t n_parts)
{
    const struct sl_forward *f = arg;
    const struct sl_pass *p = &f->pass;
    const struct sl_embedding *e = &f->m->ends.embedding;
    const struct sl_norm *norm = &f->m->ends.norm_in;
    const float *positions = f->m->ends.positions;
    const uint32_t *tokens = f->tokens + f->at->row;
    size_t begin, end;
    size_t row_bytes = e->block ? p->d_model / sl_block_weights(e->block) * sl_block_bytes(e->block)
                                : p->d_model * sl_dtype_size(e->type);
    sl_work_range(p->n_rows, 1, part, n_parts, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        float *x = p->x + r * p->ld;
        const unsigned char *row = e->rows + tokens[r] * row_bytes;
        if (e->block)
            sl_block_dequantise_row(x, row, e->block, p->d_model);
        else
            sl_widen(x, row, e->type, p->d_model);
        if (positions)
            p->k->vadd(x, x, positions + position_of(p, r) * p->d_model, p->d_model);
        if (norm->w)
            sl_norm_row(p->k, norm, x, x, p->d_model);
    }
}

/* The asked rows, normalised, side by side in xn. */
static void gather_part(void *arg, size_t part, size_t n_parts)
{
    const struct sl_forward *f = arg;
    const struct sl_pass *p = &f->pass;
    const struct sl_norm *norm = &f->m->ends.norm_out;
    size_t begin, end;
    sl_work_range(f->n_asked, 1, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        float *x = p->xn + i * p->ld;
        sl_norm_row(p->k, norm, x, f->x + f->asked_row[i] * p->ld, p->d_model);
        if (sl_is_quantised(f->m->ends.head.type))
            p->k->quantise(p->inputs + i * sl_groups(p->d_model), x, p->d_model);
    }
}

/* The head's panels in runs whose logits, of all asked rows, fit in the part's scratch; from there
 * each row's go where its segment wants them. Their tops are found while they are in the cache. */
static void head_part(void *arg, size_t part, size_t n_parts)
{
    const struct sl_forward *f = arg;
    const struct sl_pass *p = &f->pass;
    const struct sl_matrix *w = &f->m->ends.head;
    float *tile = sl_pass_part(p, part);
    const size_t grain = SL_TOPS / SL_PANEL;
    size_t begin, end, run = (p->part_floats / f->n_asked - SL_PANEL) / SL_TOPS * grain;
    sl_work_range(sl_panels(w->n_out), grain, part, n_parts, &begin, &end);
    for (size_t b = begin; b < end; b += run) {
        size_t e = end - b < run ? end : b + run, n = (e - b) * SL_PANEL, ld = sl_row_floats(n);
        const char *panels =
            (const char *)w->panels + b * sl_pack_bytes(w->type, SL_PANEL, w->n_in);
        if (sl_is_quantised(w->type))
            p->k->matmul_q(tile, ld, p->inputs, sl_groups(w->n_in), f->n_asked, panels, w->type,
                           w->n_in, 0, e - b);
        else
            p->k->matmul(tile, ld, p->xn, p->ld, f->n_asked, panels, w->type, w->n_in, 0, e - b);
        for (size_t i = 0; i < f->n_asked; i++) {
            float *to = f->logits[i] + b * SL_PANEL;
            if (f->m->ends.head_bias)
                p->k->vadd(to, tile + i * ld, f->m->ends.head_bias + b * SL_PANEL, n);
            else
                memcpy(to, tile + i * ld, n * sizeof *tile);
            size_t left = w->n_out - b * SL_PANEL;
            p->k->tops(sl_model_logits_tops(f->m, f->logits[i]) + b / grain, to,
                       n < left ? n : left);
        }
    }
}

void sl_forward_run(struct sl_forward *f, const struct sl_segment *segments, size_t n)
{
    const struct sl_model *m = f->m;
    struct sl_pass *p = &f->pass;
    assert(n <= f->max_segments);
    if (n == 0)
        return;
    plan(f, segments, n);
    place(f);
    for (size_t c = 0; c < f->n_chunks; c++) {
        begin_chunk(f, &f->chunks[c]);
        sl_workers_run(p->workers, embed_part, f);
    }
    for (size_t i = 0; i < m->info.n_layers; i++)
        for (size_t c = 0; c < f->n_chunks; c++) {
            begin_chunk(f, &f->chunks[c]);
            m->mixer->block->forward(p, sl_model_block_layer(m, i), m->mixer,
                                     sl_model_mixer_layer(m, i));
        }
    if (f->n_asked > 0) {
        sl_workers_run(p->workers, gather_part, f);
        sl_workers_run(p->workers, head_part, f);
    }
    for (size_t s = 0; s < n; s++) {
        struct sl_state_header *h = segments[s].state;
        h->tokens_seen += segments[s].n_tokens;
    }
}
