/* initial.c: see initial.h. */
#include "server/initial.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

struct named {
    char name[SL_INITIAL_NAME_MAX + 1]; /* "": every new session's */
    void *state;
};

struct sl_initial_states {
    struct named v[SL_INITIAL_STATES_MAX];
    size_t n;
    const char *names[SL_INITIAL_STATES_MAX];
    size_t n_names;
};

static bool is_name(const char *s, size_t n)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return n > 0 && n <= SL_INITIAL_NAME_MAX && s[0] != '.' && strspn(s, allowed) >= n;
}

/* NULL: there is none. */
static const struct named *look_up(const struct sl_initial_states *s, const char *name)
{
    for (size_t i = 0; s && i < s->n; i++)
        if (strcmp(s->v[i].name, name) == 0)
            return &s->v[i];
    return NULL;
}

/* A '=' that stands behind no name belongs to the path. */
static enum sl_code add(struct sl_initial_states *s, const struct sl_model *m, const char *given,
                        struct sl_error *err)
{
    const char *eq = strchr(given, '=');
    size_t n = eq && is_name(given, (size_t)(eq - given)) ? (size_t)(eq - given) : 0;
    const char *path = n ? given + n + 1 : given;
    if (s->n == SL_INITIAL_STATES_MAX)
        return sl_fail(err, SL_E_USAGE, "--initial-state: at most %d are possible",
                       (int)SL_INITIAL_STATES_MAX);
    struct named *k = &s->v[s->n];
    (void)snprintf(k->name, sizeof k->name, "%.*s", (int)n, given);
    if (strcmp(k->name, "none") == 0)
        return sl_fail(err, SL_E_USAGE,
                       "--initial-state %.160s: \"none\" is the model's own beginning", given);
    if (look_up(s, k->name))
        return sl_fail(err, SL_E_USAGE, "--initial-state %.160s: %s%s is there already", given,
                       n ? "the name " : "one without a name", k->name);
    k->state = sl_aligned_calloc(sl_model_info(m)->state_bytes);
    if (!k->state)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for an initial state");
    s->n++;
    if (n)
        s->names[s->n_names++] = k->name;
    return sl_initial_state_open(m, path, k->state, err);
}

enum sl_code sl_initial_states_open(struct sl_initial_states **ret, const struct sl_model *m,
                                    const struct sl_strings *given, struct sl_error *err)
{
    enum sl_code c = SL_OK;
    struct sl_initial_states *s = sl_calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for initial states");
    for (size_t i = 0; i < given->n && !c; i++)
        c = add(s, m, given->v[i], err);
    if (c)
        sl_initial_states_close(s);
    else
        *ret = s;
    return c;
}

void sl_initial_states_close(struct sl_initial_states *s)
{
    for (size_t i = 0; s && i < s->n; i++)
        sl_free(s->v[i].state);
    sl_free(s);
}

const void *sl_initial_states_default(const struct sl_initial_states *s)
{
    const struct named *k = look_up(s, "");
    return k ? k->state : NULL;
}

enum sl_code sl_initial_states_find(const struct sl_initial_states *s, const char *name,
                                    const char *field, const void **ret, struct sl_error *err)
{
    const struct named *k = *name ? look_up(s, name) : NULL;
    char known[256] = "none";
    size_t n = strlen(known);
    if (k || strcmp(name, "none") == 0) {
        *ret = k ? k->state : NULL;
        return SL_OK;
    }
    for (size_t i = 0; s && i < s->n_names && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, ", %s", s->names[i]);
    return sl_fail_param(err, SL_E_INVALID_VALUE, field,
                         "there is no initial state '%.64s'; this server has: %s", name, known);
}

const char *const *sl_initial_states_names(const struct sl_initial_states *s, size_t *ret_n)
{
    *ret_n = s ? s->n_names : 0;
    return s ? s->names : NULL;
}
