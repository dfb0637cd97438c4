/* checkpoints.h: for tests of checkpoints: a server over each kind of store, sessions with some
 * turns behind them, and names for their versions. Failures fail the test. */
#ifndef SLATE_TESTS_CHECKPOINTS_H
#define SLATE_TESTS_CHECKPOINTS_H

#include "tests/support/node.h"

extern struct node store_node;

enum { STORE_KINDS = 3 };
extern const char *const store_kinds[STORE_KINDS]; /* "memory", "dir", "redis" */
bool store_survives(const char *kind);             /* the server's end */

/* A server over an empty one; more: options, NULL at the end; NULL: none. */
struct client *store_start(const char *kind, const char *const *more);
void store_stop(void);
int store_abandon(void **state); /* a group's tear-down */

void make(struct client *c, const char *id);
/* So many turns; after each second one a snapshot of it is written, where there is a store. */
void live(struct client *c, const char *id, unsigned n);

/* Answers to POST and DELETE …/checkpoints, and to POST …/rewind. */
struct reply *name_it(struct client *c, const char *id, const char *name);
struct reply *unname(struct client *c, const char *id, const char *name);
struct reply *rewind_to(struct client *c, const char *id, const char *name);

/* What GET of the session says. */
int64_t kept_bytes(struct client *c, const char *id);
int64_t state_bytes(struct client *c, const char *id);
/* How many names the list shows for a version; -1: the version is not there. */
int names_at(struct client *c, const char *id, int64_t version);

#endif
