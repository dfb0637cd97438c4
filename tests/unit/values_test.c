/* values_test.c: one list of named values as JSON's keys and as lines of CSV. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "server/cli/values.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct sl_value all[] = {
    {.name = "what", .text = "plain"},
    {.name = "how", .text = "a \"b\", c"},
    {.name = "many", .kind = SL_VALUE_COUNT, .count = UINT64_MAX},
    {.name = "from", .kind = SL_VALUE_COUNT, .null = true},
    {.name = "ns", .group = "one", .kind = SL_VALUE_NUMBER, .number = 1.26, .digits = 1},
    {.name = "bytes", .group = "one", .kind = SL_VALUE_COUNT, .count = 7},
    {.name = "ns", .group = "two", .kind = SL_VALUE_NUMBER, .number = NAN, .digits = 1},
    {.name = "range", .kind = SL_VALUE_RANGE, .number = -0.5, .most = 2, .digits = 2},
    {.name = "no_text", .absent = true},
    {.name = "no_range", .kind = SL_VALUE_RANGE, .absent = true},
};

static void as_json(void **state)
{
    (void)state;
    static const char want[] =
        "{\"what\":\"plain\",\"how\":\"a \\\"b\\\", c\",\"many\":18446744073709551615,"
        "\"from\":null,\"one\":{\"ns\":1.3,\"bytes\":7},\"two\":{\"ns\":null},"
        "\"range\":[-0.50,2.00]}";
    struct sl_buf b;
    struct sl_values v = {.n = 0};
    sl_buf_init(&b, 1000);
    struct sl_json_out w = {.b = &b};
    sl_values_add(&v, all, COUNT(all));
    sl_out_open(&w, '{');
    sl_values_json(&w, &v);
    sl_out_close(&w, '}');
    assert_int_equal(b.len, strlen(want));
    assert_memory_equal(b.data, want, b.len);
    sl_buf_done(&b);
}

/* A group that ends the object is closed, too. */
static void a_group_at_the_end(void **state)
{
    (void)state;
    struct sl_buf b;
    struct sl_values v = {.n = 0};
    sl_buf_init(&b, 1000);
    struct sl_json_out w = {.b = &b};
    sl_values_add(&v, &all[5], 1);
    sl_out_open(&w, '{');
    sl_values_json(&w, &v);
    sl_out_close(&w, '}');
    assert_int_equal(b.len, 19);
    assert_memory_equal(b.data, "{\"one\":{\"bytes\":7}}", b.len);
    sl_buf_done(&b);
}

static void as_csv(void **state)
{
    (void)state;
    static const char want[] =
        "what,how,many,from,one_ns,one_bytes,two_ns,range_least,range_most,no_text,no_range_least,"
        "no_range_most\n"
        "plain,\"a \"\"b\"\", c\",18446744073709551615,,1.3,7,,-0.50,2.00,,,\n"
        "plain,\"a \"\"b\"\", c\",18446744073709551615,,1.3,7,,-0.50,2.00,,,\n";
    struct sl_buf b;
    struct sl_values v = {.n = 0};
    sl_buf_init(&b, 1000);
    sl_values_add(&v, all, 4);
    sl_values_add(&v, all + 4, COUNT(all) - 4);
    sl_values_csv(&b, &v);
    sl_values_csv(&b, &v);
    assert_int_equal(b.len, strlen(want));
    assert_memory_equal(b.data, want, b.len);
    sl_buf_done(&b);
}

static void more_than_there_is_room_for(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_buf b;
    struct sl_values v = {.n = 0};
    sl_buf_init(&b, 20);
    sl_values_add(&v, all, COUNT(all));
    sl_values_csv(&b, &v);
    assert_int_not_equal(sl_values_print(&b, &err), SL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_json),
        cmocka_unit_test(a_group_at_the_end),
        cmocka_unit_test(as_csv),
        cmocka_unit_test(more_than_there_is_room_for),
    };
    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
