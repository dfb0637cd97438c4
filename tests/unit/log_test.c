/* log_test.c: lines as text and as JSON; what cannot be written does not stop the writer. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/base/log.h"

static const char *format(bool json, const char *event, const struct sl_log_field *fields)
{
    static char line[2048];
    size_t n = sl_log_format(line, sizeof line, json, "T", SL_LOG_WARN, event, fields);
    assert_int_equal(n, strlen(line));
    return line;
}

static void test_text(void **state)
{
    (void)state;
    const struct sl_log_field fields[] = {SL_LS("plain", "127.0.0.1:80"),
                                          SL_LS("spaced", "a \"b\" \\ c"),
                                          SL_LS("empty", ""),
                                          SL_LS("null", NULL),
                                          SL_LI("n", -5),
                                          SL_LD("ms", 1.5),
                                          SL_LD("nan", __builtin_nan("")),
                                          SL_LS("nl", "a\nb=c"),
                                          SL_LEND};
    assert_string_equal(format(false, "event", fields),
                        "T warn event plain=127.0.0.1:80 spaced=\"a \\\"b\\\" \\\\ c\" empty=\"\" "
                        "null=\"\" n=-5 ms=1.500 nan=0 nl=\"a?b=c\"");
    assert_string_equal(format(false, "two words", &(struct sl_log_field)SL_LEND),
                        "T warn \"two words\"");
}

static void test_json(void **state)
{
    (void)state;
    static const char *const values[] = {"x", "a \"b\" \\ c", "", "\xc3\xa9\xff", "a\nb\x01"};
    static const char *const expected[] = {"x", "a \"b\" \\ c", "", "\xc3\xa9\xef\xbf\xbd", "a?b?"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const struct sl_log_field fields[] = {SL_LS("s", values[i]), SL_LI("n", INT64_MIN),
                                              SL_LD("d", 0.25), SL_LEND};
        json_error_t e;
        json_t *j = json_loads(format(true, "the event", fields), JSON_REJECT_DUPLICATES, &e);
        assert_non_null(j);
        assert_string_equal(json_string_value(json_object_get(j, "time")), "T");
        assert_string_equal(json_string_value(json_object_get(j, "level")), "warn");
        assert_string_equal(json_string_value(json_object_get(j, "event")), "the event");
        assert_string_equal(json_string_value(json_object_get(j, "s")), expected[i]);
        assert_true(json_integer_value(json_object_get(j, "n")) == INT64_MIN);
        assert_true(json_real_value(json_object_get(j, "d")) == 0.25);
        json_decref(j);
    }
}

/* However short the line may be, it is whole: JSON parses, no byte is written behind its end. */
static void test_cut(void **state)
{
    (void)state;
    static const char text[] = "\xe2\x82\xac\"\\ some text that is long enough to be cut";
    const struct sl_log_field fields[] = {SL_LS("first", "1"), SL_LS("second", text),
                                          SL_LS("third", "3"), SL_LEND};
    for (size_t n = 80; n < 220; n++) {
        char *line = malloc(n);
        size_t len =
            sl_log_format(line, n, true, "2026-01-31T12:00:00.000Z", SL_LOG_INFO, "event", fields);
        assert_true(len < n);
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        const char *second = json_string_value(json_object_get(j, "second"));
        if (second)
            assert_string_equal(second, text);
        else
            assert_null(json_object_get(j, "third"));
        json_decref(j);
        free(line);
    }
}

/* stderr is a pipe that nobody reads: the writer goes on, and says later what was lost. */
static void test_a_full_pipe(void **state)
{
    (void)state;
    int fd[2], old = dup(STDERR_FILENO);
    char big[1000], *in = calloc(1, 1 << 20);
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(dup2(fd[1], STDERR_FILENO), STDERR_FILENO);
    for (int i = 0; i < 1000; i++) /* far more than a pipe holds */
        sl_log(SL_LOG_INFO, "much", SL_LS("text", big));
    assert_int_equal(fcntl(fd[0], F_SETFL, O_NONBLOCK), 0);
    size_t n = 0;
    for (ssize_t k; (k = read(fd[0], in + n, (1 << 20) - 1 - n)) > 0; n += (size_t)k)
        ;
    size_t written = 0, lost = 0;
    for (const char *s = in; (s = strstr(s, " info much ")) != NULL; s++)
        written++;
    sl_log(SL_LOG_INFO, "after", SL_LI("n", 1));
    sl_log(SL_LOG_DEBUG, "not at this level", SL_LI("n", 1));
    ssize_t k = read(fd[0], in, (1 << 20) - 1);
    assert_true(k > 0);
    in[k] = '\0';
    assert_int_equal(dup2(old, STDERR_FILENO), STDERR_FILENO);
    const char *s = strstr(in, " warn \"log lines were lost\" lines=");
    assert_non_null(s);
    assert_int_equal(sscanf(s, " warn \"log lines were lost\" lines=%zu", &lost), 1);
    assert_int_equal(written + lost, 1000);
    assert_true(written > 10 && lost > 10);
    assert_non_null(strstr(in, " info after n=1\n"));
    assert_null(strstr(in, "not at this level"));
    close(fd[0]);
    close(fd[1]);
    close(old);
    free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_a_full_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
