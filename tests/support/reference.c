/* reference.c: see reference.h. */
#include "tests/support/reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *reference_path(const char *folder, const char *file)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    return path;
}

json_t *reference_json(const char *folder, const char *file)
{
    json_error_t e;
    json_t *j = json_load_file(reference_path(folder, file), 0, &e);
    if (!j)
        fail_msg("%s: %s", reference_path(folder, file), e.text);
    return j;
}

float *reference_floats(const char *folder, const char *file, size_t n)
{
    FILE *f = fopen(reference_path(folder, file), "rb");
    assert_non_null(f);
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    assert_int_equal(fread(v, sizeof *v, n, f), n);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    return v;
}

uint32_t *reference_ids(const json_t *array, size_t *ret_n)
{
    assert_true(json_is_array(array));
    *ret_n = json_array_size(array);
    uint32_t *v = malloc((*ret_n + 1) * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < *ret_n; i++)
        v[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return v;
}

uint32_t *reference_tokens(const char *folder, const char *file, size_t *ret_n)
{
    json_t *array = reference_json(folder, file);
    uint32_t *v = reference_ids(array, ret_n);
    json_decref(array);
    return v;
}

double reference_logits(const struct sl_model *m, const char *what, const float *got,
                        const float *want, size_t rows, double atol)
{
    size_t vocab = sl_model_info(m)->vocab_size, stride = sl_model_logits_stride(m);
    double worst = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < vocab; i++) {
            double e = fabs((double)got[r * stride + i] - (double)want[r * vocab + i]);
            if (!(e <= atol))
                fail_msg("%s, row %zu, logit %zu: off by %g, allowed %g", what, r, i, e, atol);
            worst = e > worst ? e : worst;
        }
    return worst;
}

static const struct reference_tensor *named(const struct reference_tensor *names,
                                            const char *theirs, size_t *ret_head)
{
    size_t len = strlen(theirs);
    for (const struct reference_tensor *n = names; n->theirs; n++) {
        size_t k = strlen(n->theirs);
        if (len > k && strcmp(theirs + len - k, n->theirs) == 0 && theirs[len - k - 1] == '.') {
            *ret_head = len - k;
            return n;
        }
    }
    fail_msg("what is %s?", theirs);
    return NULL;
}

static void compare_tensor(const struct sl_model *m, const char *what, const char *theirs, size_t n,
                           const float *want, const struct reference_tensor *names,
                           const unsigned char *state)
{
    char name[128];
    size_t head = 0;
    const struct reference_tensor *r = named(names, theirs, &head);
    (void)snprintf(name, sizeof name, "%.*s%s", (int)head, theirs, r->ours);
    const struct sl_state_tensor *t = runner_tensor(m, name);
    if (!t)
        fail_msg("%s: there is no %s", what, name);
    const float *got = (const float *)(const void *)(state + t->offset);
    size_t ours = 1, seen = 0;
    for (unsigned a = 0; a < t->rank; a++)
        ours *= t->shape[a];
    double largest = 0;
    for (size_t e = 0; e < n; e++)
        largest = fmax(largest, fabs((double)want[e]));
    for (size_t e = 0; e < n; e++) {
        size_t at = r->at ? r->at(t, e) : e;
        if (at == SIZE_MAX)
            continue;
        assert_true(at < ours);
        double d = fabs((double)got[at] - (double)want[e]);
        if (!(d <= 1e-4 * largest))
            fail_msg("%s, %s, element %zu: off by %g of %g", what, theirs, e, d, largest);
        seen++;
    }
    assert_int_equal(seen, ours);
}

void reference_state(const struct sl_model *m, const char *folder, const char *base,
                     const struct reference_tensor *names, const unsigned char *state)
{
    char file[64];
    (void)snprintf(file, sizeof file, "%s.json", base);
    json_t *j = reference_json(folder, file);
    size_t total = (size_t)json_integer_value(json_object_get(j, "total_floats"));
    (void)snprintf(file, sizeof file, "%s.f32", base);
    float *want = reference_floats(folder, file, total);
    size_t i, a, seen = 0;
    const json_t *entry, *axis;
    json_array_foreach(json_object_get(j, "tensors"), i, entry)
    {
        size_t at = (size_t)json_integer_value(json_object_get(entry, "offset_floats")), n = 1;
        json_array_foreach(json_object_get(entry, "shape"), a, axis)
        {
            n *= (size_t)json_integer_value(axis);
        }
        assert_true(n <= total && at <= total - n);
        compare_tensor(m, folder, json_string_value(json_object_get(entry, "name")), n, want + at,
                       names, state);
        seen += n;
    }
    assert_int_equal(seen, total);
    free(want);
    json_decref(j);
}

void reference_feed(struct runner *r, void *state, const uint32_t *tokens, size_t n,
                    const size_t cut[4], float *logits)
{
    for (size_t i = 0, piece = 0, size; i < n; i += size, piece++) {
        size = n - i < cut[piece % 4] ? n - i : cut[piece % 4];
        runner_feed(r, state, tokens + i, size, size, logits + i * r->stride);
    }
}
