/* snapshot_initial.c: state-tuned files: initial states that were learned. See snapshot.h.
 *
 * BlinkDL's training code learns one matrix per layer and head, what the memory holds before the
 * first token, and stores it as the training kernel indexes it: [head][value][key], for RWKV-5, 6
 * and 7 alike. A slot has [head][key][value]. Shifts begin as zeros. What goes wrong:
 *
 * The axes. ChatRWKV's inference code keeps v5 and v6 as [key][value], so it transposes the file on
 * reading, and v7 as [value][key], so there it does not: one file order, two rules. RWKV-PEFT
 * transposes v7 as well, but on the way into a kernel of flash-linear-attention, whose public
 * argument is [key][value]: the file is the same. A wrong order is no error and gives fluent text:
 * only the tuning is lost.
 *
 * The names. "blocks.N.att.time_state"; trainers that wrap the model put a word before it
 * ("language_model.", "model.").
 *
 * The file. Whole checkpoints hold it beside the weights, or the tuned states alone are saved. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "engine/mixers/tuned.h"
#include "engine/model_priv.h"
#include "engine/snapshot_priv.h"

struct initial {
    const struct sl_model *m;
    const struct sl_tensors *file;
    const char *name;      /* of the file, for messages */
    char prefix[64];       /* of its names */
    unsigned char *native; /* the elements of one tensor, dense, in the file's type */
    float *values;         /* and widened */
    struct sl_error *err;
};

/* The matrix of layer i in a slot; NULL where the layer has none that is square. */
static const struct sl_state_tensor *matrix_of(const struct sl_model *m, size_t i)
{
    size_t n;
    const struct sl_state_tensor *s = sl_model_state_tensors(m, &n);
    char name[64];
    (void)snprintf(name, sizeof name, "layers.%zu.mixer.state", i);
    for (size_t k = 0; k < n; k++)
        if (strcmp(s[k].name, name) == 0)
            return s[k].rank == 3 && s[k].shape[1] == s[k].shape[2] ? &s[k] : NULL;
    return NULL;
}

/* What stands before "blocks.0.att.time_state", where that is there. */
static void find_prefix(struct initial *in)
{
    static const char first[] = "blocks.0.att.time_state";
    for (size_t i = 0; i < in->file->n; i++) {
        const char *name = in->file->v[i].name;
        size_t n = strlen(name), k = sizeof first - 1;
        if (n < k || n - k >= sizeof in->prefix || strcmp(name + n - k, first) != 0)
            continue;
        if (n == k || name[n - k - 1] == '.') {
            (void)snprintf(in->prefix, sizeof in->prefix, "%.*s", (int)(n - k), name);
            return; /* sorted: the shortest of several comes first where one is the other's end */
        }
    }
}

static const struct sl_tensor *find(const struct initial *in, size_t i)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%sblocks.%zu.att.time_state", in->prefix, i);
    return sl_tensors_find(in->file, name);
}

/* [H, N, N], also as [1, H, N, N]. */
static bool same_shape(const struct sl_tensor *t, const struct sl_state_tensor *s)
{
    unsigned skip = 0;
    while (t->rank - skip > s->rank && t->shape[skip] == 1)
        skip++;
    return t->rank - skip == s->rank &&
           memcmp(t->shape + skip, s->shape, s->rank * sizeof *s->shape) == 0;
}

static bool is_float(enum sl_dtype t)
{
    return t == SL_DTYPE_F32 || t == SL_DTYPE_F16 || t == SL_DTYPE_BF16 || t == SL_DTYPE_F64;
}

static void widen(const struct initial *in, const struct sl_tensor *t)
{
    sl_tensor_copy(t, in->native);
    sl_widen(in->values, in->native, t->dtype, t->n_elements);
}

static enum sl_code check_layer(const struct initial *in, size_t i)
{
    const struct sl_state_tensor *s = matrix_of(in->m, i);
    const struct sl_tensor *t = find(in, i);
    if (!t)
        return sl_fail(in->err, SL_E_MODEL_INVALID,
                       "%.160s: tensor blocks.%zu.att.time_state is absent", in->name, i);
    if (!same_shape(t, s))
        return sl_fail(in->err, SL_E_MODEL_INVALID,
                       "%.160s: tensor %s has %zu elements on %u axes; this model needs the shape "
                       "[%zu, %zu, %zu]",
                       in->name, t->name, t->n_elements, t->rank, s->shape[0], s->shape[1],
                       s->shape[2]);
    if (!is_float(t->dtype))
        return sl_fail(in->err, SL_E_MODEL_INVALID,
                       "%.160s: tensor %s has the type %s; it can be F32, F16, BF16 or F64",
                       in->name, t->name, sl_dtype_name(t->dtype));
    widen(in, t);
    for (size_t k = 0; k < t->n_elements; k++)
        if (!isfinite(in->values[k]))
            return sl_fail(in->err, SL_E_MODEL_INVALID,
                           "%.160s: tensor %s holds a value that is not finite (element %zu)",
                           in->name, t->name, k);
    return SL_OK;
}

static void fill_layer(const struct initial *in, size_t i, unsigned char *state)
{
    const struct sl_state_tensor *s = matrix_of(in->m, i);
    const struct sl_tuned t = {.v = in->values, .n_heads = s->shape[0], .n = s->shape[1]};
    widen(in, find(in, i));
    sl_tuned_init(&t, (float *)(void *)(state + s->offset));
}

static enum sl_code check_model(const struct initial *in)
{
    const struct sl_model_info *mi = sl_model_info(in->m);
    for (size_t i = 0; i < mi->n_layers; i++)
        if (!in->m->mixer->tuned || !matrix_of(in->m, i))
            return sl_fail(in->err, SL_E_UNSUPPORTED,
                           "%.160s: state-tuned files are of RWKV-5, 6 and 7, and the model is %s",
                           in->name, mi->arch);
    return SL_OK;
}

static enum sl_code prepare(struct initial *in)
{
    const struct sl_model_info *mi = sl_model_info(in->m);
    find_prefix(in);
    const struct sl_tensor *beyond = find(in, mi->n_layers);
    if (beyond)
        return sl_fail(in->err, SL_E_MODEL_INVALID,
                       "%.160s: there is a tensor %s, but this model has %zu layers", in->name,
                       beyond->name, mi->n_layers);
    size_t largest = 0;
    for (size_t i = 0; i < mi->n_layers; i++) {
        size_t elements = sl_state_tensor_elements(matrix_of(in->m, i));
        largest = elements > largest ? elements : largest;
    }
    in->native = sl_calloc(largest, sl_dtype_size(SL_DTYPE_F64));
    in->values = sl_calloc(largest, sizeof *in->values);
    if (!in->native || !in->values)
        return sl_fail(in->err, SL_E_NO_MEMORY, "%.160s: not enough memory to read it", in->name);
    return SL_OK;
}

/* Takes the file over. */
static enum sl_code read_file(struct initial *in, struct sl_tensors *file, void *state)
{
    const struct sl_model *m = in->m;
    size_t n_layers = sl_model_info(m)->n_layers;
    in->file = file;
    enum sl_code c = prepare(in);
    for (size_t i = 0; i < n_layers && !c; i++)
        c = check_layer(in, i);
    if (c)
        goto out;
    sl_model_state_init(m, state);
    for (size_t i = 0; i < n_layers; i++)
        fill_layer(in, i, state);
out:
    sl_free(in->native);
    sl_free(in->values);
    sl_tensors_close(file);
    return c;
}

enum sl_code sl_initial_state_read(const struct sl_model *m, const void *data, size_t n,
                                   const char *name, void *state, struct sl_error *err)
{
    struct initial in = {.m = m, .name = name, .err = err};
    struct sl_tensors *file = NULL;
    enum sl_code c = check_model(&in);
    if (!c)
        c = sl_tensors_open_memory(&file, data, n, name, err);
    return c ? c : read_file(&in, file, state);
}

enum sl_code sl_initial_state_open(const struct sl_model *m, const char *path, void *state,
                                   struct sl_error *err)
{
    const char *slash = strrchr(path, '/');
    struct initial in = {.m = m, .name = slash && slash[1] ? slash + 1 : path, .err = err};
    struct sl_tensors *file = NULL;
    enum sl_code c = check_model(&in);
    if (!c)
        c = sl_tensors_open(&file, path, err);
    return c ? c : read_file(&in, file, state);
}
