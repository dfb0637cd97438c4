/* checkpoints.c: see checkpoints.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/checkpoints.h"
#include "tests/support/redis.h"

struct node store_node;
static struct redis redis;

const char *const store_kinds[STORE_KINDS] = {"memory", "dir", "redis"};

int store_abandon(void **state)
{
    (void)state;
    node_abandon(&store_node);
    if (redis.pid)
        redis_done(&redis);
    redis = (struct redis){0};
    return 0;
}

struct client *store_start(const char *kind, const char *const *more)
{
    const char *options[16] = {"--tokenizer=bytes", "--model", seeded_bytes_model(),
                               "--sessions-in-memory=6", "--session-ttl=0s"};
    size_t n = 5;
    for (; more && *more; more++)
        options[n++] = *more;
    node_init(&store_node, "checkpoints", options);
    if (!strcmp(kind, "redis"))
        redis_init(&redis, "checkpoints", NULL);
    if (strcmp(kind, "dir") != 0)
        snprintf(store_node.store, sizeof store_node.store, "%s", redis.pid ? redis.spec : kind);
    node_start(&store_node);
    return store_node.a.client;
}

void store_stop(void)
{
    node_done(&store_node);
    if (redis.pid)
        redis_done(&redis);
    redis = (struct redis){0};
}

bool store_survives(const char *kind)
{
    return strcmp(kind, "memory") != 0;
}

void make(struct client *c, const char *id)
{
    reply_free(expect(post(c, "/v1/sessions", "{'id':'%s'}", id), 201));
}

/* So many turns; after each second one a snapshot of it is written, where there is a store. */
void live(struct client *c, const char *id, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct gen g;
        turn_of(c, &g, id, " on and on", i + 7);
        gen_done(&g);
        if (i % 2)
            reply_free(expect(session_post(c, id, "/pause"), 200));
    }
}

struct reply *name_it(struct client *c, const char *id, const char *name)
{
    return post(c, session_path(id, "/checkpoints"), "{'name':'%s'}", name);
}

struct reply *unname(struct client *c, const char *id, const char *name)
{
    char rest[200];
    snprintf(rest, sizeof rest, "/checkpoints/%s", name);
    return del(c, session_path(id, rest));
}

struct reply *rewind_to(struct client *c, const char *id, const char *name)
{
    return post(c, session_path(id, "/rewind"), "{'checkpoint':'%s'}", name);
}

int64_t kept_bytes(struct client *c, const char *id)
{
    struct reply *r = expect(session_get(c, id), 200);
    int64_t n = int_at(r->json, "kept_bytes");
    reply_free(r);
    return n;
}

int64_t state_bytes(struct client *c, const char *id)
{
    struct reply *r = expect(session_get(c, id), 200);
    int64_t n = int_at(r->json, "bytes");
    reply_free(r);
    return n;
}

/* How many names the list shows for a version; -1: the version is not there. */
int names_at(struct client *c, const char *id, int64_t version)
{
    struct reply *r = expect(get(c, session_path(id, "/checkpoints")), 200);
    const json_t *v;
    size_t i;
    int n = -1;
    json_array_foreach(json_object_get(r->json, "data"), i, v)
    {
        if (json_integer_value(json_object_get(v, "version")) == version)
            n = (int)json_array_size(json_object_get(v, "names"));
    }
    reply_free(r);
    return n;
}
