/* gguf_models.h: the seeded models that tests/vectors/gguf/ has as GGUF files, as lists of tensors;
 * see the README there. */
#ifndef SLATE_TESTS_GGUF_MODELS_H
#define SLATE_TESTS_GGUF_MODELS_H

#include "tests/support/seeded.h"

struct gguf_model {
    const char *name;     /* "rwkv7-f16": of the list and of the file written from it */
    const char *settings; /* config.json; NULL: BlinkDL's files have none */
    enum sl_dtype dtype;
    void (*list)(struct seeded *s, enum sl_dtype dtype);
};

/* Ends with a zeroed one. */
extern const struct gguf_model gguf_models[];

/* NULL when there is none. */
const struct gguf_model *gguf_model_find(const char *name);

/* As it was before a converter saw it. *ret_bytes is to be freed after it. Fails the test. */
struct sl_model *gguf_model_open(const struct gguf_model *m, enum sl_dtype weights,
                                 unsigned char **ret_bytes);

#endif
