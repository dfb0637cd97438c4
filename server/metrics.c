/* metrics.c: see metrics.h. */
#include "server/metrics.h"

#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"

enum kind { COUNTER, GAUGE, HISTOGRAM };

static const struct {
    enum kind kind;
    const char *name;
    const char *help;
} rows[SL_M_COUNT] = {
#define X(name, kind, exposed, help) {kind, exposed, help},
    SL_METRICS(X)
#undef X
};

static const char *const kind_names[] = {"counter", "gauge", "histogram"};

/* Seconds: from one token to a long turn. */
static const double bounds[SL_METRIC_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                 0.5,   1,      2.5,   5,    10,    30,   60,  300};

/* What has a row of its own; the last counts all others. */
static const int statuses[SL_METRIC_STATUSES] = {
    200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 405, 406, 408, 409, 410, 412,
    413, 414, 415, 416, 417, 422, 428, 429, 431, 500, 501, 502, 503, 504, 505, 0};

enum sl_code sl_metrics_init(struct sl_metrics *m, struct sl_error *err)
{
    *m = (struct sl_metrics){.histogram = sl_calloc(SL_M_COUNT, sizeof *m->histogram)};
    if (!m->histogram)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for metrics");
    return SL_OK;
}

void sl_metrics_done(struct sl_metrics *m)
{
    sl_free(m->histogram);
    m->histogram = NULL;
}

void sl_metric_add(struct sl_metrics *m, enum sl_metric what, double by)
{
    assert(rows[what].kind != HISTOGRAM);
    m->value[what] += by;
}

void sl_metric_set(struct sl_metrics *m, enum sl_metric what, double value)
{
    assert(rows[what].kind != HISTOGRAM);
    m->value[what] = value;
}

void sl_metric_observe(struct sl_metrics *m, enum sl_metric what, double seconds)
{
    assert(rows[what].kind == HISTOGRAM);
    struct sl_histogram *h = &m->histogram[what];
    size_t i = 0;
    while (i < SL_METRIC_BUCKETS && seconds > bounds[i])
        i++;
    h->bucket[i]++;
    h->sum += seconds;
}

void sl_metrics_request(struct sl_metrics *m, size_t route_index, int status)
{
    assert(route_index <= SL_ROUTES_MAX);
    size_t i = 0;
    while (i < SL_METRIC_STATUSES - 1 && statuses[i] != status)
        i++;
    m->requests[route_index][i]++;
}

static void write_histogram(FILE *f, enum sl_metric what, const struct sl_histogram *h)
{
    const char *name = rows[what].name;
    uint64_t n = 0;
    for (size_t i = 0; i < SL_METRIC_BUCKETS; i++) {
        n += h->bucket[i];
        fprintf(f, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)n);
    }
    n += h->bucket[SL_METRIC_BUCKETS];
    fprintf(f, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.17g\n%s_count %llu\n", name,
            (unsigned long long)n, name, h->sum, name, (unsigned long long)n);
}

static void write_requests(FILE *f, const struct sl_metrics *m, const struct sl_router *r)
{
    fprintf(f, "# HELP slate_http_requests_total Requests answered\n"
               "# TYPE slate_http_requests_total counter\n");
    for (size_t i = 0; i <= SL_ROUTES_MAX; i++) {
        const struct sl_route *route = i < r->n_rows ? r->rows[i] : NULL;
        for (size_t j = 0; j < SL_METRIC_STATUSES; j++) {
            if (m->requests[i][j] == 0)
                continue;
            fprintf(f, "slate_http_requests_total{method=\"%s\",route=\"%s\",status=\"",
                    route ? sl_method_name(route->method) : "other",
                    route ? route->pattern : "none");
            if (statuses[j])
                fprintf(f, "%d\"} %llu\n", statuses[j], (unsigned long long)m->requests[i][j]);
            else
                fprintf(f, "other\"} %llu\n", (unsigned long long)m->requests[i][j]);
        }
    }
}

enum sl_code sl_metrics_write(const struct sl_metrics *m, const struct sl_router *r,
                              void (*more)(void *arg, FILE *f), void *arg, char **ret,
                              size_t *ret_n, struct sl_error *err)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the metrics' text");
    fprintf(f, "# HELP slate_build_info The program's version\n# TYPE slate_build_info gauge\n"
               "slate_build_info{version=\"" SL_VERSION "\"} 1\n");
    for (unsigned i = 0; i < SL_M_COUNT; i++) {
        fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", rows[i].name, rows[i].help, rows[i].name,
                kind_names[rows[i].kind]);
        if (rows[i].kind == HISTOGRAM)
            write_histogram(f, (enum sl_metric)i, &m->histogram[i]);
        else
            fprintf(f, "%s %.17g\n", rows[i].name, m->value[i]);
    }
    write_requests(f, m, r);
    if (more)
        more(arg, f);
    if (fclose(f) != 0) {
        sl_free(text);
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the metrics' text");
    }
    *ret = text;
    *ret_n = n;
    return SL_OK;
}
