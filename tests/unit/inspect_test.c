/* inspect_test.c: `slate inspect`, called in this process with stdout and stderr into a file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "server/cli/cli.h"
#include "tests/support/bytes.h"
#include "tests/support/cli_run.h"
#include "tests/support/gguf_maker.h"
#include "tests/support/rules.h"

static const char header[] =
    "{\"emb\\u001b[31m.weight\":{\"dtype\":\"BF16\",\"shape\":[1000,2],\"data_offsets\":[0,4000]},"
    "\"blocks.0.att.r_k\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[4000,4008]},"
    "\"blocks.0.att.w1\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4008,4012]},"
    "\"__metadata__\":{\"made\\nby\":\"a \\u0007 test\"}}";

static char *const name = (char[]){"inspect"};

static void make_model(char *path)
{
    struct bytes b = {0};
    make_safetensors(&b, header, 4012);
    write_temp(path, "m.safetensors", b.p, b.n);
    bytes_done(&b);
}

static void assert_holds(const char *text, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strstr(text, parts[i]))
            fail_msg("\"%s\" is not in:\n%s", parts[i], text);
}

static void test_text(void **state)
{
    (void)state;
    char path[128], out[8192];
    make_model(path);
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, (char *[]){name, path, NULL}),
                     SL_EXIT_OK);
    static const char *const parts[] = {
        "container   safetensors\n",
        "model       RWKV-7\n",
        "tensors     3\n",
        "parameters  2,003\n",
        "type        F32: 12 bytes in 2 tensors\n",
        "type        BF16: 4,000 bytes in 1 tensor\n",
        "metadata    made?by = a ? test\n",
        "blocks.0.att.r_k  F32                8  [1, 2]\n",
        "blocks.0.att.w1   F32                4  []\n",
        "emb?[31m.weight   BF16           4,000  [1000, 2]\n",
    };
    assert_holds(out, parts, sizeof parts / sizeof *parts);
    assert_null(strchr(out, '\033'));
    assert_null(strchr(out, '\a'));
    remove_temp(path);
}

static void test_json(void **state)
{
    (void)state;
    char path[128], out[8192];
    make_model(path);
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 3,
                             (char *[]){name, (char[]){"--json"}, path, NULL}),
                     SL_EXIT_OK);
    json_t *o = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "file")), path);
    assert_string_equal(json_string_value(json_object_get(o, "container")), "safetensors");
    assert_string_equal(json_string_value(json_object_get(o, "arch")), "rwkv7");
    assert_int_equal(json_integer_value(json_object_get(o, "n_tensors")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "n_params")), 2003);
    assert_int_equal(json_integer_value(json_object_get(o, "tensor_bytes")), 4012);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(o, "metadata"), "made\nby")),
        "a \a test");
    json_t *t = json_object_get(o, "tensors"), *last = json_array_get(t, 2);
    assert_int_equal(json_array_size(t), 3);
    assert_string_equal(json_string_value(json_object_get(last, "name")), "emb\033[31m.weight");
    assert_string_equal(json_string_value(json_object_get(last, "dtype")), "BF16");
    assert_int_equal(json_integer_value(json_object_get(last, "bytes")), 4000);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(last, "shape"), 0)), 1000);
    assert_true(json_is_true(json_object_get(last, "contiguous")));
    json_decref(o);
    remove_temp(path);
}

/* A directory: its settings are shown too. */
static void test_directory(void **state)
{
    (void)state;
    char out[32768];
    struct rule_files f;
    const struct rule *r = rules;
    while (r->title && strcmp(r->title, "mamba2, no norm") != 0) /* it has an Infinity */
        r++;
    rule_write(r, &f);
    char *args[] = {name, f.path, NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
    static const char *const parts[] = {
        "model       Mamba-2\n",
        "setting     model_type = mamba2\n",
        "setting     hidden_size = 40\n",
        "setting     rmsnorm = false\n",
        "setting     time_step_limit.1 = inf\n",
        "backbone.layers.1.mixer.A_log",
    };
    assert_holds(out, parts, sizeof parts / sizeof *parts);
    char *with_json[] = {name, (char[]){"--json"}, f.path, NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 3, with_json), SL_EXIT_OK);
    json_t *o = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    const json_t *s = json_object_get(o, "settings");
    assert_int_equal(json_integer_value(json_object_get(s, "hidden_size")), 40);
    assert_true(json_is_false(json_object_get(s, "rmsnorm")));
    assert_string_equal(json_string_value(json_object_get(s, "time_step_limit.1")), "Infinity");
    assert_string_equal(json_string_value(json_object_get(o, "arch")), "mamba2");
    json_decref(o);
    rule_remove(&f);
}

/* What it would be is what it is once it was opened, for every rule; and nothing is packed. */
static void test_what_would_load(void **state)
{
    (void)state;
    static char out[1 << 18];
    for (const struct rule *r = rules; r->title; r++) {
        struct rule_files f;
        if (r->choices) /* what no file says, inspect does not know */
            continue;
        rule_write(r, &f);
        char *args[] = {name, (char[]){"--json"}, f.path, NULL};
        assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 3, args), SL_EXIT_OK);
        rule_remove(&f);
        json_t *o = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
        const json_t *v = json_object_get(o, "loads");
        struct sl_model *m = rule_open(r, NULL);
        const struct sl_model_info *i = sl_model_info(m);
        assert_int_equal(json_integer_value(json_object_get(v, "state_bytes")), i->state_bytes);
        assert_int_equal(json_integer_value(json_object_get(v, "weight_bytes")), i->weight_bytes);
        assert_int_equal(json_integer_value(json_object_get(v, "n_layers")), i->n_layers);
        assert_int_equal(json_integer_value(json_object_get(v, "vocab_size")), i->vocab_size);
        assert_int_equal(json_integer_value(json_object_get(v, "sessions_per_gib")),
                         (1 << 30) / (long long)i->state_bytes);
        assert_null(json_object_get(o, "refused"));
        sl_model_close(m);
        json_decref(o);
    }
}

/* What would refuse to load says why. */
static void test_what_would_not_load(void **state)
{
    (void)state;
    char path[128], out[8192];
    make_model(path);
    char *args[] = {name, path, NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
    const char *refused = strstr(out, "\nrefused     ");
    assert_non_null(refused);
    assert_non_null(strstr(refused, "emb.weight")); /* the tensor that it lacks */
    assert_null(strstr(out, "loads as"));
    remove_temp(path);
}

/* A GGUF file: what it says of itself, its blocks, what it would load as. */
static void test_gguf(void **state)
{
    (void)state;
    static char out[1 << 15];
    char *args[] = {name, (char[]){"tests/vectors/gguf/mamba2-q4_k_m.gguf"}, NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
    static const char *const parts[] = {
        "container   gguf\n",
        "model       Mamba-2\n",
        "type        Q4_K: 115,776 bytes in 2 tensors\n", /* (548 + 256) · 256 / 256 · 144 */
        "type        Q6_K: 57,120 bytes in 1 tensor\n",   /* 272 · 210 */
        "metadata    general.architecture = mamba2\n",
        "metadata    mamba2.attention.layer_norm_rms_epsilon = 9.99999975e-06\n",
        "metadata    tokenizer.ggml.tokens = 272 values of type string\n",
        "loads as    Mamba-2: 1 layers, width 256, 4 heads of 64, vocabulary 272\n",
        " sessions a GiB\n",
        "bytes of packed weights beside the file\n",
        "backbone.layers.0.mixer.in_proj.weight   Q4_K          78,912  [548, 256]\n",
    };
    assert_holds(out, parts, sizeof parts / sizeof *parts);
    char *json[] = {name, (char[]){"--json"}, args[1], NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 3, json), SL_EXIT_OK);
    json_t *o = json_loads(out, 0, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "arch")), "mamba2");
    json_t *first = json_array_get(json_object_get(o, "tensors"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "name")),
                        "backbone.embeddings.weight");
    assert_string_equal(json_string_value(json_object_get(first, "origin")), "token_embd.weight");
    assert_string_equal(json_string_value(json_object_get(first, "dtype")), "Q6_K");
    assert_int_equal(json_integer_value(json_object_get(first, "bytes")), 57120);
    json_decref(o);
}

/* One of another kind of model is shown under its own names, and refused. */
static void test_gguf_of_another_kind(void **state)
{
    (void)state;
    char path[128], out[8192];
    struct gguf_maker g = {0};
    struct bytes b = {0};
    const float x[4] = {0};
    gguf_text(&g, "general.architecture", "qwen2");
    gguf_tensor(&g, "blk.0.attn_q.weight", GGML_F32, 2, (size_t[]){2, 2}, x, sizeof x);
    gguf_end(&g, &b);
    write_temp(path, "m.gguf", b.p, b.n);
    char *args[] = {name, path, NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
    assert_non_null(strstr(out, "its architecture is \"qwen2\"; what can be run is: rwkv7, rwkv6"));
    assert_non_null(strstr(out, "\nblk.0.attn_q.weight  F32 "));
    remove_temp(path);
    bytes_done(&b);
    gguf_done(&g);
}

#define GOLDEN "tests/vectors/snapshots/"

static void test_session(void **state)
{
    (void)state;
    char out[8192];
    char *args[] = {name, (char[]){GOLDEN "v1-paused.safetensors"}, NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
    static const char *const parts[] = {
        "model       a session's snapshot\n",
        "session     golden\n",
        "incarnation 010000000000000000000000000000ff\n",
        "version     3\n",
        "tokens seen 41\n",
        "created     2026-06-01 00:00:00 UTC\n",
        "of model    rwkv7\n",
        "numerics    slate-1 exact\n",
        "values      F32\n",
        "pending     token 104, 105, 226, 130\n",
        "paused      a turn: up to 95 tokens to go, 2 of them chosen and held back\n",
        "seed 18446744073709551557, 5 numbers drawn, temperature 0.7\n",
        "layers.1.mixer.state      F32              512  [2, 8, 8]\n",
    };
    assert_holds(out, parts, sizeof parts / sizeof *parts);
    assert_null(strstr(out, "edited"));
    args[1] = (char[]){GOLDEN "v1-empty.safetensors"};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
    assert_non_null(strstr(out, "session     (no id)\n"));
    assert_non_null(strstr(out, "pending     nothing: the session is empty\n"));
    args[1] = (char[]){GOLDEN "v1-edited.safetensors"};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
    assert_non_null(strstr(out, "edited      yes"));
}

static void test_session_json(void **state)
{
    (void)state;
    char out[16384];
    char *args[] = {name, (char[]){"--json"}, (char[]){GOLDEN "v1-paused.safetensors"}, NULL};
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 3, args), SL_EXIT_OK);
    json_t *o = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    const json_t *s = json_object_get(o, "session");
    assert_string_equal(json_string_value(json_object_get(o, "arch")), "rwkv7");
    assert_string_equal(json_string_value(json_object_get(s, "id")), "golden");
    assert_int_equal(json_integer_value(json_object_get(s, "version")), 3);
    assert_int_equal(json_integer_value(json_object_get(s, "tokens_seen")), 41);
    assert_true(json_integer_value(json_object_get(s, "created_ms")) == 1780272000123);
    assert_true(json_is_false(json_object_get(s, "edited")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(s, "metadata"), "who")),
                        "\xc3\xa4");
    const json_t *c = json_object_get(s, "continuation");
    assert_int_equal(json_array_size(json_object_get(c, "pending")), 4);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(c, "paused"), "chat_template")),
        "rwkv-brief");
    json_decref(o);
}

/* What it holds is shown, then what is wrong; the exit code says so too. */
static void test_damaged_session(void **state)
{
    (void)state;
    char path[128], out[16384];
    unsigned char file[8192];
    FILE *f = fopen(GOLDEN "v1-f32.safetensors", "rb");
    assert_non_null(f);
    size_t n = fread(file, 1, sizeof file, f);
    fclose(f);
    file[n - 3] ^= 1;
    write_temp(path, "s.safetensors", file, n);
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, (char *[]){name, path, NULL}),
                     SL_EXIT_FILE);
    assert_non_null(strstr(out, "metadata    session.id = golden\n"));
    assert_non_null(strstr(out, "slate inspect: the snapshot's data do not have the digest"));
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 3,
                             (char *[]){name, (char[]){"--json"}, path, NULL}),
                     SL_EXIT_FILE);
    assert_non_null(strstr(out, "\"session\":null"));
    remove_temp(path);
}

static void test_failures(void **state)
{
    (void)state;
    static const struct {
        const char *args[3];
        int argc, rc;
        const char *part;
    } cases[] = {
        {{"/nowhere/m.pth"}, 1, SL_EXIT_FILE, "slate inspect: /nowhere/m.pth: cannot be opened"},
        {{"/tmp"}, 1, SL_EXIT_FILE, "is a directory"},
        {{""}, 0, SL_EXIT_USAGE, "which file?"},
        {{"--yaml", "x"}, 2, SL_EXIT_USAGE, "unknown option --yaml"},
        {{"--json"}, 1, SL_EXIT_USAGE, "which file?"},
        {{"a", "b"}, 2, SL_EXIT_USAGE, "one file at a time: b"},
        {{"--", "--json"}, 2, SL_EXIT_FILE, "--json: cannot be opened"},
        {{"-"}, 1, SL_EXIT_FILE, "-: cannot be opened"},
        {{"--help"}, 1, SL_EXIT_OK, "Usage: slate inspect"},
    };
    char out[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *argv[5] = {name};
        for (int k = 0; k < cases[i].argc; k++)
            argv[k + 1] = (char *)(uintptr_t)cases[i].args[k];
        assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, cases[i].argc + 1, argv),
                         cases[i].rc);
        if (!strstr(out, cases[i].part))
            fail_msg("\"%s\" is not in:\n%s", cases[i].part, out);
    }
}

/* Every command: what it prints is the result, and one that could not be written is none. */
static void test_a_full_disk(void **state)
{
    char path[128], said[4096];
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    (void)state;
    assert_true(full >= 0);
    make_model(path);
    const char *const all[][10] = {
        {"--version"},
        {"--help"},
        {"inspect", path},
        {"inspect", path, "--json"},
        {"bench", "--shape=rwkv7-tiny", "--batch=1", "--rounds=1", "--json"},
        {"bench", "--shape=rwkv7-tiny", "--batch=1", "--rounds=1", "--csv"},
        {"probe", "rule", "--json"},
        {"convert", "--help"},
        {"sessions", "--help"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int rc = cli_end(&(struct cli_program){.args = all[i], .out = full}, said, sizeof said);
        if (rc != SL_EXIT_FAILED || !strstr(said, "standard output cannot be written"))
            fail_msg("%s %s: exit code %d, and says: %s", all[i][0], all[i][1] ? all[i][1] : "", rc,
                     said);
    }
    close(full);
    remove_temp(path);
}

/* The tokenizer and the template that lie in a directory, or what is wrong with them. */
static void test_tokenizer(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *config;
        const char *parts[2];
    } cases[] = {
        {"{\"model\":{\"vocab\":{\"a\":0,\"<e>\":1},\"merges\":[]}}",
         "{\"eos_token\":\"<e>\",\"add_bos_token\":true,\"bos_token\":\"a\","
         "\"chat_template\":\"rwkv-world\"}",
         {"tokenizer   bpe, 2 ids; begins with 0; ends with 1\n", "template    rwkv\n"}},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "{\"chat_template\":\"{{ messages }}\"}",
         {"tokenizer   bpe, 1 ids\n",
          "template    not known here: requests with messages want --chat-template\n"}},
        {"{\"model\":{\"type\":\"WordPiece\"}}",
         "{}",
         {"tokenizer   refused: the tokenizer \"", "the type \"WordPiece\" is not known here"}},
    };
    struct rule_files files;
    size_t r = 0;
    while (strcmp(rules[r].arch, "gla") != 0)
        r++;
    rule_write(&rules[r], &files);
    char tokenizer[96], config[96], out[65536];
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", files.folder);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", files.folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = fopen(tokenizer, "w"), *g = fopen(config, "w");
        assert_true(f && g);
        fputs(cases[i].tokenizer, f);
        fputs(cases[i].config, g);
        fclose(f);
        fclose(g);
        assert_int_equal(
            cli_run(sl_cli_inspect, out, sizeof out, 2, (char *[]){name, files.folder, NULL}),
            SL_EXIT_OK);
        for (size_t k = 0; k < 2; k++)
            if (!strstr(out, cases[i].parts[k]))
                fail_msg("\"%s\" is not in:\n%s", cases[i].parts[k], out);
    }
    assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 3,
                             (char *[]){name, (char[]){"--json"}, files.folder, NULL}),
                     SL_EXIT_OK);
    json_t *o = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    assert_true(json_is_null(json_object_get(o, "tokenizer")));
    assert_non_null(
        strstr(json_string_value(json_object_get(o, "tokenizer_refused")), "WordPiece"));
    json_decref(o);
    (void)unlink(tokenizer);
    (void)unlink(config);
    rule_remove(&files);
}

/* RWKV-7 as Hugging Face's folders have it: the World vocabulary, and a template that begins with
 * its token 0; what it names as an end is none. */
static void test_world_folder(void **state)
{
    (void)state;
    static const struct {
        const char *config, *parts[2];
    } cases[] = {
        {"{\"bos_token\":\"<|rwkv_tokenizer_end_of_text|>\",\"eos_token\":\"\\n\\n\","
         "\"tokenizer_class\":\"RwkvTokenizer\",\"chat_template\":\""
         "{{ '<|rwkv_tokenizer_end_of_text|>' }}{% for message in messages %}{% if "
         "message['role'] == 'user' %}{{'User: ' + message['content'] + '\\n\\n'}}{% elif "
         "message['role'] == 'system' %}{{'System: ' + message['content'] + '\\n\\n'}}{% elif "
         "message['role'] == 'assistant' %}{{'Assistant: ' + message['content'] + '\\n\\n'}}"
         "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}\"}",
         {"tokenizer   rwkv_world, 257 ids; begins with 0; ends with 0\n", "template    rwkv\n"}},
        /* another one that begins so */
        {"{\"chat_template\":\"{{- \\\"<|rwkv_tokenizer_end_of_text|>\\\" }}{{ messages }}\"}",
         {"; begins with 0; ends with 0\n", "template    not known here"}},
        {"{\"chat_template\":\"rwkv-world\"}",
         {"tokenizer   rwkv_world, 257 ids; ends with 0\n", "template    rwkv\n"}},
        {"{\"chat_template\":\"{{ messages }}<|rwkv_tokenizer_end_of_text|>\"}",
         {"257 ids; ends with 0\n", "template    not known here"}},
        {"{\"bos_token\":\"<|rwkv_tokenizer_end_of_text|>\"}",
         {"257 ids; ends with 0\n", "setting"}},
    };
    struct rule_files files;
    size_t r = 0;
    while (strcmp(rules[r].title, "fla_rwkv7") != 0)
        r++;
    rule_write(&rules[r], &files);
    char world[96], config[96], out[65536];
    snprintf(world, sizeof world, "%s/rwkv_vocab_v20230424.txt", files.folder);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", files.folder);
    FILE *f = fopen(world, "w");
    assert_non_null(f);
    for (int i = 0; i < 256; i++) /* every byte by itself */
        fprintf(f, "%d b'\\x%02x' 1\n", i + 1, i);
    fclose(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        f = fopen(config, "w");
        assert_non_null(f);
        fputs(cases[i].config, f);
        fclose(f);
        char *args[] = {name, files.folder, NULL};
        assert_int_equal(cli_run(sl_cli_inspect, out, sizeof out, 2, args), SL_EXIT_OK);
        assert_holds(out, cases[i].parts, 2);
    }
    (void)unlink(world);
    (void)unlink(config);
    rule_remove(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_world_folder),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_what_would_load),
        cmocka_unit_test(test_what_would_not_load),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_of_another_kind),
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_session_json),
        cmocka_unit_test(test_damaged_session),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_a_full_disk),
    };
    return cmocka_run_group_tests_name("inspect", tests, NULL, NULL);
}
