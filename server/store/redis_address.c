/* redis_address.c: redis://… -> where and who. See redis_conn.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/redis_conn.h"

static const char usage[] = "redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]";

static enum sl_code wrong(struct sl_error *err, const char *what)
{
    return sl_fail(err, SL_E_USAGE, "a store is %s: %s", usage, what);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* %XX decoded; false: malformed, a NUL byte, or too long. */
static bool take_secret(char ret[SL_REDIS_SECRET_MAX + 1], const char *s, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)s[i];
        if (c == '%') {
            if (n - i < 3 || hex(s[i + 1]) < 0 || hex(s[i + 2]) < 0)
                return false;
            c = hex(s[i + 1]) * 16 + hex(s[i + 2]);
            i += 2;
        }
        if (c == 0 || at == SL_REDIS_SECRET_MAX)
            return false;
        ret[at++] = (char)c;
    }
    ret[at] = '\0';
    return true;
}

/* Digits only, at most max. */
static bool take_number(unsigned *ret, const char *s, size_t n, unsigned max)
{
    unsigned v = 0;
    if (n < 1 || n > 9)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        v = 10 * v + (unsigned)(s[i] - '0');
    }
    *ret = v;
    return v <= max;
}

static enum sl_code take_login(struct sl_rd_address *a, const char *s, size_t n,
                               struct sl_error *err)
{
    const char *colon = memchr(s, ':', n);
    size_t n_user = colon ? (size_t)(colon - s) : n;
    if (!take_secret(a->user, s, n_user))
        return wrong(err, "the user's name has more than 512 bytes, or a wrong %XX");
    if (colon && !take_secret(a->password, colon + 1, n - n_user - 1))
        return wrong(err, "the password has more than 512 bytes, or a wrong %XX");
    return SL_OK;
}

/* HOST, HOST:PORT, [V6], [V6]:PORT. */
static enum sl_code take_host(struct sl_rd_address *a, const char *s, size_t n,
                              struct sl_error *err)
{
    bool v6 = n > 0 && s[0] == '[';
    const char *end = memchr(s, v6 ? ']' : ':', n);
    if (v6 && !end)
        return wrong(err, "the ']' of the address is missing");
    const char *host = s + v6, *rest = v6 ? end + 1 : end ? end : s + n;
    size_t n_host = (size_t)((v6 ? end : rest) - host), n_rest = n - (size_t)(rest - s);
    if (n_host < 1 || n_host > SL_REDIS_HOST_MAX)
        return wrong(err, "the host is missing, or has more than 253 bytes");
    memcpy(a->host, host, n_host);
    a->host[n_host] = '\0';
    a->port = SL_REDIS_PORT;
    if (n_rest &&
        (rest[0] != ':' || !take_number(&a->port, rest + 1, n_rest - 1, 65535) || a->port == 0))
        return wrong(err, "the port is a number from 1 to 65535");
    return SL_OK;
}

enum sl_code sl_rd_address_parse(struct sl_rd_address *ret, const char *s, struct sl_error *err)
{
    struct sl_rd_address a = {.port = SL_REDIS_PORT};
    if (strncmp(s, "//", 2) != 0)
        return wrong(err, "the '//' is missing");
    s += 2;
    if (strcspn(s, "?#") != strlen(s))
        return wrong(err, "there is a '?' or a '#', which have no meaning here (%3F, %23)");
    const char *slash = strchr(s, '/'), *end = slash ? slash : s + strlen(s);
    const char *at = memchr(s, '@', (size_t)(end - s));
    enum sl_code c = at ? take_login(&a, s, (size_t)(at - s), err) : SL_OK;
    if (!c)
        c = take_host(&a, at ? at + 1 : s, (size_t)(end - (at ? at + 1 : s)), err);
    if (c)
        return c;
    if (slash && slash[1] && !take_number(&a.db, slash + 1, strlen(slash + 1), SL_REDIS_DB_MAX))
        return wrong(err, "the database is a number");
    const char *secret = getenv("SLATE_REDIS_PASSWORD"); /* main thread, at start */
    if (!a.password[0] && secret && strlen(secret) > SL_REDIS_SECRET_MAX)
        return sl_fail(err, SL_E_USAGE, "SLATE_REDIS_PASSWORD has more than 512 bytes");
    if (!a.password[0] && secret)
        memcpy(a.password, secret, strlen(secret) + 1);
    if (a.user[0] && !a.password[0])
        return wrong(err, "a user needs a password (there, or in SLATE_REDIS_PASSWORD)");
    *ret = a;
    return SL_OK;
}
