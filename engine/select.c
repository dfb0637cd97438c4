/* select.c: see select.h. Four partial sums, for an addition to a sum in memory waits for the last
 * one to the same sum: on 65,536 items that is most of the time. Of few items the sums that none of
 * them adds to are neither cleared nor added: they are zeros. */
#include "engine/select.h"

#include <assert.h>
#include <string.h>

/* The digits of a key, most significant first: 11, 11 and 10 bits. */
static const struct digit {
    unsigned shift;
    uint32_t mask;
} digits[] = {{21, 0x7FF}, {10, 0x7FF}, {0, 0x3FF}};

enum {
    N_DIGITS = sizeof digits / sizeof *digits,
    FEW = 1024 /* items for which to clear and to walk all the sums would cost more */
};

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

/* Of few items: only the sums of values that one has are made. */
static void add_up_few(const struct items *it, struct digit d, struct sl_select_scratch *scratch)
{
    memset(scratch->used, 0, sizeof scratch->used);
    for (size_t j = 0; j < it->n; j++) {
        size_t i = it->members ? it->members[j] : j;
        uint32_t value = it->key[i] >> d.shift & d.mask;
        uint64_t *word = &scratch->used[value / 64], bit = UINT64_C(1) << value % 64;
        if (!(*word & bit))
            memset(scratch->sums[value], 0, sizeof *scratch->sums);
        *word |= bit;
        scratch->sums[value][j % SL_SELECT_WAYS] += weight_of(it, i);
    }
}

static void add_up(const struct items *it, struct digit d, struct sl_select_scratch *scratch)
{
    double(*sums)[SL_SELECT_WAYS] = scratch->sums;
    if (it->n <= FEW) {
        add_up_few(it, d, scratch);
        return;
    }
    memset(sums, 0, (d.mask + 1) * sizeof *sums);
    memset(scratch->used, 0xff, sizeof scratch->used);
    if (it->members) {
        for (size_t j = 0; j < it->n; j++) {
            size_t i = it->members[j];
            sums[it->key[i] >> d.shift & d.mask][j % SL_SELECT_WAYS] += weight_of(it, i);
        }
    } else if (it->weight) {
        for (size_t i = 0; i < it->n; i++)
            sums[it->key[i] >> d.shift & d.mask][i % SL_SELECT_WAYS] += (double)it->weight[i];
    } else {
        for (size_t i = 0; i < it->n; i++)
            sums[it->key[i] >> d.shift & d.mask][i % SL_SELECT_WAYS] += 1.0;
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

/* The value at which the target is reached, *sum being what lies below it. Where rounding lets the
 * values' sums together fall short of a target that the digit before said they reach, the last
 * value that has a weight. UINT32_MAX: none has. */
static uint32_t find_value(struct digit d, const struct sl_select_scratch *scratch, double target,
                           double *sum, bool *ret_reached)
{
    uint32_t last = UINT32_MAX;
    double run = *sum;
    *ret_reached = false;
    for (uint32_t word = 0; word <= d.mask / 64; word++) {
        for (uint64_t bits = scratch->used[word]; bits && !*ret_reached; bits &= bits - 1) {
            uint32_t value = word * 64 + (uint32_t)__builtin_ctzll(bits);
            const double *s = scratch->sums[value];
            double all = (s[0] + s[1]) + (s[2] + s[3]);
            if (all > 0) {
                last = value;
                *sum = run;
            }
            run += all;
            *ret_reached = run >= target;
        }
    }
    return last;
}

bool sl_select_cut(const uint32_t *key, const float *weight, size_t n, double target,
                   struct sl_select_scratch *scratch, uint32_t *members, struct sl_cut *ret)
{
    assert(target > 0);
    struct items it = {.key = key, .weight = weight, .n = n};
    double sum = 0; /* of all items before those that are still looked at */
    uint32_t prefix = 0;
    for (size_t k = 0; k < N_DIGITS; k++) {
        struct digit d = digits[k];
        bool reached;
        add_up(&it, d, scratch);
        uint32_t value = find_value(d, scratch, target, &sum, &reached);
        if (k == 0 && !reached)
            return false;
        assert(value <= d.mask);
        prefix |= value << d.shift;
        it.n = take_members(&it, d, value, members);
        it.members = members;
    }
    size_t n_kept = 0;
    while (n_kept < it.n && sum < target)
        sum += weight_of(&it, it.members[n_kept++]);
    assert(n_kept > 0);
    *ret = (struct sl_cut){.key = prefix, .n_kept = n_kept, .n_equal = it.n};
    return true;
}
