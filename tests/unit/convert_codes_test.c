/* convert_codes_test.c: matrices of 8, 5 and 4 bits in converted files: they are those that
 * --weights makes of the source, take what such codes take, and whoever damages them is told where.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/formats/tensors.h"
#include "tests/support/conversion.h"
#include "tests/support/seeded.h"

/* Rows of an odd length, which two codes to a byte do not fill: they stay as they are in the file,
 * and become what they become at the source's. */
static void test_odd_rows(void **state)
{
    (void)state;
    static const struct seeded_shape shape = {.n_layers = 2,
                                              .d_model = 27,
                                              .head_size = 9,
                                              .d_ffn = 45,
                                              .vocab_size = 33,
                                              .rank_w = 3,
                                              .rank_a = 5,
                                              .rank_v = 7,
                                              .rank_g = 2,
                                              .dtype = SL_DTYPE_F16,
                                              .seed = 4};
    struct seeded s;
    seeded_init(&s, &shape);
    seeded_write(&s, conversion_path("m.safetensors"));
    seeded_done(&s);
    conversion_every_type(conversion_path("m.safetensors"), NULL);
    const char *out = conversion_path("out.safetensors");
    struct sl_tensors *t = NULL;
    conversion_must(conversion_path("m.safetensors"), out, SL_DTYPE_Q8, NULL);
    assert_int_equal(sl_tensors_open(&t, out, NULL), SL_OK);
    for (size_t i = 0; i < t->n; i++) /* an odd number of codes puts no scale at an odd place */
        assert_int_equal((uintptr_t)t->v[i].scales % sizeof(uint16_t), 0);
    sl_tensors_close(t);
}

/* What `--weights q8` and q4 keep, and no more: codes and their scales take 8.5 and 4.5 bits, under
 * q4 the head 5.5. */
static void test_codes_are_small(void **state)
{
    (void)state;
    static const enum sl_dtype coded[] = {SL_DTYPE_Q8, SL_DTYPE_Q4};
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("out.safetensors"),
               *again = conversion_path("again.safetensors");
    conversion_write_odd(in, SL_DTYPE_F32, false);
    for (size_t i = 0; i < 2; i++) {
        struct sl_tensors *t = NULL;
        size_t n_coded = 0;
        conversion_must(in, out, coded[i], NULL);
        assert_true(conversion_narrowed(out));
        assert_int_equal(sl_tensors_open(&t, out, NULL), SL_OK);
        for (size_t k = 0; k < t->n; k++)
            n_coded += t->v[k].dtype == coded[i];
        const struct sl_tensor *x = sl_tensors_find(t, "blocks.1.ffn.value.weight");
        assert_int_equal(x->dtype, coded[i]);
        assert_true(x->rank == 2 && x->shape[0] == 96 && x->shape[1] == 200);
        assert_int_equal(sl_tensor_bytes(x), 96 * (i == 0 ? 200 : 100));
        assert_int_equal(sl_tensor_scale_bytes(x), 96 * 7 * 2);
        assert_ptr_equal(x->scales, x->data + sl_tensor_bytes(x)); /* made at once */
        assert_int_equal(n_coded, i == 0 ? 19 : 18); /* the head has 5 bits beside 4 */
        x = sl_tensors_find(t, "head.weight");
        assert_int_equal(x->dtype, i == 0 ? SL_DTYPE_Q8 : SL_DTYPE_Q5);
        assert_int_equal(sl_tensor_bytes(x), 1001 * (i == 0 ? 96 : 60));
        sl_tensors_close(t);
        /* Once more they are copied. */
        conversion_must(out, again, SL_DTYPE_NONE, NULL);
        struct sl_model *a = conversion_open(in, coded[i], NULL),
                        *b = conversion_open(again, SL_DTYPE_NONE, NULL),
                        *wide = conversion_open(again, SL_DTYPE_F32, NULL);
        conversion_same(a, b);
        assert_string_equal(sl_model_info(wide)->weights_name, i == 0 ? "Q8>F32" : "Q4>F32");
        sl_model_close(a);
        sl_model_close(b);
        sl_model_close(wide);
        struct sl_error err;
        assert_int_equal(
            conversion(out, again, SL_DTYPE_F32, NULL, NULL, &sl_store_io_system, &err),
            SL_E_INVALID_VALUE);
        assert_non_null(strstr(err.message, i == 0 ? "narrowed to Q8" : "narrowed to Q4"));
    }
}

/* The file with a piece of text in its header replaced by one of the same length, or a number of 16
 * bits in a tensor's data by another. */
static void patch(const char *path, const char *from, const char *to, const char *tensor,
                  uint16_t number)
{
    size_t n = conversion_bytes(path), n_header;
    unsigned char *all = malloc(n), *at = NULL;
    FILE *f = fopen(path, "r+b");
    assert_true(f && all);
    assert_int_equal(fread(all, 1, n, f), n);
    memcpy(&n_header, all, sizeof n_header);
    if (from) {
        at = memmem(all + 8, n_header, from, strlen(from));
        assert_non_null(at);
        assert_int_equal(strlen(from), strlen(to));
        memcpy(at, to, strlen(to));
    }
    if (tensor) {
        size_t begin;
        char key[128];
        (void)snprintf(key, sizeof key, "\"%s\":", tensor);
        const char *entry = memmem(all + 8, n_header, key, strlen(key));
        assert_non_null(entry);
        entry = strstr(entry, "offsets\":[");
        assert_int_equal(sscanf(entry, "offsets\":[%zu", &begin), 1);
        memcpy(all + 8 + n_header + begin + 10, &number, sizeof number);
    }
    rewind(f);
    assert_int_equal(fwrite(all, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(all);
}

/* Where most of a model is its head, and no metadata says what it was converted to: it is of 4 bits
 * all the same, and its snapshots are those of one that was loaded so. */
static void test_mostly_head(void **state)
{
    (void)state;
    static const struct seeded_shape shape = {.n_layers = 1,
                                              .d_model = 32,
                                              .head_size = 16,
                                              .d_ffn = 64,
                                              .vocab_size = 2000,
                                              .rank_w = 3,
                                              .rank_a = 5,
                                              .rank_v = 7,
                                              .rank_g = 2,
                                              .dtype = SL_DTYPE_F16,
                                              .seed = 5};
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("out.safetensors");
    struct seeded s;
    struct sl_error err;
    bool other_weights = true;
    seeded_init(&s, &shape);
    seeded_write(&s, in);
    seeded_done(&s);
    conversion_must(in, out, SL_DTYPE_Q4, NULL);
    patch(out, "\"slate.weights\"", "\"slate.weightz\"", NULL, 0);
    struct sl_model *a = conversion_open(in, SL_DTYPE_Q4, NULL),
                    *b = conversion_open(out, SL_DTYPE_NONE, NULL);
    assert_string_equal(sl_model_info(b)->weights_name, "Q4");
    assert_int_equal(conversion_restore(b, a, &other_weights, &err), SL_OK);
    assert_false(other_weights);
    sl_model_close(a);
    sl_model_close(b);
}

#define KEY "blocks.1.att.key.weight"

/* Codes without scales, scales without codes, of another type or shape, and numbers that are none.
 */
static void test_bad_codes(void **state)
{
    (void)state;
    static const struct {
        enum sl_dtype type;
        const char *from, *to, *tensor; /* patch() */
        uint16_t number;
        const char *part;
        enum sl_code code;
    } row[] = {
        {SL_DTYPE_Q8, KEY ".q8_scales", KEY ".q8_scalez", NULL, 0,
         "tensor " KEY " has the type I8 and no scales", SL_E_MODEL_INVALID},
        {SL_DTYPE_Q8, "\"" KEY "\"", "\"blocks.1.att.kez.weight\"", NULL, 0,
         "tensor \"" KEY ".q8_scales\" is there, but not the codes", SL_E_FILE_CORRUPT},
        {SL_DTYPE_Q8, "\"" KEY "\":{\"dtype\":\"I8\"", "\"" KEY "\":{\"dtype\":\"U8\"", NULL, 0,
         "tensor \"" KEY "\" is U8 with 2 axes and 9216 elements; it must be I8",
         SL_E_FILE_CORRUPT},
        {SL_DTYPE_Q4, "\"" KEY "\":{\"dtype\":\"U8\"", "\"" KEY "\":{\"dtype\":\"I8\"", NULL, 0,
         "it must be U8", SL_E_FILE_CORRUPT},
        {SL_DTYPE_Q8, KEY ".q8_scales\":{\"dtype\":\"F16\",\"shape\":[96,3]",
         KEY ".q8_scales\":{\"dtype\":\"I16\",\"shape\":[96,3]", NULL, 0,
         "tensor \"" KEY ".q8_scales\" is I16", SL_E_FILE_CORRUPT},
        {SL_DTYPE_Q8, KEY ".q8_scales\":{\"dtype\":\"F16\",\"shape\":[96,3]",
         KEY ".q8_scales\":{\"dtype\":\"F16\",\"shape\":[3,96]", NULL, 0,
         "tensor \"" KEY
         ".q8_scales\" has the shape [3, 96], which does not fit the codes' [96, 96]",
         SL_E_FILE_CORRUPT},
        {SL_DTYPE_Q4, KEY "\":{\"dtype\":\"U8\",\"shape\":[96,48]",
         KEY "\":{\"dtype\":\"U8\",\"shape\":[48,96]", NULL, 0, "does not fit the codes' [48, 96]",
         SL_E_FILE_CORRUPT},
        {SL_DTYPE_Q4, "\"head.weight\":{\"dtype\":\"U8\",\"shape\":[1001,60]",
         "\"head.weight\":{\"dtype\":\"U8\",\"shape\":[60,1001]", NULL, 0,
         "does not fit the codes' [60, 1001]", SL_E_FILE_CORRUPT}, /* no whole number of eights */
        {SL_DTYPE_Q8, NULL, NULL, KEY ".q8_scales", 0x7e00,
         "tensor " KEY ".q8_scales holds a number that is not finite (element 5)",
         SL_E_MODEL_INVALID},
        {SL_DTYPE_Q4, NULL, NULL, KEY ".q4_scales", 0xfc00,
         "tensor " KEY ".q4_scales holds a number that is not finite (element 5)",
         SL_E_MODEL_INVALID},
    };
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("out.safetensors");
    conversion_write_odd(in, SL_DTYPE_F32, false);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct sl_error err = {0};
        struct sl_model *m = NULL;
        conversion_must(in, out, row[i].type, NULL);
        patch(out, row[i].from, row[i].to, row[i].tensor, row[i].number);
        enum sl_code c = sl_model_open(&m, &(struct sl_model_options){.path = out}, &err);
        if (c != row[i].code || !strstr(err.message, row[i].part))
            fail_msg("%zu: %s: %s; expected %s", i, sl_code_name(c), c ? err.message : "",
                     row[i].part);
    }
    /* Blocks that are called another type's. */
    struct sl_error err = {0};
    struct sl_model *m = NULL;
    conversion_must("tests/vectors/gguf/mamba2-q4_k_m.gguf", out, SL_DTYPE_NONE, NULL);
    patch(out, ".in_proj.weight.q4_k_blocks", ".in_proj.weight.q6_k_blocks", NULL, 0);
    assert_int_equal(sl_model_open(&m, &(struct sl_model_options){.path = out}, &err),
                     SL_E_FILE_CORRUPT);
    assert_non_null(strstr(err.message, "no whole number of Q6_K's blocks of 210"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, conversion_set_up, conversion_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_odd_rows),
        TEST(test_codes_are_small),
        TEST(test_mostly_head),
        TEST(test_bad_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
