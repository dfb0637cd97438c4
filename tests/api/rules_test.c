/* rules_test.c: each memory rule over HTTP: a session that rests in a store while its server ends,
 * and goes on under another one, gives the tokens of one that was never interrupted, and so does
 * its fork. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/api.h"
#include "tests/support/rules.h"
#include "tests/support/tree.h"

static const char *const first = "'prompt':'what was said first','max_tokens':9,'seed':5";
static const char *const second = "'prompt':' and then','max_tokens':12,'seed':6";

static void start(struct api *a, const struct rule *rule, const char *model, const char *store)
{
    char of_store[96], of_rule[96];
    (void)snprintf(of_store, sizeof of_store, "--store=dir:%s", store);
    (void)snprintf(of_rule, sizeof of_rule, "--rule=%s", rule->choices ? rule->choices : "");
    api_start(a, (const char *const[]){"--model", model, "--tokenizer=bytes", of_store,
                                       rule->choices ? of_rule : NULL, NULL});
}

/* A turn; the tokens must be those of `want` where there is one. */
static void turn(struct api *a, const char *session, const char *what, struct gen *ret,
                 const struct gen *want)
{
    generate(a->client, ret, "'session':'%s','return_tokens':true,'ignore_eos':true,%s", session,
             quoted(what));
    if (!want)
        return;
    assert_int_equal(ret->o.n_tokens, want->o.n_tokens);
    assert_memory_equal(ret->o.tokens, want->o.tokens, want->o.n_tokens * sizeof *want->o.tokens);
}

static void check(struct api *a, const char *session, const char *what, const struct gen *want)
{
    struct gen g;
    turn(a, session, what, &g, want);
    gen_done(&g);
}

static void make(struct api *a, const char *id)
{
    reply_free(expect(post(a->client, "/v1/sessions", "{'id':'%s'}", id), 201));
}

static void test_rule(void **prestate)
{
    const struct rule *rule = *prestate;
    struct rule_files f;
    struct api a;
    struct gen one, two;
    char store[] = "/tmp/slate-rules-XXXXXX";
    assert_non_null(mkdtemp(store));
    rule_write(rule, &f);
    start(&a, rule, f.path, store);
    make(&a, "whole");
    turn(&a, "whole", first, &one, NULL);
    turn(&a, "whole", second, &two, NULL);
    assert_int_equal(one.o.n_tokens, 9);
    assert_int_equal(two.o.n_tokens, 12);
    make(&a, "cut");
    check(&a, "cut", first, &one);
    api_stop(&a);
    start(&a, rule, f.path, store);
    reply_free(expect(post(a.client, "/v1/sessions/cut/fork", "{'id':'copy'}"), 201));
    check(&a, "cut", second, &two);
    check(&a, "copy", second, &two);
    api_stop(&a);
    gen_done(&one);
    gen_done(&two);
    rule_remove(&f);
    remove_tree(store);
}

/* Where a model's positions end, the error says how many there are, are left, and are needed. */
static void test_positions(void **unused)
{
    (void)unused;
    enum { LENGTH = 150, MADE = 100, MORE = 60 };
    const struct rule *rule = rules;
    struct rule_files f;
    struct api a;
    char store[] = "/tmp/slate-rules-XXXXXX", text[2 * LENGTH + 1] = "";
    while (strcmp(rule->title, "performer") != 0)
        rule++;
    memset(text, 'a', LENGTH + 1);
    assert_non_null(mkdtemp(store));
    rule_write(rule, &f);
    start(&a, rule, f.path, store);
    struct reply *r = post(a.client, "/v1/generate", "{'prompt':'%s','max_tokens':5}", text);
    assert_non_null(strstr(r->body, "the model has 150 positions, of which 150 are left; this "
                                    "request needs 151"));
    expect_error(r, 400, "context_exceeded", NULL);
    text[MADE] = '\0';
    reply_free(expect(post(a.client, "/v1/sessions", "{'id':'s','prompt':'%s'}", text), 201));
    text[MORE] = '\0'; /* and the last token of before, which is pending */
    r = post(a.client, "/v1/generate", "{'session':'s','prompt':'%s','max_tokens':5}", text);
    assert_non_null(strstr(r->body, "the model has 150 positions, of which 51 are left; this "
                                    "request needs 61"));
    expect_error(r, 400, "context_exceeded", NULL);
    api_stop(&a);
    rule_remove(&f);
    remove_tree(store);
}

int main(void)
{
    enum { MAX = 64 };
    static struct CMUnitTest tests[MAX];
    size_t n = 0;
    for (; rules[n].title; n++) {
        assert_true(n + 1 < MAX);
        tests[n] = (struct CMUnitTest){rules[n].title, test_rule, NULL, NULL,
                                       (void *)(uintptr_t)&rules[n]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_positions);
    return _cmocka_run_group_tests("rules over HTTP", tests, n, NULL, NULL);
}
