/* durable_test.c: promise 6: what was acknowledged is there after `kill -9`, once.
 *
 * 32 sessions at once, fewer places in memory than sessions, so that they are also saved and
 * loaded; turns (some with an Idempotency-Key), pauses, changes of metadata, creations and
 * deletions. The server is killed after a random number of answers, or while it starts. The client
 * keeps a log of what it was told; after each restart every session is asked for:
 *
 *   - its version: that of the last acknowledged turn, or one more where one was on its way;
 *   - its metadata: the last acknowledged ones, or those on their way;
 *   - a turn on its way with a key is sent again: it has been applied once then, not twice;
 *   - what it says: every turn's answer is the one that a mirror gives, a server that was never
 *     killed and on which the same turns are run in the same order.
 *
 * `durable_test 1000` (make soak) does it so often. */
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
#include "tests/support/told.h"

enum { SESSIONS = 32 };

static unsigned n_rounds = 20;

static struct node node;
static struct api mirror;

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

/* --- the client's log --------------------------------------------------------------------------*/

enum kind { NOTHING, TURN, KEYED, PAUSE, PATCH, CREATE, DELETE };

struct log {
    struct told told;
    bool exists;
    int64_t n_patches;
    /* on its way */
    enum kind kind;
    struct call *call;
    unsigned seed;
    char body[TOLD_BODY], key[40];
};

static struct log logs[SESSIONS];
static unsigned n_seeds, n_acknowledged, n_applied_unseen, n_replayed;

static struct call *send_turn(struct log *l)
{
    char lines[64];
    snprintf(lines, sizeof lines, "Idempotency-Key: %s", l->key);
    return call_start(node.a.client, "POST", "/v1/generate", l->kind == KEYED ? lines : NULL,
                      l->body, strlen(l->body));
}

/* Some request that makes sense now. */
static void begin(struct log *l)
{
    uint64_t what = draw(20);
    struct client *c = node.a.client;
    if (!l->exists) {
        l->kind = CREATE;
        l->call = call_post(c, "/v1/sessions", "{'id':'%s','metadata':{'n':0}}", l->told.id);
    } else if (what == 0 && l->told.version > 6) {
        l->kind = DELETE;
        l->call = call_start(c, "DELETE", session_path(l->told.id, ""), NULL, NULL, 0);
    } else if (what < 4) {
        l->kind = PAUSE;
        l->call = pause_start(c, l->told.id);
    } else if (what < 6) {
        char body[64];
        l->kind = PATCH;
        snprintf(body, sizeof body, "{\"metadata\":{\"n\":%lld}}", (long long)l->n_patches + 1);
        l->call = call_start(c, "PATCH", session_path(l->told.id, ""), NULL, body, strlen(body));
    } else {
        l->kind = what < 10 ? KEYED : TURN;
        l->seed = ++n_seeds;
        snprintf(l->key, sizeof l->key, "key-%u", l->seed);
        told_body(l->body, l->told.id, l->seed);
        l->call = send_turn(l);
    }
}

/* A session that begins its life: the mirror's does, too. */
static void is_new(struct log *l)
{
    assert_int_equal(l->told.n_turns, 0);
    l->exists = true;
    l->told.version = l->n_patches = 0;
    struct reply *r = del(mirror.client, session_path(l->told.id, ""));
    assert_true(r->status == 200 || r->status == 404);
    reply_free(r);
    reply_free(expect(post(mirror.client, "/v1/sessions", "{'id':'%s'}", l->told.id), 201));
}

/* What the answer to its request says has happened. */
static void acknowledged(struct log *l, struct reply *r)
{
    bool keeps = false;
    switch (l->kind) {
    case TURN:
    case KEYED:
        told_turn(&l->told, l->seed, expect(r, 200));
        assert_int_equal(int_at(r->json, "version"), l->told.version);
        keeps = true;
        break;
    case PATCH:
        expect(r, 200);
        l->n_patches++;
        break;
    case CREATE:
        expect(r, 201);
        is_new(l);
        break;
    case DELETE:
        expect(r, 200);
        l->exists = false;
        told_forget(&l->told);
        break;
    default:
        expect(r, 200);
    }
    if (!keeps)
        reply_free(r);
    l->kind = NOTHING;
    n_acknowledged++;
}

/* --- what is found afterwards ------------------------------------------------------------------*/

static void check_found(struct log *l, struct reply *r)
{
    bool is_turn = l->kind == TURN || l->kind == KEYED;
    bool found = r->status == 200;
    assert_true(found || r->status == 404);
    if (l->kind == CREATE && found)
        is_new(l);
    if (l->kind == DELETE && !found) {
        l->exists = false;
        told_forget(&l->told);
    }
    if (found != l->exists)
        fail_msg("session %s is %s, which nobody was told", l->told.id, found ? "there" : "gone");
    if (!found)
        return;
    int64_t version = int_at(r->json, "version"), patches = int_at(r->json, "metadata.n");
    if (version != l->told.version && !(is_turn && version == l->told.version + 1))
        fail_msg("session %s is at version %lld; %lld was the last that was acknowledged",
                 l->told.id, (long long)version, (long long)l->told.version);
    if (patches != l->n_patches && !(l->kind == PATCH && patches == l->n_patches + 1))
        fail_msg("session %s has metadata %lld; %lld were the last acknowledged", l->told.id,
                 (long long)patches, (long long)l->n_patches);
    l->n_patches = patches;
    if (l->kind == TURN && version > l->told.version) {
        told_turn(&l->told, l->seed, NULL);
        n_applied_unseen++;
    } else if (l->kind == KEYED) {
        struct reply *again = expect(call_finish(send_turn(l)), 200);
        const char *replayed = reply_header(again, "Idempotent-Replayed");
        assert_int_equal(replayed != NULL, version > l->told.version);
        n_replayed += replayed != NULL;
        told_turn(&l->told, l->seed, again);
        assert_int_equal(int_at(again->json, "version"), l->told.version);
    }
}

/* Every session is asked for; then each says something, which loads it. */
static void check_all(void)
{
    for (size_t i = 0; i < SESSIONS; i++) {
        struct reply *r = get(node.a.client, session_path(logs[i].told.id, ""));
        check_found(&logs[i], r);
        reply_free(r);
        logs[i].kind = NOTHING;
    }
    struct call *k[SESSIONS] = {0};
    for (size_t i = 0; i < SESSIONS; i++) {
        if (!logs[i].exists)
            continue;
        logs[i].kind = TURN;
        logs[i].seed = ++n_seeds;
        told_body(logs[i].body, logs[i].told.id, logs[i].seed);
        k[i] = send_turn(&logs[i]);
    }
    for (size_t i = 0; i < SESSIONS; i++)
        if (k[i])
            acknowledged(&logs[i], call_finish(k[i]));
    told_compare(&logs[0].told, sizeof *logs, SESSIONS, mirror.client);
}

/* --- one life of the server --------------------------------------------------------------------*/

static bool is_over(const struct reply *r, void *arg)
{
    (void)arg;
    return r->over;
}

/* Takes the answers that are there; returns how many. */
static size_t take_answers(void)
{
    size_t n = 0;
    for (size_t i = 0; i < SESSIONS; i++) {
        struct log *l = &logs[i];
        if (!l->call || !call_reply(l->call)->over)
            continue;
        acknowledged(l, call_finish(l->call));
        l->call = NULL;
        n++;
    }
    return n;
}

static void live_and_die(size_t n_answers)
{
    for (size_t n = 0; n < n_answers;) {
        for (size_t i = 0; i < SESSIONS; i++)
            if (!logs[i].call && logs[i].told.n_turns < TOLD_TURNS_MAX - 4)
                begin(&logs[i]);
        call_until(logs[draw(SESSIONS)].call, is_over, NULL);
        n += take_answers();
    }
    /* Requests are on their way, or have not even been sent, or are answered and not read. */
    for (size_t i = 0; i < SESSIONS; i++)
        if (!logs[i].call && draw(4))
            begin(&logs[i]);
    for (uint64_t i = draw(16); i-- > 0;)
        reply_free(get(node.a.client, "/livez"));
    node_signal(&node, SIGKILL);
    for (size_t i = 0; i < SESSIONS; i++) {
        struct log *l = &logs[i];
        struct reply *r = l->call ? call_finish(l->call) : NULL;
        l->call = NULL;
        if (r && r->whole)
            acknowledged(l, r);
        else
            reply_free(r);
    }
    node_wait(&node, SIGKILL);
}

/* Killed while it reads what there is, it must not have changed it. */
static void die_at_start(void)
{
    const char *const args[] = {
        "--log-level=warn", "--tokenizer=bytes", "--model", seeded_bytes_model(),
        "--store",          node.store,          NULL};
    struct server *s = server_start_loading(args);
    for (uint64_t i = draw(40); i-- > 0;) {
        struct raw_response *p = raw_ask(s, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n"
                                            "Connection: close\r\n\r\n");
        bool ready = p->status == 200;
        raw_response_free(p);
        if (ready)
            break;
    }
    assert_int_equal(server_end(s, SIGKILL), -SIGKILL);
}

static void killed_at_random_moments(void **state)
{
    (void)state;
    for (size_t i = 0; i < SESSIONS; i++)
        snprintf(logs[i].told.id, sizeof logs[i].told.id, "s%zu", i);
    for (unsigned round = 0; round < n_rounds; round++) {
        node_start(&node);
        client_unrecorded(node.a.client);
        check_all();
        live_and_die(draw(150));
        if (draw(4) == 0)
            die_at_start();
    }
    node_start(&node);
    client_unrecorded(node.a.client);
    check_all();
    print_message("killed %u times: %u answers, all kept; %u turns were applied that had not been "
                  "answered, %u were answered again\n",
                  n_rounds, n_acknowledged, n_applied_unseen, n_replayed);
    assert_true(n_acknowledged > n_rounds * 30);
    /* And it ends as it should. */
    node_stop(&node);
    node_start(&node);
    client_unrecorded(node.a.client);
    check_all();
}

/* --- all of it ---------------------------------------------------------------------------------*/

static int start(void **state)
{
    (void)state;
    api_start(&mirror, (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                             "--sessions-in-memory=64", NULL});
    client_unrecorded(mirror.client);
    node_init(&node, "node",
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                    "--sessions-in-memory=12", "--replay-limit=60", NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (size_t i = 0; i < SESSIONS; i++)
        told_forget(&logs[i].told);
    node_abandon(&node);
    api_stop(&mirror);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_random_moments),
    };
    if (argc > 1)
        n_rounds = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2) /* what a failure printed */
        random_state = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("durable", tests, start, stop);
}
