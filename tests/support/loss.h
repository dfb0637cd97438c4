/* loss.h: how far a model's predictions are from those of the same weights in F32: the
 * Kullback-Leibler divergence of the next token's distribution, and how often the likeliest token
 * is the same.
 *
 * Text is read in sequences of 256 tokens, each from the model's beginning. Tokens of a sequence
 * hang together, so that errors of means are those over sequences. Failing ends the program. */
#ifndef SLATE_TESTS_LOSS_H
#define SLATE_TESTS_LOSS_H

#include "engine/models/embedded.h"
#include "slate/model.h"
#include "tests/support/gguf_convert.h"

enum { LOSS_LENGTH = 256, LOSS_SEQUENCES_MAX = 160 };

/* The conversations that `slate probe model` asks the embedded model for, one after the other: the
 * first `skip` tokens are left out. */
void loss_conversations(uint32_t *ret, size_t n, size_t skip);
/* Drawn with equal chances. */
void loss_no_meaning(uint32_t *ret, size_t n, size_t vocab);

/* Of every position, [n][vocab]; n: whole sequences. free(). */
float *loss_log_probabilities(const struct sl_model *m, const uint32_t *tokens, size_t n);
/* Logits in their place, to log probabilities. */
void loss_normalise(float *x, size_t n, size_t vocab);

struct loss {
    size_t n_sequences;
    double kl, kl_error; /* mean, and its standard error */
    double kl_99;        /* the 99th hundredth */
    double same, same_error;
    double kl_of[LOSS_SEQUENCES_MAX], same_of[LOSS_SEQUENCES_MAX]; /* means of sequences */
};

struct loss loss_of(const float *want, const float *got, size_t n, size_t vocab);

/* The mean of a[i] - b[i] over n sequences, and its standard error. */
double loss_difference(const double *a, const double *b, size_t n, double *ret_error);

/* A .safetensors file of RWKV-7 as GGUF in F32, which llama.cpp can read, with blocks of its types
 * where there are any (NULL: none); bytes_done(). */
struct bytes loss_gguf(const unsigned char *file, size_t n,
                       const struct peer_blocks *(*blocks)(const char *file));

struct sl_model *loss_open(const void *file, size_t n, enum sl_dtype weights);

#endif
