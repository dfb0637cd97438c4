/* scenes.h: one request of each route, to the program inside (inside.h), and what can be said of
 * the sessions afterwards.
 *
 * There are "base", of which each scene's "t" is a new fork, "held", whose turn is paused (or of
 * that), and "by", which no request speaks of; a scene may make "new". Some scenes are of a turn on
 * "t" that would go on for long, and of what ends it: a request, or SIGTERM. Then the turn's answer
 * is what says what became of "t"; how far it came is different each time, so that what "t" must be
 * is what another turn makes of it, which is the same one and ends there by itself. Failures fail
 * the test. */
#ifndef SLATE_TESTS_SCENES_H
#define SLATE_TESTS_SCENES_H

#include <stdbool.h>
#include <stddef.h>

enum { LOOK_MAX = 2048 };

struct scene {
    const char *name, *method, *path, *body;
    const char *before; /* an action on "t" first, "turn": one, "name": a name and one, or NULL;
                           "held": "t" is a fork of that */
    const char *lines;  /* header lines instead of the usual ones, or NULL */
    bool keyed;         /* retried, it must not happen twice */
    bool brings;        /* its body is the bytes of a snapshot */
    const char *finish; /* a turn runs meanwhile, which the request ends so; NULL: none */
    bool drains;        /* SIGTERM instead of a request; there is another server afterwards */
};

extern const struct scene scenes[];
extern const size_t n_scenes;
extern char scenes_store[80]; /* as it was given */

/* Starts a server (inside_start's store and tcp) and makes "base" and "by"; 0, or -1. It is ended
 * with inside_stop(). */
int scenes_start(const char *store, bool tcp);

/* What the request needs: "t", no "new", and what comes before. */
void scene_set_up(const struct scene *sc);
/* What runs meanwhile does from now on: it has read its prompt and generates. */
void scene_begin(const struct scene *sc);
/* Sends it, and where a turn runs waits for that one's end, too; false: nothing came back. */
bool scene_ask(const struct scene *sc);
extern int scene_exit_code; /* of the last drain: of one that says what it could not store, too */
/* Where it drained: the next server. */
void scene_end(const struct scene *sc);
/* Can it be on the store that there is? */
bool scene_is_possible(const struct scene *sc);

/* What a client knows from the reply (a turn's that runs from its own): UNKNOWN where it is not
 * whole, or says so. A reply that no fault excuses fails the test. */
enum outcome { DONE, FAILED, UNKNOWN };
enum outcome scene_outcome(void);

/* "t" and "new": version, tokens, metadata, names, and what a copy says next. */
void scenes_look(char ret[LOOK_MAX]);
/* They go out of memory, so that the next look reads what the store has. */
void scenes_put_away(void);
/* The turn that ran happened, and `now` is what "t" is: is it what the same turn makes of it where
 * nothing ends it? One that was paused goes on first, and both parts must be one turn. */
void scene_check_turn(const struct scene *sc, const char *now, const char *what);
/* Deletes a session, where it is there. */
void scene_gone(const char *id);
/* Is "by" what it was at the start, to the byte? */
bool scenes_by_is_the_same(void);

#endif
