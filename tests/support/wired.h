/* wired.h: for tests of connections: one over a transport of memory (wire.h), with a few routes
 * behind it: POST /echo takes JSON and gives it back, GET and POST /ok take nothing and say so, GET
 * /hold keeps its exchange, GET /probe is open to any host. */
#ifndef SLATE_TESTS_WIRED_H
#define SLATE_TESTS_WIRED_H

#include "tests/support/wire.h"

#define H "Host: localhost\r\n"
#define JSON "Content-Type: application/json\r\n"
#define GET_OK "GET /ok HTTP/1.1\r\n" H "\r\n"

struct wired {
    struct sl_config config;
    struct sl_conn_env env;
    struct wire w;
    struct sl_exchange *held; /* of /hold */
    unsigned handled;         /* by the other routes */
};
extern struct wired wired;

/* For cmocka. Afterwards nothing is in flight, and no body is in memory. */
int wired_setup(void **state);
int wired_teardown(void **state);

/* Feeds the bytes to a new connection; gives what came back (until the next call). */
const char *wired_ask_bytes(const char *bytes, size_t n);
const char *wired_ask(const char *text);

int wired_status(const char *answer);

#endif
