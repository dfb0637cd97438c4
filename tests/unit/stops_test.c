/* stops_test.c: the stop matcher against a search that tries every string at every place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/stops.h"

static uint64_t rng_state;

static uint32_t rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

static struct sl_stops *open_stops(const struct sl_stop *stops, size_t n)
{
    struct sl_stops *s = NULL;
    struct sl_error err;
    if (sl_stops_open(&s, stops, n, &err) != SL_OK)
        fail_msg("%s", err.message);
    return s;
}

static struct sl_stop str(const char *s)
{
    return (struct sl_stop){.bytes = (const unsigned char *)s, .n = strlen(s)};
}

/* The naive truth: which stop ends text[0..n), or -1. */
static int naive_match(const struct sl_stop *stops, size_t n_stops, const unsigned char *text,
                       size_t n)
{
    int best = -1;
    for (size_t i = 0; i < n_stops; i++) {
        size_t m = stops[i].n;
        bool ends = m <= n && memcmp(text + n - m, stops[i].bytes, m) == 0;
        if (ends && (best < 0 || m > stops[best].n))
            best = (int)i;
    }
    return best;
}

static size_t naive_open(const struct sl_stop *stops, size_t n_stops, const unsigned char *text,
                         size_t n)
{
    for (size_t m = n; m > 0; m--) {
        for (size_t i = 0; i < n_stops; i++) {
            if (m < stops[i].n && memcmp(text + n - m, stops[i].bytes, m) == 0)
                return m;
        }
    }
    return 0;
}

enum { TEXT_MAX = 64, STOP_MAX = 8 };

/* One random case: feeds the text in random pieces and compares after each. Returns whether a
 * string matched. */
static bool check_case(uint32_t n_letters, size_t stop_min)
{
    unsigned char storage[SL_STOPS_MAX][STOP_MAX], text[TEXT_MAX];
    struct sl_stop stops[SL_STOPS_MAX];
    size_t n_stops = rnd(SL_STOPS_MAX + 1), n = 1 + rnd(TEXT_MAX);
    for (size_t i = 0; i < n_stops; i++) {
        stops[i].bytes = storage[i];
        stops[i].n = stop_min + rnd((uint32_t)(STOP_MAX + 1 - stop_min));
        for (size_t k = 0; k < stops[i].n; k++)
            storage[i][k] = (unsigned char)('a' + rnd(n_letters));
    }
    for (size_t i = 0; i < n; i++)
        text[i] = (unsigned char)('a' + rnd(n_letters));
    size_t end = 1; /* where the naive search ends the text */
    while (end < n && naive_match(stops, n_stops, text, end) < 0)
        end++;
    int want = naive_match(stops, n_stops, text, end);

    struct sl_stops *s = open_stops(stops, n_stops);
    size_t at = 0, used = SIZE_MAX, match_len = SIZE_MAX;
    int index = -2;
    bool found = false;
    while (at < n && !found) {
        size_t piece = rnd((uint32_t)(n - at) + 1);
        found = sl_stops_feed(s, text + at, piece, &used, &match_len, &index);
        if (!found) {
            at += piece;
            assert_true(want < 0 || at < end);
            assert_int_equal(sl_stops_open_bytes(s), naive_open(stops, n_stops, text, at));
        }
    }
    assert_int_equal(found, want >= 0);
    if (found) {
        assert_int_equal(at + used, end);
        assert_int_equal(index, want);
        assert_int_equal(match_len, stops[want].n);
        assert_int_equal(sl_stops_open_bytes(s), 0);
    } else {
        assert_true(used == SIZE_MAX && match_len == SIZE_MAX && index == -2);
    }
    sl_stops_close(s);
    return found;
}

static void test_random(void **state)
{
    (void)state;
    rng_state = 1;
    size_t n_found = 0, n_cases = 60000;
    for (size_t i = 0; i < n_cases; i++)
        n_found += check_case(1 + (uint32_t)i % 4, 1 + i % 6);
    /* The cases are worth something only if both ends are common. */
    assert_true(n_found > n_cases / 10 && n_found < n_cases - n_cases / 10);
}

struct want {
    const char *text;
    size_t used, match_len;
    int index;
};

static void check_want(const struct sl_stop *stops, size_t n, struct want w)
{
    struct sl_stops *s = open_stops(stops, n);
    size_t used, match_len;
    int index;
    assert_true(
        sl_stops_feed(s, (const unsigned char *)w.text, strlen(w.text), &used, &match_len, &index));
    assert_int_equal(used, w.used);
    assert_int_equal(match_len, w.match_len);
    assert_int_equal(index, w.index);
    sl_stops_close(s);
}

/* By hand: what a matcher without a way back misses, and who wins. */
static void test_by_hand(void **state)
{
    (void)state;
    const struct sl_stop user[] = {str("\n\nUser:")};
    check_want(user, 1, (struct want){"a\n\n\nUser: b", 9, 7, 0});
    const struct sl_stop aab[] = {str("aab")};
    check_want(aab, 1, (struct want){"aaaab", 5, 3, 0});
    const struct sl_stop nested[] = {str("c"), str("bc"), str("abc"), str("xabcd")};
    check_want(nested, 4, (struct want){"xabcd", 4, 3, 2});
    const struct sl_stop twins[] = {str("zz"), str("ab"), str("ab")};
    check_want(twins, 3, (struct want){"ab", 2, 2, 1});
    const struct sl_stop inner[] = {str("abcde"), str("cd")};
    check_want(inner, 2, (struct want){"abcde", 4, 2, 1});
}

static void test_binary_and_longest(void **state)
{
    (void)state;
    unsigned char stop[SL_STOP_BYTES_MAX], text[2 * SL_STOP_BYTES_MAX];
    memset(stop, 0, sizeof stop);
    stop[sizeof stop - 1] = 0xFF;
    memset(text, 0, sizeof text);
    text[sizeof text - 1] = 0xFF;
    const struct sl_stop stops[] = {{stop, sizeof stop}};
    struct sl_stops *s = open_stops(stops, 1);
    size_t used, match_len;
    int index;
    assert_false(sl_stops_feed(s, text, sizeof text - 1, &used, &match_len, &index));
    assert_int_equal(sl_stops_open_bytes(s), sizeof stop - 1);
    assert_true(sl_stops_feed(s, text + sizeof text - 1, 1, &used, &match_len, &index));
    assert_int_equal(used, 1);
    assert_int_equal(match_len, sizeof stop);
    sl_stops_close(s);
}

static void test_save_restore(void **state)
{
    (void)state;
    const struct sl_stop stops[] = {str("abab!"), str("b!")};
    struct sl_stops *s = open_stops(stops, 2), *t = open_stops(stops, 2);
    size_t used, match_len;
    int index;
    assert_false(sl_stops_feed(s, (const unsigned char *)"xabab", 5, &used, &match_len, &index));
    struct sl_stops_state half = sl_stops_save(s);
    assert_true(sl_stops_restore(t, &half));
    assert_int_equal(sl_stops_open_bytes(t), 4);
    assert_true(sl_stops_feed(t, (const unsigned char *)"!", 1, &used, &match_len, &index));
    assert_int_equal(match_len, 5);
    sl_stops_reset(s);
    assert_int_equal(sl_stops_open_bytes(s), 0);
    assert_true(sl_stops_feed(s, (const unsigned char *)"b!", 2, &used, &match_len, &index));
    assert_int_equal(match_len, 2);

    struct sl_stops_state bad = {.at = {5, 0}}; /* a whole "abab!" would have ended the text */
    assert_false(sl_stops_restore(t, &bad));
    bad = (struct sl_stops_state){.at = {0, 0, 1}}; /* there is no third string */
    assert_false(sl_stops_restore(t, &bad));
    sl_stops_close(s);
    sl_stops_close(t);
}

static void refused(const struct sl_stop *stops, size_t n, const char *message)
{
    struct sl_stops *s = NULL;
    struct sl_error err;
    assert_int_equal(sl_stops_open(&s, stops, n, &err), SL_E_INVALID_VALUE);
    assert_null(s);
    assert_string_equal(err.param, "stop");
    assert_string_equal(err.message, message);
}

static void test_limits(void **state)
{
    (void)state;
    static const unsigned char zeros[SL_STOP_BYTES_MAX + 1];
    struct sl_stop stops[SL_STOPS_MAX + 1];
    for (size_t i = 0; i < SL_STOPS_MAX + 1; i++)
        stops[i] = (struct sl_stop){.bytes = zeros, .n = SL_STOP_BYTES_MAX};
    sl_stops_close(open_stops(stops, SL_STOPS_MAX));
    char want[64];
    snprintf(want, sizeof want, "%d stop strings were given, at most %d are allowed",
             SL_STOPS_MAX + 1, SL_STOPS_MAX);
    refused(stops, SL_STOPS_MAX + 1, want);
    stops[1].n = 0;
    refused(stops, 2, "stop string 1 has 0 bytes, 1 to 256 are allowed");
    stops[1].n = SL_STOP_BYTES_MAX + 1;
    refused(stops, 2, "stop string 1 has 257 bytes, 1 to 256 are allowed");
    sl_stops_close(NULL);
}

static void test_no_memory(void **state)
{
    (void)state;
    const struct sl_stop stops[] = {str("a")};
    struct sl_stops *s = NULL;
    struct sl_error err;
    sl_mem_fail_after(0);
    enum sl_code c = sl_stops_open(&s, stops, 1, &err);
    sl_mem_fail_after(-1);
    assert_int_equal(c, SL_E_NO_MEMORY);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_binary_and_longest),
        cmocka_unit_test(test_save_restore),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
