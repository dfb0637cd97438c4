/* mixer.h: a memory rule, and the table of those that Slate knows. Private to libslate.
 *
 * A mixer is one choice of f and g in  S_t = f(S_{t-1}) + g(k_t, v_t),  o_t = read(S_t, q_t)
 * together with the projections that give k, v, q. It is one file in this folder and one row in
 * table.c. What stands around it (embedding, norms, feed-forward, head) is its block: block.h.
 *
 * Loading (once, may fail): config() reads sizes from names and shapes; load() declares the weights
 * and state tensors of one layer through load.h. Running (every step, cannot fail): forward() adds
 * the layer's output to the residual stream, for all rows of a ragged batch, in stages (pass.h):
 * projections as products over all rows, then the recurrence per (span, head), where the state
 * lies, in place. */
#ifndef SLATE_MIXERS_MIXER_H
#define SLATE_MIXERS_MIXER_H

#include "engine/load.h"
#include "engine/pass.h"

struct sl_block;

struct sl_mixer {
    const char *arch;       /* what sl_tensors_describe() calls it: "rwkv7" */
    const char *title;      /* for people: "RWKV-7" */
    const char *model_type; /* what a config.json calls it; NULL: nothing does */
    const struct sl_block *block;
    size_t layer_bytes;              /* of the mixer's own struct, one per layer */
    const struct sl_rename *names;   /* see load.h; NULL: files have the names that are asked for */
    const struct sl_choice *choices; /* see load.h; ends with a NULL name; or NULL */
    bool tuned;                      /* BlinkDL's state-tuned files are of it: snapshot_initial.c */

    /* Fills l->config in; an error where it is beyond load.h's limits or contradicts itself. */
    void (*config)(struct sl_load *l);
    /* `layer` points at layer_bytes zeroed bytes. */
    void (*load)(struct sl_load *l, size_t i, void *layer);
    /* Writes what is not zero in the layer's initial state; NULL: all of it is. */
    void (*init)(const void *layer, unsigned char *state);
    /* p->x += mixer(norm(p->x)). */
    void (*forward)(const struct sl_pass *p, const struct sl_norm *norm, const void *layer);
};

/* NULL when there is none. */
const struct sl_mixer *sl_mixer_find(const char *arch);
const struct sl_mixer *sl_mixer_find_type(const char *model_type);

/* All of them; ends with NULL. */
extern const struct sl_mixer *const sl_mixers[];

extern const struct sl_mixer sl_mixer_rwkv4, sl_mixer_rwkv5, sl_mixer_rwkv6, sl_mixer_rwkv7;
extern const struct sl_mixer sl_mixer_performer;
extern const struct sl_mixer sl_mixer_linear, sl_mixer_retnet, sl_mixer_gla, sl_mixer_delta_net,
    sl_mixer_gated_delta_net, sl_mixer_mamba2, sl_mixer_fla_rwkv7;

#endif
