/* quants.h: Q8, Q5 and Q4 matrices for tests: their layout, read from the words of
 * engine/kernels/quant.h by plain code; nothing of its code is used. What is returned is for
 * sl_free(), and exactly as large as the contract says. */
#ifndef SLATE_TESTS_QUANTS_H
#define SLATE_TESTS_QUANTS_H

#include "engine/kernels/kernels.h"

enum { QUANT_TYPES = 4, QUANT_PACKED = 3 }; /* the last comes from files only */
extern const enum sl_dtype quant_types[QUANT_TYPES];

float *quant_floats(size_t n);

extern const int quant_levels[16]; /* of Q4 codes, from the zero */

struct quant_place {
    size_t scale, code, high;
    unsigned shift, bit; /* of a Q4 code in its byte; of a Q5 code's highest in its own */
};

/* Of the weight of output o and input k. */
struct quant_place quant_place_of(enum sl_dtype type, size_t n_in, size_t o, size_t k);
double quant_weight_at(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t o,
                       size_t k);

/* Panels of random blocks: codes of any kind (-128 too), scales of a size that weights have. *ret
 * (may be NULL): the blocks; of whole groups only, what lies beyond n_in is a code like others. */
unsigned char *quant_from_blocks(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed,
                                 unsigned char **ret);

/* w, packed; of Q4_0, which comes from files only, any codes. */
unsigned char *quant_pack(enum sl_dtype type, const float *w, size_t n_out, size_t n_in);

/* Of Q4_K and Q6_K: panels of random blocks, of which all rows of 16 outputs are there; *ret (may
 * be NULL): the blocks. n_in: whole ones. */
unsigned char *quant_from_k_blocks(enum sl_dtype type, size_t n_out, size_t n_in, uint64_t seed,
                                   unsigned char **ret);

/* Rows brought to 8 bits by the scalar way, *ret_ld groups apart, with a gap that holds nothing of
 * use. */
struct sl_group *quant_inputs(const float *x, size_t rows, size_t n_in, size_t *ret_ld);

/* Panels [begin, end) of a product by every table, against the scalar one, bit for bit; the rest
 * must stay as it was. Fails the test. */
void quant_check(const unsigned char *panels, enum sl_dtype type, const struct sl_group *x,
                 size_t ldx, size_t rows, size_t n_in, size_t n_out, size_t begin, size_t end);

/* Numbers of rows that take every way that there is, but for blocks of blocks; ends with 0. */
extern const size_t quant_rows[];

/* So many rows (a list as quant_rows) of inputs that are `values` 0: ordinary, 1: with all kinds of
 * numbers, 2: with what is no number; panels from the first to the last, and those between. */
void quant_check_rows(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t n_out,
                      const size_t *rows, int values);

/* Sums of the scalar product against those in double precision of the weights that weight_at reads
 * (outputs beyond n_out: zero). n_out: up to 32. */
void quant_check_sums(const unsigned char *panels, enum sl_dtype type, size_t n_in, size_t n_out,
                      double (*weight_at)(const unsigned char *panels, enum sl_dtype type,
                                          size_t n_in, size_t o, size_t k));

/* By every table, of 16 outputs: a row that is no number makes its own sums NaN and nobody else's.
 */
void quant_check_bad_row(const unsigned char *panels, enum sl_dtype type, size_t n_in);

/* By every table: no rows and no panels write nothing; a sum over nothing is zero. */
void quant_check_empty(enum sl_dtype type, size_t n_in);

#endif
