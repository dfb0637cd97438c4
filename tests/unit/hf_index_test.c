/* hf_index_test.c: a model in several files is the model in one; and every way in which the index
 * and the files can contradict each other is named. */
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
#include "tests/support/rules.h"
#include "tests/support/tree.h"

enum { PARTS = 3 };

static const struct rule *rule; /* gla */
static char folder[32];
static char index_text[1 << 16];

static void put(const char *file, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void part_name(char ret[64], size_t i)
{
    (void)snprintf(ret, 64, "model-%05zu-of-%05d.safetensors", i + 1, PARTS);
}

/* The rule's tensors in three files, every third one in the same. */
static void write_parts(void)
{
    struct seeded all;
    size_t len = 0;
    rule->list(&all);
    len += (size_t)snprintf(index_text, sizeof index_text,
                            "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (size_t i = 0; i < PARTS; i++) {
        struct seeded part = {.seed = all.seed, .prefix = all.prefix};
        char name[64], path[128];
        part_name(name, i);
        for (size_t k = i; k < all.n; k += PARTS) {
            const struct seeded_tensor *t = &all.v[k];
            *seeded_add(&part, t->dtype, t->rank, t->shape, 0, 0, t->name) = *t;
            len += (size_t)snprintf(index_text + len, sizeof index_text - len, "\"%s\":\"%s\",",
                                    t->name, name);
            assert_true(len < sizeof index_text);
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, name);
        seeded_write(&part, path);
        seeded_done(&part);
    }
    (void)snprintf(index_text + len - 1, sizeof index_text - len + 1, "}}");
    seeded_done(&all);
    put("config.json", rule->settings);
    put("model.safetensors.index.json", index_text);
}

static int set_up(void **state)
{
    (void)state;
    for (rule = rules; strcmp(rule->arch, "gla") != 0; rule++)
        ;
    (void)snprintf(folder, sizeof folder, "/tmp/slate-index-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    write_parts();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

static void test_several_files_are_one_model(void **state)
{
    (void)state;
    struct sl_error err;
    struct sl_tensors *t;
    struct sl_model *one = rule_open(rule, NULL), *many = NULL;
    assert_int_equal(sl_tensors_open(&t, folder, &err), SL_OK);
    assert_string_equal(t->container, "safetensors");
    assert_non_null(strstr(t->name, "model.safetensors.index.json"));
    sl_tensors_close(t);
    if (sl_model_open(&many, &(struct sl_model_options){.path = folder}, &err))
        fail_msg("%s", err.message);
    assert_memory_equal(sl_model_info(many)->fingerprint, sl_model_info(one)->fingerprint, 16);
    assert_int_equal(sl_model_info(many)->n_params, sl_model_info(one)->n_params);
    sl_model_close(many);
    sl_model_close(one);
}

/* Under the name that PyTorch's own files have; what it is, its first bytes say. */
static void test_the_other_name(void **state)
{
    (void)state;
    struct rule_files f;
    struct sl_error err;
    struct sl_model *one = rule_open(rule, NULL), *other = NULL;
    char from[64], to[64];
    rule_write(rule, &f);
    (void)snprintf(from, sizeof from, "%s/model.safetensors", f.folder);
    (void)snprintf(to, sizeof to, "%s/pytorch_model.bin", f.folder);
    assert_int_equal(rename(from, to), 0);
    if (sl_model_open(&other, &(struct sl_model_options){.path = f.folder}, &err))
        fail_msg("%s", err.message);
    assert_memory_equal(sl_model_info(other)->fingerprint, sl_model_info(one)->fingerprint, 16);
    sl_model_close(other);
    sl_model_close(one);
    remove_tree(f.folder);
}

static void refused(const char *text, enum sl_code code, const char *part)
{
    struct sl_error err = {0};
    struct sl_tensors *t = NULL;
    put("model.safetensors.index.json", text);
    enum sl_code c = sl_tensors_open(&t, folder, &err);
    if (c != code || !strstr(err.message, part))
        fail_msg("%s: %s; expected %s: %s", sl_code_name(c), c ? err.message : "",
                 sl_code_name(code), part);
    put("model.safetensors.index.json", index_text);
}

/* The index with `from` replaced by `to`, once. */
static const char *changed(const char *from, const char *to)
{
    static char text[sizeof index_text + 256];
    const char *at = strstr(index_text, from);
    assert_non_null(at);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - index_text), index_text, to,
                   at + strlen(from));
    return text;
}

static void test_bad_indexes(void **state)
{
    (void)state;
    refused("", SL_E_FILE_CORRUPT, "is not a JSON object");
    refused("[]", SL_E_FILE_CORRUPT, "another value");
    refused("{\"weight_map\":[]}", SL_E_FILE_CORRUPT, "no object \"weight_map\"");
    refused("{\"weight_map\":{}}", SL_E_FILE_CORRUPT, "names no tensor");
    refused("{\"weight_map\":{\"a\":1}}", SL_E_FILE_CORRUPT, "\"a\" is no string");
    static const char *const outside[] = {"../x.safetensors", "/etc/passwd", "",         ".hidden",
                                          "a/b.safetensors",  "..",          "x\\u0000y"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", outside[i]);
        if (strchr(outside[i], '\\')) /* jansson takes no zero byte */
            refused(text, SL_E_FILE_CORRUPT, "is not a JSON object");
        else
            refused(text, SL_E_FILE_CORRUPT, "the name of a file beside the index");
    }
    refused(changed("model-00002-of", "model-00009-of"), SL_E_FILE_NOT_FOUND, "model-00009-of");
    refused(changed("\"model.norm.weight\"", "\"model.other\""), SL_E_FILE_CORRUPT,
            "holds a tensor that it does not name: \"model.norm.weight\"");
    refused(changed("\"weight_map\":{",
                    "\"weight_map\":{\"more\":\"model-00001-of-00003.safetensors\","),
            SL_E_FILE_CORRUPT, "does not hold tensor \"more\"");
    refused(changed("model-00001-of", "model-00002-of"), SL_E_FILE_CORRUPT, "is said to be in");
    refused(changed("{\"metadata\"", "{\"weight_map\":{},\"metadata\""), SL_E_FILE_CORRUPT,
            "duplicate");
}

/* One name in two files: the index can name only one of them, so the other one holds too much. */
static void test_a_tensor_in_two_files(void **state)
{
    (void)state;
    char from[160], to[160], name[64];
    part_name(name, 0);
    (void)snprintf(from, sizeof from, "%s/%s", folder, name);
    (void)snprintf(to, sizeof to, "%s/copy.safetensors", folder);
    assert_int_equal(link(from, to), 0);
    refused(changed("\"weight_map\":{", "\"weight_map\":{\"x\":\"copy.safetensors\","),
            SL_E_FILE_CORRUPT, "and is in copy.safetensors");
    assert_int_equal(remove(to), 0);
}

/* Opens `dir`, whose first part is a link to `target`. */
static void with_link(const char *dir, const char *target, enum sl_code code, const char *part)
{
    struct sl_error err = {0};
    struct sl_tensors *t = NULL;
    char at[256], name[64];
    part_name(name, 0);
    (void)snprintf(at, sizeof at, "%s/%s", dir, name);
    assert_int_equal(symlink(target, at), 0);
    enum sl_code c = sl_tensors_open(&t, dir, &err);
    if (c != code || (c && !strstr(err.message, part)))
        fail_msg("%s: %s; expected %s: %s", sl_code_name(c), c ? err.message : "",
                 sl_code_name(code), part);
    sl_tensors_close(t);
    assert_int_equal(remove(at), 0);
}

static void move(const char *from_dir, const char *from, const char *to_dir, const char *to)
{
    char a[256], b[256];
    (void)snprintf(a, sizeof a, "%s/%s", from_dir, from);
    (void)snprintf(b, sizeof b, "%s/%s", to_dir, to);
    assert_int_equal(rename(a, b), 0);
}

/* A link may lead to another name in the folder, not out of it, however near. */
static void test_links(void **state)
{
    (void)state;
    char name[64], near[64], aside[128], to[256];
    part_name(name, 0);
    (void)snprintf(near, sizeof near, "%s-2", folder); /* begins like the folder */
    assert_int_equal(mkdir(near, 0700), 0);
    move(folder, name, folder, "renamed");
    with_link(folder, "renamed", SL_OK, "");
    move(folder, "renamed", near, "blob");
    (void)snprintf(to, sizeof to, "../%s/blob", near + strlen("/tmp/"));
    (void)snprintf(aside, sizeof aside, "is a link to %s/blob, outside", near);
    with_link(folder, to, SL_E_FILE_CORRUPT, aside);
    (void)snprintf(to, sizeof to, "%s/blob", near);
    with_link(folder, to, SL_E_FILE_CORRUPT, name);
    with_link(folder, "/etc/passwd", SL_E_FILE_CORRUPT, "is a link to /etc/passwd, outside");
    with_link(folder, ".", SL_E_FILE_CORRUPT, "is a folder");
    with_link(folder, "nowhere", SL_E_FILE_NOT_FOUND, name);
    move(near, "blob", folder, name);
    remove_tree(near);
}

/* Hugging Face's cache: snapshots/REVISION/model-00001-… -> ../../blobs/HASH. */
static void test_a_cache(void **state)
{
    (void)state;
    char root[] = "/tmp/slate-cache-XXXXXX", name[64], sub[4][64], dir[96], to[128];
    static const char *const names[] = {"snapshots", "blobs", "blob", "shots"};
    part_name(name, 0);
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(sub[i], sizeof sub[i], "%s/%s", root, names[i]);
        assert_int_equal(mkdir(sub[i], 0700), 0);
    }
    (void)snprintf(dir, sizeof dir, "%s/abc", sub[0]);
    assert_int_equal(rename(folder, dir), 0);
    move(dir, name, sub[1], "123");
    with_link(dir, "../../blobs/123", SL_OK, "");
    move(sub[1], "123", sub[2], "123");
    with_link(dir, "../../blob/123", SL_E_FILE_CORRUPT, "/blob/123, outside");
    move(sub[2], "123", sub[1], "123");
    (void)snprintf(to, sizeof to, "%s/abc", sub[3]);
    assert_int_equal(rename(dir, to), 0);
    with_link(to, "../../blobs/123", SL_E_FILE_CORRUPT, "/blobs/123, outside");
    move(sub[1], "123", to, name);
    assert_int_equal(rename(to, folder), 0);
    remove_tree(root);
}

static void test_no_memory(void **state)
{
    (void)state;
    enum sl_code c = SL_E_NO_MEMORY;
    size_t n_failed = 0;
    for (int64_t n = 0; c; n++) {
        struct sl_tensors *t = NULL;
        struct sl_error err;
        sl_mem_fail_after(n);
        c = sl_tensors_open(&t, folder, &err);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || c == SL_E_NO_MEMORY);
        n_failed += c != SL_OK;
        sl_tensors_close(t);
    }
    assert_true(n_failed > 10);
}

int main(void)
{
    json_set_alloc_funcs(sl_malloc, sl_free); /* so that jansson's allocations can fail too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_several_files_are_one_model),
        cmocka_unit_test(test_the_other_name),
        cmocka_unit_test(test_bad_indexes),
        cmocka_unit_test(test_a_tensor_in_two_files),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_a_cache),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
