/* initial_test.c: --initial-state: what new sessions and single turns begin with, on a real server;
 * and that a session keeps its beginning on a server that was not given it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/api.h"
#include "tests/support/seeded_pth.h"
#include "tests/support/server.h"
#include "tests/support/snapshots.h"
#include "tests/support/tree.h"

static char folder[32], model[64], plain[64], poet[80], poet_path[64], store[80];
static char *plain_text; /* the file in base64 */

static void write_state(const char *path, uint64_t seed)
{
    struct seeded s = {.seed = seed};
    for (size_t i = 0; i < 2; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blocks.%zu.att.time_state", i);
        seeded_add(&s, SL_DTYPE_F32, 3, (size_t[]){2, 8, 8}, 0, 3, name);
    }
    seeded_write_pth(&s, path);
    seeded_done(&s);
}

static char *base64_of(const char *path)
{
    char command[128];
    static char text[1 << 16];
    (void)snprintf(command, sizeof command, "base64 -w0 %s", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    assert_int_equal(pclose(f), 0);
    return text;
}

static int set_up(void **state)
{
    (void)state;
    struct seeded s;
    struct seeded_shape shape = SNAPSHOT_TINY;
    (void)snprintf(folder, sizeof folder, "/tmp/slate-initial-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(model, sizeof model, "%s/m.safetensors", folder);
    (void)snprintf(plain, sizeof plain, "%s/plain.pth", folder);
    (void)snprintf(poet_path, sizeof poet_path, "%s/poet.pth", folder);
    (void)snprintf(poet, sizeof poet, "poet=%s", poet_path);
    (void)snprintf(store, sizeof store, "dir:%s/store", folder);
    seeded_init(&s, &shape);
    seeded_write(&s, model);
    seeded_done(&s);
    write_state(plain, 1);
    write_state(poet_path, 2);
    plain_text = base64_of(plain);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

static void start(struct api *a, bool given)
{
    const char *const with[] = {
        "--model",         model, "--store", store, "--initial-state", plain,
        "--initial-state", poet,  NULL};
    const char *const without[] = {"--model", model, "--store", store, NULL};
    api_start(a, given ? with : without);
}

#define TURN "'prompt':'a text','max_tokens':24,'temperature':0,'ignore_eos':true"

/* A greedy turn's ids, as JSON: a copy. */
static char *turn(struct client *c, const char *session)
{
    struct reply *r =
        session ? post(c, "/v1/generate", "{" TURN ",'return_tokens':true,'session':'%s'}", session)
                : post(c, "/v1/generate", "{" TURN ",'return_tokens':true}");
    expect(r, 200);
    char *text = json_dumps(at(r->json, "tokens"), JSON_COMPACT);
    assert_non_null(text);
    reply_free(r);
    return text;
}

/* A session that was made with these fields. */
static void make(struct client *c, const char *id, const char *more)
{
    reply_free(expect(post(c, "/v1/sessions", "{'id':'%s'%s}", id, quoted(more)), 201));
}

static void same(char *a, char *b, bool are)
{
    if ((strcmp(a, b) == 0) != are)
        fail_msg("%s\n%s", a, b);
    free(b);
}

static void test_beginnings(void **state)
{
    (void)state;
    struct api a;
    start(&a, false);
    char *none = turn(a.client, NULL);
    api_stop(&a);
    start(&a, true);
    struct client *c = a.client;
    char *by_default = turn(c, NULL);
    same(none, strdup(by_default), false);
    make(c, "new", "");
    same(by_default, turn(c, "new"), true);
    make(c, "bare", ",'from':{'initial_state_name':'none'}");
    same(none, turn(c, "bare"), true);
    make(c, "poet", ",'from':{'initial_state_name':'poet'}");
    char *of_poet = turn(c, "poet");
    same(of_poet, strdup(by_default), false);
    same(of_poet, strdup(none), false);
    /* The client's own copy of the file is the same beginning. */
    struct reply *r =
        post(c, "/v1/sessions", "{'id':'own','from':{'initial_state':'%s'}}", plain_text);
    reply_free(expect(r, 201));
    same(by_default, turn(c, "own"), true);
    /* A state that the client keeps begins there, too. */
    r = expect(post(c, "/v1/generate", "{" TURN ",'return_tokens':true,'return_state':true}"), 200);
    same(by_default, json_dumps(at(r->json, "tokens"), JSON_COMPACT), true);
    reply_free(r);
    /* Left for the next server: begun, not used yet. */
    make(c, "later", "");
    make(c, "later-poet", ",'from':{'initial_state_name':'poet'}");
    api_stop(&a);
    start(&a, false);
    same(by_default, turn(a.client, "later"), true);
    same(of_poet, turn(a.client, "later-poet"), true);
    make(a.client, "plain-again", "");
    same(none, turn(a.client, "plain-again"), true);
    api_stop(&a);
    free(none);
    free(by_default);
    free(of_poet);
}

/* `slate generate` has nobody who could ask for one by its name. */
static void test_generate(void **state)
{
    (void)state;
    char *err = NULL;
    assert_int_equal(program_run(ARGS("generate", "--model", model, "--tokenizer=bytes",
                                      "--prompt=a", "--max-tokens=1", "--initial-state", poet),
                                 NULL, &err),
                     2);
    assert_non_null(strstr(err, "--initial-state"));
    free(err);
}

static void test_names(void **state)
{
    (void)state;
    struct api a;
    start(&a, true);
    struct client *c = a.client;
    struct reply *r = expect(get(c, "/v1/models"), 200);
    assert_string_equal(str_at(r->json, "data.0.initial_states.0"), "poet");
    reply_free(r);
    expect_error(post(c, "/v1/sessions", "{'from':{'initial_state_name':'pop'}}"), 400,
                 "invalid_value", "from.initial_state_name");
    expect_error(post(c, "/v1/sessions", "{'from':{'initial_state_name':'../m'}}"), 400,
                 "invalid_value", "from.initial_state_name");
    expect_error(post(c, "/v1/sessions", "{'from':{'initial_state_name':7}}"), 400, "invalid_type",
                 "from.initial_state_name");
    expect_error(post(c, "/v1/sessions", "{'from':{'initial_state_name':'poet','session':'x'}}"),
                 400, "invalid_value", "from");
    api_stop(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beginnings),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_generate),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
