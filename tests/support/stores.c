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
#include "tests/support/stores_priv.h"

/* --- the shop -----------------------------------------------------------------------------------
 */

static struct sl_store_key key_of(size_t i, const struct model_session *m)
{
    static char ids[SHOP_SESSIONS][32];
    struct sl_store_key k = {0};
    shop_name(i, &k.tenant, ids[i]);
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
    shop_name(i, &tenant, id);
    if (!stores_quiet)
        fprintf(stderr, "session %zu (%s/%s): %s\n", i, tenant, id, what);
    st->n_wrong++;
}

static size_t find_session(const struct sl_store_head *h)
{
    for (size_t i = 0; i < SHOP_SESSIONS; i++) {
        const char *tenant;
        char id[32];
        shop_name(i, &tenant, id);
        if (strcmp(tenant, h->key.tenant) == 0 && strcmp(id, h->key.id) == 0)
            return i;
    }
    fail_msg("a session that nobody made: %s/%s", h->key.tenant, h->key.id);
    return 0;
}

/* The session once the first n of what was asked for are done. */
static void look_ahead(const struct shop *st, size_t i, size_t n, struct model_session *ret)
{
    *ret = st->v[i];
    for (size_t k = 0; k < n; k++)
        shop_apply(ret, &st->ahead[i][k]);
}

static void told(void *arg, const struct sl_store_head *h)
{
    struct shop *st = arg;
    size_t i = find_session(h);
    const char *what = shop_compare_head(&st->v[i], h);
    st->n_told++;
    for (size_t k = 1; what && k <= st->n_ahead[i]; k++) {
        struct model_session m;
        look_ahead(st, i, k, &m);
        if (!shop_compare_head(&m, h))
            what = NULL; /* the load will tell which */
    }
    if (what)
        wrong(st, i, what);
}

enum sl_code shop_open(struct shop *st, struct sl_error *err)
{
    struct sl_store_options opt = {.loop = &st->loop,
                                   .log_rewrite_bytes = st->rewrite_bytes,
                                   .log_slice_bytes = st->slice_bytes,
                                   .keep_turns = st->keep_turns,
                                   .max_names = SHOP_NAMES};
    st->n_told = 0;
    assert_null(st->store);
    if (st->spec) {
        opt = st->more;
        opt.spec = st->spec;
        opt.loop = &st->loop;
        opt.keep_turns = st->keep_turns;
        opt.max_names = SHOP_NAMES;
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
        shop_apply(&st->v[a->i], &v[k]);
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
    size_t n = shop_metadata(text, m->metadata_seed);
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
    shop_fill(op.incarnation, 16, ++st->n_seeds);
    op.created_at = op.used_at = st->base - 1000;
    op.ttl_s = (int64_t)(st->n_seeds % 3) * 3600;
    op.metadata_seed = st->n_seeds % 4 ? st->n_seeds : 0;
    return op;
}

static struct sl_store_head head_after(size_t i, const struct model_op *op, char text[64])
{
    struct model_session m = {0};
    shop_apply(&m, op);
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
    struct model_op as_it_is = op_of(SL_OP_HEAD, &m), op = as_it_is;
    char text[64];
    op.ttl_s = (int64_t)(++st->n_seeds % 5) * 6000; /* not over while a test runs */
    op.metadata_seed = st->n_seeds % 3 ? st->n_seeds : 0;
    op.used_at += 7;
    struct sl_store_head h = head_after(i, &op, text);
    h.tokens_seen = 99; /* a patch does not speak of these */
    h.created_at = 98;
    if (st->spec && !op.version) /* without a lease it was the making of it, asked again */
        op = as_it_is;
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
    op.tokens_seen += shop_n_tokens(op.seed);
    struct model_turn t = {op.version, op.seed, op.tokens_seen, answer};
    shop_turn(c, &t, st->base);
    op.used_at = c->turn.used_at;
    struct sl_store_key k = key_of(i, &m);
    sl_store_append_turn(st->store, &k, &c->turn, on_done, ask(st, i, &op));
    memset(c, 0xee, sizeof *c); /* what it was given is copied */
    free(c);
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
    unsigned char *p = shop_snapshot(op.seed, n);
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
    unsigned char *p = shop_snapshot(op.seed, n);
    if (p)
        sl_store_put_snapshot(st->store, &h.key, op.version, &h, p, n, on_done, ask(st, i, &op));
}

void do_unname(struct shop *st, size_t i, size_t n)
{
    struct model_session m = latest(st, i);
    struct model_op op = op_of(SL_OP_UNNAME, &m);
    if (!m.n_names)
        return;
    memcpy(op.name, m.names[n % m.n_names].name, sizeof op.name);
    struct sl_store_key k = key_of(i, &m);
    sl_store_drop_name(st->store, &k, m.version, op.name, on_done, ask(st, i, &op));
}

void do_name(struct shop *st, size_t i, size_t back)
{
    struct model_session m = latest(st, i);
    if (m.n_names == SHOP_NAMES) {
        do_unname(st, i, 0);
        m = latest(st, i);
    }
    struct model_op op = op_of(SL_OP_NAME, &m);
    uint64_t most = back < st->keep_turns ? back : st->keep_turns;
    op.named = m.version > most ? m.version - most : 0;
    while (op.named < m.version && !shop_was_written(&m, op.named))
        op.named++;
    snprintf(op.name, sizeof op.name, "at-%llu", (unsigned long long)++st->n_seeds);
    struct sl_store_key k = key_of(i, &m);
    sl_store_put_name(st->store, &k, m.version, op.name, op.named, on_done, ask(st, i, &op));
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

static void compare_any(struct shop *st, size_t i, const struct sl_store_record *r,
                        const struct sl_error *err)
{
    const char *what = NULL;
    for (size_t k = 0; k <= st->n_ahead[i]; k++) {
        struct model_session m;
        look_ahead(st, i, k, &m);
        const char *differs = r                                     ? shop_compare(st, &m, r)
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
    shop_name(i, &tenant, id);
    snprintf(wanted, sizeof wanted, "%s.", id);
    snprintf(folder, sizeof folder, "%s/sessions/t-%s", st->path, tenant);
    found[0] = '\0';
    nftw(folder, find_file, 16, FTW_PHYS);
    snprintf(ret, n, "%s", found);
    return found[0] != '\0';
}
