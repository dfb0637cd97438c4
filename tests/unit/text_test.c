/* text_test.c: tokens -> text, a piece at a time. Expected texts are written by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/text.h"

static struct sl_tokenizer *bytes, *words;

/* Ids 1 … 256: the single bytes; then what the tests speak of. */
enum { F0 = 1 + 0xf0, AC = 1 + 0xac, T_9F98 = 257, T_80X, T_AB, T_E282, NOBODY = 99999 };
static const char longer[] = "257 b'\\x9f\\x98' 2\n"
                             "258 b'\\x80!' 2\n"
                             "259 'ab' 2\n"
                             "260 b'\\xe2\\x82' 2\n";

static int open_all(void **state)
{
    struct sl_error err;
    char vocabulary[256 * 16 + sizeof longer];
    size_t n = 0;
    (void)state;
    for (int i = 0; i < 256; i++)
        n += (size_t)snprintf(vocabulary + n, sizeof vocabulary - n, "%d b'\\x%02x' 1\n", i + 1,
                              (unsigned)i);
    memcpy(vocabulary + n, longer, sizeof longer);
    n += sizeof longer - 1;
    enum sl_code c = sl_tokenizer_open(&bytes, "bytes", &err);
    if (!c)
        c = sl_tokenizer_open_memory(&words, vocabulary, n, "test", &err);
    if (c)
        print_error("%s\n", err.message);
    return (int)c;
}

static int close_all(void **state)
{
    (void)state;
    sl_tokenizer_close(bytes);
    sl_tokenizer_close(words);
    return 0;
}

static void check_piece(struct sl_text_stream *ts, const uint32_t *tokens, size_t n, bool last,
                        const char *expected)
{
    struct sl_text piece;
    struct sl_error err;
    assert_int_equal(sl_text_stream_add(ts, tokens, n, last, &piece, &err), SL_OK);
    assert_int_equal(piece.n, strlen(expected));
    if (piece.n)
        assert_memory_equal(piece.s, expected, piece.n);
}

static void a_character_over_three_tokens(void **state)
{
    (void)state;
    struct sl_text_stream ts;
    const uint32_t t[] = {T_AB, F0, T_9F98, T_80X, T_AB};
    sl_text_stream_init(&ts, words);
    check_piece(&ts, t, 2, false, "ab"); /* F0 waits */
    check_piece(&ts, t + 2, 1, false, "");
    check_piece(&ts, t + 3, 1, false, "\xf0\x9f\x98\x80!");
    check_piece(&ts, t + 4, 1, true, "ab");
    sl_text_stream_done(&ts);
}

static void what_is_unfinished_at_the_end(void **state)
{
    (void)state;
    struct sl_text_stream ts;
    const uint32_t t[] = {T_AB, T_E282};
    sl_text_stream_init(&ts, words);
    check_piece(&ts, t, 2, false, "ab");
    check_piece(&ts, t, 0, true, "\xef\xbf\xbd"); /* one U+FFFD for E2 82 */
    sl_text_stream_done(&ts);
}

static void what_can_not_become_a_character(void **state)
{
    (void)state;
    struct sl_text_stream ts;
    const uint32_t t[] = {T_E282, T_AB, AC, 0, NOBODY};
    sl_text_stream_init(&ts, words);
    check_piece(&ts, t, 1, false, "");
    check_piece(&ts, t + 1, 1, false,
                "\xef\xbf\xbd"
                "ab");
    check_piece(&ts, t + 2, 1, false, "\xef\xbf\xbd"); /* AC alone */
    check_piece(&ts, t + 3, 2, true, "");              /* ids without bytes */
    sl_text_stream_done(&ts);
}

/* However random bytes are cut into pieces, the text is the one of all at once. */
static void any_cut_gives_the_same(void **state)
{
    (void)state;
    enum { N = 400 };
    static const unsigned char often[] = {0xe2, 0x82, 0xac, 0xf0, 0x9f,
                                          0x98, 0x80, 'a',  0xc3, 0xff};
    uint32_t tokens[N];
    uint64_t x = 88172645463325252u;
    struct sl_error err;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < N; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            tokens[i] = often[x % sizeof often];
        }
        struct sl_text_stream whole, cut;
        struct sl_text all, piece;
        char joined[3 * N];
        size_t n_joined = 0;
        sl_text_stream_init(&whole, bytes);
        sl_text_stream_init(&cut, bytes);
        assert_int_equal(sl_text_stream_add(&whole, tokens, N, true, &all, &err), SL_OK);
        for (size_t i = 0, n; i <= N; i += n) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            n = x % 5;
            if (n > N - i)
                n = N - i;
            bool last = i + n == N;
            assert_int_equal(sl_text_stream_add(&cut, tokens + i, n, last, &piece, &err), SL_OK);
            assert_true(piece.n <= sizeof joined - n_joined);
            if (piece.n)
                memcpy(joined + n_joined, piece.s, piece.n);
            n_joined += piece.n;
            if (last)
                break;
        }
        assert_int_equal(n_joined, all.n);
        assert_memory_equal(joined, all.s, all.n);
        sl_text_stream_done(&whole);
        sl_text_stream_done(&cut);
    }
}

static void without_memory(void **state)
{
    (void)state;
    const uint32_t t[] = {T_AB, T_AB};
    for (int64_t k = 0; k < 2; k++) {
        struct sl_text_stream ts;
        struct sl_text piece;
        struct sl_error err;
        sl_text_stream_init(&ts, words);
        sl_mem_fail_after(k);
        enum sl_code c = sl_text_stream_add(&ts, t, 2, true, &piece, &err);
        sl_mem_fail_after(-1);
        assert_int_equal(c, SL_E_NO_MEMORY);
        sl_text_stream_done(&ts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_over_three_tokens),
        cmocka_unit_test(what_is_unfinished_at_the_end),
        cmocka_unit_test(what_can_not_become_a_character),
        cmocka_unit_test(any_cut_gives_the_same),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
