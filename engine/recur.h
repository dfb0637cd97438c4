/* recur.h: a rule's recurrence as one of its forms (forms.h). Private to libslate.
 *
 * A mixer whose recurrence has more than one form says so when it loads (sl_load_recurrence()); in
 * each (span, head) it then hands its rows to sl_recur_run(), which takes the form that is due: the
 * pass's, or, under --numerics exact and for few rows, the recurrent one. */
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

/* Where a row's query, key, decay (1 or n_k numbers) and β go; g and beta are NULL where the rule
 * has none. g takes the decay itself, but its ln where sl_recur_has_form(). */
struct sl_recur_row {
    float *q, *k, *g, *beta;
};
typedef void sl_recur_row_fn(const void *arg, size_t t, size_t head, const struct sl_recur_row *x);

/* Fills in r's rows (row() for each t of the span, in order) and runs them; then r->den holds the
 * denominators, where there is a z. The caller has set n_k, n_v, decay, v, o and s, ld_v and ld_o,
 * for the span's first row, z where there is one; delta: whether there is a β. tmp:
 * sl_recur_floats(), which a part has besides what the load asked for. */
void sl_recur_run(const struct sl_pass *p, const struct sl_span *span, struct sl_recurrence *r,
                  bool delta, size_t head, sl_recur_row_fn *row, const void *arg, float *tmp);

/* Floats of a part's scratch for spans of up to n rows. */
size_t sl_recur_floats(enum sl_form form, const struct sl_recur_shape *s, size_t n);

/* The recurrent form as mixers run it, on kernels, of the numbers that forms take (g is the ln of
 * the decay); what --numerics exact costs. scratch: as many floats as r has of g. */
void sl_recur_exact(const struct sl_kernels *k, const struct sl_recurrence *r, float *scratch);

/* The fastest form for prompts, measured now, in some milliseconds of this thread. RECURRENT also
 * when there is no memory to measure with. */
enum sl_form sl_recur_pick(const struct sl_kernels *k, const struct sl_recur_shape *s);

#endif
