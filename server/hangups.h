/* hangups.h: of sockets that are not read: when their other side has hung up.
 *
 * An epoll of its own, which the loop watches as one descriptor: libuv allows one handle per
 * socket, and its own epoll one entry. So a watched socket takes no second descriptor and no
 * memory, and --max-connections is what the limit of open files allows. Loop's thread. */
#ifndef SLATE_SERVER_HANGUPS_H
#define SLATE_SERVER_HANGUPS_H

#include <stdbool.h>
#include <uv.h>

#include "slate/err.h"

struct sl_hangups {
    uv_poll_t poll;
    int epoll;
    bool open;
    void (*hung_up)(void *arg);
};

/* hung_up gets the argument that the socket was added with, at each turn of the loop for as long as
 * it is watched; what that points to must live until the loop's close callbacks. INTERNAL. */
SL_NODISCARD enum sl_code sl_hangups_open(struct sl_hangups *h, uv_loop_t *loop,
                                          void (*hung_up)(void *arg), struct sl_error *err);
/* What is all zero is fine, and what is closed. The loop must run to see it off. */
void sl_hangups_close(struct sl_hangups *h);

/* false: its end will not be told of. */
bool sl_hangups_add(struct sl_hangups *h, int fd, void *arg);
void sl_hangups_remove(struct sl_hangups *h, int fd); /* one that was not added is fine */

#endif
