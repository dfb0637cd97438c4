/* model.c: opening a model: file -> tensors -> a mixer's and a block's layers -> packed weights.
 *
 * Everything is checked before the large allocation, and allocated before the first step: a model
 * that was opened can run. It does not change afterwards, so any number of threads may use it. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/blas.h"
#include "engine/model_priv.h"
#include "engine/models/embedded.h"

/* "rwkv7-0.1b.pth" -> "rwkv7-0.1b" */
static char *short_name(const char *file)
{
    static const char *const extensions[] = {".pth", ".pt", ".safetensors", ".st", ".gguf"};
    const char *dot = strrchr(file, '.');
    for (size_t i = 0; dot && dot > file && i < sizeof extensions / sizeof *extensions; i++)
        if (strcmp(dot, extensions[i]) == 0)
            return sl_strndup(file, (size_t)(dot - file));
    return sl_strndup(file, strcspn(file, "/"));
}

static enum sl_code find_mixer(struct sl_model *m, const char *file, struct sl_error *err)
{
    const char *arch = NULL;
    if (m->tensors->refused)
        return sl_fail(err, m->tensors->refusal, "%.160s: %s", file, m->tensors->refused);
    const char *what = sl_tensors_describe(m->tensors, &arch);
    const struct sl_settings *settings = m->tensors->settings;
    const struct sl_setting *type = settings ? sl_settings_find(settings, "model_type") : NULL;
    m->mixer = sl_mixer_find_type(type ? type->text : NULL);
    if (!m->mixer)
        m->mixer = sl_mixer_find(arch);
    if (m->mixer)
        return SL_OK;
    char known[256] = "";
    size_t len = 0;
    for (size_t i = 0; sl_mixers[i] && len < sizeof known; i++)
        len += (size_t)snprintf(known + len, sizeof known - len, i ? ", %s" : "%s",
                                sl_mixers[i]->title);
    return sl_fail(err, SL_E_MODEL_UNSUPPORTED, "%.160s holds %s; what can be run is: %s", file,
                   what, known);
}

static enum sl_code load_layers(struct sl_model *m, struct sl_load *l,
                                const struct sl_model_options *opt)
{
    const struct sl_mixer *mixer = m->mixer;
    const struct sl_block *block = mixer->block;
    l->state_bytes = sizeof(struct sl_state_header);
    l->names = mixer->names;
    l->marks = sl_calloc(l->tensors->n + 1, 1);
    if (!l->marks)
        return sl_fail(l->err, SL_E_NO_MEMORY, "%.160s: no memory for its list of tensors",
                       l->name);
    sl_load_choose(l, mixer->title, m->converted.rule);
    sl_load_choose(l, mixer->title, opt->rule);
    sl_load_ignore(l, SL_CONVERTED_TENSOR);
    mixer->config(l);
    if (!sl_load_ok(l))
        return l->code;
    m->mixer_layers = sl_calloc(l->config.n_layers, mixer->layer_bytes);
    m->block_layers = sl_calloc(l->config.n_layers, block->layer_bytes);
    if (!m->mixer_layers || !m->block_layers)
        return sl_fail(l->err, SL_E_NO_MEMORY, "%.160s: no memory for %zu layers", l->name,
                       l->config.n_layers);
    block->load_ends(l, &m->ends);
    for (size_t i = 0; i < l->config.n_layers && sl_load_ok(l); i++) {
        mixer->load(l, i, sl_model_mixer_layer(m, i));
        block->load(l, i, sl_model_block_layer(m, i));
    }
    /* What nothing uses is of a model that computes something else. */
    sl_load_refuse_rest(l);
    return l->code;
}

static void describe(struct sl_model *m, const struct sl_load *l, const struct sl_loaded *got)
{
    const struct sl_config *c = &l->config;
    m->info = (struct sl_model_info){
        .arch = m->mixer->arch,
        .name = m->name,
        .kernels = m->kernels->name,
        .prefill_mode = sl_form_names[m->form],
        .n_layers = c->n_layers,
        .d_model = c->d_model,
        .n_heads = c->n_heads,
        .head_size = c->head_size,
        .d_ffn = c->d_ffn,
        .vocab_size = c->vocab_size,
        .max_tokens = c->max_tokens,
        .weights = got->weights,
        .n_params = got->n_params,
        .n_unused = got->n_unused,
        .state_bytes = l->state_bytes,
        .weight_bytes = got->arena_bytes,
    };
    memcpy(m->info.fingerprint, sl_converted_fingerprint(&m->converted, got->fingerprint),
           sizeof m->info.fingerprint);
    const char *kept = sl_dtype_name(got->weights), *had = sl_dtype_name(m->converted.weights);
    bool again = m->converted.narrowed && got->weights != m->converted.weights;
    (void)snprintf(m->info.weights_name, sizeof m->info.weights_name, "%s%s%s", again ? had : "",
                   again ? ">" : "", kept);
}

/* The form that a prompt's recurrence takes: what was asked for, or what measures fastest. */
static enum sl_code choose_form(struct sl_model *m, const struct sl_model_options *opt,
                                struct sl_error *err)
{
    bool has_forms = m->recurrence.n_k > 0;
    if (opt->fast)
        sl_blas_init();
    if (!opt->prefill_mode) {
        m->form =
            opt->fast && has_forms ? sl_recur_pick(m->kernels, &m->recurrence) : SL_FORM_RECURRENT;
        return SL_OK;
    }
    int f = 0;
    while (f < SL_FORM_COUNT && strcmp(opt->prefill_mode, sl_form_names[f]) != 0)
        f++;
    if (f == SL_FORM_COUNT)
        return sl_fail(err, SL_E_INVALID_VALUE,
                       "prefill mode \"%.40s\" is not known; there are recurrent, chunkwise and "
                       "parallel",
                       opt->prefill_mode);
    if (f != SL_FORM_RECURRENT && !opt->fast)
        return sl_fail(err, SL_E_INVALID_VALUE,
                       "prefill mode %s gives other bits than token by token: it needs numerics "
                       "fast",
                       opt->prefill_mode);
    if (f != SL_FORM_RECURRENT && !has_forms)
        return sl_fail(err, SL_E_INVALID_VALUE, "%s has the recurrent form only, not the %s one",
                       m->mixer->title, opt->prefill_mode);
    m->form = (enum sl_form)f;
    return SL_OK;
}

enum sl_code sl_model_declare(struct sl_model *m, struct sl_load *ret, const char *file,
                              const struct sl_model_options *opt, struct sl_error *err)
{
    *ret = (struct sl_load){
        .tensors = m->tensors, .name = m->tensors->name ? m->tensors->name : file, .err = err};
    enum sl_code rc = find_mixer(m, file, err);
    if (rc == SL_OK)
        rc = sl_converted_read(&m->converted, m->tensors, ret->name, err);
    if (rc != SL_OK)
        return rc;
    ret->choices = m->mixer->choices;
    ret->weights = opt->weights == SL_DTYPE_NONE ? m->converted.weights : opt->weights;
    return load_layers(m, ret, opt);
}

void sl_model_declared(struct sl_model *m, struct sl_load *l)
{
    sl_free(l->state);
    l->state = NULL;
    sl_load_done(l);
    sl_free(m->block_layers);
    sl_free(m->mixer_layers);
    m->block_layers = m->mixer_layers = NULL;
}

static enum sl_code load(struct sl_model *m, const char *file, const struct sl_model_options *opt,
                         struct sl_error *err)
{
    struct sl_load l;
    struct sl_loaded got;
    enum sl_code rc = sl_model_declare(m, &l, file, opt, err);
    if (rc != SL_OK)
        goto out;
    rc = sl_load_finish(&l, m->mixer->arch, &got);
    if (rc != SL_OK)
        goto out;
    m->arena = got.arena;
    m->scratch_floats = l.scratch_floats;
    m->carry_floats = l.carry_floats;
    m->part_floats = l.part_floats;
    m->input_groups = l.input_groups;
    m->recurrence = l.recurrence;
    rc = choose_form(m, opt, err);
    if (rc != SL_OK)
        goto out;
    describe(m, &l, &got);
out:
    m->state = l.state;
    m->n_state = l.n_state;
    sl_load_done(&l);
    return rc;
}

enum sl_code sl_model_plan(struct sl_model_plan *ret, struct sl_tensors *tensors, const char *file,
                           struct sl_error *err)
{
    const struct sl_model_options defaults = {0};
    struct sl_model m = {.tensors = tensors};
    struct sl_load l;
    enum sl_code rc = sl_model_declare(&m, &l, file, &defaults, err);
    if (rc == SL_OK)
        *ret = (struct sl_model_plan){.title = m.mixer->title,
                                      .config = l.config,
                                      .state_bytes = l.state_bytes,
                                      .weight_bytes = l.arena_bytes};
    sl_model_declared(&m, &l);
    return rc;
}

/* NULL, with *err written, when an option is not allowed. */
static const struct sl_kernels *check_options(const struct sl_model_options *opt,
                                              struct sl_error *err)
{
    enum sl_dtype t = opt->weights;
    if (t != SL_DTYPE_NONE && t != SL_DTYPE_F32 && t != SL_DTYPE_F16 && t != SL_DTYPE_BF16 &&
        t != SL_DTYPE_Q8 && t != SL_DTYPE_Q4) {
        sl_fail(err, SL_E_INVALID_VALUE,
                "weights can be kept as F32, BF16, F16, Q8 or Q4, not as %s", sl_dtype_name(t));
        return NULL;
    }
    const struct sl_kernels *k = sl_kernels_find(opt->kernels);
    if (!k)
        sl_fail(err, SL_E_INVALID_VALUE, "this machine cannot run kernels \"%s\"",
                opt->kernels ? opt->kernels : "of any kind");
    return k;
}

enum sl_code sl_model_open_tensors(struct sl_model **ret, struct sl_tensors *tensors,
                                   const char *file, const struct sl_model_options *opt,
                                   struct sl_error *err)
{
    const struct sl_model_options defaults = {0};
    opt = opt ? opt : &defaults;
    enum sl_code rc;
    struct sl_model *m = sl_calloc(1, sizeof *m);
    if (!m) {
        sl_tensors_close(tensors);
        return sl_fail(err, SL_E_NO_MEMORY, "%.160s: no memory for a model", file);
    }
    m->tensors = tensors;
    m->name = short_name(file);
    if (!m->name) {
        rc = sl_fail(err, SL_E_NO_MEMORY, "%.160s: no memory for a model", file);
        goto out;
    }
    m->kernels = check_options(opt, err);
    if (!m->kernels) {
        rc = SL_E_INVALID_VALUE;
        goto out;
    }
    rc = load(m, file, opt, err);
    if (rc != SL_OK)
        goto out;
    *ret = m;
    return SL_OK;
out:
    sl_model_close(m);
    return rc;
}

enum sl_code sl_model_open_memory(struct sl_model **ret, const void *data, size_t n_bytes,
                                  const char *name, const struct sl_model_options *opt,
                                  struct sl_error *err)
{
    struct sl_tensors *t = NULL;
    enum sl_code rc = sl_tensors_open_memory(&t, data, n_bytes, name, err);
    return rc == SL_OK ? sl_model_open_tensors(ret, t, name, opt, err) : rc;
}

/* "models/retnet/" -> "retnet/" */
static const char *last_part(const char *path)
{
    const char *part = path;
    for (const char *s = path; *s; s++)
        if (*s == '/' && s[1] != '/' && s[1] != '\0')
            part = s + 1;
    return part;
}

enum sl_code sl_model_open(struct sl_model **ret, const struct sl_model_options *opt,
                           struct sl_error *err)
{
    if (!opt->path) {
        size_t n;
        const void *data = sl_embedded_model_data(&n);
        return sl_model_open_memory(ret, data, n, SL_EMBEDDED_NAME, opt, err);
    }
    struct sl_tensors *t = NULL;
    enum sl_code rc = sl_tensors_open(&t, opt->path, err);
    if (rc != SL_OK)
        return rc;
    return sl_model_open_tensors(ret, t, last_part(opt->path), opt, err);
}

void sl_model_close(struct sl_model *m)
{
    if (!m)
        return;
    sl_free(m->state);
    sl_free(m->block_layers);
    sl_free(m->mixer_layers);
    sl_free(m->arena);
    sl_tensors_close(m->tensors);
    sl_free(m->name);
    sl_free(m);
}

const struct sl_model_info *sl_model_info(const struct sl_model *m)
{
    return &m->info;
}

const struct sl_state_tensor *sl_model_state_tensors(const struct sl_model *m, size_t *ret_n)
{
    *ret_n = m->n_state;
    return m->state;
}

void sl_model_state_init(const struct sl_model *m, void *state)
{
    memset(state, 0, m->info.state_bytes);
    for (size_t i = 0; m->mixer->init && i < m->info.n_layers; i++)
        m->mixer->init(sl_model_mixer_layer(m, i), state);
}

size_t sl_model_room(const struct sl_model *m, const void *state)
{
    const struct sl_state_header *h = state;
    size_t max = m->info.max_tokens;
    if (!max)
        return SIZE_MAX;
    return h->tokens_seen < max ? max - (size_t)h->tokens_seen : 0;
}

size_t sl_model_logits_stride(const struct sl_model *m)
{
    return sl_whole_panels(m->info.vocab_size) + sl_whole_panels(sl_tops(m->info.vocab_size));
}

float *sl_model_logits_tops(const struct sl_model *m, float *logits)
{
    return logits + sl_whole_panels(m->info.vocab_size);
}
