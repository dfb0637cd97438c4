/* gguf_model.c: a GGUF file as the tensors of a model that is known here.
 *
 * The container is read first (gguf.c). Then everything that its architecture's table asks for is
 * looked for and measured, in the file's own names; only when all of it is there, tensors are
 * added, under the names and in the shapes that models here have: views of the file, transposed or
 * cut where the converter turned or joined them, so that nothing is copied and quantised blocks
 * stay what they are. What a file says of itself becomes metadata, and for Mamba-2 also the
 * settings that its config.json would give.
 *
 * A whole file of a model that cannot be run is still opened, for people to look at: with the
 * file's own names, and the reason in `refused`. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/formats/gguf.h"
#include "engine/formats/gguf_arch.h"

enum { NAME_BYTES = 128, SHAPE_BYTES = 96, SETTINGS_BYTES = 1024, VALUE_BYTES = 64 };

struct mapping {
    const struct sl_gguf *g;
    struct sl_reader *r;
    const struct sl_gguf_arch *arch;
    size_t size[128]; /* by letter */
    size_t rescale;   /* layers that are divided alike; 0: none is divided */
    double epsilon;
    unsigned char *used; /* of each of the file's tensors */
    struct sl_error why; /* a refusal */
};

/* `return REFUSE(m, MODEL_INVALID, "…", …);` */
#define REFUSE(m, code, ...) (refuse((m), SL_E_##code, __VA_ARGS__), SL_E_##code)

static void refuse(struct mapping *m, enum sl_code code, const char *fmt, ...) SL_PRINTF(3, 4);

static void refuse(struct mapping *m, enum sl_code code, const char *fmt, ...)
{
    char text[sizeof m->why.message];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)sl_fail(&m->why, code, "%s", n < 0 ? "" : text);
}

static bool is_refusal(enum sl_code c)
{
    return c == SL_E_MODEL_UNSUPPORTED || c == SL_E_MODEL_INVALID;
}

/* --- metadata -----------------------------------------------------------------------------------
 */

static size_t value_text(const struct sl_gguf_key *k, char ret[VALUE_BYTES])
{
    double x = 0;
    int n = 0;
    if (k->array)
        n = snprintf(ret, VALUE_BYTES, "%zu values of type %s", k->n, sl_gguf_type_name(k->type));
    else if (k->type == SL_GGUF_BOOL)
        n = snprintf(ret, VALUE_BYTES, "%s", *k->at ? "true" : "false");
    else if (sl_gguf_number(k, 0, &x))
        n = snprintf(ret, VALUE_BYTES,
                     k->type == SL_GGUF_F32   ? "%.9g"
                     : k->type == SL_GGUF_F64 ? "%.17g"
                                              : "%.0f",
                     x);
    return n > 0 ? (size_t)n : 0;
}

static enum sl_code add_metadata(struct mapping *m)
{
    enum sl_code c = SL_OK;
    for (size_t i = 0; i < m->g->n_keys && !c; i++) {
        const struct sl_gguf_key *k = &m->g->keys[i];
        char value[VALUE_BYTES];
        struct sl_gguf_text t = {value, 0};
        if (!sl_gguf_text(k, &t))
            t.n = value_text(k, value);
        else if (memchr(t.s, '\0', t.n) || !sl_utf8_valid(t.s, t.n))
            t = (struct sl_gguf_text){"(no UTF-8)", sizeof "(no UTF-8)" - 1};
        c = sl_reader_add_meta(m->r, k->name.s, k->name.n, t.s, t.n);
    }
    return c;
}

/* --- what the keys say --------------------------------------------------------------------------
 */

static const struct sl_gguf_key *arch_key(const struct mapping *m, const char *key,
                                          char name[NAME_BYTES])
{
    (void)snprintf(name, NAME_BYTES, "%s.%s", m->arch->name, key);
    return sl_gguf_find(m->g, name);
}

/* A whole number, lo … max. */
static enum sl_code size_of(struct mapping *m, const char *key, size_t lo, size_t max, bool needed,
                            size_t *ret)
{
    char name[NAME_BYTES], value[VALUE_BYTES];
    double x = 0;
    const struct sl_gguf_key *k = arch_key(m, key, name);
    if (!k && !needed)
        return SL_OK;
    if (!k)
        return REFUSE(m, MODEL_INVALID, "the key %s is absent", name);
    if (k->array || !sl_gguf_number(k, 0, &x) || !(x >= (double)lo && x <= (double)max) ||
        x != floor(x)) {
        size_t n = value_text(k, value);
        return REFUSE(m, MODEL_INVALID, "%s is %.*s; a whole number from %zu to %zu is needed",
                      name, n ? (int)n : 6, n ? value : "a text", lo, max);
    }
    *ret = (size_t)x;
    return SL_OK;
}

static enum sl_code read_epsilon(struct mapping *m)
{
    char name[NAME_BYTES];
    const struct sl_gguf_key *k = arch_key(m, m->arch->epsilon, name);
    if (!k || k->array || !sl_gguf_number(k, 0, &m->epsilon) ||
        !(m->epsilon >= 0 && m->epsilon <= 1))
        return REFUSE(m, MODEL_INVALID, "%s is %s; a number from 0 to 1 is needed", name,
                      k ? "something else" : "absent");
    double only = m->arch->only_epsilon;
    if (only > 0 && (float)m->epsilon != (float)only)
        return REFUSE(m, MODEL_UNSUPPORTED, "%s is %.9g; only %g can be run", name, m->epsilon,
                      only);
    return SL_OK;
}

static enum sl_code read_sizes(struct mapping *m)
{
    const struct sl_gguf_tensor *embedding = sl_gguf_find_tensor(m->g, "token_embd.weight");
    enum sl_code c = SL_OK;
    for (const struct sl_gguf_size *s = m->arch->sizes; s->letter && !c; s++)
        c = size_of(m, s->key, 1, s->max, true, &m->size[(unsigned char)s->letter]);
    if (!c)
        c = size_of(m, "rescale_every_n_layers", 0, SIZE_MAX >> 12, false, &m->rescale);
    if (!c)
        c = read_epsilon(m);
    const char *wrong = c ? NULL : m->arch->derive(m->size);
    if (wrong)
        return REFUSE(m, MODEL_INVALID, "%s", wrong);
    m->size['V'] = embedding && embedding->rank ? embedding->shape[0] : 1;
    return c;
}

/* --- looking up ---------------------------------------------------------------------------------
 */

static size_t size_of_letter(const struct mapping *m, char letter)
{
    return letter >= '0' && letter <= '9' ? (size_t)(letter - '0') : m->size[(unsigned char)letter];
}

/* `pattern` with the layer for '*' and a letter for '?'. */
static void name_of(char ret[NAME_BYTES], const char *pattern, size_t layer, char letter)
{
    size_t n = 0;
    for (const char *s = pattern; *s && n < NAME_BYTES - 24; s++) {
        if (*s == '*')
            n += (size_t)snprintf(ret + n, NAME_BYTES - n, "%zu", layer);
        else
            ret[n++] = (char)(*s == '?' ? letter : *s);
    }
    ret[n] = '\0';
}

/* Of each layer once, or once. */
static size_t times(const struct mapping *m, const struct sl_gguf_row *row)
{
    return strchr(row->file, '*') ? m->size['L'] : 1;
}

static void given_shape(char ret[SHAPE_BYTES], const struct sl_gguf_tensor *t)
{
    size_t n = 0;
    ret[n++] = '[';
    for (unsigned i = 0; i < t->rank; i++)
        n += (size_t)snprintf(ret + n, SHAPE_BYTES - n, i ? ", %zu" : "%zu", t->shape[i]);
    (void)snprintf(ret + n, SHAPE_BYTES - n, "]");
}

static void wanted_shape(char ret[SHAPE_BYTES], const struct mapping *m, const char *shape)
{
    size_t n = 0;
    ret[n++] = '[';
    for (const char *s = shape; *s; s++)
        n += (size_t)snprintf(ret + n, SHAPE_BYTES - n, s > shape ? ", %zu" : "%zu",
                              size_of_letter(m, *s));
    (void)snprintf(ret + n, SHAPE_BYTES - n, "]");
}

static bool has_shape(const struct mapping *m, const struct sl_gguf_tensor *t, const char *shape)
{
    unsigned i = 0;
    for (;;) {
        while (i < t->rank && t->shape[i] == 1)
            i++;
        while (*shape && size_of_letter(m, *shape) == 1)
            shape++;
        if (i == t->rank || !*shape)
            return i == t->rank && !*shape;
        if (t->shape[i++] != size_of_letter(m, *shape++))
            return false;
    }
}

static enum sl_code check_row(struct mapping *m, const struct sl_gguf_row *row, size_t layer)
{
    char name[NAME_BYTES], given[SHAPE_BYTES], wanted[SHAPE_BYTES];
    name_of(name, row->file, layer, 0);
    const struct sl_gguf_tensor *t = sl_gguf_find_tensor(m->g, name);
    bool dummy = (row->flags & SL_GGUF_LATER) && layer == 0;
    if (!t && (dummy || (row->flags & SL_GGUF_OPTIONAL)))
        return SL_OK;
    if (!t)
        return REFUSE(m, MODEL_INVALID, "tensor %s is absent", name);
    m->used[t - m->g->tensors] = 1;
    if (dummy || has_shape(m, t, row->shape))
        return SL_OK;
    given_shape(given, t);
    wanted_shape(wanted, m, row->shape);
    return REFUSE(m, MODEL_INVALID, "tensor %s has the shape %s; by the file's keys it is %s", name,
                  given, wanted);
}

static enum sl_code check_rows(struct mapping *m)
{
    enum sl_code c = SL_OK;
    if (m->size['L'] > m->g->n_tensors)
        return REFUSE(m, MODEL_INVALID, "%s.block_count is %zu, but there are only %zu tensors",
                      m->arch->name, m->size['L'], m->g->n_tensors);
    for (size_t layer = 0; layer < m->size['L'] && !c; layer++)
        for (const struct sl_gguf_row *row = m->arch->rows; row->file && !c; row++)
            if (layer < times(m, row))
                c = check_row(m, row, layer);
    for (size_t i = 0; i < m->g->n_tensors && !c; i++)
        if (!m->used[i])
            return REFUSE(m, MODEL_INVALID, "tensor %.*s is no part of %s of %zu layers",
                          (int)(m->g->tensors[i].name.n < 160 ? m->g->tensors[i].name.n : 160),
                          m->g->tensors[i].name.s, m->arch->title, m->size['L']);
    return c;
}

static enum sl_code check_arch(struct mapping *m)
{
    const struct sl_gguf_key *k = sl_gguf_find(m->g, "general.architecture");
    const struct sl_gguf_key *parts = sl_gguf_find(m->g, "split.count");
    struct sl_gguf_text name;
    char known[NAME_BYTES];
    double n_parts = 0;
    sl_gguf_arch_names(known, sizeof known);
    if (!k || !sl_gguf_text(k, &name))
        return REFUSE(m, MODEL_INVALID, "general.architecture is no text: what it is, is not said");
    if (parts && sl_gguf_number(parts, 0, &n_parts) && n_parts > 1)
        return REFUSE(m, MODEL_UNSUPPORTED,
                      "it is one of %.0f parts of a model; join them into one file first", n_parts);
    m->arch = sl_gguf_arch_find(name.s, name.n);
    if (!m->arch)
        return REFUSE(m, MODEL_UNSUPPORTED, "its architecture is \"%.*s\"; what can be run is: %s",
                      (int)(name.n < 64 ? name.n : 64), name.s, known);
    if (m->arch->refused)
        return REFUSE(m, MODEL_UNSUPPORTED,
                      "its architecture, %s, cannot be run: %s; what can be run is: %s",
                      m->arch->name, m->arch->refused, known);
    return SL_OK;
}

/* --- adding -------------------------------------------------------------------------------------
 */

static char *copy(struct mapping *m, const char *s, size_t n)
{
    char *p = sl_reader_alloc(m->r, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

/* Whether `as` is `shape` with its last two letters exchanged. */
static bool is_turned(const char *shape, const char *as)
{
    size_t n = strlen(shape);
    return n >= 2 && strlen(as) == n && as[n - 1] == shape[n - 2] && as[n - 2] == shape[n - 1] &&
           as[n - 1] != as[n - 2];
}

static struct sl_tensor whole(const struct mapping *m, const struct sl_gguf_tensor *t)
{
    return (struct sl_tensor){.dtype = t->dtype, .block = t->block, .data = m->g->data + t->offset};
}

/* One tensor of the model: part `i` of what the row names. */
static enum sl_code add_part(struct mapping *m, const struct sl_gguf_row *row,
                             const struct sl_gguf_tensor *t, size_t layer, size_t i)
{
    char name[NAME_BYTES];
    const char *as = row->as ? row->as : row->shape;
    struct sl_tensor x = whole(m, t);
    size_t bytes;
    name_of(name, row->name, layer, (char)(row->split ? row->split[i] : 0));
    x.origin = copy(m, t->name.s, t->name.n);
    if (!x.origin)
        return sl_reader_no_memory(m->r);
    if ((row->flags & SL_GGUF_RESCALED) && m->rescale)
        x.exponent = (int)(layer / m->rescale);
    bool turned = is_turned(row->shape, as);
    as = turned ? row->shape : as;
    for (as += row->split ? 1 : 0; *as; as++)
        x.shape[x.rank++] = size_of_letter(m, *as);
    if (!sl_tensor_pack(&x, &bytes))
        return SL_READER_FAIL(m->r, TOO_LARGE, "tensor %s does not fit in any memory", name);
    x.data = i ? sl_tensor_at(&x, (ptrdiff_t)(i * x.n_elements)) : x.data;
    if (turned) {
        unsigned a = x.rank - 2, b = x.rank - 1;
        size_t shape = x.shape[a];
        ptrdiff_t stride = x.stride[a];
        x.shape[a] = x.shape[b], x.stride[a] = x.stride[b];
        x.shape[b] = shape, x.stride[b] = stride;
    }
    return sl_reader_add(m->r, &x, name, strlen(name));
}

static enum sl_code add_row(struct mapping *m, const struct sl_gguf_row *row, size_t layer)
{
    char name[NAME_BYTES];
    enum sl_code c = SL_OK;
    name_of(name, row->file, layer, 0);
    const struct sl_gguf_tensor *t = sl_gguf_find_tensor(m->g, name);
    if (!t || ((row->flags & SL_GGUF_LATER) && layer == 0))
        return SL_OK;
    size_t n = row->split ? strlen(row->split) : 1;
    for (size_t i = 0; i < n && !c; i++)
        c = add_part(m, row, t, layer, i);
    return c;
}

static enum sl_code add_rows(struct mapping *m)
{
    enum sl_code c = SL_OK;
    for (size_t layer = 0; layer < m->size['L'] && !c; layer++)
        for (const struct sl_gguf_row *row = m->arch->rows; row->file && !c; row++)
            if (layer < times(m, row))
                c = add_row(m, row, layer);
    return c;
}

/* All tensors as the file has them, and why no model is made of them. */
static enum sl_code add_as_they_are(struct mapping *m)
{
    enum sl_code c = SL_OK;
    m->r->t->refusal = m->why.code;
    m->r->t->refused = copy(m, m->why.message, strlen(m->why.message));
    if (!m->r->t->refused)
        return sl_reader_no_memory(m->r);
    for (size_t i = 0; i < m->g->n_tensors && !c; i++) {
        const struct sl_gguf_tensor *t = &m->g->tensors[i];
        struct sl_tensor x = whole(m, t);
        size_t bytes;
        x.rank = t->rank;
        memcpy(x.shape, t->shape, t->rank * sizeof *t->shape);
        if (!sl_tensor_pack(&x, &bytes))
            return SL_READER_FAIL(m->r, TOO_LARGE, "tensor %zu does not fit in any memory", i);
        c = sl_reader_add(m->r, &x, t->name.s, t->name.n);
    }
    return c;
}

/* --- settings -----------------------------------------------------------------------------------
 */

/* What a config.json would say. RWKV's shapes say it all; that there are settings at all closes the
 * list of its tensors. expand · hidden_size, cut to a whole number, gives the width inside. */
static enum sl_code add_settings(struct mapping *m)
{
    char text[SETTINGS_BYTES] = "{}";
    const size_t *s = m->size;
    int n = 2;
    if (m->arch->mamba)
        n = snprintf(text, sizeof text,
                     "{\"model_type\":\"mamba2\",\"hidden_size\":%zu,\"num_hidden_layers\":%zu,"
                     "\"vocab_size\":%zu,\"state_size\":%zu,\"conv_kernel\":%zu,\"n_groups\":%zu,"
                     "\"head_dim\":%zu,\"num_heads\":%zu,\"expand\":%.17g,\"norm_eps\":%.9g,"
                     "\"tie_word_embeddings\":%s}",
                     s['D'], s['L'], s['V'], s['S'], s['K'], s['G'], s['I'] / s['H'], s['H'],
                     ((double)s['I'] + 0.5) / (double)s['D'], m->epsilon,
                     sl_gguf_find_tensor(m->g, "output.weight") ? "false" : "true");
    struct sl_settings *settings = NULL;
    const char *slash = strrchr(m->r->name, '/');
    enum sl_code c =
        sl_settings_read(&settings, text, (size_t)n, slash ? slash + 1 : m->r->name, m->r->err);
    if (!c)
        sl_tensors_settle(m->r->t, settings, settings->name);
    return c;
}

enum sl_code sl_gguf_read(struct sl_reader *r)
{
    struct sl_gguf g = {0};
    struct mapping m = {.g = &g, .r = r};
    enum sl_code c = sl_gguf_parse(&g, r);
    struct sl_vocabulary *vocabulary = NULL;
    if (!c)
        c = add_metadata(&m);
    if (!c)
        c = sl_gguf_read_vocabulary(&vocabulary, &g);
    if (c)
        goto out;
    r->t->vocabulary = vocabulary;
    m.used = sl_calloc(g.n_tensors + 1, 1);
    if (!m.used) {
        c = sl_reader_no_memory(r);
        goto out;
    }
    c = check_arch(&m);
    if (!c)
        c = read_sizes(&m);
    if (!c)
        c = check_rows(&m);
    if (is_refusal(c)) {
        c = add_as_they_are(&m);
        goto out;
    }
    if (!c)
        c = add_rows(&m);
    if (!c)
        c = add_settings(&m);
out:
    sl_free(m.used);
    sl_gguf_done(&g);
    return c;
}
