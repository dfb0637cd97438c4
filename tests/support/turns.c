/* turns.c: see turns.h. */
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

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
    *ret_n = sl_tokenizer_encode(s->tokenizer, text, strlen(text), ids);
    return ids;
}
