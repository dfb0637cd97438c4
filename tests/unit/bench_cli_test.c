/* bench_cli_test.c: `slate bench`, called in this process; beside a peer whose programs are
 * scripts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "server/cli/cli.h"
#include "tests/support/cli_run.h"
#include "tests/support/tree.h"

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

/* --- CSV ---------------------------------------------------------------------------------------*/

/* Column `name` of line `nth` (0: the first below the names); no cell here has quotes. */
static const char *cell(size_t nth, const char *name)
{
    static char text[64];
    const char *p = out;
    size_t at = 0;
    for (size_t n = strlen(name); strncmp(p, name, n) != 0 || !strchr(",\n", p[n]); p++, at++) {
        p += strcspn(p, ",\n");
        if (*p != ',')
            fail_msg("no column '%s'", name);
    }
    for (p = strchr(out, '\n') + 1; nth > 0; nth--)
        p = strchr(p, '\n') + 1;
    for (; at > 0; at--)
        p = strchr(p, ',') + 1;
    (void)snprintf(text, sizeof text, "%.*s", (int)strcspn(p, ",\n"), p);
    return text;
}

static double cell_number(size_t nth, const char *name)
{
    char *end;
    double d = strtod(cell(nth, name), &end);
    assert_true(end != cell(nth, name) && !*end);
    return d;
}

/* Lines below that of the names; each has as many cells. */
static size_t csv_lines(void)
{
    size_t lines = 0, cells[2] = {0};
    for (const char *p = out; *p; p++) {
        cells[lines > 0] += *p == ',';
        if (*p != '\n')
            continue;
        assert_int_equal(cells[lines > 0], cells[0]);
        cells[1] = 0;
        lines++;
    }
    assert_true(lines > 0);
    return lines - 1;
}

/* The names that an object's keys come to: of a list of two and of an object those of two columns.
 */
static void add_names(char *to, size_t room, const json_t *object, const char *group)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        char name[64];
        size_t n = strlen(to);
        (void)snprintf(name, sizeof name, "%s%s", group, key);
        if (json_is_array(v)) {
            (void)snprintf(to + n, room - n, "%s_least,%s_most,", name, name);
        } else if (json_is_object(v)) {
            (void)snprintf(name, sizeof name, "%s_", key);
            add_names(to, room, v, name);
        } else {
            (void)snprintf(to + n, room - n, "%s,", name);
        }
    }
}

/* The first line is these. */
static void assert_names(char *names)
{
    size_t n = strlen(names);
    assert_true(n > 0);
    names[n - 1] = '\n'; /* for the last comma */
    if (strncmp(out, names, n) != 0)
        fail_msg("%.*s, not %s", (int)strcspn(out, "\n"), out, names);
}

/* --- forms --------------------------------------------------------------------------------------
 */

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

/* The columns are what JSON says of a length, between what it says of all and of the rule. */
static void test_modes_as_csv(void **state)
{
    (void)state;
    char names[1024] = "";
    char *json[] = {"bench", "--modes", "--json", "--head-size=16", "--max-tokens=32"};
    char *csv[] = {"bench", "--modes", "--csv", "--head-size=16", "--max-tokens=32"};
    assert_int_equal(bench(5, json), SL_EXIT_OK);
    json_t *doc = json_loads(out, 0, NULL),
           *rule = json_array_get(json_object_get(doc, "modes"), 0);
    json_t *length = json_incref(json_array_get(json_object_get(rule, "lengths"), 0));
    json_t *crossings = json_incref(rule);
    assert_int_equal(json_object_del(crossings, "lengths"), 0);
    assert_int_equal(json_object_del(doc, "modes"), 0);
    assert_int_equal(json_object_del(crossings, "rule"), 0);
    add_names(names, sizeof names, doc, "");
    (void)snprintf(names + strlen(names), sizeof names - strlen(names), "rule,");
    add_names(names, sizeof names, length, "");
    add_names(names, sizeof names, crossings, "");
    json_decref(crossings);
    json_decref(length);
    json_decref(doc);
    assert_int_equal(bench(5, csv), SL_EXIT_OK);
    assert_names(names);
    assert_int_equal(csv_lines(), 10);
    for (size_t i = 0; i < 10; i++) {
        assert_true(cell_number(i, "head_size") == 16);
        assert_true(cell_number(i, "tokens") == (i % 2 ? 32 : 16));
        assert_true(cell_number(i, "recurrent_ns_per_token") > 0);
        /* The state, a vector to work in, and linear attention's denominator. */
        assert_true(cell_number(i, "recurrent_bytes") == 4 * (256 + 16 + (i < 2 ? 16 : 0)));
    }
    assert_string_equal(cell(0, "rule"), "linear attention");
    assert_string_equal(cell(9, "rule"), "gated DeltaNet");
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
        /* Eight for each of two layers, the embedding, the last norm and the head. */
        double barriers = json_number_value(json_object_get(v, "barriers"));
        assert_true(barriers > 0 && barriers <= 8 * 2 + 3);
        const json_t *sampling = json_object_get(v, "sampling_share");
        assert_int_equal(json_is_number(sampling), i < 6);
        assert_true(i >= 6 || (json_number_value(sampling) > 0 && json_number_value(sampling) < 1));
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
    assert_non_null(strstr(out, "%  arithmetic ")); /* what bounds it */
    assert_null(strstr(out, "prefill"));
}

static void test_steps_as_csv(void **state)
{
    (void)state;
    char *argv[] = {"bench", "--shape=rwkv7-tiny", "--weights=f32,q8", "--batch=1,3",
                    "--csv", "--prompt=20",        "--rounds=1",       "--threads=2"};
    assert_int_equal(bench(8, argv), SL_EXIT_OK);
    assert_int_equal(csv_lines(), 6);
    for (size_t i = 0; i < 6; i++) {
        assert_string_equal(cell(i, "work"), i < 4 ? "decode" : "prefill");
        assert_string_equal(cell(i, "weights"), i % 2 ? "q8" : "f32");
        assert_true(cell_number(i, "batch") == (i / 2 == 1 ? 3 : 1));
        double got = cell_number(i, "tokens_per_s");
        double share = got / cell_number(i, "bound_tokens_per_s") - cell_number(i, "share");
        assert_true(got > 0 && share > -0.002 && share < 0.002);
        assert_true(cell_number(i, "tokens_per_s_range_least") == got);
        assert_true(cell_number(i, "tokens_per_s_range_most") == got);
        assert_int_equal(*cell(i, "sampling_share") != '\0', i < 4);
        assert_string_equal(cell(i, "ratio"), ""); /* no peer */
    }
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

/* --- a peer -------------------------------------------------------------------------------------
 */

static char peer[32];

static char *in_peer(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", peer, name);
    return path;
}

static void write_script(const char *name, const char *text)
{
    FILE *f = fopen(in_peer(name), "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\nlog=%s/log\n%s", peer, text);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(in_peer(name), 0755), 0);
}

/* 100.25 tokens a second for each session that decodes, 1000.5 of a prompt at the second time. */
static const char measures[] =
    "while [ $# -gt 0 ]; do\n"
    "  case $1 in -m) m=$2 ;; -npl) npl=$2 ;; -npp) npp=$2 ;; -t) t=$2 ;; esac; shift; done\n"
    "[ \"$(head -c 4 $m)\" = GGUF ] || { echo no model; exit 3; }\n"
    "case $GLIBC_TUNABLES in *glibc.malloc.hugetlb=1*) ;; *) echo small pages; exit 3 ;; esac\n"
    "echo $(basename $m) $npl $npp $t >>$log\n"
    "echo some words; echo more of them >&2\n"
    "for b in $(echo $npl | tr , ' '); do\n"
    "  echo '{\"pl\": '$b', \"speed_pp\": 900, \"speed_tg\": 1}'\n"
    "  echo '{\"pl\": '$b', \"speed_pp\": 1000.5, \"speed_tg\": '$((b * 10025))e-2'}'\n"
    "done\n";
static const char quantises[] = "[ $1 = --pure ] && cp $2 $3 && echo to $4 >>$log\n";

static void open_peer(const char *bench_text, const char *quantise_text)
{
    (void)snprintf(peer, sizeof peer, "/tmp/slate-test-XXXXXX");
    assert_non_null(mkdtemp(peer));
    assert_int_equal(mkdir(in_peer("bin"), 0755), 0);
    assert_int_equal(mkdir(in_peer("files"), 0755), 0);
    if (bench_text)
        write_script("bin/llama-batched-bench", bench_text);
    if (quantise_text)
        write_script("bin/llama-quantize", quantise_text);
    assert_int_equal(setenv("TMPDIR", in_peer("files"), 1), 0);
}

/* It leaves nothing behind. */
static void close_peer(void)
{
    assert_int_equal(rmdir(in_peer("files")), 0);
    assert_int_equal(unsetenv("TMPDIR"), 0);
    remove_tree(peer);
}

/* form: NULL for tables. */
static int bench_beside_peer(const char *rounds, char *form)
{
    char option[64], rounds_option[16];
    (void)snprintf(option, sizeof option, "--peer-llama=%s", peer);
    (void)snprintf(rounds_option, sizeof rounds_option, "--rounds=%s", rounds);
    char *argv[] = {"bench",       "--shape=rwkv7-tiny", "--weights=f16,q8", "--batch=1,3",
                    "--prompt=20", "--threads=2",        rounds_option,      option,
                    form};
    return bench(form ? 9 : 8, argv);
}

static void test_peer_as_json(void **state)
{
    (void)state;
    open_peer(measures, quantises);
    assert_int_equal(bench_beside_peer("1", "--json"), SL_EXIT_OK);
    json_t *doc = json_loads(out, 0, NULL), *v;
    assert_int_equal(json_array_size(doc), 6);
    size_t i;
    json_array_foreach(doc, i, v)
    {
        double want = i < 2 ? 100.25 : i < 4 ? 300.75 : 1000.5;
        double got = json_number_value(json_object_get(v, "peer_tokens_per_s"));
        double ours = json_number_value(json_object_get(v, "tokens_per_s"));
        double ratio = json_number_value(json_object_get(v, "ratio"));
        const json_t *range = json_object_get(v, "ratio_range");
        assert_true(got > want - 0.06 && got < want + 0.06);
        assert_true(ratio > ours / want * 0.998 - 0.001 && ratio < ours / want * 1.002 + 0.001);
        assert_true(json_number_value(json_array_get(range, 0)) == ratio);
        assert_true(json_number_value(json_array_get(range, 1)) == ratio);
        assert_string_equal(json_string_value(json_object_get(v, "peer_weights")),
                            i % 2 ? "Q8_0" : "F16");
    }
    json_decref(doc);
    close_peer();
}

/* What JSON says of a work, in its order. */
static void test_peer_as_csv(void **state)
{
    (void)state;
    char names[1024] = "";
    open_peer(measures, quantises);
    assert_int_equal(bench_beside_peer("1", "--json"), SL_EXIT_OK);
    json_t *doc = json_loads(out, 0, NULL);
    add_names(names, sizeof names, json_array_get(doc, 0), "");
    json_decref(doc);
    assert_int_equal(bench_beside_peer("1", "--csv"), SL_EXIT_OK);
    assert_names(names);
    assert_int_equal(csv_lines(), 6);
    for (size_t i = 0; i < 6; i++) {
        double ratio = cell_number(i, "ratio");
        assert_true(ratio == cell_number(i, "ratio_range_least"));
        assert_true(ratio == cell_number(i, "ratio_range_most"));
        assert_string_equal(cell(i, "peer_weights"), i % 2 ? "Q8_0" : "F16");
    }
    assert_true(cell_number(5, "peer_tokens_per_s") == 1000.5);
    close_peer();
}

/* In turn, and each file made once. */
static void test_peer_as_text(void **state)
{
    (void)state;
    static const char round[] = "F16.gguf 1,3 4 2\nF16.gguf 1 20,20 2\n%sQ8_0.gguf 1,3 4 2\n"
                                "Q8_0.gguf 1 20,20 2\n";
    char want[512], got[512] = "";
    open_peer(measures, quantises);
    assert_int_equal(bench_beside_peer("2", NULL), SL_EXIT_OK);
    assert_null(getenv("GLIBC_TUNABLES"));
    assert_non_null(strstr(out, "ratio"));
    assert_non_null(strstr(out, " 300.8 "));
    FILE *f = fopen(in_peer("log"), "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = '\0';
    (void)fclose(f);
    int n = snprintf(want, sizeof want, round, "to Q8_0\n");
    (void)snprintf(want + n, sizeof want - (size_t)n, round, "");
    assert_string_equal(got, want);
    close_peer();
}

static void test_bad_peers(void **state)
{
    (void)state;
    static const struct {
        const char *measures, *quantises;
        const char *want[2]; /* are said */
    } wrong[] = {
        {NULL, quantises, {"--peer-llama", "llama-batched-bench"}},
        {measures, NULL, {"--peer-llama", "llama-quantize"}},
        {"echo first; echo out of luck >&2; exit 3\n", quantises, {"status 3", "out of luck"}},
        {"kill -9 $$\n", quantises, {"signal 9", "llama-batched-bench"}},
        {"echo '{\"pl\": 1, \"speed_tg\": 5}'\n", quantises, {"told nothing", "batch of 3"}},
        {"echo '{\"pl\": 1, \"speed_tg\": 5}{'; echo '{'\n", quantises, {"told", "batch of 1"}},
        {measures, "exit 0\n", {"llama-quantize", "wrote no file"}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        open_peer(wrong[i].measures, wrong[i].quantises);
        assert_int_not_equal(bench_beside_peer("1", "--json"), SL_EXIT_OK);
        assert_non_null(strstr(out, wrong[i].want[0]));
        assert_non_null(strstr(out, wrong[i].want[1]));
        close_peer();
    }
    char *argv[] = {"bench", "--modes", "--peer-llama=/tmp"};
    assert_int_equal(bench(3, argv), SL_EXIT_USAGE);
    assert_non_null(strstr(out, "--peer-llama goes with --shape"));
}

static void test_bad_usage(void **state)
{
    (void)state;
    char *none[] = {"bench"}, *size[] = {"bench", "--modes", "--head-size=0"},
         *kernels[] = {"bench", "--modes", "--kernels=mmx"}, *extra[] = {"bench", "--modes", "x"};
    char *both[][4] = {{"bench", "--modes", "--csv", "--json"},
                       {"bench", "--shape=rwkv7-tiny", "--json", "--csv"}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(bench(4, both[i]), SL_EXIT_USAGE);
        assert_non_null(strstr(out, "--json and --csv"));
    }
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
        cmocka_unit_test(test_modes_as_csv),  cmocka_unit_test(test_steps_as_csv),
        cmocka_unit_test(test_peer_as_csv),   cmocka_unit_test(test_modes_as_json),
        cmocka_unit_test(test_modes_as_text), cmocka_unit_test(test_bad_usage),
        cmocka_unit_test(test_steps_as_json), cmocka_unit_test(test_steps_as_text),
        cmocka_unit_test(test_bad_steps),     cmocka_unit_test(test_peer_as_json),
        cmocka_unit_test(test_peer_as_text),  cmocka_unit_test(test_bad_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
