/* bench_cli_test.c: `slate bench`, called in this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include <jansson.h>

#include "server/cli/cli.h"
#include "tests/support/cli_run.h"

static char out[1 << 18];

static int bench(int argc, char **argv)
{
    return cli_run(sl_cli_bench, out, sizeof out, argc, argv);
}

static double number(const json_t *v, const char *form, const char *key)
{
    const json_t *n = json_object_get(json_object_get(v, form), key);
    assert_true(json_is_number(n));
    return json_number_value(n);
}

/* What each form needs follows from its definition: the state alone, C² more, n² more. */
static void check_rule(const json_t *rule)
{
    size_t i;
    const json_t *v, *lengths = json_object_get(rule, "lengths");
    double first[2] = {0};
    assert_int_equal(json_array_size(lengths), 5); /* 16 … 256 */
    json_array_foreach(lengths, i, v)
    {
        double n = (double)(16 << i);
        assert_true((double)json_integer_value(json_object_get(v, "tokens")) == n);
        for (int f = 0; f < 3; f++) {
            static const char *const forms[] = {"recurrent", "chunkwise", "parallel"};
            assert_true(number(v, forms[f], "ns_per_token") > 0);
        }
        double state = number(v, "recurrent", "bytes"), chunk = number(v, "chunkwise", "bytes");
        first[0] = i ? first[0] : state;
        first[1] = i == 2 ? chunk : first[1];
        assert_true(state == first[0]);
        if (i > 2)
            assert_true(chunk == first[1]);
        assert_true(number(v, "parallel", "bytes") > 4 * n * n);
    }
}

static void test_modes_as_json(void **state)
{
    (void)state;
    char *argv[] = {"bench", "--modes", "--json", "--head-size=16", "--max-tokens=256"};
    assert_int_equal(bench(5, argv), SL_EXIT_OK);
    json_t *doc = json_loads(out, 0, NULL);
    const json_t *rules = json_object_get(doc, "modes");
    assert_int_equal(json_array_size(rules), 5);
    for (size_t i = 0; i < 5; i++)
        check_rule(json_array_get(rules, i));
    json_decref(doc);
}

static void test_modes_as_text(void **state)
{
    (void)state;
    char *argv[] = {"bench", "--modes", "--head-size=8", "--max-tokens=32"};
    assert_int_equal(bench(4, argv), SL_EXIT_OK);
    assert_non_null(strstr(out, "gated DeltaNet"));
    assert_non_null(strstr(out, "heads of 8"));
    assert_non_null(strstr(out, "the recurrent form is"));
}

/* A list of what was asked for, each with its share of a bound; the smallest shape. */
static void test_steps_as_json(void **state)
{
    (void)state;
    char *argv[] = {"bench",  "--shape=rwkv7-tiny", "--weights=f32,q8,q4", "--batch=1,3",
                    "--json", "--prompt=20",        "--rounds=1",          "--threads=2"};
    static const char *const weights[] = {"f32", "q8", "q4"};
    assert_int_equal(bench(8, argv), SL_EXIT_OK);
    json_t *doc = json_loads(out, 0, NULL), *v;
    assert_int_equal(json_array_size(doc),
                     9); /* decode 1, decode 3, prefill; of three types each */
    size_t i;
    json_array_foreach(doc, i, v)
    {
        assert_string_equal(json_string_value(json_object_get(v, "work")),
                            i < 6 ? "decode" : "prefill");
        assert_string_equal(json_string_value(json_object_get(v, "weights")), weights[i % 3]);
        assert_int_equal(json_integer_value(json_object_get(v, "batch")), i / 3 == 1 ? 3 : 1);
        double got = json_number_value(json_object_get(v, "tokens_per_s"));
        double best = json_number_value(json_object_get(v, "bound_tokens_per_s"));
        double share = json_number_value(json_object_get(v, "share"));
        const char *what = json_string_value(json_object_get(v, "bound"));
        assert_true(strcmp(what, "memory") == 0 || strcmp(what, "arithmetic") == 0);
        assert_true(got > 0 && best > 0);
        assert_true(share > got / best - 0.002 && share < got / best + 0.002);
    }
    json_decref(doc);
}

static void test_steps_as_text(void **state)
{
    (void)state;
    char *argv[] = {"bench",         "--shape=rwkv7-tiny", "--weights=q4", "--batch=2",
                    "--kernels=ref", "--prompt=0",         "--rounds=1"};
    assert_int_equal(bench(7, argv), SL_EXIT_OK);
    assert_non_null(strstr(out, "rwkv7-tiny, ref kernels"));
    assert_non_null(strstr(out, "decode   q4            2 "));
    assert_null(strstr(out, "prefill"));
}

static void test_bad_steps(void **state)
{
    (void)state;
    static char *const wrong[][3] = {{"--shape=rwkv7-9b", "--batch=1", "rwkv7-0.1b"},
                                     {"--shape=rwkv7-tiny", "--weights=q5", "q5"},
                                     {"--shape=rwkv7-tiny", "--weights=", "--weights"},
                                     {"--shape=rwkv7-tiny", "--batch=0", "--batch 0"},
                                     {"--shape=rwkv7-tiny", "--batch=1,,2", "1,,2"},
                                     {"--shape=rwkv7-tiny", "--batch=1025", "1025"},
                                     {"--shape=rwkv7-tiny", "--batch=x", "--batch x"},
                                     {"--shape=rwkv7-tiny", "--kernels=mmx", "mmx"},
                                     {"--shape=rwkv7-tiny", "--modes", "--modes or --shape"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *argv[] = {"bench", wrong[i][0], wrong[i][1], "--rounds=1"};
        assert_int_not_equal(bench(4, argv), SL_EXIT_OK);
        assert_non_null(strstr(out, wrong[i][2]));
    }
}

static void test_bad_usage(void **state)
{
    (void)state;
    char *none[] = {"bench"}, *size[] = {"bench", "--modes", "--head-size=0"},
         *kernels[] = {"bench", "--modes", "--kernels=mmx"}, *extra[] = {"bench", "--modes", "x"};
    assert_int_equal(bench(1, none), SL_EXIT_USAGE);
    assert_non_null(strstr(out, "--modes"));
    assert_int_equal(bench(3, size), SL_EXIT_USAGE);
    assert_non_null(strstr(out, "head-size"));
    assert_int_equal(bench(3, kernels), SL_EXIT_USAGE);
    assert_non_null(strstr(out, "mmx"));
    assert_int_equal(bench(3, extra), SL_EXIT_USAGE);
    assert_non_null(strstr(out, "'x'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes_as_json), cmocka_unit_test(test_modes_as_text),
        cmocka_unit_test(test_bad_usage),     cmocka_unit_test(test_steps_as_json),
        cmocka_unit_test(test_steps_as_text), cmocka_unit_test(test_bad_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
