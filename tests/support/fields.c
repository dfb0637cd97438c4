/* fields.c: see fields.h. */
#include "tests/support/fields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"

static void check_type(field_decoder decode, const char *base, const struct field_types *f,
                       const char *value, bool ok)
{
    char body[512];
    struct sl_error err = {0};
    int n = snprintf(body, sizeof body, "{%s\"%s\":%s}", base, f->key, value);
    enum sl_code c = decode(body, (size_t)n, &err);
    if (ok) {
        if (c != SL_OK)
            fail_msg("%s: %s (%s)", body, err.message, sl_code_name(c));
        return;
    }
    int http = sl_code_http(c);
    if (http < 400 || http > 499 || err.code != c || !strstr(err.message, f->key) ||
        strncmp(err.param, f->key, strlen(f->key)) != 0)
        fail_msg("%s: %s, param \"%s\": %s", body, sl_code_name(c), err.param, err.message);
}

void fields_check_types(field_decoder decode, const char *base, const struct field_types *fields,
                        size_t n)
{
    static const struct {
        char type;
        const char *value;
    } samples[] = {{'b', "true"}, {'i', "1"},  {'r', "1.5"}, {'s', "\"x\""},
                   {'a', "[]"},   {'o', "{}"}, {'n', "null"}};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof samples / sizeof *samples; k++) {
            char t = samples[k].type;
            check_type(decode, base, &fields[i], samples[k].value,
                       t == 'n' || strchr(fields[i].ok, t) != NULL);
        }
}

void fields_check_cases(field_decoder decode, const struct field_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct sl_error err = {0};
        enum sl_code c = decode(cases[i].body, strlen(cases[i].body), &err);
        if (c != cases[i].code || (cases[i].param && strcmp(err.param, cases[i].param) != 0) ||
            (cases[i].message && !strstr(err.message, cases[i].message)))
            fail_msg("%s: %s, param \"%s\": %s", cases[i].body, sl_code_name(c), err.param,
                     err.message);
    }
}

size_t fields_check_memory(field_decoder decode, const char *body)
{
    for (int64_t i = 0;; i++) {
        struct sl_error err = {0};
        sl_mem_fail_after(i);
        enum sl_code c = decode(body, strlen(body), &err);
        sl_mem_fail_after(-1);
        if (c == SL_OK)
            return (size_t)i;
        if (c != SL_E_NO_MEMORY)
            fail_msg("allocation %d: %s: %s", (int)i, sl_code_name(c), err.message);
    }
}
