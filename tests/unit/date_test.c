/* date_test.c: the text of Date; expected ones are RFC 9110's example and what `date -u` says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/date.h"

static const struct {
    int64_t at;
    const char *text;
} rows[] = {
    {784111777, "Sun, 06 Nov 1994 08:49:37 GMT"},    {0, "Thu, 01 Jan 1970 00:00:00 GMT"},
    {951827696, "Tue, 29 Feb 2000 12:34:56 GMT"},    {1709251199, "Thu, 29 Feb 2024 23:59:59 GMT"},
    {1709251200, "Fri, 01 Mar 2024 00:00:00 GMT"},   {1735689600, "Wed, 01 Jan 2025 00:00:00 GMT"},
    {253402300799, "Fri, 31 Dec 9999 23:59:59 GMT"}, {INT64_MAX, "Fri, 31 Dec 9999 23:59:59 GMT"},
    {-1, "Thu, 01 Jan 1970 00:00:00 GMT"},           {INT64_MIN, "Thu, 01 Jan 1970 00:00:00 GMT"},
};

static void test_texts(void **state)
{
    (void)state;
    struct sl_date one = {.at = 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_date own = {.at = 0};
        assert_string_equal(sl_date_text(&own, rows[i].at), rows[i].text);
        assert_string_equal(sl_date_text(&one, rows[i].at), rows[i].text); /* after another */
        assert_string_equal(sl_date_text(&one, rows[i].at), rows[i].text);
    }
}

/* What the second's first call wrote is what the others give. */
static void test_made_once_a_second(void **state)
{
    (void)state;
    struct sl_date d = {.at = 0};
    const char *text = sl_date_text(&d, 784111777);
    assert_ptr_equal(text, d.text);
    d.text[0] = 'X';
    assert_string_equal(sl_date_text(&d, 784111777), "Xun, 06 Nov 1994 08:49:37 GMT");
    assert_string_equal(sl_date_text(&d, 784111778), "Sun, 06 Nov 1994 08:49:38 GMT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_made_once_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
