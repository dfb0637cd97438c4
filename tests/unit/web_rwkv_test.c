/* web_rwkv_test.c: BlinkDL's models as web-rwkv's converters write them give the logits of the file
 * that they were made from, to the bit; what cannot be told of such a file is refused and not
 * guessed. */
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
#include "tests/support/conversion.h"
#include "tests/support/rules.h"
#include "tests/support/runner.h"
#include "tests/support/seeded_pth.h"
#include "tests/support/web_rwkv.h"

enum { T = 12 };

static const char *source(void)
{
    return conversion_path("model.safetensors");
}

static const char *turned(void)
{
    return conversion_path("model.st");
}

static struct sl_model *open_file(const char *path, const char *rule)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.path = path, .rule = rule};
    if (sl_model_open(&m, &opt, &err) != SL_OK)
        fail_msg("%s", err.message);
    return m;
}

static void refuse_file(const char *path, const char *part)
{
    struct sl_error err = {0};
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.path = path};
    enum sl_code c = sl_model_open(&m, &opt, &err);
    if ((c != SL_E_MODEL_UNSUPPORTED && c != SL_E_MODEL_INVALID) || !strstr(err.message, part))
        fail_msg("%s: %s; expected: %s", sl_code_name(c), c ? err.message : "", part);
    assert_null(m);
}

static float *logits_of(const char *path, const char *rule, size_t *ret_n)
{
    struct sl_model *m = open_file(path, rule);
    struct runner r;
    uint32_t tokens[T];
    for (size_t i = 0; i < T; i++)
        tokens[i] = (uint32_t)((i * 29 + 3) % sl_model_info(m)->vocab_size);
    void *state = runner_state(m);
    float *logits = runner_logits(m, T);
    runner_open(&r, m, 2, T, 1);
    runner_feed(&r, state, tokens, T, 5, logits);
    *ret_n = T * r.stride;
    runner_close(&r);
    assert_string_equal(sl_model_info(m)->name, "model");
    assert_int_equal(sl_model_info(m)->n_unused, 0);
    sl_free(state);
    sl_model_close(m);
    return logits;
}

static void test_same_logits(void **state)
{
    (void)state;
    size_t n_rules = 0, n, n_other;
    for (const struct rule *r = rules; r->title; r++) {
        struct seeded s;
        if (strncmp(r->arch, "rwkv", 4) != 0)
            continue;
        r->list(&s);
        seeded_write(&s, source());
        seeded_done(&s);
        web_rwkv_write(source(), turned());
        float *want = logits_of(source(), r->choices, &n);
        float *got = logits_of(turned(), r->choices, &n_other);
        assert_int_equal(n, n_other);
        for (size_t i = 0; i < n; i++)
            if (!(want[i] == got[i]))
                fail_msg("%s, logit %zu: %g, not %g", r->title, i, (double)got[i], (double)want[i]);
        sl_free(want);
        sl_free(got);
        conversion_every_type(turned(), r->choices); /* by this project's own */
        n_rules++;
    }
    assert_int_equal(n_rules, 6);
}

static const struct rule *rule_of(const char *title)
{
    const struct rule *r = rules;
    while (strcmp(r->title, title) != 0)
        r++;
    return r;
}

/* Some converters exchange its axes, some do not. */
static void test_tuned_state(void **state)
{
    (void)state;
    static const char *const titles[] = {"rwkv5.2", "rwkv6", "rwkv7"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) {
        const struct rule *r = rule_of(titles[i]);
        struct seeded s;
        struct sl_model *m = rule_open(r, NULL);
        const struct sl_model_info *info = sl_model_info(m);
        const size_t shape[] = {info->n_heads, info->head_size, info->head_size};
        r->list(&s);
        for (size_t layer = 0; layer < info->n_layers; layer++) {
            char name[64];
            (void)snprintf(name, sizeof name, "blocks.%zu.att.time_state", layer);
            seeded_add(&s, SL_DTYPE_F16, 3, shape, 0, 0.7, name);
        }
        seeded_write(&s, source());
        web_rwkv_write(source(), turned());
        sl_model_close(open_file(source(), r->choices));
        refuse_file(turned(), "a tuned state in it (blocks.0.att.time_state)");
        seeded_done(&s);
        sl_model_close(m);
    }
}

static void exchange(struct seeded *s, const char *name)
{
    struct seeded_tensor *t = seeded_find(s, name);
    size_t n = t->shape[0];
    t->shape[0] = t->shape[1];
    t->shape[1] = n;
}

/* One layout for the whole file, told by the first pair that is not square. */
static void test_which_layout(void **state)
{
    (void)state;
    struct seeded_shape shape = {.n_layers = 2,
                                 .d_model = 32,
                                 .head_size = 16,
                                 .d_ffn = 40,
                                 .vocab_size = 50,
                                 .rank_w = 32,
                                 .rank_a = 32,
                                 .rank_v = 32,
                                 .rank_g = 6,
                                 .dtype = SL_DTYPE_F16,
                                 .seed = 9};
    struct seeded s;
    seeded_init(&s, &shape);
    seeded_write(&s, source());
    sl_model_close(open_file(source(), NULL));
    exchange(&s, "blocks.0.att.g1");
    seeded_write(&s, source());
    refuse_file(source(), "blocks.0.att.g2 has the shape [6, 32]; the model needs [32, 6]");
    exchange(&s, "blocks.0.att.g2");
    seeded_write(&s, source());
    refuse_file(source(), "blocks.1.att.g1 has the shape [32, 6]");
    exchange(&s, "blocks.1.att.g1");
    exchange(&s, "blocks.1.att.g2");
    seeded_write(&s, source());
    sl_model_close(open_file(source(), NULL));
    seeded_done(&s);
    /* none: only the container can tell */
    shape.rank_g = 32;
    seeded_init(&s, &shape);
    seeded_write(&s, source());
    refuse_file(source(), "all its low-rank matrices are square (32 × 32)");
    seeded_write_pth(&s, source());
    sl_model_close(open_file(source(), NULL));
    conversion_must(source(), conversion_path("whole.safetensors"), SL_DTYPE_NONE, NULL);
    sl_model_close(open_file(conversion_path("whole.safetensors"), NULL));
    seeded_done(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_logits, conversion_set_up, conversion_tear_down),
        cmocka_unit_test_setup_teardown(test_tuned_state, conversion_set_up, conversion_tear_down),
        cmocka_unit_test_setup_teardown(test_which_layout, conversion_set_up, conversion_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
