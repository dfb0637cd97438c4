/* sha256.h: SHA-256 (FIPS 180-4), for comparing with lists of digests. */
#ifndef SLATE_TESTS_SHA256_H
#define SLATE_TESTS_SHA256_H

#include <stddef.h>

void sha256_hex(const void *data, size_t n, char ret[65]);

#endif
