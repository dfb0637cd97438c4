/* probe.h: what a session remembers, seen from outside.
 *
 * Two states are the same when what follows is: a probe continues a fork greedily, with all log
 * probabilities told; these are compared bit for bit. The session itself stays as it is. */
#ifndef SLATE_TESTS_PROBE_H
#define SLATE_TESTS_PROBE_H

#include "tests/support/api.h"

/* The fork's id: a copy that lasts for the next 16 calls. */
const char *probe_fork(struct client *c, const char *id);
void probe_drop(struct client *c, const char *id);

void probe_of(struct client *c, struct gen *g, const char *id);
bool probe_same(struct client *c, const char *a, const char *b);

int64_t probe_version(struct client *c, const char *id);
int64_t probe_seen(struct client *c, const char *id);

/* Feeds ids and generates nothing. */
void probe_feed(struct client *c, const char *id, const uint32_t *ids, size_t n);

#endif
