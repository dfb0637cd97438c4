/* histories.h: what sessions have been told and have said, as a tree of turns, and an oracle: a
 * session on another server that was told the same, one turn after the other, without
 * interruptions.
 *
 * A turn is told by its prompt, its seed and the tokens it may give; what it gave is compared token
 * for token, log probabilities included. Copies of a session share what was before them. Failures
 * fail the test. */
#ifndef SLATE_TESTS_HISTORIES_H
#define SLATE_TESTS_HISTORIES_H

#include "tests/support/api.h"

struct history {
    const struct history *parent; /* NULL: the session was empty */
    size_t depth;                 /* turns, this one included */
    unsigned seed;                /* it makes the prompt, too */
    size_t max_tokens;
    bool is_told;     /* what it gave is known */
    uint32_t *tokens; /* is_told: how many there are is what it kept */
    double *logprobs;
    size_t n;
    bool checked;
    struct history *older; /* made before it */
};

struct histories {
    struct client *oracle;
    struct history *newest;
    size_t n_checked, n_sessions; /* turns, and oracle's sessions made for them */
};

void histories_init(struct histories *hs, struct client *oracle);
void histories_done(struct histories *hs);

/* The body of POST /v1/generate for a turn. */
void history_body(char dst[320], const char *session, unsigned seed, size_t max_tokens,
                  bool stream);

/* A turn after `parent`; r: its whole answer, or NULL when it was lost (then it gave max_tokens).
 */
const struct history *history_add(struct histories *hs, const struct history *parent, unsigned seed,
                                  size_t max_tokens, const struct reply *r);
/* The same turn, paused and now gone on with: its tokens and those of r. */
const struct history *history_resumed(struct histories *hs, const struct history *paused,
                                      const struct reply *r);
/* Replays what was not checked. */
void histories_check(struct histories *hs);

#endif
