/* sampling.c: what may stand in a struct sl_sampling: one row for each number, then the lists. */
#include <float.h>
#include <math.h>

#include "engine/sampler.h"

enum sl_code sl_sampling_check(const struct sl_sampling *p, size_t vocab_size, struct sl_error *err)
{
    const struct {
        const char *name;
        float value, min, max;
        bool min_excluded;
    } rows[] = {
        {"temperature", p->temperature, 0, 100, false},
        {"top_p", p->top_p, 0, 1, true},
        {"min_p", p->min_p, 0, 1, false},
        {"typical_p", p->typical_p, 0, 1, true},
        {"repetition_penalty", p->repetition_penalty, 0, FLT_MAX, true},
        {"presence_penalty", p->presence_penalty, -FLT_MAX, FLT_MAX, false},
        {"frequency_penalty", p->frequency_penalty, -FLT_MAX, FLT_MAX, false},
        {"penalty_decay", p->penalty_decay, 0, 1, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float v = rows[i].value;
        if (!(v >= rows[i].min && v <= rows[i].max) || (rows[i].min_excluded && v <= rows[i].min))
            return sl_fail_param(err, SL_E_INVALID_VALUE, rows[i].name,
                                 "%s is %g; allowed is %s %g, at most %g", rows[i].name, (double)v,
                                 rows[i].min_excluded ? "more than" : "at least",
                                 (double)rows[i].min, (double)rows[i].max);
    }
    if (p->penalty_last_n > SL_PENALTY_LAST_N_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "penalty_last_n",
                             "penalty_last_n is %u; at most %d is allowed",
                             (unsigned)p->penalty_last_n, (int)SL_PENALTY_LAST_N_MAX);
    if (p->n_bias > SL_LOGIT_BIAS_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "logit_bias",
                             "logit_bias has %zu entries; at most %d are allowed", p->n_bias,
                             (int)SL_LOGIT_BIAS_MAX);
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token >= vocab_size)
            return sl_fail_param(err, SL_E_INVALID_VALUE, "logit_bias",
                                 "logit_bias names token %u; the model has the ids 0 to %zu",
                                 (unsigned)p->bias[i].token, vocab_size - 1);
        if (!isfinite(p->bias[i].bias))
            return sl_fail_param(err, SL_E_INVALID_VALUE, "logit_bias",
                                 "the bias of token %u is not a finite number",
                                 (unsigned)p->bias[i].token);
    }
    return SL_OK;
}
