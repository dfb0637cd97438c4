/* select.h: where to cut a list that one would have to sort. Private to libslate.
 *
 * Items have a key and a weight. In ascending order of (key, place in the list) the cut lies after
 * the first item at which the sum of the weights reaches a target. The list is not sorted and not
 * changed; the keys are read by their digits, most significant first (a radix select), so that the
 * time is linear whatever the keys are, and the additions have a fixed order: within one value of
 * the leading 11 bits of the key in the order of the list, then over these values upwards, then the
 * same for the next 11 and the last 10 bits among the items at the cut. */
#ifndef SLATE_ENGINE_SELECT_H
#define SLATE_ENGINE_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SL_SELECT_BINS = 2048 };

/* Kept: every item with a smaller key, and the first n_equal of those with this key. */
struct sl_cut {
    uint32_t key;
    size_t n_equal;
};

/* weight NULL: every item weighs 1. Weights are not negative. `bins` has room for SL_SELECT_BINS,
 * `members` for n; both are scratch. False: all together do not reach the target; *ret is not
 * written. */
bool sl_select_cut(const uint32_t *key, const float *weight, size_t n, double target, double *bins,
                   uint32_t *members, struct sl_cut *ret);

/* Keys that ascend with x, and with -x. Not for NaN; -0 and +0 are equal. */
uint32_t sl_select_key_up(float x);
uint32_t sl_select_key_down(float x);

#endif
