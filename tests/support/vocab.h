/* vocab.h: a tiny vocabulary for tests of answers. */
#ifndef TESTS_VOCAB_H
#define TESTS_VOCAB_H

#include "proto/response.h"

/* 0: no bytes; 1 "Hel"; 2 "lo"; 3 " \""; 4, 5 the two halves of U+00E4; 6 "\n"; others: none. */
extern const struct sl_vocab tiny_vocab;

/* Three tokens (1, 4, 5) with two alternatives each; log probabilities are exact binary fractions.
 */
extern const struct sl_token_logprobs tiny_logprobs[3];

#endif
