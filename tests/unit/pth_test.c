/* pth_test.c: the reader for PyTorch's checkpoints: which tensors come out, under which names. What
 * a pickle may not do is in pickle_test.c, the containers are in pth_zip_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/checkpoint.h"
#include "tests/support/floats.h"

/* --- tensors ------------------------------------------------------------------------------------
 */

static void test_a_view(void **state)
{
    (void)state;
    struct bytes p = {0};
    unsigned char *copy, got[24], want[24];
    pick_good(&p);
    struct sl_tensors *t = open_pickle(&p, &copy);
    assert_string_equal(t->container, "pth (zip)");
    assert_int_equal(t->n, 1);
    const struct sl_tensor *w = sl_tensors_find(t, "w");
    assert_non_null(w);
    assert_false(w->contiguous);
    assert_int_equal(w->stride[0], 1);
    assert_int_equal(w->stride[1], 4);
    sl_tensor_copy(w, got);
    for (unsigned i = 0; i < 24; i++) { /* byte k of element [row, column] */
        unsigned row = i / 12, column = i / 4 % 3, k = i % 4;
        want[i] = (unsigned char)((1 + row + column * 4) * 4 + k);
    }
    assert_memory_equal(got, want, sizeof want);
    sl_tensors_close(t);
    free(copy);
    bytes_done(&p);
}

/* sl_tensor_copy against a plain loop over all indices, for random ranks, shapes and strides. */
static void test_copies_of_random_views(void **state)
{
    (void)state;
    uint64_t seed = 3;
    static const enum sl_dtype types[] = {SL_DTYPE_U8, SL_DTYPE_BF16, SL_DTYPE_F32, SL_DTYPE_I64};
    unsigned char data[4096], got[4096], want[4096];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)next_random(&seed);
    for (int round = 0; round < 2000; round++) {
        struct sl_tensor t = {.dtype = types[next_random(&seed) % 4], .n_elements = 1};
        size_t size = sl_dtype_size(t.dtype), extent = 0;
        t.rank = (unsigned)(1 + next_random(&seed) % 4);
        for (unsigned i = 0; i < t.rank; i++) {
            t.shape[i] = 1 + next_random(&seed) % 4;
            t.stride[i] = (ptrdiff_t)(next_random(&seed) % 30);
            t.n_elements *= t.shape[i];
            extent += (t.shape[i] - 1) * (size_t)t.stride[i];
        }
        assert_true((extent + 1) * size < sizeof data);
        t.data = data + 1; /* unaligned */
        for (size_t e = 0; e < t.n_elements; e++) {
            size_t rest = e, at = 0;
            for (unsigned i = t.rank; i-- > 0; rest /= t.shape[i])
                at += rest % t.shape[i] * (size_t)t.stride[i];
            memcpy(want + e * size, t.data + at * size, size);
        }
        sl_tensor_copy(&t, got);
        assert_memory_equal(got, want, t.n_elements * size);
    }
}

static void test_views_beyond_their_storage(void **state)
{
    (void)state;
    static const struct {
        int64_t n, offset, shape[2], stride[2];
        enum sl_code code;
        const char *part;
    } cases[] = {
        {16, 0, {4, 4}, {4, 1}, SL_OK, ""},
        {16, 1, {4, 4}, {4, 1}, SL_E_FILE_CORRUPT, "beyond its storage of 16"},
        {16, 15, {1, 1}, {99, 99}, SL_OK, ""},
        {16, 16, {1, 1}, {1, 1}, SL_E_FILE_CORRUPT, "beyond"},
        {16, 16, {0, 9}, {9, 1}, SL_OK, ""},
        {16, 99, {0, 9}, {9, 1}, SL_OK, ""},
        {16, 0, {2, 2}, {14, 1}, SL_OK, ""},
        {16, 0, {2, 2}, {15, 1}, SL_E_FILE_CORRUPT, "beyond"},
        {16, INT64_MAX, {2, 2}, {1, 1}, SL_E_FILE_CORRUPT, "beyond"},
        {16, 0, {2, 2}, {INT64_MAX, 1}, SL_E_FILE_CORRUPT, "beyond"},
        {16, 0, {3, 2}, {INT64_MAX, 1}, SL_E_FILE_CORRUPT, "beyond"},
        {16, 0, {INT64_MAX, INT64_MAX}, {1, 1}, SL_E_FILE_CORRUPT, "beyond"},
        {16, 0, {INT64_MAX, INT64_MAX}, {0, 0}, SL_E_FILE_CORRUPT, "overflows"},
        {16, 0, {INT64_MAX / 4, 1}, {0, 0}, SL_E_TOO_LARGE, "the limit for a file"},
        {16, 0, {1 << 20, 1}, {0, 0}, SL_OK, ""},
        {16, -1, {1, 1}, {1, 1}, SL_E_FILE_CORRUPT, "arguments"},
        {16, 0, {-1, 1}, {1, 1}, SL_E_FILE_CORRUPT, "not an integer"},
        {16, 4, {2, 1}, {-1, 1}, SL_E_FILE_CORRUPT, "not an integer"},
        {17,
         0,
         {1, 1},
         {1, 1},
         SL_E_FILE_CORRUPT,
         "17 elements of 4 bytes does not fit its record"},
        {INT64_MAX, 0, {1, 1}, {1, 1}, SL_E_FILE_CORRUPT, "does not fit its record"},
        {-1, 0, {1, 1}, {1, 1}, SL_E_FILE_CORRUPT, "its length is not an integer"},
        {0, 0, {1, 1}, {1, 1}, SL_E_FILE_CORRUPT, "beyond its storage of 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes p = {0};
        struct sl_tensors *t;
        unsigned char *copy;
        put_text(&p, "}");
        pick_text(&p, "w");
        pick_float(&p, "0", cases[i].n, cases[i].offset, 2, cases[i].shape, cases[i].stride);
        put_text(&p, "s.");
        if (cases[i].code) {
            assert_refused(&p, cases[i].code, cases[i].part);
        } else {
            t = open_pickle(&p, &copy);
            /* the stride of an axis of one element says nothing */
            assert_int_equal(t->v[0].contiguous, cases[i].stride[0] == 4 || cases[i].shape[0] < 2);
            sl_tensors_close(t);
            free(copy);
        }
        bytes_done(&p);
    }
}

static void test_ranks(void **state)
{
    (void)state;
    static const int64_t ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (unsigned rank = 0; rank <= 9; rank++) {
        struct bytes p = {0};
        unsigned char *copy;
        put_text(&p, "}");
        pick_text(&p, "w");
        pick_float(&p, "0", 16, 2, rank, ones, ones);
        put_text(&p, "s.");
        if (rank == 9) {
            assert_refused(&p, SL_E_TOO_LARGE, "9 dimensions; at most 8");
        } else {
            struct sl_tensors *t = open_pickle(&p, &copy);
            assert_int_equal(t->v[0].rank, rank);
            assert_int_equal(t->v[0].data[0], 8);
            sl_tensors_close(t);
            free(copy);
        }
        bytes_done(&p);
    }
}

static void test_every_element_type(void **state)
{
    (void)state;
    static const struct {
        const char *storage;
        enum sl_dtype dtype;
    } types[] = {{"DoubleStorage", SL_DTYPE_F64}, {"FloatStorage", SL_DTYPE_F32},
                 {"HalfStorage", SL_DTYPE_F16},   {"BFloat16Storage", SL_DTYPE_BF16},
                 {"LongStorage", SL_DTYPE_I64},   {"IntStorage", SL_DTYPE_I32},
                 {"ShortStorage", SL_DTYPE_I16},  {"CharStorage", SL_DTYPE_I8},
                 {"ByteStorage", SL_DTYPE_U8},    {"BoolStorage", SL_DTYPE_BOOL}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct bytes p = {0};
        unsigned char *copy;
        int64_t n = 64 / (int64_t)sl_dtype_size(types[i].dtype);
        put_text(&p, "}");
        pick_text(&p, "w");
        pick_tensor(&p, types[i].storage, "0", n, 1, 1, &(int64_t){3}, &(int64_t){1}, false);
        put_text(&p, "s.");
        struct sl_tensors *t = open_pickle(&p, &copy);
        assert_int_equal(t->v[0].dtype, types[i].dtype);
        assert_int_equal(t->v[0].data[0], sl_dtype_size(types[i].dtype));
        sl_tensors_close(t);
        free(copy);
        bytes_done(&p);
    }
}

/* --- what else a checkpoint has -----------------------------------------------------------------
 */

/* OrderedDict with attributes, a Parameter, a tensor with attributes, one of a newer torch (an
 * untyped storage and a dtype), nested dicts and lists, and values that are no tensors. */
static void test_names_and_other_values(void **state)
{
    (void)state;
    static const int64_t one = 1;
    struct bytes p = {0};
    unsigned char *copy;
    put_text(&p, "\x80\2");
    pick_global(&p, "collections", "OrderedDict");
    put_text(&p, ")R(");
    pick_text(&p, "parameter");
    pick_global(&p, "torch._utils", "_rebuild_parameter");
    put_text(&p, "(");
    pick_float(&p, "0", 16, 3, 1, &one, &one);
    put_text(&p, "\x88");
    pick_global(&p, "collections", "OrderedDict");
    put_text(&p, ")RtR");
    pick_text(&p, "typed");
    pick_global(&p, "torch._tensor", "_rebuild_from_type_v2");
    put_text(&p, "(");
    pick_global(&p, "torch._utils", "_rebuild_tensor_v3");
    pick_global(&p, "torch", "Tensor");
    put_text(&p, "(");
    pick_storage(&p, "UntypedStorage", "0", 64, false);
    pick_int(&p, 5);
    put_text(&p, "K\2\x85K\1\x85\x89}");
    pick_global(&p, "torch", "bfloat16");
    put_text(&p, "t}tR}b");
    pick_text(&p, "deep");
    put_text(&p, "}(");
    put_text(&p, "K\7]");
    pick_float(&p, "0", 16, 2, 1, &one, &one);
    put_text(&p, "a");
    pick_text(&p, "text");
    pick_text(&p, "value");
    put_text(&p, "u");
    pick_text(&p, "epoch");
    pick_int(&p, 17);
    pick_text(&p, "rate");
    put_text(&p, "G\x3f\xf0");
    put(&p, "\0\0\0\0\0\0", 6);
    pick_text(&p, "size");
    pick_global(&p, "torch", "Size");
    put_text(&p, "K\1\x85\x85R");
    put_text(&p, "K\1N"); /* a key that is no name, over None */
    put_text(&p, "u}");
    pick_text(&p, "_metadata");
    put_text(&p, "}sb.");
    struct sl_tensors *t = open_pickle(&p, &copy);
    static const struct {
        const char *name;
        enum sl_dtype dtype;
        size_t n, first;
    } want[] = {{"deep.7.0", SL_DTYPE_F32, 1, 8},
                {"parameter", SL_DTYPE_F32, 1, 12},
                {"typed", SL_DTYPE_BF16, 2, 10}};
    assert_int_equal(t->n, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(t->v[i].name, want[i].name);
        assert_int_equal(t->v[i].dtype, want[i].dtype);
        assert_int_equal(t->v[i].n_elements, want[i].n);
        assert_int_equal(t->v[i].data[0], want[i].first);
    }
    sl_tensors_close(t);
    free(copy);
    bytes_done(&p);
}

/* A view of an untyped storage begins and ends at bytes, what is seen of it at elements. */
static void test_views_of_an_untyped_storage(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        int64_t at, n, offset, first;
    } cases[] = {{"float32", 8, 32, 0, 8},   {"float32", 8, 32, 7, 36}, {"float32", 48, 16, 3, 60},
                 {"float32", 60, 4, 0, 60},  {"float32", 60, 4, 1, -1}, {"float32", 60, 3, 0, -1},
                 {"float64", 40, 24, 2, 56}, {"float64", 40, 24, 3, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes p = {0};
        unsigned char *copy;
        put_text(&p, "\x80\2}");
        pick_text(&p, "w");
        pick_global(&p, "torch._utils", "_rebuild_tensor_v3");
        put_text(&p, "(");
        pick_storage_view(&p, "UntypedStorage", "0", 64, cases[i].at, cases[i].n);
        pick_int(&p, cases[i].offset);
        put_text(&p, "K\1\x85K\1\x85\x89}");
        pick_global(&p, "torch", cases[i].dtype);
        put_text(&p, "tRs.");
        if (cases[i].first < 0) {
            assert_refused(&p, SL_E_FILE_CORRUPT, "beyond its storage");
            bytes_done(&p);
            continue;
        }
        struct sl_tensors *t = open_pickle(&p, &copy);
        assert_int_equal(t->n, 1);
        assert_int_equal(t->v[0].data[0], cases[i].first);
        sl_tensors_close(t);
        free(copy);
        bytes_done(&p);
    }
}

/* Protocol 4: frames, short strings, MEMOIZE, STACK_GLOBAL. {"t": tensor, "same": the same} */
static void test_protocol_4(void **state)
{
    (void)state;
    struct bytes p = {0};
    unsigned char *copy;
    put_text(&p, "\x80\4\x95");
    size_t frame_at = p.n;
    put_u64(&p, 0);
    put_text(&p, "}\x94(\x8c\1t\x94\x8c\14torch._utils\x94\x8c\22_rebuild_tensor_v2\x94\x93\x94");
    put_text(&p, "((\x8c\7storage\x94\x8c\5torch\x94\x8c\14FloatStorage\x94\x93\x94");
    put_text(&p, "\x8c\1"
                 "0\x94\x8c\3cpu\x94K\20t\x94Q");
    put_text(&p, "K\3K\2\x85\x94K\4\x85\x94\x89}t\x94R\x94");
    put_text(&p, "\x8c\4same\x94h\17");
    put_text(&p, "u.");
    set_u64(&p, frame_at, p.n - frame_at - 8);
    struct sl_tensors *t = open_pickle(&p, &copy);
    assert_int_equal(t->n, 2);
    assert_string_equal(t->v[0].name, "same");
    assert_string_equal(t->v[1].name, "t");
    assert_ptr_equal(t->v[0].data, t->v[1].data);
    assert_int_equal(t->v[1].data[0], 12);
    assert_int_equal(t->v[1].stride[0], 4);
    sl_tensors_close(t);
    free(copy);
    set_u64(&p, frame_at, p.n - frame_at - 7);
    assert_refused(&p, SL_E_FILE_TRUNCATED, "a frame of");
    bytes_done(&p);
}

static void test_roots_and_keys(void **state)
{
    (void)state;
    static const int64_t one = 1;
    struct bytes p = {0};
    unsigned char *copy;
    pick_float(&p, "0", 16, 0, 1, &one, &one); /* a tensor alone */
    put_text(&p, ".");
    assert_refused(&p, SL_E_FILE_UNSUPPORTED, "one tensor without a name");
    p.n = 0;
    put_text(&p, "](");
    pick_float(&p, "0", 16, 0, 1, &one, &one);
    put_text(&p, "Ne.");
    struct sl_tensors *t = open_pickle(&p, &copy); /* a list */
    assert_int_equal(t->n, 1);
    assert_string_equal(t->v[0].name, "0");
    sl_tensors_close(t);
    free(copy);
    p.n = 0;
    put_text(&p, "}("); /* a key that is no name, over a tensor */
    put_text(&p, ")");
    pick_float(&p, "0", 16, 0, 1, &one, &one);
    put_text(&p, "u.");
    assert_refused(&p, SL_E_FILE_UNSUPPORTED, "neither a string nor an integer");
    p.n = 0;
    put_text(&p, "}("); /* two ways to one name */
    pick_text(&p, "a.b");
    pick_float(&p, "0", 16, 0, 1, &one, &one);
    pick_text(&p, "a");
    put_text(&p, "}");
    pick_text(&p, "b");
    pick_float(&p, "0", 16, 0, 1, &one, &one);
    put_text(&p, "su.");
    assert_refused(&p, SL_E_FILE_CORRUPT, "two tensors are named \"a.b\"");
    p.n = 0;
    put_text(&p, "}X\2"); /* names that are none */
    put(&p, "\0\0\0a\xff", 5);
    pick_float(&p, "0", 16, 0, 1, &one, &one);
    put_text(&p, "s.");
    assert_refused(&p, SL_E_FILE_CORRUPT, "not UTF-8");
    p.p[find_text(&p, 0, "a\xff", 2) + 1] = '\0';
    assert_refused(&p, SL_E_FILE_CORRUPT, "without zero bytes");
    p.n = 0;
    put_text(&p, "K\1.");
    assert_refused(&p, SL_E_FILE_UNSUPPORTED, "one plain value");
    bytes_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_view),
        cmocka_unit_test(test_copies_of_random_views),
        cmocka_unit_test(test_views_beyond_their_storage),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_every_element_type),
        cmocka_unit_test(test_names_and_other_values),
        cmocka_unit_test(test_views_of_an_untyped_storage),
        cmocka_unit_test(test_protocol_4),
        cmocka_unit_test(test_roots_and_keys),
    };
    return cmocka_run_group_tests_name("pth", tests, NULL, NULL);
}
