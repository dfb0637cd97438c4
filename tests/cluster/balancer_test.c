/* balancer_test.c: two servers, each with its own store, behind the real HAProxy and the real nginx
 * with the files of deploy/: every request of a session reaches the node that has it, a node that
 * is away loses nobody's session, and who has no session notices nothing.
 *
 * What is true is asked of the nodes themselves, past the balancer. All tests of a balancer work on
 * the same 200 sessions, in the order below. Nothing sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"
#include "tests/support/cluster.h"
#include "tests/support/server.h"
#include "tests/support/smuggled.h"

enum { N_SESSIONS = 200, BATCH = 20, N_REMEMBER = 4, NOTICED_MS = 1500 };

static struct cluster cl;

static struct session {
    char id[160];
    unsigned node;
    int64_t version, tokens_seen; /* after its last turn */
} sessions[N_SESSIONS];

static int start_haproxy(void **unused)
{
    (void)unused;
    memset(sessions, 0, sizeof sessions);
    cluster_start(&cl, BALANCER_HAPROXY);
    return 0;
}

static int start_nginx(void **unused)
{
    (void)unused;
    memset(sessions, 0, sizeof sessions);
    cluster_start(&cl, BALANCER_NGINX);
    return 0;
}

static int stop(void **unused)
{
    (void)unused;
    cluster_stop(&cl);
    return 0;
}

/* --- 200 sessions ------------------------------------------------------------------------------*/

/* A quarter each: named by the balancer; in header and body; in the header, in two forms. */
static struct call *create_start(unsigned i)
{
    struct session *s = &sessions[i];
    snprintf(s->id, sizeof s->id, i % 4 == 2 ? "user_%u.Notes" : "u-%u", i);
    if (i % 4 == 0)
        return post_for(cl.c, NULL, "/v1/sessions", "{}");
    if (i % 4 == 1)
        return post_for(cl.c, s->id, "/v1/sessions", "{'id':'%s'}", s->id);
    return post_for(cl.c, s->id, "/v1/sessions", "{}");
}

static void create_finish(unsigned i, struct call *k)
{
    struct session *s = &sessions[i];
    struct reply *r = expect(call_finish(k), 201);
    if (i % 4 == 0) {
        snprintf(s->id, sizeof s->id, "%s", str_at(r->json, "id"));
        assert_memory_equal(s->id, "s-", 2);
        assert_int_equal(strspn(s->id + 2, "0123456789abcdef"), 32);
        assert_int_equal(strlen(s->id), 34);
    }
    assert_string_equal(str_at(r->json, "id"), s->id);
    assert_string_equal(reply_header(r, "X-Slate-Session"), s->id);
    reply_free(r);
}

static struct call *turn_start(struct client *c, unsigned i)
{
    const char *id = sessions[i].id;
    if (i % 2)
        return post_for(c, id, "/v1/generate", "{'prompt':'My number is %u.','max_tokens':0}", i);
    return post_for(c, id, "/v1/generate",
                    "{'session':'%s','prompt':'My number is %u.','max_tokens':0}", id, i);
}

static void turn_finish(unsigned i, struct call *k)
{
    struct session *s = &sessions[i];
    struct reply *r = expect(call_finish(k), 200);
    assert_string_equal(str_at(r->json, "session"), s->id);
    assert_string_equal(reply_header(r, "X-Slate-Session"), s->id);
    assert_int_equal(int_at(r->json, "version"), s->version + 1);
    s->version++;
    reply_free(r);
}

/* In batches that are under way at once. */
static void for_all(struct call *(*begin)(unsigned i), void (*finish)(unsigned i, struct call *k))
{
    struct call *k[BATCH];
    for (unsigned at = 0; at < N_SESSIONS; at += BATCH) {
        for (unsigned i = 0; i < BATCH; i++)
            k[i] = begin(at + i);
        for (unsigned i = 0; i < BATCH; i++)
            finish(at + i, k[i]);
    }
}

static struct call *turn_begin(unsigned i)
{
    return turn_start(cl.c, i);
}

static struct call *look_begin(unsigned i)
{
    return look_for(cl.c, sessions[i].id);
}

static void look_finish(unsigned i, struct call *k)
{
    const struct session *s = &sessions[i];
    struct reply *r = expect(call_finish(k), 200);
    assert_string_equal(str_at(r->json, "id"), s->id);
    assert_int_equal(int_at(r->json, "version"), s->version);
    assert_int_equal(int_at(r->json, "tokens_seen"), s->tokens_seen);
    reply_free(r);
}

/* Each session is on exactly one node, with its turn; learns which. */
static void find_nodes(void)
{
    struct reply *lists[CLUSTER_NODES];
    size_t n[CLUSTER_NODES] = {0};
    for (unsigned node = 0; node < CLUSTER_NODES; node++)
        lists[node] = sessions_of(&cl, node);
    for (unsigned i = 0; i < N_SESSIONS; i++) {
        struct session *s = &sessions[i];
        const json_t *here = session_in(lists[0], s->id), *there = session_in(lists[1], s->id);
        if (!here == !there)
            fail_msg("session %s is on %s", s->id, here ? "both nodes" : "no node");
        s->node = !here;
        s->tokens_seen = int_at(here ? here : there, "tokens_seen");
        assert_int_equal(int_at(here ? here : there, "version"), s->version);
        assert_true(s->tokens_seen > 0);
        n[s->node]++;
    }
    for (unsigned node = 0; node < CLUSTER_NODES; node++) {
        assert_int_equal(len_at(lists[node]->json, "data"), n[node]);
        /* A fair coin gives less than 60 of 200 once in 10^8 times. */
        if (n[node] < 60)
            fail_msg("node %u has %zu of %d sessions only", node, n[node], N_SESSIONS);
        reply_free(lists[node]);
    }
}

static void sessions_live_where_their_ids_lead(void **unused)
{
    (void)unused;
    for_all(create_start, create_finish);
    for_all(turn_begin, turn_finish);
    find_nodes();
    for_all(look_begin, look_finish);
    /* That it matters: the other node does not know them. */
    expect_status(turn_start(cl.direct[!sessions[0].node], 0), 404);
}

static void another_balancer_leads_to_the_same_nodes(void **unused)
{
    (void)unused;
    cluster_restart_balancer(&cl);
    for_all(look_begin, look_finish);
}

static void forks_are_found(void **unused)
{
    char path[300], fork[200], again[300];
    (void)unused;
    for (unsigned i = 0; i < 8; i++) {
        const struct session *s = &sessions[i];
        snprintf(path, sizeof path, "/v1/sessions/%.150s/fork", s->id);
        snprintf(fork, sizeof fork, "%.150s--f-%u", s->id, i);
        expect_status(post_for(cl.c, NULL, path, "{'id':'%s'}", fork), 201);
        snprintf(again, sizeof again, "%s--g", fork);
        expect_status(post_for(cl.c, again, "/v1/sessions", "{'from':'%s'}", fork), 201);
        expect_status(look_for(cl.direct[s->node], fork), 200);
        expect_status(post_for(cl.c, again, "/v1/generate", "{'prompt':'And?','max_tokens':1}"),
                      200);
        /* One that the node names. */
        struct reply *r = expect(call_finish(post_for(cl.c, NULL, path, "{}")), 201);
        expect_status(look_for(cl.c, str_at(r->json, "id")), 200);
        reply_free(r);
    }
}

static void what_a_balancer_cannot_place_is_refused(void **unused)
{
    (void)unused;
    /* A name in the body only: the balancer has chosen another one. */
    expect_error(call_finish(post_for(cl.c, NULL, "/v1/sessions", "{'id':'kate'}")), 400,
                 "invalid_value", "id");
    expect_error(call_finish(post_for(cl.c, "kate", "/v1/sessions", "{'id':'joe'}")), 400,
                 "invalid_value", "id");
    expect_error(get(cl.c, "/metrics"), 403, "forbidden", NULL);
    expect_error(post(cl.c, "/v1/admin/drain", "{}"), 403, "forbidden", NULL);
    expect_error(post(cl.c, "/v1/%61dmin/drain", "{}"), 403, "forbidden", NULL);
    for (unsigned node = 0; node < CLUSTER_NODES; node++)
        expect_status(call_start(cl.direct[node], "GET", "/readyz", NULL, NULL, 0), 200);
}

/* --- streams -----------------------------------------------------------------------------------*/

#define ENDLESS "'prompt':'Once','max_tokens':1000000,'ignore_eos':true"

static void cancel(const char *id)
{
    char path[300];
    snprintf(path, sizeof path, "/v1/sessions/%s/cancel", id);
    struct reply *r = expect(call_finish(post_for(cl.c, NULL, path, "{}")), 200);
    assert_true(bool_at(r->json, "cancelled"));
    reply_free(r);
}

static void expect_cancelled(struct call *k)
{
    struct reply *r = expect(call_finish(k), 200);
    assert_true(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "finish_reason"), "cancelled");
    reply_free(r);
}

static void new_named(const char *id)
{
    expect_status(post_for(cl.c, id, "/v1/sessions", "{}"), 201);
}

static unsigned node_of(const char *id)
{
    struct reply *r = call_finish(look_for(cl.direct[0], id));
    unsigned node = r->status != 200;
    reply_free(r);
    expect_status(look_for(cl.direct[node], id), 200);
    return node;
}

static bool no_turn_on(unsigned node)
{
    return metric(cl.direct[node], "slate_requests_running") < 0.5;
}

/* The first event is here while the node is at it: without an end of its own. */
static void streams_are_not_held_back(void **unused)
{
    (void)unused;
    new_named("stream");
    struct client *reader = client_open(balancer_base(cl.balancer));
    struct call *k = post_for(reader, "stream", "/v1/generate", "{" ENDLESS ",'stream':true}");
    call_until_events(k, 1);
    assert_false(call_reply(k)->over);
    assert_true(session_busy(cl.direct[node_of("stream")], "stream"));
    cancel("stream");
    expect_cancelled(k);
    /* The same without a session. */
    k = post_for(reader, NULL, "/v1/generate", "{" ENDLESS ",'stream':true}");
    call_until_events(k, 1);
    assert_false(call_reply(k)->over);
    assert_true(!no_turn_on(0) || !no_turn_on(1));
    call_abort(k);
    for (unsigned node = 0; node < CLUSTER_NODES; node++)
        until_metric(cl.direct[node], "slate_requests_running", 0);
    client_close(reader);
}

static bool has_comment(const struct reply *r, void *arg)
{
    (void)arg;
    return r->n_pings > 0;
}

/* Comments that a stream carries while a long prompt is read: few bytes, and nothing after them. */
static void small_pieces_are_not_held_back(void **unused)
{
    enum { WORDS = 200000, WORD = 5 };
    static const char begin[] = "{\"stream\":true,\"max_tokens\":1,\"prompt\":\"", end[] = "\"}";
    size_t n = sizeof begin - 1;
    char *body = sl_malloc(n + (size_t)WORDS * WORD + sizeof end);
    (void)unused;
    assert_non_null(body);
    memcpy(body, begin, n);
    for (size_t i = 0; i < WORDS; i++, n += WORD)
        memcpy(body + n, "word ", WORD);
    memcpy(body + n, end, sizeof end);
    struct client *reader = client_open(balancer_base(cl.balancer));
    struct call *k = call_start(reader, "POST", "/v1/generate", NULL, body, strlen(body));
    sl_free(body);
    call_until(k, has_comment, NULL);
    assert_true(call_reply(k)->n_pings > 0);
    assert_int_equal(call_reply(k)->n_events, 0);
    assert_false(call_reply(k)->over);
    call_abort(k);
    client_close(reader);
    for (unsigned node = 0; node < CLUSTER_NODES; node++)
        until_metric(cl.direct[node], "slate_requests_running", 0);
}

/* Nothing was answered yet, so nothing is being written to who has gone. */
static void a_client_that_goes_ends_its_turn(void **unused)
{
    (void)unused;
    new_named("gone");
    struct client *node = cl.direct[node_of("gone")],
                  *reader = client_open(balancer_base(cl.balancer));
    struct call *k = post_for(reader, "gone", "/v1/generate", "{" ENDLESS "}");
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    while (!session_busy(node, "gone")) {
        assert_true(client_now_ms() < deadline);
        reply_free(get(reader, "/livez")); /* lets k move on */
    }
    call_abort(k);
    client_close(reader);
    until_free(node, "gone");
    struct reply *r = session_get(node, "gone");
    assert_int_equal(int_at(r->json, "version"), 0);
    reply_free(r);
}

/* --- a node goes and comes back ----------------------------------------------------------------*/

/* What every request of the node's sessions gets: `code` (NULL: any); reads: those that change
 * nothing too. */
static void all_are_away(unsigned node, const char *code, bool reads)
{
    for (unsigned i = 0; i < N_SESSIONS; i++) {
        const struct session *s = &sessions[i];
        if (s->node != node)
            continue;
        expect_away(turn_start(cl.c, i), code);
        if (!reads)
            continue;
        expect_away(look_for(cl.c, s->id), code);
        expect_away(post_for(cl.c, s->id, "/v1/sessions", "{}"), code);
    }
}

static void learn_tokens(unsigned i)
{
    struct reply *r = session_get(cl.direct[sessions[i].node], sessions[i].id);
    sessions[i].tokens_seen = int_at(r->json, "tokens_seen");
    reply_free(r);
}

static void others_are_there(unsigned away)
{
    struct reply *list = sessions_of(&cl, !away);
    for (unsigned i = 0; i < N_SESSIONS; i++) {
        const struct session *s = &sessions[i];
        if (s->node == away) {
            assert_null(session_in(list, s->id));
            continue;
        }
        look_finish(i, look_begin(i));
        if (i % 3 == 0) {
            turn_finish(i, turn_start(cl.c, i));
            learn_tokens(i);
        }
    }
    reply_free(list);
}

/* Also when the balancer has had the time to see that the node has ended: nothing moves. */
static void stays_away(unsigned node)
{
    int64_t since = client_now_ms();
    do
        all_are_away(node, "node_away", true);
    while (client_now_ms() < since + NOTICED_MS);
}

/* HAProxy asks /readyz itself: after a while nothing comes to the node that it would refuse. */
static void until_left_alone(struct load *l, unsigned node)
{
    static const char refused[] =
        "slate_http_requests_total{method=\"POST\",route=\"/v1/generate\",status=\"503\"}";
    int64_t deadline = client_now_ms() + BALANCER_DEADLINE_MS;
    for (double before = -1, now = 0; now != before;) {
        before = metric(cl.direct[node], refused);
        load_go_on(l, 32);
        now = metric(cl.direct[node], refused);
        if (client_now_ms() > deadline)
            fail_msg("requests still come to a node that is not ready");
    }
}

/* It gets requests without a session again. */
static void until_used_again(struct load *l, unsigned node)
{
    int64_t deadline = client_now_ms() + BALANCER_DEADLINE_MS;
    while (metric(cl.direct[node], "slate_completion_tokens_total") < 0.5) {
        load_go_on(l, 8);
        if (client_now_ms() > deadline)
            fail_msg("no request comes to a node that is ready again");
    }
}

static void ask_for_the_number(struct client *c, const char *id, struct gen *ret)
{
    ret->r = expect(call_finish(post_for(c, id, "/v1/generate",
                                         "{'prompt':' My number is','max_tokens':12,"
                                         "'temperature':0,'ignore_eos':true,"
                                         "'return_tokens':true,'logprobs':2}")),
                    200);
    output_of(ret->r, &ret->o);
}

static void all_are_back(unsigned node)
{
    for (unsigned i = 0; i < N_SESSIONS; i++)
        if (sessions[i].node == node)
            look_finish(i, look_begin(i));
}

/* They go on like one that was never interrupted. */
static void they_remember(unsigned node)
{
    unsigned n = 0;
    for (unsigned i = 0; i < N_SESSIONS && n < N_REMEMBER; i++) {
        struct gen back, control;
        if (sessions[i].node != node)
            continue;
        n++;
        ask_for_the_number(cl.c, sessions[i].id, &back);
        const char *id = new_session(cl.direct[!node]);
        expect_status(post_for(cl.direct[!node], id, "/v1/generate",
                               "{'prompt':'My number is %u.','max_tokens':0}", i),
                      200);
        ask_for_the_number(cl.direct[!node], id, &control);
        output_same(&back.o, &control.o);
        assert_true(control.o.n_tokens == 12);
        gen_done(&back);
        gen_done(&control);
    }
    assert_int_equal(n, N_REMEMBER);
}

static void a_node_drained_and_back_loses_nothing(void **unused)
{
    unsigned node = node_of("stream");
    struct load load;
    (void)unused;
    load_start(&load, &cl);
    load_go_on(&load, 16);

    /* A turn that runs keeps it from ending at once. */
    struct client *reader = client_open(balancer_base(cl.balancer));
    struct call *running =
        post_for(reader, "stream", "/v1/generate", "{" ENDLESS ",'stream':true}");
    call_until_events(running, 1);
    assert_int_equal(kill(cl.nodes[node]->pid, SIGTERM), 0);
    load_go_on(&load, 16);
    until_readyz(cl.direct[node], 503);
    load_go_on(&load, 32);
    all_are_away(node, "draining", false);
    if (cl.kind == BALANCER_HAPROXY)
        until_left_alone(&load, node);
    cancel("stream");
    load_go_on(&load, 16);
    expect_cancelled(running);
    client_close(reader);
    assert_int_equal(cluster_end_node(&cl, node, 0), 0);

    load_go_on(&load, 32);
    stays_away(node);
    others_are_there(node);
    load_go_on(&load, 32);

    cluster_start_node(&cl, node);
    load_go_on(&load, 32);
    until_readyz(cl.direct[node], 200);
    until_used_again(&load, node);
    load_stop(&load);
    all_are_back(node);
    they_remember(node);
}

static void a_node_killed_and_back_loses_nothing(void **unused)
{
    unsigned node = !node_of("stream");
    (void)unused;
    assert_int_equal(cluster_end_node(&cl, node, SIGKILL), -SIGKILL);
    stays_away(node);
    cluster_start_node(&cl, node);
    until_readyz(cl.direct[node], 200);
    all_are_back(node);
}

/* --- requests within requests ------------------------------------------------------------------*/

/* Deletions of a session that the nodes were asked for. */
static double deletions(void)
{
    double n = 0;
    for (unsigned i = 0; i < CLUSTER_NODES; i++) {
        struct reply *r = get(cl.direct[i], "/metrics");
        for (const char *at = r->body; (at = strstr(at, "\nslate_http_requests_total{")); at++) {
            const char *end = strchr(at + 1, '\n'), *space = end;
            while (space && space[-1] != ' ')
                space--;
            const char *is_one = strstr(at, "method=\"DELETE\",route=\"/v1/sessions/{id}\"");
            if (end && is_one && is_one < end)
                n += strtod(space, NULL);
        }
        reply_free(r);
    }
    return n;
}

/* What the client is answered until the balancer closes, or is silent for a while: responses. */
static unsigned responses(struct raw *r)
{
    char got[65536];
    size_t n = 0;
    unsigned count = 0;
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    while (n < sizeof got - 1 && poll(&p, 1, NOTICED_MS / 5) > 0) {
        ssize_t k = recv(r->fd, got + n, sizeof got - 1 - n, 0);
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    got[n] = '\0';
    for (const char *at = got; (at = strstr(at, "HTTP/1.1 ")); at++)
        count++;
    return count;
}

/* The balancer may mend what a client sends, and may see two requests; then so does its client, who
 * gets two answers. One that the balancer took for a part of another is none to a node, either. */
static void what_is_hidden_in_a_request_stays_there(void **unused)
{
    (void)unused;
    struct server balancer = {0};
    assert_int_equal(sscanf(balancer_base(cl.balancer), "http://127.0.0.1:%u", &balancer.port), 1);
    struct raw *open = raw_open(&balancer); /* not hidden: a node is asked, and counts it */
    double none = deletions();
    raw_puts(open, SMUGGLED_REQUEST);
    assert_int_equal(responses(open), 1);
    raw_close(open);
    assert_true(deletions() > none);
    for (size_t i = 0; i < N_SMUGGLED; i++) {
        double before = deletions();
        struct raw *r = raw_open(&balancer);
        raw_puts(r, smuggled[i]);
        unsigned n = responses(r);
        raw_close(r);
        double more = deletions() - before;
        if (more > 0 && n < 1 + more)
            fail_msg("%.0f requests were hidden in a client's, which got %u answers:\n%s", more, n,
                     smuggled[i]);
    }
}

int main(void)
{
    char record[512];
    const char *build = getenv("SLATE_BUILD");
    /* What a balancer answers is not what proto/openapi.yaml describes: it is recorded apart. */
    snprintf(record, sizeof record, "%s/cluster", build ? build : "build/release");
    setenv("SLATE_API_RECORD", record, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_live_where_their_ids_lead),
        cmocka_unit_test(another_balancer_leads_to_the_same_nodes),
        cmocka_unit_test(forks_are_found),
        cmocka_unit_test(what_a_balancer_cannot_place_is_refused),
        cmocka_unit_test(streams_are_not_held_back),
        cmocka_unit_test(small_pieces_are_not_held_back),
        cmocka_unit_test(a_client_that_goes_ends_its_turn),
        cmocka_unit_test(what_is_hidden_in_a_request_stays_there),
        cmocka_unit_test(a_node_drained_and_back_loses_nothing),
        cmocka_unit_test(a_node_killed_and_back_loses_nothing),
    };
    int failed = cmocka_run_group_tests_name("haproxy", tests, start_haproxy, stop);
    failed += cmocka_run_group_tests_name("nginx", tests, start_nginx, stop);
    return failed != 0;
}
