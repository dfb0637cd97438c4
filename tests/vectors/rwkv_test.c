/* rwkv_test.c: BlinkDL's RWKV models against the reference folders: every logit of every set within
 * the fixture's tolerance, states, greedy continuations, the digit-reversal cases; each fed token
 * by token, in one piece and in pieces of mixed sizes, from both containers, with every table of
 * kernels that this machine can run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/kernels/kernels.h"
#include "tests/support/runner.h"

#define ROOT "../shared/reference/rwkv/"

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
    {"v7-reverse", "model.pth"},
};

enum { N_SOURCES = sizeof sources / sizeof *sources };

/* --- reading the folders ------------------------------------------------------------------------
 */

static const char *path_of(const char *folder, const char *file)
{
    static char path[256];
    (void)snprintf(path, sizeof path, ROOT "%s/%s", folder, file);
    return path;
}

static json_t *read_json(const char *folder, const char *file)
{
    json_error_t e;
    json_t *j = json_load_file(path_of(folder, file), 0, &e);
    if (!j)
        fail_msg("%s: %s", path_of(folder, file), e.text);
    return j;
}

static float *read_floats(const char *folder, const char *file, size_t n)
{
    FILE *f = fopen(path_of(folder, file), "rb");
    assert_non_null(f);
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    assert_int_equal(fread(v, sizeof *v, n, f), n);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    return v;
}

static uint32_t *tokens_of(const json_t *array, size_t *ret_n)
{
    assert_true(json_is_array(array));
    *ret_n = json_array_size(array);
    uint32_t *v = malloc((*ret_n + 1) * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < *ret_n; i++)
        v[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return v;
}

static uint32_t *read_tokens(const char *folder, const char *file, size_t *ret_n)
{
    json_t *j = read_json(folder, file);
    uint32_t *v = tokens_of(j, ret_n);
    json_decref(j);
    return v;
}

static struct sl_model *open_model(const struct source *s, const char *kernels, const char *rule)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {
        .path = path_of(s->folder, s->file), .kernels = kernels, .rule = rule};
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
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
    size_t rows = last ? 1 : n_tokens, first = n_tokens - rows;
    float *want =
        read_floats(folder, json_string_value(json_object_get(set, "logits")), rows * vocab);
    double atol = tolerance(set), worst = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < vocab; i++) {
            double e = fabs((double)got[(first + r) * stride + i] - (double)want[r * vocab + i]);
            if (!(e <= atol))
                fail_msg("%s, row %zu, logit %zu: off by %g, allowed %g", folder, first + r, i, e,
                         atol);
            worst = e > worst ? e : worst;
        }
    print_message("%-10s %-18s worst %.2g of %.2g allowed\n", folder,
                  json_string_value(json_object_get(set, "logits")), worst, atol);
    free(want);
}

/* Our name for a tensor of the reference's state. */
static const struct sl_state_tensor *our_tensor(const struct sl_model *m, const char *theirs)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"att_x_prev", "mixer.shift"}, {"att_kv", "mixer.state"},
                 {"att_aa", "mixer.num"},       {"att_bb", "mixer.den"},
                 {"att_pp", "mixer.peak"},      {"ffn_x_prev", "ffn.shift"}};
    char name[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *at = strstr(theirs, names[i].theirs);
        if (!at)
            continue;
        (void)snprintf(name, sizeof name, "%.*s%s", (int)(at - theirs), theirs, names[i].ours);
        return runner_tensor(m, name);
    }
    return NULL;
}

/* The reference's [head][value][key] of RWKV-7 as our [head][key][value]; others as they are. */
static size_t our_index(const struct sl_model *m, const struct sl_state_tensor *t, size_t i)
{
    if (t->rank != 3 || strcmp(sl_model_info(m)->arch, "rwkv7") != 0)
        return i;
    size_t n = t->shape[1], h = i / (n * n), v = i / n % n, k = i % n;
    return (h * n + k) * n + v;
}

static void compare_state(const struct sl_model *m, const char *folder, const char *base,
                          const unsigned char *state)
{
    char file[64];
    (void)snprintf(file, sizeof file, "%s.json", base);
    json_t *j = read_json(folder, file);
    size_t total = (size_t)json_integer_value(json_object_get(j, "total_floats"));
    (void)snprintf(file, sizeof file, "%s.f32", base);
    float *want = read_floats(folder, file, total);
    size_t i, seen = 0;
    const json_t *entry;
    json_array_foreach(json_object_get(j, "tensors"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        size_t at = (size_t)json_integer_value(json_object_get(entry, "offset_floats"));
        const struct sl_state_tensor *t = our_tensor(m, name);
        assert_non_null(t);
        size_t n = 1;
        for (unsigned a = 0; a < t->rank; a++)
            n *= t->shape[a];
        assert_true(at + n <= total);
        const float *got = (const float *)(const void *)(state + t->offset);
        double largest = 0;
        for (size_t e = 0; e < n; e++)
            largest = fmax(largest, fabs((double)want[at + e]));
        for (size_t e = 0; e < n; e++) {
            double d = fabs((double)got[our_index(m, t, e)] - (double)want[at + e]);
            if (!(d <= 1e-4 * largest))
                fail_msg("%s, %s of %s, element %zu: off by %g of %g", folder, name, base, e, d,
                         largest);
        }
        seen += n;
    }
    assert_int_equal(seen, total);
    free(want);
    json_decref(j);
}

/* --- tests --------------------------------------------------------------------------------------
 */

/* How tokens are cut into steps: sizes in turn, again and again. */
static const size_t cuts[][4] = {{1, 1, 1, 1}, {256, 256, 256, 256}, {3, 1, 20, 2}};

static void feed(struct runner *r, void *state, const uint32_t *tokens, size_t n, const size_t *cut,
                 float *logits)
{
    for (size_t i = 0, piece = 0, size; i < n; i += size, piece++) {
        size = n - i < cut[piece % 4] ? n - i : cut[piece % 4];
        runner_feed(r, state, tokens + i, size, size, logits + i * r->stride);
    }
}

static void check_set(struct runner *r, const char *folder, const json_t *set, const size_t *cut)
{
    size_t n;
    const struct sl_model *m = r->model;
    uint32_t *tokens = read_tokens(folder, json_string_value(json_object_get(set, "tokens")), &n);
    float *logits = runner_logits(m, n);
    void *state = runner_state(m);
    feed(r, state, tokens, n, cut, logits);
    compare_logits(m, folder, set, logits, n);
    const json_t *base = json_object_get(set, "state");
    if (base)
        compare_state(m, folder, json_string_value(base), state);
    assert_int_equal(((struct sl_state_header *)state)->tokens_seen, n);
    sl_free(state);
    sl_free(logits);
    free(tokens);
}

static void check_greedy(struct runner *r, const char *folder)
{
    if (access(path_of(folder, "greedy.json"), R_OK) != 0)
        return;
    json_t *j = read_json(folder, "greedy.json");
    size_t n, n_want;
    uint32_t *want = tokens_of(json_object_get(j, "tokens"), &n_want);
    uint32_t *tokens = read_tokens(folder, json_string_value(json_object_get(j, "prompt")), &n);
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
    json_t *fixture = read_json(s->folder, "fixture.json");
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
    for (const char *const *k = sl_kernels_names(); *k; k++)
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
    json_t *j = read_json("v7-reverse", "cases.json");
    const json_t *cases = json_object_get(j, "cases"), *c;
    assert_int_equal(json_array_size(cases), 60);
    size_t i, n, n_want;
    json_array_foreach(cases, i, c)
    {
        uint32_t *input = tokens_of(json_object_get(c, "input"), &n);
        uint32_t *want = tokens_of(json_object_get(c, "greedy"), &n_want);
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
        if (strcmp(sources[i].folder, sources[i + 1].folder) != 0)
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
