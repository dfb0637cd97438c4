/* peer_blocks.c: see peer_blocks.h. */
#include "tests/support/peer_blocks.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "engine/kernels/convert.h"
#include "tests/support/gguf_maker.h"

/* Returns what weights are multiplied by; codes are for the scale before it is F16. */
static float put_scale(unsigned char *block, float d)
{
    uint16_t half = sl_f16_from_f32(d);
    memcpy(block, &half, sizeof half);
    return fabsf(d) > 0 ? 1 / d : 0;
}

/* The largest magnitude at 127. */
static void q8_0(unsigned char *block, const float w[PEER_BLOCK])
{
    float m = 0;
    for (size_t i = 0; i < PEER_BLOCK; i++)
        m = fmaxf(m, fabsf(w[i]));
    float inverse = put_scale(block, m / 127);
    for (size_t i = 0; i < PEER_BLOCK; i++)
        block[2 + i] = (unsigned char)(signed char)roundf(w[i] * inverse);
}

/* The value of the largest magnitude at -8 of -8 … 7. */
static void q4_0(unsigned char *block, const float w[PEER_BLOCK])
{
    float top = 0;
    for (size_t i = 0; i < PEER_BLOCK; i++)
        top = fabsf(w[i]) > fabsf(top) ? w[i] : top;
    float inverse = put_scale(block, top / -8);
    memset(block + 2, 0, PEER_BLOCK / 2);
    for (size_t i = 0; i < PEER_BLOCK; i++) {
        unsigned code = (unsigned)fminf(floorf(w[i] * inverse + 8.5F), 15);
        block[2 + i % 16] = (unsigned char)(block[2 + i % 16] | code << (i / 16 * 4));
    }
}

static const struct peer_blocks blocks[] = {{GGML_Q8_0, 34, q8_0}, {GGML_Q4_0, 18, q4_0}};

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(end), len = strlen(name);
    return len >= n && strcmp(name + len - n, end) == 0;
}

static bool is_projection(const char *file)
{
    static const char *const ends[] = {"time_mix_receptance.weight", "time_mix_key.weight",
                                       "time_mix_value.weight",      "time_mix_output.weight",
                                       "channel_mix_key.weight",     "channel_mix_value.weight"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(file, ends[i]))
            return true;
    return false;
}

static bool is_head(const char *file)
{
    return strcmp(file, "output.weight") == 0;
}

const struct peer_blocks *peer_q8_0(const char *file)
{
    return is_projection(file) || is_head(file) ? &blocks[0] : NULL;
}

const struct peer_blocks *peer_q4_0(const char *file)
{
    return is_projection(file) ? &blocks[1] : is_head(file) ? &blocks[0] : NULL;
}
