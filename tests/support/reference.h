/* reference.h: folders of models with known answers: logits, states, tokens. A folder is a path;
 * the functions fail the test when something cannot be read. Memory is the caller's, free(). */
#ifndef SLATE_TESTS_REFERENCE_H
#define SLATE_TESTS_REFERENCE_H

#include <jansson.h>

#include "tests/support/runner.h"

const char *reference_path(const char *folder, const char *file); /* until the next call */
json_t *reference_json(const char *folder, const char *file);
float *reference_floats(const char *folder, const char *file, size_t n);
uint32_t *reference_ids(const json_t *array, size_t *ret_n);
uint32_t *reference_tokens(const char *folder, const char *file, size_t *ret_n);

/* Fails unless each of rows × vocab_size logits is within atol; returns the largest difference. */
double reference_logits(const struct sl_model *m, const char *what, const float *got,
                        const float *want, size_t rows, double atol);

/* A tensor of a reference's state by the end of its name, what it is here, and where element i of
 * theirs lies in ours: SIZE_MAX when we do not keep it. at NULL: at the same place. */
struct reference_tensor {
    const char *theirs, *ours;
    size_t (*at)(const struct sl_state_tensor *t, size_t i);
};

/* base.json and base.f32 against a state: each tensor within 1e-4 of its largest value. `names`
 * ends with a zeroed one. */
void reference_state(const struct sl_model *m, const char *folder, const char *base,
                     const struct reference_tensor *names, const unsigned char *state);

/* Feeds tokens in steps of cut[0], cut[1], … cut[3], cut[0], … */
void reference_feed(struct runner *r, void *state, const uint32_t *tokens, size_t n,
                    const size_t cut[4], float *logits);

#endif
