/* convert_test.c: what `slate convert` makes of a model is that model: the same bits, the same
 * fingerprint, whatever it was made from; and what was changed since is another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "slate/tokenizer.h"
#include "tests/support/conversion.h"
#include "tests/support/rules.h"
#include "tests/support/seeded_pth.h"
#include "tests/support/tree.h"

static void test_every_rule(void **state)
{
    (void)state;
    for (const struct rule *r = rules; r->title; r++) {
        struct rule_files f;
        print_message("%s\n", r->title);
        rule_write(r, &f);
        conversion_every_type(f.path, r->choices);
        rule_remove(&f);
    }
}

/* F32, F16 and BF16 files, of both containers. */
static void test_pth(void **state)
{
    (void)state;
    static const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_F16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const char *in = conversion_path("m.pth");
        conversion_write_odd(in, types[i], true);
        conversion_every_type(in, NULL);
    }
}

/* A GGUF file's vocabulary travels. */
static bool same_tokenizer(const char *in, const char *out)
{
    struct sl_tokenizer *x = NULL, *y = NULL;
    struct sl_error err;
    unsigned char a[16], b[16];
    struct sl_model *m = conversion_open(in, SL_DTYPE_NONE, NULL),
                    *n = conversion_open(out, SL_DTYPE_NONE, NULL);
    if (sl_model_tokenizer(&x, m, &err) || sl_model_tokenizer(&y, n, &err))
        fail_msg("%s", err.message);
    bool has_one = x != NULL;
    assert_int_equal(y != NULL, has_one);
    if (x) {
        sl_tokenizer_fingerprint(x, a);
        sl_tokenizer_fingerprint(y, b);
        assert_memory_equal(a, b, sizeof a);
        assert_string_equal(sl_tokenizer_kind(x), sl_tokenizer_kind(y));
        assert_int_equal(sl_tokenizer_eos(x), sl_tokenizer_eos(y));
        assert_int_equal(sl_tokenizer_begin(x), sl_tokenizer_begin(y));
    }
    const char *p = sl_model_chat_template(m), *q = sl_model_chat_template(n);
    assert_int_equal(p != NULL, q != NULL);
    if (p)
        assert_string_equal(p, q);
    sl_tokenizer_close(x);
    sl_tokenizer_close(y);
    sl_model_close(m);
    sl_model_close(n);
    return has_one;
}

/* GGUF: quantised blocks, transposed views. The names are the ones that models here have. Where no
 * type is asked for blocks stay blocks, and the file is no larger than it was, but for small ones.
 */
static void test_gguf(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t percent; /* that it may grow by */
    } files[] = {{"mamba2-bf16", 5}, {"mamba2-q4_k_m", 5}, {"rwkv6-f16", 5}, {"rwkv7-q4_q8", 60}};
    size_t n_vocabularies = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64];
        const char *out = conversion_path("out.safetensors");
        (void)snprintf(path, sizeof path, "tests/vectors/gguf/%s.gguf", files[i].name);
        print_message("%s\n", files[i].name);
        conversion_every_type(path, NULL);
        n_vocabularies += same_tokenizer(path, out);
        conversion_must(path, out, SL_DTYPE_NONE, NULL);
        if (conversion_bytes(out) > conversion_bytes(path) * (100 + files[i].percent) / 100)
            fail_msg("%zu bytes have become %zu", conversion_bytes(path), conversion_bytes(out));
    }
    assert_true(n_vocabularies >= 2);
}

/* The file holds the source's tensors under their names, and no other but those of its own. */
static void test_names_and_shapes(void **state)
{
    (void)state;
    struct sl_tensors *a = NULL, *b = NULL;
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("out.safetensors");
    conversion_write_odd(in, SL_DTYPE_F32, false);
    conversion_must(in, out, SL_DTYPE_BF16, NULL);
    assert_int_equal(sl_tensors_open(&a, in, NULL), SL_OK);
    assert_int_equal(sl_tensors_open(&b, out, NULL), SL_OK);
    assert_int_equal(a->n, b->n);
    size_t n_narrow = 0;
    for (size_t i = 0; i < a->n; i++) {
        const struct sl_tensor *x = &a->v[i], *y = &b->v[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->rank, y->rank);
        assert_memory_equal(x->shape, y->shape, x->rank * sizeof *x->shape);
        n_narrow += y->dtype == SL_DTYPE_BF16;
        if (y->dtype != SL_DTYPE_BF16)
            assert_memory_equal(x->data, y->data, x->n_elements * sizeof(float));
    }
    /* Per layer four projections and two of the channel mix, two each of w, a and g, two of v but
     * in the first; and the head. */
    assert_int_equal(n_narrow, 3 * (4 + 2 + 6) + 2 * 2 + 1);
    assert_string_equal(sl_tensors_meta(b, "slate.narrowed"), "yes");
    assert_string_equal(sl_tensors_meta(b, "format"), "pt");
    assert_true(strstr(sl_tensors_meta(b, "slate.source"), "m.safetensors (safetensors)") != NULL);
    sl_tensors_close(a);
    sl_tensors_close(b);
}

/* A type that holds every value loses nothing, and can be left again. */
static void test_there_and_back(void **state)
{
    (void)state;
    const char *in = conversion_path("m.safetensors"), *wide = conversion_path("wide.safetensors"),
               *back = conversion_path("back.safetensors");
    conversion_write_odd(in, SL_DTYPE_BF16, false);
    conversion_must(in, wide, SL_DTYPE_F32, NULL);
    conversion_must(wide, back, SL_DTYPE_BF16, NULL);
    assert_false(conversion_narrowed(wide));
    assert_false(conversion_narrowed(back));
    struct sl_model *a = conversion_open(in, SL_DTYPE_NONE, NULL),
                    *b = conversion_open(back, SL_DTYPE_NONE, NULL);
    conversion_same(a, b);
    sl_model_close(a);
    sl_model_close(b);
}

/* A session of the source goes on with the narrowed model, and is told; and one of the narrowed
 * model, kept in another type, does not pass for the source's in that type. */
static void test_what_narrowing_is_called(void **state)
{
    (void)state;
    struct sl_error err = {0};
    bool other = false;
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("out.safetensors");
    conversion_write_odd(in, SL_DTYPE_F32, false);
    conversion_must(in, out, SL_DTYPE_BF16, NULL);
    assert_true(conversion_narrowed(out));
    struct sl_model *source = conversion_open(in, SL_DTYPE_NONE, NULL),
                    *small = conversion_open(out, SL_DTYPE_NONE, NULL),
                    *again = conversion_open(out, SL_DTYPE_F32, NULL);
    assert_string_equal(sl_model_info(source)->weights_name, "F32");
    assert_string_equal(sl_model_info(small)->weights_name, "BF16");
    assert_string_equal(sl_model_info(again)->weights_name, "BF16>F32");
    assert_int_equal(conversion_restore(source, small, &other, &err), SL_OK);
    assert_true(other);
    assert_int_equal(conversion_restore(source, again, &other, &err), SL_OK);
    assert_true(other);
    sl_model_close(source);
    sl_model_close(small);
    sl_model_close(again);
    assert_int_equal(conversion(out, conversion_path("x.safetensors"), SL_DTYPE_F32, NULL, NULL,
                                &sl_store_io_system, &err),
                     SL_E_INVALID_VALUE);
    assert_non_null(strstr(err.message, "narrowed to BF16"));
    assert_int_equal(access(conversion_path("x.safetensors"), F_OK), -1);
}

/* All single bytes, and "ab". */
static size_t write_vocabulary(char *dst)
{
    size_t n = 0;
    for (unsigned i = 0; i < 256; i++)
        n += (size_t)snprintf(dst + n, 32, "%u b'\\x%02x' 1\n", i + 1, i);
    return n + (size_t)snprintf(dst + n, 32, "258 'ab' 2\n");
}

/* A copy of a converted file is converted, whatever else it carries. */
static void test_again(void **state)
{
    (void)state;
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("out.safetensors"),
               *copy = conversion_path("copy.safetensors");
    char vocabulary[8192];
    const struct sl_conversion_extras extras = {.tokenizer_kind = "rwkv_world",
                                                .tokenizer = (const unsigned char *)vocabulary,
                                                .n_tokenizer = write_vocabulary(vocabulary),
                                                .begin_token = "3",
                                                .end_tokens = "5,2",
                                                .chat_template = "rwkv"};
    struct sl_error err;
    conversion_write_odd(in, SL_DTYPE_F32, false);
    assert_int_equal(conversion(in, out, SL_DTYPE_F16, NULL, &extras, &sl_store_io_system, &err),
                     SL_OK);
    conversion_must(out, copy, SL_DTYPE_NONE, NULL);
    struct sl_model *a = conversion_open(in, SL_DTYPE_F16, NULL),
                    *b = conversion_open(copy, SL_DTYPE_NONE, NULL);
    conversion_same(a, b);
    struct sl_tokenizer *t = NULL;
    if (sl_model_tokenizer(&t, b, &err))
        fail_msg("%s", err.message);
    size_t n = 0;
    assert_string_equal(sl_tokenizer_kind(t), "rwkv_world");
    assert_memory_equal(sl_tokenizer_bytes(t, 258, &n), "ab", 2);
    assert_int_equal(n, 2);
    assert_int_equal(sl_tokenizer_begin(t), 3);
    assert_int_equal(sl_tokenizer_eos(t), 5);
    assert_true(sl_tokenizer_is_eos(t, 2));
    assert_false(sl_tokenizer_is_eos(t, 0));
    assert_string_equal(sl_model_chat_template(b), "rwkv");
    sl_tokenizer_close(t);
    t = NULL;
    assert_int_equal(sl_model_info(a)->n_unused, sl_model_info(b)->n_unused);
    assert_int_equal(sl_model_info(a)->n_params, sl_model_info(b)->n_params);
    assert_int_equal(sl_model_tokenizer(&t, a, &err), SL_OK);
    assert_null(t);
    sl_model_close(a);
    sl_model_close(b);
}

/* --- edited ------------------------------------------------------------------------------------*/

/* The byte at the middle of a tensor, changed in the file. */
static void edit(const char *path, const char *tensor)
{
    struct sl_tensors *t = NULL;
    struct stat st;
    assert_int_equal(sl_tensors_open(&t, path, NULL), SL_OK);
    const struct sl_tensor *x = sl_tensors_find(t, tensor);
    assert_non_null(x);
    assert_int_equal(stat(path, &st), 0);
    size_t bytes = x->n_elements * sl_dtype_size(x->dtype);
    unsigned char *all = malloc((size_t)st.st_size);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fread(all, 1, (size_t)st.st_size, f), st.st_size);
    unsigned char *at = memmem(all, (size_t)st.st_size, x->data, bytes);
    assert_non_null(at);
    at[bytes / 2] ^= 1;
    assert_int_equal(fseek(f, (long)(at - all), SEEK_SET), 0);
    assert_int_equal(fwrite(at, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    free(all);
    sl_tensors_close(t);
}

/* Whoever trains a converted file further and keeps its metadata has another model. */
static void test_an_edited_file_is_another_model(void **state)
{
    (void)state;
    struct sl_error err = {0};
    bool other;
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("out.safetensors");
    conversion_write_odd(in, SL_DTYPE_F32, false);
    for (int narrow = 0; narrow < 2; narrow++) {
        conversion_must(in, out, narrow ? SL_DTYPE_BF16 : SL_DTYPE_NONE, NULL);
        edit(out, "blocks.1.att.key.weight");
        struct sl_model *a = conversion_open(in, SL_DTYPE_NONE, NULL),
                        *b = conversion_open(out, SL_DTYPE_NONE, NULL);
        assert_memory_not_equal(sl_model_info(a)->fingerprint, sl_model_info(b)->fingerprint, 16);
        assert_int_equal(conversion_restore(a, b, &other, &err), SL_E_SNAPSHOT_MODEL_MISMATCH);
        sl_model_close(a);
        sl_model_close(b);
    }
}

static void write_tensors(const char *path, const char *meta)
{
    struct seeded s;
    size_t n, n_json;
    seeded_init(&s, &(const struct seeded_shape)SEEDED_ODD);
    unsigned char *p = seeded_bytes(&s, &n);
    memcpy(&n_json, p, sizeof n_json);
    static const char old[] = "{\"__metadata__\":{\"format\":\"pt\"}";
    assert_memory_equal(p + 8, old, sizeof old - 1);
    size_t extra = strlen(meta), n_new = n_json + extra;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&n_new, 1, 8, f), 8);
    assert_int_equal(fwrite(old, 1, sizeof old - 2, f), sizeof old - 2);
    assert_int_equal(fwrite(meta, 1, extra, f), extra);
    assert_int_equal(fwrite(p + 8 + sizeof old - 2, 1, n - 8 - (sizeof old - 2), f),
                     n - 8 - (sizeof old - 2));
    assert_int_equal(fclose(f), 0);
    free(p);
    seeded_done(&s);
}

static void test_bad_metadata(void **state)
{
    (void)state;
#define V "\"slate.model\":\"1\""
    static const struct {
        const char *meta, *part;
        enum sl_code code;
    } row[] = {
        {",\"slate.model\":\"2\"", "version 2 of the form", SL_E_FILE_UNSUPPORTED},
        {"," V ",\"slate.fingerprint\":\"12\"", "slate.fingerprint in its metadata is \"12\"",
         SL_E_FILE_CORRUPT},
        {"," V ",\"slate.content\":\"0123456789abcdef0123456789abcdeF\"", "slate.content",
         SL_E_FILE_CORRUPT},
        {"," V ",\"slate.weights\":\"Q5\"", "F32, BF16, F16, Q8 or Q4", SL_E_FILE_CORRUPT},
        {"," V ",\"slate.narrowed\":\"maybe\"", "yes or no", SL_E_FILE_CORRUPT},
        {"," V ",\"slate.rule\":\"a=b\"", "leaves nothing open, not \"a=b\"", SL_E_INVALID_VALUE},
        {"," V ",\"slate.config\":\"{\"", "m.safetensors: slate.config", SL_E_FILE_CORRUPT},
        {"," V ",\"slate.config\":\"{\\\"model_type\\\":\\\"gla\\\"}\"", "is absent",
         SL_E_MODEL_INVALID},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *path = conversion_path("m.safetensors");
        struct sl_error err = {0};
        struct sl_model *m = NULL;
        write_tensors(path, row[i].meta);
        enum sl_code c = sl_model_open(&m, &(struct sl_model_options){.path = path}, &err);
        if (c != row[i].code || !strstr(err.message, row[i].part))
            fail_msg("%s: %s: %s", row[i].meta, sl_code_name(c), c ? err.message : "");
    }
    /* Keys of this form without its version are somebody else's. */
    struct sl_model *m = NULL;
    write_tensors(conversion_path("m.safetensors"),
                  ",\"slate.weights\":\"Q8\",\"slate.config\":\"{\"");
    m = conversion_open(conversion_path("m.safetensors"), SL_DTYPE_NONE, NULL);
    sl_model_close(m);
}

/* --- refused -----------------------------------------------------------------------------------*/

static void refused(const char *in, const char *out, enum sl_dtype type, enum sl_code code,
                    const char *part)
{
    struct sl_error err = {0};
    enum sl_code c = conversion(in, out, type, NULL, NULL, &sl_store_io_system, &err);
    if (c != code || !strstr(err.message, part))
        fail_msg("%s: %s; expected %s", sl_code_name(c), c ? err.message : "", part);
}

static void test_refused(void **state)
{
    (void)state;
    const char *in = conversion_path("m.safetensors"), *out = conversion_path("new.safetensors");
    struct seeded s;
    struct sl_error err = {0};
    struct sl_conversion *c = NULL;
    seeded_init(&s, &(const struct seeded_shape)SEEDED_ODD);
    struct seeded_tensor *t = seeded_find(&s, "blocks.1.ffn.key.weight");
    t->plant_at = 77;
    t->plant = 70000;
    seeded_write(&s, in);
    refused(in, out, SL_DTYPE_F16, SL_E_MODEL_INVALID,
            "blocks.1.ffn.key.weight holds 70000 (element 77), too large for F16");
    refused(in, out, SL_DTYPE_I8, SL_E_INVALID_VALUE, "not to I8");
    refused(in, conversion_path("new.pth"), SL_DTYPE_NONE, SL_E_INVALID_VALUE,
            "must end in .safetensors");
    refused(in, conversion_path(".safetensors"), SL_DTYPE_NONE, SL_E_INVALID_VALUE, "must end in");
    refused(in, conversion_path("no/new.safetensors"), SL_DTYPE_NONE, SL_E_IO, "No such file");
    refused(in, in, SL_DTYPE_NONE, SL_E_INVALID_VALUE, "is what is to be converted");
    assert_int_equal(link(in, conversion_path("link.safetensors")), 0);
    refused(in, conversion_path("link.safetensors"), SL_DTYPE_NONE, SL_E_INVALID_VALUE,
            "is what is to be converted");
    assert_int_equal(symlink(in, conversion_path("soft.safetensors")), 0);
    refused(in, conversion_path("soft.safetensors"), SL_DTYPE_NONE, SL_E_INVALID_VALUE,
            "is what is to be converted");
    assert_int_equal(mkdir(conversion_path("d.safetensors"), 0700), 0);
    refused(in, conversion_path("d.safetensors"), SL_DTYPE_NONE, SL_E_INVALID_VALUE, "is a folder");
    assert_int_equal(access(out, F_OK), -1);
    /* Without --force what is there stays. */
    conversion_must(in, out, SL_DTYPE_NONE, NULL);
    assert_int_equal(sl_conversion_open(&c, &(struct sl_conversion_options){.path = in}, &err),
                     SL_OK);
    assert_int_equal(sl_convert_file(c, out, false, &sl_store_io_system, &err), SL_E_INVALID_VALUE);
    assert_non_null(strstr(err.message, "is there already; --force replaces it"));
    static const char *const bad = "\xff";
    assert_int_equal(
        sl_conversion_carry(c, &(struct sl_conversion_extras){.chat_template = bad}, &err),
        SL_E_INVALID_VALUE);
    sl_conversion_close(c);
    t->plant = 1.0f / 0.0f;
    seeded_write(&s, in);
    refused(in, out, SL_DTYPE_NONE, SL_E_MODEL_INVALID, "every weight must be finite");
    seeded_done(&s);
}

/* Every allocation fails once: an error that says so, or a whole file. */
static void test_no_memory(void **state)
{
    (void)state;
    const char *in = conversion_path("m.pth"), *out = conversion_path("new.safetensors");
    struct sl_error err;
    size_t n_failed = 0;
    enum sl_code c = SL_E_NO_MEMORY;
    conversion_write_odd(in, SL_DTYPE_F32, true);
    for (int64_t n = 0; c; n++) {
        sl_mem_fail_after(n);
        c = conversion(in, out, SL_DTYPE_BF16, NULL, NULL, &sl_store_io_system, &err);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || c == SL_E_NO_MEMORY);
        assert_int_equal(access(out, F_OK), c ? -1 : 0);
        n_failed += c != SL_OK;
    }
    assert_true(n_failed > 30);
    struct sl_model *a = conversion_open(in, SL_DTYPE_BF16, NULL),
                    *b = conversion_open(out, SL_DTYPE_NONE, NULL);
    conversion_same(a, b);
    sl_model_close(a);
    sl_model_close(b);
}

static int refuse_mode(int fd, mode_t mode)
{
    (void)fd;
    (void)mode;
    errno = EPERM;
    return -1;
}

static struct stat stat_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st;
}

/* What is replaced may be read by a server of another user: so may what comes in its place. Where
 * that is refused, it stays. */
static void test_whose_it_is(void **state)
{
    (void)state;
    enum { SOMEBODY = 43210, SOME_GROUP = 43211 };
    char in[128], out[128];
    struct sl_error err;
    struct sl_store_io io = sl_store_io_system;
    (void)snprintf(in, sizeof in, "%s", conversion_path("m.pth"));
    (void)snprintf(out, sizeof out, "%s", conversion_path("new.safetensors"));
    conversion_write_odd(in, SL_DTYPE_F32, true);
    conversion_must(in, out, SL_DTYPE_F32, NULL);
    assert_int_equal(chmod(out, 0640), 0);
    conversion_must(in, out, SL_DTYPE_BF16, NULL);
    struct stat before = stat_of(out);
    assert_int_equal(before.st_mode & 07777, 0640);
    io.chmod = refuse_mode;
    assert_int_equal(conversion(in, out, SL_DTYPE_F32, NULL, NULL, &io, &err), SL_E_IO);
    assert_non_null(strstr(err.message, "giving owner, group and mode of the file that is "));
    assert_int_equal(stat_of(out).st_ino, before.st_ino);
    if (geteuid() != 0 || chown(out, SOMEBODY, SOME_GROUP) != 0) {
        print_message("skipped: a file of another user: this one may not give files away\n");
        skip();
    }
    conversion_must(in, out, SL_DTYPE_F32, NULL);
    assert_int_equal(stat_of(out).st_uid, SOMEBODY);
    assert_int_equal(stat_of(out).st_gid, SOME_GROUP);
    /* Who may write there and give nothing away takes it over. */
    assert_int_equal(chmod(conversion_path("."), 0777), 0);
    assert_int_equal(seteuid(SOME_GROUP), 0);
    enum sl_code c = conversion(in, out, SL_DTYPE_BF16, NULL, NULL, &sl_store_io_system, &err);
    assert_int_equal(seteuid(0), 0);
    if (c)
        fail_msg("%s", err.message);
    assert_int_equal(stat_of(out).st_uid, SOME_GROUP);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, conversion_set_up, conversion_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_every_rule),     TEST(test_pth),
        TEST(test_gguf),           TEST(test_names_and_shapes),
        TEST(test_there_and_back), TEST(test_what_narrowing_is_called),
        TEST(test_again),          TEST(test_an_edited_file_is_another_model),
        TEST(test_bad_metadata),   TEST(test_refused),
        TEST(test_no_memory),      TEST(test_whose_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
