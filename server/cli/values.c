/* values.c: see values.h. CSV is that of RFC 4180, but that lines end as others do here. */
#include "server/cli/values.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void sl_values_add(struct sl_values *to, const struct sl_value *v, size_t n)
{
    assert(n <= SL_VALUES_MAX - to->n);
    memcpy(to->v + to->n, v, n * sizeof *v);
    to->n += n;
}

/* --- JSON --- */

static void write_value(struct sl_json_out *w, const struct sl_value *v)
{
    if (v->null) {
        sl_out_null(w);
        return;
    }
    switch (v->kind) {
    case SL_VALUE_TEXT:
        sl_out_str(w, v->text);
        break;
    case SL_VALUE_COUNT:
        sl_out_uint(w, v->count);
        break;
    case SL_VALUE_NUMBER:
        sl_out_fixed(w, v->number, v->digits);
        break;
    case SL_VALUE_RANGE:
        sl_out_open(w, '[');
        sl_out_fixed(w, v->number, v->digits);
        sl_out_fixed(w, v->most, v->digits);
        sl_out_close(w, ']');
        break;
    }
}

void sl_values_json(struct sl_json_out *w, const struct sl_values *v)
{
    const char *group = NULL;
    for (size_t i = 0; i <= v->n; i++) {
        const char *next = i < v->n ? v->v[i].group : NULL;
        if (group && group != next)
            sl_out_close(w, '}');
        if (next && next != group) {
            sl_out_key(w, next);
            sl_out_open(w, '{');
        }
        group = next;
        if (i == v->n || v->v[i].absent)
            continue;
        sl_out_key(w, v->v[i].name);
        write_value(w, &v->v[i]);
    }
}

/* --- CSV --- */

static void put_name(struct sl_buf *b, const struct sl_value *v, const char *behind)
{
    sl_buf_printf(b, "%s%s%s%s", v->group ? v->group : "", v->group ? "_" : "", v->name, behind);
}

static void put_names(struct sl_buf *b, const struct sl_values *v)
{
    for (size_t i = 0; i < v->n; i++) {
        bool range = v->v[i].kind == SL_VALUE_RANGE;
        if (i)
            sl_buf_putc(b, ',');
        put_name(b, &v->v[i], range ? "_least" : "");
        if (range) {
            sl_buf_putc(b, ',');
            put_name(b, &v->v[i], "_most");
        }
    }
    sl_buf_putc(b, '\n');
}

static void put_text(struct sl_buf *b, const char *s)
{
    const char *quote = strpbrk(s, ",\"\r\n") ? "\"" : "";
    sl_buf_printf(b, "%s", quote);
    for (; *s; s++) {
        if (*s == '"')
            sl_buf_putc(b, '"');
        sl_buf_putc(b, *s);
    }
    sl_buf_printf(b, "%s", quote);
}

static void put_number(struct sl_buf *b, double d, int digits)
{
    if (isfinite(d))
        sl_buf_printf(b, "%.*f", digits, d);
}

static void put_value(struct sl_buf *b, const struct sl_value *v)
{
    bool none = v->absent || v->null;
    switch (v->kind) {
    case SL_VALUE_TEXT:
        if (!none)
            put_text(b, v->text);
        break;
    case SL_VALUE_COUNT:
        if (!none)
            sl_buf_printf(b, "%llu", (unsigned long long)v->count);
        break;
    case SL_VALUE_NUMBER:
        put_number(b, none ? NAN : v->number, v->digits);
        break;
    case SL_VALUE_RANGE:
        put_number(b, none ? NAN : v->number, v->digits);
        sl_buf_putc(b, ',');
        put_number(b, none ? NAN : v->most, v->digits);
        break;
    }
}

void sl_values_csv(struct sl_buf *b, const struct sl_values *v)
{
    if (b->len == 0)
        put_names(b, v);
    for (size_t i = 0; i < v->n; i++) {
        if (i)
            sl_buf_putc(b, ',');
        put_value(b, &v->v[i]);
    }
    sl_buf_putc(b, '\n');
}

enum sl_code sl_values_print(struct sl_buf *b, struct sl_error *err)
{
    enum sl_code c = sl_buf_code(b, err);
    if (!c)
        (void)fwrite(b->data, 1, b->len, stdout); /* sl_cli_finish() tells */
    sl_buf_done(b);
    return c;
}
