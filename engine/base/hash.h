/* hash.h: XXH3-128 of bytes that come in pieces, at the speed of a cache. No allocation; any
 * thread, each its own struct.
 *
 * The digest of many megabytes is taken beside a copy of them, while a piece lies in the nearest
 * cache. So the hash has to be as fast as the processor can: wider vectors where it has them (as
 * engine/kernels does), and loops that the compiler unrolls, which -O2 does not. */
#ifndef SLATE_BASE_HASH_H
#define SLATE_BASE_HASH_H

#include <stddef.h>

enum { SL_DIGEST_BYTES = 16, SL_DIGEST_STATE = 576 };

struct sl_digest {
    _Alignas(64) unsigned char state[SL_DIGEST_STATE]; /* XXH3_state_t */
};

void sl_digest_begin(struct sl_digest *d);
void sl_digest_add(struct sl_digest *d, const void *p, size_t n);
/* Big-endian, as xxhash writes it. */
void sl_digest_end(const struct sl_digest *d, unsigned char ret[SL_DIGEST_BYTES]);

#endif
