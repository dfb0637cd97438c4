/* load.c: see load.h. */
#include "server/cli/load.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/models/embedded.h"
#include "engine/tokenizers/beside.h"
#include "proto/chat.h"

enum sl_code sl_cli_weights(const char *option, const char *name, enum sl_dtype *ret,
                            struct sl_error *err)
{
    static const struct {
        const char *name;
        enum sl_dtype type;
    } row[] = {{"f32", SL_DTYPE_F32},
               {"bf16", SL_DTYPE_BF16},
               {"f16", SL_DTYPE_F16},
               {"q8", SL_DTYPE_Q8},
               {"q4", SL_DTYPE_Q4}};
    *ret = SL_DTYPE_NONE;
    if (!name)
        return SL_OK;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (strcmp(row[i].name, name) == 0) {
            *ret = row[i].type;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_E_USAGE, "--%s %s: allowed are f32, bf16, f16, q8 and q4", option, name);
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* What lies beside the tokenizer's file, where that is a tokenizer.json or in a directory. */
static enum sl_code read_beside(struct sl_loaded *l, const char *path, struct sl_error *err)
{
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    size_t n = is_directory(path) ? strlen(path) : slash ? (size_t)(slash - path) : 0;
    if (n >= sizeof folder)
        return sl_fail(err, SL_E_TOO_LARGE, "%.160s…: the path is too long", path);
    if (n)
        memcpy(folder, path, n);
    else if (slash)
        folder[n++] = '/';
    if (n)
        folder[n] = '\0';
    return sl_tokenizer_read_beside(l->tokenizer, folder, &l->chat_template, &l->n_chat_template,
                                    err);
}

/* A tokenizer that was named, or lies in the model's directory: before the model, so that what is
 * wrong is told at once. */
enum sl_code sl_cli_tokenizer(struct sl_loaded *l, const char *model, const char *tokenizer,
                              const char **ret_spec, struct sl_error *err)
{
    const char *spec = tokenizer;
    bool in_model = model && is_directory(model);
    if (!spec && in_model && sl_tokenizer_is_in(model))
        spec = model;
    *ret_spec = spec;
    if (!spec)
        return SL_OK;
    enum sl_code c = sl_tokenizer_open(&l->tokenizer, spec, err);
    if (c)
        return c;
    bool is_bpe = strcmp(sl_tokenizer_kind(l->tokenizer), "bpe") == 0;
    if (is_bpe || is_directory(spec))
        c = read_beside(l, spec, err);
    /* The tokenizer may lie elsewhere: then what the model's directory says of ends holds. */
    if (!c && is_bpe && in_model && strcmp(spec, model) != 0 && !l->chat_template &&
        sl_tokenizer_eos(l->tokenizer) < 0)
        c = read_beside(l, model, err);
    return c;
}

enum sl_code sl_cli_chat_template(const char *name, struct sl_error *err)
{
    char all[160] = "";
    size_t n = 0;
    if (!name || sl_chat_template_find(name))
        return SL_OK;
    for (size_t i = 0; i < sl_n_chat_templates && n < sizeof all; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "",
                              sl_chat_templates[i].name);
    return sl_fail(err, SL_E_USAGE, "--chat-template %.80s: allowed are %s", name, all);
}

enum sl_code sl_cli_no_tokenizer(size_t vocab_size, struct sl_error *err)
{
    return sl_fail(err, SL_E_USAGE,
                   "the model has %zu tokens and nothing says which: give --tokenizer FILE (a "
                   "tokenizer.json, or for RWKV World models rwkv_vocab_v20230424.txt), or "
                   "--tokenizer bytes",
                   vocab_size);
}

static enum sl_code open_default(struct sl_loaded *l, struct sl_error *err)
{
    size_t n, vocab = sl_model_info(l->model)->vocab_size;
    if (l->tokenizer)
        return SL_OK;
    if (l->embedded) {
        const void *data = sl_embedded_vocab_data(&n);
        return sl_tokenizer_open_memory(&l->tokenizer, data, n, SL_EMBEDDED_NAME, err);
    }
    enum sl_code c = sl_model_tokenizer(&l->tokenizer, l->model, err);
    if (c || l->tokenizer)
        return c;
    if (vocab <= 256)
        return sl_tokenizer_open(&l->tokenizer, "bytes", err);
    return sl_cli_no_tokenizer(vocab, err);
}

/* The model's file's own, where nothing lay beside the tokenizer. */
static enum sl_code take_template(struct sl_loaded *l, struct sl_error *err)
{
    const char *own = sl_model_chat_template(l->model);
    if (l->chat_template || !own)
        return SL_OK;
    l->n_chat_template = strlen(own);
    l->chat_template = sl_strndup(own, l->n_chat_template);
    return l->chat_template ? SL_OK : sl_fail(err, SL_E_NO_MEMORY, "no memory for a chat template");
}

enum sl_code sl_cli_begin_token(const char *s, const struct sl_tokenizer *t, size_t vocab_size,
                                int64_t *ret, struct sl_error *err)
{
    uint64_t v = 0;
    if (strcmp(s, "none") == 0) {
        *ret = -1;
        return SL_OK;
    }
    if (strcmp(s, "eos") == 0) {
        *ret = sl_tokenizer_eos(t);
        if (*ret < 0)
            return sl_fail(err, SL_E_USAGE,
                           "--begin-token eos: the tokenizer '%s' has no end "
                           "token",
                           sl_tokenizer_kind(t));
        return SL_OK;
    }
    const char *p = s;
    for (; *p >= '0' && *p <= '9' && v < vocab_size; p++)
        v = v * 10 + (uint64_t)(*p - '0');
    if (p == s || *p || v >= vocab_size)
        return sl_fail(err, SL_E_USAGE,
                       "--begin-token %s: allowed are a token's id below %zu, 'eos' and 'none'", s,
                       vocab_size);
    *ret = (int64_t)v;
    return SL_OK;
}

static enum sl_code find_begin(struct sl_loaded *l, const struct sl_config *config,
                               struct sl_error *err)
{
    if (config->begin_token)
        return sl_cli_begin_token(config->begin_token, l->tokenizer,
                                  sl_model_info(l->model)->vocab_size, &l->begin_token, err);
    /* The embedded model's documents begin with token 0; of others the tokenizer's file knows. */
    l->begin_token = l->embedded ? 0 : sl_tokenizer_begin(l->tokenizer);
    if (l->begin_token >= (int64_t)sl_model_info(l->model)->vocab_size)
        return sl_fail(err, SL_E_USAGE,
                       "the tokenizer puts token %d before a text, and the model has %zu: it is "
                       "another model's tokenizer (or give --begin-token)",
                       (int)l->begin_token, sl_model_info(l->model)->vocab_size);
    return SL_OK;
}

enum sl_code sl_cli_load(struct sl_loaded *ret, const struct sl_config *config,
                         struct sl_error *err)
{
    struct sl_loaded l = {.embedded = config->model == NULL};
    struct sl_model_options opt = {.path = config->model,
                                   .kernels = config->kernels,
                                   .fast = config->numerics == SL_NUMERICS_FAST,
                                   .prefill_mode = config->prefill_mode,
                                   .rule = config->rule};
    const char *spec;
    enum sl_code c = sl_cli_weights("weights", config->weights, &opt.weights, err);
    if (!c)
        c = sl_cli_tokenizer(&l, config->model, config->tokenizer, &spec, err);
    if (!c)
        c = sl_model_open(&l.model, &opt, err);
    if (!c)
        c = open_default(&l, err);
    if (!c)
        c = take_template(&l, err);
    if (!c)
        c = find_begin(&l, config, err);
    if (c)
        sl_cli_load_done(&l);
    else
        *ret = l;
    return c;
}

void sl_cli_load_done(struct sl_loaded *l)
{
    sl_model_close(l->model);
    sl_tokenizer_close(l->tokenizer);
    sl_free(l->chat_template);
    *l = (struct sl_loaded){0};
}
