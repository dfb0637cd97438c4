/* streams.c: see streams.h. */
#include "tests/support/streams.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cli/limits.h"
#include "tests/support/serving.h"

/* --- samples -----------------------------------------------------------------------------------*/

void sample_add(struct sample *s, double v)
{
    if (s->n == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->value = realloc(s->value, s->room * sizeof *s->value);
        if (!s->value)
            serving_die("no memory");
    }
    s->value[s->n++] = v;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sample_quantile(struct sample *s, double q)
{
    if (!s->n)
        return NAN;
    qsort(s->value, s->n, sizeof *s->value, by_size);
    return s->value[(size_t)((double)(s->n - 1) * q + 0.5)];
}

void sample_clear(struct sample *s)
{
    s->n = 0;
}

void sample_done(struct sample *s)
{
    free(s->value);
    *s = (struct sample){.n = 0};
}

/* --- streams -----------------------------------------------------------------------------------*/

/* One line of the answer. */
static void take_line(struct stream *s, double now)
{
    static const char data[] = "data: {", text[] = "\"text\":\"",
                      usage[] = "\"completion_tokens\":";
    const char *p;
    s->line[s->n_line] = '\0';
    if (strncmp(s->line, data, sizeof data - 1) != 0)
        return;
    if ((p = strstr(s->line, usage)))
        s->tokens = strtoul(p + sizeof usage - 1, NULL, 10);
    p = strstr(s->line, text);
    if (!p || p[sizeof text - 1] == '"')
        return;
    if (s->events++)
        sample_add(&s->gaps, now - s->last);
    else
        s->first = now;
    s->last = now;
    s->all_events++;
}

static size_t take(void *data, size_t size, size_t n, void *arg)
{
    struct stream *s = arg;
    double now = bench_now();
    const char *p = data;
    for (size_t i = 0; i < size * n; i++) {
        if (p[i] == '\n') {
            take_line(s, now);
            s->n_line = 0;
        } else if (s->n_line < sizeof s->line - 1) {
            s->line[s->n_line++] = p[i];
        }
    }
    return size * n;
}

void streams_init(struct streams *v, const struct serving *server, size_t n)
{
    static struct curl_slist *json;
    if (!json)
        json = curl_slist_append(NULL, "Content-Type: application/json");
    *v = (struct streams){.multi = curl_multi_init(), .all = calloc(n, sizeof *v->all), .n = n};
    if (!v->all)
        serving_die("no memory");
    for (size_t i = 0; i < n; i++) {
        struct stream *s = &v->all[i];
        s->curl = curl_easy_init();
        snprintf(s->url, sizeof s->url, "%s/v1/completions", server->base);
        curl_easy_setopt(s->curl, CURLOPT_URL, s->url);
        curl_easy_setopt(s->curl, CURLOPT_HTTPHEADER, json);
        curl_easy_setopt(s->curl, CURLOPT_TCP_NODELAY, 1L);
        curl_easy_setopt(s->curl, CURLOPT_FORBID_REUSE, server->closes ? 1L : 0L);
        curl_easy_setopt(s->curl, CURLOPT_WRITEFUNCTION, take);
        curl_easy_setopt(s->curl, CURLOPT_WRITEDATA, s);
        curl_easy_setopt(s->curl, CURLOPT_PRIVATE, s);
    }
}

void streams_done(struct streams *v)
{
    for (size_t i = 0; i < v->n; i++) {
        if (v->all[i].running)
            curl_multi_remove_handle(v->multi, v->all[i].curl);
        curl_easy_cleanup(v->all[i].curl);
        free(v->all[i].body);
        sample_done(&v->all[i].gaps);
    }
    curl_multi_cleanup(v->multi);
    free(v->all);
}

void streams_ask(struct streams *v, struct stream *s, const char *body)
{
    free(s->body);
    s->body = strdup(body);
    curl_easy_setopt(s->curl, CURLOPT_POSTFIELDS, s->body);
    s->n_line = 0;
    s->first = s->last = 0;
    s->events = s->tokens = 0;
    s->running = true;
    s->started = bench_now();
    curl_multi_add_handle(v->multi, s->curl);
}

void streams_turn(struct streams *v)
{
    int running, left;
    CURLMsg *msg;
    curl_multi_perform(v->multi, &running);
    while ((msg = curl_multi_info_read(v->multi, &left))) {
        long status = 0;
        struct stream *s;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&s);
        curl_easy_getinfo(msg->easy_handle, CURLINFO_RESPONSE_CODE, &status);
        if (msg->data.result != CURLE_OK || status != 200) {
            fprintf(stderr, "bench: %s: %ld, %s\n", s->url, status,
                    curl_easy_strerror(msg->data.result));
            exit(1);
        }
        curl_multi_remove_handle(v->multi, s->curl);
        s->running = false;
        running--;
    }
    if (running > 0)
        curl_multi_poll(v->multi, NULL, 0, 100, NULL);
}
