/* fleet_test.c: three servers that share a Redis: any of them serves any session, and what was
 * acknowledged is kept, once, whatever happens to a server or to Redis.
 *
 * What a session says is compared with a mirror: one server, without a store, on which the same
 * turns are run in the same order. `fleet_test 200` (make soak) kills so often. Nothing sleeps. */
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
#include "tests/support/balancer.h"
#include "tests/support/fleet.h"
#include "tests/support/node.h"

enum { SESSIONS = 32, TURNS_MAX = 64, OUTPUT_TOKENS = 5 };

static unsigned n_kills = 20;
static struct fleet fleet;
static struct client *front; /* of a balancer; NULL: the nodes are asked themselves */
static struct api mirror;

static struct client *at_node(unsigned i)
{
    return fleet.node[i % FLEET_NODES].c;
}

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

static void create_both(const char *id)
{
    reply_free(expect(post(at_node(0), "/v1/sessions", "{'id':'%s'}", id), 201));
    reply_free(expect(post(mirror.client, "/v1/sessions", "{'id':'%s'}", id), 201));
}

static void same_turn(const char *id, unsigned node, const char *prompt, unsigned seed)
{
    struct gen got, want;
    turn_of(at_node(node), &got, id, prompt, seed);
    turn_of(mirror.client, &want, id, prompt, seed);
    output_same(&got.o, &want.o);
    gen_done(&got);
    gen_done(&want);
}

/* --- one conversation, many servers ------------------------------------------------------------*/

static void turns_on_changing_nodes(void **state)
{
    (void)state;
    create_both("walk");
    for (unsigned i = 0; i < 24; i++)
        same_turn("walk", i % 5 + i / 7, "And then?", 100 + i);
    /* What a node still has in memory of an older version is not used. */
    for (unsigned i = 0; i < 6; i++)
        same_turn("walk", 2 - i % 2, "Go on.", 200 + i);
    struct bytes a = snapshot_get(at_node(0), "walk", ""), b = snapshot_get(at_node(1), "walk", "");
    assert_string_equal(a.etag, b.etag);
    sl_free(a.p);
    sl_free(b.p);
}

/* Paused here, finished there; forked there, and both go on. */
static void pauses_and_forks_move(void **state)
{
    struct gen got, want;
    (void)state;
    create_both("pause");
    same_turn("pause", 1, "Once", 1);
    struct call *k = stream_start(at_node(0), "'session':'pause','prompt':'Tell me','seed':5,"
                                              "'max_tokens':4000,'ignore_eos':true,"
                                              "'return_tokens':true");
    stream_until(k, 20);
    struct call *p = pause_start(at_node(0), "pause");
    struct parts parts;
    parts_init(&parts);
    parts_add(&parts, call_finish(k));
    reply_free(expect(call_finish(p), 200));
    assert_true(parts_paused(&parts));
    parts_add(&parts, call_finish(stream_start(at_node(2), "'session':'pause','resume':true,"
                                                           "'return_tokens':true")));
    generate(mirror.client, &want,
             "'session':'pause','prompt':'Tell me','seed':5,'max_tokens':4000,'ignore_eos':true,"
             "'return_tokens':true");
    assert_string_equal(parts.all.text, want.o.text);
    gen_done(&want);
    parts_done(&parts);
    struct client *all[] = {at_node(1), mirror.client};
    for (size_t i = 0; i < 2; i++)
        reply_free(expect(post(all[i], "/v1/sessions/pause/fork", "{'id':'pause--b'}"), 201));
    same_turn("pause--b", 0, "What then?", 9);
    same_turn("pause", 2, "What then?", 10);
    same_turn("pause--b", 2, "And?", 11);
    (void)got;
}

static void changes_are_seen_everywhere(void **state)
{
    (void)state;
    create_both("seen");
    same_turn("seen", 1, "Once", 3);
    reply_free(expect(patch(at_node(2), "/v1/sessions/seen", "{'metadata':{'a':1}}"), 200));
    struct reply *r = session_get(at_node(0), "seen");
    assert_int_equal(int_at(r->json, "metadata.a"), 1);
    assert_int_equal(int_at(r->json, "version"), 1);
    const char *etag = reply_header(r, "ETag");
    char lines[200];
    snprintf(lines, sizeof lines, "If-Match: %s", etag);
    reply_free(r);
    same_turn("seen", 2, "More", 4);
    /* Node 0 is asked with an ETag that is over, although it has seen no later one. */
    expect_error(request(at_node(0), "PATCH", "/v1/sessions/seen", lines, "{}", 2), 412,
                 "version_mismatch", "If-Match");
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        r = expect(get(at_node(i), "/v1/sessions?prefix=see"), 200);
        assert_int_equal(len_at(r->json, "data"), 1);
        assert_int_equal(int_at(r->json, "data.0.version"), 2);
        reply_free(r);
    }
    expect_error(post(at_node(1), "/v1/sessions", "{'id':'seen'}"), 409, "session_exists", "id");
    reply_free(expect(del(at_node(0), "/v1/sessions/seen"), 200));
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        expect_error(
            post(at_node(i), "/v1/generate", "{'session':'seen','prompt':'Are you there?'}"), 404,
            "session_not_found", "session");
        expect_error(get(at_node(i), "/v1/sessions/seen"), 404, "session_not_found", "session");
    }
    /* A new life under the old name is another one, also where the old one is remembered. */
    reply_free(expect(post(at_node(2), "/v1/sessions", "{'id':'seen'}"), 201));
    struct gen g;
    turn_of(at_node(1), &g, "seen", "Once", 3);
    assert_int_equal(int_at(g.r->json, "version"), 1);
    gen_done(&g);
    /* Also where nobody has asked meanwhile: such a turn is told to come again, once. */
    reply_free(expect(del(at_node(0), "/v1/sessions/seen"), 200));
    reply_free(expect(post(at_node(2), "/v1/sessions", "{'id':'seen'}"), 201));
    expect_error(call_finish(turn_start(at_node(1), "seen", "Once", 3)), 409, "session_busy",
                 "session");
    turn_of(at_node(1), &g, "seen", "Once", 3);
    assert_int_equal(int_at(g.r->json, "version"), 1);
    gen_done(&g);
}

/* --- keys and leases ---------------------------------------------------------------------------*/

#define KEYED_BODY "{\"session\":\"keyed\",\"prompt\":\"Once\",\"seed\":7,\"max_tokens\":8}"

static struct call *keyed_start(struct client *c, const char *key, const char *body)
{
    char lines[80];
    snprintf(lines, sizeof lines, "Idempotency-Key: %s", key);
    return call_start(c, "POST", "/v1/generate", lines, body, strlen(body));
}

static void keys_count_on_every_node(void **state)
{
    (void)state;
    reply_free(expect(post(at_node(0), "/v1/sessions", "{'id':'keyed'}"), 201));
    struct reply *first = expect(call_finish(keyed_start(at_node(0), "k-1", KEYED_BODY)), 200);
    assert_null(reply_header(first, "Idempotent-Replayed"));
    for (unsigned i = 0; i < 2 * FLEET_NODES; i++) {
        struct reply *r = expect(call_finish(keyed_start(at_node(i), "k-1", KEYED_BODY)), 200);
        assert_non_null(reply_header(r, "Idempotent-Replayed"));
        assert_string_equal(r->body, first->body);
        reply_free(r);
    }
    reply_free(first);
    expect_error(
        call_finish(keyed_start(at_node(1), "k-1",
                                "{\"session\":\"keyed\",\"prompt\":\"x\",\"max_tokens\":8}")),
        422, "idempotency_mismatch", "Idempotency-Key");
    assert_int_equal(session_version(at_node(2), "keyed"), 1);
    /* Both at once on two nodes: one runs, the other is told so or is answered again. */
    for (unsigned i = 0; i < 12; i++) {
        char key[16];
        snprintf(key, sizeof key, "k-2-%u", i);
        struct call *a = keyed_start(at_node(i), key, KEYED_BODY),
                    *b = keyed_start(at_node(i + 1), key, KEYED_BODY);
        struct reply *ra = call_finish(a), *rb = call_finish(b);
        struct reply *r[2] = {ra, rb};
        unsigned ok = 0;
        for (size_t n = 0; n < 2; n++) {
            ok += r[n]->status == 200;
            if (r[n]->status == 200)
                reply_free(r[n]);
            else if (!strcmp(str_at(r[n]->json, "error.code"), "session_busy"))
                expect_error(r[n], 409, "session_busy", "session");
            else
                expect_error(r[n], 409, "idempotency_in_flight", "Idempotency-Key");
        }
        assert_true(ok >= 1);
        assert_int_equal(session_version(at_node(i + 2), "keyed"), 2 + i);
    }
}

#define LONG_KEYED                                                                                 \
    "{\"session\":\"busy\",\"prompt\":\"Once\",\"max_tokens\":20000,\"ignore_eos\":true,"          \
    "\"stream\":true}"
#define ENDLESS "\"prompt\":\"Once\",\"max_tokens\":1000000,\"ignore_eos\":true,\"stream\":true"

static void one_turn_at_a_time_in_all_of_it(void **state)
{
    (void)state;
    reply_free(expect(post(at_node(0), "/v1/sessions", "{'id':'busy'}"), 201));
    struct call *k = keyed_start(at_node(0), "long", LONG_KEYED);
    call_until_events(k, 1);
    expect_error(call_finish(keyed_start(at_node(1), "long", LONG_KEYED)), 409,
                 "idempotency_in_flight", "Idempotency-Key");
    call_abort(k);
    until_free(at_node(1), "busy");
    static const char body[] = "{\"session\":\"busy\"," ENDLESS "}";
    k = call_start(at_node(0), "POST", "/v1/generate", NULL, body, sizeof body - 1);
    call_until_events(k, 1);
    for (unsigned i = 1; i < FLEET_NODES; i++) {
        struct client *c = at_node(i);
        expect_error(post(c, "/v1/generate", "{'session':'busy','prompt':'x'}"), 409,
                     "session_busy", "session");
        expect_error(del(c, "/v1/sessions/busy"), 409, "session_busy", "session");
        expect_error(patch(c, "/v1/sessions/busy", "{'ttl_s':9}"), 409, "session_busy", "session");
        expect_error(session_post(c, "busy", "/pause"), 409, "session_busy", "session");
        expect_error(session_post(c, "busy", "/cancel"), 409, "session_busy", "session");
        assert_true(session_busy(c, "busy"));
        struct reply *r = session_get(c, "busy"); /* the last commit is shown, and can be forked */
        assert_int_equal(int_at(r->json, "version"), 0);
        reply_free(r);
        reply_free(expect(post(c, "/v1/sessions/busy/fork", "{}"), 201));
    }
    /* Longer than a lease: it is renewed. */
    int64_t begun = client_now_ms();
    for (size_t n = 2; client_now_ms() < begun + FLEET_LEASE_MS + FLEET_LEASE_MS / 2; n += 10)
        call_until_events(k, n);
    const struct reply *so_far = call_reply(k);
    if (so_far->over)
        fail_msg("the stream has ended: %s", so_far->body + so_far->n_body - 300);
    expect_error(post(at_node(1), "/v1/generate", "{'session':'busy','prompt':'x'}"), 409,
                 "session_busy", "session");
    reply_free(expect(session_post(at_node(0), "busy", "/cancel"), 200));
    struct reply *r = expect(call_finish(k), 200);
    assert_true(r->done);
    reply_free(r);
    /* It is free at once, everywhere. */
    reply_free(expect(
        post(at_node(1), "/v1/generate", "{'session':'busy','prompt':'x','max_tokens':1}"), 200));
    assert_int_equal(session_version(at_node(2), "busy"), 2);
}

/* The retry of one that is refused as busy, until it is not. Gives the milliseconds. */
static int64_t turn_when_free(struct client *c, const char *id, const char *prompt, unsigned seed,
                              struct gen *ret)
{
    int64_t begun = client_now_ms();
    for (;;) {
        struct reply *r = call_finish(turn_start(c, id, prompt, seed));
        if (r->status == 200) {
            ret->r = r;
            output_of(r, &ret->o);
            return client_now_ms() - begun;
        }
        expect_error(r, 409, "session_busy", "session");
        if (client_now_ms() > begun + 2 * FLEET_LEASE_MS)
            fail_msg("session %s stays busy", id);
    }
}

/* A server that sleeps through the end of its lease changes nothing afterwards. */
static void who_sleeps_loses_the_lease(void **state)
{
    struct gen got, want;
    (void)state;
    create_both("asleep");
    same_turn("asleep", 0, "Once", 1);
    struct call *k = stream_start(at_node(0), "'session':'asleep','prompt':'Tell','seed':2,"
                                              "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 3);
    fleet_node_signal(&fleet, 0, SIGSTOP);
    int64_t ms = turn_when_free(at_node(1), "asleep", "And then?", 3, &got);
    assert_true(ms > FLEET_LEASE_MS / 2); /* it was held until then */
    fleet_node_signal(&fleet, 0, SIGCONT);
    struct reply *r = expect(call_finish(k), 200); /* the stream had begun */
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "lease_lost");
    reply_free(r);
    turn_of(mirror.client, &want, "asleep", "And then?", 3);
    output_same(&got.o, &want.o);
    gen_done(&got);
    gen_done(&want);
    for (unsigned i = 0; i < 4; i++) /* the sleeper, too, goes on from what counts */
        same_turn("asleep", i, "Go on.", 10 + i);
}

/* --- kills under load --------------------------------------------------------------------------*/

struct told {
    unsigned seed;
    struct gen g; /* g.r NULL: its answer was lost */
};

struct log {
    char id[16];
    int64_t version;
    struct told turns[TURNS_MAX]; /* since the mirror was brought up to date */
    size_t n_turns;
    struct call *call; /* on its way */
    unsigned node;     /* where it was sent */
    bool keyed, lost;  /* lost: sent, and its server died */
    unsigned seed;
    int64_t busy_since; /* refused as busy since then; 0: not */
    char body[256], key[40];
};

static struct log logs[SESSIONS];
static unsigned n_seeds, n_acknowledged, n_unseen, n_replayed;
static int64_t longest_ms;

static void note_turn(struct log *l, struct reply *r)
{
    assert_true(l->n_turns < TURNS_MAX);
    struct told *t = &l->turns[l->n_turns++];
    *t = (struct told){.seed = l->seed, .g.r = r};
    if (r)
        output_of(r, &t->g.o);
    l->version++;
    l->lost = false;
}

static unsigned some_node(void)
{
    unsigned i;
    do
        i = (unsigned)draw(FLEET_NODES);
    while (!fleet.node[i].server);
    return i;
}

static void turn_body(char dst[256], const char *id, unsigned seed)
{
    snprintf(dst, 256,
             "{\"session\":\"%.15s\",\"prompt\":\"say %u.\",\"seed\":%u,\"max_tokens\":%d,"
             "\"ignore_eos\":true,\"logprobs\":1,\"return_tokens\":true}",
             id, seed, seed, OUTPUT_TOKENS);
}

static void send_turn(struct log *l)
{
    char lines[64];
    snprintf(lines, sizeof lines, "Idempotency-Key: %s", l->key);
    l->node = some_node();
    if (front) /* half of them tell the balancer which session it is */
        snprintf(lines, sizeof lines, "X-Slate-Session: %s", l->id);
    l->call = call_start(front ? front : at_node(l->node), "POST", "/v1/generate",
                         l->keyed ? lines : NULL, l->body, strlen(l->body));
}

static void begin_turn(struct log *l)
{
    l->keyed = draw(2);
    l->seed = ++n_seeds;
    snprintf(l->key, sizeof l->key, "key-%u", l->seed);
    turn_body(l->body, l->id, l->seed);
    send_turn(l);
}

static void acknowledged(struct log *l, struct reply *r)
{
    if (reply_header(r, "Idempotent-Replayed")) {
        assert_true(l->lost);
        n_replayed++;
    }
    if (l->busy_since && client_now_ms() - l->busy_since > longest_ms)
        longest_ms = client_now_ms() - l->busy_since;
    l->busy_since = 0;
    note_turn(l, r);
    assert_int_equal(int_at(r->json, "version"), l->version);
    n_acknowledged++;
}

/* A turn that was lost without a key: did it happen? Known when nobody has the session any more. */
static void find_out(struct log *l)
{
    struct reply *r = expect(get(at_node(some_node()), session_path(l->id, "")), 200);
    int64_t version = int_at(r->json, "version");
    bool busy = bool_at(r->json, "busy");
    reply_free(r);
    if (busy)
        return;
    if (version != l->version && version != l->version + 1)
        fail_msg("session %s is at version %lld; %lld was the last that was acknowledged", l->id,
                 (long long)version, (long long)l->version);
    if (version > l->version) {
        note_turn(l, NULL);
        n_unseen++;
    }
    l->lost = false;
}

/* The answer of one that is over. */
static void take_answer(struct log *l)
{
    struct reply *r = call_finish(l->call);
    l->call = NULL;
    if (front) { /* no client sees an error */
        acknowledged(l, expect(r, 200));
        return;
    }
    if (!r->whole) {
        l->lost = true;
        if (!l->busy_since)
            l->busy_since = client_now_ms();
        reply_free(r);
        return;
    }
    if (r->status == 409) {
        const char *code = str_at(r->json, "error.code");
        assert_true(!strcmp(code, "session_busy") || !strcmp(code, "idempotency_in_flight"));
        if (!l->busy_since)
            l->busy_since = client_now_ms();
        if (client_now_ms() - l->busy_since > 3 * FLEET_LEASE_MS)
            fail_msg("session %s stays busy", l->id);
        reply_free(r);
        return;
    }
    acknowledged(l, expect(r, 200));
}

static bool drive_one(struct log *l)
{
    if (!l->call) {
        if (l->lost && !l->keyed)
            find_out(l);
        else if (l->lost || l->busy_since)
            send_turn(l); /* again, as it was */
        else if (l->n_turns < TURNS_MAX - 4)
            begin_turn(l);
    }
    return l->call != NULL;
}

static bool is_over(const struct reply *r, void *arg)
{
    (void)arg;
    return r->over;
}

/* Nothing is on its way, and the mirror is to hear of all of it. */
static bool all_are_full(void)
{
    for (size_t i = 0; i < SESSIONS; i++)
        if (logs[i].call || logs[i].lost || logs[i].n_turns < TURNS_MAX - 4)
            return false;
    return true;
}

static void bring_up_to_date(void);

/* Lets all go on until so many more answers have come. */
static void run_load(size_t n)
{
    for (size_t until = n_acknowledged + n; n_acknowledged < until;) {
        struct log *some = NULL;
        for (size_t i = 0; i < SESSIONS; i++)
            if (drive_one(&logs[i]))
                some = &logs[i];
        if (!some) {
            if (all_are_full())
                bring_up_to_date();
            continue;
        }
        size_t from = draw(SESSIONS);
        for (size_t i = 0; i < SESSIONS; i++)
            if (logs[(from + i) % SESSIONS].call)
                some = &logs[(from + i) % SESSIONS];
        call_until(some->call, is_over, NULL);
        for (size_t i = 0; i < SESSIONS; i++)
            if (logs[i].call && call_reply(logs[i].call)->over)
                take_answer(&logs[i]);
    }
}

/* Until nothing is on its way, or open. */
static void settle(void)
{
    for (size_t i = 0; i < SESSIONS; i++) {
        struct log *l = &logs[i];
        while (l->call || l->lost || l->busy_since) {
            if (!l->call && l->lost && !l->keyed) {
                find_out(l);
                if (!l->lost)
                    l->busy_since = 0;
                continue;
            }
            if (!l->call)
                send_turn(l);
            take_answer(l);
        }
    }
}

static void bring_up_to_date(void)
{
    for (size_t t = 0; t < TURNS_MAX; t++) {
        struct call *k[SESSIONS] = {0};
        for (size_t i = 0; i < SESSIONS; i++) {
            char body[256];
            if (t >= logs[i].n_turns)
                continue;
            turn_body(body, logs[i].id, logs[i].turns[t].seed);
            k[i] = call_start(mirror.client, "POST", "/v1/generate", NULL, body, strlen(body));
        }
        for (size_t i = 0; i < SESSIONS; i++) {
            struct gen want;
            if (!k[i])
                continue;
            turn_finish(k[i], &want);
            if (logs[i].turns[t].g.r)
                output_same(&logs[i].turns[t].g.o, &want.o);
            gen_done(&want);
        }
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        for (size_t t = 0; t < logs[i].n_turns; t++)
            gen_done(&logs[i].turns[t].g);
        logs[i].n_turns = 0;
        assert_int_equal(session_version(front ? front : at_node(some_node()), logs[i].id),
                         logs[i].version);
    }
}

static void kill_one(unsigned i)
{
    fleet_node_signal(&fleet, i, SIGKILL);
    for (size_t n = 0; n < SESSIONS; n++)
        if (logs[n].call && logs[n].node == i)
            take_answer(&logs[n]);
    fleet_node_end(&fleet, i, 0);
}

static void load_begins(const char *prefix)
{
    for (size_t i = 0; i < SESSIONS; i++) {
        logs[i] = (struct log){.version = 0};
        snprintf(logs[i].id, sizeof logs[i].id, "%s%zu", prefix, i);
        create_both(logs[i].id);
    }
    n_acknowledged = n_unseen = n_replayed = 0;
}

static void killed_at_random_moments(void **state)
{
    (void)state;
    load_begins("s");
    for (unsigned round = 0; round < n_kills; round++) {
        run_load(20 + draw(80));
        unsigned i = some_node();
        kill_one(i);
        run_load(20);
        fleet_node_start(&fleet, i);
        if (round % 4 == 3) {
            settle();
            bring_up_to_date();
        }
    }
    settle();
    bring_up_to_date();
    print_message(
        "killed %u times: %u answers, all kept; %u turns had been applied unseen, %u were "
        "answered again; a session was unusable for %lld ms at most\n",
        n_kills, n_acknowledged, n_unseen, n_replayed, (long long)longest_ms);
    assert_true(longest_ms < 2 * FLEET_LEASE_MS);
}

/* --- behind a balancer -------------------------------------------------------------------------*/

/* Every node in its turn is told to end, under load, and started again. */
static void roll(void)
{
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        run_load(60);
        fleet_node_signal(&fleet, i, SIGTERM);
        while (!fleet_node_has_ended(&fleet, i))
            run_load(10);
        assert_int_equal(fleet_node_end(&fleet, i, 0), 0);
        run_load(60);
        fleet_node_start(&fleet, i);
        settle();
        bring_up_to_date();
    }
}

static void behind(enum balancer_kind kind, const char *prefix, void (*test)(void))
{
    unsigned ports[FLEET_NODES];
    for (unsigned i = 0; i < FLEET_NODES; i++)
        ports[i] = fleet.node[i].port;
    struct balancer *b = balancer_start(kind, ports);
    load_begins(prefix);
    front = client_open(balancer_base(b));
    client_unrecorded(front);
    test();
    client_close(front);
    front = NULL;
    balancer_stop(b);
}

static void a_rolling_restart_is_seen_by_nobody(void **state)
{
    (void)state;
    behind(BALANCER_HAPROXY_FLEET, "h", roll);
}

/* A node that is gone: its sessions are served elsewhere. */
static void lose_one(void)
{
    run_load(60);
    settle();
    fleet_node_end(&fleet, 1, SIGKILL);
    run_load(120);
    settle();
    bring_up_to_date();
    fleet_node_start(&fleet, 1);
}

static void a_node_that_is_gone_is_not_missed(void **state)
{
    (void)state;
    behind(BALANCER_HAPROXY_FLEET, "g", lose_one);
    behind(BALANCER_NGINX_FLEET, "n", lose_one);
}

/* --- trouble with Redis ------------------------------------------------------------------------*/

static struct call *plain_turn(unsigned node, unsigned seed)
{
    return turn_start(at_node(node), "trouble", "Once", seed);
}

/* A turn is refused with that, and the session is as it was. Gives the message (16 calls long). */
static void is_refused(unsigned node, const char *code, const char *text)
{
    struct reply *r = expect(call_finish(plain_turn(node, 99)), 503);
    const char *message = str_at(r->json, "error.message");
    if (strcmp(str_at(r->json, "error.code"), code) != 0 || !strstr(message, text))
        fail_msg("'%s' instead of %s, '%s'", message, code, text);
    assert_non_null(reply_header(r, "Retry-After"));
    reply_free(r);
}

/* Service comes back by itself; then the session is the mirror's. */
static void comes_back(unsigned seed)
{
    struct gen got, want;
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (unsigned i = 0; i < FLEET_NODES; i++) {
        struct reply *r;
        for (;;) {
            r = call_finish(plain_turn(i, seed + i));
            if (r->status == 200)
                break;
            assert_true(r->status == 503 || r->status == 409); /* a lease that was not given back */
            reply_free(r);
            if (client_now_ms() > deadline)
                fail_msg("no service on node %u any more", i);
        }
        got.r = r;
        output_of(r, &got.o);
        turn_of(mirror.client, &want, "trouble", "Once", seed + i);
        output_same(&got.o, &want.o);
        assert_int_equal(int_at(got.r->json, "version"), int_at(want.r->json, "version"));
        gen_done(&got);
        gen_done(&want);
    }
}

static void redis_is_restarted(void **state)
{
    (void)state;
    create_both("trouble");
    comes_back(1);
    redis_end(&fleet.redis, SIGTERM);
    is_refused(0, "store_unavailable", "the store is not there");
    expect_error(get(at_node(1), "/v1/sessions"), 503, "store_unavailable", NULL);
    expect_error(get(at_node(1), "/v1/sessions/trouble"), 503, "store_unavailable", NULL);
    expect_error(post(at_node(2), "/v1/sessions", "{'id':'none'}"), 503, "store_unavailable", NULL);
    reply_free(
        expect(post(at_node(2), "/v1/generate", "{'prompt':'no session','max_tokens':1}"), 200));
    redis_start(&fleet.redis);
    comes_back(10);
    redis_end(&fleet.redis, SIGKILL); /* what it acknowledged is there */
    redis_start(&fleet.redis);
    comes_back(20);
    /* It forgets its scripts. */
    redis_do(&fleet.redis, "SCRIPT FLUSH");
    comes_back(30);
}

/* A turn outlives an outage that is shorter than its lease. */
static void a_turn_outlives_a_restart(void **state)
{
    (void)state;
    struct call *k = stream_start(at_node(0), "'session':'trouble','prompt':'Tell','seed':40,"
                                              "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    redis_end(&fleet.redis, SIGTERM);
    call_until_events(k, 50);
    redis_start(&fleet.redis);
    for (unsigned i = 0; i < FLEET_NODES; i++)
        until_metric(at_node(i), "slate_store_read_only", 0);
    struct reply *c = expect(session_post(at_node(0), "trouble", "/cancel"), 200);
    reply_free(c);
    struct reply *r = expect(call_finish(k), 200);
    assert_true(r->done);
    const json_t *last = r->events[r->n_events - 1];
    assert_string_equal(str_at(last, "finish_reason"), "cancelled");
    int64_t version = int_at(last, "version");
    reply_free(r);
    for (unsigned i = 0; i < FLEET_NODES; i++)
        assert_int_equal(session_version(at_node(i), "trouble"), version);
    /* The mirror knows nothing of it. */
    reply_free(expect(del(at_node(1), "/v1/sessions/trouble"), 200));
    reply_free(expect(del(mirror.client, "/v1/sessions/trouble"), 200));
    create_both("trouble");
    comes_back(50);
}

/* It is there, and says nothing: the answers come late, or never. */
static void redis_is_slow(void **state)
{
    (void)state;
    redisContext *c = redis_say(&fleet.redis, "DEBUG SLEEP %s", "0.5"); /* less than the limit */
    reply_free(expect(call_finish(plain_turn(0, 60)), 200));
    struct gen g;
    turn_of(mirror.client, &g, "trouble", "Once", 60);
    gen_done(&g);
    redisFree(c);
    c = redis_say(&fleet.redis, "DEBUG SLEEP %s", "2.5");
    is_refused(0, "store_unavailable", "does not answer");
    comes_back(70);
    redisFree(c);
    redis_do(&fleet.redis, "CLIENT PAUSE %d ALL", 2500);
    is_refused(1, "store_unavailable", "does not answer");
    comes_back(80);
    redis_signal(&fleet.redis, SIGSTOP);
    is_refused(2, "store_unavailable", "does not answer");
    redis_signal(&fleet.redis, SIGCONT);
    comes_back(90);
}

static void redis_takes_no_writes(void **state)
{
    (void)state;
    redis_do(&fleet.redis, "CONFIG SET maxmemory 1");
    is_refused(0, "store_full", "it has no memory left");
    expect_error(post(at_node(1), "/v1/sessions", "{'id':'none'}"), 503, "store_full", NULL);
    reply_free(session_get(at_node(2), "trouble")); /* is still read */
    redis_do(&fleet.redis, "CONFIG SET maxmemory 0");
    comes_back(100);
    /* Full while a turn runs: it is not committed, and says so. */
    struct call *k = stream_start(at_node(0), "'session':'trouble','prompt':'Tell','seed':5,"
                                              "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    redis_do(&fleet.redis, "CONFIG SET maxmemory 1");
    reply_free(expect(session_post(at_node(0), "trouble", "/cancel"), 200));
    struct reply *r = expect(call_finish(k), 200);
    assert_false(r->done);
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "store_full");
    reply_free(r);
    reply_free(expect(del(at_node(1), "/v1/sessions/seen"), 200)); /* makes room */
    redis_do(&fleet.redis, "CONFIG SET maxmemory 0");
    comes_back(110);
    redis_do(&fleet.redis, "REPLICAOF 127.0.0.1 1");
    is_refused(0, "store_unavailable", "read-only replica");
    redis_do(&fleet.redis, "REPLICAOF NO ONE");
    comes_back(120);
}

/* The way to Redis is cut: nothing comes back, no refusal either. */
static void redis_cannot_be_reached(void **state)
{
    struct redis far;
    char store[80];
    (void)state;
    if (!redis_init_far(&far, "far")) {
        print_message("skipped: a network namespace, which takes root\n");
        skip();
    }
    snprintf(store, sizeof store, "--store=%s", far.spec);
    struct api a;
    api_start(&a, (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(), store,
                                        "--store-timeout=1s", "--lease=3s", NULL});
    client_unrecorded(a.client);
    reply_free(expect(post(a.client, "/v1/sessions", "{'id':'far'}"), 201));
    reply_free(expect(call_finish(turn_start(a.client, "far", "Once", 1)), 200));
    struct call *k = stream_start(a.client, "'session':'far','prompt':'Tell','seed':2,"
                                            "'max_tokens':1000000,'ignore_eos':true");
    call_until_events(k, 2);
    redis_cut(&far, true);
    expect_error(post(a.client, "/v1/sessions", "{'id':'none'}"), 503, "store_unavailable", NULL);
    expect_error(get(a.client, "/v1/sessions"), 503, "store_unavailable", NULL);
    struct reply *r = expect(call_finish(k), 200); /* it cannot be renewed any more */
    assert_string_equal(str_at(r->events[r->n_events - 1], "error.code"), "lease_lost");
    reply_free(r);
    redis_cut(&far, false);
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (long status = 0; status != 200;) {
        r = call_finish(turn_start(a.client, "far", "Once", 3));
        status = r->status;
        assert_true(status == 200 || status == 503);
        if (status == 200)
            assert_int_equal(int_at(r->json, "version"), 2);
        reply_free(r);
        assert_true(client_now_ms() < deadline);
    }
    api_stop(&a);
    redis_done(&far);
}

/* A key that somebody wrote over, or a byte of a snapshot: named, and nobody else is touched. */
static void redis_holds_something_else(void **state)
{
    (void)state;
    create_both("odd");
    redis_do(&fleet.redis, "DEL slate1:{default/odd}");
    redis_do(&fleet.redis, "SET slate1:{default/odd} text");
    expect_error(post(at_node(1), "/v1/generate", "{'session':'odd','prompt':'x'}"), 500,
                 "store_corrupt", NULL);
    redis_do(&fleet.redis, "DEL slate1:{default/odd}");
    redis_do(&fleet.redis, "HSET slate1:{default/odd} inc 12");
    expect_error(get(at_node(1), "/v1/sessions/odd"), 500, "store_corrupt", NULL);
    redis_do(&fleet.redis, "DEL slate1:{default/odd}");
    expect_error(get(at_node(1), "/v1/sessions/odd"), 404, "session_not_found", "session");
    comes_back(130);
}

/* --- all of it ---------------------------------------------------------------------------------*/

static int start(void **state)
{
    (void)state;
    api_start(&mirror, (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                             "--sessions-in-memory=512", NULL});
    client_unrecorded(mirror.client);
    fleet_start(&fleet, "fleet",
                (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(),
                                      "--sessions-in-memory=16", "--replay-limit=60",
                                      "--drain-delay=3s", NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fleet_abandon(&fleet);
    api_stop(&mirror);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_on_changing_nodes),
        cmocka_unit_test(pauses_and_forks_move),
        cmocka_unit_test(changes_are_seen_everywhere),
        cmocka_unit_test(keys_count_on_every_node),
        cmocka_unit_test(one_turn_at_a_time_in_all_of_it),
        cmocka_unit_test(a_rolling_restart_is_seen_by_nobody),
        cmocka_unit_test(a_node_that_is_gone_is_not_missed),
        cmocka_unit_test(redis_is_restarted),
        cmocka_unit_test(a_turn_outlives_a_restart),
        cmocka_unit_test(redis_is_slow),
        cmocka_unit_test(redis_takes_no_writes),
        cmocka_unit_test(redis_cannot_be_reached),
        cmocka_unit_test(redis_holds_something_else),
        cmocka_unit_test(who_sleeps_loses_the_lease),
        cmocka_unit_test(killed_at_random_moments),
    };
    if (argc > 1)
        n_kills = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2) /* what a failure printed */
        random_state = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("fleet", tests, start, stop);
}
