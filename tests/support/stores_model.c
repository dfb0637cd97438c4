/* stores_model.c: what a shop's sessions hold, drawn from seeds, and how it is compared; see
 * stores_priv.h. */
#include "tests/support/stores_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/continuation.h"

/* --- contents, from seeds ------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void shop_fill(unsigned char *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = mix(&seed);
        memcpy(p + i, &v, n - i < 8 ? n - i : 8);
    }
}

size_t shop_metadata(char ret[64], uint64_t seed)
{
    if (!seed)
        return 0;
    return (size_t)snprintf(ret, 64, "{\"n\":\"%llx\"}", (unsigned long long)seed);
}

void shop_turn(struct turn_content *c, const struct model_turn *t, int64_t at)
{
    uint64_t x = t->seed;
    size_t n = 1 + mix(&x) % TURN_TOKENS;
    for (size_t i = 0; i < n; i++)
        c->tokens[i] = (uint32_t)mix(&x);
    int k =
        snprintf(c->continuation, sizeof c->continuation, "{\"pending\":[%u]}", (unsigned)mix(&x));
    c->turn = (struct sl_store_turn){.version = t->version,
                                     .tokens_seen = t->tokens_seen,
                                     .used_at = at + (int64_t)t->version,
                                     .n_drop = (size_t)(t->seed >> 8) & SL_HELD_MAX,
                                     .tokens = c->tokens,
                                     .n_tokens = n,
                                     .n_generated = (size_t)(t->seed % (n + 1)),
                                     .continuation = {c->continuation, (size_t)k}};
    if (!t->answer)
        return;
    snprintf(c->key, sizeof c->key, "key-%llx", (unsigned long long)mix(&x));
    c->answer =
        (struct sl_store_answer){.idempotency_key = c->key, .at = at, .version = t->version};
    shop_fill(c->answer.request_hash, 16, mix(&x));
    size_t body = mix(&x) % TURN_BODY;
    shop_fill(c->body, body, mix(&x));
    c->answer.body = (struct sl_text){(const char *)c->body, body};
    c->turn.answer = &c->answer;
}

size_t shop_n_tokens(uint64_t seed)
{
    return 1 + mix(&seed) % TURN_TOKENS;
}

/* --- the model -----------------------------------------------------------------------------------
 */

void shop_name(size_t i, const char **ret_tenant, char ret_id[32])
{
    static const char *const tenants[] = {"default", "a.b-C_9", ".."};
    *ret_tenant = tenants[i % 3];
    snprintf(ret_id, 32, "s%zu%s", i / 3, i % 2 ? "-x" : "");
}

static void add_snapshot(struct model_session *m, const struct model_op *op)
{
    const struct model_snapshot s = {op->version, op->seed, op->n};
    if (m->n_snapshots && m->snapshots[m->n_snapshots - 1].version == op->version)
        m->n_snapshots--;
    if (m->n_snapshots == SHOP_SNAPSHOTS)
        abort();
    m->snapshots[m->n_snapshots++] = s;
}

static void drop_name(struct model_session *m, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n_names; i++)
        if (strcmp(m->names[i].name, name) != 0)
            m->names[n++] = m->names[i];
    m->n_names = n;
}

static void add_name(struct model_session *m, const struct model_op *op)
{
    if (m->n_names == SHOP_NAMES)
        return; /* what makes room has failed, so this will */
    struct model_name *x = &m->names[m->n_names++];
    x->version = op->named;
    memcpy(x->name, op->name, sizeof x->name);
}

/* What a change makes of a session. */
void shop_apply(struct model_session *m, const struct model_op *op)
{
    if (op->kind == SL_OP_REMOVE || op->create)
        memset(m, 0, sizeof *m);
    if (op->kind == SL_OP_REMOVE)
        return;
    m->exists = true;
    m->was_empty = m->was_empty || (op->create && op->kind == SL_OP_HEAD);
    memcpy(m->incarnation, op->incarnation, 16);
    if (op->kind == SL_OP_NAME)
        add_name(m, op);
    if (op->kind == SL_OP_UNNAME)
        drop_name(m, op->name);
    if (op->kind != SL_OP_SNAP || op->with_head)
        m->version = op->version;
    if (op->kind == SL_OP_TURN) {
        if (m->n_turns == SHOP_TURNS)
            abort();
        m->turns[m->n_turns++] = (struct model_turn){.version = op->version,
                                                     .seed = op->seed,
                                                     .tokens_seen = op->tokens_seen,
                                                     .answer = op->answer};
        m->tokens_seen = op->tokens_seen;
        m->used_at = op->used_at;
    }
    if (op->kind == SL_OP_HEAD || op->with_head) {
        m->ttl_s = op->ttl_s;
        m->metadata_seed = op->metadata_seed;
        m->used_at = op->used_at;
    }
    if (op->create || op->with_head) {
        m->created_at = op->created_at;
        m->tokens_seen = op->tokens_seen;
    }
    if (op->kind == SL_OP_SNAP) {
        m->snapshot_version = op->version;
        m->snapshot_seed = op->seed;
        m->snapshot_n = op->n;
        add_snapshot(m, op);
    }
}

/* --- comparing ----------------------------------------------------------------------------------
 */

const char *shop_compare_head(const struct model_session *m, const struct sl_store_head *h)
{
    char text[64];
    size_t n = shop_metadata(text, m->metadata_seed);
    uint64_t replay = 0;
    for (size_t i = 0; i < m->n_turns; i++)
        if (m->turns[i].version > m->snapshot_version)
            replay += shop_n_tokens(m->turns[i].seed);
    if (!m->exists)
        return "it should not be there";
    if (memcmp(m->incarnation, h->key.incarnation, 16) != 0)
        return "another incarnation";
    if (m->version != h->version)
        return "another version";
    if (m->tokens_seen != h->tokens_seen)
        return "another tokens_seen";
    if (m->created_at != h->created_at || m->used_at != h->used_at || m->ttl_s != h->ttl_s)
        return "another time";
    if (h->metadata.n != n || (n && memcmp(h->metadata.s, text, n + 1) != 0) ||
        (!n && h->metadata.s))
        return "another metadata";
    if (m->snapshot_version != h->snapshot_version)
        return "another snapshot_version";
    if (replay != h->replay_tokens)
        return "another replay_tokens";
    if (m->n_names != h->n_names)
        return "another number of names";
    return NULL;
}

unsigned char *shop_snapshot(uint64_t seed, size_t n)
{
    unsigned char *p = sl_malloc(n);
    if (p)
        shop_fill(p, n, seed);
    return p;
}

static bool same_text(struct sl_text a, struct sl_text b)
{
    return a.n == b.n && memcmp(a.s, b.s, a.n) == 0 && a.s[a.n] == '\0';
}

static bool same_answer(const struct sl_store_answer *a, const struct sl_store_answer *want)
{
    return strcmp(a->idempotency_key, want->idempotency_key) == 0 &&
           memcmp(a->request_hash, want->request_hash, 16) == 0 && a->at == want->at &&
           a->version == want->version && same_text(a->body, want->body);
}

bool shop_same_turn(const struct sl_store_turn *t, const struct sl_store_turn *want)
{
    return t->version == want->version && t->tokens_seen == want->tokens_seen &&
           t->used_at == want->used_at && t->n_drop == want->n_drop &&
           t->n_tokens == want->n_tokens && t->n_generated == want->n_generated &&
           memcmp(t->tokens, want->tokens, 4 * t->n_tokens) == 0 &&
           same_text(t->continuation, want->continuation);
}

/* Is the n-th turn's answer one of the last four of the m->n_turns? */
static bool is_kept(const struct model_session *m, size_t n)
{
    size_t later = 0;
    for (size_t i = n + 1; i < m->n_turns; i++)
        later += m->turns[i].answer;
    return m->turns[n].answer && later < SL_STORE_ANSWERS_MAX;
}

static const char *compare_turns(const struct shop *st, const struct model_session *m,
                                 const struct sl_store_record *r)
{
    size_t n_turns = 0, n_answers = 0;
    for (size_t i = 0; i < m->n_turns; i++) {
        struct turn_content c = {0};
        shop_turn(&c, &m->turns[i], st->base);
        bool kept = is_kept(m, i);
        if (m->turns[i].version > m->snapshot_version) {
            if (n_turns >= r->n_turns || !shop_same_turn(&r->turns[n_turns], &c.turn))
                return "another turn";
            const struct sl_store_answer *a = r->turns[n_turns++].answer;
            if (kept != (a != NULL) || (a && !same_answer(a, &c.answer)))
                return "another answer at a turn";
        }
        if (kept &&
            (n_answers >= r->n_answers || !same_answer(&r->answers[n_answers++], &c.answer)))
            return "another answer";
    }
    return n_turns == r->n_turns && n_answers == r->n_answers ? NULL : "more turns or answers";
}

const char *shop_compare(const struct shop *st, const struct model_session *m,
                         const struct sl_store_record *r)
{
    const char *what = shop_compare_head(m, r->head);
    if (what)
        return what;
    if ((m->snapshot_version != 0) != (r->snapshot != NULL))
        return "a snapshot, or none";
    if (r->snapshot) {
        unsigned char *p = shop_snapshot(m->snapshot_seed, m->snapshot_n);
        bool same =
            p && m->snapshot_n == r->n_snapshot && memcmp(p, r->snapshot, r->n_snapshot) == 0;
        sl_free(p);
        if (!same)
            return "another snapshot";
    }
    return compare_turns(st, m, r);
}
