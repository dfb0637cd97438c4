/* beside_test.c: what lies beside a tokenizer.json: its first and last tokens, and the chat
 * template, from tokenizer_config.json, generation_config.json, config.json and
 * chat_template.jinja. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/beside.h"
#include "tests/support/bpe_json.h"
#include "tests/support/tree.h"

static char folder[] = "/tmp/slate-beside-XXXXXX";

static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                    "generation_config.json", "config.json", "chat_template.jinja"};

static void put_file(const char *name, const char *text)
{
    char *json = text ? json_of(text) : NULL;
    tree_put(folder, name, json);
    free(json);
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
    assert_non_null(mkdtemp(folder));
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
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        tree_put(folder, names[i], NULL);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_beside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
