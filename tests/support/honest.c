/* honest.c: see honest.h. */
#include "tests/support/honest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { CLIENTS = 8, NEW_EVERY = 5, DEADLINE_MS = 60000, ROOM = 16384 };

struct client_of {
    int fd; /* -1: not connected */
    bool used;
    unsigned n; /* requests begun */
    char session[32];
    char request[512];
    size_t n_request, sent;
    char in[ROOM + 1];
    size_t n_in;
};

struct honest {
    struct sockaddr_in to;
    struct client_of all[CLIENTS];
    size_t n_answered, n_reconnects;
};

static int64_t now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* --- what is asked ---------------------------------------------------------------------------- */

static void write_request(struct client_of *c)
{
    char body[256] = "";
    const char *line = "POST /v1/generate";
    char get[64];
    switch (c->n % 5) {
    case 0:
        snprintf(body, sizeof body, "{\"prompt\":\"Hello there.\",\"max_tokens\":4,\"seed\":1}");
        break;
    case 1:
        snprintf(body, sizeof body,
                 "{\"prompt\":\" And then\",\"max_tokens\":2,\"seed\":1,\"session\":\"%s\"}",
                 c->session);
        break;
    case 2:
        snprintf(body, sizeof body,
                 "{\"prompt\":\"Hello there.\",\"max_tokens\":4,\"seed\":1,\"stream\":true}");
        break;
    case 3:
        snprintf(get, sizeof get, "GET /v1/sessions/%s", c->session);
        line = get;
        break;
    default:
        line = "POST /v1/tokenize";
        snprintf(body, sizeof body, "{\"text\":\"Once upon a time there was a server.\"}");
    }
    int n = snprintf(c->request, sizeof c->request,
                     "%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     line, strlen(body), body);
    c->n_request = (size_t)n;
}

/* --- connections ------------------------------------------------------------------------------ */

static void connect_now(struct honest *h, struct client_of *c)
{
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(c->fd >= 0);
    if (connect(c->fd, (struct sockaddr *)&h->to, sizeof h->to) != 0)
        fail_msg("an honest client cannot connect: %s", strerror(errno));
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->used = false;
}

static void hang_up(struct client_of *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static void send_request(struct honest *h, struct client_of *c)
{
    if (c->fd < 0)
        connect_now(h, c);
    c->n_in = 0;
    ssize_t r = send(c->fd, c->request, c->n_request, MSG_NOSIGNAL);
    if (r < 0 && c->used) { /* it was closed while it was idle */
        h->n_reconnects++;
        hang_up(c);
        connect_now(h, c);
        r = send(c->fd, c->request, c->n_request, MSG_NOSIGNAL);
    }
    assert_int_equal(r, (ssize_t)c->n_request); /* small: always whole */
}

static void ask(struct honest *h, struct client_of *c)
{
    if (c->n % NEW_EVERY == NEW_EVERY - 1)
        hang_up(c);
    write_request(c);
    c->n++;
    send_request(h, c);
}

/* Has the whole answer come? */
static bool is_whole(const struct client_of *c)
{
    static const char last[] = "\r\n0\r\n\r\n";
    const char *end = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "\r\nContent-Length:");
    if (!end)
        return false;
    size_t n_head = (size_t)(end - c->in) + 4, n = sizeof last - 1;
    if (length && length < end)
        return c->n_in >= n_head + strtoul(length + strlen("\r\nContent-Length:"), NULL, 10);
    return c->n_in >= n && memcmp(c->in + c->n_in - n, last, n) == 0;
}

static void wrong(const struct client_of *c, const char *what)
{
    fail_msg("an honest client %s; it asked\n%s\nand got\n%s", what, c->request, c->in);
}

/* Something has come, or the end. */
static void take(struct honest *h, struct client_of *c)
{
    ssize_t r = recv(c->fd, c->in + c->n_in, ROOM - c->n_in, MSG_DONTWAIT);
    if (r < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (r <= 0 && c->used && c->n_in == 0) {
        h->n_reconnects++;
        hang_up(c);
        send_request(h, c);
        return;
    }
    if (r <= 0)
        wrong(c, "lost its connection");
    c->n_in += (size_t)r;
    c->in[c->n_in] = '\0';
    if (!is_whole(c)) {
        if (c->n_in == ROOM)
            wrong(c, "got a longer answer than there is");
        return;
    }
    if (strncmp(c->in, "HTTP/1.1 200 ", 13) != 0)
        wrong(c, "was refused");
    c->used = true;
    h->n_answered++;
    c->n_request = 0;
}

/* One round of waiting; asks anew where `go_on`. Is anything under way? */
static bool turn(struct honest *h, bool go_on)
{
    struct pollfd p[CLIENTS];
    bool any = false;
    for (int i = 0; i < CLIENTS; i++) {
        struct client_of *c = &h->all[i];
        if (!c->n_request && go_on)
            ask(h, c);
        p[i] = (struct pollfd){.fd = c->n_request ? c->fd : -1, .events = POLLIN};
        any |= c->n_request != 0;
    }
    if (!any)
        return false;
    int n = poll(p, CLIENTS, DEADLINE_MS);
    if (n == 0)
        fail_msg("honest clients are not answered within %d ms", DEADLINE_MS);
    for (int i = 0; i < CLIENTS; i++)
        if (p[i].revents)
            take(h, &h->all[i]);
    return true;
}

double honest_slice(struct honest *h, size_t n, unsigned ms, size_t *ret_answered)
{
    int64_t begun = now_us(), end = begun + (int64_t)ms * 1000;
    h->n_answered = 0;
    while (h->n_answered < n && now_us() < end)
        (void)turn(h, true);
    double rate = (double)h->n_answered * 1e6 / (double)(now_us() - begun);
    if (ret_answered)
        *ret_answered = h->n_answered;
    while (turn(h, false)) /* what is under way belongs to no slice */
        ;
    return rate;
}

size_t honest_reconnects(struct honest *h)
{
    size_t n = h->n_reconnects;
    h->n_reconnects = 0;
    return n;
}

struct honest *honest_open(unsigned port)
{
    struct honest *h = calloc(1, sizeof *h);
    assert_non_null(h);
    h->to = (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < CLIENTS; i++) {
        struct client_of *c = &h->all[i];
        c->fd = -1;
        c->n = (unsigned)i; /* they do different things at a time */
        snprintf(c->session, sizeof c->session, "honest-%d", i);
        char body[64];
        snprintf(body, sizeof body, "{\"id\":\"%s\",\"prompt\":\"Hello.\"}", c->session);
        c->n_request = (size_t)snprintf(
            c->request, sizeof c->request,
            "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: %zu\r\n\r\n%s",
            strlen(body), body);
        send_request(h, c);
        do {
            struct pollfd p = {.fd = c->fd, .events = POLLIN};
            assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
            ssize_t r = recv(c->fd, c->in + c->n_in, ROOM - c->n_in, 0);
            if (r <= 0)
                wrong(c, "lost its connection");
            c->n_in += (size_t)r;
            c->in[c->n_in] = '\0';
        } while (!is_whole(c));
        if (strncmp(c->in, "HTTP/1.1 201 ", 13) != 0)
            wrong(c, "got no session");
        c->n_request = 0;
        hang_up(c);
    }
    return h;
}

void honest_close(struct honest *h)
{
    if (!h)
        return;
    for (int i = 0; i < CLIENTS; i++)
        hang_up(&h->all[i]);
    free(h);
}
