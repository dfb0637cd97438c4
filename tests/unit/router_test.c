/* router_test.c: which row a path finds, and what it says when there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/router.h"

static void handler(struct sl_exchange *ex)
{
    (void)ex;
}

#define ROW(m, p)                                                                                  \
    {                                                                                              \
        SL_##m, p, SL_ROLE_USER, 0, SL_BODY_NONE, handler                                          \
    }

static const struct sl_route rows[] = {
    ROW(GET, "/"),          ROW(GET, "/a/{id}"),       ROW(GET, "/a/fixed"),
    ROW(DELETE, "/a/{id}"), ROW(POST, "/a/{id}/fork"), ROW(GET, "/a/{id}/parts/{part}"),
    ROW(POST, "/{any}/x"),  ROW(GET, "/a/{other}/x"),
};

static enum sl_code find(enum sl_method m, const char *path, struct sl_route_match *ret,
                         struct sl_error *err)
{
    static struct sl_router r;
    static char copy[256];
    sl_router_init(&r);
    sl_router_add(&r, rows, sizeof rows / sizeof *rows);
    strncpy(copy, path, sizeof copy - 1);
    return sl_router_find(&r, m, copy, ret, err);
}

static void test_found(void **state)
{
    (void)state;
    static const struct {
        enum sl_method method;
        const char *path;
        size_t row;
        const char *first, *second;
    } want[] = {
        {SL_GET, "/", 0, NULL, NULL},
        {SL_GET, "/a/1", 1, "1", NULL},
        {SL_GET, "/a/fixed", 2, NULL, NULL},
        {SL_GET, "/a/fixe", 1, "fixe", NULL},
        {SL_GET, "/a/fixed2", 1, "fixed2", NULL},
        {SL_GET, "/a/fi%78ed", 2, NULL, NULL},
        {SL_DELETE, "/a/%C3%A9%2f.", 3, "\xc3\xa9/.", NULL},
        {SL_POST, "/a/1/fork", 4, "1", NULL},
        {SL_GET, "/a/1/parts/2", 5, "1", "2"},
        {SL_GET, "/a/%7Bid%7D", 1, "{id}", NULL},
        {SL_POST, "/b/x", 6, "b", NULL},
        {SL_GET, "/a/b/x", 7, "b", NULL},
        {SL_GET, "/a/..", 1, "..", NULL}, /* dots mean nothing */
        {SL_GET, "/a/a+b", 1, "a+b", NULL},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct sl_route_match m;
        assert_int_equal(find(want[i].method, want[i].path, &m, NULL), SL_OK);
        assert_int_equal(m.index, want[i].row);
        assert_ptr_equal(m.route, &rows[want[i].row]);
        assert_int_equal(m.n_params, (want[i].first != NULL) + (want[i].second != NULL));
        if (want[i].first)
            assert_string_equal(m.params[0].value, want[i].first);
        if (want[i].second) {
            assert_string_equal(m.params[1].value, want[i].second);
            assert_int_equal(m.params[1].n_name, 4);
            assert_memory_equal(m.params[1].name, "part", 4);
        }
    }
}

static void test_not_found(void **state)
{
    (void)state;
    static const char *const paths[] = {"/a",
                                        "/a/",
                                        "/a//",
                                        "//",
                                        "/a/1/",
                                        "/a//fork",
                                        "/A/1",
                                        "/a/1/Fork",
                                        "",
                                        "a/1",
                                        "/a/1/fork/x",
                                        "/./a/1",
                                        "/a/1/2/3/4/5/6/7/8/9"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct sl_route_match m;
        assert_int_equal(find(SL_GET, paths[i], &m, NULL), SL_E_NOT_FOUND);
    }
}

/* An error names what was asked for: decoded, and only so much of it. */
static void test_named(void **state)
{
    (void)state;
    struct sl_route_match m;
    struct sl_error err;
    char path[200] = "/a/1/";
    assert_int_equal(find(SL_POST, "/b/%C3%A9/c", &m, &err), SL_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "no route '/b/\xc3\xa9/c' here"));
    assert_int_equal(find(SL_PUT, "/a/1", &m, &err), SL_E_METHOD_NOT_ALLOWED);
    assert_string_equal(err.message, "'/a/1' takes GET, HEAD, DELETE, OPTIONS");
    memset(path + 5, 'x', sizeof path - 6);
    assert_int_equal(find(SL_GET, path, &m, &err), SL_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "'/a/1/xxx"));
    assert_non_null(strstr(err.message, "xx…' here"));
    assert_true(strlen(err.message) < 180);
}

static void test_other_methods(void **state)
{
    (void)state;
    struct sl_route_match m;
    struct sl_error err;
    char allow[64];
    assert_int_equal(find(SL_PUT, "/a/1", &m, &err), SL_E_METHOD_NOT_ALLOWED);
    assert_int_equal(m.methods, 1u << SL_GET | 1u << SL_DELETE);
    sl_router_allow(m.methods, allow, sizeof allow);
    assert_string_equal(allow, "GET, HEAD, DELETE, OPTIONS");
    assert_string_equal(err.message, "'/a/1' takes GET, HEAD, DELETE, OPTIONS");
    /* A literal path does not take the methods of a pattern that fits it less well. */
    assert_int_equal(find(SL_DELETE, "/a/fixed", &m, &err), SL_E_METHOD_NOT_ALLOWED);
    assert_int_equal(m.methods, 1u << SL_GET);
    assert_int_equal(find(SL_METHOD_COUNT, "/a/1/fork", &m, &err), SL_E_METHOD_NOT_ALLOWED);
    assert_int_equal(m.methods, 1u << SL_POST);
    sl_router_allow(31, allow, sizeof allow);
    assert_string_equal(allow, "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
}

static void test_bad_escapes(void **state)
{
    (void)state;
    static const char *const paths[] = {"/a/%",   "/a/%1",  "/a/%1g",       "/a/%g1", "/a/%00",
                                        "/a/%ff", "/a/%C3", "/a/%ED%A0%80", "/a/1/%"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct sl_route_match m;
        assert_int_equal(find(SL_GET, paths[i], &m, NULL), SL_E_BAD_REQUEST);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),       cmocka_unit_test(test_not_found),
        cmocka_unit_test(test_named),       cmocka_unit_test(test_other_methods),
        cmocka_unit_test(test_bad_escapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
