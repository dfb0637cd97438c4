/* foes.c: see foes.h. */
#include "tests/support/foes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/client.h"

enum { TICK_MS = 10, EVENTS = 256, STUCK_MS = 100, DEADLINE_MS = 60000, SIP = 1024 };

struct foe {
    int fd; /* -1: closed */
    const struct foe_text *text;
    size_t sent;
    int64_t born_ms, piece_ms; /* when it connected; when its next piece is due */
    int64_t sent_ms;           /* when it last sent something, by the time of day */
    bool settled;              /* sent what it sends at once, or could send no more */
    bool shut;
};

struct foes {
    struct foe_plan plan;
    struct sockaddr_in to;
    pthread_t thread;
    int epoll;
    clockid_t clock;
    struct foe *all;
    size_t next_text;
    struct foes_result result;
    _Atomic bool stop;
    pthread_mutex_t lock; /* over the two counts */
    pthread_cond_t news;
    size_t n_open, n_settled;
};

/* By the plan's clock. */
static int64_t time_ms(const struct foes *f)
{
    struct timespec ts;
    if (clock_gettime(f->clock, &ts) != 0)
        return client_now_ms(); /* the process has ended: so will this */
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void die(const char *what)
{
    fprintf(stderr, "foes: %s: %s\n", what, strerror(errno));
    abort();
}

/* --- one of them ------------------------------------------------------------------------------ */

static void count(struct foes *f, size_t *what, size_t by)
{
    pthread_mutex_lock(&f->lock);
    *what += by;
    pthread_cond_signal(&f->news);
    pthread_mutex_unlock(&f->lock);
}

static void settle(struct foes *f, struct foe *e)
{
    if (!e->settled)
        count(f, &f->n_settled, 1);
    e->settled = true;
}

static void end(struct foes *f, struct foe *e, bool by_server)
{
    f->result.closed += by_server;
    settle(f, e);
    close(e->fd);
    e->fd = -1;
    count(f, &f->n_open, SIZE_MAX); /* one fewer */
}

static void begin(struct foes *f, struct foe *e)
{
    const struct foe_plan *p = &f->plan;
    int small = 2048;
    bool settled = e->settled;
    *e = (struct foe){.settled = settled, .born_ms = time_ms(f), .sent_ms = client_now_ms()};
    e->piece_ms = e->born_ms + p->piece_ms;
    e->text = p->n_texts ? &p->texts[f->next_text++ % p->n_texts] : NULL;
    e->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (e->fd < 0)
        die("socket");
    if (p->small_buffers)
        (void)setsockopt(e->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (connect(e->fd, (struct sockaddr *)&f->to, sizeof f->to) != 0 && errno != EINPROGRESS)
        die("connect");
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = e};
    if (epoll_ctl(f->epoll, EPOLL_CTL_ADD, e->fd, &ev) != 0)
        die("epoll_ctl");
    f->result.lives++;
    count(f, &f->n_open, 1);
}

/* Sends up to `until` bytes of its text. false: the connection is over. */
static bool send_until(struct foes *f, struct foe *e, size_t until)
{
    size_t n = e->text ? e->text->n : 0;
    until = until < n ? until : n;
    while (e->sent < until) {
        ssize_t r = send(e->fd, e->text->bytes + e->sent, until - e->sent, MSG_NOSIGNAL);
        if (r < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN))
            break;
        if (r < 0) {
            end(f, e, true);
            return false;
        }
        e->sent += (size_t)r;
        e->sent_ms = client_now_ms();
    }
    if (e->sent == n && f->plan.half_close && !e->shut) {
        e->shut = true;
        (void)shutdown(e->fd, SHUT_WR);
    }
    return true;
}

static bool read_some(struct foes *f, struct foe *e, size_t max)
{
    static _Thread_local char waste[65536];
    for (bool again = true; again;) {
        ssize_t r = recv(e->fd, waste, max < sizeof waste ? max : sizeof waste, 0);
        if (r < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (r <= 0) {
            end(f, e, true);
            return false;
        }
        if (f->result.last[0] == '\0')
            memcpy(f->result.last, waste,
                   (size_t)r < sizeof f->result.last ? (size_t)r : sizeof f->result.last - 1);
        f->result.bytes += (size_t)r;
        again = max == SIZE_MAX;
    }
    return true;
}

static void on_event(struct foes *f, struct foe *e, uint32_t events)
{
    const struct foe_plan *p = &f->plan;
    if (e->fd < 0)
        return;
    if (events & EPOLLERR) {
        end(f, e, true);
        return;
    }
    if ((events & EPOLLOUT) && !send_until(f, e, e->sent > p->at_once ? e->sent : p->at_once))
        return;
    if ((events & EPOLLOUT) && (!e->text || e->sent >= p->at_once || e->sent == e->text->n))
        settle(f, e);
    if ((events & EPOLLIN) && p->reading == FOE_READS)
        (void)read_some(f, e, SIZE_MAX);
}

static void on_tick(struct foes *f, struct foe *e, int64_t now)
{
    const struct foe_plan *p = &f->plan;
    if (p->life_ms && now >= e->born_ms + p->life_ms) {
        if (e->fd >= 0)
            end(f, e, false);
        begin(f, e);
        return;
    }
    if (e->fd >= 0 && !e->settled && client_now_ms() >= e->sent_ms + STUCK_MS)
        settle(f, e);
    if (e->fd < 0 || !p->piece_ms || now < e->piece_ms)
        return;
    e->piece_ms = now + p->piece_ms;
    if (send_until(f, e, e->sent + 1) && p->reading == FOE_SIPS)
        (void)read_some(f, e, SIP);
}

static void *run(void *arg)
{
    struct foes *f = arg;
    struct epoll_event ev[EVENTS];
    int64_t next = 0;
    for (size_t i = 0; i < f->plan.n; i++)
        begin(f, &f->all[i]);
    while (!atomic_load(&f->stop)) {
        int64_t now = client_now_ms(), time = time_ms(f);
        for (size_t i = 0; now >= next && i < f->plan.n; i++)
            on_tick(f, &f->all[i], time);
        if (now >= next)
            next = now + TICK_MS;
        int n = epoll_wait(f->epoll, ev, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++)
            on_event(f, ev[i].data.ptr, ev[i].events);
    }
    for (size_t i = 0; i < f->plan.n; i++)
        if (f->all[i].fd >= 0)
            end(f, &f->all[i], false);
    return NULL;
}

/* --- all of them ------------------------------------------------------------------------------ */

static struct timespec in_ms(int64_t ms)
{
    int64_t at = client_now_ms() + ms;
    return (struct timespec){.tv_sec = at / 1000, .tv_nsec = at % 1000 * 1000000};
}

struct foes *foes_start(const struct foe_plan *plan, unsigned port)
{
    struct foes *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->plan = *plan;
    f->to = (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    f->all = calloc(plan->n, sizeof *f->all);
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    f->clock = CLOCK_MONOTONIC;
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->news, NULL);
    if (plan->clock)
        assert_int_equal(clock_getcpuclockid(plan->clock, &f->clock), 0);
    assert_true(f->all && f->epoll >= 0);
    assert_int_equal(pthread_create(&f->thread, NULL, run, f), 0);
    pthread_mutex_lock(&f->lock);
    bool settled = true;
    for (struct timespec end = in_ms(DEADLINE_MS); settled && f->n_settled < plan->n;)
        settled = pthread_cond_clockwait(&f->news, &f->lock, CLOCK_MONOTONIC, &end) == 0;
    pthread_mutex_unlock(&f->lock);
    assert_true(settled);
    return f;
}

void foes_stop(struct foes *f, struct foes_result *ret)
{
    atomic_store(&f->stop, true);
    assert_int_equal(pthread_join(f->thread, NULL), 0);
    if (ret)
        *ret = f->result;
    close(f->epoll);
    free(f->all);
    free(f);
}

size_t foes_open(struct foes *f)
{
    pthread_mutex_lock(&f->lock);
    size_t n = f->n_open;
    pthread_mutex_unlock(&f->lock);
    return n;
}

bool foes_leave(struct foes *f, size_t n, unsigned ms)
{
    int e = 0;
    pthread_mutex_lock(&f->lock);
    for (struct timespec end = in_ms(ms); f->n_open > n && e == 0;)
        e = pthread_cond_clockwait(&f->news, &f->lock, CLOCK_MONOTONIC, &end);
    bool left = f->n_open <= n;
    pthread_mutex_unlock(&f->lock);
    return left;
}

/* --- the sink --------------------------------------------------------------------------------- */

/* The child's whole life. */
static _Noreturn void swallow(int listener)
{
    static char waste[65536];
    struct epoll_event ev[EVENTS], in = {.events = EPOLLIN, .data.fd = listener};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &in) != 0)
        die("epoll");
    for (;;) {
        int n = epoll_wait(epoll, ev, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            int fd = ev[i].data.fd;
            if (fd == listener) {
                in.data.fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (in.data.fd < 0 && errno != EAGAIN && errno != ECONNABORTED)
                    die("accept");
                if (in.data.fd >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, in.data.fd, &in) != 0)
                    die("epoll_ctl");
            } else if (recv(fd, waste, sizeof waste, 0) <= 0) {
                close(fd);
            }
        }
    }
}

void sink_open(struct sink *ret)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 4096), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    *ret = (struct sink){.pid = fork(), .port = ntohs(a.sin_port)};
    assert_true(ret->pid >= 0);
    if (ret->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        listener = dup2(listener, STDERR_FILENO + 1);
        (void)close_range(STDERR_FILENO + 2, ~0U, 0); /* the parent's: it has none of them open */
        swallow(listener);
    }
    close(listener);
}

void sink_close(struct sink *s)
{
    int status;
    assert_int_equal(kill(s->pid, SIGKILL), 0);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    assert_true(WIFSIGNALED(status) &&
                WTERMSIG(status) == SIGKILL); /* it did its work to the end */
}
