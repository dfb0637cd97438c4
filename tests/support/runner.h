/* runner.h: a model with workers and a forward pass, for tests and benches that have no engine. */
#ifndef SLATE_TESTS_RUNNER_H
#define SLATE_TESTS_RUNNER_H

#include "engine/forward.h"

struct runner {
    const struct sl_model *model;
    struct sl_workers *workers;
    struct sl_forward *forward;
    size_t max_rows, stride; /* floats of a row of logits */
};

/* Fails the test (or ends the program) when it cannot. The model must outlive it. */
void runner_open(struct runner *r, const struct sl_model *m, size_t n_threads, size_t max_rows,
                 size_t max_segments);
void runner_close(struct runner *r);

/* A fresh initial state; free with sl_free(). */
void *runner_state(const struct sl_model *m);
/* Room for n rows of logits, zeroed; free with sl_free(). */
float *runner_logits(const struct sl_model *m, size_t n);

/* Feeds n tokens in steps of at most `chunk`; logits (may be NULL) gets a row for each. */
void runner_feed(struct runner *r, void *state, const uint32_t *tokens, size_t n, size_t chunk,
                 float *logits);

/* The index of the largest of n. */
uint32_t runner_argmax(const float *x, size_t n);

/* The tensor of a state by name; NULL when the model has none of it. */
const struct sl_state_tensor *runner_tensor(const struct sl_model *m, const char *name);

#endif
