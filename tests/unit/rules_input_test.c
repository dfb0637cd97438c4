/* rules_input_test.c: files that are wrong, for every memory rule: each tensor absent, of another
 * shape, with a value that is not finite; a tensor too many. Each is refused, and the message names
 * the file, the tensor and what was expected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_priv.h"
#include "tests/support/rules.h"

enum { N_RULES_MAX = 64 };

static enum sl_code open_list(const struct rule *rule, const struct seeded *s, struct sl_error *err)
{
    size_t n;
    unsigned char *bytes = NULL;
    struct sl_model *m = NULL;
    enum sl_code c;
    if (rule->settings) {
        c = rule_open_list(&m, s, rule->settings, &bytes, err);
    } else {
        const struct sl_model_options opt = {.rule = rule->choices};
        bytes = seeded_bytes(s, &n);
        c = sl_model_open_memory(&m, bytes, n, "m/model.safetensors", &opt, err);
    }
    sl_model_close(m);
    free(bytes);
    return c;
}

/* It is refused as a model, and the message has these words in it. */
static void refuse(const struct rule *rule, const struct seeded *s, const char *word,
                   const char *other)
{
    struct sl_error err = {0};
    enum sl_code c = open_list(rule, s, &err);
    if (c != SL_E_MODEL_INVALID || !strstr(err.message, "m/") || !strstr(err.message, word) ||
        !strstr(err.message, other))
        fail_msg("%s: expected \"%s\" and \"%s\", got %s: %s", rule->title, word, other,
                 sl_code_name(c), c ? err.message : "");
}

static void test_absent(void **rule)
{
    const struct rule *r = *rule;
    struct seeded s;
    r->list(&s);
    size_t n = s.n;
    for (size_t i = 0; i < n; i++) {
        const struct seeded_tensor was = s.v[i];
        s.v[i] = s.v[--s.n];
        /* Without the old tensor of all mixes it is a file that must have the new ones; without
         * learned positions one that has fixed ones. */
        const char *missed = strstr(was.name, ".attn.x_x")                 ? ".attn.x_r"
                             : strcmp(was.name, "pos_emb.emb.weight") == 0 ? "pos_emb.emb"
                                                                           : was.name;
        refuse(r, &s, missed, "is absent");
        s.v[s.n++] = s.v[i];
        s.v[i] = was;
    }
    seeded_done(&s);
}

/* One more along each axis in turn. An axis from which a size is read may contradict another tensor
 * instead. */
static void test_shape(void **rule)
{
    const struct rule *r = *rule;
    struct seeded s;
    size_t n_named = 0;
    r->list(&s);
    for (size_t i = 0; i < s.n; i++) {
        struct seeded_tensor *t = &s.v[i];
        for (unsigned a = 0; a < t->rank; a++) {
            struct sl_error err = {0};
            if (a == 0 && strcmp(t->name, "pos_emb.emb.weight") == 0)
                continue; /* a model with one position more */
            t->shape[a]++;
            enum sl_code c = open_list(r, &s, &err);
            if (c != SL_E_MODEL_INVALID || !strstr(err.message, "m/"))
                fail_msg("%s: %s with one more along axis %u: %s: %s", r->title, t->name, a,
                         sl_code_name(c), c ? err.message : "");
            n_named += strstr(err.message, t->name) && strstr(err.message, "the model needs [");
            t->shape[a]--;
        }
    }
    if (n_named < s.n)
        fail_msg("%s: %zu of %zu tensors named", r->title, n_named, s.n);
    seeded_done(&s);
}

static void test_not_finite(void **rule)
{
    const struct rule *r = *rule;
    struct seeded s;
    r->list(&s);
    for (size_t i = 0; i < s.n; i++) {
        s.v[i].plant_at = 1;
        s.v[i].plant = i % 2 ? NAN : INFINITY;
        refuse(r, &s, s.v[i].name, i % 2 ? "holds NaN (element 1)" : "holds inf (element 1)");
        s.v[i].plant_at = SIZE_MAX;
    }
    seeded_done(&s);
}

/* A value that is fine by itself, and not what the model makes of it: -exp(1000). */
static void test_mapped(void **unused)
{
    (void)unused;
    const struct rule *r = rules;
    struct seeded s;
    while (strcmp(r->title, "rwkv4") != 0)
        r++;
    r->list(&s);
    struct seeded_tensor *t = seeded_find(&s, "blocks.1.att.time_decay");
    t->plant_at = 3, t->plant = 1000;
    refuse(r, &s, t->name, "holds 1000 (element 3), too large for F32");
    seeded_done(&s);
}

static void test_more(void **rule)
{
    const struct rule *r = *rule;
    struct seeded s;
    r->list(&s);
    struct seeded_tensor *t =
        seeded_add(&s, SL_DTYPE_F32, 1, (size_t[]){3}, 0, 1, "a.tensor.too.many");
    refuse(r, &s, t->name, "is no part of the model");
    seeded_done(&s);
}

int main(void)
{
    static const struct {
        const char *what;
        CMUnitTestFunction f;
    } each[] = {{"absent", test_absent},
                {"another shape", test_shape},
                {"not finite", test_not_finite},
                {"one too many", test_more}};
    enum { N_EACH = sizeof each / sizeof *each };
    static struct CMUnitTest tests[N_RULES_MAX * N_EACH + 1];
    static char titles[N_RULES_MAX * N_EACH][80];
    size_t n = 0;
    for (size_t i = 0; rules[i].title; i++)
        for (size_t k = 0; k < N_EACH; k++, n++) {
            assert(i < N_RULES_MAX);
            (void)snprintf(titles[n], sizeof titles[n], "%s: %s", rules[i].title, each[k].what);
            tests[n] =
                (struct CMUnitTest){titles[n], each[k].f, NULL, NULL, (void *)(uintptr_t)&rules[i]};
        }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_mapped);
    return _cmocka_run_group_tests("rules_input", tests, n, NULL, NULL);
}
