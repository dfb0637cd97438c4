/* Snapshots: what goes in comes out, in each encoding; damage and lies are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "tests/support/runner.h"
#include "tests/support/snapshots.h"

static struct snapshots tiny; /* one for all tests that do not change it */

static struct sl_snapshot_info info_of(enum sl_dtype dtype)
{
    struct sl_snapshot_info info = {
        .session_id = "a session",
        .version = (uint64_t)1 << 52,
        .tokens_seen = 41,
        .metadata = "{\"quote\":\"\\\"\\\\\\u0001\\u0000\",\"\xc3\xa4\":[1,{}]}",
        .continuation = "{\"pending\":[7]}",
        .created_ms = 1780272000123,
        .dtype = dtype,
    };
    for (unsigned i = 0; i < 16; i++)
        info.incarnation[i] = (unsigned char)(i * 17);
    return info;
}

static void assert_read(const struct snapshots *s, const struct snapshot_file *f,
                        struct sl_snapshot_info *ret)
{
    struct sl_error err = {0};
    enum sl_code c = snapshots_read(s, f->p, f->n, ret, &err);
    if (c != SL_OK)
        fail_msg("%s: %s", sl_code_name(c), err.message);
}

/* It is refused with this code, and the message has this part. */
static void assert_refused(const struct snapshots *s, const struct snapshot_file *f,
                           enum sl_code want, const char *part)
{
    struct sl_snapshot_info got;
    struct sl_error err = {0};
    enum sl_code c = snapshots_read(s, f->p, f->n, &got, &err);
    if (c != want || !strstr(err.message, part))
        fail_msg("%s: \"%s\"; expected %s: \"%s\"", sl_code_name(c), err.message,
                 sl_code_name(want), part);
}

static void assert_same_text(const char *a, const char *b)
{
    assert_int_equal(!a, !b);
    if (a)
        assert_string_equal(a, b);
}

static void assert_same_info(const struct sl_snapshot_info *a, const struct sl_snapshot_info *b)
{
    assert_same_text(a->session_id, b->session_id);
    assert_same_text(a->metadata, b->metadata);
    assert_same_text(a->continuation, b->continuation);
    assert_memory_equal(a->incarnation, b->incarnation, 16);
    assert_true(a->version == b->version);
    assert_true(a->tokens_seen == b->tokens_seen);
    assert_true(a->created_ms == b->created_ms);
    assert_int_equal(a->dtype, b->dtype);
}

/* --- round trips --- */

static void round_trip(const struct snapshots *s)
{
    struct sl_snapshot_info info = info_of(SL_DTYPE_F32), got;
    struct snapshot_file f = snapshots_write(s, &info), again = snapshots_write(s, &info);
    assert_int_equal(f.n, again.n);
    assert_memory_equal(f.p, again.p, f.n);
    uint64_t header_n;
    memcpy(&header_n, f.p, 8);
    assert_int_equal(header_n % 8, 0);
    assert_true(f.n <= sl_snapshot_bytes_max(s->model));
    assert_read(s, &f, &got);
    assert_memory_equal(s->back, s->state, s->state_bytes);
    assert_same_info(&got, &info);
    assert_false(got.edited || got.other_numerics || got.other_tokenizer || got.other_weights_type);
    assert_string_equal(got.numerics, sl_numerics(s->model));
    assert_string_equal(got.weights_type, sl_dtype_name(sl_model_info(s->model)->weights));
    sl_free(got.text);
    sl_free(f.p);
    sl_free(again.p);
}

static void test_round_trip(void **arg)
{
    (void)arg;
    round_trip(&tiny);
    struct seeded_shape odd = SEEDED_ODD;
    struct snapshots s;
    snapshots_open(&s, &odd, 20);
    round_trip(&s);
    snapshots_close(&s);
    snapshots_open(&s, NULL, 100);
    round_trip(&s);
    snapshots_close(&s);
}

/* All that may be absent. */
static void test_least(void **arg)
{
    (void)arg;
    struct sl_snapshot_info info = {.dtype = SL_DTYPE_F32}, got;
    struct snapshot_file f = snapshots_write(&tiny, &info);
    assert_read(&tiny, &f, &got);
    assert_string_equal(got.session_id, "");
    assert_string_equal(got.metadata, "{}");
    assert_null(got.continuation);
    assert_int_equal(got.created_ms, 0);
    sl_free(got.text);
    sl_free(f.p);
}

/* The counter is part of the state; it is 64 bits long. */
static void test_counter(void **arg)
{
    (void)arg;
    struct sl_state_header *h = tiny.state;
    uint64_t before = h->tokens_seen;
    assert_int_equal(before, 40);
    h->tokens_seen = UINT64_C(10000000000);
    struct sl_snapshot_info info = info_of(SL_DTYPE_F32), got;
    struct snapshot_file f = snapshots_write(&tiny, &info);
    assert_read(&tiny, &f, &got);
    assert_memory_equal(tiny.back, tiny.state, tiny.state_bytes);
    sl_free(got.text);
    sl_free(f.p);
    h->tokens_seen = before;
}

/* Times from every corner of the calendar; the wanted texts are date(1)'s. */
static void test_created(void **arg)
{
    (void)arg;
    static const struct {
        int64_t ms;
        const char *text;
    } times[] = {
        {0, "1970-01-01T00:00:00.000Z"},
        {951782399999, "2000-02-28T23:59:59.999Z"},
        {951782400000, "2000-02-29T00:00:00.000Z"},
        {951868800001, "2000-03-01T00:00:00.001Z"},
        {1780272000123, "2026-06-01T00:00:00.123Z"},
        {4107542399000, "2100-02-28T23:59:59.000Z"},
        {4107542400000, "2100-03-01T00:00:00.000Z"},
        {-1, "1969-12-31T23:59:59.999Z"},
        {253402300799999, "9999-12-31T23:59:59.999Z"},
        {-46848931199877, "0485-06-01T00:00:00.123Z"},
        {-62167219200000, "0000-01-01T00:00:00.000Z"},
    };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        struct sl_snapshot_info info = {.dtype = SL_DTYPE_F32, .created_ms = times[i].ms}, got;
        struct snapshot_file f = snapshots_write(&tiny, &info);
        struct snapshot_file x = snapshots_edit(&f, times[i].text, times[i].text); /* it is there */
        assert_read(&tiny, &x, &got);
        assert_true(got.created_ms == times[i].ms);
        sl_free(got.text);
        sl_free(x.p);
        sl_free(f.p);
    }
}

static const float *values_of(const struct snapshots *s, const void *state, size_t i, size_t *ret_n,
                              size_t *ret_row)
{
    size_t n;
    const struct sl_state_tensor *t = &sl_model_state_tensors(s->model, &n)[i];
    *ret_n = 1;
    for (unsigned a = 0; a < t->rank; a++)
        *ret_n *= t->shape[a];
    *ret_row = t->shape[t->rank - 1];
    return (const float *)(const void *)((const unsigned char *)state + t->offset);
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* No bf16 is nearer, and of two as near it is the even one. */
static void assert_nearest_bf16(float x, float y)
{
    uint32_t u = bits_of(y);
    assert_int_equal(u & 0xffff, 0);
    if (fabsf(x) >= 0x1.ffp127f) {
        assert_true(fabsf(y) == 0x1.fep127f && signbit(x) == signbit(y));
        return;
    }
    double d = fabs((double)x - (double)y);
    for (int step = -1; step <= 1; step += 2) {
        uint32_t v = (uint32_t)((int64_t)(u & 0x7fffffff) + step * 0x10000);
        double other = v > 0x7f7f0000 ? 0x1p128 : (double)float_of(v);
        double e = fabs(fabs((double)x) - other);
        assert_true(d < e || (d == e && (u >> 16) % 2 == 0) || (v >> 31 && y == 0.0f));
    }
    assert_true(signbit(x) == signbit(y));
}

static void assert_nearest_i8(const float *x, const float *y, size_t row)
{
    double largest = 0;
    for (size_t i = 0; i < row; i++)
        largest = fmax(largest, fabs((double)x[i]));
    double scale = largest / 127;
    for (size_t i = 0; i < row; i++) {
        assert_true(fabs((double)x[i] - (double)y[i]) <= scale * (0.5 + 1e-5) + 127 * 0x1p-126);
        if (fabs((double)x[i]) == largest && scale >= 0x1p-126)
            assert_true(fabs((double)y[i] - (double)x[i]) <= largest * 1e-6);
    }
}

static void check_smaller(const struct snapshots *s, enum sl_dtype dtype)
{
    struct sl_snapshot_info info = info_of(dtype), got;
    struct snapshot_file f = snapshots_write(s, &info);
    size_t n_tensors, n, row;
    assert_read(s, &f, &got);
    assert_same_info(&got, &info);
    assert_false(got.edited);
    assert_memory_equal(s->back, s->state, sizeof(struct sl_state_header));
    (void)sl_model_state_tensors(s->model, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        const float *x = values_of(s, s->state, i, &n, &row);
        const float *y = values_of(s, s->back, i, &n, &row);
        for (size_t k = 0; dtype == SL_DTYPE_BF16 && k < n; k++)
            assert_nearest_bf16(x[k], y[k]);
        for (size_t k = 0; dtype == SL_DTYPE_I8 && k < n; k += row)
            assert_nearest_i8(x + k, y + k, row);
    }
    sl_free(got.text);
    sl_free(f.p);
}

static void test_smaller(void **arg)
{
    (void)arg;
    struct seeded_shape shape = SNAPSHOT_TINY;
    struct snapshots s;
    snapshots_open(&s, &shape, 40);
    check_smaller(&s, SL_DTYPE_BF16);
    check_smaller(&s, SL_DTYPE_I8);
    /* Values that rounding is difficult for: halves, the smallest, the largest, zeros. */
    static const float hard[] = {
        0.0f,           -0.0f,      0x1.01p0f,       -0x1.03p0f,       0x1.010002p0f,
        0x1p-149f,      -0x1p-133f, 0x1.8p-134f,     0x1.fffffep-127f, 127.5f,
        -126.5f,        1e30f,      0x1.fefffep127f, -0x1.ffp127f,     FLT_MAX,
        0x1.feffffp127f};
    size_t n, row;
    float *v = (float *)values_of(&s, s.state, 1, &n, &row); /* the matrices */
    for (size_t i = 0; i < n; i++)
        v[i] = hard[i % (sizeof hard / sizeof *hard)];
    check_smaller(&s, SL_DTYPE_BF16);
    for (size_t i = 0; i < n; i++)
        v[i] = i / row % 4 == 0   ? 0.0f
               : i / row % 4 == 1 ? 1e-40f * (float)(i % row)
                                  : hard[i % 12];
    check_smaller(&s, SL_DTYPE_I8);
    v[3] = FLT_MAX;
    struct sl_snapshot_info info = info_of(SL_DTYPE_I8);
    unsigned char *p = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_snapshot_write(s.model, s.tokenizer, s.state, &info, &p, &n, &err),
                     SL_E_MODEL_NOT_FINITE);
    assert_non_null(strstr(err.message, "too large for I8"));
    snapshots_close(&s);
}

/* The digest that a file names is the one of its data, whatever order they were written in. */
static void test_sizes(void **arg)
{
    (void)arg;
    static const struct {
        enum sl_dtype dtype;
        size_t bytes;
    } want[] = {
        {SL_DTYPE_F32, 8 + 320 * 4},
        {SL_DTYPE_BF16, 8 + 320 * 2},
        /* 4 shifts of one row, 2 × 2 × 8 rows */
        {SL_DTYPE_I8, 8 + 320 + (4 + 32) * 4},
    };
    for (size_t i = 0; i < 3; i++) {
        struct sl_snapshot_info info = info_of(want[i].dtype);
        struct snapshot_file f = snapshots_write(&tiny, &info);
        uint64_t header_n;
        memcpy(&header_n, f.p, 8);
        assert_int_equal(f.n - 8 - header_n, want[i].bytes);
        sl_free(f.p);
    }
}

/* --- what is not this model's, or computed otherwise --- */

static void test_other_model(void **arg)
{
    (void)arg;
    struct seeded_shape shape = SNAPSHOT_TINY;
    struct snapshots other;
    struct sl_snapshot_info info = info_of(SL_DTYPE_F32), got;
    char mine[40] = "", theirs[40] = "";
    shape.seed++;
    snapshots_open(&other, &shape, 40);
    for (size_t i = 0; i < 16; i++) {
        (void)snprintf(mine + 2 * i, 3, "%02x", sl_model_info(tiny.model)->fingerprint[i]);
        (void)snprintf(theirs + 2 * i, 3, "%02x", sl_model_info(other.model)->fingerprint[i]);
    }
    struct snapshot_file f = snapshots_write(&other, &info);
    assert_refused(&tiny, &f, SL_E_SNAPSHOT_MODEL_MISMATCH, mine);
    assert_refused(&tiny, &f, SL_E_SNAPSHOT_MODEL_MISMATCH, theirs);
    sl_free(f.p);
    snapshots_close(&other);

    snapshots_open(&other, NULL, 10); /* another shape */
    f = snapshots_write(&tiny, &info);
    assert_refused(&other, &f, SL_E_SNAPSHOT_MODEL_MISMATCH, "the loaded one is rwkv7");
    /* only the tokenizer is another */
    struct sl_tokenizer *bytes = tiny.tokenizer;
    tiny.tokenizer = other.tokenizer;
    assert_read(&tiny, &f, &got);
    assert_true(got.other_tokenizer && !got.other_weights_type && !got.other_numerics);
    tiny.tokenizer = bytes;
    sl_free(got.text);
    sl_free(f.p);
    snapshots_close(&other);
}

static void test_other_computation(void **arg)
{
    (void)arg;
    struct seeded_shape shape = SNAPSHOT_TINY;
    struct snapshots s;
    struct sl_snapshot_info info = info_of(SL_DTYPE_F32), got;
    struct sl_model_options opt = {.weights = SL_DTYPE_BF16};
    struct snapshot_file f = snapshots_write(&tiny, &info);
    size_t n;
    snapshots_open(&s, &shape, 0);
    sl_model_close(s.model);
    free(s.source);
    s.model = seeded_open(&shape, &opt, &s.source, &n);
    assert_read(&s, &f, &got);
    assert_true(got.other_weights_type && !got.other_tokenizer && !got.other_numerics);
    assert_memory_equal(s.back, tiny.state, s.state_bytes);
    sl_free(got.text);
    snapshots_close(&s);

    /* the kernels do not matter, but a file may be of another program's */
    opt = (struct sl_model_options){.kernels = "ref"};
    snapshots_open(&s, &shape, 0);
    sl_model_close(s.model);
    free(s.source);
    s.model = seeded_open(&shape, &opt, &s.source, &n);
    assert_string_equal(sl_numerics(s.model), sl_numerics(tiny.model));
    snapshots_close(&s);
    struct snapshot_file x = snapshots_edit(&f, "slate-1 exact", "slate-2 fast!"),
                         y = snapshots_drop(&x, "metadata.xxh3");
    assert_refused(&tiny, &x, SL_E_SNAPSHOT_CORRUPT, "metadata.xxh3");
    assert_read(&tiny, &y, &got);
    assert_true(got.other_numerics && got.edited && !got.other_weights_type);
    assert_string_equal(got.numerics, "slate-2 fast!");
    sl_free(got.text);
    sl_free(x.p);
    sl_free(y.p);
    sl_free(f.p);
}

/* --- edited by somebody --- */

static void test_edited(void **arg)
{
    (void)arg;
    struct sl_snapshot_info info = info_of(SL_DTYPE_F32), got;
    struct snapshot_file f = snapshots_write(&tiny, &info);
    size_t n, row;
    float half = 0.5f;
    unsigned char *at = snapshots_tensor(&f, "layers.1.mixer.state", &n);
    assert_int_equal(n, 2 * 8 * 8 * 4);
    memcpy(at + 4 * 77, &half, 4);
    assert_refused(&tiny, &f, SL_E_SNAPSHOT_CORRUPT, "payload.xxh3");
    struct snapshot_file x = snapshots_drop(&f, "payload.xxh3");
    assert_read(&tiny, &x, &got);
    assert_true(got.edited);
    const float *v = values_of(&tiny, tiny.back, 4, &n, &row);
    const float *w = values_of(&tiny, tiny.state, 4, &n, &row);
    assert_int_equal(n, 128);
    for (size_t i = 0; i < n; i++)
        assert_true(v[i] == (i == 77 ? half : w[i]));
    sl_free(got.text);

    /* the metadata too, and both digests gone */
    struct snapshot_file y = snapshots_edit(&x, "a session", "renamed");
    assert_refused(&tiny, &y, SL_E_SNAPSHOT_CORRUPT, "metadata.xxh3");
    struct snapshot_file z = snapshots_drop(&y, "metadata.xxh3");
    assert_read(&tiny, &z, &got);
    assert_true(got.edited);
    assert_string_equal(got.session_id, "renamed");
    sl_free(got.text);
    sl_free(z.p);
    sl_free(y.p);
    sl_free(x.p);
    sl_free(f.p);
}

/* --- describe --- */

/* --- bytes that arrive while they are read --- */

struct trickle {
    const struct snapshot_file *f;
    unsigned char *to; /* 0xFF where nothing has arrived: no length, no JSON, no number */
    size_t have, step, end;
};

static enum sl_code trickle(void *arg, size_t end, size_t *ret_have, struct sl_error *err)
{
    struct trickle *t = arg;
    assert_true(end > t->have && end <= t->f->n);
    if (end > t->end)
        return sl_fail(err, SL_E_IO, "nothing comes behind byte %zu", t->end);
    size_t n = end > t->have + t->step ? end : t->have + t->step;
    n = n < t->end ? n : t->end;
    memcpy(t->to + t->have, t->f->p + t->have, n - t->have);
    *ret_have = t->have = n;
    return SL_OK;
}

/* Of f, the bytes before `end` arrive, at least `step` at a time. */
static enum sl_code read_trickle(const struct snapshot_file *f, size_t step, size_t end,
                                 struct sl_snapshot_info *ret, struct sl_error *err)
{
    struct trickle t = {.f = f, .to = sl_malloc(f->n), .step = step, .end = end};
    assert_non_null(t.to);
    memset(t.to, 0xff, f->n);
    memset(tiny.back, 0xa5, tiny.state_bytes);
    struct sl_snapshot_source source = {trickle, &t};
    enum sl_code c =
        sl_snapshot_read_from(tiny.model, tiny.tokenizer, t.to, f->n, &source, tiny.back, ret, err);
    assert_true(c || t.have == f->n);
    sl_free(t.to);
    return c;
}

static void test_source(void **arg)
{
    (void)arg;
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_I8};
    static const size_t steps[] = {1, 7, 100, 1000, 1 << 20};
    unsigned char *want = sl_malloc(tiny.state_bytes);
    assert_non_null(want);
    for (size_t d = 0; d < 3; d++) {
        struct sl_snapshot_info info = info_of(dtypes[d]), got;
        struct snapshot_file f = snapshots_write(&tiny, &info);
        struct sl_error err = {0};
        assert_read(&tiny, &f, &got);
        memcpy(want, tiny.back, tiny.state_bytes);
        sl_free(got.text);
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            assert_int_equal(read_trickle(&f, steps[i], f.n, &got, &err), SL_OK);
            assert_memory_equal(tiny.back, want, tiny.state_bytes);
            assert_same_info(&got, &info);
            sl_free(got.text);
        }
        for (size_t end = 0; end < f.n; end++) { /* its error is the reader's, wherever it comes */
            memset(&got, 0x5a, sizeof got);
            struct sl_snapshot_info before = got;
            assert_int_equal(read_trickle(&f, 1 + end % 50, end, &got, &err), SL_E_IO);
            assert_non_null(strstr(err.message, "nothing comes behind"));
            assert_memory_equal(&got, &before, sizeof got);
        }
        sl_free(f.p);
    }
    sl_free(want);
}

/* A count from outside must leave room for more; what a session has come to is read again. */
static void test_counts(void **arg)
{
    (void)arg;
    static const char *const name[] = {"counters.tokens_consumed", "session.version",
                                       "session.tokens_seen"};
    struct sl_state_header *h = tiny.state;
    uint64_t before = h->tokens_seen;
    for (unsigned i = 0; i < 6; i++) {
        struct sl_snapshot_info info = info_of(SL_DTYPE_F32), got;
        struct sl_error err = {0};
        uint64_t *count[] = {&h->tokens_seen, &info.version, &info.tokens_seen};
        *count[i / 2] = (UINT64_C(1) << 52) + i % 2;
        struct snapshot_file f = snapshots_write(&tiny, &info);
        if (i % 2) {
            assert_refused(&tiny, &f, SL_E_SNAPSHOT_CORRUPT, name[i / 2]);
        } else {
            assert_read(&tiny, &f, &got);
            sl_free(got.text);
        }
        assert_int_equal(read_trickle(&f, 1 << 20, f.n, &got, &err), SL_OK);
        assert_memory_equal(tiny.back, tiny.state, tiny.state_bytes);
        sl_free(got.text);
        sl_free(f.p);
        h->tokens_seen = before;
    }
}

/* The data's digest is the source's business, and nothing else. */
static void test_source_is_checked(void **arg)
{
    (void)arg;
    struct sl_snapshot_info info = info_of(SL_DTYPE_F32), got;
    struct snapshot_file f = snapshots_write(&tiny, &info);
    struct sl_error err = {0};
    f.p[f.n - 4] ^= 1; /* the last bit of a float */
    assert_refused(&tiny, &f, SL_E_SNAPSHOT_CORRUPT, "payload.xxh3");
    assert_int_equal(read_trickle(&f, 64, f.n, &got, &err), SL_OK);
    sl_free(got.text);
    memset(f.p + f.n - 4, 0xff, 4);
    assert_int_equal(read_trickle(&f, 64, f.n, &got, &err), SL_E_SNAPSHOT_CORRUPT);
    assert_non_null(strstr(err.message, "not finite"));
    sl_free(f.p);
    f = snapshots_write(&tiny, &info);
    struct snapshot_file x = snapshots_edit(&f, "a session", "b session");
    assert_int_equal(read_trickle(&x, 64, x.n, &got, &err), SL_E_SNAPSHOT_CORRUPT);
    assert_non_null(strstr(err.message, "metadata.xxh3"));
    sl_free(x.p);
    sl_free(f.p);
}

static void test_describe(void **arg)
{
    (void)arg;
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_I8};
    for (size_t i = 0; i < 3; i++) {
        struct sl_snapshot_info info = info_of(dtypes[i]), got;
        struct snapshot_file f = snapshots_write(&tiny, &info);
        unsigned char fingerprint[16];
        const char *arch;
        struct sl_error err = {0};
        assert_int_equal(sl_snapshot_describe(f.p, f.n, &got, &arch, fingerprint, &err), SL_OK);
        assert_same_info(&got, &info);
        assert_string_equal(arch, "rwkv7");
        assert_memory_equal(fingerprint, sl_model_info(tiny.model)->fingerprint, 16);
        assert_string_equal(got.weights_type, "F32");
        sl_free(got.text);
        f.p[f.n - 1] ^= 1;
        assert_int_equal(sl_snapshot_describe(f.p, f.n, &got, &arch, fingerprint, &err),
                         SL_E_SNAPSHOT_CORRUPT);
        sl_free(f.p);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_least),
        cmocka_unit_test(test_counter),     cmocka_unit_test(test_created),
        cmocka_unit_test(test_smaller),     cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_other_model), cmocka_unit_test(test_other_computation),
        cmocka_unit_test(test_edited),      cmocka_unit_test(test_describe),
        cmocka_unit_test(test_source),      cmocka_unit_test(test_source_is_checked),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
