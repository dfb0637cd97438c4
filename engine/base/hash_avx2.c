/* hash_avx2.c: see hash.h. Empty where processors have no AVX2. */
#ifdef __AVX2__
#define XXH_INLINE_ALL
#include "engine/base/hash_avx2.h"

#include <xxhash.h>

void sl_digest_add_avx2(struct sl_digest *d, const void *p, size_t n)
{
    XXH3_128bits_update((XXH3_state_t *)(void *)d->state, p, n);
}
#else
typedef int sl_no_avx2_here;
#endif
