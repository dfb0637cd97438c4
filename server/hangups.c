/* hangups.c: see hangups.h. */
#include "server/hangups.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS = 64 };

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct sl_hangups *h = poll->data;
    struct epoll_event ev[EVENTS];
    (void)status;
    (void)events;
    int n = epoll_wait(h->epoll, ev, EVENTS, 0);
    for (int i = 0; i < n; i++)
        h->hung_up(ev[i].data.ptr);
}

enum sl_code sl_hangups_open(struct sl_hangups *h, uv_loop_t *loop, void (*hung_up)(void *arg),
                             struct sl_error *err)
{
    int fd = epoll_create1(EPOLL_CLOEXEC), e = fd < 0 ? uv_translate_sys_error(errno) : 0;
    if (!e)
        e = uv_poll_init(loop, &h->poll, fd);
    if (e) {
        if (fd >= 0)
            close(fd);
        return sl_fail(err, SL_E_INTERNAL, "connections cannot be watched: %s", uv_strerror(e));
    }
    h->poll.data = h;
    h->epoll = fd;
    h->hung_up = hung_up;
    h->open = true;
    e = uv_poll_start(&h->poll, UV_READABLE, on_readable);
    if (e) {
        sl_hangups_close(h);
        return sl_fail(err, SL_E_INTERNAL, "connections cannot be watched: %s", uv_strerror(e));
    }
    uv_unref((uv_handle_t *)&h->poll); /* it alone keeps no loop running */
    return SL_OK;
}

void sl_hangups_close(struct sl_hangups *h)
{
    if (!h->open)
        return;
    h->open = false;
    uv_poll_stop(&h->poll);
    uv_close((uv_handle_t *)&h->poll, NULL);
    close(h->epoll);
}

bool sl_hangups_add(struct sl_hangups *h, int fd, void *arg)
{
    /* EPOLLERR and EPOLLHUP are told unasked. */
    struct epoll_event ev = {.events = EPOLLRDHUP, .data.ptr = arg};
    return h->open && epoll_ctl(h->epoll, EPOLL_CTL_ADD, fd, &ev) == 0;
}

void sl_hangups_remove(struct sl_hangups *h, int fd)
{
    if (h->open)
        (void)epoll_ctl(h->epoll, EPOLL_CTL_DEL, fd, NULL);
}
