/* plot_test.c: charts of `slate probe`: what is drawn where, in SVG's own numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/cli/plot.h"

static char *drawn(const struct sl_plot *p, size_t n)
{
    struct sl_buf b;
    size_t len;
    sl_buf_init(&b, 1 << 20);
    sl_plots_svg(&b, p, n);
    sl_buf_putc(&b, '\0');
    assert_int_equal(sl_buf_code(&b, NULL), SL_OK);
    char *s = sl_buf_take(&b, &len);
    sl_buf_done(&b);
    return s;
}

static size_t count(const char *s, const char *what)
{
    size_t n = 0;
    for (; (s = strstr(s, what)); s += strlen(what))
        n++;
    return n;
}

/* The frame is 470 × 326 from (80, 46): the middle power of two lies in its middle. */
static void test_where_points_are(void **state)
{
    (void)state;
    static const double x[] = {16, 64, 256}, y[] = {0, 0.5, 1};
    const struct sl_plot_series s = {"one", x, y, 3};
    const struct sl_plot p = {"title", "tokens", "share", true, 0, 1, &s, 1};
    char *svg = drawn(&p, 1);
    assert_non_null(strstr(svg, "M80.0 372.0L315.0 209.0L550.0 46.0"));
    assert_non_null(strstr(svg, ">16</text>"));
    assert_non_null(strstr(svg, ">128</text>"));
    assert_non_null(strstr(svg, ">0.2</text>"));
    assert_non_null(strstr(svg, ">share</text>"));
    assert_int_equal(count(svg, "<circle"), 4); /* three points and the legend's */
    sl_free(svg);
}

/* Every other series has another dash and another marker; names are text, not markup. */
static void test_black_and_white(void **state)
{
    (void)state;
    static const double x[] = {1, 2}, y[] = {1, 2};
    struct sl_plot_series s[6];
    for (size_t i = 0; i < 6; i++)
        s[i] = (struct sl_plot_series){"a<b & c>d", x, y, 2};
    const struct sl_plot p = {"t", "x", "y", false, (double)NAN, (double)NAN, s, 6};
    char *svg = drawn(&p, 1);
    assert_int_equal(count(svg, "a&lt;b &amp; c&gt;d"), 6);
    assert_int_equal(count(svg, "stroke-dasharray=\"7 4\""), 2); /* line and legend */
    assert_int_equal(count(svg, "stroke-dasharray"), 10);
    sl_free(svg);
}

/* What is no number is left out; with nothing left there is an empty frame; charts lie below each
 * other. */
static void test_odd_values(void **state)
{
    (void)state;
    static const double x[] = {0, 1, 2, 4}, y[] = {5, (double)NAN, (double)INFINITY, 7};
    const struct sl_plot_series s[] = {{"some", x, y, 4}, {"none", x, y + 1, 2}};
    const struct sl_plot p[] = {{"a", "x", "y", true, (double)NAN, (double)NAN, s, 1},
                                {"b", "x", "y", true, (double)NAN, (double)NAN, s + 1, 1}};
    char *svg = drawn(p, 2);
    assert_int_equal(count(svg, "<circle"), 1 + 1 + 1); /* the point 4, 7 and two legends */
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    assert_non_null(strstr(svg, "height=\"860\""));
    sl_free(svg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where_points_are),
        cmocka_unit_test(test_black_and_white),
        cmocka_unit_test(test_odd_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
