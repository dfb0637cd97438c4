/* net_listen.c: where the server listens: a TCP address or a unix socket's path; see net.h. */
#include "server/net.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/mem.h"

/* Who has come and was not yet accepted. Where more come at once the kernel drops some: honest ones
 * among them wait a second for their next attempt, and silent ones may wait for ever. It takes no
 * more of it than net.core.somaxconn, which is as much by default. */
enum { BACKLOG = 4096 };

static enum sl_code listen_failed(const struct sl_net *n, int e, struct sl_error *err)
{
    const char *text = n->env->config->listen;
    if (e == UV_EADDRINUSE)
        return sl_fail(err, SL_E_ADDRESS_IN_USE,
                       "%s is in use by another program; give another one with --listen", text);
    return sl_fail(err, SL_E_INTERNAL, "listening on %s is not possible: %s", text, uv_strerror(e));
}

/* A socket file without a program behind it is what a killed server left: it is removed. */
static enum sl_code clear_unix_path(struct sl_net *n, struct sl_error *err)
{
    const char *path = n->env->access.listen.host;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct stat st;
    memcpy(un.sun_path, path, strlen(path));
    if (lstat(path, &st) != 0)
        return SL_OK; /* binding says what else is wrong */
    if (!S_ISSOCK(st.st_mode))
        return sl_fail(err, SL_E_ADDRESS_IN_USE, "%s exists and is not a socket", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return listen_failed(n, uv_translate_sys_error(errno), err);
    bool dead = connect(fd, (struct sockaddr *)&un, sizeof un) != 0 && errno == ECONNREFUSED;
    close(fd);
    if (!dead)
        return listen_failed(n, UV_EADDRINUSE, err);
    if (unlink(path) != 0)
        return sl_fail(err, SL_E_INTERNAL, "the old socket %s cannot be removed: %s", path,
                       strerror(errno));
    return SL_OK;
}

static enum sl_code bind_unix(struct sl_net *n, struct sl_error *err)
{
    const char *path = n->env->access.listen.host;
    enum sl_code c = clear_unix_path(n, err);
    if (c)
        return c;
    uv_pipe_init(n->loop, &n->listener.pipe, 0);
    n->listener.handle.data = n;
    n->listening = true;
    mode_t mask = umask(0077); /* who may open the socket may use the server: its owner */
    int e = uv_pipe_bind(&n->listener.pipe, path);
    umask(mask);
    if (e)
        return listen_failed(n, e, err);
    n->unix_path = sl_strdup(path);
    if (!n->unix_path)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory to listen");
    snprintf(n->address, sizeof n->address, "unix:%s", path);
    return SL_OK;
}

static enum sl_code bind_tcp(struct sl_net *n, struct sl_error *err)
{
    const struct sl_listen *l = &n->env->access.listen;
    struct sockaddr_storage ss = {0};
    int e = l->kind == SL_LISTEN_TCP4
                ? uv_ip4_addr(l->host, (int)l->port, (struct sockaddr_in *)&ss)
                : uv_ip6_addr(l->host, (int)l->port, (struct sockaddr_in6 *)&ss);
    if (!e) {
        uv_tcp_init(n->loop, &n->listener.tcp);
        n->listener.handle.data = n;
        n->listening = true;
        e = uv_tcp_bind(&n->listener.tcp, (struct sockaddr *)&ss, 0);
    }
    return e ? listen_failed(n, e, err) : SL_OK;
}

static void name_tcp(struct sl_net *n)
{
    const struct sl_listen *l = &n->env->access.listen;
    struct sockaddr_storage ss;
    int len = sizeof ss;
    unsigned port = l->port;
    if (uv_tcp_getsockname(&n->listener.tcp, (struct sockaddr *)&ss, &len) == 0)
        port = ntohs(l->kind == SL_LISTEN_TCP4 ? ((struct sockaddr_in *)&ss)->sin_port
                                               : ((struct sockaddr_in6 *)&ss)->sin6_port);
    snprintf(n->address, sizeof n->address, l->kind == SL_LISTEN_TCP4 ? "%s:%u" : "[%s]:%u",
             l->host, port);
}

enum sl_code sl_net_listen(struct sl_net *n, uv_connection_cb on_connection, struct sl_error *err)
{
    bool is_unix = n->env->access.listen.kind == SL_LISTEN_UNIX;
    enum sl_code c = is_unix ? bind_unix(n, err) : bind_tcp(n, err);
    int e = c ? 0 : uv_listen(&n->listener.stream, BACKLOG, on_connection);
    if (e)
        c = listen_failed(n, e, err);
    if (!c && !is_unix)
        name_tcp(n);
    return c;
}
