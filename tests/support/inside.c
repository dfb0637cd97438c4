/* inside.c: see inside.h. */
#include "tests/support/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "server/cli/cli.h"
#include "tests/support/serving.h"
#include "tests/support/tree.h"

enum { DEADLINE_S = 60, OPTION_MAX = 128, LISTEN = 1 /* the option that says where */ };

struct inside inside;

static unsigned port; /* 0: a unix socket */
static pthread_t thread;
static int exit_code;
static char options_text[INSIDE_OPTIONS_MAX][OPTION_MAX];
static char *args[INSIDE_OPTIONS_MAX + 1];
static int n_args;

/* --- the client --------------------------------------------------------------------------------*/

static int open_socket(void)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval deadline = {.tv_sec = DEADLINE_S};
    int fd = socket(port ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    snprintf(un.sun_path, sizeof un.sun_path, "%s/socket", inside.folder);
    if (port ? connect(fd, (struct sockaddr *)&in, sizeof in)
             : connect(fd, (struct sockaddr *)&un, sizeof un)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void read_all(int fd, const char *method, const char *path)
{
    for (;;) {
        ssize_t k = recv(fd, inside.reply + inside.n_reply, INSIDE_REPLY_MAX - inside.n_reply, 0);
        if (k < 0 && errno == EINTR)
            continue; /* stopped, and let go on: a socket with a time limit says so */
        if (k < 0 && errno == EAGAIN)
            fail_msg("%s %s: no answer in %d s", method, path, DEADLINE_S);
        if (k <= 0)
            break;
        inside.n_reply += (size_t)k;
        assert_true(inside.n_reply < INSIDE_REPLY_MAX);
    }
}

static void forget_reply(void)
{
    inside.n_reply = 0;
    inside.status = 0;
    inside.reply[0] = '\0';
}

/* Opens a connection and sends; -1: there is none. */
static int send_bytes(const char *method, const char *path, const char *lines, const void *body,
                      size_t n)
{
    static char request[INSIDE_BODY_MAX + 1024];
    int fd = open_socket();
    if (fd < 0)
        return -1;
    int head = snprintf(request, sizeof request,
                        "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                        "%sContent-Length: %zu\r\n\r\n",
                        method, path, lines ? lines : "Content-Type: application/json\r\n", n);
    assert_true(head > 0 && (size_t)head + n < sizeof request);
    if (n)
        memcpy(request + head, body, n);
    ssize_t all = head + (ssize_t)n, sent = 0;
    while (sent < all) {
        ssize_t k = send(fd, request + sent, (size_t)(all - sent), MSG_NOSIGNAL);
        if (k <= 0)
            break;
        sent += k;
    }
    return fd;
}

/* Reads to the end of the connection. */
static bool take_reply(int fd, const char *method, const char *path)
{
    forget_reply();
    read_all(fd, method, path); /* it may have answered before all was sent */
    inside.reply[inside.n_reply] = '\0';
    close(fd);
    if (sscanf(inside.reply, "HTTP/1.1 %d", &inside.status) != 1)
        inside.status = 0;
    return inside.n_reply > 0;
}

bool talk_bytes(const char *method, const char *path, const char *lines, const void *body, size_t n)
{
    int fd = send_bytes(method, path, lines, body, n);
    forget_reply();
    return fd >= 0 && take_reply(fd, method, path);
}

int talk_begin(const char *method, const char *path, const char *body)
{
    int fd = send_bytes(method, path, NULL, body, strlen(body));
    assert_true(fd >= 0);
    return fd;
}

bool talk_end(int fd)
{
    return take_reply(fd, "what was sent", "before");
}

bool talk(const char *method, const char *path, const char *body)
{
    return talk_bytes(method, path, NULL, body, strlen(body));
}

void talk_must(const char *method, const char *path, const char *body, int status)
{
    if (!talk(method, path, body) || inside.status != status)
        fail_msg("%s %s gave %d: %.400s", method, path, inside.status, inside.reply);
}

const char *talk_body(size_t *ret_n)
{
    const char *p = strstr(inside.reply, "\r\n\r\n");
    assert_non_null(p);
    *ret_n = inside.n_reply - (size_t)(p + 4 - inside.reply);
    return p + 4;
}

double talk_metric(const char *name)
{
    char key[128];
    double v = -1;
    assert_true(talk("GET", "/metrics", ""));
    snprintf(key, sizeof key, "\n%s ", name);
    const char *p = strstr(inside.reply, key);
    assert_non_null(p);
    assert_int_equal(sscanf(p + strlen(key), "%lf", &v), 1);
    return v;
}

void talk_until(const char *name, double value)
{
    while (talk_metric(name) != value) /* talk() has the deadline of each step, the runner of all */
        ;
}

/* --- the server --------------------------------------------------------------------------------*/

static void add(const char *fmt, const char *a, const char *b)
{
    assert_true(n_args < INSIDE_OPTIONS_MAX);
    char *dst = options_text[n_args];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(dst, OPTION_MAX, fmt, a, b);
#pragma GCC diagnostic pop
    assert_in_range(n, 1, OPTION_MAX - 1);
    args[n_args++] = dst;
    args[n_args] = NULL;
}

static void *serve(void *arg)
{
    (void)arg;
    exit_code = sl_cli_serve(n_args, args);
    return NULL;
}

/* With the options that there are, on a port of its own. */
static int start(void)
{
    if (port) {
        port = serving_free_port(); /* its last one may be somebody's by now */
        snprintf(options_text[LISTEN], OPTION_MAX, "--listen=127.0.0.1:%u", port);
    }
    if (pthread_create(&thread, NULL, serve, NULL))
        return -1;
    while (!talk("GET", "/readyz", "") || inside.status != 200)
        if (pthread_tryjoin_np(thread, NULL) == 0) /* it has said why */
            return -1;
    return 0;
}

int inside_start(const char *store, bool tcp, const char *const *options)
{
    /* In memory, where there is such a folder: no disk is waited for. */
    snprintf(inside.folder, sizeof inside.folder, "%s/slate-test-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(inside.folder))
        return -1;
    n_args = 0;
    port = tcp;
    add("serve%s%s", "", "");
    add("--listen=unix:%s%s", inside.folder, "/socket"); /* LISTEN; or start() says where */
    if (!strcmp(store, "dir"))
        add("--store=dir:%s%s", inside.folder, "/store");
    else
        add("--store=%s%s", store, "");
    for (; *options; options++)
        add("%s%s", *options, "");
    return start();
}

static int wait_for_end(void)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    return pthread_timedjoin_np(thread, NULL, &deadline) ? -1 : exit_code;
}

int inside_terminate(void)
{
    assert_int_equal(kill(getpid(), SIGTERM), 0); /* where no server runs it is the test's end */
    return wait_for_end();
}

int inside_start_again(void)
{
    return start();
}

int inside_stop(void)
{
    bool asked = talk("POST", "/v1/admin/drain", "") && inside.status == 202;
    int rc = asked ? wait_for_end() : -1;
    if (rc >= 0)
        remove_tree(inside.folder);
    return rc;
}
