/* plot.h: line charts as SVG, for `slate probe`. They can be read in black and white: series differ
 * by dashes and markers, not by colour alone. */
#ifndef SLATE_SERVER_CLI_PLOT_H
#define SLATE_SERVER_CLI_PLOT_H

#include <stdbool.h>

#include "proto/buf.h"

struct sl_plot_series {
    const char *name; /* in the legend; plain text */
    const double *x, *y;
    size_t n; /* points that are not finite are left out */
};

struct sl_plot {
    const char *title, *x_label, *y_label; /* labels with their units */
    bool log_x;                            /* powers of two; x > 0 */
    double y_min, y_max;                   /* the axis; NaN: from the values, and 0 */
    const struct sl_plot_series *series;
    size_t n_series;
};

/* One file with all charts, below each other. */
void sl_plots_svg(struct sl_buf *b, const struct sl_plot *plots, size_t n);

#endif
