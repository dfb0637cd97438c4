/* bpe_test.c: tokenizer.json files of several kinds against the ids and texts that Hugging Face's
 * tokenizers library gave for them: tokenizer/README.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "slate/tokenizer.h"

#define FOLDER "tests/vectors/tokenizer/"

enum { LINES_MAX = 4096 };

static json_t *read_lines(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s cannot be opened", path);
    json_t *all = json_array();
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, f) > 0) {
        json_error_t err;
        json_t *v = json_loads(line, JSON_DECODE_ANY | JSON_ALLOW_NUL, &err);
        if (!v)
            fail_msg("%s: %s", path, err.text);
        json_array_append_new(all, v);
    }
    free(line);
    fclose(f);
    return all;
}

static struct sl_tokenizer *open_fixture(const char *name)
{
    char path[256];
    struct sl_tokenizer *t = NULL;
    struct sl_error err = {.message = ""};
    snprintf(path, sizeof path, FOLDER "%s.json", name);
    if (sl_tokenizer_open(&t, path, &err))
        fail_msg("%s", err.message);
    assert_string_equal(sl_tokenizer_kind(t), "bpe");
    return t;
}

/* --- both directions --- */

static void print_ids(const char *what, const uint32_t *ids, size_t n)
{
    fprintf(stderr, "%s", what);
    for (size_t i = 0; i < n; i++)
        fprintf(stderr, " %u", ids[i]);
    fprintf(stderr, "\n");
}

static void check_encode(const struct sl_tokenizer *t, const char *name, size_t line,
                         const json_t *text, const uint32_t *ids, size_t n)
{
    struct sl_token_list out = {0};
    struct sl_error err = {.message = ""};
    struct sl_tokenizer_text in = {.s = json_string_value(text), .n = json_string_length(text)};
    if (sl_tokenizer_encode(t, &in, &out, &err))
        fail_msg("%s, text %zu: %s", name, line, err.message);
    if (out.n != n || (n && memcmp(out.v, ids, n * sizeof *ids) != 0)) {
        fprintf(stderr, "%s, text %zu: \"%s\"\n", name, line, json_string_value(text));
        print_ids("expected", ids, n);
        print_ids("got     ", out.v, out.n);
        fail();
    }
    sl_token_list_done(&out);
}

/* The joined bytes of the tokens, as UTF-8. The caller frees. */
static char *decoded(const struct sl_tokenizer *t, const uint32_t *ids, size_t n, size_t *ret_n)
{
    size_t n_raw = 0;
    char *raw = malloc(n * SL_TOKEN_BYTES_MAX + 1);
    char *text = malloc(3 * n * SL_TOKEN_BYTES_MAX + 1);
    assert_non_null(raw);
    assert_non_null(text);
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        size_t len, plain;
        const unsigned char *s =
            first ? sl_tokenizer_first_bytes(t, ids[i], &len) : sl_tokenizer_bytes(t, ids[i], &len);
        if (len)
            memcpy(raw + n_raw, s, len);
        n_raw += len;
        (void)sl_tokenizer_bytes(t, ids[i], &plain);
        first = first && !plain;
    }
    *ret_n = sl_utf8_repair(text, raw, n_raw, true, NULL);
    text[*ret_n] = '\0';
    free(raw);
    return text;
}

static bool has_replacement(const char *s, size_t n)
{
    return memmem(s, n, "\xEF\xBF\xBD", 3) != NULL;
}

/* Where bytes are no text, how many U+FFFD stand for them is the library's own affair. */
static void check_decode(const struct sl_tokenizer *t, const char *name, size_t line,
                         const json_t *text, const uint32_t *ids, size_t n)
{
    size_t len;
    char *got = decoded(t, ids, n, &len);
    const char *expected = json_string_value(text);
    size_t n_expected = json_string_length(text);
    if (len != n_expected || memcmp(got, expected, len) != 0) {
        if (!has_replacement(got, len) || !has_replacement(expected, n_expected)) {
            print_ids("ids", ids, n);
            fail_msg("%s, line %zu: expected \"%s\", got \"%s\"", name, line, expected, got);
        }
    }
    free(got);
}

static size_t check_fixture(const char *name)
{
    char path[256];
    json_t *texts = read_lines(FOLDER "texts.jsonl");
    snprintf(path, sizeof path, FOLDER "%s.jsonl", name);
    json_t *lines = read_lines(path);
    struct sl_tokenizer *t = open_fixture(name);
    size_t n = json_array_size(lines), n_texts = json_array_size(texts);
    assert_true(n > n_texts && n_texts > 300 && n < LINES_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(lines, i), *list = json_object_get(v, "ids");
        const json_t *text = i < n_texts ? json_array_get(texts, i) : NULL;
        const json_t *back = json_object_get(v, "decoded");
        size_t n_ids = json_array_size(list);
        uint32_t *ids = malloc((n_ids + 1) * sizeof *ids);
        assert_non_null(ids);
        for (size_t k = 0; k < n_ids; k++)
            ids[k] = (uint32_t)json_integer_value(json_array_get(list, k));
        if (text)
            check_encode(t, name, i, text, ids, n_ids);
        check_decode(t, name, i, back ? back : text, ids, n_ids);
        free(ids);
    }
    sl_tokenizer_close(t);
    json_decref(lines);
    json_decref(texts);
    return n;
}

static void vectors(void **state)
{
    check_fixture(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(vectors, "neox"),
        cmocka_unit_test_prestate(vectors, "llama"),
        cmocka_unit_test_prestate(vectors, "llama_first"),
        cmocka_unit_test_prestate(vectors, "llama3"),
        cmocka_unit_test_prestate(vectors, "qwen"),
        cmocka_unit_test_prestate(vectors, "digits"),
        cmocka_unit_test_prestate(vectors, "words"),
        cmocka_unit_test_prestate(vectors, "meta"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
