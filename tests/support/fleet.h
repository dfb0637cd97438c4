/* fleet.h: three servers that share a Redis: killed, stopped, started again. Each has its own port
 * for life, and a client. With a mirror: one server without a store, on which the same turns are
 * run in the same order: what it says is what the fleet must say. */
#ifndef SLATE_TESTS_FLEET_H
#define SLATE_TESTS_FLEET_H

#include "tests/support/api.h"
#include "tests/support/redis.h"
#include "tests/support/server.h"

enum { FLEET_NODES = 3, FLEET_OPTIONS_MAX = 24, FLEET_LEASE_MS = 3000, FLEET_TIMEOUT_MS = 1000 };

struct fleet_node {
    unsigned port;            /* 0: a unix socket */
    char netns[32], spec[64]; /* "": here, the fleet's own */
    struct server *server;    /* NULL: it is down */
    struct client *c;
};

struct fleet {
    struct redis redis;
    char spec[128]; /* what the nodes are given: the Redis' own, or another way to it */
    struct fleet_node node[FLEET_NODES];
    const char *options[FLEET_OPTIONS_MAX];
    size_t n_options;
    unsigned n_starts;
    double n_found[FLEET_NODES]; /* how often each node had found Redis when that was killed */
};

/* An empty Redis, and all nodes ready. options: of `slate serve`, up to a NULL; kept. */
void fleet_start(struct fleet *f, const char *name, const char *const *options);
/* The same with Redis and every node in a network namespace of its own: a node reaches Redis, and
 * no other one. False: that cannot be made here (it takes root). */
bool fleet_start_apart(struct fleet *f, const char *name, const char *const *options);
void fleet_cut(struct fleet *f, unsigned i, bool cut); /* node i's wire; then: packets are lost */
void fleet_stop(struct fleet *f);                      /* every node that is up must end with 0 */
/* After a failed test too: kills what runs. */
void fleet_abandon(struct fleet *f);

/* Ready when it returns. Each start has another number of threads than the one before. */
void fleet_node_start(struct fleet *f, unsigned i);
/* Waits for its end; the signal 0: was sent before. Calls of its client are over then. */
/* Gives its exit code, or -signal. */
int fleet_node_end(struct fleet *f, unsigned i, int signal);
bool fleet_node_has_ended(const struct fleet *f, unsigned i);
void fleet_node_signal(struct fleet *f, unsigned i, int signal);
struct client *fleet_at(const struct fleet *f, unsigned i); /* of node i % FLEET_NODES */
/* A figure of all nodes together; all must be up. */
double fleet_metric(const struct fleet *f, const char *name);

/* Kills Redis; starts it again, with its data or without, and waits until every node has found it.
 * All nodes must be up. */
void fleet_kill_redis(struct fleet *f);
void fleet_redis_is_back(struct fleet *f, bool empty);
/* Kills it and starts it with what redis_keep_copy() has kept. */
void fleet_redis_is_older(struct fleet *f);

struct twin {
    struct fleet fleet;
    struct api mirror;
};

/* Of the bytes model; options: more of the nodes'. */
void twin_start(struct twin *t, const char *name, const char *const *options);
/* False: not apart, although it was asked for. */
bool twin_start_apart(struct twin *t, const char *name, const char *const *options);
void twin_abandon(struct twin *t);
void twin_create(struct twin *t, const char *id); /* in both */
/* In both, with everything told, which must be the same. */
void twin_turn(struct twin *t, const char *id, unsigned node, const char *prompt, unsigned seed);

#endif
