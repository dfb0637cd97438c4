/* rwkv_test.c: BlinkDL's RWKV models against the reference folders: every logit of every set within
 * the fixture's tolerance, states, greedy continuations, the digit-reversal cases; each fed token
 * by token, in one piece and in pieces of mixed sizes, from both containers and as another
 * program's converter writes them, with every table of kernels that this machine can run. */
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
#include "tests/support/web_rwkv.h"

#define ROOT "../shared/reference/rwkv/"

#define CONVERTED "model.st" /* not there: what web_rwkv.h makes of model.pth */

struct source {
    const char *folder, *file;
};

static struct source sources[] = {
    {"v4", "model.pth"},         {"v4", "model.safetensors"},
    {"v4-rand", "model.pth"},    {"v4-rand", "model.safetensors"},
    {"v5.1", "model.pth"},       {"v5.1", "model.safetensors"},
    {"v5.1-rand", "model.pth"},  {"v5.1-rand", "model.safetensors"},
    {"v5.2", "model.pth"},       {"v5.2", "model.safetensors"},
    {"v5.2-rand", "model.pth"},  {"v5.2-rand", "model.safetensors"},
    {"v6", "model.pth"},         {"v6", "model.safetensors"},
    {"v6-rand", "model.pth"},    {"v6-rand", "model.safetensors"},
    {"v7", "model.pth"},         {"v7", "model.safetensors"},
    {"v7-rand", "model.pth"},    {"v7-rand", "model.safetensors"},
    {"v7-reverse", "model.pth"}, {"v4-rand", CONVERTED},
    {"v5.1-rand", CONVERTED},    {"v5.2", CONVERTED},
    {"v5.2-rand", CONVERTED},    {"v6", CONVERTED},
    {"v6-rand", CONVERTED},      {"v7", CONVERTED},
    {"v7-rand", CONVERTED},
};

enum { N_SOURCES = sizeof sources / sizeof *sources };

static bool is_converted(const struct source *s)
{
    return strcmp(s->file, CONVERTED) == 0;
}

static const char *in(const char *folder)
{
    static char path[128];
    (void)snprintf(path, sizeof path, ROOT "%s", folder);
    return path;
}

static struct sl_model *open_model(const struct source *s, const char *kernels, const char *rule)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    char folder[] = "/tmp/slate-rwkv-XXXXXX", path[64];
    const char *name = is_converted(s) ? "model.pth" : s->file;
    struct sl_model_options opt = {
        .path = reference_path(in(s->folder), name), .kernels = kernels, .rule = rule};
    if (is_converted(s)) {
        assert_non_null(mkdtemp(folder));
        (void)snprintf(path, sizeof path, "%s/%s", folder, s->file);
        web_rwkv_write(opt.path, path);
        opt.path = path;
    }
    enum sl_code c = sl_model_open(&m, &opt, &err);
    if (is_converted(s)) { /* the mapping keeps the file */
        unlink(path);
        rmdir(folder);
    }
    if (c != SL_OK)
        fail_msg("%s: %s", s->folder, err.message);
    return m;
}

static void need_reference(void)
{
    if (access(ROOT "v7/fixture.json", R_OK) == 0)
        return;
    print_message("skipped: %d RWKV models: ../shared/reference is not here\n", N_SOURCES);
    skip();
}

/* --- comparing ----------------------------------------------------------------------------------
 */

static double tolerance(const json_t *set)
{
    const json_t *a = json_object_get(set, "atol_strict");
    a = a ? a : json_object_get(set, "atol");
    assert_true(json_is_number(a));
    return json_number_value(a);
}

static void compare_logits(const struct sl_model *m, const char *folder, const json_t *set,
                           const float *got, size_t n_tokens)
{
    size_t vocab = sl_model_info(m)->vocab_size, stride = sl_model_logits_stride(m);
    bool last = strcmp(json_string_value(json_object_get(set, "positions")), "last only") == 0;
    size_t rows = last ? 1 : n_tokens;
    const char *file = json_string_value(json_object_get(set, "logits"));
    float *want = reference_floats(in(folder), file, rows * vocab);
    double worst =
        reference_logits(m, folder, got + (n_tokens - rows) * stride, want, rows, tolerance(set));
    print_message("%-10s %-18s worst %.2g of %.2g allowed\n", folder, file, worst, tolerance(set));
    free(want);
}

/* The reference's [head][value][key] of RWKV-7 as our [head][key][value]. */
static size_t turned(const struct sl_state_tensor *t, size_t i)
{
    size_t n = t->shape[1], h = i / (n * n), v = i / n % n, k = i % n;
    return (h * n + k) * n + v;
}

static const struct reference_tensor tensors[] = {
    {"att_x_prev", "mixer.shift", NULL},
    {"att_kv", "mixer.state", NULL},
    {"att_aa", "mixer.num", NULL},
    {"att_bb", "mixer.den", NULL},
    {"att_pp", "mixer.peak", NULL},
    {"ffn_x_prev", "ffn.shift", NULL},
    {0},
};
static const struct reference_tensor tensors_of_7[] = {
    {"att_x_prev", "mixer.shift", NULL},
    {"att_kv", "mixer.state", turned},
    {"ffn_x_prev", "ffn.shift", NULL},
    {0},
};

/* --- tests --------------------------------------------------------------------------------------
 */

/* How tokens are cut into steps: sizes in turn, again and again. */
/* The thread sanitizer looks for races, which no table of kernels has more of than another. */
#if defined(__SANITIZE_THREAD__)
enum { ONE_TABLE = 1 };
#else
enum { ONE_TABLE = 0 };
#endif

static const size_t cuts[][4] = {{1, 1, 1, 1}, {256, 256, 256, 256}, {3, 1, 20, 2}};

static void check_set(struct runner *r, const char *folder, const json_t *set, const size_t *cut)
{
    size_t n;
    const struct sl_model *m = r->model;
    uint32_t *tokens =
        reference_tokens(in(folder), json_string_value(json_object_get(set, "tokens")), &n);
    float *logits = runner_logits(m, n);
    void *state = runner_state(m);
    reference_feed(r, state, tokens, n, cut, logits);
    compare_logits(m, folder, set, logits, n);
    const json_t *base = json_object_get(set, "state");
    if (base)
        reference_state(m, in(folder), json_string_value(base),
                        strcmp(sl_model_info(m)->arch, "rwkv7") == 0 ? tensors_of_7 : tensors,
                        state);
    assert_int_equal(((struct sl_state_header *)state)->tokens_seen, n);
    sl_free(state);
    sl_free(logits);
    free(tokens);
}

static void check_greedy(struct runner *r, const char *folder)
{
    if (access(reference_path(in(folder), "greedy.json"), R_OK) != 0)
        return;
    json_t *j = reference_json(in(folder), "greedy.json");
    size_t n, n_want;
    uint32_t *want = reference_ids(json_object_get(j, "tokens"), &n_want);
    uint32_t *tokens =
        reference_tokens(in(folder), json_string_value(json_object_get(j, "prompt")), &n);
    float *logits = runner_logits(r->model, n);
    void *state = runner_state(r->model);
    assert_int_equal(n_want, 64);
    runner_feed(r, state, tokens, n, n, logits);
    const float *last = logits + (n - 1) * r->stride;
    for (size_t i = 0; i < n_want; i++) {
        uint32_t t = runner_argmax(last, sl_model_info(r->model)->vocab_size);
        assert_int_equal(t, want[i]);
        runner_feed(r, state, &t, 1, 1, logits);
        last = logits;
    }
    sl_free(state);
    sl_free(logits);
    free(tokens);
    free(want);
    json_decref(j);
}

/* The sets that were computed with the group norm's eps that the model has by itself, or, `other`,
 * with another one. */
static size_t check_sets(struct runner *r, const char *folder, const json_t *fixture, bool other)
{
    const json_t *own = json_object_get(fixture, "group_norm_eps"), *set;
    size_t i, n = 0;
    json_array_foreach(json_object_get(fixture, "sets"), i, set)
    {
        const json_t *eps = json_object_get(set, "group_norm_eps");
        if ((eps && own && json_number_value(eps) != json_number_value(own)) != other)
            continue;
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
            check_set(r, folder, set, cuts[c]);
        n++;
    }
    return n;
}

static void check_source(const struct source *s, const char *kernels)
{
    struct sl_model *m = open_model(s, kernels, NULL);
    struct runner r;
    runner_open(&r, m, 2, 256, 1);
    json_t *fixture = reference_json(in(s->folder), "fixture.json");
    size_t n_sets = json_array_size(json_object_get(fixture, "sets"));
    assert_true(n_sets > 0);
    size_t n = check_sets(&r, s->folder, fixture, false);
    check_greedy(&r, s->folder);
    const json_t *heads = json_object_get(fixture, "n_head");
    if (heads) /* RWKV-4 has none */
        assert_int_equal(sl_model_info(m)->n_heads, json_integer_value(heads));
    assert_int_equal(sl_model_info(m)->n_unused == 0 || strcmp(s->folder, "v7-rand") == 0, 1);
    runner_close(&r);
    sl_model_close(m);
    if (n < n_sets) {
        m = open_model(s, kernels, "ln_x_eps=1e-5");
        runner_open(&r, m, 2, 256, 1);
        n += check_sets(&r, s->folder, fixture, true);
        runner_close(&r);
        sl_model_close(m);
    }
    assert_int_equal(n, n_sets);
    json_decref(fixture);
}

static void test_source(void **prestate)
{
    need_reference();
    const char *const *all = sl_kernels_names();
    for (const char *const *k = all; *k && (k == all || !ONE_TABLE); k++)
        check_source(*prestate, *k);
}

static void test_reverse(void **unused)
{
    (void)unused;
    need_reference();
    const struct source s = {"v7-reverse", "model.pth"};
    struct sl_model *m = open_model(&s, NULL, NULL);
    struct runner r;
    runner_open(&r, m, 1, 128, 1);
    json_t *j = reference_json(in("v7-reverse"), "cases.json");
    const json_t *cases = json_object_get(j, "cases"), *c;
    assert_int_equal(json_array_size(cases), 60);
    size_t i, n, n_want;
    json_array_foreach(cases, i, c)
    {
        uint32_t *input = reference_ids(json_object_get(c, "input"), &n);
        uint32_t *want = reference_ids(json_object_get(c, "greedy"), &n_want);
        float *logits = runner_logits(m, n);
        void *state = runner_state(m);
        runner_feed(&r, state, input, n, n, logits);
        const float *last = logits + (n - 1) * r.stride;
        for (size_t t = 0; t < n_want; t++) {
            uint32_t got = runner_argmax(last, sl_model_info(m)->vocab_size);
            assert_int_equal(got, want[t]);
            runner_feed(&r, state, &got, 1, 1, logits);
            last = logits;
        }
        sl_free(state);
        sl_free(logits);
        free(want);
        free(input);
    }
    json_decref(j);
    runner_close(&r);
    sl_model_close(m);
}

/* One model in two containers is one model, when the types are the same. */
static void test_fingerprint(void **unused)
{
    (void)unused;
    need_reference();
    for (size_t i = 0; i + 1 < N_SOURCES; i++) {
        if (is_converted(&sources[i + 1]) || strcmp(sources[i].folder, sources[i + 1].folder) != 0)
            continue;
        struct sl_model *a = open_model(&sources[i], NULL, NULL),
                        *b = open_model(&sources[i + 1], NULL, NULL);
        const struct sl_model_info *x = sl_model_info(a), *y = sl_model_info(b);
        assert_int_equal(memcmp(x->fingerprint, y->fingerprint, 16) == 0, x->weights == y->weights);
        sl_model_close(a);
        sl_model_close(b);
    }
    /* Two models. */
    struct sl_model *a = open_model(&sources[0], NULL, NULL),
                    *b = open_model(&sources[2], NULL, NULL);
    assert_memory_not_equal(sl_model_info(a)->fingerprint, sl_model_info(b)->fingerprint, 16);
    sl_model_close(a);
    sl_model_close(b);
    /* v7-rand: BF16 and F32. */
    const struct source rand7 = {"v7-rand", "model.safetensors"};
    a = open_model(&rand7, NULL, NULL);
    assert_int_equal(sl_model_info(a)->weights, SL_DTYPE_F32);
    sl_model_close(a);
}

int main(void)
{
    static char names[N_SOURCES][64];
    struct CMUnitTest tests[N_SOURCES + 2];
    for (size_t i = 0; i < N_SOURCES; i++) {
        (void)snprintf(names[i], sizeof names[i], "%s %s", sources[i].folder, sources[i].file);
        tests[i] = (struct CMUnitTest){names[i], test_source, NULL, NULL, &sources[i]};
    }
    tests[N_SOURCES] = (struct CMUnitTest)cmocka_unit_test(test_reverse);
    tests[N_SOURCES + 1] = (struct CMUnitTest)cmocka_unit_test(test_fingerprint);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
