/* gguf.h: what stands in the header of a GGUF file: keys with values, and where tensors lie.
 * Private to engine/formats/.
 *
 *   "GGUF"  u32 version (2 or 3)  u64 tensors  u64 keys
 *   keys:    string name, u32 type, value       arrays: u32 type, u64 count, values
 *   tensors: string name, u32 rank, u64 size per axis (the innermost first), u32 type, u64 offset
 *   padding to general.alignment (32), then the data that offsets count from
 *
 * A string is u64 bytes and then the bytes. Everything is little-endian. Pointers below are into
 * the file; nothing of it is copied. What keys mean is for gguf_model.c and gguf_vocabulary.c to
 * say. */
#ifndef SLATE_FORMATS_GGUF_H
#define SLATE_FORMATS_GGUF_H

#include "engine/formats/reader.h"

enum { SL_GGUF_RANK_MAX = 4 };
/* Keys that are no list; lists are bounded by the file, and by what reads them. */
#define SL_GGUF_KEYS_MAX SL_TENSORS_META_MAX

enum sl_gguf_type {
    SL_GGUF_U8,
    SL_GGUF_I8,
    SL_GGUF_U16,
    SL_GGUF_I16,
    SL_GGUF_U32,
    SL_GGUF_I32,
    SL_GGUF_F32,
    SL_GGUF_BOOL,
    SL_GGUF_STRING,
    SL_GGUF_ARRAY,
    SL_GGUF_U64,
    SL_GGUF_I64,
    SL_GGUF_F64,
    SL_GGUF_TYPES
};

struct sl_gguf_text {
    const char *s; /* n bytes, no end; any bytes */
    size_t n;
};

struct sl_gguf_key {
    struct sl_gguf_text name;
    enum sl_gguf_type type; /* of the value, or of each value of an array */
    bool array;
    size_t n;                /* of values; 1 without an array */
    const unsigned char *at; /* the first one */
};

struct sl_gguf_tensor {
    struct sl_gguf_text name;
    unsigned rank;
    size_t shape[SL_GGUF_RANK_MAX]; /* the outermost first, as everywhere else here */
    enum sl_dtype dtype;            /* NONE where block is not */
    enum sl_block_type block;
    size_t offset, n_bytes; /* in the data */
};

struct sl_gguf {
    struct sl_reader *r;
    unsigned version;
    struct sl_gguf_key *keys; /* sorted by name */
    size_t n_keys;
    struct sl_gguf_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    const unsigned char *data;
    size_t data_n;
};

/* Reads and checks the header. sl_gguf_done() in any case. Errors: FILE_TRUNCATED, FILE_CORRUPT,
 * FILE_UNSUPPORTED, TOO_LARGE, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_gguf_parse(struct sl_gguf *ret, struct sl_reader *r);
void sl_gguf_done(struct sl_gguf *g);

/* NULL when it is absent. */
const struct sl_gguf_key *sl_gguf_find(const struct sl_gguf *g, const char *name);
const struct sl_gguf_tensor *sl_gguf_find_tensor(const struct sl_gguf *g, const char *name);

/* What the keys tokenizer.* say, in memory of the list of tensors; *ret NULL where there are none.
 * What is wrong with them is in it. Errors: NO_MEMORY, TOO_LARGE. */
SL_NODISCARD enum sl_code sl_gguf_read_vocabulary(struct sl_vocabulary **ret,
                                                  const struct sl_gguf *g);

/* Whether a text is this string. */
bool sl_gguf_is(struct sl_gguf_text t, const char *s);

/* "u32", "string", … */
const char *sl_gguf_type_name(enum sl_gguf_type t);

/* A single number, or value i of an array of them. False where it is no number; *ret is exact for
 * all but integers above 2^53. */
bool sl_gguf_number(const struct sl_gguf_key *k, size_t i, double *ret);

/* A single string; false where it is none. */
bool sl_gguf_text(const struct sl_gguf_key *k, struct sl_gguf_text *ret);

/* Where its values end in the file. */
const unsigned char *sl_gguf_end(const struct sl_gguf_key *k);

/* The strings of an array in their order: *at is k->at first, and moves on. */
struct sl_gguf_text sl_gguf_next(const unsigned char **at);

#endif
