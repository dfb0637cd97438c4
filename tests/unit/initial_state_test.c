/* initial_state_test.c: state-tuned files against the plain models in double precision, which know
 * RWKV-5, 6 and 7 from the papers: a text after such a beginning gives their logits, with the
 * file's axes as BlinkDL's trainers write them, and not with them exchanged; also where the state
 * is merged into the model's own file. */
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
#include "server/initial.h"
#include "tests/support/rules.h"
#include "tests/support/rules_slow.h"
#include "tests/support/runner.h"
#include "tests/support/rwkv7_slow.h"
#include "tests/support/seeded_pth.h"
#include "tests/support/tree.h"

enum { T = 12 };

static char folder[32], tuned[64], swapped[64], worded[64], merged[64];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/slate-initial-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(tuned, sizeof tuned, "%s/tuned.pth", folder);
    (void)snprintf(swapped, sizeof swapped, "%s/swapped.safetensors", folder);
    (void)snprintf(worded, sizeof worded, "%s/worded.pth", folder);
    (void)snprintf(merged, sizeof merged, "%s/merged.safetensors", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

/* The file's tensors with their last two axes exchanged, as a file. */
static void write_swapped(const struct sl_tensors *t)
{
    struct seeded s = {.seed = 1};
    for (size_t i = 0; i < t->n; i++)
        seeded_add(&s, SL_DTYPE_F32, t->v[i].rank, t->v[i].shape, 0, 0, t->v[i].name);
    size_t n, header;
    unsigned char *p = seeded_bytes(&s, &n);
    memcpy(&header, p, sizeof header);
    float *to = (float *)(void *)(p + 8 + header);
    for (size_t i = 0; i < t->n; i++) {
        const float *from = (const float *)(const void *)t->v[i].data;
        size_t size = t->v[i].shape[2];
        for (size_t k = 0; k < t->v[i].n_elements; k++)
            *to++ = from[k / size / size * size * size + k % size * size + k / size % size];
    }
    FILE *f = fopen(swapped, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
    free(p);
    seeded_done(&s);
}

/* For a model of this shape; the same with a word before each name. */
static void write_files(const struct sl_model *m)
{
    const struct sl_model_info *i = sl_model_info(m);
    const size_t shape[] = {i->n_heads, i->head_size, i->head_size};
    static const char *const words[] = {"", "language_model."};
    for (int w = 0; w < 2; w++) {
        struct seeded s = {.seed = 5};
        char names[16][64];
        for (size_t layer = 0; layer < i->n_layers; layer++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%sblocks.%zu.att.time_state", words[w], layer);
            struct seeded_tensor *t = seeded_add(&s, SL_DTYPE_F32, 3, shape, 0, 0.7, name);
            (void)snprintf(names[layer], sizeof names[layer], "blocks.%zu.att.time_state", layer);
            t->values = names[layer];
        }
        seeded_write_pth(&s, w ? worded : tuned);
        seeded_done(&s);
    }
}

/* The rule's model with a state in it, another one than write_files() writes. */
static void list_merged(const struct rule *rule, const struct sl_model_info *i, struct seeded *s)
{
    const size_t shape[] = {i->n_heads, i->head_size, i->head_size};
    rule->list(s);
    for (size_t layer = 0; layer < i->n_layers; layer++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blocks.%zu.att.time_state", layer);
        seeded_add(s, SL_DTYPE_F16, 3, shape, 0, 0.7, name);
    }
}

static double *slow_after(const struct rule *rule, const struct sl_tensors *t,
                          const struct sl_tensors *from, const uint32_t *tokens, size_t *ret_vocab)
{
    if (strcmp(rule->arch, "rwkv7") != 0)
        return rwkv_slow_from(t, from, rule->choices, tokens, T, ret_vocab);
    struct slow *s = slow_open(t);
    size_t vocab = *ret_vocab = sl_tensors_find(t, "emb.weight")->shape[0];
    double *logits = malloc(T * vocab * sizeof *logits);
    assert_non_null(logits);
    slow_begin(s, from);
    for (size_t i = 0; i < T; i++)
        slow_feed(s, tokens[i], logits + i * vocab);
    slow_close(s);
    return logits;
}

/* The largest difference to `want`, in the measure of its largest. */
static double off(const struct sl_model *m, const char *path, const uint32_t *tokens,
                  const double *want)
{
    struct runner r;
    struct sl_error err;
    void *state = runner_state(m);
    float *logits = runner_logits(m, T);
    double most = 0, largest = 0;
    size_t vocab = sl_model_info(m)->vocab_size;
    if (path && sl_initial_state_open(m, path, state, &err))
        fail_msg("%s: %s", path, err.message);
    runner_open(&r, m, 2, T, 1);
    runner_feed(&r, state, tokens, T, 5, logits);
    for (size_t i = 0; i < T * vocab; i++) {
        double got = (double)logits[i / vocab * r.stride + i % vocab];
        most = fmax(most, fabs(got - want[i]));
        largest = fmax(largest, fabs(want[i]));
    }
    runner_close(&r);
    sl_free(logits);
    sl_free(state);
    return most / largest;
}

static void check_rule(const struct rule *rule)
{
    struct rule_files f;
    struct sl_tensors *t = NULL, *from = NULL;
    uint32_t tokens[T];
    size_t vocab;
    struct sl_model *m = rule_open(rule, NULL);
    rule_write(rule, &f);
    write_files(m);
    assert_int_equal(sl_tensors_open(&t, f.path, NULL), SL_OK);
    assert_int_equal(sl_tensors_open(&from, tuned, NULL), SL_OK);
    write_swapped(from);
    for (size_t i = 0; i < T; i++)
        tokens[i] = (uint32_t)((i * 29 + 3) % sl_model_info(m)->vocab_size);
    double *want = slow_after(rule, t, from, tokens, &vocab);
    assert_int_equal(vocab, sl_model_info(m)->vocab_size);
    double right = off(m, tuned, tokens, want), named = off(m, worded, tokens, want),
           wrong = off(m, swapped, tokens, want), none = off(m, NULL, tokens, want);
    print_message("%s: %.2g; axes exchanged %.2g, without it %.2g\n", rule->title, right, wrong,
                  none);
    assert_true(right <= 2e-5);
    assert_true(named == right);
    assert_true(wrong > 1e-2 && none > 1e-2);
    free(want);
    sl_tensors_close(from);
    sl_tensors_close(t);
    rule_remove(&f);
    sl_model_close(m);
}

/* The model begins with what is merged into it, where no other beginning is asked for. */
static void check_merged(const struct rule *rule)
{
    struct seeded s;
    struct sl_error err;
    struct sl_tensors *t = NULL, *from = NULL;
    struct sl_model *plain = rule_open(rule, NULL), *m = NULL;
    uint32_t tokens[T];
    size_t vocab;
    list_merged(rule, sl_model_info(plain), &s);
    seeded_write(&s, merged);
    seeded_done(&s);
    write_files(plain);
    const struct sl_model_options opt = {.path = merged, .rule = rule->choices};
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s: %s", rule->title, err.message);
    assert_int_equal(sl_model_info(m)->n_unused, 0);
    assert_memory_not_equal(sl_model_info(m)->fingerprint, sl_model_info(plain)->fingerprint, 16);
    assert_int_equal(sl_tensors_open(&t, merged, NULL), SL_OK);
    assert_int_equal(sl_tensors_open(&from, tuned, NULL), SL_OK);
    for (size_t i = 0; i < T; i++)
        tokens[i] = (uint32_t)((i * 29 + 3) % sl_model_info(m)->vocab_size);
    double *own = slow_after(rule, t, t, tokens, &vocab),
           *other = slow_after(rule, t, from, tokens, &vocab);
    assert_true(off(m, NULL, tokens, own) <= 2e-5);
    assert_true(off(m, NULL, tokens, other) > 1e-2);
    assert_true(off(m, tuned, tokens, other) <= 2e-5);
    assert_true(off(plain, merged, tokens, own) <= 2e-5);
    free(own);
    free(other);
    sl_tensors_close(from);
    sl_tensors_close(t);
    sl_model_close(m);
    sl_model_close(plain);
}

static void each_rule(void (*check)(const struct rule *))
{
    size_t n = 0;
    for (const struct rule *r = rules; r->title; r++)
        if (strcmp(r->arch, "rwkv5") == 0 || strcmp(r->arch, "rwkv6") == 0 ||
            strcmp(r->arch, "rwkv7") == 0) {
            check(r);
            n++;
        }
    assert_int_equal(n, 5);
}

static void test_against_the_plain_models(void **state)
{
    (void)state;
    each_rule(check_rule);
}

static void test_merged(void **state)
{
    (void)state;
    each_rule(check_merged);
}

/* --- --initial-state ---------------------------------------------------------------------------*/

static const struct rule *rule_of(const char *arch)
{
    const struct rule *r = rules;
    while (strcmp(r->arch, arch) != 0)
        r++;
    return r;
}

static void refused(const struct sl_model *m, const char *const *given, size_t n, enum sl_code code,
                    const char *part)
{
    struct sl_initial_states *s = NULL;
    struct sl_error err = {0};
    struct sl_strings list = {.v = (const char **)(uintptr_t)given, .n = n};
    enum sl_code c = sl_initial_states_open(&s, m, &list, &err);
    if (c != code || !strstr(err.message, part))
        fail_msg("%s: %s; expected %s", sl_code_name(c), c ? err.message : "", part);
    assert_null(s);
}

static void test_options(void **state)
{
    (void)state;
    struct sl_model *m = rule_open(rule_of("rwkv6"), NULL),
                    *four = rule_open(rule_of("rwkv4"), NULL);
    struct sl_initial_states *s = NULL;
    struct sl_error err;
    const void *found = NULL;
    size_t n;
    char named[80], path[96];
    write_files(m);
    (void)snprintf(named, sizeof named, "poet=%s", tuned);
    (void)snprintf(path, sizeof path, "%s/a=b.pth", folder); /* a path, no name */
    assert_int_equal(link(tuned, path), 0);
    const char *const given[] = {named, path};
    const struct sl_strings list = {.v = (const char **)(uintptr_t)given, .n = 2};
    if (sl_initial_states_open(&s, m, &list, &err))
        fail_msg("%s", err.message);
    assert_non_null(sl_initial_states_default(s));
    assert_string_equal(sl_initial_states_names(s, &n)[0], "poet");
    assert_int_equal(n, 1);
    assert_int_equal(sl_initial_states_find(s, "poet", "f", &found, &err), SL_OK);
    assert_memory_equal(found, sl_initial_states_default(s), sl_model_info(m)->state_bytes);
    assert_int_equal(sl_initial_states_find(s, "none", "f", &found, &err), SL_OK);
    assert_null(found);
    assert_int_equal(sl_initial_states_find(s, "pop", "f", &found, &err), SL_E_INVALID_VALUE);
    assert_non_null(
        strstr(err.message, "there is no initial state 'pop'; this server has: none, poet"));
    assert_int_equal(sl_initial_states_find(s, "", "f", &found, &err), SL_E_INVALID_VALUE);
    sl_initial_states_close(s);
    refused(m, (const char *const[]){named, named}, 2, SL_E_USAGE,
            "the name poet is there already");
    refused(m, (const char *const[]){tuned, path}, 2, SL_E_USAGE, "one without a name is there");
    refused(m, (const char *const[]){"none=x"}, 1, SL_E_USAGE, "is the model's own beginning");
    refused(m, (const char *const[]){"a=/nowhere.pth"}, 1, SL_E_FILE_NOT_FOUND, "/nowhere.pth");
    refused(four, given, 1, SL_E_UNSUPPORTED,
            "tuned.pth: state-tuned files are of RWKV-5, 6 and 7, and the model is rwkv4");
    sl_model_close(m);
    sl_model_close(four);
}

/* Of another model: by the tensor and both shapes. */
static void test_another_model(void **state)
{
    (void)state;
    struct sl_model *m = rule_open(rule_of("rwkv6"), NULL);
    struct sl_error err = {0};
    struct seeded s = {.seed = 5};
    void *to = runner_state(m);
    const struct sl_model_info *i = sl_model_info(m);
    const size_t shape[] = {i->n_heads + 1, i->head_size, i->head_size};
    struct seeded_tensor *t = NULL;
    for (size_t layer = 0; layer <= i->n_layers; layer++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blocks.%zu.att.time_state", layer);
        t = seeded_add(&s, SL_DTYPE_F32, 3, shape, 0, 1, name);
    }
    seeded_write_pth(&s, tuned);
    assert_int_equal(sl_initial_state_open(m, tuned, to, &err), SL_E_MODEL_INVALID);
    assert_non_null(strstr(err.message, "but this model has"));
    s.n--;
    seeded_write_pth(&s, tuned);
    assert_int_equal(sl_initial_state_open(m, tuned, to, &err), SL_E_MODEL_INVALID);
    assert_non_null(strstr(err.message, "tensor blocks.0.att.time_state"));
    assert_non_null(strstr(err.message, "needs the shape ["));
    for (size_t k = 0; k < s.n; k++)
        s.v[k].shape[0]--;
    t = &s.v[s.n - 1];
    t->plant_at = 7;
    t->plant = NAN;
    seeded_write_pth(&s, tuned);
    assert_int_equal(sl_initial_state_open(m, tuned, to, &err), SL_E_MODEL_INVALID);
    assert_non_null(strstr(err.message, "is not finite (element 7)"));
    assert_non_null(strstr(err.message, t->name));
    s.n--;
    seeded_write_pth(&s, tuned);
    assert_int_equal(sl_initial_state_open(m, tuned, to, &err), SL_E_MODEL_INVALID);
    assert_non_null(strstr(err.message, "is absent"));
    seeded_done(&s);
    sl_free(to);
    sl_model_close(m);
}

static void refused_model(const char *part)
{
    const struct sl_model_options opt = {.path = merged};
    struct sl_model *m = NULL;
    struct sl_error err = {0};
    enum sl_code c = sl_model_open(&m, &opt, &err);
    if ((c != SL_E_MODEL_INVALID && c != SL_E_MODEL_UNSUPPORTED) || !strstr(err.message, part))
        fail_msg("%s: %s; expected %s", sl_code_name(c), c ? err.message : "", part);
}

/* Merged only in part, or of another shape; a state alone. */
static void test_wrongly_merged(void **state)
{
    (void)state;
    for (const char *const *a = (const char *const[]){"rwkv5", "rwkv6", "rwkv7", NULL}; *a; a++) {
        struct sl_model *m = rule_open(rule_of(*a), NULL);
        const struct sl_model_info *i = sl_model_info(m);
        struct seeded s;
        list_merged(rule_of(*a), i, &s);
        size_t n = s.n;
        s.v[n - 1].shape[2]++;
        seeded_write(&s, merged);
        refused_model("blocks.1.att.time_state has the shape [");
        s.v[n - 1].shape[2]--;
        s.v[n - 1].plant_at = 1, s.v[n - 1].plant = NAN;
        seeded_write(&s, merged);
        refused_model("blocks.1.att.time_state holds NaN (element 1)");
        s.n--;
        seeded_write(&s, merged);
        refused_model("blocks.1.att.time_state is absent");
        s.v[0] = s.v[n - 2], s.n = 1;
        seeded_write(&s, merged);
        refused_model("holds a tuned initial state, which is no model by itself");
        seeded_done(&s);
        sl_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_the_plain_models),
        cmocka_unit_test(test_merged),
        cmocka_unit_test(test_wrongly_merged),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_another_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
