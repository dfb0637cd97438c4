/* plot.c: see plot.h. */
#include "server/cli/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of one chart, in pixels: the frame, and what lies around it. */
enum { WIDTH = 760, HEIGHT = 430, LEFT = 80, RIGHT = 210, TOP = 46, BOTTOM = 58, TICKS_MAX = 32 };
enum { FRAME_W = WIDTH - LEFT - RIGHT, FRAME_H = HEIGHT - TOP - BOTTOM };

struct axis {
    double lo, hi; /* of what is drawn: log2(x) where log_x */
    double tick[TICKS_MAX];
    size_t n_ticks;
};

struct chart {
    const struct sl_plot *p;
    struct axis x, y;
    double top; /* of the chart in the file */
};

/* Dashes and markers in turn; seven of the one and five of the other: 35 series differ. */
static const char *const dashes[] = {"", "7 4", "2 3", "10 3 2 3", "4 2 1 2", "14 5", "1 5"};
static const char *const inks[] = {"#000000", "#1f5fa8", "#b3261e", "#2d7d46",
                                   "#8a5a00", "#6a3d9a", "#555555"};
enum { N_DASHES = sizeof dashes / sizeof *dashes, N_MARKERS = 5 };

static void put_text(struct sl_buf *b, const char *s)
{
    for (; *s; s++) {
        switch (*s) {
        case '<':
            sl_buf_puts(b, "&lt;");
            break;
        case '>':
            sl_buf_puts(b, "&gt;");
            break;
        case '&':
            sl_buf_puts(b, "&amp;");
            break;
        default:
            sl_buf_putc(b, *s);
        }
    }
}

static void label(struct sl_buf *b, double x, double y, const char *how, const char *text)
{
    sl_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, how);
    put_text(b, text);
    sl_buf_puts(b, "</text>\n");
}

/* --- axes --------------------------------------------------------------------------------------*/

static bool shown(const struct sl_plot_series *s, size_t i, bool log_x)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]) && (!log_x || s->x[i] > 0);
}

static void widen(struct axis *a, double v)
{
    a->lo = v < a->lo ? v : a->lo;
    a->hi = v > a->hi ? v : a->hi;
}

/* The multiples of step within the axis. */
static void put_ticks(struct axis *a, double step)
{
    double first = ceil(a->lo / step - 1e-9);
    for (int i = 0; i < TICKS_MAX; i++) {
        double v = (first + i) * step;
        if (v > a->hi + 1e-9 * step)
            return;
        a->tick[a->n_ticks++] = fabs(v) < 1e-12 * step ? 0 : v;
    }
}

/* Steps of 1, 2 or 5 times a power of ten, four to nine of them. */
static void round_ticks(struct axis *a)
{
    double raw = (a->hi - a->lo) / 5, power = pow(10, floor(log10(raw)));
    double step = power * (raw / power < 1.5   ? 1
                           : raw / power < 3.5 ? 2
                           : raw / power < 7.5 ? 5
                                               : 10);
    put_ticks(a, step);
}

/* Whole powers of two, every one or every other. */
static void log_ticks(struct axis *a)
{
    double step = ceil((a->hi - a->lo) / 14);
    put_ticks(a, step < 1 ? 1 : step);
}

static void find_axes(struct chart *c)
{
    const struct sl_plot *p = c->p;
    c->x = c->y = (struct axis){.lo = INFINITY, .hi = -INFINITY};
    for (size_t k = 0; k < p->n_series; k++)
        for (size_t i = 0; i < p->series[k].n; i++)
            if (shown(&p->series[k], i, p->log_x)) {
                widen(&c->x, p->log_x ? log2(p->series[k].x[i]) : p->series[k].x[i]);
                widen(&c->y, p->series[k].y[i]);
            }
    if (!(c->x.lo <= c->x.hi)) /* nothing to show */
        c->x.lo = 0, c->x.hi = 1, c->y.lo = 0, c->y.hi = 1;
    widen(&c->y, 0);
    c->y.lo = isnan(p->y_min) ? c->y.lo : p->y_min;
    c->y.hi = isnan(p->y_max) ? c->y.hi : p->y_max;
    if (!(c->x.hi > c->x.lo))
        c->x.lo -= 0.5, c->x.hi += 0.5;
    if (!(c->y.hi > c->y.lo))
        c->y.hi = c->y.lo + 1;
    if (p->log_x)
        log_ticks(&c->x);
    else
        round_ticks(&c->x);
    round_ticks(&c->y);
}

static double at_x(const struct chart *c, double x)
{
    return LEFT + (x - c->x.lo) / (c->x.hi - c->x.lo) * FRAME_W;
}

static double at_y(const struct chart *c, double y)
{
    y = y < c->y.lo ? c->y.lo : y > c->y.hi ? c->y.hi : y;
    return c->top + TOP + (c->y.hi - y) / (c->y.hi - c->y.lo) * FRAME_H;
}

static void put_frame(struct sl_buf *b, const struct chart *c)
{
    const struct sl_plot *p = c->p;
    char number[32];
    double bottom = c->top + TOP + FRAME_H;
    label(b, LEFT, c->top + 26, "font-size=\"16\" font-weight=\"bold\"", p->title);
    for (size_t i = 0; i < c->y.n_ticks; i++) {
        double y = at_y(c, c->y.tick[i]);
        sl_buf_printf(b, "<path d=\"M%d %.1fh%d\" stroke=\"#cccccc\"/>\n", LEFT, y, FRAME_W);
        snprintf(number, sizeof number, "%g", c->y.tick[i]);
        label(b, LEFT - 8, y + 4, "text-anchor=\"end\"", number);
    }
    for (size_t i = 0; i < c->x.n_ticks; i++) {
        double x = at_x(c, c->x.tick[i]);
        sl_buf_printf(b, "<path d=\"M%.1f %.1fv6\" stroke=\"#000000\"/>\n", x, bottom);
        snprintf(number, sizeof number, "%g", p->log_x ? exp2(c->x.tick[i]) : c->x.tick[i]);
        label(b, x, bottom + 20, "text-anchor=\"middle\"", number);
    }
    sl_buf_printf(b,
                  "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"none\" "
                  "stroke=\"#000000\"/>\n",
                  LEFT, c->top + TOP, FRAME_W, FRAME_H);
    label(b, LEFT + FRAME_W / 2.0, bottom + 44, "text-anchor=\"middle\"", p->x_label);
    char turned[128];
    double middle = c->top + TOP + FRAME_H / 2.0;
    snprintf(turned, sizeof turned, "text-anchor=\"middle\" transform=\"rotate(-90 22 %.1f)\"",
             middle);
    label(b, 22, middle, turned, p->y_label);
}

/* --- series ------------------------------------------------------------------------------------*/

static void put_marker(struct sl_buf *b, size_t which, double x, double y, const char *ink)
{
    switch (which % N_MARKERS) {
    case 0:
        sl_buf_printf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y, ink);
        return;
    case 1:
        sl_buf_printf(b,
                      "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" fill=\"#ffffff\" "
                      "stroke=\"%s\"/>\n",
                      x - 3.5, y - 3.5, ink);
        return;
    case 2:
        sl_buf_printf(b, "<path d=\"M%.1f %.1fl4 7h-8z\" fill=\"%s\"/>\n", x, y - 4, ink);
        return;
    case 3:
        sl_buf_printf(b, "<path d=\"M%.1f %.1fl7 7m0 -7l-7 7\" stroke=\"%s\"/>\n", x - 3.5, y - 3.5,
                      ink);
        return;
    default:
        sl_buf_printf(b,
                      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"#ffffff\" "
                      "stroke=\"%s\"/>\n",
                      x, y, ink);
    }
}

static void put_line_style(struct sl_buf *b, size_t k)
{
    sl_buf_printf(b, " fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\"", inks[k % N_DASHES]);
    if (*dashes[k % N_DASHES])
        sl_buf_printf(b, " stroke-dasharray=\"%s\"", dashes[k % N_DASHES]);
    sl_buf_puts(b, "/>\n");
}

static void put_series(struct sl_buf *b, const struct chart *c, size_t k)
{
    const struct sl_plot_series *s = &c->p->series[k];
    const char *ink = inks[k % N_DASHES];
    char next = 'M';
    sl_buf_puts(b, "<path d=\"");
    for (size_t i = 0; i < s->n; i++)
        if (shown(s, i, c->p->log_x)) {
            sl_buf_printf(b, "%c%.1f %.1f", next, at_x(c, c->p->log_x ? log2(s->x[i]) : s->x[i]),
                          at_y(c, s->y[i]));
            next = 'L';
        }
    if (next == 'M')
        sl_buf_puts(b, "M0 0");
    sl_buf_putc(b, '"');
    put_line_style(b, k);
    for (size_t i = 0; i < s->n; i++)
        if (shown(s, i, c->p->log_x))
            put_marker(b, k, at_x(c, c->p->log_x ? log2(s->x[i]) : s->x[i]), at_y(c, s->y[i]), ink);
    double x = LEFT + FRAME_W + 14, y = c->top + TOP + 12 + 20 * (double)k;
    sl_buf_printf(b, "<path d=\"M%.1f %.1fh30\"", x, y);
    put_line_style(b, k);
    put_marker(b, k, x + 15, y, ink);
    label(b, x + 38, y + 4, "", s->name);
}

void sl_plots_svg(struct sl_buf *b, const struct sl_plot *plots, size_t n)
{
    size_t height = n * HEIGHT;
    sl_buf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" "
                  "viewBox=\"0 0 %d %zu\" font-family=\"sans-serif\" font-size=\"12\">\n",
                  WIDTH, height, WIDTH, height);
    sl_buf_printf(b, "<rect width=\"%d\" height=\"%zu\" fill=\"#ffffff\"/>\n", WIDTH, height);
    for (size_t i = 0; i < n; i++) {
        struct chart c = {.p = &plots[i], .top = (double)(i * HEIGHT)};
        find_axes(&c);
        put_frame(b, &c);
        for (size_t k = 0; k < plots[i].n_series; k++)
            put_series(b, &c, k);
    }
    sl_buf_puts(b, "</svg>\n");
}
