/* uncut.h: turns that nothing interrupted, each with one turn more: the references for turns that
 * go on after an interruption.
 *
 * The settings make it hard: temperature 1, penalties of all kinds, and what the model's own
 * settings add. Failures fail the test. */
#ifndef SLATE_TESTS_UNCUT_H
#define SLATE_TESTS_UNCUT_H

#include "tests/support/node.h"

enum { UNCUT_TOKENS = 64, UNCUT_SEEDS = 32 };

/* One model, and how to ask it: filled in by the test as far as `node`. */
struct uncut {
    const char *name;
    const char *const *options;
    const char *start, *prompt; /* of the session, and of its turn */
    const char *settings;       /* of every turn */
    struct node node;
    struct gen turn[UNCUT_SEEDS], next[UNCUT_SEEDS]; /* the references, by seed */
};

/* Starts the server and makes the references; ends it and forgets them. */
void uncut_open(struct uncut *st);
void uncut_close(struct uncut *st);

/* A session; the turn on it with that seed, begun; the same gone on with, after a pause; and the
 * turn after it. */
void uncut_create(struct uncut *st, const char *id);
struct call *uncut_begin(struct uncut *st, const char *id, unsigned seed);
struct call *uncut_go_on(struct uncut *st, const char *id);
struct call *uncut_one_more(struct uncut *st, const char *id, unsigned seed);

/* Are the parts of a turn, and is the turn after it, what the reference gave? The latter finishes
 * the call and deletes the session, which has done its work. */
void uncut_compare(struct uncut *st, const struct parts *p, unsigned seed);
void uncut_compare_next(struct uncut *st, const char *id, unsigned seed, struct call *k);

#endif
