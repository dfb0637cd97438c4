/* turns.c: see turns.h. */
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/models/embedded.h"

static void must(enum sl_code c, const struct sl_error *err)
{
    if (c)
        fail_msg("%s: %s", sl_code_name(c), err->message);
}

void stand_open(struct stand *s, const char *path, const struct sl_engine_options *opt)
{
    stand_open_with(s, &(struct sl_model_options){.path = path}, opt);
}

void stand_open_with(struct stand *s, const struct sl_model_options *model,
                     const struct sl_engine_options *opt)
{
    struct sl_error err;
    size_t n;
    memset(s, 0, sizeof *s);
    must(sl_model_open(&s->model, model, &err), &err);
    if (model->path) {
        must(sl_tokenizer_open(&s->tokenizer, "bytes", &err), &err);
    } else {
        const void *vocab = sl_embedded_vocab_data(&n);
        must(sl_tokenizer_open_memory(&s->tokenizer, vocab, n, "embedded", &err), &err);
    }
    s->state_bytes = sl_model_info(s->model)->state_bytes;
    must(sl_slab_open(&s->slab, STAND_SLOTS, s->state_bytes, &err), &err);
    must(sl_engine_open(&s->engine, s->model, s->tokenizer, opt, &err), &err);
}

void stand_close(struct stand *s)
{
    sl_engine_close(s->engine);
    assert_int_equal(sl_slab_used(s->slab), 0);
    sl_slab_close(s->slab);
    sl_tokenizer_close(s->tokenizer);
    sl_model_close(s->model);
}

void stand_start(struct stand *s, struct sl_turn_spec *spec, const void *base, struct outcome *o)
{
    struct sl_error err;
    memset(o, 0, sizeof *o);
    spec->user = o;
    o->live = sl_slab_take(s->slab);
    o->shadow = sl_slab_take(s->slab);
    assert_non_null(o->shadow);
    must(sl_turn_create(s->engine, spec, &o->turn, &err), &err);
    struct sl_turn_states states = {.base = base, .live = o->live, .shadow = o->shadow};
    must(sl_engine_submit(s->engine, o->turn, &states, &err), &err);
}

static void note_done(struct sl_turn *t, void *user, void *arg)
{
    struct outcome *o = user;
    (void)arg;
    assert_null(o->result); /* nothing comes after DONE */
    o->result = sl_turn_result(t);
}

void stand_finish(struct stand *s, struct outcome *o, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (o[i].result) {
            i++;
            continue;
        }
        sl_engine_wait(s->engine);
        sl_engine_poll(s->engine, note_done, NULL);
    }
}

void stand_run(struct stand *s, struct sl_turn_spec *spec, const void *base, struct outcome *o)
{
    stand_start(s, spec, base, o);
    stand_finish(s, o, 1);
}

void outcome_done(struct stand *s, struct outcome *o)
{
    sl_turn_close(o->turn);
    sl_slab_unref(s->slab, o->live);
    sl_slab_unref(s->slab, o->shadow);
    memset(o, 0, sizeof *o);
}

unsigned char *stand_text(const struct stand *s, const uint32_t *ids, size_t n, size_t *ret_n)
{
    unsigned char *text = malloc(n * SL_TOKEN_BYTES_MAX + 1);
    size_t len = 0;
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) {
        size_t k;
        const unsigned char *bytes = sl_tokenizer_bytes(s->tokenizer, ids[i], &k);
        if (k)
            memcpy(text + len, bytes, k);
        len += k;
    }
    text[len] = '\0';
    *ret_n = len;
    return text;
}

uint32_t *stand_ids(const struct stand *s, const char *text, size_t *ret_n)
{
    uint32_t *ids = malloc((strlen(text) + 1) * sizeof *ids);
    assert_non_null(ids);
    *ret_n = sl_tokenizer_encode_part(s->tokenizer, text, strlen(text), ids);
    return ids;
}

/* --- what must hold --- */

/* A spec that reads begin token and text. The ids are the caller's to free. */
struct sl_turn_spec stand_spec(const struct stand *s, const char *text, size_t max_tokens,
                               uint32_t **ret_ids)
{
    size_t n;
    uint32_t *ids = stand_ids(s, text, &n);
    uint32_t *all = malloc((n + 1) * sizeof *all);
    all[0] = 0;
    memcpy(all + 1, ids, n * sizeof *ids);
    free(ids);
    *ret_ids = all;
    return (struct sl_turn_spec){.prompt = all,
                                 .n_prompt = n + 1,
                                 .max_tokens = max_tokens,
                                 .sampling = SL_SAMPLING_DEFAULT,
                                 .ignore_eos = true,
                                 .logprobs = -1,
                                 .keep_state = true};
}

/* prompt + tokens fed by a turn that generates nothing: what a rested state must be equal to. */
void stand_fed(struct stand *s, const struct sl_turn_spec *like, const void *base,
               const uint32_t *tokens, size_t n, struct outcome *o)
{
    uint32_t *all = malloc((like->n_prompt + n) * sizeof *all);
    memcpy(all, like->prompt, like->n_prompt * sizeof *all);
    if (n)
        memcpy(all + like->n_prompt, tokens, n * sizeof *all);
    struct sl_turn_spec spec = {.prompt = all,
                                .n_prompt = like->n_prompt + n,
                                .sampling = SL_SAMPLING_DEFAULT,
                                .logprobs = -1,
                                .keep_state = true};
    stand_run(s, &spec, base, o);
    free(all);
}

void assert_at_rest(struct stand *s, const struct sl_turn_spec *spec, const void *base,
                    const struct outcome *o)
{
    struct outcome want;
    assert_int_equal(o->result->code, SL_OK);
    assert_true(o->result->complete);
    stand_fed(s, spec, base, sl_turn_tokens(o->turn), o->result->n_tokens, &want);
    assert_int_equal(o->result->n_pending, 1);
    assert_int_equal(*sl_turn_pending(o->turn), *sl_turn_pending(want.turn));
    assert_int_equal(o->result->tokens_seen, want.result->tokens_seen);
    assert_memory_equal(o->live, want.live, s->state_bytes);
    outcome_done(s, &want);
}

size_t plain_argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

void plain_open(struct plain *p, const struct stand *s)
{
    p->vocab = sl_model_info(s->model)->vocab_size;
    p->state = sl_aligned_calloc(s->state_bytes);
    p->logits = sl_aligned_calloc(sl_model_logits_stride(s->model) * sizeof(float));
    assert_int_equal(sl_workers_open(&p->workers, 1, NULL), SL_OK);
    assert_int_equal(sl_forward_open(&p->forward, s->model, p->workers, 1, 1, NULL), SL_OK);
    sl_model_state_init(s->model, p->state);
}

void plain_feed(struct plain *p, uint32_t token)
{
    struct sl_segment seg = {
        .state = p->state, .tokens = &token, .n_tokens = 1, .logits = p->logits, .n_logits = 1};
    sl_forward_run(p->forward, &seg, 1);
}

void plain_close(struct plain *p)
{
    sl_forward_close(p->forward);
    sl_workers_close(p->workers);
    sl_free(p->state);
    sl_free(p->logits);
}

static double log_sum_exp(const float *x, size_t n)
{
    double max = x[plain_argmax(x, n)], sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

void assert_logprobs(const struct plain *p, const struct sl_token_logprobs *lp, uint32_t token)
{
    assert_int_equal(lp->chosen.token, token);
    double want = (double)p->logits[token] - log_sum_exp(p->logits, p->vocab);
    assert_true(fabs((double)lp->chosen.logprob - want) < 1e-4);
    assert_int_equal(lp->top[0].token, plain_argmax(p->logits, p->vocab));
}
