/* ids.c: what of a request is not JSON: ids of sessions, the query of a list, ETags. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "proto/request.h"

static bool id_char(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

bool sl_session_id_valid(const char *s, size_t n)
{
    if (n == 0 || n > SL_SESSION_ID_MAX || s[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!id_char(s[i]))
            return false;
    return true;
}

enum sl_code sl_session_id_check(const char *s, size_t n, const char *param, struct sl_error *err)
{
    if (sl_session_id_valid(s, n))
        return SL_OK;
    return sl_fail_param(err, SL_E_INVALID_VALUE, param,
                         "%s must be 1 to %d of A-Z a-z 0-9 . _ - and not start with a dot, got "
                         "\"%.*s\"%s (%zu bytes)",
                         param, SL_SESSION_ID_MAX, (int)(n < 40 ? n : 40), s, n > 40 ? "…" : "", n);
}

/* --- the query of a list --- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

enum { QUERY_VALUE_MAX = SL_SESSION_ID_MAX };

/* Undoes %XX and '+'. More than QUERY_VALUE_MAX bytes: SIZE_MAX; a '%' without two digits too. */
static size_t percent_decode(char *out, const char *s, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '+')
            c = ' ';
        if (c == '%') {
            int hi = n - i > 2 ? hex_digit(s[i + 1]) : -1,
                lo = n - i > 2 ? hex_digit(s[i + 2]) : -1;
            if (hi < 0 || lo < 0)
                return SIZE_MAX;
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (len == QUERY_VALUE_MAX)
            return SIZE_MAX;
        out[len++] = c;
    }
    return len;
}

static enum sl_code read_limit(const char *s, size_t n, size_t max, size_t *ret,
                               struct sl_error *err)
{
    size_t v = 0;
    bool ok = n > 0 && n <= 9;
    for (size_t i = 0; ok && i < n; i++) {
        ok = s[i] >= '0' && s[i] <= '9';
        v = v * 10 + (size_t)(s[i] - '0');
    }
    if (!ok || v < 1 || v > max)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "limit",
                             "limit must be an integer from 1 to %zu, got \"%.*s\"", max, (int)n,
                             s);
    *ret = v;
    return SL_OK;
}

/* A prefix is the beginning of an id; so is an `after` that was deleted meanwhile. */
static enum sl_code read_id(const char *s, size_t n, const char *param,
                            char ret[SL_SESSION_ID_MAX + 1], struct sl_error *err)
{
    enum sl_code c = n ? sl_session_id_check(s, n, param, err) : SL_OK;
    if (c != SL_OK)
        return c;
    memcpy(ret, s, n);
    ret[n] = '\0';
    return SL_OK;
}

static enum sl_code read_pair(struct sl_list_query *q, const char *s, size_t n,
                              const struct sl_limits *limits, struct sl_error *err)
{
    static const char *const keys[] = {"limit", "after", "prefix"};
    const char *eq = memchr(s, '=', n);
    size_t n_key = eq ? (size_t)(eq - s) : n, k = 0;
    while (k < 3 && (strlen(keys[k]) != n_key || memcmp(keys[k], s, n_key) != 0))
        k++;
    if (k == 3)
        return SL_OK;
    char value[QUERY_VALUE_MAX];
    const char *raw = eq ? eq + 1 : s + n;
    size_t n_raw = (size_t)(s + n - raw), len = percent_decode(value, raw, n_raw);
    if (len == SIZE_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, keys[k],
                             "%s must be percent-encoded and have at most %d bytes, got \"%.*s\"",
                             keys[k], QUERY_VALUE_MAX, (int)(n_raw < 200 ? n_raw : 200), raw);
    if (k == 0)
        return read_limit(value, len, limits->list_page, &q->limit, err);
    return read_id(value, len, keys[k], k == 1 ? q->after : q->prefix, err);
}

enum sl_code sl_list_query_decode(struct sl_list_query *ret, const char *query, size_t n,
                                  const struct sl_limits *limits, struct sl_error *err)
{
    struct sl_list_query q = {.limit = limits->list_page < 100 ? limits->list_page : 100};
    for (size_t i = 0; i < n;) {
        const char *amp = memchr(query + i, '&', n - i);
        size_t end = amp ? (size_t)(amp - query) : n;
        enum sl_code c = read_pair(&q, query + i, end - i, limits, err);
        if (c != SL_OK)
            return c;
        i = end + 1;
    }
    *ret = q;
    return SL_OK;
}

/* --- ETags --- */

void sl_etag_format(char ret[SL_ETAG_SIZE], const unsigned char incarnation[16], uint64_t version)
{
    char hex[33];
    for (size_t i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", incarnation[i]);
    int n = snprintf(ret, SL_ETAG_SIZE, "\"%s-%llu\"", hex, (unsigned long long)version);
    assert(n > 0 && n < SL_ETAG_SIZE);
}

bool sl_etag_matches(const char *header, size_t n, const char *etag)
{
    size_t len = strlen(etag);
    for (size_t i = 0; i < n;) {
        const char *comma = memchr(header + i, ',', n - i); /* ours hold none */
        size_t end = comma ? (size_t)(comma - header) : n, a = i, z = end;
        while (a < z && (header[a] == ' ' || header[a] == '\t'))
            a++;
        while (z > a && (header[z - 1] == ' ' || header[z - 1] == '\t'))
            z--;
        if ((z - a == 1 && header[a] == '*') ||
            (z - a == len && memcmp(header + a, etag, len) == 0))
            return true;
        i = end + 1;
    }
    return false;
}
