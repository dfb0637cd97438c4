/* intercept.c: see intercept.h. */
#include "tests/fault/intercept.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/async.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <uv.h>

const struct intercept_row intercept_rows[INTERCEPT_KIND_COUNT] = {
#define X(name, ...) {#name, {__VA_ARGS__}},
    INTERCEPT_KINDS(X)
#undef X
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t counts[INTERCEPT_KIND_COUNT];
static int armed = -1; /* a kind; -1: none */
static uint64_t countdown;
static int error_given;
static bool reached;
static _Thread_local bool not_here;

void intercept_not_here(void)
{
    not_here = true;
}

void intercept_clear(void)
{
    pthread_mutex_lock(&lock);
    armed = -1;
    for (size_t i = 0; i < INTERCEPT_KIND_COUNT; i++)
        counts[i] = 0;
    pthread_mutex_unlock(&lock);
}

void intercept_fail(enum intercept_kind kind, uint64_t n, int error)
{
    intercept_clear();
    pthread_mutex_lock(&lock);
    armed = (int)kind;
    countdown = n;
    error_given = error;
    reached = false;
    pthread_mutex_unlock(&lock);
}

bool intercept_end(void)
{
    pthread_mutex_lock(&lock);
    bool was = armed >= 0 && reached;
    armed = -1;
    pthread_mutex_unlock(&lock);
    return was;
}

uint64_t intercept_count(enum intercept_kind kind)
{
    pthread_mutex_lock(&lock);
    uint64_t n = counts[kind];
    pthread_mutex_unlock(&lock);
    return n;
}

/* The error that this call gives; 0: none. */
static int now(enum intercept_kind kind)
{
    int e = 0;
    if (not_here)
        return 0;
    pthread_mutex_lock(&lock);
    counts[kind]++;
    if (armed == (int)kind && !reached && countdown-- == 0) {
        reached = true;
        e = error_given;
    }
    pthread_mutex_unlock(&lock);
    return e;
}

static void *real(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);
    if (!f) {
        fprintf(stderr, "there is no %s\n", name);
        abort();
    }
    return f;
}

/* Is it a socket or a file? Others are libuv's pipes and events. */
static bool matters(int fd)
{
    struct stat st;
    int e = errno;
    long rc = syscall(SYS_fstat, fd, &st); /* not the one that fails */
    errno = e;
    return rc == 0 && (S_ISSOCK(st.st_mode) || S_ISREG(st.st_mode));
}

/* The real function, found once. */
#define REAL(name)                                                                                 \
    static __typeof__(&name) next;                                                                 \
    if (!__atomic_load_n(&next, __ATOMIC_ACQUIRE))                                                 \
    __atomic_store_n(&next, (__typeof__(&name))(uintptr_t)real(#name), __ATOMIC_RELEASE)

/* A function that fails with -1 and errno. */
#define FAIL_ERRNO(name, ...)                                                                      \
    REAL(name);                                                                                    \
    int e_ = now(INTERCEPT_##name);                                                                \
    if (e_) {                                                                                      \
        errno = e_;                                                                                \
        return -1;                                                                                 \
    }                                                                                              \
    return next(__VA_ARGS__)

/* One of libuv's, which returns the error. */
#define FAIL_UV(name, ...)                                                                         \
    REAL(name);                                                                                    \
    int e_ = now(INTERCEPT_##name);                                                                \
    return e_ ? uv_translate_sys_error(e_) : next(__VA_ARGS__)

/* One that moves n bytes, or one where it is to be short. */
#define FAIL_MOVE(name, counts_here, one, ...)                                                     \
    REAL(name);                                                                                    \
    int e_ = counts_here ? now(INTERCEPT_##name) : 0;                                              \
    if (e_ == INTERCEPT_SHORT)                                                                     \
        return one;                                                                                \
    if (e_) {                                                                                      \
        errno = e_;                                                                                \
        return -1;                                                                                 \
    }                                                                                              \
    return next(__VA_ARGS__)

/* --- libuv -------------------------------------------------------------------------------------*/

/* A real one that fails has closed what it accepted; here the client has it, and closes it. */
int uv_accept(uv_stream_t *server, uv_stream_t *client)
{
    REAL(uv_accept);
    int e = now(INTERCEPT_uv_accept), rc = next(server, client);
    return e ? uv_translate_sys_error(e) : rc;
}

int uv_read_start(uv_stream_t *s, uv_alloc_cb alloc, uv_read_cb read_cb)
{
    FAIL_UV(uv_read_start, s, alloc, read_cb);
}

int uv_write(uv_write_t *w, uv_stream_t *s, const uv_buf_t *b, unsigned n, uv_write_cb cb)
{
    FAIL_UV(uv_write, w, s, b, n, cb);
}

int uv_try_write(uv_stream_t *s, const uv_buf_t *b, unsigned n)
{
    FAIL_UV(uv_try_write, s, b, n);
}

int uv_shutdown(uv_shutdown_t *r, uv_stream_t *s, uv_shutdown_cb cb)
{
    FAIL_UV(uv_shutdown, r, s, cb);
}

int uv_fileno(const uv_handle_t *h, uv_os_fd_t *fd)
{
    FAIL_UV(uv_fileno, h, fd);
}

int uv_poll_init(uv_loop_t *loop, uv_poll_t *h, int fd)
{
    FAIL_UV(uv_poll_init, loop, h, fd);
}

int uv_poll_start(uv_poll_t *h, int events, uv_poll_cb cb)
{
    FAIL_UV(uv_poll_start, h, events, cb);
}

int uv_tcp_nodelay(uv_tcp_t *h, int on)
{
    FAIL_UV(uv_tcp_nodelay, h, on);
}

int uv_tcp_keepalive(uv_tcp_t *h, int on, unsigned delay)
{
    FAIL_UV(uv_tcp_keepalive, h, on, delay);
}

/* --- hiredis -----------------------------------------------------------------------------------*/

redisAsyncContext *redisAsyncConnect(const char *ip, int port)
{
    REAL(redisAsyncConnect);
    return now(INTERCEPT_redisAsyncConnect) ? NULL : next(ip, port);
}

int redisAsyncSetConnectCallback(redisAsyncContext *ac, redisConnectCallback *fn)
{
    REAL(redisAsyncSetConnectCallback);
    return now(INTERCEPT_redisAsyncSetConnectCallback) ? REDIS_ERR : next(ac, fn);
}

int redisAsyncCommandArgv(redisAsyncContext *ac, redisCallbackFn *fn, void *arg, int argc,
                          const char **argv, const size_t *argvlen)
{
    REAL(redisAsyncCommandArgv);
    return now(INTERCEPT_redisAsyncCommandArgv) ? REDIS_ERR
                                                : next(ac, fn, arg, argc, argv, argvlen);
}

/* --- sockets -----------------------------------------------------------------------------------*/

int accept4(int fd, struct sockaddr *a, socklen_t *n, int flags)
{
    FAIL_ERRNO(accept4, fd, a, n, flags);
}

ssize_t read(int fd, void *p, size_t n)
{
    FAIL_MOVE(read, matters(fd), next(fd, p, n ? 1 : 0), fd, p, n);
}

ssize_t write(int fd, const void *p, size_t n)
{
    FAIL_MOVE(write, matters(fd), next(fd, p, n ? 1 : 0), fd, p, n);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    struct iovec one = {v[0].iov_base, v[0].iov_len ? 1 : 0};
    FAIL_MOVE(writev, matters(fd), next(fd, &one, 1), fd, v, n);
}

ssize_t recv(int fd, void *p, size_t n, int flags)
{
    FAIL_ERRNO(recv, fd, p, n, flags);
}

int shutdown(int fd, int how)
{
    FAIL_ERRNO(shutdown, fd, how);
}

int setsockopt(int fd, int level, int name, const void *v, socklen_t n)
{
    FAIL_ERRNO(setsockopt, fd, level, name, v, n);
}

int getsockopt(int fd, int level, int name, void *v, socklen_t *n)
{
    FAIL_ERRNO(getsockopt, fd, level, name, v, n);
}

int socket(int domain, int type, int protocol)
{
    FAIL_ERRNO(socket, domain, type, protocol);
}

int connect(int fd, const struct sockaddr *a, socklen_t n)
{
    FAIL_ERRNO(connect, fd, a, n);
}

int epoll_ctl(int epoll, int what, int fd, struct epoll_event *ev)
{
    if (what != EPOLL_CTL_ADD || ev->events != EPOLLRDHUP) { /* libuv's own */
        REAL(epoll_ctl);
        return next(epoll, what, fd, ev);
    }
    FAIL_ERRNO(epoll_ctl, epoll, what, fd, ev);
}

/* --- files -------------------------------------------------------------------------------------*/

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    FAIL_ERRNO(openat, dir, path, flags, mode);
}

/* Up to six arguments, whatever was given: those that were not are read all the same. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...)
{
    REAL(syscall);
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    int e = number == SYS_openat2 ? now(INTERCEPT_openat2) : 0;
    if (e) {
        errno = e;
        return -1;
    }
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* As the kernel does it: the number is free, whatever the error was. */
int close(int fd)
{
    REAL(close);
    int e = matters(fd) ? now(INTERCEPT_close) : 0, rc = next(fd);
    if (e) {
        errno = e;
        return -1;
    }
    return rc;
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    FAIL_MOVE(pread, true, next(fd, p, n ? 1 : 0, at), fd, p, n, at);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    FAIL_MOVE(pwrite, true, next(fd, p, n ? 1 : 0, at), fd, p, n, at);
}

int fdatasync(int fd)
{
    FAIL_ERRNO(fdatasync, fd);
}

int fsync(int fd)
{
    FAIL_ERRNO(fsync, fd);
}

int ftruncate(int fd, off_t n)
{
    FAIL_ERRNO(ftruncate, fd, n);
}

int fstat(int fd, struct stat *st)
{
    FAIL_ERRNO(fstat, fd, st);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    FAIL_ERRNO(mkdirat, dir, path, mode);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    FAIL_ERRNO(renameat, from_dir, from, to_dir, to);
}

int unlinkat(int dir, const char *path, int flags)
{
    FAIL_ERRNO(unlinkat, dir, path, flags);
}

ssize_t getrandom(void *p, size_t n, unsigned flags)
{
    FAIL_ERRNO(getrandom, p, n, flags);
}
