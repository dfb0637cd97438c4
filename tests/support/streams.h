/* streams.h: streaming completions under a bench, with the times of their tokens.
 *
 * Any server that streams OpenAI's /v1/completions can be under it. Events that carry text are
 * counted as they arrive; how many tokens they were the server's own usage says at the end (a token
 * that is half a character comes with the next). One thread; failures end the program. */
#ifndef SLATE_TESTS_STREAMS_H
#define SLATE_TESTS_STREAMS_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>

#include "tests/support/serving.h"

/* Measured values, as many as there are. */
struct sample {
    double *value;
    size_t n, room;
};
void sample_add(struct sample *s, double v);
double sample_quantile(struct sample *s, double q); /* n ≥ 1; sorts. NaN where there is none */
void sample_clear(struct sample *s);
void sample_done(struct sample *s);

/* One client: a connection that is kept if the server keeps it, one request at a time. Times are
 * bench_now()'s. */
struct stream {
    CURL *curl;
    char url[160], *body;
    char line[4096]; /* of the answer, as far as it has come; the rest of a longer one is dropped */
    size_t n_line;
    bool running;
    double started, first, last; /* first, last: of events with text; 0: none yet */
    size_t events, tokens;       /* of this request; tokens: once usage has come */
    size_t all_events;           /* of all its requests */
    struct sample gaps;          /* between events, seconds; all requests since the last clear */
};

struct streams {
    CURLM *multi;
    struct stream *all;
    size_t n;
};

/* n clients of a server, which stays the caller's. */
void streams_init(struct streams *v, const struct serving *server, size_t n);
void streams_done(struct streams *v);

/* Sends: body is JSON and is copied. The stream must not be running. */
void streams_ask(struct streams *v, struct stream *s, const char *body);

/* Waits for news (at most 100 ms) and takes it in; a stream that has ended is not running. An
 * answer that is not a whole 200 ends the program. */
void streams_turn(struct streams *v);

#endif
