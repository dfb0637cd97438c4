/* conversion.c: see conversion.h. */
#include "tests/support/conversion.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "slate/snapshot.h"
#include "tests/support/runner.h"
#include "tests/support/seeded_pth.h"
#include "tests/support/tree.h"

enum { N = 12, CHUNK = 5 };

enum sl_code conversion(const char *in, const char *out, enum sl_dtype type, const char *rule,
                        const struct sl_conversion_extras *extras, const struct sl_store_io *io,
                        struct sl_error *err)
{
    const struct sl_conversion_options opt = {.path = in, .rule = rule, .weights = type};
    struct sl_conversion *c = NULL;
    enum sl_code rc = sl_conversion_open(&c, &opt, err);
    if (!rc && extras)
        rc = sl_conversion_carry(c, extras, err);
    if (!rc)
        rc = sl_convert_file(c, out, true, io, err);
    sl_conversion_close(c);
    return rc;
}

void conversion_must(const char *in, const char *out, enum sl_dtype type, const char *rule)
{
    struct sl_error err;
    if (conversion(in, out, type, rule, NULL, &sl_store_io_system, &err))
        fail_msg("%s -> %s: %s", in, out, err.message);
}

struct sl_model *conversion_open(const char *path, enum sl_dtype weights, const char *rule)
{
    struct sl_error err;
    struct sl_model *m = NULL;
    const struct sl_model_options opt = {.path = path, .weights = weights, .rule = rule};
    if (sl_model_open(&m, &opt, &err))
        fail_msg("%s: %s", path, err.message);
    return m;
}

/* The state after N tokens, and their logits. */
static void *run(const struct sl_model *m, float **ret_logits)
{
    struct runner r;
    uint32_t tokens[N];
    for (size_t i = 0; i < N; i++)
        tokens[i] = (uint32_t)((i * 41 + 7) % sl_model_info(m)->vocab_size);
    void *state = runner_state(m);
    *ret_logits = runner_logits(m, N);
    runner_open(&r, m, 2, CHUNK, 1);
    runner_feed(&r, state, tokens, N, CHUNK, *ret_logits);
    runner_close(&r);
    return state;
}

enum sl_code conversion_restore(const struct sl_model *from, const struct sl_model *to,
                                bool *ret_other_weights, struct sl_error *err)
{
    struct sl_snapshot_info info = {.dtype = SL_DTYPE_F32, .tokens_seen = N}, got;
    struct sl_tokenizer *t = NULL;
    unsigned char *file = NULL;
    size_t n = 0;
    float *logits;
    void *state = run(from, &logits), *back = runner_state(to);
    assert_int_equal(sl_tokenizer_open(&t, "bytes", err), SL_OK);
    assert_int_equal(sl_snapshot_write(from, t, state, &info, &file, &n, err), SL_OK);
    enum sl_code c = sl_snapshot_read(to, t, file, n, back, &got, err);
    if (!c) {
        assert_memory_equal(state, back, sl_model_info(to)->state_bytes);
        *ret_other_weights = got.other_weights_type;
        sl_free(got.text);
    }
    sl_free(file);
    sl_free(state);
    sl_free(back);
    sl_free(logits);
    sl_tokenizer_close(t);
    return c;
}

void conversion_same(const struct sl_model *a, const struct sl_model *b)
{
    const struct sl_model_info *x = sl_model_info(a), *y = sl_model_info(b);
    struct sl_error err = {0};
    float *la, *lb;
    bool other = true;
    void *sa = run(a, &la), *sb = run(b, &lb);
    assert_string_equal(x->arch, y->arch);
    assert_memory_equal(x->fingerprint, y->fingerprint, sizeof x->fingerprint);
    assert_string_equal(x->weights_name, y->weights_name);
    assert_int_equal(x->vocab_size, y->vocab_size);
    assert_int_equal(x->state_bytes, y->state_bytes);
    assert_int_equal(x->max_tokens, y->max_tokens);
    assert_memory_equal(la, lb, N * sl_model_logits_stride(a) * sizeof *la);
    assert_memory_equal(sa, sb, x->state_bytes);
    if (conversion_restore(a, b, &other, &err))
        fail_msg("%s", err.message);
    assert_false(other);
    sl_free(la);
    sl_free(lb);
    sl_free(sa);
    sl_free(sb);
}

/* --- in a folder ------------------------------------------------------------------------------*/

static char folder[32];

const char *conversion_path(const char *name)
{
    static char path[64][128];
    static size_t i;
    i = (i + 1) % 64; /* none that is in use is that old */
    (void)snprintf(path[i], sizeof path[i], "%s/%s", folder, name);
    return path[i];
}

int conversion_set_up(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/slate-convert-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

int conversion_tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

static const enum sl_dtype types[] = {SL_DTYPE_NONE, SL_DTYPE_F32, SL_DTYPE_BF16,
                                      SL_DTYPE_F16,  SL_DTYPE_Q8,  SL_DTYPE_Q4};

void conversion_every_type(const char *in, const char *rule)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const char *out = conversion_path("out.safetensors");
        conversion_must(in, out, types[i], rule);
        struct sl_model *source = conversion_open(in, types[i], rule);
        struct sl_model *converted = conversion_open(out, SL_DTYPE_NONE, NULL);
        conversion_same(source, converted);
        sl_model_close(source);
        sl_model_close(converted);
    }
}

void conversion_write_odd(const char *path, enum sl_dtype dtype, bool pth)
{
    struct seeded s;
    struct seeded_shape shape = SEEDED_ODD;
    shape.dtype = dtype;
    seeded_init(&s, &shape);
    if (pth)
        seeded_write_pth(&s, path);
    else
        seeded_write(&s, path);
    seeded_done(&s);
}

bool conversion_narrowed(const char *path)
{
    struct sl_tensors *t = NULL;
    assert_int_equal(sl_tensors_open(&t, path, NULL), SL_OK);
    bool yes = strcmp(sl_tensors_meta(t, "slate.narrowed"), "yes") == 0;
    sl_tensors_close(t);
    return yes;
}

size_t conversion_bytes(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (size_t)st.st_size;
}
