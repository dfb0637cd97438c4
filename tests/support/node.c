/* node.c: see node.h. */
#include "tests/support/node.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/base/mem.h"
#include "tests/support/stores.h"

/* --- the folder --------------------------------------------------------------------------------*/

void node_init(struct node *n, const char *name, const char *const *options)
{
    const char *build = getenv("SLATE_BUILD");
    *n = (struct node){.n_starts = 0};
    snprintf(n->dir, sizeof n->dir, "%s/tests/%s-%s.store", build ? build : "build/release",
             program_invocation_short_name, name);
    snprintf(n->store, sizeof n->store, "dir:%s", n->dir);
    remove_tree(n->dir);
    for (; options[n->n_options]; n->n_options++) {
        assert_true(n->n_options < NODE_OPTIONS_MAX - 7);
        n->options[n->n_options] = options[n->n_options];
    }
}

void node_done(struct node *n)
{
    if (n->a.server)
        node_stop(n);
    remove_tree(n->dir);
}

void node_abandon(struct node *n)
{
    if (!n->a.server)
        return;
    (void)server_end(n->a.server, SIGTERM);
    client_close(n->a.client);
    n->a = (struct api){0};
    remove_tree(n->dir);
}

/* --- the server --------------------------------------------------------------------------------*/

void node_start(struct node *n)
{
    const char *all[NODE_OPTIONS_MAX + 1];
    size_t k = n->n_options;
    memcpy(all, n->options, k * sizeof *all);
    snprintf(n->threads, sizeof n->threads, "--threads=%u", n->n_starts++ % 3 + 1);
    all[k++] = n->threads;
    if (n->slow)
        all[k++] = "--kernels=ref";
    all[k++] = "--store";
    all[k++] = n->store;
    all[k] = NULL;
    api_start(&n->a, all);
}

void node_signal(struct node *n, int signal)
{
    assert_int_equal(kill(n->a.server->pid, signal), 0);
}

void node_wait(struct node *n, int signal)
{
    int code = server_end(n->a.server, 0);
    client_close(n->a.client);
    n->a = (struct api){0};
    assert_int_equal(code, signal == SIGTERM ? 0 : -signal);
}

void node_limit_files(struct node *n, uint64_t bytes)
{
    struct rlimit l;
    assert_int_equal(prlimit(n->a.server->pid, RLIMIT_FSIZE, NULL, &l), 0);
    l.rlim_cur = bytes ? bytes : l.rlim_max;
    assert_int_equal(prlimit(n->a.server->pid, RLIMIT_FSIZE, &l, NULL), 0);
}

void node_stop(struct node *n)
{
    node_signal(n, SIGTERM);
    node_wait(n, SIGTERM);
}

void node_kill(struct node *n)
{
    node_signal(n, SIGKILL);
    node_wait(n, SIGKILL);
}

/* --- sessions ----------------------------------------------------------------------------------*/

const char *session_path(const char *id, const char *rest)
{
    static char ring[16][300];
    static unsigned turn;
    char *dst = ring[turn++ % 16];
    int n = snprintf(dst, sizeof ring[0], "/v1/sessions/%s%s", id, rest);
    assert_true(n > 0 && (size_t)n < sizeof ring[0]);
    return dst;
}

struct reply *session_post(struct client *c, const char *id, const char *action)
{
    return request(c, "POST", session_path(id, action), NULL, NULL, 0);
}

int64_t session_version(struct client *c, const char *id)
{
    struct reply *r = session_get(c, id);
    int64_t v = int_at(r->json, "version");
    reply_free(r);
    return v;
}

bool session_in_memory(struct client *c, const char *id)
{
    struct reply *r = session_get(c, id);
    bool memory = !strcmp(str_at(r->json, "residency"), "memory");
    reply_free(r);
    return memory;
}

struct bytes snapshot_get(struct client *c, const char *id, const char *query)
{
    char rest[64];
    snprintf(rest, sizeof rest, "/snapshot%s", query);
    struct reply *r = expect(get(c, session_path(id, rest)), 200);
    struct bytes b = {.p = sl_malloc(r->n_body), .n = r->n_body};
    const char *etag = reply_header(r, "ETag");
    assert_true(b.p && etag);
    memcpy(b.p, r->body, b.n);
    snprintf(b.etag, sizeof b.etag, "%s", etag);
    reply_free(r);
    return b;
}

struct reply *snapshot_put(struct client *c, const char *id, const void *p, size_t n,
                           const char *extra)
{
    char lines[300];
    snprintf(lines, sizeof lines, "Content-Type: application/vnd.safetensors%s%s",
             extra ? "\n" : "", extra ? extra : "");
    return request(c, "PUT", session_path(id, "/snapshot"), lines, p, n);
}

struct call *turn_start(struct client *c, const char *id, const char *prompt, unsigned seed)
{
    return generate_start(c,
                          "'session':'%s','prompt':'%s','seed':%u,'max_tokens':12,'ignore_eos':"
                          "true,'frequency_penalty':0.3,'penalty_last_n':30,'logprobs':5,"
                          "'return_tokens':true",
                          id, prompt, seed);
}

void turn_of(struct client *c, struct gen *g, const char *id, const char *prompt, unsigned seed)
{
    generate_finish(turn_start(c, id, prompt, seed), g);
}

/* --- streams -----------------------------------------------------------------------------------*/

struct call *stream_start(struct client *c, const char *fmt, ...)
{
    size_t n = 0;
    va_list args;
    va_start(args, fmt);
    char *inner = json_text(fmt, args, &n);
    va_end(args);
    struct call *k = call_post(c, "/v1/generate", "{%s,\"stream\":true}", inner);
    sl_free(inner);
    return k;
}

size_t stream_tokens(const struct reply *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_events; i++) {
        const json_t *tokens = at(r->events[i], "tokens");
        n += tokens ? json_array_size(tokens) : 0;
    }
    return n;
}

static bool has_tokens(const struct reply *r, void *arg)
{
    return stream_tokens(r) >= *(size_t *)arg;
}

void stream_until(struct call *k, size_t n_tokens)
{
    call_until(k, has_tokens, &n_tokens);
}

struct call *pause_start(struct client *c, const char *id)
{
    char path[200];
    snprintf(path, sizeof path, "/v1/sessions/%s/pause", id);
    return call_start(c, "POST", path, NULL, NULL, 0);
}

/* --- parts -------------------------------------------------------------------------------------*/

void parts_init(struct parts *p)
{
    *p = (struct parts){.all = {.text = sl_calloc(1, 1), .logprobs = json_array()}};
    assert_true(p->all.text && p->all.logprobs);
}

void parts_add(struct parts *p, struct reply *r)
{
    struct output o, *all = &p->all;
    output_of(expect(r, 200), &o);
    char *text = sl_realloc(all->text, all->n_text + o.n_text + 1, 1);
    uint32_t *tokens = sl_realloc(all->tokens, all->n_tokens + o.n_tokens + 1, sizeof *tokens);
    assert_true(text && tokens);
    memcpy(text + all->n_text, o.text, o.n_text + 1);
    if (o.n_tokens)
        memcpy(tokens + all->n_tokens, o.tokens, o.n_tokens * sizeof *tokens);
    all->text = text;
    all->tokens = tokens;
    all->n_text += o.n_text;
    all->n_tokens += o.n_tokens;
    json_array_extend(all->logprobs, o.logprobs);
    all->final = o.final;
    output_done(&o);
    reply_free(p->last);
    p->last = r;
    assert_true(p->n < sizeof p->at / sizeof *p->at);
    p->at[p->n++] = all->n_tokens;
}

bool parts_paused(const struct parts *p)
{
    return !strcmp(str_at(p->all.final, "finish_reason"), "paused");
}

void parts_done(struct parts *p)
{
    output_done(&p->all);
    reply_free(p->last);
    *p = (struct parts){0};
}
