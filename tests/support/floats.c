/* floats.c: see floats.h. */
#include "tests/support/floats.h"

#include <float.h>
#include <math.h>
#include <string.h>

uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float float_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float uniform(uint64_t *seed)
{
    return (float)(next_random(seed) >> 40) * 0x1p-23F - 1;
}

void fill_uniform(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = uniform(&seed);
}

void fill_special(float *x, size_t n, uint64_t seed, bool not_finite)
{
    static const float special[] = {0.0F,     -0.0F,     0x1p-149F, -0x1p-149F, FLT_MIN,
                                    -FLT_MIN, 0x1p-130F, FLT_MAX,   -FLT_MAX,   1.0F};
    static const float infinite[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < n; i++) {
        uint64_t kind = next_random(&seed) % 16;
        uint64_t which = next_random(&seed);
        if (kind < 2)
            x[i] = special[which % (sizeof special / sizeof special[0])];
        else if (kind == 2)
            x[i] = ldexpf(uniform(&seed), (int)(which % 270) - 145);
        else if (kind == 3 && not_finite)
            x[i] = infinite[which % 3];
        else if (kind < 8)
            x[i] = uniform(&seed) * 20;
        else
            x[i] = uniform(&seed);
    }
}

size_t first_difference(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (float_bits(a[i]) != float_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            return i;
    return n;
}

double ulps(float got, double want)
{
    int e;
    (void)frexp(want, &e);
    int last = e - FLT_MANT_DIG < -149 ? -149 : e - FLT_MANT_DIG;
    return fabs((double)got - want) / ldexp(1, last);
}
