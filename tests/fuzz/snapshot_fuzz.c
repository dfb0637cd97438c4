/* snapshot_fuzz.c: any bytes as a snapshot of a tiny model, or as a state-tuned file.
 *
 * The first byte of an input says what the rest is: 0, a snapshot; 1, a snapshot whose header ends
 * at the first NUL and whose length is put in front of it, so that a changed header stays one; 2, a
 * state-tuned file. What is taken must be whole: every value finite, every byte of the slot
 * written; written down again it is the same state. What is refused must leave the slot alone. */
#include <math.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "proto/continuation.h"
#include "slate/snapshot.h"
#include "tests/fuzz/touch.h"
#include "tests/support/seeded.h"

#define TINY                                                                                       \
    {                                                                                              \
        .n_layers = 2, .d_model = 16, .head_size = 8, .d_ffn = 24, .vocab_size = 256, .rank_w = 4, \
        .rank_a = 4, .rank_v = 4, .rank_g = 4, .dtype = SL_DTYPE_F32, .seed = 11                   \
    }

static struct sl_model *model;
static struct sl_tokenizer *tokenizer;
static size_t state_bytes;
static unsigned char *slot, *again;

static void set_up(void)
{
    static unsigned char *source; /* in use as long as the model */
    struct seeded_shape shape = TINY;
    size_t n;
    model = seeded_open(&shape, NULL, &source, &n);
    MUST(sl_tokenizer_open(&tokenizer, "bytes", NULL) == SL_OK);
    state_bytes = sl_model_info(model)->state_bytes;
    slot = sl_aligned_calloc(state_bytes);
    again = sl_aligned_calloc(state_bytes);
    MUST(slot && again);
}

static void check_refusal(enum sl_code c, const struct sl_error *err)
{
    MUST(err->code == c && err->message[0] && memchr(err->message, '\0', sizeof err->message));
    MUST(sl_utf8_valid(err->message, strlen(err->message)));
}

/* Tensors finite, the rest as in an initial state. */
static void check_state(bool counter)
{
    size_t n;
    const struct sl_state_tensor *t = sl_model_state_tensors(model, &n);
    struct sl_state_header h;
    unsigned char *rest = malloc(state_bytes);
    MUST(rest);
    memcpy(&h, slot, sizeof h);
    MUST(h.tokens_seen <= INT64_MAX && (counter || !h.tokens_seen));
    memcpy(rest, slot, state_bytes);
    memset(rest, 0, sizeof h.tokens_seen);
    for (size_t i = 0; i < n; i++) {
        size_t elements = 1;
        for (unsigned a = 0; a < t[i].rank; a++)
            elements *= t[i].shape[a];
        const float *v = (const float *)(const void *)(slot + t[i].offset);
        for (size_t k = 0; k < elements; k++)
            MUST(isfinite(v[k]));
        memset(rest + t[i].offset, 0, elements * sizeof *v);
    }
    for (size_t i = 0; i < state_bytes; i++)
        MUST(rest[i] == 0);
    free(rest);
}

static void check_text(const char *s)
{
    MUST(!s || sl_utf8_valid(s, strlen(s)));
}

static void check_again(struct sl_snapshot_info *info)
{
    struct sl_snapshot_info got;
    unsigned char *file;
    size_t n;
    info->dtype = SL_DTYPE_F32;
    MUST(sl_snapshot_write(model, tokenizer, slot, info, &file, &n, NULL) == SL_OK);
    MUST(sl_snapshot_read(model, tokenizer, file, n, again, &got, NULL) == SL_OK);
    MUST(memcmp(slot, again, state_bytes) == 0);
    MUST(strcmp(got.session_id, info->session_id) == 0 && got.version == info->version);
    MUST(!got.edited);
    sl_free(got.text);
    sl_free(file);
}

static void touch_snapshot(const uint8_t *data, size_t size)
{
    struct sl_snapshot_info got = {.text = NULL}, seen;
    struct sl_error err = {0};
    unsigned char fingerprint[16];
    const char *arch;
    memset(slot, 0xa5, state_bytes);
    enum sl_code d = sl_snapshot_describe(data, size, &seen, &arch, fingerprint, &err);
    enum sl_code c = sl_snapshot_read(model, tokenizer, data, size, slot, &got, &err);
    if (d == SL_OK)
        sl_free(seen.text);
    if (c != SL_OK) {
        check_refusal(c, &err);
        MUST(!got.text);
        return;
    }
    MUST(d == SL_OK);
    check_text(got.session_id);
    check_text(got.metadata);
    check_text(got.continuation);
    check_state(true);
    struct sl_continuation cont;
    if (got.continuation &&
        sl_continuation_read(&cont, got.continuation, strlen(got.continuation), 256, NULL) == SL_OK)
        sl_continuation_done(&cont);
    check_again(&got);
    sl_free(got.text);
}

static void touch_with_length(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, 0, size);
    uint64_t n = end ? (uint64_t)(end - data) : size;
    unsigned char *file = malloc(8 + size);
    MUST(file);
    size_t data_n = end ? size - (size_t)n - 1 : 0;
    memcpy(file, &n, 8);
    memcpy(file + 8, data, (size_t)n);
    if (data_n)
        memcpy(file + 8 + n, end + 1, data_n);
    touch_snapshot(file, 8 + (size_t)n + data_n);
    free(file);
}

static void touch_tuned(const uint8_t *data, size_t size)
{
    struct sl_error err = {0};
    memset(slot, 0xa5, state_bytes);
    enum sl_code c = sl_initial_state_read(model, data, size, "fuzz", slot, &err);
    if (c == SL_OK) {
        check_state(false);
        return;
    }
    check_refusal(c, &err);
    for (size_t i = 0; i < state_bytes; i++)
        MUST(slot[i] == 0xa5); /* written when all is checked */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!model)
        set_up();
    if (!size)
        return 0;
    if (data[0] % 3 == 0)
        touch_snapshot(data + 1, size - 1);
    else if (data[0] % 3 == 1)
        touch_with_length(data + 1, size - 1);
    else
        touch_tuned(data + 1, size - 1);
    return 0;
}
