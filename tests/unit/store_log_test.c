/* store_log_test.c: logs that end too early, are damaged, or were written by other versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/log.h"
#include "tests/support/stores.h"
#include "tests/unit/store_golden.h"

static struct shop *new_shop(uint64_t rewrite_bytes)
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    shop_init(st, &sl_store_io_system, rewrite_bytes);
    return st;
}

static void free_shop(struct shop *st)
{
    if (st->store)
        shop_close(st);
    shop_done(st);
    free(st);
}

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static unsigned char *read_file(const char *path, size_t *ret_n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *p = malloc(1 << 20);
    assert_non_null(p);
    *ret_n = fread(p, 1, 1 << 20, f);
    assert_true(*ret_n < 1 << 20);
    fclose(f);
    return p;
}

static void log_path(const struct shop *st, char ret[256])
{
    snprintf(ret, 256, "%s/log", st->path);
}

/* --- torn ends -----------------------------------------------------------------------------------
 */

enum { TORN = 3 };

/* A store whose last batch, of TORN records, may be lost: its log, and where that batch begins. The
 * model stays as it was before, with the batch ahead. */
static unsigned char *make_torn(struct shop *st, size_t *ret_begin, size_t *ret_n)
{
    static struct model_session before[SHOP_SESSIONS];
    static struct model_op batch[TORN];
    char path[256];
    struct sl_store_stats stats;
    shop_must_open(st);
    for (size_t i = 0; i < 4; i++) {
        do_create(st, i);
        do_turn(st, i, true);
    }
    do_snapshot(st, 3, 100);
    shop_run(st);
    sl_store_stats(st->store, &stats);
    *ret_begin = (size_t)stats.log_bytes;
    memcpy(before, st->v, sizeof before);
    do_turn(st, 0, true);
    do_patch(st, 1);
    do_remove(st, 2);
    for (size_t i = 0; i < TORN; i++)
        batch[i] = st->ahead[i][0];
    shop_run(st);
    log_path(st, path);
    unsigned char *p = read_file(path, ret_n); /* while it is open: as a crash leaves it */
    sl_store_stats(st->store, &stats);
    assert_int_equal(*ret_n, stats.log_bytes);
    shop_close(st);
    memcpy(st->v, before, sizeof before);
    for (size_t i = 0; i < TORN; i++) {
        st->ahead[i][0] = batch[i];
        st->n_ahead[i] = 1;
    }
    st->crashed = true;
    return p;
}

/* Opens with this log; how many records of the batch were found. */
static size_t open_torn(struct shop *st, const unsigned char *log, size_t n)
{
    struct shop *copy = malloc(sizeof *copy);
    char path[256];
    size_t found = 0;
    assert_non_null(copy);
    memcpy(copy->v, st->v, sizeof st->v);
    memcpy(copy->ahead, st->ahead, sizeof st->ahead);
    memcpy(copy->n_ahead, st->n_ahead, sizeof st->n_ahead);
    log_path(st, path);
    write_file(path, log, n);
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    for (size_t i = 0; i < TORN; i++)
        found += memcmp(&st->v[i], &copy->v[i], sizeof st->v[i]) != 0;
    do_turn(st, 0, false); /* and it goes on */
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    shop_close(st);
    memcpy(st->v, copy->v, sizeof st->v);
    memcpy(st->ahead, copy->ahead, sizeof st->ahead);
    memcpy(st->n_ahead, copy->n_ahead, sizeof st->n_ahead);
    free(copy);
    return found;
}

static void test_torn_at_each_byte(void **state)
{
    (void)state;
    size_t begin, n, last = 0;
    struct shop *st = new_shop(0);
    unsigned char *log = make_torn(st, &begin, &n), *torn = malloc(n);
    assert_non_null(torn);
    assert_true(begin < n);
    for (size_t k = begin; k <= n; k++) { /* the file ends there */
        size_t found = open_torn(st, log, k);
        assert_in_range(found, last, last + 1); /* one by one, in their order */
        assert_true(k > begin || found == 0);
        last = found;
    }
    assert_int_equal(last, TORN);
    for (size_t k = begin; k < n; k++) { /* the file is whole, its content is not */
        memcpy(torn, log, n);
        memset(torn + k, k % 2 ? 0 : 0xff, n - k);
        assert_in_range(open_torn(st, torn, n), 0, TORN);
    }
    for (size_t k = begin; k + 1 < n; k += 8) { /* only a middle part is missing */
        memcpy(torn, log, n);
        memset(torn + k, 0, n - k < 64 ? n - k : 64);
        assert_in_range(open_torn(st, torn, n), 0, TORN - 1);
    }
    free(torn);
    free(log);
    free_shop(st);
}

/* --- damage --------------------------------------------------------------------------------------
 */

static void count_head(void *arg, const struct sl_store_head *h)
{
    (void)h;
    ++*(size_t *)arg;
}

/* Opens without comparing heads; those of a damaged session may say anything. */
static enum sl_code open_blind(struct shop *st, size_t *ret_n, struct sl_error *err)
{
    struct sl_store_options opt = {.loop = &st->loop, .log_rewrite_bytes = st->rewrite_bytes};
    *ret_n = 0;
    return sl_dir_open(&st->store, st->path, &opt, st->io, count_head, ret_n, err);
}

/* Which session is damaged; SHOP_SESSIONS: none. All others are as they were. */
static size_t find_damaged(struct shop *st, size_t n)
{
    size_t damaged = SHOP_SESSIONS;
    for (size_t i = 0; i < n; i++) {
        struct sl_error err;
        enum sl_code c = shop_load(st, i, &err);
        if (!c)
            continue;
        assert_int_equal(c, SL_E_STORE_CORRUPT);
        if (!strstr(err.message, "offset "))
            fail_msg("'%s' names no offset", err.message);
        assert_int_equal(damaged, SHOP_SESSIONS);
        damaged = i;
    }
    return damaged;
}

static void on_code(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)err;
    *(int *)arg = (int)code;
}

/* It can be read by nobody and written by nobody, also after a rewrite; and be deleted. */
static void check_damaged(struct shop *st, size_t i, bool rewrite)
{
    struct sl_store_key k = shop_key(st, i);
    struct sl_store_turn t = {.version = st->v[i].version + 1, .continuation = {"{}", 2}};
    struct sl_store_stats stats;
    int code = -1;
    sl_store_append_turn(st->store, &k, &t, on_code, &code);
    while (code < 0)
        uv_run(&st->loop, UV_RUN_ONCE);
    assert_int_equal(code, SL_E_STORE_CORRUPT);
    for (sl_store_stats(st->store, &stats); rewrite && !stats.rewrites;
         sl_store_stats(st->store, &stats)) {
        do_patch(st, (i + 1) % 4);
        shop_run(st);
    }
    assert_int_equal(st->n_failed, 0);
    assert_int_equal(find_damaged(st, 4), i);
    if (rewrite) {
        struct sl_error err;
        size_t n;
        shop_close(st);
        assert_int_equal(open_blind(st, &n, &err), SL_OK);
        assert_int_equal(n, 4);
        assert_int_equal(find_damaged(st, 4), i);
    }
    do_remove(st, i);
    do_create(st, i);
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    assert_int_equal(shop_check(st), 0);
    shop_close(st);
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
}

/* One bit of each byte of a log that was closed: nothing goes without a word. */
static void test_each_byte_damaged(void **state)
{
    (void)state;
    size_t n, n_refused = 0, n_damaged = 0, n_unharmed = 0, told;
    char path[256];
    struct shop *st = new_shop(2000);
    struct model_session *before = malloc(sizeof st->v);
    struct sl_error err;
    shop_must_open(st);
    for (size_t i = 0; i < 4; i++) {
        do_create(st, i);
        do_turn(st, i, i % 2);
        do_turn(st, i, i == 0);
    }
    do_snapshot(st, 3, 100);
    do_turn(st, 3, true);
    shop_run(st);
    shop_close(st);
    log_path(st, path);
    size_t n_snapshot;
    char snapshot_path[512];
    assert_true(shop_snapshot_path(st, 3, snapshot_path, sizeof snapshot_path));
    unsigned char *snapshot = read_file(snapshot_path, &n_snapshot);
    unsigned char *log = read_file(path, &n), *bad = malloc(n);
    assert_true(before && bad);
    memcpy(before, st->v, sizeof st->v);
    for (size_t k = 0; k < n; k++) {
        memcpy(bad, log, n);
        bad[k] ^= (unsigned char)(1u << (k % 8));
        write_file(path, bad, n);
        write_file(snapshot_path, snapshot, n_snapshot); /* the session may have been deleted */
        enum sl_code c = open_blind(st, &told, &err);
        if (c) {
            if (c != SL_E_STORE_CORRUPT || !strstr(err.message, path))
                fail_msg("byte %zu: '%s'", k, err.message);
            n_refused++;
            continue;
        }
        assert_int_equal(told, 4);
        size_t damaged = find_damaged(st, 4);
        if (damaged < 4) {
            if (n_damaged++ % 16 == 0)
                check_damaged(st, damaged, n_damaged % 32 == 1);
        } else {
            assert_int_equal(shop_check(st), 0); /* padding, or the mark at the end */
            n_unharmed++;
        }
        shop_close(st);
        memcpy(st->v, before, sizeof st->v);
    }
    printf("%zu bytes: %zu refused, %zu damage one session, %zu do no harm\n", n, n_refused,
           n_damaged, n_unharmed);
    assert_true(n_refused > 64 && n_damaged > 100 && n_unharmed < 200);
    free(before);
    free(snapshot);
    free(bad);
    free(log);
    free_shop(st);
}

/* The headers of a record say whose it is, its own place, and its own log. */
static void test_records_of_elsewhere(void **state)
{
    (void)state;
    unsigned char buf[512];
    char payload[] = "payload";
    struct sl_record r = {.kind = SL_RECORD_BROKEN,
                          .tenant = "t",
                          .tenant_n = 1,
                          .id = "i",
                          .id_n = 1,
                          .batch = 64,
                          .payload_n = sizeof payload};
    struct sl_record got;
    sl_record_write(buf, &r, payload, 1000, 64);
    size_t n = sl_record_size(&r);
    assert_int_equal(n % 8, 0);
    assert_true(sl_record_read(&got, buf, n, 1000, 64));
    assert_false(sl_record_read(&got, buf, n, 1000, 72));
    assert_false(sl_record_read(&got, buf, n, 1008, 64));
    for (size_t k = 0; k <= n; k++)
        assert_int_equal(sl_record_read(&got, buf, k, 1000, 64), k >= SL_RECORD_HEADER + 2);
    /* Whole, but nothing that is ever written. */
    static const struct sl_record odd[] = {
        {.kind = 0, .tenant = "t", .tenant_n = 1, .id = "i", .id_n = 1},
        {.kind = SL_RECORD_KINDS, .tenant = "t", .tenant_n = 1, .id = "i", .id_n = 1},
        {.kind = SL_RECORD_HEAD, .tenant = "/", .tenant_n = 1, .id = "i", .id_n = 1},
        {.kind = SL_RECORD_HEAD, .tenant = "t", .tenant_n = 1, .id = ".i", .id_n = 2},
        {.kind = SL_RECORD_HEAD, .tenant = "t", .tenant_n = 1, .id = "a/b", .id_n = 3},
        {.kind = SL_RECORD_HEAD, .tenant = "", .id = "i", .id_n = 1},
        {.kind = SL_RECORD_HEAD, .tenant = "t", .tenant_n = 1, .id = ""},
        {.kind = SL_RECORD_HEAD, .tenant = "t", .tenant_n = 1, .id = "i", .id_n = 1, .batch = 72},
        {.kind = SL_RECORD_MARK, .tenant = "t", .tenant_n = 1, .id = "i", .id_n = 1},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        sl_record_write(buf, &odd[i], NULL, 1000, 64);
        assert_false(sl_record_read(&got, buf, sizeof buf, 1000, 64));
    }
}

/* --- the golden log ------------------------------------------------------------------------------
 */

struct golden {
    size_t n_heads;
    bool loaded;
};

static void golden_head(void *arg, const struct sl_store_head *h)
{
    struct golden *g = arg;
    g->n_heads++;
    if (strcmp(h->key.id, "alice") == 0) {
        assert_string_equal(h->key.tenant, "default");
        assert_memory_equal(h->key.incarnation, "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17", 16);
        assert_int_equal(h->version, 3);
        assert_int_equal(h->tokens_seen, 6);
        assert_int_equal(h->created_at, 1700000000);
        assert_int_equal(h->used_at, 1700000030);
        assert_int_equal(h->ttl_s, 3600);
        assert_int_equal(h->metadata.n, 7);
        assert_string_equal(h->metadata.s, "{\"a\":1}");
        assert_int_equal(h->snapshot_version, 2);
        assert_int_equal(h->replay_tokens, 2);
    } else if (strcmp(h->key.id, "carol") == 0) {
        assert_string_equal(h->key.tenant, "x.y");
        assert_int_equal(h->version, 5);
        assert_int_equal(h->tokens_seen, 77);
        assert_null(h->metadata.s);
        assert_int_equal(h->snapshot_version, 5);
    } else {
        assert_string_equal(h->key.id, "dave"); /* bob was deleted */
        assert_int_equal(h->version, 9);
    }
}

static void golden_alice(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    if (err)
        fail_msg("%s", err->message);
    assert_int_equal(r->n_snapshot, 19);
    assert_memory_equal(r->snapshot, "not a real snapshot", 19);
    assert_int_equal(r->n_turns, 1);
    assert_int_equal(r->turns[0].version, 3);
    assert_int_equal(r->turns[0].tokens_seen, 6);
    assert_int_equal(r->turns[0].used_at, 1700000030);
    assert_int_equal(r->turns[0].n_tokens, 2);
    assert_int_equal(r->turns[0].n_drop, 0x1234);
    assert_int_equal(r->turns[0].n_generated, 1);
    assert_int_equal(r->turns[0].tokens[0], 10);
    assert_int_equal(r->turns[0].tokens[1], 11);
    assert_string_equal(r->turns[0].continuation.s, "{\"pending\":[11]}");
    assert_null(r->turns[0].answer);
    assert_int_equal(r->n_answers, 1);
    assert_string_equal(r->answers[0].idempotency_key, "k1");
    assert_int_equal(r->answers[0].at, 4000000000);
    assert_int_equal(r->answers[0].request_hash[15], 0xaa);
    assert_int_equal(r->answers[0].body.n, 8);
    assert_memory_equal(r->answers[0].body.s, "body\0one", 9);
    ((struct golden *)arg)->loaded = true;
}

static void golden_carol(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    if (err)
        fail_msg("%s", err->message);
    assert_memory_equal(r->snapshot, "five", 4);
    assert_int_equal(r->n_turns, 0);
    assert_int_equal(r->n_answers, 1);
    assert_string_equal(r->answers[0].idempotency_key, "k2");
    assert_string_equal(r->answers[0].body.s, "two");
    ((struct golden *)arg)->loaded = true;
}

static void golden_dave(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    assert_null(r);
    assert_int_equal(err->code, SL_E_STORE_CORRUPT);
    assert_string_equal(err->message, "session 'dave' is damaged: the record at offset 64 of an "
                                      "earlier log was damaged");
    ((struct golden *)arg)->loaded = true;
}

static void load_golden(struct shop *st, struct golden *g, const char *tenant, const char *id,
                        int first, int step, sl_store_loaded *cb)
{
    struct sl_store_key k = {.tenant = tenant, .id = id};
    for (int i = 0; i < 16; i++)
        k.incarnation[i] = (unsigned char)(first + step * i);
    g->loaded = false;
    sl_store_load(st->store, &k, NULL, cb, g);
    while (!g->loaded)
        uv_run(&st->loop, UV_RUN_ONCE);
}

static void put_golden(const struct shop *st, const char *name, const void *p, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", st->path, name);
    for (char *s = path + strlen(st->path); s; s = strchr(s + 1, '/')) {
        *s = '\0';
        mkdir(path, 0700);
        *s = '/';
    }
    write_file(path, p, n);
}

static void test_golden_log(void **state)
{
    (void)state;
    struct shop *st = new_shop(100);
    struct sl_store_options opt = {.loop = &st->loop, .log_rewrite_bytes = 100};
    struct sl_error err;
    put_golden(st, "format", "slate.store 1\n", 14);
    put_golden(st, "log", golden_log, sizeof golden_log);
    put_golden(st, "sessions/t-default/4/7/alice.000102030405060708090a0b0c0d0e0f.2-7.safetensors",
               "not a real snapshot", 19);
    put_golden(st, "sessions/t-x.y/e/6/carol.cccccccccccccccccccccccccccccccc.5-8.safetensors",
               "five", 4);
    for (int round = 0; round < 3; round++) { /* from the second on, as we write it */
        struct golden g = {0};
        if (sl_dir_open(&st->store, st->path, &opt, st->io, golden_head, &g, &err))
            fail_msg("%s", err.message);
        assert_int_equal(g.n_heads, 3);
        load_golden(st, &g, "default", "alice", 0, 1, golden_alice);
        load_golden(st, &g, "x.y", "carol", 0xcc, 0, golden_carol);
        load_golden(st, &g, "x.y", "dave", 16, 1, golden_dave);
        do_create(st, 12);
        do_remove(st, 12);
        shop_run(st);
        assert_int_equal(st->n_failed, 0);
        shop_close(st);
    }
    free_shop(st);
}

/* --- other versions, other files -----------------------------------------------------------------
 */

static void expect_refusal(struct shop *st, enum sl_code code, const char *text)
{
    struct sl_error err;
    size_t n;
    enum sl_code c = open_blind(st, &n, &err);
    if (c != code || !strstr(err.message, text))
        fail_msg("%s '%s' instead of %s '%s'", sl_code_name(c), c ? err.message : "",
                 sl_code_name(code), text);
}

static void test_bad_files(void **state)
{
    (void)state;
    struct shop *st = new_shop(0);
    char path[256];
    unsigned char header[SL_LOG_HEADER];
    shop_must_open(st);
    do_create(st, 0);
    shop_run(st);
    shop_close(st);
    log_path(st, path);
    size_t n;
    unsigned char *log = read_file(path, &n);
    write_file(path, "", 0);
    expect_refusal(st, SL_E_STORE_CORRUPT, "/log: ends after 0 bytes, where its header has 64");
    write_file(path, log, 63);
    expect_refusal(st, SL_E_STORE_CORRUPT, "/log: ends after 63 bytes");
    memset(log, 'x', 8);
    write_file(path, log, n);
    expect_refusal(st, SL_E_STORE_CORRUPT, "/log: is no log of a store (offset 0)");
    sl_log_header_write(header, 1);
    header[8] = 2; /* with its hash, which the golden log's bytes vouch for */
    uint64_t hash = sl_record_hash(header, 56);
    memcpy(header + 56, &hash, 8);
    write_file(path, header, sizeof header);
    expect_refusal(st, SL_E_FILE_UNSUPPORTED,
                   "/log: is of format 2; this version of slate reads 1");
    free(log);
    free_shop(st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    stores_quiet = getenv("NOISY") == NULL; /* thousands of lines say what is damaged */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torn_at_each_byte),
        cmocka_unit_test(test_each_byte_damaged),
        cmocka_unit_test(test_records_of_elsewhere),
        cmocka_unit_test(test_golden_log),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
