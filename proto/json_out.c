/* json_out.c: see json_out.h. */
#include "proto/json_out.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

static void before_value(struct sl_json_out *w)
{
    if (w->comma)
        sl_buf_putc(w->b, ',');
    w->comma = true;
}

void sl_out_open(struct sl_json_out *w, char bracket)
{
    before_value(w);
    sl_buf_putc(w->b, bracket);
    w->comma = false;
}

void sl_out_close(struct sl_json_out *w, char bracket)
{
    sl_buf_putc(w->b, bracket);
    w->comma = true;
}

/* 0: stands for itself; 'u': \u00XX; else the letter behind the backslash. */
static char escape_of(unsigned char c)
{
    switch (c) {
    case '"':
    case '\\':
        return (char)c;
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    default:
        return c < 0x20 ? 'u' : 0;
    }
}

static void put_quoted(struct sl_buf *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    sl_buf_putc(b, '"');
    for (size_t i = 0; i < n;) {
        size_t start = i;
        char e = 0;
        while (i < n && !(e = escape_of((unsigned char)s[i])))
            i++;
        sl_buf_put(b, s + start, i - start);
        if (i == n)
            break;
        unsigned char c = (unsigned char)s[i++];
        char out[6] = {'\\', e, '0', '0', hex[c >> 4], hex[c & 15]};
        sl_buf_put(b, out, e == 'u' ? 6 : 2);
    }
    sl_buf_putc(b, '"');
}

size_t sl_out_length(const char *s, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char e = escape_of((unsigned char)s[i]);
        len += e == 'u' ? 6 : e ? 2 : 1;
    }
    return len;
}

void sl_out_key_text(struct sl_json_out *w, const char *key, size_t n)
{
    before_value(w);
    put_quoted(w->b, key, n);
    sl_buf_putc(w->b, ':');
    w->comma = false;
}

void sl_out_key(struct sl_json_out *w, const char *key)
{
    sl_out_key_text(w, key, strlen(key));
}

void sl_out_text(struct sl_json_out *w, const char *s, size_t n)
{
    before_value(w);
    put_quoted(w->b, s, n);
}

void sl_out_str(struct sl_json_out *w, const char *s)
{
    if (s)
        sl_out_text(w, s, strlen(s));
    else
        sl_out_null(w);
}

void sl_out_bytes(struct sl_json_out *w, const unsigned char *s, size_t n)
{
    char text[3 * SL_TOKEN_BYTES_MAX];
    assert(n <= SL_TOKEN_BYTES_MAX);
    size_t len = n ? sl_utf8_repair(text, s, n, true, NULL) : 0;
    sl_out_text(w, text, len);
}

void sl_out_uint(struct sl_json_out *w, uint64_t u)
{
    char digits[20];
    size_t i = sizeof digits;
    do
        digits[--i] = (char)('0' + u % 10);
    while (u /= 10);
    sl_out_raw(w, digits + i, sizeof digits - i);
}

void sl_out_int(struct sl_json_out *w, int64_t i)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)i);
    sl_out_raw(w, text, (size_t)n);
}

void sl_out_bool(struct sl_json_out *w, bool v)
{
    sl_out_raw(w, v ? "true" : "false", v ? 4 : 5);
}

void sl_out_null(struct sl_json_out *w)
{
    sl_out_raw(w, "null", 4);
}

void sl_out_fixed(struct sl_json_out *w, double d, int digits)
{
    if (!isfinite(d)) {
        sl_out_null(w);
        return;
    }
    before_value(w);
    sl_buf_printf(w->b, fabs(d) < 1e15 ? "%.*f" : "%.*e", digits, d);
}

void sl_out_float(struct sl_json_out *w, float f)
{
    if (!isfinite(f)) {
        sl_out_null(w);
        return;
    }
    before_value(w);
    if (f == 0 && signbit(f))
        sl_buf_puts(w->b, "-0.0"); /* "-0" is an integer, which has no sign when it is read */
    else
        sl_buf_printf(w->b, "%.9g", (double)f);
}

void sl_out_raw(struct sl_json_out *w, const char *json, size_t n)
{
    before_value(w);
    sl_buf_put(w->b, json, n);
}
