/* pth_container_test.c: model files that other programs wrote: every tensor of pth-container/ by
 * its SHA-256, the same values from .pth and .safetensors, and what each reference model is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/formats/tensors.h"
#include "tests/support/sha256.h"

#define REFERENCE "../shared/reference/"

static void need_reference(const char *n_cases)
{
    if (access(REFERENCE, R_OK) == 0)
        return;
    printf("skipped: %s: ../shared/reference is not here\n", n_cases);
    skip();
}

static struct sl_tensors *open_reference(const char *name)
{
    char path[256];
    struct sl_tensors *t = NULL;
    struct sl_error err = {0};
    snprintf(path, sizeof path, REFERENCE "%s", name);
    if (sl_tensors_open(&t, path, &err) != SL_OK)
        fail_msg("%s", err.message);
    return t;
}

/* All elements as they would lie densely; to be freed. */
static unsigned char *dense(const struct sl_tensor *t, size_t *ret_n)
{
    *ret_n = t->n_elements * sl_dtype_size(t->dtype);
    unsigned char *p = malloc(*ret_n + 1);
    assert_non_null(p);
    sl_tensor_copy(t, p);
    return p;
}

static void test_sha256(void **state)
{
    (void)state;
    /* FIPS 180-4's examples, and lengths around the padding's border */
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
         "mn"
         "opqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[65];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        sha256_hex(known[i].text, strlen(known[i].text), hex);
        assert_string_equal(hex, known[i].hex);
    }
}

static void check_tensor(const struct sl_tensors *t, const char *name, const json_t *want)
{
    const struct sl_tensor *x = sl_tensors_find(t, name);
    if (!x)
        fail_msg("tensor %s is missing", name);
    assert_string_equal(sl_dtype_name(x->dtype), json_string_value(json_object_get(want, "dtype")));
    const json_t *shape = json_object_get(want, "shape");
    assert_int_equal(x->rank, json_array_size(shape));
    for (unsigned i = 0; i < x->rank; i++)
        assert_int_equal(x->shape[i], json_integer_value(json_array_get(shape, i)));
    char hex[65];
    size_t n;
    unsigned char *p = dense(x, &n);
    sha256_hex(p, n, hex);
    free(p);
    if (strcmp(hex, json_string_value(json_object_get(want, "sha256"))) != 0)
        fail_msg("tensor %s has other values", name);
}

static void test_every_tensor_by_its_digest(void **state)
{
    (void)state;
    need_reference("4 files of pth-container");
    json_error_t e;
    json_t *all = json_load_file(REFERENCE "pth-container/expected.json", 0, &e);
    assert_non_null(all);
    const char *file, *name;
    json_t *entry, *want;
    size_t n_files = 0, n_tensors = 0;
    json_object_foreach(all, file, entry)
    {
        char path[128];
        snprintf(path, sizeof path, "pth-container/%s", file);
        struct sl_tensors *t = open_reference(path);
        const json_t *tensors = json_object_get(entry, "tensors");
        assert_int_equal(t->n, json_object_size(tensors));
        json_object_foreach((json_t *)(uintptr_t)tensors, name, want)
        {
            check_tensor(t, name, want);
            n_tensors++;
        }
        assert_string_equal(t->container,
                            strcmp(file, "legacy.pth") == 0 ? "pth (legacy)" : "pth (zip)");
        sl_tensors_close(t);
        n_files++;
    }
    json_decref(all);
    assert_int_equal(n_files, 4);
    assert_int_equal(n_tensors, 99 + 22 + 22 + 2);
}

/* Which tensors of tricky.pth are views with gaps, and that shared storages share memory. */
static void test_views_are_not_copied(void **state)
{
    (void)state;
    need_reference("1 file of pth-container");
    static const char *const strided[] = {"view.column_slice", "transposed", "permuted", "expanded",
                                          "strided"};
    struct sl_tensors *t = open_reference("pth-container/tricky.pth");
    size_t n_strided = 0;
    for (size_t i = 0; i < t->n; i++)
        n_strided += !t->v[i].contiguous;
    for (size_t i = 0; i < sizeof strided / sizeof *strided; i++)
        assert_false(sl_tensors_find(t, strided[i])->contiguous);
    assert_int_equal(n_strided, sizeof strided / sizeof *strided);
    assert_true(sl_tensors_find(t, "view.rows_2_to_4")->contiguous);
    assert_ptr_equal(sl_tensors_find(t, "plain.weight")->data,
                     sl_tensors_find(t, "shared.same_as_plain")->data);
    for (size_t i = 0; i < t->n; i++) /* all pages go and come back */
        sl_tensor_forget(t, &t->v[i]);
    sl_tensors_close(t);
}

/* A 16-bit float widened to 32 bits; both kinds are exact. */
static float widened(enum sl_dtype t, const unsigned char *p)
{
    uint16_t h;
    uint32_t u = 0;
    float f;
    memcpy(&h, p, 2);
    if (t == SL_DTYPE_F16) {
        int exponent = h >> 10 & 31, mantissa = h & 1023;
        assert_int_not_equal(exponent, 31);
        f = (float)(exponent ? mantissa + 1024 : mantissa);
        for (int i = exponent ? exponent : 1; i < 25; i++)
            f /= 2;
        for (int i = 25; i < exponent; i++)
            f *= 2;
        return h & 0x8000 ? -f : f;
    }
    u = (uint32_t)h << 16;
    memcpy(&f, &u, 4);
    return f;
}

static float element(const struct sl_tensor *t, const unsigned char *p, size_t i)
{
    float f;
    if (t->dtype != SL_DTYPE_F32)
        return widened(t->dtype, p + 2 * i);
    memcpy(&f, p + 4 * i, 4);
    return f;
}

static void compare(const struct sl_tensor *a, const struct sl_tensor *b)
{
    size_t n;
    assert_int_equal(a->n_elements, b->n_elements);
    assert_int_equal(a->rank, b->rank);
    for (unsigned i = 0; i < a->rank; i++)
        assert_int_equal(a->shape[i], b->shape[i]);
    unsigned char *p = dense(a, &n), *q = dense(b, &n);
    for (size_t i = 0; i < a->n_elements; i++) {
        float x = element(a, p, i), y = element(b, q, i);
        if (memcmp(&x, &y, 4) != 0)
            fail_msg("%s[%zu]: %g and %g", a->name, i, (double)x, (double)y);
    }
    free(p);
    free(q);
}

static void test_both_containers_hold_the_same(void **state)
{
    (void)state;
    need_reference("10 rwkv folders and the Performer");
    static const char *const folders[] = {"rwkv/v4",        "rwkv/v5.1",      "rwkv/v5.2",
                                          "rwkv/v6",        "rwkv/v7",        "rwkv/v4-rand",
                                          "rwkv/v5.1-rand", "rwkv/v5.2-rand", "rwkv/v6-rand",
                                          "rwkv/v7-rand",   "performer"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[128];
        bool performer = strcmp(folders[i], "performer") == 0;
        snprintf(path, sizeof path, "%s/model.%s", folders[i], performer ? "pt" : "pth");
        struct sl_tensors *pth = open_reference(path);
        snprintf(path, sizeof path, "%s/model.safetensors", folders[i]);
        struct sl_tensors *st = open_reference(path);
        /* The .pt of the Performer has every layer under a second name besides. */
        assert_int_equal(pth->n, performer ? 60 : st->n);
        for (size_t k = 0; k < st->n; k++) {
            const struct sl_tensor *x = sl_tensors_find(pth, st->v[k].name);
            assert_non_null(x);
            compare(x, &st->v[k]);
        }
        sl_tensors_close(pth);
        sl_tensors_close(st);
    }
}

static const struct {
    const char *file, *arch, *words;
} models[] = {
    {"rwkv/v4/model.pth", "rwkv4", "RWKV-4"},
    {"rwkv/v4-rand/model.safetensors", "rwkv4", "RWKV-4"},
    {"rwkv/v5.1/model.pth", "rwkv5", "RWKV-5"},
    {"rwkv/v5.1-rand/model.safetensors", "rwkv5", "RWKV-5"},
    {"rwkv/v5.2/model.pth", "rwkv5", "RWKV-5"},
    {"rwkv/v5.2-rand/model.safetensors", "rwkv5", "RWKV-5"},
    {"rwkv/v6/model.pth", "rwkv6", "RWKV-6"},
    {"rwkv/v6-rand/model.safetensors", "rwkv6", "RWKV-6"},
    {"rwkv/v7/model.pth", "rwkv7", "RWKV-7"},
    {"rwkv/v7/model.safetensors", "rwkv7", "RWKV-7"},
    {"rwkv/v7-rand/model.pth", "rwkv7", "RWKV-7"},
    {"rwkv/v7-rand/model.safetensors", "rwkv7", "RWKV-7"},
    {"rwkv/v7-reverse/model.pth", "rwkv7", "RWKV-7"},
    {"performer/model.pt", "performer", "Performer (FAVOR+)"},
    {"performer/model.safetensors", "performer", "Performer (FAVOR+)"},
    {"fla/linear_attn/model.safetensors", "linear", "linear attention"},
    {"fla/linear_attn-default/model.safetensors", "linear", "linear attention"},
    {"fla/linear_attn-hedgehog/model.safetensors", "linear", "linear attention"},
    {"fla/retnet/model.safetensors", "retnet", "RetNet"},
    {"fla/gla/model.safetensors", "gla", "gated linear attention (GLA)"},
    {"fla/gla/model.legacy-mlp.safetensors", "gla", "gated linear attention (GLA)"},
    {"fla/gla-conv-mqa/model.safetensors", "gla", "gated linear attention (GLA)"},
    {"fla/delta_net/model.safetensors", "delta_net", "DeltaNet"},
    {"fla/delta_net-gate/model.safetensors", "delta_net", "DeltaNet"},
    {"fla/gated_deltanet/model.safetensors", "gated_delta_net", "Gated DeltaNet"},
    {"fla/gated_deltanet-gva/model.safetensors", "gated_delta_net", "Gated DeltaNet"},
    {"fla/mamba2/model.safetensors", "mamba2", "Mamba-2"},
    {"fla/rwkv7/model.safetensors", "fla_rwkv7", "RWKV-7 in the naming of flash-linear-attention"},
    {"fla/rwkv7/model.legacy-x_x.safetensors", "fla_rwkv7",
     "RWKV-7 in the naming of flash-linear-attention"},
    {"pth-container/tricky.pth", NULL, "an unknown model"},
};

static void test_every_model_is_named(void **state)
{
    (void)state;
    need_reference("30 model files");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct sl_tensors *t = open_reference(models[i].file);
        const char *arch = "unset";
        assert_string_equal(sl_tensors_describe(t, &arch), models[i].words);
        assert_string_equal(sl_tensors_describe(t, NULL), models[i].words);
        if (models[i].arch)
            assert_string_equal(arch, models[i].arch);
        else
            assert_null(arch);
        sl_tensors_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_every_tensor_by_its_digest),
        cmocka_unit_test(test_views_are_not_copied),
        cmocka_unit_test(test_both_containers_hold_the_same),
        cmocka_unit_test(test_every_model_is_named),
    };
    return cmocka_run_group_tests_name("pth_container", tests, NULL, NULL);
}
