/* floats.h: random and special floats for tests of arithmetic, and their comparison by bits. */
#ifndef SLATE_TESTS_FLOATS_H
#define SLATE_TESTS_FLOATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* SplitMix64: the same numbers on every machine. */
static inline uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint32_t float_bits(float f);
float float_from_bits(uint32_t u);

/* Uniform in [-1, 1). */
void fill_uniform(float *x, size_t n, uint64_t seed);

/* Mostly uniform in [-1, 1), with zeros of both signs, denormals, the smallest and largest numbers
 * and others of any size in between; infinities and NaNs where asked for. */
void fill_special(float *x, size_t n, uint64_t seed, bool not_finite);

/* The first i where a[i] and b[i] have not the same bits and are not both NaNs; n where there is
 * none. */
size_t first_difference(const float *a, const float *b, size_t n);

/* |got - want| in units of the last place of a float of want's size. */
double ulps(float got, double want);

#endif
