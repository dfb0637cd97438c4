/* fields.h: for tests of request decoders: every field with a value of every type. */
#ifndef TESTS_FIELDS_H
#define TESTS_FIELDS_H

#include "proto/request.h"

/* A decoder as the tests call it: decodes, frees what it got. */
typedef enum sl_code (*field_decoder)(const void *body, size_t n, struct sl_error *err);

struct field_types {
    const char *key;
    const char *ok; /* which of b i r s a o are accepted: true, 1, 1.5, "x", [], {} */
};

/* The body is {BASE"key":value}. For each field: null is as if it was absent; a value whose type is
 * not in `ok` must be a 4xx whose param is the field (or begins with it) and whose message names
 * it; one in `ok` must be accepted. Fails the test with the body where not. */
void fields_check_types(field_decoder decode, const char *base, const struct field_types *fields,
                        size_t n);

struct field_case {
    const char *body;
    enum sl_code code;
    const char *param;   /* exactly; NULL: not looked at */
    const char *message; /* a part of it; NULL: not looked at */
};
void fields_check_cases(field_decoder decode, const struct field_case *cases, size_t n);

/* Decodes with the n-th allocation failing, for every n: NO_MEMORY until it succeeds. Returns how
 * many allocations it has. */
size_t fields_check_memory(field_decoder decode, const char *body);

#endif
