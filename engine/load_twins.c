/* load_twins.c: tensors that a file has twice. See load.h.
 *
 * A library that keeps a module in two places writes it down twice; in a torch file the second ones
 * are views of the same memory, elsewhere they are copies. Values are compared bit by bit. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/load_priv.h"

enum { NAME_BYTES = 256 };

static bool same_shape(const struct sl_tensor *a, const struct sl_tensor *b)
{
    return a->dtype == b->dtype && a->block == b->block && a->exponent == b->exponent &&
           a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

/* The elements side by side: in the file, or in a copy, which is the caller's. NULL: no memory. */
static const unsigned char *dense(const struct sl_tensor *t, unsigned char **ret_copy)
{
    if (t->contiguous)
        return t->data;
    *ret_copy = sl_malloc(sl_tensor_bytes(t));
    if (*ret_copy)
        sl_tensor_copy(t, *ret_copy);
    return *ret_copy;
}

static void compare(struct sl_load *l, const struct sl_tensor *a, const struct sl_tensor *b)
{
    unsigned char *copy_a = NULL, *copy_b = NULL;
    if (a->data == b->data && a->scales == b->scales && a->contiguous && b->contiguous)
        return;
    const unsigned char *x = dense(a, &copy_a), *y = dense(b, &copy_b);
    if (!x || !y)
        sl_load_fail(l, SL_E_NO_MEMORY, "no memory to compare tensor %.80s with its twin", a->name);
    else if (memcmp(x, y, sl_tensor_bytes(a)) != 0 ||
             (a->scales && memcmp(a->scales, b->scales, sl_tensor_scale_bytes(a)) != 0))
        sl_load_fail(l, SL_E_MODEL_INVALID,
                     "tensor %.120s holds other values than %.120s; the two must be equal", a->name,
                     b->name);
    sl_free(copy_a);
    sl_free(copy_b);
}

void sl_load_twins(struct sl_load *l, const char *prefix, const char *of)
{
    size_t n = strlen(prefix);
    for (size_t i = 0; i < l->tensors->n && sl_load_ok(l); i++) {
        char name[NAME_BYTES];
        const struct sl_tensor *a = &l->tensors->v[i];
        if (strncmp(a->name, prefix, n) != 0)
            continue;
        int len = snprintf(name, sizeof name, "%s%s", of, a->name + n);
        const struct sl_tensor *b =
            len > 0 && len < NAME_BYTES ? sl_tensors_find(l->tensors, name) : NULL;
        if (!b)
            sl_load_fail(l, SL_E_MODEL_INVALID, "tensor %.120s has no twin %.120s", a->name, name);
        else if (!same_shape(a, b))
            sl_load_fail(l, SL_E_MODEL_INVALID,
                         "tensor %.120s has another type or shape than %.120s; the two must be "
                         "equal",
                         a->name, b->name);
        else
            compare(l, a, b);
        if (sl_load_ok(l) && l->marks[i] == SL_MARK_NONE)
            l->marks[i] = SL_MARK_TWIN;
    }
}
