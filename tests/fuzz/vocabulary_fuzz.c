/* vocabulary_fuzz.c: any bytes as a vocabulary file. What opens must encode every text, and the
 * tokens' bytes must give the text back.
 *
 * A file needs all 256 single bytes, which no mutation finds by chance: the first byte of an input
 * says whether they are put in front of the rest. The text is the input itself, in two halves too,
 * whose tokens need not be those of the whole. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "slate/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LINE = sizeof "256 b'\\xff' 1\n", TEXT_MAX = 4096 };

/* The lines of the single bytes; made once. */
static size_t single_bytes(const char **ret)
{
    static char lines[256 * LINE];
    static size_t n;
    for (unsigned i = n ? 256 : 0; i < 256; i++)
        n += (size_t)snprintf(lines + n, LINE, "%u b'\\x%02x' 1\n", i + 1, i);
    *ret = lines;
    return n;
}

static void check_round_trip(const struct sl_tokenizer *t, const uint8_t *text, size_t n)
{
    uint32_t *ids = malloc((n + !n) * sizeof *ids); /* exactly the room that is asked for */
    assert(ids);
    size_t n_ids = sl_tokenizer_encode_part(t, text, n, ids), at = 0;
    assert(n_ids <= n);
    for (size_t i = 0; i < n_ids; i++) {
        size_t len;
        const unsigned char *b = sl_tokenizer_bytes(t, ids[i], &len);
        assert(b && len > 0 && len <= SL_TOKEN_BYTES_MAX && len <= n - at);
        assert(ids[i] < sl_tokenizer_size(t));
        assert(memcmp(b, text + at, len) == 0);
        at += len;
    }
    assert(at == n);
    free(ids);
}

static void check_table(const struct sl_tokenizer *t)
{
    unsigned char fingerprint[16];
    sl_tokenizer_fingerprint(t, fingerprint);
    assert(sl_tokenizer_eos(t) == 0);
    /* A token's own bytes are its longest match, or those of a twin with a larger id. */
    for (uint32_t id = 0; id < sl_tokenizer_size(t) && id < 1000; id++) {
        size_t len;
        uint32_t ids[SL_TOKEN_BYTES_MAX];
        const unsigned char *b = sl_tokenizer_bytes(t, id, &len);
        if (!b)
            continue;
        assert(sl_tokenizer_encode_part(t, b, len, ids) == 1);
        assert(ids[0] >= id);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 20)
        return 0;
    char *file = malloc(256 * LINE + size);
    assert(file);
    const char *lines;
    size_t n = single_bytes(&lines);
    if (!(data[0] & 1))
        n = 0;
    memcpy(file, lines, n);
    memcpy(file + n, data + 1, size - 1);
    n += size - 1;
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {.code = SL_OK};
    enum sl_code c = sl_tokenizer_open_memory(&t, file, n, "fuzz", &err);
    free(file);
    if (c != SL_OK) {
        assert(!t && err.code == c && err.message[0]);
        return 0;
    }
    size_t n_text = size < TEXT_MAX ? size : TEXT_MAX;
    check_round_trip(t, data, n_text);
    check_round_trip(t, data, n_text / 2);
    check_round_trip(t, data + n_text / 2, n_text - n_text / 2);
    check_table(t);
    sl_tokenizer_close(t);
    return 0;
}
