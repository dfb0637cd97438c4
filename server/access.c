/* access.c: see access.h. */
#include "server/access.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

static enum sl_code bad_listen(const char *text, const char *why, struct sl_error *err)
{
    return sl_fail(err, SL_E_USAGE,
                   "--listen: '%s' %s; allowed are ADDRESS:PORT with an IPv4 address, an IPv6 one "
                   "in brackets or localhost, port 0 to 65535 (0 takes a free one), and unix:PATH",
                   text, why);
}

static bool parse_port(const char *s, unsigned *ret)
{
    unsigned n = 0;
    size_t len = strlen(s);
    if (len == 0 || len > 5 || strspn(s, "0123456789") != len)
        return false;
    for (size_t i = 0; i < len; i++)
        n = n * 10 + (unsigned)(s[i] - '0');
    *ret = n;
    return n <= 65535;
}

static enum sl_code parse_unix(struct sl_listen *ret, const char *text, struct sl_error *err)
{
    const char *path = text + strlen("unix:");
    struct sockaddr_un un;
    if (!*path)
        return bad_listen(text, "has no path", err);
    if (strlen(path) >= sizeof un.sun_path || strlen(path) >= sizeof ret->host)
        return sl_fail(err, SL_E_USAGE,
                       "--listen: the path in '%s' has %zu bytes; a socket's path may have %zu",
                       text, strlen(path), sizeof un.sun_path - 1);
    *ret = (struct sl_listen){.kind = SL_LISTEN_UNIX, .loopback = true};
    memcpy(ret->host, path, strlen(path));
    return SL_OK;
}

/* Fills kind, loopback and any from the address's text. */
static bool read_address(struct sl_listen *l)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, l->host, &v4) == 1) {
        uint32_t a = ntohl(v4.s_addr);
        l->kind = SL_LISTEN_TCP4;
        l->loopback = a >> 24 == 127;
        l->any = a == 0;
        return true;
    }
    if (inet_pton(AF_INET6, l->host, &v6) == 1) {
        l->kind = SL_LISTEN_TCP6;
        l->loopback = IN6_IS_ADDR_LOOPBACK(&v6);
        l->any = IN6_IS_ADDR_UNSPECIFIED(&v6);
        return true;
    }
    return false;
}

enum sl_code sl_listen_parse(struct sl_listen *ret, const char *text, struct sl_error *err)
{
    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(ret, text, err);
    const char *colon = strrchr(text, ':');
    struct sl_listen l = {.kind = SL_LISTEN_TCP4};
    if (!colon)
        return bad_listen(text, "has no port", err);
    if (!parse_port(colon + 1, &l.port))
        return bad_listen(text, "has no valid port", err);
    const char *host = text;
    size_t n = (size_t)(colon - text);
    bool brackets = n >= 2 && host[0] == '[' && host[n - 1] == ']';
    if (brackets) {
        host++;
        n -= 2;
    }
    if (n >= sizeof l.host)
        return bad_listen(text, "has no valid address", err);
    memcpy(l.host, host, n);
    if (strcasecmp(l.host, "localhost") == 0)
        memcpy(l.host, "127.0.0.1", sizeof "127.0.0.1");
    if (!read_address(&l) || brackets != (l.kind == SL_LISTEN_TCP6))
        return bad_listen(text, "has no valid address", err);
    *ret = l;
    return SL_OK;
}

/* The name or address in "host", "host:port" or "[v6]:port"; false when it is too long. */
static bool host_name(const char *host, char *dst, size_t dst_size)
{
    size_t n;
    if (*host == '[')
        n = strcspn(++host, "]");
    else
        n = strcspn(host, ":");
    if (n > 0 && host[n - 1] == '.') /* a fully qualified name */
        n--;
    if (n >= dst_size)
        return false;
    memcpy(dst, host, n);
    dst[n] = '\0';
    return true;
}

static bool listed(const struct sl_strings *list, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < list->n; i++) {
        const char *v = list->v[i];
        size_t m = strlen(v);
        if (strcmp(v, "*") == 0 || strcasecmp(v, name) == 0)
            return true;
        if (v[0] == '.' &&
            (strcasecmp(v + 1, name) == 0 || (n > m && strcasecmp(name + n - m, v) == 0)))
            return true;
    }
    return false;
}

bool sl_access_host(const struct sl_access *a, const char *host)
{
    struct sl_listen h = {.kind = SL_LISTEN_TCP4};
    if (a->listen.kind == SL_LISTEN_UNIX || !host)
        return true;
    char name[256];
    if (!host_name(host, name, sizeof name))
        return false;
    if (strcasecmp(name, "localhost") == 0 || strcasecmp(name, a->listen.host) == 0)
        return true;
    if (strlen(name) < sizeof h.host) {
        memcpy(h.host, name, strlen(name) + 1);
        if (read_address(&h) && (h.loopback || a->listen.any))
            return true;
    }
    return listed(&a->config->allowed_hosts, name);
}

/* http://host[:port] against the Host header: schemes carry a default port, which both may leave
 * out. Behind a proxy that ends TLS the page's origin is https: both schemes are its own. */
static bool origin_is_host(const char *origin, const char *host)
{
    static const struct {
        const char *scheme, *port;
    } schemes[] = {{"http://", ":80"}, {"https://", ":443"}};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t n = strlen(schemes[i].scheme);
        if (strncasecmp(origin, schemes[i].scheme, n) != 0)
            continue;
        const char *o = origin + n;
        size_t n_o = strlen(o), n_h = strlen(host), n_p = strlen(schemes[i].port);
        if (n_o > n_p && strcmp(o + n_o - n_p, schemes[i].port) == 0)
            n_o -= n_p;
        if (n_h > n_p && strcmp(host + n_h - n_p, schemes[i].port) == 0)
            n_h -= n_p;
        return n_o == n_h && n_o > 0 && strncasecmp(o, host, n_o) == 0;
    }
    return false;
}

enum sl_origin sl_access_origin(const struct sl_access *a, const char *origin, const char *host)
{
    if (!origin)
        return SL_ORIGIN_OWN;
    const struct sl_strings *list = &a->config->cors;
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->v[i], "*") == 0 || strcasecmp(list->v[i], origin) == 0)
            return SL_ORIGIN_CORS;
    return host && origin_is_host(origin, host) ? SL_ORIGIN_OWN : SL_ORIGIN_FOREIGN;
}
