/* performer_test.c: performer-pytorch's model against the reference folder: every logit within the
 * strict tolerance, states within 1e-4 of their largest value, with each kernel and stabiliser;
 * each fed token by token, in one piece and in pieces of mixed sizes, from both containers, with
 * every table of kernels that this machine can run. (What the library computes from the whole
 * sequence is no causal model and is not compared.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/reference.h"

#define ROOT "../shared/reference/performer"

struct set {
    const char *base, *rule;
};

static struct set sets[] = {
    {"softmax.runmax", NULL}, /* the default */
    {"softmax.runmax", "kernel=softmax,stabiliser=max"},
    {"softmax.const0", "stabiliser=none"},
    {"relu", "kernel=relu"},
};

enum { N_SETS = sizeof sets / sizeof *sets };

static const struct reference_tensor names[] = {
    {"kv_exp", "mixer.kv_exp", NULL},
    {"z_exp", "mixer.z_exp", NULL},
    {"v_sum", "mixer.v_sum", NULL},
    {"kv", "mixer.kv", NULL},
    {"z", "mixer.z", NULL},
    {"m", "mixer.max", NULL},
    {0},
};

static bool need_reference(void)
{
    return access(ROOT "/fixture.json", R_OK) == 0;
}

static double tolerance(void)
{
    json_t *fixture = reference_json(ROOT, "fixture.json");
    const json_t *set = json_array_get(json_object_get(fixture, "sets"), 0);
    double atol = json_number_value(json_object_get(set, "atol_strict"));
    assert_true(atol > 0 && atol < 1e-3);
    json_decref(fixture);
    return atol;
}

static struct sl_model *open_model(const char *file, const char *kernels, const char *rule,
                                   const char *mode)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.path = reference_path(ROOT, file),
                                         .kernels = kernels,
                                         .rule = rule,
                                         .fast = mode != NULL,
                                         .prefill_mode = mode};
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_string_equal(sl_model_info(m)->arch, "performer");
    return m;
}

static double check(const struct sl_model *m, const struct set *s, const size_t *cut, double atol)
{
    char file[64];
    size_t n;
    struct runner r;
    runner_open(&r, m, 2, 128, 1);
    uint32_t *tokens = reference_tokens(ROOT, "prompt.tokens.json", &n);
    assert_int_equal(n, 100);
    (void)snprintf(file, sizeof file, "%s.logits.f32", s->base);
    float *want = reference_floats(ROOT, file, n * sl_model_info(m)->vocab_size);
    float *logits = runner_logits(m, n);
    void *state = runner_state(m);
    reference_feed(&r, state, tokens, n, cut, logits);
    double worst = reference_logits(m, s->base, logits, want, n, atol);
    (void)snprintf(file, sizeof file, "%s.state", s->base);
    reference_state(m, ROOT, file, names, state);
    sl_free(state);
    sl_free(logits);
    free(want);
    free(tokens);
    runner_close(&r);
    return worst;
}

static void test_set(void **prestate)
{
    static const size_t cuts[][4] = {{1, 1, 1, 1}, {128, 128, 128, 128}, {3, 1, 20, 2}};
    static const char *const files[] = {"model.pt", "model.safetensors"};
    const struct set *s = *prestate;
    if (!need_reference()) {
        print_message("skipped: 1 of %d kernels of Performer: ../shared/reference is not here\n",
                      N_SETS);
        skip();
    }
    double atol = tolerance(), worst = 0;
    for (size_t f = 0; f < 2; f++)
        for (const char *const *k = sl_kernels_names(); *k; k++) {
            struct sl_model *m = open_model(files[f], *k, s->rule, NULL);
            assert_int_equal(sl_model_info(m)->max_tokens, 128);
            assert_int_equal(sl_model_info(m)->n_heads, 4);
            for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
                worst = fmax(worst, check(m, s, cuts[c], atol));
            sl_model_close(m);
        }
    /* The other forms of the recurrence, where it has some. */
    static const char *const modes[] = {"chunkwise", "parallel"};
    double by_form = 0;
    for (size_t i = 0; i < 2 && strcmp(s->base, "softmax.runmax") != 0; i++) {
        struct sl_model *m = open_model(files[1], NULL, s->rule, modes[i]);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
            by_form = fmax(by_form, check(m, s, cuts[c], atol));
        sl_model_close(m);
    }
    print_message("%-16s worst %.2g, chunkwise and parallel %.2g, of %.2g allowed\n", s->base,
                  worst, by_form, atol);
}

/* The other kernel is another model: other logits, another fingerprint. */
static void test_choices(void **unused)
{
    (void)unused;
    if (!need_reference())
        skip();
    struct sl_model *m[N_SETS];
    for (size_t i = 0; i < N_SETS; i++)
        m[i] = open_model("model.safetensors", NULL, sets[i].rule, NULL);
    for (size_t i = 0; i < N_SETS; i++)
        for (size_t k = 0; k < i; k++)
            assert_int_equal(
                memcmp(sl_model_info(m[i])->fingerprint, sl_model_info(m[k])->fingerprint, 16) == 0,
                strcmp(sets[i].base, sets[k].base) == 0);
    for (size_t i = 0; i < N_SETS; i++)
        sl_model_close(m[i]);
}

int main(void)
{
    static char titles[N_SETS][64];
    struct CMUnitTest tests[N_SETS + 1];
    for (size_t i = 0; i < N_SETS; i++) {
        (void)snprintf(titles[i], sizeof titles[i], "%s, rule \"%s\"", sets[i].base,
                       sets[i].rule ? sets[i].rule : "");
        tests[i] = (struct CMUnitTest){titles[i], test_set, NULL, NULL, &sets[i]};
    }
    tests[N_SETS] = (struct CMUnitTest)cmocka_unit_test(test_choices);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
