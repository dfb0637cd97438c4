/* State-tuned files as initial states. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "tests/support/bytes.h"
#include "tests/support/checkpoint.h"
#include "tests/support/rules.h"
#include "tests/support/runner.h"
#include "tests/support/snapshots.h"

enum { H = 2, N = 8, LAYERS = 2, VALUES = H * N * N };

static struct snapshots tiny;

/* A value that says where it is, exact in every type: f16 has 11 bits. */
static float value_at(size_t layer, size_t h, size_t v, size_t k)
{
    return (float)(1 + layer * VALUES + (h * N + v) * N + k) / 4;
}

/* Little-endian bytes of a value that fits the type. */
static void put_value(struct bytes *b, enum sl_dtype dtype, float f)
{
    uint32_t u;
    uint64_t d;
    double wide = (double)f;
    memcpy(&u, &f, sizeof u);
    memcpy(&d, &wide, sizeof d);
    uint32_t exponent = (u >> 23 & 255) - 112, fraction = u >> 13 & 0x3ff;
    if (dtype == SL_DTYPE_F64)
        put_u64(b, d);
    else if (dtype == SL_DTYPE_F32)
        put_u32(b, u);
    else if (dtype == SL_DTYPE_BF16)
        put_u16(b, u >> 16);
    else
        put_u16(b, (u >> 16 & 0x8000) | exponent << 10 | fraction);
}

struct made {
    enum sl_dtype dtype;
    const char *shape; /* of each tensor */
    size_t first, n;   /* layers */
    const char *more;  /* header entries besides, each with a comma before it */
};

/* A file of whole numbers below 256 where the type is BF16. */
static struct bytes make(const struct made *m)
{
    struct bytes b = {0}, header = {0};
    size_t bytes = VALUES * sl_dtype_size(m->dtype);
    put_text(&header, "{\"__metadata__\":{}");
    for (size_t i = 0; i < m->n; i++) {
        char entry[256];
        (void)snprintf(entry, sizeof entry,
                       ",\"blocks.%zu.att.time_state\":{\"dtype\":\"%s\",\"shape\":%s,"
                       "\"data_offsets\":[%zu,%zu]}",
                       m->first + i, sl_dtype_name(m->dtype), m->shape, i * bytes, (i + 1) * bytes);
        put_text(&header, entry);
    }
    put_text(&header, m->more);
    put_text(&header, "}");
    put_u64(&b, header.n);
    put(&b, header.p, header.n);
    for (size_t i = 0; i < m->n; i++)
        for (size_t k = 0; k < VALUES; k++) {
            float f = value_at(m->first + i, k / (N * N), k / N % N, k % N);
            put_value(&b, m->dtype, m->dtype == SL_DTYPE_BF16 ? (float)(k % 256) : f);
        }
    bytes_done(&header);
    return b;
}

static enum sl_code read_state(const void *p, size_t n, struct sl_error *err)
{
    unsigned char *copy = exact_copy(p, n), *before = tiny.back;
    memset(tiny.back, 0xa5, tiny.state_bytes);
    enum sl_code c = sl_initial_state_read(tiny.model, copy, n, "tuned.pth", tiny.back, err);
    for (size_t i = 0; c != SL_OK && i < tiny.state_bytes; i++)
        assert_int_equal(before[i], 0xa5);
    free(copy);
    return c;
}

/* The state is the initial one but for the matrices: [value][key] became [key][value]. */
static void assert_transposed(bool bf16)
{
    void *want = runner_state(tiny.model);
    for (size_t i = 0; i < LAYERS; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "layers.%zu.mixer.state", i);
        const struct sl_state_tensor *t = runner_tensor(tiny.model, name);
        float *s = (float *)(void *)((unsigned char *)want + t->offset);
        for (size_t h = 0; h < H; h++)
            for (size_t k = 0; k < N; k++)
                for (size_t v = 0; v < N; v++)
                    s[(h * N + k) * N + v] =
                        bf16 ? (float)(((h * N + v) * N + k) % 256) : value_at(i, h, v, k);
    }
    assert_memory_equal(tiny.back, want, tiny.state_bytes);
    sl_free(want);
}

static void test_types(void **arg)
{
    (void)arg;
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_F64};
    static const char *const shapes[] = {"[2,8,8]", "[1,2,8,8]"};
    for (size_t i = 0; i < 8; i++) {
        struct made m = {dtypes[i / 2], shapes[i % 2], 0, LAYERS, ""};
        struct bytes b = make(&m);
        struct sl_error err = {0};
        if (read_state(b.p, b.n, &err) != SL_OK)
            fail_msg("%s", err.message);
        assert_transposed(dtypes[i / 2] == SL_DTYPE_BF16);
        bytes_done(&b);
    }
}

/* As torch.save writes one: a zip of a pickle and a record, here with views in odd strides. */
static void test_checkpoint(void **arg)
{
    (void)arg;
    struct bytes pickle = {0}, data = {0};
    struct zip_maker z = {.align = 64};
    put_text(&pickle, "\x80\2}(");
    for (size_t i = 0; i < LAYERS; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blocks.%zu.att.time_state", i);
        pick_text(&pickle, name);
        /* the record holds [layer][head][key][value]: the last two axes are swapped by strides */
        pick_tensor(&pickle, "FloatStorage", "0", LAYERS * VALUES, (int64_t)(i * VALUES), 3,
                    (const int64_t[]){H, N, N}, (const int64_t[]){N * N, 1, N}, false);
        for (size_t h = 0; h < H; h++)
            for (size_t k = 0; k < N; k++)
                for (size_t v = 0; v < N; v++)
                    put_value(&data, SL_DTYPE_F32, value_at(i, h, v, k));
    }
    put_text(&pickle, "u.");
    zip_add(&z, "archive/data.pkl", pickle.p, pickle.n);
    zip_add(&z, "archive/data/0", data.p, data.n);
    zip_end(&z);
    struct sl_error err = {0};
    if (read_state(z.file.p, z.file.n, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_transposed(false);
    zip_done(&z);
    bytes_done(&pickle);
    bytes_done(&data);
}

/* It is where the file says: S as given, read with r, gives what the rule says. */
static void test_it_is_used(void **arg)
{
    (void)arg;
    struct made m = {SL_DTYPE_F32, "[2,8,8]", 0, LAYERS, ""};
    struct bytes b = make(&m);
    struct runner r;
    const uint32_t token = 5;
    assert_int_equal(read_state(b.p, b.n, NULL), SL_OK);
    float *tuned = runner_logits(tiny.model, 1), *plain = runner_logits(tiny.model, 1);
    void *state = runner_state(tiny.model);
    runner_open(&r, tiny.model, 1, 1, 1);
    runner_feed(&r, tiny.back, &token, 1, 1, tuned);
    runner_feed(&r, state, &token, 1, 1, plain);
    assert_memory_not_equal(tuned, plain, 256 * sizeof *tuned);
    for (size_t i = 0; i < 256; i++)
        assert_true(isfinite(tuned[i]));
    runner_close(&r);
    sl_free(tuned);
    sl_free(plain);
    sl_free(state);
    bytes_done(&b);
}

static void test_refused(void **arg)
{
    (void)arg;
    static const struct {
        struct made made;
        const char *message;
    } cases[] = {
        {{SL_DTYPE_F32, "[2,8,8]", 0, 1, ""}, "blocks.1.att.time_state is absent"},
        {{SL_DTYPE_F32, "[2,8,8]", 1, 1, ""}, "blocks.0.att.time_state is absent"},
        {{SL_DTYPE_F32, "[2,8,8]", 0, 0, ""}, "blocks.0.att.time_state is absent"},
        {{SL_DTYPE_F32, "[2,8,8]", 0, 3, ""}, "blocks.2.att.time_state, but this model has 2"},
        {{SL_DTYPE_F32, "[2,4,16]", 0, 2, ""}, "this model needs the shape [2, 8, 8]"},
        {{SL_DTYPE_F32, "[128]", 0, 2, ""}, "this model needs the shape [2, 8, 8]"},
        {{SL_DTYPE_F32, "[2,1,8,8]", 0, 2, ""}, "this model needs the shape [2, 8, 8]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes b = make(&cases[i].made);
        struct sl_error err = {0};
        assert_int_equal(read_state(b.p, b.n, &err), SL_E_MODEL_INVALID);
        if (!strstr(err.message, cases[i].message) || !strstr(err.message, "tuned.pth"))
            fail_msg("%s; expected %s", err.message, cases[i].message);
        bytes_done(&b);
    }
    /* other tensors do not matter */
    struct made m = {SL_DTYPE_F32, "[2,8,8]", 0, 2,
                     ",\"emb.weight\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"};
    struct bytes b = make(&m);
    assert_int_equal(read_state(b.p, b.n, NULL), SL_OK);
    bytes_done(&b);
    /* integers, and what is no container at all */
    struct sl_error err = {0};
    m = (struct made){SL_DTYPE_F32, "[2,8,8]", 0, 2, ""};
    b = make(&m);
    memcpy(b.p + find_text(&b, 0, "F32", 3), "I32", 3);
    assert_int_equal(read_state(b.p, b.n, &err), SL_E_MODEL_INVALID);
    assert_non_null(strstr(err.message, "has the type I32; it can be"));
    assert_int_equal(read_state("GGUF and so on ....", 19, &err), SL_E_FILE_UNSUPPORTED);
    assert_int_equal(read_state(b.p, b.n - 1, &err), SL_E_FILE_TRUNCATED);
    bytes_done(&b);
}

static void test_not_finite(void **arg)
{
    (void)arg;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    struct made m = {SL_DTYPE_F32, "[2,8,8]", 0, 2, ""};
    for (size_t i = 0; i < 2 * VALUES; i += 5) {
        struct bytes b = make(&m);
        struct sl_error err = {0};
        char message[96];
        memcpy(b.p + b.n - 4 * (2 * VALUES - i), &bad[i % 3], 4);
        assert_int_equal(read_state(b.p, b.n, &err), SL_E_MODEL_INVALID);
        (void)snprintf(message, sizeof message,
                       "blocks.%zu.att.time_state holds a value that is not finite (element %zu)",
                       i / VALUES, i % VALUES);
        assert_non_null(strstr(err.message, message));
        bytes_done(&b);
    }
}

static void test_memory(void **arg)
{
    (void)arg;
    struct made m = {SL_DTYPE_F16, "[2,8,8]", 0, LAYERS, ""};
    struct bytes b = make(&m);
    enum sl_code c = SL_E_NO_MEMORY;
    int64_t n = 0;
    for (; c == SL_E_NO_MEMORY; n++) {
        sl_mem_fail_once(n);
        c = read_state(b.p, b.n, NULL);
    }
    sl_mem_fail_after(-1);
    assert_int_equal(c, SL_OK);
    assert_true(n > 5);
    bytes_done(&b);
}

static int set_up(void **arg)
{
    (void)arg;
    struct seeded_shape shape = SNAPSHOT_TINY;
    snapshots_open(&tiny, &shape, 0);
    return 0;
}

static int tear_down(void **arg)
{
    (void)arg;
    snapshots_close(&tiny);
    return 0;
}

/* Whatever the matrix's shape, it is one of RWKV-5 to 7 or nothing. */
static void test_other_rules(void **unused)
{
    (void)unused;
    struct made made = {SL_DTYPE_F32, "[2,8,8]", 0, LAYERS, ""};
    for (const struct rule *r = rules; r->title; r++) {
        struct sl_error err = {0};
        bool rwkv = strstr(r->arch, "rwkv") && strcmp(r->arch, "rwkv4") != 0;
        struct sl_model *m = rule_open(r, NULL);
        void *state = runner_state(m);
        struct bytes b = make(&made);
        enum sl_code c = sl_initial_state_read(m, b.p, b.n, "tuned.pth", state, &err);
        assert_true(rwkv == (c != SL_E_UNSUPPORTED));
        if (!rwkv)
            assert_non_null(strstr(err.message, r->arch));
        bytes_done(&b);
        sl_free(state);
        sl_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_rules), cmocka_unit_test(test_types),
        cmocka_unit_test(test_checkpoint),  cmocka_unit_test(test_it_is_used),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
