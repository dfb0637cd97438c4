/* metrics_test.c: the text that Prometheus reads, checked against its format's description. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "server/metrics.h"

static struct sl_metrics m;
static struct sl_router r;

static void handler(struct sl_exchange *ex)
{
    (void)ex;
}

static const struct sl_route routes[] = {
    {SL_GET, "/a/{id}", SL_ROLE_USER, 0, SL_BODY_NONE, handler},
    {SL_POST, "/a/{id}", SL_ROLE_USER, 0, SL_BODY_JSON, handler},
};

static int setup(void **state)
{
    (void)state;
    sl_router_init(&r);
    sl_router_add(&r, routes, 2);
    return sl_metrics_init(&m, NULL);
}

static int teardown(void **state)
{
    (void)state;
    sl_metrics_done(&m);
    return 0;
}

static char *scrape(void)
{
    char *text;
    size_t n;
    assert_int_equal(sl_metrics_write(&m, &r, NULL, NULL, &text, &n, NULL), SL_OK);
    assert_int_equal(strlen(text), n);
    return text;
}

static void expect_line(const char *text, const char *line)
{
    char with[256];
    snprintf(with, sizeof with, "\n%s\n", line);
    if (!strstr(text, with))
        fail_msg("no line '%s' in\n%s", line, text);
}

static void test_values(void **state)
{
    (void)state;
    sl_metric_set(&m, SL_M_SLOTS, 441);
    sl_metric_set(&m, SL_M_SLOT_USE, 0.25);
    sl_metric_add(&m, SL_M_COMPLETION_TOKENS, 9007199254740991.0 - 1);
    sl_metric_add(&m, SL_M_COMPLETION_TOKENS, 1);
    sl_metric_add(&m, SL_M_IN_FLIGHT, 2);
    sl_metric_add(&m, SL_M_IN_FLIGHT, -1);
    char *text = scrape();
    expect_line(text, "slate_slots_total 441");
    expect_line(text, "slate_slots_utilization 0.25");
    expect_line(text, "slate_completion_tokens_total 9007199254740991");
    expect_line(text, "slate_http_requests_in_flight 1");
    expect_line(text, "# TYPE slate_completion_tokens_total counter");
    expect_line(text, "# TYPE slate_slots_total gauge");
    expect_line(text, "# TYPE gen_ai_server_time_to_first_token_seconds histogram");
    expect_line(text, "slate_build_info{version=\"" SL_VERSION "\"} 1");
    sl_free(text);
}

static void test_histograms(void **state)
{
    (void)state;
    static const double seconds[] = {0.0005, 0.001, 0.002, 0.05, 0.051, 299, 301, 1e9};
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        sl_metric_observe(&m, SL_M_FIRST_TOKEN, seconds[i]);
    char *text = scrape();
#define N "gen_ai_server_time_to_first_token_seconds"
    expect_line(text, N "_bucket{le=\"0.001\"} 2"); /* less or equal */
    expect_line(text, N "_bucket{le=\"0.0025\"} 3");
    expect_line(text, N "_bucket{le=\"0.025\"} 3");
    expect_line(text, N "_bucket{le=\"0.05\"} 4");
    expect_line(text, N "_bucket{le=\"0.1\"} 5");
    expect_line(text, N "_bucket{le=\"60\"} 5");
    expect_line(text, N "_bucket{le=\"300\"} 6");
    expect_line(text, N "_bucket{le=\"+Inf\"} 8");
    expect_line(text, N "_count 8");
    expect_line(text, "gen_ai_server_request_duration_seconds_count 0");
#undef N
    double sum = 0;
    assert_int_equal(sscanf(strstr(text, "\ngen_ai_server_time_to_first_token_seconds_sum "),
                            "\ngen_ai_server_time_to_first_token_seconds_sum %lf", &sum),
                     1);
    assert_true(sum > 1000000600.0 && sum < 1000000600.2);
    sl_free(text);
}

static void test_requests(void **state)
{
    (void)state;
    sl_metrics_request(&m, 0, 200);
    sl_metrics_request(&m, 0, 200);
    sl_metrics_request(&m, 0, 404);
    sl_metrics_request(&m, 1, 503);
    sl_metrics_request(&m, 1, 299);
    sl_metrics_request(&m, SL_ROUTES_MAX, 400);
    char *text = scrape();
#define N "slate_http_requests_total"
    expect_line(text, N "{method=\"GET\",route=\"/a/{id}\",status=\"200\"} 2");
    expect_line(text, N "{method=\"GET\",route=\"/a/{id}\",status=\"404\"} 1");
    expect_line(text, N "{method=\"POST\",route=\"/a/{id}\",status=\"503\"} 1");
    expect_line(text, N "{method=\"POST\",route=\"/a/{id}\",status=\"other\"} 1");
    expect_line(text, N "{method=\"other\",route=\"none\",status=\"400\"} 1");
#undef N
    sl_free(text);
}

/* Each line is a comment of its metric or one of its samples; none stands twice. */
static void test_format(void **state)
{
    (void)state;
    char *text = scrape(), name[128] = "", *save = NULL;
    size_t n_lines = 0, n_types = 0;
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        n_lines++;
        if (strncmp(line, "# HELP ", 7) == 0) {
            assert_int_equal(sscanf(line, "# HELP %127s ", name), 1);
            assert_true(strlen(line) > strlen(name) + 10);
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            n_types++;
            assert_memory_equal(line + 7, name, strlen(name));
        } else {
            assert_memory_equal(line, name, strlen(name));
            const char *value = strrchr(line, ' ');
            char *end;
            assert_non_null(value);
            (void)strtod(value + 1, &end);
            assert_int_equal(*end, '\0');
            assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz_"), strlen(name));
        }
    }
    assert_int_equal(n_types, SL_M_COUNT + 2);
    assert_true(n_lines > 3 * SL_M_COUNT);
    sl_free(text);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_values),
        T(test_histograms),
        T(test_requests),
        T(test_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
