/* Snapshots: damage and lies. A file that is not whole is refused, the state and the info stay as
 * they were (snapshots_read() looks), and the message names the place. */
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
#include "tests/support/snapshots.h"

static struct snapshots tiny;
static const struct sl_snapshot_info full = {
    .session_id = "abc",
    .incarnation = {1, 2, 3},
    .version = 12,
    .tokens_seen = 41,
    .metadata = "{\"a\":\"\\\"\\u0001\"}",
    .continuation = "{\"pending\":[7],\"ring\":[1,2,3]}",
    .created_ms = 1780272000123,
    .dtype = SL_DTYPE_F32,
};

static struct snapshot_file file_of(enum sl_dtype dtype)
{
    struct sl_snapshot_info info = full;
    info.dtype = dtype;
    return snapshots_write(&tiny, &info);
}

static void assert_refused(const struct snapshot_file *f, enum sl_code want, const char *part)
{
    struct sl_snapshot_info got;
    struct sl_error err = {0};
    enum sl_code c = snapshots_read(&tiny, f->p, f->n, &got, &err);
    if (c != want || !strstr(err.message, part))
        fail_msg("%s: \"%s\"; expected %s: \"%s\"", sl_code_name(c), err.message,
                 sl_code_name(want), part);
}

/* --- chance --- */

/* Refused, or the same in everything. Returns whether it was taken. */
static bool refused_or_same(const unsigned char *p, size_t n, const void *state,
                            const struct sl_snapshot_info *want, bool *ret_edited)
{
    struct sl_snapshot_info got;
    struct sl_error err = {0};
    enum sl_code c = snapshots_read(&tiny, p, n, &got, &err);
    if (c != SL_OK) {
        if (c != SL_E_SNAPSHOT_CORRUPT && c != SL_E_SNAPSHOT_TOO_LARGE &&
            c != SL_E_SNAPSHOT_VERSION_UNSUPPORTED)
            fail_msg("%s: %s", sl_code_name(c), err.message);
        assert_true(strlen(err.message) > 10);
        return false;
    }
    assert_memory_equal(tiny.back, state, tiny.state_bytes);
    assert_string_equal(got.session_id, want->session_id);
    assert_string_equal(got.metadata, want->metadata);
    assert_string_equal(got.continuation, want->continuation);
    assert_memory_equal(got.incarnation, want->incarnation, 16);
    assert_true(got.version == want->version && got.tokens_seen == want->tokens_seen &&
                got.created_ms == want->created_ms && got.dtype == want->dtype &&
                !got.other_numerics && !got.other_tokenizer && !got.other_weights_type);
    *ret_edited = got.edited;
    sl_free(got.text);
    return true;
}

static void flip_every_byte(enum sl_dtype dtype)
{
    static const unsigned char changes[] = {0x01, 0x02, 0x10, 0x20, 0x80, 0xff};
    struct snapshot_file f = file_of(dtype);
    struct sl_snapshot_info want;
    assert_int_equal(snapshots_read(&tiny, f.p, f.n, &want, NULL), SL_OK);
    void *state = sl_aligned_calloc(tiny.state_bytes);
    memcpy(state, tiny.back, tiny.state_bytes);
    size_t taken = 0;
    for (size_t i = 0; i < f.n; i++) {
        for (size_t k = 0; k < sizeof changes; k++) {
            f.p[i] ^= changes[k];
            bool edited = false, blank = (f.p[i] ^ changes[k]) == ' ';
            if (refused_or_same(f.p, f.n, state, &want, &edited)) {
                /* only the padding and the name of the metadata's digest can change */
                assert_true(edited || blank);
                taken++;
            }
            f.p[i] ^= changes[k];
        }
    }
    assert_true(taken > 0 && taken <= 13 * sizeof changes + 7);
    sl_free(want.text);
    sl_free(state);
    sl_free(f.p);
}

static void test_flips(void **arg)
{
    (void)arg;
    flip_every_byte(SL_DTYPE_F32);
}

static void test_flips_of_smaller_ones(void **arg)
{
    (void)arg;
    flip_every_byte(SL_DTYPE_BF16);
    flip_every_byte(SL_DTYPE_I8);
}

static void test_cuts(void **arg)
{
    (void)arg;
    struct snapshot_file f = file_of(SL_DTYPE_F32);
    for (size_t i = 0; i < f.n; i++) {
        unsigned char *p = malloc(i ? i : 1);
        struct sl_snapshot_info got;
        memcpy(p, f.p, i);
        assert_int_equal(snapshots_read(&tiny, p, i, &got, NULL), SL_E_SNAPSHOT_CORRUPT);
        free(p);
    }
    unsigned char *longer = calloc(1, f.n + 8);
    for (size_t more = 1; more <= 8; more++) {
        struct snapshot_file x = {longer, f.n + more};
        memcpy(longer, f.p, f.n);
        assert_refused(&x, SL_E_SNAPSHOT_CORRUPT, "belong to no tensor");
    }
    free(longer);
    sl_free(f.p);
}

/* --- lies in the table of tensors: the digests are as they should be --- */

static void test_table(void **arg)
{
    (void)arg;
    static const struct {
        enum sl_dtype dtype; /* of the file */
        const char *from, *to, *message;
    } cases[] = {
        {SL_DTYPE_F32, "\"dtype\":\"F32\"", "\"dtype\":\"F64\"", "data_offsets"},
        {SL_DTYPE_F32, "\"dtype\":\"F32\"", "\"dtype\":\"Q4\"", "has dtype Q4"},
        {SL_DTYPE_F32, "\"dtype\":\"F32\"", "\"dtype\":\"I32\"",
         "has the type I32; it can be F32, BF16, or I8 with scales"},
        {SL_DTYPE_F32, "\"dtype\":\"I64\"", "\"dtype\":\"F64\"",
         "has the type F64; it must be I64"},
        {SL_DTYPE_F32, "\"shape\":[16]", "\"shape\":[4,4]",
         "\"layers.0.mixer.shift\" has the shape [4, 4]; this model needs [16]"},
        {SL_DTYPE_F32, "\"shape\":[16]", "\"shape\":[17]", "data_offsets"},
        {SL_DTYPE_F32, "\"shape\":[2,8,8]", "\"shape\":[2,4,16]",
         "has the shape [2, 4, 16]; this model needs [2, 8, 8]"},
        {SL_DTYPE_F32, "\"shape\":[2,8,8]", "\"shape\":[128]", "has the shape [128]"},
        {SL_DTYPE_F32, "\"shape\":[2,8,8]", "\"shape\":[2,8,8,1]", "has the shape [2, 8, 8, 1]"},
        {SL_DTYPE_F32, "\"shape\":[2,8,8]", "\"shape\":[1,1,1,1,1,1,2,8,8]", "9 dimensions"},
        {SL_DTYPE_F32, "\"shape\":[2,8,8]", "\"shape\":[18446744073709551616]", "JSON"},
        {SL_DTYPE_F32, "\"shape\":[1]", "\"shape\":[1,1]", "counters.tokens_consumed"},
        {SL_DTYPE_F32, "layers.1.ffn.shift", "layers.2.ffn.shift",
         "has no tensor \"layers.1.ffn.shift\""},
        {SL_DTYPE_F32, "layers.1.ffn.shift", "layers.0.ffn.shift", "two tensors are named"},
        {SL_DTYPE_F32, "counters.tokens_consumed", "counters.tokens_consumer",
         "has no tensor \"counters.tokens_consumed\""},
        {SL_DTYPE_F32, "\"data_offsets\":[0,8]", "\"data_offsets\":[8,16]", "belong to no tensor"},
        {SL_DTYPE_F32, "\"data_offsets\":[0,8]", "\"data_offsets\":[0,16]", "takes 8 bytes"},
        {SL_DTYPE_F32, "[0,8]}",
         "[0,8]},\"more\":{\"dtype\":\"F32\",\"shape\":[0],"
         "\"data_offsets\":[8,8]}",
         "tensor \"more\" is none of this model's"},
        {SL_DTYPE_F32, "[0,8]}",
         "[0,8]},\"layers.0.ffn.shift.scale\":{\"dtype\":\"F32\","
         "\"shape\":[0],\"data_offsets\":[8,8]}",
         "tensor \"layers.0.ffn.shift.scale\" is none of this model's"},
        {SL_DTYPE_I8, "layers.0.mixer.state.scale", "layers.0.mixer.state.scalf",
         "has no tensor \"layers.0.mixer.state.scale\""},
        {SL_DTYPE_I8, "\"shape\":[2,8],", "\"shape\":[8,2],", "this model needs [2, 8]"},
        {SL_DTYPE_I8, "\"shape\":[1],\"data_offsets\":[8,12]",
         "\"shape\":[],\"data_offsets\":[8,12]", "has the shape []; this model needs [1]"},
        {SL_DTYPE_BF16, "\"dtype\":\"BF16\"", "\"dtype\":\"I16\"", "has the type I16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct snapshot_file f = file_of(cases[i].dtype);
        struct snapshot_file x = snapshots_edit(&f, cases[i].from, cases[i].to);
        assert_refused(&x, SL_E_SNAPSHOT_CORRUPT, cases[i].message);
        sl_free(x.p);
        sl_free(f.p);
    }
}

/* A scale of a tensor that has none has nothing to say. */
static void test_scale_without_integers(void **arg)
{
    (void)arg;
    struct snapshot_file f = file_of(SL_DTYPE_I8);
    /* as many bytes, but as F32 of two rows it is no I8: 16 integers are 4 floats */
    struct snapshot_file x =
        snapshots_edit(&f, "\"layers.0.mixer.shift\":{\"dtype\":\"I8\",\"shape\":[16]",
                       "\"layers.0.mixer.shift\":{\"dtype\":\"F32\",\"shape\":[4]");
    assert_refused(&x, SL_E_SNAPSHOT_CORRUPT, "has the shape [4]; this model needs [16]");
    sl_free(x.p);
    sl_free(f.p);
}

/* --- lies in the metadata, made by somebody who dropped their digest --- */

static void test_metadata(void **arg)
{
    (void)arg;
    static const struct {
        const char *from, *to;
        enum sl_code code;
        const char *message;
    } cases[] = {
        {"\"format\":\"slate.session\"", "\"format\":\"other\"", SL_E_SNAPSHOT_CORRUPT,
         "no session's snapshot"},
        {"\"format\":\"slate.session\",", "", SL_E_SNAPSHOT_CORRUPT, "no session's snapshot"},
        {"\"format_version\":\"1\"", "\"format_version\":\"2\"", SL_E_SNAPSHOT_VERSION_UNSUPPORTED,
         "has version 2; this program reads versions up to 1"},
        {"\"format_version\":\"1\"", "\"format_version\":\"999999999\"",
         SL_E_SNAPSHOT_VERSION_UNSUPPORTED, "has version 999999999"},
        {"\"format_version\":\"1\"", "\"format_version\":\"0\"", SL_E_SNAPSHOT_CORRUPT,
         "\"format_version\" must be"},
        {"\"format_version\":\"1\"", "\"format_version\":\"1x\"", SL_E_SNAPSHOT_CORRUPT,
         "\"format_version\" must be"},
        {"\"format_version\":\"1\"", "\"format_version\":\"4294967297000\"", SL_E_SNAPSHOT_CORRUPT,
         "\"format_version\" must be"},
        {"\"format_version\":\"1\",", "", SL_E_SNAPSHOT_CORRUPT, "\"format_version\" must be"},
        {"\"format_version\":\"1\"", "\"format_version\":1", SL_E_SNAPSHOT_CORRUPT,
         "is not a string"},
        {"\"model.arch\":\"rwkv7\"", "\"model.arch\":\"rwkv6\"", SL_E_SNAPSHOT_MODEL_MISMATCH,
         "is of the model rwkv6"},
        {"\"model.arch\":\"rwkv7\",", "", SL_E_SNAPSHOT_CORRUPT, "have no \"model.arch\""},
        {"\"model.fingerprint\":", "\"x\":", SL_E_SNAPSHOT_CORRUPT,
         "have no \"model.fingerprint\""},
        {"\"model.fingerprint\":\"", "\"model.fingerprint\":\"0", SL_E_SNAPSHOT_CORRUPT,
         "\"model.fingerprint\" must be 32 digits"},
        {"\"tokenizer.fingerprint\":\"", "\"tokenizer.fingerprint\":\"Z", SL_E_SNAPSHOT_CORRUPT,
         "\"tokenizer.fingerprint\" must be 32 digits"},
        {"\"session.incarnation\":\"0", "\"session.incarnation\":\"g", SL_E_SNAPSHOT_CORRUPT,
         "\"session.incarnation\" must be 32 digits"},
        {"\"session.version\":\"12\"", "\"session.version\":\"-1\"", SL_E_SNAPSHOT_CORRUPT,
         "\"session.version\" must be"},
        {"\"session.version\":\"12\"", "\"session.version\":\"012\"", SL_E_SNAPSHOT_CORRUPT,
         "\"session.version\" must be"},
        {"\"session.version\":\"12\"", "\"session.version\":\"18446744073709551616\"",
         SL_E_SNAPSHOT_CORRUPT, "\"session.version\" must be"},
        {"\"session.tokens_seen\":\"41\"", "\"session.tokens_seen\":\"\"", SL_E_SNAPSHOT_CORRUPT,
         "\"session.tokens_seen\" must be"},
        {"2026-06-01T00:00:00.123Z", "2026-06-01", SL_E_SNAPSHOT_CORRUPT, "\"created\" must be"},
        {"2026-06-01T00:00:00.123Z", "2026-06-01T00:00:00.123", SL_E_SNAPSHOT_CORRUPT, "created"},
        {"2026-06-01T00:00:00.123Z", "2026-06-01T00:00:00+01:00", SL_E_SNAPSHOT_CORRUPT, "created"},
        {"2026-06-01T00:00:00.123Z", "2026-13-01T00:00:00Z", SL_E_SNAPSHOT_CORRUPT, "created"},
        {"2026-06-01T00:00:00.123Z", "2026-6-01T00:00:00Z", SL_E_SNAPSHOT_CORRUPT, "created"},
        {"\"session.metadata\":\"{", "\"session.metadata\":\"[", SL_E_SNAPSHOT_CORRUPT,
         "\"session.metadata\" is not a JSON object"},
        {"\"session.metadata\":\"{", "\"session.metadata\":\"1\",\"x\":\"", SL_E_SNAPSHOT_CORRUPT,
         "\"session.metadata\" is not a JSON object"},
        {"\"__metadata__\":{", "\"__metadata__\":[],\"m\":{", SL_E_SNAPSHOT_CORRUPT,
         "\"__metadata__\" is not an object"},
    };
    struct snapshot_file f = file_of(SL_DTYPE_F32);
    struct snapshot_file g = snapshots_drop(&f, "metadata.xxh3");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct snapshot_file x = snapshots_edit(&g, cases[i].from, cases[i].to);
        assert_refused(&x, cases[i].code, cases[i].message);
        sl_free(x.p);
    }
    sl_free(g.p);
    sl_free(f.p);
}

/* What informs may be absent; times may be written in other ways. */
static void test_tolerant(void **arg)
{
    (void)arg;
    static const char *const cases[][2] = {
        {"\"session.id\":", "\"later.field\":"},
        {"\"session.incarnation\":", "\"x\":"},
        {"\"session.version\":", "\"x\":"},
        {"\"session.tokens_seen\":", "\"x\":"},
        {"\"session.metadata\":", "\"x\":"},
        {"\"continuation\":", "\"x\":"},
        {"\"created\":", "\"x\":"},
        {"\"state.dtype\":", "\"x\":"},
        {"2026-06-01T00:00:00.123Z", "2026-06-01T00:00:00Z"},
        {"2026-06-01T00:00:00.123Z", "2026-06-01T00:00:00.123456789Z"},
        {"\"engine.numerics\":", "\"x\":"},
    };
    struct snapshot_file f = file_of(SL_DTYPE_F32);
    struct snapshot_file g = snapshots_drop(&f, "metadata.xxh3");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct snapshot_file x = snapshots_edit(&g, cases[i][0], cases[i][1]);
        struct sl_snapshot_info got;
        struct sl_error err = {0};
        if (snapshots_read(&tiny, x.p, x.n, &got, &err) != SL_OK)
            fail_msg("%s: %s", cases[i][1], err.message);
        assert_memory_equal(tiny.back, tiny.state, tiny.state_bytes);
        assert_true(got.edited);
        sl_free(got.text);
        sl_free(x.p);
    }
    sl_free(g.p);
    sl_free(f.p);
}

/* --- values that are none --- */

/* Writes `bytes` at the file's tensor, drops the digest, and it is refused with the name. */
static void plant(enum sl_dtype dtype, const char *tensor, size_t at, const void *bytes, size_t n)
{
    struct snapshot_file f = file_of(dtype);
    size_t tensor_n;
    unsigned char *p = snapshots_tensor(&f, tensor, &tensor_n);
    assert_true(at + n <= tensor_n);
    memcpy(p + at, bytes, n);
    struct snapshot_file x = snapshots_drop(&f, "payload.xxh3");
    char message[128];
    (void)snprintf(message, sizeof message, "\"%s\" holds a value that is", tensor);
    assert_refused(&x, SL_E_SNAPSHOT_CORRUPT, message);
    sl_free(x.p);
    sl_free(f.p);
}

static void test_not_finite(void **arg)
{
    (void)arg;
    static const char *const tensors[] = {"layers.0.mixer.shift", "layers.0.mixer.state",
                                          "layers.0.ffn.shift",   "layers.1.mixer.shift",
                                          "layers.1.mixer.state", "layers.1.ffn.shift"};
    static const uint32_t bad32[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0x7f800000, 0xff800000};
    static const uint16_t bad16[] = {0x7fc0, 0xff80, 0x7f81};
    for (size_t i = 0; i < 6; i++) {
        size_t n = strstr(tensors[i], "state") ? 128 : 16;
        for (size_t k = 0; k < n; k += n / 4 - 1) {
            for (size_t b = 0; b < sizeof bad32 / sizeof *bad32; b++)
                plant(SL_DTYPE_F32, tensors[i], 4 * k, &bad32[b], 4);
            for (size_t b = 0; b < sizeof bad16 / sizeof *bad16; b++)
                plant(SL_DTYPE_BF16, tensors[i], 2 * k, &bad16[b], 2);
        }
    }
    /* scales: also those whose product is not finite */
    static const float bad_scales[] = {INFINITY, NAN, 0x1p121f, -0x1p121f};
    for (size_t b = 0; b < 4; b++) {
        plant(SL_DTYPE_I8, "layers.1.mixer.state.scale", 4 * 15, &bad_scales[b], 4);
        plant(SL_DTYPE_I8, "layers.0.ffn.shift.scale", 0, &bad_scales[b], 4);
    }
    int64_t negative = INT64_MIN;
    plant(SL_DTYPE_F32, "counters.tokens_consumed", 0, &negative, 8);
}

/* A state that is not finite is not written: no reader would take the file. */
static void test_write_not_finite(void **arg)
{
    (void)arg;
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_I8};
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < 9; i++) {
        struct sl_snapshot_info info = full;
        struct sl_error err = {0};
        unsigned char *p = NULL;
        size_t n;
        float *v = (float *)((unsigned char *)tiny.state + tiny.state_bytes - 64), before = v[3];
        info.dtype = dtypes[i % 3];
        v[3] = bad[i / 3]; /* in the last tensor */
        assert_int_equal(
            sl_snapshot_write(tiny.model, tiny.tokenizer, tiny.state, &info, &p, &n, &err),
            SL_E_MODEL_NOT_FINITE);
        assert_non_null(strstr(err.message, "layers.1.ffn.shift"));
        assert_null(p);
        v[3] = before;
    }
}

/* --- sizes --- */

static struct snapshot_file with_header(const char *begin, const char *repeated, size_t n_bytes,
                                        const char *end)
{
    struct snapshot_file f = {malloc(8 + n_bytes + 256), 0};
    size_t at = strlen(begin), len = strlen(repeated);
    memcpy(f.p + 8, begin, at);
    for (; at + len <= n_bytes; at += len)
        memcpy(f.p + 8 + at, repeated, len);
    memcpy(f.p + 8 + at, end, strlen(end));
    uint64_t header_n = at + strlen(end);
    memcpy(f.p, &header_n, 8);
    f.n = 8 + (size_t)header_n;
    return f;
}

static void test_huge(void **arg)
{
    (void)arg;
    size_t limit = (size_t)24 << 20;
    struct snapshot_file f = with_header("{", " ", limit - 1, "}");
    assert_refused(&f, SL_E_SNAPSHOT_CORRUPT, "no session's snapshot");
    free(f.p);
    f = with_header("{", " ", limit, "}");
    assert_refused(&f, SL_E_SNAPSHOT_TOO_LARGE, "header has 25165825 bytes");
    free(f.p);
    f = with_header("{\"a\":[0", ",0", 1 << 20, "]}"); /* half a million values */
    assert_refused(&f, SL_E_SNAPSHOT_TOO_LARGE, "more than 262144 JSON values");
    free(f.p);
    f = with_header("{\"a\":", "[", 1 << 20, "");
    assert_refused(&f, SL_E_SNAPSHOT_TOO_LARGE, "more than 262144 JSON values");
    free(f.p);
    f = with_header("{\"a\":\"", "[", 1 << 20, "\"}"); /* a string of brackets is one value */
    assert_refused(&f, SL_E_SNAPSHOT_CORRUPT, "\"a\" is not described by an object");
    free(f.p);
    f = with_header("{\"__metadata__\":{\"session.metadata\":\"", "[", 1 << 20,
                    "\",\"format\":\"slate.session\",\"format_version\":\"1\",\"model.arch\":\"\","
                    "\"model.fingerprint\":\"00000000000000000000000000000000\"}}");
    assert_refused(&f, SL_E_SNAPSHOT_TOO_LARGE, "\"session.metadata\" has more than 262144");
    free(f.p);
    size_t most = sl_snapshot_bytes_max(tiny.model);
    f = (struct snapshot_file){calloc(1, most + 1), most + 1};
    assert_refused(&f, SL_E_SNAPSHOT_TOO_LARGE, "one of this model has at most");
    f.n = most;
    assert_refused(&f, SL_E_SNAPSHOT_CORRUPT, "ninth byte");
    for (unsigned i = 0; i < 8; i++) { /* a length that lies */
        memset(f.p, 0, 8);
        f.p[i] = 0x80;
        f.p[8] = '{';
        f.n = 100;
        assert_refused(&f, SL_E_SNAPSHOT_CORRUPT, "but only 92 follow");
    }
    free(f.p);
}

/* A continuation has its limit when it is written, not when somebody wants it back. */
static void test_long_texts(void **arg)
{
    (void)arg;
    size_t most = (size_t)16 << 20, n;
    char *text = malloc(most + 2);
    struct sl_snapshot_info info = full, got;
    struct sl_error err = {0};
    unsigned char *p = NULL;
    memset(text, '7', most + 1);
    text[most + 1] = '\0';
    info.continuation = text;
    assert_int_equal(sl_snapshot_write(tiny.model, tiny.tokenizer, tiny.state, &info, &p, &n, &err),
                     SL_E_SNAPSHOT_TOO_LARGE);
    text[most] = '\0';
    assert_int_equal(sl_snapshot_write(tiny.model, tiny.tokenizer, tiny.state, &info, &p, &n, &err),
                     SL_OK);
    assert_int_equal(snapshots_read(&tiny, p, n, &got, &err), SL_OK);
    assert_int_equal(strlen(got.continuation), most);
    sl_free(got.text);
    sl_free(p);
    memset(text, '"', most); /* twice as long when it is quoted */
    p = NULL;
    assert_int_equal(sl_snapshot_write(tiny.model, tiny.tokenizer, tiny.state, &info, &p, &n, &err),
                     SL_E_SNAPSHOT_TOO_LARGE);
    assert_null(p);
    free(text);
}

/* --- memory --- */

static void test_memory(void **arg)
{
    (void)arg;
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_I8};
    for (size_t d = 0; d < 3; d++) {
        struct sl_snapshot_info info = full, got;
        struct snapshot_file f = {NULL, 0};
        unsigned char fingerprint[16];
        const char *arch;
        enum sl_code c;
        int64_t failed[3] = {0, 0, 0};
        info.dtype = dtypes[d];
        for (c = SL_E_NO_MEMORY; c == SL_E_NO_MEMORY; failed[0]++) {
            sl_mem_fail_once(failed[0]);
            c = sl_snapshot_write(tiny.model, tiny.tokenizer, tiny.state, &info, &f.p, &f.n, NULL);
        }
        sl_mem_fail_after(-1);
        assert_int_equal(c, SL_OK);
        for (c = SL_E_NO_MEMORY; c == SL_E_NO_MEMORY; failed[1]++) {
            sl_mem_fail_once(failed[1]);
            c = snapshots_read(&tiny, f.p, f.n, &got, NULL);
        }
        sl_mem_fail_after(-1);
        assert_int_equal(c, SL_OK);
        sl_free(got.text);
        for (c = SL_E_NO_MEMORY; c == SL_E_NO_MEMORY; failed[2]++) {
            sl_mem_fail_once(failed[2]);
            c = sl_snapshot_describe(f.p, f.n, &got, &arch, fingerprint, NULL);
        }
        sl_mem_fail_after(-1);
        assert_int_equal(c, SL_OK);
        assert_true(failed[0] > 3 && failed[1] > 4 && failed[2] > 4);
        sl_free(got.text);
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
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_flips_of_smaller_ones),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_scale_without_integers),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_tolerant),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_write_not_finite),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
