/* auth_test.c: key files and the header that names a key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "server/auth.h"
#include "tests/support/callgrind.h"
#include "tests/support/key_file.h"

static const char file[] = "# whose\n"
                           "\n"
                           "alice-key-1 alice user\n"
                           "  alice-key-2\talice   user,admin  \r\n"
                           "probe-key-00 ops metrics\n"
                           "all-key-0000 bob user,metrics,admin"; /* no newline at the end */

static void test_identities(void **state)
{
    (void)state;
    struct sl_keys *k;
    struct sl_identity id;
    assert_int_equal(key_file_open(file, &k, NULL), SL_OK);
    assert_int_equal(sl_keys_count(k), 4);
    static const struct {
        const char *header, *tenant;
        unsigned roles;
    } rows[] = {
        {"Bearer alice-key-1", "alice", SL_ROLE_USER},
        {"bearer  alice-key-2", "alice", SL_ROLE_USER | SL_ROLE_ADMIN},
        {"BEARER probe-key-00", "ops", SL_ROLE_METRICS},
        {"Bearer all-key-0000", "bob", SL_ROLE_ALL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(sl_keys_identify(k, rows[i].header, &id, NULL), SL_OK);
        assert_string_equal(id.tenant, rows[i].tenant);
        assert_int_equal(id.roles, rows[i].roles);
    }
    char longest[300] = "Bearer alice-key-1";
    memset(longest + strlen(longest), 'x', 250);
    static const char *const bad[] = {NULL,
                                      "",
                                      "Bearer",
                                      "Bearer ",
                                      "Bearer alice-key-",
                                      "Bearer alice-key-11",
                                      "Bearer Alice-key-1",
                                      "Basic alice-key-1",
                                      "alice-key-1",
                                      "Bearer #",
                                      "Bearer alice"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_error err;
        assert_int_equal(sl_keys_identify(k, bad[i], &id, &err), SL_E_UNAUTHORIZED);
        assert_null(strstr(err.message, "alice"));
    }
    assert_int_equal(sl_keys_identify(k, longest, &id, NULL), SL_E_UNAUTHORIZED);
    sl_keys_close(k);
}

static void test_without_keys(void **state)
{
    (void)state;
    struct sl_identity id;
    assert_int_equal(sl_keys_identify(NULL, NULL, &id, NULL), SL_OK);
    assert_string_equal(id.tenant, "default");
    assert_int_equal(id.roles, SL_ROLE_ALL);
    assert_int_equal(sl_keys_identify(NULL, "Bearer whatever", &id, NULL), SL_OK);
}

static void test_roles(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_identity id = {.roles = SL_ROLE_USER};
    assert_int_equal(sl_identity_require(&id, SL_ROLE_USER, &err), SL_OK);
    assert_int_equal(sl_identity_require(&id, SL_ROLE_METRICS, &err), SL_E_FORBIDDEN);
    assert_non_null(strstr(err.message, "'metrics'"));
    assert_int_equal(sl_identity_require(&id, SL_ROLE_ADMIN, &err), SL_E_FORBIDDEN);
    assert_non_null(strstr(err.message, "'admin'"));
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "no key"},
        {"# nothing\n\n", "no key"},
        {"good-key-1 t user\nsecret99\n", "line 2: a line must have three words"},
        {"secret99 t\n", "line 1"},
        {"secret99 t user x\n", "line 1: a line must have three words"},
        {"short77 t user\n", "8 to 256"},
        {"sec\xc3\xa9ret9 t user\n", "visible ASCII"},
        {"sec\x01ret999 t user\n", "visible ASCII"},
        {"secret99 t/t user\n", "tenant"},
        {"secret99 t root\n", "user, metrics, admin"},
        {"secret99 t user,\n", "user, metrics, admin"},
        {"secret99 t ,user\n", "user, metrics, admin"},
        {"secret99 t User\n", "user, metrics, admin"},
        {"secret99 t user\nother-one u admin\nsecret99 u user\n", "line 3: this key stands"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_keys *k;
        struct sl_error err;
        assert_int_equal(key_file_open(rows[i].text, &k, &err), SL_E_FILE_CORRUPT);
        if (!strstr(err.message, rows[i].part) || !strstr(err.message, key_file))
            fail_msg("'%s' is not in: %s", rows[i].part, err.message);
        assert_null(strstr(err.message, "secret99")); /* never the key */
    }
    static const char nul[] = "secret99\0x t user\n";
    struct sl_keys *k;
    key_file_put(nul, sizeof nul - 1);
    assert_int_equal(sl_keys_open(&k, key_file, NULL, NULL), SL_E_FILE_CORRUPT);
    assert_int_equal(sl_keys_open(&k, "/tmp/no such file", NULL, NULL), SL_E_FILE_NOT_FOUND);
    assert_int_equal(sl_keys_open(&k, "/tmp", NULL, NULL), SL_E_FILE_UNSUPPORTED);
    assert_int_equal(sl_keys_open(&k, "/dev/zero", NULL, NULL), SL_E_FILE_UNSUPPORTED);
}

static void test_limits(void **state)
{
    (void)state;
    static char text[2 << 20];
    size_t n = 0, n_1024 = 0;
    struct sl_keys *k;
    struct sl_error err;
    for (int i = 0; i < SL_KEYS_MAX + 1; i++) {
        n_1024 = i == SL_KEYS_MAX ? n : 0;
        n += (size_t)snprintf(text + n, sizeof text - n, "key-number-%d t user\n", i);
    }
    assert_int_equal(key_file_open(text, &k, &err), SL_E_TOO_LARGE);
    assert_non_null(strstr(err.message, "line 1025"));
    text[n_1024] = '\0';
    assert_int_equal(key_file_open(text, &k, &err), SL_OK);
    struct sl_identity id;
    assert_int_equal(sl_keys_identify(k, "Bearer key-number-1023", &id, NULL), SL_OK);
    sl_keys_close(k);
    memset(text, '#', sizeof text);
    key_file_put(text, (1 << 20) + 1);
    assert_int_equal(sl_keys_open(&k, key_file, NULL, NULL), SL_E_TOO_LARGE);
    char key[SL_KEY_BYTES_MAX + 20];
    memset(key, 'k', sizeof key);
    memcpy(key + SL_KEY_BYTES_MAX, " t user\n", 9);
    assert_int_equal(key_file_open(key, &k, &err), SL_OK);
    sl_keys_close(k);
    memcpy(key + SL_KEY_BYTES_MAX, "k t user\n", 10);
    assert_int_equal(key_file_open(key, &k, &err), SL_E_FILE_CORRUPT);
}

static void test_permissions_are_told(void **state)
{
    (void)state;
    static const struct {
        mode_t mode;
        bool exposed;
    } rows[] = {{0600, false}, {0640, false}, {0400, false}, {0644, true}, {0602, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_keys *k;
        bool exposed = !rows[i].exposed;
        key_file_put(file, strlen(file));
        assert_int_equal(chmod(key_file, rows[i].mode), 0);
        assert_int_equal(sl_keys_open(&k, key_file, &exposed, NULL), SL_OK);
        assert_int_equal(exposed, rows[i].exposed);
        sl_keys_close(k);
        assert_int_equal(chmod(key_file, 0600), 0);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 3; n++) {
        struct sl_keys *k;
        sl_mem_fail_after(n);
        enum sl_code c = key_file_open(file, &k, NULL);
        sl_mem_fail_after(-1);
        assert_int_equal(c, SL_E_NO_MEMORY);
    }
}

/* --- in constant time ------------------------------------------------------------------------- */

enum { N_WRONG = 9, N_RIGHT = 3 };

void measured_identify(const struct sl_keys *k, const char *header);

/* Alone in its function, so that callgrind can be told to count in here only. */
__attribute__((noinline)) void measured_identify(const struct sl_keys *k, const char *header)
{
    struct sl_identity id;
    struct sl_error err;
    (void)!sl_keys_identify(k, header, &id, &err);
}

/* The child: keys of one length, wrong at each of some places and in all; then right ones, of the
 * first, a middle and the last line. */
static int measure(void)
{
    enum { KEYS = 50, LENGTH = 32 };
    static char text[KEYS * 64], header[8 + LENGTH + 1];
    static const size_t wrong[N_WRONG] = {0, 0, 1, 7, 8, 15, 16, 30, 31}; /* the first warms up */
    static const int right[N_RIGHT] = {0, KEYS / 2, KEYS - 1};
    struct sl_keys *k;
    size_t n = 0;
    for (int i = 0; i < KEYS; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%0*d t user\n", LENGTH, i);
    int bad = key_file_open(text, &k, NULL) != SL_OK;
    key_file_remove();
    if (bad)
        return 1;
    for (int i = 0; i < N_WRONG; i++) { /* like the first key up to there */
        snprintf(header, sizeof header, "Bearer %0*d", LENGTH, 0);
        memset(header + 7 + wrong[i], 'x', LENGTH - wrong[i]);
        measured_identify(k, header);
    }
    for (int i = 0; i < N_RIGHT; i++) {
        snprintf(header, sizeof header, "Bearer %0*d", LENGTH, right[i]);
        measured_identify(k, header);
    }
    sl_keys_close(k);
    return 0;
}

/* How long it takes tells neither how much of a key was right nor which line it stands in. */
static void test_the_same_work_for_every_key(void **state)
{
    (void)state;
    uint64_t n[N_WRONG + N_RIGHT];
    callgrind_or_skip("constant time");
    callgrind_count("measured_identify", n, N_WRONG + N_RIGHT);
    assert_true(n[1] > 1000); /* all 50 were looked at */
    for (size_t i = 2; i < N_WRONG; i++)
        assert_int_equal(n[i], n[1]);
    for (size_t i = 1; i < N_RIGHT; i++)
        assert_int_equal(n[N_WRONG + i], n[N_WRONG]);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "measure") == 0)
        return measure();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identities), cmocka_unit_test(test_without_keys),
        cmocka_unit_test(test_roles),      cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_permissions_are_told),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_the_same_work_for_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, key_file_tear_down);
}
