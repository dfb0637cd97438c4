/* model_tokenizer.c: the tokenizer that a model's own file holds. */
#include <stdio.h>
#include <string.h>

#include "engine/formats/vocabulary.h"
#include "engine/model_priv.h"
#include "engine/tokenizers/rwkv_arrays.h"

typedef enum sl_code opener(struct sl_tokenizer **ret, const struct sl_bpe_arrays *arrays,
                            const char *name, struct sl_error *err);

static const struct {
    const char *model; /* tokenizer.ggml.model */
    opener *open;
} kinds[] = {
    {"rwkv", sl_tokenizer_open_rwkv},
    {"gpt2", sl_tokenizer_open_arrays},
    {"llama", sl_tokenizer_open_arrays},
};

enum sl_code sl_vocabulary_open(struct sl_tokenizer **ret, const struct sl_vocabulary *v,
                                const char *name, struct sl_error *err)
{
    if (v->wrong)
        return sl_fail(err, SL_E_FILE_CORRUPT, "%.160s: %s", name, v->wrong);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(v->arrays.model, kinds[i].model) == 0)
            return kinds[i].open(ret, &v->arrays, name, err);
    return sl_fail(
        err, SL_E_FILE_UNSUPPORTED,
        "%.160s: tokenizer.ggml.model is \"%.40s\"; what can be read is: rwkv, gpt2, llama", name,
        v->arrays.model);
}

/* --- what a converted file carries -------------------------------------------------------------*/

static enum sl_code open_gguf(struct sl_tokenizer **ret, const struct sl_converted *c,
                              const char *name, struct sl_error *err)
{
    struct sl_tensors *t = NULL;
    enum sl_code rc = sl_tensors_open_memory(&t, c->tokenizer, c->n_tokenizer, name, err);
    if (rc)
        return rc;
    rc = t->vocabulary ? sl_vocabulary_open(ret, t->vocabulary, name, err)
                       : sl_fail(err, SL_E_FILE_CORRUPT, "%.160s: holds no vocabulary", name);
    sl_tensors_close(t);
    return rc;
}

static enum sl_code open_bytes(struct sl_tokenizer **ret, const struct sl_converted *c,
                               const char *name, struct sl_error *err)
{
    if (strcmp(c->tokenizer_kind, "gguf") == 0 && c->tokenizer)
        return open_gguf(ret, c, name, err);
    if (!c->tokenizer && strcmp(c->tokenizer_kind, "bytes") != 0)
        return sl_fail(err, SL_E_FILE_CORRUPT,
                       "%.160s: a tokenizer of the kind %.40s is said to be there, and is not",
                       name, c->tokenizer_kind);
    enum sl_code rc = c->tokenizer
                          ? sl_tokenizer_open_memory(ret, c->tokenizer, c->n_tokenizer, name, err)
                          : sl_tokenizer_open(ret, "bytes", err);
    if (rc || strcmp(sl_tokenizer_kind(*ret), c->tokenizer_kind) == 0)
        return rc;
    rc = sl_fail(err, SL_E_FILE_CORRUPT, "%.160s: is a tokenizer of the kind %s, not %.40s", name,
                 sl_tokenizer_kind(*ret), c->tokenizer_kind);
    sl_tokenizer_close(*ret);
    *ret = NULL;
    return rc;
}

/* Digits up to the end or a comma; false: none, or too large. */
static bool take_id(const char **s, size_t below, uint32_t *ret)
{
    uint64_t v = 0;
    const char *from = *s;
    below = below < UINT32_MAX ? below : UINT32_MAX;
    for (; **s >= '0' && **s <= '9' && v < below; (*s)++)
        v = v * 10 + (uint64_t)(**s - '0');
    *ret = (uint32_t)v;
    return *s > from && v < below && (**s == '\0' || **s == ',');
}

static enum sl_code set_ends(struct sl_tokenizer *t, const struct sl_converted *c, const char *name,
                             size_t vocab_size, struct sl_error *err)
{
    uint32_t ids[SL_TOKENIZER_ENDS_MAX], begin;
    size_t n = 0;
    bool good = true;
    for (const char *p = c->end_tokens; p && *p && good; p += *p == ',') {
        good = n < SL_TOKENIZER_ENDS_MAX && take_id(&p, vocab_size, &ids[n]);
        n++;
    }
    if (!good)
        return sl_fail(err, SL_E_FILE_CORRUPT,
                       "%.160s: slate.end_tokens is \"%.80s\"; at most %d ids below %zu are "
                       "possible",
                       name, c->end_tokens, SL_TOKENIZER_ENDS_MAX, vocab_size);
    if (c->end_tokens)
        sl_tokenizer_set_ends(t, ids, n);
    const char *b = c->begin_token;
    if (b && strcmp(b, "none") == 0)
        sl_tokenizer_set_begin(t, -1);
    else if (b && take_id(&b, vocab_size, &begin) && !*b)
        sl_tokenizer_set_begin(t, begin);
    else if (b)
        return sl_fail(err, SL_E_FILE_CORRUPT,
                       "%.160s: slate.begin_token is \"%.40s\"; it can be none, or an id below %zu",
                       name, c->begin_token, vocab_size);
    return SL_OK;
}

enum sl_code sl_converted_tokenizer(struct sl_tokenizer **ret, const struct sl_converted *c,
                                    const char *name, size_t vocab_size, struct sl_error *err)
{
    struct sl_tokenizer *t = NULL;
    enum sl_code rc = open_bytes(&t, c, name, err);
    if (!rc)
        rc = set_ends(t, c, name, vocab_size, err);
    if (rc)
        sl_tokenizer_close(t);
    else
        *ret = t;
    return rc;
}

/* --- of a file ---------------------------------------------------------------------------------*/

enum sl_code sl_file_tokenizer(struct sl_tokenizer **ret, const struct sl_tensors *t,
                               const struct sl_converted *c, const char *name, size_t vocab_size,
                               struct sl_error *err)
{
    char carried[160];
    *ret = NULL;
    (void)snprintf(carried, sizeof carried, "%.100s: %s", name, SL_CONVERTED_TENSOR);
    if (c->tokenizer_kind)
        return sl_converted_tokenizer(ret, c, carried, vocab_size, err);
    return t->vocabulary ? sl_vocabulary_open(ret, t->vocabulary, name, err) : SL_OK;
}

const char *sl_file_chat_template(const struct sl_tensors *t, const struct sl_converted *c)
{
    if (c->is)
        return c->chat_template;
    return t->vocabulary ? t->vocabulary->chat_template : NULL;
}

enum sl_code sl_model_tokenizer(struct sl_tokenizer **ret, const struct sl_model *m,
                                struct sl_error *err)
{
    return sl_file_tokenizer(ret, m->tensors, &m->converted, m->name, m->info.vocab_size, err);
}

const char *sl_model_chat_template(const struct sl_model *m)
{
    return sl_file_chat_template(m->tensors, &m->converted);
}
