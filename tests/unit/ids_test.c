/* ids_test.c: ids of sessions, the query of a list, ETags. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "proto/request.h"

static void session_ids(void **state)
{
    (void)state;
    char longest[SL_SESSION_ID_MAX + 2];
    memset(longest, 'a', sizeof longest);
    assert_true(sl_session_id_valid("a", 1));
    assert_true(sl_session_id_valid("Az09._-", 7));
    assert_true(sl_session_id_valid("-.", 2));
    assert_true(sl_session_id_valid(longest, 128));
    assert_false(sl_session_id_valid(longest, 129));
    assert_false(sl_session_id_valid("", 0));
    assert_false(sl_session_id_valid(".a", 2));
    assert_false(sl_session_id_valid("a/b", 3));
    assert_false(sl_session_id_valid("a b", 3));
    assert_false(sl_session_id_valid("a\0", 2));
    assert_false(sl_session_id_valid("\xc3\xa4", 2));
    struct sl_error err = {0};
    assert_int_equal(sl_session_id_check(longest, 129, "X-Slate-Session", &err),
                     SL_E_INVALID_VALUE);
    assert_string_equal(err.param, "X-Slate-Session");
    assert_non_null(strstr(err.message, "(129 bytes)"));
}

static void list_queries(void **state)
{
    (void)state;
    struct sl_limits limits = SL_LIMITS_DEFAULT;
    static const struct {
        const char *query;
        size_t limit; /* 0: refused */
        const char *after, *prefix;
    } cases[] = {
        {"", 100, "", ""},
        {"limit=1", 1, "", ""},
        {"limit=1000&after=a-1&prefix=b.", 1000, "a-1", "b."},
        {"prefix=%61%2D%2e", 100, "", "a-."},
        {"after=&prefix=", 100, "", ""},
        {"x=%zz&&after", 100, "", ""},
        {"limit=0", 0, NULL, "limit"},
        {"limit=1001", 0, NULL, "limit"},
        {"limit=-1", 0, NULL, "limit"},
        {"limit=", 0, NULL, "limit"},
        {"limit", 0, NULL, "limit"},
        {"limit=10000000000", 0, NULL, "limit"},
        {"limit=1x", 0, NULL, "limit"},
        {"after=a/b", 0, NULL, "after"},
        {"after=%2", 0, NULL, "after"},
        {"after=%", 0, NULL, "after"},
        {"after=%0g", 0, NULL, "after"},
        {"prefix=a+b", 0, NULL, "prefix"},
        {"prefix=%00", 0, NULL, "prefix"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_list_query q = {.limit = 77};
        struct sl_error err = {0};
        enum sl_code c =
            sl_list_query_decode(&q, cases[i].query, strlen(cases[i].query), &limits, &err);
        if (cases[i].limit) {
            assert_int_equal(c, SL_OK);
            assert_int_equal(q.limit, cases[i].limit);
            assert_string_equal(q.after, cases[i].after);
            assert_string_equal(q.prefix, cases[i].prefix);
        } else {
            assert_int_equal(c, SL_E_INVALID_VALUE);
            assert_string_equal(err.param, cases[i].prefix);
            assert_int_equal(q.limit, 77);
        }
    }
    char longer[300] = "prefix=";
    memset(longer + 7, 'a', 129);
    struct sl_list_query q;
    struct sl_error err = {0};
    assert_int_equal(sl_list_query_decode(&q, longer, 7 + 128, &limits, &err), SL_OK);
    assert_int_equal(sl_list_query_decode(&q, longer, 7 + 129, &limits, &err), SL_E_INVALID_VALUE);
    limits.list_page = 20; /* the default follows a smaller limit */
    assert_int_equal(sl_list_query_decode(&q, NULL, 0, &limits, &err), SL_OK);
    assert_int_equal(q.limit, 20);
}

static void etags(void **state)
{
    (void)state;
    static const unsigned char incarnation[16] = {0,    1,    2,    3,    4,    5,    6,    7,
                                                  0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};
    char tag[SL_ETAG_SIZE];
    sl_etag_format(tag, incarnation, UINT64_MAX);
    assert_string_equal(tag, "\"0001020304050607f8f9fafbfcfdfeff-18446744073709551615\"");
    static const struct {
        const char *header;
        bool matches;
    } cases[] = {{"\"a-1\"", true},
                 {"*", true},
                 {" * ", true},
                 {"\"b\",\"a-1\"", true},
                 {"\"b\" , \"a-1\"\t", true},
                 {"", false},
                 {"W/\"a-1\"", false},
                 {"a-1", false},
                 {"\"a-12\"", false},
                 {"\"a-\"", false},
                 {",,", false},
                 {"\"a-1\"x", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(sl_etag_matches(cases[i].header, strlen(cases[i].header), "\"a-1\""),
                         cases[i].matches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_ids),
        cmocka_unit_test(list_queries),
        cmocka_unit_test(etags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
