/* shape_gguf_test.c: a shape's model as GGUF is the same model: read back, every tensor has the
 * values that the .safetensors file of the same shape has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "server/cli/shape_gguf.h"

static float *values(const struct sl_tensor *t)
{
    size_t size = t->dtype == SL_DTYPE_F32 ? 4 : 2;
    unsigned char *bytes = sl_malloc(t->n_elements * size);
    float *v = sl_malloc(t->n_elements * sizeof *v);
    assert_true(bytes && v);
    struct sl_tensor flat = *t;
    sl_tensor_copy(t, bytes);
    flat.data = bytes;
    flat.exponent = 0;
    sl_tensor_values(&flat, 0, t->n_elements, v);
    sl_free(bytes);
    return v;
}

static void same_model(void **state)
{
    (void)state;
    char path[] = "/tmp/slate-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const struct sl_shape *s = sl_shape_find("rwkv7-tiny");
    struct sl_error err;
    unsigned char *file;
    size_t n, checked = 0;
    assert_int_equal(sl_shape_file(s, &file, &n, &err), SL_OK);
    assert_int_equal(sl_shape_gguf(s, file, n, path, &err), SL_OK);
    struct sl_tensors *want, *got;
    assert_int_equal(sl_tensors_open_memory(&want, file, n, "ours", &err), SL_OK);
    assert_int_equal(sl_tensors_open(&got, path, &err), SL_OK);
    assert_string_equal(got->container, "gguf");
    assert_null(got->refused);
    for (size_t i = 0; i < want->n; i++) {
        const struct sl_tensor *a = &want->v[i], *b = sl_tensors_find(got, a->name);
        if (!b) { /* what the first layer does not need */
            assert_non_null(strstr(a->name, "blocks.0.att.v"));
            continue;
        }
        assert_int_equal(a->n_elements, b->n_elements);
        float *x = values(a), *y = values(b);
        assert_memory_equal(x, y, a->n_elements * sizeof *x);
        sl_free(x);
        sl_free(y);
        checked++;
    }
    assert_int_equal(checked, want->n - 3);
    sl_tensors_close(got);
    sl_tensors_close(want);
    sl_free(file);
    unlink(path);
}

/* Nothing is left of a file that could not be written. */
static void full_disk(void **state)
{
    (void)state;
    const struct sl_shape *s = sl_shape_find("rwkv7-tiny");
    struct sl_error err;
    unsigned char *file;
    size_t n;
    assert_int_equal(sl_shape_file(s, &file, &n, &err), SL_OK);
    assert_int_equal(sl_shape_gguf(s, file, n, "/tmp/no such folder/x", &err), SL_E_IO);
    assert_non_null(strstr(err.message, "/tmp/no such folder/x"));
    char path[] = "/tmp/slate-test-XXXXXX";
    assert_non_null(mkdtemp(path));
    char link[64];
    (void)snprintf(link, sizeof link, "%s/full", path);
    assert_int_equal(symlink("/dev/full", link), 0);
    assert_int_equal(sl_shape_gguf(s, file, n, link, &err), SL_E_IO);
    assert_non_null(strstr(err.message, link));
    assert_int_not_equal(access(link, F_OK), 0);
    assert_int_equal(rmdir(path), 0);
    sl_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_model), cmocka_unit_test(full_disk)};
    return cmocka_run_group_tests_name("a shape as GGUF", tests, NULL, NULL);
}
