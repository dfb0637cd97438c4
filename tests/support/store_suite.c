/* store_suite.c: see store_suite.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/store_suite.h"

struct shop *(*suite_new_shop)(void);
const char *suite_too_large;

static void none_failed(const struct shop *st)
{
    if (st->n_failed)
        fail_msg("%zu failed; the last: %s", st->n_failed, st->last.message);
}

void free_shop(struct shop *st)
{
    if (st->store)
        shop_close(st);
    shop_done(st);
    free(st);
}

void check_twice(struct shop *st)
{
    assert_int_equal(shop_check(st), 0);
    shop_close(st);
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
}

struct sl_store_stats stats_of(const struct shop *st)
{
    struct sl_store_stats s;
    sl_store_stats(st->store, &s);
    return s;
}

/* Everything a session can go through. */
void suite_life(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    for (size_t i = 0; i < 12; i++)
        do_create(st, i);
    for (size_t i = 0; i < 12; i++)
        for (size_t k = 0; k < i; k++)
            do_turn(st, i, k % 2);
    shop_run(st);
    none_failed(st);
    check_twice(st);
    for (size_t i = 4; i < 12; i++)
        do_snapshot(st, i, 1000 * i);
    for (size_t i = 6; i < 12; i++)
        do_turn(st, i, true);
    for (size_t i = 0; i < 12; i += 3)
        do_patch(st, i);
    for (size_t i = 1; i < 12; i += 5)
        do_remove(st, i);
    do_create(st, 1);
    do_restore(st, 2, 5000);
    do_restore(st, 6, 77);
    do_restore(st, 20, 100);
    do_snapshot(st, 6, 99); /* once more at the same version */
    shop_run(st);
    none_failed(st);
    check_twice(st);
    free_shop(st);
}

void suite_random_changes(struct shop *st, void (*after)(struct shop *st, int round))
{
    uint64_t x = 1;
    for (int round = 0; round < 30; round++) {
        for (int k = 0; k < 60; k++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            size_t i = (x >> 33) % SHOP_SESSIONS, what = (x >> 40) % 16;
            bool has = shop_has(st, i);
            if (st->n_ahead[i] + 1 >= SHOP_AHEAD || st->v[i].n_turns + st->n_ahead[i] >= SHOP_TURNS)
                continue;
            if (!has && what < 8)
                do_create(st, i);
            else if (!has || what == 0)
                do_far_restore(st, i, (x >> 40) % 3, 1 + (x >> 50) % 3000);
            else if (what == 1)
                do_remove(st, i);
            else if (what < 4)
                do_patch(st, i);
            else if (what == 6)
                do_name(st, i, (x >> 40) % 6);
            else if (what == 7 && (x >> 45) % 3 == 0)
                do_unname(st, i, (x >> 50) % 4);
            else if (what < 6 && st->v[i].version && !st->n_ahead[i])
                do_old_snapshot(st, i, (x >> 40) % 4, (x >> 50) % 5000);
            else
                do_turn(st, i, what % 2);
        }
        shop_run(st);
        none_failed(st);
        assert_int_equal(shop_check(st), 0);
        after(st, round);
    }
    free_shop(st);
}

/* --- conditions ----------------------------------------------------------------------------------
 */

void on_got(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct got *g = arg;
    (*g->n_waiting)--;
    g->n_called++;
    g->code = code;
    if (err)
        g->err = *err;
}

void on_got_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    assert_true((r == NULL) == (err != NULL));
    on_got(arg, err ? err->code : SL_OK, err);
}

struct got *expect(struct shop *st, struct got *g)
{
    *g = (struct got){.n_waiting = &st->n_waiting};
    st->n_waiting++;
    return g;
}

void must_fail(struct shop *st, const struct got *g, enum sl_code code, const char *text)
{
    assert_int_equal(g->n_called, 0); /* never from inside the call */
    shop_run(st);
    assert_int_equal(g->n_called, 1);
    if (g->code != code || g->err.code != code || !strstr(g->err.message, text))
        fail_msg("%s: '%s' instead of %s, '%s'", sl_code_name(g->code), g->err.message,
                 sl_code_name(code), text);
}

void suite_conditions_of_turns(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    struct got g;
    do_create(st, 0);
    do_turn(st, 0, false);
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0), other = k, none = k;
    other.incarnation[3] ^= 1;
    none.id = "nobody";
    struct sl_store_turn t = {.version = 2, .continuation = {"{}", 2}};
    for (uint64_t v = 0; v < 5; v++) {
        t.version = v;
        if (v == 2)
            continue;
        sl_store_append_turn(st->store, &k, &t, on_got, expect(st, &g));
        must_fail(st, &g, SL_E_VERSION_MISMATCH, "session 's0' is at version 1 in the store");
    }
    t.version = 2;
    sl_store_append_turn(st->store, &other, &t, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "session 's0' was deleted and made anew");
    sl_store_append_turn(st->store, &none, &t, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 'nobody'");
    none = k; /* the same id, another tenant */
    none.tenant = "someone";
    sl_store_append_turn(st->store, &none, &t, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 's0'");
    check_twice(st);
    free_shop(st);
}

void suite_conditions_of_heads(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    struct got g;
    do_create(st, 0);
    do_turn(st, 0, false);
    shop_run(st);
    struct sl_store_head h = {.key = shop_key(st, 0), .version = 0, .ttl_s = 99999};
    sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    if (st->spec) { /* it was made: as it is told when it is asked again */
        shop_run(st);
        assert_int_equal(g.code, SL_OK);
    } else {
        must_fail(st, &g, SL_E_VERSION_MISMATCH, "speaks of version 0");
    }
    h.version = 2;
    sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "speaks of version 2");
    h.key.incarnation[0] ^= 1;
    h.version = 0;
    sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_SESSION_EXISTS, "there is a session 's0' already");
    h.key.id = "gone";
    h.version = 1;
    sl_store_put_head(st->store, &h, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 'gone'");
    sl_store_remove(st->store, &h.key, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 'gone'");
    sl_store_load(st->store, &h.key, NULL, on_got_loaded, expect(st, &g));
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 'gone'");
    h.key = shop_key(st, 0);
    h.key.incarnation[15] ^= 1;
    sl_store_remove(st->store, &h.key, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "was deleted and made anew");
    sl_store_load(st->store, &h.key, NULL, on_got_loaded, expect(st, &g));
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "was deleted and made anew");
    check_twice(st);
    free_shop(st);
}

static void put_snapshot(struct shop *st, const struct sl_store_key *k, uint64_t version,
                         const struct sl_store_head *h, struct got *g)
{
    unsigned char *p = sl_malloc(100);
    assert_non_null(p);
    memset(p, 1, 100);
    sl_store_put_snapshot(st->store, k, version, h, p, 100, on_got, expect(st, g));
}

void suite_conditions_of_snapshots(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    struct got g;
    do_create(st, 0);
    shop_run(st);
    struct sl_store_head h = {.key = shop_key(st, 0)};
    put_snapshot(st, &h.key, 0, NULL, &g);
    must_fail(st, &g, SL_E_INVALID_VALUE, "there is no state at version 0");
    do_turn(st, 0, false);
    do_turn(st, 0, false);
    shop_run(st);
    put_snapshot(st, &h.key, 3, NULL, &g);
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "speaks of version 3");
    h.version = 1; /* with a head it cannot be older */
    put_snapshot(st, &h.key, 1, &h, &g);
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "is at version 2 in the store");
    h.key.incarnation[0] ^= 1;
    h.version = 3;
    put_snapshot(st, &h.key, 3, &h, &g);
    must_fail(st, &g, SL_E_SESSION_EXISTS, "there is a session 's0' already");
    put_snapshot(st, &h.key, 2, NULL, &g);
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "was deleted and made anew");
    h.key.id = "gone";
    put_snapshot(st, &h.key, 2, NULL, &g);
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 'gone'");
    check_twice(st);
    if (!st->spec) {
        char path[512]; /* and no file was left of all that */
        assert_false(shop_snapshot_path(st, 0, path, sizeof path));
    }
    free_shop(st);
}

static void put_name(struct shop *st, const struct sl_store_key *k, uint64_t now, const char *name,
                     uint64_t version, struct got *g)
{
    sl_store_put_name(st->store, k, now, name, version, on_got, expect(st, g));
}

void suite_conditions_of_names(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    struct got g;
    do_create(st, 0);
    do_turn(st, 0, false);
    do_turn(st, 0, false);
    do_name(st, 0, 0); /* at-N */
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0), other = k, none = k;
    char name[16];
    snprintf(name, sizeof name, "%s", st->v[0].names[0].name);
    put_name(st, &k, 2, name, 2, &g); /* again: nothing to be done */
    shop_run(st);
    assert_int_equal(g.code, SL_OK);
    put_name(st, &k, 2, name, 1, &g);
    must_fail(st, &g, SL_E_CHECKPOINT_EXISTS, "already, of version 2");
    put_name(st, &k, 1, "x", 1, &g);
    must_fail(st, &g, SL_E_VERSION_MISMATCH,
              "is at version 2 in the store; this speaks of version 1");
    put_name(st, &k, 2, "x", 3, &g);
    must_fail(st, &g, SL_E_CHECKPOINT_NOT_FOUND, "session 's0' is not kept at version 3");
    other.incarnation[3] ^= 1;
    put_name(st, &other, 2, "x", 2, &g);
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "was deleted and made anew");
    sl_store_drop_name(st->store, &other, 2, name, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "was deleted and made anew");
    none.id = "nobody";
    put_name(st, &none, 2, "x", 2, &g);
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 'nobody'");
    sl_store_drop_name(st->store, &none, 2, name, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_SESSION_NOT_FOUND, "there is no session 'nobody'");
    sl_store_drop_name(st->store, &k, 2, "x", on_got, expect(st, &g));
    must_fail(st, &g, SL_E_CHECKPOINT_NOT_FOUND, "session 's0' has no checkpoint 'x'");
    sl_store_drop_name(st->store, &k, 1, name, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_VERSION_MISMATCH, "speaks of version 1");
    for (int i = 1; i < SHOP_NAMES; i++)
        do_name(st, 0, 0);
    shop_run(st);
    none_failed(st);
    put_name(st, &k, 2, "x", 2, &g);
    must_fail(st, &g, SL_E_CHECKPOINTS_FULL, "has 4 named checkpoints, which is the limit");
    do_turn(st, 0, false);
    do_snapshot(st, 0, 700); /* version 2 is kept, with no snapshot before it */
    do_turn(st, 0, false);
    shop_run(st);
    put_name(st, &k, 4, name, 2, &g);
    shop_run(st);
    assert_int_equal(g.code, SL_OK);
    check_twice(st);
    assert_int_equal(shop_check_past(st), 0);
    free_shop(st);
}

struct listed {
    struct shop *st;
    char versions[200];
};

static void on_versions(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    struct listed *l = arg;
    l->st->n_waiting--;
    assert_null(err);
    for (size_t i = 0; i < k->n; i++)
        snprintf(l->versions + strlen(l->versions), sizeof l->versions - strlen(l->versions),
                 i ? " %llu" : "%llu", (unsigned long long)k->v[i].version);
}

void expect_versions(struct shop *st, const char *versions)
{
    for (int i = 0; i < 2; i++) { /* as it is, and as it is after opening again */
        struct listed l = {.st = st};
        struct sl_store_key k = shop_key(st, 0);
        st->n_waiting++;
        sl_store_points(st->store, &k, on_versions, &l);
        shop_run(st);
        assert_string_equal(l.versions, versions);
        shop_close(st);
        shop_must_open(st);
    }
}

static void turns(struct shop *st, int n)
{
    for (int i = 0; i < n; i++)
        do_turn(st, 0, false);
    shop_run(st);
}

/* A name holds the snapshot before it and the turns up to it, and nothing behind. */
void suite_names_hold_no_more(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    do_create(st, 0);
    turns(st, 4);
    do_snapshot(st, 0, 400);
    turns(st, 2);
    do_name(st, 0, 0);
    turns(st, 3);
    expect_versions(st, "4 5 6 7 8 9");
    do_snapshot(st, 0, 900);
    turns(st, 2);
    expect_versions(st, "4 5 6 9 10 11");
    do_name(st, 0, 0);
    turns(st, 1);
    do_restore(st, 0, 130); /* what it was at 12 goes, too */
    turns(st, 1);
    expect_versions(st, "4 5 6 9 10 11 13 14");
    do_snapshot(st, 0, 1400);
    turns(st, 9);
    expect_versions(st, "4 5 6 9 10 11 14 15 16 17 18 19 20 21 22 23");
    assert_int_equal(shop_check_past(st), 0);
    do_unname(st, 0, 0);
    shop_run(st);
    expect_versions(st, "9 10 11 14 15 16 17 18 19 20 21 22 23");
    do_unname(st, 0, 0);
    shop_run(st);
    expect_versions(st, "14 15 16 17 18 19 20 21 22 23");
    none_failed(st);
    check_twice(st);
    free_shop(st);
}

void suite_a_name_behind_the_last_turns(struct shop *st)
{
    do_create(st, 0);
    turns(st, 4);
    do_snapshot(st, 0, 400);
    do_name(st, 0, 0);
    turns(st, 2);
    do_snapshot(st, 0, 600);
    turns(st, 1);
    expect_versions(st, "4 5 6 7");
    turns(st, 1);
    expect_versions(st, "4 6 7 8");
    turns(st, 1);
    do_snapshot(st, 0, 900);
    turns(st, 4);
    expect_versions(st, "4 9 10 11 12 13");
    assert_int_equal(shop_check_past(st), 0);
    none_failed(st);
    free_shop(st);
}

/* A turn after a delete fails, also when both wait; so does what speaks of the life before. */
void suite_order_within_a_session(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    struct got g[3];
    do_create(st, 0);
    for (int i = 0; i < 4; i++)
        do_turn(st, 0, false);
    struct sl_store_key k;
    shop_run(st);
    k = shop_key(st, 0);
    do_remove(st, 0);
    struct sl_store_turn t = {.version = 5, .continuation = {"{}", 2}};
    sl_store_append_turn(st->store, &k, &t, on_got, expect(st, &g[0]));
    do_create(st, 0);
    t.version = 1;
    sl_store_append_turn(st->store, &k, &t, on_got, expect(st, &g[1]));
    do_turn(st, 0, true);
    shop_run(st);
    none_failed(st);
    assert_int_equal(g[0].code, SL_E_SESSION_NOT_FOUND);
    assert_int_equal(g[1].code, SL_E_VERSION_MISMATCH);
    check_twice(st);
    free_shop(st);
}

/* --- callbacks ---------------------------------------------------------------------------------
 */

struct chain {
    struct shop *st;
    struct sl_store_key k;
    uint64_t version;
    bool inside;
};

static void chain_next(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct chain *c = arg;
    (void)err;
    assert_false(c->inside);
    assert_int_equal(code, SL_OK);
    if (c->version == 20) {
        c->st->n_waiting--;
        return;
    }
    struct sl_store_turn t = {
        .version = ++c->version, .used_at = c->st->base, .continuation = {"{}", 2}};
    c->inside = true;
    sl_store_append_turn(c->st->store, &c->k, &t, chain_next, c);
    c->inside = false;
}

/* Callbacks may call, also after close: `closed` waits for all of it. */
void suite_calls_from_callbacks(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    do_create(st, 0);
    shop_run(st);
    struct chain c = {.st = st, .k = shop_key(st, 0)};
    st->n_waiting++;
    chain_next(&c, SL_OK, NULL);
    shop_close(st);
    assert_int_equal(c.version, 20);
    struct sl_error err;
    st->v[0].version = 20;
    assert_int_equal(shop_open(st, &err), SL_OK);
    assert_int_equal(shop_sessions(st), 1);
    st->n_wrong = 0;
    free_shop(st);
}

/* --- sizes -------------------------------------------------------------------------------------
 */

static void on_sizes(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct shop *st = arg;
    st->n_waiting--;
    assert_null(err);
    assert_int_equal(r->n_turns, 3);
    assert_int_equal(r->turns[0].n_tokens, 1000003);
    assert_int_equal(r->turns[0].tokens[1000002], 1000002);
    assert_int_equal(r->turns[1].n_tokens, 0);
    assert_int_equal(r->turns[1].continuation.n, 5000001);
    assert_int_equal(r->turns[1].continuation.s[5000000], 'x');
    assert_int_equal(r->turns[1].continuation.s[5000001], '\0');
    assert_int_equal(r->turns[2].n_tokens, 0);
    assert_int_equal(r->turns[2].continuation.n, 0);
    assert_string_equal(r->turns[2].answer->idempotency_key, "");
    assert_int_equal(r->turns[2].answer->body.n, 0);
    assert_ptr_equal(r->turns[2].answer, &r->answers[0]);
}

/* Nothing, and more than any window or buffer; and what is too large is refused. */
void suite_sizes(void **state)
{
    (void)state;
    struct shop *st = suite_new_shop();
    struct got g;
    enum { TOKENS = 1000003, TEXT = 5000001 };
    uint32_t *tokens = calloc(TOKENS, sizeof *tokens);
    char *text = calloc(1, TEXT + 1);
    assert_true(tokens && text);
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = i;
    memset(text, 'x', TEXT);
    do_create(st, 0);
    shop_run(st);
    struct sl_store_key k = shop_key(st, 0);
    struct sl_store_answer empty = {.idempotency_key = "", .at = st->base};
    struct sl_store_turn t[3] = {
        {.version = 1, .tokens = tokens, .n_tokens = TOKENS, .continuation = {"{}", 2}},
        {.version = 2, .continuation = {text, TEXT}},
        {.version = 3, .answer = &empty}};
    for (int i = 0; i < 3; i++) {
        sl_store_append_turn(st->store, &k, &t[i], on_got, expect(st, &g));
        shop_run(st);
        assert_int_equal(g.code, SL_OK);
    }
    struct sl_store_turn huge = {.version = 4, .n_tokens = 70 << 20};
    sl_store_append_turn(st->store, &k, &huge, on_got, expect(st, &g));
    must_fail(st, &g, SL_E_TOO_LARGE, suite_too_large);
    for (int i = 0; i < 2; i++) {
        st->n_waiting++;
        sl_store_load(st->store, &k, NULL, on_sizes, st);
        shop_run(st);
        shop_close(st);
        struct sl_error err;
        assert_int_equal(shop_open(st, &err), SL_OK);
    }
    free(tokens);
    free(text);
    free_shop(st);
}
