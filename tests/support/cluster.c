/* cluster.c: see cluster.h. */
#include "tests/support/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/server.h"

/* --- nodes -------------------------------------------------------------------------------------*/

static void store_path(const struct cluster *cl, unsigned node, char *dst, size_t size)
{
    const char *build = getenv("SLATE_BUILD");
    snprintf(dst, size, "%s/cluster/%s-node-%u", build ? build : "build/release",
             cl->kind == BALANCER_HAPROXY ? "haproxy" : "nginx", node);
}

void cluster_start_node(struct cluster *cl, unsigned node)
{
    char listen[64], path[500], store[600];
    snprintf(listen, sizeof listen, "127.0.0.1:%u", cl->ports[node]);
    store_path(cl, node, path, sizeof path);
    snprintf(store, sizeof store, "dir:%s", path);
    const char *const args[] = {"--ping-interval=50ms",
                                "--listen",
                                listen,
                                "--log-level=warn",
                                "--threads",
                                "1",
                                "--store",
                                store,
                                NULL};
    cl->nodes[node] = server_start_loading(args);
    cl->direct[node] = client_open(cl->nodes[node]->base);
}

int cluster_end_node(struct cluster *cl, unsigned node, int signal)
{
    client_close(cl->direct[node]);
    cl->direct[node] = NULL;
    int code = server_end(cl->nodes[node], signal);
    cl->nodes[node] = NULL;
    return code;
}

void until_readyz(struct client *c, long status)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (long now = 0; now != status;) {
        struct reply *r = get(c, "/readyz");
        now = r->status;
        reply_free(r);
        if (client_now_ms() > deadline)
            fail_msg("/readyz stays %ld, expected was %ld", now, status);
    }
}

static void clear_store(const struct cluster *cl, unsigned node)
{
    char path[500], command[600];
    store_path(cl, node, path, sizeof path);
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

void cluster_start(struct cluster *cl, enum balancer_kind kind)
{
    *cl = (struct cluster){.kind = kind};
    for (unsigned i = 0; i < CLUSTER_NODES; i++) {
        cl->ports[i] = free_port();
        clear_store(cl, i);
        cluster_start_node(cl, i);
    }
    for (unsigned i = 0; i < CLUSTER_NODES; i++)
        until_readyz(cl->direct[i], 200);
    cluster_restart_balancer(cl);
}

void cluster_restart_balancer(struct cluster *cl)
{
    client_close(cl->c);
    balancer_stop(cl->balancer);
    cl->balancer = balancer_start(cl->kind, cl->ports);
    cl->c = client_open(balancer_base(cl->balancer));
}

void cluster_stop(struct cluster *cl)
{
    client_close(cl->c);
    balancer_stop(cl->balancer);
    for (unsigned i = 0; i < CLUSTER_NODES; i++)
        if (cl->nodes[i])
            assert_int_equal(cluster_end_node(cl, i, SIGTERM), 0);
}

/* --- requests ----------------------------------------------------------------------------------*/

struct call *post_for(struct client *c, const char *id, const char *path, const char *fmt, ...)
{
    char header[200];
    size_t n;
    va_list args;
    va_start(args, fmt);
    char *body = json_text(fmt, args, &n);
    va_end(args);
    snprintf(header, sizeof header, "X-Slate-Session: %s", id ? id : "");
    struct call *k = call_start(c, "POST", path, id ? header : NULL, body, n);
    sl_free(body);
    return k;
}

struct call *look_for(struct client *c, const char *id)
{
    char path[300];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    return call_start(c, "GET", path, NULL, NULL, 0);
}

void expect_status(struct call *k, long status)
{
    reply_free(expect(call_finish(k), status));
}

void expect_away(struct call *k, const char *code)
{
    struct reply *r = expect(call_finish(k), 503);
    assert_non_null(reply_header(r, "Retry-After"));
    assert_string_equal(str_at(r->json, "error.type"), "server_error");
    assert_string_equal(str_at(r->json, "error.code"), code);
    reply_free(r);
}

struct reply *sessions_of(struct cluster *cl, unsigned node)
{
    return expect(get(cl->direct[node], "/v1/sessions?limit=1000"), 200);
}

const json_t *session_in(const struct reply *list, const char *id)
{
    size_t n = len_at(list->json, "data");
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(at(list->json, "data"), i);
        if (!strcmp(str_at(s, "id"), id))
            return s;
    }
    return NULL;
}

/* --- load --------------------------------------------------------------------------------------*/

static void load_next(struct load *l, unsigned i)
{
    switch (l->n++ % 4) {
    case 0:
        l->k[i] = post_for(l->c, NULL, "/v1/generate", "{'prompt':'Once','max_tokens':2}");
        break;
    case 1:
        l->k[i] =
            post_for(l->c, NULL, "/v1/generate", "{'prompt':'Once','max_tokens':2,'stream':true}");
        break;
    case 2:
        l->k[i] = call_start(l->c, "GET", "/v1/models", NULL, NULL, 0);
        break;
    default: /* the body comes after its head, and in pieces */
        l->k[i] = call_start(l->c, "POST", "/v1/generate", "Expect: 100-continue", l->long_body,
                             strlen(l->long_body));
        break;
    }
}

void load_start(struct load *l, const struct cluster *cl)
{
    static const char begin[] = "{\"prompt\":\"Once\",\"max_tokens\":2,\"unknown\":\"",
                      end[] = "\"}";
    enum { LONG = 40000, BEGIN = sizeof begin - 1 };
    *l = (struct load){.c = client_open(balancer_base(cl->balancer)),
                       .long_body = sl_calloc(1, BEGIN + LONG + sizeof end)};
    assert_non_null(l->long_body);
    memcpy(l->long_body, begin, BEGIN);
    memset(l->long_body + BEGIN, 'x', LONG);
    memcpy(l->long_body + BEGIN + LONG, end, sizeof end);
    for (unsigned i = 0; i < CLUSTER_LOAD; i++)
        load_next(l, i);
}

void load_go_on(struct load *l, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        expect_status(l->k[i % CLUSTER_LOAD], 200);
        load_next(l, i % CLUSTER_LOAD);
    }
}

void load_stop(struct load *l)
{
    for (unsigned i = 0; i < CLUSTER_LOAD; i++)
        expect_status(l->k[i], 200);
    client_close(l->c);
    sl_free(l->long_body);
}
