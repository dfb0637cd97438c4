/* candidates.c: see candidates.h. */
#include "engine/candidates.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"

enum { BLOCK = 256 }; /* tokens of one partial sum */
_Static_assert(BLOCK % SL_TOPS == 0, "a block's largest logit is the largest of some tops");

/* A weight is off from the true exponential by less than this share of it, and so is a logit that
 * was computed from one, by as much. (A margin: l - m is rounded by up to 2^-18, exp by less.) */
static const double WEIGHT_ERROR = 0x1p-14;

static size_t blocks_of(size_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

bool sl_candidates_init(struct sl_candidates *c, size_t vocab_size)
{
    c->vocab_size = vocab_size;
    c->tops = sl_malloc(sl_tops(vocab_size) * sizeof *c->tops);
    c->e = sl_malloc(vocab_size * sizeof *c->e);
    c->order = sl_malloc(vocab_size * sizeof *c->order);
    c->listed = sl_malloc(vocab_size * sizeof *c->listed);
    c->ids = sl_malloc(vocab_size * sizeof *c->ids);
    c->block = sl_malloc(blocks_of(vocab_size) * sizeof *c->block);
    return sl_select_init(&c->select, vocab_size) && c->tops && c->e && c->order && c->listed &&
           c->ids && c->block;
}

void sl_candidates_done(struct sl_candidates *c)
{
    sl_free(c->tops);
    sl_free(c->e);
    sl_free(c->order);
    sl_free(c->listed);
    sl_free(c->ids);
    sl_free(c->block);
    sl_select_done(&c->select);
}

/* --- the largest --------------------------------------------------------------------------------
 */

static float find_tops(struct sl_candidates *c)
{
    c->k->tops(c->top, c->l, c->n);
    return c->k->max(c->top, sl_tops(c->n));
}

float sl_candidates_begin(struct sl_candidates *c, const struct sl_kernels *k, float *l, float *top)
{
    c->k = c->select.k = k;
    c->l = l;
    c->n = c->vocab_size;
    c->top = top ? top : c->tops;
    c->is_list = c->has_e = c->dropped = c->peak_dropped = false;
    return c->m = top ? k->max(top, sl_tops(c->n)) : find_tops(c);
}

void sl_candidates_changed(struct sl_candidates *c, size_t token, float was)
{
    size_t b = token / SL_TOPS;
    if (c->l[token] > c->top[b])
        c->top[b] = c->l[token];
    else if (was == c->top[b])
        c->k->tops(c->top + b, c->l + b * SL_TOPS, smaller(c->n - b * SL_TOPS, SL_TOPS));
}

void sl_candidates_settle(struct sl_candidates *c)
{
    c->has_e = false;
    c->m = c->k->max(c->top, sl_tops(c->n));
}

uint32_t sl_candidates_first(const struct sl_candidates *c)
{
    size_t i = 0;
    while (c->top[i] < c->m)
        i++;
    i *= SL_TOPS;
    while (c->l[i] != c->m)
        i++;
    return (uint32_t)i;
}

void sl_candidates_largest(const struct sl_candidates *c, size_t n, struct sl_logprob *top)
{
    size_t have = 0;
    for (size_t b = 0; n > 0 && b < c->n; b += SL_TOPS) {
        if (have == n && c->top[b / SL_TOPS] <= top[n - 1].logprob)
            continue;
        for (size_t i = b, end = smaller(b + SL_TOPS, c->n); i < end; i++) {
            if (have == n && c->l[i] <= top[n - 1].logprob)
                continue;
            size_t at = have < n ? have++ : n - 1;
            for (; at > 0 && top[at - 1].logprob < c->l[i]; at--)
                top[at] = top[at - 1];
            top[at] = (struct sl_logprob){.token = (uint32_t)i, .logprob = c->l[i]};
        }
    }
}

/* --- weights ------------------------------------------------------------------------------------
 */

/* No token of the block has a larger logit. */
static float top_of(const struct sl_candidates *c, size_t block)
{
    if (c->is_list)
        return INFINITY;
    const float *top = c->top + block * (BLOCK / SL_TOPS);
    size_t n = smaller(sl_tops(c->n) - block * (BLOCK / SL_TOPS), BLOCK / SL_TOPS);
    float m = top[0];
    for (size_t i = 1; i < n; i++)
        m = top[i] > m ? top[i] : m;
    return m;
}

/* A logit that is no larger than x, by what rounding may have done to numbers of this size. */
static float below(double x, double size)
{
    double least = x - size * WEIGHT_ERROR;
    return least < -(double)FLT_MAX ? -INFINITY : (float)least;
}

/* All that weigh at least so much have at least this logit. */
static float least_logit(const struct sl_candidates *c, double weight)
{
    double m = (double)c->m, t = log(weight);
    return below(m + t, 1 + fabs(m) + fabs(t));
}

static double add_blocks(const struct sl_candidates *c)
{
    double sum = 0;
    for (size_t b = 0; b < blocks_of(c->n); b++)
        sum += c->block[b];
    return sum;
}

static size_t block_size(const struct sl_candidates *c, size_t block)
{
    return smaller(c->n - block * BLOCK, BLOCK);
}

/* e and its blocks' sums; of blocks that have no logit ≥ least a sum of 0, and e may stay anything.
 */
static void weigh(struct sl_candidates *c, float least)
{
    for (size_t b = 0; b < blocks_of(c->n); b++) {
        float *e = c->e + b * BLOCK, top = top_of(c, b);
        c->block[b] = 0;
        if (top >= least)
            c->block[b] = (double)c->k->weigh(e, c->l + b * BLOCK, c->m, 1, block_size(c, b));
    }
    c->has_e = true;
}

static void need_weights(struct sl_candidates *c)
{
    if (!c->has_e)
        weigh(c, -INFINITY);
}

double sl_candidates_sum(struct sl_candidates *c)
{
    need_weights(c);
    return add_blocks(c);
}

/* Drops what has a key < least, where a logit < least_l says that, too. */
static void drop_below(struct sl_candidates *c, const float *key, float least, float least_l)
{
    for (size_t b = 0; b < blocks_of(c->n); b++) {
        if (c->block[b] == 0)
            continue;
        float *e = c->e + b * BLOCK;
        if (top_of(c, b) < least_l)
            c->block[b] = 0;
        else
            c->block[b] = (double)c->k->drop(e, key + b * BLOCK, least, block_size(c, b));
    }
    c->dropped = true;
}

/* Of the tokens with the cut's key only the first n_kept stay. */
static void drop_equals(struct sl_candidates *c, const float *key, const struct sl_cut *cut)
{
    size_t seen = 0;
    for (size_t b = 0; b < blocks_of(c->n) && seen < cut->n_equal; b++) {
        if (c->block[b] == 0)
            continue;
        size_t before = seen;
        for (size_t i = b * BLOCK, end = i + block_size(c, b); i < end; i++)
            if (key[i] == cut->key && seen++ >= cut->n_kept)
                c->e[i] = 0;
        if (seen > before)
            c->block[b] = (double)c->k->sum16(c->e + b * BLOCK, block_size(c, b));
    }
}

/* --- filters ------------------------------------------------------------------------------------
 */

enum {
    TOP_K_PRUNE = 4, /* a list is made for top_k where k is this many times less than the tops */
    MANY = 4096      /* tokens for which to look at the tops first */
};

static void drop_logits(struct sl_candidates *c, const struct sl_cut *cut)
{
    float *l = c->l;
    for (size_t i = 0; i < c->n; i++)
        l[i] = l[i] < cut->key ? -INFINITY : l[i];
    for (size_t i = 0, seen = 0; cut->n_kept < cut->n_equal && seen < cut->n_equal; i++)
        if (l[i] == cut->key && seen++ >= cut->n_kept)
            l[i] = -INFINITY;
}

/* Makes the row, of which nothing was dropped yet, a list of its tokens with l ≥ least; there is
 * one. Its logits are far from the processor: those that the tops name are asked for first. */
static void make_list(struct sl_candidates *c, float least)
{
    enum { LINE = SL_ALIGN / sizeof(float) };
    uint32_t *from = c->select.members;
    size_t n = 0, n_from = 0;
    for (size_t t = 0; t < sl_tops(c->n); t++) {
        from[n_from] = (uint32_t)(t * SL_TOPS);
        if (c->top[t] < least)
            continue;
        n_from++;
        for (size_t i = 0; i < SL_TOPS; i += LINE)
            __builtin_prefetch(c->l + t * SL_TOPS + i);
    }
    for (size_t t = 0; t < n_from; t++) {
        for (size_t i = from[t], end = smaller(i + SL_TOPS, c->n); i < end; i++) {
            c->listed[n] = c->l[i];
            c->ids[n] = (uint32_t)i;
            n += c->l[i] >= least;
        }
    }
    assert(n > 0);
    c->l = c->listed;
    c->n = n;
    c->is_list = true;
}

static void filter_top_k(struct sl_candidates *c, size_t k)
{
    const size_t n_tops = sl_tops(c->n);
    struct sl_cut cut;
    if (k == 0 || k >= c->n)
        return;
    c->has_e = false;
    /* The k-th largest top. */
    if (k <= n_tops / TOP_K_PRUNE)
        make_list(c, sl_select_nth(&c->select, c->top, n_tops, k, c->m));
    if (sl_select_cut(&c->select, c->l, NULL, c->n, (double)c->n, (double)k, &cut))
        drop_logits(c, &cut);
    if (!c->is_list)
        find_tops(c);
}

/* A share of the weight, to be kept in descending order of key[]. */
struct share {
    const float *key;
    bool typical; /* the key is -|l - m - mean|, and made when it is needed; else e */
    float mean;
    double total, target;
};

/* out[i] of logits l[i]; in place too. */
static void typical_keys(const struct sl_candidates *c, float mean, float *out, const float *l,
                         size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = -fabsf((l[i] - c->m) - mean);
}

static float least_logit_of_key(const struct sl_candidates *c, const struct share *s, float key)
{
    if (!s->typical)
        return least_logit(c, (double)key);
    double m = (double)c->m, t = (double)s->mean + (double)key;
    return below(m + t, 1 + fabs(m) + fabs((double)s->mean) + fabs(t));
}

/* A key that no token has to lie below to be kept, as the tops alone say. */
static bool ask_tops(struct sl_candidates *c, const struct share *s, float *ret_least)
{
    const size_t n = sl_tops(c->n);
    float *w = c->listed, *key = c->listed + (s->typical ? n : 0);
    struct sl_cut cut;
    c->k->weigh(w, c->top, c->m, 1, n);
    if (s->typical)
        typical_keys(c, s->mean, key, c->top, n);
    if (!sl_select_exactly(&c->select, key, w, n, s->target * (1 + 0x1p-20), &cut))
        return false;
    *ret_least = cut.key;
    return true;
}

/* The cut among few: those that are left, or that the tops say have to be asked. */
static bool find_among_few(struct sl_candidates *c, const struct share *s, struct sl_cut *ret)
{
    float least = FLT_TRUE_MIN, least_l = -INFINITY;
    struct sl_select *sel = &c->select;
    size_t n = 0;
    if (c->is_list || c->n < MANY)
        return false;
    if (!c->dropped) {
        if (!ask_tops(c, s, &least))
            return false;
        least_l = least_logit_of_key(c, s, least);
    }
    assert(!c->dropped || s->key == c->e);
    for (size_t b = 0; b < blocks_of(c->n); b++) {
        size_t from = b * BLOCK, size = block_size(c, b), more;
        if (c->block[b] == 0 || top_of(c, b) < least_l)
            continue;
        if (s->typical)
            typical_keys(c, s->mean, c->order + from, c->l + from, size);
        (void)c->k->part(sel->key + n, sel->weight + n, &more, s->key + from, c->e + from, size,
                         least, INFINITY);
        n += more;
    }
    return sl_select_in_part(sel, sel->key, sel->weight, n, c->n, s->target, ret);
}

static void clear_dropped(struct sl_candidates *c)
{
    for (size_t b = 0; b < blocks_of(c->n); b++)
        if (c->block[b] == 0)
            memset(c->e + b * BLOCK, 0, block_size(c, b) * sizeof *c->e);
}

static void keep_share(struct sl_candidates *c, struct share *s, float p)
{
    struct sl_cut cut;
    s->total = add_blocks(c);
    /* Of 0: the first that weighs anything. */
    s->target = (double)(p > FLT_MIN ? p : FLT_MIN) * s->total;
    if (!find_among_few(c, s, &cut)) {
        clear_dropped(c);
        if (s->typical)
            typical_keys(c, s->mean, c->order, c->l, c->n);
        if (!sl_select_cut(&c->select, s->key, c->e, c->n, s->total, s->target, &cut))
            return;
    }
    drop_below(c, s->key, cut.key, least_logit_of_key(c, s, cut.key));
    if (cut.n_kept < cut.n_equal)
        drop_equals(c, s->key, &cut);
}

/* Σ e·(l - m) / Σ e: the mean of l - m, ≤ 0. */
static double mean_below_max(const struct sl_candidates *c)
{
    double sum = 0;
    float d[BLOCK];
    for (size_t b = 0; b < blocks_of(c->n); b++) {
        const float *e = c->e + b * BLOCK, *l = c->l + b * BLOCK;
        const size_t n = block_size(c, b);
        for (size_t i = 0; i < n; i++)
            d[i] = l[i] - c->m;
        for (size_t i = 0; i < n; i++)
            d[i] = e[i] > 0 ? d[i] : 0; /* never 0 · inf */
        sum += (double)c->k->dot16(e, d, n);
    }
    return sum / add_blocks(c);
}

static void filter_min_p(struct sl_candidates *c, float min_p)
{
    float largest = 1; /* exp(0) */
    if (c->peak_dropped) {
        clear_dropped(c);
        largest = c->k->max(c->e, c->n);
    }
    float least = min_p * largest;
    if (least <= 0)
        return;
    float least_l = least_logit(c, (double)least);
    if (!c->has_e)
        weigh(c, least_l);
    drop_below(c, c->e, least, least_l);
}

void sl_candidates_filter(struct sl_candidates *c, const struct sl_sampling *p)
{
    filter_top_k(c, p->top_k);
    if (p->typical_p < 1) {
        need_weights(c);
        struct share s = {.key = c->order, .typical = true, .mean = (float)mean_below_max(c)};
        keep_share(c, &s, p->typical_p);
        c->peak_dropped = c->dropped;
    }
    if (p->top_p < 1) {
        need_weights(c);
        keep_share(c, &(struct share){.key = c->e}, p->top_p);
    }
    if (p->min_p > 0)
        filter_min_p(c, p->min_p);
}

/* --- the draw -----------------------------------------------------------------------------------
 */

/* The largest logit of what is left; typical_p may have dropped the row's. */
static float largest_left(const struct sl_candidates *c)
{
    float m = -INFINITY, left[BLOCK];
    for (size_t b = 0; b < blocks_of(c->n); b++) {
        const float *l = c->l + b * BLOCK, *e = c->e + b * BLOCK;
        const size_t n = block_size(c, b);
        if (c->block[b] == 0)
            continue;
        memcpy(left, l, n * sizeof *left);
        for (size_t i = 0; i < n; i++)
            left[i] = e[i] > 0 ? left[i] : -INFINITY;
        float largest = c->k->max(left, n);
        m = largest > m ? largest : m;
    }
    return m;
}

/* What a block's tokens are drawn by, and the sum. */
static double draw_weights(const struct sl_candidates *c, size_t block, float m, float temperature,
                           float w[BLOCK])
{
    const float *l = c->l + block * BLOCK, *e = c->e + block * BLOCK;
    const size_t n = block_size(c, block);
    if (c->has_e && temperature == 1) {
        memcpy(w, e, n * sizeof *w);
        return c->block[block];
    }
    float sum = c->k->weigh(w, l, m, temperature, n);
    return (double)(c->dropped ? c->k->drop(w, e, FLT_TRUE_MIN, n) : sum);
}

static double weigh_to_draw(struct sl_candidates *c, float m, float temperature)
{
    float w[BLOCK];
    for (size_t b = 0; b < blocks_of(c->n); b++) {
        if (c->dropped && c->block[b] == 0)
            continue;
        /* Rounded as each of them is. */
        bool none = (top_of(c, b) - m) / temperature < SL_WEIGH_MIN;
        c->block[b] = none ? 0 : draw_weights(c, b, m, temperature, w);
    }
    return add_blocks(c);
}

/* The place of the weight in which `target` falls. Never one that weighs nothing: the running sum
 * does not exceed the target there. */
static size_t draw_in(const float *w, size_t n, double run, double target)
{
    size_t last = n;
    for (size_t i = 0; i < n; i++) {
        run += (double)w[i];
        if (run > target)
            return i;
        if (w[i] > 0)
            last = i;
    }
    /* A block's sum is rounded otherwise than its running sum: the last of the block. */
    assert(last < n);
    return last;
}

uint32_t sl_candidates_draw(struct sl_candidates *c, float temperature, double u)
{
    float w[BLOCK], m = c->m;
    double sum, run = 0;
    if (c->has_e && temperature == 1) {
        sum = add_blocks(c);
    } else {
        m = c->peak_dropped ? largest_left(c) : m;
        sum = weigh_to_draw(c, m, temperature);
    }
    const double target = u * sum;
    size_t b = 0;
    while (b + 1 < blocks_of(c->n) && run + c->block[b] <= target)
        run += c->block[b++];
    (void)draw_weights(c, b, m, temperature, w);
    size_t i = b * BLOCK + draw_in(w, block_size(c, b), run, target);
    return c->is_list ? c->ids[i] : (uint32_t)i;
}
