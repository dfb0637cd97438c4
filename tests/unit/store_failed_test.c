/* store_failed_test.c: what a store that could not write leaves behind: nothing of what it refused,
 * also where the log could not be cut; and an answer to every call, also without memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "tests/support/stores.h"

/* --- a disk that takes the bytes, says that it failed, and cannot cut
 * -----------------------------
 */

static bool armed_sync, armed_write, stubborn;

static int bad_sync(int fd)
{
    if (!armed_sync)
        return fdatasync(fd);
    armed_sync = false;
    errno = EIO;
    return -1;
}

/* All but the last bytes arrive: whole records may be among them. */
static ssize_t bad_write(int fd, const void *p, size_t n, off_t at)
{
    if (!armed_write)
        return pwrite(fd, p, n, at);
    armed_write = false;
    assert_true(pwrite(fd, p, n - 8, at) == (ssize_t)(n - 8));
    errno = EIO;
    return -1;
}

static int bad_truncate(int fd, off_t n)
{
    if (!stubborn)
        return ftruncate(fd, n);
    errno = EIO;
    return -1;
}

/* Three turns go in one batch, which fails; the server ends; they are not there. */
static void refused(bool *armed)
{
    static struct sl_store_io io;
    static struct shop st;
    io = sl_store_io_system;
    io.fdatasync = bad_sync;
    io.pwrite = bad_write;
    io.truncate = bad_truncate;
    shop_init(&st, &io, 0);
    shop_must_open(&st);
    for (size_t i = 0; i < 3; i++) {
        do_create(&st, i);
        do_turn(&st, i, true);
    }
    shop_run(&st);
    assert_int_equal(st.n_failed, 0);
    stubborn = true;
    *armed = true;
    for (size_t i = 0; i < 3; i++)
        do_turn(&st, i, true);
    shop_run(&st);
    assert_int_equal(st.n_failed, 3);
    assert_int_equal(st.last.code, SL_E_IO);
    shop_close(&st);
    stubborn = false;
    shop_must_open(&st); /* compares versions with what was acknowledged */
    assert_int_equal(shop_check(&st), 0);
    do_turn(&st, 0, true);
    shop_run(&st);
    assert_int_equal(st.n_failed, 3);
    shop_close(&st);
    shop_must_open(&st);
    assert_int_equal(shop_check(&st), 0);
    shop_close(&st);
    shop_done(&st);
}

static void test_not_synced_and_not_cut(void **state)
{
    (void)state;
    refused(&armed_sync);
}

static void test_not_written_and_not_cut(void **state)
{
    (void)state;
    refused(&armed_write);
}

/* --- no memory at all ---------------------------------------------------------------------------
 */

enum { CALLS = SL_STORE_RESERVE + 300 };

static size_t n_told;

static void on_done(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)arg;
    (void)err;
    assert_int_equal(code, SL_E_NO_MEMORY);
    n_told++;
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    assert_null(r);
    on_done(arg, err->code, err);
}

static void test_more_calls_than_can_be_noted(void **state)
{
    (void)state;
    static struct shop st;
    shop_init(&st, &sl_store_io_system, 0);
    shop_must_open(&st);
    do_create(&st, 0);
    do_turn(&st, 0, true);
    shop_run(&st);
    struct sl_store_key key = shop_key(&st, 0);
    sl_mem_fail_after(0);
    for (size_t i = 0; i < CALLS; i++) {
        if (i % 2)
            sl_store_remove(st.store, &key, on_done, NULL);
        else
            sl_store_load(st.store, &key, NULL, on_loaded, NULL);
        assert_int_equal(n_told, i < SL_STORE_RESERVE ? 0 : i + 1 - SL_STORE_RESERVE);
    }
    sl_mem_fail_after(-1);
    while (n_told < CALLS)
        uv_run(&st.loop, UV_RUN_ONCE);
    assert_int_equal(shop_check(&st), 0); /* it goes on */
    shop_close(&st);
    assert_int_equal(n_told, CALLS);
    shop_done(&st);
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_synced_and_not_cut),
        cmocka_unit_test(test_not_written_and_not_cut),
        cmocka_unit_test(test_more_calls_than_can_be_noted),
    };
    return cmocka_run_group_tests_name("store_failed", tests, NULL, NULL);
}
