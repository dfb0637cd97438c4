/* access_test.c: addresses to listen on, Hosts that are served, Origins that are allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/access.h"

static void test_listen(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        enum sl_listen_kind kind;
        unsigned port;
        bool loopback, any;
    } good[] = {
        {"127.0.0.1:8080", "127.0.0.1", SL_LISTEN_TCP4, 8080, true, false},
        {"127.9.9.9:0", "127.9.9.9", SL_LISTEN_TCP4, 0, true, false},
        {"LocalHost:65535", "127.0.0.1", SL_LISTEN_TCP4, 65535, true, false},
        {"0.0.0.0:80", "0.0.0.0", SL_LISTEN_TCP4, 80, false, true},
        {"192.0.2.1:80", "192.0.2.1", SL_LISTEN_TCP4, 80, false, false},
        {"[::1]:1", "::1", SL_LISTEN_TCP6, 1, true, false},
        {"[::]:1", "::", SL_LISTEN_TCP6, 1, false, true},
        {"unix:/run/slate.sock", "/run/slate.sock", SL_LISTEN_UNIX, 0, true, false},
        {"unix:x:1", "x:1", SL_LISTEN_UNIX, 0, true, false},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct sl_listen l;
        assert_int_equal(sl_listen_parse(&l, good[i].text, NULL), SL_OK);
        assert_string_equal(l.host, good[i].host);
        assert_int_equal(l.kind, good[i].kind);
        assert_int_equal(l.port, good[i].port);
        assert_int_equal(l.loopback, good[i].loopback);
        assert_int_equal(l.any, good[i].any);
    }
    static const char *const bad[] = {
        "",
        "8080",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:x",
        "127.0.0.1:-1",
        "127.0.0.1:080080",
        "example.org:80",
        "::1:80",
        "[127.0.0.1]:80",
        "[::1]",
        "[::1:80",
        "256.0.0.1:80",
        ":80",
        "unix:",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_listen l;
        struct sl_error err;
        assert_int_equal(sl_listen_parse(&l, bad[i], &err), SL_E_USAGE);
        assert_non_null(strstr(err.message, "--listen"));
        assert_non_null(strstr(err.message, bad[i]));
    }
    char path[256] = "unix:";
    memset(path + 5, 'p', 120);
    struct sl_listen l;
    assert_int_equal(sl_listen_parse(&l, path, NULL), SL_E_USAGE);
}

static void test_hosts(void **state)
{
    (void)state;
    const char *names[] = {"api.example", ".lab.example"};
    const char *all[] = {"*"};
    struct sl_config c = {.allowed_hosts = {names, 2}}, open = {.allowed_hosts = {all, 1}};
    static const struct {
        const char *listen, *host;
        bool ok;
    } rows[] = {
        {"127.0.0.1:80", "localhost", true},
        {"127.0.0.1:80", "LOCALHOST:9", true},
        {"127.0.0.1:80", "localhost.", true},
        {"127.0.0.1:80", "127.0.0.1:80", true},
        {"127.0.0.1:80", "[::1]:80", true},
        {"127.0.0.1:80", "192.0.2.7", false},
        {"127.0.0.1:80", "evil.example", false},
        {"127.0.0.1:80", "localhost.evil.example", false},
        {"127.0.0.1:80", "evillocalhost", false},
        {"127.0.0.1:80", "127.0.0.1.evil.example", false},
        {"127.0.0.1:80", "2130706433", false},
        {"127.0.0.1:80", "api.example:443", true},
        {"127.0.0.1:80", "API.example", true},
        {"127.0.0.1:80", "x.api.example", false},
        {"127.0.0.1:80", "lab.example", true},
        {"127.0.0.1:80", "a.b.lab.example", true},
        {"127.0.0.1:80", "evillab.example", false},
        {"192.0.2.7:80", "192.0.2.7", true},
        {"192.0.2.7:80", "192.0.2.8", false},
        {"0.0.0.0:80", "192.0.2.8", true},
        {"0.0.0.0:80", "[2001:db8::1]:80", true},
        {"0.0.0.0:80", "evil.example", false},
        {"unix:/x", "anything.example", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_access a = {.config = &c};
        assert_int_equal(sl_listen_parse(&a.listen, rows[i].listen, NULL), SL_OK);
        if (sl_access_host(&a, rows[i].host) != rows[i].ok)
            fail_msg("%s on %s", rows[i].host, rows[i].listen);
        a.config = &open;
        assert_true(sl_access_host(&a, rows[i].host));
        assert_true(sl_access_host(&a, NULL));
    }
}

static void test_origins(void **state)
{
    (void)state;
    const char *list[] = {"https://app.example", "http://localhost:3000"}, *all[] = {"*"};
    struct sl_config c = {.cors = {list, 2}}, open = {.cors = {all, 1}};
    struct sl_access a = {.config = &c};
    static const struct {
        const char *origin, *host;
        enum sl_origin want;
    } rows[] = {
        {NULL, "localhost", SL_ORIGIN_OWN},
        {"http://localhost", "localhost", SL_ORIGIN_OWN},
        {"http://localhost:80", "localhost", SL_ORIGIN_OWN},
        {"http://localhost", "localhost:80", SL_ORIGIN_OWN},
        {"https://slate.example", "slate.example:443", SL_ORIGIN_OWN},
        {"http://LOCALHOST:8080", "localhost:8080", SL_ORIGIN_OWN},
        {"http://localhost:8081", "localhost:8080", SL_ORIGIN_FOREIGN},
        {"http://localhost", "localhost:8080", SL_ORIGIN_FOREIGN},
        {"http://localhost.evil.example", "localhost", SL_ORIGIN_FOREIGN},
        {"http://evil.example/localhost", "localhost", SL_ORIGIN_FOREIGN},
        {"null", "localhost", SL_ORIGIN_FOREIGN},
        {"", "localhost", SL_ORIGIN_FOREIGN},
        {"http://", "", SL_ORIGIN_FOREIGN},
        {"file://", "localhost", SL_ORIGIN_FOREIGN},
        {"http://localhost", NULL, SL_ORIGIN_FOREIGN},
        {"https://app.example", "localhost", SL_ORIGIN_CORS},
        {"https://APP.example", "localhost", SL_ORIGIN_CORS},
        {"http://app.example", "localhost", SL_ORIGIN_FOREIGN},
        {"http://localhost:3000", "localhost:8080", SL_ORIGIN_CORS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        a.config = &c;
        if (sl_access_origin(&a, rows[i].origin, rows[i].host) != rows[i].want)
            fail_msg("%s at %s", rows[i].origin, rows[i].host);
        a.config = &open;
        assert_int_equal(sl_access_origin(&a, rows[i].origin, rows[i].host),
                         rows[i].origin ? SL_ORIGIN_CORS : SL_ORIGIN_OWN);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listen),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
