/* cluster.h: two servers, each with its own store, behind a balancer; and the requests that the
 * tests of it are made of. */
#ifndef SLATE_TESTS_CLUSTER_H
#define SLATE_TESTS_CLUSTER_H

#include "tests/support/balancer.h"
#include "tests/support/client.h"

enum { CLUSTER_NODES = BALANCER_NODES, CLUSTER_LOAD = 4 };

struct cluster {
    enum balancer_kind kind;
    unsigned ports[CLUSTER_NODES];
    struct server *nodes[CLUSTER_NODES];
    struct client *direct[CLUSTER_NODES]; /* to a node itself */
    struct balancer *balancer;
    struct client *c; /* through the balancer */
};

/* Starts with empty stores; returns when every node is ready. */
void cluster_start(struct cluster *cl, enum balancer_kind kind);
void cluster_stop(struct cluster *cl);

void cluster_restart_balancer(struct cluster *cl);
/* On its port, with its store; it may still be loading. Its streams are never silent for more than
 * 50 ms. */
void cluster_start_node(struct cluster *cl, unsigned node);
/* Waits for the end of a node that was told to end (signal 0) or is told now; the exit code. */
int cluster_end_node(struct cluster *cl, unsigned node, int signal);

/* Asks until the answer has that status. */
void until_readyz(struct client *c, long status);

/* --- requests ----------------------------------------------------------------------------------*/

/* POST with X-Slate-Session (NULL: without), ' for ". */
struct call *post_for(struct client *c, const char *id, const char *path, const char *fmt, ...)
    CLIENT_PRINTF(4, 5);
struct call *look_for(struct client *c, const char *id); /* GET /v1/sessions/{id} */

void expect_status(struct call *k, long status);
/* 503 in the form of all errors, with Retry-After and this code. */
void expect_away(struct call *k, const char *code);

/* The node's sessions as it lists them itself; and one of that list, or NULL. */
struct reply *sessions_of(struct cluster *cl, unsigned node);
const json_t *session_in(const struct reply *list, const char *id);

/* --- requests without a session, some at a time, each of which must be answered ----------------*/

struct load {
    struct client *c;
    struct call *k[CLUSTER_LOAD];
    unsigned n;
    char *long_body; /* JSON; more than fits into a packet */
};

void load_start(struct load *l, const struct cluster *cl);
void load_go_on(struct load *l, unsigned n); /* n more answers */
void load_stop(struct load *l);

#endif
