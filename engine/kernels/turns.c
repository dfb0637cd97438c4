/* turns.c: sines and cosines of a position times a frequency, as kernels.h promises them.
 *
 * An angle is a fraction of a turn in 64 bits, so that position · frequency is one multiplication
 * that wraps around as angles do: nothing is lost at any position, and every position costs the
 * same (a C library reduces large arguments on other paths than small ones). What is left is a
 * point of one eighth of a turn on either side of a quarter's beginning, for which short
 * polynomials do, and which quarter it was. Doubles, plain operations in a fixed order: the same
 * bits everywhere. */
#include "engine/kernels/kernels.h"

#include <assert.h>
#include <math.h>

#define QUARTER_BITS 62
#define STEP 3.4061215800304556e-19 /* 2π / 2^64 */

uint64_t sl_turn(double turns)
{
    assert(turns >= 0 && turns < 1);
    /* In two steps: a double has 53 bits, and 2^64 itself does not fit. */
    double high = floor(ldexp(turns, 32));
    double low = floor(ldexp(ldexp(turns, 32) - high, 32));
    return ((uint64_t)high << 32) + (uint64_t)low;
}

/* Taylor's series, |x| ≤ π/4: the first term left out is below 2e-14 of the sine, 4e-13 of the
 * cosine. */
static double sine(double x)
{
    double z = x * x;
    double p = 1.0 / 6227020800;
    p = p * z - 1.0 / 39916800;
    p = p * z + 1.0 / 362880;
    p = p * z - 1.0 / 5040;
    p = p * z + 1.0 / 120;
    p = p * z - 1.0 / 6;
    return x + x * z * p;
}

static double cosine(double x)
{
    double z = x * x;
    double p = 1.0 / 479001600;
    p = p * z - 1.0 / 3628800;
    p = p * z + 1.0 / 40320;
    p = p * z - 1.0 / 720;
    p = p * z + 1.0 / 24;
    p = p * z - 0.5;
    return 1 + z * p;
}

void sl_turns(float *ret_cos, float *ret_sin, const uint64_t *turn, uint64_t position, size_t n)
{
    /* By index: a branch would make some positions dearer than others. */
    static const double sign_cos[] = {1, -1, -1, 1}, sign_sin[] = {1, 1, -1, -1};
    for (size_t i = 0; i < n; i++) {
        uint64_t angle = turn[i] * position;
        uint64_t quarter = (angle + (UINT64_C(1) << (QUARTER_BITS - 1))) >> QUARTER_BITS; /* 0…3 */
        double x = (double)(int64_t)(angle - (quarter << QUARTER_BITS)) * STEP;
        const double point[] = {cosine(x), sine(x)};
        ret_cos[i] = (float)(sign_cos[quarter] * point[quarter & 1]);
        ret_sin[i] = (float)(sign_sin[quarter] * point[~quarter & 1]);
    }
}
