/* hash_avx2.h: sl_digest_add() for processors with AVX2. Private to hash.c. */
#ifndef SLATE_BASE_HASH_AVX2_H
#define SLATE_BASE_HASH_AVX2_H

#include "engine/base/hash.h"

void sl_digest_add_avx2(struct sl_digest *d, const void *p, size_t n);

#endif
