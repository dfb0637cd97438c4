/* pth_globals.c: the Python names that a checkpoint may use, and what they stand for here.
 *
 * A table; each row says what a call of the name makes. Names that only mark a type (torch.float32,
 * torch.FloatStorage) cannot be called. A storage comes as a persistent id: its element type, its
 * key (the record's name) and its length; a tensor is a storage, an offset, a shape and strides. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/pth.h"

enum { TENSOR_ARGS_MIN = 4 };

typedef enum sl_code caller(struct sl_pickle *m, const struct sl_pickle_value *args,
                            struct sl_pickle_value **ret);

struct sl_pickle_global {
    const char *module, *name;
    caller *call;        /* NULL: cannot be called */
    bool storage;        /* a storage's type: its elements are of dtype; NONE: untyped */
    bool element_type;   /* a torch.dtype */
    enum sl_dtype dtype; /* NONE also: a type that Slate does not have */
};

static enum sl_code wrong_arguments(const struct sl_pickle *m, const char *name)
{
    return SL_PICKLE_FAIL(m, FILE_CORRUPT, "%s is called with arguments it does not take", name);
}

/* --- tensors ---------------------------------------------------------------------------------- */

static bool size_of(const struct sl_pickle_value *v, size_t *ret)
{
    if (v->kind != SL_PICKLE_INT || v->u.i < 0)
        return false;
    *ret = (size_t)v->u.i;
    return true;
}

/* (storage, offset, shape, strides, …): what all the rebuilding functions begin with. */
static enum sl_code read_tensor(struct sl_pickle *m, const struct sl_pickle_value *args,
                                struct sl_pickle_tensor *t)
{
    if (args->n < TENSOR_ARGS_MIN || args->u.v[0]->kind != SL_PICKLE_STORAGE)
        return wrong_arguments(m, "torch._utils._rebuild_tensor");
    *t = *args->u.v[0]->u.tensor;
    const struct sl_pickle_value *shape = args->u.v[2], *stride = args->u.v[3];
    if (!size_of(args->u.v[1], &t->offset) || shape->kind != SL_PICKLE_TUPLE ||
        stride->kind != SL_PICKLE_TUPLE || shape->n != stride->n)
        return wrong_arguments(m, "torch._utils._rebuild_tensor");
    if (shape->n > SL_TENSOR_RANK_MAX)
        return SL_PICKLE_FAIL(m, TOO_LARGE, "a tensor has %zu dimensions; at most %d", shape->n,
                              SL_TENSOR_RANK_MAX);
    t->as.rank = (unsigned)shape->n;
    for (size_t i = 0; i < shape->n; i++) {
        size_t step;
        if (!size_of(shape->u.v[i], &t->as.shape[i]) || !size_of(stride->u.v[i], &step))
            return SL_PICKLE_FAIL(m, FILE_CORRUPT,
                                  "a tensor's shape or stride is not an integer ≥ 0");
        t->as.stride[i] = (ptrdiff_t)step;
    }
    return SL_OK;
}

/* Makes the tensor of *t. Argument number `metadata`, where it is there, marks views whose elements
 * are conjugated or negated on reading. */
static enum sl_code make_tensor(struct sl_pickle *m, const struct sl_pickle_value *args,
                                size_t metadata, const struct sl_pickle_tensor *t,
                                struct sl_pickle_value **ret)
{
    if (args->n > metadata && args->u.v[metadata]->kind != SL_PICKLE_NONE &&
        (args->u.v[metadata]->kind != SL_PICKLE_DICT || args->u.v[metadata]->n))
        return SL_PICKLE_FAIL(m, FILE_UNSUPPORTED,
                              "a tensor has metadata (a conjugated or negated view); save plain "
                              "tensors");
    struct sl_pickle_value *v = sl_pickle_new(m, SL_PICKLE_TENSOR);
    struct sl_pickle_tensor *copy = sl_arena_alloc(m->arena, sizeof *copy);
    if (!v || !copy)
        return sl_pickle_no_memory(m);
    *copy = *t;
    v->u.tensor = copy;
    *ret = v;
    return SL_OK;
}

/* _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks[, metadata]) */
static enum sl_code rebuild_tensor(struct sl_pickle *m, const struct sl_pickle_value *args,
                                   struct sl_pickle_value **ret)
{
    struct sl_pickle_tensor t;
    enum sl_code c = read_tensor(m, args, &t);
    if (c)
        return c;
    if (!t.storage->dtype)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT, "a tensor over a storage without a type");
    t.as.dtype = t.storage->dtype;
    return make_tensor(m, args, 6, &t, ret);
}

/* _rebuild_tensor_v3(untyped storage, offset, shape, strides, requires_grad, hooks, dtype[, …]) */
static enum sl_code rebuild_tensor_v3(struct sl_pickle *m, const struct sl_pickle_value *args,
                                      struct sl_pickle_value **ret)
{
    struct sl_pickle_tensor t;
    enum sl_code c = read_tensor(m, args, &t);
    if (c)
        return c;
    if (args->n < 7 || t.storage->dtype || args->u.v[6]->kind != SL_PICKLE_GLOBAL ||
        !args->u.v[6]->u.global->element_type)
        return wrong_arguments(m, "torch._utils._rebuild_tensor_v3");
    const struct sl_pickle_global *type = args->u.v[6]->u.global;
    if (!type->dtype)
        return SL_PICKLE_FAIL(m, FILE_UNSUPPORTED,
                              "a tensor of %s, which is not supported; supported are F64, F32, "
                              "F16, BF16, I64, I32, I16, I8, U8, BOOL",
                              type->name);
    t.as.dtype = type->dtype;
    return make_tensor(m, args, 7, &t, ret);
}

/* _rebuild_parameter(tensor, requires_grad, hooks[, state]): the tensor. */
static enum sl_code rebuild_parameter(struct sl_pickle *m, const struct sl_pickle_value *args,
                                      struct sl_pickle_value **ret)
{
    if (args->n < 1 || args->u.v[0]->kind != SL_PICKLE_TENSOR)
        return wrong_arguments(m, "torch._utils._rebuild_parameter");
    *ret = args->u.v[0];
    return SL_OK;
}

/* _rebuild_from_type_v2(function, type, its arguments, state): a tensor with attributes. */
static enum sl_code rebuild_from_type(struct sl_pickle *m, const struct sl_pickle_value *args,
                                      struct sl_pickle_value **ret)
{
    if (args->n < 3 || args->u.v[0]->kind != SL_PICKLE_GLOBAL ||
        args->u.v[2]->kind != SL_PICKLE_TUPLE)
        return wrong_arguments(m, "torch._tensor._rebuild_from_type_v2");
    caller *f = args->u.v[0]->u.global->call;
    if (f != rebuild_tensor && f != rebuild_tensor_v3 && f != rebuild_parameter)
        return wrong_arguments(m, "torch._tensor._rebuild_from_type_v2");
    return f(m, args->u.v[2], ret);
}

/* --- ordinary values -------------------------------------------------------------------------- */

/* OrderedDict(), or OrderedDict([(key, value), …]) */
static enum sl_code make_dict(struct sl_pickle *m, const struct sl_pickle_value *args,
                              struct sl_pickle_value **ret)
{
    struct sl_pickle_value *v = sl_pickle_new(m, SL_PICKLE_DICT);
    if (!v)
        return sl_pickle_no_memory(m);
    if (args->n > 1 || (args->n == 1 && args->u.v[0]->kind != SL_PICKLE_LIST))
        return wrong_arguments(m, "collections.OrderedDict");
    if (args->n == 1 && args->u.v[0]->n) {
        const struct sl_pickle_value *pairs = args->u.v[0];
        v->cap = pairs->n * 2;
        v->u.v = sl_arena_alloc(m->arena, v->cap * sizeof(struct sl_pickle_value *));
        if (!v->u.v)
            return sl_pickle_no_memory(m);
        for (size_t i = 0; i < pairs->n; i++) {
            const struct sl_pickle_value *pair = pairs->u.v[i];
            if ((pair->kind != SL_PICKLE_TUPLE && pair->kind != SL_PICKLE_LIST) || pair->n != 2)
                return wrong_arguments(m, "collections.OrderedDict");
            v->u.v[v->n++] = pair->u.v[0];
            v->u.v[v->n++] = pair->u.v[1];
        }
    }
    *ret = v;
    return SL_OK;
}

static enum sl_code make_other(struct sl_pickle *m, const struct sl_pickle_value *args,
                               struct sl_pickle_value **ret)
{
    (void)args;
    *ret = sl_pickle_new(m, SL_PICKLE_OTHER);
    return *ret ? SL_OK : sl_pickle_no_memory(m);
}

/* --- the table -------------------------------------------------------------------------------- */

#define CALL(module, name, f)                                                                      \
    {                                                                                              \
        module, name, f, false, false, SL_DTYPE_NONE                                               \
    }
#define STORAGE(name, type)                                                                        \
    {                                                                                              \
        "torch", name "Storage", NULL, true, false, SL_DTYPE_##type                                \
    }
#define TYPE(name, type)                                                                           \
    {                                                                                              \
        "torch", name, NULL, false, true, SL_DTYPE_##type                                          \
    }

static const struct sl_pickle_global globals[] = {
    CALL("collections", "OrderedDict", make_dict),
    CALL("torch._utils", "_rebuild_tensor", rebuild_tensor),
    CALL("torch._utils", "_rebuild_tensor_v2", rebuild_tensor),
    CALL("torch._utils", "_rebuild_tensor_v3", rebuild_tensor_v3),
    CALL("torch._utils", "_rebuild_parameter", rebuild_parameter),
    CALL("torch._utils", "_rebuild_parameter_with_state", rebuild_parameter),
    CALL("torch._tensor", "_rebuild_from_type_v2", rebuild_from_type),
    CALL("torch", "Size", make_other),
    CALL("torch", "device", make_other),
    CALL("builtins", "set", make_other),
    CALL("__builtin__", "set", make_other),
    CALL("builtins", "bytearray", make_other),
    CALL("__builtin__", "bytearray", make_other),
    CALL("_codecs", "encode", make_other), /* bytes, in protocol 2 */
    CALL("torch", "Tensor", NULL),
    CALL("torch.nn.parameter", "Parameter", NULL),
    STORAGE("Double", F64),
    STORAGE("Float", F32),
    STORAGE("Half", F16),
    STORAGE("BFloat16", BF16),
    STORAGE("Long", I64),
    STORAGE("Int", I32),
    STORAGE("Short", I16),
    STORAGE("Char", I8),
    STORAGE("Byte", U8),
    STORAGE("Bool", BOOL),
    STORAGE("Untyped", NONE),
    {"torch.storage", "UntypedStorage", NULL, true, false, SL_DTYPE_NONE},
    TYPE("float64", F64),
    TYPE("float32", F32),
    TYPE("float16", F16),
    TYPE("bfloat16", BF16),
    TYPE("int64", I64),
    TYPE("int32", I32),
    TYPE("int16", I16),
    TYPE("int8", I8),
    TYPE("uint8", U8),
    TYPE("bool", BOOL),
    TYPE("uint16", NONE),
    TYPE("uint32", NONE),
    TYPE("uint64", NONE),
    TYPE("complex64", NONE),
    TYPE("complex128", NONE),
    TYPE("float8_e4m3fn", NONE),
    TYPE("float8_e5m2", NONE),
    TYPE("float8_e4m3fnuz", NONE),
    TYPE("float8_e5m2fnuz", NONE),
    TYPE("float8_e8m0fnu", NONE),
};

static bool equal(const char *s, const char *t, size_t n)
{
    return strlen(s) == n && memcmp(s, t, n) == 0;
}

const struct sl_pickle_global *sl_pickle_global_find(const char *module, size_t module_n,
                                                     const char *name, size_t name_n)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++)
        if (equal(globals[i].name, name, name_n) && equal(globals[i].module, module, module_n))
            return &globals[i];
    return NULL;
}

enum sl_code sl_pickle_call(struct sl_pickle *m, const struct sl_pickle_global *g,
                            const struct sl_pickle_value *args, struct sl_pickle_value **ret)
{
    if (!g->call)
        return SL_PICKLE_FAIL(m, FILE_UNSUPPORTED,
                              "%s.%s is called, which is no function of a checkpoint", g->module,
                              g->name);
    return g->call(m, args, ret);
}

/* --- storages --------------------------------------------------------------------------------- */

static enum sl_code wrong_id(const struct sl_pickle *m, const char *what)
{
    return SL_PICKLE_FAIL(m, FILE_CORRUPT, "a storage's id is broken: %s", what);
}

static enum sl_code keep_storage(struct sl_pickle *m, struct sl_pickle_storage *s)
{
    if (m->n_storages >= SL_TENSORS_MAX)
        return SL_PICKLE_FAIL(m, TOO_LARGE, "more than %zu storages", SL_TENSORS_MAX);
    if (m->n_storages == m->storages_cap) {
        size_t cap = m->storages_cap ? m->storages_cap * 2 : 64;
        struct sl_pickle_storage **p =
            sl_realloc(m->storages, cap, sizeof(struct sl_pickle_storage *));
        if (!p)
            return sl_pickle_no_memory(m);
        m->storages = p;
        m->storages_cap = cap;
    }
    m->storages[m->n_storages++] = s;
    return SL_OK;
}

/* None, or (key, offset, length) in elements: the part of a storage that an old file's tensor sees.
 */
static enum sl_code read_view(struct sl_pickle *m, const struct sl_pickle_value *v,
                              struct sl_pickle_tensor *t)
{
    if (v->kind == SL_PICKLE_NONE)
        return SL_OK;
    if (v->kind != SL_PICKLE_TUPLE || v->n != 3 || !size_of(v->u.v[1], &t->view_at) ||
        !size_of(v->u.v[2], &t->view_n))
        return wrong_id(m, "its view is not (key, offset, length)");
    if (t->view_at > t->storage->n_elements || t->view_n > t->storage->n_elements - t->view_at)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT,
                              "a view of %zu elements at %zu does not fit its storage of %zu",
                              t->view_n, t->view_at, t->storage->n_elements);
    return SL_OK;
}

/* ('storage', type, key, device, length[, view]) */
enum sl_code sl_pickle_persistent(struct sl_pickle *m, const struct sl_pickle_value *id,
                                  struct sl_pickle_value **ret)
{
    if (id->kind != SL_PICKLE_TUPLE || id->n < 5 || id->n > 6)
        return wrong_id(m, "it is not a tuple of five or six");
    struct sl_pickle_value *const *v = id->u.v;
    if (v[0]->kind != SL_PICKLE_STRING || !equal("storage", v[0]->u.s, v[0]->n))
        return SL_PICKLE_FAIL(m, FILE_UNSUPPORTED,
                              "the checkpoint refers to something that is no storage, as a whole "
                              "pickled module does; a state dict is needed");
    if (v[1]->kind != SL_PICKLE_GLOBAL || !v[1]->u.global->storage)
        return wrong_id(m, "its type is no storage type");
    if (v[2]->kind != SL_PICKLE_STRING || v[2]->n > SL_TENSOR_NAME_MAX)
        return wrong_id(m, "its key is no short string");
    struct sl_pickle_storage *s = sl_arena_alloc(m->arena, sizeof *s);
    struct sl_pickle_tensor *t = sl_arena_alloc(m->arena, sizeof *t);
    struct sl_pickle_value *value = sl_pickle_new(m, SL_PICKLE_STORAGE);
    if (!s || !t || !value)
        return sl_pickle_no_memory(m);
    s->dtype = v[1]->u.global->dtype;
    s->key = v[2]->u.s;
    s->key_n = v[2]->n;
    if (!size_of(v[4], &s->n_elements))
        return wrong_id(m, "its length is not an integer ≥ 0");
    t->storage = s;
    t->view_n = s->n_elements;
    value->u.tensor = t;
    enum sl_code c = id->n == 6 ? read_view(m, v[5], t) : SL_OK;
    if (!c)
        c = keep_storage(m, s);
    if (!c && m->locate)
        c = m->locate(m, s);
    if (!c)
        *ret = value;
    return c;
}
