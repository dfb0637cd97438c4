/* safetensors_test.c: the safetensors reader and tensors.c, on files built here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "tests/support/bytes.h"
#include "tests/support/floats.h"

/* 40 bytes of data: "w" 0 … 24, "b" 24 … 32, "none" empty, "z.half" 32 … 40. */
static const char good[] =
    "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"z.half\":{\"dtype\":\"BF16\",\"shape\":[1,4,1],\"data_offsets\":[32,40]},"
    "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[24,24]},"
    "\"b\":{\"data_offsets\":[24,32],\"shape\":[],\"dtype\":\"F64\",\"more\":null},"
    "\"__metadata__\":{\"format\":\"pt\",\"who\":\"\\u00e9\"}}   ";
enum { GOOD_DATA = 40 };

/* Opens a copy without a byte to spare. */
static enum sl_code open_bytes(struct sl_tensors **t, unsigned char **copy, const struct bytes *b,
                               size_t n, struct sl_error *err)
{
    *copy = exact_copy(b->p, n);
    *t = NULL;
    return sl_tensors_open_memory(t, *copy, n, "x.safetensors", err);
}

static void assert_fails(const struct bytes *b, size_t n, enum sl_code want, const char *part)
{
    struct sl_tensors *t;
    unsigned char *copy;
    struct sl_error err = {0};
    enum sl_code c = open_bytes(&t, &copy, b, n, &err);
    if (c != want || (part && !strstr(err.message, part)))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", sl_code_name(want), part ? part : "",
                 sl_code_name(c), err.message);
    assert_int_equal(err.code, want);
    assert_null(t);
    free(copy);
}

static void test_a_good_file(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct sl_tensors *t;
    unsigned char *copy, values[24];
    make_safetensors(&b, good, GOOD_DATA);
    assert_int_equal(open_bytes(&t, &copy, &b, b.n, NULL), SL_OK);
    assert_string_equal(t->container, "safetensors");
    assert_int_equal(t->file_bytes, b.n);
    assert_int_equal(t->n, 4);
    static const char *const names[] = {"b", "none", "w", "z.half"};
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(t->v[i].name, names[i]);
    const struct sl_tensor *w = sl_tensors_find(t, "w");
    assert_non_null(w);
    assert_int_equal(w->dtype, SL_DTYPE_F32);
    assert_int_equal(w->rank, 2);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 3);
    assert_int_equal(w->stride[0], 3);
    assert_int_equal(w->stride[1], 1);
    assert_int_equal(w->n_elements, 6);
    assert_true(w->contiguous);
    assert_ptr_equal(w->data, copy + b.n - GOOD_DATA);
    sl_tensor_copy(w, values);
    for (unsigned i = 0; i < 24; i++)
        assert_int_equal(values[i], i);
    const struct sl_tensor *s = sl_tensors_find(t, "b");
    assert_int_equal(s->rank, 0);
    assert_int_equal(s->n_elements, 1);
    assert_int_equal(s->data[0], 24);
    const struct sl_tensor *none = sl_tensors_find(t, "none");
    assert_int_equal(none->n_elements, 0);
    assert_null(none->data);
    sl_tensor_copy(none, NULL);
    assert_int_equal(sl_tensors_find(t, "z.half")->data[0], 32);
    assert_null(sl_tensors_find(t, "a"));
    assert_null(sl_tensors_find(t, "ww"));
    assert_int_equal(t->n_meta, 2);
    for (size_t i = 0; i < 2; i++)
        assert_string_equal(t->meta[i].value,
                            strcmp(t->meta[i].key, "format") == 0 ? "pt" : "\xc3\xa9");
    sl_tensors_close(t);
    free(copy);
    bytes_done(&b);
}

static void test_cut_at_every_byte(void **state)
{
    (void)state;
    struct bytes b = {0};
    make_safetensors(&b, good, GOOD_DATA);
    for (size_t n = 0; n < b.n; n++)
        assert_fails(&b, n, SL_E_FILE_TRUNCATED, "x.safetensors: ");
    put_byte(&b, 0);
    assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "the last 1 of 41 bytes");
    bytes_done(&b);
}

/* T(dtype, shape, begin, end): one tensor's entry. */
#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"
#define F32 "\"F32\""

static const struct {
    const char *header;
    size_t data_n;
    enum sl_code code;
    const char *part;
} bad[] = {
    /* not a header */
    {"{", 0, SL_E_FILE_CORRUPT, "not a JSON object"},
    {"{\"a\":1]", 0, SL_E_FILE_CORRUPT, "not a JSON object"},
    {"{} {}", 0, SL_E_FILE_CORRUPT, "not a JSON object"},
    {"{\"a\":1}", 0, SL_E_FILE_CORRUPT, "\"a\" is not described by an object"},
    {"{\"a\":[]}", 0, SL_E_FILE_CORRUPT, "\"a\" is not described by an object"},
    {"{\"\xff\":{}}", 0, SL_E_FILE_CORRUPT, "not a JSON object"},
    {"{\"a\\u0000b\":{}}", 0, SL_E_FILE_CORRUPT, "not a JSON object"},
    {"{\"a\":" T(F32, "[]", 0, 4) ",\"a\":" T(F32, "[]", 4, 8) "}", 8, SL_E_FILE_CORRUPT,
     "two tensors are named"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
     SL_E_FILE_CORRUPT, "uplicate"},
    /* missing and wrong fields */
    {"{\"a\":{}}", 0, SL_E_FILE_CORRUPT, "\"dtype\" is not a string"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, SL_E_FILE_CORRUPT, "\"shape\" is not a list"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, SL_E_FILE_CORRUPT, "\"data_offsets\""},
    {"{\"a\":" T("5", "[]", 0, 4) "}", 4, SL_E_FILE_CORRUPT, "\"dtype\" is not a string"},
    {"{\"a\":" T("\"F8_E4M3\"", "[4]", 0, 4) "}", 4, SL_E_FILE_UNSUPPORTED, "F8_E4M3"},
    {"{\"a\":" T("\"U32\"", "[1]", 0, 4) "}", 4, SL_E_FILE_UNSUPPORTED, "U32"},
    {"{\"a\":" T("\"none\"", "[1]", 0, 4) "}", 4, SL_E_FILE_UNSUPPORTED, "none"},
    {"{\"a\":" T("\"f32\"", "[1]", 0, 4) "}", 4, SL_E_FILE_UNSUPPORTED, "f32"},
    {"{\"a\":" T(F32, "4", 0, 4) "}", 4, SL_E_FILE_CORRUPT, "\"shape\" is not a list"},
    {"{\"a\":" T(F32, "[1,-1]", 0, 4) "}", 4, SL_E_FILE_CORRUPT, "at place 1"},
    {"{\"a\":" T(F32, "[1.0]", 0, 4) "}", 4, SL_E_FILE_CORRUPT, "at place 0"},
    {"{\"a\":" T(F32, "[\"1\"]", 0, 4) "}", 4, SL_E_FILE_CORRUPT, "at place 0"},
    {"{\"a\":" T(F32, "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, SL_E_TOO_LARGE, "9 dimensions"},
    {"{\"a\":" T(F32, "[1]", -4, 0) "}", 4, SL_E_FILE_CORRUPT, "two integers"},
    {"{\"a\":" T(F32, "[1]", 0.0, 4) "}", 4, SL_E_FILE_CORRUPT, "two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, SL_E_FILE_CORRUPT,
     "two integers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, SL_E_FILE_CORRUPT,
     "two integers"},
    /* lies about sizes */
    {"{\"a\":" T(F32, "[1]", 4, 0) "}", 4, SL_E_FILE_CORRUPT, "end before they begin"},
    {"{\"a\":" T(F32, "[2]", 0, 4) "}", 4, SL_E_FILE_CORRUPT, "takes 8 bytes"},
    {"{\"a\":" T(F32, "[1]", 0, 8) "}", 8, SL_E_FILE_CORRUPT, "takes 4 bytes"},
    {"{\"a\":" T(F32, "[1]", 0, 4) "}", 3, SL_E_FILE_TRUNCATED, "ends at byte 4"},
    {"{\"a\":" T(F32, "[1]", 9223372036854775800, 9223372036854775804) "}", 4, SL_E_FILE_TRUNCATED,
     "ends at byte 9223372036854775804"},
    {"{\"a\":" T(F32, "[1]", 0, 9223372036854775808) "}", 4, SL_E_FILE_CORRUPT, "too big integer"},
    {"{\"a\":" T(F32, "[4294967296,4294967296]", 0, 0) "}", 0, SL_E_FILE_CORRUPT, "overflows"},
    {"{\"a\":" T(F32, "[4611686018427387904]", 0, 0) "}", 0, SL_E_FILE_CORRUPT, "overflows"},
    {"{\"a\":" T(F32, "[9223372036854775807,9223372036854775807,0]", 0, 0) "}", 0,
     SL_E_FILE_CORRUPT, "overflows"},
    /* the tiling */
    {"{\"a\":" T(F32, "[1]", 0, 4) ",\"b\":" T(F32, "[1]", 0, 4) "}", 4, SL_E_FILE_CORRUPT,
     "overlap at byte 0"},
    {"{\"a\":" T(F32, "[2]", 0, 8) ",\"b\":" T(F32, "[1]", 4, 8) "}", 8, SL_E_FILE_CORRUPT,
     "overlap at byte 4"},
    {"{\"a\":" T(F32, "[1]", 0, 4) ",\"b\":" T(F32, "[1]", 8, 12) "}", 12, SL_E_FILE_CORRUPT,
     "bytes 4 to 8 of the data, before tensor \"b\""},
    {"{\"a\":" T(F32, "[1]", 4, 8) "}", 8, SL_E_FILE_CORRUPT, "bytes 0 to 4"},
    {"{\"a\":" T(F32, "[1]", 0, 4) "}", 5, SL_E_FILE_CORRUPT, "the last 1 of 5 bytes"},
    {"{}", 1, SL_E_FILE_CORRUPT, "the last 1 of 1 bytes"},
    {"{\"a\":" T(F32, "[0]", 2, 2) ",\"b\":" T(F32, "[1]", 0, 4) "}", 4, SL_E_FILE_CORRUPT,
     "overlap"},
    /* metadata */
    {"{\"__metadata__\":[]}", 0, SL_E_FILE_CORRUPT, "\"__metadata__\" is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, SL_E_FILE_CORRUPT, "\"a\" is not a string"},
};

static void test_bad_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct bytes b = {0};
        make_safetensors(&b, bad[i].header, bad[i].data_n);
        assert_fails(&b, b.n, bad[i].code, bad[i].part);
        bytes_done(&b);
    }
}

static void test_empty_tensors_and_no_tensors(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{}", "{\"a\":" T(F32, "[0]", 0, 0) "}",
        "{\"a\":" T(F32, "[0]", 4, 4) ",\"b\":" T(F32, "[1]", 0, 4) ",\"c\":" T(F32, "[3,0]", 0,
                                                                                0) "}",
        "{\"a\":" T(F32, "[0,9223372036854775807,9223372036854775807]", 0, 0) "}"};
    static const size_t data_n[] = {0, 0, 4, 0}, n[] = {0, 1, 3, 1};
    for (size_t i = 0; i < 4; i++) {
        struct bytes b = {0};
        struct sl_tensors *t;
        unsigned char *copy;
        make_safetensors(&b, headers[i], data_n[i]);
        assert_int_equal(open_bytes(&t, &copy, &b, b.n, NULL), SL_OK);
        assert_int_equal(t->n, n[i]);
        sl_tensors_close(t);
        free(copy);
        bytes_done(&b);
    }
}

static void test_header_lengths(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        enum sl_code code;
        const char *part;
    } cases[] = {
        {0, SL_E_FILE_CORRUPT, "not a JSON object"},
        {1, SL_E_FILE_CORRUPT, "not a JSON object"},
        {sizeof good - 2, SL_E_FILE_CORRUPT, "the last 1 of 41"}, /* one space too few */
        {sizeof good - 1 + GOOD_DATA, SL_E_FILE_CORRUPT, "not a JSON object"},
        {sizeof good + GOOD_DATA, SL_E_FILE_TRUNCATED, "only 408 follow"},
        {100000000, SL_E_FILE_TRUNCATED, "100000000 bytes, but only"},
        {100000001, SL_E_TOO_LARGE, "100000001 bytes; at most 100000000"},
        {UINT32_MAX, SL_E_TOO_LARGE, "at most 100000000"},
        {UINT64_MAX, SL_E_TOO_LARGE, "at most 100000000"},
        {UINT64_MAX - 7, SL_E_TOO_LARGE, "at most 100000000"},
        {(uint64_t)1 << 63, SL_E_TOO_LARGE, "at most 100000000"},
    };
    struct bytes b = {0};
    make_safetensors(&b, good, GOOD_DATA);
    char follow[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *part = cases[i].part;
        if (strncmp(part, "only ", 5) == 0) {
            snprintf(follow, sizeof follow, "only %zu follow", b.n - 8);
            part = follow;
        }
        set_u64(&b, 0, cases[i].n);
        assert_fails(&b, b.n, cases[i].code, part);
    }
    bytes_done(&b);
}

/* A length whose bytes spell another format's magic is still a length. */
static void test_a_length_that_looks_like_a_magic(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0x017b /* '{' */, 0x5b5b /* "[[" */, 0x8b1f /* gzip */};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct bytes b = {0};
        struct sl_tensors *t;
        unsigned char *copy;
        put_u64(&b, lengths[i]);
        put_text(&b, "{}");
        while (b.n < 8 + lengths[i])
            put_byte(&b, ' ');
        assert_int_equal(open_bytes(&t, &copy, &b, b.n, NULL), SL_OK);
        sl_tensors_close(t);
        free(copy);
        bytes_done(&b);
    }
}

static void test_limits_of_names_and_metadata(void **state)
{
    (void)state;
    struct bytes header = {0}, b = {0};
    for (int over = 0; over < 2; over++) { /* 1,024 bytes are allowed, 1,025 are not */
        header.n = b.n = 0;
        put_text(&header, "{\"");
        for (int i = 0; i < 1024 + over; i++)
            put_byte(&header, 'n');
        put_text(&header, "\":" T(F32, "[1]", 0, 4) "}");
        put_byte(&header, 0);
        make_safetensors(&b, (const char *)header.p, 4);
        if (over) {
            assert_fails(&b, b.n, SL_E_TOO_LARGE, "1025 bytes");
        } else {
            struct sl_tensors *t;
            unsigned char *copy;
            assert_int_equal(open_bytes(&t, &copy, &b, b.n, NULL), SL_OK);
            assert_int_equal(strlen(t->v[0].name), 1024);
            sl_tensors_close(t);
            free(copy);
        }
    }
    header.n = b.n = 0;
    put_text(&header, "{\"__metadata__\":{");
    for (int i = 0; i < 4097; i++) {
        char entry[32];
        snprintf(entry, sizeof entry, "%s\"%d\":\"\"", i ? "," : "", i);
        put_text(&header, entry);
    }
    put_text(&header, "}}");
    put_byte(&header, 0);
    make_safetensors(&b, (const char *)header.p, 0);
    assert_fails(&b, b.n, SL_E_TOO_LARGE, "more than 4096 metadata entries");
    bytes_done(&header);
    bytes_done(&b);
}

static void test_json_nested_deeply(void **state)
{
    (void)state;
    struct bytes header = {0}, b = {0};
    put_text(&header, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        put_byte(&header, '[');
    put_byte(&header, 0);
    make_safetensors(&b, (const char *)header.p, 0);
    assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "maximum parsing depth");
    bytes_done(&header);
    bytes_done(&b);
}

/* The n-th allocation fails, for every n until nothing fails any more. */
static void test_no_memory(void **state)
{
    (void)state;
    struct bytes b = {0};
    make_safetensors(&b, good, GOOD_DATA);
    enum sl_code c = SL_E_NO_MEMORY;
    int n_no_memory = 0;
    for (int n = 0; c; n++) {
        struct sl_tensors *t = NULL;
        struct sl_error err = {0};
        sl_mem_fail_after(n);
        c = sl_tensors_open_memory(&t, b.p, b.n, "x.safetensors", &err);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || c == SL_E_NO_MEMORY);
        n_no_memory += c == SL_E_NO_MEMORY;
        sl_tensors_close(t);
    }
    assert_true(n_no_memory > 10);
    bytes_done(&b);
}

/* Random damage: whatever it does, the reader answers and every tensor can be copied. */
static void test_damage(void **state)
{
    (void)state;
    struct bytes b = {0};
    make_safetensors(&b, good, GOOD_DATA);
    uint64_t seed = 1;
    size_t n_opened = 0;
    for (int round = 0; round < 20000; round++) {
        unsigned char *copy = exact_copy(b.p, b.n), values[4096];
        for (uint64_t k = 1 + next_random(&seed) % 3; k; k--)
            copy[next_random(&seed) % (b.n - GOOD_DATA)] = (unsigned char)next_random(&seed);
        struct sl_tensors *t = NULL;
        struct sl_error err;
        if (sl_tensors_open_memory(&t, copy, b.n, "x", &err) == SL_OK) {
            n_opened++;
            for (size_t i = 0; i < t->n; i++)
                if (t->v[i].n_elements <= 512)
                    sl_tensor_copy(&t->v[i], values);
        }
        sl_tensors_close(t);
        free(copy);
    }
    assert_true(n_opened > 0); /* a byte of a name or a space was hit */
    bytes_done(&b);
}

static void test_on_disk(void **state)
{
    (void)state;
    struct bytes b = {0};
    char path[128];
    struct sl_tensors *t = NULL;
    unsigned char values[24];
    make_safetensors(&b, good, GOOD_DATA);
    write_temp(path, "m.safetensors", b.p, b.n);
    assert_int_equal(sl_tensors_open(&t, path, NULL), SL_OK);
    const struct sl_tensor *w = sl_tensors_find(t, "w");
    sl_tensor_copy(w, values);
    for (size_t i = 0; i < t->n; i++)
        sl_tensor_forget(t, &t->v[i]);
    unlink(path); /* the mapping keeps the file */
    memset(values, 0, sizeof values);
    sl_tensor_copy(w, values);
    for (unsigned i = 0; i < 24; i++)
        assert_int_equal(values[i], i);
    sl_tensors_close(t);
    remove_temp(path);

    /* Memory that is the caller's is never forgotten. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (b.n + page - 1) / page * page;
    unsigned char *aligned = aligned_alloc(page, n);
    memcpy(aligned, b.p, b.n);
    assert_int_equal(sl_tensors_open_memory(&t, aligned, b.n, "x", NULL), SL_OK);
    sl_tensor_forget(t, sl_tensors_find(t, "w"));
    assert_memory_equal(aligned, b.p, b.n);
    sl_tensors_close(t);
    free(aligned);
    bytes_done(&b);
}

static void assert_path_fails(const char *path, enum sl_code want, const char *part)
{
    struct sl_tensors *t = NULL;
    struct sl_error err = {0};
    enum sl_code c = sl_tensors_open(&t, path, &err);
    if (c != want || !strstr(err.message, part) || !strstr(err.message, path))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", sl_code_name(want), part, sl_code_name(c),
                 err.message);
    assert_null(t);
}

static void test_what_is_no_file(void **state)
{
    (void)state;
    char path[128];
    assert_path_fails("/nowhere/m.pth", SL_E_FILE_NOT_FOUND, "No such file");
    assert_path_fails("/dev/null/m.pth", SL_E_FILE_NOT_FOUND, "Not a directory");
    assert_path_fails("/tmp", SL_E_FILE_UNSUPPORTED, "is a directory");
    assert_path_fails("/dev/null", SL_E_FILE_UNSUPPORTED, "not a regular file");
    write_temp(path, "pipe", "", 0);
    assert_path_fails(path, SL_E_FILE_TRUNCATED, "is empty");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_path_fails(path, SL_E_FILE_UNSUPPORTED, "not a regular file");
    remove_temp(path);
}

#define B(s) s, sizeof s - 1
static const struct {
    const char *bytes;
    size_t n;
    enum sl_code code;
    const char *part;
} others[] = {
    {B("lmgg\0\0\0\0"), SL_E_FILE_UNSUPPORTED, "is an old GGML file"},
    {B("fmgg\x65\0\0\0"), SL_E_FILE_UNSUPPORTED, "an old GGML file"},
    {B("version https://git-lfs.github.com/spec/v1\noid sha256:00\n"), SL_E_FILE_UNSUPPORTED,
     "a Git LFS pointer"},
    {B("<!DOCTYPE html>\n<html>"), SL_E_FILE_UNSUPPORTED, "an HTML page"},
    {B("\xef\xbb\xbf\r\n <!doctype HTML>"), SL_E_FILE_UNSUPPORTED, "an HTML page"},
    {B("\n<HTML lang=en>"), SL_E_FILE_UNSUPPORTED, "an HTML page"},
    {B("<?xml version='1.0'?><Error/>"), SL_E_FILE_UNSUPPORTED, "an XML file"},
    {B("{\"hidden_size\": 64, \"num_layers\": 3}"), SL_E_FILE_UNSUPPORTED, "a JSON file"},
    {B("{\"a\":{\"b\":{\"c\":1}}}            "), SL_E_FILE_UNSUPPORTED, "a JSON file"},
    {B("{\"a\":1}"), SL_E_FILE_UNSUPPORTED, "a JSON file"},
    {B("\x1f\x8b\x08\0\0\0\0\0"), SL_E_FILE_UNSUPPORTED, "gzip"},
    {B("\x28\xb5\x2f\xfd\x04\0"), SL_E_FILE_UNSUPPORTED, "zstd"},
    {B("\x89HDF\r\n\x1a\n"), SL_E_FILE_UNSUPPORTED, "HDF5"},
    {B("\x93NUMPY\1\0"), SL_E_FILE_UNSUPPORTED, "NumPy"},
    {B("PK\5\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), SL_E_FILE_UNSUPPORTED, "an empty zip"},
    {B("\x80\4\x95\0\0\0\0\0\0\0\0}."), SL_E_FILE_UNSUPPORTED, "pickle that torch.save did not"},
    {B("1 'a' 1\n2 'b' 1\n3 'c' 1\n"), SL_E_FILE_UNSUPPORTED,
     "no .safetensors, .pth or .gguf file (it begins with the bytes 31 20 27 61 27 20 31 0a)"},
    {B("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), SL_E_FILE_UNSUPPORTED,
     "is no .safetensors, .pth or .gguf file"},
    {B("hello"), SL_E_FILE_TRUNCATED, "has only 5 bytes"},
    {B("\n"), SL_E_FILE_TRUNCATED, "has only 1 bytes"},
};

static void test_what_is_no_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct bytes b = {0};
        put(&b, others[i].bytes, others[i].n);
        assert_fails(&b, b.n, others[i].code, others[i].part);
        bytes_done(&b);
    }
    struct bytes tar = {0};
    while (tar.n < 257)
        put_byte(&tar, 'x');
    put_text(&tar, "ustar");
    assert_fails(&tar, tar.n, SL_E_FILE_UNSUPPORTED, "a tar archive");
    bytes_done(&tar);
}

/* Of a long path the end is shown, which is the file's name. */
static void test_long_paths_in_messages(void **state)
{
    (void)state;
    char name[1001];
    struct sl_tensors *t = NULL;
    struct sl_error err;
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    memcpy(name + sizeof name - 9, "/ab.pth\n", 9);
    assert_int_equal(sl_tensors_open_memory(&t, "lmgg", 4, name, &err), SL_E_FILE_UNSUPPORTED);
    assert_non_null(strstr(err.message, "ddd/ab.pth?: is an old GGML file"));
    assert_true(strlen(err.message) < 300);
}

static void *json_malloc(size_t n)
{
    return sl_malloc(n);
}

int main(void)
{
    json_set_alloc_funcs(json_malloc, sl_free); /* so that jansson's allocations can fail too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_file),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_empty_tensors_and_no_tensors),
        cmocka_unit_test(test_header_lengths),
        cmocka_unit_test(test_a_length_that_looks_like_a_magic),
        cmocka_unit_test(test_limits_of_names_and_metadata),
        cmocka_unit_test(test_json_nested_deeply),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_on_disk),
        cmocka_unit_test(test_what_is_no_file),
        cmocka_unit_test(test_what_is_no_model),
        cmocka_unit_test(test_long_paths_in_messages),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
