/* tokenizer_json_fuzz.c: arbitrary bytes as a tokenizer.json. Whatever is accepted must encode any
 * text, or say why not, to ids that it has, whole or in parts, and decode what it encoded.
 *
 * Small mutations of a file seldom change what a text becomes, so the text comes from the input,
 * too: what follows the first zero byte (which JSON cannot hold), or a fixed one. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "slate/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT_MAX = 512 };

static const char fixed[] =
    " Hello  world's 1234 <s>\xC3\xA9 e\xCC\x81\n\n\t\xE2\x96\x81 \xF0\x9F\x98\x80</s>[INST] x";

static void check_ids(const struct sl_tokenizer *t, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t len;
        assert(ids[i] < sl_tokenizer_size(t));
        (void)sl_tokenizer_bytes(t, ids[i], &len);
        assert(len <= SL_TOKEN_BYTES_MAX);
        (void)sl_tokenizer_first_bytes(t, ids[i], &len);
        assert(len <= SL_TOKEN_BYTES_MAX);
    }
}

static void check_text(const struct sl_tokenizer *t, const void *s, size_t n, bool continues)
{
    const struct sl_range verbatim[] = {{n / 4, n / 3}, {n / 2, n / 2 + n / 4}};
    const struct sl_tokenizer_text text = {
        .s = s, .n = n, .continues = continues, .verbatim = verbatim, .n_verbatim = n > 8 ? 2 : 0};
    struct sl_token_list out = {0};
    struct sl_error err = {.code = SL_OK};
    enum sl_code c = sl_tokenizer_encode(t, &text, &out, &err);
    assert(c == SL_OK || (err.code == c && err.message[0] && out.n == 0));
    assert(c != SL_OK || sl_utf8_valid(s, n) || n == 0);
    check_ids(t, out.v, out.n);
    sl_token_list_done(&out);
}

/* The beginnings of a token's bytes, as a stop string leaves them. */
static void check_parts(const struct sl_tokenizer *t, uint32_t id)
{
    size_t n;
    const unsigned char *bytes = sl_tokenizer_bytes(t, id, &n);
    for (size_t k = 1; bytes && k <= n; k += 1 + k / 4) {
        uint32_t ids[SL_TOKEN_BYTES_MAX];
        size_t at = 0, len, n_ids = sl_tokenizer_encode_part(t, bytes, k, ids);
        assert(n_ids <= k);
        for (size_t i = 0; i < n_ids; i++) {
            const unsigned char *s = sl_tokenizer_bytes(t, ids[i], &len);
            assert(s && len <= k - at && memcmp(s, bytes + at, len) == 0);
            at += len;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {.code = SL_OK};
    enum sl_code c = sl_tokenizer_open_memory(&t, data, n, "fuzz", &err);
    if (c != SL_OK) {
        assert(!t && err.code == c && err.message[0]);
        return 0;
    }
    unsigned char fingerprint[16];
    sl_tokenizer_fingerprint(t, fingerprint);
    size_t n_text = zero ? size - n - 1 : 0;
    n_text = n_text < TEXT_MAX ? n_text : TEXT_MAX;
    for (int continues = 0; continues < 2; continues++) {
        check_text(t, fixed, sizeof fixed - 1, continues);
        if (n_text)
            check_text(t, zero + 1, n_text, continues);
    }
    for (size_t id = 0; id < sl_tokenizer_size(t) && id < 600; id++)
        check_parts(t, (uint32_t)id);
    sl_tokenizer_close(t);
    return 0;
}
