/* fleet_load.h: 32 sessions of a fleet that are never idle, each with one turn at a time, asked of
 * any node or of a balancer; half of the turns have an Idempotency-Key.
 *
 * What is acknowledged is kept in a log and compared with the mirror: that nothing was lost,
 * applied twice, or became something else. A turn whose server died is asked for again: with a key
 * as it was, without one when the session's version has told whether it counts. So is one that
 * found no Redis while that was killed; a 503 says that it did not happen, and must be true. A
 * session that is refused as busy for longer than a lease fails the test, and behind a balancer so
 * does any answer but 200. */
#ifndef SLATE_TESTS_FLEET_LOAD_H
#define SLATE_TESTS_FLEET_LOAD_H

#include "tests/support/fleet.h"

void load_seed(uint64_t seed);
uint64_t load_draw(uint64_t below);

/* Makes the sessions PREFIX0 …; one load at a time. balancer NULL: the nodes themselves. */
void load_begin(struct twin *t, struct client *balancer, const char *prefix);
/* Lets all go on until so many more answers have come. */
void load_run(size_t n_answers);
/* Until nothing is on its way, or open. */
void load_settle(void);
/* The log against the mirror. Nothing may be on its way. */
void load_check(void);
unsigned load_node(void); /* one that is up */
/* That node is dead: the answers that were on their way are lost, or were sent before. */
void load_killed(unsigned node);

/* Redis is killed, with whatever is on its way, and started again with its data: at once, or when
 * so many turns were refused for want of it. Returns when every node has found it. */
void load_kill_redis(unsigned n_refused);

struct load_counts {
    unsigned acknowledged, unseen, replayed; /* unseen: counted, but its answer was lost */
    unsigned away, unknown; /* refused for want of Redis; answered that nobody knows */
    int64_t longest_ms; /* from a server's death (or Redis' return) to a session's next answer */
};
struct load_counts load_counts(void);

#endif
