/* store_repair_test.c: a log with a damaged header in its midst: refused, told about, mended on
 * request; nothing that was acknowledged is lost without a word. */
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
#include "server/cli/cli.h"
#include "server/store/repair.h"
#include "tests/support/cli_run.h"
#include "tests/support/stores.h"

enum { LOG_MAX = 1 << 20, IDLE = 3 };

static struct shop st;
static unsigned char log_bytes[LOG_MAX];
static size_t log_n;
static char report[16384];

static void log_path(char ret[256])
{
    snprintf(ret, 256, "%s/log", st.path);
}

static void read_log(void)
{
    char path[256];
    log_path(path);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    log_n = fread(log_bytes, 1, LOG_MAX, f);
    assert_true(log_n < LOG_MAX);
    fclose(f);
}

static void write_log(void)
{
    char path[256];
    log_path(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(log_bytes, 1, log_n, f), log_n);
    fclose(f);
}

/* Sessions 0 to IDLE, of which the last is idle from then on; turns of the others in separate
 * batches. */
static void make(void)
{
    shop_init(&st, &sl_store_io_system, 0);
    shop_must_open(&st);
    for (size_t i = 0; i <= IDLE; i++) {
        do_create(&st, i);
        do_turn(&st, i, true);
        shop_run(&st);
    }
    do_snapshot(&st, 1, 300);
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < IDLE; i++) {
            do_turn(&st, i, false);
            shop_run(&st);
        }
    }
    assert_int_equal(st.n_failed, 0);
    shop_close(&st);
    read_log();
}

/* The offset of the record that makes version `version` of session i. */
static size_t turn_at(size_t i, uint64_t version)
{
    struct sl_store_key key = shop_key(&st, i);
    uint64_t id;
    assert_int_equal(sl_log_header_read(log_bytes, log_n, "log", &id, NULL), SL_OK);
    for (size_t at = SL_LOG_HEADER; at < log_n;) {
        struct sl_record r;
        assert_true(sl_record_read(&r, log_bytes + at, log_n - at, id, at));
        if (r.kind == SL_RECORD_TURN && r.version == version && r.id_n == strlen(key.id) &&
            memcmp(r.id, key.id, r.id_n) == 0 && memcmp(r.incarnation, key.incarnation, 16) == 0)
            return at;
        at += sl_record_size(&r);
    }
    fail_msg("there is no such turn");
    return 0;
}

static bool take_line(void *arg, const char *text)
{
    (void)arg;
    size_t n = strlen(report);
    snprintf(report + n, sizeof report - n, "%s\n", text);
    return true;
}

static bool take_no_line(void *arg, const char *text)
{
    (void)arg;
    (void)text;
    return false;
}

/* What is lost would be told by nothing afterwards: so nothing is repaired. */
static void refused_for_want_of_a_report(void)
{
    struct sl_repair_report r;
    struct sl_error err = {0};
    assert_int_equal(
        sl_store_repair(st.path, &sl_store_io_system, true, take_no_line, NULL, &r, &err), SL_E_IO);
    assert_non_null(strstr(err.message, "nothing was changed"));
}

static struct sl_repair_report ask(bool repair)
{
    struct sl_repair_report r;
    struct sl_error err = {0};
    report[0] = '\0';
    if (sl_store_repair(st.path, &sl_store_io_system, repair, take_line, NULL, &r, &err))
        fail_msg("%s", err.message);
    return r;
}

static void expect_line(const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!strstr(report, text))
        fail_msg("\"%s\" is not in:\n%s", text, report);
}

/* Refused by the server's open, whose message leads here; told, and nothing is changed by that. */
static struct sl_repair_report refused_and_told(void)
{
    struct sl_error err = {0};
    static unsigned char before[LOG_MAX];
    write_log();
    memcpy(before, log_bytes, log_n);
    assert_int_equal(shop_open(&st, &err), SL_E_STORE_CORRUPT);
    assert_non_null(strstr(err.message, "slate sessions repair"));
    struct sl_repair_report r = ask(false);
    assert_int_equal(r.n_gaps, 1);
    assert_int_equal(r.n_sessions, IDLE + 1);
    read_log();
    assert_memory_equal(log_bytes, before, log_n);
    assert_int_equal(shop_open(&st, &err), SL_E_STORE_CORRUPT);
    return r;
}

/* After a repair: session i can only be deleted; the others are as they were. */
static void mended(size_t i)
{
    struct sl_error err = {0};
    shop_must_open(&st);
    assert_int_equal(st.n_wrong,
                     1); /* the head of the damaged one is told, as far as it is known */
    st.n_wrong = 0;
    for (size_t k = 0; k <= IDLE; k++)
        assert_int_equal(shop_load(&st, k, &err), k == i ? SL_E_STORE_CORRUPT : SL_OK);
    do_remove(&st, i);
    shop_run(&st);
    assert_int_equal(shop_check(&st), 0);
    shop_close(&st);
    struct sl_repair_report r = ask(false);
    assert_int_equal(r.n_gaps + r.n_damaged, 0);
}

static void done(void)
{
    shop_done(&st);
}

/* The turns behind it show that it is missing. */
static void test_in_the_middle_of_a_session(void **state)
{
    (void)state;
    make();
    log_bytes[turn_at(0, 2) + 8] ^= 1; /* its length */
    struct sl_repair_report r = refused_and_told();
    assert_int_equal(r.n_damaged, 1);
    assert_int_equal(r.n_unsure, 1); /* the idle one */
    expect_line("it seems to be a turn of session '%s'", shop_key(&st, 0).id);
    expect_line("session '%s' (tenant %s): damaged", shop_key(&st, 0).id, shop_key(&st, 0).tenant);
    expect_line("session '%s' (tenant %s): at version 1; nothing behind", shop_key(&st, IDLE).id,
                shop_key(&st, IDLE).tenant);
    refused_for_want_of_a_report();
    (void)refused_and_told();
    r = ask(true);
    assert_int_equal(r.n_damaged, 1);
    expect_line("the old one is kept as log.damaged-");
    mended(0);
    done();
}

/* Nothing behind it would show it: what its bytes say does. */
static void test_the_last_turn(void **state)
{
    (void)state;
    make();
    log_bytes[turn_at(1, 4) + 30] ^= 1; /* its incarnation */
    struct sl_repair_report r = refused_and_told();
    assert_int_equal(r.n_damaged, 1);
    expect_line("session '%s' (tenant %s): damaged", shop_key(&st, 1).id, shop_key(&st, 1).tenant);
    (void)ask(true);
    mended(1);
    done();
}

/* What its bytes say is of no use: everybody who may have lost it is named. */
static void test_a_name_that_is_lost(void **state)
{
    (void)state;
    make();
    size_t at = turn_at(1, 4);
    memset(log_bytes + at + SL_RECORD_HEADER, '/', 4);
    memset(st.v[1].turns + 3, 0, sizeof st.v[1].turns[3]);
    struct sl_repair_report r = refused_and_told();
    assert_int_equal(r.n_damaged, 0);
    assert_int_equal(r.n_unsure, 3); /* 0 and 1 have nothing behind it, nor has the idle one */
    expect_line("what it was cannot be told");
    expect_line("session '%s' (tenant %s): at version 3; nothing behind", shop_key(&st, 1).id,
                shop_key(&st, 1).tenant);
    (void)ask(true);
    struct stat s;
    char path[256];
    log_path(path);
    assert_int_equal(stat(path, &s), 0);
    struct sl_error err = {0};
    st.crashed = true;
    st.v[1].version--; /* as the report said */
    st.v[1].n_turns--;
    assert_int_equal(shop_open(&st, &err), SL_OK);
    assert_int_equal(shop_load(&st, 1, &err), SL_OK);
    shop_close(&st);
    done();
}

/* --- the file's header ---------------------------------------------------------------------------
 */

enum { ID_AT = 16, HASH_AT = 56 };

static void expect_refusal(const char *text)
{
    struct sl_error err = {0};
    write_log();
    assert_int_equal(shop_open(&st, &err), SL_E_STORE_CORRUPT);
    if (!strstr(err.message, text))
        fail_msg("'%s' does not say '%s'", err.message, text);
}

/* An earlier snapshot that only --keep-turns spoke of may have gone; not one that a name needs. */
static void test_a_named_snapshot_that_is_lost(void **state)
{
    (void)state;
    char path[512];
    make();
    shop_must_open(&st);
    do_name(&st, 1, 0);
    shop_run(&st);
    assert_true(shop_snapshot_path(&st, 1, path, sizeof path));
    do_turn(&st, 1, false);
    do_snapshot(&st, 1, 500);
    shop_run(&st);
    assert_int_equal(st.n_failed, 0);
    shop_close(&st);
    assert_int_equal(ask(false).n_bad_snapshots, 0);
    assert_int_equal(remove(path), 0);
    assert_int_equal(ask(false).n_bad_snapshots, 1);
    expect_line("an earlier snapshot, kept to rewind to: ");
    shop_must_open(
        &st); /* the name is still there, and what it stands for is missed, not forgotten */
    do_unname(&st, 1, 0);
    shop_run(&st);
    assert_int_equal(st.n_failed, 0);
    shop_close(&st);
    assert_int_equal(ask(false).n_bad_snapshots, 0);
    shop_done(&st);
}

/* Told, and nothing is changed by that; mended; everything is there, and nobody is in doubt. */
static void header_is_mended(void)
{
    static unsigned char before[LOG_MAX];
    size_t n = log_n;
    memcpy(before, log_bytes, n);
    expect_refusal("slate sessions repair");
    struct sl_repair_report r = ask(false);
    assert_true(r.bad_header);
    read_log();
    assert_int_equal(log_n, n);
    assert_memory_equal(log_bytes, before, n);
    r = ask(true);
    assert_true(r.bad_header);
    assert_int_equal(r.n_sessions, IDLE + 1);
    assert_int_equal(r.n_gaps + r.n_damaged + r.n_unsure, 0);
    expect_line("log, bytes 0 to 64: its header is damaged; what stood in it is proven");
    expect_line("the old one is kept as log.damaged-");
    shop_must_open(&st);
    assert_int_equal(shop_check(&st), 0);
    shop_close(&st);
    r = ask(false);
    assert_false(r.bad_header);
    memcpy(log_bytes, before, n);
    log_n = n;
}

/* One bit of each byte; two bytes of the id, and of the hash besides. */
static void test_the_file_header(void **state)
{
    (void)state;
    make();
    for (size_t k = 0; k < SL_LOG_HEADER; k++) {
        log_bytes[k] ^= (unsigned char)(1u << (k % 8));
        header_is_mended();
        log_bytes[k] ^= (unsigned char)(1u << (k % 8));
    }
    log_bytes[ID_AT] ^= 0x5a;
    log_bytes[ID_AT + 1] ^= 0xff;
    header_is_mended();
    log_bytes[ID_AT + 1] ^= 0xff;
    log_bytes[ID_AT + 7] ^= 0x81;
    memset(log_bytes + HASH_AT, 0, 8);
    header_is_mended();
    done();
}

/* The first record went with it: others prove the id, and it is a gap as any other. */
static void test_the_file_header_and_more(void **state)
{
    (void)state;
    make();
    log_bytes[HASH_AT] ^= 1;
    log_bytes[SL_LOG_HEADER + 8] ^= 1;
    expect_refusal("slate sessions repair");
    struct sl_repair_report r = ask(false);
    assert_true(r.bad_header);
    assert_int_equal(r.n_gaps, 1);
    done();
}

static void refused_by_repair(const char *text)
{
    struct sl_repair_report r;
    struct sl_error err = {0};
    static unsigned char before[LOG_MAX];
    expect_refusal("slate sessions repair");
    memcpy(before, log_bytes, log_n);
    report[0] = '\0';
    assert_int_equal(sl_store_repair(st.path, &sl_store_io_system, true, take_line, NULL, &r, &err),
                     SL_E_STORE_CORRUPT);
    if (!strstr(err.message, text))
        fail_msg("'%s' does not say '%s'", err.message, text);
    read_log();
    assert_memory_equal(log_bytes, before, log_n);
}

/* What nothing proves is not made up. */
static void test_a_file_header_that_is_lost(void **state)
{
    (void)state;
    unsigned char header[SL_LOG_HEADER];
    make();
    memcpy(header, log_bytes, sizeof header);
    memset(log_bytes, 0, sizeof header);
    refused_by_repair("nothing of it can be proven");
    memcpy(log_bytes, header, sizeof header);
    for (size_t i = 0; i < 3; i++) /* one more than is tried */
        log_bytes[ID_AT + 2 * i] ^= 0x11;
    refused_by_repair("without which no record can be told");
    memcpy(log_bytes, header, sizeof header);
    log_bytes[8] = 2;
    log_bytes[HASH_AT] ^= 1;
    refused_by_repair("nothing proves that it is of the format 1");
    done();
}

static void test_snapshots_and_the_command(void **state)
{
    (void)state;
    static char command[] = "sessions", check[] = "check", mend[] = "repair";
    char out[8192], path[400];
    make();
    assert_int_equal(
        cli_run(sl_cli_sessions, out, sizeof out, 3, (char *[]){command, check, st.path, NULL}),
        SL_EXIT_OK);
    assert_non_null(strstr(out, "4 sessions: 0 damaged, 0 perhaps"));
    snprintf(path, sizeof path, "dir:%s", st.path);
    assert_int_equal(
        cli_run(sl_cli_sessions, out, sizeof out, 3, (char *[]){command, check, path, NULL}),
        SL_EXIT_OK);
    assert_int_equal(
        cli_run(sl_cli_sessions, out, sizeof out, 3, (char *[]){command, mend, st.path, NULL}),
        SL_EXIT_OK);
    shop_must_open(&st);
    assert_int_equal(
        cli_run(sl_cli_sessions, out, sizeof out, 3, (char *[]){command, check, st.path, NULL}),
        SL_EXIT_FAILED); /* a server has it */
    assert_true(shop_snapshot_path(&st, 1, path, sizeof path));
    shop_close(&st);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 10, SEEK_SET), 0);
    assert_int_equal(fputc(0x55, f), 0x55);
    fclose(f);
    assert_int_equal(
        cli_run(sl_cli_sessions, out, sizeof out, 3, (char *[]){command, check, st.path, NULL}),
        SL_EXIT_FILE);
    assert_non_null(strstr(out, "its snapshot: "));
    assert_non_null(strstr(out, "is damaged: its bytes are not those that were written"));
    assert_int_equal(cli_run(sl_cli_sessions, out, sizeof out, 2, (char *[]){command, check, NULL}),
                     SL_EXIT_USAGE);
    assert_int_equal(cli_run(sl_cli_sessions, out, sizeof out, 3,
                             (char *[]){command, check, (char[]){"/dev"}, NULL}),
                     SL_EXIT_USAGE);
    assert_int_equal(cli_run(sl_cli_sessions, out, sizeof out, 3,
                             (char *[]){command, check, (char[]){"/nowhere"}, NULL}),
                     SL_EXIT_FAILED);
    assert_int_equal(cli_run(sl_cli_sessions, out, sizeof out, 3,
                             (char *[]){command, check, (char[]){"--help"}, NULL}),
                     SL_EXIT_OK);
    assert_non_null(strstr(out, "Usage: "));
    done();
}

int main(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    stores_quiet = getenv("NOISY") == NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_the_middle_of_a_session),
        cmocka_unit_test(test_the_last_turn),
        cmocka_unit_test(test_a_name_that_is_lost),
        cmocka_unit_test(test_a_named_snapshot_that_is_lost),
        cmocka_unit_test(test_the_file_header),
        cmocka_unit_test(test_the_file_header_and_more),
        cmocka_unit_test(test_a_file_header_that_is_lost),
        cmocka_unit_test(test_snapshots_and_the_command),
    };
    return cmocka_run_group_tests_name("store_repair", tests, NULL, NULL);
}
