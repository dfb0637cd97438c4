/* stores_past.c: earlier versions of a shop's sessions, as the model knows them; see stores.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/stores_priv.h"

struct past {
    struct shop *st;
    size_t i;
    uint64_t version;
    bool must;           /* it must be there */
    bool there;          /* and is */
    const char *differs; /* NULL: as it should be */
    char text[sizeof((struct sl_error *)0)->message];
};

static const struct model_turn *turn_at(const struct model_session *m, uint64_t version)
{
    for (size_t i = 0; i < m->n_turns; i++)
        if (m->turns[i].version == version)
            return &m->turns[i];
    return NULL;
}

static const struct model_snapshot *snapshot_at(const struct model_session *m, uint64_t version)
{
    for (size_t i = 0; i < m->n_snapshots; i++)
        if (m->snapshots[i].version == version)
            return &m->snapshots[i];
    return NULL;
}

bool shop_was_written(const struct model_session *m, uint64_t version)
{
    while (!snapshot_at(m, version) && version && turn_at(m, version))
        version--;
    return snapshot_at(m, version) || (version == 0 && m->was_empty);
}

static bool same_snapshot(const struct model_session *m, const struct sl_store_record *r)
{
    const struct model_snapshot *s = snapshot_at(m, r->snapshot_version);
    if (!r->snapshot)
        return r->snapshot_version == 0 && m->was_empty;
    unsigned char *p = s ? shop_snapshot(s->seed, s->n) : NULL;
    bool same = p && s->n == r->n_snapshot && memcmp(p, r->snapshot, s->n) == 0;
    sl_free(p);
    return same;
}

static const char *compare(const struct past *p, const struct sl_store_record *r)
{
    const struct model_session *m = &p->st->v[p->i];
    if (r->version != p->version || r->version != r->snapshot_version + r->n_turns)
        return "its turns lead to another version";
    if (r->head->version != m->version)
        return "the head is not the last one";
    if (!same_snapshot(m, r))
        return "another snapshot than the one of that version";
    for (size_t k = 0; k < r->n_turns; k++) {
        struct turn_content c = {0};
        const struct model_turn *t = turn_at(m, r->snapshot_version + 1 + k);
        if (!t)
            return "a turn that never was";
        shop_turn(&c, t, p->st->base);
        if (!shop_same_turn(&r->turns[k], &c.turn))
            return "another turn";
    }
    return NULL;
}

static void on_past(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct past *p = arg;
    p->st->n_waiting--;
    p->there = r != NULL;
    if (r) {
        p->differs = compare(p, r);
    } else if (p->must || err->code != SL_E_CHECKPOINT_NOT_FOUND) {
        snprintf(p->text, sizeof p->text, "%s", err->message);
        p->differs = p->text;
    }
}

struct points {
    struct shop *st;
    struct sl_store_point v[256];
    struct sl_store_name names[SHOP_NAMES];
    size_t n, n_names;
};

static void on_points(void *arg, const struct sl_store_kept *k, const struct sl_error *err)
{
    struct points *p = arg;
    p->st->n_waiting--;
    if (!k)
        fail_msg("%s", err->message);
    assert_true(k->n <= 256 && k->n_names <= SHOP_NAMES);
    memcpy(p->v, k->v, k->n * sizeof *k->v);
    p->n = k->n;
    memcpy(p->names, k->names, k->n_names * sizeof *k->names);
    p->n_names = k->n_names;
}

static bool is_listed(const struct points *l, const struct model_session *m, uint64_t version)
{
    const struct model_turn *t = turn_at(m, version);
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].version == version)
            return !t || l->v[i].tokens_seen == t->tokens_seen;
    return false;
}

static bool is_named(const struct model_session *m, uint64_t version)
{
    for (size_t i = 0; i < m->n_names; i++)
        if (m->names[i].version == version)
            return true;
    return false;
}

static bool same_names(const struct points *l, const struct model_session *m)
{
    bool same = l->n_names == m->n_names;
    for (size_t i = 0; same && i < l->n_names; i++) {
        size_t k = 0;
        while (k < m->n_names && (strcmp(m->names[k].name, l->names[i].name) != 0 ||
                                  m->names[k].version != l->names[i].version))
            k++;
        same = k < m->n_names && (i == 0 || l->names[i - 1].version <= l->names[i].version);
    }
    return same;
}

static void check_session(struct shop *st, size_t i)
{
    const struct model_session *m = &st->v[i];
    struct sl_store_key k = shop_key(st, i);
    struct points list = {.st = st};
    uint64_t first = m->version > st->keep_turns ? m->version - st->keep_turns : 0;
    size_t n_there = 0;
    st->n_waiting++;
    sl_store_points(st->store, &k, on_points, &list);
    shop_run(st);
    for (uint64_t v = 0; v <= m->version; v++) {
        bool must = v == m->version || is_named(m, v) || (v >= first && shop_was_written(m, v));
        struct past p = {.st = st, .i = i, .version = v, .must = must};
        st->n_waiting++;
        sl_store_load_at(st->store, &k, v, NULL, on_past, &p);
        shop_run(st);
        n_there += p.there;
        if (!p.differs && p.there != is_listed(&list, m, v))
            p.differs = "it is loaded, or listed, but not both";
        if (p.differs) {
            st->n_wrong++;
            fprintf(stderr, "session %zu, version %" PRIu64 " of %" PRIu64 ": %s\n", i, v,
                    m->version, p.differs);
        }
    }
    assert_int_equal(list.n, n_there);
    if (!same_names(&list, m)) {
        st->n_wrong++;
        fprintf(stderr, "session %zu: other names\n", i);
    }
}

size_t shop_check_past(struct shop *st)
{
    shop_run(st);
    for (size_t i = 0; i < SHOP_SESSIONS; i++)
        if (st->v[i].exists)
            check_session(st, i);
    return st->n_wrong;
}
