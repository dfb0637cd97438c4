/* fla_slow_priv.h: what the two files of fla_slow share. Arrays [n][w] are row after row, a row for
 * each token; memory that slow_room() gives is freed at the end of all. */
#ifndef SLATE_TESTS_FLA_SLOW_PRIV_H
#define SLATE_TESTS_FLA_SLOW_PRIV_H

#include "tests/support/fla_slow.h"

#define LAYER "model.layers.%zu.attn."

enum { KEPT_MAX = 4096 };

struct slow_model {
    const struct sl_tensors *t;
    size_t n; /* tokens */
    size_t d;
    double eps;
    const char *type;
    double *kept[KEPT_MAX]; /* all that was allocated */
    size_t n_kept;
};

double *slow_room(struct slow_model *m, size_t n); /* zeros */
bool slow_has(const struct slow_model *m, const char *fmt, ...) SL_PRINTF(2, 3);
/* A tensor's values; all of them, row-major. */
double *slow_get(struct slow_model *m, const char *fmt, ...) SL_PRINTF(2, 3);
size_t slow_size(const struct slow_model *m, const char *key, size_t absent);
bool slow_flag(const struct slow_model *m, const char *key, bool absent);

double slow_sigmoid(double x);
double slow_relu2(double x);
void slow_map(double *x, size_t n, double (*f)(double));
/* [n][rows] = x Wᵀ */
double *slow_times(struct slow_model *m, const double *x, const double *w, size_t rows,
                   size_t cols);
/* One row; b NULL: none. */
void slow_layer_norm(double *y, const double *x, const double *w, const double *b, size_t n,
                     double eps);
void slow_add(double *x, const double *y, size_t n);

/* fla_slow_rwkv7.c: all rows through the layer's norm of this name; a whole layer, in place. */
double *slow_layer_normed(struct slow_model *m, const double *x, const char *name, size_t i);
void slow_rwkv7_layer(struct slow_model *m, double *x, size_t i, double **v_first);

#endif
