/* redis.h: the real Redis as a child of a test, with a folder and a port of its own. */
#ifndef SLATE_TESTS_REDIS_H
#define SLATE_TESTS_REDIS_H

#include <hiredis/hiredis.h>
#include <stdbool.h>

enum { REDIS_DEADLINE_MS = 30000, REDIS_OPTIONS_MAX = 16 };

struct redis {
    int pid; /* 0: it does not run */
    int pidfd;
    unsigned port;
    char folder[600]; /* absolute */
    char spec[64];    /* "redis://127.0.0.1:PORT" */
    const char *options[REDIS_OPTIONS_MAX + 1];
};

/* An empty one, that keeps what it acknowledges (appendfsync always, noeviction). `options`: more
 * of redis-server's, NULL at the end; NULL: none. Returns once it answers; it dies with the test.
 */
void redis_init(struct redis *r, const char *name, const char *const *options);
void redis_done(struct redis *r); /* ended if it runs; its folder is removed */
/* Again, on its port, with its data. */
void redis_start(struct redis *r);
/* SIGTERM or SIGKILL; returns when it has ended. */
void redis_end(struct redis *r, int signal);
void redis_signal(struct redis *r, int signal);

/* One command; the reply is freed with freeReplyObject(). Ends the test where there is none. */
redisReply *redis_ask(struct redis *r, const char *fmt, ...);
/* The same, without waiting for the reply: Redis has it. Close with redisFree(). */
redisContext *redis_say(struct redis *r, const char *fmt, ...);
/* The same, where the answer must be "OK" (or anything but an error). */
void redis_do(struct redis *r, const char *fmt, ...);

#endif
