/* gguf_test.c: GGUF files written by llama.cpp's converter and llama-quantize from seeded models,
 * and what llama.cpp computes from them; see tests/vectors/gguf/README.md.
 *
 * `build/release/tests/vectors/gguf_test --write FOLDER` writes the models as they were before, as
 * NAME.safetensors, and the prompt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "slate/tokenizer.h"
#include "tests/support/among.h"
#include "tests/support/floats.h"
#include "tests/support/gguf_models.h"
#include "tests/support/runner.h"

#define FOLDER "tests/vectors/gguf/"
enum { N_PROMPT = 24, VOCAB = 272 };

static void make_prompt(uint32_t *tokens)
{
    uint64_t seed = 5;
    for (size_t i = 0; i < N_PROMPT; i++)
        tokens[i] = (uint32_t)(next_random(&seed) % 257);
}

/* --- writing ------------------------------------------------------------------------------------
 */

static int write_models(const char *folder)
{
    char path[256];
    uint32_t tokens[N_PROMPT];
    for (const struct gguf_model *m = gguf_models; m->name; m++) {
        struct seeded s;
        m->list(&s, m->dtype);
        (void)snprintf(path, sizeof path, "%s/%s.safetensors", folder, m->name);
        seeded_write(&s, path);
        seeded_done(&s);
    }
    make_prompt(tokens);
    (void)snprintf(path, sizeof path, "%s/prompt.u32", folder);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(tokens, sizeof *tokens, N_PROMPT, f) != N_PROMPT || fclose(f) != 0)
        abort();
    return 0;
}

/* --- comparing ----------------------------------------------------------------------------------
 */

static struct sl_model *open_file(const char *name, const struct sl_model_options *options)
{
    char path[128];
    struct sl_error err;
    struct sl_model *m = NULL;
    struct sl_model_options opt = options ? *options : (struct sl_model_options){0};
    (void)snprintf(path, sizeof path, FOLDER "%s.gguf", name);
    opt.path = path;
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    return m;
}

/* A row of logits for each token of the prompt; sl_free(). */
static float *logits_of(const struct sl_model *m)
{
    uint32_t tokens[N_PROMPT];
    struct runner r;
    make_prompt(tokens);
    runner_open(&r, m, 2, N_PROMPT, 1);
    void *state = runner_state(m);
    float *logits = runner_logits(m, N_PROMPT);
    runner_feed(&r, state, tokens, N_PROMPT, 7, logits);
    sl_free(state);
    runner_close(&r);
    return logits;
}

/* The largest difference. */
static double compare(const struct sl_model *m, const float *got, const float *want, size_t stride)
{
    double worst = 0;
    for (size_t t = 0; t < N_PROMPT; t++)
        for (size_t i = 0; i < VOCAB; i++) {
            double d =
                fabs((double)got[t * sl_model_logits_stride(m) + i] - (double)want[t * stride + i]);
            worst = d > worst || isnan(d) ? d : worst;
        }
    return worst;
}

static const struct sl_model_options in_f32 = {.weights = SL_DTYPE_F32};

/* What llama.cpp computes in F32 from the same values. */
static void test_as_llama_cpp(void **state)
{
    (void)state;
    static float want[N_PROMPT * VOCAB];
    for (const struct gguf_model *g = gguf_models; g->name; g++) {
        char path[128];
        struct sl_model *m = open_file(g->name, &in_f32);
        assert_int_equal(sl_model_info(m)->vocab_size, VOCAB);
        assert_int_equal(sl_model_info(m)->n_unused, 0);
        (void)snprintf(path, sizeof path, FOLDER "%s.logits.f32", g->name);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        assert_int_equal(fread(want, sizeof *want, N_PROMPT * VOCAB, f), N_PROMPT * VOCAB);
        assert_int_equal(fgetc(f), EOF);
        fclose(f);
        float *got = logits_of(m);
        double worst = compare(m, got, want, VOCAB);
        print_message("%-14s worst %.2g of 2e-5 allowed\n", g->name, worst);
        assert_true(worst <= 2e-5);
        sl_free(got);
        sl_model_close(m);
    }
}

/* Of every model whose file has its values, or those to within what is said. */
static const struct {
    const char *name;
    double tolerance;
} kept[] = {
    {"rwkv6-f16", 1e-6},   /* the converter halved, and the smallest halves lost their last bit */
    {"mamba2-bf16", 1e-5}, /* the converter rounded -exp(A_log) */
};

static void test_as_before_the_conversion(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        unsigned char *bytes;
        struct sl_model *m = open_file(kept[i].name, NULL);
        struct sl_model *before =
            gguf_model_open(gguf_model_find(kept[i].name), SL_DTYPE_NONE, &bytes);
        float *got = logits_of(m), *want = logits_of(before);
        double worst = compare(m, got, want, sl_model_logits_stride(before));
        print_message("%-14s worst %.2g of %g allowed\n", kept[i].name, worst, kept[i].tolerance);
        assert_true(worst <= kept[i].tolerance);
        assert_int_equal(sl_model_info(m)->state_bytes, sl_model_info(before)->state_bytes);
        sl_free(got);
        sl_free(want);
        sl_model_close(m);
        sl_model_close(before);
        free(bytes);
    }
}

/* Quantised weights lose what they must and no more: the distance to the model before. */
static void test_what_quantising_costs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double least, most;
    } rows[] = {{"rwkv7-q4_q8", 0.05, 3}, {"mamba2-q4_k_m", 0.05, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char *bytes;
        struct sl_model *m = open_file(rows[i].name, &in_f32);
        struct sl_model *before =
            gguf_model_open(gguf_model_find(rows[i].name), SL_DTYPE_NONE, &bytes);
        float *got = logits_of(m), *want = logits_of(before);
        double worst = compare(m, got, want, sl_model_logits_stride(before));
        print_message("%-14s %.3g from the model before\n", rows[i].name, worst);
        assert_true(worst > rows[i].least && worst < rows[i].most);
        sl_free(got);
        sl_free(want);
        sl_model_close(m);
        sl_model_close(before);
        free(bytes);
    }
}

/* Blocks widened to a type that is asked for: the same as the F32 values rounded to it, which for
 * Q8_0 and F16 is close and not equal. */
static void test_types_that_are_asked_for(void **state)
{
    (void)state;
    static const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_F16, SL_DTYPE_BF16};
    static const double most[] = {0, 0.02, 0.2};
    struct sl_model *plain = open_file("rwkv7-q4_q8", &in_f32);
    float *want = logits_of(plain);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct sl_model *m =
            open_file("rwkv7-q4_q8", &(struct sl_model_options){.weights = types[i]});
        assert_int_equal(sl_model_info(m)->weights, types[i]);
        float *got = logits_of(m);
        double worst = compare(m, got, want, sl_model_logits_stride(plain));
        print_message("%-4s %.2g\n", sl_dtype_name(types[i]), worst);
        assert_true(worst <= most[i] && (worst > 0 || most[i] == 0));
        sl_free(got);
        sl_model_close(m);
    }
    sl_free(want);
    sl_model_close(plain);
}

/* Without a wish the file's own codes run: nearer to its values in F32 than what Q4 would make of
 * them, as only the inputs are brought to 8 bits; and in the memory that they take there. */
static void test_own_codes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum sl_dtype weights; /* that most elements have */
    } rows[] = {{"rwkv7-q4_q8", SL_DTYPE_Q4_0}, {"mamba2-q4_k_m", SL_DTYPE_Q4_K}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_model *plain = open_file(rows[i].name, &in_f32),
                        *own = open_file(rows[i].name, NULL);
        struct sl_model *four =
            open_file(rows[i].name, &(struct sl_model_options){.weights = SL_DTYPE_Q4});
        assert_int_equal(sl_model_info(own)->weights, rows[i].weights);
        assert_true(sl_model_info(own)->weight_bytes < sl_model_info(plain)->weight_bytes * 6 / 10);
        assert_memory_equal(sl_model_info(own)->fingerprint, sl_model_info(plain)->fingerprint, 16);
        float *want = logits_of(plain), *got = logits_of(own), *other = logits_of(four);
        size_t stride = sl_model_logits_stride(plain);
        double worst = compare(own, got, want, stride), again = compare(four, other, want, stride);
        print_message("%s: own codes %.2g from F32, through Q4 %.2g\n", rows[i].name, worst, again);
        assert_true(worst > 0 && worst < again / 2);
        sl_free(want);
        sl_free(got);
        sl_free(other);
        sl_model_close(plain);
        sl_model_close(own);
        sl_model_close(four);
    }
}

/* Files of several types: the same bits alone and among others, in any chunks, with any number of
 * threads, by every table of kernels. */
static void test_own_codes_among_others(void **state)
{
    (void)state;
    static const char *const files[] = {"rwkv7-q4_q8", "mamba2-q4_k_m"};
    enum { TOKENS = 40, MAX_ROWS = 64, OTHERS = 3 };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct hashes first = {0};
        bool any = false;
        for (const char *const *name = sl_kernels_names(); *name; name++) {
            struct sl_model *m = open_file(files[f], &(struct sl_model_options){.kernels = *name});
            for (size_t i = 0; i < 6; i++) {
                static const size_t threads[] = {1, 2, 3}, chunks[] = {1, 7, 13};
                struct runner r;
                struct others o;
                runner_open(&r, m, threads[i % 3], MAX_ROWS, OTHERS + 1);
                others_open(&o, m, i < 3 ? 0 : OTHERS);
                struct hashes h = run_among(&r, chunks[(i + i / 3) % 3], TOKENS, &o);
                first = any ? first : h;
                any = true;
                assert_same(h, first, *name);
                others_close(&o);
                runner_close(&r);
            }
            sl_model_close(m);
        }
    }
}

/* The file's own vocabulary: the ids that llama.cpp gives. */
static const struct {
    const char *name, *text;
    int64_t eos;
    uint32_t ids[48];
    size_t n;
} texts[] = {
    {"rwkv7-q4_q8",
     "the it's \"x\" \xe4\xb8\x96\xe7\x95\x8c h\xc3\xa9\n\nthe \\ \x01 in then",
     0,
     {257, 33,  260, 33, 35, 121, 35, 33,  262, 33,  261,
      259, 257, 33,  93, 33, 2,   33, 106, 111, 258, 111},
     22},
    {"mamba2-q4_k_m",
     "the it's \"x\" \xe4\xb8\x96\xe7\x95\x8c h\xc3\xa9\n\nthe \\ \x01 in then<|endoftext|> x",
     260,
     {257, 220, 72,  83,  6,   82,  220, 1,  87,  1,   220, 160, 116, 244, 163, 243, 234, 220,
      71,  127, 102, 198, 198, 257, 220, 59, 220, 189, 220, 259, 258, 77,  260, 220, 87},
     35},
};

static void test_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct sl_error err;
        struct sl_tokenizer *t = NULL;
        struct sl_token_list list = {0};
        struct sl_model *m = open_file(texts[i].name, NULL);
        if (sl_model_tokenizer(&t, m, &err) != SL_OK)
            fail_msg("%s", err.message);
        const struct sl_tokenizer_text text = {.s = texts[i].text, .n = strlen(texts[i].text)};
        assert_non_null(t);
        assert_int_equal(sl_tokenizer_encode(t, &text, &list, &err), SL_OK);
        assert_int_equal(list.n, texts[i].n);
        assert_memory_equal(list.v, texts[i].ids, list.n * sizeof *list.v);
        assert_int_equal(sl_tokenizer_eos(t), texts[i].eos);
        assert_int_equal(sl_tokenizer_begin(t), -1);
        assert_true((sl_model_chat_template(m) != NULL) == (i == 0));
        sl_token_list_done(&list);
        sl_tokenizer_close(t);
        sl_model_close(m);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0)
        return write_models(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_llama_cpp),
        cmocka_unit_test(test_as_before_the_conversion),
        cmocka_unit_test(test_what_quantising_costs),
        cmocka_unit_test(test_types_that_are_asked_for),
        cmocka_unit_test(test_own_codes),
        cmocka_unit_test(test_own_codes_among_others),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
