/* gguf_fuzz.c: any bytes as a GGUF file: its tensors, the model they would be, the vocabulary. A
 * small model is opened whole. */
#include "engine/formats/vocabulary.h"
#include "engine/model_priv.h"
#include "tests/fuzz/touch.h"

enum { WEIGHT_BYTES_MAX = 1 << 22 };

static void check_error(enum sl_code c, const struct sl_error *err)
{
    MUST(err->code == c && err->message[0]);
    MUST(sl_utf8_valid(err->message, strlen(err->message)));
}

static void touch_vocabulary(const struct sl_tensors *t)
{
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    if (!t->vocabulary)
        return;
    enum sl_code c = sl_vocabulary_open(&tokenizer, t->vocabulary, "fuzz", &err);
    MUST((c == SL_OK) == (tokenizer != NULL));
    if (c) {
        check_error(c, &err);
        return;
    }
    for (size_t i = 0; i < sl_tokenizer_size(tokenizer); i++) {
        size_t n;
        const unsigned char *p = sl_tokenizer_bytes(tokenizer, (uint32_t)i, &n);
        MUST(n == 0 || p != NULL);
    }
    sl_tokenizer_close(tokenizer);
}

/* Values of a tensor that can be read, as the loader asks for them. */
static void touch_values(const struct sl_tensor *x)
{
    static float values[4096];
    size_t n = x->n_elements < 4096
                   ? x->n_elements
                   : 4096 / sl_block_weights(x->block) * sl_block_weights(x->block);
    bool readable = sl_block_readable(x->block) || x->dtype == SL_DTYPE_F32 ||
                    x->dtype == SL_DTYPE_F16 || x->dtype == SL_DTYPE_BF16;
    if (readable && x->contiguous && n)
        sl_tensor_values(x, 0, n, values);
}

static void touch_model(const uint8_t *data, size_t size)
{
    struct sl_tensors *t = NULL;
    struct sl_model *m = NULL;
    struct sl_model_plan plan;
    struct sl_error err = {0};
    if (sl_tensors_open_memory(&t, data, size, "fuzz", &err) != SL_OK)
        return;
    touch_vocabulary(t);
    for (size_t i = 0; i < t->n; i++)
        touch_values(&t->v[i]);
    enum sl_code c = sl_model_plan(&plan, t, "fuzz", &err);
    sl_tensors_close(t);
    if (c) {
        check_error(c, &err);
        return;
    }
    MUST(plan.state_bytes > 0);
    if (plan.weight_bytes > WEIGHT_BYTES_MAX)
        return;
    c = sl_model_open_memory(&m, data, size, "fuzz", NULL, &err);
    MUST((c == SL_OK) == (m != NULL));
    if (c)
        check_error(c, &err);
    sl_model_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    touch_file(data, size);
    touch_model(data, size);
    return 0;
}
