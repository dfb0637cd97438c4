/* sampler.c: see sampler.h, where each step is defined; candidates.h has the filters and the draw.
 */
#include "engine/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/candidates.h"

struct sl_sampler {
    const struct sl_kernels *k;
    size_t vocab_size;
    const struct sl_sampling *p;
    uint64_t draws;
    bool penalised; /* a penalty is on */

    /* The n_counted tokens that have a count, and it; with penalty_last_n they are made from the
     * window for each choice. Side by side, so that a turn touches memory for those alone, and
     * what many turns touch stays in a cache. */
    uint32_t *counted;
    float *count;
    size_t n_counted;
    uint32_t window[SL_PENALTY_LAST_N_MAX]; /* circular: the last n_window tokens, next one at */
    size_t n_window, window_next;
};

struct sl_sampler_scratch {
    size_t vocab_size;
    float *raw; /* logits as they came: of those that have a count, then of those with a bias */
    uint32_t *place; /* of a window's tokens, by id, among those counted, from 1 on; else 0 */
    struct sl_candidates left;
};

/* --- life --------------------------------------------------------------------------------------
 */

enum sl_code sl_sampler_open(struct sl_sampler **ret, const struct sl_kernels *k, size_t vocab_size,
                             struct sl_error *err)
{
    assert(vocab_size > 0 && vocab_size <= UINT32_MAX);
    struct sl_sampler *s = sl_calloc(1, sizeof *s);
    if (s) {
        s->k = k;
        s->vocab_size = vocab_size;
        s->counted = sl_malloc(vocab_size * sizeof *s->counted);
        s->count = sl_malloc(vocab_size * sizeof *s->count);
    }
    if (!s || !s->counted || !s->count) {
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
    sl_free(s->counted);
    sl_free(s->count);
    sl_free(s);
}

enum sl_code sl_sampler_scratch_open(struct sl_sampler_scratch **ret, size_t vocab_size,
                                     struct sl_error *err)
{
    struct sl_sampler_scratch *x = sl_calloc(1, sizeof *x);
    if (x) {
        x->vocab_size = vocab_size;
        x->raw = sl_malloc((vocab_size + SL_LOGIT_BIAS_MAX) * sizeof *x->raw);
        x->place = sl_calloc(vocab_size, sizeof *x->place);
    }
    if (!x || !sl_candidates_init(&x->left, vocab_size) || !x->raw || !x->place) {
        sl_sampler_scratch_close(x);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to choose among %zu tokens", vocab_size);
    }
    *ret = x;
    return SL_OK;
}

void sl_sampler_scratch_close(struct sl_sampler_scratch *x)
{
    if (!x)
        return;
    sl_free(x->raw);
    sl_free(x->place);
    sl_candidates_done(&x->left);
    sl_free(x);
}

uint64_t sl_sampler_draws(const struct sl_sampler *s)
{
    return s->draws;
}

/* --- penalties ---------------------------------------------------------------------------------
 */

/* Where the token is, or will be, among those counted. */
static size_t find_counted(const struct sl_sampler *s, uint32_t token)
{
    size_t i = 0;
    while (i < s->n_counted && s->counted[i] != token)
        i++;
    return i;
}

/* At place i, which may be the next free one. */
static void add_count(struct sl_sampler *s, size_t i, uint32_t token, float weight)
{
    if (i == s->n_counted) {
        s->counted[i] = token;
        s->count[i] = 0;
        s->n_counted++;
    }
    s->count[i] += weight;
}

static void push_window(struct sl_sampler *s, uint32_t token)
{
    s->window[s->window_next] = token;
    s->window_next = (s->window_next + 1) % s->p->penalty_last_n;
    if (s->n_window < s->p->penalty_last_n)
        s->n_window++;
}

static void count_window(struct sl_sampler *s, struct sl_sampler_scratch *x)
{
    size_t n = s->p->penalty_last_n;
    float weight = 1;
    s->n_counted = 0;
    for (size_t age = 0; age < s->n_window && weight > 0; age++) {
        uint32_t token = s->window[(s->window_next + n - 1 - age) % n];
        size_t i = x->place[token] ? x->place[token] - 1 : s->n_counted;
        x->place[token] = (uint32_t)i + 1;
        add_count(s, i, token, weight);
        weight *= s->p->penalty_decay;
    }
    for (size_t i = 0; i < s->n_counted; i++)
        x->place[s->counted[i]] = 0;
}

/* What has decayed to zero is not counted any more. */
static void decay_counts(struct sl_sampler *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_counted; i++) {
        s->counted[n] = s->counted[i];
        s->count[n] = s->count[i] * s->p->penalty_decay;
        n += s->count[n] > 0;
    }
    s->n_counted = n;
}

void sl_sampler_start(struct sl_sampler *s, const struct sl_sampling *p,
                      const struct sl_penalty_ring *ring, uint64_t draws)
{
    assert(sl_sampling_check(p, s->vocab_size, NULL) == SL_OK);
    s->n_counted = 0;
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
    add_count(s, find_counted(s, token), token, 1);
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
    double theta = (double)p->repetition_penalty;
    for (size_t i = 0; i < s->n_counted; i++) {
        uint32_t t = s->counted[i];
        double x = (double)l[t];
        if (x < -(double)FLT_MAX)
            continue; /* -inf */
        x = x > 0 ? x / theta : x * theta;
        x -= (double)p->presence_penalty + (double)p->frequency_penalty * (double)s->count[i];
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

/* --- log probabilities -------------------------------------------------------------------------
 */

static float log_probability(float l, float m, double log_sum)
{
    return (float)((double)l - (double)m - log_sum);
}

/* What *lp says of the row as it came, with logits where log probabilities will be. */
struct seen {
    float m;
    double log_sum;
    size_t n_top;
};

static struct seen look(struct sl_sampler_scratch *x, float m, size_t n_top, struct sl_logprob *top)
{
    assert(n_top <= SL_TOP_LOGPROBS_MAX);
    struct seen seen = {.m = m, .n_top = n_top < x->vocab_size ? n_top : x->vocab_size};
    seen.log_sum = log(sl_candidates_sum(&x->left));
    sl_candidates_largest(&x->left, seen.n_top, top);
    return seen;
}

static void tell(const struct seen *seen, uint32_t token, float l, struct sl_token_logprobs *lp)
{
    lp->chosen = (struct sl_logprob){token, log_probability(l, seen->m, seen->log_sum)};
    for (size_t i = 0; i < seen->n_top; i++)
        lp->top[i].logprob = log_probability(lp->top[i].logprob, seen->m, seen->log_sum);
}

enum sl_code sl_sampler_logprobs(const struct sl_sampler *s, struct sl_sampler_scratch *x,
                                 const float *logits, const float *tops, uint32_t token, int n_top,
                                 struct sl_token_logprobs *lp)
{
    assert(token < s->vocab_size && s->vocab_size == x->vocab_size && n_top >= 0);
    /* Only filters write to them. */
    float m = sl_candidates_begin(&x->left, s->k, (float *)logits, (float *)tops);
    if (!isfinite(m))
        return SL_E_MODEL_NOT_FINITE;
    struct seen seen = look(x, m, (size_t)n_top, lp->top);
    tell(&seen, token, logits[token], lp);
    return SL_OK;
}

/* Penalties and biases: only these change logits, and what they change is kept in x->raw. */
static void change(struct sl_sampler *s, struct sl_sampler_scratch *x, float *l)
{
    const struct sl_sampling *p = s->p;
    if (s->penalised && p->penalty_last_n > 0)
        count_window(s, x);
    float *of_bias = x->raw + s->n_counted;
    for (size_t i = 0; i < s->n_counted; i++)
        x->raw[i] = l[s->counted[i]];
    for (size_t i = 0; i < p->n_bias; i++)
        of_bias[i] = l[p->bias[i].token];
    if (s->penalised)
        apply_penalties(s, l);
    apply_bias(p, l);
    for (size_t i = 0; i < s->n_counted; i++)
        sl_candidates_changed(&x->left, s->counted[i], x->raw[i]);
    for (size_t i = 0; i < p->n_bias; i++)
        sl_candidates_changed(&x->left, p->bias[i].token, of_bias[i]);
    sl_candidates_settle(&x->left);
}

static void change_back(const struct sl_sampler *s, const struct sl_sampler_scratch *x, float *l)
{
    for (size_t i = 0; i < s->n_counted; i++)
        l[s->counted[i]] = x->raw[i];
    for (size_t i = 0; i < s->p->n_bias; i++)
        l[s->p->bias[i].token] = x->raw[s->n_counted + i];
}

static uint32_t sample(struct sl_sampler *s, struct sl_sampler_scratch *x)
{
    sl_candidates_filter(&x->left, s->p);
    return sl_candidates_draw(&x->left, s->p->temperature, next_uniform(s));
}

enum sl_code sl_sampler_choose(struct sl_sampler *s, struct sl_sampler_scratch *x, float *logits,
                               float *tops, int n_top, uint32_t *ret_token,
                               struct sl_token_logprobs *lp)
{
    struct seen seen = {0};
    assert(s->vocab_size == x->vocab_size);
    float m = sl_candidates_begin(&x->left, s->k, logits, tops);
    if (!isfinite(m))
        return SL_E_MODEL_NOT_FINITE;
    if (n_top >= 0)
        seen = look(x, m, (size_t)n_top, lp->top);
    bool changes = s->penalised || s->p->n_bias > 0;
    if (changes)
        change(s, x, logits);
    *ret_token = s->p->temperature == 0 ? sl_candidates_first(&x->left) : sample(s, x);
    if (n_top < 0)
        return SL_OK;
    if (changes)
        change_back(s, x, logits);
    tell(&seen, *ret_token, logits[*ret_token], lp);
    return SL_OK;
}
