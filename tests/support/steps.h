/* steps.h: calls in an order drawn by chance, beside the model (modelled.h).
 *
 * Turns whole and streamed, cancelled, paused and gone on with, several at once, two on one
 * session, clients that hang up; forks, snapshots, restores to new and over old sessions, damaged
 * ones; checkpoints with names, back to them, forks at them; pause, resume, eviction (there are
 * more sessions than places); Idempotency-Key, If-Match. SLATE_TEST_VERBOSE=1 prints each step.
 * Failures fail the test. */
#ifndef SLATE_TESTS_STEPS_H
#define SLATE_TESTS_STEPS_H

#include "tests/support/modelled.h"

struct step {
    const char *name;
    void (*run)(struct session *s); /* s exists */
    unsigned weight;                /* of all together some 140 */
};

struct steps {
    double seconds;
    uint64_t seed;
    const struct step *more; /* of the test's own */
    size_t n_more;
};

/* PROGRAM SECONDS SEED TEST; without them: the seconds that are there, a seed by the time. */
void steps_args(struct steps *ret, int argc, char **argv);
/* The modelled server and the oracle are up, and empty; `where` is for people. */
void steps_run(const struct steps *how, const char *where);
void steps_done(void);

#endif
