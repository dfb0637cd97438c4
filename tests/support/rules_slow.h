/* rules_slow.h: BlinkDL's RWKV-4 to 6 and performer-pytorch's model once more, in double precision
 * and as plainly as they can be written: whole sequences at a time, sums over all tokens before
 * instead of a state. Written from the papers and the libraries' descriptions, not from engine/.
 *
 * Logits [n][*ret_vocab] after each of n tokens; free(). `rule` is what the file leaves open, as in
 * sl_model_options. They end the program when they cannot. */
#ifndef SLATE_TESTS_RULES_SLOW_H
#define SLATE_TESTS_RULES_SLOW_H

#include "engine/formats/tensors.h"

double *rwkv_slow(const struct sl_tensors *t, const char *rule, const uint32_t *tokens, size_t n,
                  size_t *ret_vocab);
/* The same after a state-tuned file's beginning: blocks.N.att.time_state [head][value][key], before
 * the first token. RWKV-5 and 6. */
double *rwkv_slow_from(const struct sl_tensors *t, const struct sl_tensors *tuned, const char *rule,
                       const uint32_t *tokens, size_t n, size_t *ret_vocab);
double *performer_slow(const struct sl_tensors *t, const char *rule, const uint32_t *tokens,
                       size_t n, size_t *ret_vocab);

#endif
