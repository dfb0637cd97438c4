/* sampling.c: see sampling.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/sampling.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

static uint64_t rng_state;

void slow_seed(uint64_t seed)
{
    rng_state = seed;
}

uint32_t slow_rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

double slow_uniform(void)
{
    return (slow_rnd(1 << 24) + 0.5) / (1 << 24);
}

double slow_gauss(void)
{
    return sqrt(-2 * log(slow_uniform())) * cos(2 * 3.14159265358979 * slow_uniform());
}

struct sl_sampler *open_sampler(const char *kernels, size_t vocab_size)
{
    struct sl_sampler *s = NULL;
    struct sl_error err;
    const struct sl_kernels *k = sl_kernels_find(kernels);
    assert_non_null(k);
    if (sl_sampler_open(&s, k, vocab_size, &err) != SL_OK)
        fail_msg("%s", err.message);
    return s;
}

static struct sl_sampler_scratch *scratch;
static size_t scratch_size;

static void close_scratch(void)
{
    sl_sampler_scratch_close(scratch);
    scratch = NULL;
}

struct sl_sampler_scratch *scratch_for(size_t vocab_size)
{
    struct sl_error err;
    if (scratch && scratch_size == vocab_size)
        return scratch;
    if (scratch)
        close_scratch();
    else
        assert_int_equal(atexit(close_scratch), 0);
    if (sl_sampler_scratch_open(&scratch, vocab_size, &err) != SL_OK)
        fail_msg("%s", err.message);
    scratch_size = vocab_size;
    return scratch;
}

float *make_row(size_t n)
{
    float *l = sl_aligned_calloc(n * sizeof *l);
    assert_non_null(l);
    return l;
}

uint32_t choose(struct sl_sampler *s, const float *l, size_t n)
{
    static bool with;
    float *row = make_row(n), *tops = make_row(sl_tops(n));
    memcpy(row, l, n * sizeof *l);
    sl_kernels_find("ref")->tops(tops, row, n);
    with = !with;
    uint32_t token = UINT32_MAX;
    assert_int_equal(
        sl_sampler_choose(s, scratch_for(n), row, with ? tops : NULL, -1, &token, NULL), SL_OK);
    assert_true(token < n);
    sl_free(tops);
    sl_free(row);
    return token;
}

/* --- the slow version --------------------------------------------------------------------------
 */

double slow_draw(uint64_t seed, uint64_t i)
{
    uint64_t x = seed;
    for (uint64_t k = 0; k <= i; k++)
        x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return ldexp((double)((x ^ (x >> 31)) >> 11), -53);
}

struct slow_token {
    uint32_t id;
    double l;
    double p;     /* softmax of what is left */
    double order; /* ascending: what is kept first */
};

static int by_order(const void *a, const void *b)
{
    const struct slow_token *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const struct slow_token *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

static void slow_softmax(struct slow_token *t, size_t n, double temperature)
{
    double m = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        m = fmax(m, t[i].l);
    for (size_t i = 0; i < n; i++)
        sum += t[i].p = exp((t[i].l - m) / temperature);
    for (size_t i = 0; i < n; i++)
        t[i].p /= sum;
}

/* Cuts the sorted list where the sum of p reaches `bound`. */
static size_t slow_cut(const struct slow_token *t, size_t n, double bound, bool *ret_unclear)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += t[i].p;
        if (fabs(sum - bound) < 1e-5)
            *ret_unclear = true;
        if (sum >= bound)
            return i + 1;
    }
    return n;
}

/* Neighbours in the order at the cut whose keys rounding could swap. */
static void slow_ties(const struct slow_token *t, size_t kept, size_t n, bool *ret_unclear)
{
    if (kept < n && t[kept].order != t[kept - 1].order &&
        fabs(t[kept].order - t[kept - 1].order) < 1e-5 * fabs(t[kept].order))
        *ret_unclear = true;
}

static size_t slow_filter(struct slow_token *t, size_t n, const struct sl_sampling *p,
                          bool *ret_unclear)
{
    if (p->top_k > 0 && p->top_k < n) {
        for (size_t i = 0; i < n; i++)
            t[i].order = -t[i].l;
        qsort(t, n, sizeof *t, by_order);
        n = p->top_k;
    }
    if (p->typical_p < 1) {
        slow_softmax(t, n, 1);
        double entropy = 0;
        for (size_t i = 0; i < n; i++)
            entropy -= t[i].p > 0 ? t[i].p * log(t[i].p) : 0;
        for (size_t i = 0; i < n; i++)
            t[i].order = fabs(-log(t[i].p) - entropy);
        qsort(t, n, sizeof *t, by_order);
        size_t kept = slow_cut(t, n, (double)p->typical_p, ret_unclear);
        slow_ties(t, kept, n, ret_unclear);
        n = kept;
    }
    if (p->top_p < 1) {
        slow_softmax(t, n, 1);
        for (size_t i = 0; i < n; i++)
            t[i].order = -t[i].l;
        qsort(t, n, sizeof *t, by_order);
        size_t kept = slow_cut(t, n, (double)p->top_p, ret_unclear);
        slow_ties(t, kept, n, ret_unclear);
        n = kept;
    }
    if (p->min_p > 0) {
        slow_softmax(t, n, 1);
        double largest = 0;
        for (size_t i = 0; i < n; i++)
            largest = fmax(largest, t[i].p);
        size_t kept = 0;
        for (size_t i = 0; i < n; i++) {
            double bound = (double)p->min_p * largest;
            if (fabs(t[i].p - bound) < 1e-5 * bound)
                *ret_unclear = true;
            if (t[i].p >= bound)
                t[kept++] = t[i];
        }
        n = kept;
    }
    return n;
}

size_t slow_choose(const double *l, size_t n_vocab, const struct sl_sampling *p, uint64_t i)
{
    struct slow_token *t = calloc(n_vocab, sizeof *t);
    assert_non_null(t);
    for (size_t k = 0; k < n_vocab; k++)
        t[k] = (struct slow_token){.id = (uint32_t)k, .l = l[k]};
    bool unclear = false;
    size_t n = slow_filter(t, n_vocab, p, &unclear), chosen = SIZE_MAX;
    qsort(t, n, sizeof *t, by_id);
    slow_softmax(t, n, (double)p->temperature);
    double u = slow_draw(p->seed, i), sum = 0;
    for (size_t k = 0; k < n && chosen == SIZE_MAX; k++) {
        sum += t[k].p;
        if (fabs(sum - u) < 1e-5)
            unclear = true;
        if (sum > u)
            chosen = t[k].id;
    }
    free(t);
    return unclear ? SIZE_MAX : chosen;
}

/* --- the exact version --------------------------------------------------------------------------
 */

/* A row on its way: what is dropped has e = 0 and l = -inf. */
struct row {
    const struct sl_kernels *k; /* the scalar ones */
    float *l, *e, *order;
    uint32_t *id;
    size_t n;
    struct sl_select select;
};

enum { SUM_BLOCK = 256, TOP_BLOCK = 64, FEW_OF_BLOCKS = 4 };

static double exact_sum(const struct row *r, const float *w)
{
    double sum = 0;
    for (size_t i = 0; i < r->n; i += SUM_BLOCK)
        sum += (double)r->k->sum16(w + i, r->n - i < SUM_BLOCK ? r->n - i : SUM_BLOCK);
    return sum;
}

static void exact_weights(const struct row *r, float *w, float m, float temperature)
{
    for (size_t i = 0; i < r->n; i++) {
        float t = (r->l[i] - m) / temperature;
        r->k->vexp(&w[i], &t, 1);
        if (t < -87)
            w[i] = 0;
    }
}

static void exact_drop(const struct row *r, const float *key, const struct sl_cut *cut)
{
    size_t equal = 0;
    for (size_t i = 0; i < r->n; i++) {
        equal += key[i] == cut->key;
        if (key[i] < cut->key || (key[i] == cut->key && equal > cut->n_kept)) {
            r->l[i] = -INFINITY;
            r->e[i] = 0;
        }
    }
}

/* Of a small k the tokens from the k-th largest of the blocks' maxima on get new places. */
static void exact_list(struct row *r, size_t k)
{
    size_t n_blocks = (r->n + TOP_BLOCK - 1) / TOP_BLOCK, n = 0;
    if (k > n_blocks / FEW_OF_BLOCKS)
        return;
    struct sl_cut cut;
    for (size_t b = 0; b < n_blocks; b++) {
        size_t left = r->n - b * TOP_BLOCK;
        r->order[b] = r->k->max(r->l + b * TOP_BLOCK, left < TOP_BLOCK ? left : TOP_BLOCK);
    }
    assert_true(sl_select_exactly(&r->select, r->order, NULL, n_blocks, (double)k, &cut));
    for (size_t i = 0; i < r->n; i++) {
        if (r->l[i] < cut.key)
            continue;
        r->l[n] = r->l[i];
        r->id[n++] = (uint32_t)i;
    }
    r->n = n;
}

static void exact_share(struct row *r, const float *key, float p)
{
    struct sl_cut cut;
    double share = fmax((double)p, (double)FLT_MIN);
    if (sl_select_exactly(&r->select, key, r->e, r->n, share * exact_sum(r, r->e), &cut))
        exact_drop(r, key, &cut);
}

static void exact_typical(struct row *r, float m, float p)
{
    double sum = 0;
    for (size_t i = 0; i < r->n; i += SUM_BLOCK) {
        size_t n = r->n - i < SUM_BLOCK ? r->n - i : SUM_BLOCK;
        for (size_t j = i; j < i + n; j++)
            r->order[j] = r->e[j] > 0 ? r->l[j] - m : 0;
        sum += (double)r->k->dot16(r->e + i, r->order + i, n);
    }
    float mean = (float)(sum / exact_sum(r, r->e));
    for (size_t i = 0; i < r->n; i++)
        r->order[i] = -fabsf((r->l[i] - m) - mean);
    exact_share(r, r->order, p);
}

static void exact_filter(struct row *r, float m, const struct sl_sampling *p)
{
    struct sl_cut cut;
    if (p->top_k > 0 && p->top_k < r->n) {
        exact_list(r, p->top_k);
        if (sl_select_exactly(&r->select, r->l, NULL, r->n, (double)p->top_k, &cut))
            exact_drop(r, r->l, &cut);
    }
    exact_weights(r, r->e, m, 1);
    if (p->typical_p < 1)
        exact_typical(r, m, p->typical_p);
    if (p->top_p < 1)
        exact_share(r, r->e, p->top_p);
    float least = p->min_p * r->k->max(r->e, r->n);
    for (size_t i = 0; p->min_p > 0 && i < r->n; i++) {
        if (r->e[i] < least) {
            r->l[i] = -INFINITY;
            r->e[i] = 0;
        }
    }
}

/* The token in whose weight u · sum falls. */
static uint32_t exact_draw(const struct row *r, const float *w, double u)
{
    double target = u * exact_sum(r, w), run = 0;
    size_t i = 0, last = 0;
    for (; i + SUM_BLOCK < r->n; i += SUM_BLOCK) {
        double sum = (double)r->k->sum16(w + i, SUM_BLOCK);
        if (run + sum > target)
            break;
        run += sum;
    }
    for (size_t end = r->n - i < SUM_BLOCK ? r->n : i + SUM_BLOCK; i < end; i++) {
        last = w[i] > 0 ? i : last;
        run += (double)w[i];
        if (run > target)
            break;
    }
    return r->id[last];
}

uint32_t exact_choose(const float *l, size_t n, const struct sl_sampling *p, uint64_t i)
{
    struct row r = {.k = sl_kernels_find("ref"), .n = n};
    assert_true(sl_select_init(&r.select, n));
    r.select.k = r.k;
    r.l = malloc(n * sizeof *r.l);
    r.e = malloc(n * sizeof *r.e);
    r.order = malloc(n * sizeof *r.order);
    r.id = malloc(n * sizeof *r.id);
    memcpy(r.l, l, n * sizeof *l);
    for (size_t t = 0; t < n; t++)
        r.id[t] = (uint32_t)t;
    float m = r.k->max(l, n);
    bool filters = p->typical_p < 1 || p->top_p < 1 || p->min_p > 0;
    exact_filter(&r, m, p);
    if (!filters || p->temperature != 1)
        exact_weights(&r, r.e, r.k->max(r.l, r.n), p->temperature);
    uint32_t token = exact_draw(&r, r.e, slow_draw(p->seed, i));
    sl_select_done(&r.select);
    free(r.l);
    free(r.e);
    free(r.order);
    free(r.id);
    return token;
}

/* --- settings -----------------------------------------------------------------------------------
 */

/* The slow version of the counts and of what they do, on n_history tokens (oldest first). */
void slow_penalise(double *l, size_t n, const struct sl_sampling *p, const uint32_t *history,
                   size_t n_history)
{
    size_t window = p->penalty_last_n ? p->penalty_last_n : n_history;
    double *count = calloc(n, sizeof *count);
    for (size_t age = 0; age < window && age < n_history; age++)
        count[history[n_history - 1 - age]] += pow((double)p->penalty_decay, (double)age);
    for (size_t t = 0; t < n; t++) {
        if ((float)count[t] <= 0) /* never generated, or decayed to nothing */
            continue;
        double theta = (double)p->repetition_penalty;
        l[t] = l[t] > 0 ? l[t] / theta : l[t] * theta;
        l[t] -= (double)p->presence_penalty;
        l[t] -= (double)p->frequency_penalty * count[t];
    }
    for (size_t i = 0; i < p->n_bias; i++)
        l[p->bias[i].token] += (double)p->bias[i].bias;
    free(count);
}

void set_plain(struct sl_sampling *p, size_t n)
{
    (void)n;
    p->temperature = (float)exp(3 * slow_uniform() - 1.5);
}

void set_top_k(struct sl_sampling *p, size_t n)
{
    p->top_k = 1 + (slow_rnd(2) ? slow_rnd((uint32_t)n) : slow_rnd(20));
}

void set_top_p(struct sl_sampling *p, size_t n)
{
    (void)n;
    p->top_p = (float)slow_uniform();
}

void set_min_p(struct sl_sampling *p, size_t n)
{
    (void)n;
    p->min_p = (float)pow(slow_uniform(), 3);
}

void set_typical_p(struct sl_sampling *p, size_t n)
{
    (void)n;
    p->typical_p = (float)slow_uniform();
}

void set_all(struct sl_sampling *p, size_t n)
{
    if (slow_rnd(2))
        set_plain(p, n);
    if (slow_rnd(2))
        set_top_k(p, n);
    if (slow_rnd(2))
        set_top_p(p, n);
    if (slow_rnd(2))
        set_min_p(p, n);
    if (slow_rnd(2))
        set_typical_p(p, n);
}

void set_penalties(struct sl_sampling *p)
{
    static const uint32_t last_n[] = {0, 0, 1, 2, 5, 17, 64, SL_PENALTY_LAST_N_MAX};
    p->penalty_last_n = last_n[slow_rnd(8)];
    p->repetition_penalty = slow_rnd(2) ? 1 : (float)(0.5 + 1.5 * slow_uniform());
    p->presence_penalty = slow_rnd(2) ? 0 : (float)(4 * slow_uniform() - 2);
    p->frequency_penalty = slow_rnd(2) ? 0 : (float)(2 * slow_uniform() - 1);
    p->penalty_decay = slow_rnd(2) ? 1 : (float)slow_uniform();
}
