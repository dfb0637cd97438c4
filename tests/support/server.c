/* server.c: see server.h. */
#include "tests/support/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { ARGS_MAX = 64 };

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Waits for an event of fd; false: the deadline passed. */
static bool wait_fd(int fd, short events, int64_t deadline)
{
    for (;;) {
        int64_t left = deadline - now_ms();
        struct pollfd p = {.fd = fd, .events = events};
        int r = poll(&p, 1, left > 0 ? (int)left : 0);
        if (r > 0)
            return true;
        if (r == 0)
            return false;
        assert_int_equal(errno, EINTR);
    }
}

/* Appends what can be read at once; false: the end of file. */
static bool read_more(int fd, char **text, size_t *n)
{
    *text = realloc(*text, *n + 65537);
    assert_non_null(*text);
    ssize_t r = read(fd, *text + *n, 65536);
    if (r > 0)
        *n += (size_t)r;
    (*text)[*n] = '\0';
    return r != 0;
}

/* --- the child --------------------------------------------------------------------------------*/

static rlim_t file_limit;

void server_file_limit(unsigned n)
{
    file_limit = n;
}

/* `ip netns` keeps a file for each. */
static void enter_netns(const char *name)
{
    char path[80];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
        _exit(126);
}

static pid_t spawn(const char *const *args, const char *netns, int *ret_out, int *ret_err)
{
    static char program[512];
    const char *argv[ARGS_MAX + 2] = {program};
    const char *build = getenv("SLATE_BUILD");
    int out[2], err[2];
    size_t n = 0;
    snprintf(program, sizeof program, "%s/slate", build ? build : "build/release");
    for (; args[n]; n++) {
        assert_true(n < ARGS_MAX);
        argv[n + 1] = args[n];
    }
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (file_limit)
            (void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){file_limit, file_limit});
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        if (netns)
            enter_netns(netns);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    *ret_out = out[0];
    *ret_err = err[0];
    return pid;
}

static int exit_code(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void give_up(struct server *s, const char *why)
{
    kill(s->pid, SIGKILL);
    (void)exit_code(s->pid);
    fail_msg("the server %s; its log:\n%s", why, s->log);
}

static void read_address(struct server *s)
{
    char *text = NULL;
    size_t n = 0;
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    while (!text || !strchr(text, '\n'))
        if (!wait_fd(s->out, POLLIN, deadline) || !read_more(s->out, &text, &n)) {
            while (wait_fd(s->err, POLLIN, deadline) && read_more(s->err, &s->log, &s->n_log))
                ;
            give_up(s, "does not listen");
        }
    *strchr(text, '\n') = '\0';
    if (sscanf(text, "listening on http://127.0.0.1:%u", &s->port) == 1)
        snprintf(s->base, sizeof s->base, "http://127.0.0.1:%u", s->port);
    else if (sscanf(text, "listening on unix:%107s", s->unix_path) == 1)
        snprintf(s->base, sizeof s->base, "unix:%s", s->unix_path);
    else
        give_up(s, "printed another line than that it listens");
    free(text);
}

struct server *server_start_in(const char *netns, const char *const *args)
{
    const char *all[ARGS_MAX + 1] = {"serve", "--listen", "127.0.0.1:0", "--store", "memory"};
    size_t n = 5;
    for (size_t i = 0; args[i]; i++) {
        assert_true(n < ARGS_MAX);
        all[n++] = args[i];
    }
    struct server *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->log = calloc(1, 1);
    s->pid = spawn(all, netns, &s->out, &s->err);
    read_address(s);
    return s;
}

struct server *server_start_loading(const char *const *args)
{
    return server_start_in(NULL, args);
}

static unsigned occurrences(const char *log, const char *text)
{
    unsigned n = 0;
    for (; (log = strstr(log, text)) != NULL; log++)
        n++;
    return n;
}

void server_wait_log(struct server *s, const char *text)
{
    server_wait_log_times(s, text, 1);
}

void server_wait_log_times(struct server *s, const char *text, unsigned n)
{
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    while (occurrences(s->log, text) < n) {
        if (!wait_fd(s->err, POLLIN, deadline))
            give_up(s, text);
        if (!read_more(s->err, &s->log, &s->n_log))
            give_up(s, "ended too early");
    }
}

struct server *server_start(const char *const *args)
{
    struct server *s = server_start_loading(args);
    server_wait_log(s, " ready ");
    return s;
}

int server_end(struct server *s, int signal)
{
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    if (signal)
        kill(s->pid, signal);
    do {
        if (!wait_fd(s->err, POLLIN, deadline))
            give_up(s, "does not end");
    } while (read_more(s->err, &s->log, &s->n_log));
    int code = exit_code(s->pid);
    if (code != 0 && code != -signal)
        fprintf(stderr, "the server ended with %d; its log:\n%s\n", code, s->log);
    close(s->out);
    close(s->err);
    free(s->log);
    free(s);
    return code;
}

void server_stop(struct server *s)
{
    assert_int_equal(server_end(s, SIGTERM), 0);
}

int program_run(const char *const *args, char **ret_out, char **ret_err)
{
    int fd[2];
    char *text[2] = {calloc(1, 1), calloc(1, 1)};
    size_t n[2] = {0, 0};
    bool open[2] = {true, true};
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    pid_t pid = spawn(args, NULL, &fd[0], &fd[1]);
    while (open[0] || open[1]) {
        struct pollfd p[2] = {{.fd = open[0] ? fd[0] : -1, .events = POLLIN},
                              {.fd = open[1] ? fd[1] : -1, .events = POLLIN}};
        int64_t left = deadline - now_ms();
        if (poll(p, 2, left > 0 ? (int)left : 0) <= 0) {
            kill(pid, SIGKILL);
            fail_msg("the program does not end; it said:\n%s%s", text[0], text[1]);
        }
        for (int i = 0; i < 2; i++)
            if (p[i].revents)
                open[i] = read_more(fd[i], &text[i], &n[i]);
    }
    for (int i = 0; i < 2; i++) {
        char **ret = i ? ret_err : ret_out;
        close(fd[i]);
        if (ret)
            *ret = text[i];
        else
            free(text[i]);
    }
    return exit_code(pid);
}

/* --- raw sockets -------------------------------------------------------------------------------*/

struct raw *raw_open(const struct server *s)
{
    struct raw *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->in = calloc(1, 1);
    if (s->port) {
        struct sockaddr_in in = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)s->port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(r->fd, (struct sockaddr *)&in, sizeof in), 0);
    } else {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        memcpy(un.sun_path, s->unix_path, sizeof s->unix_path);
        r->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(r->fd, (struct sockaddr *)&un, sizeof un), 0);
    }
    assert_int_equal(fcntl(r->fd, F_SETFL, O_NONBLOCK), 0);
    return r;
}

void raw_close(struct raw *r)
{
    if (!r)
        return;
    close(r->fd);
    free(r->in);
    free(r);
}

ssize_t raw_send_some(struct raw *r, const void *bytes, size_t n)
{
    ssize_t k = send(r->fd, bytes, n, MSG_NOSIGNAL);
    return k >= 0 ? k : errno == EAGAIN ? 0 : -1;
}

void raw_send(struct raw *r, const void *bytes, size_t n)
{
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    const char *b = bytes;
    while (n > 0) {
        ssize_t k = raw_send_some(r, b, n);
        if (k < 0)
            fail_msg("the server has closed the connection: %s", strerror(errno));
        b += k;
        n -= (size_t)k;
        if (n > 0 && !wait_fd(r->fd, POLLOUT, deadline))
            fail_msg("the server does not read");
    }
}

void raw_puts(struct raw *r, const char *text)
{
    raw_send(r, text, strlen(text));
}

/* false: nothing more will come. */
static bool raw_more(struct raw *r, int64_t deadline)
{
    if (r->eof)
        return false;
    if (!wait_fd(r->fd, POLLIN, deadline))
        fail_msg("the server sends nothing more; so far:\n%s", r->in);
    r->in = realloc(r->in, r->n_in + 65537);
    assert_non_null(r->in);
    ssize_t k = recv(r->fd, r->in + r->n_in, 65536, 0);
    r->reset = k < 0;
    r->eof = k <= 0;
    if (k > 0)
        r->n_in += (size_t)k;
    r->in[r->n_in] = '\0';
    return k > 0;
}

static void raw_take(struct raw *r, size_t n)
{
    memmove(r->in, r->in + n, r->n_in - n + 1);
    r->n_in -= n;
}

static void need(struct raw *r, size_t n, int64_t deadline)
{
    while (r->n_in < n)
        if (!raw_more(r, deadline))
            fail_msg("the response ends too early; so far:\n%s", r->in);
}

bool raw_header(const struct raw_response *p, const char *name, char *dst, size_t dst_size)
{
    size_t n = strlen(name);
    for (const char *line = strstr(p->head, "\r\n"); line && line[2] != '\r' && line[2];
         line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, name, n) != 0 || line[2 + n] != ':')
            continue;
        const char *v = line + 2 + n + 1;
        v += strspn(v, " ");
        size_t len = strcspn(v, "\r");
        assert_true(len < dst_size);
        memcpy(dst, v, len);
        dst[len] = '\0';
        return true;
    }
    return false;
}

static void append(struct raw_response *p, const char *bytes, size_t n)
{
    p->body = realloc(p->body, p->n_body + n + 1);
    assert_non_null(p->body);
    memcpy(p->body + p->n_body, bytes, n);
    p->n_body += n;
    p->body[p->n_body] = '\0';
}

static void read_chunked(struct raw *r, struct raw_response *p, int64_t deadline)
{
    unsigned long size;
    do {
        while (!strstr(r->in, "\r\n"))
            need(r, r->n_in + 1, deadline);
        char *end;
        size = strtoul(r->in, &end, 16);
        assert_memory_equal(end, "\r\n", 2);
        raw_take(r, (size_t)(end - r->in) + 2);
        need(r, size + 2, deadline);
        append(p, r->in, size);
        assert_memory_equal(r->in + size, "\r\n", 2);
        raw_take(r, size + 2);
    } while (size > 0);
}

struct raw_response *raw_read(struct raw *r, bool no_body)
{
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    struct raw_response *p = calloc(1, sizeof *p);
    char value[64];
    assert_non_null(p);
    append(p, "", 0);
    char *end;
    while (!(end = strstr(r->in, "\r\n\r\n")))
        need(r, r->n_in + 1, deadline);
    p->head = strndup(r->in, (size_t)(end - r->in) + 4);
    raw_take(r, (size_t)(end - r->in) + 4);
    assert_int_equal(sscanf(p->head, "HTTP/1.1 %d ", &p->status), 1);
    bool length = raw_header(p, "Content-Length", value, sizeof value);
    if (no_body || p->status < 200 || p->status == 204 || p->status == 304)
        return p;
    if (length) {
        size_t n = strtoul(value, NULL, 10);
        need(r, n, deadline);
        append(p, r->in, n);
        raw_take(r, n);
    } else if (raw_header(p, "Transfer-Encoding", value, sizeof value)) {
        assert_string_equal(value, "chunked");
        p->chunked = true;
        read_chunked(r, p, deadline);
    } else { /* until the end of file */
        assert_true(raw_header(p, "Connection", value, sizeof value));
        assert_string_equal(value, "close");
        while (raw_more(r, deadline))
            ;
        append(p, r->in, r->n_in);
        raw_take(r, r->n_in);
    }
    return p;
}

void raw_response_free(struct raw_response *p)
{
    if (!p)
        return;
    free(p->head);
    free(p->body);
    free(p);
}

bool raw_wait_closed(struct raw *r)
{
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    while (raw_more(r, deadline))
        ;
    if (r->n_in > 0)
        fail_msg("bytes that nobody asked for:\n%s", r->in);
    return !r->reset;
}

bool raw_says(struct raw *r, const char *text)
{
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    while (raw_more(r, deadline))
        ;
    return strstr(r->in, text) != NULL;
}

void raw_wait_text(struct raw *r, const char *text)
{
    int64_t deadline = now_ms() + SERVER_DEADLINE_MS;
    while (!strstr(r->in, text))
        need(r, r->n_in + 1, deadline);
}

struct raw_response *raw_ask(const struct server *s, const char *text)
{
    struct raw *r = raw_open(s);
    raw_puts(r, text);
    struct raw_response *p = raw_read(r, strncmp(text, "HEAD ", 5) == 0);
    raw_close(r);
    return p;
}

void raw_expect(struct raw *r, int status)
{
    struct raw_response *p = raw_read(r, false);
    if (p->status != status)
        fail_msg("%d was expected, but\n%s%s", status, p->head, p->body);
    raw_response_free(p);
}

void raw_expect_ask(const struct server *s, const char *text, int status, const char *part)
{
    struct raw_response *p = raw_ask(s, text);
    if (p->status != status || (!strstr(p->head, part) && !strstr(p->body, part)))
        fail_msg("%s\n%d with '%s' was expected, but\n%s%s", text, status, part, p->head, p->body);
    raw_response_free(p);
}

double raw_metric(const struct server *s, const char *name)
{
    struct raw_response *p = raw_ask(s, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    char line[96];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(p->body, line);
    assert_non_null(at);
    double v = strtod(at + strlen(line), NULL);
    raw_response_free(p);
    return v;
}

void raw_long_stream(struct raw *r)
{
    static const char body[] = "{\"prompt\":\"Once\",\"max_tokens\":1000000,\"ignore_eos\":true,"
                               "\"logprobs\":20,\"return_tokens\":true,\"stream\":true}";
    char head[256];
    snprintf(head, sizeof head,
             "POST /v1/generate HTTP/1.1\r\n"
             "Host: localhost\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             sizeof body - 1);
    raw_puts(r, head);
    raw_puts(r, body);
}
