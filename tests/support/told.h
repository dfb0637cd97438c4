/* told.h: what a client was told of a session's turns, to be compared with a mirror: a server that
 * is never killed and on which the same turns are run in the same order.
 *
 * Failures fail the test. */
#ifndef SLATE_TESTS_TOLD_H
#define SLATE_TESTS_TOLD_H

#include "tests/support/node.h"

enum { TOLD_TURNS_MAX = 64, TOLD_BODY = 256 };

struct told {
    char id[16];
    int64_t version; /* with all of them; it grows by one with each */
    struct {
        unsigned seed;
        struct gen g;        /* g.r NULL: its answer was lost */
    } turns[TOLD_TURNS_MAX]; /* since the mirror was brought up to date */
    size_t n_turns;
};

/* The request of the turn with that seed, for /v1/generate. */
void told_body(char dst[TOLD_BODY], const char *id, unsigned seed);
/* It has happened. r: its answer, whole, which is taken; NULL: lost. */
void told_turn(struct told *t, unsigned seed, struct reply *r);
/* Runs on the mirror what has happened in n sessions, the i-th told at first + i * stride bytes;
 * compares what was said, and forgets it. */
void told_compare(struct told *first, size_t stride, size_t n, struct client *mirror);
void told_forget(struct told *t);

#endif
