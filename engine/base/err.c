/* err.c: the table of err.h as strings, and the one place that writes a struct sl_error. */
#include "slate/err.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

static const struct {
    const char *name;
    int http;
    const char *type;
    const char *text;
} errors[] = {
#define X(name, code, http, type, text) {code, http, type, text},
    SL_ERRORS(X)
#undef X
};

static size_t row(enum sl_code c)
{
    assert((unsigned)c < SL_E_COUNT);
    return (size_t)c;
}

int sl_code_http(enum sl_code c)
{
    return errors[row(c)].http;
}

const char *sl_code_name(enum sl_code c)
{
    return errors[row(c)].name;
}

const char *sl_code_type(enum sl_code c)
{
    return errors[row(c)].type;
}

const char *sl_code_text(enum sl_code c)
{
    return errors[row(c)].text;
}

static void SL_PRINTF(3, 0)
    write_message(struct sl_error *err, enum sl_code c, const char *fmt, va_list ap)
{
    char raw[sizeof err->message];
    int n = vsnprintf(raw, sizeof raw, fmt, ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof raw ? (size_t)n : sizeof raw - 1;
    bool cut = n >= 0 && (size_t)n >= sizeof raw;
    err->code = c;
    err->retry_after_s = 0;
    sl_utf8_sanitize_text(err->message, sizeof err->message, raw, len, cut);
}

enum sl_code(sl_fail)(struct sl_error *err, enum sl_code c, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        write_message(err, c, fmt, ap);
        va_end(ap);
        err->param[0] = '\0';
    }
    return c;
}

enum sl_code(sl_fail_param)(struct sl_error *err, enum sl_code c, const char *param,
                            const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        write_message(err, c, fmt, ap);
        va_end(ap);
        sl_utf8_sanitize_text(err->param, sizeof err->param, param, strlen(param), false);
    }
    return c;
}

size_t sl_dtype_size(enum sl_dtype t)
{
    static const unsigned char size[SL_DTYPE_KINDS] = {
        [SL_DTYPE_F64] = 8, [SL_DTYPE_F32] = 4, [SL_DTYPE_F16] = 2, [SL_DTYPE_BF16] = 2,
        [SL_DTYPE_I64] = 8, [SL_DTYPE_I32] = 4, [SL_DTYPE_I16] = 2, [SL_DTYPE_I8] = 1,
        [SL_DTYPE_U8] = 1,  [SL_DTYPE_BOOL] = 1};
    assert((unsigned)t < SL_DTYPE_KINDS);
    return size[t];
}

const char *sl_dtype_name(enum sl_dtype t)
{
    static const char *const name[SL_DTYPE_KINDS] = {
        [SL_DTYPE_NONE] = "none", [SL_DTYPE_F64] = "F64",   [SL_DTYPE_F32] = "F32",
        [SL_DTYPE_F16] = "F16",   [SL_DTYPE_BF16] = "BF16", [SL_DTYPE_I64] = "I64",
        [SL_DTYPE_I32] = "I32",   [SL_DTYPE_I16] = "I16",   [SL_DTYPE_I8] = "I8",
        [SL_DTYPE_U8] = "U8",     [SL_DTYPE_BOOL] = "BOOL", [SL_DTYPE_Q8] = "Q8",
        [SL_DTYPE_Q5] = "Q5",     [SL_DTYPE_Q4] = "Q4",     [SL_DTYPE_Q4_0] = "Q4_0",
        [SL_DTYPE_Q4_K] = "Q4_K", [SL_DTYPE_Q6_K] = "Q6_K"};
    assert((unsigned)t < SL_DTYPE_KINDS);
    return name[t];
}
