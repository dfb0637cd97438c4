/* convert_cli_test.c: `slate convert` as a command, and that what it writes needs no other file:
 * the tokenizer, its beginnings and ends, and the chat template come out as they went in. */
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

#include "server/cli/cli.h"
#include "server/cli/load.h"
#include "tests/support/cli_run.h"
#include "tests/support/seeded.h"
#include "tests/support/tree.h"

enum { OUT_BYTES = 1 << 16 };

static char folder[48], in[64], out[64], words[64];
static char text[OUT_BYTES];

static void put_file(const char *dir, const char *name, const char *content)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs(content, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void copy_tokenizer(void)
{
    static char json[1 << 16];
    FILE *f = fopen("tests/vectors/tokenizer/qwen.json", "rb");
    assert_non_null(f);
    json[fread(json, 1, sizeof json - 1, f)] = '\0';
    fclose(f);
    put_file(words, "tokenizer.json", json);
    put_file(words, "tokenizer_config.json",
             "{\"eos_token\":\"<|im_end|>\",\"chat_template\":\"{% for message in messages "
             "%}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
             "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
             "}}{% endif %}\"}");
}

static int set_up(void **state)
{
    (void)state;
    static const struct seeded_shape shape = SEEDED_ODD; /* 1,001 tokens */
    struct seeded s;
    (void)snprintf(folder, sizeof folder, "/tmp/slate-convert-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(in, sizeof in, "%s/m.safetensors", folder);
    (void)snprintf(out, sizeof out, "%s/out.safetensors", folder);
    (void)snprintf(words, sizeof words, "%s/words", folder);
    assert_int_equal(mkdir(words, 0700), 0);
    copy_tokenizer();
    seeded_init(&s, &shape);
    seeded_write(&s, in);
    seeded_done(&s);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

/* `slate convert ARGUMENTS…`, up to a NULL; what it printed is in `text`. */
static int convert(const char *const *arguments)
{
    char *argv[16] = {(char[]){"convert"}};
    int n = 1;
    for (; arguments[n - 1]; n++)
        argv[n] = (char *)(uintptr_t)arguments[n - 1];
    return cli_run(sl_cli_convert, text, sizeof text, n, argv);
}

#define CONVERT(...) convert((const char *const[]){__VA_ARGS__, NULL})

static void must(int rc)
{
    if (rc != SL_EXIT_OK)
        fail_msg("%d: %s", rc, text);
}

static void says(int rc, int want, const char *part)
{
    if (rc != want || !strstr(text, part))
        fail_msg("%d, not %d: %s; expected %s", rc, want, text, part);
}

static struct sl_loaded load(const char *model, const char *tokenizer)
{
    struct sl_loaded l = {0};
    struct sl_error err;
    const struct sl_config c = {.model = model, .tokenizer = tokenizer};
    if (sl_cli_load(&l, &c, &err))
        fail_msg("%s: %s", model, err.message);
    return l;
}

/* Both would serve alike. */
static void same(struct sl_loaded a, struct sl_loaded b)
{
    unsigned char x[16], y[16];
    sl_tokenizer_fingerprint(a.tokenizer, x);
    sl_tokenizer_fingerprint(b.tokenizer, y);
    assert_memory_equal(x, y, sizeof x);
    assert_string_equal(sl_tokenizer_kind(a.tokenizer), sl_tokenizer_kind(b.tokenizer));
    for (uint32_t id = 0; id < sl_model_info(a.model)->vocab_size; id++)
        assert_int_equal(sl_tokenizer_is_eos(a.tokenizer, id),
                         sl_tokenizer_is_eos(b.tokenizer, id));
    assert_int_equal(sl_tokenizer_eos(a.tokenizer), sl_tokenizer_eos(b.tokenizer));
    assert_int_equal(a.begin_token, b.begin_token);
    assert_int_equal(a.n_chat_template, b.n_chat_template);
    if (a.chat_template)
        assert_memory_equal(a.chat_template, b.chat_template, a.n_chat_template);
    assert_memory_equal(sl_model_info(a.model)->fingerprint, sl_model_info(b.model)->fingerprint,
                        16);
    sl_cli_load_done(&a);
    sl_cli_load_done(&b);
}

static int inspect(const char *path)
{
    return cli_run(sl_cli_inspect, text, sizeof text, 2,
                   (char *[]){(char[]){"inspect"}, (char *)(uintptr_t)path, NULL});
}

/* How many parameters `slate inspect` has counted last. */
static long parameters(void)
{
    char *end = NULL, digits[32];
    const char *p = strstr(text, "parameters  ");
    size_t n = 0;
    assert_non_null(p);
    for (p += strlen("parameters  "); *p != '\n' && n < sizeof digits - 1; p++)
        if (*p != ',')
            digits[n++] = *p;
    digits[n] = '\0';
    long count = strtol(digits, &end, 10);
    assert_true(count > 0 && !*end);
    return count;
}

static void test_tokenizer_json(void **state)
{
    (void)state;
    must(inspect(in));
    const long n_parameters = parameters();
    must(CONVERT("--tokenizer", words, in, out));
    assert_non_null(strstr(text, "tokenizer bpe; values as they were"));
    struct sl_loaded l = load(out, NULL);
    assert_true(sl_tokenizer_eos(l.tokenizer) >= 0 && l.chat_template);
    sl_cli_load_done(&l);
    same(load(in, words), load(out, NULL));
    must(inspect(out));
    assert_int_equal(parameters(), n_parameters); /* the vocabulary has none */
    assert_non_null(strstr(text, "tokenizer   bpe, "));
    assert_non_null(strstr(text, "template    chatml\n"));
    assert_non_null(strstr(text, "loads as    RWKV-7: 3 layers"));
    assert_non_null(strstr(text, "sessions a GiB"));
    /* Once more, and narrower: it goes on with what it has. */
    char again[80];
    (void)snprintf(again, sizeof again, "%s/again.safetensors", folder);
    must(CONVERT("--type", "f16", out, again));
    assert_non_null(strstr(text, "tokenizer bpe; 41 matrices converted, with rounding"));
    same(load(in, words), load(again, NULL));
    must(CONVERT("--force", "--type", "q4", out, again));
    assert_non_null(strstr(text, "tokenizer bpe; 19 matrices converted, with rounding"));
    same(load(in, words), load(again, NULL));
    must(inspect(again));
    assert_non_null(strstr(text, "type        Q4: "));
    assert_non_null(strstr(text, "type        Q5: 66,066 bytes in 1 tensor\n"));
    assert_non_null(strstr(text, "loads as    RWKV-7: 3 layers"));
    says(CONVERT("--force", "--type", "f32", again, out), SL_EXIT_USAGE, "narrowed to Q4");
}

/* The model and its tokenizer in one directory. */
static void test_directory(void **state)
{
    (void)state;
    char moved[96];
    (void)snprintf(moved, sizeof moved, "%s/model.safetensors", words);
    assert_int_equal(link(in, moved), 0);
    put_file(words, "config.json", "{}");
    must(CONVERT("--force", words, out));
    same(load(words, NULL), load(out, NULL));
    says(CONVERT("--force", words, moved), SL_EXIT_USAGE, "is what is to be converted");
}

static void test_options(void **state)
{
    (void)state;
    must(
        CONVERT("--tokenizer", "bytes", "--begin-token", "3", "--chat-template", "plain", in, out));
    struct sl_loaded l = load(out, NULL);
    assert_string_equal(sl_tokenizer_kind(l.tokenizer), "bytes");
    assert_int_equal(l.begin_token, 3);
    assert_string_equal(l.chat_template, "plain");
    sl_cli_load_done(&l);
    must(inspect(out));
    assert_non_null(strstr(text, "template    plain\n"));
    /* An option of the server wins. */
    struct sl_error err;
    const struct sl_config c = {.model = out, .begin_token = "none", .tokenizer = words};
    assert_int_equal(sl_cli_load(&l, &c, &err), SL_OK);
    assert_int_equal(l.begin_token, -1);
    assert_string_equal(sl_tokenizer_kind(l.tokenizer), "bpe");
    sl_cli_load_done(&l);
    /* Without a tokenizer it is what IN is: it needs one. */
    must(CONVERT("--force", "--tokenizer", "none", in, out));
    const struct sl_config none = {.model = out};
    assert_int_equal(sl_cli_load(&l, &none, &err), SL_E_USAGE);
    assert_non_null(strstr(err.message, "give --tokenizer"));
}

static void test_wrong_usage(void **state)
{
    (void)state;
    says(CONVERT(in), SL_EXIT_USAGE, "slate convert IN OUT.safetensors");
    says(CONVERT(in, out, out), SL_EXIT_USAGE, "slate convert IN OUT.safetensors");
    says(CONVERT("--type", "q5", in, out), SL_EXIT_USAGE,
         "--type q5: allowed are f32, bf16, f16, q8 and q4");
    says(CONVERT("--what", in, out), SL_EXIT_USAGE, "--what");
    says(CONVERT(in, out), SL_EXIT_USAGE, "1001 tokens and nothing says which: give --tokenizer");
    says(CONVERT("--tokenizer", "/nowhere.txt", in, out), SL_EXIT_FILE, "/nowhere.txt");
    says(CONVERT("/nowhere.pth", out), SL_EXIT_FILE, "/nowhere.pth");
    says(CONVERT("--tokenizer", "bytes", "--begin-token", "1001", in, out), SL_EXIT_USAGE,
         "below 1001");
    says(CONVERT("--tokenizer", "bytes", "--chat-template", "x", in, out), SL_EXIT_USAGE,
         "allowed are rwkv, ");
    says(CONVERT("--tokenizer", "bytes", "--rule", "a=b", in, out), SL_EXIT_USAGE,
         "leaves nothing open");
    assert_int_equal(access(out, F_OK), -1);
    must(CONVERT("--tokenizer", "bytes", in, out));
    says(CONVERT("--tokenizer", "bytes", in, out), SL_EXIT_USAGE, "--force replaces it");
    says(CONVERT("--help"), SL_EXIT_OK, "--chat-template NAME");
}

/* The text that a terminal shows is the same. */
static void test_generate(void **state)
{
    (void)state;
    static char other[OUT_BYTES];
    must(CONVERT("--tokenizer", words, "--type", "bf16", in, out));
    char *command = (char[]){"generate"}, *model = (char[]){"--model"},
         *prompt = (char[]){"--prompt=hello"}, *max = (char[]){"--max-tokens=12"},
         *greedy = (char[]){"--temperature=0"};
    char *before[] = {
        command, model,  in,  (char[]){"--tokenizer"}, words, (char[]){"--weights=bf16"}, prompt,
        max,     greedy, NULL};
    char *after[] = {command, model, out, prompt, max, greedy, NULL};
    assert_int_equal(cli_run(sl_cli_generate, other, sizeof other, 9, before), SL_EXIT_OK);
    must(cli_run(sl_cli_generate, text, sizeof text, 6, after));
    assert_true(strlen(text) > 3);
    assert_string_equal(text, other);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_tokenizer_json), TEST(test_directory), TEST(test_options),
        TEST(test_wrong_usage),    TEST(test_generate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
