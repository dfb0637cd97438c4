/* Snapshots: what goes in comes out, in each encoding; nothing damaged comes in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "slate/snapshot.h"
#include "tests/support/runner.h"
#include "tests/support/seeded.h"

/* Two layers of two heads. */
#define TINY                                                                                       \
    {                                                                                              \
        .n_layers = 2, .d_model = 16, .head_size = 8, .d_ffn = 24, .vocab_size = 256, .rank_w = 4, \
        .rank_a = 4, .rank_v = 4, .rank_g = 4, .dtype = SL_DTYPE_F32, .seed = 11                   \
    }

struct fixture {
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    unsigned char *source;
    void *state;
    size_t state_bytes;
};

static void open_shape(struct fixture *f, const struct seeded_shape *shape)
{
    size_t n;
    f->model = seeded_open(shape, NULL, &f->source, &n);
    assert_int_equal(sl_tokenizer_open(&f->tokenizer, "bytes", NULL), SL_OK);
    f->state_bytes = sl_model_info(f->model)->state_bytes;
    f->state = runner_state(f->model);
    struct runner r;
    uint32_t tokens[40];
    for (uint32_t i = 0; i < 40; i++)
        tokens[i] = (i * 37 + 11) % 256;
    runner_open(&r, f->model, 1, 8, 1);
    runner_feed(&r, f->state, tokens, 40, 8, NULL);
    runner_close(&r);
}

static void close_fixture(struct fixture *f)
{
    sl_free(f->state);
    sl_tokenizer_close(f->tokenizer);
    sl_model_close(f->model);
    free(f->source);
}

static void test_round_trip(void **arg)
{
    (void)arg;
    struct seeded_shape shape = TINY;
    struct fixture f;
    open_shape(&f, &shape);
    struct sl_snapshot_info info = {.session_id = "abc",
                                    .version = 3,
                                    .tokens_seen = 41,
                                    .metadata = "{\"a\":\"\\u0001\\\"\"}",
                                    .continuation = "{\"pending\":[7]}",
                                    .created_ms = 1764450000123,
                                    .dtype = SL_DTYPE_F32},
                            got;
    unsigned char *file;
    size_t n;
    struct sl_error err = {0};
    assert_int_equal(sl_snapshot_write(f.model, f.tokenizer, f.state, &info, &file, &n, &err),
                     SL_OK);
    void *back = sl_aligned_calloc(f.state_bytes);
    memset(back, 0xff, f.state_bytes);
    if (sl_snapshot_read(f.model, f.tokenizer, file, n, back, &got, &err))
        fail_msg("%s", err.message);
    assert_memory_equal(back, f.state, f.state_bytes);
    assert_string_equal(got.metadata, info.metadata);
    assert_int_equal(got.created_ms, info.created_ms);
    sl_free(got.text);
    sl_free(back);
    sl_free(file);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
