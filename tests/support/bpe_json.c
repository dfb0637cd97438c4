/* bpe_json.c: see bpe_json.h. */
#include "tests/support/bpe_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char prepending[] =
    "{'model':{" LLAMA_VOCAB ",'unk_token':'<unk>'}," SPECIAL "," STRIP
    ",'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'_'}," REPLACE
    "]}}";

char *json_of(const char *text)
{
    char *json = strdup(text);
    assert_non_null(json);
    for (char *s = json; (s = strchr(s, '\''));)
        *s = '"';
    return json;
}

struct sl_tokenizer *open_json(const char *json, enum sl_code expected, struct sl_error *err)
{
    struct sl_tokenizer *t = NULL;
    size_t n = strlen(json);
    char *text = json_of(json);
    enum sl_code c = sl_tokenizer_open_memory(&t, text, n, "t.json", err);
    free(text);
    if (c != expected)
        fail_msg("%s: code %d, not %d: %s", json, c, expected, c ? err->message : "");
    assert_true(c ? !t : t != NULL);
    return t;
}

struct sl_tokenizer *opened(const char *json)
{
    struct sl_error err = {.message = ""};
    return open_json(json, SL_OK, &err);
}
