/* modelled.c: see modelled.h. */
#include "tests/support/modelled.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct modelled modelled;

struct client *modelled_client(void)
{
    struct client *c;
    if (!modelled.fleet)
        return modelled.node.a.client;
    do
        c = fleet_at(modelled.fleet, (unsigned)draw(FLEET_NODES));
    while (c == modelled.away);
    return c;
}

void modelled_rest(void)
{
    for (size_t i = 0; modelled.fleet && i < SESSIONS; i++)
        if (modelled.sessions[i].exists)
            until_free(modelled_client(), modelled.sessions[i].id);
}

size_t modelled_begun(void)
{
    return modelled.fleet ? 1 : 0;
}

uint64_t draw(uint64_t below)
{
    uint64_t *r = &modelled.random_state;
    *r ^= *r << 13;
    *r ^= *r >> 7;
    *r ^= *r << 17;
    return (*r >> 11) % below;
}

/* --- the model ---------------------------------------------------------------------------------*/

/* One that exists, or one that does not; NULL: none is. */
struct session *some_session(bool exists)
{
    size_t first = draw(SESSIONS);
    for (size_t i = 0; i < SESSIONS; i++) {
        struct session *s = &modelled.sessions[(first + i) % SESSIONS];
        if (s->exists == exists)
            return s;
    }
    return NULL;
}

size_t count_sessions(void)
{
    size_t n = 0;
    for (size_t i = 0; i < SESSIONS; i++)
        n += modelled.sessions[i].exists;
    return n;
}

static void split_etag(const struct reply *r, char incarnation[40], int64_t *version)
{
    const char *etag = reply_header(r, "ETag");
    long long v = -1;
    assert_non_null(etag);
    assert_int_equal(sscanf(etag, "\"%32[0-9a-f]-%lld\"", incarnation, &v), 2);
    *version = v;
}

void forget_keyed(struct session *s)
{
    free(s->keyed.answer);
    s->keyed = (struct keyed){.answer = NULL};
}

void note_version(struct session *s)
{
    struct past now = {.version = s->version, .told = s->told, .paused = s->paused};
    if (s->n_past && s->past[s->n_past - 1].version == s->version)
        s->n_past--;
    else
        s->n_sure++;
    if (s->n_past == PAST_MAX)
        memmove(s->past, s->past + 1, --s->n_past * sizeof *s->past);
    s->past[s->n_past++] = now;
}

void is_as(struct session *s, const struct past *p)
{
    s->told = p->told;
    s->paused = p->paused;
    note_version(s);
}

const struct past *past_of(const struct session *s, int64_t version)
{
    for (size_t i = 0; i < s->n_past; i++)
        if (s->past[i].version == version)
            return &s->past[i];
    return NULL;
}

/* It has begun its life, as r says. */
void is_new(struct session *s, const struct reply *r)
{
    s->exists = true;
    s->metadata = 0;
    s->told = s->paused = NULL;
    s->n_past = s->n_sure = 0;
    for (size_t i = 0; i < NAMES; i++)
        s->named[i] = (struct past){.version = -1};
    forget_keyed(s);
    split_etag(r, s->incarnation, &s->version);
    for (unsigned i = 0; modelled.fleet && i < FLEET_NODES; i++)
        if (fleet_at(modelled.fleet, i) != modelled.away)
            reply_free(session_get(fleet_at(modelled.fleet, i), s->id));
}

void is_gone(struct session *s)
{
    s->exists = false;
    s->told = s->paused = NULL;
    forget_keyed(s);
}

const char *etag_of(const struct session *s, int64_t version)
{
    static char ring[4][80];
    static unsigned turn;
    char *dst = ring[turn++ % 4];
    snprintf(dst, sizeof ring[0], "\"%s-%lld\"", s->incarnation, (long long)version);
    return dst;
}

void check_session(const struct session *s)
{
    struct reply *r = get(modelled_client(), session_path(s->id, ""));
    char incarnation[40];
    int64_t version, metadata = 0;
    if (!s->exists) {
        expect_error(r, 404, "session_not_found", "session");
        return;
    }
    split_etag(expect(r, 200), incarnation, &version);
    if (at(r->json, "metadata.n"))
        metadata = int_at(r->json, "metadata.n");
    if (strcmp(incarnation, s->incarnation) != 0 || version != s->version ||
        metadata != s->metadata || version != int_at(r->json, "version"))
        fail_msg("session %s is %s at version %lld with metadata %lld; it should be %s, %lld, %lld",
                 s->id, incarnation, (long long)version, (long long)metadata, s->incarnation,
                 (long long)s->version, (long long)s->metadata);
    reply_free(r);
}

static void check_list(void)
{
    size_t n = 0;
    struct reply *r = expect(get(modelled_client(), "/v1/sessions?limit=100"), 200);
    json_t *data = at(r->json, "data");
    for (size_t i = 0; i < SESSIONS; i++) {
        if (!modelled.sessions[i].exists)
            continue;
        size_t k = 0, found = 0;
        json_t *one;
        json_array_foreach(data, k, one) found +=
            !strcmp(str_at(one, "id"), modelled.sessions[i].id);
        assert_int_equal(found, 1);
        n++;
    }
    assert_int_equal(json_array_size(data), n);
    reply_free(r);
}

void check_all(void)
{
    for (size_t i = 0; i < SESSIONS; i++)
        check_session(&modelled.sessions[i]);
    check_list();
    assert_true(metric(modelled_client(), "slate_sessions_in_memory") <= PLACES ||
                modelled.forgets);
    until_metric(modelled_client(), "slate_requests_running", 0);
}

/* --- turns -------------------------------------------------------------------------------------*/

struct flight begin_turn(struct session *s, bool stream, const char *lines)
{
    char body[320];
    struct flight f = {.s = s,
                       .client = modelled_client(),
                       .seed = ++modelled.n_seeds,
                       .max_tokens = draw(TOKENS_MAX)};
    history_body(body, s->id, f.seed, f.max_tokens, stream);
    f.call = call_start(f.client, "POST", "/v1/generate", lines, body, strlen(body));
    return f;
}

size_t begin_turns(struct flight *f, size_t most)
{
    size_t n = 0;
    for (size_t i = draw(SESSIONS), k = 0; k < SESSIONS && n < most; k++, i++)
        if (modelled.sessions[i % SESSIONS].exists)
            f[n++] = begin_turn(&modelled.sessions[i % SESSIONS], draw(2), NULL);
    return n;
}

/* It has happened; r: what the client has seen of it, or NULL. */
static void happened(const struct flight *f, const struct reply *r)
{
    struct session *s = f->s;
    s->told = history_add(&modelled.histories, s->told, f->seed, f->max_tokens, r);
    s->paused = NULL;
    s->version++;
    note_version(s);
}

/* The whole answer of a turn that ran. */
void turn_answered(const struct flight *f, const struct reply *r)
{
    const json_t *final = r->json ? r->json : r->events[r->n_events - 1];
    const char *reason = str_at(final, "finish_reason");
    if (!strcmp(reason, "cancelled") && int_at(final, "version") == f->s->version)
        return; /* before it had read its prompt: it did not happen */
    happened(f, r);
    assert_int_equal(int_at(final, "version"), f->s->version);
    if (!strcmp(reason, "paused"))
        f->s->paused = f->s->told;
    note_version(f->s);
    if (strcmp(reason, "paused") != 0 && strcmp(reason, "length") != 0 &&
        strcmp(reason, "cancelled") != 0)
        fail_msg("the turn ended by '%s'", reason);
    else if (!strcmp(reason, "length") && f->s->told->n != f->max_tokens)
        fail_msg("a whole turn of %zu tokens has %zu", f->max_tokens, f->s->told->n);
}

/* The answer was lost: the version tells. */
void resolve_turn(const struct flight *f)
{
    if (f->client)
        until_free(f->client, f->s->id);
    until_free(modelled_client(), f->s->id);
    int64_t version = session_version(modelled_client(), f->s->id);
    if (version == f->s->version)
        return;
    assert_int_equal(version, f->s->version + 1);
    happened(f, NULL);
    modelled.n_unseen++;
}

void resolve_lost(struct flight *f, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        f[i].client = NULL;
        if (f[i].lost)
            resolve_turn(&f[i]);
    }
}

bool is_answer(const struct reply *r)
{
    return r->status == 200 && r->whole && (r->json || r->done);
}

void finish_turn(struct flight *f)
{
    struct reply *r = expect(call_finish(f->call), 200);
    if (!is_answer(r))
        fail_msg("the turn on %s was not answered: %.400s", f->s->id, r->body);
    turn_answered(f, r);
    reply_free(r);
}
