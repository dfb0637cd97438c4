/* gguf_vocabulary_test.c: the keys tokenizer.* of GGUF files: RWKV's escaped tokens, beginnings and
 * ends, and what contradicts itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "engine/formats/vocabulary.h"
#include "tests/support/gguf_maker.h"

enum { N = 264, CONTROL = 3, NORMAL = 1, UNUSED = 5 };

/* As Python's repr() of bytes has them, without the quotes. */
static char single[256][8];
static const char *tokens[N];
static int32_t types[N];

static void make_tokens(void)
{
    tokens[0] = "<s>";
    types[0] = CONTROL;
    for (unsigned i = 0; i < 256; i++) {
        const char *plain = i == '\t' ? "\\t" : i == '\n' ? "\\n" : i == '\r' ? "\\r" : NULL;
        if (plain)
            (void)snprintf(single[i], 8, "%s", plain);
        else if (i == '\\')
            (void)snprintf(single[i], 8, "\\\\");
        else if (i >= 32 && i < 127)
            (void)snprintf(single[i], 8, "%c", i);
        else
            (void)snprintf(single[i], 8, "\\x%02x", i);
        tokens[1 + i] = single[i];
        types[1 + i] = NORMAL;
    }
    static const char *const more[] = {"it's",  "\\n\\n",   "h\\xc3\\xa9", "\\'\"",
                                       "\\\\x", "[PAD262]", "[PAD263]"};
    for (size_t i = 257; i < N; i++) {
        tokens[i] = more[i - 257];
        types[i] = i < 262 ? NORMAL : UNUSED;
    }
}

/* Everything but ends. */
static void vocabulary(struct gguf_maker *g, const char *model)
{
    gguf_text(g, "tokenizer.ggml.model", model);
    gguf_texts(g, "tokenizer.ggml.tokens", tokens, N);
    gguf_words(g, "tokenizer.ggml.token_type", MAKE_I32, types, N);
}

static struct sl_tensors *open_file(struct gguf_maker *g, struct bytes *file)
{
    struct sl_tensors *t = NULL;
    struct sl_error err;
    gguf_end(g, file);
    if (sl_tensors_open_memory(&t, file->p, file->n, "v.gguf", &err) != SL_OK)
        fail_msg("%s", err.message);
    gguf_done(g);
    return t;
}

/* The file's tokenizer; the maker is done then. */
static struct sl_tokenizer *open_good(struct gguf_maker *g)
{
    struct bytes file = {0};
    struct sl_tensors *t = open_file(g, &file);
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err;
    assert_non_null(t->vocabulary);
    if (sl_vocabulary_open(&tokenizer, t->vocabulary, "v", &err) != SL_OK)
        fail_msg("%s", err.message);
    sl_tensors_close(t); /* nothing of it is kept */
    bytes_done(&file);
    return tokenizer;
}

static void assert_refused(struct gguf_maker *g, enum sl_code want, const char *part)
{
    struct bytes file = {0};
    struct sl_tensors *t = open_file(g, &file);
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_error err = {0};
    assert_non_null(t->vocabulary);
    enum sl_code c = sl_vocabulary_open(&tokenizer, t->vocabulary, "v", &err);
    if (c != want || !strstr(err.message, part))
        fail_msg("wanted %s \"%s\", got %s \"%s\"", sl_code_name(want), part, sl_code_name(c),
                 err.message);
    assert_null(tokenizer);
    sl_tensors_close(t);
    bytes_done(&file);
}

static void assert_ids(const struct sl_tokenizer *t, const char *text, const uint32_t *want,
                       size_t n)
{
    struct sl_token_list list = {0};
    const struct sl_tokenizer_text x = {.s = text, .n = strlen(text)};
    assert_int_equal(sl_tokenizer_encode(t, &x, &list, NULL), SL_OK);
    assert_int_equal(list.n, n);
    assert_memory_equal(list.v, want, n * sizeof *want);
    sl_token_list_done(&list);
}

static void test_rwkv(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    vocabulary(&g, "rwkv");
    gguf_u32(&g, "tokenizer.ggml.eos_token_id", 0);
    gguf_u32(&g, "tokenizer.ggml.bos_token_id", 0);
    gguf_u32(&g, "tokenizer.ggml.eot_token_id", 258); /* "\n\n", which is text */
    struct sl_tokenizer *t = open_good(&g);
    assert_string_equal(sl_tokenizer_kind(t), "rwkv_world");
    assert_int_equal(sl_tokenizer_size(t), 262);
    assert_int_equal(sl_tokenizer_eos(t), 0);
    assert_false(sl_tokenizer_is_eos(t, 258));
    assert_int_equal(sl_tokenizer_begin(t), -1);
    assert_ids(t, "it's \n\nh\xc3\xa9\\x'\"'\x01\xff",
               (const uint32_t[]){257, 33, 258, 259, 261, 260, 40, 2, 256}, 9);
    size_t n;
    const unsigned char *p = sl_tokenizer_bytes(t, 260, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(p, "'\"", 2);
    assert_null(sl_tokenizer_bytes(t, 262, &n));
    sl_tokenizer_close(t);
}

static void test_beginnings_and_ends(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    vocabulary(&g, "rwkv");
    gguf_u32(&g, "tokenizer.ggml.bos_token_id", 0);
    gguf_bool(&g, "tokenizer.ggml.add_bos_token", true);
    gguf_u32(&g, "tokenizer.ggml.eos_token_id", 33);
    gguf_u32(&g, "tokenizer.ggml.eot_token_id", 0); /* a token of its own */
    gguf_u32(&g, "tokenizer.ggml.eom_token_id", UINT32_MAX);
    struct sl_tokenizer *t = open_good(&g);
    assert_int_equal(sl_tokenizer_begin(t), 0);
    assert_int_equal(sl_tokenizer_eos(t), 33);
    assert_true(sl_tokenizer_is_eos(t, 0));
    sl_tokenizer_close(t);
}

static void test_no_vocabulary(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    struct bytes file = {0};
    struct sl_tensors *t = open_file(&g, &file);
    assert_null(t->vocabulary);
    sl_tensors_close(t);
    bytes_done(&file);
}

static void test_chat_template(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    struct bytes file = {0};
    vocabulary(&g, "t5");
    gguf_text(&g, "tokenizer.chat_template", "{{ x }}");
    struct sl_tensors *t = open_file(&g, &file);
    assert_string_equal(t->vocabulary->chat_template, "{{ x }}");
    sl_tensors_close(t);
    bytes_done(&file);
}

static void test_wrong_keys(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    vocabulary(&g, "t5");
    assert_refused(&g, SL_E_FILE_UNSUPPORTED,
                   "tokenizer.ggml.model is \"t5\"; what can be read is: rwkv, gpt2, llama");
    gguf_u32(&g, "tokenizer.ggml.model", 5);
    assert_refused(&g, SL_E_FILE_CORRUPT, "tokenizer.ggml.model is no text");
    gguf_text(&g, "tokenizer.ggml.model", "rwkv");
    assert_refused(&g, SL_E_FILE_CORRUPT, "tokenizer.ggml.tokens is absent");
    gguf_text(&g, "tokenizer.ggml.model", "rwkv");
    gguf_words(&g, "tokenizer.ggml.tokens", MAKE_I32, types, N);
    assert_refused(&g, SL_E_FILE_CORRUPT, "tokenizer.ggml.tokens is no array of type string");
    gguf_text(&g, "tokenizer.ggml.model", "rwkv");
    gguf_texts(&g, "tokenizer.ggml.tokens", tokens, N);
    gguf_words(&g, "tokenizer.ggml.token_type", MAKE_I32, types, N - 1);
    assert_refused(&g, SL_E_FILE_CORRUPT,
                   "tokenizer.ggml.token_type has 263 entries for 264 tokens");
    vocabulary(&g, "rwkv");
    gguf_words(&g, "tokenizer.ggml.scores", MAKE_I32, types, N);
    assert_refused(&g, SL_E_FILE_CORRUPT, "tokenizer.ggml.scores is no array of type f32");
    vocabulary(&g, "rwkv");
    gguf_u32(&g, "tokenizer.ggml.eos_token_id", N);
    assert_refused(&g, SL_E_FILE_CORRUPT,
                   "tokenizer.ggml.eos_token_id is 264; there are 264 tokens");
    vocabulary(&g, "rwkv");
    gguf_text(&g, "tokenizer.ggml.bos_token_id", "<s>");
    assert_refused(&g, SL_E_FILE_CORRUPT, "tokenizer.ggml.bos_token_id is no number");
    vocabulary(&g, "rwkv");
    gguf_u32(&g, "tokenizer.ggml.add_bos_token", 1);
    assert_refused(&g, SL_E_FILE_CORRUPT, "tokenizer.ggml.add_bos_token is no bool");
}

/* One token of RWKV's, put in the place of token 261. */
static void assert_token_refused(const char *token, const char *part)
{
    struct gguf_maker g = {0};
    const char *before = tokens[261];
    tokens[261] = token;
    vocabulary(&g, "rwkv");
    tokens[261] = before;
    assert_refused(&g, SL_E_FILE_CORRUPT, part);
}

static void test_wrong_tokens(void **state)
{
    (void)state;
    assert_token_refused("", "token 261 has 0 bytes");
    assert_token_refused("a\nb", "token 261 has a line's end that is not escaped");
    assert_token_refused("a\\", "bad literal of token 261");
    assert_token_refused("\\x4", "bad literal of token 261");
    assert_token_refused("\\x4'", "bad literal of token 261");
    assert_token_refused("\\q", "bad literal of token 261");
    struct gguf_maker g = {0};
    types[40] = UNUSED;
    vocabulary(&g, "rwkv");
    assert_refused(&g, SL_E_FILE_CORRUPT, "no token for the single byte 0x27");
    types[40] = types[0] = NORMAL;
    vocabulary(&g, "rwkv");
    assert_refused(&g, SL_E_FILE_UNSUPPORTED, "token 0 is text");
    types[0] = CONTROL;
}

static void test_no_memory(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    struct bytes file = {0};
    vocabulary(&g, "rwkv");
    gguf_end(&g, &file);
    enum sl_code c = SL_E_NO_MEMORY;
    int n = 0;
    for (; c; n++) {
        struct sl_tensors *t = NULL;
        struct sl_tokenizer *tokenizer = NULL;
        sl_mem_fail_after(n);
        c = sl_tensors_open_memory(&t, file.p, file.n, "v.gguf", NULL);
        if (!c)
            c = sl_vocabulary_open(&tokenizer, t->vocabulary, "v", NULL);
        sl_mem_fail_after(-1);
        assert_true(c == SL_OK || c == SL_E_NO_MEMORY);
        assert_true((c == SL_OK) == (tokenizer != NULL));
        sl_tokenizer_close(tokenizer);
        sl_tensors_close(t);
    }
    assert_true(n > 10);
    gguf_done(&g);
    bytes_done(&file);
}

int main(void)
{
    make_tokens();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rwkv),          cmocka_unit_test(test_beginnings_and_ends),
        cmocka_unit_test(test_no_vocabulary), cmocka_unit_test(test_chat_template),
        cmocka_unit_test(test_wrong_keys),    cmocka_unit_test(test_wrong_tokens),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
