/* tokenizer_test.c: the World vocabulary against the 613 vectors that the official tokenizer made,
 * both ways, from the file as it is and from a copy with CRLF line ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "slate/tokenizer.h"

#define FOLDER "../shared/reference/tokenizer/"
#define VOCABULARY FOLDER "rwkv_vocab_v20230424.txt"
#define VECTORS FOLDER "rwkv_world_vectors.jsonl"

enum { N_VECTORS = 613 };

static unsigned char *read_all(const char *path, size_t *ret_n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long n = ftell(f);
    assert_true(n >= 0);
    rewind(f);
    unsigned char *p = malloc((size_t)n + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, (size_t)n, f), (size_t)n);
    fclose(f);
    p[n] = '\0';
    *ret_n = (size_t)n;
    return p;
}

static size_t decode_base64(const char *s, unsigned char *dst)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    uint32_t bits = 0, n_bits = 0;
    for (; *s && *s != '='; s++) {
        const char *d = strchr(digits, *s);
        assert_non_null(d);
        bits = bits << 6 | (uint32_t)(d - digits);
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            dst[n++] = (unsigned char)(bits >> n_bits);
        }
    }
    return n;
}

static void check_vector(const struct sl_tokenizer *t, const json_t *v)
{
    const char *b64 = json_string_value(json_object_get(v, "b64"));
    const json_t *want = json_object_get(v, "ids");
    assert_non_null(b64);
    assert_true(json_is_array(want));
    unsigned char *text = malloc(strlen(b64) + 1);
    size_t n = decode_base64(b64, text);
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    size_t n_ids = sl_tokenizer_encode_part(t, text, n, ids);
    assert_int_equal(n_ids, json_array_size(want));
    size_t at = 0;
    for (size_t i = 0; i < n_ids; i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(want, i));
        assert_int_equal(ids[i], id);
        size_t n_token;
        const unsigned char *token = sl_tokenizer_bytes(t, id, &n_token);
        assert_non_null(token);
        assert_true(n_token <= n - at);
        assert_memory_equal(token, text + at, n_token);
        at += n_token;
    }
    assert_int_equal(at, n);
    free(ids);
    free(text);
}

static void check_vectors(const struct sl_tokenizer *t)
{
    size_t n;
    unsigned char *lines = read_all(VECTORS, &n);
    size_t n_checked = 0;
    for (char *line = (char *)lines, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_error_t e;
        json_t *v = json_loadb(line, (size_t)(end - line), 0, &e);
        assert_non_null(v);
        check_vector(t, v);
        json_decref(v);
        n_checked++;
    }
    assert_int_equal(n_checked, N_VECTORS);
    free(lines);
}

static void skip_without_reference(void)
{
    if (access(VOCABULARY, R_OK) == 0)
        return;
    printf("skipped: %d cases of the World tokenizer: ../shared/reference is not here\n",
           (int)N_VECTORS);
    skip();
}

static struct sl_tokenizer *open_file(const char *path)
{
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    if (sl_tokenizer_open(&t, path, &err) != SL_OK)
        fail_msg("%s", err.message);
    return t;
}

static void test_vectors(void **state)
{
    (void)state;
    skip_without_reference();
    struct sl_tokenizer *t = open_file(VOCABULARY);
    assert_string_equal(sl_tokenizer_kind(t), "rwkv_world");
    assert_int_equal(sl_tokenizer_size(t), 65530);
    assert_int_equal(sl_tokenizer_eos(t), 0);
    check_vectors(t);
    sl_tokenizer_close(t);
}

static void test_vectors_crlf(void **state)
{
    (void)state;
    skip_without_reference();
    size_t n, n_crlf = 0;
    unsigned char *lf = read_all(VOCABULARY, &n);
    unsigned char *crlf = malloc(2 * n);
    for (size_t i = 0; i < n; i++) {
        if (lf[i] == '\n')
            crlf[n_crlf++] = '\r';
        crlf[n_crlf++] = lf[i];
    }
    assert_int_equal(n_crlf, n + 65529);
    struct sl_tokenizer *t = NULL, *as_it_is = open_file(VOCABULARY);
    struct sl_error err;
    if (sl_tokenizer_open_memory(&t, crlf, n_crlf, "crlf", &err) != SL_OK)
        fail_msg("%s", err.message);
    free(crlf);
    free(lf);
    check_vectors(t);
    unsigned char a[16], b[16];
    sl_tokenizer_fingerprint(t, a);
    sl_tokenizer_fingerprint(as_it_is, b);
    assert_memory_equal(a, b, sizeof a);
    sl_tokenizer_close(as_it_is);
    sl_tokenizer_close(t);
}

/* --- the same texts through a tokenizer.json: tokenizer/README.md --- */

static uint64_t hash_ids(const uint32_t *ids, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a over the ids as little-endian bytes */
    for (size_t i = 0; i < 4 * n; i++)
        h = (h ^ (ids[i / 4] >> 8 * (i % 4) & 0xFF)) * 0x100000001B3u;
    return h;
}

/* The texts that are UTF-8; a line of the file is a text's number, its tokens, and their hash. */
static void check_reference(const char *name)
{
    char path[128];
    size_t n, index, n_ids, n_checked = 0;
    snprintf(path, sizeof path, "tests/vectors/tokenizer/%s.json", name);
    struct sl_tokenizer *t = open_file(path);
    snprintf(path, sizeof path, "tests/vectors/tokenizer/%s.reference.txt", name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    unsigned char *lines = read_all(VECTORS, &n);
    char *line = (char *)lines;
    unsigned long long hash;
    for (size_t at = 0; fscanf(f, "%zu %zu %llx", &index, &n_ids, &hash) == 3; n_checked++) {
        for (; at < index; at++)
            line = strchr(line, '\n') + 1;
        json_t *v = json_loadb(line, (size_t)(strchr(line, '\n') - line), 0, NULL);
        const char *b64 = json_string_value(json_object_get(v, "b64"));
        assert_non_null(b64);
        unsigned char *text = malloc(strlen(b64) + 1);
        const struct sl_tokenizer_text in = {.s = text, .n = decode_base64(b64, text)};
        struct sl_token_list ids = {0};
        assert_int_equal(sl_tokenizer_encode(t, &in, &ids, NULL), SL_OK);
        assert_int_equal(ids.n, n_ids);
        assert_true(hash_ids(ids.v, ids.n) == hash);
        sl_token_list_done(&ids);
        free(text);
        json_decref(v);
    }
    assert_int_equal(n_checked, 418);
    fclose(f);
    free(lines);
    sl_tokenizer_close(t);
}

static void test_reference_texts(void **state)
{
    (void)state;
    static const char *const names[] = {"neox", "llama", "llama3", "qwen"};
    skip_without_reference();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_reference(names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_vectors_crlf),
        cmocka_unit_test(test_reference_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
