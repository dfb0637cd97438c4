/* vocabulary.h: what a model's file says of its tokens, where it does. Private to libslate.
 *
 * Strings and arrays lie in the file or beside the list of its tensors, and live as long as that
 * (struct sl_tensors). Read only, any thread. */
#ifndef SLATE_FORMATS_VOCABULARY_H
#define SLATE_FORMATS_VOCABULARY_H

#include "engine/tokenizers/bpe.h"

struct sl_vocabulary {
    /* model "gpt2" or "llama": see bpe.h. "rwkv": the tokens are what Python writes between the
     * quotes of a bytes literal, types say which ones there are. Others may stand here, too. */
    struct sl_bpe_arrays arrays;
    const char *chat_template; /* Jinja, as the file has it; NULL: none */
    const char *wrong; /* what contradicts itself in the keys; NULL: nothing, and `arrays` is
                          filled in */
};

/* The tokenizer that it describes, which the caller closes; `name` is for messages. Errors:
 * FILE_CORRUPT, FILE_UNSUPPORTED (names the kind, or what of it is not known), TOO_LARGE,
 * NO_MEMORY. */
SL_NODISCARD enum sl_code sl_vocabulary_open(struct sl_tokenizer **ret,
                                             const struct sl_vocabulary *v, const char *name,
                                             struct sl_error *err);

#endif
