/* fla_slow.h: the models of flash-linear-attention once more, in double precision and as plainly as
 * they can be written: whole sequences at a time, layer by layer, every sum a loop, nothing kept
 * between calls. Written from the papers' equations and the library's options, not from engine/. */
#ifndef SLATE_TESTS_FLA_SLOW_H
#define SLATE_TESTS_FLA_SLOW_H

#include "engine/formats/tensors.h"

/* Logits [n][*ret_vocab] after each of n tokens, of the model that these tensors with their
 * settings are; free(). Ends the program when it cannot. */
double *fla_slow(const struct sl_tensors *t, const uint32_t *tokens, size_t n, size_t *ret_vocab);

#endif
