/* beside.c: see beside.h.
 *
 * Ends: generation_config.json's eos_token_id, or config.json's where it has none, one id or a
 * list; and tokenizer_config.json's eos_token, a text. Other engines stop at every one of them, for
 * chat models name the end of a turn here and the end of a text there. Begin: what tokenizer.json's
 * post-processor puts in front, unless tokenizer_config.json's add_bos_token says otherwise:
 * false, nothing; true, its bos_token. (A bos_token_id in a config alone is no such order: most
 * models that have one were never fed it.) A World vocabulary has its end token, 0, by itself, and
 * texts begin with it where the chat template does: its name stands there, which is in no
 * vocabulary file. */
#include "engine/tokenizers/beside.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/hf_dir.h"
#include "engine/tokenizers/kinds.h"

enum { TEMPLATE_BYTES_MAX = 1 << 18, TEMPLATES_MAX = 16 };

struct beside {
    struct sl_tokenizer *t;
    struct sl_settings *tokenizer, *generation, *config;
    uint32_t ends[SL_TOKENIZER_ENDS_MAX];
    size_t n_ends;
    struct sl_error *err;
};

static enum sl_code bad(const struct beside *b, const struct sl_settings *s, const char *key,
                        const char *why)
{
    return sl_fail(b->err, SL_E_FILE_CORRUPT, "%s: \"%s\" %s", s->name, key, why);
}

static enum sl_code add_end(struct beside *b, const struct sl_settings *s, const char *key,
                            uint32_t id)
{
    for (size_t i = 0; i < b->n_ends; i++)
        if (b->ends[i] == id)
            return SL_OK;
    if (b->n_ends == SL_TOKENIZER_ENDS_MAX)
        return bad(b, s, key, "names more end tokens than 8");
    b->ends[b->n_ends++] = id;
    return SL_OK;
}

static enum sl_code add_end_number(struct beside *b, const struct sl_settings *s, const char *key,
                                   const struct sl_setting *v)
{
    double x = v->kind == SL_SETTING_NUMBER ? v->number : -1;
    if (!(x >= 0) || x > SL_VOCAB_ID_MAX || x != (double)(uint32_t)x)
        return bad(b, s, key, "must be a token's id, or a list of them");
    return add_end(b, s, key, (uint32_t)x);
}

/* *ret_found: the key says something. */
static enum sl_code read_end_ids(struct beside *b, const struct sl_settings *s, bool *ret_found)
{
    static const char key[] = "eos_token_id";
    const struct sl_setting *v = s ? sl_settings_find(s, key) : NULL;
    enum sl_code c = SL_OK;
    *ret_found = v && v->kind != SL_SETTING_NULL;
    if (!*ret_found)
        return SL_OK;
    if (v->kind != SL_SETTING_LIST)
        return add_end_number(b, s, key, v);
    for (size_t i = 0; !c && i < v->n; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%zu", key, i);
        const struct sl_setting *element = sl_settings_find(s, name);
        c = element ? add_end_number(b, s, name, element) : bad(b, s, key, "must list token ids");
    }
    return c;
}

/* A token's text under `key`, plain or as an object with "content"; NULL: there is none. */
static const char *token_text(const struct sl_settings *s, const char *key)
{
    char content[64];
    const struct sl_setting *v = sl_settings_find(s, key);
    snprintf(content, sizeof content, "%s.content", key);
    if (v && v->kind == SL_SETTING_OBJECT)
        v = sl_settings_find(s, content);
    return v && v->kind == SL_SETTING_TEXT ? v->text : NULL;
}

/* *ret -1: the key says nothing. */
static enum sl_code find_token(const struct beside *b, const char *key, int64_t *ret)
{
    const char *text = token_text(b->tokenizer, key);
    *ret = text ? sl_tokenizer_find(b->t, text, strlen(text)) : -1;
    return text && *ret < 0 ? bad(b, b->tokenizer, key, "is no token of tokenizer.json") : SL_OK;
}

static enum sl_code read_ends(struct beside *b)
{
    bool found = false;
    int64_t id = -1;
    enum sl_code c = read_end_ids(b, b->generation, &found);
    if (!c && !found)
        c = read_end_ids(b, b->config, &found);
    if (!c && b->tokenizer)
        c = find_token(b, "eos_token", &id);
    if (!c && id >= 0)
        c = add_end(b, b->tokenizer, "eos_token", (uint32_t)id);
    if (!c && b->n_ends)
        sl_tokenizer_set_ends(b->t, b->ends, b->n_ends);
    return c;
}

static enum sl_code read_begin(struct beside *b)
{
    const struct sl_setting *v =
        b->tokenizer ? sl_settings_find(b->tokenizer, "add_bos_token") : NULL;
    int64_t id = -1;
    enum sl_code c = SL_OK;
    if (!v || v->kind != SL_SETTING_BOOL)
        return SL_OK;
    if (v->flag && sl_tokenizer_begin(b->t) >= 0)
        return SL_OK; /* the post-processor has it */
    if (v->flag)
        c = find_token(b, "bos_token", &id);
    if (!c && v->flag && id < 0)
        c = bad(b, b->tokenizer, "add_bos_token", "is true, but there is no bos_token");
    if (!c)
        sl_tokenizer_set_begin(b->t, id);
    return c;
}

/* One template, or a list of named ones: then the default one. */
static const char *listed_template(const struct sl_settings *s)
{
    const struct sl_setting *v = sl_settings_find(s, "chat_template");
    if (v && v->kind == SL_SETTING_TEXT)
        return v->text;
    for (size_t i = 0; v && v->kind == SL_SETTING_LIST && i < v->n && i < TEMPLATES_MAX; i++) {
        char key[64];
        snprintf(key, sizeof key, "chat_template.%zu.name", i);
        const struct sl_setting *name = sl_settings_find(s, key);
        snprintf(key, sizeof key, "chat_template.%zu.template", i);
        const struct sl_setting *text = sl_settings_find(s, key);
        if (name && text && name->kind == SL_SETTING_TEXT && text->kind == SL_SETTING_TEXT &&
            strcmp(name->text, "default") == 0)
            return text->text;
    }
    return NULL;
}

static enum sl_code read_template(struct beside *b, const char *folder, char **ret, size_t *ret_n)
{
    enum sl_code c =
        sl_hf_dir_text(ret, ret_n, folder, "chat_template.jinja", TEMPLATE_BYTES_MAX, b->err);
    const char *text = !c && !*ret && b->tokenizer ? listed_template(b->tokenizer) : NULL;
    if (!text)
        return c;
    *ret_n = strlen(text);
    *ret = sl_strndup(text, *ret_n);
    return *ret ? SL_OK : sl_fail(b->err, SL_E_NO_MEMORY, "no memory for a chat template");
}

static size_t skip(const char *s, size_t n, size_t at, const char *chars)
{
    while (at < n && s[at] && strchr(chars, s[at]))
        at++;
    return at;
}

/* A template in Jinja's language that prints the end token before all else. */
static bool begins_with_end(const char *s, size_t n)
{
    static const char name[] = "<|rwkv_tokenizer_end_of_text|>";
    size_t k = sizeof name - 1, at = skip(s, n, 0, " \n");
    if (n - at < 2 || memcmp(s + at, "{{", 2) != 0)
        return false;
    at = skip(s, n, at + 2, "- '\"");
    return n - at >= k && memcmp(s + at, name, k) == 0;
}

enum sl_code sl_tokenizer_read_beside(struct sl_tokenizer *t, const char *folder,
                                      char **ret_template, size_t *ret_n, struct sl_error *err)
{
    struct beside b = {.t = t, .err = err};
    bool is_bpe = strcmp(sl_tokenizer_kind(t), "bpe") == 0;
    *ret_template = NULL;
    *ret_n = 0;
    enum sl_code c = sl_hf_dir_settings(&b.tokenizer, folder, "tokenizer_config.json", err);
    if (!c && is_bpe)
        c = sl_hf_dir_settings(&b.generation, folder, "generation_config.json", err);
    if (!c && is_bpe)
        c = sl_hf_dir_settings(&b.config, folder, "config.json", err);
    if (!c && is_bpe)
        c = read_ends(&b);
    if (!c && is_bpe)
        c = read_begin(&b);
    if (!c)
        c = read_template(&b, folder, ret_template, ret_n);
    if (!c && *ret_template && strcmp(sl_tokenizer_kind(t), "rwkv_world") == 0 &&
        begins_with_end(*ret_template, *ret_n))
        sl_tokenizer_set_begin(t, 0);
    sl_settings_close(b.tokenizer);
    sl_settings_close(b.generation);
    sl_settings_close(b.config);
    return c;
}
