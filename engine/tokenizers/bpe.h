/* bpe.h: a BPE tokenizer from arrays in memory, as a GGUF file's tokenizer.ggml.* keys hold them.
 * Private to libslate. (A tokenizer.json is opened like any other tokenizer: sl_tokenizer_open()
 * and sl_tokenizer_open_memory() tell the kinds apart by what the bytes are.)
 *
 * Any thread; the arrays and strings are the caller's and are not kept. */
#ifndef SLATE_TOKENIZERS_BPE_H
#define SLATE_TOKENIZERS_BPE_H

#include "slate/tokenizer.h"

struct sl_bpe_text { /* UTF-8, not ended by a NUL */
    const char *s;
    size_t n;
};

enum sl_bpe_type { /* tokenizer.ggml.token_type */
                   SL_BPE_NORMAL = 1,
                   SL_BPE_UNKNOWN = 2,
                   SL_BPE_CONTROL = 3, /* a special token: found in text, has no bytes */
                   SL_BPE_USER_DEFINED = 4,
                   SL_BPE_UNUSED = 5,
                   SL_BPE_BYTE = 6 /* "<0x0A>" */
};

struct sl_bpe_arrays {
    const char *model;                /* "gpt2": byte level, with merges; "llama": SentencePiece's
                                         BPE, with scores */
    const char *pre;                  /* tokenizer.ggml.pre, of "gpt2"; NULL: "default" */
    const struct sl_bpe_text *tokens; /* by id */
    const int32_t *types;             /* by id, enum sl_bpe_type; NULL: all are normal */
    const float *scores;              /* by id, of "llama" */
    size_t n_tokens;
    const struct sl_bpe_text *merges; /* of "gpt2", the first one first: "a b" */
    size_t n_merges;
    bool add_space_prefix;                /* of "llama": a text begins with a blank (tokenizer.ggml.
                                             add_space_prefix, true where it is absent) */
    int64_t begin;                        /* the token that a text begins with, or -1 */
    uint32_t ends[SL_TOKENIZER_ENDS_MAX]; /* the tokens that end a text */
    size_t n_ends;
};

/* `name` is for messages. The caller closes *ret. Errors: FILE_CORRUPT, FILE_UNSUPPORTED (a model
 * or a `pre` that is not known here), TOO_LARGE, NO_MEMORY; the message names the key and the
 * index. */
SL_NODISCARD enum sl_code sl_tokenizer_open_arrays(struct sl_tokenizer **ret,
                                                   const struct sl_bpe_arrays *arrays,
                                                   const char *name, struct sl_error *err);

#endif
