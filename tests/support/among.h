/* among.h: for tests of promise 2: one session's tokens, cut into steps, alone or among others, and
 * what they gave, as hashes. Failures fail the test. */
#ifndef SLATE_TESTS_AMONG_H
#define SLATE_TESTS_AMONG_H

#include "tests/support/runner.h"

enum { AMONG_MAX = 32 /* others of a step */, AMONG_TOKENS_MAX = 256 };

struct hashes {
    uint64_t logits, state;
};

/* Token i of a session, some id of the model. */
uint32_t token_of(const struct sl_model *m, size_t session, size_t i);

struct hashes hashes_of(const struct runner *r, const float *logits, size_t n, const void *state);

void assert_same(struct hashes a, struct hashes b, const char *what);

/* The others of a step: each at its own position, bringing one token or a few. */
struct others {
    size_t n;
    void *states[AMONG_MAX];
    float *logits[AMONG_MAX];
    size_t at[AMONG_MAX];
    uint32_t tokens[AMONG_MAX][4];
};

void others_open(struct others *o, const struct sl_model *m, size_t n);
void others_close(struct others *o);

/* Session 0's tokens in chunks, with n others before and behind it: in every step, or in every
 * fourth when it brings one token at a time. */
struct hashes run_among(struct runner *r, size_t chunk, size_t n_tokens, struct others *o);

#endif
