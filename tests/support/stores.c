/* stores.c: see stores.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/support/stores.h"

/* --- contents, from seeds ------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void fill(unsigned char *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = mix(&seed);
        memcpy(p + i, &v, n - i < 8 ? n - i : 8);
    }
}

static size_t metadata_of(char ret[64], uint64_t seed)
{
    if (!seed)
        return 0;
    return (size_t)snprintf(ret, 64, "{\"n\":\"%llx\"}", (unsigned long long)seed);
}

enum { TURN_TOKENS = 40, TURN_BODY = 300 };

struct turn_content {
    uint32_t tokens[TURN_TOKENS];
    char continuation[64], key[32];
    unsigned char body[TURN_BODY];
    struct sl_store_answer answer;
    struct sl_store_turn turn;
};

static void turn_of(struct turn_content *c, const struct model_turn *t, int64_t at)
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
                                     .n_drop = (size_t)(t->seed >> 8) & UINT16_MAX,
                                     .tokens = c->tokens,
                                     .n_tokens = n,
                                     .n_generated = (size_t)(t->seed % (n + 1)),
                                     .continuation = {c->continuation, (size_t)k}};
    if (!t->answer)
        return;
    snprintf(c->key, sizeof c->key, "key-%llx", (unsigned long long)mix(&x));
    c->answer = (struct sl_store_answer){.idempotency_key = c->key, .at = at};
    fill(c->answer.request_hash, 16, mix(&x));
    size_t body = mix(&x) % TURN_BODY;
    fill(c->body, body, mix(&x));
    c->answer.body = (struct sl_text){(const char *)c->body, body};
    c->turn.answer = &c->answer;
}

static size_t n_tokens_of(uint64_t seed)
{
    return 1 + mix(&seed) % TURN_TOKENS;
}

/* --- the shop -----------------------------------------------------------------------------------
 */

static void name_of(size_t i, const char **ret_tenant, char ret_id[32])
{
    static const char *const tenants[] = {"default", "a.b-C_9", ".."};
    *ret_tenant = tenants[i % 3];
    snprintf(ret_id, 32, "s%zu%s", i / 3, i % 2 ? "-x" : "");
}

static struct sl_store_key key_of(size_t i, const struct model_session *m)
{
    static char ids[SHOP_SESSIONS][32];
    struct sl_store_key k = {0};
    name_of(i, &k.tenant, ids[i]);
    k.id = ids[i];
    memcpy(k.incarnation, m->incarnation, 16);
    return k;
}

struct sl_store_key shop_key(const struct shop *st, size_t i)
{
    return key_of(i, &st->v[i]);
}

void shop_init(struct shop *st, const struct sl_store_io *io, uint64_t rewrite_bytes)
{
    *st = (struct shop){.io = io, .rewrite_bytes = rewrite_bytes, .base = io->now()};
    /* In memory, where there is such a folder: a disk of a test is not to be waited for. */
    char folder[64];
    snprintf(folder, sizeof folder, "%s/slate-store-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder) || uv_loop_init(&st->loop) != 0)
        fail_msg("no temporary folder, or no loop");
    snprintf(st->path, sizeof st->path, "%s/store", folder);
}

void shop_init_spec(struct shop *st, const char *spec, const struct sl_store_options *more)
{
    *st = (struct shop){.spec = spec, .more = *more, .base = sl_store_io_system.now()};
    if (uv_loop_init(&st->loop) != 0)
        fail_msg("no loop");
}

void shop_folder(const struct shop *st, char *ret, size_t n)
{
    snprintf(ret, n, "%.*s", (int)(strlen(st->path) - strlen("/store")), st->path);
}

void shop_done(struct shop *st)
{
    char folder[160];
    assert_null(st->store);
    assert_int_equal(uv_loop_close(&st->loop), 0);
    if (st->spec)
        return;
    shop_folder(st, folder, sizeof folder);
    remove_tree(folder);
}

bool stores_quiet;

static void wrong(struct shop *st, size_t i, const char *what)
{
    const char *tenant;
    char id[32];
    name_of(i, &tenant, id);
    if (!stores_quiet)
        fprintf(stderr, "session %zu (%s/%s): %s\n", i, tenant, id, what);
    st->n_wrong++;
}

/* NULL: as the model has it; else what differs. */
static const char *compare_head(const struct model_session *m, const struct sl_store_head *h)
{
    char text[64];
    size_t n = metadata_of(text, m->metadata_seed);
    uint64_t replay = 0;
    for (size_t i = 0; i < m->n_turns; i++)
        if (m->turns[i].version > m->snapshot_version)
            replay += n_tokens_of(m->turns[i].seed);
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
    return NULL;
}

static size_t find_session(const struct sl_store_head *h)
{
    for (size_t i = 0; i < SHOP_SESSIONS; i++) {
        const char *tenant;
        char id[32];
        name_of(i, &tenant, id);
        if (strcmp(tenant, h->key.tenant) == 0 && strcmp(id, h->key.id) == 0)
            return i;
    }
    fail_msg("a session that nobody made: %s/%s", h->key.tenant, h->key.id);
    return 0;
}

/* What a change makes of a session. */
static void apply(struct model_session *m, const struct model_op *op)
{
    if (op->kind == SL_OP_REMOVE || op->create)
        memset(m, 0, sizeof *m);
    if (op->kind == SL_OP_REMOVE)
        return;
    m->exists = true;
    memcpy(m->incarnation, op->incarnation, 16);
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
    }
}

/* The session once the first n of what was asked for are done. */
static void look_ahead(const struct shop *st, size_t i, size_t n, struct model_session *ret)
{
    *ret = st->v[i];
    for (size_t k = 0; k < n; k++)
        apply(ret, &st->ahead[i][k]);
}

static void told(void *arg, const struct sl_store_head *h)
{
    struct shop *st = arg;
    size_t i = find_session(h);
    const char *what = compare_head(&st->v[i], h);
    st->n_told++;
    for (size_t k = 1; what && k <= st->n_ahead[i]; k++) {
        struct model_session m;
        look_ahead(st, i, k, &m);
        if (!compare_head(&m, h))
            what = NULL; /* the load will tell which */
    }
    if (what)
        wrong(st, i, what);
}

enum sl_code shop_open(struct shop *st, struct sl_error *err)
{
    struct sl_store_options opt = {.loop = &st->loop, .log_rewrite_bytes = st->rewrite_bytes};
    st->n_told = 0;
    assert_null(st->store);
    if (st->spec) {
        opt = st->more;
        opt.spec = st->spec;
        opt.loop = &st->loop;
        return sl_store_open(&st->store, &opt, told, st, err);
    }
    return sl_dir_open(&st->store, st->path, &opt, st->io, told, st, err);
}

void shop_must_open(struct shop *st)
{
    struct sl_error err;
    size_t n = 0;
    if (shop_open(st, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < SHOP_SESSIONS; i++)
        n += st->v[i].exists;
    if (!st->crashed && !st->spec) /* a store that is shared tells none */
        assert_int_equal(st->n_told, n);
}

static void on_closed(void *arg)
{
    struct shop *st = arg;
    st->store = NULL;
}

void shop_close(struct shop *st)
{
    sl_store_close(st->store, on_closed, st);
    uv_run(&st->loop, UV_RUN_DEFAULT);
    assert_null(st->store);
    assert_int_equal(st->n_waiting, 0);
}

void shop_run(struct shop *st)
{
    while (st->n_waiting)
        uv_run(&st->loop, UV_RUN_ONCE);
}

/* --- changes -------------------------------------------------------------------------------------
 */

struct asked {
    struct shop *st;
    size_t i;
    uint64_t serial;
};

static void on_done(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct asked *a = arg;
    struct shop *st = a->st;
    struct model_op *v = st->ahead[a->i];
    size_t k = 0;
    st->n_waiting--;
    while (k < st->n_ahead[a->i] && v[k].serial != a->serial)
        k++;
    assert_true(k < st->n_ahead[a->i]);
    if (code == SL_OK) {
        assert_null(err);
        assert_int_equal(k, 0); /* in the order in which they were asked for */
        st->n_ok++;
        apply(&st->v[a->i], &v[k]);
    } else {
        assert_int_equal(err->code, code);
        st->n_failed++;
        st->last = *err;
    }
    if (code == SL_OK || !st->crashed) {
        memmove(&v[k], &v[k + 1], (st->n_ahead[a->i] - k - 1) * sizeof *v);
        st->n_ahead[a->i]--;
    }
    free(a);
}

/* The session as it will be once all that was asked for is done. */
static struct model_session latest(const struct shop *st, size_t i)
{
    struct model_session m;
    look_ahead(st, i, st->n_ahead[i], &m);
    return m;
}

bool shop_has(const struct shop *st, size_t i)
{
    return latest(st, i).exists;
}

static struct asked *ask(struct shop *st, size_t i, struct model_op *op)
{
    struct asked *a = calloc(1, sizeof *a);
    assert_non_null(a);
    assert_true(st->n_ahead[i] < SHOP_AHEAD);
    op->serial = ++st->n_asked;
    *a = (struct asked){st, i, op->serial};
    st->ahead[i][st->n_ahead[i]++] = *op;
    st->n_waiting++;
    return a;
}

static struct sl_store_head head_of(size_t i, const struct model_session *m, char text[64])
{
    size_t n = metadata_of(text, m->metadata_seed);
    return (struct sl_store_head){.key = key_of(i, m),
                                  .version = m->version,
                                  .tokens_seen = m->tokens_seen,
                                  .created_at = m->created_at,
                                  .used_at = m->used_at,
                                  .ttl_s = m->ttl_s,
                                  .metadata = {n ? text : NULL, n}};
}

/* A change of m that changes nothing yet. */
static struct model_op op_of(enum sl_op_kind kind, const struct model_session *m)
{
    struct model_op op = {.kind = kind,
                          .version = m->version,
                          .tokens_seen = m->tokens_seen,
                          .metadata_seed = m->metadata_seed,
                          .created_at = m->created_at,
                          .used_at = m->used_at,
                          .ttl_s = m->ttl_s};
    memcpy(op.incarnation, m->incarnation, 16);
    return op;
}

/* A session that is made: another incarnation than any before. */
static struct model_op new_life(struct shop *st, enum sl_op_kind kind)
{
    struct model_op op = {.kind = kind, .create = true};
    fill(op.incarnation, 16, ++st->n_seeds);
    op.created_at = op.used_at = st->base - 1000;
    op.ttl_s = (int64_t)(st->n_seeds % 3) * 3600;
    op.metadata_seed = st->n_seeds % 4 ? st->n_seeds : 0;
    return op;
}

static struct sl_store_head head_after(size_t i, const struct model_op *op, char text[64])
{
    struct model_session m = {0};
    apply(&m, op);
    m.created_at = op->created_at;
    m.tokens_seen = op->tokens_seen;
    return head_of(i, &m, text);
}

void do_create(struct shop *st, size_t i)
{
    struct model_op op = new_life(st, SL_OP_HEAD);
    char text[64];
    struct sl_store_head h = head_after(i, &op, text);
    sl_store_put_head(st->store, &h, on_done, ask(st, i, &op));
}

void do_patch(struct shop *st, size_t i)
{
    struct model_session m = latest(st, i);
    struct model_op op = op_of(SL_OP_HEAD, &m);
    char text[64];
    op.ttl_s = (int64_t)(++st->n_seeds % 5) * 6000; /* not over while a test runs */
    op.metadata_seed = st->n_seeds % 3 ? st->n_seeds : 0;
    op.used_at += 7;
    struct sl_store_head h = head_after(i, &op, text);
    h.tokens_seen = 99; /* a patch does not speak of these */
    h.created_at = 98;
    sl_store_put_head(st->store, &h, on_done, ask(st, i, &op));
}

void do_turn(struct shop *st, size_t i, bool answer)
{
    struct model_session m = latest(st, i);
    struct model_op op = op_of(SL_OP_TURN, &m);
    struct turn_content *c = calloc(1, sizeof *c);
    assert_non_null(c);
    op.version++;
    op.seed = ++st->n_seeds * 1000003;
    op.answer = answer;
    op.tokens_seen += n_tokens_of(op.seed);
    struct model_turn t = {op.version, op.seed, op.tokens_seen, answer};
    turn_of(c, &t, st->base);
    op.used_at = c->turn.used_at;
    struct sl_store_key k = key_of(i, &m);
    sl_store_append_turn(st->store, &k, &c->turn, on_done, ask(st, i, &op));
    memset(c, 0xee, sizeof *c); /* what it was given is copied */
    free(c);
}

static unsigned char *snapshot_of(uint64_t seed, size_t n)
{
    unsigned char *p = sl_malloc(n);
    if (p)
        fill(p, n, seed);
    return p;
}

void do_snapshot(struct shop *st, size_t i, size_t n)
{
    do_old_snapshot(st, i, 0, n);
}

void do_old_snapshot(struct shop *st, size_t i, size_t back, size_t n)
{
    struct model_session m = latest(st, i);
    struct model_op op = op_of(SL_OP_SNAP, &m);
    op.version -= back < m.version - m.snapshot_version ? back : m.version - m.snapshot_version;
    op.version += !op.version;
    op.seed = ++st->n_seeds;
    op.n = n;
    struct sl_store_key k = key_of(i, &m);
    unsigned char *p = snapshot_of(op.seed, n);
    if (p) /* a test makes allocations fail */
        sl_store_put_snapshot(st->store, &k, op.version, NULL, p, n, on_done, ask(st, i, &op));
}

void do_restore(struct shop *st, size_t i, size_t n)
{
    do_far_restore(st, i, 0, n);
}

void do_far_restore(struct shop *st, size_t i, size_t ahead, size_t n)
{
    struct model_session m = latest(st, i);
    struct model_op op = m.exists ? op_of(SL_OP_SNAP, &m) : new_life(st, SL_OP_SNAP);
    char text[64];
    op.with_head = true;
    op.version += 1 + ahead;
    op.tokens_seen += 1000;
    op.metadata_seed = op.seed = ++st->n_seeds;
    op.used_at += 11;
    op.n = n;
    struct sl_store_head h = head_after(i, &op, text);
    unsigned char *p = snapshot_of(op.seed, n);
    if (p)
        sl_store_put_snapshot(st->store, &h.key, op.version, &h, p, n, on_done, ask(st, i, &op));
}

void do_remove(struct shop *st, size_t i)
{
    struct model_session m = latest(st, i);
    struct model_op op = op_of(SL_OP_REMOVE, &m);
    struct sl_store_key k = key_of(i, &m);
    sl_store_remove(st->store, &k, on_done, ask(st, i, &op));
}

/* --- loading -------------------------------------------------------------------------------------
 */

struct loading {
    struct shop *st;
    size_t i;
    bool compare;
    enum sl_code code;
    struct sl_error err;
};

static bool same_text(struct sl_text a, struct sl_text b)
{
    return a.n == b.n && memcmp(a.s, b.s, a.n) == 0 && a.s[a.n] == '\0';
}

static bool same_answer(const struct sl_store_answer *a, const struct sl_store_answer *want)
{
    return strcmp(a->idempotency_key, want->idempotency_key) == 0 &&
           memcmp(a->request_hash, want->request_hash, 16) == 0 && a->at == want->at &&
           same_text(a->body, want->body);
}

static bool same_turn(const struct sl_store_turn *t, const struct sl_store_turn *want)
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
        turn_of(&c, &m->turns[i], st->base);
        bool kept = is_kept(m, i);
        if (m->turns[i].version > m->snapshot_version) {
            if (n_turns >= r->n_turns || !same_turn(&r->turns[n_turns], &c.turn))
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

static const char *compare(const struct shop *st, const struct model_session *m,
                           const struct sl_store_record *r)
{
    const char *what = compare_head(m, r->head);
    if (what)
        return what;
    if ((m->snapshot_version != 0) != (r->snapshot != NULL))
        return "a snapshot, or none";
    if (r->snapshot) {
        unsigned char *p = snapshot_of(m->snapshot_seed, m->snapshot_n);
        bool same =
            p && m->snapshot_n == r->n_snapshot && memcmp(p, r->snapshot, r->n_snapshot) == 0;
        sl_free(p);
        if (!same)
            return "another snapshot";
    }
    return compare_turns(st, m, r);
}

static void compare_any(struct shop *st, size_t i, const struct sl_store_record *r,
                        const struct sl_error *err)
{
    const char *what = NULL;
    for (size_t k = 0; k <= st->n_ahead[i]; k++) {
        struct model_session m;
        look_ahead(st, i, k, &m);
        const char *differs = r                                     ? compare(st, &m, r)
                              : m.exists                            ? err->message
                              : err->code == SL_E_SESSION_NOT_FOUND ? NULL
                                                                    : err->message;
        if (!differs) {
            st->v[i] = m;
            st->n_ahead[i] = 0;
            return;
        }
        if (k == 0)
            what = differs;
    }
    wrong(st, i, what);
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct loading *l = arg;
    l->st->n_waiting--;
    l->code = err ? err->code : SL_OK;
    assert_true((r == NULL) == (err != NULL));
    if (err)
        l->err = *err;
    if (l->compare)
        compare_any(l->st, l->i, r, err);
}

/* The incarnation under which it may be there: of any state that is right. */
static struct sl_store_key any_key(const struct shop *st, size_t i)
{
    struct model_session m = st->v[i];
    for (size_t k = 1; k <= st->n_ahead[i] && !m.exists; k++)
        look_ahead(st, i, k, &m);
    return key_of(i, &m);
}

size_t shop_check_soon(struct shop *st)
{
    struct loading l[SHOP_SESSIONS];
    for (size_t i = 0; i < SHOP_SESSIONS; i++) {
        struct sl_store_key k = any_key(st, i);
        l[i] = (struct loading){.st = st, .i = i, .compare = true};
        st->n_waiting++;
        sl_store_load(st->store, &k, NULL, on_loaded, &l[i]);
    }
    shop_run(st);
    return st->n_wrong;
}

static void on_swept(void *arg, enum sl_code code, const struct sl_error *err)
{
    struct shop *st = arg;
    st->n_waiting--;
    if (code)
        fail_msg("a sweep failed: %s", err->message);
}

size_t shop_sessions(struct shop *st)
{
    struct sl_store_stats stats;
    if (sl_store_is_shared(st->store)) {
        st->n_waiting++;
        sl_store_sweep(st->store, on_swept, st);
        shop_run(st);
    }
    sl_store_stats(st->store, &stats);
    return stats.sessions;
}

size_t shop_check(struct shop *st)
{
    size_t n = 0;
    shop_run(st);
    shop_check_soon(st);
    for (size_t i = 0; i < SHOP_SESSIONS; i++)
        n += st->v[i].exists;
    size_t there = shop_sessions(st);
    if (there != n) {
        if (!stores_quiet)
            fprintf(stderr, "%zu sessions instead of %zu\n", there, n);
        st->n_wrong++;
    }
    return st->n_wrong;
}

enum sl_code shop_load(struct shop *st, size_t i, struct sl_error *err)
{
    struct loading l = {.st = st, .i = i};
    struct sl_store_key k = shop_key(st, i);
    st->n_waiting++;
    sl_store_load(st->store, &k, NULL, on_loaded, &l);
    shop_run(st);
    if (err)
        *err = l.err;
    return l.code;
}

/* --- files ---------------------------------------------------------------------------------------
 */

static char wanted[64], found[512];

static int find_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    if (strncmp(path + ftw->base, wanted, strlen(wanted)) == 0)
        snprintf(found, sizeof found, "%s", path);
    return 0;
}

bool shop_snapshot_path(struct shop *st, size_t i, char *ret, size_t n)
{
    const char *tenant;
    char id[32], folder[256];
    name_of(i, &tenant, id);
    snprintf(wanted, sizeof wanted, "%s.", id);
    snprintf(folder, sizeof folder, "%s/sessions/t-%s", st->path, tenant);
    found[0] = '\0';
    nftw(folder, find_file, 16, FTW_PHYS);
    snprintf(ret, n, "%s", found);
    return found[0] != '\0';
}
