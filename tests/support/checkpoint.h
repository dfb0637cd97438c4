/* checkpoint.h: opening PyTorch checkpoints whose pickle a test has built. */
#ifndef SLATE_TESTS_CHECKPOINT_H
#define SLATE_TESTS_CHECKPOINT_H

#include "engine/formats/tensors.h"
#include "tests/support/bytes.h"

/* An archive of this pickle, with the record data/0 of 64 bytes: 0, 1, 2, … */
void make_checkpoint(struct bytes *b, const struct bytes *pickle);

/* Opens such an archive from a copy without a byte to spare, which is to be freed; fails the test
 * when it cannot be opened. */
struct sl_tensors *open_pickle(const struct bytes *pickle, unsigned char **copy);

/* The pickle is refused with this code and a message that has this part. */
void assert_refused(const struct bytes *pickle, enum sl_code want, const char *part);

/* A tensor of floats over a storage of n. */
void pick_float(struct bytes *b, const char *key, int64_t n, int64_t offset, unsigned rank,
                const int64_t *shape, const int64_t *stride);

/* {"w": a [2, 3] view at element 1 with the strides [1, 4]} over the 16 floats of data/0 */
void pick_good(struct bytes *b);

#endif
