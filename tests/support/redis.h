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
    char folder[600]; /* absolute; of its log */
    char data[64];    /* in memory, where there is such a folder: no disk is waited for */
    char spec[64];    /* "redis://127.0.0.1:PORT" */
    char host[20];
    char netns[32];   /* "": here */
    unsigned n_apart; /* namespaces of redis_apart() */
    const char *options[REDIS_OPTIONS_MAX + 1];
};

/* An empty one, that keeps what it acknowledges (appendfsync always, noeviction). `options`: more
 * of redis-server's, NULL at the end; NULL: none. Returns once it answers; it dies with the test.
 */
void redis_init(struct redis *r, const char *name, const char *const *options);
/* The same behind a wire of its own: in a network namespace, at the other end of a pair of devices.
 * False: that cannot be made here (it takes root). */
bool redis_init_far(struct redis *r, const char *name);
/* Of a far one: one more namespace, with a wire of its own to Redis and to nothing else. Its name
 * and the address of Redis there; it goes with redis_done(). */
void redis_apart(struct redis *r, char ret_netns[32], char ret_spec[64]);
/* Cuts that wire, and mends it: packets are lost without a word. */
void redis_cut_apart(const char *netns, bool cut);
void redis_done(struct redis *r); /* ended if it runs; its folder is removed */
/* Again, on its port, with its data. */
void redis_start(struct redis *r);
/* Again, without them: its operator has lost them. */
void redis_start_empty(struct redis *r);
/* A copy of them as they are now, in place of an earlier one; and again, with that copy: it came
 * back older than it was. */
void redis_keep_copy(struct redis *r);
void redis_start_older(struct redis *r);
/* SIGTERM or SIGKILL; returns when it has ended. */
void redis_end(struct redis *r, int signal);
void redis_signal(struct redis *r, int signal);

/* One command; the reply is freed with freeReplyObject(). Ends the test where there is none. */
redisReply *redis_ask(struct redis *r, const char *fmt, ...);
/* The same, without waiting for the reply: Redis has it. Close with redisFree(). */
redisContext *redis_say(struct redis *r, const char *fmt, ...);
/* The same, where the answer must be "OK" (or anything but an error). */
void redis_do(struct redis *r, const char *fmt, ...);
long long redis_n_keys(struct redis *r);

#endif
