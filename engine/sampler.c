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

    /* Counts: count[t] of the n_touched tokens in `touched`, zero for all others. With
     * penalty_last_n they are made from the window for each choice. */
    float *count;
    uint32_t *touched;
    size_t n_touched;
    uint32_t window[SL_PENALTY_LAST_N_MAX]; /* circular: the last n_window tokens, next one at */
    size_t n_window, window_next;
};

struct sl_sampler_scratch {
    size_t vocab_size;
    float *raw; /* logits as they came, of tokens whose logits were changed */
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
        s->count = sl_calloc(vocab_size, sizeof *s->count);
        s->touched = sl_malloc(vocab_size * sizeof *s->touched);
    }
    if (!s || !s->count || !s->touched) {
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
    sl_free(s);
}

enum sl_code sl_sampler_scratch_open(struct sl_sampler_scratch **ret, size_t vocab_size,
                                     struct sl_error *err)
{
    struct sl_sampler_scratch *x = sl_calloc(1, sizeof *x);
    if (x) {
        x->vocab_size = vocab_size;
        x->raw = sl_malloc(vocab_size * sizeof *x->raw);
    }
    if (!x || !sl_candidates_init(&x->left, vocab_size) || !x->raw) {
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
    sl_candidates_done(&x->left);
    sl_free(x);
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
        count_window(s);
    for (size_t i = 0; i < s->n_touched; i++)
        x->raw[s->touched[i]] = l[s->touched[i]];
    for (size_t i = 0; i < p->n_bias; i++)
        x->raw[p->bias[i].token] = l[p->bias[i].token];
    if (s->penalised)
        apply_penalties(s, l);
    apply_bias(p, l);
    for (size_t i = 0; i < s->n_touched; i++)
        sl_candidates_changed(&x->left, s->touched[i], x->raw[s->touched[i]]);
    for (size_t i = 0; i < p->n_bias; i++)
        sl_candidates_changed(&x->left, p->bias[i].token, x->raw[p->bias[i].token]);
    sl_candidates_settle(&x->left);
}

static void change_back(const struct sl_sampler *s, const struct sl_sampler_scratch *x, float *l)
{
    for (size_t i = 0; i < s->n_touched; i++)
        l[s->touched[i]] = x->raw[s->touched[i]];
    for (size_t i = 0; i < s->p->n_bias; i++)
        l[s->p->bias[i].token] = x->raw[s->p->bias[i].token];
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
