/* whiteboard_test.c: one trained model for each rule of memory, from this repository: every logit
 * of a prompt against those that the trainer wrote (engine/models/train/whiteboard.py, another
 * implementation: torch, whole sequences), fed token by token, in one piece and in pieces of mixed
 * sizes, with every table of kernels that this machine can run. These run with nothing from
 * outside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/reference.h"

#define ROOT "tests/vectors/whiteboard/"

/* Both sides compute in f32, in other orders. Ten times the largest difference seen, as the
 * reference folders have their tolerances; logits reach 15. */
#define TOLERANCE 1e-4

static struct source {
    const char *folder, *arch, *file;
} sources[] = {
    {ROOT "linear_attn", "linear", NULL},
    {ROOT "retnet", "retnet", NULL},
    {ROOT "gla", "gla", NULL},
    {ROOT "delta_net", "delta_net", NULL},
    {ROOT "rwkv4", "rwkv4", "model.safetensors"},
    {ROOT "rwkv7", "rwkv7", "model.safetensors"},
};

enum { N_SOURCES = sizeof sources / sizeof *sources };

static const size_t cuts[][4] = {{1, 1, 1, 1}, {128, 128, 128, 128}, {3, 1, 20, 2}};

/* The largest difference of a logit, with one table of kernels. */
static double check(const struct source *s, const char *kernels)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    struct runner r;
    char path[128];
    double worst = 0;
    (void)snprintf(path, sizeof path, "%s%s%s", s->folder, s->file ? "/" : "",
                   s->file ? s->file : "");
    if (sl_model_open(&m, &(struct sl_model_options){.path = path, .kernels = kernels}, &err) !=
        SL_OK)
        fail_msg("%s", err.message);
    assert_string_equal(sl_model_info(m)->arch, s->arch);
    assert_int_equal(sl_model_info(m)->vocab_size, 2048);
    size_t n;
    uint32_t *tokens = reference_tokens(s->folder, "prompt.tokens.json", &n);
    assert_true(n > 30);
    float *want = reference_floats(s->folder, "logits.f32", n * 2048),
          *logits = runner_logits(m, n);
    runner_open(&r, m, 2, 128, 1);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        void *state = runner_state(m);
        reference_feed(&r, state, tokens, n, cuts[c], logits);
        double e = reference_logits(m, s->folder, logits, want, n, TOLERANCE);
        worst = e > worst ? e : worst;
        sl_free(state);
    }
    runner_close(&r);
    sl_free(logits);
    free(want);
    free(tokens);
    sl_model_close(m);
    return worst;
}

static void test_source(void **prestate)
{
    const struct source *s = *prestate;
    double worst = 0;
    for (const char *const *k = sl_kernels_names(); *k; k++) {
        double e = check(s, *k);
        worst = e > worst ? e : worst;
    }
    print_message("%-36s worst %.2g, of %.2g allowed\n", s->folder, worst, TOLERANCE);
}

int main(void)
{
    struct CMUnitTest tests[N_SOURCES];
    for (size_t i = 0; i < N_SOURCES; i++)
        tests[i] = (struct CMUnitTest){
            .name = sources[i].folder, .test_func = test_source, .initial_state = &sources[i]};
    return cmocka_run_group_tests_name("whiteboard", tests, NULL, NULL);
}
