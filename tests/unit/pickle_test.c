/* pickle_test.c: what the pickle machine refuses, and its bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "tests/support/checkpoint.h"
#include "tests/support/floats.h"

/* assert_refused() for a pickle given as text. */
#define ASSERT_REFUSED(text, want, part)                                                           \
    do {                                                                                           \
        struct bytes b_ = {0};                                                                     \
        put(&b_, text, sizeof(text) - 1);                                                          \
        assert_refused(&b_, want, part);                                                           \
        bytes_done(&b_);                                                                           \
    } while (0)

/* --- what is refused ----------------------------------------------------------------------------
 */

/* os.system (posix.system in a pickle), eval and friends: named, and nothing runs. */
static void test_nothing_runs(void **state)
{
    (void)state;
    static const struct {
        const char *module, *name;
    } calls[] = {
        {"posix", "system"},
        {"os", "system"},
        {"subprocess", "check_output"},
        {"builtins", "eval"},
        {"__builtin__", "exec"},
        {"builtins", "getattr"},
        {"torch.storage", "_load_from_bytes"},
        {"torch.hub", "load"},
        {"torch", "load"},
        {"torch._utils", "_rebuild_tensor_v2 "},
        {"torch._utils", "_rebuild_tensor_v"},
        {"collections.OrderedDict", ""},
        {"collections", "OrderedDict.__init__"},
        {"", ""},
    };
    char path[128], argument[256], name[128];
    write_temp(path, "pwned", "", 0);
    unlink(path);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct bytes p = {0};
        put_text(&p, "\x80\2");
        pick_global(&p, calls[i].module, calls[i].name);
        snprintf(argument, sizeof argument, "touch %s", path);
        pick_text(&p, argument);
        put_text(&p, "\x85R.");
        snprintf(name, sizeof name, "wants Python's %s.%.30s", calls[i].module, calls[i].name);
        assert_refused(&p, SL_E_FILE_UNSUPPORTED, name);
        p.n = 0; /* the same by STACK_GLOBAL */
        pick_text(&p, calls[i].module);
        pick_text(&p, calls[i].name);
        put_byte(&p, 0x93);
        pick_text(&p, argument);
        put_text(&p, "\x85R.");
        assert_refused(&p, SL_E_FILE_UNSUPPORTED, name);
        bytes_done(&p);
        assert_int_not_equal(access(path, F_OK), 0);
    }
    remove_temp(path);
}

static const char allowed_opcodes[] = "\x80\x95.N\x88\x89KMJ\x8a\x8bG\x8cX\x8dUTCB\x8e\x96()\x85"
                                      "\x86\x87t]lae}dsu\x8f\x90"
                                      "01qr\x94hjc\x93RbQ";

/* Each of the 256 opcodes alone on an empty stack: those not in the list above are refused as such,
 * the others fail for want of values or bytes, or go on to the missing STOP. */
static void test_every_opcode(void **state)
{
    (void)state;
    size_t n_refused = 0;
    for (unsigned op = 0; op < 256; op++) {
        struct bytes p = {0}, b = {0};
        struct sl_tensors *t = NULL;
        struct sl_error err = {0};
        put_byte(&p, op);
        make_checkpoint(&b, &p);
        enum sl_code c = sl_tensors_open_memory(&t, b.p, b.n, "x.pth", &err);
        bool refused = strstr(err.message, "not among those that checkpoints need") != NULL;
        assert_int_equal(refused,
                         memchr(allowed_opcodes, (int)op, sizeof allowed_opcodes - 1) == NULL);
        assert_int_equal(refused, c == SL_E_FILE_UNSUPPORTED);
        if (!refused)
            assert_true(c == SL_E_FILE_CORRUPT || c == SL_E_FILE_TRUNCATED);
        n_refused += refused;
        bytes_done(&b);
        bytes_done(&p);
    }
    assert_int_equal(n_refused, 256 - (sizeof allowed_opcodes - 1));
}

static void test_broken_pickles(void **state)
{
    (void)state;
    ASSERT_REFUSED("", SL_E_FILE_TRUNCATED, "1 bytes are needed, 0 are left");
    ASSERT_REFUSED(".", SL_E_FILE_CORRUPT, "in STOP: 1 values are needed, 0 are on the stack");
    ASSERT_REFUSED("}", SL_E_FILE_TRUNCATED, "0 are left");
    ASSERT_REFUSED("\x80\6.", SL_E_FILE_UNSUPPORTED, "pickle protocol 6; at most 5");
    ASSERT_REFUSED("X\xff\xff\xff\xff", SL_E_FILE_TRUNCATED, "in BINUNICODE: 4294967295 bytes");
    ASSERT_REFUSED("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", SL_E_FILE_TRUNCATED,
                   "18446744073709551615");
    ASSERT_REFUSED("\x8b\xff\xff\xff\xff", SL_E_FILE_TRUNCATED, "in LONG4: 4294967295 bytes");
    ASSERT_REFUSED("cos", SL_E_FILE_TRUNCATED, "a line without an end");
    ASSERT_REFUSED("cos\nsys", SL_E_FILE_TRUNCATED, "a line without an end");
    ASSERT_REFUSED("h\5.", SL_E_FILE_CORRUPT, "memo place 5 is empty");
    ASSERT_REFUSED("j\xff\xff\xff\xff.", SL_E_FILE_CORRUPT, "memo place 4294967295 is empty");
    ASSERT_REFUSED("Nr\xff\xff\xff\xff.", SL_E_TOO_LARGE, "memo place 4294967295; at most");
    ASSERT_REFUSED("}Ns.", SL_E_FILE_CORRUPT, "in SETITEM: there is no dict");
    ASSERT_REFUSED("}(Nu.", SL_E_FILE_CORRUPT, "a key and no value");
    ASSERT_REFUSED("(Nd.", SL_E_FILE_CORRUPT, "a key and no value");
    ASSERT_REFUSED("](NNu.", SL_E_FILE_CORRUPT, "there is no dict");
    ASSERT_REFUSED("}Na.", SL_E_FILE_CORRUPT, "there is no list");
    ASSERT_REFUSED("u.", SL_E_FILE_CORRUPT, "there is no mark");
    ASSERT_REFUSED("(u.", SL_E_FILE_CORRUPT, "there is no dict");
    ASSERT_REFUSED("}(NNs.", SL_E_FILE_CORRUPT, "in SETITEM: there is no dict"); /* below a mark */
    ASSERT_REFUSED("N(\x85.", SL_E_FILE_CORRUPT, "in TUPLE1: 1 values are needed, 0");
    ASSERT_REFUSED("NN\x87.", SL_E_FILE_CORRUPT, "3 values are needed, 2");
    ASSERT_REFUSED("(0.", SL_E_FILE_CORRUPT, "in STOP");
    ASSERT_REFUSED("0.", SL_E_FILE_CORRUPT, "in POP");
    ASSERT_REFUSED("1.", SL_E_FILE_CORRUPT, "there is no mark");
    ASSERT_REFUSED("N)R.", SL_E_FILE_CORRUPT, "a call of something that is no function");
    ASSERT_REFUSED("ctorch\nSize\nNR.", SL_E_FILE_CORRUPT, "a call of something");
    ASSERT_REFUSED("ctorch\nTensor\n)R.", SL_E_FILE_UNSUPPORTED, "torch.Tensor is called");
    ASSERT_REFUSED("ctorch\nfloat32\n)R.", SL_E_FILE_UNSUPPORTED, "torch.float32 is called");
    ASSERT_REFUSED("N}b.", SL_E_FILE_UNSUPPORTED, "attributes for an object");
    ASSERT_REFUSED("NN\x93.", SL_E_FILE_CORRUPT, "a Python name that is not a string");
    ASSERT_REFUSED("NQ.", SL_E_FILE_CORRUPT, "not a tuple of five or six");
    ASSERT_REFUSED("(NNNNNtQ.", SL_E_FILE_UNSUPPORTED, "no storage");
    ASSERT_REFUSED("(U\6moduleNNNNtQ.", SL_E_FILE_UNSUPPORTED, "a whole pickled module");
    ASSERT_REFUSED("(U\7storageNNNNtQ.", SL_E_FILE_CORRUPT, "its type is no storage type");
    ASSERT_REFUSED("(U\7storagectorch\nfloat32\nNNNtQ.", SL_E_FILE_CORRUPT, "no storage type");
    ASSERT_REFUSED("(U\7storagectorch\nFloatStorage\nNNNtQ.", SL_E_FILE_CORRUPT, "no short string");
    ASSERT_REFUSED("(U\7storagectorch\nFloatStorage\nU\1"
                   "0NNtQ.",
                   SL_E_FILE_CORRUPT, "its length is not an integer");
    ASSERT_REFUSED("(U\7storagectorch\nFloatStorage\nU\1"
                   "1NK\1tQ.",
                   SL_E_FILE_CORRUPT, "record data/1 is missing");
    ASSERT_REFUSED("ctorch._utils\n_rebuild_tensor_v2\n)R.", SL_E_FILE_CORRUPT, "arguments");
    ASSERT_REFUSED("ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.", SL_E_FILE_CORRUPT, "arguments");
    ASSERT_REFUSED("ctorch._utils\n_rebuild_tensor_v3\n)R.", SL_E_FILE_CORRUPT, "arguments");
    ASSERT_REFUSED("ctorch._utils\n_rebuild_parameter\n(NNNtR.", SL_E_FILE_CORRUPT, "arguments");
    ASSERT_REFUSED("ctorch._tensor\n_rebuild_from_type_v2\n(NN)tR.", SL_E_FILE_CORRUPT,
                   "arguments");
    ASSERT_REFUSED("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nSize\nN)}tR.",
                   SL_E_FILE_CORRUPT, "arguments");
    /* a function whose arguments name itself: no recursion */
    ASSERT_REFUSED("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._tensor\n_rebuild_from_type_v2\n"
                   "N)}tR.",
                   SL_E_FILE_CORRUPT, "arguments");
    ASSERT_REFUSED("ccollections\nOrderedDict\nN\x85R.", SL_E_FILE_CORRUPT, "arguments");
    ASSERT_REFUSED("ccollections\nOrderedDict\n]N\x61\x85R.", SL_E_FILE_CORRUPT, "arguments");
}

/* Conjugated and negated views have the bits of other values than they stand for. */
static void test_metadata_of_a_tensor(void **state)
{
    (void)state;
    for (int negated = 0; negated < 2; negated++) {
        struct bytes p = {0};
        unsigned char *copy;
        put_text(&p, "}");
        pick_text(&p, "w");
        pick_global(&p, "torch._utils", "_rebuild_tensor_v2");
        put_text(&p, "(");
        pick_storage(&p, "FloatStorage", "0", 16, false);
        put_text(&p, "K\1K\2\x85K\1\x85\x89N}");
        if (negated) {
            pick_text(&p, "neg");
            put_text(&p, "\x88s");
        }
        put_text(&p, "tRs.");
        if (negated) {
            assert_refused(&p, SL_E_FILE_UNSUPPORTED, "a conjugated or negated view");
        } else {
            sl_tensors_close(open_pickle(&p, &copy));
            free(copy);
        }
        bytes_done(&p);
    }
}

static void test_a_dtype_that_slate_lacks(void **state)
{
    (void)state;
    struct bytes p = {0};
    pick_global(&p, "torch._utils", "_rebuild_tensor_v3");
    put_text(&p, "(");
    pick_storage(&p, "UntypedStorage", "0", 64, false);
    put_text(&p, "K");
    put_byte(&p, 0);
    put_text(&p, "K\1\x85K\1\x85\x89}");
    pick_global(&p, "torch", "float8_e4m3fn");
    put_text(&p, "tR.");
    assert_refused(&p, SL_E_FILE_UNSUPPORTED, "a tensor of float8_e4m3fn");
    bytes_done(&p);
    ASSERT_REFUSED("ctorch\nComplexFloatStorage\n.", SL_E_FILE_UNSUPPORTED,
                   "torch.ComplexFloatStorage");
}

/* --- bounds -------------------------------------------------------------------------------------
 */

static void test_nesting(void **state)
{
    (void)state;
    struct bytes p = {0};
    for (int i = 0; i < 257; i++)
        put_byte(&p, '(');
    assert_refused(&p, SL_E_TOO_LARGE, "nested more than 256 deep");
    p.n = 0;
    for (int depth = 32; depth <= 33; depth++) { /* lists in lists: 32 levels below the root */
        unsigned char *copy;
        p.n = 0;
        for (int i = 0; i <= depth; i++)
            put_byte(&p, ']');
        for (int i = 0; i < depth; i++)
            put_byte(&p, 'a');
        put_byte(&p, '.');
        if (depth == 33)
            assert_refused(&p, SL_E_TOO_LARGE, "nested more than 32 deep");
        else {
            sl_tensors_close(open_pickle(&p, &copy));
            free(copy);
        }
    }
    bytes_done(&p);
    ASSERT_REFUSED("}q\1X\1\0\0\0ah\1s.", SL_E_TOO_LARGE, "nested more than 32 deep"); /* a cycle */
    ASSERT_REFUSED("]q\1h\1a.", SL_E_TOO_LARGE, "nested more than 32 deep");
}

/* Lists of the same list twice: 2^31 ways to the leaves in 200 bytes. */
static void test_shared_parts_explode(void **state)
{
    (void)state;
    struct bytes p = {0};
    put_text(&p, "]");
    for (unsigned i = 1; i <= 31; i++) {
        put_byte(&p, 'q');
        put_byte(&p, i);
        put_text(&p, "0](h");
        put_byte(&p, i);
        put_byte(&p, 'h');
        put_byte(&p, i);
        put_byte(&p, 'e');
    }
    put_byte(&p, '.');
    assert_refused(&p, SL_E_TOO_LARGE, "more than 16777216 values");
    bytes_done(&p);
}

/* The same with a tensor at the end: no more tensors than the file's bytes allow. */
static void test_shared_tensors_explode(void **state)
{
    (void)state;
    struct bytes p = {0};
    pick_float(&p, "0", 16, 0, 1, &(int64_t){1}, &(int64_t){1});
    for (unsigned i = 1; i <= 24; i++) {
        put_byte(&p, 'q');
        put_byte(&p, i);
        put_text(&p, "0](h");
        put_byte(&p, i);
        put_byte(&p, 'h');
        put_byte(&p, i);
        put_byte(&p, 'e');
    }
    put_byte(&p, '.');
    assert_refused(&p, SL_E_TOO_LARGE, "tensors, the limit for a file of");
    bytes_done(&p);
}

static void test_long_names(void **state)
{
    (void)state;
    static const int64_t one = 1;
    for (int over = 0; over < 2; over++) { /* 511 + '.' + 512 bytes are allowed */
        struct bytes p = {0}, a = {0}, c = {0};
        unsigned char *copy;
        for (int i = 0; i < 511; i++)
            put_byte(&a, 'a');
        for (int i = 0; i < 512 + over; i++)
            put_byte(&c, 'c');
        put_byte(&a, 0);
        put_byte(&c, 0);
        put_text(&p, "}");
        pick_text(&p, (const char *)a.p);
        put_text(&p, "}");
        pick_text(&p, (const char *)c.p);
        pick_float(&p, "0", 16, 0, 1, &one, &one);
        put_text(&p, "ss.");
        if (over) {
            assert_refused(&p, SL_E_TOO_LARGE, "longer than 1024 bytes");
        } else {
            struct sl_tensors *t = open_pickle(&p, &copy);
            assert_int_equal(strlen(t->v[0].name), 1024);
            sl_tensors_close(t);
            free(copy);
        }
        bytes_done(&a);
        bytes_done(&c);
        bytes_done(&p);
    }
}

/* Many small values: the arena's limit comes before the machine's memory. */
static void test_memory_is_bounded(void **state)
{
    (void)state;
    struct bytes p = {0};
    put_text(&p, "N");
    for (int i = 0; i < 9 << 20; i++) /* values of 32 bytes */
        put_text(&p, "N0");
    assert_refused(&p, SL_E_TOO_LARGE, "take more than 268435456 bytes");
    p.n = 0;
    for (int i = 0; i < (4 << 20) + 1; i++)
        put_text(&p, "N");
    assert_refused(&p, SL_E_TOO_LARGE, "more than 4194304 values on the stack");
    p.n = 0;
    put_text(&p, "K\1B");
    put_u32(&p, 64 << 20);
    for (int i = 0; i < 64 << 20; i++)
        put_byte(&p, 0);
    put_text(&p, "0.");
    assert_refused(&p, SL_E_TOO_LARGE, "longer than 67108864 bytes");
    bytes_done(&p);
}

/* The n-th allocation fails, for every n until nothing fails any more. */
static void test_no_memory(void **state)
{
    (void)state;
    struct bytes p = {0}, b = {0};
    for (int i = 0; i < 100; i++)
        put_text(&p, "N"); /* the stack grows … */
    for (int i = 0; i < 100; i++)
        put_text(&p, "0");
    put_text(&p, "Nq\xfe"
                 "0"); /* … and the memo */
    pick_good(&p);
    make_checkpoint(&b, &p);
    enum sl_code c = SL_E_NO_MEMORY;
    int n = 0;
    for (; c; n++) {
        struct sl_tensors *t = NULL;
        struct sl_error err;
        sl_mem_fail_after(n);
        c = sl_tensors_open_memory(&t, b.p, b.n, "x.pth", &err);
        sl_mem_fail_after(-1);
        if (c)
            assert_int_equal(c, SL_E_NO_MEMORY);
        sl_tensors_close(t);
    }
    assert_true(n > 8);
    bytes_done(&p);
    bytes_done(&b);
}

/* Random damage to the pickle: whatever it does, the reader answers. */
static void test_damage(void **state)
{
    (void)state;
    struct bytes p = {0}, b = {0};
    pick_good(&p);
    make_checkpoint(&b, &p);
    size_t from = find_text(&b, 0, "\x80\2}", 3), n_opened = 0;
    uint64_t seed = 2;
    for (int round = 0; round < 20000; round++) {
        unsigned char *copy = exact_copy(b.p, b.n), values[4096];
        for (uint64_t k = 1 + next_random(&seed) % 3; k; k--)
            copy[from + next_random(&seed) % p.n] = (unsigned char)next_random(&seed);
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
    assert_true(n_opened > 0);
    bytes_done(&p);
    bytes_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_runs),
        cmocka_unit_test(test_every_opcode),
        cmocka_unit_test(test_broken_pickles),
        cmocka_unit_test(test_metadata_of_a_tensor),
        cmocka_unit_test(test_a_dtype_that_slate_lacks),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_shared_parts_explode),
        cmocka_unit_test(test_shared_tensors_explode),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests_name("pickle", tests, NULL, NULL);
}
