/* bpe_refused_test.c: tokenizer.json files that are wrong, that ask for what is not done, or for
 * more than there can be: each is refused, and what is wrong with it is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/bpe_json.h"

static const struct {
    const char *json, *why;
} wrong[] = {
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

static void wrong_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sl_error err;
        (void)open_json(wrong[i].json, SL_E_FILE_CORRUPT, &err);
        if (!strstr(err.message, wrong[i].why) || !strstr(err.message, "t.json"))
            fail_msg("%s: \"%s\" is not in \"%s\"", wrong[i].json, wrong[i].why, err.message);
    }
}

static const struct {
    const char *json, *why;
} unknown[] = {
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

static void unknown_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        struct sl_error err;
        (void)open_json(unknown[i].json, SL_E_FILE_UNSUPPORTED, &err);
        if (!strstr(err.message, unknown[i].why))
            fail_msg("%s: \"%s\" is not in \"%s\"", unknown[i].json, unknown[i].why, err.message);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(unknown_parts),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
