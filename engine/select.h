/* select.h: where to cut a list that one would have to sort. Private to libslate.
 *
 * Items have a key and a weight. In ascending order of (key, place in the list) the cut lies after
 * the first item at which the sum of the weights reaches a target. The list is not sorted and not
 * changed; the keys are read by their digits, most significant first (a radix select), so that the
 * time is linear whatever the keys are.
 *
 * The additions have a fixed order. For each value of the key's leading 11 bits: item i is added,
 * in the order of the list, to partial sum i mod 4 of its value, and the value's sum is (s0 + s1) +
 * (s2 + s3); these sums are added upwards until the target is reached. The same then for the next
 * 11 and the last 10 bits over the list of the items that share the value reached, and last over
 * the items with one key, one by one. All in double. */
#ifndef SLATE_ENGINE_SELECT_H
#define SLATE_ENGINE_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SL_SELECT_VALUES = 2048, SL_SELECT_WAYS = 4 };

struct sl_select_scratch {
    double sums[SL_SELECT_VALUES][SL_SELECT_WAYS];
    uint64_t used[SL_SELECT_VALUES / 64]; /* a bit for each value that an item has */
};

/* Kept: every item with a smaller key, and of those with this key the first n_kept ≥ 1. */
struct sl_cut {
    uint32_t key;
    size_t n_kept;
    size_t n_equal; /* how many have this key: members[0 … n_equal) are their places */
};

/* weight NULL: every item weighs 1. Weights are not negative, target > 0. `members` has room for
 * n. False: all together do not reach the target; *ret is not written. */
bool sl_select_cut(const uint32_t *key, const float *weight, size_t n, double target,
                   struct sl_select_scratch *scratch, uint32_t *members, struct sl_cut *ret);

/* Keys that ascend with x, and with -x. Not for NaN; -0 and +0 are equal. */
static inline uint32_t sl_select_key_up(float x)
{
    union {
        float f;
        uint32_t u;
    } y = {.f = x + 0.0F}; /* -0 becomes +0 */
    return y.u ^ (0x80000000 | (0 - (y.u >> 31)));
}

static inline uint32_t sl_select_key_down(float x)
{
    return ~sl_select_key_up(x);
}

#endif
