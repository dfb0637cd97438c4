/* performer_test.c: what only a Performer has: layers that its files hold twice, a kernel that they
 * do not name, an end of its positions. */
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
#include "engine/model_priv.h"
#include "slate/snapshot.h"
#include "tests/support/rules.h"
#include "tests/support/runner.h"
#include "tests/support/turns.h"

#define NET "performer.net."
#define TWIN "performer.proj_updater.instance."

enum { LENGTH = 150 /* positions of the seeded model */ };

static const struct rule *performer(void)
{
    size_t i = 0;
    while (strcmp(rules[i].title, "performer") != 0)
        i++;
    return &rules[i];
}

static enum sl_code open_list(const struct seeded *s, const char *rule, struct sl_model_info *ret,
                              struct sl_error *err)
{
    size_t n;
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.rule = rule};
    unsigned char *bytes = seeded_bytes(s, &n);
    enum sl_code c = sl_model_open_memory(&m, bytes, n, "m.safetensors", &opt, err);
    if (c == SL_OK && ret)
        *ret = *sl_model_info(m);
    sl_model_close(m);
    free(bytes);
    return c;
}

static void refuse(const struct seeded *s, const char *rule, enum sl_code code, const char *word,
                   const char *other)
{
    struct sl_error err = {0};
    enum sl_code c = open_list(s, rule, NULL, &err);
    if (c != code || !strstr(err.message, "m.safetensors: ") || !strstr(err.message, word) ||
        !strstr(err.message, other))
        fail_msg("expected %s with \"%s\" and \"%s\", got %s: %s", sl_code_name(code), word, other,
                 sl_code_name(c), c ? err.message : "");
}

/* --- twins --- */

/* The second copy of every layer, with the values of the first; and the counter that goes with it.
 * The names of the first ones are kept in `kept`. */
static void add_twins(struct seeded *s, char (*kept)[64])
{
    size_t n = s->n;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(s->v[i].name, NET, strlen(NET)) != 0)
            continue;
        struct seeded_tensor was = s->v[i];
        char name[64];
        memcpy(kept[i], was.name, sizeof was.name);
        (void)snprintf(name, sizeof name, TWIN "%.28s", was.name + strlen(NET));
        if (strlen(was.name) - strlen(NET) > 28)
            continue; /* the list's names are short; the others stand for these */
        struct seeded_tensor *t = seeded_add(s, was.dtype, was.rank, was.shape, (double)was.mean,
                                             (double)was.spread, name);
        t->values = kept[i];
    }
    seeded_add(s, SL_DTYPE_I64, 1, (size_t[]){1}, 0, 0,
               "performer.proj_updater.calls_since_last_redraw");
}

static void test_twins(void **unused)
{
    (void)unused;
    static char kept[128][64];
    struct seeded s;
    struct sl_error err = {0};
    struct sl_model_info one, two;
    performer()->list(&s);
    assert_int_equal(open_list(&s, NULL, &one, &err), SL_OK);
    size_t n = s.n;
    assert_true(n < 128);
    add_twins(&s, kept);
    assert_true(s.n > n + 15);
    if (open_list(&s, NULL, &two, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_memory_equal(one.fingerprint, two.fingerprint, 16);
    assert_true(one.n_params == two.n_params);
    for (size_t i = n; i + 1 < s.n; i++) {
        struct seeded_tensor *t = &s.v[i], was = *t;
        t->plant_at = 1, t->plant = 0.125F;
        refuse(&s, NULL, SL_E_MODEL_INVALID, was.name, "holds other values than " NET);
        *t = was;
        t->shape[0]++;
        refuse(&s, NULL, SL_E_MODEL_INVALID, was.name, "another type or shape than " NET);
        *t = was;
        t->dtype = SL_DTYPE_F16;
        refuse(&s, NULL, SL_E_MODEL_INVALID, was.name, "another type or shape than " NET);
        *t = was;
    }
    (void)snprintf(s.v[n].name, sizeof s.v->name, TWIN "layers.9.0.norm.bias");
    refuse(&s, NULL, SL_E_MODEL_INVALID, TWIN "layers.9.0.norm.bias", "has no twin");
    seeded_done(&s);
}

/* --- what the file does not say --- */

static void test_choices(void **unused)
{
    (void)unused;
    static const char *const wrong[] = {
        "kernel=elu",   "kernel",        "kernel=",         "=relu",
        "stabiliser=0", "ln_x_eps=1e-5", "kernel=relu,x=y", "kernel=relus"};
    static const char *const good[] = {"",
                                       "kernel=softmax",
                                       "stabiliser=max,kernel=softmax",
                                       "kernel=softmax,stabiliser=max",
                                       "kernel=relu",
                                       "stabiliser=none"};
    struct seeded s;
    struct sl_error err = {0};
    struct sl_model_info info[6];
    performer()->list(&s);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuse(&s, wrong[i], SL_E_INVALID_VALUE, "kernel=softmax|relu", "stabiliser=max|none");
    refuse(&s, "kernel=relu,stabiliser=none", SL_E_INVALID_VALUE, "stabiliser=none",
           "softmax kernel");
    for (size_t i = 0; i < 6; i++)
        if (open_list(&s, good[i], &info[i], &err) != SL_OK)
            fail_msg("%s: %s", good[i], err.message);
    /* Defaults that are said are defaults; another choice is another model. */
    for (size_t i = 1; i < 6; i++)
        assert_int_equal(memcmp(info[i].fingerprint, info[0].fingerprint, 16) == 0, i < 4);
    assert_memory_not_equal(info[4].fingerprint, info[5].fingerprint, 16);
    seeded_done(&s);
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.rule = "kernel=relu"};
    assert_int_equal(sl_model_open(&m, &opt, &err), SL_E_INVALID_VALUE);
    assert_non_null(strstr(err.message, "RWKV-7 leaves nothing open"));
}

/* Without to_out the embedding is the head. */
static void test_tied(void **unused)
{
    (void)unused;
    struct seeded s;
    struct sl_error err = {0};
    struct sl_model_info two, tied;
    performer()->list(&s);
    assert_int_equal(open_list(&s, NULL, &two, &err), SL_OK);
    seeded_drop(&s, "to_out.weight");
    refuse(&s, NULL, SL_E_MODEL_INVALID, "to_out.weight", "is absent");
    seeded_drop(&s, "to_out.bias");
    assert_int_equal(open_list(&s, NULL, &tied, &err), SL_OK);
    assert_int_equal(tied.vocab_size, two.vocab_size);
    seeded_done(&s);
}

/* --- the end of the positions --- */

static void turn(struct stand *s, size_t n_prompt, size_t max_tokens, const void *base,
                 struct outcome *ret)
{
    uint32_t prompt[LENGTH + 10];
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = (uint32_t)(i * 7 % 250);
    struct sl_turn_spec spec = {.prompt = prompt,
                                .n_prompt = n_prompt,
                                .max_tokens = max_tokens,
                                .sampling = SL_SAMPLING_DEFAULT,
                                .ignore_eos = true,
                                .logprobs = -1,
                                .keep_state = true};
    spec.sampling.temperature = 0;
    stand_run(s, &spec, base, ret);
}

static void test_end(void **unused)
{
    (void)unused;
    struct rule_files f;
    struct stand s;
    struct outcome a, b;
    rule_write(performer(), &f);
    stand_open(&s, f.path, &(struct sl_engine_options){.n_threads = 2, .max_running = 2});
    assert_int_equal(sl_model_info(s.model)->max_tokens, LENGTH);
    /* Every position is used: the last token is not fed, so there is one more of them. */
    turn(&s, 100, 1000, NULL, &a);
    assert_int_equal(a.result->code, SL_OK);
    assert_int_equal(a.result->finish, SL_FINISH_LENGTH);
    assert_int_equal(a.result->n_tokens, 51);
    assert_int_equal(a.result->tokens_seen, LENGTH);
    /* There is no room for what is pending. */
    turn(&s, 1, 1, a.live, &b);
    assert_int_equal(b.result->code, SL_E_CONTEXT_EXCEEDED);
    assert_string_equal(sl_turn_error(b.turn),
                        "the model has 150 positions, of which 0 are left; this request needs 1");
    assert_false(b.result->complete);
    outcome_done(&s, &b);
    outcome_done(&s, &a);
    /* A prompt that just fits, one that does not; with and without an answer. */
    static const struct {
        size_t n, max;
        bool fits;
    } cases[] = {
        {LENGTH, 5, true}, {LENGTH + 1, 5, false}, {LENGTH + 1, 0, true}, {LENGTH + 2, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        turn(&s, cases[i].n, cases[i].max, NULL, &a);
        assert_int_equal(a.result->code, cases[i].fits ? SL_OK : SL_E_CONTEXT_EXCEEDED);
        if (cases[i].fits)
            assert_int_equal(a.result->n_tokens, cases[i].max ? 1 : 0);
        outcome_done(&s, &a);
    }
    stand_close(&s);
    rule_remove(&f);
}

/* A snapshot that says more tokens than there are positions is none of this model. */
static void test_counter(void **unused)
{
    (void)unused;
    struct sl_error err = {0};
    struct sl_tokenizer *tok = NULL;
    struct sl_model *m = rule_open(performer(), NULL);
    assert_int_equal(sl_tokenizer_open(&tok, "bytes", &err), SL_OK);
    struct sl_state_header *state = runner_state(m);
    void *back = runner_state(m);
    static const struct {
        uint64_t seen;
        enum sl_code code;
    } cases[] = {{LENGTH, SL_OK}, {LENGTH + 1, SL_E_SNAPSHOT_CORRUPT}};
    for (size_t i = 0; i < 2; i++) {
        struct sl_snapshot_info info = {.dtype = SL_DTYPE_F32}, got;
        unsigned char *p = NULL;
        size_t n;
        state->tokens_seen = cases[i].seen;
        info.tokens_seen = cases[i].seen;
        assert_int_equal(sl_snapshot_write(m, tok, state, &info, &p, &n, &err), SL_OK);
        enum sl_code c = sl_snapshot_read(m, tok, p, n, back, &got, &err);
        assert_int_equal(c, cases[i].code);
        if (c)
            assert_non_null(strstr(err.message, "151; this model has 150 positions"));
        else
            sl_free(got.text);
        sl_free(p);
    }
    sl_free(state);
    sl_free(back);
    sl_tokenizer_close(tok);
    sl_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins), cmocka_unit_test(test_choices), cmocka_unit_test(test_tied),
        cmocka_unit_test(test_end),   cmocka_unit_test(test_counter),
    };
    return cmocka_run_group_tests_name("performer", tests, NULL, NULL);
}
