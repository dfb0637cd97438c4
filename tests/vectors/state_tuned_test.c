/* state_tuned_test.c: the axes of state-tuned files. They hold a matrix as RWKV-7's public
 * inference code holds its state, [head][value][key], and so does the reference: its matrices after
 * a text, put into such a file, must give the state that this model has after that text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "slate/snapshot.h"
#include "tests/support/bytes.h"
#include "tests/support/runner.h"

#define FOLDER "../shared/reference/rwkv/v7-rand/"

static json_t *read_json(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j)
        fail_msg("%s: %s", path, e.text);
    return j;
}

/* The reference's state, as a state-tuned file. */
static void make_file(struct bytes *file, size_t n_layers, size_t n_heads, size_t n)
{
    json_t *j = read_json(FOLDER "long.state.json");
    size_t i, total = (size_t)json_integer_value(json_object_get(j, "total_floats"));
    size_t layer = 0, bytes = n_heads * n * n * sizeof(float);
    float *v = malloc(total * sizeof *v);
    FILE *f = fopen(FOLDER "long.state.f32", "rb");
    struct bytes header = {0}, data = {0};
    const json_t *entry;
    char text[256];
    assert_non_null(v);
    assert_non_null(f);
    assert_int_equal(fread(v, sizeof *v, total, f), total);
    fclose(f);
    put_text(&header, "{\"__metadata__\":{}");
    json_array_foreach(json_object_get(j, "tensors"), i, entry)
    {
        if (!strstr(json_string_value(json_object_get(entry, "name")), ".att_kv"))
            continue;
        size_t at = (size_t)json_integer_value(json_object_get(entry, "offset_floats"));
        assert_true(at + bytes / sizeof *v <= total);
        (void)snprintf(text, sizeof text,
                       ",\"blocks.%zu.att.time_state\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu,%zu],"
                       "\"data_offsets\":[%zu,%zu]}",
                       layer, n_heads, n, n, data.n, data.n + bytes);
        put_text(&header, text);
        put(&data, v + at, bytes);
        layer++;
    }
    assert_int_equal(layer, n_layers);
    put_text(&header, "}");
    put_u64(file, header.n);
    put(file, header.p, header.n);
    put(file, data.p, data.n);
    bytes_done(&header);
    bytes_done(&data);
    free(v);
    json_decref(j);
}

/* What this model has after the same text. */
static void *our_state(const struct sl_model *m)
{
    json_t *j = read_json(FOLDER "long.tokens.json");
    void *state = runner_state(m);
    struct runner r;
    runner_open(&r, m, 1, 8, 1);
    for (size_t i = 0; i < json_array_size(j); i++) {
        uint32_t token = (uint32_t)json_integer_value(json_array_get(j, i));
        runner_feed(&r, state, &token, 1, 1, NULL);
    }
    runner_close(&r);
    json_decref(j);
    return state;
}

static void compare(const struct sl_model *m, const void *got, const void *want, size_t layer)
{
    char name[64];
    (void)snprintf(name, sizeof name, "layers.%zu.mixer.state", layer);
    const struct sl_state_tensor *t = runner_tensor(m, name);
    const float *a = (const float *)(const void *)((const unsigned char *)got + t->offset);
    const float *b = (const float *)(const void *)((const unsigned char *)want + t->offset);
    size_t n = t->shape[0] * t->shape[1] * t->shape[2];
    double largest = 0, worst = 0, turned = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = t->shape[1], other = i / (k * k) * k * k + i % k * k + i / k % k;
        largest = fmax(largest, fabs((double)b[i]));
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        turned = fmax(turned, fabs((double)a[i] - (double)b[other]));
    }
    assert_true(worst <= 1e-4 * largest);
    assert_true(turned > 0.1 * largest); /* the other order would be seen */
}

static void test_axes(void **arg)
{
    (void)arg;
    if (access(FOLDER "long.state.json", R_OK) != 0) {
        print_message("skipped: 1 case of state-tuned files: ../shared/reference is not here\n");
        skip();
    }
    const struct sl_model_options opt = {.path = FOLDER "model.pth"};
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    struct bytes file = {0};
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    const struct sl_model_info *mi = sl_model_info(m);
    make_file(&file, mi->n_layers, mi->n_heads, mi->head_size);
    void *want = our_state(m), *got = runner_state(m);
    if (sl_initial_state_read(m, file.p, file.n, "tuned.safetensors", got, &err) != SL_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < mi->n_layers; i++)
        compare(m, got, want, i);
    bytes_done(&file);
    sl_free(want);
    sl_free(got);
    sl_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_axes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
