/* router.h: one row per route.
 *
 * A pattern is a path of literal segments and {name} segments ("/v1/sessions/{id}/fork"). A path
 * matches segment by segment after percent-decoding; a {name} takes any one non-empty segment.
 * Where two patterns match, the one with the literal at the first difference wins, whatever the
 * order of rows. No trailing slash, no dot segments: what is not in a table is a 404.
 *
 * Rows live as long as the router. After the last add nothing changes. Loop's thread. */
#ifndef SLATE_SERVER_ROUTER_H
#define SLATE_SERVER_ROUTER_H

#include "server/exchange.h"

enum {
    SL_ROUTES_MAX = 128,
    SL_ROUTE_SEGMENTS_MAX = 8,
    SL_ROUTE_PARAMS_MAX = 4,
};

enum sl_body_class {
    SL_BODY_NONE,  /* a body is read and thrown away: GET, DELETE */
    SL_BODY_JSON,  /* one that is there must be Content-Type: application/json, else 415 */
    SL_BODY_BYTES, /* any type, up to --max-upload: snapshots */
};

enum {                        /* flags */
       SL_ROUTE_OPEN = 1,     /* asks for no key, also when keys are configured */
       SL_ROUTE_SESSION = 4,  /* of the session {id}: the hook `named` comes before the handler */
       SL_ROUTE_ANY_HOST = 2, /* neither Host nor Origin is checked: probes that hold no data */
};

struct sl_route {
    enum sl_method method;
    const char *pattern;
    unsigned role; /* one SL_ROLE_… bit */
    unsigned flags;
    enum sl_body_class body;
    void (*handler)(struct sl_exchange *ex);
};

struct sl_route_param {
    const char *name; /* from the pattern, not terminated */
    size_t n_name;
    const char *value; /* decoded, terminated */
};

struct sl_router {
    const struct sl_route *rows[SL_ROUTES_MAX];
    size_t n_rows;
};

void sl_router_init(struct sl_router *r);

/* Adds a table's rows. Malformed patterns and doubles are bugs (assert). */
void sl_router_add(struct sl_router *r, const struct sl_route *rows, size_t n);

struct sl_route_match {
    size_t index; /* of the row, for metrics */
    const struct sl_route *route;
    struct sl_route_param params[SL_ROUTE_PARAMS_MAX];
    size_t n_params;
    unsigned methods; /* bit (1 << method) for every method that the path takes; for Allow */
};

/* path: as sent, without the query; it is decoded in place and params point into it.
 * Errors: NOT_FOUND, METHOD_NOT_ALLOWED (ret->methods is set), BAD_REQUEST (a bad %-escape, NUL,
 * invalid UTF-8). */
SL_NODISCARD enum sl_code sl_router_find(const struct sl_router *r, enum sl_method method,
                                         char *path, struct sl_route_match *ret,
                                         struct sl_error *err);

/* "GET, HEAD, POST, OPTIONS" for an Allow header. */
void sl_router_allow(unsigned methods, char *dst, size_t dst_size);

#endif
