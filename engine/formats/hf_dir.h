/* hf_dir.h: a folder in Hugging Face's layout: config.json beside model.safetensors. Private to
 * engine/formats/. */
#ifndef SLATE_FORMATS_HF_DIR_H
#define SLATE_FORMATS_HF_DIR_H

#include "engine/formats/settings.h"
#include "engine/formats/tensors.h"

enum { SL_HF_NAME_BYTES = 128 };

/* Opens the tensors of the folder and reads its settings; the caller closes both. ret_name is the
 * weights' file for messages: "retnet/model.safetensors". Errors are those of sl_tensors_open(); a
 * folder that holds something else is FILE_UNSUPPORTED, and the message says what it holds. */
SL_NODISCARD enum sl_code sl_hf_dir_open(struct sl_tensors **ret, struct sl_settings **ret_settings,
                                         char ret_name[SL_HF_NAME_BYTES], const char *path,
                                         struct sl_error *err);

/* A JSON file of the folder that may be absent: then *ret is NULL. The caller closes. */
SL_NODISCARD enum sl_code sl_hf_dir_settings(struct sl_settings **ret, const char *folder,
                                             const char *file, struct sl_error *err);

/* The same of any text, of at most `max` bytes (else TOO_LARGE), with a NUL behind it; the caller
 * frees. */
SL_NODISCARD enum sl_code sl_hf_dir_text(char **ret, size_t *ret_n, const char *folder,
                                         const char *file, size_t max, struct sl_error *err);

#endif
