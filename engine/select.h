/* select.h: where to cut a list that one would have to sort. Private to libslate.
 *
 * Items have a key and a weight. In descending order of the key, equal keys in the order of the
 * list, the cut lies after the first item at which the sum of the weights reaches a target. The
 * list is not sorted and not changed.
 *
 * What the cut is (sl_select_exactly): the keys are read by their digits, most significant first (a
 * radix select), so that the time is linear whatever the keys are. The additions have a fixed
 * order. For each value of the leading 11 bits of -key, as a whole number that ascends with it:
 * item i is added, in the order of the list, to partial sum i mod 4 of its value, and the value's
 * sum is (s0 + s1) + (s2 + s3); these sums are added upwards until the target is reached. The same
 * then for the next 11 and the last 10 bits over the list of the items that share the value
 * reached, and last over the items with one key, one by one. All in double.
 *
 * How it is found in less time (sl_select_cut): these sums are off from the true ones by no more
 * than a slack, n · 2^-50 of the target, in whatever order they are added. So where the sum before
 * the last item kept lies below the target by more than that, and the sum behind it above, that
 * item is the cut, and additions in another order have found it: a sample of the list says between
 * which keys the cut may lie, what lies above is summed up in one pass, what lies between becomes a
 * shorter list, and so on until few are left. Where rounding could decide, or the sample misled,
 * the long way is gone; so the answer never depends on the short one. */
#ifndef SLATE_ENGINE_SELECT_H
#define SLATE_ENGINE_SELECT_H

#include "engine/kernels/kernels.h"

enum { SL_SELECT_VALUES = 2048, SL_SELECT_WAYS = 4 };

/* Room to select in, for lists of up to n_max items. One thread at a time. */
struct sl_select {
    const struct sl_kernels *k; /* set before each call; it may be another one in the next */
    size_t n_max;
    uint32_t *code, *members;
    float *key, *weight; /* a list that became shorter; a caller may make one here */
    double sums[SL_SELECT_VALUES][SL_SELECT_WAYS];
    uint64_t used[SL_SELECT_VALUES / 64]; /* a bit for each value that an item has */
};

SL_NODISCARD bool sl_select_init(struct sl_select *s, size_t n_max); /* k is the caller's */
void sl_select_done(struct sl_select *s);                            /* zeros are fine */

/* Kept: every item with a larger key, and of those with this key the first n_kept ≥ 1. */
struct sl_cut {
    float key;
    size_t n_kept;
    size_t n_equal; /* how many have this key */
};

/* weight NULL: every item weighs 1. Keys are no NaNs and -0 is 0; weights are not negative,
 * target > 0. `total` is the sum of all weights, roughly. False: all together do not reach the
 * target; *ret is not written. */
bool sl_select_cut(struct sl_select *s, const float *key, const float *weight, size_t n,
                   double total, double target, struct sl_cut *ret);

/* The same cut, the long way. */
bool sl_select_exactly(struct sl_select *s, const float *key, const float *weight, size_t n,
                       double target, struct sl_cut *ret);

/* The k-th largest of some thousand keys, 1 ≤ k ≤ n, by counting. largest: of all. */
float sl_select_nth(struct sl_select *s, const float *key, size_t n, size_t k, float largest);

/* The cut of a list of n_all of which only a part is given: all its items with a key as large as
 * the part's smallest, or larger. False where the part does not tell it: it may end too soon,
 * rounding could decide, or a sample of a long part misled. The part may lie in s->key and
 * s->weight, and is overwritten there. */
bool sl_select_in_part(struct sl_select *s, const float *key, const float *weight, size_t n,
                       size_t n_all, double target, struct sl_cut *ret);

#endif
