/* modelled.h: a server's sessions beside a model of them: which there are, their incarnations,
 * versions and metadata, what each has been told and has said (histories.h).
 *
 * One server, or a fleet of which each call asks another node. Failures fail the test. */
#ifndef SLATE_TESTS_MODELLED_H
#define SLATE_TESTS_MODELLED_H

#include "tests/support/fleet.h"
#include "tests/support/histories.h"
#include "tests/support/node.h"

enum { SESSIONS = 14, PLACES = 6, TOKENS_MAX = 24, PAST_MAX = 64, NAMES = 2 };

struct keyed { /* a turn that was answered under a key; the session's last one */
    char key[32], body[320];
    char *answer; /* NULL: none */
    size_t n;
};

/* What a session was at a version. */
struct past {
    int64_t version;
    const struct history *told, *paused;
};

struct session {
    char id[16];
    bool exists;
    char incarnation[40];
    int64_t version, metadata;
    const struct history *told;
    const struct history *paused; /* `told`, where it can be gone on with */
    struct past past[PAST_MAX];   /* of this life, oldest first; the last one is what it is at */
    size_t n_past, n_sure;        /* sure: since it was made or restored */
    struct past named[NAMES];     /* checkpoints "n0", "n1"; version -1: none */
    struct keyed keyed;
};

struct modelled {
    struct node node;
    struct fleet *fleet; /* NULL: the node it is */
    struct client *away; /* of one that is not to be asked now; NULL: all are there */
    struct histories histories;
    struct session sessions[SESSIONS];
    bool forgets; /* its store is memory: all sessions have a place, none outlives it */
    uint64_t random_state;
    unsigned n_seeds;
    size_t n_restarts;
    size_t n_unseen; /* turns that happened and whose answer was lost */
};
extern struct modelled modelled;

/* Of the node; of a fleet: of one that is drawn. */
struct client *modelled_client(void);
/* Of a fleet: until nobody has a lease, which another node would be refused for. */
void modelled_rest(void);
/* So many tokens a stream has to have given before others can be asked to end it. */
size_t modelled_begun(void);
uint64_t draw(uint64_t below);

/* One that exists, or one that does not; NULL: none is. */
struct session *some_session(bool exists);
size_t count_sessions(void);
/* It has begun its life, as r says; or ended it. (A node that remembers another life of that name
 * refuses a turn once, as it has changed: so all that are there look.) */
void is_new(struct session *s, const struct reply *r);
void is_gone(struct session *s);
void forget_keyed(struct session *s);
/* It is at another version, or is so now, all of it. */
void note_version(struct session *s);
/* It becomes what it was then. */
void is_as(struct session *s, const struct past *p);
/* What it was at that version; NULL: that is not known. */
const struct past *past_of(const struct session *s, int64_t version);
/* A copy that lasts for the next 4 calls. */
const char *etag_of(const struct session *s, int64_t version);

/* Is the session, are all sessions and their list as the model has them? */
void check_session(const struct session *s);
void check_all(void);

/* A turn under way. */
struct flight {
    struct session *s;
    unsigned seed;
    size_t max_tokens;
    struct client *client; /* that it was asked of; NULL: which is gone */
    struct call *call;
    bool lost; /* its answer */
};
/* Sent; a prompt, a seed and a length of its own. lines: header lines, or NULL. */
struct flight begin_turn(struct session *s, bool stream, const char *lines);
/* Up to so many, each on another session. */
size_t begin_turns(struct flight *f, size_t most);
bool is_answer(const struct reply *r); /* of a turn: whole, and no error */
/* What the model makes of its answer; or, where that was lost, of the version that is found. */
void turn_answered(const struct flight *f, const struct reply *r);
void resolve_turn(const struct flight *f);
/* Of those of a server that is gone, all whose answers were lost. */
void resolve_lost(struct flight *f, size_t n);
/* Waits for its answer, which must be one. */
void finish_turn(struct flight *f);

#endif
