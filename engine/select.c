/* select.c: see select.h. */
#include "engine/select.h"

#include <string.h>

/* The digits of a key, most significant first: 11, 11 and 10 bits. */
static const struct digit {
    unsigned shift;
    uint32_t mask;
} digits[] = {{21, 0x7FF}, {10, 0x7FF}, {0, 0x3FF}};

enum { N_DIGITS = sizeof digits / sizeof *digits };

/* The list, or, with members, those items of it. */
struct items {
    const uint32_t *key;
    const float *weight;
    const uint32_t *members;
    size_t n;
};

static double weight_of(const struct items *it, size_t i)
{
    return it->weight ? (double)it->weight[i] : 1.0;
}

static void fill_bins(const struct items *it, struct digit d, double *bins)
{
    memset(bins, 0, SL_SELECT_BINS * sizeof *bins);
    if (it->members) {
        for (size_t j = 0; j < it->n; j++) {
            size_t i = it->members[j];
            bins[it->key[i] >> d.shift & d.mask] += weight_of(it, i);
        }
    } else if (it->weight) {
        for (size_t i = 0; i < it->n; i++)
            bins[it->key[i] >> d.shift & d.mask] += (double)it->weight[i];
    } else {
        for (size_t i = 0; i < it->n; i++)
            bins[it->key[i] >> d.shift & d.mask] += 1.0;
    }
}

/* Writes the items whose digit has this value to `members` (which may be the list itself). */
static size_t take_members(const struct items *it, struct digit d, uint32_t value,
                           uint32_t *members)
{
    size_t n = 0;
    for (size_t j = 0; j < it->n; j++) {
        uint32_t i = it->members ? it->members[j] : (uint32_t)j;
        members[n] = i;
        n += (it->key[i] >> d.shift & d.mask) == value;
    }
    return n;
}

bool sl_select_cut(const uint32_t *key, const float *weight, size_t n, double target, double *bins,
                   uint32_t *members, struct sl_cut *ret)
{
    struct items it = {.key = key, .weight = weight, .n = n};
    double sum = 0; /* of all items before those that are still looked at */
    uint32_t prefix = 0;
    for (size_t k = 0; k < N_DIGITS; k++) {
        struct digit d = digits[k];
        fill_bins(&it, d, bins);
        uint32_t value = 0, last = UINT32_MAX;
        double last_sum = sum;
        while (value <= d.mask && sum + bins[value] < target) {
            if (bins[value] > 0) {
                last = value;
                last_sum = sum;
            }
            sum += bins[value++];
        }
        if (value > d.mask) {
            if (k == 0 || last == UINT32_MAX)
                return false;
            /* The digits' sums differ in their last bits: the cut is in the last of these. */
            value = last;
            sum = last_sum;
        }
        prefix |= value << d.shift;
        it.n = take_members(&it, d, value, members);
        it.members = members;
    }
    size_t n_equal = 0;
    while (n_equal < it.n && sum < target)
        sum += weight_of(&it, it.members[n_equal++]);
    *ret = (struct sl_cut){.key = prefix, .n_equal = n_equal};
    return true;
}

uint32_t sl_select_key_up(float x)
{
    float y = x + 0.0F; /* -0 becomes +0 */
    uint32_t u;
    memcpy(&u, &y, sizeof u);
    return u >> 31 ? ~u : u | 0x80000000;
}

uint32_t sl_select_key_down(float x)
{
    return ~sl_select_key_up(x);
}
