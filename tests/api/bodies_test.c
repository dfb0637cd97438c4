/* bodies_test.c: what a request holds of the memory for bodies (--max-body-memory), and of the JSON
 * that was read ahead, is given back when it has been understood, not when it is answered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"

#define BODY_BYTES "slate_http_body_bytes"

static struct api a;

static int start(void **state)
{
    (void)state;
    api_start(&a, (const char *const[]){"--max-running=1", "--max-tokens-limit=1000000", NULL});
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_stop(&a);
    return 0;
}

/* {begin, a field that nobody reads and whose tree is large}: read on the thread of long work. */
static struct call *post_with_tree(const char *path, const char *begin)
{
    enum { N = 40000 };
    char *items = repeated("{}", ",{}", N - 1, "");
    struct call *k = call_post(a.client, path, "{%s,'x':[%s]}", quoted(begin), items);
    sl_free(items);
    return k;
}

/* The only place is taken: what comes now waits with all that it holds. */
static void test_a_session_whose_prompt_waits(void **state)
{
    (void)state;
    struct client *c = a.client;
    struct call *k =
        generate_start(c, "'prompt':'a','ignore_eos':true,'max_tokens':1000000,'stream':true");
    until_metric(c, "slate_requests_running", 1);
    struct call *made = post_with_tree("/v1/sessions", "'id':'made','prompt':'Once upon a time'");
    until_metric(c, "slate_requests_queued", 1);
    assert_true(metric(c, BODY_BYTES) == 0);
    assert_int_equal(call_reply(made)->status, 0);
    call_abort(k);
    reply_free(expect(call_finish(made), 201));
}

/* It is tokenised for a long time, as long work: the body goes before the answer comes. */
static void test_a_long_text(void **state)
{
    (void)state;
    enum { N = 6 << 20 };
    struct client *c = a.client;
    char *text = repeated("", "the quick brown fox ", N / 20 + 1, "");
    struct call *k = call_post(c, "/v1/tokenize", "{'text':'%s'}", text);
    while (metric(c, BODY_BYTES) < N)
        assert_int_equal(call_reply(k)->status, 0);
    while (metric(c, BODY_BYTES) > 0)
        assert_int_equal(call_reply(k)->status, 0);
    assert_int_equal(call_reply(k)->status, 0);
    reply_free(expect(call_finish(k), 200));
    sl_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_session_whose_prompt_waits),
        cmocka_unit_test(test_a_long_text),
    };
    return cmocka_run_group_tests_name("bodies", tests, start, stop);
}
