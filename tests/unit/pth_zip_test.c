/* pth_zip_test.c: the containers of PyTorch's checkpoints, zip and old, on files built here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/checkpoint.h"
#include "tests/support/floats.h"

static void assert_fails(const void *p, size_t n, enum sl_code want, const char *part)
{
    struct sl_tensors *t = NULL;
    struct sl_error err = {0};
    unsigned char *copy = exact_copy(p, n);
    enum sl_code c = sl_tensors_open_memory(&t, copy, n, "x.pth", &err);
    if (c != want || !strstr(err.message, part))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", sl_code_name(want), part, sl_code_name(c),
                 err.message);
    assert_null(t);
    free(copy);
}

/* The file holds "w" as pick_good() has it: checks its first element, 1.0f's place in data/0. */
static void assert_opens(const struct bytes *b, const char *container)
{
    struct sl_tensors *t = NULL;
    struct sl_error err = {0};
    unsigned char *copy = exact_copy(b->p, b->n), got[24];
    if (sl_tensors_open_memory(&t, copy, b->n, "x.pth", &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_string_equal(t->container, container);
    assert_int_equal(t->n, 1);
    assert_string_equal(t->v[0].name, "w");
    sl_tensor_copy(&t->v[0], got);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(got[i], 4 + i);
        assert_int_equal(got[20 + i], 40 + i); /* element [1, 2] is number 1 + 1 + 2 * 4 */
    }
    sl_tensors_close(t);
    free(copy);
}

/* --- zip ----------------------------------------------------------------------------------------
 */

static const unsigned char data64[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

static void fill_good(struct zip_maker *z)
{
    struct bytes p = {0};
    pick_good(&p);
    zip_add(z, "m/data.pkl", p.p, p.n);
    zip_add(z, "m/data/0", data64, sizeof data64);
    bytes_done(&p);
}

static void test_all_kinds_of_zip(void **state)
{
    (void)state;
    static const size_t aligns[] = {0, 64, 4096};
    for (int kind = 0; kind < 12; kind++) {
        struct zip_maker z = {
            .descriptors = kind & 1, .zip64 = kind & 2, .align = aligns[kind / 4]};
        fill_good(&z);
        zip_add(&z, "m/byteorder", "little", 6);
        zip_add(&z, "m/version", "3\n", 2);
        zip_add(&z, "m/.data/serialization_id", "17", 2);
        zip_add(&z, "other", "", 0);
        zip_end(&z);
        assert_opens(&z.file, "pth (zip)");
        zip_done(&z);
    }
}

static void test_a_comment_at_the_end(void **state)
{
    (void)state;
    struct zip_maker z = {0};
    fill_good(&z);
    zip_end(&z);
    set_u16(&z.file, z.file.n - 2, 4);
    put_text(&z.file, "PK\5\6"); /* a comment that looks like another end */
    assert_opens(&z.file, "pth (zip)");
    set_u16(&z.file, z.file.n - 6, 5);
    assert_fails(z.file.p, z.file.n, SL_E_FILE_TRUNCATED, "directory is missing");
    zip_done(&z);
}

static void test_zip_cut_at_every_byte(void **state)
{
    (void)state;
    for (int zip64 = 0; zip64 < 2; zip64++) {
        struct zip_maker z = {.zip64 = zip64, .descriptors = true};
        fill_good(&z);
        zip_end(&z);
        for (size_t n = 1; n < z.file.n; n++)
            assert_fails(z.file.p, n, SL_E_FILE_TRUNCATED, "x.pth: ");
        zip_done(&z);
    }
}

/* One field changed at a time. `at` counts from the named place. */
enum place { LOCAL, CENTRAL, END, END64, LOCATOR, EXTRA };
static const struct {
    bool zip64;
    enum place from;
    size_t at;
    unsigned width;
    uint64_t value;
    enum sl_code code;
    const char *part;
} lies[] = {
    {0, END, 10, 2, 3, SL_E_FILE_CORRUPT, "of 110 bytes cannot hold its 3 records"},
    {0, END, 10, 2, 1, SL_E_FILE_CORRUPT, "has 54 bytes more than its 1 records take"},
    {0, END, 10, 2, 65534, SL_E_FILE_CORRUPT, "cannot hold its 65534 records"},
    {0, END, 10, 2, 0, SL_E_FILE_CORRUPT, "has 110 bytes more than its 0 records take"},
    {0, END, 12, 4, 0xfffffffe, SL_E_FILE_CORRUPT, "does not fit"},
    {0, END, 16, 4, 0xfffffffe, SL_E_FILE_CORRUPT, "does not fit"},
    {0, END, 16, 4, 0, SL_E_FILE_CORRUPT, "without a directory entry at byte 0"},
    {0, END, 12, 4, 46, SL_E_FILE_CORRUPT, "cannot hold its 2 records"},
    {0, CENTRAL, 0, 4, 0, SL_E_FILE_CORRUPT, "without a directory entry"},
    {0, CENTRAL, 8, 2, 1, SL_E_FILE_UNSUPPORTED, "\"m/data.pkl\" is encrypted"},
    {0, CENTRAL, 10, 2, 8, SL_E_FILE_UNSUPPORTED, "\"m/data.pkl\" is compressed (method 8)"},
    {0, CENTRAL, 20, 4, 5, SL_E_FILE_CORRUPT, "has two sizes: 5 and"},
    {0, CENTRAL, 24, 4, 5, SL_E_FILE_CORRUPT, "has two sizes"},
    {0, CENTRAL, 28, 2, 0xffff, SL_E_FILE_CORRUPT, "longer than the directory"},
    {0, CENTRAL, 30, 2, 0xffff, SL_E_FILE_CORRUPT, "longer than the directory"},
    {0, CENTRAL, 32, 2, 0xffff, SL_E_FILE_CORRUPT, "longer than the directory"},
    {0, CENTRAL, 20, 4, 0xfffffff0, SL_E_FILE_CORRUPT, "where the data ends"},
    {0, CENTRAL, 42, 4, 0xfffffff0, SL_E_FILE_CORRUPT, "where the data ends"},
    {0, CENTRAL, 42, 4, 1, SL_E_FILE_CORRUPT, "has no header at byte 1"},
    {0, LOCAL, 26, 2, 3, SL_E_FILE_CORRUPT, "another name in its header"},
    {0, LOCAL, 26, 2, 0xffff, SL_E_FILE_CORRUPT, "reaches into the directory"},
    {0, LOCAL, 28, 2, 0xffff, SL_E_FILE_CORRUPT, "reaches into the directory"},
    {0, LOCAL, 18, 4, 7, SL_E_FILE_CORRUPT, "and 7 in its header"},
    {0, LOCAL, 34, 1, 'D', SL_E_FILE_CORRUPT, "another name in its header"},
    {1, END64, 0, 4, 0, SL_E_FILE_CORRUPT, "zip64 end record is not at byte"},
    {1, END64, 32, 8, UINT64_MAX, SL_E_TOO_LARGE, "at most"},
    {1, END64, 32, 8, 1 << 20, SL_E_FILE_CORRUPT, "cannot hold its 1048576 records"},
    {1, END64, 40, 8, UINT64_MAX, SL_E_FILE_CORRUPT, "does not fit"},
    {1, END64, 48, 8, UINT64_MAX, SL_E_FILE_CORRUPT, "does not fit"},
    {1, LOCATOR, 0, 4, 0, SL_E_FILE_CORRUPT, "does not fit"},
    {1, LOCATOR, 8, 8, UINT64_MAX, SL_E_FILE_CORRUPT, "zip64 end record is not at byte"},
    {1, LOCATOR, 8, 8, 0, SL_E_FILE_CORRUPT, "zip64 end record is not at byte 0"},
    {1, EXTRA, 2, 2, 23, SL_E_FILE_CORRUPT, "its extra field is broken"},
    {1, EXTRA, 2, 2, 25, SL_E_FILE_CORRUPT, "its extra field is broken"},
    {1, EXTRA, 2, 2, 0xffff, SL_E_FILE_CORRUPT, "its extra field is broken"},
    {1, EXTRA, 4, 8, UINT64_MAX, SL_E_FILE_CORRUPT, "has two sizes"},
    {1, EXTRA, 12, 8, UINT64_MAX, SL_E_FILE_CORRUPT, "where the data ends"},
    {1, EXTRA, 20, 8, UINT64_MAX, SL_E_FILE_CORRUPT, "where the data ends"},
    {1, EXTRA, 0, 2, 9, SL_E_FILE_CORRUPT, "where the data ends"}, /* no zip64 field at all */
};

static size_t place_of(const struct bytes *b, enum place from)
{
    size_t central = find_text(b, 0, "PK\1\2", 4);
    switch (from) {
    case LOCAL:
        return 0;
    case CENTRAL:
        return central;
    case EXTRA:
        return central + 46 + strlen("m/data.pkl");
    case END64:
        return find_text(b, central, "PK\6\6", 4);
    case LOCATOR:
        return find_text(b, central, "PK\6\7", 4);
    default:
        return find_text(b, central, "PK\5\6", 4);
    }
}

static void test_lies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct zip_maker z = {.zip64 = lies[i].zip64};
        fill_good(&z);
        zip_end(&z);
        size_t at = place_of(&z.file, lies[i].from) + lies[i].at;
        if (lies[i].width == 1)
            z.file.p[at] = (unsigned char)lies[i].value;
        else if (lies[i].width == 2)
            set_u16(&z.file, at, lies[i].value);
        else if (lies[i].width == 4)
            set_u32(&z.file, at, lies[i].value);
        else
            set_u64(&z.file, at, lies[i].value);
        assert_fails(z.file.p, z.file.n, lies[i].code, lies[i].part);
        zip_done(&z);
    }
}

static void test_records_that_are_missing_or_too_many(void **state)
{
    (void)state;
    static const struct {
        const char *names[2]; /* besides the good ones */
        const char *content;
        bool good;
        enum sl_code code;
        const char *part;
    } cases[] = {
        {{"word/document.xml", "a"},
         "",
         false,
         SL_E_FILE_UNSUPPORTED,
         "is a zip file but no PyTorch checkpoint: none of its 2 records is named FOLDER/data.pkl "
         "(one is \"a\")"},
        {{"data.pkl", "a"}, "", false, SL_E_FILE_UNSUPPORTED, "no PyTorch checkpoint"},
        {{"m/n/data.pkl", "a"}, "", false, SL_E_FILE_UNSUPPORTED, "no PyTorch checkpoint"},
        {{"m/data.pkl", "a"}, "", false, SL_E_FILE_TRUNCATED, "1 bytes are needed"},
        {{"n/data.pkl", "a"}, "", true, SL_E_FILE_CORRUPT, "two data.pkl records"},
        {{"m/data/0", "a"}, "", true, SL_E_FILE_CORRUPT, "two zip records are named \"m/data/0\""},
        {{"m/constants.pkl", "a"}, "", true, SL_E_FILE_UNSUPPORTED, "a TorchScript program"},
        {{"m/byteorder", "a"}, "big", true, SL_E_FILE_UNSUPPORTED, "its byte order is \"big\""},
        {{"m/byteorder", "a"}, "", true, SL_E_FILE_UNSUPPORTED, "its byte order is \"\""},
        {{"m/byteorder", "a"}, "little2", true, SL_E_FILE_UNSUPPORTED, "\"little2\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct zip_maker z = {0};
        if (cases[i].good)
            fill_good(&z);
        for (int k = 0; k < 2; k++)
            zip_add(&z, cases[i].names[k], cases[i].content, strlen(cases[i].content));
        zip_end(&z);
        assert_fails(z.file.p, z.file.n, cases[i].code, cases[i].part);
        zip_done(&z);
    }
    struct zip_maker z = {0}; /* a record shorter than its storage */
    struct bytes p = {0};
    pick_good(&p);
    zip_add(&z, "m/data.pkl", p.p, p.n);
    zip_add(&z, "m/data/0", data64, 63);
    zip_end(&z);
    assert_fails(z.file.p, z.file.n, SL_E_FILE_CORRUPT,
                 "a storage of 16 elements of 4 bytes does not fit its record data/0 of 63 bytes");
    bytes_done(&p);
    zip_done(&z);
}

/* --- old files ----------------------------------------------------------------------------------
 */

static const char magic[] = "\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

static void put_prologue(struct bytes *b, unsigned version, unsigned little)
{
    put(b, magic, sizeof magic - 1);
    put_text(b, "\x80\2M");
    put_u16(b, version);
    put_text(b, ".\x80\2}(");
    pick_text(b, "protocol_version");
    put_text(b, "K\1");
    pick_text(b, "little_endian");
    put_byte(b, little);
    put_text(b, "u.");
}

/* What pick_good() has; the storage's view is (offset, length) when view is not NULL. */
static void put_object(struct bytes *b, const char *type, const int64_t *view)
{
    put_text(b, "\x80\2}");
    pick_text(b, "w");
    pick_global(b, "torch._utils", "_rebuild_tensor_v2");
    put_byte(b, '(');
    if (view)
        pick_storage_view(b, type, "key", 16, view[0], view[1]);
    else
        pick_storage(b, type, "key", 16, true);
    pick_int(b, view ? 0 : 1);
    put_text(b, "K\2K\3\x86K\1K\4\x86\x89}tRs.");
}

static void put_storages(struct bytes *b, const char *keys, uint64_t count)
{
    put_text(b, "\x80\2](");
    for (; *keys; keys += strlen(keys) + 1)
        pick_text(b, keys);
    put_text(b, "e.");
    put_u64(b, count);
    put(b, data64, sizeof data64);
}

static void make_legacy(struct bytes *b)
{
    put_prologue(b, 1001, 0x88);
    put_object(b, "FloatStorage", NULL);
    put_storages(b, "key\0", 16);
}

static void test_an_old_file(void **state)
{
    (void)state;
    struct bytes b = {0};
    make_legacy(&b);
    assert_opens(&b, "pth (legacy)");
    for (size_t n = sizeof magic - 1; n < b.n; n++)
        assert_fails(b.p, n, SL_E_FILE_TRUNCATED, "x.pth: ");
    b.n = 0; /* a view of the storage from element 1 on */
    put_prologue(&b, 1001, 0x88);
    put_object(&b, "FloatStorage", (int64_t[]){1, 15});
    put_storages(&b, "key\0", 16);
    assert_opens(&b, "pth (legacy)");
    bytes_done(&b);
}

static void test_old_files_that_lie(void **state)
{
    (void)state;
    static const struct {
        unsigned version, little;
        const char *type, *keys;
        uint64_t count;
        int64_t view[2];
        enum sl_code code;
        const char *part;
    } cases[] = {
        {1002, 0x88, "FloatStorage", "key\0", 16, {0, 0}, SL_E_FILE_UNSUPPORTED, "is not 1001"},
        {1001, 0x89, "FloatStorage", "key\0", 16, {0, 0}, SL_E_FILE_UNSUPPORTED, "\"big\""},
        {1001, 'N', "FloatStorage", "key\0", 16, {0, 0}, SL_E_FILE_CORRUPT, "little-endian"},
        {1001,
         0x88,
         "FloatStorage",
         "",
         16,
         {0, 0},
         SL_E_FILE_CORRUPT,
         "storage \"key\" of tensor \"w\" is missing"},
        {1001,
         0x88,
         "FloatStorage",
         "yek\0",
         16,
         {0, 0},
         SL_E_FILE_CORRUPT,
         "belongs to no tensor"},
        {1001, 0x88, "FloatStorage", "key\0key\0", 16, {0, 0}, SL_E_FILE_CORRUPT, "listed twice"},
        {1001,
         0x88,
         "FloatStorage",
         "key\0",
         15,
         {0, 0},
         SL_E_FILE_CORRUPT,
         "has 15 elements of F32 here and 16 of F32"},
        {1001,
         0x88,
         "FloatStorage",
         "key\0",
         UINT64_MAX,
         {0, 0},
         SL_E_FILE_CORRUPT,
         "has 18446744073709551615 elements"},
        {1001,
         0x88,
         "DoubleStorage",
         "key\0",
         16,
         {0, 0},
         SL_E_FILE_TRUNCATED,
         "16 elements of 8 bytes, but 64 bytes follow"},
        {1001,
         0x88,
         "FloatStorage",
         "key\0",
         16,
         {1, 16},
         SL_E_FILE_CORRUPT,
         "a view of 16 elements at 1 does not fit its storage of 16"},
        {1001, 0x88, "FloatStorage", "key\0", 16, {17, 0}, SL_E_FILE_CORRUPT, "does not fit"},
        {1001, 0x88, "FloatStorage", "key\0", 16, {INT64_MAX, INT64_MAX}, SL_E_FILE_CORRUPT, "fit"},
        {1001,
         0x88,
         "FloatStorage",
         "key\0",
         16,
         {8, 8},
         SL_E_FILE_CORRUPT,
         "beyond its storage of 8 elements"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes b = {0};
        bool view = cases[i].view[0] || cases[i].view[1];
        put_prologue(&b, cases[i].version, cases[i].little);
        put_object(&b, cases[i].type, view ? cases[i].view : NULL);
        put_storages(&b, cases[i].keys, cases[i].count);
        assert_fails(b.p, b.n, cases[i].code, cases[i].part);
        bytes_done(&b);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    struct bytes b = {0};
    make_legacy(&b);
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
    assert_true(n > 4);
    bytes_done(&b);
}

/* Random damage anywhere in a zip and in an old file. */
static void test_damage(void **state)
{
    (void)state;
    uint64_t seed = 4;
    for (int kind = 0; kind < 3; kind++) {
        struct zip_maker z = {.zip64 = kind == 1};
        struct bytes b = {0};
        size_t n_opened = 0;
        fill_good(&z);
        zip_end(&z);
        if (kind < 2)
            put(&b, z.file.p, z.file.n);
        else
            make_legacy(&b);
        for (int round = 0; round < 10000; round++) {
            unsigned char *copy = exact_copy(b.p, b.n), values[4096];
            for (uint64_t k = 1 + next_random(&seed) % 3; k; k--)
                copy[next_random(&seed) % b.n] = (unsigned char)next_random(&seed);
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
        bytes_done(&b);
        zip_done(&z);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kinds_of_zip),
        cmocka_unit_test(test_a_comment_at_the_end),
        cmocka_unit_test(test_zip_cut_at_every_byte),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_records_that_are_missing_or_too_many),
        cmocka_unit_test(test_an_old_file),
        cmocka_unit_test(test_old_files_that_lie),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests_name("pth_zip", tests, NULL, NULL);
}
