/* embedded.h: the model that is inside the program. Private to libslate, but for its use of id 0 at
 * a text's beginning, which sl_tokenizer and the model's metadata do not say. */
#ifndef SLATE_MODELS_EMBEDDED_H
#define SLATE_MODELS_EMBEDDED_H

#include <stddef.h>

#define SL_EMBEDDED_NAME "slate-tiny"

/* A .safetensors file and a vocabulary in the form of the RWKV World one; static storage. */
const void *sl_embedded_model_data(size_t *ret_n);
const void *sl_embedded_vocab_data(size_t *ret_n);

/* The pieces of conversations that `slate probe model` asks it for: engine/models/probe.txt. */
const void *sl_embedded_probe_data(size_t *ret_n);

#endif
