/* options.c: parsing options by a table; see config.h. This is the one place that turns text of the
 * command line into numbers. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "server/config.h"

enum { ROWS_MAX = 256, LIST_MAX = 256, HELP_WIDTH = 92, HELP_INDENT = 8 };

/* Where a value came from, for messages: "--listen" or "SLATE_LISTEN". */
struct source {
    char name[64];
};

static struct source variable_of(const struct sl_option *o)
{
    struct source s;
    size_t n = (size_t)snprintf(s.name, sizeof s.name, "SLATE_%s", o->name);
    assert(n < sizeof s.name);
    for (char *p = s.name; *p; p++)
        *p = (char)(*p == '-' ? '_' : *p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
    return s;
}

/* --- numbers --------------------------------------------------------------------------------- */

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit no_units[] = {{"", 1}};
static const struct unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
};
static const struct unit time_units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

static const struct number_type {
    const struct unit *units;
    size_t n_units;
    const char *form;
} number_types[] = {
    [SL_OPTION_COUNT] = {no_units, 1, "a number"},
    [SL_OPTION_SIZE] = {size_units, sizeof size_units / sizeof *size_units,
                        "a size like 4096, 64KiB or 1GiB"},
    [SL_OPTION_DURATION] = {time_units, sizeof time_units / sizeof *time_units,
                            "a time like 500ms, 120s, 5m or 1h"},
};

/* Digits and a unit; false: malformed. Too large for 64 bits is UINT64_MAX: out of any range. */
static bool parse_number(const struct number_type *t, const char *s, uint64_t *ret)
{
    uint64_t n = 0;
    size_t i = 0;
    for (; s[i] >= '0' && s[i] <= '9'; i++)
        n = i < 19 ? n * 10 + (uint64_t)(s[i] - '0') : UINT64_MAX;
    if (i == 0)
        return false;
    for (size_t k = 0; k < t->n_units; k++) {
        if (strcmp(s + i, t->units[k].name) != 0)
            continue;
        if (__builtin_mul_overflow(n, t->units[k].factor, ret))
            *ret = UINT64_MAX;
        return true;
    }
    *ret = 0;
    return n == 0 && s[i] == '\0'; /* 0 needs no unit */
}

bool sl_option_number(enum sl_option_type type, const char *s, uint64_t *ret)
{
    assert(type == SL_OPTION_COUNT || type == SL_OPTION_SIZE || type == SL_OPTION_DURATION);
    return parse_number(&number_types[type], s, ret);
}

/* As a person would write it: 65536 bytes are 64KiB. */
static void format_number(const struct sl_option *o, double value, char *dst, size_t dst_size)
{
    if (o->type == SL_OPTION_REAL || o->type == SL_OPTION_COUNT) {
        snprintf(dst, dst_size, o->type == SL_OPTION_COUNT ? "%.0f" : "%g", value);
        return;
    }
    const struct number_type *t = &number_types[o->type];
    const struct unit *best = &t->units[0];
    for (size_t i = 0; i < t->n_units; i++) {
        const struct unit *u = &t->units[i];
        bool decimal = o->type == SL_OPTION_SIZE && strlen(u->name) == 2;
        if (value > 0 && !decimal && fmod(value, (double)u->factor) == 0 &&
            u->factor > best->factor)
            best = u;
    }
    snprintf(dst, dst_size, "%.0f%s", value / (double)best->factor, best->name);
}

/* --- one value ------------------------------------------------------------------------------- */

struct target {
    const struct sl_option *o;
    const char *source;
    char *field;
};

static enum sl_code out_of_range(const struct target *t, const char *value, struct sl_error *err)
{
    char min[32], max[32];
    format_number(t->o, t->o->min, min, sizeof min);
    format_number(t->o, t->o->max, max, sizeof max);
    return sl_fail(err, SL_E_USAGE, "%s: %s is out of range; allowed is %s to %s", t->source, value,
                   min, max);
}

static enum sl_code set_number(const struct target *t, const char *value, struct sl_error *err)
{
    const struct number_type *type = &number_types[t->o->type];
    uint64_t n;
    if (!parse_number(type, value, &n))
        return sl_fail(err, SL_E_USAGE, "%s: '%s' is not %s", t->source, value, type->form);
    if ((double)n < t->o->min || (double)n > t->o->max)
        return out_of_range(t, value, err);
    memcpy(t->field, &n, sizeof n);
    return SL_OK;
}

static enum sl_code set_real(const struct target *t, const char *value, struct sl_error *err)
{
    char *end;
    double d = strtod(value, &end);
    if (end == value || *end || !isfinite(d))
        return sl_fail(err, SL_E_USAGE, "%s: '%s' is not a number", t->source, value);
    if (d < t->o->min || d > t->o->max)
        return out_of_range(t, value, err);
    memcpy(t->field, &d, sizeof d);
    return SL_OK;
}

static enum sl_code set_bool(const struct target *t, const char *value, struct sl_error *err)
{
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(value, words[i]) == 0) {
            bool b = i % 2;
            memcpy(t->field, &b, sizeof b);
            return SL_OK;
        }
    return sl_fail(err, SL_E_USAGE, "%s: '%s' is neither true nor false", t->source, value);
}

static enum sl_code set_choice(const struct target *t, const char *value, struct sl_error *err)
{
    int i = 0;
    for (const char *c = t->o->choices; *c; i++) {
        size_t n = strcspn(c, "|");
        if (strlen(value) == n && memcmp(c, value, n) == 0) {
            memcpy(t->field, &i, sizeof i);
            return SL_OK;
        }
        c += n + (c[n] == '|');
    }
    return sl_fail(err, SL_E_USAGE, "%s: '%s' is none of %s", t->source, value, t->o->choices);
}

static void clear_list(struct sl_strings *l)
{
    for (size_t i = 0; i < l->n; i++)
        sl_free((void *)(uintptr_t)l->v[i]);
    sl_free(l->v);
    *l = (struct sl_strings){0};
}

static enum sl_code add_text(const struct target *t, const char *value, size_t n,
                             struct sl_error *err)
{
    struct sl_strings *l = (struct sl_strings *)(void *)t->field;
    if (l->n == LIST_MAX)
        return sl_fail(err, SL_E_USAGE, "%s: more than %d values", t->source, (int)LIST_MAX);
    const char **v = sl_realloc(l->v, l->n + 1, sizeof *v);
    char *s = v ? sl_strndup(value, n) : NULL;
    l->v = v ? v : l->v;
    if (!s)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the options");
    l->v[l->n++] = s;
    return SL_OK;
}

static enum sl_code add_to_list(const struct target *t, const char *value, struct sl_error *err)
{
    while (*value) {
        size_t n = strcspn(value, ",");
        enum sl_code c = n > 0 ? add_text(t, value, n, err) : SL_OK;
        if (c)
            return c;
        value += n + (value[n] == ',');
    }
    return SL_OK;
}

static bool is_list(const struct sl_option *o)
{
    return o->type == SL_OPTION_LIST || o->type == SL_OPTION_TEXTS;
}

static enum sl_code set_value(const struct target *t, const char *value, struct sl_error *err)
{
    switch (t->o->type) {
    case SL_OPTION_STRING:
        if (!*value)
            return sl_fail(err, SL_E_USAGE, "%s: the value is empty", t->source);
        memcpy(t->field, &value, sizeof value);
        return SL_OK;
    case SL_OPTION_LIST:
        return add_to_list(t, value, err);
    case SL_OPTION_TEXTS:
        return add_text(t, value, strlen(value), err);
    case SL_OPTION_COUNT:
    case SL_OPTION_SIZE:
    case SL_OPTION_DURATION:
        return set_number(t, value, err);
    case SL_OPTION_REAL:
        return set_real(t, value, err);
    case SL_OPTION_BOOL:
        return set_bool(t, value, err);
    case SL_OPTION_CHOICE:
        return set_choice(t, value, err);
    }
    return SL_OK;
}

/* --- defaults and environment ---------------------------------------------------------------- */

static void set_default(const struct sl_option *o, char *field)
{
    static const size_t sizes[] = {[SL_OPTION_STRING] = sizeof(char *),
                                   [SL_OPTION_LIST] = sizeof(struct sl_strings),
                                   [SL_OPTION_TEXTS] = sizeof(struct sl_strings),
                                   [SL_OPTION_COUNT] = sizeof(uint64_t),
                                   [SL_OPTION_SIZE] = sizeof(uint64_t),
                                   [SL_OPTION_DURATION] = sizeof(uint64_t),
                                   [SL_OPTION_REAL] = sizeof(double),
                                   [SL_OPTION_BOOL] = sizeof(bool),
                                   [SL_OPTION_CHOICE] = sizeof(int)};
    memset(field, 0, sizes[o->type]); /* NULL is all zeros on every machine this runs on */
    struct target t = {o, o->name, field};
    struct sl_error err;
    if (o->dflt) {
        enum sl_code c = set_value(&t, o->dflt, &err);
        assert(c == SL_OK || c == SL_E_NO_MEMORY);
    }
}

static enum sl_code set_from_environment(const struct sl_option *o, char *field,
                                         struct sl_error *err)
{
    struct source s = variable_of(o);
    const char *value = getenv(s.name); /* nobody sets it meanwhile: main thread, at start */
    if (!value || !*value)
        return SL_OK;
    if (is_list(o))
        clear_list((struct sl_strings *)(void *)field);
    struct target t = {o, s.name, field};
    return set_value(&t, value, err);
}

/* --- variables that name no option ---------------------------------------------------------------
 */

static bool names_option(const struct sl_option_set *sets, size_t n_sets, const char *name)
{
    for (size_t i = 0; i < n_sets; i++)
        for (size_t j = 0; j < sets[i].n; j++)
            if (strcmp(variable_of(&sets[i].rows[j]).name, name) == 0)
                return true;
    return false;
}

/* By the store, and by the tests. */
static bool is_read_elsewhere(const char *name)
{
    static const char *const names[] = {"SLATE_REDIS_PASSWORD", "SLATE_BUILD", "SLATE_API_RECORD",
                                        "SLATE_SOAK_SECONDS", "SLATE_TEST_VERBOSE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* "_TCP", "_UDP" or "_SCTP", and whatever follows behind another '_'. */
static bool begins_with_protocol(const char *s)
{
    static const char *const names[] = {"_TCP", "_UDP", "_SCTP"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(s, names[i], n) == 0 && (s[n] == '\0' || s[n] == '_'))
            return true;
    }
    return false;
}

/* Of a service "slate", or "slate-redis": SLATE_SERVICE_HOST, SLATE_SERVICE_PORT and with a port's
 * name behind it, SLATE_PORT=tcp://…, SLATE_PORT_80_TCP and with more behind it. A SLATE_PORT=8080
 * is somebody's who takes it for an option. */
static bool is_made_of_service(const char *name, const char *value)
{
    static const char host[] = "_SERVICE_HOST", service_port[] = "_SERVICE_PORT", port[] = "_PORT";
    const char *at = strstr(name, host);
    if (at && at[sizeof host - 1] == '\0')
        return true;
    at = strstr(name, service_port);
    if (at && (at[sizeof service_port - 1] == '\0' || at[sizeof service_port - 1] == '_'))
        return true;
    for (at = strstr(name, port); at; at = strstr(at + 1, port)) {
        const char *rest = at + sizeof port - 1;
        size_t n = rest[0] == '_' ? strspn(rest + 1, "0123456789") : 0;
        if (*rest == '\0' ? strstr(value, "://") != NULL : n && begins_with_protocol(rest + 1 + n))
            return true;
    }
    return false;
}

void sl_options_each_stray(const struct sl_option_set *sets, size_t n_sets,
                           void (*each)(void *arg, const char *name), void *arg)
{
    static const char prefix[] = "SLATE_";
    for (char **p = environ; *p; p++) {
        char name[128]; /* longer than any option's; cut for the message */
        size_t n = strcspn(*p, "=");
        const char *value = *p + n + ((*p)[n] == '=');
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name), *p);
        if (strncmp(name, prefix, sizeof prefix - 1) == 0 && *value &&
            !names_option(sets, n_sets, name) && !is_read_elsewhere(name) &&
            !is_made_of_service(name, value))
            each(arg, name);
    }
}

/* --- the command line ------------------------------------------------------------------------ */

struct found {
    const struct sl_option *o;
    char *field;
    size_t index; /* among all rows */
    bool negated; /* --no-name */
};

static bool find(const struct sl_option_set *sets, size_t n_sets, unsigned command,
                 const char *name, size_t n, struct found *ret)
{
    size_t index = 0;
    for (size_t i = 0; i < n_sets; i++)
        for (size_t j = 0; j < sets[i].n; j++, index++) {
            const struct sl_option *o = &sets[i].rows[j];
            bool negated = o->type == SL_OPTION_BOOL && n > 3 && memcmp(name, "no-", 3) == 0 &&
                           strlen(o->name) == n - 3 && memcmp(o->name, name + 3, n - 3) == 0;
            bool same = strlen(o->name) == n && memcmp(o->name, name, n) == 0;
            if (!(o->commands & command) || (!same && !negated))
                continue;
            *ret = (struct found){o, (char *)sets[i].dst + o->offset, index, negated};
            return true;
        }
    return false;
}

/* argv[*i] begins with "--"; takes it and its value. */
static enum sl_code take_option(const struct sl_option_set *sets, size_t n_sets, unsigned command,
                                int argc, char **argv, int *i, bool *seen, struct sl_error *err)
{
    const char *arg = argv[*i], *name = arg + 2;
    size_t n = strcspn(name, "=");
    const char *value = name[n] == '=' ? name + n + 1 : NULL;
    struct found f;
    if (!find(sets, n_sets, command, name, n, &f))
        return sl_fail(err, SL_E_USAGE, "the option '%.*s' is not known; --help lists them",
                       (int)(n + 2), arg);
    if (f.negated && value)
        return sl_fail(err, SL_E_USAGE, "--%.*s takes no value", (int)n, name);
    if (f.negated)
        value = "false";
    else if (!value && f.o->type == SL_OPTION_BOOL)
        value = "true";
    else if (!value && *i + 1 < argc)
        value = argv[++*i];
    if (!value)
        return sl_fail(err, SL_E_USAGE, "--%s needs a value: %s", f.o->name,
                       f.o->arg ? f.o->arg : f.o->choices);
    if (is_list(f.o) && !seen[f.index])
        clear_list((struct sl_strings *)(void *)f.field); /* replaces what the environment gave */
    seen[f.index] = true;
    char source[64];
    snprintf(source, sizeof source, "--%s", f.o->name);
    struct target t = {f.o, source, f.field};
    return set_value(&t, value, err);
}

static enum sl_code take_arguments(const struct sl_option_set *sets, size_t n_sets,
                                   unsigned command, int argc, char **argv, struct sl_args *ret,
                                   struct sl_error *err)
{
    bool seen[ROWS_MAX] = {false}, only_rest = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (only_rest || arg[0] != '-' || arg[1] == '\0') {
            ret->rest[ret->n_rest++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            only_rest = true;
        } else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            ret->help = true;
        } else if (arg[1] != '-') {
            return sl_fail(err, SL_E_USAGE, "the option '%s' is not known; --help lists them", arg);
        } else {
            enum sl_code c = take_option(sets, n_sets, command, argc, argv, &i, seen, err);
            if (c)
                return c;
        }
    }
    return SL_OK;
}

enum sl_code sl_options_parse(const struct sl_option_set *sets, size_t n_sets, unsigned command,
                              int argc, char **argv, struct sl_args *ret, struct sl_error *err)
{
    size_t rows = 0;
    *ret = (struct sl_args){0};
    for (size_t i = 0; i < n_sets; i++) {
        rows += sets[i].n;
        for (size_t j = 0; j < sets[i].n; j++)
            set_default(&sets[i].rows[j], (char *)sets[i].dst + sets[i].rows[j].offset);
    }
    assert(rows <= ROWS_MAX);
    for (size_t i = 0; i < n_sets; i++)
        for (size_t j = 0; j < sets[i].n; j++) {
            const struct sl_option *o = &sets[i].rows[j];
            enum sl_code c = o->commands & command
                                 ? set_from_environment(o, (char *)sets[i].dst + o->offset, err)
                                 : SL_OK;
            if (c)
                return c;
        }
    ret->rest = sl_calloc((size_t)argc + 1, sizeof *ret->rest);
    if (!ret->rest)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the options");
    return take_arguments(sets, n_sets, command, argc, argv, ret, err);
}

void sl_options_done(const struct sl_option_set *sets, size_t n_sets, struct sl_args *args)
{
    for (size_t i = 0; i < n_sets; i++)
        for (size_t j = 0; j < sets[i].n; j++)
            if (is_list(&sets[i].rows[j]))
                clear_list(
                    (struct sl_strings *)(void *)((char *)sets[i].dst + sets[i].rows[j].offset));
    if (args) {
        sl_free(args->rest);
        *args = (struct sl_args){0};
    }
}

/* --- help ------------------------------------------------------------------------------------ */

static void print_wrapped(const char *text)
{
    size_t column = 0;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column == 0 || column + 1 + n > HELP_WIDTH) {
            printf("%s%*s%.*s", column ? "\n" : "", HELP_INDENT, "", (int)n, text);
            column = HELP_INDENT + n;
        } else {
            printf(" %.*s", (int)n, text);
            column += 1 + n;
        }
        text += n;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void print_option(const struct sl_option *o)
{
    char notes[256], min[32], max[32];
    struct source v = variable_of(o);
    const char *arg = o->arg ? o->arg : o->choices;
    bool is_number = o->type != SL_OPTION_STRING && !is_list(o) && o->type != SL_OPTION_BOOL &&
                     o->type != SL_OPTION_CHOICE;
    printf("  --%s%s%s%s\n", o->name, arg ? " " : "", arg ? arg : "",
           o->type == SL_OPTION_LIST    ? "   (repeatable, or a comma list)"
           : o->type == SL_OPTION_TEXTS ? "   (repeatable)"
                                        : "");
    print_wrapped(o->help);
    size_t n = (size_t)snprintf(notes, sizeof notes, "%s", v.name);
    if (o->dflt)
        n += (size_t)snprintf(notes + n, sizeof notes - n, "; default %s", o->dflt);
    if (is_number) {
        format_number(o, o->min, min, sizeof min);
        format_number(o, o->max, max, sizeof max);
        (void)snprintf(notes + n, sizeof notes - n, "; %s to %s", min, max);
    }
    printf("%*s[%s]\n", HELP_INDENT, "", notes);
}

void sl_options_help(const struct sl_option_set *sets, size_t n_sets, unsigned command)
{
    for (size_t i = 0; i < n_sets; i++)
        for (size_t j = 0; j < sets[i].n; j++)
            if (sets[i].rows[j].commands & command)
                print_option(&sets[i].rows[j]);
}
