/* fleet_load.c: see fleet_load.h. */
#include "tests/support/fleet_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/told.h"

enum { SESSIONS = 32, CLOCK_MS = 5 };

static uint64_t random_state = 0x9E3779B97F4A7C15u;
static struct twin *twin;
static struct client *front; /* of a balancer; NULL: the nodes are asked themselves */

void load_seed(uint64_t seed)
{
    random_state = seed;
}

uint64_t load_draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

struct log {
    struct told told;
    struct call *call; /* on its way */
    unsigned node;     /* where it was sent */
    bool keyed, lost;  /* lost: sent, and its server died */
    unsigned seed;
    int64_t sent_at;
    int64_t busy_since; /* refused as busy since then, or its server died; 0: not */
    char body[TOLD_BODY], key[40];
};

static struct log logs[SESSIONS];
static unsigned n_seeds, n_acknowledged, n_unseen, n_replayed, n_away, n_unknown;
static int64_t longest_ms;
static int64_t away_until; /* what was sent later finds the store; INT64_MAX: it is away now */

static void note_turn(struct log *l, struct reply *r)
{
    told_turn(&l->told, l->seed, r);
    l->lost = false;
}

unsigned load_node(void)
{
    unsigned i;
    do
        i = (unsigned)load_draw(FLEET_NODES);
    while (!twin->fleet.node[i].server);
    return i;
}

static void send_turn(struct log *l)
{
    char lines[64];
    snprintf(lines, sizeof lines, "Idempotency-Key: %s", l->key);
    l->node = load_node();
    l->sent_at = client_now_ms();
    if (front) /* half of them tell the balancer which session it is */
        snprintf(lines, sizeof lines, "X-Slate-Session: %s", l->told.id);
    l->call = call_start(front ? front : fleet_at(&twin->fleet, l->node), "POST", "/v1/generate",
                         l->keyed ? lines : NULL, l->body, strlen(l->body));
}

static void begin_turn(struct log *l)
{
    l->keyed = load_draw(2);
    l->seed = ++n_seeds;
    snprintf(l->key, sizeof l->key, "key-%u", l->seed);
    told_body(l->body, l->told.id, l->seed);
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
    assert_int_equal(int_at(r->json, "version"), l->told.version);
    n_acknowledged++;
}

/* A turn that was lost without a key: did it happen? Known when nobody has the session any more. */
static void find_out(struct log *l)
{
    struct reply *r =
        expect(get(fleet_at(&twin->fleet, load_node()), session_path(l->told.id, "")), 200);
    int64_t version = int_at(r->json, "version");
    bool busy = bool_at(r->json, "busy");
    reply_free(r);
    if (busy)
        return;
    if (version != l->told.version && version != l->told.version + 1)
        fail_msg("session %s is at version %lld; %lld was the last that was acknowledged",
                 l->told.id, (long long)version, (long long)l->told.version);
    if (version > l->told.version) {
        note_turn(l, NULL);
        n_unseen++;
    }
    l->lost = false;
}

/* No answer, or none that tells what became of the turn. */
static void note_lost(struct log *l, struct reply *r)
{
    l->lost = true;
    if (!l->busy_since)
        l->busy_since = client_now_ms();
    reply_free(r);
}

/* The store was away: a 503 is a turn that did not happen and can be asked for again as it was, a
 * 504 one of which nobody knows. */
static void note_away(struct log *l, struct reply *r)
{
    if (l->sent_at > away_until)
        fail_msg("session %s is refused although Redis is back: %s", l->told.id, r->body);
    if (r->status == 504) {
        n_unknown++;
        assert_string_equal(str_at(r->json, "error.code"), "commit_unknown");
        note_lost(l, r);
        return;
    }
    n_away++;
    assert_string_equal(str_at(r->json, "error.code"), "store_unavailable");
    if (!l->busy_since)
        l->busy_since = client_now_ms();
    reply_free(r);
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
        note_lost(l, r);
        return;
    }
    if (r->status == 503 || r->status == 504) {
        note_away(l, r);
        return;
    }
    if (r->status == 409) {
        const char *code = str_at(r->json, "error.code");
        assert_true(!strcmp(code, "session_busy") || !strcmp(code, "idempotency_in_flight"));
        if (!l->busy_since)
            l->busy_since = client_now_ms();
        /* By when it was asked, not answered: the machine may be slow, the lease is over. */
        if (l->sent_at - l->busy_since > FLEET_LEASE_MS + CLOCK_MS)
            fail_msg("session %s is busy for longer than a lease", l->told.id);
        reply_free(r);
        return;
    }
    acknowledged(l, expect(r, 200));
}

static bool drive_one(struct log *l)
{
    if (!l->call) {
        if (l->lost && !l->keyed && away_until == INT64_MAX)
            ; /* who could tell is away */
        else if (l->lost && !l->keyed)
            find_out(l);
        else if (l->lost || l->busy_since)
            send_turn(l); /* again, as it was */
        else if (l->told.n_turns < TOLD_TURNS_MAX - 4)
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
        if (logs[i].call || logs[i].lost || logs[i].told.n_turns < TOLD_TURNS_MAX - 4)
            return false;
    return true;
}

/* Whoever can has a call under way, and one or more are answered; false: nobody can. */
static bool go_on(void)
{
    struct log *some = NULL;
    for (size_t i = 0; i < SESSIONS; i++)
        if (drive_one(&logs[i]))
            some = &logs[i];
    if (!some)
        return false;
    size_t from = load_draw(SESSIONS);
    for (size_t i = 0; i < SESSIONS; i++)
        if (logs[(from + i) % SESSIONS].call)
            some = &logs[(from + i) % SESSIONS];
    call_until(some->call, is_over, NULL);
    for (size_t i = 0; i < SESSIONS; i++)
        if (logs[i].call && call_reply(logs[i].call)->over)
            take_answer(&logs[i]);
    return true;
}

void load_run(size_t n)
{
    for (size_t until = n_acknowledged + n; n_acknowledged < until;)
        if (!go_on() && all_are_full())
            load_check();
}

/* Until nothing is on its way, or open. */
void load_settle(void)
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

void load_check(void)
{
    told_compare(&logs[0].told, sizeof *logs, SESSIONS, twin->mirror.client);
    for (size_t i = 0; i < SESSIONS; i++)
        assert_int_equal(
            session_version(front ? front : fleet_at(&twin->fleet, load_node()), logs[i].told.id),
            logs[i].told.version);
}

void load_killed(unsigned node)
{
    for (size_t i = 0; i < SESSIONS; i++)
        if (logs[i].call && logs[i].node == node)
            take_answer(&logs[i]);
}

void load_kill_redis(unsigned n_refused)
{
    away_until = INT64_MAX;
    fleet_kill_redis(&twin->fleet);
    for (unsigned until = n_away + n_unknown + n_refused; n_away + n_unknown < until;)
        if (!go_on())
            break;
    fleet_redis_is_back(&twin->fleet, false);
    away_until = client_now_ms();
    for (size_t i = 0; i < SESSIONS; i++) /* a lease counts on through it */
        if (logs[i].busy_since)
            logs[i].busy_since = away_until;
}

void load_begin(struct twin *t, struct client *balancer, const char *prefix)
{
    twin = t;
    front = balancer;
    for (size_t i = 0; i < SESSIONS; i++) {
        logs[i] = (struct log){.call = NULL};
        snprintf(logs[i].told.id, sizeof logs[i].told.id, "%s%zu", prefix, i);
        twin_create(t, logs[i].told.id);
    }
    n_acknowledged = n_unseen = n_replayed = n_away = n_unknown = 0;
    longest_ms = away_until = 0;
}

struct load_counts load_counts(void)
{
    return (struct load_counts){n_acknowledged, n_unseen,  n_replayed,
                                n_away,         n_unknown, longest_ms};
}
