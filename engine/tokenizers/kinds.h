/* kinds.h: what every kind of tokenizer is made of. Private to engine/tokenizers.
 *
 * A kind is one file and one row in the table of tokenizer.c. Its open function fills the table of
 * tokens (which bytes belong to which id) and `priv`, and says how text is cut into tokens. */
#ifndef SLATE_TOKENIZERS_KINDS_H
#define SLATE_TOKENIZERS_KINDS_H

#include "slate/tokenizer.h"

enum {
    SL_VOCAB_FILE_BYTES_MAX = 64 << 20, /* of a vocabulary's file; the World vocabulary has 1.1 MB,
                                           the largest tokenizer.json in use 33 */
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
    /* What differs of a text's first token, or NULL: the same. Of an id with bytes in `spans`. */
    const struct sl_token_span *first_spans;
    size_t n_ids; /* of spans: one more than the largest id */
    uint32_t ends[SL_TOKENIZER_ENDS_MAX];
    size_t n_ends;
    int64_t begin; /* -1: none */
    void *priv;    /* the kind's own; it owns blob and spans, too */
    unsigned char fingerprint[16];
};

struct XXH3_state_s; /* <xxhash.h> */

struct sl_tokenizer_kind {
    const char *name;
    const char *spec; /* the word that opens it, or NULL: it is read from a file */
    /* Are these the bytes of such a file? NULL: of any that no other kind knows. */
    bool (*knows)(const unsigned char *data, size_t n_bytes);
    /* data is NULL where spec is not. On failure nothing is left behind in t. t->begin is -1. */
    enum sl_code (*open)(struct sl_tokenizer *t, const unsigned char *data, size_t n_bytes,
                         const char *name, struct sl_error *err);
    void (*close)(struct sl_tokenizer *t);
    size_t (*encode_part)(const struct sl_tokenizer *t, const unsigned char *part, size_t n,
                          uint32_t *ids);
    /* NULL: a text is encoded as a part is, and has no more tokens than bytes. */
    enum sl_code (*encode)(const struct sl_tokenizer *t, const struct sl_tokenizer_text *text,
                           struct sl_token_list *out, struct sl_error *err);
    int64_t (*find)(const struct sl_tokenizer *t, const char *text, size_t n); /* may be NULL */
    /* What the fingerprint covers besides ids and bytes. NULL: nothing. */
    void (*fingerprint)(const struct sl_tokenizer *t, struct XXH3_state_s *state);
};

extern const struct sl_tokenizer_kind sl_tokenizer_rwkv_world;
extern const struct sl_tokenizer_kind sl_tokenizer_byte_values;
extern const struct sl_tokenizer_kind sl_tokenizer_bpe;

/* Room for n ids more. Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_token_list_reserve(struct sl_token_list *l, size_t n,
                                                struct sl_error *err);

/* A kind that was filled by hand: what opening a file does after the kind's own open. */
void sl_tokenizer_finish(struct sl_tokenizer *t);

#endif
