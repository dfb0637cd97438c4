/* client.h: an HTTP client for the API tests, over libcurl's multi interface.
 *
 * One client is one event loop of its own: its calls move on only inside its functions. So a test
 * says exactly when it reads (a client that nobody drives is a reader that reads nothing), and a
 * hundred streams at once need no thread. Nothing here waits for time to pass: each wait is for an
 * event and has a deadline (CLIENT_DEADLINE_MS); passing it fails the test.
 *
 * Every response is also written down, one JSON line {test, method, path, request, status,
 * headers, body, whole}, in $SLATE_API_RECORD/PROGRAM.jsonl (by default $SLATE_BUILD/api-record/…);
 * afterwards tests/browser/openapi.test.mjs holds all of them to proto/openapi.yaml.
 *
 * JSON in C strings: in the arguments named fmt each ' stands for ". */
#ifndef SLATE_TESTS_CLIENT_H
#define SLATE_TESTS_CLIENT_H

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLIENT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum { CLIENT_DEADLINE_MS = 60000 };

struct client;
struct call;

int64_t client_now_ms(void); /* of the monotonic clock, for deadlines */

/* What has arrived of a response. */
struct reply {
    const char *method, *path; /* of the request */
    long status;               /* 0: no status line yet */
    char *headers;             /* "Name: value\r\n…" as sent, without the status line */
    size_t n_headers;          /* bytes */
    char *body;                /* followed by a NUL that does not count; never NULL */
    size_t n_body;
    json_t *json;    /* of whole replies of application/json; else NULL */
    json_t **events; /* of text/event-stream: each event's data, decoded */
    size_t n_events;
    size_t n_pings; /* comments between them */
    bool done;      /* "data: [DONE]" came */
    bool over;      /* nothing more comes */
    bool whole;     /* it ended as HTTP says it ends */
    int curl_code;  /* a CURLcode, once it is over */
};

/* base: "http://127.0.0.1:PORT", "unix:PATH". */
struct client *client_open(const char *base);
void client_close(struct client *c); /* calls still running are aborted; NULL is fine */

/* A header line ("Authorization: Bearer x") of every later request; NULL: none any more. */
void client_header(struct client *c, const char *line);

/* Its responses are not written down: there are too many of them. */
void client_unrecorded(struct client *c);

/* For the calls started after it: the kernel holds few bytes that were not read yet. */
void client_small_buffers(struct client *c);

/* --- one call ----------------------------------------------------------------------------------*/

/* Sends. extra: header lines separated by '\n', or NULL; they replace those that this module or
 * curl would send ("Content-Type:" sends none). body NULL: none. With a body the Content-Type is
 * application/json unless extra says otherwise. */
struct call *call_start(struct client *c, const char *method, const char *path, const char *extra,
                        const void *body, size_t n_body);
struct call *call_post(struct client *c, const char *path, const char *fmt, ...)
    CLIENT_PRINTF(3, 4);

/* Lets all calls of the client move on until `ready` holds for this one, or it is over. */
void call_until(struct call *k, bool (*ready)(const struct reply *r, void *arg), void *arg);
void call_until_events(struct call *k, size_t n); /* that many events, or its end */

/* What there is so far; the call's own. */
const struct reply *call_reply(const struct call *k);

/* Waits for the end and gives the reply away; frees the call. */
struct reply *call_finish(struct call *k);

/* The client goes away in the middle: the connection is closed. Frees the call. */
void call_abort(struct call *k);

/* --- whole calls -------------------------------------------------------------------------------*/

struct reply *request(struct client *c, const char *method, const char *path, const char *extra,
                      const void *body, size_t n_body);
struct reply *get(struct client *c, const char *path);
struct reply *del(struct client *c, const char *path);
struct reply *post(struct client *c, const char *path, const char *fmt, ...) CLIENT_PRINTF(3, 4);
struct reply *patch(struct client *c, const char *path, const char *fmt, ...) CLIENT_PRINTF(3, 4);
void reply_free(struct reply *r); /* NULL is fine */

/* The format with " for each ', then formatted; sl_free(). */
char *json_text(const char *fmt, va_list args, size_t *ret_n);

/* --- looking into replies ----------------------------------------------------------------------*/
/* Each of these fails the test, and prints the reply, where what is asked for is not there. */

/* Is it whole, with that status? Gives r back. */
#define expect(r, status) expect_at((r), (status), __FILE__, __LINE__)
struct reply *expect_at(struct reply *r, long status, const char *file, int line);

/* Is it an error of that status, code and param (NULL: null), in the shape of errors? And a 412
 * tells the session's ETag. Frees r. */
#define expect_error(r, status, code, param)                                                       \
    expect_error_at((r), (status), (code), (param), __FILE__, __LINE__)
void expect_error_at(struct reply *r, long status, const char *code, const char *param,
                     const char *file, int line);

/* The first header of that name: a copy that lasts for the next 16 calls; NULL: none. */
const char *reply_header(const struct reply *r, const char *name);

/* path: "usage.total_tokens", "logprobs.0.top.1.token_id". NULL: not there. */
json_t *at(const json_t *j, const char *path);
#define str_at(j, path) str_at_((j), (path), __FILE__, __LINE__)
#define int_at(j, path) int_at_((j), (path), __FILE__, __LINE__)
#define num_at(j, path) num_at_((j), (path), __FILE__, __LINE__)
#define bool_at(j, path) bool_at_((j), (path), __FILE__, __LINE__)
#define len_at(j, path) len_at_((j), (path), __FILE__, __LINE__) /* of an array */
const char *str_at_(const json_t *j, const char *path, const char *file, int line);
int64_t int_at_(const json_t *j, const char *path, const char *file, int line);
double num_at_(const json_t *j, const char *path, const char *file, int line);
bool bool_at_(const json_t *j, const char *path, const char *file, int line);
size_t len_at_(const json_t *j, const char *path, const char *file, int line);

/* What a generate gave, the same for a stream and for a whole reply. */
struct output {
    char *text; /* and a NUL behind it */
    size_t n_text;
    uint32_t *tokens; /* return_tokens */
    size_t n_tokens;
    json_t *logprobs;    /* an array; empty when none was asked for */
    const json_t *final; /* the body, or the last event; the reply's own */
};
void output_of(const struct reply *r, struct output *ret);
void output_done(struct output *o);
/* Same text, tokens, logprobs (bit for bit), finish_reason and stop_sequence? */
void output_same(const struct output *a, const struct output *b);

/* The value of a metric ("slate_requests_running"). */
double metric(struct client *c, const char *name);
/* Asks until the value is that. */
void until_metric(struct client *c, const char *name, double value);

#endif
