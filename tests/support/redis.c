/* redis.c: see redis.h. */
#include "tests/support/redis.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/balancer.h"
#include "tests/support/client.h"
#include "tests/support/tree.h"

static void become(const struct redis *r)
{
    enum { FIXED = 24 };
    const char *argv[FIXED + REDIS_OPTIONS_MAX + 1];
    char log[700], port[16];
    int n = 0;
    snprintf(log, sizeof log, "%s/output.log", r->folder);
    snprintf(port, sizeof port, "%u", r->port);
    const char *const inside[] = {"ip", "netns", "exec", r->netns};
    for (size_t i = 0; r->netns[0] && i < sizeof inside / sizeof *inside; i++)
        argv[n++] = inside[i];
    const char *const fixed[] = {"redis-server",
                                 "--port",
                                 port,
                                 "--bind",
                                 r->netns[0] ? "0.0.0.0" : r->host,
                                 "--protected-mode",
                                 "no",
                                 "--dir",
                                 r->data,
                                 "--appendonly",
                                 "yes",
                                 "--appendfsync",
                                 "always",
                                 "--save",
                                 "",
                                 "--maxmemory-policy",
                                 "noeviction"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = fixed[i];
    for (size_t i = 0; r->options[i]; i++)
        argv[n++] = r->options[i];
    argv[n] = NULL;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static bool ended(const struct redis *r, int wait_ms)
{
    struct pollfd p = {.fd = r->pidfd, .events = POLLIN};
    return poll(&p, 1, wait_ms) > 0;
}

static bool answers(const struct redis *r)
{
    const struct timeval limit = {.tv_sec = 1};
    redisContext *c = redisConnectWithTimeout(r->host, (int)r->port, limit);
    redisReply *reply = NULL;
    bool ok = c && !c->err && redisSetTimeout(c, limit) == REDIS_OK &&
              (reply = redisCommand(c, "PING")) && reply->type == REDIS_REPLY_STATUS;
    if (reply)
        freeReplyObject(reply);
    if (c)
        redisFree(c);
    return ok;
}

void redis_start(struct redis *r)
{
    int64_t deadline = client_now_ms() + REDIS_DEADLINE_MS;
    assert_int_equal(r->pid, 0);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid == 0)
        become(r);
    r->pidfd = pidfd_open(r->pid, 0);
    assert_true(r->pidfd >= 0);
    while (!answers(r)) {
        if (!ended(r, 5) && client_now_ms() < deadline)
            continue;
        fail_msg("redis-server does not answer; see %s/output.log", r->folder);
    }
}

static void make_folder(struct redis *r, const char *name)
{
    char path[512], real[512];
    const char *build = getenv("SLATE_BUILD");
    snprintf(path, sizeof path, "%s/cluster", build ? build : "build/release");
    if ((mkdir(path, 0777) && errno != EEXIST) || !realpath(path, real))
        fail_msg("%s: %s", path, strerror(errno));
    snprintf(r->folder, sizeof r->folder, "%s/redis-%s-%s", real, program_invocation_short_name,
             name);
    remove_tree(r->folder);
    assert_int_equal(mkdir(r->folder, 0777), 0);
    snprintf(r->spec, sizeof r->spec, "redis://%s:%u", r->host, r->port);
    snprintf(r->data, sizeof r->data, "%s/slate-redis-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(r->data));
}

void redis_init(struct redis *r, const char *name, const char *const *options)
{
    *r = (struct redis){.port = free_port(), .host = "127.0.0.1"};
    make_folder(r, name);
    for (size_t i = 0; options && options[i]; i++) {
        assert_true(i < REDIS_OPTIONS_MAX);
        r->options[i] = options[i];
    }
    redis_start(r);
}

/* Commands of the system, quietly; did all succeed? */
static bool system_does(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static bool system_does(const char *fmt, ...)
{
    char command[1000], quiet[1100];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    snprintf(quiet, sizeof quiet, "PATH=$PATH:/usr/sbin:/sbin; { %s ; } >/dev/null 2>&1", command);
    return system(quiet) == 0;
}

void redis_start_empty(struct redis *r)
{
    remove_tree(r->data);
    assert_int_equal(mkdir(r->data, 0700), 0);
    redis_start(r);
}

static void name_copy(const struct redis *r, char ret[80])
{
    snprintf(ret, 80, "%s.kept", r->data);
}

void redis_keep_copy(struct redis *r)
{
    char kept[80];
    name_copy(r, kept);
    remove_tree(kept);
    assert_true(system_does("cp -a %s %s", r->data, kept));
}

void redis_start_older(struct redis *r)
{
    char kept[80];
    name_copy(r, kept);
    remove_tree(r->data);
    assert_true(system_does("cp -a %s %s", kept, r->data));
    redis_start(r);
}

/* Names and addresses follow from the process's number, so that tests do not meet. */
bool redis_init_far(struct redis *r, const char *name)
{
    enum { PORT = 6379 };
    unsigned id = (unsigned)getpid() % 16384, a = 64 + id / 256, b = id % 256;
    *r = (struct redis){.port = PORT};
    snprintf(r->netns, sizeof r->netns, "slate-%u", id);
    snprintf(r->host, sizeof r->host, "10.%u.%u.2", a, b);
    (void)system_does("ip netns del %s", r->netns);
    if (geteuid() != 0 ||
        !system_does("ip netns add %s && ip link add sl%u type veth peer name far netns %s && "
                     "ip addr add 10.%u.%u.1/30 dev sl%u && ip link set sl%u up && "
                     "ip netns exec %s ip addr add %s/30 dev far && "
                     "ip netns exec %s ip link set far up && ip netns exec %s ip link set lo up",
                     r->netns, id, r->netns, a, b, id, id, r->netns, r->host, r->netns, r->netns)) {
        (void)system_does("ip netns del %s", r->netns);
        return false;
    }
    make_folder(r, name);
    redis_start(r);
    return true;
}

void redis_apart(struct redis *r, char ret_netns[32], char ret_spec[64])
{
    unsigned a, b, i = r->n_apart++, here = 8 + 4 * i;
    assert_int_equal(sscanf(r->host, "10.%u.%u.2", &a, &b), 2);
    assert_true(here + 3 < 256);
    snprintf(ret_netns, 32, "%.20s-%u", r->netns, i % 100);
    snprintf(ret_spec, 64, "redis://10.%u.%u.%u:%u", a, b, here + 2, r->port);
    (void)system_does("ip netns del %s", ret_netns);
    assert_true(system_does(
        "ip netns add %s && ip link add wire netns %s type veth peer name apart%u netns %s && "
        "ip -n %s addr add 10.%u.%u.%u/30 dev wire && ip -n %s link set wire up && "
        "ip -n %s link set lo up && ip -n %s addr add 10.%u.%u.%u/30 dev apart%u && "
        "ip -n %s link set apart%u up",
        ret_netns, ret_netns, i, r->netns, ret_netns, a, b, here + 1, ret_netns, ret_netns,
        r->netns, a, b, here + 2, i, r->netns, i));
}

void redis_cut_apart(const char *netns, bool cut)
{
    assert_true(system_does("ip -n %s link set wire %s", netns, cut ? "down" : "up"));
}

void redis_signal(struct redis *r, int signal)
{
    assert_int_equal(kill(r->pid, signal), 0);
}

void redis_end(struct redis *r, int signal)
{
    redis_signal(r, signal);
    if (!ended(r, REDIS_DEADLINE_MS))
        fail_msg("redis-server does not end; see %s/output.log", r->folder);
    waitpid(r->pid, NULL, 0);
    close(r->pidfd);
    r->pid = 0;
}

void redis_done(struct redis *r)
{
    char kept[80];
    if (r->pid) {
        redis_signal(r, SIGCONT);
        redis_end(r, SIGKILL);
    }
    for (unsigned i = 0; i < r->n_apart; i++)
        (void)system_does("ip netns del %s-%u", r->netns, i);
    if (r->netns[0])
        (void)system_does("ip netns del %s", r->netns); /* and the wires */
    remove_tree(r->folder);
    remove_tree(r->data);
    name_copy(r, kept);
    remove_tree(kept);
}

static redisContext *say(struct redis *r, const char *fmt, va_list args)
{
    redisContext *c = redisConnect(r->host, (int)r->port);
    if (!c || c->err)
        fail_msg("redis: %s", c ? c->errstr : "no memory");
    /* Once it has answered here, it reads what is said here before what others say later. */
    redisReply *pong = redisCommand(c, "PING");
    assert_non_null(pong);
    freeReplyObject(pong);
    assert_int_equal(redisvAppendCommand(c, fmt, args), REDIS_OK);
    for (int done = 0; !done;)
        assert_int_equal(redisBufferWrite(c, &done), REDIS_OK);
    return c;
}

redisContext *redis_say(struct redis *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    redisContext *c = say(r, fmt, args);
    va_end(args);
    return c;
}

static redisReply *ask(struct redis *r, const char *fmt, va_list args)
{
    void *reply = NULL;
    redisContext *c = say(r, fmt, args);
    if (redisGetReply(c, &reply) != REDIS_OK)
        fail_msg("redis, %s: %s", fmt, c->errstr);
    redisFree(c);
    return reply;
}

redisReply *redis_ask(struct redis *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    redisReply *reply = ask(r, fmt, args);
    va_end(args);
    return reply;
}

void redis_do(struct redis *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    redisReply *reply = ask(r, fmt, args);
    va_end(args);
    if (reply->type == REDIS_REPLY_ERROR)
        fail_msg("redis, %s: %s", fmt, reply->str);
    freeReplyObject(reply);
}

long long redis_n_keys(struct redis *r)
{
    redisReply *reply = redis_ask(r, "DBSIZE");
    long long n = reply->integer;
    freeReplyObject(reply);
    return n;
}
