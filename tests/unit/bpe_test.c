/* bpe_test.c: texts and tokens of a tokenizer.json: texts that no tokenizer takes, that go on after
 * others, that a user wrote; parts of tokens; long words; fingerprints; memory that runs out. Files
 * that are refused are bpe_refused_test.c's; what right files give is tests/vectors/bpe_test.c's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/bpe_json.h"

static void check_ids(const struct sl_tokenizer *t, const struct sl_tokenizer_text *text,
                      const char *expected)
{
    struct sl_token_list out = {0};
    struct sl_error err = {.message = ""};
    char got[512] = "";
    size_t n = 0;
    if (sl_tokenizer_encode(t, text, &out, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < out.n && n < sizeof got; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%u", i ? " " : "", out.v[i]);
    assert_string_equal(got, expected);
    sl_token_list_done(&out);
}

static void check(const struct sl_tokenizer *t, const char *s, bool continues, const char *expected)
{
    const struct sl_tokenizer_text text = {.s = s, .n = strlen(s), .continues = continues};
    check_ids(t, &text, expected);
}

/* --- texts that cannot be read -----------------------------------------------------------------*/

/* An expression that backtracks without end fails the text it meets, in bounded time. */
static void endless_expressions(void **state)
{
    (void)state;
    struct sl_tokenizer *t =
        opened("{'model':{'vocab':{'a':0,'b':1},'merges':[]},'pre_tokenizer':{'type':'Split',"
               "'pattern':{'Regex':'(?:a|aa)+(?=[^a])'},'behavior':'Isolated','invert':false}}");
    check(t, "aab", false, "0 0 1");
    char text[64];
    memset(text, 'a', sizeof text);
    const struct sl_tokenizer_text in = {.s = text, .n = sizeof text};
    struct sl_token_list out = {0};
    struct sl_error err;
    assert_int_equal(sl_tokenizer_encode(t, &in, &out, &err), SL_E_INVALID_VALUE);
    assert_non_null(strstr(err.message, "retries"));
    assert_int_equal(out.n, 0);
    sl_token_list_done(&out);
    sl_tokenizer_close(t);
}

static void invalid_text(void **state)
{
    (void)state;
    struct sl_tokenizer *t = opened("{" MODEL "}");
    static const char *const texts[] = {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80",
                                        "ab\xc0\x80"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct sl_token_list out = {0};
        struct sl_error err;
        const struct sl_tokenizer_text in = {.s = texts[i], .n = strlen(texts[i])};
        assert_int_equal(sl_tokenizer_encode(t, &in, &out, &err), SL_E_INVALID_VALUE);
        assert_non_null(strstr(err.message, "not UTF-8 from its byte 2 on"));
        assert_null(out.v);
    }
    sl_tokenizer_close(t);
}

/* --- beginnings --------------------------------------------------------------------------------*/

static void texts_that_go_on(void **state)
{
    (void)state;
    struct sl_tokenizer *t = opened(prepending);
    check(t, "a", false, "5");
    check(t, "a", true, "4");
    check(t, " a", false, "3 5");
    check(t, " a", true, "5");
    check(t, "<s>a", true, "1 5"); /* what follows a special token begins */
    check(t, "a<s>a", true, "4 1 5");
    sl_tokenizer_close(t);
    t = opened("{'model':{" LLAMA_VOCAB "}," SPECIAL ",'pre_tokenizer':{'type':'Metaspace',"
               "'replacement':'_','prepend_scheme':'first','split':false}}");
    check(t, "a", false, "5");
    check(t, "a", true, "4");
    check(t, "<s>a", false, "1 4");
    check(t, " a", true, "5");
    sl_tokenizer_close(t);
    t = opened("{'model':{" LLAMA_VOCAB "}," SPECIAL ",'pre_tokenizer':{'type':'Metaspace',"
               "'replacement':'_','prepend_scheme':'always','split':true}}");
    check(t, "a", false, "5");
    check(t, "a", true, "4");
    check(t, "<s>a", true, "1 5");
    check(t, "ba a", true, "6 4 5");
    sl_tokenizer_close(t);
    t = opened("{'model':{'vocab':{'\xc4\xa0':0,'a':1,'\xc4\xa0"
               "a':2},'merges':['\xc4\xa0 a']},'pre_tokenizer':{'type':'ByteLevel',"
               "'add_prefix_space':true,'use_regex':true}}");
    check(t, "a", false, "2");
    check(t, "a", true, "1");
    check(t, " a", true, "2");
    sl_tokenizer_close(t);
}

/* What a normaliser makes of a text, or of what stands before a verbatim part, may be nothing; the
 * steps after it get that. */
static void normalised_to_nothing(void **state)
{
    (void)state;
    static const char *const after[] = {REPLACE, "{'type':'Lowercase'}," REPLACE,
                                        "{'type':'Replace','pattern':{'Regex':'b+'},'content':'a'}",
                                        "{'type':'Strip','strip_left':true}"};
    char json[512];
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        snprintf(json, sizeof json,
                 "{" MODEL ",'normalizer':{'type':'Sequence','normalizers':[{'type':'Strip',"
                 "'strip_left':true,'strip_right':true},%s]}}",
                 after[i]);
        struct sl_tokenizer *t = opened(json);
        check(t, "  ", false, "");
        check(t, " a", false, "0");
        sl_tokenizer_close(t);
    }
    struct sl_tokenizer *t =
        opened("{'model':{" LLAMA_VOCAB "},'added_tokens':[{'id':1,'content':'<s>','special':true,"
               "'normalized':true}],'normalizer':{'type':'Sequence','normalizers':[{'type':"
               "'Prepend','prepend':'_'}," REPLACE "]}}");
    struct sl_range all = {0, 3};
    const struct sl_tokenizer_text text = {.s = "a a", .n = 3, .verbatim = &all, .n_verbatim = 1};
    check_ids(t, &text, "5 5");
    sl_tokenizer_close(t);
}

static void check_bytes(const struct sl_tokenizer *t, uint32_t id, const char *bytes,
                        const char *first)
{
    size_t n;
    const unsigned char *s = sl_tokenizer_bytes(t, id, &n);
    assert_int_equal(n, strlen(bytes));
    if (n)
        assert_memory_equal(s, bytes, n);
    s = sl_tokenizer_first_bytes(t, id, &n);
    assert_int_equal(n, strlen(first));
    if (n)
        assert_memory_equal(s, first, n);
}

static void first_tokens(void **state)
{
    (void)state;
    struct sl_tokenizer *t = opened(prepending);
    check_bytes(t, 5, " a", "a");
    check_bytes(t, 4, "a", "a");
    check_bytes(t, 3, " ", "");
    check_bytes(t, 1, "", "");
    check_bytes(t, 99, "", "");
    sl_tokenizer_close(t);
    t = opened("{" MODEL "}"); /* no decoder: a blank between two tokens */
    check_bytes(t, 2, " ab", "ab");
    sl_tokenizer_close(t);
    t = opened("{'model':{'vocab':{'__a_':0},'merges':[]},'decoder':{'type':'Metaspace',"
               "'replacement':'_'}}");
    check_bytes(t, 0, "  a ", "a");
    sl_tokenizer_close(t);
    t = opened("{'model':{'vocab':{'__a_':0},'merges':[]},'decoder':{'type':'Metaspace',"
               "'replacement':'_','prepend_scheme':'never'}}");
    check_bytes(t, 0, "  a ", "  a ");
    sl_tokenizer_close(t);
}

/* In a user's own text a special token is text; others, and those outside, are tokens. */
static void verbatim_text(void **state)
{
    (void)state;
    static const char *const normalized[] = {"false", "true"};
    for (size_t i = 0; i < 2; i++) {
        char json[1024];
        snprintf(json, sizeof json,
                 "{'model':{'vocab':{'<':0,'s':1,'>':2,'a':3,'_':4},'merges':[]},'normalizer':"
                 "{'type':'Sequence','normalizers':[{'type':'NFKC'}," REPLACE
                 "]},'added_tokens':[{'id':5,'content':'<s>','special':true,"
                 "'normalized':%s},{'id':6,'content':'aa','special':false,'normalized':%s}]}",
                 normalized[i], normalized[i]);
        struct sl_tokenizer *t = opened(json);
        static const struct sl_range one[] = {{4, 9}}, two[] = {{0, 3}, {6, 9}}, edge[] = {{2, 3}};
        struct sl_tokenizer_text text = {.s = "<s> aa<s><s>", .n = 12};
        check_ids(t, &text, "5 4 6 5 5");
        text.verbatim = one;
        text.n_verbatim = 1;
        check_ids(t, &text, "5 4 6 0 1 2 5");
        text.verbatim = two;
        text.n_verbatim = 2;
        check_ids(t, &text, "0 1 2 4 6 0 1 2 5");
        text.verbatim = edge;
        text.n_verbatim = 1;
        check_ids(t, &text, "0 1 2 4 6 5 5");
        sl_tokenizer_close(t);
    }
}

/* --- parts -------------------------------------------------------------------------------------*/

static void check_part(const struct sl_tokenizer *t, const char *part, const char *expected)
{
    uint32_t ids[SL_TOKEN_BYTES_MAX];
    char got[256] = "";
    size_t n = 0, n_ids = sl_tokenizer_encode_part(t, part, strlen(part), ids);
    for (size_t i = 0; i < n_ids; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%u", i ? " " : "", ids[i]);
    assert_string_equal(got, expected);
}

static void parts_of_tokens(void **state)
{
    (void)state;
    struct sl_tokenizer *t = opened(prepending);
    check_part(t, " a", "5");
    check_part(t, " ", "3");
    check_part(t, "a", "4");
    check_part(t, "aq", "4"); /* no token has q */
    check_part(t, "q", "");
    check_part(t, "a\xc3", "4");
    sl_tokenizer_close(t);
    t = opened(
        "{'model':{'vocab':{'\xc4\xa0':0,'h':1,'i':2,'\xc3\x83':3,'\xc2\xa9':4,'\xc4\xa0h':5,"
        "'hi':6},'merges':['\xc4\xa0 h','h i']},'decoder':{'type':'ByteLevel'},"
        "'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':true}}");
    check_part(t, " hi", "5 2");
    check_part(t, " h", "5");
    check_part(t, "\xc3", "3");
    check_part(t, "\xa9", "4");
    sl_tokenizer_close(t);
}

/* --- words -------------------------------------------------------------------------------------*/

/* Each left with a right behind it is one id; -> how many ids there are then. */
static size_t merged(uint32_t *ids, size_t n, size_t left, size_t right, uint32_t whole)
{
    size_t k = 0;
    for (size_t i = 0; i < n; k++) {
        bool fits = i + 1 < n && ids[i] == left && ids[i + 1] == right;
        ids[k] = fits ? whole : ids[i];
        i += fits ? 2 : 1;
    }
    return k;
}

/* Long words, which are merged with a queue, against a walk that tries every pair again. */
static void long_words(void **state)
{
    (void)state;
    enum { N = 4000, ALPHABET = 3, TOKENS = 40 };
    uint64_t rng = 7;
    for (int round = 0; round < 20; round++) {
        char token[TOKENS][16] = {"a", "b", "c"};
        size_t left[TOKENS], right[TOKENS], n = ALPHABET;
        char json[8192];
        while (n < TOKENS) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            size_t l = (rng >> 33) % n, r = (rng >> 43) % n, k = 0;
            if (strlen(token[l]) + strlen(token[r]) > 12)
                continue;
            size_t n_left = strlen(token[l]);
            memcpy(token[n], token[l], n_left);
            memcpy(token[n] + n_left, token[r], strlen(token[r]) + 1);
            while (strcmp(token[k], token[n]) != 0)
                k++;
            if (k < n)
                continue;
            left[n] = l;
            right[n++] = r;
        }
        int at = snprintf(json, sizeof json, "{'model':{'vocab':{");
        for (size_t i = 0; i < n; i++)
            at += snprintf(json + at, sizeof json - (size_t)at, "%s'%s':%zu", i ? "," : "",
                           token[i], i);
        at += snprintf(json + at, sizeof json - (size_t)at, "},'merges':[");
        for (size_t i = ALPHABET; i < n; i++)
            at += snprintf(json + at, sizeof json - (size_t)at, "%s'%s %s'",
                           i > ALPHABET ? "," : "", token[left[i]], token[right[i]]);
        snprintf(json + at, sizeof json - (size_t)at, "]}}");
        struct sl_tokenizer *t = opened(json);
        for (size_t len = 1; len < N; len = len * 2 + 1) {
            static char text[N];
            static uint32_t ids[N];
            size_t n_ids = len;
            for (size_t i = 0; i < len; i++) {
                rng = rng * 6364136223846793005u + 1442695040888963407u;
                ids[i] = (uint32_t)((rng >> 40) % ALPHABET);
                text[i] = "abc"[ids[i]];
            }
            for (size_t m = ALPHABET; m < n; m++) /* the order of the merges is their rank */
                n_ids = merged(ids, n_ids, left[m], right[m], (uint32_t)m);
            struct sl_token_list out = {0};
            const struct sl_tokenizer_text in = {.s = text, .n = len};
            assert_int_equal(sl_tokenizer_encode(t, &in, &out, NULL), SL_OK);
            assert_int_equal(out.n, n_ids);
            assert_memory_equal(out.v, ids, n_ids * sizeof *ids);
            sl_token_list_done(&out);
        }
        sl_tokenizer_close(t);
    }
}

/* --- memory ------------------------------------------------------------------------------------*/

static const char everything[] =
    "{'model':{" LLAMA_VOCAB ",'unk_token':'<unk>','byte_fallback':true},"
    "'normalizer':{'type':'Sequence','normalizers':[{'type':'NFKC'},{'type':'Lowercase'},"
    "{'type':'Prepend','prepend':'_'}," REPLACE ",{'type':'Strip','strip_left':true}]},"
    "'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Digits'},{'type':'Metaspace',"
    "'replacement':'_','split':true},{'type':'Split','pattern':{'Regex':'b+'},'behavior':"
    "'Removed','invert':false}]},'added_tokens':[{'id':1,'content':'<s>','special':true,"
    "'normalized':true,'single_word':true}],'post_processor':{'type':'TemplateProcessing',"
    "'single':[{'SpecialToken':{'id':'<s>'}},{'Sequence':{'id':'A'}}],'special_tokens':{'<s>':"
    "{'ids':[1]}}}," STRIP "}";

/* Each allocation of ours fails once; Oniguruma's own are not ours. */
static void no_memory(void **state)
{
    (void)state;
    static const char begin[] = "A <s> \xc3\x84 b12";
    char *json = json_of(everything);
    size_t n = strlen(json);
    struct sl_tokenizer *t = NULL;
    int64_t fails = 0;
    for (;; fails++) {
        struct sl_error err = {.code = SL_OK};
        sl_mem_fail_once(fails);
        enum sl_code c = sl_tokenizer_open_memory(&t, json, n, "t.json", &err);
        sl_mem_fail_after(-1);
        if (c == SL_OK)
            break;
        if (c != SL_E_NO_MEMORY)
            fail_msg("allocation %d: %s", (int)fails, err.message);
        assert_null(t);
    }
    free(json);
    assert_true(fails > 30);
    char text[4096];
    memset(text, 'a', sizeof text);
    memcpy(text, begin, sizeof begin - 1);
    struct sl_range verbatim = {3, 4000};
    const struct sl_tokenizer_text in = {
        .s = text, .n = sizeof text, .verbatim = &verbatim, .n_verbatim = 1};
    for (fails = 0;; fails++) {
        struct sl_token_list out = {0};
        struct sl_error err = {.code = SL_OK};
        sl_mem_fail_once(fails);
        enum sl_code c = sl_tokenizer_encode(t, &in, &out, &err);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || (c == SL_E_NO_MEMORY && out.n == 0));
        sl_token_list_done(&out);
        if (c == SL_OK)
            break;
    }
    assert_true(fails > 5);
    sl_tokenizer_close(t);
}

/* Merges and special tokens are part of what a tokenizer is. */
static void fingerprints(void **state)
{
    (void)state;
    static const char *const files[] = {
        "{" MODEL "}",
        "{'model':{'vocab':{'a':0,'b':1,'ab':2},'merges':[]}}",
        "{" MODEL ",'added_tokens':[{'id':3,'content':'x','special':true,'normalized':false}]}",
        "{" MODEL ",'added_tokens':[{'id':3,'content':'y','special':true,'normalized':false}]}",
    };
    unsigned char all[4][16], again[16];
    for (size_t i = 0; i < 4; i++) {
        struct sl_tokenizer *t = opened(files[i]);
        sl_tokenizer_fingerprint(t, all[i]);
        sl_tokenizer_close(t);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(all[i], all[k], 16);
    }
    struct sl_tokenizer *t =
        opened("{'model':{'merges':[['a','b']],'vocab':{'ab':2,'b':1,'a':0}}}");
    sl_tokenizer_fingerprint(t, again);
    assert_memory_equal(all[0], again, 16);
    sl_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endless_expressions), cmocka_unit_test(invalid_text),
        cmocka_unit_test(texts_that_go_on),    cmocka_unit_test(normalised_to_nothing),
        cmocka_unit_test(first_tokens),        cmocka_unit_test(verbatim_text),
        cmocka_unit_test(parts_of_tokens),     cmocka_unit_test(long_words),
        cmocka_unit_test(no_memory),           cmocka_unit_test(fingerprints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
