/* edited.h: a snapshot's file taken apart by hand (a length, a JSON header, data), not by the code
 * that wrote it, and put together again with other metadata. Failures fail the test. */
#ifndef SLATE_TESTS_EDITED_H
#define SLATE_TESTS_EDITED_H

#include "tests/support/node.h"

size_t header_length(const struct bytes *b);
json_t *header_of(const struct bytes *b);
const char *metadata_of(const json_t *header, const char *key);

/* One metadata entry changed; value NULL: gone. The digest of the metadata goes, as it must. */
struct bytes with_metadata(const struct bytes *b, const char *key, const char *value);

#endif
