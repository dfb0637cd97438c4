/* random.h: SplitMix64 (Steele, Lea and Flood 2014): seeded numbers that are the same on every
 * machine, for probes. Not for sampling, and not for secrets. Any thread. */
#ifndef SLATE_BASE_RANDOM_H
#define SLATE_BASE_RANDOM_H

#include <stdint.h>

static inline uint64_t sl_random_next(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Uniform in (0, 1). */
static inline double sl_random_unit(uint64_t *seed)
{
    return ((double)(sl_random_next(seed) >> 11) + 0.5) * 0x1p-53;
}

#endif
