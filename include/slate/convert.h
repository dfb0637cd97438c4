/* convert.h: a model of any format that can be read -> one safetensors file.
 *
 * The file has the source's names, shapes and values, and in its metadata what else the model
 * needs; what stands where, and what a converted model counts as, is said in engine/converted.h.
 *
 *   sl_conversion_open()    reads the source once: everything that loading checks, and its
 *                           fingerprint
 *   sl_conversion_carry()   what the file is to carry besides
 *   sl_conversion_write()   the file's bytes, from the first to the last, tensor by tensor
 *   sl_conversion_seal()    what was written is opened again and checked as a model; the two marks
 *                           that only then are known are to be written over the file's beginning
 *
 * Memory: a block of values, and one whole tensor where a .pth file has it transposed. One thread
 * at a time; sl_conversion_open() uses the processors that there are. */
#ifndef SLATE_CONVERT_H
#define SLATE_CONVERT_H

#include "slate/model.h"

struct sl_conversion;

struct sl_conversion_options {
    const char *path;      /* as of sl_model_options */
    const char *rule;      /* likewise; kept in the file */
    enum sl_dtype weights; /* of matrices: F32, BF16, F16, Q8 or Q4; NONE: as the source has
                              them, blocks of a GGUF file, too */
};

/* The caller closes *ret; what opt points to is not kept. Errors as sl_model_open(), and:
 * INVALID_VALUE (weights; another type than the one that the source was narrowed to before). */
SL_NODISCARD enum sl_code sl_conversion_open(struct sl_conversion **ret,
                                             const struct sl_conversion_options *opt,
                                             struct sl_error *err);
void sl_conversion_close(struct sl_conversion *c); /* NULL is fine */

/* What a file carries besides the model's own. */
struct sl_conversion_extras {
    const char *tokenizer_kind; /* "rwkv_world", "bpe", "bytes" (sl_tokenizer_kind()), or "gguf";
                                   "": no tokenizer */
    const unsigned char *tokenizer; /* its file's bytes; NULL of "bytes" */
    size_t n_tokenizer;
    const char *begin_token;   /* "none", or an id: what a text begins with */
    const char *end_tokens;    /* "", or ids with commas between: what ends one */
    const char *chat_template; /* a name of proto/chat.h, or a template's text */
};

struct sl_conversion_info {
    const char *arch, *container;
    size_t vocab_size;
    unsigned char fingerprint[16];
    size_t n_converted; /* tensors that are written in another type than the source's */
    struct sl_conversion_extras extras; /* as they will be written */
    uint64_t bytes;                     /* of the file, once it is written */
    bool narrowed;                      /* likewise: a value has lost something */
};
void sl_conversion_info(const struct sl_conversion *c, struct sl_conversion_info *ret);

/* What the file is to carry: for each that is not NULL, in the place of what the source itself has
 * (one that was converted before, or a GGUF file). With a tokenizer come its beginning and ends.
 * All that extras points to must outlive c. Errors: INVALID_VALUE (a text that is not UTF-8),
 * TOO_LARGE.
 */
SL_NODISCARD enum sl_code sl_conversion_carry(struct sl_conversion *c,
                                              const struct sl_conversion_extras *extras,
                                              struct sl_error *err);

/* Whether that file, as stat() tells it, is one that the conversion reads. */
bool sl_conversion_reads(const struct sl_conversion *c, uint64_t device, uint64_t inode);

/* Takes the next n bytes of the file. Its error ends the writing. */
typedef enum sl_code sl_conversion_sink(void *arg, const void *data, size_t n,
                                        struct sl_error *err);

/* Once. Begins with opening the tokenizer that is to be carried: its errors, too. */
SL_NODISCARD enum sl_code sl_conversion_write(struct sl_conversion *c, sl_conversion_sink *sink,
                                              void *arg, struct sl_error *err);

/* Bytes that replace those at `at`. */
struct sl_conversion_mark {
    uint64_t at;
    char text[40];
    size_t n;
};
enum { SL_CONVERSION_MARKS = 2 };

/* `path` is what was written. Errors: those of opening it; INTERNAL (it is not what was read). */
SL_NODISCARD enum sl_code sl_conversion_seal(struct sl_conversion *c, const char *path,
                                             struct sl_conversion_mark ret[SL_CONVERSION_MARKS],
                                             struct sl_error *err);

#endif
