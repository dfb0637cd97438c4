/* touch.h: what the fuzzers of model files do with one: open it, read everything in it. */
#ifndef SLATE_TESTS_TOUCH_H
#define SLATE_TESTS_TOUCH_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/formats/tensors.h"

enum { TOUCH_BYTES_MAX = 1 << 20 };

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What tensors.h promises of each tensor. */
static inline void check_tensor(const struct sl_tensor *x, const struct sl_tensor *previous)
{
    size_t n = 1;
    bool coded = x->dtype == SL_DTYPE_Q8 || x->dtype == SL_DTYPE_Q5 || x->dtype == SL_DTYPE_Q4;
    bool plain = x->dtype > SL_DTYPE_NONE && x->dtype < SL_DTYPE_COUNT;
    MUST(plain + coded + (x->block != SL_BLOCK_NONE) == 1);
    MUST(coded == (x->scales != NULL) && (!coded || (x->rank == 2 && x->contiguous)));
    MUST(sl_tensor_type(x)[0] && (!x->origin || sl_utf8_valid(x->origin, strlen(x->origin))));
    MUST(x->rank <= SL_TENSOR_RANK_MAX);
    for (unsigned i = 0; i < x->rank; i++)
        MUST(!__builtin_mul_overflow(n, x->shape[i], &n));
    MUST(n == x->n_elements);
    MUST((x->data == NULL) == (n == 0));
    MUST(sl_utf8_valid(x->name, strlen(x->name)));
    MUST(!previous || strcmp(previous->name, x->name) < 0);
}

static inline void touch_file(const uint8_t *data, size_t size)
{
    struct sl_tensors *t = NULL;
    struct sl_error err = {0};
    enum sl_code c = sl_tensors_open_memory(&t, data, size, "fuzz", &err);
    MUST((c == SL_OK) == (t != NULL));
    if (c) {
        MUST(err.code == c && err.message[0]);
        MUST(sl_utf8_valid(err.message, strlen(err.message)));
        return;
    }
    unsigned char *copy = malloc(TOUCH_BYTES_MAX);
    MUST(copy);
    for (size_t i = 0; i < t->n; i++) {
        const struct sl_tensor *x = &t->v[i];
        check_tensor(x, i ? x - 1 : NULL);
        MUST(sl_tensors_find(t, x->name) == x);
        if (sl_tensor_bytes(x) <= TOUCH_BYTES_MAX && (x->contiguous || !x->block))
            sl_tensor_copy(x, copy);
        sl_tensor_forget(t, x);
    }
    MUST(sl_tensors_describe(t, NULL));
    free(copy);
    sl_tensors_close(t);
}

#endif
