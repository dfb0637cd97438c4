/* rwkv_arrays.h: RWKV's vocabulary from arrays, as a GGUF file's tokenizer.ggml.* keys hold it.
 * Private to libslate.
 *
 * Any thread; the arrays and strings are the caller's and are not kept. */
#ifndef SLATE_TOKENIZERS_RWKV_ARRAYS_H
#define SLATE_TOKENIZERS_RWKV_ARRAYS_H

#include "engine/tokenizers/bpe.h"

/* `name` is for messages. The caller closes *ret. Of the arrays: tokens (what Python writes between
 * the quotes of a bytes literal), types, begin, ends. Token 0 ends a text. Errors: FILE_CORRUPT,
 * FILE_UNSUPPORTED, TOO_LARGE, NO_MEMORY; a "line" in a message is that of a token with text. */
SL_NODISCARD enum sl_code sl_tokenizer_open_rwkv(struct sl_tokenizer **ret,
                                                 const struct sl_bpe_arrays *arrays,
                                                 const char *name, struct sl_error *err);

#endif
