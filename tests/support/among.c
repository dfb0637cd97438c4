/* among.c: see among.h. */
#include "tests/support/among.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/base/mem.h"

uint32_t token_of(const struct sl_model *m, size_t session, size_t i)
{
    uint64_t z = (session * 1000003 + i + 1) * 0x9e3779b97f4a7c15;
    return (uint32_t)((z ^ z >> 29) % sl_model_info(m)->vocab_size);
}

struct hashes hashes_of(const struct runner *r, const float *logits, size_t n, const void *state)
{
    XXH3_state_t x;
    XXH3_64bits_reset(&x);
    for (size_t i = 0; i < n; i++)
        XXH3_64bits_update(&x, logits + i * r->stride,
                           sl_model_info(r->model)->vocab_size * sizeof *logits);
    return (struct hashes){XXH3_64bits_digest(&x),
                           XXH3_64bits(state, sl_model_info(r->model)->state_bytes)};
}

void assert_same(struct hashes a, struct hashes b, const char *what)
{
    if (a.logits != b.logits || a.state != b.state)
        fail_msg("%s: %s differ", what, a.logits != b.logits ? "logits" : "states");
}

void others_open(struct others *o, const struct sl_model *m, size_t n)
{
    *o = (struct others){.n = n};
    for (size_t i = 0; i < n; i++) {
        o->states[i] = runner_state(m);
        o->logits[i] = runner_logits(m, 4);
    }
}

void others_close(struct others *o)
{
    for (size_t i = 0; i < o->n; i++) {
        sl_free(o->states[i]);
        sl_free(o->logits[i]);
    }
}

static struct sl_segment others_next(struct others *o, const struct sl_model *m, size_t i)
{
    size_t n = o->at[i] == 0 ? 1 + i % 4 : 1 + (i % 5 == 3);
    for (size_t t = 0; t < n; t++)
        o->tokens[i][t] = token_of(m, i + 1, o->at[i] + t);
    o->at[i] += n;
    return (struct sl_segment){.state = o->states[i],
                               .tokens = o->tokens[i],
                               .n_tokens = n,
                               .logits = o->logits[i],
                               .n_logits = i % 3 == 0 ? 0 : 1};
}

struct hashes run_among(struct runner *r, size_t chunk, size_t n_tokens, struct others *o)
{
    const struct sl_model *m = r->model;
    uint32_t tokens[AMONG_TOKENS_MAX];
    assert_true(n_tokens <= AMONG_TOKENS_MAX);
    for (size_t i = 0; i < n_tokens; i++)
        tokens[i] = token_of(m, 0, i);
    void *state = runner_state(m);
    float *logits = runner_logits(m, n_tokens);
    for (size_t i = 0, step = 0; i < n_tokens; i += chunk, step++) {
        struct sl_segment s[AMONG_MAX + 1];
        size_t n = n_tokens - i < chunk ? n_tokens - i : chunk, k = 0;
        size_t n_others = chunk > 1 || step % 4 == 0 ? o->n : 0;
        size_t mine = step * 7 % (n_others + 1);
        for (size_t j = 0; j <= n_others; j++)
            s[k++] = j == mine
                         ? (struct sl_segment){state, tokens + i, n, logits + i * r->stride, n}
                         : others_next(o, m, j < mine ? j : j - 1);
        sl_forward_run(r->forward, s, k);
    }
    struct hashes h = hashes_of(r, logits, n_tokens, state);
    sl_free(state);
    sl_free(logits);
    return h;
}
