/* fork_ids_test.c: what a fork is called that nobody named: as its source up to "--", by which a
 * balancer finds it, and 128 random bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/api.h"

enum { HEX = 32 };

static struct api api;

static int start(void **state)
{
    const char *const options[] = {"--threads=1", "--store=memory", NULL};
    (void)state;
    api_start(&api, options);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    api_stop(&api);
    return 0;
}

static void check(const char *source, size_t n_same, const char *then)
{
    char path[200], id[200], other[200];
    const char *made[2] = {id, other};
    struct client *c = api.client;
    reply_free(expect(post(c, "/v1/sessions", "{'id':'%s'}", source), 201));
    snprintf(path, sizeof path, "/v1/sessions/%s/fork", source);
    for (int i = 0; i < 2; i++) {
        struct reply *r = expect(post(c, path, i ? "{'from':'%s'}" : "{}", source), 201);
        snprintf(i ? other : id, sizeof id, "%s", str_at(r->json, "id"));
        assert_string_equal(reply_header(r, "X-Slate-Session"), made[i]);
        reply_free(r);
        assert_int_equal(strlen(made[i]), n_same + strlen(then) + HEX);
        assert_memory_equal(made[i], source, n_same);
        assert_memory_equal(made[i] + n_same, then, strlen(then));
        assert_int_equal(strspn(made[i] + n_same + strlen(then), "0123456789abcdef"), HEX);
        /* POST /v1/sessions {"from"} likewise. */
        snprintf(path, sizeof path, "/v1/sessions");
    }
    assert_string_not_equal(id, other);
}

static void a_fork_begins_as_its_source(void **state)
{
    (void)state;
    check("a", 1, "--");
    check("user-1_x.y", 10, "--");
    check("b--", 1, "--");
    check("c--d--e", 1, "--");
    check("--f", 0, "--");
    check("g-", 2, "--");
}

/* The longest id has 128 bytes. */
static void where_there_is_room(void **state)
{
    char source[129];
    (void)state;
    memset(source, 'a', sizeof source);
    source[94] = '\0';
    check(source, 94, "--");
    source[94] = 'a';
    source[95] = '\0';
    check(source, 0, "s-");
    source[95] = 'a';
    source[128] = '\0';
    check(source, 0, "s-");
    memcpy(source + 10, "--", 2);
    check(source, 10, "--");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_begins_as_its_source),
        cmocka_unit_test(where_there_is_room),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
