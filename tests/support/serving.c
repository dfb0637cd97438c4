/* serving.c: see serving.h. */
#include "tests/support/serving.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/cli/limits.h"
#include "server/cli/peer.h"

enum { ARGS_MAX = 32, AT_ONCE_MAX = 64 };

void serving_die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static struct curl_slist *json_header(void)
{
    static struct curl_slist *h;
    if (!h)
        h = curl_slist_append(NULL, "Content-Type: application/json");
    return h;
}

static size_t keep(void *data, size_t size, size_t n, void *arg)
{
    struct answer *a = arg;
    size_t room = sizeof a->text - 1 - a->n, k = size * n < room ? size * n : room;
    memcpy(a->text + a->n, data, k);
    a->n += k;
    a->text[a->n] = '\0';
    return size * n;
}

static size_t drop(void *data, size_t size, size_t n, void *arg)
{
    (void)data;
    (void)arg;
    return size * n;
}

/* An answer to none is status 0. */
static void ask(struct serving *s, struct answer *ret, const char *path, const char *body)
{
    char url[512];
    *ret = (struct answer){.status = 0};
    snprintf(url, sizeof url, "%s%s", s->base, path);
    curl_easy_reset(s->curl);
    curl_easy_setopt(s->curl, CURLOPT_URL, url);
    curl_easy_setopt(s->curl, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(s->curl, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(s->curl, CURLOPT_WRITEDATA, ret);
    if (body) {
        curl_easy_setopt(s->curl, CURLOPT_POSTFIELDS, body);
        if (*body)
            curl_easy_setopt(s->curl, CURLOPT_HTTPHEADER, json_header());
    }
    if (curl_easy_perform(s->curl) != CURLE_OK)
        return;
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &ret->status);
    curl_easy_getinfo(s->curl, CURLINFO_TOTAL_TIME, &ret->seconds);
    curl_easy_getinfo(s->curl, CURLINFO_STARTTRANSFER_TIME, &ret->first_seconds);
}

pid_t serving_child(const char *program, const char *const *args, int out)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(out < 0 ? null : out, STDOUT_FILENO);
        if (out < 0)
            dup2(null, STDERR_FILENO);
        execvp(program, (char *const *)(uintptr_t)args);
        _exit(127);
    }
    if (pid < 0)
        serving_die("no process");
    return pid;
}

unsigned serving_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) ||
        getsockname(fd, (struct sockaddr *)&a, &n))
        serving_die("no free port");
    close(fd);
    return ntohs(a.sin_port);
}

/* Until `path` is answered with 200. Asked without a pause it would have no processor to start on.
 */
static void wait_ready(struct serving *s, const char *path, int pause_ms)
{
    struct answer a = {.status = 0};
    s->curl = curl_easy_init();
    while (a.status != 200) {
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid)
            serving_die("the server does not start");
        ask(s, &a, path, NULL);
        poll(NULL, 0, a.status == 200 ? 0 : pause_ms);
    }
}

void serving_start(struct serving *s, const char *const *options)
{
    static char program[512];
    const char *args[ARGS_MAX + 1] = {program,       "serve",       "--listen",
                                      "127.0.0.1:0", "--log-level", "error"};
    const char *build = getenv("SLATE_BUILD");
    int out[2];
    char line[256] = "";
    snprintf(program, sizeof program, "%s/slate", build ? build : "build/release");
    for (size_t n = 6; *options && n < ARGS_MAX; n++)
        args[n] = *options++;
    if (pipe2(out, O_CLOEXEC))
        serving_die("no pipe");
    double begin = bench_now();
    s->pid = serving_child(args[0], args, out[1]);
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    if (!f || !fgets(line, sizeof line, f) || sscanf(line, "listening on %127s", s->base) != 1)
        serving_die("the server does not start");
    wait_ready(s, "/readyz", 1);
    s->ready_s = bench_now() - begin;
    fclose(f);
}

void serving_find_llama(char program[512], const char *build, const char *name)
{
    static const char *const places[] = {"", "bin/"};
    struct stat st;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(program, 512, "%s/%s%s", build, places[i], name);
        if (stat(program, &st) == 0 && S_ISREG(st.st_mode) && access(program, X_OK) == 0)
            return;
    }
    serving_die("--peer-llama: no such program there, nor in its bin/");
}

void serving_start_llama(struct serving *s, const char *build, const char *const *options)
{
    char program[512], port[16];
    const char *args[ARGS_MAX + 1] = {program, "--host", "127.0.0.1", "--port", port, "--no-mmap"};
    serving_find_llama(program, build, "llama-server");
    snprintf(port, sizeof port, "%u", serving_free_port());
    snprintf(s->base, sizeof s->base, "http://127.0.0.1:%s", port);
    for (size_t n = 6; *options && n < ARGS_MAX; n++)
        args[n] = *options++;
    double begin = bench_now();
    s->closes = true;
    bool tuned = sl_peer_tune();
    s->pid = serving_child(program, args, -1);
    sl_peer_untune(tuned);
    wait_ready(s, "/health", 20);
    s->ready_s = bench_now() - begin;
}

void serving_end(struct serving *s, int signal)
{
    curl_easy_cleanup(s->curl);
    kill(s->pid, signal);
    waitpid(s->pid, NULL, 0);
}

void serving_ask(struct serving *s, struct answer *ret, const char *path, const char *body)
{
    ask(s, ret, path, body);
    if (!ret->status)
        serving_die("no answer");
}

static void must_be_good(long status, const char *path, const char *text)
{
    if (status / 100 == 2)
        return;
    fprintf(stderr, "bench: %s: %ld %s\n", path, status, text);
    exit(1);
}

void serving_must(struct serving *s, struct answer *ret, const char *path, const char *body)
{
    ask(s, ret, path, body);
    must_be_good(ret->status, path, ret->text);
}

double answer_number(const struct answer *a, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *p = strstr(a->text, key);
    if (!p)
        serving_die(name);
    return strtod(p + strlen(key), NULL);
}

/* --- many at once --------------------------------------------------------------------------------
 */

struct slot {
    CURL *curl;
    char url[320], path[160], body[512];
};

static void next(struct serving *s, const struct serving_load *l, struct slot *k, size_t i)
{
    k->body[0] = '\0';
    l->make(l->arg, i, k->path, k->body);
    snprintf(k->url, sizeof k->url, "%s%s", s->base, k->path);
    curl_easy_setopt(k->curl, CURLOPT_URL, k->url);
    curl_easy_setopt(k->curl, CURLOPT_POSTFIELDS, k->body);
    curl_easy_setopt(k->curl, CURLOPT_HTTPHEADER, k->body[0] ? json_header() : NULL);
    curl_easy_setopt(k->curl, CURLOPT_WRITEFUNCTION, drop);
    curl_easy_setopt(k->curl, CURLOPT_PRIVATE, k);
}

double serving_run(struct serving *s, const struct serving_load *l)
{
    static struct slot slots[AT_ONCE_MAX];
    size_t started = 0, done = 0, n_slots = l->at_once < l->n ? l->at_once : l->n;
    CURLM *m = curl_multi_init();
    if (n_slots > AT_ONCE_MAX)
        serving_die("too many at once");
    for (; started < n_slots; started++) {
        slots[started].curl = curl_easy_init();
        next(s, l, &slots[started], started);
        curl_multi_add_handle(m, slots[started].curl);
    }
    double begin = bench_now();
    while (done < l->n) {
        int running, left;
        CURLMsg *msg;
        curl_multi_perform(m, &running);
        while ((msg = curl_multi_info_read(m, &left))) {
            long status = 0;
            struct slot *k;
            curl_easy_getinfo(msg->easy_handle, CURLINFO_RESPONSE_CODE, &status);
            curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&k);
            must_be_good(status, k->path, k->body);
            done++;
            curl_multi_remove_handle(m, k->curl);
            if (started < l->n) {
                next(s, l, k, started++);
                curl_multi_add_handle(m, k->curl);
            }
        }
        if (done < l->n)
            curl_multi_poll(m, NULL, 0, 100, NULL);
    }
    double took = bench_now() - begin;
    for (size_t i = 0; i < n_slots; i++)
        curl_easy_cleanup(slots[i].curl);
    curl_multi_cleanup(m);
    return took;
}

/* --- Redis --------------------------------------------------------------------------------------
 */

static bool is_up(unsigned port)
{
    char answer[8] = "";
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool up = connect(fd, (struct sockaddr *)&in, sizeof in) == 0 &&
              write(fd, "PING\r\n", 6) == 6 && read(fd, answer, 5) == 5 && answer[0] == '+';
    close(fd);
    return up;
}

pid_t serving_redis(const char *folder, unsigned *ret_port)
{
    unsigned port = *ret_port = serving_free_port();
    char text[16];
    const char *args[] = {"redis-server",
                          "--port",
                          text,
                          "--bind",
                          "127.0.0.1",
                          "--dir",
                          folder,
                          "--appendonly",
                          "yes",
                          "--appendfsync",
                          "always",
                          "--save",
                          "",
                          "--logfile",
                          "redis.log",
                          NULL};
    snprintf(text, sizeof text, "%u", port);
    pid_t pid = serving_child(args[0], args, -1);
    while (!is_up(port)) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            serving_die("redis-server does not start");
        poll(NULL, 0, 1);
    }
    return pid;
}
