/* wired.c: see wired.h. */
#include "tests/support/wired.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct wired wired;

static void post_echo(struct sl_exchange *ex)
{
    size_t n;
    const char *body = sl_exchange_body(ex, &n);
    wired.handled++;
    sl_exchange_reply(ex, 200, "application/json", body, n);
}

static void get_ok(struct sl_exchange *ex)
{
    size_t n;
    (void)sl_exchange_body(ex, &n);
    assert_int_equal(n, 0); /* thrown away */
    wired.handled++;
    sl_exchange_reply(ex, 200, "text/plain", "ok", 2);
}

static void get_hold(struct sl_exchange *ex)
{
    wired.held = ex;
}

static const struct sl_route routes[] = {
    {SL_POST, "/echo", SL_ROLE_USER, 0, SL_BODY_JSON, post_echo},
    {SL_GET, "/ok", SL_ROLE_USER, 0, SL_BODY_NONE, get_ok},
    {SL_POST, "/ok", SL_ROLE_USER, 0, SL_BODY_NONE, get_ok},
    {SL_GET, "/hold", SL_ROLE_USER, 0, SL_BODY_NONE, get_hold},
    {SL_GET, "/probe", SL_ROLE_USER, SL_ROUTE_OPEN | SL_ROUTE_ANY_HOST, SL_BODY_NONE, get_ok},
};

int wired_setup(void **state)
{
    (void)state;
    memset(&wired, 0, sizeof wired);
    wire_config(&wired.config);
    wire_env(&wired.env, &wired.config);
    sl_router_add(&wired.env.router, routes, sizeof routes / sizeof *routes);
    return 0;
}

int wired_teardown(void **state)
{
    (void)state;
    assert_int_equal((int)wired.env.metrics.value[SL_M_IN_FLIGHT], 0);
    assert_int_equal(wired.env.body_bytes, 0);
    wire_env_done(&wired.env);
    return 0;
}

const char *wired_ask_bytes(const char *bytes, size_t n)
{
    static char *answer;
    wire_open(&wired.w, &wired.env);
    wired.env.id_next = 0;
    wire_feed(&wired.w, bytes, n);
    wire_loop(&wired.w);
    free(answer);
    answer = strdup(wired.w.out);
    wire_close(&wired.w);
    return answer;
}

const char *wired_ask(const char *text)
{
    return wired_ask_bytes(text, strlen(text));
}

int wired_status(const char *answer)
{
    int status = 0;
    (void)sscanf(answer, "HTTP/1.1 %d ", &status);
    return status;
}
