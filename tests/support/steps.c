/* steps.c: see steps.h. */
#include "tests/support/steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"

enum { KEEP_TURNS = 3, KEPT = 4, DEPTH_LIMIT = 24, CHECK_EVERY = 40, STEPS_MIN = 60 };

/* A snapshot that a client keeps. */
struct kept {
    struct bytes b; /* p NULL: none */
    const struct history *told, *paused;
};

static struct kept kept[KEPT];
static unsigned n_keys;
static size_t n_steps;

static void say(const char *what, const struct session *s)
{
    if (getenv("SLATE_TEST_VERBOSE"))
        print_message("%zu: %s %s (version %lld)\n", n_steps, what, s ? s->id : "",
                      s ? (long long)s->version : 0LL);
}

static void do_turn(struct session *s)
{
    struct flight f = begin_turn(s, draw(2), NULL);
    finish_turn(&f);
}

static void do_turns(struct session *s)
{
    struct flight f[4];
    size_t n = begin_turns(f, 4);
    (void)s;
    for (size_t i = 0; i < n; i++)
        finish_turn(&f[i]);
}

/* One turn at a time: the second is refused, or comes after the first. */
static void do_two_turns(struct session *s)
{
    struct flight f[2] = {begin_turn(s, false, NULL), begin_turn(s, false, NULL)};
    struct reply *r[2] = {call_finish(f[0].call), call_finish(f[1].call)};
    bool ran[2] = {r[0]->status == 200, r[1]->status == 200};
    assert_true(ran[0] || ran[1]);
    bool swapped = ran[0] && ran[1] && int_at(r[1]->json, "version") == s->version + 1;
    for (size_t i = 0; i < 2; i++) {
        size_t k = swapped ? 1 - i : i;
        if (ran[k]) {
            turn_answered(&f[k], r[k]);
            reply_free(r[k]);
        } else {
            expect_error(r[k], 409, "session_busy", "session");
        }
    }
}

static void do_cancel(struct session *s)
{
    struct flight f = begin_turn(s, true, NULL);
    stream_until(f.call, modelled_begun() + draw(4));
    reply_free(expect(session_post(modelled_client(), s->id, "/cancel"), 200));
    finish_turn(&f);
}

/* What goes on with it is another turn, or its rest. */
static void do_pause_turn(struct session *s)
{
    struct flight f = begin_turn(s, true, NULL);
    stream_until(f.call, modelled_begun() + draw(4));
    struct call *pause = pause_start(modelled_client(), s->id);
    finish_turn(&f);
    reply_free(expect(call_finish(pause), 200));
}

static void do_go_on(struct session *s)
{
    struct reply *r =
        post(modelled_client(), "/v1/generate",
             "{'session':'%s','resume':true,'return_tokens':true,'logprobs':1}", s->id);
    if (!s->paused) {
        assert_int_equal(r->status / 100, 4);
        reply_free(r);
        return;
    }
    expect(r, 200);
    s->told = history_resumed(&modelled.histories, s->paused, r);
    s->paused = NULL;
    assert_int_equal(int_at(r->json, "version"), ++s->version);
    note_version(s);
    assert_string_equal(str_at(r->json, "finish_reason"), "length");
    assert_int_equal(s->told->n, s->told->max_tokens);
    reply_free(r);
}

static void do_hang_up(struct session *s)
{
    struct flight f = begin_turn(s, true, NULL);
    stream_until(f.call, modelled_begun() + draw(3));
    call_abort(f.call);
    resolve_turn(&f);
}

static void do_keyed(struct session *s)
{
    struct flight f = {.s = s, .seed = ++modelled.n_seeds, .max_tokens = draw(TOKENS_MAX)};
    struct keyed *k = &s->keyed;
    char lines[64];
    forget_keyed(s);
    snprintf(k->key, sizeof k->key, "key-%u", ++n_keys);
    snprintf(lines, sizeof lines, "Idempotency-Key: %s", k->key);
    history_body(k->body, s->id, f.seed, f.max_tokens, false);
    struct reply *r = expect(
        request(modelled_client(), "POST", "/v1/generate", lines, k->body, strlen(k->body)), 200);
    turn_answered(&f, r);
    k->answer = malloc(r->n_body + 1);
    assert_non_null(k->answer);
    memcpy(k->answer, r->body, r->n_body);
    k->n = r->n_body;
    reply_free(r);
}

static void do_again(struct session *s)
{
    struct keyed *k = &s->keyed;
    char lines[64];
    if (!k->answer) {
        do_keyed(s);
        return;
    }
    snprintf(lines, sizeof lines, "Idempotency-Key: %s", k->key);
    if (draw(3) == 0) {
        char other[320];
        history_body(other, s->id, 1, 1, false);
        struct reply *r =
            request(modelled_client(), "POST", "/v1/generate", lines, other, strlen(other));
        assert_int_equal(r->status, 422);
        reply_free(r);
        return;
    }
    struct reply *r = expect(
        request(modelled_client(), "POST", "/v1/generate", lines, k->body, strlen(k->body)), 200);
    assert_non_null(reply_header(r, "Idempotent-Replayed"));
    assert_true(r->n_body == k->n && !memcmp(r->body, k->answer, k->n));
    reply_free(r);
}

static void do_match(struct session *s)
{
    char lines[120];
    bool right = draw(2);
    snprintf(lines, sizeof lines, "If-Match: %s", etag_of(s, s->version - !right));
    struct flight f = begin_turn(s, false, lines);
    if (right) {
        finish_turn(&f);
        return;
    }
    struct reply *r = call_finish(f.call);
    assert_int_equal(r->status, 412);
    reply_free(r);
}

/* --- sessions ----------------------------------------------------------------------------------*/

static void do_create(struct session *s)
{
    struct session *n = some_session(false);
    if (!n) {
        expect_error(post(modelled_client(), "/v1/sessions", "{'id':'%s'}", s->id), 409,
                     "session_exists", "id");
        return;
    }
    struct reply *r = expect(post(modelled_client(), "/v1/sessions", "{'id':'%s'}", n->id), 201);
    is_new(n, r);
    assert_int_equal(n->version, 0);
    note_version(n);
    reply_free(r);
}

static void do_fork(struct session *s)
{
    struct session *n = some_session(false);
    if (!n) {
        expect_error(post(modelled_client(), session_path(s->id, "/fork"), "{'id':'%s'}",
                          modelled.sessions[0].id),
                     409, "session_exists", "id");
        return;
    }
    struct reply *r =
        draw(2) ? post(modelled_client(), session_path(s->id, "/fork"), "{'id':'%s'}", n->id)
                : post(modelled_client(), "/v1/sessions", "{'id':'%s','from':'%s'}", n->id, s->id);
    is_new(n, expect(r, 201));
    is_as(n, &(struct past){.told = s->told, .paused = s->paused});
    n->metadata = at(r->json, "metadata.n") ? int_at(r->json, "metadata.n") : 0;
    assert_int_equal(n->version, s->version);
    assert_string_not_equal(n->incarnation, s->incarnation);
    reply_free(r);
}

static void do_delete(struct session *s)
{
    if (count_sessions() < 4 && s->told && s->told->depth < DEPTH_LIMIT)
        return;
    reply_free(expect(del(modelled_client(), session_path(s->id, "")), 200));
    is_gone(s);
    expect_error(del(modelled_client(), session_path(s->id, "")), 404, "session_not_found",
                 "session");
}

static void do_patch(struct session *s)
{
    reply_free(expect(patch(modelled_client(), session_path(s->id, ""), "{'metadata':{'n':%lld}}",
                            (long long)s->metadata + 1),
                      200));
    s->metadata++;
}

static void do_pause(struct session *s)
{
    struct client *c = modelled_client();
    reply_free(expect(session_post(c, s->id, "/pause"), 200));
    assert_true(modelled.forgets || !session_in_memory(c, s->id));
}

static void do_resume(struct session *s)
{
    struct client *c = modelled_client();
    reply_free(expect(session_post(c, s->id, "/resume"), 200));
    assert_true(session_in_memory(c, s->id));
}

static void do_keep(struct session *s)
{
    struct kept *k = &kept[draw(KEPT)];
    sl_free(k->b.p);
    k->b = snapshot_get(modelled_client(), s->id, "");
    k->told = s->told;
    k->paused = s->paused;
    assert_string_equal(k->b.etag, etag_of(s, s->version));
}

static void do_restore(struct session *s)
{
    struct kept *k = &kept[draw(KEPT)];
    struct session *n = some_session(false);
    char line[120];
    if (!k->b.p)
        return;
    bool over = !n || draw(2), damaged = draw(4) == 0;
    struct session before = *s;
    snprintf(line, sizeof line, "If-Match: %s", etag_of(s, s->version));
    size_t at_byte = k->b.n / 2;
    if (damaged)
        k->b.p[at_byte] ^= 1;
    struct reply *r =
        snapshot_put(modelled_client(), over ? s->id : n->id, k->b.p, k->b.n, over ? line : NULL);
    if (damaged) {
        k->b.p[at_byte] ^= 1;
        assert_int_equal(r->status / 100, 4);
        reply_free(r);
        return;
    }
    struct session *t = over ? s : n;
    is_new(t, expect(r, over ? 200 : 201));
    t->told = k->told;
    t->paused = k->paused;
    if (over) { /* what it was before can be had back */
        memcpy(t->past, before.past, sizeof t->past);
        t->n_past = before.n_past;
        memcpy(t->named, before.named, sizeof t->named);
    }
    note_version(t);
    if (over) {
        assert_string_equal(t->incarnation, before.incarnation);
        assert_true(t->version > before.version);
    }
    reply_free(r);
    r = session_get(modelled_client(), t->id);
    t->metadata = at(r->json, "metadata.n") ? int_at(r->json, "metadata.n") : 0;
    reply_free(r);
}

static void do_wrong(struct session *s)
{
    (void)s;
    expect_error(post(modelled_client(), "/v1/generate", "{'session':'nobody','prompt':'x'}"), 404,
                 "session_not_found", "session");
    expect_error(
        post(modelled_client(), "/v1/sessions/nobody/fork", "{'id':'%s'}", modelled.sessions[0].id),
        404, "session_not_found", "session");
    expect_error(session_post(modelled_client(), "nobody", "/pause"), 404, "session_not_found",
                 "session");
}

/* Back to one of the versions that are kept: as many as was promised, or all there were. */
static void do_rewind(struct session *s)
{
    const char *path = session_path(s->id, "/checkpoints");
    struct reply *r = expect(get(modelled_client(), path), 200);
    const json_t *data = at(r->json, "data");
    size_t n = json_array_size(data);
    assert_true(n >= 1 && (n > KEEP_TURNS || n >= s->n_sure));
    assert_int_equal(int_at(json_array_get(data, n - 1), "version"), s->version);
    int64_t version = int_at(json_array_get(data, draw(n)), "version");
    reply_free(r);
    const struct past *p = past_of(s, version);
    if (!p) { /* with a name, or on the way to one; else it never was */
        assert_true(s->n_past == PAST_MAX && version < s->past[0].version);
        return;
    }
    const struct past then = *p;
    r = post(modelled_client(), session_path(s->id, "/rewind"), "{'version':%lld}",
             (long long)version);
    assert_int_equal(int_at(expect(r, 200)->json, "version"), ++s->version);
    is_as(s, &then);
    reply_free(r);
}

/* A name for what it is now; one that it has goes first, or is in the way. */
static void do_name(struct session *s)
{
    size_t i = draw(NAMES);
    struct past *p = &s->named[i];
    char rest[40];
    snprintf(rest, sizeof rest, "/checkpoints/n%zu", i);
    const char *path = session_path(s->id, "/checkpoints");
    if (p->version >= 0 && p->version != s->version)
        expect_error(post(modelled_client(), path, "{'name':'n%zu'}", i), 409, "checkpoint_exists",
                     "name");
    struct reply *r = del(modelled_client(), session_path(s->id, rest));
    if (p->version < 0)
        expect_error(r, 404, "checkpoint_not_found", "checkpoint");
    else
        reply_free(expect(r, 200));
    p->version = -1;
    if (draw(4) == 0)
        return;
    r = expect(post(modelled_client(), path, "{'name':'n%zu'}", i), 201);
    *p = (struct past){.version = s->version, .told = s->told, .paused = s->paused};
    assert_int_equal(int_at(r->json, "version"), s->version);
    reply_free(r);
}

static void do_back_to_name(struct session *s)
{
    size_t i = draw(NAMES);
    struct reply *r =
        post(modelled_client(), session_path(s->id, "/rewind"), "{'checkpoint':'n%zu'}", i);
    if (s->named[i].version < 0) {
        expect_error(r, 404, "checkpoint_not_found", "checkpoint");
        return;
    }
    assert_int_equal(int_at(expect(r, 200)->json, "rewound_to"), s->named[i].version);
    assert_int_equal(int_at(r->json, "version"), ++s->version);
    is_as(s, &s->named[i]);
    reply_free(r);
}

static void do_fork_at_name(struct session *s)
{
    size_t i = draw(NAMES);
    struct session *n = some_session(false);
    if (!n || s->named[i].version < 0)
        return;
    struct reply *r = expect(post(modelled_client(), session_path(s->id, "/fork"),
                                  "{'id':'%s','checkpoint':'n%zu'}", n->id, i),
                             201);
    is_new(n, r);
    assert_int_equal(n->version, s->named[i].version);
    is_as(n, &s->named[i]);
    n->metadata = at(r->json, "metadata.n") ? int_at(r->json, "metadata.n") : 0;
    reply_free(r);
}

/* --- a run -------------------------------------------------------------------------------------*/

static const struct step steps[] = {
    {"turn", do_turn, 20},
    {"turns", do_turns, 10},
    {"two turns", do_two_turns, 4},
    {"cancel", do_cancel, 6},
    {"pause turn", do_pause_turn, 6},
    {"go on", do_go_on, 8},
    {"hang up", do_hang_up, 6},
    {"keyed", do_keyed, 5},
    {"again", do_again, 6},
    {"match", do_match, 5},
    {"create", do_create, 6},
    {"fork", do_fork, 8},
    {"delete", do_delete, 7},
    {"patch", do_patch, 5},
    {"pause", do_pause, 6},
    {"resume", do_resume, 4},
    {"keep", do_keep, 5},
    {"restore", do_restore, 6},
    {"rewind", do_rewind, 6},
    {"name", do_name, 6},
    {"back to a name", do_back_to_name, 5},
    {"fork at a name", do_fork_at_name, 4},
    {"wrong", do_wrong, 1},
};

enum { N_STEPS = sizeof steps / sizeof *steps };

static const struct step *draw_step(const struct step *more, size_t n_more)
{
    const struct step *all[2] = {steps, more};
    size_t n[2] = {N_STEPS, n_more};
    unsigned sum = 0;
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < n[k]; i++)
            sum += all[k][i].weight;
    unsigned at_weight = (unsigned)draw(sum);
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < n[k]; i++) {
            if (at_weight < all[k][i].weight)
                return &all[k][i];
            at_weight -= all[k][i].weight;
        }
    }
    return NULL;
}

static void one_step(const struct step *more, size_t n_more)
{
    struct session *s = some_session(true);
    if (!s) {
        do_create(NULL);
        return;
    }
    const struct step *what = draw_step(more, n_more);
    if (s->told && s->told->depth >= DEPTH_LIMIT) { /* the oracle has to read all of it */
        say("delete", s);
        do_delete(s);
        return;
    }
    say(what->name, s);
    what->run(s);
    check_session(s);
}

void steps_args(struct steps *ret, int argc, char **argv)
{
    ret->seconds = argc > 1 ? strtod(argv[1], NULL) : ret->seconds;
    ret->seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
}

void steps_run(const struct steps *how, const char *where)
{
    int64_t end = client_now_ms() + (int64_t)(how->seconds * 1000);
    modelled.random_state = how->seed * 0x9E3779B97F4A7C15u + 1;
    n_steps = modelled.n_restarts = modelled.n_unseen = 0;
    print_message("seed %llu on %s\n", (unsigned long long)how->seed, where);
    for (size_t i = 0; i < SESSIONS; i++)
        snprintf(modelled.sessions[i].id, sizeof modelled.sessions[i].id, "s%zu", i);
    while (client_now_ms() < end || n_steps < STEPS_MIN) {
        modelled_rest();
        one_step(how->more, how->n_more);
        if (++n_steps % CHECK_EVERY == 0) {
            check_all();
            histories_check(&modelled.histories);
        }
    }
    check_all();
    histories_check(&modelled.histories);
    print_message("%zu steps, %zu restarts, %zu turns that nobody saw, %zu turns told again\n",
                  n_steps, modelled.n_restarts, modelled.n_unseen, modelled.histories.n_checked);
    assert_true(modelled.histories.n_checked > 20);
}

void steps_done(void)
{
    for (size_t i = 0; i < SESSIONS; i++)
        is_gone(&modelled.sessions[i]);
    for (size_t i = 0; i < KEPT; i++) {
        sl_free(kept[i].b.p);
        kept[i] = (struct kept){.told = NULL};
    }
    histories_done(&modelled.histories);
}
