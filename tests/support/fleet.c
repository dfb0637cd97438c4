/* fleet.c: see fleet.h. */
#include "tests/support/fleet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/balancer.h"
#include "tests/support/cluster.h"
#include "tests/support/node.h"

void fleet_node_start(struct fleet *f, unsigned i)
{
    struct fleet_node *n = &f->node[i];
    const char *all[FLEET_OPTIONS_MAX + 16];
    char listen[108], threads[32], lease[32], timeout[32];
    size_t k = 0;
    const char *build = getenv("SLATE_BUILD");
    snprintf(listen, sizeof listen, "127.0.0.1:%u", n->port);
    if (!n->port)
        snprintf(listen, sizeof listen, "unix:%s/cluster/%s", build ? build : "build/release",
                 n->netns);
    snprintf(threads, sizeof threads, "--threads=%u", f->n_starts++ % 3 + 1);
    snprintf(lease, sizeof lease, "--lease=%dms", FLEET_LEASE_MS);
    snprintf(timeout, sizeof timeout, "--store-timeout=%dms", FLEET_TIMEOUT_MS);
    const char *const own[] = {
        "--listen", listen, "--log-level=warn", "--store", n->spec[0] ? n->spec : f->spec, threads,
        lease,      timeout};
    for (size_t o = 0; o < sizeof own / sizeof *own; o++)
        all[k++] = own[o];
    for (size_t o = 0; o < f->n_options; o++)
        all[k++] = f->options[o];
    all[k] = NULL;
    assert_null(n->server);
    n->server = server_start_in(n->netns[0] ? n->netns : NULL, all);
    n->c = client_open(n->server->base);
    client_unrecorded(n->c);
    until_readyz(n->c, 200);
}

static void keep_options(struct fleet *f, const char *const *options)
{
    *f = (struct fleet){.n_starts = 0};
    for (; options[f->n_options]; f->n_options++) {
        assert_true(f->n_options < FLEET_OPTIONS_MAX);
        f->options[f->n_options] = options[f->n_options];
    }
}

void fleet_start(struct fleet *f, const char *name, const char *const *options)
{
    keep_options(f, options);
    redis_init(&f->redis, name, (const char *const[]){"--enable-debug-command", "yes", NULL});
    snprintf(f->spec, sizeof f->spec, "%s", f->redis.spec);
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        f->node[i].port = free_port();
        fleet_node_start(f, i);
    }
}

bool fleet_start_apart(struct fleet *f, const char *name, const char *const *options)
{
    keep_options(f, options);
    if (!redis_init_far(&f->redis, name))
        return false;
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        redis_apart(&f->redis, f->node[i].netns, f->node[i].spec);
        fleet_node_start(f, i);
    }
    return true;
}

void fleet_cut(struct fleet *f, unsigned i, bool cut)
{
    redis_cut_apart(f->node[i].netns, cut);
}

void fleet_node_signal(struct fleet *f, unsigned i, int signal)
{
    assert_int_equal(kill(f->node[i].server->pid, signal), 0);
}

bool fleet_node_has_ended(const struct fleet *f, unsigned i)
{
    siginfo_t info = {.si_pid = 0};
    assert_int_equal(
        waitid(P_PID, (id_t)f->node[i].server->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid != 0;
}

int fleet_node_end(struct fleet *f, unsigned i, int signal)
{
    struct fleet_node *n = &f->node[i];
    int code = server_end(n->server, signal);
    client_close(n->c);
    n->server = NULL;
    n->c = NULL;
    if (signal == SIGTERM)
        assert_int_equal(code, 0);
    return code;
}

void fleet_stop(struct fleet *f)
{
    for (unsigned i = 0; i < FLEET_NODES; i++)
        if (f->node[i].server)
            fleet_node_end(f, i, SIGTERM);
    redis_done(&f->redis);
}

void fleet_abandon(struct fleet *f)
{
    for (unsigned i = 0; i < FLEET_NODES; i++)
        if (f->node[i].server)
            fleet_node_end(f, i, SIGKILL);
    redis_done(&f->redis);
}

struct client *fleet_at(const struct fleet *f, unsigned i)
{
    return f->node[i % FLEET_NODES].c;
}

double fleet_metric(const struct fleet *f, const char *name)
{
    double sum = 0;
    for (unsigned i = 0; i < FLEET_NODES; i++)
        sum += metric(f->node[i].c, name);
    return sum;
}

static const char founds[] = "slate_store_reconnects_total";

void fleet_kill_redis(struct fleet *f)
{
    for (unsigned i = 0; i < FLEET_NODES; i++)
        f->n_found[i] = metric(f->node[i].c, founds);
    redis_end(&f->redis, SIGKILL);
}

static void until_found(struct fleet *f)
{
    for (unsigned i = 0; i < FLEET_NODES; i++)
        until_metric(f->node[i].c, founds, f->n_found[i] + 1);
}

void fleet_redis_is_back(struct fleet *f, bool empty)
{
    (empty ? redis_start_empty : redis_start)(&f->redis);
    until_found(f);
}

void fleet_redis_is_older(struct fleet *f)
{
    fleet_kill_redis(f);
    redis_start_older(&f->redis);
    until_found(f);
}

/* --- the mirror --------------------------------------------------------------------------------*/

static void start_mirror(struct twin *t, const char *const *options,
                         const char *all[FLEET_OPTIONS_MAX + 1])
{
    size_t n = 0;
    all[n++] = "--tokenizer=bytes";
    all[n++] = "--model";
    all[n++] = seeded_bytes_model();
    api_start(&t->mirror, (const char *const[]){all[0], all[1], all[2], "--sessions-in-memory=512",
                                                "--keep-turns=8", NULL});
    client_unrecorded(t->mirror.client);
    for (size_t i = 0; options[i]; i++) {
        assert_true(n < FLEET_OPTIONS_MAX);
        all[n++] = options[i];
    }
    all[n] = NULL;
}

void twin_start(struct twin *t, const char *name, const char *const *options)
{
    const char *all[FLEET_OPTIONS_MAX + 1];
    start_mirror(t, options, all);
    fleet_start(&t->fleet, name, all);
}

bool twin_start_apart(struct twin *t, const char *name, const char *const *options)
{
    const char *all[FLEET_OPTIONS_MAX + 1];
    start_mirror(t, options, all);
    if (fleet_start_apart(&t->fleet, name, all))
        return true;
    api_stop(&t->mirror);
    return false;
}

void twin_abandon(struct twin *t)
{
    fleet_abandon(&t->fleet);
    api_stop(&t->mirror);
}

void twin_create(struct twin *t, const char *id)
{
    reply_free(expect(post(fleet_at(&t->fleet, 0), "/v1/sessions", "{'id':'%s'}", id), 201));
    reply_free(expect(post(t->mirror.client, "/v1/sessions", "{'id':'%s'}", id), 201));
}

void twin_turn(struct twin *t, const char *id, unsigned node, const char *prompt, unsigned seed)
{
    struct gen got, want;
    turn_of(fleet_at(&t->fleet, node), &got, id, prompt, seed);
    turn_of(t->mirror.client, &want, id, prompt, seed);
    output_same(&got.o, &want.o);
    gen_done(&got);
    gen_done(&want);
}
