/* safetensors_plain_test.c: the reader of plain headers against the JSON parser.
 *
 * Every header is read twice: as it is, and with the name of its first tensor written as an escape,
 * which means the same and is not plain, so that the JSON parser has it. Both must say the same, of
 * a good header and of each that differs from it in one byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/formats/safetensors_plain.h"
#include "tests/support/bytes.h"

static const char first[] = "{\"w\":", escaped[] = "{\"\\u0077\":";
/* What follows them: every part of the grammar, every escape. */
static const char rest[] =
    "{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\n"
    "\"b\" : { \"data_offsets\" :[24 , 32 ],\"shape\":[],\"dtype\":\"F64\"},\t"
    "\"none\":{\"shape\":[0,7],\"dtype\":\"I64\",\"data_offsets\":[24,24]},"
    "\"__metadata__\":{\"format\":\"pt\",\"q\":\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\",\"e\":\"\"},"
    "\"z.10\":{\"dtype\":\"I8\",\"shape\":[10],\"data_offsets\":[32,42]}} \r\n";
enum { DATA = 42 };

struct opened {
    enum sl_code code;
    struct sl_tensors *t;
    struct bytes b;
};

static struct opened open_header(const char *begin, const char *text)
{
    struct opened o = {.t = NULL};
    size_t n = strlen(begin) + strlen(text) + 1;
    char *all = malloc(n);
    assert_non_null(all);
    snprintf(all, n, "%s%s", begin, text);
    make_safetensors(&o.b, all, DATA);
    o.code = sl_tensors_open_memory(&o.t, o.b.p, o.b.n, "x", NULL);
    free(all);
    return o;
}

static void done(struct opened *o)
{
    sl_tensors_close(o->t);
    bytes_done(&o->b);
}

static void assert_same(const struct opened *a, const struct opened *b, const char *text)
{
    if (a->code != b->code)
        fail_msg("%s: plain %s, as JSON %s", text, sl_code_name(a->code), sl_code_name(b->code));
    if (a->code)
        return;
    assert_int_equal(a->t->n, b->t->n);
    for (size_t i = 0; i < a->t->n; i++) {
        const struct sl_tensor *x = &a->t->v[i], *y = &b->t->v[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->rank, y->rank);
        assert_memory_equal(x->shape, y->shape, sizeof x->shape);
        assert_int_equal(x->n_elements, y->n_elements);
        if (x->n_elements)
            assert_int_equal(a->b.p + a->b.n - x->data, b->b.p + b->b.n - y->data);
    }
    assert_int_equal(a->t->n_meta, b->t->n_meta);
    for (size_t i = 0; i < a->t->n_meta; i++) {
        assert_string_equal(a->t->meta[i].key, b->t->meta[i].key);
        assert_string_equal(a->t->meta[i].value, b->t->meta[i].value);
    }
}

static bool is_plain(const char *begin, const char *text)
{
    char all[1024];
    size_t n;
    int len = snprintf(all, sizeof all, "%s%s", begin, text);
    return sl_safetensors_is_plain(all, (size_t)len, &n);
}

/* Whether it was plain, read as it is. */
static bool compare(const char *text)
{
    struct opened a = open_header(first, text), b = open_header(escaped, text);
    assert_same(&a, &b, text);
    assert_false(is_plain(escaped, text));
    done(&a);
    done(&b);
    return is_plain(first, text);
}

static void test_good(void **state)
{
    (void)state;
    assert_true(compare(rest));
    struct opened o = open_header(first, rest);
    assert_int_equal(o.code, SL_OK);
    assert_int_equal(o.t->n, 4);
    assert_int_equal(o.t->n_meta, 3);
    assert_string_equal(o.t->meta[1].value, "a\"\\/\b\f\n\r\tz");
    done(&o);
}

/* Each byte replaced by each of these, left out, and each of these put before it. */
static void test_one_byte_off(void **state)
{
    (void)state;
    static const char others[] = "{}[]:,\"\\ 0129-.eaFIu/\x01\x7f\xc3";
    char text[sizeof rest + 1];
    size_t n_plain = 0, n_other = 0;
    for (size_t i = 0; i < sizeof rest - 1; i++) {
        for (size_t k = 0; k < sizeof others - 1; k++) {
            memcpy(text, rest, sizeof rest);
            text[i] = others[k];
            compare(text) ? n_plain++ : n_other++;
            memcpy(text + i + 1, rest + i, sizeof rest - i);
            compare(text) ? n_plain++ : n_other++;
        }
        memcpy(text, rest, i);
        memcpy(text + i, rest + i + 1, sizeof rest - i - 1);
        compare(text) ? n_plain++ : n_other++;
    }
    assert_true(n_plain > 1000 && n_other > 1000);
}

/* Good, but not for this reader; and wrong in ways that one byte does not make. */
static void test_unusual(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"more\":1}}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}",
        "{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
        "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,42000000000000000000]}}",
        "{\"dtype\":\"I8\",\"shape\":[42],\"data_offsets\":[0,42]},\"__metadata__\":{\"a\":\"\","
        "\"a\":\"\"}}",
        "{\"dtype\":\"I8\",\"shape\":[42],\"data_offsets\":[0,42]},\"__metadata__\":{},"
        "\"__metadata__\":{}}",
        "{\"dtype\":\"I8\",\"shape\":[42],\"data_offsets\":[0,42]},\"__metadata__\":"
        "{\"\xc3\xa4\":\"\\u00e4\"}}",
        "{\"dtype\":\"I8\",\"shape\":[042],\"data_offsets\":[0,42]}}",
        "{\"dtype\":\"I8\",\"shape\":[42],\"data_offsets\":[0,42]}}{}",
        "{\"dtype\":\"I8\",\"shape\":[42],\"data_offsets\":[0,42",
        "",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_false(compare(texts[i]));
    assert_true(compare("{\"dtype\":\"I8\",\"shape\":[42],\"data_offsets\":[0,42]},\"w\":"
                        "{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_one_byte_off),
        cmocka_unit_test(test_unusual),
    };
    return cmocka_run_group_tests_name("safetensors_plain", tests, NULL, NULL);
}
