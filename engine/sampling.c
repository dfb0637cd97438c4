/* sampling.c: what may stand in a struct sl_sampling: one row for each number, then the biases. */
#include <assert.h>
#include <math.h>

#include "engine/sampler.h"

static enum sl_code check_bias(const struct sl_logit_bias *b, size_t vocab_size,
                               struct sl_error *err)
{
    if (b->token >= vocab_size)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "logit_bias",
                             "logit_bias names token %u; the model has the ids 0 to %zu",
                             (unsigned)b->token, vocab_size - 1);
    if (!isfinite(b->bias))
        return sl_fail_param(err, SL_E_INVALID_VALUE, "logit_bias",
                             "the logit_bias of token %u is %g; allowed is a finite number",
                             (unsigned)b->token, (double)b->bias);
    return SL_OK;
}

enum sl_code sl_sampling_check(const struct sl_sampling *p, size_t vocab_size, struct sl_error *err)
{
    const struct {
        const char *name;
        double value;
        bool ok;
        const char *allowed;
    } rows[] = {
        {"temperature", p->temperature, p->temperature >= 0 && p->temperature <= 100, "0 to 100"},
        {"top_p", p->top_p, p->top_p >= 0 && p->top_p <= 1, "0 to 1"},
        {"min_p", p->min_p, p->min_p >= 0 && p->min_p <= 1, "0 to 1"},
        {"typical_p", p->typical_p, p->typical_p >= 0 && p->typical_p <= 1, "0 to 1"},
        {"repetition_penalty", p->repetition_penalty,
         p->repetition_penalty > 0 && isfinite(p->repetition_penalty), "above 0, finite"},
        {"presence_penalty", p->presence_penalty, isfinite(p->presence_penalty), "finite"},
        {"frequency_penalty", p->frequency_penalty, isfinite(p->frequency_penalty), "finite"},
        {"penalty_decay", p->penalty_decay, p->penalty_decay >= 0 && p->penalty_decay <= 1,
         "0 to 1"},
        {"penalty_last_n", p->penalty_last_n, p->penalty_last_n <= SL_PENALTY_LAST_N_MAX,
         "0 to 1024"},
        {"logit_bias", (double)p->n_bias, p->n_bias <= SL_LOGIT_BIAS_MAX, "up to 1024 entries"},
    };
    static_assert(SL_PENALTY_LAST_N_MAX == 1024 && SL_LOGIT_BIAS_MAX == 1024, "as the rows say");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].ok)
            return sl_fail_param(err, SL_E_INVALID_VALUE, rows[i].name, "%s is %g; allowed is %s",
                                 rows[i].name, rows[i].value, rows[i].allowed);
    }
    for (size_t i = 0; i < p->n_bias; i++) {
        enum sl_code c = check_bias(&p->bias[i], vocab_size, err);
        if (c != SL_OK)
            return c;
    }
    return SL_OK;
}
