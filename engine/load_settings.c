/* load_settings.c: what loaders ask of a config.json. See load.h.
 *
 * Values that are asked for are also written down, as "key=value\n", defaults filled in: the
 * fingerprint covers what the model takes from its settings, however the file spells it, and
 * nothing that it does not use. */
#include "engine/load.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

enum { VALUE_BYTES = 96 };

void sl_load_fail_setting(struct sl_load *l, enum sl_code code, const char *fmt, ...)
{
    if (l->code != SL_OK)
        return;
    char what[sizeof l->err->message];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    l->code =
        sl_fail(l->err, code, "%.160s: %s",
                l->tensors->settings ? l->tensors->settings->name : l->name, n < 0 ? "" : what);
}

static void say(struct sl_load *l, const char *key, const char *value)
{
    size_t more = strlen(key) + strlen(value) + 3;
    if (l->code != SL_OK || l->quiet)
        return;
    if (l->max_said - l->n_said < more) {
        size_t want = l->max_said * 2 + more;
        char *p = sl_realloc(l->said, want, 1);
        if (!p) {
            sl_load_fail(l, SL_E_NO_MEMORY, "no memory for its settings");
            return;
        }
        l->said = p;
        l->max_said = want;
    }
    int n = snprintf(l->said + l->n_said, more, "%s=%s\n", key, value);
    assert(n > 0 && (size_t)n < more);
    l->n_said += (size_t)n;
}

/* The setting, or NULL where it is absent or nothing can be asked. */
static const struct sl_setting *find(struct sl_load *l, const char *key)
{
    if (l->code != SL_OK)
        return NULL;
    if (!l->tensors->settings) {
        sl_load_fail(l, SL_E_MODEL_INVALID,
                     "does not say its sizes; they are in the config.json beside it: open the "
                     "directory of both");
        return NULL;
    }
    return sl_settings_find(l->tensors->settings, key);
}

static void value_text(char ret[VALUE_BYTES], const struct sl_setting *s)
{
    switch (s->kind) {
    case SL_SETTING_NULL:
        (void)snprintf(ret, VALUE_BYTES, "null");
        break;
    case SL_SETTING_BOOL:
        (void)snprintf(ret, VALUE_BYTES, "%s", s->flag ? "true" : "false");
        break;
    case SL_SETTING_NUMBER:
        (void)snprintf(ret, VALUE_BYTES, "%.10g", s->number);
        break;
    case SL_SETTING_TEXT:
        (void)snprintf(ret, VALUE_BYTES, "\"%.80s\"", s->text);
        break;
    case SL_SETTING_LIST:
        (void)snprintf(ret, VALUE_BYTES, "a list of %zu", s->n);
        break;
    case SL_SETTING_OBJECT:
        (void)snprintf(ret, VALUE_BYTES, "an object of %zu", s->n);
        break;
    }
}

static void wrong(struct sl_load *l, const struct sl_setting *s, const char *needed)
{
    char given[VALUE_BYTES];
    value_text(given, s);
    sl_load_fail_setting(l, SL_E_MODEL_INVALID, "%s is %s; %s is needed", s->key, given, needed);
}

bool sl_load_set(const struct sl_load *l, const char *key)
{
    const struct sl_settings *all = l->tensors->settings;
    const struct sl_setting *s = all ? sl_settings_find(all, key) : NULL;
    return s && s->kind != SL_SETTING_NULL;
}

size_t sl_load_size(struct sl_load *l, const char *key, size_t absent, size_t max)
{
    char text[VALUE_BYTES];
    const struct sl_setting *s = find(l, key);
    size_t n = absent;
    if (s && !(absent == 0 && s->kind == SL_SETTING_NULL)) {
        if (s->kind != SL_SETTING_NUMBER || !(s->number >= 1 && s->number <= (double)max) ||
            s->number != floor(s->number)) {
            (void)snprintf(text, sizeof text, "a whole number from 1 to %zu", max);
            wrong(l, s, text);
            return absent ? absent : 1;
        }
        n = (size_t)s->number;
    }
    (void)snprintf(text, sizeof text, "%zu", n);
    if (absent > 0)
        say(l, key, text);
    return n;
}

double sl_load_number(struct sl_load *l, const char *key, double absent, double lo, double hi)
{
    char text[VALUE_BYTES];
    const struct sl_setting *s = find(l, key);
    double x = absent;
    if (s && !(isnan(absent) && s->kind == SL_SETTING_NULL)) {
        if (s->kind != SL_SETTING_NUMBER || !(s->number >= lo && s->number <= hi)) {
            (void)snprintf(text, sizeof text, "a number from %g to %g", lo, hi);
            wrong(l, s, text);
            return isnan(absent) ? lo : absent;
        }
        x = s->number;
    }
    (void)snprintf(text, sizeof text, "%.17g", x);
    say(l, key, isnan(x) ? "none" : text);
    return x;
}

bool sl_load_flag(struct sl_load *l, const char *key, bool absent)
{
    const struct sl_setting *s = find(l, key);
    bool on = absent;
    if (s && s->kind != SL_SETTING_BOOL)
        wrong(l, s, "true or false");
    else if (s)
        on = s->flag;
    say(l, key, on ? "true" : "false");
    return on;
}

size_t sl_load_choice(struct sl_load *l, const char *key, size_t absent, const char *const *words)
{
    const struct sl_setting *s = find(l, key);
    size_t i = absent;
    if (s && !(absent == SIZE_MAX && s->kind == SL_SETTING_NULL)) {
        for (i = 0; words[i]; i++)
            if (s->kind == SL_SETTING_TEXT && strcmp(s->text, words[i]) == 0)
                break;
        if (!words[i]) {
            char given[VALUE_BYTES], known[256] = "";
            size_t len = 0;
            value_text(given, s);
            for (i = 0; words[i] && len < sizeof known; i++)
                len +=
                    (size_t)snprintf(known + len, sizeof known - len, i ? ", %s" : "%s", words[i]);
            sl_load_fail_setting(l, SL_E_MODEL_UNSUPPORTED, "%s is %s; what can be run is: %s", key,
                                 given, known);
            return 0;
        }
    }
    say(l, key, i == SIZE_MAX ? "none" : words[i]);
    return i;
}

void sl_load_refuse(struct sl_load *l, const char *key, const char *what)
{
    const struct sl_setting *s = find(l, key);
    if (!s || s->kind == SL_SETTING_NULL || (s->kind == SL_SETTING_BOOL && !s->flag) ||
        ((s->kind == SL_SETTING_LIST || s->kind == SL_SETTING_OBJECT) && s->n == 0))
        return;
    char given[VALUE_BYTES];
    value_text(given, s);
    sl_load_fail_setting(l, SL_E_MODEL_UNSUPPORTED, "%s is %s: %s cannot be run", key, given, what);
}
