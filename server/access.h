/* access.h: which Host and which Origin a request may come with.
 *
 * A web page that a user of this machine opens can send requests to 127.0.0.1 from the browser. Two
 * checks keep it out: Host (against DNS rebinding: the page's own name made to point here) and
 * Origin (requests of foreign pages carry it).
 *
 * A Host is served when it is a loopback name or address, the address listened on, any IP literal
 * where the server listens on all addresses (a literal cannot be rebound), or in --allowed-hosts
 * ("example.org"; ".example.org" for it and all below; "*" for any). Ports are not compared. No
 * browser speaks to a unix socket: any Host.
 *
 * An Origin is allowed when it is the Host's own, or in --cors ("https://app.example", "*").
 * Immutable after init; loop's thread. */
#ifndef SLATE_SERVER_ACCESS_H
#define SLATE_SERVER_ACCESS_H

#include "server/config.h"

enum sl_listen_kind { SL_LISTEN_TCP4, SL_LISTEN_TCP6, SL_LISTEN_UNIX };

struct sl_listen { /* --listen, understood */
    enum sl_listen_kind kind;
    char host[108]; /* an address without brackets, or the socket's path */
    unsigned port;
    bool loopback; /* nobody from outside reaches it; also unix */
    bool any;      /* 0.0.0.0 or [::] */
};

/* Errors: USAGE. */
SL_NODISCARD enum sl_code sl_listen_parse(struct sl_listen *ret, const char *text,
                                          struct sl_error *err);

struct sl_access {
    const struct sl_config *config;
    struct sl_listen listen;
};

bool sl_access_host(const struct sl_access *a, const char *host);

enum sl_origin { SL_ORIGIN_OWN, SL_ORIGIN_CORS, SL_ORIGIN_FOREIGN };

/* origin NULL: OWN. host may be NULL. */
enum sl_origin sl_access_origin(const struct sl_access *a, const char *origin, const char *host);

#endif
