/* probe.c: see probe.h. */
#include "tests/support/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

const char *probe_fork(struct client *c, const char *id)
{
    static char ring[16][160];
    static unsigned turn;
    char path[200], *dst = ring[turn++ % 16];
    snprintf(path, sizeof path, "/v1/sessions/%s/fork", id);
    struct reply *r = expect(post(c, path, "{}"), 201);
    snprintf(dst, sizeof ring[0], "%s", str_at(r->json, "id"));
    reply_free(r);
    return dst;
}

void probe_drop(struct client *c, const char *id)
{
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    reply_free(expect(del(c, path), 200));
}

void probe_of(struct client *c, struct gen *g, const char *id)
{
    const char *copy = probe_fork(c, id);
    generate(c, g,
             "'session':'%s','prompt':'','max_tokens':12,'temperature':0,'ignore_eos':true,"
             "'logprobs':20,'return_tokens':true",
             copy);
    probe_drop(c, copy);
}

bool probe_same(struct client *c, const char *a, const char *b)
{
    struct gen x, y;
    probe_of(c, &x, a);
    probe_of(c, &y, b);
    bool same = x.o.n_tokens == y.o.n_tokens &&
                !memcmp(x.o.tokens, y.o.tokens, x.o.n_tokens * sizeof(uint32_t)) &&
                json_equal(x.o.logprobs, y.o.logprobs);
    gen_done(&x);
    gen_done(&y);
    return same;
}

int64_t probe_version(struct client *c, const char *id)
{
    struct reply *r = session_get(c, id);
    int64_t v = int_at(r->json, "version");
    reply_free(r);
    return v;
}

int64_t probe_seen(struct client *c, const char *id)
{
    struct reply *r = session_get(c, id);
    int64_t v = int_at(r->json, "tokens_seen");
    reply_free(r);
    return v;
}

void probe_feed(struct client *c, const char *id, const uint32_t *ids, size_t n)
{
    struct gen g;
    char *text = ids_json(ids, n);
    generate(c, &g, "'session':'%s','prompt':%s,'max_tokens':0", id, text);
    gen_done(&g);
    sl_free(text);
}
