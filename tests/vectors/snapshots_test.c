/* snapshots_test.c: golden files: snapshots of every version that was ever written, in
 * tests/vectors/snapshots/. Whatever the format becomes, they must be read, and give these values.
 *
 * They are of the model SNAPSHOT_TINY of tests/support/snapshots.h with the tokenizer `bytes`,
 * after 40 tokens. The digests below are SHA-256 over the F32 values of all tensors in order of
 * their names, and come from `python3 tests/vectors/snapshot.py sha FILE`, which knows nothing of
 * the reader here. `build/release/tests/vectors/snapshots_test --write FOLDER` writes the files of
 * the present version; v1-edited was then made from v1-f32 by `snapshot.py edit …
 * layers.1.ffn.shift 2 0.25`. Files of a version are never written again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "proto/continuation.h"
#include "proto/json.h"
#include "tests/support/runner.h"
#include "tests/support/sha256.h"
#include "tests/support/snapshots.h"

#define FOLDER "tests/vectors/snapshots/"

static struct snapshots tiny;

/* --- what the files hold --- */

static const uint32_t pending[] = {104, 105, 226, 130};
static const uint32_t generated[] = {72, 101, 108, 108, 111};
static const uint32_t stop_tokens[] = {0, 10};
static const unsigned char stop_bytes[] = {0xff, 0x00};
static const struct sl_stop stops[] = {{(const unsigned char *)"\n\nUser:", 7}, {stop_bytes, 2}};
static const struct sl_logit_bias bias[] = {{10, -1.5f}, {65, 0.1f}};

static const struct sl_paused_turn paused = {
    .sampling = {.temperature = 0.7f,
                 .top_k = 40,
                 .top_p = 0.95f,
                 .min_p = 0.05f,
                 .typical_p = 1.0f,
                 .repetition_penalty = 1.1f,
                 .presence_penalty = 0.3f,
                 .frequency_penalty = 0.2f,
                 .penalty_decay = 0.996f,
                 .penalty_last_n = 64,
                 .seed = 18446744073709551557u,
                 .bias = bias,
                 .n_bias = 2},
    .draws = 5,
    .max_tokens = 95,
    .stops = stops,
    .n_stops = 2,
    .stop_tokens = stop_tokens,
    .n_stop_tokens = 2,
    .ignore_eos = true,
    .logprobs = 3,
    .generated = generated,
    .n_generated = 5,
    .n_held = 2,
    .ring = {.n = 2, .tokens = {7, 8}},
    .utf8_tail = {0xe2},
    .n_utf8_tail = 1,
    .chat_template = "rwkv-brief",
    .reply_started = true,
};

struct golden {
    const char *file;
    enum sl_dtype dtype;
    bool session, turn; /* has a continuation; has a paused turn */
    bool edited;
    const char *sha;
};

static const struct golden goldens[] = {
    {"v1-f32.safetensors", SL_DTYPE_F32, true, false, false,
     "bf80d8d8e12c2f1125abbf2e44b2c147975da15b9b5fd5b0ffddacc078a4bc41"},
    {"v1-bf16.safetensors", SL_DTYPE_BF16, true, false, false,
     "9a745d81dc39f2f2a0ae02a418eeb356c6fa93bbb0d61377d4d077a23a0aef8e"},
    {"v1-i8.safetensors", SL_DTYPE_I8, true, false, false,
     "424cf056233c90b78a955a394562c71ad307828809a63c833011e0fe3696dcd1"},
    {"v1-paused.safetensors", SL_DTYPE_F32, true, true, false,
     "bf80d8d8e12c2f1125abbf2e44b2c147975da15b9b5fd5b0ffddacc078a4bc41"},
    {"v1-empty.safetensors", SL_DTYPE_F32, false, false, false,
     "bfe492baf731a0dbf6e1e050f5bc3fe8c1b049383194dcdf82f023bfa409f462"},
    {"v1-edited.safetensors", SL_DTYPE_F32, true, false, true,
     "dc7fb67a14a391f1f1ed8545fc599f6985b2765e877b423cbeb2104de5b697ca"},
};
enum { N_GOLDENS = sizeof goldens / sizeof *goldens };

/* --- reading them --- */

static struct snapshot_file load(const char *name)
{
    char path[256];
    struct snapshot_file out = {malloc(1 << 16), 0};
    (void)snprintf(path, sizeof path, FOLDER "%s", name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s is not here", path);
    out.n = fread(out.p, 1, 1 << 16, f);
    fclose(f);
    assert_true(out.n < 1 << 13);
    return out;
}

static int by_name(const void *a, const void *b)
{
    const struct sl_state_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static void sha_of(const void *state, char ret[65])
{
    size_t n, at = 0;
    const struct sl_state_tensor *t = sl_model_state_tensors(tiny.model, &n);
    struct sl_state_tensor sorted[8];
    unsigned char values[320 * 4];
    assert_int_equal(n, 6);
    memcpy(sorted, t, n * sizeof *t);
    qsort(sorted, n, sizeof *sorted, by_name);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 4;
        for (unsigned a = 0; a < sorted[i].rank; a++)
            bytes *= sorted[i].shape[a];
        assert_true(at + bytes <= sizeof values);
        memcpy(values + at, (const unsigned char *)state + sorted[i].offset, bytes);
        at += bytes;
    }
    sha256_hex(values, at, ret);
}

static void check_turn(const struct sl_paused_turn *p)
{
    assert_non_null(p);
    assert_memory_equal(&p->sampling.temperature, &paused.sampling.temperature, 4);
    assert_memory_equal(&p->sampling.top_p, &paused.sampling.top_p, 4);
    assert_memory_equal(&p->sampling.min_p, &paused.sampling.min_p, 4);
    assert_memory_equal(&p->sampling.repetition_penalty, &paused.sampling.repetition_penalty, 4);
    assert_memory_equal(&p->sampling.presence_penalty, &paused.sampling.presence_penalty, 4);
    assert_memory_equal(&p->sampling.frequency_penalty, &paused.sampling.frequency_penalty, 4);
    assert_memory_equal(&p->sampling.penalty_decay, &paused.sampling.penalty_decay, 4);
    assert_true(p->sampling.typical_p == 1.0f && p->sampling.top_k == 40);
    assert_true(p->sampling.penalty_last_n == 64 && p->sampling.seed == 18446744073709551557u);
    assert_int_equal(p->sampling.n_bias, 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(p->sampling.bias[i].token == bias[i].token &&
                    p->sampling.bias[i].bias == bias[i].bias);
    assert_true(p->draws == 5 && p->max_tokens == 95 && p->ignore_eos && p->logprobs == 3);
    assert_int_equal(p->n_stops, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(p->stops[i].n, stops[i].n);
        assert_memory_equal(p->stops[i].bytes, stops[i].bytes, stops[i].n);
    }
    assert_int_equal(p->n_stop_tokens, 2);
    assert_memory_equal(p->stop_tokens, stop_tokens, sizeof stop_tokens);
    assert_int_equal(p->n_generated, 5);
    assert_memory_equal(p->generated, generated, sizeof generated);
    assert_true(p->n_held == 2 && p->ring.n == 2 && p->ring.tokens[1] == 8);
    assert_true(p->n_utf8_tail == 1 && p->utf8_tail[0] == 0xe2 && p->reply_started);
    assert_string_equal(p->chat_template, "rwkv-brief");
}

static void check_continuation(const struct golden *g, const char *text)
{
    struct sl_continuation c;
    struct sl_error err = {0};
    assert_int_equal(!text, !g->session);
    if (!text)
        return;
    if (sl_continuation_read(&c, text, strlen(text), 256, &err) != SL_OK)
        fail_msg("%s: %s", g->file, err.message);
    assert_int_equal(c.n_pending, g->turn ? 4 : 1);
    assert_memory_equal(c.pending, pending, c.n_pending * sizeof *pending);
    assert_true(c.ring.n == 3 && c.ring.tokens[0] == 1 && c.ring.tokens[2] == 3);
    assert_int_equal(!c.paused, !g->turn);
    if (g->turn)
        check_turn(c.paused);
    sl_continuation_done(&c);
}

static void check_golden(const struct golden *g)
{
    struct snapshot_file f = load(g->file);
    struct sl_snapshot_info got;
    struct sl_error err = {0};
    char sha[65];
    if (snapshots_read(&tiny, f.p, f.n, &got, &err) != SL_OK)
        fail_msg("%s: %s", g->file, err.message);
    sha_of(tiny.back, sha);
    if (strcmp(sha, g->sha) != 0)
        fail_msg("%s: the state's digest is %s, not %s", g->file, sha, g->sha);
    const struct sl_state_header *h = tiny.back;
    assert_int_equal(h->tokens_seen, g->session ? 40 : 0);
    assert_int_equal(got.dtype, g->dtype);
    assert_int_equal(got.edited, g->edited);
    assert_false(got.other_weights_type || got.other_tokenizer);
    assert_string_equal(got.session_id, g->session ? "golden" : "");
    assert_true(got.version == (g->session ? 3 : 0));
    assert_true(got.tokens_seen == (g->session ? 41 : 0));
    assert_true(got.created_ms == (g->session ? 1780272000123 : 0));
    assert_true(got.incarnation[15] == (g->session ? 0xff : 0));
    assert_string_equal(got.metadata, g->session ? "{\"who\":\"\xc3\xa4\"}" : "{}");
    check_continuation(g, got.continuation);
    sl_free(got.text);
    free(f.p);
}

static void test_goldens(void **arg)
{
    (void)arg;
    for (size_t i = 0; i < N_GOLDENS; i++)
        check_golden(&goldens[i]);
}

/* Where nothing was rounded and nothing edited, it is the state that this model has by itself. */
static void test_state(void **arg)
{
    (void)arg;
    char sha[65];
    sha_of(tiny.state, sha);
    assert_string_equal(sha, goldens[0].sha);
}

/* --- writing them --- */

static int write_goldens(const char *folder)
{
    char path[512];
    struct sl_continuation c = {.pending = pending, .n_pending = 1, .ring = {3, {1, 2, 3}}};
    struct snapshots empty;
    struct seeded_shape shape = SNAPSHOT_TINY;
    snapshots_open(&tiny, &shape, 40);
    snapshots_open(&empty, &shape, 0);
    for (size_t i = 0; i < N_GOLDENS; i++) {
        const struct golden *g = &goldens[i];
        struct sl_snapshot_info info = {.dtype = g->dtype};
        struct sl_buf text;
        sl_buf_init(&text, 1 << 16);
        c.n_pending = g->turn ? 4 : 1;
        c.paused = g->turn ? &paused : NULL;
        sl_continuation_write(&text, &c);
        sl_buf_putc(&text, '\0');
        if (g->session)
            info = (struct sl_snapshot_info){.session_id = "golden",
                                             .incarnation = {1, [15] = 0xff},
                                             .version = 3,
                                             .tokens_seen = 41,
                                             .metadata = "{\"who\":\"\xc3\xa4\"}",
                                             .continuation = text.data,
                                             .created_ms = 1780272000123,
                                             .dtype = g->dtype};
        struct snapshot_file f = snapshots_write(g->session ? &tiny : &empty, &info);
        (void)snprintf(path, sizeof path, "%s/%s", folder, g->file);
        FILE *out = g->edited ? NULL : fopen(path, "wb");
        if (out && (fwrite(f.p, 1, f.n, out) != f.n || fclose(out) != 0))
            return 1;
        sl_buf_done(&text);
        sl_free(f.p);
    }
    snapshots_close(&tiny);
    snapshots_close(&empty);
    return 0;
}

static int set_up(void **arg)
{
    (void)arg;
    struct seeded_shape shape = SNAPSHOT_TINY;
    snapshots_open(&tiny, &shape, 40);
    return 0;
}

static int tear_down(void **arg)
{
    (void)arg;
    snapshots_close(&tiny);
    return 0;
}

int main(int argc, char **argv)
{
    sl_json_init();
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_goldens(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_state),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
