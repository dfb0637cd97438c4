/* model_tokenizer.c: the tokenizer that a model's own file holds. */
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

enum sl_code sl_model_tokenizer(struct sl_tokenizer **ret, const struct sl_model *m,
                                struct sl_error *err)
{
    const struct sl_vocabulary *v = m->tensors->vocabulary;
    *ret = NULL;
    return v ? sl_vocabulary_open(ret, v, m->name, err) : SL_OK;
}

const char *sl_model_chat_template(const struct sl_model *m)
{
    return m->tensors->vocabulary ? m->tensors->vocabulary->chat_template : NULL;
}
