/* model_priv.h: what a model is, to those that run it. Private to libslate. */
#ifndef SLATE_ENGINE_MODEL_PRIV_H
#define SLATE_ENGINE_MODEL_PRIV_H

#include "engine/block.h"
#include "engine/converted.h"

struct sl_model {
    struct sl_model_info info;
    struct sl_converted converted; /* what its file says of itself, where it was converted */
    char *name;
    const struct sl_kernels *kernels;
    const struct sl_mixer *mixer;
    struct sl_tensors *tensors; /* open as long as the model: the embedding lies there */
    void *arena;                /* all that was copied */
    struct sl_ends ends;
    unsigned char *mixer_layers; /* n_layers × mixer->layer_bytes */
    unsigned char *block_layers; /* n_layers × mixer->block->layer_bytes */
    struct sl_state_tensor *state;
    size_t n_state;
    size_t scratch_floats, carry_floats, part_floats, input_groups; /* see load.h */
    enum sl_form form;                                              /* of a prompt's recurrence */
    struct sl_recur_shape recurrence;
};

static inline void *sl_model_mixer_layer(const struct sl_model *m, size_t i)
{
    return m->mixer_layers + i * m->mixer->layer_bytes;
}

static inline void *sl_model_block_layer(const struct sl_model *m, size_t i)
{
    return m->block_layers + i * m->mixer->block->layer_bytes;
}

/* sl_model_open() on tensors that are open already; takes them over, also when it fails. `file` is
 * the file's name without its folder. opt->path is not looked at; opt may be NULL. */
SL_NODISCARD enum sl_code sl_model_open_tensors(struct sl_model **ret, struct sl_tensors *tensors,
                                                const char *file,
                                                const struct sl_model_options *opt,
                                                struct sl_error *err);

/* The same on a file's bytes, which must outlive the model. */
SL_NODISCARD enum sl_code sl_model_open_memory(struct sl_model **ret, const void *data,
                                               size_t n_bytes, const char *name,
                                               const struct sl_model_options *opt,
                                               struct sl_error *err);

/* The first half of opening m->tensors: finds the rule, declares every layer. *ret is written in
 * any case; sl_load_done() and the layers are the caller's. `file` as above. */
SL_NODISCARD enum sl_code sl_model_declare(struct sl_model *m, struct sl_load *ret,
                                           const char *file, const struct sl_model_options *opt,
                                           struct sl_error *err);
/* Frees what declaring took, where nothing follows. */
void sl_model_declared(struct sl_model *m, struct sl_load *l);

/* What a model would be, without packing it. */
struct sl_model_plan {
    const char *title; /* of its rule */
    struct sl_config config;
    size_t state_bytes;  /* of a session */
    size_t weight_bytes; /* of the packed matrices and what else is copied from the file */
};

/* Everything that opening a model checks but the values: names, shapes, types, settings, with the
 * rule's defaults. The tensors stay the caller's. Errors as sl_model_open(). */
SL_NODISCARD enum sl_code sl_model_plan(struct sl_model_plan *ret, struct sl_tensors *tensors,
                                        const char *file, struct sl_error *err);

#endif
