/* converted_fuzz.c: any strings and any tokenizer in a converted model whose tensors are good.
 *
 * An input is what stands in __metadata__ besides "slate.model", up to the first zero byte, as JSON
 * members ("slate.rule":"x",…), and the bytes of slate.tokenizer after it. What is refused must say
 * why; what opens must have a tokenizer that encodes and whose ids have bytes, or none. */
#include <stdio.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"
#include "slate/tokenizer.h"
#include "tests/fuzz/touch.h"
#include "tests/support/seeded.h"

static const struct seeded_shape shape = {.n_layers = 1,
                                          .d_model = 16,
                                          .head_size = 8,
                                          .d_ffn = 24,
                                          .vocab_size = 300,
                                          .rank_w = 4,
                                          .rank_a = 4,
                                          .rank_v = 4,
                                          .rank_g = 4,
                                          .dtype = SL_DTYPE_F32,
                                          .seed = 3};
static const char begin[] = "{\"__metadata__\":{\"format\":\"pt\"";

static unsigned char *model; /* a safetensors file that begins its header like that */
static size_t n_model;

/* The model with these members and this tensor; free(). */
static unsigned char *make(const char *members, size_t n, const uint8_t *tokenizer, size_t n_tok,
                           size_t *ret_n)
{
    static const char version[] = ",\"slate.model\":\"1\"";
    uint64_t n_old;
    char tensor[128];
    memcpy(&n_old, model, sizeof n_old);
    size_t n_data = n_model - 8 - n_old, head = sizeof begin - 1, end = n_old;
    while (model[8 + end - 1] != '}') /* the header's own end, before the blanks */
        end--;
    int n_tensor = snprintf(tensor, sizeof tensor,
                            ",\"slate.tokenizer\":{\"dtype\":\"U8\",\"shape\":[%zu],"
                            "\"data_offsets\":[%zu,%zu]}}",
                            n_tok, n_data, n_data + n_tok);
    uint64_t n_header = end - 1 + sizeof version - 1 + n + (n ? 1 : 0) + (size_t)n_tensor;
    unsigned char *p = malloc(8 + n_header + n_data + n_tok + 1), *at = p;
    MUST(p && n_tensor > 0);
#define PUT(from, bytes) at = (unsigned char *)memcpy(at, from, bytes) + (bytes)
    PUT(&n_header, sizeof n_header);
    PUT(model + 8, head);
    PUT(version, sizeof version - 1);
    if (n)
        PUT(",", 1);
    if (n)
        PUT(members, n);
    PUT(model + 8 + head, end - 1 - head);
    PUT(tensor, (size_t)n_tensor);
    PUT(model + 8 + n_old, n_data);
    if (n_tok)
        PUT(tokenizer, n_tok);
    *ret_n = (size_t)(at - p);
    return p;
}

static void check_error(enum sl_code c, const struct sl_error *err)
{
    MUST(err->code == c && err->message[0] && memchr(err->message, '\0', sizeof err->message));
}

static void try_tokenizer(const struct sl_model *m)
{
    struct sl_error err = {0};
    struct sl_tokenizer *t = NULL;
    struct sl_token_list ids = {0};
    static const struct sl_tokenizer_text text = {.s = "a b", .n = 3};
    enum sl_code c = sl_model_tokenizer(&t, m, &err);
    MUST(!c || !t);
    if (c) {
        check_error(c, &err);
        return;
    }
    if (!t)
        return;
    MUST(sl_tokenizer_eos(t) < (int64_t)1 << 32 && sl_tokenizer_begin(t) < (int64_t)1 << 32);
    if (sl_tokenizer_encode(t, &text, &ids, &err) == SL_OK)
        for (size_t i = 0; i < ids.n; i++)
            MUST(ids.v[i] < sl_tokenizer_size(t));
    sl_token_list_done(&ids);
    sl_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_error err = {0};
    struct sl_model *m = NULL;
    if (!model) {
        struct seeded s;
        seeded_init(&s, &shape);
        model = seeded_bytes(&s, &n_model);
        seeded_done(&s);
        MUST(memcmp(model + 8, begin, sizeof begin - 1) == 0);
    }
    const uint8_t *zero = size ? memchr(data, '\0', size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size, n_file;
    const uint8_t *tokenizer = zero ? zero + 1 : data + size;
    unsigned char *file =
        make((const char *)data, n, tokenizer, (size_t)(data + size - tokenizer), &n_file);
    enum sl_code c = sl_model_open_memory(&m, file, n_file, "m.safetensors", NULL, &err);
    if (c) {
        check_error(c, &err);
    } else {
        const char *template = sl_model_chat_template(m);
        MUST(!template || sl_utf8_valid(template, strlen(template)));
        try_tokenizer(m);
    }
    sl_model_close(m);
    free(file);
    return 0;
}
