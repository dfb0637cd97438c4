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
#include "engine/tokenizers/bpe.h"

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

/* Closes t. */
static void check_lines(struct sl_tokenizer *t, const char *name)
{
    char path[256];
    json_t *texts = read_lines(FOLDER "texts.jsonl");
    snprintf(path, sizeof path, FOLDER "%s.jsonl", name);
    json_t *lines = read_lines(path);
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
}

static void vectors(void **state)
{
    check_lines(open_fixture(*state), *state);
}

/* --- the same from arrays, as a GGUF file has them --- */

struct arrays {
    struct sl_bpe_arrays a;
    json_t *json; /* what the texts lie in */
    struct sl_bpe_text *tokens, *merges;
    int32_t *types;
    float *scores;
};

static struct sl_bpe_text text_of(const json_t *s)
{
    return (struct sl_bpe_text){json_string_value(s), json_string_length(s)};
}

static void fill_merges(struct arrays *k, const json_t *list)
{
    k->a.n_merges = json_array_size(list);
    k->a.merges = k->merges = calloc(k->a.n_merges, sizeof *k->merges);
    for (size_t i = 0; i < k->a.n_merges; i++) {
        json_t *m = json_array_get(list, i);
        if (json_is_array(m)) {
            const char *a = json_string_value(json_array_get(m, 0));
            json_t *s = json_sprintf("%s %s", a, json_string_value(json_array_get(m, 1)));
            json_array_set_new((json_t *)(uintptr_t)list, i, s);
            m = s;
        }
        k->merges[i] = text_of(m);
    }
}

/* Scores fall in the order of the ids, which is that of the merges. */
static void read_arrays(struct arrays *k, const char *name, const char *model, const char *pre)
{
    char path[256];
    json_error_t err;
    snprintf(path, sizeof path, FOLDER "%s.json", name);
    *k = (struct arrays){.json = json_load_file(path, 0, &err)};
    json_t *v = json_object_get(k->json, "model"), *vocab = json_object_get(v, "vocab"), *id;
    json_t *added = json_object_get(k->json, "added_tokens"), *token;
    const char *text;
    size_t i, n = json_object_size(vocab) + json_array_size(added);
    k->tokens = calloc(n, sizeof *k->tokens);
    k->types = calloc(n, sizeof *k->types);
    k->scores = calloc(n, sizeof *k->scores);
    k->a = (struct sl_bpe_arrays){
        .model = model, .pre = pre, .add_space_prefix = true, .begin = 1, .ends = {2}, .n_ends = 1};
    json_object_foreach(vocab, text, id)
    {
        i = (size_t)json_integer_value(id);
        k->tokens[i] = (struct sl_bpe_text){text, strlen(text)};
        k->types[i] = strncmp(text, "<0x", 3) == 0 ? SL_BPE_BYTE : SL_BPE_NORMAL;
        k->scores[i] = -(float)i;
        k->a.n_tokens = i >= k->a.n_tokens ? i + 1 : k->a.n_tokens;
    }
    json_array_foreach(added, i, token)
    {
        size_t at = (size_t)json_integer_value(json_object_get(token, "id"));
        bool special = json_is_true(json_object_get(token, "special"));
        k->tokens[at] = text_of(json_object_get(token, "content"));
        k->types[at] = special ? SL_BPE_CONTROL : SL_BPE_USER_DEFINED;
        if (strcmp(k->tokens[at].s, "<unk>") == 0)
            k->types[at] = SL_BPE_UNKNOWN;
        k->a.n_tokens = at >= k->a.n_tokens ? at + 1 : k->a.n_tokens;
    }
    fill_merges(k, json_object_get(v, "merges"));
    k->a.tokens = k->tokens;
    k->a.types = k->types;
    k->a.scores = k->scores;
}

static void arrays_done(struct arrays *k)
{
    json_decref(k->json);
    free(k->tokens);
    free(k->merges);
    free(k->types);
    free(k->scores);
}

static void from_arrays(void **state)
{
    (void)state;
    static const char *const rows[][3] = {{"neox", "gpt2", "mpt"},
                                          {"llama3", "gpt2", "llama-bpe"},
                                          {"qwen", "gpt2", "qwen2"},
                                          {"llama", "llama", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arrays k;
        struct sl_tokenizer *t = NULL;
        struct sl_error err = {.message = ""};
        read_arrays(&k, rows[i][0], rows[i][1], rows[i][2]);
        if (sl_tokenizer_open_arrays(&t, &k.a, rows[i][0], &err))
            fail_msg("%s", err.message);
        arrays_done(&k); /* nothing of them is kept */
        assert_int_equal(sl_tokenizer_eos(t), 2);
        assert_int_equal(sl_tokenizer_begin(t), 1);
        check_lines(t, rows[i][0]);
    }
}

static void refused_arrays(void **state)
{
    (void)state;
    struct arrays k;
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    read_arrays(&k, "neox", "gpt2", NULL);
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_UNSUPPORTED);
    assert_non_null(strstr(err.message, "tokenizer.ggml.pre, is not given"));
    k.a.pre = "hunyuan";
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_UNSUPPORTED);
    assert_non_null(strstr(err.message, "\"hunyuan\", which is not known here"));
    k.a.pre = "mpt";
    k.merges[7] = (struct sl_bpe_text){"qq zz", 5};
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_CORRUPT);
    assert_non_null(strstr(err.message, "merges[7]: the vocabulary does not have \"qq\""));
    k.a.n_merges = 7;
    k.tokens[300] = k.tokens[299];
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_CORRUPT);
    assert_non_null(strstr(err.message, "the ids 299 and 300 have one text"));
    k.types[300] = 9;
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_CORRUPT);
    assert_non_null(strstr(err.message, "tokens[300]: its type is none of 1 to 6"));
    k.types[300] = SL_BPE_UNUSED;
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_OK);
    sl_tokenizer_close(t);
    t = NULL;
    k.tokens[5] = (struct sl_bpe_text){"\xff", 1};
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_CORRUPT);
    k.a.ends[0] = 1 << 20;
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_CORRUPT);
    k.a.model = "bert";
    k.a.ends[0] = 0;
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_UNSUPPORTED);
    k.a.model = "llama";
    k.scores[3] = 0.0f / 0.0f;
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_CORRUPT);
    assert_non_null(strstr(err.message, "scores[3]: is not a number"));
    k.a.scores = NULL;
    assert_int_equal(sl_tokenizer_open_arrays(&t, &k.a, "x", &err), SL_E_FILE_CORRUPT);
    assert_null(t);
    arrays_done(&k);
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
        cmocka_unit_test(from_arrays),
        cmocka_unit_test(refused_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
