/* faults.c: see faults.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/faults.h"

/* So that earlier snapshots are written around, kept and dropped, too. */
enum { KEEP_TURNS = 2 };

struct shop *faults_shop(uint64_t rewrite_bytes, size_t slice_bytes)
{
    struct shop *st = calloc(1, sizeof *st);
    char folder[160];
    assert_non_null(st);
    shop_init(st, &disk_io, rewrite_bytes);
    st->slice_bytes = slice_bytes;
    st->keep_turns = KEEP_TURNS;
    shop_folder(st, folder, sizeof folder);
    disk_begin(folder);
    return st;
}

void faults_done(struct shop *st)
{
    disk_end();
    shop_done(st);
    free(st);
}

void faults_told(struct faults *in, enum sl_code code, const char *message)
{
    if (!in->code || disk_is_cut())
        return;
    if (code != in->code || !strstr(message, in->text))
        fail_msg("'%s' (%s) does not say what was wrong", message, sl_code_name(code));
    in->n_errors++;
}

bool faults_open(struct shop *st, struct faults *in)
{
    struct sl_error err;
    enum sl_code c = shop_open(st, &err);
    if (c) {
        faults_told(in, c, err.message);
        if (disk_is_cut())
            return false;
        shop_must_open(st);
    }
    return true;
}

bool faults_settle(struct shop *st, struct faults *in)
{
    size_t before = st->n_failed;
    shop_run(st);
    /* What builds on a change that failed fails by the version it speaks of. */
    if (st->n_failed > before && st->last.code != SL_E_VERSION_MISMATCH &&
        st->last.code != SL_E_SESSION_NOT_FOUND && st->last.code != SL_E_INVALID_VALUE &&
        st->last.code != SL_E_CHECKPOINT_NOT_FOUND && st->last.code != SL_E_CHECKPOINTS_FULL)
        faults_told(in, st->last.code, st->last.message);
    return !disk_is_cut();
}

void faults_check(struct shop *st)
{
    if (!st->store)
        shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    assert_int_equal(shop_check_past(st), 0);
    shop_close(st);
    st->crashed = false;
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
    assert_int_equal(shop_check_past(st), 0);
    shop_close(st);
}

bool faults_late(int64_t i, int64_t n)
{
    return i >= n - n / 10;
}

void faults_salvaged(struct shop *st, enum disk_survivors which, uint64_t seed,
                     bool (*go_on)(struct shop *st))
{
    struct shop *after = calloc(1, sizeof *after);
    char folder[160];
    assert_non_null(after);
    shop_init(after, &disk_io, st->rewrite_bytes);
    after->slice_bytes = st->slice_bytes;
    after->keep_turns = st->keep_turns;
    shop_folder(after, folder, sizeof folder);
    disk_salvage(folder, which, seed);
    memcpy(after->v, st->v, sizeof st->v);
    memcpy(after->ahead, st->ahead, sizeof st->ahead);
    memcpy(after->n_ahead, st->n_ahead, sizeof st->n_ahead);
    after->base = st->base;
    after->n_seeds = st->n_seeds + 1000;
    after->n_asked = st->n_asked;
    after->crashed = true;
    disk_cut_at(-1); /* the power is back */
    shop_must_open(after);
    assert_int_equal(shop_check(after), 0);
    assert_int_equal(shop_check_past(after), 0);
    after->crashed = false;
    assert_true(!go_on || go_on(after)); /* and it goes on */
    assert_int_equal(after->n_failed, 0);
    faults_check(after);
    shop_done(after);
    free(after);
}
