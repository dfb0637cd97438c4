/* hostile.c: see hostile.h. */
#include "tests/support/hostile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "tests/support/api.h"
#include "tests/support/process.h"

size_t hostile_idle = 1000;

/* --- the run ---------------------------------------------------------------------------------- */

/* What so many idle connections take of this process, of the server and of the port that swallows
 * all: one end of each is there. */
static rlim_t descriptors(void)
{
    return hostile_idle + 1000;
}

void hostile_skip_without_descriptors(void)
{
    struct rlimit r;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    if (r.rlim_cur < descriptors()) {
        printf("skipped: %zu idle connections need more descriptors than there are\n",
               hostile_idle);
        skip();
    }
}

void hostile_begin(int argc, char **argv)
{
    struct rlimit r;
    if (argc > 1) {
        attack_terms.least = 0.9;
        hostile_idle = strtoul(argv[1], NULL, 10);
        if (hostile_idle > 1000)
            attack_terms.n_slice *= 4;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        rlim_t need = descriptors();
        const struct rlimit more = {need, need}; /* root may */
        r.rlim_cur = r.rlim_max;
        if (r.rlim_max >= need || setrlimit(RLIMIT_NOFILE, &more) != 0)
            (void)setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* --- servers ---------------------------------------------------------------------------------- */

struct server *hostile_start(const char *const *options)
{
    const char *all[32] = {"--log-level", "error", "--threads", "1", "--sessions-in-memory", "64"};
    size_t n = 6;
    for (size_t i = 0; options[i]; i++) {
        assert_true(n < N(all) - 1);
        all[n++] = options[i];
    }
    struct server *s = server_start_loading(all);
    for (bool ready = false; !ready;) {
        struct raw_response *p = raw_ask(s, GET("/readyz"));
        ready = p->status == 200;
        raw_response_free(p);
    }
    return s;
}

double hostile_resident_mib(const struct server *s)
{
    return (double)process_resident(s->pid) / 1048576;
}

void hostile_session(const struct server *s, const char *id)
{
    char text[256];
    snprintf(text, sizeof text,
             "POST /v1/sessions HTTP/1.1\r\n" HOST JSON
             "Content-Length: %zu\r\n\r\n{\"id\":\"%s\"}",
             strlen(id) + 9, id);
    raw_expect_ask(s, text, 201, id);
}

bool hostile_metric_is(const struct server *s, const char *name, double value)
{
    int64_t end = client_now_ms() + WAIT_MS;
    while (raw_metric(s, name) != value)
        if (client_now_ms() >= end)
            return false;
    return true;
}

struct foe_text hostile_post(const char *begin, const char *part, size_t n, const char *end)
{
    char *body = repeated(begin, part, n, end);
    size_t room = strlen(body) + 256;
    char *text = malloc(room);
    assert_non_null(text);
    int size = snprintf(text, room,
                        "POST /v1/generate HTTP/1.1\r\n" HOST JSON "Content-Length: %zu\r\n\r\n%s",
                        strlen(body), body);
    sl_free(body);
    return (struct foe_text){text, (size_t)size};
}

/* --- crowds ----------------------------------------------------------------------------------- */

enum { LOTS_MAX = 256 };

struct crowd {
    struct foes *lots[LOTS_MAX];
    size_t n;
};

struct crowd *crowd_open(const struct server *s, size_t n, size_t lot)
{
    static const char accepted[] = "slate_http_connections_accepted_total";
    struct crowd *c = calloc(1, sizeof *c);
    assert_non_null(c);
    double others = raw_metric(s, accepted); /* who asks for it among them */
    int64_t end = client_now_ms() + WAIT_MS;
    for (size_t come = 0; come < n;) {
        const struct foe_plan plan = {.n = n - come < lot ? n - come : lot};
        assert_true(c->n < LOTS_MAX);
        c->lots[c->n++] = foes_start(&plan, s->port);
        come += plan.n;
        do {
            if (client_now_ms() >= end)
                fail_msg("of %zu connections the server has not accepted all", come);
            others++;
        } while (raw_metric(s, accepted) < others + (double)come);
    }
    return c;
}

size_t crowd_size(const struct crowd *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        n += foes_open(c->lots[i]);
    return n;
}

void crowd_close(struct crowd *c)
{
    for (size_t i = 0; i < c->n; i++)
        foes_stop(c->lots[i], NULL);
    free(c);
}
