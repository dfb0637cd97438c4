/* api.h: what the API tests share: a server and a client, and whole turns in one call. */
#ifndef SLATE_TESTS_API_H
#define SLATE_TESTS_API_H

#include "tests/support/client.h"

/* A server of its own on a free port, and a client for it. */
struct api {
    struct server *server;
    struct client *client;
};

/* options: of `slate serve`, up to a NULL; they win over those that are given here (one thread, few
 * sessions, few words). Fails the test when it does not start. */
void api_start(struct api *a, const char *const *options);
/* Ends it with SIGTERM; it must have exited with 0. */
void api_stop(struct api *a);

/* A turn and what it gave. */
struct gen {
    struct reply *r;
    struct output o;
};
void gen_done(struct gen *g);

/* POST /v1/generate with {fmt …} (no braces in fmt around it all; ' stands for "); 200. */
void generate(struct client *c, struct gen *ret, const char *fmt, ...) CLIENT_PRINTF(3, 4);
/* The same as a stream. */
void generate_stream(struct client *c, struct gen *ret, const char *fmt, ...) CLIENT_PRINTF(3, 4);
/* Both ways, which must agree in everything; gives the whole one. No session in it. */
void generate_both(struct client *c, struct gen *ret, const char *fmt, ...) CLIENT_PRINTF(3, 4);
/* Only sent. */
struct call *generate_start(struct client *c, const char *fmt, ...) CLIENT_PRINTF(2, 3);
/* Its answer, when it is there; 200. */
void generate_finish(struct call *k, struct gen *ret);

/* A new session's id, made by the server: a copy that lasts for the next 16 calls. */
const char *new_session(struct client *c);
/* GET /v1/sessions/{id} */
struct reply *session_get(struct client *c, const char *id);
bool session_busy(struct client *c, const char *id);
/* Asks until no turn runs on it. */
void until_free(struct client *c, const char *id);

/* The path of a model file with seeded weights for the tokenizer `bytes`; made once a program. */
const char *seeded_bytes_model(void);
/* One that takes its time, so that a stream has an event for every token or two. */
const char *seeded_slow_model(void);

/* JSON text of ids: "[1,2,3]"; and of a byte string as a JSON string with its quotes. sl_free(). */
char *ids_json(const uint32_t *ids, size_t n);
char *string_json(const char *s, size_t n);

/* n times the unit, between the others. sl_free(). */
char *repeated(const char *before, const char *unit, size_t n, const char *after);

/* s with " for each ': a copy that lasts for the next 16 calls; up to 4 KiB. */
const char *quoted(const char *s);

#endif
