/* probe_test.c: `slate probe model`, and the conversations that it asks for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "server/cli/cli.h"
#include "server/cli/probe_talk.h"
#include "tests/support/bytes.h"
#include "tests/support/cli_run.h"

static char out[1 << 20];

static int probe(int argc, char **argv)
{
    return cli_run(sl_cli_probe, out, sizeof out, argc, argv);
}

/* --- conversations -----------------------------------------------------------------------------*/

enum { CASES = 300 };

static struct sl_buf text;

static const char *written(void)
{
    sl_buf_putc(&text, '\0');
    assert_int_equal(sl_buf_code(&text, NULL), SL_OK);
    return text.data;
}

/* Between telling and asking nobody asks the same, or says another thing of the same subject. */
static void test_fillers_do_not_ask(void **state)
{
    (void)state;
    struct sl_talk *talk;
    sl_buf_init(&text, 1 << 20);
    assert_int_equal(sl_talk_open(&talk, NULL), SL_OK);
    for (size_t row = 0; row < SL_TALK_ROWS; row++)
        for (size_t n = 0; n < CASES; n++) {
            struct sl_talk_case c;
            char question[512];
            sl_talk_case_init(&c, talk, (enum sl_talk_row)row, n);
            sl_buf_clear(&text);
            sl_talk_question(&c, &text);
            snprintf(question, sizeof question, "%s", written());
            assert_memory_equal(question, "User: ", 6);
            sl_buf_clear(&text);
            for (int i = 0; i < 8; i++)
                sl_talk_filler(&c, &text);
            assert_null(strstr(written(), question));
        }
    sl_talk_close(talk);
    sl_buf_done(&text);
}

/* What is told is what makes the answer right; FIXED: only the correction does. */
static void test_what_is_told_is_the_answer(void **state)
{
    (void)state;
    struct sl_talk *talk;
    size_t n_right = 0;
    sl_buf_init(&text, 1 << 20);
    assert_int_equal(sl_talk_open(&talk, NULL), SL_OK);
    for (size_t row = 0; row < SL_TALK_ROWS; row++)
        for (size_t n = 0; n < CASES; n++) {
            struct sl_talk_case c;
            bool old, is_right;
            sl_talk_case_init(&c, talk, (enum sl_talk_row)row, n);
            sl_buf_clear(&text);
            sl_talk_before(&c, &text);
            const char *s = written();
            is_right = sl_talk_is_right(&c, s, strlen(s), &old);
            if (row == SL_TALK_FIXED) {
                assert_true(old && !is_right);
                sl_buf_clear(&text);
                sl_talk_fix(&c, &text);
                s = written();
                assert_true(sl_talk_is_right(&c, s, strlen(s), &old));
            } else {
                assert_true(is_right == (row != SL_TALK_UNKNOWN));
            }
            n_right += is_right;
        }
    assert_int_equal(n_right, 3 * CASES);
    sl_talk_close(talk);
    sl_buf_done(&text);
}

/* A value counts as a whole word. */
static void test_whole_words(void **state)
{
    (void)state;
    struct sl_talk *talk;
    struct sl_talk_case c;
    bool old;
    assert_int_equal(sl_talk_open(&talk, NULL), SL_OK);
    sl_talk_case_init(&c, talk, SL_TALK_UNKNOWN, 0);
    assert_true(sl_talk_is_right(&c, "I do not know that.", 19, &old));
    assert_true(sl_talk_is_right(&c, "You have not told me.", 21, &old));
    assert_false(sl_talk_is_right(&c, "I do not knowx.", 15, &old));
    assert_false(sl_talk_is_right(&c, "", 0, &old));
    sl_talk_close(talk);
}

/* --- the command -------------------------------------------------------------------------------*/

static double share(const json_t *v, const char *key)
{
    double x = json_number_value(json_object_get(v, key));
    assert_true(x >= 0 && x <= 1);
    return x;
}

static void test_json_of_the_embedded_model(void **state)
{
    (void)state;
    char *argv[] = {
        "probe", "model", "--json", "--conversations=24", "--sequences=4", "--max-distance=128"};
    assert_int_equal(probe(6, argv), SL_EXIT_OK);
    json_t *doc = json_loads(out, 0, NULL);
    const json_t *recall = json_object_get(doc, "recall");
    assert_int_equal(json_array_size(recall), 10); /* five kinds, at 16 and 128 tokens */
    double told = 0;
    for (size_t i = 0; i < 10; i++) {
        const json_t *v = json_array_get(recall, i);
        double a = share(v, "accuracy");
        assert_int_equal(json_integer_value(json_object_get(v, "distance")), i % 2 ? 128 : 16);
        if (strcmp(json_string_value(json_object_get(v, "kind")), "told") == 0)
            told += a;
    }
    assert_true(told / 4 > 0.2); /* it is trained to: a model that is not remembers nothing */
    assert_int_equal(json_array_size(json_object_get(doc, "needle")), 4);
    assert_int_equal(json_array_size(json_object_get(doc, "pairs")), 9);
    assert_int_equal(json_array_size(json_object_get(doc, "half_lives")), 12);
    assert_int_equal(json_array_size(json_object_get(doc, "effective_rank")), 4);
    json_decref(doc);
}

static void test_text_and_charts(void **state)
{
    (void)state;
    char path[128], option[160];
    write_temp(path, "probe.svg", "", 0);
    snprintf(option, sizeof option, "--svg=%s", path);
    char *argv[] = {"probe", "model", "--conversations=2", "--sequences=2", "--max-distance=16",
                    option};
    assert_int_equal(probe(6, argv), SL_EXIT_OK);
    assert_non_null(strstr(out, "small talk between"));
    assert_non_null(strstr(out, "Half-lives"));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    out[fread(out, 1, sizeof out - 1, f)] = '\0';
    fclose(f);
    assert_memory_equal(out, "<svg ", 5);
    assert_non_null(strstr(out, "Multi-query recall"));
    assert_non_null(strstr(out, "</svg>"));
    remove_temp(path);
}

static void test_bad_usage(void **state)
{
    (void)state;
    char *none[] = {"probe"}, *what[] = {"probe", "moon"},
         *file[] = {"probe", "model", "--model=/x"},
         *svg[] = {"probe",
                   "model",
                   "--conversations=0",
                   "--sequences=1",
                   "--max-distance=16",
                   "--svg=/no/such/folder/x.svg"};
    assert_int_equal(probe(1, none), SL_EXIT_USAGE);
    assert_int_equal(probe(2, what), SL_EXIT_USAGE);
    assert_non_null(strstr(out, "'moon'"));
    assert_int_equal(probe(3, file), SL_EXIT_FILE);
    assert_non_null(strstr(out, "/x"));
    assert_int_equal(probe(6, svg), SL_EXIT_FILE);
    assert_non_null(strstr(out, "/no/such/folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fillers_do_not_ask),
        cmocka_unit_test(test_what_is_told_is_the_answer),
        cmocka_unit_test(test_whole_words),
        cmocka_unit_test(test_json_of_the_embedded_model),
        cmocka_unit_test(test_text_and_charts),
        cmocka_unit_test(test_bad_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
