/* intercept.h: calls of libuv, hiredis and the system, made to fail one at a time.
 *
 * intercept.c defines the functions themselves, so that the whole program, libuv and hiredis
 * included, calls those; each calls the real one but for the one call that is told to fail. Calls
 * of threads that said intercept_not_here() are neither counted nor made to fail. One fault at a
 * time.
 *
 * Not among them, since they cannot fail but by a mistake of the caller's: uv_queue_work (it has no
 * function to run), uv_timer_*, uv_idle_*, uv_async_send, uv_read_stop, uv_tcp_init, uv_pipe_init;
 * and what libuv itself answers with abort() (its epoll, eventfd and thread calls; epoll_ctl fails
 * where the server watches for a hang-up). A read or write counts where it is one of a socket or of
 * a file: libuv's own pipes are not allowed to fail, either. */
#ifndef SLATE_TESTS_INTERCEPT_H
#define SLATE_TESTS_INTERCEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* SHORT: one byte is moved, which is no error. */
enum { INTERCEPT_SHORT = -1, INTERCEPT_ERRORS_MAX = 5 };

/* name, how it fails */
#define INTERCEPT_KINDS(X)                                                                         \
    X(uv_accept, EMFILE)                                                                           \
    X(uv_read_start, ENOTCONN)                                                                     \
    X(uv_write, ENOMEM)                                                                            \
    X(uv_try_write, EAGAIN, EPIPE)                                                                 \
    X(uv_shutdown, ENOMEM)                                                                         \
    X(uv_fileno, EBADF)                                                                            \
    X(uv_poll_init, ENOMEM)                                                                        \
    X(uv_poll_start, EBADF)                                                                        \
    X(uv_tcp_nodelay, EINVAL)                                                                      \
    X(uv_tcp_keepalive, EINVAL)                                                                    \
    X(redisAsyncConnect, ENOMEM)                                                                   \
    X(redisAsyncSetConnectCallback, ENOMEM)                                                        \
    X(redisAsyncCommandArgv, ENOMEM)                                                               \
    X(accept4, ECONNABORTED, EMFILE, EINTR)                                                        \
    X(read, ECONNRESET, EIO, EINTR, INTERCEPT_SHORT)                                               \
    X(write, EPIPE, EIO, EINTR, INTERCEPT_SHORT)                                                   \
    X(writev, EPIPE, ENOBUFS, EINTR, INTERCEPT_SHORT)                                              \
    X(recv, ECONNRESET)                                                                            \
    X(shutdown, ENOTCONN)                                                                          \
    X(setsockopt, EINVAL)                                                                          \
    X(getsockopt, EINVAL)                                                                          \
    X(socket, EMFILE)                                                                              \
    X(connect, ECONNREFUSED, ENETUNREACH)                                                          \
    X(epoll_ctl, ENOSPC)                                                                           \
    X(openat, EMFILE, EIO)                                                                         \
    X(openat2, EMFILE, EIO)                                                                        \
    X(close, EIO)                                                                                  \
    X(pread, EIO, EINTR, INTERCEPT_SHORT)                                                          \
    X(pwrite, ENOSPC, EIO, EINTR, INTERCEPT_SHORT)                                                 \
    X(fdatasync, EIO)                                                                              \
    X(fsync, EIO)                                                                                  \
    X(ftruncate, EIO)                                                                              \
    X(fstat, EIO)                                                                                  \
    X(mkdirat, ENOSPC)                                                                             \
    X(renameat, EIO)                                                                               \
    X(unlinkat, EIO)                                                                               \
    X(getrandom, EAGAIN)

enum intercept_kind {
#define X(name, ...) INTERCEPT_##name,
    INTERCEPT_KINDS(X)
#undef X
        INTERCEPT_KIND_COUNT
};

struct intercept_row {
    const char *name;
    int errors[INTERCEPT_ERRORS_MAX]; /* up to a 0 */
};
extern const struct intercept_row intercept_rows[INTERCEPT_KIND_COUNT];

/* The calling thread is the test's, not the program's. */
void intercept_not_here(void);

/* From now on the n-th call (from 0) of the kind fails so, once. */
void intercept_fail(enum intercept_kind kind, uint64_t n, int error);
/* No more; true: the call was reached. */
bool intercept_end(void);
/* Calls of the kind since intercept_fail(), or since the start. */
uint64_t intercept_count(enum intercept_kind kind);
void intercept_clear(void); /* counts anew, nothing fails */

#endif
