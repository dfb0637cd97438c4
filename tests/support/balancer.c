/* balancer.c: see balancer.h. */
#include "tests/support/balancer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/client.h"

enum { CONFIG_MAX = 64 * 1024, ARGS_MAX = 16, PORT_MIN = 20000, N_PORTS = 10000 };

struct balancer {
    pid_t pid;
    int pidfd;
    unsigned port;
    char base[64];
    char folder[600]; /* of the copy, logs and temporary files; absolute */
};

/* --- ports -------------------------------------------------------------------------------------*/

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

unsigned free_port(void)
{
    static unsigned next;
    for (unsigned tries = 0; tries < N_PORTS; tries++) {
        unsigned port = PORT_MIN + ((unsigned)getpid() * 13 + next++) % N_PORTS;
        struct sockaddr_in in = loopback(port);
        int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        bool free = bind(fd, (struct sockaddr *)&in, sizeof in) == 0 && listen(fd, 1) == 0;
        close(fd);
        if (free)
            return port;
    }
    fail_msg("no port is free");
    return 0;
}

/* --- the copy of the file ----------------------------------------------------------------------*/

struct config {
    char text[CONFIG_MAX];
    size_t n;
};

static void config_read(struct config *c, const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s: %s", path, strerror(errno));
    c->n = fread(c->text, 1, sizeof c->text - 1, f);
    c->text[c->n] = '\0';
    assert_true(feof(f));
    fclose(f);
}

static void config_write(const struct config *c, const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f || fwrite(c->text, 1, c->n, f) != c->n || fclose(f) != 0)
        fail_msg("%s: %s", path, strerror(errno));
}

/* Each `from`, of which there must be one at least. */
static void config_replace(struct config *c, const char *from, const char *to)
{
    size_t n_from = strlen(from), n_to = strlen(to), n_found = 0;
    for (char *p = c->text; (p = strstr(p, from)); p += n_to, n_found++) {
        assert_true(c->n - n_from + n_to < sizeof c->text);
        memmove(p + n_to, p + n_from, c->n - (size_t)(p - c->text) - n_from + 1);
        for (size_t i = 0; i < n_to; i++)
            p[i] = to[i];
        c->n = c->n - n_from + n_to;
    }
    if (!n_found)
        fail_msg("the balancer's file has no '%s' any more", from);
}

static void replace_haproxy(struct config *c, const struct balancer *b)
{
    char listen[64];
    snprintf(listen, sizeof listen, "bind 127.0.0.1:%u", b->port);
    config_replace(c, "bind :8080", listen);
    config_replace(c, "log /dev/log local0", "log stderr format raw local0");
    config_replace(c, "chroot /var/lib/haproxy", "");
    config_replace(c, "user haproxy", "");
    config_replace(c, "group haproxy", "");
}

static void replace_nginx(struct config *c, const struct balancer *b)
{
    static const char *const temps[] = {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"};
    char listen[64], logs[700], http[5 * 700] = "http {\n";
    snprintf(listen, sizeof listen, "listen 127.0.0.1:%u;", b->port);
    config_replace(c, "listen 8080;", listen);
    snprintf(logs, sizeof logs, "%s/", b->folder);
    config_replace(c, "/var/log/nginx/", logs);
    config_replace(c, "user www-data;", "");
    for (size_t i = 0, n = strlen(http); i < sizeof temps / sizeof *temps; i++, n = strlen(http))
        snprintf(http + n, sizeof http - n, "%s_temp_path %s/%s;\n", temps[i], b->folder, temps[i]);
    config_replace(c, "http {\n", http);
}

/* --- the child ---------------------------------------------------------------------------------*/

static void become(struct balancer *b, const char *const *argv)
{
    char log[700], path[4096];
    const char *old = getenv("PATH");
    snprintf(log, sizeof log, "%s/output.log", b->folder);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    /* Debian has both where only root looks. */
    snprintf(path, sizeof path, "%s:/usr/local/sbin:/usr/sbin:/sbin", old ? old : "/usr/bin:/bin");
    setenv("PATH", path, 1);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Is it at its end? Waits so long for that. */
static bool ended(const struct balancer *b, int wait_ms)
{
    struct pollfd p = {.fd = b->pidfd, .events = POLLIN};
    return poll(&p, 1, wait_ms) > 0;
}

static bool accepts(unsigned port)
{
    struct sockaddr_in in = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    bool ok = connect(fd, (struct sockaddr *)&in, sizeof in) == 0;
    close(fd);
    return ok;
}

static void until_it_accepts(struct balancer *b)
{
    int64_t deadline = client_now_ms() + BALANCER_DEADLINE_MS;
    while (!accepts(b->port)) {
        if (!ended(b, 5) && client_now_ms() < deadline)
            continue;
        kill(b->pid, SIGKILL);
        waitpid(b->pid, NULL, 0);
        fail_msg("the balancer does not listen; see %s/output.log", b->folder);
    }
}

static void make_folder(struct balancer *b, const char *name)
{
    char path[512], real[512];
    const char *build = getenv("SLATE_BUILD");
    snprintf(path, sizeof path, "%s/cluster", build ? build : "build/release");
    if ((mkdir(path, 0777) && errno != EEXIST) || !realpath(path, real))
        fail_msg("%s: %s", path, strerror(errno));
    snprintf(b->folder, sizeof b->folder, "%s/%s", real, name);
    if (mkdir(b->folder, 0777) && errno != EEXIST)
        fail_msg("%s: %s", b->folder, strerror(errno));
}

static void replace_nodes(struct config *c, const unsigned *ports, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        char from[32], to[32];
        snprintf(from, sizeof from, "127.0.0.1:%u", 8081 + i);
        snprintf(to, sizeof to, "127.0.0.1:%u", ports[i]);
        config_replace(c, from, to);
    }
}

static const struct kind {
    const char *folder, *file;
    bool haproxy;
    unsigned n_nodes;
} kinds[BALANCER_KINDS] = {
    [BALANCER_HAPROXY] = {"haproxy", "deploy/haproxy.cfg", true, BALANCER_NODES},
    [BALANCER_NGINX] = {"nginx", "deploy/nginx.conf", false, BALANCER_NODES},
    [BALANCER_HAPROXY_FLEET] = {"haproxy-fleet", "deploy/haproxy-fleet.cfg", true,
                                BALANCER_FLEET_NODES},
    [BALANCER_NGINX_FLEET] = {"nginx-fleet", "deploy/nginx-fleet.conf", false,
                              BALANCER_FLEET_NODES}};

struct balancer *balancer_start(enum balancer_kind kind, const unsigned *node_ports)
{
    static struct config config;
    struct balancer *b = calloc(1, sizeof *b);
    const struct kind *k = &kinds[kind];
    bool haproxy = k->haproxy;
    char file[700], directives[800];
    assert_non_null(b);
    b->port = free_port();
    snprintf(b->base, sizeof b->base, "http://127.0.0.1:%u", b->port);
    make_folder(b, k->folder);
    config_read(&config, k->file);
    replace_nodes(&config, node_ports, k->n_nodes);
    (haproxy ? replace_haproxy : replace_nginx)(&config, b);
    snprintf(file, sizeof file, "%s/config", b->folder);
    config_write(&config, file);
    snprintf(directives, sizeof directives, "daemon off; master_process off; pid %s/pid;",
             b->folder);
    /* One process each, in the foreground, so that it cannot outlive the test. */
    const char *const haproxy_argv[] = {"haproxy", "-db", "-f", file, NULL};
    const char *const nginx_argv[] = {"nginx", "-p",     b->folder, "-c",       file,
                                      "-e",    "stderr", "-g",      directives, NULL};
    b->pid = fork();
    assert_true(b->pid >= 0);
    if (b->pid == 0)
        become(b, haproxy ? haproxy_argv : nginx_argv);
    b->pidfd = pidfd_open(b->pid, 0);
    assert_true(b->pidfd >= 0);
    until_it_accepts(b);
    return b;
}

const char *balancer_base(const struct balancer *b)
{
    return b->base;
}

void balancer_stop(struct balancer *b)
{
    if (!b)
        return;
    kill(b->pid, SIGTERM);
    bool orderly = ended(b, BALANCER_DEADLINE_MS);
    if (!orderly)
        kill(b->pid, SIGKILL);
    waitpid(b->pid, NULL, 0);
    close(b->pidfd);
    if (!orderly)
        fail_msg("the balancer does not end at SIGTERM; see %s/output.log", b->folder);
    free(b);
}
