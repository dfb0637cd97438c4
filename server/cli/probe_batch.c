/* probe_batch.c: see probe_batch.h. */
#include "server/cli/probe_batch.h"

#include <string.h>

#include "engine/base/mem.h"

enum { ROWS = 512 };

enum sl_code sl_probe_batch_open(struct sl_probe_batch *b, const struct sl_loaded *loaded,
                                 size_t n_threads, struct sl_error *err)
{
    *b = (struct sl_probe_batch){.loaded = loaded, .info = sl_model_info(loaded->model)};
    size_t stride = sl_model_logits_stride(loaded->model) * sizeof(float);
    for (size_t i = 0; i < SL_PROBE_BATCH; i++) {
        b->state[i] = sl_aligned_calloc(b->info->state_bytes);
        b->fork[i] = sl_aligned_calloc(b->info->state_bytes);
        b->logits[i] = sl_aligned_calloc(stride);
        if (!b->state[i] || !b->fork[i] || !b->logits[i])
            return sl_fail(err, SL_E_NO_MEMORY, "no memory for %d states", 2 * SL_PROBE_BATCH);
    }
    enum sl_code c = sl_workers_open(&b->workers, n_threads, err);
    if (!c)
        c = sl_forward_open(&b->forward, loaded->model, b->workers, ROWS, SL_PROBE_BATCH, err);
    return c;
}

void sl_probe_batch_close(struct sl_probe_batch *b)
{
    sl_forward_close(b->forward);
    sl_workers_close(b->workers);
    for (size_t i = 0; i < SL_PROBE_BATCH; i++) {
        sl_free(b->state[i]);
        sl_free(b->fork[i]);
        sl_free(b->logits[i]);
    }
    *b = (struct sl_probe_batch){0};
}

/* One step: as many tokens of each as fit, and the logits of those that end in it. */
void sl_probe_feed(struct sl_probe_batch *b, void *const *states, uint32_t *const *tokens,
                   const size_t *n_tokens, size_t n)
{
    size_t done[SL_PROBE_BATCH] = {0};
    for (;;) {
        struct sl_segment v[SL_PROBE_BATCH];
        size_t n_segments = 0;
        for (size_t i = 0; i < n; i++) {
            size_t left = n_tokens[i] - done[i], take = left < ROWS / n ? left : ROWS / n;
            if (!take)
                continue;
            bool ends = take == left;
            v[n_segments++] = (struct sl_segment){.state = states[i],
                                                  .tokens = tokens[i] + done[i],
                                                  .n_tokens = take,
                                                  .logits = ends ? b->logits[i] : NULL,
                                                  .n_logits = ends};
            done[i] += take;
        }
        if (!n_segments)
            return;
        sl_forward_run(b->forward, v, n_segments);
    }
}

void sl_probe_begin(struct sl_probe_batch *b, size_t n)
{
    uint32_t begin = (uint32_t)b->loaded->begin_token, *tokens[SL_PROBE_BATCH];
    size_t counts[SL_PROBE_BATCH];
    for (size_t i = 0; i < n; i++) {
        sl_model_state_init(b->loaded->model, b->state[i]);
        tokens[i] = &begin;
        counts[i] = b->loaded->begin_token >= 0;
    }
    sl_probe_feed(b, b->state, tokens, counts, n);
}

void sl_probe_fork(struct sl_probe_batch *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(b->fork[i], b->state[i], b->info->state_bytes);
}

uint32_t sl_probe_likeliest(const struct sl_probe_batch *b, size_t i)
{
    uint32_t best = 0;
    for (uint32_t k = 1; k < b->info->vocab_size; k++)
        best = b->logits[i][k] > b->logits[i][best] ? k : best;
    return best;
}
