/* answer_room_test.c: no answer is longer than its bound, and the bound is near: whole answers are
 * written with the worst tokens there are and measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "proto/answer_room.h"
#include "proto/openai.h"

enum { N = 200 };

/* A vocabulary of one token, with any id. */
struct only {
    unsigned char bytes[SL_TOKEN_BYTES_MAX];
    size_t n;
};

static const unsigned char *bytes_of(const void *arg, uint32_t id, size_t *ret_n)
{
    const struct only *t = arg;
    (void)id;
    *ret_n = t->n;
    return t->n ? t->bytes : NULL;
}

static void write_answer(struct sl_buf *b, enum sl_dialect d, const struct sl_result *r,
                         const struct sl_vocab *v)
{
    if (d == SL_DIALECT_SLATE)
        sl_write_generate(b, r, v);
    else if (d == SL_DIALECT_COMPLETIONS)
        sl_write_completion(b, r, v);
    else
        sl_write_chat_completion(b, r, v);
}

/* The length of an answer of n such tokens, all with the longest ids and numbers. */
static size_t length(enum sl_dialect d, const struct only *t, size_t n, int logprobs)
{
    static struct sl_token_logprobs lp[N];
    static uint32_t ids[N];
    static char raw[N * SL_TOKEN_BYTES_MAX], text[3 * N * SL_TOKEN_BYTES_MAX];
    const struct sl_logprob worst = {.token = UINT32_MAX, .logprob = -FLT_MIN};
    struct sl_vocab v = {.bytes = bytes_of, .arg = t};
    struct sl_buf b;
    for (size_t i = 0; i < n; i++) {
        ids[i] = UINT32_MAX;
        lp[i].chosen = worst;
        lp[i].chosen.token--; /* it is none of the alternatives */
        for (size_t k = 0; k < SL_TOP_LOGPROBS_MAX; k++)
            lp[i].top[k] = worst;
        memcpy(raw + i * t->n, t->bytes, t->n);
    }
    size_t n_raw = n * t->n;
    size_t n_text = n_raw ? sl_utf8_repair(text, raw, n_raw, true, NULL) : 0;
    struct sl_result r = {.id = "gen-1",
                          .model = "m",
                          .text = {text, n_text},
                          .finish = SL_FINISH_LENGTH,
                          .tokens = ids,
                          .n_tokens = n,
                          .logprobs = logprobs >= 0 ? lp : NULL,
                          .n_logprobs = logprobs >= 0 ? n : 0,
                          .n_top = logprobs};
    sl_buf_init(&b, (size_t)1 << 30);
    write_answer(&b, d, &r, &v);
    assert_int_equal(sl_buf_code(&b, NULL), SL_OK);
    size_t len = b.len;
    sl_buf_done(&b);
    return len;
}

static struct only token(const char *unit, size_t n_unit, size_t times)
{
    struct only t = {.n = n_unit * times};
    assert_true(t.n <= sizeof t.bytes);
    for (size_t i = 0; i < times; i++)
        memcpy(t.bytes + i * n_unit, unit, n_unit);
    return t;
}

static void bounds(void **state)
{
    (void)state;
    static const int logprobs[] = {-1, 0, 1, 5, 20};
    const struct only tokens[] = {
        {.n = 0},
        token("a", 1, 1),
        token("a", 1, SL_TOKEN_BYTES_MAX),
        token("\x01", 1, 1),
        token("\x01", 1, SL_TOKEN_BYTES_MAX), /* escapes of six */
        token("\"\\", 2, SL_TOKEN_BYTES_MAX / 2),
        token("\xff", 1, 1),
        token("\xff", 1, SL_TOKEN_BYTES_MAX), /* each a U+FFFD, or \xff */
        token("\xe2\x82", 2, 1),              /* unfinished, and again unfinished */
        token("\x82", 1, 3),
        token("\xe2\x82\xac", 3, SL_TOKEN_BYTES_MAX / 3),
    };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct sl_token_room room = {.text = 0};
        sl_token_room_add(&room, tokens[i].bytes, tokens[i].n);
        for (int d = SL_DIALECT_SLATE; d <= SL_DIALECT_CHAT; d++) {
            for (size_t k = 0; k < sizeof logprobs / sizeof *logprobs; k++) {
                size_t each = sl_answer_room(&room, (enum sl_dialect)d, logprobs[k]);
                size_t none = length((enum sl_dialect)d, &tokens[i], 0, logprobs[k]);
                size_t all = length((enum sl_dialect)d, &tokens[i], N, logprobs[k]);
                assert_true(none < SL_ANSWER_ROOM_FIXED);
                if (all - none > N * each || (all - none) * 2 + 60 * N < N * each)
                    fail_msg("token %zu, dialect %d, logprobs %d: %zu bytes each, bound %zu", i, d,
                             logprobs[k], (all - none) / N, each);
            }
        }
    }
}

/* The longest of all counts, in each of the three ways by itself. */
static void the_longest_counts(void **state)
{
    (void)state;
    const struct only tokens[] = {token("\x01", 1, 9), token("\xff", 1, 20), token("a", 1, 59)};
    struct sl_token_room room = {.text = 0}, last = {.text = 0};
    for (size_t i = 0; i < 3; i++)
        sl_token_room_add(&room, tokens[i].bytes, tokens[i].n);
    assert_int_equal(room.text, 20 * 3);             /* of U+FFFD */
    assert_int_equal(room.name, 6 + 20 * 5);         /* bytes:\\xff… */
    assert_int_equal(room.list, 59 * strlen("97,")); /* of the last, against 80 */
    for (size_t i = 3; i-- > 0;)
        sl_token_room_add(&last, tokens[i].bytes, tokens[i].n);
    assert_memory_equal(&room, &last, sizeof room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds),
        cmocka_unit_test(the_longest_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
