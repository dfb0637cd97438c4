/* attack.c: see attack.h. */
#include "tests/support/attack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/honest.h"
#include "tests/support/process.h"

enum { SLICE_MS = 10000, PAIRS = 5, PAIRS_MAX = 15 };

struct attack_terms attack_terms = {.least = 0.66, .n_slice = 500};

/* Of the processors, taken by what is no part of the test: above it requests per second tell more
 * of the others than of the server. Then requests per second of the server's own time decide. */
static const double others_max = 0.15;

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *values, size_t n)
{
    double v[PAIRS_MAX];
    memcpy(v, values, n * sizeof *v);
    qsort(v, n, sizeof *v, by_size);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* What a slice gave: requests per second, and per second of the server's time. */
struct got {
    double rate, cpu_rate;
};

/* One of the two between which slices take turns. */
struct side {
    struct server *s;
    struct honest *h;
    const struct foe_plan *plan; /* NULL: no foes are started for it */
    unsigned port;               /* where they go */
};

static struct got slice(const struct side *d)
{
    size_t n = 0;
    struct foes *f = d->plan ? foes_start(d->plan, d->port) : NULL;
    if (f && !d->plan->life_ms) /* they come once: what they ask for at first is done meanwhile */
        (void)honest_slice(d->h, attack_terms.n_slice / 2, SLICE_MS, NULL);
    double before = process_cpu_usual_s(d->s->pid);
    double rate = honest_slice(d->h, attack_terms.n_slice, SLICE_MS, &n);
    double used = process_cpu_usual_s(d->s->pid) - before;
    if (f)
        foes_stop(f, NULL);
    return (struct got){rate, (double)n / used};
}

/* Seconds in which the processors did something, for anybody; and in which they could have. */
static void processors(double *ret_busy, double *ret_all)
{
    unsigned long long v[8] = {0}, all = 0;
    FILE *f = fopen("/proc/stat", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2],
                            &v[3], &v[4], &v[5], &v[6], &v[7]),
                     8);
    fclose(f);
    for (int i = 0; i < 8; i++)
        all += v[i];
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    *ret_busy = (double)(all - v[3] - v[4]) * tick;
    *ret_all = (double)all * tick;
}

struct clock_of {
    double busy, all, own;
};

/* pids: whose own time is the test's, up to a 0. */
static struct clock_of clock_now(const pid_t *pids)
{
    struct clock_of c = {0};
    processors(&c.busy, &c.all);
    for (size_t i = 0; pids[i]; i++) {
        struct timespec ts;
        clockid_t id;
        assert_int_equal(clock_getcpuclockid(pids[i], &id), 0);
        assert_int_equal(clock_gettime(id, &ts), 0);
        c.own += (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
    }
    return c;
}

/* Slices of both, in turns; prints the numbers and judges them. */
static void compare(const char *name, const struct side *quiet, const struct side *attacked,
                    const pid_t *pids)
{
    double without[PAIRS_MAX], under[PAIRS_MAX], ratio[PAIRS_MAX], cpu[PAIRS_MAX], wall, own, r;
    size_t n = 0;
    struct clock_of begun = clock_now(pids);
    do {
        for (size_t end = n + PAIRS; n < end; n++) {
            struct got a, b;
            if (n % 2)
                b = slice(attacked);
            a = slice(quiet);
            if (n % 2 == 0)
                b = slice(attacked);
            without[n] = a.rate;
            under[n] = b.rate;
            ratio[n] = b.rate / a.rate;
            cpu[n] = b.cpu_rate / a.cpu_rate;
        }
        struct clock_of now = clock_now(pids);
        double others = (now.busy - begun.busy - (now.own - begun.own)) / (now.all - begun.all);
        wall = median_of(ratio, n);
        own = median_of(cpu, n);
        r = others > others_max ? own : wall;
        if (others > others_max)
            printf("%s: others take %.0f %% of the processors: judged by the server's time\n", name,
                   100 * others);
    } while (r < attack_terms.least && r > attack_terms.least / 2 && n < PAIRS_MAX);
    printf("%s: %.0f requests/s without, %.0f under it: %.0f %%; %.0f %% by the server's time "
           "(%zu pairs)\n",
           name, median_of(without, n), median_of(under, n), 100 * wall, 100 * own, n);
    fflush(stdout);
    if (r < attack_terms.least)
        fail_msg("%s: honest clients keep %.0f %% of their throughput", name, 100 * r);
}

void attack(const char *name, struct server *s, const struct foe_plan *p)
{
    struct foe_plan plan = *p;
    struct sink sink;
    sink_open(&sink);
    struct honest *h = honest_open(s->port);
    plan.clock = s->pid; /* so many attacks to so much work, on a busy machine as on a quiet one */
    (void)honest_slice(h, attack_terms.n_slice, SLICE_MS, NULL);
    compare(name, &(struct side){s, h, &plan, sink.port}, &(struct side){s, h, &plan, s->port},
            (const pid_t[]){getpid(), s->pid, sink.pid, 0});
    honest_close(h);
    sink_close(&sink);
}

void attack_beside(const char *name, struct server *quiet, struct server *s)
{
    const struct side a = {.s = quiet, .h = honest_open(quiet->port)},
                      b = {.s = s, .h = honest_open(s->port)};
    (void)honest_slice(a.h, attack_terms.n_slice, SLICE_MS, NULL);
    (void)honest_slice(b.h, attack_terms.n_slice, SLICE_MS, NULL);
    compare(name, &a, &b, (const pid_t[]){getpid(), quiet->pid, s->pid, 0});
    honest_close(a.h);
    honest_close(b.h);
}
