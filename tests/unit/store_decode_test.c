/* store_decode_test.c: decoders of a `dir:` store's loads: what they see, and who has the last
 * word.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "tests/support/stores.h"

enum { SIZE = 300 };

static unsigned char bytes[SIZE]; /* of the snapshot's file */

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Session 0 has a snapshot and a turn since, session 1 a turn alone. */
static struct shop *with_snapshot(char path[512])
{
    struct shop *st = calloc(1, sizeof *st);
    assert_non_null(st);
    shop_init(st, &sl_store_io_system, 0);
    shop_must_open(st);
    for (size_t i = 0; i < 2; i++) {
        do_create(st, i);
        do_turn(st, i, false);
    }
    do_snapshot(st, 0, SIZE);
    do_turn(st, 0, true);
    shop_run(st);
    assert_true(shop_snapshot_path(st, 0, path, 512));
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(bytes, 1, SIZE, f), SIZE);
    fclose(f);
    return st;
}

static void free_shop(struct shop *st)
{
    shop_close(st);
    shop_done(st);
    free(st);
}

struct decoding {
    struct shop *st;
    size_t need; /* bytes that it asks for */
    enum sl_code say;
    size_t n_decoded, n_loaded;
    unsigned char seen[SIZE];
    bool has_snapshot; /* the decoder's record */
    enum sl_code code;
    struct sl_error err;
};

static enum sl_code decode(void *arg, const struct sl_store_record *r, struct sl_error *err)
{
    struct decoding *d = arg;
    size_t have = 0;
    d->n_decoded++;
    d->has_snapshot = r->snapshot != NULL;
    if (d->has_snapshot) {
        enum sl_code c = r->source.need(r->source.arg, d->need, &have, err);
        if (c)
            return c;
        assert_true(have >= d->need && have <= r->n_snapshot);
        memcpy(d->seen, r->snapshot, d->need);
    }
    return d->say ? sl_fail(err, d->say, "the decoder says no") : SL_OK;
}

static void on_decoded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    struct decoding *d = arg;
    d->n_loaded++;
    d->st->n_waiting--;
    d->code = err ? err->code : SL_OK;
    if (err)
        d->err = *err;
    else if (r->snapshot)
        assert_memory_equal(r->snapshot, bytes, SIZE);
}

/* Loads session i with a decoder. */
static struct decoding load_with(struct shop *st, size_t i, size_t need, enum sl_code say)
{
    struct decoding d = {.st = st, .need = need, .say = say};
    struct sl_store_key k = shop_key(st, i);
    st->n_waiting++;
    sl_store_load(st->store, &k, decode, on_decoded, &d);
    assert_int_equal(d.n_loaded, 0); /* not from inside; the decoder may run already, in the pool */
    shop_run(st);
    assert_int_equal(d.n_loaded, 1);
    return d;
}

static void test_decoders(void **state)
{
    (void)state;
    char path[512];
    struct shop *st = with_snapshot(path);
    for (size_t need = 1; need <= SIZE; need += SIZE - 1) {
        struct decoding d = load_with(st, 0, need, SL_OK);
        assert_int_equal(d.code, SL_OK);
        assert_int_equal(d.n_decoded, 1);
        assert_memory_equal(d.seen, bytes, need);
        d = load_with(st, 0, need, SL_E_NO_MEMORY);
        assert_int_equal(d.code, SL_E_NO_MEMORY);
        assert_string_equal(d.err.message, "the decoder says no");
    }
    struct decoding d = load_with(st, 1, 0, SL_OK); /* one without a snapshot */
    assert_int_equal(d.code, SL_OK);
    assert_true(d.n_decoded == 1 && !d.has_snapshot);
    d = load_with(st, 1, 0, SL_E_IO);
    assert_int_equal(d.code, SL_E_IO);
    free_shop(st);
}

/* Whatever it said, also of bytes that it never asked for. */
static void test_damage_has_the_last_word(void **state)
{
    (void)state;
    char path[512];
    unsigned char bad[SIZE];
    struct shop *st = with_snapshot(path);
    memcpy(bad, bytes, SIZE);
    bad[SIZE - 1] ^= 0x10;
    write_file(path, bad, SIZE);
    static const enum sl_code say[] = {SL_OK, SL_E_NO_MEMORY, SL_E_SNAPSHOT_MODEL_MISMATCH};
    for (size_t i = 0; i < 3; i++) {
        struct decoding d = load_with(st, 0, i ? SIZE : 1, say[i]);
        assert_int_equal(d.n_decoded, 1);
        assert_int_equal(d.code, SL_E_SNAPSHOT_CORRUPT);
        assert_true(strncmp(d.err.message, path, strlen(path)) == 0);
        assert_non_null(strstr(d.err.message, "its bytes are not those that were written"));
    }
    write_file(path, bytes, SIZE - 1);
    struct decoding d = load_with(st, 0, 1, SL_OK);
    assert_int_equal(d.code, SL_E_SNAPSHOT_CORRUPT);
    assert_int_equal(d.n_decoded, 0);
    write_file(path, bytes, SIZE);
    d = load_with(st, 0, SIZE, SL_OK);
    assert_int_equal(d.code, SL_OK);
    free_shop(st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_damage_has_the_last_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
