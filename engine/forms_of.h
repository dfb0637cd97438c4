/* forms_of.h: what forms.h declares, of numbers of one kind: sl_real, with names by
 * SL_FORMS_NAME(). Included by forms.h (float) and, for double, by the tests. No guard: once for
 * each kind. */

/* Rows of token t are t·ld elements behind the start. */
struct SL_FORMS_NAME(sl_recurrence) {
    size_t n, n_k, n_v;
    const sl_real *q, *k, *v;
    size_t ld_q, ld_k, ld_v;
    sl_real *o; /* [n] rows of n_v */
    size_t ld_o;
    sl_real *s; /* [n_k][n_v], in place */
    sl_real *z; /* [n_k], in place: the sum of keys, decayed as s is; NULL: none. Additive rules. */
    sl_real *den; /* with z, [n]: q_t·z_t, what o_t is to be divided by */
    enum sl_decay decay;
    const sl_real *g; /* SCALAR: one a token; CHANNEL: n_k a token. ≤ 0. */
    size_t ld_g;
    const sl_real *beta; /* one a token; NULL: an additive rule. Not with CHANNEL. */
    size_t ld_beta;
};

/* Elements of scratch, aligned as doubles are, that a form wants for n tokens. */
size_t SL_FORMS_NAME(sl_form_scratch)(enum sl_form form, size_t n, size_t n_k, size_t n_v);

/* o and s, with one of the forms. q, k, v, o and s do not overlap. */
void SL_FORMS_NAME(sl_form_run)(enum sl_form form, const struct SL_FORMS_NAME(sl_recurrence) * r,
                                sl_real *scratch);
