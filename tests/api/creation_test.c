/* creation_test.c: POST /v1/sessions with a first prompt gives both or nothing, whatever ends it:
 * the end of the process, or of a fleet's Redis. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/fleet.h"
#include "tests/support/node.h"

static struct node n;
static struct fleet f;

/* A creation whose prompt takes its time; from: more of the body, with a comma behind it. */
static struct call *create_slowly(struct client *c, const char *from, size_t n_lines)
{
    char before[256];
    snprintf(before, sizeof before, "{\"id\":\"new\",%s\"prompt\":\"", quoted(from));
    char *body = repeated(before, "All work and no play. ", n_lines, "\"}");
    struct call *k = call_start(c, "POST", "/v1/sessions", NULL, body, strlen(body));
    sl_free(body);
    return k;
}

static void is_there_with_its_prompt(struct client *c, const char *id, int64_t version)
{
    struct reply *r = session_get(c, id);
    assert_int_equal(int_at(r->json, "version"), version);
    assert_true(int_at(r->json, "tokens_seen") > 0);
    reply_free(r);
}

static void is_not_there(struct client *c)
{
    expect_error(get(c, "/v1/sessions/new"), 404, "session_not_found", "session");
}

static void until_read(struct client *c)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (;;) {
        struct reply *r = get(c, "/v1/sessions/new");
        bool there = r->status == 200;
        reply_free(r);
        if (there)
            return;
        assert_true(client_now_ms() < deadline);
    }
}

/* What was made of it before the kill: nothing. */
static void test_killed_while_the_prompt_is_read(void **state)
{
    static const char *const froms[] = {"", "'from':'old',"};
    (void)state;
    node_init(&n, "creation", (const char *const[]){"--durability=turn", NULL});
    node_start(&n);
    reply_free(expect(post(n.a.client, "/v1/sessions", "{'id':'old','prompt':'Before'}"), 201));
    is_there_with_its_prompt(n.a.client, "old", 1);
    for (size_t i = 0; i < sizeof froms / sizeof *froms; i++) {
        node_stop(&n);
        n.slow = true;
        node_start(&n);
        struct call *k = create_slowly(n.a.client, froms[i], 3000);
        until_read(n.a.client);
        node_signal(&n, SIGKILL);
        reply_free(call_finish(k));
        node_wait(&n, SIGKILL);
        n.slow = false;
        node_start(&n);
        is_not_there(n.a.client);
    }
    reply_free(expect(call_finish(create_slowly(n.a.client, "'from':'old',", 1)), 201));
    is_there_with_its_prompt(n.a.client, "new", 2);
    node_kill(&n);
    node_start(&n);
    is_there_with_its_prompt(n.a.client, "new", 2);
    is_there_with_its_prompt(n.a.client, "old", 1);
    node_done(&n);
}

/* Another server knows nothing of it before, and makes it at once after a kill. */
static void test_one_server_of_a_fleet_is_killed(void **state)
{
    (void)state;
    fleet_start(&f, "creation", (const char *const[]){"--kernels=ref", NULL});
    struct client *one = fleet_at(&f, 0), *other = fleet_at(&f, 1);
    struct call *k = create_slowly(one, "", 3000);
    until_read(one);
    is_not_there(other);
    fleet_node_signal(&f, 0, SIGKILL);
    reply_free(call_finish(k));
    assert_int_equal(fleet_node_end(&f, 0, 0), -SIGKILL);
    is_not_there(other);
    reply_free(expect(post(other, "/v1/sessions", "{'id':'new','prompt':'Once'}"), 201));
    is_there_with_its_prompt(fleet_at(&f, 2), "new", 1);
    fleet_node_start(&f, 0);
    is_there_with_its_prompt(fleet_at(&f, 0), "new", 1);
    fleet_stop(&f);
}

/* Redis goes while the prompt is read: nothing is left of it, and it can be made again. Of two that
 * make it at once one does. */
static void test_redis_is_away(void **state)
{
    (void)state;
    fleet_start(&f, "creation", (const char *const[]){"--kernels=ref", NULL});
    struct call *k = create_slowly(fleet_at(&f, 0), "", 60);
    until_read(fleet_at(&f, 0));
    redis_end(&f.redis, SIGTERM);
    expect_error(call_finish(k), 503, "store_unavailable", NULL);
    redis_start(&f.redis);
    for (unsigned i = 0; i < FLEET_NODES; i++)
        until_metric(fleet_at(&f, i), "slate_store_read_only", 0);
    is_not_there(fleet_at(&f, 0));
    is_not_there(fleet_at(&f, 1));
    struct call *a = call_post(fleet_at(&f, 0), "/v1/sessions", "{'id':'new','prompt':'Once'}"),
                *b = call_post(fleet_at(&f, 1), "/v1/sessions", "{'id':'new','prompt':'Twice'}");
    struct reply *ra = call_finish(a), *rb = call_finish(b);
    struct reply *lost = ra->status == 201 ? rb : ra;
    assert_int_equal(ra->status + rb->status, 201 + 409);
    assert_string_equal(str_at(lost->json, "error.code"), "session_exists");
    reply_free(ra);
    reply_free(rb);
    is_there_with_its_prompt(fleet_at(&f, 2), "new", 1);
    fleet_stop(&f);
}

static int abandon(void **state)
{
    (void)state;
    node_abandon(&n);
    fleet_abandon(&f);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_killed_while_the_prompt_is_read, abandon),
        cmocka_unit_test_teardown(test_one_server_of_a_fleet_is_killed, abandon),
        cmocka_unit_test_teardown(test_redis_is_away, abandon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
