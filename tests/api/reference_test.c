/* reference_test.c: public models over HTTP, against answers that come from outside the project:
 * the 60 digit reversals, and 64 greedy tokens of each RWKV-7 folder of ../shared/reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"

#define FOLDER "../shared/reference/rwkv/"

/* A JSON file, or a skipped test. */
static json_t *load_or_skip(const char *path, unsigned n_cases, const char *what)
{
    if (access(path, R_OK) != 0) {
        printf("skipped: %u cases of %s: ../shared/reference is not here\n", n_cases, what);
        skip();
    }
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j)
        fail_msg("%s: %s", path, e.text);
    return j;
}

static char *dumped(const json_t *j)
{
    char *d = json_dumps(j, JSON_COMPACT), *copy = sl_strdup(d);
    assert_non_null(copy);
    free(d); /* jansson's own */
    return copy;
}

static void check_tokens(const struct gen *g, const json_t *want, size_t n)
{
    assert_int_equal(g->o.n_tokens, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(g->o.tokens[i], json_integer_value(json_array_get(want, i)));
}

/* Digits reversed, then '#' (id 11), which ends the turn as a stop token. */
static void test_reversals(void **state)
{
    (void)state;
    json_t *j = load_or_skip(FOLDER "v7-reverse/cases.json", 60, "digit reversal over HTTP");
    const json_t *cases = at(j, "cases");
    struct api a;
    api_start(&a, (const char *const[]){"--model", FOLDER "v7-reverse/model.pth",
                                        "--tokenizer=bytes", NULL});
    assert_int_equal(json_array_size(cases), 60);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i), *want = at(one, "greedy");
        size_t n = json_array_size(want);
        char *input = dumped(at(one, "input"));
        assert_int_equal(json_integer_value(json_array_get(want, n - 1)), 11);
        struct gen g;
        generate_both(a.client, &g,
                      "'prompt':%s,'temperature':0,'max_tokens':80,'ignore_eos':true,"
                      "'stop_tokens':[11],'return_tokens':true",
                      input);
        assert_string_equal(str_at(g.r->json, "finish_reason"), "stop");
        check_tokens(&g, want, n - 1);
        gen_done(&g);
        /* The same in a session that has reversed something else before and reads it in two parts:
         * each case begins anew after '#'. */
        if (i % 6 == 0) {
            const char *id = new_session(a.client);
            generate(a.client, &g, "'session':'%s','prompt':%s,'max_tokens':0", id, input);
            gen_done(&g);
            generate(a.client, &g,
                     "'session':'%s','prompt':[],'temperature':0,'max_tokens':80,"
                     "'ignore_eos':true,'stop_tokens':[11],'return_tokens':true",
                     id);
            check_tokens(&g, want, n - 1);
            gen_done(&g);
        }
        sl_free(input);
    }
    api_stop(&a);
    json_decref(j);
}

static void check_greedy(const char *folder, const char *container)
{
    char path[200], model[200], what[100];
    snprintf(path, sizeof path, FOLDER "%s/greedy.json", folder);
    snprintf(model, sizeof model, FOLDER "%s/%s", folder, container);
    snprintf(what, sizeof what, "greedy continuation of %s over HTTP", folder);
    json_t *greedy = load_or_skip(path, 1, what);
    const json_t *want = json_is_array(greedy) ? greedy : at(greedy, "tokens");
    assert_true(json_is_array(want));
    snprintf(path, sizeof path, FOLDER "%s/long.tokens.json", folder);
    json_t *prompt = load_or_skip(path, 1, what);
    char *ids = dumped(prompt);
    struct api a;
    api_start(&a, (const char *const[]){"--model", model, "--tokenizer=bytes", NULL});
    struct gen g;
    generate_both(a.client, &g,
                  "'prompt':%s,'temperature':0,'max_tokens':%d,'ignore_eos':true,"
                  "'return_tokens':true",
                  ids, (int)json_array_size(want));
    check_tokens(&g, want, json_array_size(want));
    gen_done(&g);
    api_stop(&a);
    sl_free(ids);
    json_decref(prompt);
    json_decref(greedy);
}

static void test_greedy_v7(void **state)
{
    (void)state;
    check_greedy("v7", "model.safetensors");
}

static void test_greedy_v7_rand(void **state)
{
    (void)state;
    check_greedy("v7-rand", "model.pth");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reversals),
        cmocka_unit_test(test_greedy_v7),
        cmocka_unit_test(test_greedy_v7_rand),
    };
    return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}
