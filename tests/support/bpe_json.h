/* bpe_json.h: tokenizer.json files in a test's own text, where a quote is written as '. */
#ifndef SLATE_TESTS_BPE_JSON_H
#define SLATE_TESTS_BPE_JSON_H

#include "slate/tokenizer.h"

/* Parts of such files: a model of three tokens; one with special tokens and '_' for a blank, as
 * Llama's first ones, and its decoder. */
#define MODEL "'model':{'vocab':{'a':0,'b':1,'ab':2},'merges':['a b']}"
#define LLAMA_VOCAB "'vocab':{'<unk>':0,'<s>':1,'</s>':2,'_':3,'a':4,'_a':5,'b':6},'merges':['_ a']"
#define STRIP                                                                                      \
    "'decoder':{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'_'},"         \
    "'content':' '},{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' ',"        \
    "'start':1,'stop':0}]}"
#define SPECIAL                                                                                    \
    "'added_tokens':[{'id':1,'content':'<s>','special':true,'normalized':false},"                  \
    "{'id':2,'content':'</s>','special':true,'normalized':false}]"
#define REPLACE "{'type':'Replace','pattern':{'String':' '},'content':'_'}"

/* A file of the second kind, which puts a '_' before each text. */
extern const char prepending[];

/* The file's own text; free(). */
char *json_of(const char *text);
/* Opens the file, which must have that result; NULL where it is a failure. Its name is t.json. */
struct sl_tokenizer *open_json(const char *json, enum sl_code expected, struct sl_error *err);
struct sl_tokenizer *opened(const char *json); /* SL_OK */

#endif
