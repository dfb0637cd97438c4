/* kinds.h: what every kind of tokenizer is made of. Private to engine/tokenizers.
 *
 * A kind is one file and one row in the table of tokenizer.c. Its open function fills the table of
 * tokens (which bytes belong to which id) and `priv`, and says how text is cut into tokens. */
#ifndef SLATE_TOKENIZERS_KINDS_H
#define SLATE_TOKENIZERS_KINDS_H

#include "slate/tokenizer.h"

enum {
    SL_VOCAB_FILE_BYTES_MAX = 16 << 20, /* of a vocabulary file; the World vocabulary has 1.1 MB */
    SL_VOCAB_ID_MAX = (1 << 20) - 1
};

/* Where a token's bytes lie; n is 0 for an id without bytes. */
struct sl_token_span {
    uint32_t offset;
    uint32_t n;
};

struct sl_tokenizer {
    const struct sl_tokenizer_kind *kind;
    const unsigned char *blob; /* all tokens' bytes, one after the other */
    const struct sl_token_span *spans;
    size_t n_ids; /* of spans: one more than the largest id */
    int64_t eos;
    void *priv; /* the kind's own; it owns blob and spans, too */
    unsigned char fingerprint[16];
};

struct sl_tokenizer_kind {
    const char *name;
    const char *spec; /* the word that opens it, or NULL: it is read from a file */
    /* data is NULL where spec is not. On failure nothing is left behind in t. */
    enum sl_code (*open)(struct sl_tokenizer *t, const unsigned char *data, size_t n_bytes,
                         const char *name, struct sl_error *err);
    void (*close)(struct sl_tokenizer *t);
    size_t (*encode)(const struct sl_tokenizer *t, const unsigned char *text, size_t n,
                     uint32_t *ids);
};

extern const struct sl_tokenizer_kind sl_tokenizer_rwkv_world;
extern const struct sl_tokenizer_kind sl_tokenizer_byte_values;

#endif
