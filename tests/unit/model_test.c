/* model_test.c: opening models, and every way in which one can be wrong: each tensor absent, of a
 * wrong shape, of a wrong type, with a value that is not finite; layers with gaps; other models; no
 * memory at any allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"
#include "tests/support/runner.h"
#include "tests/support/seeded.h"

static const struct seeded_shape tiny = {.n_layers = 2,
                                         .d_model = 32,
                                         .head_size = 16,
                                         .d_ffn = 40,
                                         .vocab_size = 50,
                                         .rank_w = 3,
                                         .rank_a = 4,
                                         .rank_v = 5,
                                         .rank_g = 6,
                                         .dtype = SL_DTYPE_F16,
                                         .seed = 9};

static enum sl_code open_list(const struct seeded *s, const struct sl_model_options *opt,
                              struct sl_model **ret, struct sl_error *err)
{
    static unsigned char *bytes; /* as long as the model of the last call */
    size_t n;
    free(bytes);
    bytes = seeded_bytes(s, &n);
    return sl_model_open_memory(ret, bytes, n, "m.safetensors", opt, err);
}

/* It is refused with this code, and the message has these words in it. */
static void refuse(const struct seeded *s, const struct sl_model_options *opt, enum sl_code code,
                   const char *word, const char *other)
{
    struct sl_error err = {0};
    struct sl_model *m = NULL;
    enum sl_code got = open_list(s, opt, &m, &err);
    if (got != code || err.code != code || m || !strstr(err.message, word) ||
        !strstr(err.message, other) || !strstr(err.message, "m.safetensors"))
        fail_msg("expected %s with \"%s\" and \"%s\", got %s: %s", sl_code_name(code), word, other,
                 sl_code_name(got), got ? err.message : "");
}

static void accept(const struct seeded *s, const struct sl_model_options *opt,
                   struct sl_model_info *ret)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    if (open_list(s, opt, &m, &err) != SL_OK)
        fail_msg("refused: %s", err.message);
    *ret = *sl_model_info(m);
    sl_model_close(m);
}

static void test_info(void **unused)
{
    (void)unused;
    struct seeded s;
    struct sl_model_info i;
    seeded_init(&s, &tiny);
    accept(&s, NULL, &i);
    assert_string_equal(i.arch, "rwkv7");
    assert_int_equal(i.n_layers, 2);
    assert_int_equal(i.d_model, 32);
    assert_int_equal(i.n_heads, 2);
    assert_int_equal(i.head_size, 16);
    assert_int_equal(i.d_ffn, 40);
    assert_int_equal(i.vocab_size, 50);
    assert_int_equal(i.weights, SL_DTYPE_F16);
    assert_int_equal(i.n_unused, 0);
    /* 64 of counters; per layer 32 + 2·16·16 + 32 floats. */
    assert_int_equal(i.state_bytes, 64 + 2 * (32 + 512 + 32) * 4);
    uint64_t n = 0;
    for (size_t t = 0; t < s.n; t++) {
        uint64_t k = 1;
        for (unsigned a = 0; a < s.v[t].rank; a++)
            k *= s.v[t].shape[a];
        n += k;
    }
    assert_true(i.n_params == n);
    seeded_done(&s);
}

static void test_state_tensors(void **unused)
{
    (void)unused;
    unsigned char *bytes;
    size_t n_bytes, n;
    struct sl_model *m = seeded_open(&tiny, NULL, &bytes, &n_bytes);
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    static const char *const names[] = {"layers.0.mixer.shift", "layers.0.mixer.state",
                                        "layers.0.ffn.shift",   "layers.1.mixer.shift",
                                        "layers.1.mixer.state", "layers.1.ffn.shift"};
    size_t end = sizeof(struct sl_state_header);
    assert_int_equal(n, 6);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(t[i].name, names[i]);
        assert_int_equal(t[i].dtype, SL_DTYPE_F32);
        assert_int_equal(t[i].offset, end);
        assert_int_equal(t[i].offset % SL_ALIGN, 0);
        size_t k = 1;
        for (unsigned a = 0; a < t[i].rank; a++)
            k *= t[i].shape[a];
        end += k * 4;
    }
    assert_int_equal(t[1].rank, 3);
    assert_int_equal(t[1].shape[0], 2);
    assert_int_equal(end, sl_model_info(m)->state_bytes);
    /* The initial state is zeros, whatever the slot held. */
    unsigned char *state = runner_state(m);
    for (size_t i = 0; i < end; i++)
        assert_int_equal(state[i], 0);
    sl_free(state);
    sl_model_close(m);
    free(bytes);
}

static void test_absent(void **unused)
{
    (void)unused;
    struct seeded s;
    seeded_init(&s, &tiny);
    size_t n = s.n;
    seeded_done(&s);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        seeded_init(&s, &tiny);
        memcpy(name, s.v[i].name, sizeof name);
        seeded_drop(&s, name);
        refuse(&s, NULL, SL_E_MODEL_INVALID, name, "absent");
        seeded_done(&s);
    }
}

/* One more along each axis that is not free. Axes from which sizes are read may contradict another
 * tensor instead, so the message need not name the one that was changed. */
static void test_shape(void **unused)
{
    (void)unused;
    struct seeded s;
    seeded_init(&s, &tiny);
    size_t n = s.n, n_named = 0;
    for (size_t i = 0; i < n; i++)
        for (unsigned a = 0; a < s.v[i].rank; a++) {
            struct sl_error err = {0};
            struct sl_model *m = NULL;
            s.v[i].shape[a]++;
            assert_int_equal(open_list(&s, NULL, &m, &err), SL_E_MODEL_INVALID);
            assert_null(m);
            assert_true(strstr(err.message, "shape") || strstr(err.message, "heads of"));
            n_named += strstr(err.message, s.v[i].name) != NULL;
            s.v[i].shape[a]--;
        }
    assert_true(n_named > n);
    struct seeded_tensor *t = seeded_find(&s, "blocks.1.ffn.key.weight");
    t->shape[0] = 32, t->shape[1] = 40; /* transposed */
    refuse(&s, NULL, SL_E_MODEL_INVALID, t->name, "[32, 40]; the model needs [40, 32]");
    t->shape[0] = 40, t->shape[1] = 32;
    t = seeded_find(&s, "blocks.1.att.x_w");
    t->rank = 2, t->shape[0] = 4, t->shape[1] = 8; /* as many elements */
    refuse(&s, NULL, SL_E_MODEL_INVALID, t->name, "[4, 8]; the model needs [32]");
    t->rank = 1, t->shape[0] = 32; /* not [1, 1, 32], and good */
    struct sl_model_info info;
    accept(&s, NULL, &info);
    t = seeded_find(&s, "blocks.0.att.r_k");
    t->shape[0] = 4, t->shape[1] = 16;
    refuse(&s, NULL, SL_E_MODEL_INVALID, t->name, "4 heads of 16 channels");
    t->rank = 1, t->shape[0] = 32;
    refuse(&s, NULL, SL_E_MODEL_INVALID, t->name, "1 axes; the model needs 2");
    t->rank = 2, t->shape[0] = 0, t->shape[1] = 16;
    refuse(&s, NULL, SL_E_MODEL_INVALID, t->name, "may be 1 to");
    seeded_done(&s);
}

static void test_dtype(void **unused)
{
    (void)unused;
    static const enum sl_dtype wrong[] = {SL_DTYPE_F64, SL_DTYPE_I64, SL_DTYPE_I8, SL_DTYPE_BOOL};
    struct seeded s;
    struct sl_model_info info;
    seeded_init(&s, &tiny);
    for (size_t i = 0; i < s.n; i++) {
        s.v[i].dtype = wrong[i % 4];
        refuse(&s, NULL, SL_E_MODEL_INVALID, s.v[i].name, sl_dtype_name(wrong[i % 4]));
        /* Any of the three that can be used may stand beside the others. */
        s.v[i].dtype = i % 2 ? SL_DTYPE_F32 : SL_DTYPE_BF16;
    }
    accept(&s, NULL, &info);
    seeded_done(&s);
}

static void test_not_finite(void **unused)
{
    (void)unused;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const words[] = {"NaN", "inf", "-inf"};
    static const enum sl_dtype types[] = {SL_DTYPE_F16, SL_DTYPE_F32, SL_DTYPE_BF16};
    struct seeded s;
    seeded_init(&s, &tiny);
    for (size_t i = 0; i < s.n; i++) {
        struct seeded_tensor *t = &s.v[i];
        size_t n = 1;
        for (unsigned a = 0; a < t->rank; a++)
            n *= t->shape[a];
        t->dtype = types[i / 3 % 3];
        t->plant_at = i * 37 % n;
        t->plant = bad[i % 3];
        char where[64];
        (void)snprintf(where, sizeof where, "holds %s (element %zu)", words[i % 3], t->plant_at);
        refuse(&s, NULL, SL_E_MODEL_INVALID, t->name, where);
        t->plant_at = SIZE_MAX;
    }
    seeded_done(&s);
}

/* What one type holds and the other does not. */
static void test_narrowing(void **unused)
{
    (void)unused;
    struct seeded_shape shape = tiny;
    struct seeded s;
    struct sl_model_info info;
    const struct sl_model_options f16 = {.weights = SL_DTYPE_F16},
                                  bf16 = {.weights = SL_DTYPE_BF16};
    shape.dtype = SL_DTYPE_F32;
    seeded_init(&s, &shape);
    struct seeded_tensor *t = seeded_find(&s, "blocks.1.att.output.weight");
    t->plant_at = 33;
    t->plant = 65519;
    accept(&s, &f16, &info);
    assert_int_equal(info.weights, SL_DTYPE_F16);
    t->plant = -65520;
    refuse(&s, &f16, SL_E_MODEL_INVALID, t->name, "-65520 (element 33), too large for F16");
    accept(&s, &bf16, &info);
    assert_int_equal(info.weights, SL_DTYPE_BF16);
    t->plant = 0x1.fep127f;
    accept(&s, &bf16, &info);
    t->plant = 0x1.ffp127f;
    refuse(&s, &bf16, SL_E_MODEL_INVALID, t->name, "too large for BF16");
    accept(&s, NULL, &info);
    assert_int_equal(info.weights, SL_DTYPE_F32);
    t->plant_at = SIZE_MAX;
    t = seeded_find(&s, "blocks.1.ln2.bias"); /* kept in F32 whatever matrices are kept in */
    t->plant_at = 0;
    t->plant = 1e30f;
    accept(&s, &f16, &info);
    seeded_done(&s);
}

static void test_layers(void **unused)
{
    (void)unused;
    struct seeded_shape shape = tiny;
    struct seeded s;
    shape.n_layers = 4;
    seeded_init(&s, &shape);
    for (size_t i = s.n; i-- > 0;)
        if (strncmp(s.v[i].name, "blocks.2.", 9) == 0)
            seeded_drop(&s, s.v[i].name);
    refuse(&s, NULL, SL_E_MODEL_INVALID, "layer 2 (blocks.2.*) is absent", "layer 3 is there");
    seeded_done(&s);
    seeded_init(&s, &tiny);
    (void)snprintf(s.v[s.n - 1].name, sizeof s.v->name, "blocks.1024.ln1.weight");
    refuse(&s, NULL, SL_E_MODEL_INVALID, "blocks.1024.ln1.weight", "at most 1024 layers");
    (void)snprintf(s.v[s.n - 1].name, sizeof s.v->name, "blocks.99999999999999999999999.x");
    refuse(&s, NULL, SL_E_MODEL_INVALID, "blocks.9999", "at most 1024 layers");
    seeded_done(&s);
}

/* Tensors that the model does not use are counted, and do not enter its fingerprint. */
/* One more tensor, of the first one's shape, with a value that is not finite. */
static void add_odd(struct seeded *s, const char *name)
{
    struct seeded_tensor t = s->v[0];
    s->v = realloc(s->v, (s->n + 1) * sizeof *s->v);
    assert_non_null(s->v);
    t.plant_at = 0;
    t.plant = NAN;
    (void)snprintf(t.name, sizeof t.name, "%s", name);
    s->v[s->n++] = t;
}

/* The first layer's residual of values, which is there in many files and never used. */
static void test_unused(void **unused)
{
    (void)unused;
    static const char *const names[] = {"blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2"};
    struct seeded s;
    struct sl_model_info plain, more;
    seeded_init(&s, &tiny);
    accept(&s, NULL, &plain);
    for (size_t i = 0; i < 3; i++)
        add_odd(&s, names[i]);
    accept(&s, NULL, &more);
    assert_int_equal(plain.n_unused, 0);
    assert_int_equal(more.n_unused, 3);
    assert_memory_equal(plain.fingerprint, more.fingerprint, 16);
    seeded_done(&s);
}

/* What nothing uses is of a model that computes something else. */
static void test_no_part(void **unused)
{
    (void)unused;
    static const char *const names[] = {"blocks.0.att.v3", "blocks.1.ffn.enn.weight",
                                        "blocks.01.odd", "zzz"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct seeded s;
        seeded_init(&s, &tiny);
        add_odd(&s, names[i]);
        refuse(&s, NULL, SL_E_MODEL_INVALID, names[i], "is no part of the model");
        seeded_done(&s);
    }
}

static void test_fingerprint(void **unused)
{
    (void)unused;
    struct seeded s;
    struct sl_model_info a, b;
    seeded_init(&s, &tiny);
    accept(&s, NULL, &a);
    /* The order in the file and the type that weights are kept in do not matter. */
    struct seeded_tensor first = s.v[0];
    s.v[0] = s.v[s.n - 1];
    s.v[s.n - 1] = first;
    const struct sl_model_options f32 = {.weights = SL_DTYPE_F32};
    accept(&s, &f32, &b);
    assert_memory_equal(a.fingerprint, b.fingerprint, 16);
    assert_true(b.weight_bytes > a.weight_bytes);
    for (size_t i = 0; i < s.n; i++) { /* any value does */
        s.v[i].plant_at = 31;
        s.v[i].plant = 0.123f;
        accept(&s, NULL, &b);
        assert_memory_not_equal(a.fingerprint, b.fingerprint, 16);
        s.v[i].plant_at = SIZE_MAX;
    }
    struct seeded_tensor *t = seeded_find(&s, "blocks.1.att.x_w"); /* so does a shape */
    t->shape[0] = 32, t->shape[2] = 1;
    accept(&s, NULL, &b);
    assert_memory_not_equal(a.fingerprint, b.fingerprint, 16);
    seeded_done(&s);
}

/* The same values column by column, as views in a .pth file can be. Returns what it allocated. */
static void **turn(struct sl_tensors *ts)
{
    void **copies = calloc(ts->n, sizeof *copies);
    assert_non_null(copies);
    for (size_t i = 0; i < ts->n; i++) {
        struct sl_tensor *t = &ts->v[i];
        size_t rows = t->shape[0], cols = t->shape[1], size = sl_dtype_size(t->dtype);
        if (t->rank != 2 || rows == 1 || cols == 1)
            continue;
        unsigned char *p = copies[i] = malloc(t->n_elements * size);
        assert_non_null(p);
        for (size_t e = 0; e < t->n_elements; e++)
            memcpy(p + (e % cols * rows + e / cols) * size, t->data + e * size, size);
        t->data = p;
        t->stride[0] = 1, t->stride[1] = (ptrdiff_t)rows;
        t->contiguous = false;
    }
    return copies;
}

/* Where a tensor's elements lie is nothing to the model. */
static void test_views(void **unused)
{
    (void)unused;
    enum { N = 5 };
    unsigned char *bytes;
    size_t n_bytes;
    struct sl_error err;
    struct sl_tensors *t = NULL;
    struct sl_model *m[2] = {seeded_open(&tiny, NULL, &bytes, &n_bytes), NULL};
    assert_int_equal(sl_tensors_open_memory(&t, bytes, n_bytes, "m", &err), SL_OK);
    size_t n = t->n;
    void **copies = turn(t);
    assert_int_equal(sl_model_open_tensors(&m[1], t, "m", NULL, &err), SL_OK);
    assert_memory_equal(sl_model_info(m[0])->fingerprint, sl_model_info(m[1])->fingerprint, 16);
    const uint32_t tokens[N] = {3, 1, 4, 49, 0};
    float *logits[2];
    for (size_t i = 0; i < 2; i++) {
        struct runner r;
        void *state = runner_state(m[i]);
        logits[i] = runner_logits(m[i], N);
        runner_open(&r, m[i], 1, N, 1);
        runner_feed(&r, state, tokens, N, N, logits[i]);
        runner_close(&r);
        sl_free(state);
    }
    assert_memory_equal(logits[0], logits[1], N * sl_model_logits_stride(m[0]) * sizeof **logits);
    for (size_t i = 0; i < 2; i++) {
        sl_free(logits[i]);
        sl_model_close(m[i]);
    }
    for (size_t i = 0; i < n; i++)
        free(copies[i]);
    free(copies);
    free(bytes);
}

static void test_other_models(void **unused)
{
    (void)unused;
    struct seeded s;
    seeded_init(&s, &tiny);
    (void)snprintf(s.v[0].name, sizeof s.v->name, "transformer.h.0.attn.c_attn.weight");
    s.n = 1;
    refuse(&s, NULL, SL_E_MODEL_UNSUPPORTED, "GPT-2", "RWKV-7");
    (void)snprintf(s.v[0].name, sizeof s.v->name, "nothing");
    refuse(&s, NULL, SL_E_MODEL_UNSUPPORTED, "an unknown model", "RWKV-7");
    seeded_done(&s);
    seeded_init(&s, &tiny); /* all of RWKV-7 is there, and more */
    add_odd(&s, "blocks.0.ffn.enn.weight");
    refuse(&s, NULL, SL_E_MODEL_UNSUPPORTED, "holds RWKV-8 (RWKV-7 with DeepEmbed)", "RWKV-7");
    seeded_done(&s);
}

static void test_options(void **unused)
{
    (void)unused;
    struct seeded s;
    struct sl_error err;
    struct sl_model *m = NULL;
    seeded_init(&s, &tiny);
    const struct sl_model_options i8 = {.weights = SL_DTYPE_I8}, none = {.kernels = "abacus"};
    assert_int_equal(open_list(&s, &i8, &m, &err), SL_E_INVALID_VALUE);
    assert_non_null(strstr(err.message, "I8"));
    assert_int_equal(open_list(&s, &none, &m, &err), SL_E_INVALID_VALUE);
    assert_non_null(strstr(err.message, "abacus"));
    assert_null(m);
    seeded_done(&s);
}

static void test_file(void **unused)
{
    (void)unused;
    char folder[] = "/tmp/slate-model-XXXXXX", path[64];
    struct sl_error err;
    struct sl_model *m = NULL;
    struct seeded s;
    struct sl_model_info in_memory;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/rwkv7-0.1b.safetensors", folder);
    seeded_init(&s, &tiny);
    seeded_write(&s, path);
    accept(&s, NULL, &in_memory);
    const struct sl_model_options opt = {.path = path};
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_string_equal(sl_model_info(m)->name, "rwkv7-0.1b");
    assert_memory_equal(sl_model_info(m)->fingerprint, in_memory.fingerprint, 16);
    sl_model_close(m);
    m = NULL;
    s.n -= 1;
    seeded_write(&s, path);
    assert_int_equal(sl_model_open(&m, &opt, &err), SL_E_MODEL_INVALID);
    assert_non_null(strstr(err.message, "rwkv7-0.1b.safetensors: tensor head.weight is absent"));
    unlink(path);
    assert_int_equal(sl_model_open(&m, &opt, &err), SL_E_FILE_NOT_FOUND);
    assert_null(m);
    rmdir(folder);
    seeded_done(&s);
}

/* The model inside the program, and that it says something. */
static void test_embedded(void **unused)
{
    (void)unused;
    struct sl_error err;
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.path = NULL};
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_string_equal(sl_model_info(m)->name, "slate-tiny");
    assert_int_equal(sl_model_info(m)->n_unused, 3); /* blocks.0.att.v0, v1, v2 */
    struct runner r;
    runner_open(&r, m, 1, 1, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, 1);
    uint32_t begin = 0;
    runner_feed(&r, state, &begin, 1, 1, logits);
    assert_true(isfinite(logits[0]));
    assert_true(runner_argmax(logits, sl_model_info(m)->vocab_size) != 0);
    sl_free(logits);
    sl_free(state);
    runner_close(&r);
    sl_model_close(m);
}

/* Fails the n-th allocation, for every n; the sanitizer sees what leaks. */
static void test_no_memory(void **unused)
{
    (void)unused;
    struct seeded s;
    size_t n_bytes, n = 0;
    seeded_init(&s, &tiny);
    unsigned char *bytes = seeded_bytes(&s, &n_bytes);
    for (;; n++) {
        struct sl_error err = {0};
        struct sl_model *m = NULL;
        sl_mem_fail_after((int64_t)n);
        enum sl_code c = sl_model_open_memory(&m, bytes, n_bytes, "m", NULL, &err);
        sl_mem_fail_after(-1);
        if (c == SL_OK) {
            sl_model_close(m);
            break;
        }
        assert_int_equal(c, SL_E_NO_MEMORY);
        assert_int_equal(err.code, SL_E_NO_MEMORY);
        assert_true(strlen(err.message) > 0);
        assert_null(m);
    }
    assert_true(n > 10);
    free(bytes);
    seeded_done(&s);
}

static void test_forward_no_memory(void **unused)
{
    (void)unused;
    unsigned char *bytes;
    size_t n_bytes, n = 0;
    struct sl_error err;
    struct sl_workers *w = NULL;
    struct sl_model *m = seeded_open(&tiny, NULL, &bytes, &n_bytes);
    assert_int_equal(sl_workers_open(&w, 1, &err), SL_OK);
    for (;; n++) {
        struct sl_forward *f = NULL;
        sl_mem_fail_after((int64_t)n);
        enum sl_code c = sl_forward_open(&f, m, w, 8, 4, &err);
        sl_mem_fail_after(-1);
        if (c == SL_OK) {
            sl_forward_close(f);
            break;
        }
        assert_int_equal(c, SL_E_NO_MEMORY);
        assert_null(f);
    }
    assert_true(n >= 6);
    struct sl_forward *f = NULL;
    assert_int_equal(sl_forward_open(&f, m, w, SIZE_MAX / 64, 1, &err), SL_E_INVALID_VALUE);
    sl_workers_close(w);
    sl_model_close(m);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_state_tensors),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_shape),
        cmocka_unit_test(test_dtype),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_narrowing),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_unused),
        cmocka_unit_test(test_no_part),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_other_models),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_embedded),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_forward_no_memory),
        cmocka_unit_test(test_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
