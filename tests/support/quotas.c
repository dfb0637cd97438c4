/* quotas.c: see quotas.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/key_file.h"
#include "tests/support/quotas.h"

struct quotas quotas;

/* `line`: what tenant a may use. */
static void write_keys(const char *line)
{
    char text[300];
    int n = snprintf(text, sizeof text,
                     "key-of-tenant-a a user\nkey-of-tenant-b b user\nkey-for-figures ops metrics\n"
                     "quota a %s\n",
                     line);
    assert_in_range(n, 1, sizeof text - 1);
    key_file_put(text, (size_t)n);
}

void quotas_start_again(void)
{
    node_start(&quotas.node);
    quotas.api = quotas.node.a;
    client_header(quotas.api.client, KEY_A);
}

void quotas_start(const char *line)
{
    write_keys(line);
    const char *options[] = {"--tokenizer=bytes",
                             "--model",
                             seeded_bytes_model(),
                             "--api-keys",
                             key_file,
                             "--max-queued-prefill=1000",
                             "--chat-template=rwkv",
                             "--lease=3s",
                             "--store-timeout=1s",
                             NULL,
                             NULL,
                             NULL,
                             NULL};
    size_t n = 0;
    char store[100];
    while (options[n])
        n++;
    for (size_t i = 0; i < 2 && quotas.options[i]; i++)
        options[n++] = quotas.options[i];
    if (!strcmp(quotas.kind, "dir")) {
        node_init(&quotas.node, "quotas", options);
        quotas_start_again();
    } else {
        if (!strcmp(quotas.kind, "redis")) {
            redis_init(&quotas.redis, "quotas", NULL);
            snprintf(store, sizeof store, "--store=%s", quotas.redis.spec);
            options[n] = store;
        }
        api_start(&quotas.api, options);
        client_header(quotas.api.client, KEY_A);
    }
}

int quotas_stop(void **state)
{
    (void)state;
    if (!strcmp(quotas.kind, "dir"))
        node_done(&quotas.node);
    else if (quotas.api.server)
        api_stop(&quotas.api);
    if (quotas.redis.pid)
        redis_done(&quotas.redis);
    quotas.redis = (struct redis){0};
    quotas.api = (struct api){0};
    quotas.options[0] = quotas.options[1] = NULL;
    key_file_remove();
    return 0;
}

int with_memory(void **state)
{
    (void)state;
    quotas.kind = "memory";
    return 0;
}

int with_dir(void **state)
{
    (void)state;
    quotas.kind = "dir";
    return 0;
}

int with_redis(void **state)
{
    (void)state;
    quotas.kind = "redis";
    return 0;
}

/* --- what is said ------------------------------------------------------------------------------*/

void over_at(struct reply *r, const char *quota, long retry, const char *file, int line)
{
    const char *after = reply_header(r, "Retry-After");
    if (retry ? !after || strtol(after, NULL, 10) < 1 || strtol(after, NULL, 10) > retry
              : after != NULL)
        fail_msg("%s:%d: Retry-After: %s\n%s", file, line, after ? after : "none", r->body);
    expect_error_at(r, 429, "quota_exceeded", quota, file, line);
}

double figure(const char *name)
{
    struct client *c = client_open(quotas.api.server->base);
    client_header(c, KEY_FIGURES);
    double v = metric(c, name);
    client_close(c);
    return v;
}

void until_figure(const char *name, double value)
{
    struct client *c = client_open(quotas.api.server->base);
    client_header(c, KEY_FIGURES);
    until_metric(c, name, value);
    client_close(c);
}

void made(struct reply *r)
{
    reply_free(expect(r, 201));
}

bool made_or_over(struct reply *r, const char *quota)
{
    bool is_made = r->status == 201;
    if (is_made)
        reply_free(r);
    else
        over(r, quota, 0);
    return is_made;
}

void gone(const char *id)
{
    reply_free(expect(del(quotas.api.client, session_path(id, "")), 200));
}

size_t listed(void)
{
    struct reply *r = expect(get(quotas.api.client, "/v1/sessions"), 200);
    size_t n = len_at(r->json, "data");
    reply_free(r);
    return n;
}

void set_quota(const char *name, long long n)
{
    char line[80], metric_name[100];
    snprintf(line, sizeof line, "%s=%lld", name, n);
    write_keys(line);
    assert_int_equal(kill(quotas.api.server->pid, SIGHUP), 0);
    snprintf(metric_name, sizeof metric_name, "slate_tenant_quota{tenant=\"a\",quota=\"%s\"}",
             name);
    until_figure(metric_name, (double)n);
}
