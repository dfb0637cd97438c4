/* hash.c: see hash.h. The state is the same for every vector length, so only `add` has two forms.
 */
#define XXH_INLINE_ALL
#include "engine/base/hash.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#include "engine/base/hash_avx2.h"

static_assert(sizeof(XXH3_state_t) == SL_DIGEST_STATE, "room for a state");
static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct sl_digest), "at its place");

void sl_digest_begin(struct sl_digest *d)
{
    XXH3_128bits_reset((XXH3_state_t *)(void *)d->state);
}

void sl_digest_add(struct sl_digest *d, const void *p, size_t n)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        sl_digest_add_avx2(d, p, n);
        return;
    }
#endif
    XXH3_128bits_update((XXH3_state_t *)(void *)d->state, p, n);
}

void sl_digest_end(const struct sl_digest *d, unsigned char ret[SL_DIGEST_BYTES])
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest((const XXH3_state_t *)(const void *)d->state));
    memcpy(ret, c.digest, SL_DIGEST_BYTES);
}
