/* values.h: what a bench found, as a list of named values: said once, written as keys of a JSON
 * object and as columns of CSV. */
#ifndef SLATE_SERVER_CLI_VALUES_H
#define SLATE_SERVER_CLI_VALUES_H

#include "proto/json_out.h"

enum sl_value_kind { SL_VALUE_TEXT, SL_VALUE_COUNT, SL_VALUE_NUMBER, SL_VALUE_RANGE };

struct sl_value {
    const char *name;
    enum sl_value_kind kind;
    /* Those of a group follow each other: an object in JSON's, and CSV's names begin with it. */
    const char *group;
    bool absent; /* no key in JSON; nothing in CSV's column, as of what is null */
    bool null;
    const char *text;
    uint64_t count;
    double number, most; /* of a range the least and the most: a list, or two columns */
    int digits;          /* of these behind the point */
};

enum { SL_VALUES_MAX = 32 };

struct sl_values {
    struct sl_value v[SL_VALUES_MAX];
    size_t n;
};

void sl_values_add(struct sl_values *to, const struct sl_value *v, size_t n);

/* Into an object that is open. */
void sl_values_json(struct sl_json_out *w, const struct sl_values *v);
/* A line; before the first one, when b is empty, that of the names. */
void sl_values_csv(struct sl_buf *b, const struct sl_values *v);

/* Prints what is in b, if all of it is, and is done with it. Errors: those of sl_buf_code(). */
SL_NODISCARD enum sl_code sl_values_print(struct sl_buf *b, struct sl_error *err);

#endif
