/* api.c: see api.h. */
#include "tests/support/api.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/seeded.h"
#include "tests/support/server.h"

static void until_ready(const struct api *a)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    for (bool ready = false; !ready;) {
        struct reply *r = get(a->client, "/readyz");
        ready = r->status == 200;
        if (!ready && (r->status != 503 || client_now_ms() > deadline))
            fail_msg("the server does not become ready: %s", r->body);
        reply_free(r);
    }
}

void api_start(struct api *a, const char *const *options)
{
    enum { MAX = 40 };
    /* A line for every request would fill the pipe that nobody reads. One thread: with two, on a
     * machine that others use too, each waits for the other to be scheduled, at every layer. Few
     * states: a server starts sooner. */
    const char *all[MAX + 1] = {"--log-level=warn", "--threads=1", "--sessions-in-memory=64"};
    for (size_t n = 3; options[n - 3]; n++) {
        assert_true(n < MAX);
        all[n] = options[n - 3];
    }
    *a = (struct api){.server = server_start_loading(all)};
    a->client = client_open(a->server->base);
    until_ready(a);
}

void api_stop(struct api *a)
{
    client_close(a->client);
    server_stop(a->server);
    *a = (struct api){0};
}

/* --- turns -------------------------------------------------------------------------------------*/

void gen_done(struct gen *g)
{
    output_done(&g->o);
    reply_free(g->r);
    g->r = NULL;
}

/* {fmt …, tail} with " for each ' of all but what the format inserts. */
static struct call *start(struct client *c, const char *fmt, va_list args, const char *tail)
{
    size_t n = 0;
    char *inner = json_text(fmt, args, &n);
    struct call *k = call_post(c, "/v1/generate", "{%s%s}", inner, tail);
    sl_free(inner);
    return k;
}

void generate_finish(struct call *k, struct gen *ret)
{
    ret->r = expect(call_finish(k), 200);
    output_of(ret->r, &ret->o);
}

void generate(struct client *c, struct gen *ret, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    generate_finish(start(c, fmt, args, ""), ret);
    va_end(args);
}

void generate_stream(struct client *c, struct gen *ret, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    generate_finish(start(c, fmt, args, ",\"stream\":true"), ret);
    va_end(args);
}

void generate_both(struct client *c, struct gen *ret, const char *fmt, ...)
{
    struct gen stream;
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    generate_finish(start(c, fmt, args, ""), ret);
    generate_finish(start(c, fmt, again, ",\"stream\":true"), &stream);
    va_end(again);
    va_end(args);
    output_same(&ret->o, &stream.o);
    gen_done(&stream);
}

struct call *generate_start(struct client *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    struct call *k = start(c, fmt, args, "");
    va_end(args);
    return k;
}

/* --- sessions ----------------------------------------------------------------------------------*/

const char *new_session(struct client *c)
{
    static char ring[16][160];
    static unsigned turn;
    struct reply *r = expect(post(c, "/v1/sessions", "{}"), 201);
    char *dst = ring[turn++ % 16];
    snprintf(dst, sizeof ring[0], "%s", str_at(r->json, "id"));
    reply_free(r);
    return dst;
}

struct reply *session_get(struct client *c, const char *id)
{
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    return expect(get(c, path), 200);
}

bool session_busy(struct client *c, const char *id)
{
    struct reply *r = session_get(c, id);
    bool busy = bool_at(r->json, "busy");
    reply_free(r);
    return busy;
}

void until_free(struct client *c, const char *id)
{
    int64_t deadline = client_now_ms() + CLIENT_DEADLINE_MS;
    while (session_busy(c, id))
        if (client_now_ms() > deadline)
            fail_msg("the session stays busy");
}

/* --- JSON text ---------------------------------------------------------------------------------*/

char *ids_json(const uint32_t *ids, size_t n)
{
    size_t size = n * 11 + 3, len = 0;
    char *text = sl_malloc(size);
    assert_non_null(text);
    text[len++] = '[';
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, size - len, i ? ",%u" : "%u", ids[i]);
    snprintf(text + len, size - len, "]");
    return text;
}

char *string_json(const char *s, size_t n)
{
    json_t *j = json_stringn(s, n);
    char *dumped = json_dumps(j, JSON_ENCODE_ANY | JSON_ENSURE_ASCII), *text = sl_strdup(dumped);
    assert_non_null(text);
    json_decref(j);
    free(dumped); /* jansson's own */
    return text;
}

char *repeated(const char *before, const char *unit, size_t n, const char *after)
{
    size_t a = strlen(before), u = strlen(unit), z = strlen(after);
    char *s = sl_malloc(a + u * n + z + 1);
    assert_non_null(s);
    memcpy(s, before, a);
    for (size_t i = 0; i < n; i++)
        memcpy(s + a + i * u, unit, u);
    memcpy(s + a + u * n, after, z + 1);
    return s;
}

const char *quoted(const char *s)
{
    static char ring[16][4096];
    static unsigned turn;
    char *dst = ring[turn++ % 16];
    assert_true(strlen(s) < sizeof ring[0]);
    memcpy(dst, s, strlen(s) + 1);
    for (char *p = dst; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    return dst;
}

/* --- models ------------------------------------------------------------------------------------*/

static const char *seeded_model(const char *name, size_t n_layers, size_t d_model)
{
    static char path[2][512];
    char *dst = path[*name == 's'];
    const struct seeded_shape shape = {.n_layers = n_layers,
                                       .d_model = d_model,
                                       .head_size = 16,
                                       .d_ffn = 2 * d_model,
                                       .vocab_size = 256,
                                       .rank_w = 8,
                                       .rank_a = 8,
                                       .rank_v = 8,
                                       .rank_g = 16,
                                       .dtype = SL_DTYPE_F32,
                                       .seed = 7};
    if (*dst)
        return dst;
    const char *build = getenv("SLATE_BUILD");
    struct seeded s;
    snprintf(dst, sizeof path[0], "%s/tests/%s-%s.safetensors", build ? build : "build/release",
             program_invocation_short_name, name);
    seeded_init(&s, &shape);
    seeded_write(&s, dst);
    seeded_done(&s);
    return dst;
}

const char *seeded_bytes_model(void)
{
    return seeded_model("bytes", 2, 64);
}

const char *seeded_slow_model(void)
{
    return seeded_model("slow", 3, 192);
}
