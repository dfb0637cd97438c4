/* runner.c: see runner.h. */
#include "tests/support/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/must.h"

void runner_open(struct runner *r, const struct sl_model *m, size_t n_threads, size_t max_rows,
                 size_t max_segments)
{
    struct sl_error err;
    *r = (struct runner){.model = m, .max_rows = max_rows, .stride = sl_model_logits_stride(m)};
    must(sl_workers_open(&r->workers, n_threads, &err), &err);
    must(sl_forward_open(&r->forward, m, r->workers, max_rows, max_segments, &err), &err);
}

void runner_close(struct runner *r)
{
    sl_forward_close(r->forward);
    sl_workers_close(r->workers);
}

void *runner_state(const struct sl_model *m)
{
    void *state = must_have(sl_aligned_calloc(sl_model_info(m)->state_bytes));
    memset(state, 0xa5, sl_model_info(m)->state_bytes);
    sl_model_state_init(m, state);
    return state;
}

float *runner_logits(const struct sl_model *m, size_t n)
{
    return must_have(sl_aligned_calloc(n * sl_model_logits_stride(m) * sizeof(float)));
}

void runner_feed(struct runner *r, void *state, const uint32_t *tokens, size_t n, size_t chunk,
                 float *logits)
{
    for (size_t i = 0; i < n; i += chunk) {
        size_t m = n - i < chunk ? n - i : chunk;
        struct sl_segment s = {.state = state, .tokens = tokens + i, .n_tokens = m};
        if (logits) {
            s.logits = logits + i * r->stride;
            s.n_logits = m;
        }
        sl_forward_run(r->forward, &s, 1);
    }
}

uint32_t runner_argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (uint32_t)best;
}

const struct sl_state_tensor *runner_tensor(const struct sl_model *m, const char *name)
{
    size_t n;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return &t[i];
    return NULL;
}
