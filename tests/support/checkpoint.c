/* checkpoint.c: see checkpoint.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/checkpoint.h"

void make_checkpoint(struct bytes *b, const struct bytes *pickle)
{
    struct zip_maker z = {0};
    unsigned char data[64];
    for (unsigned i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)i;
    zip_add(&z, "m/data.pkl", pickle->p, pickle->n);
    zip_add(&z, "m/data/0", data, sizeof data);
    zip_end(&z);
    put(b, z.file.p, z.file.n);
    zip_done(&z);
}

static enum sl_code try_pickle(struct sl_tensors **t, unsigned char **copy,
                               const struct bytes *pickle, struct sl_error *err)
{
    struct bytes b = {0};
    make_checkpoint(&b, pickle);
    *copy = exact_copy(b.p, b.n);
    *t = NULL;
    enum sl_code c = sl_tensors_open_memory(t, *copy, b.n, "x.pth", err);
    bytes_done(&b);
    return c;
}

struct sl_tensors *open_pickle(const struct bytes *pickle, unsigned char **copy)
{
    struct sl_tensors *t;
    struct sl_error err = {0};
    if (try_pickle(&t, copy, pickle, &err) != SL_OK)
        fail_msg("%s", err.message);
    return t;
}

void assert_refused(const struct bytes *pickle, enum sl_code want, const char *part)
{
    struct sl_tensors *t;
    unsigned char *copy;
    struct sl_error err = {0};
    enum sl_code c = try_pickle(&t, &copy, pickle, &err);
    if (c != want || !strstr(err.message, part))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", sl_code_name(want), part, sl_code_name(c),
                 err.message);
    assert_int_equal(err.code, want);
    assert_null(t);
    free(copy);
}

void pick_float(struct bytes *b, const char *key, int64_t n, int64_t offset, unsigned rank,
                const int64_t *shape, const int64_t *stride)
{
    pick_tensor(b, "FloatStorage", key, n, offset, rank, shape, stride, false);
}

void pick_good(struct bytes *b)
{
    put_text(b, "\x80\2}");
    pick_text(b, "w");
    pick_float(b, "0", 16, 1, 2, (int64_t[]){2, 3}, (int64_t[]){1, 4});
    put_text(b, "s.");
}
