/* sampler.c: see sampler.h, where each step is defined.
 *
 * What is left after a filter is a list of candidates in ascending order of ids: their logits move
 * up in the row itself, their ids and exponentials lie beside. As long as nothing was dropped the
 * list is "dense": place and id are one, and no ids are written.
 *
 * Speed, for a vocabulary of 65,536: no sorting (select.h), and before a cut most tokens are
 * dropped by a bound that is known to lie beyond it ("pruned"). Pruning never changes what is
 * kept:
 *   top_k      k blocks have a maximum ≥ b, so k tokens are ≥ b, so the k largest are ≥ b;
 *   top_p      all tokens below (1 - p) / 2n of the largest weigh less than (1 - p) / 2 of it
 *              together, so the others reach p;
 *   typical_p  the same, and a token that is further below the mean of l than the largest logit is
 *              above it comes after all that lie nearer. */
#include "engine/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/select.h"

enum {
    BLOCK = 256,           /* tokens of one partial sum */
    PRUNE_BLOCK = 64,      /* tokens that are passed over together */
    TOP_K_PRUNE_BLOCKS = 4 /* pruned for top_k where k is this many times less than the blocks */
};

struct sl_sampler {
    const struct sl_kernels *k;
    size_t vocab_size;
    const struct sl_sampling *p;
    uint64_t draws;
    bool penalised; /* a penalty is on */

    /* Counts: count[t] of the n_touched tokens in `touched`, zero for all others. With
     * penalty_last_n they are made from the window for each choice. */
    float *count;
    uint32_t *touched;
    size_t n_touched;
    uint32_t window[SL_PENALTY_LAST_N_MAX]; /* circular: the last n_window tokens, next one at */
    size_t n_window, window_next;

    /* Scratch, vocab_size each (block: one a BLOCK). */
    float *e;   /* exp(l - max) of the candidates */
    float *raw; /* the logits as they came */
    uint32_t *ids;
    uint32_t *key;
    uint32_t *members;
    double *block;
    double bins[SL_SELECT_BINS];
};

/* What is left: l[i] is the logit of token ids[i], or of token i when dense. */
struct candidates {
    float *l;
    size_t n;
    bool dense;
};

/* --- life --------------------------------------------------------------------------------------
 */

static size_t blocks_of(size_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

enum sl_code sl_sampler_open(struct sl_sampler **ret, const struct sl_kernels *k, size_t vocab_size,
                             struct sl_error *err)
{
    assert(vocab_size > 0 && vocab_size <= UINT32_MAX);
    struct sl_sampler *s = sl_calloc(1, sizeof *s);
    if (s) {
        s->k = k;
        s->vocab_size = vocab_size;
        s->count = sl_calloc(vocab_size, sizeof *s->count);
        s->touched = sl_malloc(vocab_size * sizeof *s->touched);
        s->e = sl_malloc(vocab_size * sizeof *s->e);
        s->raw = sl_malloc(vocab_size * sizeof *s->raw);
        s->ids = sl_malloc(vocab_size * sizeof *s->ids);
        s->key = sl_malloc(vocab_size * sizeof *s->key);
        s->members = sl_malloc(vocab_size * sizeof *s->members);
        s->block = sl_malloc(blocks_of(vocab_size) * sizeof *s->block);
    }
    if (!s || !s->count || !s->touched || !s->e || !s->raw || !s->ids || !s->key || !s->members ||
        !s->block) {
        sl_sampler_close(s);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a sampler over %zu tokens", vocab_size);
    }
    *ret = s;
    return SL_OK;
}

void sl_sampler_close(struct sl_sampler *s)
{
    if (!s)
        return;
    sl_free(s->count);
    sl_free(s->touched);
    sl_free(s->e);
    sl_free(s->raw);
    sl_free(s->ids);
    sl_free(s->key);
    sl_free(s->members);
    sl_free(s->block);
    sl_free(s);
}

uint64_t sl_sampler_draws(const struct sl_sampler *s)
{
    return s->draws;
}

/* --- penalties ---------------------------------------------------------------------------------
 */

static void clear_counts(struct sl_sampler *s)
{
    for (size_t i = 0; i < s->n_touched; i++)
        s->count[s->touched[i]] = 0;
    s->n_touched = 0;
}

static void add_count(struct sl_sampler *s, uint32_t token, float weight)
{
    /* A count that has decayed to zero was removed from the list (see accept). */
    if (s->count[token] == 0 && weight > 0)
        s->touched[s->n_touched++] = token;
    s->count[token] += weight;
}

static void push_window(struct sl_sampler *s, uint32_t token)
{
    s->window[s->window_next] = token;
    s->window_next = (s->window_next + 1) % s->p->penalty_last_n;
    if (s->n_window < s->p->penalty_last_n)
        s->n_window++;
}

static void count_window(struct sl_sampler *s)
{
    clear_counts(s);
    size_t n = s->p->penalty_last_n;
    float weight = 1;
    for (size_t age = 0; age < s->n_window; age++) {
        add_count(s, s->window[(s->window_next + n - 1 - age) % n], weight);
        weight *= s->p->penalty_decay;
    }
}

static void decay_counts(struct sl_sampler *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_touched; i++) {
        uint32_t t = s->touched[i];
        s->count[t] *= s->p->penalty_decay;
        s->touched[n] = t;
        n += s->count[t] > 0;
    }
    s->n_touched = n;
}

void sl_sampler_start(struct sl_sampler *s, const struct sl_sampling *p,
                      const struct sl_penalty_ring *ring, uint64_t draws)
{
    assert(sl_sampling_check(p, s->vocab_size, NULL) == SL_OK);
    clear_counts(s);
    s->p = p;
    s->draws = draws;
    s->penalised =
        p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
    s->n_window = s->window_next = 0;
    assert(!ring || ring->n <= SL_PENALTY_LAST_N_MAX);
    for (size_t i = 0; ring && p->penalty_last_n > 0 && i < ring->n; i++)
        sl_sampler_accept(s, ring->tokens[i]);
}

void sl_sampler_accept(struct sl_sampler *s, uint32_t token)
{
    assert(token < s->vocab_size);
    if (!s->penalised)
        return;
    if (s->p->penalty_last_n > 0) {
        push_window(s, token);
        return;
    }
    if (s->p->penalty_decay < 1)
        decay_counts(s);
    add_count(s, token, 1);
}

/* Rounds to float within ±FLT_MAX. */
static float to_logit(double x)
{
    if (x > (double)FLT_MAX)
        return FLT_MAX;
    return x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

static void apply_penalties(struct sl_sampler *s, float *l)
{
    const struct sl_sampling *p = s->p;
    if (p->penalty_last_n > 0)
        count_window(s);
    double theta = (double)p->repetition_penalty;
    for (size_t i = 0; i < s->n_touched; i++) {
        uint32_t t = s->touched[i];
        double x = (double)l[t];
        if (x < -(double)FLT_MAX)
            continue; /* -inf */
        x = x > 0 ? x / theta : x * theta;
        x -= (double)p->presence_penalty + (double)p->frequency_penalty * (double)s->count[t];
        l[t] = to_logit(x);
    }
}

static void apply_bias(const struct sl_sampling *p, float *l)
{
    for (size_t i = 0; i < p->n_bias; i++) {
        float *x = &l[p->bias[i].token];
        if (*x >= -FLT_MAX)
            *x = to_logit((double)*x + (double)p->bias[i].bias);
    }
}

/* --- sums --------------------------------------------------------------------------------------
 */

/* out[i] = exp((l[i] - m) / temperature), in place too; s->block and the result are the sums. */
static double exp_sum(struct sl_sampler *s, float *out, const float *l, size_t n, float m,
                      float temperature)
{
    double sum = 0;
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t len = n - b < BLOCK ? n - b : BLOCK;
        float *y = out + b;
        for (size_t i = 0; i < len; i++)
            y[i] = l[b + i] - m;
        /* A division, for 1 / temperature may not be finite. */
        for (size_t i = 0; temperature != 1 && i < len; i++)
            y[i] /= temperature;
        s->k->vexp(y, y, len);
        s->block[b / BLOCK] = (double)s->k->sum16(y, len);
        sum += s->block[b / BLOCK];
    }
    return sum;
}

/* The same sum at temperature 1, of logits that stay as they are. */
static double exp_sum_only(const struct sl_sampler *s, const float *l, size_t n, float m)
{
    double sum = 0;
    float y[BLOCK];
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t len = n - b < BLOCK ? n - b : BLOCK;
        for (size_t i = 0; i < len; i++)
            y[i] = l[b + i] - m;
        s->k->vexp(y, y, len);
        sum += (double)s->k->sum16(y, len);
    }
    return sum;
}

static double weight_sum(const struct sl_sampler *s, const float *e, size_t n)
{
    double sum = 0;
    for (size_t b = 0; b < n; b += BLOCK)
        sum += (double)s->k->sum16(e + b, n - b < BLOCK ? n - b : BLOCK);
    return sum;
}

/* Σ e·(l - m) / Σ e: the mean of l - m, ≤ 0. */
static double mean_below_max(const struct sl_sampler *s, const struct candidates *c, float m,
                             double weight)
{
    double sum = 0;
    float d[BLOCK];
    for (size_t b = 0; b < c->n; b += BLOCK) {
        size_t len = c->n - b < BLOCK ? c->n - b : BLOCK;
        for (size_t i = 0; i < len; i++)
            d[i] = s->e[b + i] > 0 ? c->l[b + i] - m : 0; /* never 0 · inf */
        sum += (double)s->k->dot16(s->e + b, d, len);
    }
    return sum / weight;
}

/* --- filters -----------------------------------------------------------------------------------
 */

static void keep(struct sl_sampler *s, struct candidates *c, size_t *n, size_t i, bool with_e)
{
    s->ids[*n] = c->dense ? (uint32_t)i : s->ids[i];
    c->l[*n] = c->l[i];
    if (with_e)
        s->e[*n] = s->e[i];
    ++*n;
}

static void keep_cut(struct sl_sampler *s, struct candidates *c, struct sl_cut cut, bool with_e)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (s->key[i] > cut.key || (s->key[i] == cut.key && cut.n_equal == 0))
            continue;
        cut.n_equal -= s->key[i] == cut.key;
        keep(s, c, &n, i, with_e);
    }
    c->n = n;
    c->dense = false;
}

/* Keeps the candidates with x ≥ bound; x is c->l or s->e. The largest x is, so one stays. */
static void keep_from(struct sl_sampler *s, struct candidates *c, const float *x, float bound,
                      bool with_e)
{
    size_t n = 0;
    for (size_t b = 0; b < c->n; b += PRUNE_BLOCK) {
        size_t end = c->n - b < PRUNE_BLOCK ? c->n : b + PRUNE_BLOCK;
        if (s->k->max(x + b, end - b) < bound)
            continue;
        for (size_t i = b; i < end; i++) {
            if (x[i] >= bound)
                keep(s, c, &n, i, with_e);
        }
    }
    assert(n > 0);
    c->n = n;
    c->dense = false;
}

static void prune_top_k(struct sl_sampler *s, struct candidates *c, size_t k)
{
    size_t n_blocks = 0;
    for (size_t b = 0; b < c->n; b += PRUNE_BLOCK) {
        size_t len = c->n - b < PRUNE_BLOCK ? c->n - b : PRUNE_BLOCK;
        s->e[n_blocks] = s->k->max(c->l + b, len);
        s->key[n_blocks] = sl_select_key_down(s->e[n_blocks]);
        n_blocks++;
    }
    struct sl_cut cut;
    if (k > n_blocks / TOP_K_PRUNE_BLOCKS ||
        !sl_select_cut(s->key, NULL, n_blocks, (double)k, s->bins, s->members, &cut))
        return;
    float bound = INFINITY; /* the k-th largest maximum */
    for (size_t i = 0; i < n_blocks; i++) {
        if (s->key[i] <= cut.key && s->e[i] < bound)
            bound = s->e[i];
    }
    keep_from(s, c, c->l, bound, false);
}

static void filter_top_k(struct sl_sampler *s, struct candidates *c)
{
    size_t k = s->p->top_k;
    if (k == 0 || k >= c->n)
        return;
    prune_top_k(s, c, k);
    for (size_t i = 0; i < c->n; i++)
        s->key[i] = sl_select_key_down(c->l[i]);
    struct sl_cut cut;
    if (sl_select_cut(s->key, NULL, c->n, (double)k, s->bins, s->members, &cut))
        keep_cut(s, c, cut, false);
}

/* The bound on e below which everything together weighs less than (1 - p) / 2. */
static double negligible(size_t n, float p)
{
    return (1 - (double)p) / (2 * (double)n);
}

/* e and m are of all candidates; `weight` is the sum of e. */
static void filter_typical_p(struct sl_sampler *s, struct candidates *c, float m, double weight)
{
    float p = s->p->typical_p;
    if (p >= 1)
        return;
    double mean = mean_below_max(s, c, m, weight);
    double bound = fmin(negligible(c->n, p), exp(2 * mean - 1e-3));
    keep_from(s, c, s->e, (float)bound, true);
    for (size_t i = 0; i < c->n; i++)
        s->key[i] = sl_select_key_up(fabsf((c->l[i] - m) - (float)mean));
    struct sl_cut cut;
    if (sl_select_cut(s->key, s->e, c->n, (double)p * weight, s->bins, s->members, &cut))
        keep_cut(s, c, cut, true);
}

static void filter_top_p(struct sl_sampler *s, struct candidates *c, double weight)
{
    float p = s->p->top_p;
    if (p >= 1)
        return;
    /* The bound is a share of the largest e: typical_p may have dropped the 1. */
    float largest = s->k->max(s->e, c->n);
    keep_from(s, c, s->e, (float)(negligible(c->n, p) * (double)largest), true);
    for (size_t i = 0; i < c->n; i++)
        s->key[i] = sl_select_key_down(s->e[i]);
    struct sl_cut cut;
    if (sl_select_cut(s->key, s->e, c->n, (double)p * weight, s->bins, s->members, &cut))
        keep_cut(s, c, cut, true);
}

static void filter_min_p(struct sl_sampler *s, struct candidates *c)
{
    if (s->p->min_p <= 0)
        return;
    keep_from(s, c, s->e, s->p->min_p * s->k->max(s->e, c->n), true);
}

static void filter(struct sl_sampler *s, struct candidates *c, float m)
{
    filter_top_k(s, c);
    if (s->p->typical_p >= 1 && s->p->top_p >= 1 && s->p->min_p <= 0)
        return;
    double weight = exp_sum(s, s->e, c->l, c->n, m, 1);
    if (s->p->typical_p < 1) {
        filter_typical_p(s, c, m, weight);
        weight = weight_sum(s, s->e, c->n);
    }
    filter_top_p(s, c, weight);
    filter_min_p(s, c);
}

/* --- the choice --------------------------------------------------------------------------------
 */

static double next_uniform(struct sl_sampler *s)
{
    uint64_t z = s->p->seed + (s->draws + 1) * 0x9E3779B97F4A7C15;
    s->draws++;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* The place of the weight in which u · sum falls; w's blocks weigh s->block. Never one that weighs
 * nothing: the running sum does not exceed u · sum there. */
static size_t draw(const struct sl_sampler *s, const float *w, size_t n, double sum, double u)
{
    double target = u * sum, run = 0;
    size_t b = 0;
    while (b + BLOCK < n && run + s->block[b / BLOCK] <= target) {
        run += s->block[b / BLOCK];
        b += BLOCK;
    }
    size_t end = n - b < BLOCK ? n : b + BLOCK, last = end;
    for (size_t i = b; i < end; i++) {
        run += (double)w[i];
        if (run > target)
            return i;
        if (w[i] > 0)
            last = i;
    }
    /* A block's sum is rounded otherwise than its running sum: the last of the block. */
    assert(last < end);
    return last;
}

static uint32_t first_equal(const struct sl_sampler *s, const float *l, float m)
{
    size_t b = 0;
    while (s->k->max(l + b, s->vocab_size - b < BLOCK ? s->vocab_size - b : BLOCK) < m)
        b += BLOCK;
    while (l[b] != m)
        b++;
    return (uint32_t)b;
}

static uint32_t sample(struct sl_sampler *s, float *l, float m)
{
    struct candidates c = {.l = l, .n = s->vocab_size, .dense = true};
    filter(s, &c, m);
    if (!c.dense)
        m = s->k->max(c.l, c.n);
    double sum = exp_sum(s, c.l, c.l, c.n, m, s->p->temperature);
    size_t i = draw(s, c.l, c.n, sum, next_uniform(s));
    return c.dense ? (uint32_t)i : s->ids[i];
}

/* --- log probabilities -------------------------------------------------------------------------
 */

static float log_probability(float l, float m, double log_sum)
{
    return (float)((double)l - (double)m - log_sum);
}

/* The n largest of l into top, as logits. */
static void find_top(const struct sl_sampler *s, const float *l, size_t n, struct sl_logprob *top)
{
    size_t have = 0;
    for (size_t b = 0; n > 0 && b < s->vocab_size; b += PRUNE_BLOCK) {
        size_t end = s->vocab_size - b < PRUNE_BLOCK ? s->vocab_size : b + PRUNE_BLOCK;
        if (have == n && s->k->max(l + b, end - b) <= top[n - 1].logprob)
            continue;
        for (size_t i = b; i < end; i++) {
            if (have == n && l[i] <= top[n - 1].logprob)
                continue;
            size_t at = have < n ? have++ : n - 1;
            for (; at > 0 && top[at - 1].logprob < l[i]; at--)
                top[at] = top[at - 1];
            top[at] = (struct sl_logprob){.token = (uint32_t)i, .logprob = l[i]};
        }
    }
}

/* All of *lp but chosen.logprob's token, which is given. m is the largest logit. */
static void fill_logprobs(const struct sl_sampler *s, const float *l, float m, uint32_t token,
                          size_t n_top, struct sl_token_logprobs *lp)
{
    assert(n_top <= SL_TOP_LOGPROBS_MAX);
    double log_sum = log(exp_sum_only(s, l, s->vocab_size, m));
    lp->chosen = (struct sl_logprob){token, log_probability(l[token], m, log_sum)};
    if (n_top > s->vocab_size)
        n_top = s->vocab_size;
    find_top(s, l, n_top, lp->top);
    for (size_t i = 0; i < n_top; i++)
        lp->top[i].logprob = log_probability(lp->top[i].logprob, m, log_sum);
}

enum sl_code sl_sampler_logprobs(struct sl_sampler *s, const float *logits, uint32_t token,
                                 int n_top, struct sl_token_logprobs *lp)
{
    assert(token < s->vocab_size && n_top >= 0);
    float m = s->k->max(logits, s->vocab_size);
    if (!isfinite(m))
        return SL_E_MODEL_NOT_FINITE;
    fill_logprobs(s, logits, m, token, (size_t)n_top, lp);
    return SL_OK;
}

enum sl_code sl_sampler_choose(struct sl_sampler *s, float *logits, int n_top, uint32_t *ret_token,
                               struct sl_token_logprobs *lp)
{
    float m = s->k->max(logits, s->vocab_size), raw_m = m;
    if (!isfinite(m))
        return SL_E_MODEL_NOT_FINITE;
    if (n_top >= 0)
        memcpy(s->raw, logits, s->vocab_size * sizeof *logits);
    if (s->penalised || s->p->n_bias > 0) {
        if (s->penalised)
            apply_penalties(s, logits);
        apply_bias(s->p, logits);
        m = s->k->max(logits, s->vocab_size);
    }
    *ret_token = s->p->temperature == 0 ? first_equal(s, logits, m) : sample(s, logits, m);
    if (n_top >= 0)
        fill_logprobs(s, s->raw, raw_m, *ret_token, (size_t)n_top, lp);
    return SL_OK;
}
