/* settings_test.c: config.json as a flat list; JSON as Python writes it; what is refused;
 * directories in Hugging Face's layout, whole and not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "tests/support/rules.h"

static struct sl_settings *read_text(const char *text)
{
    struct sl_error err;
    struct sl_settings *s = NULL;
    /* without a byte to spare */
    size_t n = strlen(text);
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    if (sl_settings_read(&s, copy, n, "a/config.json", &err) != SL_OK)
        fail_msg("%s", err.message);
    free(copy);
    return s;
}

static void refuse(const char *text, size_t n, enum sl_code code, const char *part)
{
    struct sl_error err = {0};
    struct sl_settings *s = NULL;
    enum sl_code c = sl_settings_read(&s, text, n, "a/config.json", &err);
    if (c != code || s || !strstr(err.message, part) || !strstr(err.message, "a/config.json"))
        fail_msg("%s: %s; expected %s: %s", sl_code_name(c), c ? err.message : "",
                 sl_code_name(code), part);
}

static const struct sl_setting *at(const struct sl_settings *s, const char *key,
                                   enum sl_setting_kind kind)
{
    const struct sl_setting *e = sl_settings_find(s, key);
    if (!e || e->kind != kind)
        fail_msg("%s is %s", key, e ? "of another kind" : "absent");
    return e;
}

static void test_kinds(void **unused)
{
    (void)unused;
    struct sl_settings *s = read_text(
        "{\"b\": true, \"f\": false, \"n\": null, \"i\": -7, \"r\": 2.5e-3,\n"
        " \"t\": \"caf\\u00e9\", \"l\": [1, [2, \"x\"], {}], \"o\": {\"k\": {\"d\": 3}}}");
    assert_string_equal(s->name, "a/config.json");
    assert_true(at(s, "b", SL_SETTING_BOOL)->flag);
    assert_false(at(s, "f", SL_SETTING_BOOL)->flag);
    (void)at(s, "n", SL_SETTING_NULL);
    assert_true(at(s, "i", SL_SETTING_NUMBER)->number == -7);
    assert_true(at(s, "r", SL_SETTING_NUMBER)->number == 2.5e-3);
    assert_string_equal(at(s, "t", SL_SETTING_TEXT)->text, "caf\xc3\xa9");
    assert_int_equal(at(s, "l", SL_SETTING_LIST)->n, 3);
    assert_true(at(s, "l.0", SL_SETTING_NUMBER)->number == 1);
    assert_int_equal(at(s, "l.1", SL_SETTING_LIST)->n, 2);
    assert_string_equal(at(s, "l.1.1", SL_SETTING_TEXT)->text, "x");
    assert_int_equal(at(s, "l.2", SL_SETTING_OBJECT)->n, 0);
    assert_true(at(s, "o.k.d", SL_SETTING_NUMBER)->number == 3);
    assert_null(sl_settings_find(s, "o.k.e"));
    assert_null(sl_settings_find(s, ""));
    for (size_t i = 1; i < s->n; i++)
        assert_true(strcmp(s->v[i - 1].key, s->v[i].key) < 0);
    sl_settings_close(s);
    s = read_text("{}");
    assert_int_equal(s->n, 0);
    assert_null(sl_settings_find(s, "a"));
    sl_settings_close(s);
}

/* json.dumps() writes them without quotes. */
static void test_pythons_words(void **unused)
{
    (void)unused;
    struct sl_settings *s =
        read_text("{\"a\":[0.0, Infinity],\"b\":-Infinity,\"c\":NaN,\"Infinity\":\"NaN\",\n"
                  "\"d\":\"-Infinity\",\"e\":\"\\\\\",\"f\":Infinity,\"g\":\"\\\"NaN\"}");
    assert_true(at(s, "a.1", SL_SETTING_NUMBER)->number == (double)INFINITY);
    assert_true(at(s, "b", SL_SETTING_NUMBER)->number == -(double)INFINITY);
    assert_true(isnan(at(s, "c", SL_SETTING_NUMBER)->number));
    assert_string_equal(at(s, "Infinity", SL_SETTING_TEXT)->text, "NaN");
    assert_string_equal(at(s, "d", SL_SETTING_TEXT)->text, "-Infinity");
    assert_string_equal(at(s, "e", SL_SETTING_TEXT)->text, "\\");
    assert_true(at(s, "f", SL_SETTING_NUMBER)->number == (double)INFINITY);
    assert_string_equal(at(s, "g", SL_SETTING_TEXT)->text, "\"NaN");
    sl_settings_close(s);
}

/* Transformers 5 writes them as objects, which are nothing else but of this form. */
static void test_tagged_numbers(void **unused)
{
    (void)unused;
    struct sl_settings *s = read_text(
        "{\"a\":[0.0,{\"__float__\":\"Infinity\"}],\"b\":{\"__float__\":\"-Infinity\"},"
        "\"c\":{\"__float__\":\"NaN\"},\"d\":{\"__float__\":\"Inf\"},\"e\":{\"__float__\":1},"
        "\"f\":{\"__float__\":\"NaN\",\"more\":1},\"g\":{\"float\":\"NaN\"}}");
    assert_true(at(s, "a.1", SL_SETTING_NUMBER)->number == (double)INFINITY);
    assert_true(at(s, "b", SL_SETTING_NUMBER)->number == -(double)INFINITY);
    assert_true(isnan(at(s, "c", SL_SETTING_NUMBER)->number));
    assert_null(sl_settings_find(s, "c.__float__"));
    assert_int_equal(at(s, "d", SL_SETTING_OBJECT)->n, 1);
    assert_string_equal(at(s, "d.__float__", SL_SETTING_TEXT)->text, "Inf");
    assert_true(at(s, "e.__float__", SL_SETTING_NUMBER)->number == 1);
    assert_int_equal(at(s, "f", SL_SETTING_OBJECT)->n, 2);
    assert_string_equal(at(s, "f.__float__", SL_SETTING_TEXT)->text, "NaN");
    assert_int_equal(at(s, "g", SL_SETTING_OBJECT)->n, 1);
    sl_settings_close(s);
}

static void test_bad_text(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        enum sl_code code;
        const char *part;
    } cases[] = {
        {"", SL_E_FILE_CORRUPT, "is not valid JSON: line 1"},
        {"{\n\"a\": 1,\n}", SL_E_FILE_CORRUPT, "line 3"},
        {"[1]", SL_E_FILE_CORRUPT, "is not a JSON object"},
        {"{\"a\":1,\"a\":2}", SL_E_FILE_CORRUPT, "duplicate"},
        {"{\"a.b\":1,\"a\":{\"b\":2}}", SL_E_FILE_CORRUPT, "says a.b twice"},
        {"{\"a\":Infinityx}", SL_E_FILE_CORRUPT, "line 1"},
        {"{\"a\":infinity}", SL_E_FILE_CORRUPT, "line 1"},
        {"{\"a\":1e999}", SL_E_FILE_CORRUPT, "line 1"},
        {"{\"a\":\"\xff\"}", SL_E_FILE_CORRUPT, "line 1"},
        {"{\"a\":\"\\u0000\"}", SL_E_FILE_CORRUPT, "line 1"},
        {"{\"a\":1} x", SL_E_FILE_CORRUPT, "line 1"},
        {"{\"a\":[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}", SL_E_TOO_LARGE, "levels deep"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(cases[i].text, strlen(cases[i].text), cases[i].code, cases[i].part);
    char *big = calloc(1, SL_SETTINGS_BYTES_MAX + 2);
    assert_non_null(big);
    memset(big, ' ', SL_SETTINGS_BYTES_MAX + 1);
    refuse(big, SL_SETTINGS_BYTES_MAX + 1, SL_E_TOO_LARGE, "at most 1048576");
    size_t n = (size_t)sprintf(big, "{\"a\":[0");
    for (size_t i = 0; i < SL_SETTINGS_MAX; i++, n += 2)
        memcpy(big + n, ",0", 2);
    memcpy(big + n, "]}", 2);
    refuse(big, n + 2, SL_E_TOO_LARGE, "more than 32768 settings");
    memset(big, 'k', 400);
    memcpy(big, "{\"", 2);
    memcpy(big + 300, "\":1}", 4);
    refuse(big, 304, SL_E_TOO_LARGE, "longer than 255");
    free(big);
}

static void test_no_memory(void **unused)
{
    (void)unused;
    static const char text[] = "{\"a\":[1,2,{\"b\":\"text\"}],\"c\":Infinity,\"d\":{}}";
    size_t n = 0;
    for (;; n++) {
        struct sl_error err = {0};
        struct sl_settings *s = NULL;
        sl_mem_fail_after((int64_t)n);
        enum sl_code c = sl_settings_read(&s, text, sizeof text - 1, "c", &err);
        sl_mem_fail_after(-1);
        if (c == SL_OK) {
            sl_settings_close(s);
            break;
        }
        assert_int_equal(c, SL_E_NO_MEMORY);
        assert_null(s);
    }
    assert_true(n >= 4);
}

/* --- directories --- */

static void put(const char *folder, const char *file, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void take(const char *folder, const char *file)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    assert_int_equal(remove(path), 0);
}

static void refuse_folder(const char *path, enum sl_code code, const char *part)
{
    struct sl_error err = {0};
    struct sl_tensors *t = NULL;
    enum sl_code c = sl_tensors_open(&t, path, &err);
    if (c != code || t || !strstr(err.message, part) || !strstr(err.message, path))
        fail_msg("%s: %s; expected %s: %s", sl_code_name(c), c ? err.message : "",
                 sl_code_name(code), part);
}

static void test_folder(void **unused)
{
    (void)unused;
    struct rule_files f;
    char path[80];
    struct sl_error err;
    struct sl_tensors *t = NULL;
    struct sl_model *m = NULL;
    rule_write(&rules[0], &f);
    assert_int_equal(sl_tensors_open(&t, f.path, &err), SL_OK);
    const char *base = strrchr(f.folder, '/') + 1;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", base);
    assert_string_equal(t->name, path);
    (void)snprintf(path, sizeof path, "%s/config.json", base);
    assert_string_equal(t->settings->name, path);
    assert_true(sl_settings_find(t->settings, "hidden_size")->number == 40);
    assert_string_equal(t->container, "safetensors");
    sl_tensors_close(t);
    (void)snprintf(path, sizeof path, "%s///", f.folder);
    const struct sl_model_options opt = {.path = path};
    assert_int_equal(sl_model_open(&m, &opt, &err), SL_OK);
    assert_string_equal(sl_model_info(m)->name, base);
    sl_model_close(m);
    /* the weights alone do not say what they are */
    m = NULL;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f.folder);
    assert_int_equal(sl_model_open(&m, &opt, &err), SL_E_MODEL_INVALID);
    assert_non_null(strstr(err.message, "config.json"));
    rule_remove(&f);
}

static void test_unfinished_folders(void **unused)
{
    (void)unused;
    char folder[] = "/tmp/slate-settings-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    refuse_folder(folder, SL_E_FILE_UNSUPPORTED, "is a directory without model.safetensors");
    put(folder, "pytorch_model.bin", "x");
    put(folder, "config.json", "{\"a\":1}");
    refuse_folder(folder, SL_E_FILE_TRUNCATED, "pytorch_model.bin: has only 1 bytes");
    take(folder, "config.json");
    put(folder, "model.safetensors", "short");
    refuse_folder(folder, SL_E_FILE_NOT_FOUND, "config.json: cannot be read");
    put(folder, "config.json", "{\"a\":1}");
    refuse_folder(folder, SL_E_FILE_TRUNCATED, "model.safetensors: has only 5 bytes");
    take(folder, "config.json");
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    refuse_folder(folder, SL_E_FILE_UNSUPPORTED, "config.json: is not a regular file");
    take(folder, "config.json");
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait */
    refuse_folder(folder, SL_E_FILE_UNSUPPORTED, "config.json: is not a regular file");
    take(folder, "config.json");
    take(folder, "pytorch_model.bin");
    take(folder, "model.safetensors");
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(symlink(".", path), 0);
    refuse_folder(folder, SL_E_FILE_UNSUPPORTED, "without model.safetensors");
    take(folder, "model.safetensors");
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_pythons_words),
        cmocka_unit_test(test_tagged_numbers),
        cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_unfinished_folders),
    };
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
