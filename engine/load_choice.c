/* load_choice.c: what a model's file leaves open, as the user says it. See load.h.
 *
 * "kernel=relu,stabiliser=none": a rule's row lists names and values; whatever is not said is the
 * default. What is not the default enters the fingerprint: with another choice it is another model,
 * and a snapshot of the one does not fit the other. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/load.h"

/* "kernel=softmax|relu, stabiliser=max|none" */
static void list(const struct sl_choice *c, char *dst, size_t n)
{
    size_t len = 0;
    dst[0] = '\0';
    for (size_t i = 0; c && c[i].name; i++)
        for (size_t k = 0; k < sizeof c->values / sizeof *c->values && c[i].values[k]; k++) {
            int w = k == 0 ? snprintf(dst + len, n - len, "%s%s=%s", i ? ", " : "", c[i].name,
                                      c[i].values[k])
                           : snprintf(dst + len, n - len, "|%s", c[i].values[k]);
            assert(w > 0 && (size_t)w < n - len);
            len += (size_t)w;
        }
}

static bool equals(const char *s, const char *text, size_t n)
{
    return strlen(s) == n && memcmp(s, text, n) == 0;
}

/* One "name=value" of n bytes; false when there is no such. */
static bool choose(struct sl_load *l, const char *text, size_t n)
{
    const char *eq = memchr(text, '=', n);
    if (!eq)
        return false;
    size_t n_name = (size_t)(eq - text), n_value = n - n_name - 1;
    for (size_t i = 0; l->choices && l->choices[i].name; i++) {
        const struct sl_choice *c = &l->choices[i];
        assert(i < SL_CHOICES_MAX);
        if (!equals(c->name, text, n_name))
            continue;
        for (size_t k = 0; k < sizeof c->values / sizeof *c->values && c->values[k]; k++)
            if (equals(c->values[k], eq + 1, n_value)) {
                l->chosen[i] = (unsigned char)k;
                return true;
            }
    }
    return false;
}

void sl_load_choose(struct sl_load *l, const char *title, const char *text)
{
    while (text && *text && sl_load_ok(l)) {
        size_t n = strcspn(text, ",");
        if (!choose(l, text, n)) {
            char known[160];
            list(l->choices, known, sizeof known);
            sl_load_fail(l, SL_E_INVALID_VALUE, "%s leaves %s open, not \"%.*s\"", title,
                         known[0] ? known : "nothing", n < 64 ? (int)n : 64, text);
        }
        text += n + (text[n] == ',');
    }
}

size_t sl_load_chosen(const struct sl_load *l, const char *name)
{
    size_t i = 0;
    while (strcmp(l->choices[i].name, name) != 0)
        i++;
    return l->chosen[i];
}
