/* hash_test.c: the digest of pieces against xxhash's own of the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <xxhash.h>

#include "engine/base/hash.h"

enum { MOST = 5000 };

static void test_pieces(void **state)
{
    (void)state;
    static unsigned char text[MOST];
    uint32_t x = 1;
    for (size_t i = 0; i < MOST; i++)
        text[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
    for (size_t n = 0; n < MOST; n += n < 600 ? 1 : 97) {
        struct sl_digest d;
        unsigned char got[SL_DIGEST_BYTES];
        XXH128_canonical_t want;
        XXH128_canonicalFromHash(&want, XXH3_128bits(text, n));
        sl_digest_begin(&d);
        for (size_t at = 0, part; at < n; at += part) {
            part = ((x = x * 1664525 + 1013904223) >> 20) % (n < 600 ? 80 : 1200);
            part = part < n - at ? part : n - at;
            sl_digest_add(&d, text + at, part);
        }
        sl_digest_end(&d, got);
        assert_memory_equal(got, want.digest, sizeof got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces)};
    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
