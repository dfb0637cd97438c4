/* router.c: see router.h.
 *
 * A walk over the rows, segment by segment: some thirty short comparisons, nothing beside a turn.
 * A trie would save them and hide the order that decides between two rows that match. */
#include "server/router.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

enum { PATH_SHOWN = 96, PATH_TEXT = 128 }; /* bytes of a path that an error shows */

struct segment {
    const char *s;
    size_t n;
};

/* Splits "/a/b" into segments; false: too many, or no '/' in front. */
static bool split(const char *path, struct segment *seg, size_t *ret_n)
{
    size_t n = 0;
    if (*path != '/')
        return false;
    while (*path == '/') {
        if (n == SL_ROUTE_SEGMENTS_MAX)
            return false;
        size_t len = strcspn(++path, "/");
        seg[n++] = (struct segment){path, len};
        path += len;
    }
    *ret_n = n;
    return true;
}

static bool is_param(const struct segment *s)
{
    return s->n > 2 && s->s[0] == '{' && s->s[s->n - 1] == '}';
}

static bool same(const struct segment *a, const struct segment *b)
{
    return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
}

/* Do these two rows take the same method on the same paths? */
static bool is_double(const struct sl_route *a, const struct sl_route *b)
{
    struct segment sa[SL_ROUTE_SEGMENTS_MAX], sb[SL_ROUTE_SEGMENTS_MAX];
    size_t na = 0, nb = 0;
    if (!split(a->pattern, sa, &na) || !split(b->pattern, sb, &nb) || na != nb ||
        a->method != b->method)
        return false;
    for (size_t i = 0; i < na; i++)
        if (is_param(&sa[i]) != is_param(&sb[i]) || (!is_param(&sa[i]) && !same(&sa[i], &sb[i])))
            return false;
    return true;
}

static bool pattern_is_valid(const char *pattern)
{
    struct segment seg[SL_ROUTE_SEGMENTS_MAX];
    size_t n = 0, params = 0;
    if (!split(pattern, seg, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        bool braces = memchr(seg[i].s, '{', seg[i].n) || memchr(seg[i].s, '}', seg[i].n);
        if (braces && !is_param(&seg[i]))
            return false;
        params += is_param(&seg[i]);
    }
    return params <= SL_ROUTE_PARAMS_MAX;
}

void sl_router_init(struct sl_router *r)
{
    r->n_rows = 0;
}

void sl_router_add(struct sl_router *r, const struct sl_route *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert(r->n_rows < SL_ROUTES_MAX && pattern_is_valid(rows[i].pattern) && rows[i].handler);
        assert((unsigned)rows[i].method < SL_METHOD_COUNT);
        for (size_t j = 0; j < r->n_rows; j++)
            assert(!is_double(r->rows[j], &rows[i]));
        r->rows[r->n_rows++] = &rows[i];
    }
}

/* How well a pattern fits: -1 not at all, else one bit per literal segment, the first one highest:
 * the larger the better. */
static int fit(const char *pattern, const struct segment *path, size_t n_path)
{
    struct segment seg[SL_ROUTE_SEGMENTS_MAX];
    size_t n = 0;
    int bits = 0;
    if (!split(pattern, seg, &n) || n != n_path)
        return -1;
    for (size_t i = 0; i < n; i++) {
        bool literal = !is_param(&seg[i]);
        if (literal ? !same(&seg[i], &path[i]) : path[i].n == 0)
            return -1;
        bits = bits * 2 + literal;
    }
    return bits;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes a segment in place, ends it, and gives its new length. */
static enum sl_code decode(char *s, size_t *n, struct sl_error *err)
{
    size_t k = 0;
    for (size_t i = 0; i < *n; i++) {
        int c = (unsigned char)s[i];
        if (c == '%') {
            int h = i + 2 < *n ? hex(s[i + 1]) : -1;
            int l = h >= 0 ? hex(s[i + 2]) : -1;
            c = h * 16 + l;
            if (l < 0 || c == 0)
                return sl_fail(err, SL_E_BAD_REQUEST,
                               "the path's part '%.*s' has a bad %%-escape at byte %zu", (int)*n, s,
                               i);
            i += 2;
        }
        s[k++] = (char)c;
    }
    s[k] = '\0';
    *n = k;
    if (!sl_utf8_valid(s, k))
        return sl_fail(err, SL_E_BAD_REQUEST, "a part of the path is not valid UTF-8");
    return SL_OK;
}

/* The path's segments, each decoded and ended. */
static enum sl_code read_path(char *path, struct segment *seg, size_t *n, struct sl_error *err)
{
    if (!split(path, seg, n))
        return sl_fail(err, SL_E_NOT_FOUND, "there is no route '%s'", path);
    for (size_t i = *n; i-- > 0;) { /* backwards: an end overwrites the '/' behind it */
        enum sl_code c = decode(path + (seg[i].s - path), &seg[i].n, err);
        if (c)
            return c;
    }
    return SL_OK;
}

/* A path that was read, as far as an error shows it. */
static const char *path_text(const struct segment *seg, size_t n, char text[PATH_TEXT])
{
    char all[PATH_SHOWN];
    size_t at = 0;
    for (size_t i = 0; i < n && at < sizeof all; i++) {
        int more = snprintf(all + at, sizeof all - at, "/%s", seg[i].s);
        at += more > 0 ? (size_t)more : 0;
    }
    bool cut = at >= sizeof all;
    sl_utf8_sanitize_text(text, PATH_TEXT, all, cut ? sizeof all - 1 : at, cut);
    return text;
}

static void fill_params(struct sl_route_match *m, const struct segment *path)
{
    struct segment seg[SL_ROUTE_SEGMENTS_MAX];
    size_t n = 0;
    m->n_params = 0;
    if (!split(m->route->pattern, seg, &n))
        return;
    for (size_t i = 0; i < n; i++)
        if (is_param(&seg[i]))
            m->params[m->n_params++] = (struct sl_route_param){
                .name = seg[i].s + 1, .n_name = seg[i].n - 2, .value = path[i].s};
}

enum sl_code sl_router_find(const struct sl_router *r, enum sl_method method, char *path,
                            struct sl_route_match *ret, struct sl_error *err)
{
    struct segment seg[SL_ROUTE_SEGMENTS_MAX];
    size_t n = 0;
    int best = -1, best_of_method = -1;
    char text[PATH_TEXT];
    *ret = (struct sl_route_match){.route = NULL};
    enum sl_code c = read_path(path, seg, &n, err);
    if (c)
        return c;
    for (size_t i = 0; i < r->n_rows; i++) {
        int f = fit(r->rows[i]->pattern, seg, n);
        if (f < 0 || f < best)
            continue;
        if (f > best) { /* a better pattern: what lesser ones take does not count */
            best = f;
            best_of_method = -1;
            ret->methods = 0;
        }
        ret->methods |= 1u << r->rows[i]->method;
        if (r->rows[i]->method == method) {
            best_of_method = (int)i;
            ret->index = i;
            ret->route = r->rows[i];
        }
    }
    if (best < 0)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "there is no route '%s' here; those of the API begin with /v1/",
                       path_text(seg, n, text));
    if (best_of_method < 0) {
        char allow[64];
        ret->route = NULL;
        sl_router_allow(ret->methods, allow, sizeof allow);
        return sl_fail(err, SL_E_METHOD_NOT_ALLOWED, "'%s' takes %s", path_text(seg, n, text),
                       allow);
    }
    fill_params(ret, seg);
    return SL_OK;
}

void sl_router_allow(unsigned methods, char *dst, size_t dst_size)
{
    size_t n = 0;
    for (unsigned m = 0; m < SL_METHOD_COUNT; m++)
        if (methods & 1u << m)
            n += (size_t)snprintf(dst + n, dst_size - n, "%s, ",
                                  m == SL_GET ? "GET, HEAD" : sl_method_name((enum sl_method)m));
    snprintf(dst + n, dst_size - n, "OPTIONS");
}
