/* probe_rule_test.c: memory rules by themselves against what theory says of them, and
 * `slate probe rule`. */
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

#include <jansson.h>

#include "engine/kernels/kernels.h"
#include "server/cli/cli.h"
#include "slate/probe.h"
#include "tests/support/cli_run.h"
#include "tests/support/floats.h"
#include "tests/support/tables.h"

enum { D = 48, N_RULES = 10 };

static size_t rule_of(const char *name)
{
    size_t i = 0;
    while (strcmp(sl_probe_rules[i].name, name) != 0)
        i++;
    return i;
}

static struct sl_probe_memory *memory_of(const char *rule, size_t d)
{
    struct sl_error err;
    struct sl_probe_memory *m = NULL;
    if (sl_probe_memory_open(&m, rule_of(rule), d, NULL, 1, &err) != SL_OK)
        fail_msg("%s", err.message);
    return m;
}

/* Row i of an orthogonal matrix: I - 2 u uᵀ / |u|². */
static void orthonormal(float key[D], size_t i)
{
    double u[D], length = 0;
    for (size_t k = 0; k < D; k++) {
        u[k] = 1 + (double)(k * 7 % 11);
        length += u[k] * u[k];
    }
    for (size_t k = 0; k < D; k++)
        key[k] = (float)((k == i) - 2 * u[i] * u[k] / length);
}

static void value_of(float value[D], size_t seed)
{
    fill_uniform(value, D, seed * 31 + 7);
}

/* What is read of the pair's key is a·(value a_seed) + b·(value b_seed). */
static void assert_reads(struct sl_probe_memory *m, size_t pair, double a, size_t a_seed, double b,
                         size_t b_seed, double most, const char *what)
{
    float key[D], got[D], x[D], y[D];
    orthonormal(key, pair);
    value_of(x, a_seed);
    value_of(y, b_seed);
    sl_probe_memory_read(m, key, got);
    for (size_t i = 0; i < D; i++) {
        double want = a * (double)x[i] + b * (double)y[i];
        if (!(fabs((double)got[i] - want) <= most))
            fail_msg("%s, pair %zu: channel %zu is %g, should be %g", what, pair, i, (double)got[i],
                     want);
    }
}

static void write_pair(struct sl_probe_memory *m, size_t pair, size_t seed)
{
    float key[D], value[D];
    orthonormal(key, pair);
    value_of(value, seed);
    sl_probe_memory_write(m, key, value);
}

/* --- theory ------------------------------------------------------------------------------------*/

/* Orthonormal keys do not touch each other: as many as there are channels come back exactly.
 * Written again, an additive memory gives the sum, a delta rule the new value. */
static void test_orthonormal(void **state)
{
    (void)state;
    static const struct {
        const char *rule;
        double old; /* how much of it comes back beside the new one */
    } rules[] = {{"linear", 1}, {"delta_net", 0}};
    for (size_t r = 0; r < 2; r++) {
        struct sl_probe_memory *m = memory_of(rules[r].rule, D);
        for (size_t i = 0; i < D; i++)
            write_pair(m, i, i);
        for (size_t i = 0; i < D; i++)
            assert_reads(m, i, 1, i, 0, 0, 1e-5, rules[r].rule);
        for (size_t i = 0; i < D; i += 3)
            write_pair(m, i, 1000 + i);
        for (size_t i = 0; i < D; i++)
            assert_reads(m, i, i % 3 == 0 ? rules[r].old : 1, i, i % 3 == 0, 1000 + i, 2e-5,
                         rules[r].rule);
        sl_probe_memory_close(m);
    }
}

/* With random keys an additive memory's error is √((n - 1) / d): each other pair adds its value
 * times a product of keys, whose square is 1/d in the mean. */
static void test_crosstalk(void **state)
{
    (void)state;
    enum { PAIRS_MAX = 256, ASKED = 4096, N_D = 2 };
    static const size_t ds[N_D] = {32, 128}, ns[] = {2, 16, 64, 256};
    static float keys[PAIRS_MAX * 128], values[PAIRS_MAX * 128];
    for (size_t s = 0; s < N_D; s++)
        for (size_t i = 0; i < 4; i++) {
            size_t d = ds[s], n = ns[i];
            double error = 0, size = 0;
            struct sl_probe_memory *m = memory_of("linear", d);
            for (size_t t = 0; t < ASKED / n; t++) {
                fill_uniform(keys, n * d, t * 2 + 1);
                fill_uniform(values, n * d, t * 2 + 20000);
                sl_probe_memory_clear(m);
                for (size_t p = 0; p < n; p++) {
                    double length = 0;
                    for (size_t k = 0; k < d; k++)
                        length += (double)keys[p * d + k] * (double)keys[p * d + k];
                    for (size_t k = 0; k < d; k++)
                        keys[p * d + k] /= (float)sqrt(length);
                    sl_probe_memory_write(m, keys + p * d, values + p * d);
                }
                for (size_t p = 0; p < n; p++) {
                    float got[128];
                    sl_probe_memory_read(m, keys + p * d, got);
                    for (size_t k = 0; k < d; k++) {
                        double v = (double)values[p * d + k];
                        error += ((double)got[k] - v) * ((double)got[k] - v);
                        size += v * v;
                    }
                }
            }
            double got = sqrt(error / size), want = sqrt((double)(n - 1) / (double)d);
            if (fabs(got - want) > 0.05 * want)
                fail_msg("%zu pairs in %zu channels: error %g, should be %g", n, d, got, want);
            sl_probe_memory_close(m);
        }
}

/* Half of a pair is left after the half-life; a delta rule with a decay likewise, and what it
 * erases is what the decay has left: the new value is whole. */
static void test_decay(void **state)
{
    (void)state;
    static const char *const rules[] = {"retnet", "gated_delta_net"};
    for (size_t r = 0; r < 2; r++) {
        struct sl_probe_memory *m = memory_of(rules[r], D);
        float key[D], nothing[D] = {0};
        write_pair(m, 0, 5);
        orthonormal(key, 1);
        for (size_t age = 0; age <= 2 * SL_PROBE_HALF_LIFE; age++) {
            if (age % 128 == 0)
                assert_reads(m, 0, exp2(-(double)age / SL_PROBE_HALF_LIFE), 5, 0, 0, 1e-4,
                             rules[r]);
            sl_probe_memory_write(m, key, nothing);
        }
        sl_probe_memory_clear(m);
        write_pair(m, 2, 5);
        write_pair(m, 2, 6);
        double gamma = exp2(-1.0 / SL_PROBE_HALF_LIFE);
        assert_reads(m, 2, 1, 6, r == 0 ? gamma : 0, 5, 1e-6, rules[r]);
        sl_probe_memory_close(m);
    }
}

/* Channel by channel: the first forgets sixteen times as fast as one with the half-life, the last
 * sixteen times as slowly. RWKV-7 takes away the old value as it was before its decay. */
static void test_decay_by_channel(void **state)
{
    (void)state;
    static const double half_lives[] = {SL_PROBE_HALF_LIFE / 16.0, SL_PROBE_HALF_LIFE * 16.0};
    for (size_t c = 0; c < 2; c++) {
        float key[D] = {0}, other[D] = {0}, value[D], nothing[D] = {0}, got[D];
        size_t channel = c ? D - 1 : 0;
        struct sl_probe_memory *m = memory_of("gla", D);
        key[channel] = 1;
        other[D / 2] = 1;
        value_of(value, 9);
        sl_probe_memory_write(m, key, value);
        for (size_t i = 0; i < (size_t)half_lives[c]; i++)
            sl_probe_memory_write(m, other, nothing);
        sl_probe_memory_read(m, key, got);
        for (size_t i = 0; i < D; i++)
            assert_true(fabs((double)got[i] - (double)value[i] / 2) < 1e-4);
        sl_probe_memory_close(m);

        float newer[D];
        double w = exp2(-1 / half_lives[c]);
        m = memory_of("rwkv7", D);
        value_of(newer, 10);
        sl_probe_memory_write(m, key, value);
        sl_probe_memory_write(m, key, newer);
        sl_probe_memory_read(m, key, got);
        for (size_t i = 0; i < D; i++)
            assert_true(fabs((double)got[i] - (double)newer[i] + (1 - w) * (double)value[i]) <
                        1e-6);
        sl_probe_memory_close(m);
    }
}

/* Rules that divide give a weighted mean: one value comes back whole, equal values as they are, and
 * nothing lies beyond the largest. */
static void test_means(void **state)
{
    (void)state;
    static const char *const rules[] = {"linear_elu", "performer", "performer_relu", "rwkv4"};
    for (size_t r = 0; r < 4; r++) {
        struct sl_probe_memory *m = memory_of(rules[r], D);
        write_pair(m, 3, 8);
        assert_reads(m, 3, 1, 8, 0, 0, 1e-5, rules[r]);
        for (size_t i = 0; i < 10; i++)
            write_pair(m, i, 8);
        for (size_t i = 0; i < D; i += 5)
            assert_reads(m, i, 1, 8, 0, 0, 1e-5, rules[r]);
        float key[D], got[D];
        for (size_t i = 0; i < 300; i++)
            write_pair(m, i % D, 8 + i);
        orthonormal(key, 7);
        sl_probe_memory_read(m, key, got);
        for (size_t i = 0; i < D; i++)
            assert_true(fabsf(got[i]) < 1); /* fill_uniform's bound */
        sl_probe_memory_close(m);
    }
    /* RWKV-4 has no keys to ask with. */
    struct sl_probe_memory *m = memory_of("rwkv4", D);
    float a[D], b[D], key[D];
    for (size_t i = 0; i < 9; i++)
        write_pair(m, i, i);
    orthonormal(key, 2);
    sl_probe_memory_read(m, key, a);
    orthonormal(key, 6);
    sl_probe_memory_read(m, key, b);
    assert_memory_equal(a, b, sizeof a);
    sl_probe_memory_close(m);
}

/* --- the interface -----------------------------------------------------------------------------*/

/* Any table of kernels gives the same bits; a cleared memory is a new one; reading changes nothing.
 */
static void test_bits(void **state)
{
    (void)state;
    struct sl_error err;
    float key[D];
    assert_null(sl_probe_rules[N_RULES].name);
    orthonormal(key, 4);
    for (size_t r = 0; r < N_RULES; r++) {
        float want[D];
        for (const char *const *k = sl_kernels_names(); *k; k++) {
            struct sl_probe_memory *m = NULL;
            assert_int_equal(sl_probe_memory_open(&m, r, D, *k, 3, &err), SL_OK);
            for (int again = 0; again < 2; again++) {
                float got[D];
                for (size_t i = 0; i < 30; i++)
                    write_pair(m, i % 9, i);
                for (int twice = 0; twice < 2; twice++) {
                    sl_probe_memory_read(m, key, got);
                    if (k == sl_kernels_names() && !again && !twice)
                        memcpy(want, got, sizeof want);
                    assert_memory_equal(got, want, sizeof got);
                }
                sl_probe_memory_clear(m);
            }
            sl_probe_memory_close(m);
        }
    }
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *rule;
        size_t values;
    } rules[] = {{"linear", 64 * 64},
                 {"delta_net", 64 * 64},
                 {"rwkv4", 3 * 64},
                 {"linear_elu", 64 * 64 + 64},
                 {"performer_relu", 266 * 65}, /* 64 ln 64 = 266.2 */
                 {"performer", 266 * 65 + 64 + 1}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct sl_probe_memory *m = memory_of(rules[i].rule, 64);
        assert_int_equal(sl_probe_memory_values(m), rules[i].values);
        sl_probe_memory_close(m);
    }
    static const size_t wrong[] = {0, 1, 7, SL_PROBE_SIZE_MAX + 2};
    struct sl_error err;
    struct sl_probe_memory *m = NULL;
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(sl_probe_memory_open(&m, 0, wrong[i], NULL, 0, &err), SL_E_INVALID_VALUE);
    assert_int_equal(sl_probe_memory_open(&m, N_RULES, 64, NULL, 0, &err), SL_E_INVALID_VALUE);
    assert_int_equal(sl_probe_memory_open(&m, 0, 64, "abacus", 0, &err), SL_E_INVALID_VALUE);
    assert_null(m);
    sl_probe_memory_close(NULL);
}

/* --- the command -------------------------------------------------------------------------------*/

static char out[1 << 20], again[1 << 20];

static double error_of(const json_t *rule, const char *kind, size_t pairs)
{
    size_t i;
    const json_t *p;
    json_array_foreach(json_object_get(rule, kind), i, p)
    {
        if ((size_t)json_integer_value(json_object_get(p, "pairs")) == pairs)
            return json_number_value(json_object_get(p, "error"));
    }
    fail_msg("no %zu pairs", pairs);
    return 0;
}

static const json_t *find(const json_t *rules, const char *name, size_t size)
{
    size_t i;
    const json_t *r;
    json_array_foreach(rules, i, r)
    {
        if (strcmp(json_string_value(json_object_get(r, "rule")), name) == 0 &&
            (size_t)json_integer_value(json_object_get(r, "head_size")) == size)
            return r;
    }
    fail_msg("no %s", name);
    return NULL;
}

static void test_json(void **state)
{
    (void)state;
    char *argv[] = {"probe", "rule", "--json", "--max-pairs", "64", "--trials", "6"};
    assert_int_equal(cli_run(sl_cli_probe, out, sizeof out, 7, argv), SL_EXIT_OK);
    assert_int_equal(cli_run(sl_cli_probe, again, sizeof again, 7, argv), SL_EXIT_OK);
    assert_string_equal(out, again);
    json_error_t e;
    json_t *j = json_loads(out, 0, &e);
    if (!j)
        fail_msg("%s", e.text);
    const json_t *rules = json_object_get(j, "rules");
    assert_int_equal(json_array_size(rules), 3 * N_RULES);
    for (size_t size = 32; size <= 128; size *= 2) {
        const json_t *add = find(rules, "linear", size), *delta = find(rules, "delta_net", size);
        double theory = sqrt(63.0 / (double)size);
        assert_true(fabs(error_of(add, "fresh", 64) - theory) < 0.08 * theory);
        /* Of the sum of two equal sizes: the other one, and what all the others add. */
        theory = sqrt(1 + 2 * 63.0 / (double)size);
        assert_true(fabs(error_of(add, "overwritten", 64) - theory) < 0.1 * theory);
        assert_true(error_of(delta, "fresh", 1) < 1e-6);
        assert_true(error_of(delta, "overwritten", 1) < 1e-6);
        assert_true(error_of(delta, "overwritten", 16) < error_of(add, "overwritten", 16) / 2);
    }
    json_decref(j);
}

static void test_tables_and_charts(void **state)
{
    (void)state;
    char folder[] = "/tmp/slate-probe-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/rules.svg", folder);
    char *argv[] = {"probe", "rule", "--max-pairs", "16", "--trials", "1", "--svg", path};
    assert_int_equal(cli_run(sl_cli_probe, out, sizeof out, 8, argv), SL_EXIT_OK);
    assert_non_null(strstr(out, "Heads of 128, overwritten keys"));
    assert_non_null(strstr(out, "Gated DeltaNet"));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(again, 1, sizeof again - 1, f);
    fclose(f);
    again[n] = '\0';
    static const char *const drawn[] = {"<svg",
                                        "Heads of 32, fresh keys",
                                        "Heads of 64, overwritten keys",
                                        ">pairs written</text>",
                                        ">relative error (2: 2 or more)</text>",
                                        ">RWKV-7</text>",
                                        "stroke-dasharray",
                                        "</svg>"};
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
        if (!strstr(again, drawn[i]))
            fail_msg("no %s in the chart", drawn[i]);
    unlink(path);
    rmdir(folder);
}

static void test_wrong_usage(void **state)
{
    (void)state;
    char *rest[] = {"probe", "rule", "linear"}, *pairs[] = {"probe", "rule", "--max-pairs", "0"},
         *kernels[] = {"probe", "rule", "--kernels", "abacus"},
         *svg[] = {"probe",    "rule", "--max-pairs", "1",
                   "--trials", "1",    "--svg",       "/nowhere/at/all.svg"};
    assert_int_equal(cli_run(sl_cli_probe, out, sizeof out, 3, rest), SL_EXIT_USAGE);
    assert_non_null(strstr(out, "'linear' is no option"));
    assert_int_equal(cli_run(sl_cli_probe, out, sizeof out, 4, pairs), SL_EXIT_USAGE);
    assert_int_not_equal(cli_run(sl_cli_probe, out, sizeof out, 4, kernels), SL_EXIT_OK);
    assert_non_null(strstr(out, "abacus"));
    assert_int_not_equal(cli_run(sl_cli_probe, out, sizeof out, 8, svg), SL_EXIT_OK);
    assert_non_null(strstr(out, "/nowhere/at/all.svg cannot be written"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_runs_here),
        cmocka_unit_test(test_orthonormal),
        cmocka_unit_test(test_crosstalk),
        cmocka_unit_test(test_decay),
        cmocka_unit_test(test_decay_by_channel),
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_tables_and_charts),
        cmocka_unit_test(test_wrong_usage),
    };
    return cmocka_run_group_tests_name("probe_rule", tests, NULL, NULL);
}
