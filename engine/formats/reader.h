/* reader.h: what tensors.c and the readers of single containers share. Private to engine/formats/.
 *
 * A reader is one function that takes a struct sl_reader, checks the whole file and adds tensors
 * and metadata; tensors.c owns the memory, sorts, finds duplicates and frees everything when the
 * reader fails. All strings live in an arena that ends with the struct sl_tensors. */
#ifndef SLATE_FORMATS_READER_H
#define SLATE_FORMATS_READER_H

#include "engine/formats/tensors.h"

/* Limits. Each one is far above what models have and far below what would hurt. */
#define SL_TENSORS_MAX ((size_t)1 << 20)
#define SL_TENSOR_NAME_MAX ((size_t)1024)
#define SL_TENSORS_META_MAX ((size_t)4096)
#define SL_TENSORS_META_BYTES_MAX ((size_t)16 << 20) /* one value */
#define SL_TENSORS_STRINGS_MAX ((size_t)256 << 20)   /* all names and metadata together */
/* Parts of a pickle may be shared, so that a few bytes could speak of many tensors. */
#define SL_TENSORS_FILE_BYTES_EACH ((size_t)4)
/* Views may repeat elements (torch's expand()), so a small file could speak of any amount. All
 * tensors of a file together, densely packed, are at most this many times the file and a bit. */
#define SL_TENSORS_REPEAT_MAX ((size_t)16)
#define SL_TENSORS_REPEAT_FREE ((size_t)256 << 20)

struct sl_reader {
    struct sl_tensors *t;
    const unsigned char *data; /* the whole file */
    size_t n;
    const char *name; /* for messages */
    struct sl_error *err;
};

/* `return SL_READER_FAIL(r, FILE_CORRUPT, "…", …);` names the file first. A macro, so that the
 * compiler sees that the value is not SL_OK. */
#define SL_READER_FAIL(r, code, ...) (sl_reader_fail((r), SL_E_##code, __VA_ARGS__), SL_E_##code)
void sl_reader_fail(const struct sl_reader *r, enum sl_code c, const char *fmt, ...)
    SL_PRINTF(3, 4);

/* The readers. Data that stays beyond the call lies in r->data or in the arena. */
SL_NODISCARD enum sl_code sl_safetensors_read(struct sl_reader *r);
SL_NODISCARD enum sl_code sl_pth_zip_read(struct sl_reader *r);
SL_NODISCARD enum sl_code sl_pth_legacy_read(struct sl_reader *r);
SL_NODISCARD enum sl_code sl_gguf_read(struct sl_reader *r);

/* Adds a tensor: origin, dtype, block, exponent, rank, shape, stride and data are taken from *t
 * (stride and data checked by the caller), the rest is computed. The name, name_n bytes and a NUL,
 * is checked (UTF-8, no NUL inside, length) and copied. */
SL_NODISCARD enum sl_code sl_reader_add(struct sl_reader *r, const struct sl_tensor *t,
                                        const char *name, size_t name_n);

/* Adds a string that the file says of itself; copied. */
SL_NODISCARD enum sl_code sl_reader_add_meta(struct sl_reader *r, const char *key, size_t key_n,
                                             const char *value, size_t value_n);

/* n zeroed bytes that live as long as the list, or NULL: sl_reader_no_memory() says why then. */
void *sl_reader_alloc(struct sl_reader *r, size_t n);
/* Fails with NO_MEMORY, or TOO_LARGE where names and metadata reached their limit. */
SL_NODISCARD enum sl_code sl_reader_no_memory(struct sl_reader *r);

/* Fills t->stride as row-major without gaps, and t->n_elements. False when that overflows; else
 * *ret_bytes is what the elements take. */
SL_NODISCARD bool sl_tensor_pack(struct sl_tensor *t, size_t *ret_bytes);

#endif
