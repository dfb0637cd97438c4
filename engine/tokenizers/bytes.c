/* bytes.c: the tokenizer of models that read bytes: id = byte value, no special token. */
#include "engine/tokenizers/kinds.h"

#include "engine/base/mem.h"

struct bytes {
    struct sl_token_span spans[256];
    unsigned char blob[256];
};

static enum sl_code bytes_open(struct sl_tokenizer *t, const unsigned char *data, size_t n_bytes,
                               const char *name, struct sl_error *err)
{
    (void)data;
    (void)n_bytes;
    struct bytes *b = sl_malloc(sizeof *b);
    if (!b)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the tokenizer \"%s\"", name);
    for (unsigned i = 0; i < 256; i++) {
        b->spans[i] = (struct sl_token_span){.offset = i, .n = 1};
        b->blob[i] = (unsigned char)i;
    }
    t->spans = b->spans;
    t->blob = b->blob;
    t->n_ids = 256;
    t->priv = b;
    return SL_OK;
}

static void bytes_close(struct sl_tokenizer *t)
{
    sl_free(t->priv);
}

static size_t bytes_encode_part(const struct sl_tokenizer *t, const unsigned char *text, size_t n,
                                uint32_t *ids)
{
    (void)t;
    for (size_t i = 0; i < n; i++)
        ids[i] = text[i];
    return n;
}

const struct sl_tokenizer_kind sl_tokenizer_byte_values = {
    .name = "bytes",
    .spec = "bytes",
    .open = bytes_open,
    .close = bytes_close,
    .encode_part = bytes_encode_part,
};
