/* vocab.c: see vocab.h. */
#include "tests/support/vocab.h"

#include <string.h>

static const unsigned char *bytes(const void *arg, uint32_t id, size_t *ret_n)
{
    static const char *const list[] = {"", "Hel", "lo", " \"", "\xc3", "\xa4", "\n"};
    (void)arg;
    *ret_n = 0;
    if (id == 0 || id >= sizeof list / sizeof *list)
        return NULL;
    *ret_n = strlen(list[id]);
    return (const unsigned char *)list[id];
}

const struct sl_vocab tiny_vocab = {bytes, NULL};

const struct sl_token_logprobs tiny_logprobs[3] = {
    {{1, -0.5f}, {{1, -0.5f}, {3, -1.25f}}},
    {{4, -2.0f}, {{0, -0.125f}, {6, -4.0f}}},
    {{5, 0.0f}, {{5, 0.0f}, {4, -8.0f}}},
};
