/* hf_index.h: a model's weights in several files: model.safetensors.index.json and its like.
 * Private to engine/formats/. */
#ifndef SLATE_FORMATS_HF_INDEX_H
#define SLATE_FORMATS_HF_INDEX_H

#include "engine/formats/tensors.h"

/* Opens all files that the index (text of n bytes, `index_name` in messages) names, in `folder`, as
 * one list of tensors; the caller closes it. The index and the files must say the same: each tensor
 * that it names is in the file that it names, and no file holds another. Files lie in the
 * folder: no '/', no leading dot, and no link out of it but into the blobs/ of Hugging Face's
 * cache. Errors: FILE_CORRUPT (says which entry), FILE_UNSUPPORTED,
 * TOO_LARGE, NO_MEMORY, and those of the files. */
SL_NODISCARD enum sl_code sl_hf_index_open(struct sl_tensors **ret, const char *folder,
                                           const char *text, size_t n, const char *index_name,
                                           struct sl_error *err);

#endif
