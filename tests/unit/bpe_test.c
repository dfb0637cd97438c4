/* bpe_test.c: tokenizer.json files that are wrong or ask for what is not done, each named; texts
 * that go on after others; user texts; parts of tokens; limits; memory that runs out. What right
 * files give is tests/vectors/bpe_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/beside.h"
#include "slate/tokenizer.h"

/* In these files a quote is written as '. */
static struct sl_tokenizer *open_json(const char *json, enum sl_code expected, struct sl_error *err)
{
    struct sl_tokenizer *t = NULL;
    size_t n = strlen(json);
    char *text = malloc(n + 1);
    assert_non_null(text);
    for (size_t i = 0; i <= n; i++)
        text[i] = json[i] == '\'' ? '"' : json[i];
    enum sl_code c = sl_tokenizer_open_memory(&t, text, n, "t.json", err);
    free(text);
    if (c != expected)
        fail_msg("%s: code %d, not %d: %s", json, c, expected, c ? err->message : "");
    assert_true(c ? !t : t != NULL);
    return t;
}

static struct sl_tokenizer *opened(const char *json)
{
    struct sl_error err = {.message = ""};
    return open_json(json, SL_OK, &err);
}

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

/* --- what is refused ---------------------------------------------------------------------------*/

#define MODEL "'model':{'vocab':{'a':0,'b':1,'ab':2},'merges':['a b']}"

static void wrong_files(void **state)
{
    (void)state;
    static const struct {
        const char *json, *why;
    } cases[] = {
        {"{", "t.json\", line 1:"},
        {"{}", "model: must be an object"},
        {"{'model':{}}", "model.vocab: must be an object"},
        {"{'model':{'vocab':{},'merges':[]}}", "model.vocab: is empty"},
        {"{'model':{'vocab':{'a':0,'a':1},'merges':[]}}", "duplicate object key"},
        {"{'model':{'vocab':{'a':0,'b':0},'merges':[]}}", "\"b\" and \"a\" have one id, 0"},
        {"{'model':{'vocab':{'a':-1},'merges':[]}}", "\"a\" must have an id from 0 to 1048575"},
        {"{'model':{'vocab':{'a':1048576},'merges':[]}}", "\"a\" must have an id from 0"},
        {"{'model':{'vocab':{'a':99999999999999999999},'merges':[]}}", "too big"},
        {"{'model':{'vocab':{'a':1e400},'merges':[]}}", "real number overflow"},
        {"{'model':{'vocab':{'a':0.5},'merges':[]}}", "\"a\" must have an id from 0"},
        {"{'model':{'vocab':{'a':'0'},'merges':[]}}", "\"a\" must have an id from 0"},
        {"{'model':{'vocab':{'\\ud800':0},'merges':[]}}", "invalid Unicode"},
        {"{'model':{'vocab':{'\xff':0},'merges':[]}}", "unable to decode byte 0xff"},
        {"{'model':{'vocab':{'a':0}}}", "model.merges: must be a list"},
        {"{'model':{'vocab':{'a':0},'merges':['a']}}", "model.merges[0]: must be two tokens"},
        {"{'model':{'vocab':{'a':0},'merges':['a a a']}}", "model.merges[0]: must be two tokens"},
        {"{'model':{'vocab':{'a':0},'merges':[['a']]}}", "model.merges[0]: must be two tokens"},
        {"{'model':{'vocab':{'a':0},'merges':[['a',1]]}}", "model.merges[0]: must be two tokens"},
        {"{'model':{'vocab':{'a':0,'aa':1},'merges':['a a','a c']}}",
         "model.merges[1]: the vocabulary does not have \"c\""},
        {"{'model':{'vocab':{'a':0,'b':1},'merges':['a b']}}",
         "model.merges[0]: the vocabulary does not have \"ab\""},
        {"{'model':{'vocab':{'a':0},'merges':[],'unk_token':'x'}}",
         "model.unk_token: the vocabulary does not have \"x\""},
        {"{" MODEL ",'added_tokens':[{'id':7,'content':'<s>'}]}",
         "added_tokens[0].id: is 7; the next free id for \"<s>\" is 3"},
        {"{" MODEL ",'added_tokens':[{'id':3,'content':'a'}]}",
         "added_tokens[0].id: is 3; the vocabulary gives \"a\" is 0"},
        {"{" MODEL ",'added_tokens':[{'id':3,'content':'x'},{'id':4,'content':'x'}]}",
         "added_tokens[1]: \"x\" stands here twice"},
        {"{" MODEL ",'added_tokens':[{'id':3,'content':''}]}", "added_tokens[0].content: is empty"},
        {"{" MODEL ",'added_tokens':[{'id':3}]}", "added_tokens[0].content: must be there"},
        {"{" MODEL ",'added_tokens':[{'id':3,'content':'A'},{'id':4,'content':'x'},"
         "{'id':5,'content':'X'}],'normalizer':{'type':'Lowercase'}}",
         "added_tokens[2]: looks for the same text as another one, which has the id 4"},
        {"{" MODEL ",'added_tokens':[{'id':3,'content':' '}],'normalizer':{'type':'Strip',"
         "'strip_left':true,'strip_right':true}}",
         "added_tokens[0]: the normaliser leaves nothing of it"},
        {"{" MODEL ",'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'ByteLevel'},"
         "{'type':'Split','pattern':{'Regex':'(a'},'behavior':'Isolated','invert':false}]}}",
         "pre_tokenizer.pretokenizers[1].pattern.Regex: not a regular expression: end pattern"},
        {"{" MODEL ",'pre_tokenizer':{'type':'Split','pattern':{'String':''},'behavior':"
         "'Isolated'}}",
         "pre_tokenizer.pattern.String: an empty pattern"},
        {"{" MODEL ",'pre_tokenizer':{'type':'Split','pattern':'a','behavior':'Isolated'}}",
         "pre_tokenizer.pattern: must be an object"},
        {"{" MODEL ",'pre_tokenizer':{'type':'Metaspace','replacement':'__'}}",
         "pre_tokenizer.replacement: must be there, one character"},
        {"{" MODEL ",'normalizer':7}", "normalizer: must be an object or null"},
        {"{" MODEL ",'normalizer':{}}", "normalizer.type: must be there"},
        {"{" MODEL ",'normalizer':{'type':'Prepend','prepend':7}}",
         "normalizer.prepend: must be a string"},
        {"{" MODEL ",'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':"
         "'<s>'}},{'Sequence':{'id':'A'}}],'special_tokens':{}}}",
         "post_processor.special_tokens: lacks \"<s>\""},
        {"{" MODEL ",'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':"
         "'<s>'}},{'Sequence':{'id':'A'}}],'special_tokens':{'<s>':{'ids':[99]}}}}",
         "post_processor: the token before a text has the id 99, and there are 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_error err;
        (void)open_json(cases[i].json, SL_E_FILE_CORRUPT, &err);
        if (!strstr(err.message, cases[i].why) || !strstr(err.message, "t.json"))
            fail_msg("%s: \"%s\" is not in \"%s\"", cases[i].json, cases[i].why, err.message);
    }
}

static void unknown_parts(void **state)
{
    (void)state;
    static const struct {
        const char *json, *why;
    } cases[] = {
        {"{'model':{'type':'Unigram','vocab':[]}}",
         "model: the type \"Unigram\" is not known here; BPE is"},
        {"{'model':{'type':'BPE','dropout':0.1,'vocab':{'a':0},'merges':[]}}", "model.dropout"},
        {"{" MODEL ",'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':"
         "'Precompiled'}]}}",
         "normalizer.normalizers[1]: the type \"Precompiled\" is not known here"},
        {"{" MODEL ",'pre_tokenizer':{'type':'BertPreTokenizer'}}",
         "pre_tokenizer: the type \"BertPreTokenizer\""},
        {"{" MODEL ",'pre_tokenizer':{'type':'Split','pattern':{'String':'a'},'behavior':'Odd'}}",
         "pre_tokenizer.behavior: \"Odd\""},
        {"{" MODEL ",'pre_tokenizer':{'type':'Metaspace','replacement':'_','prepend_scheme':"
         "'odd'}}",
         "pre_tokenizer.prepend_scheme: \"odd\""},
        {"{" MODEL ",'decoder':{'type':'WordPiece'}}", "decoder: the type \"WordPiece\""},
        {"{" MODEL ",'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Replace',"
         "'pattern':{'String':'a'},'content':'b'}]}}",
         "decoder.decoders[1]: after ByteLevel, ByteFallback or Fuse"},
        {"{" MODEL ",'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Strip',"
         "'content':' ','start':0,'stop':1}]}}",
         "decoder.decoders[1].stop"},
        {"{" MODEL ",'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Strip',"
         "'content':' ','start':2,'stop':0}]}}",
         "decoder.decoders[1].start"},
        {"{" MODEL ",'post_processor':{'type':'BertProcessing'}}",
         "post_processor: the type \"BertProcessing\""},
        {"{" MODEL ",'post_processor':{'type':'TemplateProcessing','single':[{'Sequence':{'id':"
         "'A'}},{'SpecialToken':{'id':'a'}}],'special_tokens':{'a':{'ids':[0]}}}}",
         "post_processor.single[1]: a token after the text, \"a\""},
        {"{" MODEL ",'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':"
         "'a'}},{'SpecialToken':{'id':'a'}},{'Sequence':{'id':'A'}}],'special_tokens':{'a':{'ids':"
         "[0]}}}}",
         "post_processor.single[1]: more than one token before the text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_error err;
        (void)open_json(cases[i].json, SL_E_FILE_UNSUPPORTED, &err);
        if (!strstr(err.message, cases[i].why))
            fail_msg("%s: \"%s\" is not in \"%s\"", cases[i].json, cases[i].why, err.message);
    }
}

/* Sequences within sequences, more steps than there can be, tokens longer than there can be. */
static void limits(void **state)
{
    (void)state;
    struct sl_error err;
    size_t room = 1 << 16;
    char *s = malloc(room);
    assert_non_null(s);
    int n = snprintf(s, room, "{" MODEL ",'normalizer':");
    for (int i = 0; i < 20; i++)
        n += snprintf(s + n, room - (size_t)n, "{'type':'Sequence','normalizers':[");
    for (int i = 0; i < 20; i++)
        n += snprintf(s + n, room - (size_t)n, "]}");
    snprintf(s + n, room - (size_t)n, "}");
    (void)open_json(s, SL_E_FILE_CORRUPT, &err);
    assert_non_null(strstr(err.message, "sequences within sequences"));
    n = snprintf(s, room, "{" MODEL ",'normalizer':{'type':'Sequence','normalizers':[");
    for (int i = 0; i < 33; i++)
        n += snprintf(s + n, room - (size_t)n, "%s{'type':'NFC'}", i ? "," : "");
    snprintf(s + n, room - (size_t)n, "]}}");
    (void)open_json(s, SL_E_FILE_UNSUPPORTED, &err);
    assert_non_null(strstr(err.message, "normalizer.normalizers[32]: more than 32 steps"));
    n = snprintf(s, room, "{'model':{'merges':[],'vocab':{'a':0,'");
    memset(s + n, 'x', 257);
    n += 257;
    snprintf(s + n, room - (size_t)n, "':1}}}");
    (void)open_json(s, SL_E_TOO_LARGE, &err);
    assert_non_null(strstr(err.message, "id[1]: a token of 258 bytes; 256 are possible"));
    free(s);
}

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

#define LLAMA_VOCAB "'vocab':{'<unk>':0,'<s>':1,'</s>':2,'_':3,'a':4,'_a':5,'b':6},'merges':['_ a']"
#define STRIP                                                                                      \
    "'decoder':{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'_'},"         \
    "'content':' '},{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' ',"        \
    "'start':1,'stop':0}]}"
#define SPECIAL                                                                                    \
    "'added_tokens':[{'id':1,'content':'<s>','special':true,'normalized':false},"                  \
    "{'id':2,'content':'</s>','special':true,'normalized':false}]"
#define REPLACE "{'type':'Replace','pattern':{'String':' '},'content':'_'}"

static const char prepending[] =
    "{'model':{" LLAMA_VOCAB ",'unk_token':'<unk>'}," SPECIAL "," STRIP
    ",'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'_'}," REPLACE
    "]}}";

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
            for (size_t m = ALPHABET; m < n; m++) { /* the order of the merges is their rank */
                size_t k = 0;
                for (size_t i = 0; i < n_ids; k++) {
                    bool fits = i + 1 < n_ids && ids[i] == left[m] && ids[i + 1] == right[m];
                    ids[k] = fits ? (uint32_t)m : ids[i];
                    i += fits ? 2 : 1;
                }
                n_ids = k;
            }
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

/* --- what lies beside --------------------------------------------------------------------------*/

static char folder[64];

static void put_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!text) {
        (void)unlink(path);
        return;
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (const char *s = text; *s; s++)
        fputc(*s == '\'' ? '"' : *s, f);
    fclose(f);
}

static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                    "generation_config.json", "config.json", "chat_template.jinja"};

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/slate-beside-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static void remove_folder(void)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put_file(names[i], NULL);
    assert_int_equal(rmdir(folder), 0);
}

static void files_beside(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *generation, *config, *jinja;
        int64_t begin, end, other_end;
        const char *chat, *why;
    } cases[] = {
        {NULL, NULL, NULL, NULL, -1, -1, -1, NULL, NULL},
        {NULL, NULL, "{'eos_token_id':2,'bos_token_id':1}", NULL, -1, 2, -1, NULL, NULL},
        {NULL, "{'eos_token_id':[2,4]}", "{'eos_token_id':6}", NULL, -1, 2, 4, NULL, NULL},
        {NULL, "{'eos_token_id':null}", "{'eos_token_id':6}", NULL, -1, 6, -1, NULL, NULL},
        {"{'eos_token':'</s>'}", NULL, "{'eos_token_id':6}", NULL, -1, 6, 2, NULL, NULL},
        {"{'eos_token':{'content':'</s>','lstrip':false},'chat_template':'x'}", NULL, NULL, NULL,
         -1, 2, -1, "x", NULL},
        {"{'eos_token':null,'add_bos_token':true,'bos_token':'<s>','model_max_length':"
         "1000000000000000019884624838656}",
         NULL, NULL, NULL, 1, -1, -1, NULL, NULL},
        {"{'chat_template':[{'name':'tools','template':'t'},{'name':'default','template':'d'}]}",
         NULL, NULL, NULL, -1, -1, -1, "d", NULL},
        {"{'chat_template':'x'}", NULL, NULL, "j", -1, -1, -1, "j", NULL},
        {"{'eos_token':'no'}", NULL, NULL, NULL, 0, 0, 0, NULL,
         "tokenizer_config.json: \"eos_token\" is no token of tokenizer.json"},
        {"{'add_bos_token':true}", NULL, NULL, NULL, 0, 0, 0, NULL, "there is no bos_token"},
        {NULL, "{'eos_token_id':'2'}", NULL, NULL, 0, 0, 0, NULL,
         "generation_config.json: \"eos_token_id\" must be a token's id"},
        {NULL, NULL, "{'eos_token_id':-1}", NULL, 0, 0, 0, NULL, "config.json: \"eos_token_id\""},
        {NULL, NULL, "{'eos_token_id':1e30}", NULL, 0, 0, 0, NULL, "config.json: \"eos_token_id\""},
        {NULL, NULL, "{'eos_token_id':[1,2,3,4,5,6,7,8,9]}", NULL, 0, 0, 0, NULL,
         "more end tokens than 8"},
        {"{", NULL, NULL, NULL, 0, 0, 0, NULL, "tokenizer_config.json"},
    };
    make_folder();
    assert_false(sl_tokenizer_is_in(folder));
    put_file("tokenizer.json", prepending);
    assert_true(sl_tokenizer_is_in(folder));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_tokenizer *t = NULL;
        struct sl_error err = {.message = ""};
        char *chat;
        size_t n;
        put_file("tokenizer_config.json", cases[i].tokenizer);
        put_file("generation_config.json", cases[i].generation);
        put_file("config.json", cases[i].config);
        put_file("chat_template.jinja", cases[i].jinja);
        assert_int_equal(sl_tokenizer_open(&t, folder, &err), SL_OK);
        enum sl_code c = sl_tokenizer_read_beside(t, folder, &chat, &n, &err);
        if (cases[i].why && (c != SL_E_FILE_CORRUPT || !strstr(err.message, cases[i].why)))
            fail_msg("case %zu: %d, \"%s\"", i, c, err.message);
        if (!cases[i].why) {
            if (c)
                fail_msg("case %zu: %s", i, err.message);
            assert_int_equal(sl_tokenizer_begin(t), cases[i].begin);
            assert_int_equal(sl_tokenizer_eos(t), cases[i].end);
            assert_int_equal(sl_tokenizer_is_eos(t, (uint32_t)cases[i].other_end),
                             cases[i].other_end >= 0);
            assert_int_equal(!chat, !cases[i].chat);
            if (chat) {
                assert_string_equal(chat, cases[i].chat);
                assert_int_equal(n, strlen(chat));
            }
        }
        sl_free(chat);
        sl_tokenizer_close(t);
    }
    remove_folder();
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
    char json[2048];
    size_t n = strlen(everything);
    for (size_t i = 0; i <= n; i++)
        json[i] = everything[i] == '\'' ? '"' : everything[i];
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
    assert_true(fails > 30);
    char text[4096];
    memset(text, 'a', sizeof text);
    memcpy(text, "A <s> \xc3\x84 b12", 12);
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
        cmocka_unit_test(wrong_files),     cmocka_unit_test(unknown_parts),
        cmocka_unit_test(limits),          cmocka_unit_test(endless_expressions),
        cmocka_unit_test(invalid_text),    cmocka_unit_test(texts_that_go_on),
        cmocka_unit_test(first_tokens),    cmocka_unit_test(verbatim_text),
        cmocka_unit_test(parts_of_tokens), cmocka_unit_test(long_words),
        cmocka_unit_test(files_beside),    cmocka_unit_test(no_memory),
        cmocka_unit_test(fingerprints),    cmocka_unit_test(normalised_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
