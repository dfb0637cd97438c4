/* beside.h: what the files beside a tokenizer's say of its texts' beginnings and ends, and of
 * conversations. Private to libslate. */
#ifndef SLATE_TOKENIZERS_BESIDE_H
#define SLATE_TOKENIZERS_BESIDE_H

#include "slate/tokenizer.h"

/* Reads the folder's tokenizer_config.json, generation_config.json, config.json and
 * chat_template.jinja, each where it is there. A BPE gets its end tokens (every one that they name)
 * and its begin token from them; a World vocabulary has its own end, and begins with it where the
 * template says so; bytes have none. *ret_template: the
 * chat template's text, or NULL; the caller frees. Before the tokenizer is shared. Errors: those of
 * reading; FILE_CORRUPT (a value that is no token; names file and key), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_tokenizer_read_beside(struct sl_tokenizer *t, const char *folder,
                                                   char **ret_template, size_t *ret_n,
                                                   struct sl_error *err);

#endif
