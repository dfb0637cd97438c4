/* gguf_vocabulary.c: the keys tokenizer.* of a GGUF file -> struct sl_vocabulary.
 *
 * A vocabulary that is wrong does not keep the model from being opened, for another one can be
 * named for it: what is wrong is kept and told to whoever asks for the file's own. Ends are the end
 * of the text, and the ends of a turn or message where those are tokens of their own (the converter
 * of RWKV's files calls the token of "\n\n" an end of turn, which is text). */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/formats/gguf.h"
#include "engine/formats/vocabulary.h"

enum { TOKENS_MAX = 1 << 20, MERGES_MAX = 1 << 22, WRONG_BYTES = 256 };

struct reading {
    const struct sl_gguf *g;
    struct sl_reader *r;
    struct sl_vocabulary *v;
    enum sl_code code; /* without memory */
};

#define KEY(name) "tokenizer.ggml." name

/* False, and the text kept. */
static bool wrong(struct reading *x, const char *fmt, ...) SL_PRINTF(2, 3);

static bool wrong(struct reading *x, const char *fmt, ...)
{
    char *text = sl_reader_alloc(x->r, WRONG_BYTES);
    if (!text) {
        x->code = sl_reader_no_memory(x->r);
        return false;
    }
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, WRONG_BYTES, fmt, ap);
    va_end(ap);
    x->v->wrong = text;
    return false;
}

static const struct sl_gguf_key *list_of(struct reading *x, const char *key, enum sl_gguf_type type,
                                         size_t max, bool *ok)
{
    const struct sl_gguf_key *k = sl_gguf_find(x->g, key);
    if (!k || !*ok)
        return NULL;
    if (!k->array || k->type != type)
        *ok = wrong(x, "%s is no array of type %s", key, sl_gguf_type_name(type));
    else if (k->n > max)
        *ok = wrong(x, "%s has %zu entries; at most %zu are possible", key, k->n, max);
    return *ok ? k : NULL;
}

/* n entries of `size` bytes in memory that stays; NULL and false without memory. */
static void *room(struct reading *x, size_t n, size_t size, bool *ok)
{
    void *p = sl_reader_alloc(x->r, n * size + 1);
    if (!p) {
        x->code = sl_reader_no_memory(x->r);
        *ok = false;
    }
    return p;
}

static const struct sl_bpe_text *texts_of(struct reading *x, const struct sl_gguf_key *k, bool *ok)
{
    struct sl_bpe_text *v = room(x, k->n, sizeof *v, ok);
    const unsigned char *at = k->at;
    for (size_t i = 0; v && i < k->n; i++) {
        struct sl_gguf_text t = sl_gguf_next(&at);
        v[i] = (struct sl_bpe_text){t.s, t.n};
    }
    return v;
}

/* Four bytes each, which may be unaligned in the file; as many as there are tokens. */
static const void *numbers_of(struct reading *x, const char *key, enum sl_gguf_type type, bool *ok)
{
    const struct sl_gguf_key *k = list_of(x, key, type, TOKENS_MAX, ok);
    if (k && k->n != x->v->arrays.n_tokens)
        *ok = wrong(x, "%s has %zu entries for %zu tokens", key, k->n, x->v->arrays.n_tokens);
    void *v = k && *ok ? room(x, k->n, 4, ok) : NULL;
    if (v)
        memcpy(v, k->at, k->n * 4);
    return v;
}

static bool read_lists(struct reading *x)
{
    struct sl_bpe_arrays *a = &x->v->arrays;
    bool ok = true;
    const struct sl_gguf_key *k = list_of(x, KEY("tokens"), SL_GGUF_STRING, TOKENS_MAX, &ok);
    if (!k)
        return ok ? wrong(x, KEY("tokens") " is absent") : false;
    a->n_tokens = k->n;
    a->tokens = texts_of(x, k, &ok);
    a->types = numbers_of(x, KEY("token_type"), SL_GGUF_I32, &ok);
    a->scores = numbers_of(x, KEY("scores"), SL_GGUF_F32, &ok);
    k = list_of(x, KEY("merges"), SL_GGUF_STRING, MERGES_MAX, &ok);
    if (k) {
        a->n_merges = k->n;
        a->merges = texts_of(x, k, &ok);
    }
    return ok;
}

/* A token's id; -1 where the key is absent. */
static bool read_id(struct reading *x, const char *key, int64_t *id)
{
    const struct sl_gguf_key *k = sl_gguf_find(x->g, key);
    double n = -1;
    *id = -1;
    if (!k)
        return true;
    if (k->array || !sl_gguf_number(k, 0, &n))
        return wrong(x, "%s is no number", key);
    if (n == -1 || n == (double)UINT32_MAX) /* what writers put for "none" */
        return true;
    if (!(n >= 0 && n < (double)x->v->arrays.n_tokens) || n != floor(n))
        return wrong(x, "%s is %.9g; there are %zu tokens", key, n, x->v->arrays.n_tokens);
    *id = (int64_t)n;
    return true;
}

/* true or false; `absent` where the key is. */
static bool read_flag(struct reading *x, const char *key, bool absent, bool *flag)
{
    const struct sl_gguf_key *k = sl_gguf_find(x->g, key);
    *flag = absent;
    if (k && (k->array || k->type != SL_GGUF_BOOL))
        return wrong(x, "%s is no bool", key);
    if (k)
        *flag = *k->at != 0;
    return true;
}

static bool is_one_of(const char *s, const char *const *words)
{
    while (s && *words && strcmp(s, *words) != 0)
        words++;
    return s && *words;
}

/* Whether a text begins with the begin token, where the file does not say so. */
static bool begins(const struct sl_bpe_arrays *a)
{
    static const char *const pre[] = {"llama3",  "llama-v3", "llama-bpe", "falcon3", "falcon-h1",
                                      "pixtral", "tekken",   "chameleon", NULL};
    return strcmp(a->model, "llama") == 0 ||
           (strcmp(a->model, "gpt2") == 0 && is_one_of(a->pre, pre));
}

static void add_end(struct sl_bpe_arrays *a, int64_t id)
{
    for (size_t i = 0; i < a->n_ends; i++)
        if (a->ends[i] == id)
            return;
    if (id >= 0 && a->n_ends < SL_TOKENIZER_ENDS_MAX)
        a->ends[a->n_ends++] = (uint32_t)id;
}

static bool read_ends(struct reading *x)
{
    static const char *const turns[] = {KEY("eot_token_id"), KEY("eom_token_id")};
    struct sl_bpe_arrays *a = &x->v->arrays;
    int64_t begin, id;
    bool adds;
    if (!read_id(x, KEY("bos_token_id"), &begin) ||
        !read_flag(x, KEY("add_bos_token"), begins(a), &adds) ||
        !read_flag(x, KEY("add_space_prefix"), true, &a->add_space_prefix) ||
        !read_id(x, KEY("eos_token_id"), &id))
        return false;
    a->begin = adds ? begin : -1;
    add_end(a, id);
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        const struct sl_gguf_key *k = sl_gguf_find(x->g, turns[i]);
        double n;
        /* RWKV's converter writes 261 for whatever vocabulary. */
        if (k && sl_gguf_number(k, 0, &n) && n >= (double)a->n_tokens)
            continue;
        if (!read_id(x, turns[i], &id))
            return false;
        if (id >= 0 && a->types && a->types[id] == SL_BPE_CONTROL)
            add_end(a, id);
    }
    return true;
}

/* The text of a key, with an end; NULL where it is absent. */
static bool read_text(struct reading *x, const char *key, const char **text)
{
    const struct sl_gguf_key *k = sl_gguf_find(x->g, key);
    struct sl_gguf_text t;
    bool ok = true;
    *text = NULL;
    if (!k)
        return true;
    if (!sl_gguf_text(k, &t) || memchr(t.s, '\0', t.n))
        return wrong(x, "%s is no text", key);
    char *copy = room(x, t.n, 1, &ok);
    if (copy)
        memcpy(copy, t.s, t.n);
    *text = copy;
    return ok;
}

enum sl_code sl_gguf_read_vocabulary(struct sl_vocabulary **ret, const struct sl_gguf *g)
{
    struct reading x = {.g = g, .r = g->r};
    *ret = NULL;
    if (!sl_gguf_find(g, KEY("model")))
        return SL_OK;
    x.v = sl_reader_alloc(g->r, sizeof *x.v);
    if (!x.v)
        return sl_reader_no_memory(g->r);
    x.v->arrays.begin = -1;
    if (read_text(&x, "tokenizer.chat_template", &x.v->chat_template) &&
        read_text(&x, KEY("model"), &x.v->arrays.model) &&
        read_text(&x, KEY("pre"), &x.v->arrays.pre) && read_lists(&x))
        (void)read_ends(&x);
    *ret = x.v;
    return x.code;
}
