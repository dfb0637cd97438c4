/* net.h: connections on libuv: the transport that conn.h asks for, accepting, waking.
 *
 * Connections that wait for their client stand in a line, the one that has waited longest first
 * (those that wait for their end before all others). Where there are --max-connections a newcomer
 * takes the place of the first; where none waits it is refused. So no number of idle, slow or
 * half-closed clients keeps a new one out, and one that is being answered never loses its place.
 *
 * All connections read into one buffer (a read callback uses its bytes before it returns), so an
 * idle connection costs its structs and nothing else. Woken connections are advanced from an idle
 * handle, which also keeps the loop from sleeping while there are some: what a handler wrote goes
 * out on the loop's next turn, together. Loop's thread. */
#ifndef SLATE_SERVER_NET_H
#define SLATE_SERVER_NET_H

#include <uv.h>

#include "server/conn.h"
#include "server/hangups.h"

struct sl_net_conn;

struct sl_net {
    uv_loop_t *loop;
    struct sl_conn_env *env;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } listener;
    bool listening;
    char address[128]; /* as sl_server_address() gives it */
    char *unix_path;   /* to be removed at the end; NULL: TCP */
    uv_idle_t idle;
    uv_check_t turn; /* of the loop, in which something was accepted */
    size_t n_new;    /* accepted in this turn */
    bool more;       /* one was left to the next turn */
    bool has_handles;
    struct sl_hangups hangups;  /* of those that are not read */
    bool crowded;               /* --max-write-memory is exceeded: the loop's next turn thins out */
    struct sl_net_conn *conns;  /* all, doubly linked */
    struct sl_net_conn *wakers; /* those to be advanced */
    size_t n_conns;
    size_t n_open;                              /* of them those that are not being closed */
    struct sl_net_conn *line_first, *line_last; /* see above */
    struct sl_net_conn *spare; /* to refuse a connection for which there is no memory */
    bool accept_again;         /* one is waiting until the spare is free */
    void (*empty)(void *arg);  /* called when the last connection has gone; may be NULL */
    void *empty_arg;
    char buffer[65536];
};

/* Binds and listens at env->access.listen. Errors: ADDRESS_IN_USE, INTERNAL (names the address). */
SL_NODISCARD enum sl_code sl_net_open(struct sl_net *n, uv_loop_t *loop, struct sl_conn_env *env,
                                      struct sl_error *err);
/* Is there one whose first request is on its way, as it seems (sl_conn_awaits())? */
bool sl_net_awaits(const struct sl_net *n);
void sl_net_stop_listening(struct sl_net *n);
void sl_net_stop_all(struct sl_net *n); /* sl_conn_stop() on every connection */
void sl_net_cut_all(struct sl_net *n);  /* closes every connection now */
/* Closes the listener and the other handles; the loop must run to see them off. */
void sl_net_close(struct sl_net *n);

/* net_listen.c: sl_net_open()'s part of it. */
SL_NODISCARD enum sl_code sl_net_listen(struct sl_net *n, uv_connection_cb on_connection,
                                        struct sl_error *err);

#endif
