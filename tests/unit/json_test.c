/* json_test.c: reading JSON with limits, getters that name the field, the writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/ahead.h"
#include "proto/json.h"
#include "proto/json_out.h"

static enum sl_code parse(json_t **ret, const char *s, struct sl_error *err)
{
    return sl_json_parse(ret, s, strlen(s), false, err);
}

static void broken_text(void **state)
{
    (void)state;
    static const struct {
        const char *body, *part; /* of the message */
    } cases[] = {
        {"", "empty"},
        {"{", "line 1"},
        {"{\"a\":1,}", "line 1"},
        {"{\"a\":1}x", "line 1"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"a\":\"\xff\"}", "decode byte"},
        {"{\"a\":\"\xed\xa0\x80\"}", "decode byte"},
        {"{\"a\":\"\\ud800\"}", "\\uD800"},
        {"{\"a\":\"\\udc00x\"}", "\\uDC00"},
        {"{\"a\":\"\\ud800\\u0041\"}", "\\uD800\\u0041"},
        {"{\"a\\u0000b\":1}", "NUL"},
        {"{\"a\":NaN}", "NaN"},
        {"{\"a\":01}", "line 1"},
        {"{'a':1}", "line 1"},
        {"{\n\"a\":\n?}", "line 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_error err = {0};
        json_t *v = NULL;
        assert_int_equal(parse(&v, cases[i].body, &err), SL_E_INVALID_JSON);
        assert_null(v);
        if (!strstr(err.message, cases[i].part))
            fail_msg("%s: %s", cases[i].body, err.message);
    }
}

static void only_objects(void **state)
{
    (void)state;
    static const char *const bodies[] = {"1", "\"x\"", "[]", "null", "true", "1e999"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct sl_error err = {0};
        json_t *v = NULL;
        assert_int_equal(parse(&v, bodies[i], &err), SL_E_INVALID_TYPE);
        assert_non_null(strstr(err.message, "must be a JSON object, got "));
    }
    json_t *v = NULL;
    assert_int_equal(sl_json_parse(&v, "", 0, true, NULL), SL_OK);
    assert_int_equal(json_object_size(v), 0);
    json_decref(v);
}

/* Deeper than jansson's limit is an error, not a crash; just below it is fine. */
static void deep_nesting(void **state)
{
    (void)state;
    enum { DEEP = 100000, FINE = 2000 };
    char *s = sl_malloc(2 * DEEP + 8);
    assert_non_null(s);
    static const struct {
        size_t depth;
        enum sl_code code;
    } cases[] = {{DEEP, SL_E_INVALID_JSON}, {FINE, SL_OK}};
    for (size_t i = 0; i < 2; i++) {
        size_t d = cases[i].depth;
        memcpy(s, "{\"a\":", 5);
        memset(s + 5, '[', d);
        memset(s + 5 + d, ']', d);
        s[5 + 2 * d] = '}';
        json_t *v = NULL;
        struct sl_error err = {0};
        assert_int_equal(sl_json_parse(&v, s, 6 + 2 * d, false, &err), cases[i].code);
        if (!v)
            assert_non_null(strstr(err.message, "depth"));
        json_decref(v);
    }
    sl_free(s);
}

static void numbers_beyond_the_range(void **state)
{
    (void)state;
    static const char *const literals[] = {"18446744073709551616",
                                           "-18446744073709551616",
                                           "9223372036854775808",
                                           "1e400",
                                           "-1E+400",
                                           "2e308",
                                           "1e999",
                                           "100000000000000000000e400",
                                           "123456789012345678901234567890"};
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"x\": %s , \"y\":[\"1e400\",%s],\"z\":9223372036854775807}",
                 literals[i], literals[i]);
        json_t *v = NULL;
        struct sl_error err = {0};
        if (parse(&v, body, &err) != SL_OK)
            fail_msg("%s: %s", body, err.message);
        int64_t n = 7;
        assert_int_equal(sl_json_int(sl_json_member(v, "x"), "x", INT64_MIN, INT64_MAX, &n, &err),
                         SL_E_INVALID_VALUE);
        assert_string_equal(err.param, "x");
        assert_non_null(strstr(err.message, "too large"));
        assert_int_equal(n, 7);
        float f = 7;
        assert_int_equal(sl_json_float(sl_json_member(v, "x"), "x", -1e300, 1e300, &f, &err),
                         SL_E_INVALID_VALUE);
        /* the other numbers and the strings are as they were */
        assert_int_equal(sl_json_int(sl_json_member(v, "z"), "z", 0, INT64_MAX, &n, &err), SL_OK);
        assert_true(n == INT64_MAX);
        assert_string_equal(json_string_value(json_array_get(sl_json_member(v, "y"), 0)), "1e400");
        json_decref(v);
    }
    /* so many of them are not worth the parses */
    json_t *v = NULL;
    struct sl_error err = {0};
    assert_int_equal(
        parse(&v, "[1e400,1e400,1e400,1e400,1e400,1e400,1e400,1e400,1e400,1e400]", &err),
        SL_E_INVALID_JSON);
}

/* What is kept as it is was not read with a getter, which would have told. */
static void numbers_that_are_kept(void **state)
{
    (void)state;
    static const struct {
        const char *json, *message; /* NULL: they are kept */
    } cases[] = {
        {"{\"a\":[9223372036854775807,-9223372036854775808,1.7976931348623157e308,-1e308]}", NULL},
        {"{\"a\":\"1e400\",\"b\":{\"c\":[0.1,1e-400]}}", NULL},
        {"{}", NULL},
        {"{\"a\":1,\"id\":9223372036854775808}", "m.id holds a number"},
        {"{\"a\":-9223372036854775809}", "m.a holds a number"},
        {"{\"a\":1e400}", "m.a holds a number"},
        {"{\"a\":[0,{\"b\":[-1e400]}]}", "m.a holds a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = NULL;
        struct sl_error err = {0};
        assert_int_equal(parse(&v, cases[i].json, &err), SL_OK);
        enum sl_code c = sl_json_keepable(v, "m", &err);
        assert_int_equal(c, cases[i].message ? SL_E_INVALID_VALUE : SL_OK);
        if (c) {
            assert_string_equal(err.param, "m");
            assert_non_null(strstr(err.message, cases[i].message));
        }
        json_decref(v);
    }
}

static void integers(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum sl_code code;
        int64_t value;
    } cases[] = {{"5", SL_OK, 5},
                 {"100.0", SL_OK, 100},
                 {"1e2", SL_OK, 100},
                 {"-0.0", SL_OK, 0},
                 {"0", SL_OK, 0},
                 {"-1", SL_E_INVALID_VALUE, 0},
                 {"101", SL_E_INVALID_VALUE, 0},
                 {"1e18", SL_E_INVALID_VALUE, 0},
                 {"1e300", SL_E_INVALID_VALUE, 0},
                 {"-9223372036854775808", SL_E_INVALID_VALUE, 0},
                 {"5.5", SL_E_INVALID_TYPE, 0},
                 {"\"5\"", SL_E_INVALID_TYPE, 0},
                 {"true", SL_E_INVALID_TYPE, 0},
                 {"[5]", SL_E_INVALID_TYPE, 0},
                 {"{}", SL_E_INVALID_TYPE, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        struct sl_error err = {0};
        int64_t n = -7;
        assert_int_equal(sl_json_int(v, "a.b[3]", 0, 100, &n, &err), cases[i].code);
        assert_int_equal(n, cases[i].code == SL_OK ? cases[i].value : -7);
        if (cases[i].code != SL_OK) {
            assert_string_equal(err.param, "a.b[3]");
            assert_non_null(strstr(err.message, "a.b[3] must be an integer from 0 to 100, got "));
        }
        json_decref(v);
    }
}

static void floats(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum sl_code code;
    } cases[] = {{"1", SL_OK},
                 {"0.5", SL_OK},
                 {"0", SL_OK},
                 {"1e-60", SL_OK}, /* 0 as a float */
                 {"-1e-60", SL_E_INVALID_VALUE},
                 {"1.0001", SL_E_INVALID_VALUE},
                 {"1e308", SL_E_INVALID_VALUE},
                 {"-1e308", SL_E_INVALID_VALUE},
                 {"\"1\"", SL_E_INVALID_TYPE},
                 {"false", SL_E_INVALID_TYPE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        struct sl_error err = {0};
        float f = -7;
        assert_int_equal(sl_json_float(v, "p", 0, 1, &f, &err), cases[i].code);
        if (cases[i].code == SL_OK)
            assert_true(f == (float)json_number_value(v));
        else
            assert_non_null(strstr(err.message, "p must be a number from 0 to 1"));
        json_decref(v);
    }
}

/* No float is 0.01: the nearest one is less. It is in range, however it is written; no other one
 * below is. */
static void floats_at_a_bound(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum sl_code code;
    } cases[] = {{"0.01", SL_OK},
                 {"0.0099999998", SL_OK},
                 {"0.00999999978", SL_OK},
                 {"0.010000000001", SL_OK},
                 {"0.0099999988", SL_E_INVALID_VALUE},
                 {"0", SL_E_INVALID_VALUE},
                 {"1", SL_OK},
                 {"1.00000001", SL_E_INVALID_VALUE}}; /* 1 as a float; but so is the bound */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        float f = -7;
        assert_int_equal(sl_json_float(v, "p", 0.01, 1, &f, NULL), cases[i].code);
        assert_true(f == (cases[i].code ? -7.0f : (float)json_number_value(v)));
        json_decref(v);
    }
}

static void strings_keep_nul(void **state)
{
    (void)state;
    json_t *v = NULL;
    struct sl_text t = {NULL, 0};
    struct sl_pool pool = SL_POOL_INIT;
    const char *s = NULL;
    struct sl_error err = {0};
    assert_int_equal(parse(&v, "{\"a\":\"x\\u0000y\",\"n\":null}", NULL), SL_OK);
    const json_t *a = sl_json_member(v, "a");
    assert_int_equal(sl_json_text(a, "a", 3, SL_E_TOO_LARGE, &t, NULL), SL_OK);
    assert_int_equal(t.n, 3);
    assert_memory_equal(t.s, "x\0y", 4);
    assert_int_equal(sl_json_text(a, "a", 2, SL_E_TOO_LARGE, &t, &err), SL_E_TOO_LARGE);
    assert_string_equal(err.message, "a has 3 bytes; at most 2 are allowed");
    assert_int_equal(sl_json_cstr(a, "a", 9, &pool, &s, &err), SL_E_INVALID_VALUE);
    assert_string_equal(err.message, "a must not hold a NUL character");
    assert_null(sl_json_member(v, "n"));
    assert_null(sl_json_member(v, "absent"));
    json_decref(v);
    sl_pool_done(&pool);
}

static void words(void **state)
{
    (void)state;
    static const char *const list[] = {"one", "two", "three"};
    json_t *v = json_string("two"), *w = json_string("fore"), *x = json_integer(2);
    size_t i = 9;
    struct sl_error err = {0};
    assert_int_equal(sl_json_enum(v, "k", list, 3, &i, &err), SL_OK);
    assert_int_equal(i, 1);
    assert_int_equal(sl_json_enum(w, "k", list, 3, &i, &err), SL_E_INVALID_VALUE);
    assert_string_equal(err.message,
                        "k must be \"one\", \"two\" or \"three\", got the string \"fore\"");
    assert_int_equal(sl_json_enum(x, "k", list, 3, &i, &err), SL_E_INVALID_TYPE);
    assert_string_equal(err.message, "k must be \"one\", \"two\" or \"three\", got the number 2");
    json_decref(v);
    json_decref(w);
    json_decref(x);
}

static void descriptions(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text;
    } cases[] = {{"{\"a\":1}", "an object"},
                 {"[1,2]", "an array of 2"},
                 {"12", "the number 12"},
                 {"0.25", "the number 0.25"},
                 {"true", "true"},
                 {"null", "null"},
                 {"\"a\\nb\"", "the string \"a?b\""},
                 {"\"0123456789012345678901234567890123456789abcdef\"",
                  "the string \"012345678901234567890123456789012345…\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        char text[SL_DESCRIBE_SIZE];
        sl_json_describe(v, text);
        assert_string_equal(text, cases[i].text);
        json_decref(v);
    }
}

/* A body whose tree would take many times its size is refused; as long a text, and as long a list
 * of ids, is fine. */
static void many_values(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    static const struct {
        const char *item;
        enum sl_code code;
    } cases[] = {{"{},", SL_E_TOO_LARGE}, {"[],", SL_E_TOO_LARGE}, {"12,", SL_OK}, {"\\n", SL_OK}};
    char *s = sl_malloc(3 * N + 16);
    assert_non_null(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 6, len = strlen(cases[i].item);
        bool text = len == 2;
        memcpy(s, text ? "{\"a\":\"" : "{\"a\":[", n);
        for (size_t k = 0; k < N; k++, n += len)
            memcpy(s + n, cases[i].item, len);
        memcpy(s + n, text ? "\"}" : "0]}", 3);
        json_t *v = NULL;
        struct sl_error err = {0};
        assert_int_equal(sl_json_parse(&v, s, n + (text ? 2 : 3), false, &err), cases[i].code);
        assert_true(v || strstr(err.message, "too many JSON values"));
        json_decref(v);
    }
    sl_free(s);
}

/* Every allocation of a parse fails once: NO_MEMORY, and nothing is lost (the address sanitizer
 * looks). Long tokens make the lexer's buffer grow; the number makes it parse twice. */
static void out_of_memory(void **state)
{
    (void)state;
    char body[1000];
    int n = snprintf(body, sizeof body,
                     "{\"a\":\"%0300d\",\"b\":[1,2.5,true,{\"c\":null}],"
                     "\"n\":123456789012345678901234567890%0100d}",
                     7, 7);
    enum sl_code c = SL_E_NO_MEMORY;
    int64_t i = 0;
    for (; c == SL_E_NO_MEMORY; i++) {
        json_t *v = NULL;
        struct sl_error err = {0};
        sl_mem_fail_after(i);
        c = sl_json_parse(&v, body, (size_t)n, false, &err);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || (c == SL_E_NO_MEMORY && !v));
        json_decref(v);
    }
    assert_int_equal(c, SL_OK);
    assert_true(i > 20);
}

/* One allocation fails and those after it succeed: jansson's lexer by itself would drop a byte of
 * the string and go on. Either the text is whole or the parse fails. */
static void out_of_memory_once(void **state)
{
    (void)state;
    static const char body[] = "{\"a\":\"0123456789012345678901234567890123456789012345678901234"
                               "56789012345678901234567890123456789\",\"n\":1234567890123456}";
    int64_t i = 0;
    for (enum sl_code c = SL_E_NO_MEMORY; c != SL_OK; i++) {
        json_t *v = NULL;
        sl_mem_fail_once(i);
        c = sl_json_parse(&v, body, sizeof body - 1, false, NULL);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || (c == SL_E_NO_MEMORY && !v));
        json_decref(v);
    }
    assert_true(i > 8);
}

static void writer(void **state)
{
    (void)state;
    struct sl_buf b;
    sl_buf_init(&b, 1000);
    struct sl_json_out w = {.b = &b};
    sl_out_open(&w, '{');
    sl_out_key(&w, "s\"");
    sl_out_text(&w, "a\"\\\n\r\t\b\f\x01\x1f\x7f\0\xc3\xa4", 14);
    sl_out_key(&w, "l");
    sl_out_open(&w, '[');
    sl_out_uint(&w, UINT64_MAX);
    sl_out_int(&w, INT64_MIN);
    sl_out_uint(&w, 0);
    sl_out_bool(&w, true);
    sl_out_bool(&w, false);
    sl_out_null(&w);
    sl_out_str(&w, NULL);
    sl_out_fixed(&w, 1.5, 3);
    sl_out_fixed(&w, (double)NAN, 3);
    sl_out_float(&w, -0.5f);
    sl_out_float(&w, -INFINITY);
    sl_out_raw(&w, "{}", 2);
    sl_out_bytes(&w, (const unsigned char *)"\xe2\x82x", 3);
    sl_out_close(&w, ']');
    sl_out_key(&w, "e");
    sl_out_open(&w, '{');
    sl_out_close(&w, '}');
    sl_out_close(&w, '}');
    assert_int_equal(sl_buf_code(&b, NULL), SL_OK);
    sl_buf_putc(&b, '\0');
    assert_string_equal(
        b.data, "{\"s\\\"\":\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\\u0000\xc3\xa4\",\"l\":["
                "18446744073709551615,-9223372036854775808,0,true,false,null,null,1.500,null,"
                "-0.5,null,{},\"\xef\xbf\xbdx\"],\"e\":{}}");
    sl_buf_done(&b);
}

static void floats_round_trip(void **state)
{
    (void)state;
    uint32_t x = 12345;
    struct sl_buf b;
    sl_buf_init(&b, 100);
    for (int i = 0; i < 2000; i++) {
        x = x * 1664525u + 1013904223u;
        float f, back;
        memcpy(&f, &x, sizeof f);
        if (!isfinite(f))
            continue;
        sl_buf_clear(&b);
        struct sl_json_out w = {.b = &b};
        sl_out_float(&w, f);
        json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        back = (float)json_number_value(v);
        assert_true(back == f);
        json_decref(v);
    }
    sl_buf_done(&b);
}

/* What was read ahead is what a parse of the same bytes gives, right or wrong; of others nothing.
 */
static void read_ahead(void **state)
{
    (void)state;
    char good[] = "{\"a\":[1,2,3]}", bad[] = "{\"a\":[1,2,3}";
    struct sl_error err;
    json_t *v;
    struct sl_json_ahead *a = sl_json_ahead_read(good, sizeof good - 1);
    struct sl_json_ahead *b = sl_json_ahead_read(bad, sizeof bad - 1);
    good[6] = bad[6] = '7'; /* nobody reads them a second time */
    sl_json_ahead_offer(a);
    sl_json_ahead_offer(b);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sl_json_parse(&v, good, sizeof good - 1, false, &err), SL_OK);
        const json_t *first = json_array_get(sl_json_member(v, "a"), 0);
        assert_int_equal(json_integer_value(first), 1);
        json_decref(v);
        assert_int_equal(sl_json_parse(&v, bad, sizeof bad - 1, false, &err), SL_E_INVALID_JSON);
        assert_non_null(strstr(err.message, "line 1, column 12"));
        assert_int_equal(sl_json_parse(&v, bad, sizeof bad - 1, false, NULL), SL_E_INVALID_JSON);
    }
    assert_int_equal(parse(&v, "{\"b\":1}", &err), SL_OK); /* other bytes */
    assert_non_null(sl_json_member(v, "b"));
    json_decref(v);
    sl_json_ahead_withdraw(a);
    sl_json_ahead_withdraw(b);
    sl_json_ahead_free(a);
    sl_json_ahead_free(b);
    assert_int_equal(sl_json_parse(&v, good, sizeof good - 1, false, &err), SL_OK);
    assert_int_equal(json_integer_value(json_array_get(sl_json_member(v, "a"), 0)), 7);
    json_decref(v);
}

int main(void)
{
    sl_json_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_text),
        cmocka_unit_test(only_objects),
        cmocka_unit_test(deep_nesting),
        cmocka_unit_test(numbers_beyond_the_range),
        cmocka_unit_test(numbers_that_are_kept),
        cmocka_unit_test(integers),
        cmocka_unit_test(floats),
        cmocka_unit_test(floats_at_a_bound),
        cmocka_unit_test(strings_keep_nul),
        cmocka_unit_test(words),
        cmocka_unit_test(descriptions),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(out_of_memory_once),
        cmocka_unit_test(many_values),
        cmocka_unit_test(read_ahead),
        cmocka_unit_test(writer),
        cmocka_unit_test(floats_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
