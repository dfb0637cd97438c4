/* bpe_verbatim_test.c: a user's own text holds no special token, whatever a tokenizer.json's
 * normaliser makes of it and of what stands beside it; and the text around it keeps those it has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/bpe_json.h"
#include "tests/support/floats.h"

enum { SPECIAL_ID = 5, PARTS_MAX = 24, ROUNDS = 4000 };

#define REPLACE_WITH(pattern, content)                                                             \
    "{'type':'Replace','pattern':" pattern ",'content':'" content "'}"

static const char *const steps[] = {
    "{'type':'NFC'}",
    "{'type':'NFD'}",
    "{'type':'NFKC'}",
    "{'type':'NFKD'}",
    "{'type':'Lowercase'}",
    "{'type':'Prepend','prepend':'_a'}",
    "{'type':'Strip','strip_left':true,'strip_right':false}",
    "{'type':'Strip','strip_left':false,'strip_right':true}",
    REPLACE_WITH("{'String':' '}", "_"),
    REPLACE_WITH("{'String':'aa'}", ""),
    REPLACE_WITH("{'String':'_'}", "aba"),
    REPLACE_WITH("{'Regex':'a+ ?'}", "e"),
    REPLACE_WITH("{'Regex':'(?=b)'}", "a"),
    /* What a user's x is replaced with, or stands beside it then, is a user's too. */
    REPLACE_WITH("{'String':'x'}", "<s>"),
    REPLACE_WITH("{'Regex':'x+'}", "s>"),
    REPLACE_WITH("{'Regex':'.x'}", "<s>"),
    REPLACE_WITH("{'Regex':'(?=x)'}", "<s>"),
    REPLACE_WITH("{'Regex':'(?<=x)'}", "<s>"),
};

/* With marks that compose, move over each other or stand in letters; none of them with '<', 's' or
 * '>'. Nothing that the steps above make of them is a piece of the special token. */
static const char *const plain[] = {"a",
                                    "b",
                                    "aa",
                                    "e",
                                    " ",
                                    "_",
                                    "\xCC\x81",     /* U+0301 */
                                    "\xCC\xA7",     /* U+0327 */
                                    "\xC3\xA9",     /* U+00E9 */
                                    "\xC4\xB0",     /* U+0130 */
                                    "\xEF\xAC\x81", /* U+FB01, fi */
                                    "\xE1\x84\x80", /* U+1100, U+1161, U+11A8: one syllable */
                                    "\xE1\x85\xA1",
                                    "\xE1\x86\xA8",
                                    "\xEA\xB0\x80", /* U+AC00 */
                                    "\xE6\xBC\xA2"};
/* Pieces of the token, two of them so only by their normal form, two by what replaces them. */
static const char *const pieces[] = {"<s>",          "<",        "s", ">", "S",
                                     "\xEF\xBC\x9C", "\xC5\xBF", "x", "xx"};

enum {
    N_STEPS = sizeof steps / sizeof *steps,
    N_PLAIN = sizeof plain / sizeof *plain,
    N_PIECES = sizeof pieces / sizeof *pieces
};

static struct sl_tokenizer *opened_with(const char *normalisers)
{
    char json[2048];
    snprintf(json, sizeof json,
             "{'model':{'vocab':{'<':0,'s':1,'>':2,'a':3,'_':4},'merges':[]},'normalizer':"
             "{'type':'Sequence','normalizers':[%s]},'added_tokens':[{'id':5,'content':'<s>',"
             "'special':true,'normalized':true}]}",
             normalisers);
    return opened(json);
}

static size_t count_special(const struct sl_tokenizer *t, const struct sl_tokenizer_text *text)
{
    struct sl_token_list out = {0};
    struct sl_error err = {.message = ""};
    size_t n = 0;
    if (sl_tokenizer_encode(t, text, &out, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < out.n; i++)
        n += out.v[i] == SPECIAL_ID;
    sl_token_list_done(&out);
    return n;
}

/* A text of parts that are a template's and a user's in turn. */
struct mixed {
    char s[1024];
    size_t n;
    struct sl_range verbatim[PARTS_MAX];
    size_t n_verbatim;
};

static void add(struct mixed *m, const char *s)
{
    size_t n = strlen(s);
    assert_true(m->n + n < sizeof m->s);
    memcpy(m->s + m->n, s, n);
    m->n += n;
}

static void add_some(struct mixed *m, uint64_t *seed, bool with_pieces)
{
    for (uint64_t n = next_random(seed) % 4; n; n--) {
        uint64_t i = next_random(seed) % (with_pieces ? N_PLAIN + 2 * N_PIECES : N_PLAIN);
        add(m, i < N_PLAIN ? plain[i] : pieces[(i - N_PLAIN) % N_PIECES]);
    }
}

static void draw_normalisers(char *dst, size_t room, uint64_t *seed)
{
    size_t n = 0, n_steps = next_random(seed) % 4;
    dst[0] = '\0';
    for (size_t i = 0; i < n_steps; i++)
        n += (size_t)snprintf(dst + n, room - n, "%s%s", i ? "," : "",
                              steps[next_random(seed) % N_STEPS]);
}

/* What is put before a text is put before the special token too, and so it is looked for. */
static bool puts_before(const char *normalisers)
{
    return strstr(normalisers, "Prepend") != NULL;
}

/* The user's parts have the token and its pieces, the template's not one: nothing is a token.
 * Then the other way round: each of the template's is one. */
static void drawn_texts(void **state)
{
    (void)state;
    uint64_t seed = 20261202;
    char normalisers[1024];
    for (unsigned round = 0; round < ROUNDS; round++) {
        draw_normalisers(normalisers, sizeof normalisers, &seed);
        struct sl_tokenizer *t = opened_with(normalisers);
        struct mixed users = {.n = 0}, templates = {.n = 0};
        size_t n = next_random(&seed) % PARTS_MAX;
        for (size_t i = 0; i < n; i++) {
            add_some(&users, &seed, false);
            users.verbatim[i].begin = users.n;
            add_some(&users, &seed, true);
            users.verbatim[i].end = users.n;
            add(&templates, "<s>");
            templates.verbatim[i].begin = templates.n;
            add_some(&templates, &seed, false);
            templates.verbatim[i].end = templates.n;
        }
        const struct sl_tokenizer_text all_users = {
            .s = users.s, .n = users.n, .verbatim = users.verbatim, .n_verbatim = n};
        const struct sl_tokenizer_text all_templates = {
            .s = templates.s, .n = templates.n, .verbatim = templates.verbatim, .n_verbatim = n};
        if (count_special(t, &all_users) != 0)
            fail_msg("round %u, %s: \"%.*s\" has a special token of a user's", round, normalisers,
                     (int)users.n, users.s);
        if (!puts_before(normalisers) && count_special(t, &all_templates) != n)
            fail_msg("round %u, %s: \"%.*s\" has %zu special tokens of %zu", round, normalisers,
                     (int)templates.n, templates.s, count_special(t, &all_templates), n);
        sl_tokenizer_close(t);
    }
}

/* What a template's own text becomes right before and behind a user's is the template's still. */
static void matches_beside(void **state)
{
    (void)state;
    static const struct sl_range users[] = {{1, 3}, {4, 6}};
    const struct sl_tokenizer_text text = {
        .s = "yaayaay", .n = 7, .verbatim = users, .n_verbatim = 2};
    struct sl_tokenizer *t = opened_with(REPLACE_WITH("{'String':'y'}", "<s>"));
    assert_int_equal(count_special(t, &text), 3);
    sl_tokenizer_close(t);
}

/* A conversation of many messages is read once, not once for each of them. */
static void many_ranges(void **state)
{
    (void)state;
    enum { N = 100000 };
    static const char message[] = "<s>\xC3\xA9<s> a\xCC\x81_aaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const size_t len = sizeof message - 1;
    char *s = malloc(N * len);
    struct sl_range *v = malloc(N * sizeof *v);
    assert_true(s && v);
    for (size_t i = 0; i < N; i++) {
        memcpy(s + i * len, message, len);
        v[i] = (struct sl_range){i * len + 3, (i + 1) * len};
    }
    for (size_t i = 0; i < N_STEPS; i++) {
        struct sl_tokenizer *t = opened_with(steps[i]);
        const struct sl_tokenizer_text text = {
            .s = s, .n = N * len, .verbatim = v, .n_verbatim = N};
        assert_int_equal(count_special(t, &text), puts_before(steps[i]) ? 1 : N);
        sl_tokenizer_close(t);
    }
    free(v);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_texts),
        cmocka_unit_test(matches_beside),
        cmocka_unit_test(many_ranges),
    };
    return cmocka_run_group_tests_name("bpe_verbatim", tests, NULL, NULL);
}
