/* bpe_json.h: reading values of a tokenizer.json, each failure with its place in the file. Private
 * to engine/tokenizers/bpe_json*.c. */
#ifndef SLATE_TOKENIZERS_BPE_JSON_H
#define SLATE_TOKENIZERS_BPE_JSON_H

#include <jansson.h>

#include "engine/tokenizers/bpe_parts.h"

struct place { /* "pre_tokenizer", ".pretokenizers", "[1]": a chain on the stack */
    const struct place *up;
    const char *key; /* NULL: an element of a list */
    size_t index;
};

struct json_reader {
    const char *name; /* the file's */
    struct sl_error *err;
};

#define AT(up, key)                                                                                \
    &(const struct place)                                                                          \
    {                                                                                              \
        up, key, 0                                                                                 \
    }
#define AT_INDEX(up, i)                                                                            \
    &(const struct place)                                                                          \
    {                                                                                              \
        up, NULL, i                                                                                \
    }

/* FILE_CORRUPT: the file is wrong. */
enum sl_code sl_bpe_json_bad(const struct json_reader *r, const struct place *at, const char *fmt,
                             ...) SL_PRINTF(3, 4);
/* FILE_UNSUPPORTED: it may be right, but what it asks for is not done here. */
enum sl_code sl_bpe_json_unknown(const struct json_reader *r, const struct place *at,
                                 const char *fmt, ...) SL_PRINTF(3, 4);
/* What r->err says already (code c), with the place put in front. Passes SL_OK on. */
enum sl_code sl_bpe_json_placed(const struct json_reader *r, const struct place *at,
                                enum sl_code c);
enum sl_code sl_bpe_json_no_memory(const struct json_reader *r);

#ifdef __clang_analyzer__
/* As sl_fail(): a failure gives back its own code, never SL_OK. */
#define sl_bpe_json_bad(r, at, ...)                                                                \
    ((void)(sl_bpe_json_bad)((r), (at), __VA_ARGS__), SL_E_FILE_CORRUPT)
#define sl_bpe_json_unknown(r, at, ...)                                                            \
    ((void)(sl_bpe_json_unknown)((r), (at), __VA_ARGS__), SL_E_FILE_UNSUPPORTED)
#define sl_bpe_json_no_memory(r) ((void)(sl_bpe_json_no_memory)(r), SL_E_NO_MEMORY)
#endif

/* A key that may be absent or null: then *ret stays as it is. */
SL_NODISCARD enum sl_code sl_bpe_json_bool(const struct json_reader *r, const struct place *at,
                                           const json_t *object, const char *key, bool *ret);
SL_NODISCARD enum sl_code sl_bpe_json_text(const struct json_reader *r, const struct place *at,
                                           const json_t *object, const char *key, const char **ret,
                                           size_t *ret_n);
/* A key that must be there: a number from 0 to max. */
SL_NODISCARD enum sl_code sl_bpe_json_count(const struct json_reader *r, const struct place *at,
                                            const json_t *object, const char *key, uint64_t max,
                                            uint64_t *ret);

/* A list of 1 to SL_BPE_STEPS_MAX … elements. */
SL_NODISCARD enum sl_code sl_bpe_json_list(const struct json_reader *r, const struct place *at,
                                           const json_t *object, const char *key,
                                           const json_t **ret);

/* The steps: bpe_json_steps.c. Each value may be null. */
SL_NODISCARD enum sl_code sl_bpe_json_normalizer(const struct json_reader *r, struct sl_bpe *b,
                                                 const struct place *at, const json_t *v);
SL_NODISCARD enum sl_code sl_bpe_json_pre_tokenizer(const struct json_reader *r, struct sl_bpe *b,
                                                    const struct place *at, const json_t *v);
/* bpe_json_ends.c */
SL_NODISCARD enum sl_code sl_bpe_json_decoder(const struct json_reader *r, struct sl_bpe *b,
                                              const struct place *at, const json_t *v);
SL_NODISCARD enum sl_code sl_bpe_json_post_processor(const struct json_reader *r,
                                                     struct sl_tokenizer *t, const struct place *at,
                                                     const json_t *v);

/* A row of a table of types. */
struct json_type {
    const char *name;
    enum sl_code (*read)(const struct json_reader *r, void *dst, const struct place *at,
                         const json_t *v);
};

/* By the value's "type", the row that reads it; `dst` is handed on. "Sequence" is read as the list
 * under `list_key`, its elements one by one. Errors: those of reading; FILE_UNSUPPORTED. */
SL_NODISCARD enum sl_code sl_bpe_json_typed(const struct json_reader *r,
                                            const struct json_type *types, size_t n_types,
                                            const char *list_key, void *dst, const struct place *at,
                                            const json_t *v);

/* {"String": "…"} or {"Regex": "…"} under "pattern". */
SL_NODISCARD enum sl_code sl_bpe_json_pattern(const struct json_reader *r, const struct place *at,
                                              const json_t *object, struct sl_bpe_pattern *ret);
/* The bytes of a text under `key`, which must be there; the caller frees. */
SL_NODISCARD enum sl_code sl_bpe_json_bytes(const struct json_reader *r, const struct place *at,
                                            const json_t *object, const char *key,
                                            unsigned char **ret, size_t *ret_n);

#endif
