/* recur.h: a rule's recurrence as one of its forms (forms.h), under --numerics fast. Private to
 * libslate.
 *
 * A mixer whose recurrence has more than one form says so when it loads (sl_load_recurrence()), and
 * asks sl_recur_has_form() for each (span, head): where the answer is yes, it hands its rows to
 * sl_recur_run() instead of going token by token. Under --numerics exact it never is. */
#ifndef SLATE_ENGINE_RECUR_H
#define SLATE_ENGINE_RECUR_H

#include "engine/forms.h"
#include "engine/pass.h"

/* What a head's recurrence is like. */
struct sl_recur_shape {
    size_t n_k, n_v; /* n_k 0: the rule has the recurrent form only */
    enum sl_decay decay;
    bool delta, denominator;
};

/* Fewer rows than this are not worth the preparation. */
enum { SL_FORM_ROWS_MIN = 16 };

static inline bool sl_recur_has_form(const struct sl_pass *p, const struct sl_span *span)
{
    return p->form != SL_FORM_RECURRENT && span->n_rows >= SL_FORM_ROWS_MIN;
}

/* Where a row's query, key, ln of the decay (1 or n_k numbers) and β go; g and beta are NULL where
 * the rule has none. */
struct sl_recur_row {
    float *q, *k, *g, *beta;
};

/* Fills in r's rows (row() for each t of the span) and runs the pass's form; then r->den holds the
 * denominators. The caller has set n_k, n_v, decay, v, o and s, ld_v and ld_o, for the span's first
 * row, z where there is one; delta: whether there is a β. tmp: sl_recur_floats(), which a part has
 * besides what the load asked for. */
void sl_recur_run(const struct sl_pass *p, const struct sl_span *span, struct sl_recurrence *r,
                  bool delta, size_t head,
                  void (*row)(const void *arg, size_t t, size_t head, const struct sl_recur_row *x),
                  const void *arg, float *tmp);

/* Floats of a part's scratch for spans of up to n rows; 0 for the recurrent form. */
size_t sl_recur_floats(enum sl_form form, const struct sl_recur_shape *s, size_t n);

/* The recurrent form as mixers run it, on kernels; what --numerics exact costs. scratch: n_k + n_v
 * floats. */
void sl_recur_exact(const struct sl_kernels *k, const struct sl_recurrence *r, float *scratch);

/* The fastest form for prompts, measured now, in some milliseconds of this thread. RECURRENT also
 * when there is no memory to measure with. */
enum sl_form sl_recur_pick(const struct sl_kernels *k, const struct sl_recur_shape *s);

#endif
