/* gguf_test.c: the container: what a good file holds, and every way a header can lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "tests/support/gguf_maker.h"

/* Of no known architecture, so that names stay: a [2, 3] F32, "none" with no elements, a row of two
 * Q4_0 blocks. */
static void good(struct gguf_maker *g)
{
    static const float a[6] = {0, 1, 2, 3, 4, 5};
    unsigned char blocks[36];
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (unsigned char)(i * 7);
    blocks[1] = blocks[19] = 0x3c;
    gguf_text(g, "general.architecture", "none");
    gguf_bool(g, "a.flag", true);
    gguf_u32(g, "a.number", 7);
    gguf_f32(g, "a.real", 0.5F);
    gguf_texts(g, "a.list", (const char *const[]){"one", "", "three"}, 3);
    gguf_words(g, "a.numbers", MAKE_I32, (const int32_t[]){-1, 2}, 2);
    gguf_tensor(g, "w", GGML_F32, 2, (size_t[]){2, 3}, a, sizeof a);
    gguf_tensor(g, "none", GGML_F16, 3, (size_t[]){0, 4, 2}, "", 0);
    gguf_tensor(g, "q", GGML_Q4_0, 2, (size_t[]){1, 64}, blocks, sizeof blocks);
}

static void make_good(struct bytes *file)
{
    struct gguf_maker g = {0};
    good(&g);
    gguf_end(&g, file);
    gguf_done(&g);
}

/* Opens a copy without a byte to spare. */
static enum sl_code open_bytes(struct sl_tensors **t, unsigned char **copy, const struct bytes *b,
                               size_t n, struct sl_error *err)
{
    *copy = exact_copy(b->p, n);
    *t = NULL;
    return sl_tensors_open_memory(t, *copy, n, "x.gguf", err);
}

static void assert_fails(const struct bytes *b, size_t n, enum sl_code want, const char *part)
{
    struct sl_tensors *t;
    unsigned char *copy;
    struct sl_error err = {0};
    enum sl_code c = open_bytes(&t, &copy, b, n, &err);
    if (c != want || !strstr(err.message, part) || strncmp(err.message, "x.gguf: ", 8) != 0)
        fail_msg("wanted %s \"%s\", got %s \"%s\"", sl_code_name(want), part, sl_code_name(c),
                 err.message);
    assert_null(t);
    free(copy);
}

static const char *meta(const struct sl_tensors *t, const char *key)
{
    for (size_t i = 0; i < t->n_meta; i++)
        if (strcmp(t->meta[i].key, key) == 0)
            return t->meta[i].value;
    return "";
}

static void check_good(const struct sl_tensors *t)
{
    assert_string_equal(t->container, "gguf");
    assert_int_equal(t->n, 3);
    const struct sl_tensor *w = sl_tensors_find(t, "w"), *q = sl_tensors_find(t, "q");
    assert_true(w && q && sl_tensors_find(t, "none"));
    assert_int_equal(w->dtype, SL_DTYPE_F32);
    assert_int_equal(w->rank, 2);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 3);
    float v[64];
    sl_tensor_values(w, 1, 4, v);
    for (size_t i = 0; i < 4; i++)
        assert_true(v[i] == (float)(i + 1));
    assert_int_equal(q->dtype, SL_DTYPE_NONE);
    assert_int_equal(q->block, SL_BLOCK_Q4_0);
    assert_string_equal(sl_tensor_type(q), "Q4_0");
    assert_int_equal(q->n_elements, 64);
    assert_int_equal(sl_tensor_bytes(q), 36);
    sl_tensor_values(q, 32, 32, v); /* the second block: d 0x3c7e, 1.123046875; then 0x8c */
    assert_true(v[0] == 1.123046875F * 4 && v[16] == 1.123046875F * 0);
    assert_int_equal(sl_tensors_find(t, "none")->n_elements, 0);
    assert_string_equal(meta(t, "a.flag"), "true");
    assert_string_equal(meta(t, "a.number"), "7");
    assert_string_equal(meta(t, "a.real"), "0.5");
    assert_string_equal(meta(t, "a.list"), "3 values of type string");
    assert_string_equal(meta(t, "a.numbers"), "2 values of type i32");
    assert_non_null(strstr(t->refused, "its architecture is \"none\""));
}

static void test_a_good_file(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct sl_tensors *t;
    unsigned char *copy;
    make_good(&b);
    for (uint32_t version = 2; version <= 3; version++) {
        set_u32(&b, 4, version);
        assert_int_equal(open_bytes(&t, &copy, &b, b.n, NULL), SL_OK);
        check_good(t);
        sl_tensors_close(t);
        free(copy);
    }
    bytes_done(&b);
}

static void test_other_alignments(void **state)
{
    (void)state;
    static const size_t alignments[] = {8, 64, 1024};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        struct bytes b = {0};
        struct sl_tensors *t;
        unsigned char *copy;
        struct gguf_maker g = {.alignment = alignments[i]};
        gguf_u32(&g, "general.alignment", (uint32_t)alignments[i]);
        good(&g);
        gguf_end(&g, &b);
        assert_int_equal(open_bytes(&t, &copy, &b, b.n, NULL), SL_OK);
        check_good(t);
        sl_tensors_close(t);
        free(copy);
        bytes_done(&b);
        gguf_done(&g);
    }
}

static void test_cut_at_every_byte(void **state)
{
    (void)state;
    struct bytes b = {0};
    make_good(&b);
    for (size_t n = 4; n < b.n; n++)
        assert_fails(&b, n, SL_E_FILE_TRUNCATED, "");
    bytes_done(&b);
}

/* --- lies --------------------------------------------------------------------------------------
 */

static const struct {
    const char *text; /* NULL: a field of the header */
    size_t at;        /* bytes behind its end */
    unsigned bytes;
    uint64_t value;
    enum sl_code code;
    const char *part;
} lies[] = {
    {NULL, 4, 4, 1, SL_E_FILE_UNSUPPORTED, "a GGUF file of version 1; versions 2 and 3"},
    {NULL, 4, 4, 4, SL_E_FILE_UNSUPPORTED, "a GGUF file of version 4;"},
    {NULL, 4, 4, 0, SL_E_FILE_UNSUPPORTED, "a GGUF file of version 0;"},
    {NULL, 4, 4, 0x03000000, SL_E_FILE_UNSUPPORTED, "a big-endian GGUF file"},
    {NULL, 8, 8, UINT64_MAX, SL_E_TOO_LARGE, "18446744073709551615 tensors; at most"},
    {NULL, 8, 8, 1000, SL_E_FILE_TRUNCATED, "1000 tensors cannot lie in"},
    {NULL, 8, 8, 4, SL_E_FILE_CORRUPT, "tensor 4 of 4"},
    {NULL, 16, 8, UINT64_MAX, SL_E_TOO_LARGE, "18446744073709551615 keys; at most 4096"},
    {NULL, 16, 8, 4096, SL_E_FILE_TRUNCATED, "4096 keys cannot lie in"},
    /* keys: the type and then the value follow the name */
    {"a.number", 0, 4, 13, SL_E_FILE_CORRUPT, "\"a.number\", at byte"},
    {"a.number", 0, 4, UINT32_MAX, SL_E_FILE_CORRUPT, "there is no value type 4294967295"},
    {"a.flag", 4, 1, 2, SL_E_FILE_CORRUPT, "a bool is 2"},
    {"general.architecture", 4, 8, (uint64_t)1 << 63, SL_E_FILE_TRUNCATED,
     "a string of 9223372036854775808 bytes, but the file has"},
    {"general.architecture", 4, 8, UINT64_MAX, SL_E_FILE_TRUNCATED, "18446744073709551615 bytes"},
    {"a.list", 4, 4, MAKE_ARRAY, SL_E_FILE_UNSUPPORTED, "an array of arrays"},
    {"a.list", 8, 8, UINT64_MAX, SL_E_FILE_TRUNCATED, "18446744073709551615 values of type string"},
    {"a.list", 8, 8, 40, SL_E_FILE_TRUNCATED, "40 values of type string cannot"},
    {"a.list", 16, 8, (uint64_t)1 << 62, SL_E_FILE_TRUNCATED, "a value is a string of"},
    {"a.numbers", 8, 8, (uint64_t)1 << 62, SL_E_FILE_TRUNCATED, "values of type i32 cannot lie"},
    {"a.numbers", 4, 4, MAKE_U64, SL_E_FILE_TRUNCATED, ""},
    /* tensors: rank, axes from the innermost, type, offset */
    {"\1\0\0\0\0\0\0\0w", 0, 4, 5, SL_E_FILE_CORRUPT, "tensor 1 of 3, \"w\""},
    {"\1\0\0\0\0\0\0\0w", 0, 4, UINT32_MAX, SL_E_FILE_CORRUPT, "4294967295 axes; at most 4"},
    {"\1\0\0\0\0\0\0\0w", 4, 8, UINT64_MAX, SL_E_FILE_CORRUPT, "more elements than there can be"},
    {"\1\0\0\0\0\0\0\0w", 4, 8, (uint64_t)1 << 62, SL_E_FILE_CORRUPT, "do not fit in any memory"},
    {"\1\0\0\0\0\0\0\0w", 4, 8, 1000, SL_E_FILE_TRUNCATED,
     "tensor \"w\" takes bytes 0 to 0 + 8000 of the data"},
    {"\1\0\0\0\0\0\0\0w", 4, 8, 5, SL_E_FILE_CORRUPT, "overlap at byte 32"},
    {"\1\0\0\0\0\0\0\0w", 20, 4, 4, SL_E_FILE_UNSUPPORTED, "its type is number 4, which is not"},
    {"\1\0\0\0\0\0\0\0w", 20, 4, 99, SL_E_FILE_UNSUPPORTED, "its type is number 99, which is not"},
    {"\1\0\0\0\0\0\0\0w", 20, 4, GGML_Q8_0, SL_E_FILE_CORRUPT,
     "its rows of 3 are not whole blocks of Q8_0, of 32 weights"},
    {"\1\0\0\0\0\0\0\0w", 24, 8, 4, SL_E_FILE_CORRUPT, "no multiple of the alignment, 32"},
    {"\1\0\0\0\0\0\0\0w", 24, 8, 1 << 20, SL_E_FILE_TRUNCATED, "takes bytes 1048576 to"},
    {"\1\0\0\0\0\0\0\0w", 24, 8, UINT64_MAX - 31, SL_E_FILE_TRUNCATED, "of the data, of which"},
    {"\1\0\0\0\0\0\0\0w", 24, 8, 32, SL_E_FILE_CORRUPT, "overlap at byte 32 of the data"},
    {"\1\0\0\0\0\0\0\0q", 20, 4, GGML_Q4_K, SL_E_FILE_CORRUPT, "its rows of 64 are not whole"},
};

static size_t length_of(const char *text)
{
    return text[0] >= 'a' ? strlen(text) : 8 + strlen(text + 8);
}

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct bytes b = {0};
        make_good(&b);
        size_t n = lies[i].text ? length_of(lies[i].text) : 0;
        size_t at = lies[i].text ? find_text(&b, 0, lies[i].text, n) + n : 0;
        for (unsigned k = 0; k < lies[i].bytes; k++)
            b.p[at + lies[i].at + k] = (unsigned char)(lies[i].value >> 8 * k);
        assert_fails(&b, b.n, lies[i].code, lies[i].part);
        bytes_done(&b);
    }
}

/* --- what comes twice, and names ---------------------------------------------------------------
 */

static void test_twice(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    struct bytes b = {0};
    good(&g);
    gguf_u32(&g, "a.flag", 1);
    gguf_end(&g, &b);
    assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "the key \"a.flag\" comes twice");
    gguf_done(&g);
    b.n = 0;
    good(&g);
    gguf_tensor(&g, "q", GGML_F32, 1, (size_t[]){1}, "1234", 4);
    gguf_end(&g, &b);
    assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "two tensors are named \"q\"");
    gguf_done(&g);
    bytes_done(&b);
}

static void assert_key_refused(const char *name, size_t n, const char *part)
{
    struct gguf_maker g = {0};
    struct bytes b = {0};
    gguf_u32(&g, "0123456789", 1);
    gguf_end(&g, &b);
    struct bytes c = {0};
    put(&c, b.p, 24);
    put_u64(&c, n);
    put(&c, name, n);
    put(&c, b.p + 42, b.n - 42);
    assert_fails(&c, c.n, SL_E_FILE_CORRUPT, part);
    bytes_done(&c);
    bytes_done(&b);
    gguf_done(&g);
}

static void test_names(void **state)
{
    (void)state;
    char longest[1025];
    memset(longest, 'k', sizeof longest);
    assert_key_refused("", 0, "its name has 0 bytes; 1 to 1024");
    assert_key_refused(longest, sizeof longest, "its name has 1025 bytes");
    assert_key_refused("a\0b", 3, "not UTF-8 without zero bytes");
    assert_key_refused("\xff", 1, "not UTF-8 without zero bytes");
    struct gguf_maker g = {0};
    struct bytes b = {0};
    gguf_tensor(&g, "\xc3", GGML_F32, 1, (size_t[]){1}, "1234", 4);
    gguf_end(&g, &b);
    assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "a tensor's name is not UTF-8");
    b.n = 0;
    gguf_done(&g);
    gguf_tensor(&g, "", GGML_F32, 1, (size_t[]){1}, "1234", 4);
    gguf_end(&g, &b);
    assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "its name has 0 bytes");
    bytes_done(&b);
    gguf_done(&g);
}

static void test_alignments_that_are_none(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 3, 48, 1U << 21, 1U << 31};
    struct bytes b = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gguf_maker g = {0};
        good(&g);
        gguf_u32(&g, "general.alignment", bad[i]);
        gguf_end(&g, &b);
        assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "a power of two up to 1048576 is possible");
        gguf_done(&g);
        b.n = 0;
    }
    struct gguf_maker g = {0};
    gguf_text(&g, "general.alignment", "32");
    gguf_end(&g, &b);
    assert_fails(&b, b.n, SL_E_FILE_CORRUPT, "general.alignment is no u32");
    gguf_done(&g);
    bytes_done(&b);
}

/* A file of nothing but a header is one. */
static void test_empty(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    struct bytes b = {0};
    struct sl_tensors *t = NULL;
    gguf_end(&g, &b);
    assert_int_equal(sl_tensors_open_memory(&t, b.p, b.n, "x.gguf", NULL), SL_OK);
    assert_int_equal(t->n, 0);
    assert_non_null(strstr(t->refused, "general.architecture is no text"));
    sl_tensors_close(t);
    bytes_done(&b);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct bytes b = {0};
    make_good(&b);
    unsigned char *copy = exact_copy(b.p, b.n);
    enum sl_code c = SL_E_NO_MEMORY;
    int64_t n = 0;
    for (; c; n++) {
        struct sl_tensors *t = NULL;
        struct sl_error err = {0};
        sl_mem_fail_after(n);
        c = sl_tensors_open_memory(&t, copy, b.n, "x.gguf", &err);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || c == SL_E_NO_MEMORY);
        assert_true((c == SL_OK) == (t != NULL));
        sl_tensors_close(t);
    }
    assert_true(n > 5);
    free(copy);
    bytes_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_file),
        cmocka_unit_test(test_other_alignments),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_alignments_that_are_none),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
