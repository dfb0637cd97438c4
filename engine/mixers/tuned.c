/* tuned.c: see tuned.h. */
#include "engine/mixers/tuned.h"

void sl_tuned_load(struct sl_load *l, struct sl_tuned *t, size_t n_heads, size_t n, size_t i)
{
    t->n_heads = n_heads, t->n = n;
    if (sl_load_has(l, "blocks.0.att.time_state"))
        sl_load_grids(l, &t->v, n_heads, n, n, "blocks.%zu.att.time_state", i);
}

void sl_tuned_refuse(struct sl_load *l)
{
    if (sl_load_has(l, "blocks.0.att.time_state"))
        sl_load_fail(l, SL_E_MODEL_UNSUPPORTED,
                     "is a file of web-rwkv's converter with a tuned state in it "
                     "(blocks.0.att.time_state), whose axes may be exchanged or not; take the .pth "
                     "that it was made from");
}

void sl_tuned_init(const struct sl_tuned *t, float *state)
{
    size_t n = t->n;
    for (size_t h = 0; t->v && h < t->n_heads; h++)
        for (size_t v = 0; v < n; v++)
            for (size_t k = 0; k < n; k++)
                state[(h * n + k) * n + v] = t->v[(h * n + v) * n + k];
}
