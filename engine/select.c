/* select.c: see select.h. Four partial sums, for an addition to a sum in memory waits for the last
 * one to the same sum: on 65,536 items that is most of the time. Of few items the sums that none of
 * them adds to are neither cleared nor added: they are zeros. */
#include "engine/select.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/convert.h"

/* The digits of a code, most significant first: 11, 11 and 10 bits. */
static const struct digit {
    unsigned shift;
    uint32_t mask;
} digits[] = {{21, 0x7FF}, {10, 0x7FF}, {0, 0x3FF}};

enum {
    N_DIGITS = sizeof digits / sizeof *digits,
    FEW = 4096,      /* items for which to clear and to walk all the sums would cost more */
    SAMPLE = 1024,   /* items that are asked where the cut may lie */
    SAMPLE_RUN = 16, /* of them are neighbours in the list */
    ROUNDS = 4,      /* a list that has not become short by then will not */
    BISECTIONS = 10, /* of the keys as whole numbers: of ten octaves to a hundredth of one */
    HALVINGS = 24    /* after which keys are equal, or nearly so */
};

/* A guess is off by so many times what the sample's spread lets expect. */
static const double SPREADS = 4;

/* The list, or, with members, those items of it. */
struct items {
    const uint32_t *code;
    const float *weight;
    const uint32_t *members;
    size_t n;
};

/* A cut, and the sums on both sides of the last item kept. */
struct found {
    struct sl_cut cut;
    double before, behind;
};

bool sl_select_init(struct sl_select *s, size_t n_max)
{
    s->n_max = n_max;
    s->code = sl_malloc(n_max * sizeof *s->code);
    s->members = sl_malloc(n_max * sizeof *s->members);
    s->key = sl_malloc(n_max * sizeof *s->key);
    s->weight = sl_malloc(n_max * sizeof *s->weight);
    return s->code && s->members && s->key && s->weight;
}

void sl_select_done(struct sl_select *s)
{
    sl_free(s->code);
    sl_free(s->members);
    sl_free(s->key);
    sl_free(s->weight);
}

/* --- keys as whole numbers ----------------------------------------------------------------------
 */

/* Ascends with x; of +0, for -0 is 0. */
static inline uint32_t code_up(float x)
{
    uint32_t u = sl_f32_bits(x + 0.0F);
    return u ^ (0x80000000 | (0 - (u >> 31)));
}

static inline float from_code_up(uint32_t code)
{
    return sl_f32_from_bits(code & 0x80000000 ? code ^ 0x80000000 : ~code);
}

/* --- by digits ----------------------------------------------------------------------------------
 */

static double weight_of(const struct items *it, size_t i)
{
    return it->weight ? (double)it->weight[i] : 1.0;
}

/* Of few items: only the sums of values that one has are made. */
static void add_up_few(const struct items *it, struct digit d, struct sl_select *s)
{
    memset(s->used, 0, sizeof s->used);
    for (size_t j = 0; j < it->n; j++) {
        size_t i = it->members ? it->members[j] : j;
        uint32_t value = it->code[i] >> d.shift & d.mask;
        uint64_t *word = &s->used[value / 64], bit = UINT64_C(1) << value % 64;
        if (!(*word & bit))
            memset(s->sums[value], 0, sizeof *s->sums);
        *word |= bit;
        s->sums[value][j % SL_SELECT_WAYS] += weight_of(it, i);
    }
}

static void add_up(const struct items *it, struct digit d, struct sl_select *s)
{
    double(*sums)[SL_SELECT_WAYS] = s->sums;
    if (it->n <= FEW) {
        add_up_few(it, d, s);
        return;
    }
    memset(sums, 0, (d.mask + 1) * sizeof *sums);
    memset(s->used, 0xff, sizeof s->used);
    if (it->members) {
        for (size_t j = 0; j < it->n; j++) {
            size_t i = it->members[j];
            sums[it->code[i] >> d.shift & d.mask][j % SL_SELECT_WAYS] += weight_of(it, i);
        }
    } else if (it->weight) {
        for (size_t i = 0; i < it->n; i++)
            sums[it->code[i] >> d.shift & d.mask][i % SL_SELECT_WAYS] += (double)it->weight[i];
    } else {
        for (size_t i = 0; i < it->n; i++)
            sums[it->code[i] >> d.shift & d.mask][i % SL_SELECT_WAYS] += 1.0;
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
        n += (it->code[i] >> d.shift & d.mask) == value;
    }
    return n;
}

/* The value at which the target is reached, *sum being what lies below it. Where rounding lets the
 * values' sums together fall short of a target that the digit before said they reach, the last
 * value that has a weight. UINT32_MAX: none has. */
static uint32_t find_value(struct digit d, const struct sl_select *s, double target, double *sum,
                           bool *ret_reached)
{
    uint32_t last = UINT32_MAX;
    double run = *sum;
    *ret_reached = false;
    for (uint32_t word = 0; word <= d.mask / 64; word++) {
        for (uint64_t bits = s->used[word]; bits && !*ret_reached; bits &= bits - 1) {
            uint32_t value = word * 64 + (uint32_t)__builtin_ctzll(bits);
            const double *sums = s->sums[value];
            double all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
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

/* `before` is the sum of what lies above the list. */
static bool find(struct sl_select *s, const float *key, const float *weight, size_t n,
                 double before, double target, struct found *ret)
{
    assert(target > 0 && n <= s->n_max);
    for (size_t i = 0; i < n; i++)
        s->code[i] = code_up(0.0F - key[i]);
    struct items it = {.code = s->code, .weight = weight, .n = n};
    double sum = before; /* of all items before those that are still looked at */
    for (size_t k = 0; k < N_DIGITS; k++) {
        struct digit d = digits[k];
        bool reached;
        add_up(&it, d, s);
        uint32_t value = find_value(d, s, target, &sum, &reached);
        if (k == 0 && !reached)
            return false;
        assert(value <= d.mask);
        it.n = take_members(&it, d, value, s->members);
        it.members = s->members;
    }
    size_t n_kept = 0;
    ret->before = sum;
    while (n_kept < it.n && sum < target) {
        ret->before = sum;
        sum += weight_of(&it, it.members[n_kept++]);
    }
    assert(n_kept > 0);
    ret->behind = sum;
    ret->cut = (struct sl_cut){.key = key[it.members[0]], .n_kept = n_kept, .n_equal = it.n};
    return true;
}

bool sl_select_exactly(struct sl_select *s, const float *key, const float *weight, size_t n,
                       double target, struct sl_cut *ret)
{
    struct found f;
    if (!find(s, key, weight, n, 0, target, &f))
        return false;
    *ret = f.cut;
    return true;
}

/* --- in less time -------------------------------------------------------------------------------
 */

/* The cut, where no order of additions of the list's n_all items could give another one. */
static bool is_certain(const struct found *f, const float *weight, size_t n_all, double target)
{
    double slack = weight ? (double)n_all * 0x1p-50 * target : 0; /* counts are exact */
    return f->before < target - slack && f->behind >= target + slack;
}

/* Σ weights of the keys ≥ least. */
static double sum_from(const struct sl_select *s, const float *key, const float *weight, size_t n,
                       float least)
{
    size_t none;
    return s->k->part(NULL, NULL, &none, key, weight, n, least, least);
}

/* About where the keys' sum from the largest on is `sum`, between these codes of -key. */
static uint32_t code_at(const struct sl_select *s, const float *key, const float *weight, size_t n,
                        double sum, uint32_t first, uint32_t last)
{
    for (int i = 0; i < BISECTIONS && first < last; i++) {
        uint32_t half = first + (last - first) / 2;
        if (sum_from(s, key, weight, n, -from_code_up(half)) > sum)
            last = half;
        else
            first = half + 1;
    }
    return last;
}

/* The least of the keys ≥ low; there is one. */
static float least_from(const float *key, size_t n, float low)
{
    float least = INFINITY;
    for (size_t i = 0; i < n; i++) {
        float x = key[i] >= low ? key[i] : INFINITY;
        least = x < least ? x : least;
    }
    return least;
}

float sl_select_nth(struct sl_select *s, const float *key, size_t n, size_t k, float largest)
{
    float low = largest, high = largest, apart = 1;
    double there = sum_from(s, key, NULL, n, low);
    assert(k > 0 && k <= n);
    for (; there < (double)k; apart *= 2) {
        high = low;
        low = largest - apart;
        there = sum_from(s, key, NULL, n, low);
    }
    for (int i = 0; i < HALVINGS && there > (double)k; i++) {
        float half = low + (high - low) / 2;
        double more = sum_from(s, key, NULL, n, half);
        if (more >= (double)k) {
            low = half;
            there = more;
        } else {
            high = half;
        }
    }
    if (there <= (double)k)
        return least_from(key, n, low);
    struct sl_cut cut;
    bool reached = sl_select_exactly(s, key, NULL, n, (double)k, &cut); /* of many that are equal */
    assert(reached);
    return reached ? cut.key : low;
}

/* Two keys between which a sample says that the cut lies. It is asked for the sum of what is
 * dropped, for that has no heavy items of which a sample knows nothing. */
static void guess(const struct sl_select *s, const float *key, const float *weight, size_t n,
                  double dropped, float *ret_low, float *ret_high)
{
    float k[SAMPLE], w[SAMPLE];
    for (size_t i = 0; i < SAMPLE; i += SAMPLE_RUN) {
        size_t from = i * n / SAMPLE;
        memcpy(k + i, key + from, SAMPLE_RUN * sizeof *k);
        if (weight)
            memcpy(w + i, weight + from, SAMPLE_RUN * sizeof *w);
        for (size_t j = 0; !weight && j < SAMPLE_RUN; j++)
            w[i + j] = 1;
    }
    uint32_t first = UINT32_MAX, last = 0;
    for (size_t i = 0; i < SAMPLE; i++) {
        uint32_t code = code_up(0.0F - k[i]);
        first = code < first ? code : first;
        last = code > last ? code : last;
    }
    double all = sum_from(s, k, w, SAMPLE, -INFINITY), squares = 0;
    double kept = all - dropped * SAMPLE / (double)n;
    uint32_t middle = code_at(s, k, w, SAMPLE, kept, first, last);
    for (size_t i = 0; i < SAMPLE; i++)
        squares += code_up(0.0F - k[i]) >= middle ? (double)w[i] * (double)w[i] : 0;
    double more = kept + SPREADS * sqrt(squares), less = kept - SPREADS * sqrt(squares);
    *ret_low = more < all ? -from_code_up(code_at(s, k, w, SAMPLE, more, middle, last)) : -INFINITY;
    *ret_high = less > 0 ? -from_code_up(code_at(s, k, w, SAMPLE, less, first, middle)) : INFINITY;
}

/* total 0: not known. */
static bool find_soon(struct sl_select *s, const float *key, const float *weight, size_t n_all,
                      double total, double target, struct found *ret)
{
    const bool same = weight == key; /* then one list is enough */
    double before = 0;
    size_t n = n_all;
    for (int round = 0; n > FEW; round++) {
        float low, high;
        size_t n_part;
        if (round == ROUNDS)
            return false;
        if (round > 0 || total <= 0)
            total = before + sum_from(s, key, weight, n, -INFINITY);
        if (total <= target)
            return false;
        guess(s, key, weight, n, total - target, &low, &high);
        before += s->k->part(s->key, weight && !same ? s->weight : NULL, &n_part, key, weight, n,
                             low, high);
        if (before >= target)
            return false;
        n = n_part;
        key = s->key;
        weight = same ? s->key : weight ? s->weight : NULL;
    }
    return find(s, key, weight, n, before, target, ret);
}

bool sl_select_cut(struct sl_select *s, const float *key, const float *weight, size_t n,
                   double total, double target, struct sl_cut *ret)
{
    struct found f;
    if (n > FEW && find_soon(s, key, weight, n, total, target, &f) &&
        is_certain(&f, weight, n, target)) {
        *ret = f.cut;
        return true;
    }
    return sl_select_exactly(s, key, weight, n, target, ret);
}

bool sl_select_in_part(struct sl_select *s, const float *key, const float *weight, size_t n,
                       size_t n_all, double target, struct sl_cut *ret)
{
    struct found f;
    if (!find_soon(s, key, weight, n, 0, target, &f) || !is_certain(&f, weight, n_all, target))
        return false;
    *ret = f.cut;
    return true;
}
