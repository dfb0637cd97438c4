/* sampler.c: see sampler.h, where each step is defined.
 *
 * A token that a filter drops gets the logit -inf and the exponential 0, in its place: every pass
 * is then a plain loop over the row, and the draw never meets it. Only where a small top_k leaves
 * few is the row made a short list (`ids` says of which tokens).
 *
 * Speed, for a vocabulary of 65,536: nothing is sorted (select.h). The row is read once for the
 * maxima of its blocks, and where those say it, no more: if k blocks have a maximum ≥ b then k
 * tokens are ≥ b, so the k largest are, and top_k passes over all other blocks. */
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

/* exp(-87) is the last that is no denormal number. Those take processors ten times as long, and a
 * row has many: all that was dropped, and most of it at a low temperature. */
#define EXP_MIN (-87.0F)

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

    /* Scratch, vocab_size each (block: one a BLOCK; top: one a PRUNE_BLOCK). */
    float *e;   /* exp(l - max) of the candidates */
    float *raw; /* the logits as they came */
    uint32_t *ids;
    uint32_t *key;
    uint32_t *members;
    double *block;
    float *top; /* [prune_blocks_of(vocab_size)] the blocks' largest logits */
    struct sl_select_scratch select;
};

/* What is left, in the order of ids: l[i] is the logit of token ids[i], or of token i when
 * dense. */
struct candidates {
    float *l;
    size_t n;
    bool dense;
    bool has_e; /* s->e holds the exponentials of what is left */
};

/* --- life --------------------------------------------------------------------------------------
 */

static size_t blocks_of(size_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static size_t prune_blocks_of(size_t n)
{
    return (n + PRUNE_BLOCK - 1) / PRUNE_BLOCK;
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
        s->top = sl_malloc(prune_blocks_of(vocab_size) * sizeof *s->top);
    }
    if (!s || !s->count || !s->touched || !s->e || !s->raw || !s->ids || !s->key || !s->members ||
        !s->block || !s->top) {
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
    sl_free(s->top);
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

/* --- the largest -------------------------------------------------------------------------------
 */

static void find_block_top(struct sl_sampler *s, const float *l, size_t block)
{
    size_t b = block * PRUNE_BLOCK, left = s->vocab_size - b;
    s->top[block] = s->k->max(l + b, left < PRUNE_BLOCK ? left : PRUNE_BLOCK);
}

/* The largest logit, NaN if there is one, and those of the blocks. */
static float find_tops(struct sl_sampler *s, const float *l)
{
    size_t n = prune_blocks_of(s->vocab_size);
    for (size_t i = 0; i < n; i++)
        find_block_top(s, l, i);
    return s->k->max(s->top, n);
}

/* The same, after penalties and biases changed some logits. */
static float find_changed_tops(struct sl_sampler *s, const float *l)
{
    size_t n = prune_blocks_of(s->vocab_size);
    if (s->n_touched + s->p->n_bias > n)
        return find_tops(s, l);
    for (size_t i = 0; i < s->n_touched; i++)
        find_block_top(s, l, s->touched[i] / PRUNE_BLOCK);
    for (size_t i = 0; i < s->p->n_bias; i++)
        find_block_top(s, l, s->p->bias[i].token / PRUNE_BLOCK);
    return s->k->max(s->top, n);
}

/* --- sums --------------------------------------------------------------------------------------
 */

/* out[i] = exp((l[i] - m) / temperature), 0 below EXP_MIN; in place too. */
static void exponentials(const struct sl_sampler *s, float *out, const float *l, size_t n, float m,
                         float temperature)
{
    float x[BLOCK];
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t len = n - b < BLOCK ? n - b : BLOCK;
        float *y = out + b;
        for (size_t i = 0; i < len; i++)
            x[i] = l[b + i] - m;
        /* A division, for 1 / temperature may not be finite. */
        for (size_t i = 0; temperature != 1 && i < len; i++)
            x[i] /= temperature;
        for (size_t i = 0; i < len; i++)
            y[i] = x[i] < EXP_MIN ? 0 : x[i];
        s->k->vexp(y, y, len);
        for (size_t i = 0; i < len; i++)
            y[i] = x[i] < EXP_MIN ? 0 : y[i];
    }
}

/* Σ w, and the sums of its blocks. */
static double block_sums(struct sl_sampler *s, const float *w, size_t n)
{
    double sum = 0;
    for (size_t b = 0; b < n; b += BLOCK) {
        s->block[b / BLOCK] = (double)s->k->sum16(w + b, n - b < BLOCK ? n - b : BLOCK);
        sum += s->block[b / BLOCK];
    }
    return sum;
}

/* Σ exp(l - m), of logits that stay as they are. */
static double exp_sum(const struct sl_sampler *s, const float *l, size_t n, float m)
{
    double sum = 0;
    float y[BLOCK];
    for (size_t b = 0; b < n; b += BLOCK) {
        size_t len = n - b < BLOCK ? n - b : BLOCK;
        exponentials(s, y, l + b, len, m, 1);
        sum += (double)s->k->sum16(y, len);
    }
    return sum;
}

/* Σ e·(l - m) / Σ e: the mean of l - m, ≤ 0. */
static double mean_below_max(struct sl_sampler *s, const struct candidates *c, float m)
{
    double sum = 0;
    float d[BLOCK];
    for (size_t b = 0; b < c->n; b += BLOCK) {
        size_t len = c->n - b < BLOCK ? c->n - b : BLOCK;
        for (size_t i = 0; i < len; i++)
            d[i] = s->e[b + i] > 0 ? c->l[b + i] - m : 0; /* never 0 · inf */
        sum += (double)s->k->dot16(s->e + b, d, len);
    }
    return sum / block_sums(s, s->e, c->n);
}

/* --- filters -----------------------------------------------------------------------------------
 */

static void drop_after(struct sl_sampler *s, struct candidates *c, const struct sl_cut *cut)
{
    const uint32_t *key = s->key;
    float *l = c->l, *e = s->e;
    for (size_t i = 0; i < c->n; i++)
        l[i] = key[i] > cut->key ? -INFINITY : l[i];
    for (size_t i = 0; c->has_e && i < c->n; i++)
        e[i] = key[i] > cut->key ? 0 : e[i];
    for (size_t j = cut->n_kept; j < cut->n_equal; j++) {
        l[s->members[j]] = -INFINITY;
        e[s->members[j]] = 0;
    }
}

/* Makes the row, of which nothing was dropped yet, a list of its tokens with l ≥ bound; there is
 * one. */
static void gather_from(struct sl_sampler *s, struct candidates *c, float bound)
{
    size_t n = 0;
    for (size_t b = 0; b < c->n; b += PRUNE_BLOCK) {
        size_t end = c->n - b < PRUNE_BLOCK ? c->n : b + PRUNE_BLOCK;
        if (s->top[b / PRUNE_BLOCK] < bound)
            continue;
        for (size_t i = b; i < end; i++) {
            if (c->l[i] >= bound) {
                s->ids[n] = (uint32_t)i;
                c->l[n++] = c->l[i];
            }
        }
    }
    assert(n > 0);
    c->n = n;
    c->dense = false;
}

static void prune_top_k(struct sl_sampler *s, struct candidates *c, size_t k)
{
    size_t n_blocks = prune_blocks_of(c->n);
    if (k > n_blocks / TOP_K_PRUNE_BLOCKS)
        return;
    for (size_t i = 0; i < n_blocks; i++)
        s->key[i] = sl_select_key_down(s->top[i]);
    struct sl_cut cut;
    if (sl_select_cut(s->key, NULL, n_blocks, (double)k, &s->select, s->members, &cut))
        gather_from(s, c, s->top[s->members[0]]); /* the k-th largest maximum */
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
    if (sl_select_cut(s->key, NULL, c->n, (double)k, &s->select, s->members, &cut))
        drop_after(s, c, &cut);
}

/* Drops what lies after the share p of the weight, by s->key. */
static void keep_share(struct sl_sampler *s, struct candidates *c, float p)
{
    struct sl_cut cut;
    double target = (double)p * block_sums(s, s->e, c->n);
    if (sl_select_cut(s->key, s->e, c->n, target, &s->select, s->members, &cut))
        drop_after(s, c, &cut);
}

static void filter_typical_p(struct sl_sampler *s, struct candidates *c, float m)
{
    if (s->p->typical_p >= 1)
        return;
    float mean = (float)mean_below_max(s, c, m);
    for (size_t i = 0; i < c->n; i++)
        s->key[i] = sl_select_key_up(fabsf((c->l[i] - m) - mean));
    keep_share(s, c, s->p->typical_p);
}

static void filter_top_p(struct sl_sampler *s, struct candidates *c)
{
    if (s->p->top_p >= 1)
        return;
    for (size_t i = 0; i < c->n; i++)
        s->key[i] = sl_select_key_down(s->e[i]);
    keep_share(s, c, s->p->top_p);
}

static void filter_min_p(struct sl_sampler *s, struct candidates *c)
{
    if (s->p->min_p <= 0)
        return;
    float bound = s->p->min_p * s->k->max(s->e, c->n);
    float *l = c->l, *e = s->e;
    for (size_t i = 0; i < c->n; i++) {
        l[i] = e[i] < bound ? -INFINITY : l[i];
        e[i] = e[i] < bound ? 0 : e[i];
    }
}

static void filter(struct sl_sampler *s, struct candidates *c, float m)
{
    filter_top_k(s, c);
    if (s->p->typical_p >= 1 && s->p->top_p >= 1 && s->p->min_p <= 0)
        return;
    exponentials(s, s->e, c->l, c->n, m, 1);
    c->has_e = true;
    filter_typical_p(s, c, m);
    filter_top_p(s, c);
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
    while (s->top[b] < m)
        b++;
    b *= PRUNE_BLOCK;
    while (l[b] != m)
        b++;
    return (uint32_t)b;
}

static uint32_t sample(struct sl_sampler *s, float *l, float m)
{
    struct candidates c = {.l = l, .n = s->vocab_size, .dense = true};
    filter(s, &c, m);
    const float *w = s->e;
    if (!c.has_e || s->p->temperature != 1) {
        /* typical_p may have dropped the largest. */
        m = c.has_e ? s->k->max(l, c.n) : m;
        exponentials(s, l, l, c.n, m, s->p->temperature);
        w = l;
    }
    size_t i = draw(s, w, c.n, block_sums(s, w, c.n), next_uniform(s));
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
    double log_sum = log(exp_sum(s, l, s->vocab_size, m));
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
    float m = find_tops(s, logits), raw_m = m;
    if (!isfinite(m))
        return SL_E_MODEL_NOT_FINITE;
    if (n_top >= 0)
        memcpy(s->raw, logits, s->vocab_size * sizeof *logits);
    if (s->penalised || s->p->n_bias > 0) {
        if (s->penalised)
            apply_penalties(s, logits);
        apply_bias(s->p, logits);
        m = find_changed_tops(s, logits);
    }
    *ret_token = s->p->temperature == 0 ? first_equal(s, logits, m) : sample(s, logits, m);
    if (n_top >= 0)
        fill_logprobs(s, s->raw, raw_m, *ret_token, (size_t)n_top, lp);
    return SL_OK;
}
