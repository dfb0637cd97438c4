/* json.h: reading JSON: jansson with limits, and getters whose errors name the field.
 *
 * NUL in strings is kept (lengths are). Duplicate keys, invalid UTF-8, lone surrogates, NUL in a
 * key and nesting beyond jansson's 2,048 levels are INVALID_JSON. A number beyond a double or 64
 * bits still parses, as another one, so that the getter can say which field held it: whatever is
 * kept without a getter asks sl_json_keepable(). Very many values (millions in
 * one body) are TOO_LARGE. Any thread; a document belongs to one. Writing is json_out.h. */
#ifndef SLATE_PROTO_JSON_H
#define SLATE_PROTO_JSON_H

#include <jansson.h>

#include "proto/request.h"

/* Room for a path such as `messages[2].content[0].text`, as long as sl_error's param. */
#define SL_PATH_SIZE 64

/* Once, at start, before any other thread: jansson allocates with sl_malloc() and seeds its
 * hashes. Again is fine. Without it all works, but allocations are jansson's own. */
void sl_json_init(void);

/* The body as an object, to be given to json_decref(). An empty body is {} where empty_is_object,
 * else an error. */
SL_NODISCARD enum sl_code sl_json_parse(json_t **ret, const void *body, size_t n,
                                        bool empty_is_object, struct sl_error *err);

/* The member, or NULL where it is absent or null. */
const json_t *sl_json_member(const json_t *object, const char *key);

/* --- one value. v is not NULL and not null; `path` is how errors call it. --- */

SL_NODISCARD enum sl_code sl_json_bool(const json_t *v, const char *path, bool *ret,
                                       struct sl_error *err);
SL_NODISCARD enum sl_code sl_json_int(const json_t *v, const char *path, int64_t lo, int64_t hi,
                                      int64_t *ret, struct sl_error *err);
SL_NODISCARD enum sl_code sl_json_float(const json_t *v, const char *path, double lo, double hi,
                                        float *ret, struct sl_error *err);
/* A string of at most max bytes, else `over`; points into the document. */
SL_NODISCARD enum sl_code sl_json_text(const json_t *v, const char *path, size_t max,
                                       enum sl_code over, struct sl_text *ret,
                                       struct sl_error *err);
/* The same, copied into a pool, and without NUL, so that it is a C string. */
SL_NODISCARD enum sl_code sl_json_cstr(const json_t *v, const char *path, size_t max,
                                       struct sl_pool *pool, const char **ret,
                                       struct sl_error *err);
/* One of n words; which. */
SL_NODISCARD enum sl_code sl_json_enum(const json_t *v, const char *path, const char *const *words,
                                       size_t n, size_t *ret, struct sl_error *err);
/* An array of at most max items, else `over`; their number. */
SL_NODISCARD enum sl_code sl_json_array(const json_t *v, const char *path, size_t max,
                                        enum sl_code over, size_t *ret_n, struct sl_error *err);
SL_NODISCARD enum sl_code sl_json_object(const json_t *v, const char *path, struct sl_error *err);

/* An object that is kept as it is, without a getter for what is in it: INVALID_VALUE, which names
 * the member, where a number in it could not be held. */
SL_NODISCARD enum sl_code sl_json_keepable(const json_t *object, const char *path,
                                           struct sl_error *err);

/* INVALID_TYPE: "path must be WHAT, got …". */
enum sl_code sl_json_wrong_type(const json_t *v, const char *path, const char *what,
                                struct sl_error *err);

/* What a value is, for messages: `true`, `the number 3.5`, `the string "abc"`, `an array of 3`. */
#define SL_DESCRIBE_SIZE 128
void sl_json_describe(const json_t *v, char ret[SL_DESCRIBE_SIZE]);

/* --- many fields, from a table --- */

enum sl_json_kind { SL_JSON_BOOL, SL_JSON_U32, SL_JSON_FLOAT };

struct sl_json_row {
    const char *key;
    size_t offset; /* of the bool, uint32_t or float in the struct */
    double lo, hi;
    enum sl_json_kind kind;
};

/* Reads the fields of the table that are there into `dst`; the others are left as they are. */
SL_NODISCARD enum sl_code sl_json_rows(const json_t *object, const struct sl_json_row *rows,
                                       size_t n_rows, void *dst, struct sl_error *err);

#endif
