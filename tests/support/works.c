/* works.c: see works.h. */
#include "tests/support/works.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/random.h"
#include "tests/support/streams.h"

enum { BODY_MAX = 64 * 1024 };

void works_prompt(struct works *w, uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(1 + sl_random_next(&w->seed) % (w->vocabulary - 1));
}

static void body(struct works *w, char *out, size_t n_prompt, size_t n_tokens)
{
    static uint32_t ids[WORK_LONG_PROMPT];
    size_t n = (size_t)sprintf(out, "{\"prompt\":[");
    works_prompt(w, ids, n_prompt);
    for (size_t i = 0; i < n_prompt; i++)
        n += (size_t)sprintf(out + n, "%s%" PRIu32, i ? "," : "", ids[i]);
    sprintf(out + n,
            "],\"max_tokens\":%zu,\"ignore_eos\":true,\"temperature\":1,\"seed\":%" PRIu64
            ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
            n_tokens, sl_random_next(&w->seed) % 1000000);
}

static void begin_one(struct works *w, struct streams *v, size_t i, size_t n_prompt,
                      size_t n_tokens)
{
    static char text[BODY_MAX];
    body(w, text, n_prompt, n_tokens);
    streams_ask(v, &v->all[i], text);
}

static size_t events(const struct streams *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += v->all[i].all_events;
    return n;
}

/* The stream's answer is whole: was it as long as it was to be? */
static void check_length(const struct stream *s, size_t n_tokens)
{
    if (s->tokens != n_tokens || !s->events)
        serving_die("an answer is not as long as it should be");
}

/* Each client asks again as soon as it was answered, until `until`; then, with `to_end`, all are
 * let end. First tokens of requests made from `from` on go to `first`, when they come. */
struct loop {
    struct works *w;
    struct streams v;
    struct sample first;
    double from;
    bool has_first[WORK_CLIENTS_MAX]; /* of the request that is being answered */
    size_t n_events, n_tokens;        /* of whole answers */
    size_t want[WORK_CLIENTS_MAX];    /* tokens of each client's answer */
};

static void loop_until(struct loop *l, double until, bool to_end)
{
    struct works *w = l->w;
    size_t running = 1;
    while (running && (to_end || bench_now() < until)) {
        streams_turn(&l->v);
        running = 0;
        for (size_t i = 0; i < l->v.n; i++) {
            struct stream *s = &l->v.all[i];
            if (s->events && !l->has_first[i] && s->started >= l->from)
                sample_add(&l->first, s->first - s->started);
            l->has_first[i] = s->events > 0;
            if (!s->running && s->events) {
                check_length(s, l->want[i]);
                l->want[i] = w->tokens;
                l->n_events += s->events;
                l->n_tokens += s->tokens;
                s->events = 0;
                l->has_first[i] = false;
                if (bench_now() < until)
                    begin_one(w, &l->v, i, w->prompt, w->tokens);
            }
            running += s->running;
        }
    }
}

void work_steady(struct works *w, const struct serving *server, size_t clients, struct series *cell)
{
    struct loop l = {.w = w};
    struct sample gaps = {0};
    streams_init(&l.v, server, clients);
    double begin = bench_now(), from, end = begin + w->seconds;
    l.from = begin + w->seconds / 4;
    for (size_t i = 0; i < clients; i++) {
        l.want[i] = 1 + w->tokens * i / clients;
        begin_one(w, &l.v, i, w->prompt, l.want[i]);
    }
    loop_until(&l, l.from, false);
    for (size_t i = 0; i < clients; i++)
        sample_clear(&l.v.all[i].gaps);
    from = bench_now();
    size_t n = events(&l.v);
    loop_until(&l, end, false);
    end = bench_now();
    n = events(&l.v) - n;
    for (size_t i = 0; i < clients; i++)
        for (size_t k = 0; k < l.v.all[i].gaps.n; k++)
            sample_add(&gaps, l.v.all[i].gaps.value[k]);
    loop_until(&l, end, true);
    if (!l.first.n)
        serving_die("--seconds is too short: no request was made in the time that counts");
    series_add(&cell[WORK_FIRST_50], sample_quantile(&l.first, 0.5));
    series_add(&cell[WORK_FIRST_99], sample_quantile(&l.first, 0.99));
    series_add(&cell[WORK_RATE],
               (double)n * (double)l.n_tokens / (double)l.n_events / (end - from));
    double usual = sample_quantile(&gaps, 0.5), long_one = sample_quantile(&gaps, 0.99);
    series_add(&cell[WORK_GAP_50], usual);
    series_add(&cell[WORK_GAP_99], long_one);
    series_add(&cell[WORK_UNEVEN], long_one / usual);
    sample_done(&gaps);
    sample_done(&l.first);
    streams_done(&l.v);
}

/* All at once; the first tokens' times to `first`. Seconds until the last answer was whole. */
static double all_at_once(struct works *w, const struct serving *server, size_t n, size_t n_tokens,
                          struct sample *first)
{
    struct streams v;
    size_t running = 1;
    streams_init(&v, server, n);
    double begin = bench_now();
    for (size_t i = 0; i < n; i++)
        begin_one(w, &v, i, w->prompt, n_tokens);
    while (running) {
        streams_turn(&v);
        running = 0;
        for (size_t i = 0; i < n; i++)
            running += v.all[i].running;
    }
    double took = bench_now() - begin;
    for (size_t i = 0; i < n; i++)
        sample_add(first, v.all[i].first - v.all[i].started);
    streams_done(&v);
    return took;
}

void work_burst(struct works *w, const struct serving *server, size_t clients, struct series *cell)
{
    struct sample first = {0}, alone = {0};
    series_add(&cell[WORK_PREFILL], all_at_once(w, server, clients, 1, &alone));
    all_at_once(w, server, clients, w->tokens, &first);
    series_add(&cell[WORK_FIRST_50], sample_quantile(&first, 0.5));
    series_add(&cell[WORK_FIRST_99], sample_quantile(&first, 0.99));
    sample_done(&first);
    sample_done(&alone);
}

/* Until stream i of v has given n events, or ended. */
static void wait_events(struct streams *v, size_t i, size_t n)
{
    while (v->all[i].running && v->all[i].events < n)
        streams_turn(v);
}

void work_neighbour(struct works *w, const struct serving *server, struct series *cell)
{
    enum { BEFORE = 48, STREAM = 4096 };
    struct streams v;
    streams_init(&v, server, 2);
    begin_one(w, &v, 0, w->prompt, STREAM);
    wait_events(&v, 0, BEFORE);
    series_add(&cell[WORK_USUAL], sample_quantile(&v.all[0].gaps, 0.5));
    sample_clear(&v.all[0].gaps);
    begin_one(w, &v, 1, WORK_LONG_PROMPT, 1);
    while (v.all[1].running && v.all[0].running)
        streams_turn(&v);
    if (!v.all[0].running)
        serving_die("the stream ended before the long prompt was read");
    wait_events(&v, 0, v.all[0].events + 2); /* a gap that had begun belongs to it */
    series_add(&cell[WORK_LONGEST], sample_quantile(&v.all[0].gaps, 1));
    size_t n = v.all[0].gaps.n;
    sample_clear(&v.all[0].gaps);
    wait_events(&v, 0, v.all[0].events + n);
    if (!v.all[0].running)
        serving_die("the stream ended before it was alone for as long");
    series_add(&cell[WORK_ALONE], sample_quantile(&v.all[0].gaps, 1));
    streams_done(&v); /* the stream's client goes away */
}

/* --- memory of idle sessions -------------------------------------------------------------------*/

static double resident(pid_t pid)
{
    char path[64], line[256];
    double kb = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "Rss: %lf kB", &kb) != 1)
        ;
    if (!f || kb == 0)
        serving_die("/proc says nothing of the server's memory");
    fclose(f);
    return 1024 * kb;
}

static void make_idle(void *arg, size_t i, char path[160], char text[512])
{
    snprintf(path, 160, "/v1/sessions");
    snprintf(text, 512, "{\"id\":\"%s%zu\",\"prompt\":[1,2,3,4,5,6,7,8]}", (const char *)arg, i);
}

/* One look may find it between two pieces. */
double work_settle(struct serving *s)
{
    enum { SETTLED = 8 };
    struct answer a;
    double now = resident(s->pid);
    for (size_t same = 0; same < SETTLED;) {
        const double last = now;
        for (size_t i = 0; i < 500; i++)
            serving_must(s, &a, "/livez", NULL);
        now = resident(s->pid);
        same = now > last ? 0 : same + 1;
    }
    return now;
}

void work_idle(const char *const *options, struct series *cell)
{
    struct serving s;
    struct answer a;
    char warm[] = "warm", many[] = "idle";
    serving_start(&s, options);
    struct serving_load l = {.n = 64, .at_once = 32, .make = make_idle, .arg = warm};
    serving_run(&s, &l); /* what is made once only */
    double before = work_settle(&s);
    l.arg = many;
    l.n = WORK_IDLE;
    serving_run(&s, &l);
    double each = (resident(s.pid) - before) / WORK_IDLE;
    serving_must(&s, &a, "/v1/models", NULL);
    series_add(&cell[WORK_ABOVE], each / answer_number(&a, "state_bytes"));
    serving_end(&s, SIGTERM);
}
