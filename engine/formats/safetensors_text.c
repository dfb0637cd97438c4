/* safetensors_text.c: see safetensors_text.h. */
#include "engine/formats/safetensors_text.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

void sl_header_put(struct sl_header_text *t, const char *s, size_t n)
{
    if (t->code == SL_OK && n > t->max - t->n)
        t->code = SL_E_TOO_LARGE;
    if (t->code != SL_OK)
        return;
    if (n > t->cap - t->n) {
        size_t cap = t->cap ? t->cap : 16384;
        while (n > cap - t->n)
            cap *= 2;
        char *p = sl_realloc(t->p, cap, 1);
        if (!p) {
            t->code = SL_E_NO_MEMORY;
            return;
        }
        t->p = p;
        t->cap = cap;
    }
    memcpy(t->p + t->n, s, n);
    t->n += n;
}

void sl_header_put_text(struct sl_header_text *t, const char *s)
{
    sl_header_put(t, s, strlen(s));
}

void sl_header_put_quoted(struct sl_header_text *t, const char *s)
{
    sl_header_put(t, "\"", 1);
    for (;;) {
        size_t n = 0;
        while ((unsigned char)s[n] >= 0x20 && s[n] != '"' && s[n] != '\\')
            n++;
        sl_header_put(t, s, n);
        s += n;
        if (!*s)
            break;
        char e[8];
        int len = *s == '"' || *s == '\\'
                      ? snprintf(e, sizeof e, "\\%c", *s)
                      : snprintf(e, sizeof e, "\\u%04x", (unsigned)(unsigned char)*s);
        sl_header_put(t, e, (size_t)len);
        s++;
    }
    sl_header_put(t, "\"", 1);
}

static void put_size(struct sl_header_text *t, size_t v)
{
    char digits[20];
    size_t i = sizeof digits;
    do
        digits[--i] = (char)('0' + v % 10);
    while (v /= 10);
    sl_header_put(t, digits + i, sizeof digits - i);
}

void sl_header_put_tensor(struct sl_header_text *t, const char *name, enum sl_dtype dtype,
                          unsigned rank, const size_t *shape, size_t begin, size_t bytes)
{
    sl_header_put_text(t, ",");
    sl_header_put_quoted(t, name);
    sl_header_put_text(t, ":{\"dtype\":\"");
    sl_header_put_text(t, sl_dtype_name(dtype));
    sl_header_put_text(t, "\",\"shape\":[");
    for (unsigned i = 0; i < rank; i++) {
        if (i)
            sl_header_put_text(t, ",");
        put_size(t, shape[i]);
    }
    sl_header_put_text(t, "],\"data_offsets\":[");
    put_size(t, begin);
    sl_header_put_text(t, ",");
    put_size(t, begin + bytes);
    sl_header_put_text(t, "]}");
}

void sl_header_pad(struct sl_header_text *t)
{
    sl_header_put(t, "        ", (8 - t->n % 8) % 8);
}
