/* http.h: bytes -> one HTTP/1.x request after another. No sockets, no time, no policy.
 *
 * A request's head is collected whole (it is bounded) by a scanner that is stricter than any
 * recipient of the bytes could be lenient: lines end with CR LF, no control bytes, no folded
 * lines. Only then llhttp reads it, in one call; so its spans point into the collected head, and
 * where the bytes were split on their way cannot matter. Bodies go through llhttp as they come.
 *
 * What two parties could read in two ways is refused, never repaired (request smuggling): more
 * than one Content-Length, Content-Length beside Transfer-Encoding, any coding but one `chunked`,
 * chunk framing that is not exact, more than one Host or one that is none.
 *
 * sl_http_feed() is a pull parser: it takes bytes up to the next event and says how many. llhttp's
 * callbacks only record. Loop's thread. */
#ifndef SLATE_SERVER_HTTP_H
#define SLATE_SERVER_HTTP_H

#include <llhttp.h>

#include "slate/err.h"

enum { SL_HTTP_HEADERS_MAX = 100 };

struct sl_http_header {
    char *name; /* as sent, terminated */
    char *value;
    uint32_t n_name, n_value;
};

/* The head of a request. Owns `block`, everything else points into it. */
struct sl_http_head {
    char *block;
    char *target;         /* path and query, terminated; of an absolute target without its front */
    char *host;           /* of Host, or of an absolute target; NULL: HTTP/1.0 without one */
    unsigned char method; /* llhttp's number */
    unsigned char minor;  /* HTTP/1.minor: 0 or 1 */
    bool keep_alive;      /* the client's wish */
    bool chunked;
    bool has_body; /* chunked, or a Content-Length above 0 */
    bool expect_continue;
    bool expect_unknown; /* an Expect that is not 100-continue */
    uint64_t content_length;
    size_t n_target;
    size_t n_headers;
    struct sl_http_header headers[SL_HTTP_HEADERS_MAX];
};

const char *sl_http_head_find(const struct sl_http_head *h, const char *name);
void sl_http_head_free(struct sl_http_head *h); /* NULL is fine */

struct sl_http_limits {
    size_t max_header; /* bytes of the head, request line and final empty line among them; and of
                          what may stand between two pieces of a chunked body */
    size_t max_uri;
};

enum sl_http_event {
    SL_HTTP_MORE, /* all bytes taken, nothing yet */
    SL_HTTP_HEAD, /* sl_http_take_head() gives it */
    SL_HTTP_DATA, /* data, n_data: a piece of the body, inside the bytes that were fed */
    SL_HTTP_DONE, /* the message is complete; the next byte begins another */
    SL_HTTP_ERROR /* err says why; nothing more can be read */
};

struct sl_http {
    struct sl_http_limits limits;
    enum { SL_HTTP_IN_HEAD, SL_HTTP_IN_BODY, SL_HTTP_FAILED } state;
    struct sl_http_head *head; /* being collected, or complete and not yet taken */
    char *block;               /* of head, while it grows */
    size_t n_block, cap_block;
    size_t line_begin; /* where the current line of the head begins */
    size_t n_skipped;  /* empty lines before the request line */
    bool complete;     /* llhttp has seen the message's end */
    size_t n_framing;  /* bytes since the last piece of body */
    const char *data;
    size_t n_data;
    llhttp_t parser;
    struct sl_error err;
};

void sl_http_init(struct sl_http *p, struct sl_http_limits limits);
void sl_http_done(struct sl_http *p);

/* Takes bytes up to the next event; returns how many (all of them for MORE, of ERROR any number).
 * Errors: BAD_REQUEST, URI_TOO_LONG, HEADERS_TOO_LARGE, NO_MEMORY. */
size_t sl_http_feed(struct sl_http *p, const void *data, size_t n, enum sl_http_event *ret);

/* After HEAD, once. The caller frees it. */
struct sl_http_head *sl_http_take_head(struct sl_http *p);

/* Some bytes of a request have come, but not its whole head. */
bool sl_http_in_head(const struct sl_http *p);

#endif
