/* ops.c: probes, metrics, draining. They need neither model nor sessions, so they answer from the
 * first moment to the last. */
#include "engine/base/mem.h"
#include "proto/response.h"
#include "server/server.h"

enum { STATUS_BODY_MAX = 256 };

static void reply_status(struct sl_exchange *ex, int status, const char *text)
{
    struct sl_buf b;
    struct sl_error err;
    sl_buf_init(&b, STATUS_BODY_MAX);
    sl_write_status(&b, text);
    if (sl_buf_code(&b, &err) != SL_OK)
        sl_exchange_fail(ex, &err);
    else
        sl_exchange_reply(ex, status, "application/json", b.data, b.len);
    sl_buf_done(&b);
}

static void get_livez(struct sl_exchange *ex)
{
    reply_status(ex, 200, "ok");
}

static void get_readyz(struct sl_exchange *ex)
{
    struct sl_error err;
    switch (sl_server_state(sl_exchange_server(ex))) {
    case SL_SERVER_READY:
        reply_status(ex, 200, "ready");
        return;
    case SL_SERVER_LOADING:
        (void)sl_fail(&err, SL_E_LOADING, "the model is being loaded");
        break;
    case SL_SERVER_LEAVING:
    case SL_SERVER_DRAINING:
    case SL_SERVER_CLOSING:
        (void)sl_fail(&err, SL_E_DRAINING, "the server is shutting down");
        break;
    }
    sl_exchange_fail(ex, &err);
}

static void get_metrics(struct sl_exchange *ex)
{
    char *text;
    size_t n;
    struct sl_error err;
    if (sl_server_scrape(sl_exchange_server(ex), &text, &n, &err) != SL_OK)
        sl_exchange_fail(ex, &err);
    else
        sl_exchange_reply_ref(ex, 200, "text/plain; version=0.0.4; charset=utf-8", text, n, sl_free,
                              text);
}

static void post_drain(struct sl_exchange *ex)
{
    struct sl_server *s = sl_exchange_server(ex);
    reply_status(ex, 202, "draining");
    sl_server_drain(s);
}

const struct sl_route sl_ops_routes[] = {
    {SL_GET, "/livez", SL_ROLE_USER, SL_ROUTE_OPEN | SL_ROUTE_ANY_HOST, SL_BODY_NONE, get_livez},
    {SL_GET, "/readyz", SL_ROLE_USER, SL_ROUTE_OPEN | SL_ROUTE_ANY_HOST, SL_BODY_NONE, get_readyz},
    {SL_GET, "/metrics", SL_ROLE_METRICS, 0, SL_BODY_NONE, get_metrics},
    {SL_POST, "/v1/admin/drain", SL_ROLE_ADMIN, 0, SL_BODY_NONE, post_drain},
};
const size_t sl_ops_n_routes = sizeof sl_ops_routes / sizeof *sl_ops_routes;
