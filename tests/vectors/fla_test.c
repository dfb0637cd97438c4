/* fla_test.c: models of the flash-linear-attention library against the reference folders: every
 * logit within the folder's strict tolerance, states within 1e-4 of their largest value; each fed
 * token by token, in one piece and in pieces of mixed sizes, with every table of kernels that this
 * machine can run. Files of earlier versions of the library give the same logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/reference.h"

#define ROOT "../shared/reference/fla/"

struct source {
    const char *folder, *arch;
    const char *weights; /* a file to stand for model.safetensors; NULL: itself */
};

static struct source sources[] = {
    {"linear_attn", "linear", NULL},
    {"linear_attn-default", "linear", NULL},
    {"linear_attn-hedgehog", "linear", NULL},
    {"retnet", "retnet", NULL},
    {"gla", "gla", NULL},
    {"gla", "gla", "model.legacy-mlp.safetensors"},
    {"gla-conv-mqa", "gla", NULL},
    {"delta_net", "delta_net", NULL},
    {"delta_net-gate", "delta_net", NULL},
    {"gated_deltanet", "gated_delta_net", NULL},
    {"gated_deltanet-gva", "gated_delta_net", NULL},
    {"mamba2", "mamba2", NULL},
    {"rwkv7", "fla_rwkv7", NULL},
    {"rwkv7", "fla_rwkv7", "model.legacy-x_x.safetensors"},
};

enum { N_SOURCES = sizeof sources / sizeof *sources };

/* Theirs [channels][taps], the last of them the current token; ours the taps before the next one,
 * [taps - 1][channels]. */
static size_t conv_at(const struct sl_state_tensor *t, size_t i)
{
    size_t taps = t->shape[0] + 1, channel = i / taps, tap = i % taps;
    return tap == 0 ? SIZE_MAX : (tap - 1) * t->shape[1] + channel;
}

/* Mamba-2: theirs [head][channel of x][state], ours [head][state][channel of x]. */
static size_t mamba_at(const struct sl_state_tensor *t, size_t i)
{
    size_t n = t->shape[1], p = t->shape[2], h = i / (n * p);
    return h * n * p + i % n * p + i % (n * p) / n;
}

static const struct reference_tensor names[] = {
    {"recurrent_state", "mixer.state", NULL},
    {"z_state", "mixer.z", NULL},
    {"q_conv", "mixer.q_conv", conv_at},
    {"k_conv", "mixer.k_conv", conv_at},
    {"v_conv", "mixer.v_conv", conv_at},
    {"conv", "mixer.conv", conv_at},
    {"attn_shift", "mixer.shift", NULL},
    {"ffn_shift", "ffn.shift", NULL},
    {0},
};
static const struct reference_tensor mamba_names[] = {
    {"recurrent_state", "mixer.state", mamba_at},
    {"conv", "mixer.conv", conv_at},
    {0},
};

/* The folder itself, or one beside it in which the other weights have the usual name. */
static const char *folder_of(const struct source *s)
{
    static char folder[64], link[128], target[4096];
    (void)snprintf(target, sizeof target, ROOT "%s", s->folder);
    if (!s->weights)
        return target;
    char real[2048];
    assert_non_null(getcwd(real, sizeof real));
    (void)snprintf(folder, sizeof folder, "/tmp/slate-fla-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(link, sizeof link, "%s/model.safetensors", folder);
    (void)snprintf(target, sizeof target, "%s/" ROOT "%s/%s", real, s->folder, s->weights);
    assert_int_equal(symlink(target, link), 0);
    (void)snprintf(link, sizeof link, "%s/config.json", folder);
    (void)snprintf(target, sizeof target, "%s/" ROOT "%s/config.json", real, s->folder);
    assert_int_equal(symlink(target, link), 0);
    return folder;
}

static void remove_folder(const struct source *s, const char *folder)
{
    if (!s->weights)
        return;
    (void)unlink(reference_path(folder, "model.safetensors"));
    (void)unlink(reference_path(folder, "config.json"));
    (void)rmdir(folder);
}

/* Returns the largest difference of a logit. */
static double check(struct runner *r, const struct source *s, const size_t *cut, double *ret_atol)
{
    char folder[128];
    size_t n;
    const struct sl_model *m = r->model;
    (void)snprintf(folder, sizeof folder, ROOT "%s", s->folder);
    json_t *fixture = reference_json(folder, "fixture.json");
    double atol = json_number_value(json_object_get(fixture, "atol_strict"));
    assert_true(atol > 0 && atol < 1e-3);
    uint32_t *tokens = reference_tokens(folder, "prompt.tokens.json", &n);
    assert_int_equal(n, 100);
    float *want = reference_floats(folder, "logits.f32", n * sl_model_info(m)->vocab_size);
    float *logits = runner_logits(m, n);
    void *state = runner_state(m);
    reference_feed(r, state, tokens, n, cut, logits);
    double worst = reference_logits(m, folder, logits, want, n, atol);
    reference_state(m, folder, "state", strcmp(s->arch, "mamba2") == 0 ? mamba_names : names,
                    state);
    const struct sl_state_tensor *t = runner_tensor(m, "layers.0.mixer.position");
    assert_true(!t == (strcmp(s->arch, "retnet") != 0));
    if (t)
        assert_int_equal(*(int64_t *)(void *)((unsigned char *)state + t->offset), n);
    sl_free(state);
    sl_free(logits);
    free(want);
    free(tokens);
    json_decref(fixture);
    *ret_atol = atol;
    return worst;
}

static const size_t cuts[][4] = {{1, 1, 1, 1}, {128, 128, 128, 128}, {3, 1, 20, 2}};

/* The worst of all cuts, on a model that is opened so. */
static double check_with(const struct source *s, const struct sl_model_options *opt,
                         double *ret_atol)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    struct runner r;
    double worst = 0;
    if (sl_model_open(&m, opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_string_equal(sl_model_info(m)->arch, s->arch);
    assert_int_equal(sl_model_info(m)->n_unused, 0);
    runner_open(&r, m, 2, 128, 1);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        double e = check(&r, s, cuts[c], ret_atol);
        worst = e > worst ? e : worst;
    }
    runner_close(&r);
    sl_model_close(m);
    return worst;
}

static bool has_forms(const struct source *s)
{
    return strcmp(s->arch, "mamba2") != 0 && strcmp(s->arch, "fla_rwkv7") != 0;
}

static void test_source(void **prestate)
{
    const struct source *s = *prestate;
    if (access(ROOT "gla/fixture.json", R_OK) != 0) {
        print_message("skipped: 1 of %d models: ../shared/reference is not here\n", N_SOURCES);
        skip();
    }
    const char *folder = folder_of(s);
    double worst = 0, atol = 0;
    for (const char *const *k = sl_kernels_names(); *k; k++) {
        double e = check_with(s, &(struct sl_model_options){.path = folder, .kernels = *k}, &atol);
        worst = e > worst ? e : worst;
    }
    /* The other forms of its recurrence are the same function, to rounding. */
    static const char *const modes[] = {"chunkwise", "parallel"};
    double by_form = 0;
    for (size_t i = 0; i < 2 && has_forms(s); i++) {
        double e = check_with(
            s, &(struct sl_model_options){.path = folder, .fast = true, .prefill_mode = modes[i]},
            &atol);
        by_form = e > by_form ? e : by_form;
    }
    remove_folder(s, folder);
    print_message("%-22s worst %.2g, chunkwise and parallel %.2g, of %.2g allowed\n", s->folder,
                  worst, by_form, atol);
}

int main(void)
{
    struct CMUnitTest tests[N_SOURCES];
    char titles[N_SOURCES][80];
    for (size_t i = 0; i < N_SOURCES; i++) {
        (void)snprintf(titles[i], sizeof titles[i], "%s%s%s", sources[i].folder,
                       sources[i].weights ? " " : "", sources[i].weights ? sources[i].weights : "");
        tests[i] = (struct CMUnitTest){titles[i], test_source, NULL, NULL, &sources[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
