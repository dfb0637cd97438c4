/* attack.h: how much of their throughput eight honest clients keep under an attack.
 *
 * Attack and quiet take turns in one run. "Without it" the foes do the same work against a port
 * that swallows all, so that what they take of the processors themselves counts on both sides; the
 * order changes from pair to pair, and the median of the pairs' ratios decides: noise has to hit
 * most of them, on one side, to do so. Both numbers are printed. Where other programs keep the
 * machine busy the server's time on the processors is judged in their place: how much of it an
 * honest request takes. An honest client that is refused, cut off or not answered fails the test at
 * once. */
#ifndef SLATE_TESTS_ATTACK_H
#define SLATE_TESTS_ATTACK_H

#include "tests/support/foes.h"
#include "tests/support/server.h"

struct attack_terms {
    double least;   /* of the throughput, that they must keep */
    size_t n_slice; /* requests of theirs between two turns */
};
extern struct attack_terms attack_terms; /* 0.66 and 500, until it is told otherwise */

/* The attack against s: pairs of slices, and as many more as it takes for the median to be right
 * (no more where it is not half of what it must be). Fails the test where they keep less. */
void attack(const char *name, struct server *s, const struct foe_plan *plan);

/* The same for an attack that is under way and lasts: slices of s, which is under it, take turns
 * with those of another server, which is not. What the foes do must cost both sides the same:
 * nothing. */
void attack_beside(const char *name, struct server *quiet, struct server *s);

#endif
