/* gguf_carry.h: a GGUF file's vocabulary by itself, for a converted model to carry. Private to
 * libslate. */
#ifndef SLATE_FORMATS_GGUF_CARRY_H
#define SLATE_FORMATS_GGUF_CARRY_H

#include "slate/err.h"

/* A GGUF file without tensors, with the keys tokenizer.* of the one that the n bytes are, as they
 * stand there, but for the chat template. sl_free() *ret. `name` is for messages. Errors: those of
 * reading it, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_gguf_carry(unsigned char **ret, size_t *ret_n, const void *file,
                                        size_t n, const char *name, struct sl_error *err);

#endif
