/* gguf_maker.h: GGUF files built in memory, key by key and tensor by tensor.
 *
 * Failing to get memory ends the test program. */
#ifndef SLATE_TESTS_GGUF_MAKER_H
#define SLATE_TESTS_GGUF_MAKER_H

#include "tests/support/bytes.h"

enum { /* types of values */
       MAKE_U8 = 0,
       MAKE_U32 = 4,
       MAKE_I32 = 5,
       MAKE_F32 = 6,
       MAKE_BOOL = 7,
       MAKE_STRING = 8,
       MAKE_ARRAY = 9,
       MAKE_U64 = 10
};

enum { /* types of tensors */
       GGML_F32 = 0,
       GGML_F16 = 1,
       GGML_Q4_0 = 2,
       GGML_Q8_0 = 8,
       GGML_Q4_K = 12,
       GGML_Q5_K = 13,
       GGML_BF16 = 30
};

struct gguf_maker {
    struct bytes keys, infos, data;
    size_t n_keys, n_tensors;
    uint32_t version; /* 0: 3 */
    size_t alignment; /* 0: 32; the key is the caller's */
};

void gguf_u32(struct gguf_maker *g, const char *key, uint32_t v);
void gguf_f32(struct gguf_maker *g, const char *key, float v);
void gguf_bool(struct gguf_maker *g, const char *key, bool v);
void gguf_text(struct gguf_maker *g, const char *key, const char *v);
/* n strings; n values of four bytes. */
void gguf_texts(struct gguf_maker *g, const char *key, const char *const *v, size_t n);
void gguf_words(struct gguf_maker *g, const char *key, uint32_t type, const void *v, size_t n);

/* shape: the outermost axis first. n bytes of data, aligned. */
void gguf_tensor(struct gguf_maker *g, const char *name, uint32_t type, unsigned rank,
                 const size_t *shape, const void *data, size_t n);

/* The whole file, appended to `file`. */
void gguf_end(const struct gguf_maker *g, struct bytes *file);
void gguf_done(struct gguf_maker *g);

#endif
