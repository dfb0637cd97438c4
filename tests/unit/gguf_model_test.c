/* gguf_model_test.c: GGUF files against the models they were made from, of every element type; and
 * whole files of what cannot be run, which are opened and refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"
#include "tests/support/gguf_convert.h"
#include "tests/support/gguf_models.h"
#include "tests/support/rules.h"
#include "tests/support/runner.h"

enum { N_PROMPT = 12 };

/* --- the same bits as before the conversion ----------------------------------------------------
 */

static float *logits_of(const struct sl_model *m)
{
    uint32_t tokens[N_PROMPT];
    struct runner r;
    for (size_t i = 0; i < N_PROMPT; i++)
        tokens[i] = (uint32_t)(i * 37 % sl_model_info(m)->vocab_size);
    runner_open(&r, m, 2, N_PROMPT, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, N_PROMPT);
    runner_feed(&r, state, tokens, N_PROMPT, 5, logits);
    sl_free(state);
    runner_close(&r);
    return logits;
}

static void assert_same(const struct sl_model *a, const struct sl_model *b)
{
    float *x = logits_of(a), *y = logits_of(b);
    assert_int_equal(sl_model_logits_stride(a), sl_model_logits_stride(b));
    assert_memory_equal(x, y, N_PROMPT * sl_model_logits_stride(a) * sizeof *x);
    assert_int_equal(sl_model_info(a)->state_bytes, sl_model_info(b)->state_bytes);
    assert_int_equal(sl_model_info(a)->n_params, sl_model_info(b)->n_params);
    assert_int_equal(sl_model_info(a)->n_unused, 0);
    sl_free(x);
    sl_free(y);
}

static struct sl_model *open_bytes(const void *p, size_t n, enum sl_dtype weights)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.weights = weights};
    if (sl_model_open_memory(&m, p, n, "m.gguf", &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    return m;
}

/* The list as a GGUF file, and as it is. */
static void make_both(struct bytes *file, const struct seeded *s, const struct gguf_sizes *sizes,
                      unsigned char **ret_plain, size_t *ret_n)
{
    struct gguf_maker g = {0};
    struct sl_tensors *t = NULL;
    *ret_plain = seeded_bytes(s, ret_n);
    assert_int_equal(sl_tensors_open_memory(&t, *ret_plain, *ret_n, "plain", NULL), SL_OK);
    gguf_from_tensors(&g, t, sizes);
    gguf_end(&g, file);
    gguf_done(&g);
    sl_tensors_close(t);
}

/* Three heads, ranks of any size, each element type. */
static void test_rwkv7_has_the_same_bits(void **state)
{
    (void)state;
    static const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct seeded_shape shape = SEEDED_ODD;
        struct seeded s;
        struct bytes file = {0};
        unsigned char *plain;
        size_t n;
        shape.dtype = types[i];
        seeded_init(&s, &shape);
        const struct gguf_sizes sizes = {"rwkv7", shape.n_layers, shape.d_model, shape.head_size,
                                         0,       types[i],       false,         GGUF_AS_IT_IS,
                                         NULL};
        make_both(&file, &s, &sizes, &plain, &n);
        struct sl_model *a = open_bytes(file.p, file.n, SL_DTYPE_NONE);
        struct sl_model *b = open_bytes(plain, n, SL_DTYPE_NONE);
        assert_int_equal(sl_model_info(a)->weights, types[i]);
        assert_same(a, b);
        sl_model_close(a);
        sl_model_close(b);
        seeded_done(&s);
        bytes_done(&file);
        free(plain);
    }
}

static const struct rule *rule_named(const char *title)
{
    const struct rule *r = rules;
    while (strcmp(r->title, title) != 0)
        r++;
    return r;
}

/* Without rescaling, halved in every layer, and the mixes apart. */
static void test_rwkv6_has_the_same_bits(void **state)
{
    (void)state;
    static const struct gguf_sizes sizes[] = {
        {"rwkv6", 2, 40, 10, 0, SL_DTYPE_F16, false, GGUF_AS_IT_IS, NULL},
        {"rwkv6", 2, 40, 10, 1, SL_DTYPE_F32, false, GGUF_AS_IT_IS, NULL},
        {"rwkv6", 2, 40, 10, 2, SL_DTYPE_F32, true, GGUF_AS_IT_IS, NULL},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct seeded s;
        struct bytes file = {0};
        unsigned char *plain;
        size_t n;
        rule_named("rwkv6")->list(&s);
        make_both(&file, &s, &sizes[i], &plain, &n);
        struct sl_model *a = open_bytes(file.p, file.n, SL_DTYPE_F32);
        struct sl_model *b = open_bytes(plain, n, SL_DTYPE_F32);
        assert_same(a, b);
        bool same = memcmp(sl_model_info(a)->fingerprint, sl_model_info(b)->fingerprint, 16) == 0;
        assert_false(same); /* the shapes of vectors are others: [40], not [1, 1, 40] */
        sl_model_close(a);
        sl_model_close(b);
        seeded_done(&s);
        bytes_done(&file);
        free(plain);
    }
}

/* Everything that can be in blocks is: matrices both ways round, those of RWKV-6's mixes in one
 * tensor, vectors cut from one, the embedding. The same bits as of a file with the blocks' values,
 * kept in any type. (Without --weights blocks of Q8_0 and Q4_0 are multiplied as they are:
 * vectors/gguf_test.) */
static void test_blocks_everywhere(void **state)
{
    (void)state;
    const struct seeded_shape shape = {.n_layers = 2,
                                       .d_model = 64,
                                       .head_size = 32,
                                       .d_ffn = 96,
                                       .vocab_size = 40,
                                       .rank_w = 32,
                                       .rank_a = 32,
                                       .rank_v = 64,
                                       .rank_g = 32,
                                       .dtype = SL_DTYPE_F32,
                                       .seed = 9};
    static const enum sl_dtype weights[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16, SL_DTYPE_Q8,
                                            SL_DTYPE_Q4};
    for (size_t i = 0; i < 2 * (sizeof weights / sizeof *weights); i++) {
        bool six = i % 2;
        struct gguf_sizes sizes = {six ? "rwkv6" : "rwkv7",
                                   2,
                                   six ? 32 : 64,
                                   six ? 16 : 32,
                                   six ? 1 : 0,
                                   SL_DTYPE_F32,
                                   false,
                                   GGUF_BLOCKS,
                                   NULL};
        struct seeded s;
        struct bytes blocks = {0}, values = {0};
        unsigned char *plain;
        size_t n;
        if (six)
            gguf_model_find("rwkv6-f16")->list(&s, SL_DTYPE_F32);
        else
            seeded_init(&s, &shape);
        make_both(&blocks, &s, &sizes, &plain, &n);
        free(plain);
        sizes.quantise = GGUF_BLOCK_VALUES;
        make_both(&values, &s, &sizes, &plain, &n);
        assert_true(blocks.n < values.n / 3);
        struct sl_model *a = open_bytes(blocks.p, blocks.n, weights[i / 2]);
        struct sl_model *b = open_bytes(values.p, values.n, weights[i / 2]);
        assert_same(a, b);
        sl_model_close(a);
        sl_model_close(b);
        seeded_done(&s);
        bytes_done(&blocks);
        bytes_done(&values);
        free(plain);
    }
}

/* The n-th allocation fails, for every n until nothing fails any more. */
static void test_no_memory(void **state)
{
    (void)state;
    const struct sl_model_options opt = {.path = "tests/vectors/gguf/rwkv7-q4_q8.gguf"};
    enum sl_code c = SL_E_NO_MEMORY;
    int n = 0;
    for (; c; n++) {
        struct sl_model *m = NULL;
        struct sl_error err = {0};
        sl_mem_fail_after(n);
        c = sl_model_open(&m, &opt, &err);
        sl_mem_fail_after(-1);
        if (c != SL_OK && c != SL_E_NO_MEMORY)
            fail_msg("%s", err.message);
        assert_true((c == SL_OK) == (m != NULL));
        sl_model_close(m);
    }
    assert_true(n > 20);
}

/* --- refused by name ---------------------------------------------------------------------------
 */

/* The smallest that could be run: RWKV-7 of two layers. */
static const struct seeded_shape smallest = {.n_layers = 2,
                                             .d_model = 8,
                                             .head_size = 4,
                                             .d_ffn = 8,
                                             .vocab_size = 4,
                                             .rank_w = 2,
                                             .rank_a = 2,
                                             .rank_v = 2,
                                             .rank_g = 2,
                                             .dtype = SL_DTYPE_F32,
                                             .seed = 3};

static void small(struct gguf_maker *g)
{
    const struct gguf_sizes sizes = {"rwkv7", 2, 8, 4, 0, SL_DTYPE_F32, false, GGUF_AS_IT_IS, NULL};
    struct seeded s;
    struct sl_tensors *t = NULL;
    size_t n;
    seeded_init(&s, &smallest);
    unsigned char *plain = seeded_bytes(&s, &n);
    assert_int_equal(sl_tensors_open_memory(&t, plain, n, "plain", NULL), SL_OK);
    gguf_from_tensors(g, t, &sizes);
    sl_tensors_close(t);
    seeded_done(&s);
    free(plain);
}

static void assert_opens_and_is_refused(const struct bytes *file, enum sl_code want,
                                        const char *part)
{
    struct sl_tensors *t = NULL;
    struct sl_error err;
    struct sl_model *m = NULL;
    if (sl_tensors_open_memory(&t, file->p, file->n, "m.gguf", &err) != SL_OK)
        fail_msg("wanted it to be opened: %s", err.message);
    assert_string_equal(t->container, "gguf");
    sl_tensors_close(t);
    enum sl_code c = sl_model_open_memory(&m, file->p, file->n, "m.gguf", NULL, &err);
    if (c != want || !strstr(err.message, part) || strncmp(err.message, "m.gguf: ", 8) != 0)
        fail_msg("wanted %s \"%s\", got %s \"%s\"", sl_code_name(want), part, sl_code_name(c),
                 err.message);
    assert_null(m);
}

/* A key of the small file, by its name, with another value. */
static const struct {
    const char *key;
    uint32_t value;
    enum sl_code code;
    const char *part;
} numbers[] = {
    {"rwkv7.block_count", 3, SL_E_MODEL_INVALID, "tensor blk.2.attn_norm.weight is absent"},
    {"rwkv7.block_count", 1, SL_E_MODEL_INVALID, "is no part of RWKV-7 of 1 layers"},
    {"rwkv7.block_count", 0, SL_E_MODEL_INVALID,
     "rwkv7.block_count is 0; a whole number from 1 to"},
    {"rwkv7.block_count", 100000, SL_E_MODEL_INVALID, "but there are only"},
    {"rwkv7.embedding_length", 12, SL_E_MODEL_INVALID,
     "tensor token_embd.weight has the shape [4, 8]; by the file's keys it is [4, 12]"},
    {"rwkv7.embedding_length", 0xffffffff, SL_E_MODEL_INVALID, "a whole number from 1 to"},
    {"rwkv7.feed_forward_length", 9, SL_E_MODEL_INVALID,
     "tensor blk.0.channel_mix_key.weight has the shape [8, 8]; by the file's keys it is [9, 8]"},
    {"rwkv7.wkv.head_size", 3, SL_E_MODEL_INVALID, "no multiple of wkv.head_size"},
    {"rwkv7.attention.gate_lora_rank", 3, SL_E_MODEL_INVALID, "by the file's keys it is [3, 8]"},
    {"rwkv7.attention.layer_norm_epsilon", 0x3727c5ad, SL_E_MODEL_UNSUPPORTED,
     "only 1e-05 can be run"},
    {"rwkv7.attention.layer_norm_epsilon", 0x7fc00000, SL_E_MODEL_INVALID,
     "a number from 0 to 1 is needed"},
};

static void test_keys_that_contradict_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct gguf_maker g = {0};
        struct bytes file = {0};
        small(&g);
        gguf_end(&g, &file);
        size_t n = strlen(numbers[i].key);
        set_u32(&file, find_text(&file, 0, numbers[i].key, n) + n + 4, numbers[i].value);
        assert_opens_and_is_refused(&file, numbers[i].code, numbers[i].part);
        bytes_done(&file);
        gguf_done(&g);
    }
}

/* A piece of text of the small file, with another of the same length. */
static const struct {
    const char *from, *to;
    enum sl_code code;
    const char *part;
} texts[] = {
    {"general.architecture", "general.architectura", SL_E_MODEL_INVALID,
     "general.architecture is no text"},
    {"rwkv7.block_count", "rwkv7.block_sount", SL_E_MODEL_INVALID,
     "the key rwkv7.block_count is absent"},
    {"token_embd_norm.bias", "token_embd_norm.bios", SL_E_MODEL_INVALID,
     "tensor token_embd_norm.bias is absent"},
    {"blk.1.time_mix_lerp_fused", "blk.1.time_mix_lerp_fuzed", SL_E_MODEL_INVALID,
     "tensor blk.1.time_mix_lerp_fused.weight is absent"},
    {"blk.0.time_mix_v1.weight", "blk.0.time_mix_q1.weight", SL_E_MODEL_INVALID,
     "tensor blk.0.time_mix_q1.weight is no part of RWKV-7"},
};

static void test_names_that_are_not_there(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct gguf_maker g = {0};
        struct bytes file = {0};
        small(&g);
        gguf_end(&g, &file);
        size_t n = strlen(texts[i].from), at = find_text(&file, 0, texts[i].from, n);
        memcpy(file.p + at, texts[i].to, n);
        assert_opens_and_is_refused(&file, texts[i].code, texts[i].part);
        bytes_done(&file);
        gguf_done(&g);
    }
}

static void assert_arch_refused(const char *arch, const char *part)
{
    struct gguf_maker g = {0};
    struct bytes file = {0};
    const float x[32] = {0};
    gguf_text(&g, "general.architecture", arch);
    gguf_tensor(&g, "token_embd.weight", GGML_F32, 2, (size_t[]){4, 8}, x, sizeof x);
    gguf_end(&g, &file);
    assert_opens_and_is_refused(&file, SL_E_MODEL_UNSUPPORTED, part);
    bytes_done(&file);
    gguf_done(&g);
}

static void test_architectures_that_cannot_be_run(void **state)
{
    (void)state;
    assert_arch_refused("llama",
                        "its architecture is \"llama\"; what can be run is: rwkv7, rwkv6, mamba2");
    assert_arch_refused("rwkv6qwen2", "its architecture, rwkv6qwen2, cannot be run: RWKV-6 in");
    assert_arch_refused("arwkv7", "its architecture, arwkv7, cannot be run: RWKV-7 in");
    assert_arch_refused("mamba", "its architecture, mamba, cannot be run");
    assert_arch_refused("", "its architecture is \"\"");
}

static void test_parts_and_types(void **state)
{
    (void)state;
    struct gguf_maker g = {0};
    struct bytes file = {0};
    unsigned char block[176] = {0};
    small(&g);
    gguf_u32(&g, "split.count", 3);
    gguf_end(&g, &file);
    assert_opens_and_is_refused(&file, SL_E_MODEL_UNSUPPORTED, "one of 3 parts of a model");
    gguf_done(&g);
    file.n = 0;
    gguf_text(&g, "general.architecture", "rwkv7");
    gguf_tensor(&g, "token_embd.weight", GGML_Q5_K, 2, (size_t[]){1, 256}, block, sizeof block);
    gguf_end(&g, &file);
    assert_opens_and_is_refused(&file, SL_E_MODEL_INVALID, "rwkv7.embedding_length is absent");
    bytes_done(&file);
    gguf_done(&g);
}

/* A type that is known and cannot be read, in a model that could be run otherwise; a value that is
 * no number, in a quantised tensor, named as the file does. */
static void test_what_the_loader_finds(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t bytes;
        unsigned char fill;
        const char *part;
    } rows[] = {
        {6, 22, 0, "tensor token_embd.weight has the type Q5_0; weights can be F32, F16 or BF16"},
        {20, 18, 0, "tensor token_embd.weight has the type IQ4_NL;"},
        {24, 32, 0, "tensor token_embd.weight has the type I8 and no scales;"},
        {GGML_Q8_0, 34, 0x7e, "tensor token_embd.weight holds NaN (element 0)"},
    };
    struct seeded_shape shape = smallest;
    shape.d_model = 32;
    shape.head_size = 16;
    shape.vocab_size = 1;
    const struct gguf_sizes sizes = {"rwkv7",       2,   32, 16, 0, SL_DTYPE_F32, false,
                                     GGUF_AS_IT_IS, NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct seeded s;
        struct bytes file = {0};
        unsigned char *plain, block[34];
        size_t n;
        seeded_init(&s, &shape);
        make_both(&file, &s, &sizes, &plain, &n);
        /* its type follows its name, rank and axes; its data is the first of all */
        size_t at = find_text(&file, 0, "token_embd.weight", 17) + 17;
        set_u32(&file, at + 4 + 16, rows[i].type);
        memset(block, rows[i].fill, sizeof block);
        struct sl_tensors *t = NULL;
        assert_int_equal(sl_tensors_open_memory(&t, file.p, file.n, "m.gguf", NULL), SL_OK);
        memcpy((unsigned char *)(uintptr_t)sl_tensors_find(t, "emb.weight")->data, block,
               rows[i].bytes);
        assert_string_equal(sl_tensors_find(t, "emb.weight")->origin, "token_embd.weight");
        sl_tensors_close(t);
        assert_opens_and_is_refused(&file, SL_E_MODEL_INVALID, rows[i].part);
        seeded_done(&s);
        bytes_done(&file);
        free(plain);
    }
}

/* --- where another container belongs -----------------------------------------------------------
 */

static void write_beside(const char *path, const char *file, const char *text)
{
    char other[192];
    (void)snprintf(other, sizeof other, "%.*s/%s", (int)(strrchr(path, '/') - path), path, file);
    FILE *f = fopen(other, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* In a directory, whose config.json and the file would both say what the model is. */
static void test_in_a_directory(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "part.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        struct gguf_maker g = {0};
        struct bytes b = {0};
        char path[128], folder[128], cleanup[192];
        struct sl_tensors *t = NULL;
        struct sl_error err = {0};
        gguf_tensor(&g, "w", GGML_F32, 1, (size_t[]){1}, "\0\0\0", 4);
        gguf_end(&g, &b);
        write_temp(path, files[i], b.p, b.n);
        write_beside(path, "config.json", "{}");
        write_beside(path, "model.safetensors.index.json",
                     "{\"weight_map\":{\"w\":\"part.safetensors\"}}");
        (void)snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
        assert_int_equal(sl_tensors_open(&t, folder, &err), SL_E_FILE_UNSUPPORTED);
        assert_non_null(strstr(err.message, " gguf file, which "));
        (void)snprintf(cleanup, sizeof cleanup, "%s/config.json", folder);
        assert_int_equal(remove(cleanup), 0);
        (void)snprintf(cleanup, sizeof cleanup, "%s/model.safetensors.index.json", folder);
        assert_int_equal(remove(cleanup), 0);
        remove_temp(path);
        bytes_done(&b);
        gguf_done(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rwkv7_has_the_same_bits),
        cmocka_unit_test(test_rwkv6_has_the_same_bits),
        cmocka_unit_test(test_blocks_everywhere),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_keys_that_contradict_tensors),
        cmocka_unit_test(test_names_that_are_not_there),
        cmocka_unit_test(test_architectures_that_cannot_be_run),
        cmocka_unit_test(test_parts_and_types),
        cmocka_unit_test(test_what_the_loader_finds),
        cmocka_unit_test(test_in_a_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
