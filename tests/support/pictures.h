/* pictures.h: what a session is, taken through its snapshot: the tensors' bytes, and what is
 * pending; not its version, nor when it was written. */
#ifndef SLATE_TESTS_PICTURES_H
#define SLATE_TESTS_PICTURES_H

#include "tests/support/node.h"

struct picture {
    struct bytes b;
    const char *data, *continuation; /* into b */
    size_t n_data, n_continuation;
};

struct picture picture_of(struct client *c, const char *id);
void picture_same(const struct picture *a, const struct picture *b); /* else the test fails */
void picture_done(struct picture *p);

#endif
