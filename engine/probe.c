/* probe.c: memory rules by themselves. See slate/probe.h.
 *
 * A rule here is what its mixer does between the projections and the norms, on one head whose state
 * lies in one piece of memory: `s`, a matrix [features or keys][values], and what else it keeps.
 * The equations and their papers: engine/mixers/. */
#include "slate/probe.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/random.h"
#include "engine/kernels/kernels.h"

#define EPS_LINEAR 1e-10F
#define EPS_SOFTMAX 1e-4F
#define EPS_RELU 1e-3F
#define NONE -1e30F

struct sl_probe_memory {
    const struct rule *rule;
    const struct sl_kernels *k;
    size_t d, m;      /* channels; rows of s */
    size_t n_written; /* since it was empty */
    float *memory;    /* all of the following */
    float *state;     /* s, then z; n_state floats */
    size_t n_state;
    float *s, *z;         /* [m][d], [m]; RWKV-4: num and den */
    float *v_sum;         /* [d]; RWKV-4: peak */
    float *peak;          /* [1]: Performer's running maximum */
    float *decay;         /* [m], constant */
    float *projection;    /* [d][m]: Performer's */
    float *x, *f, *u, *t; /* scratch: [d], [m], [d], [m] */
};

struct rule {
    bool by_feature;   /* s has a row per feature, of which there are d·ln d */
    bool has_z;        /* a denominator */
    bool decays_alike; /* one decay for all channels; else, where it decays, one for each */
    void (*write)(struct sl_probe_memory *m, const float *key, const float *value);
    void (*read)(struct sl_probe_memory *m, const float *key, float *ret);
};

/* --- linear attention ---------------------------------------------------------------------------
 */

static void add_pair(struct sl_probe_memory *m, const float *decay, const float *key,
                     const float *value)
{
    m->k->state_step(m->t, m->s, decay, NULL, NULL, key, value, key, m->m, m->d);
}

static void write_linear(struct sl_probe_memory *m, const float *key, const float *value)
{
    add_pair(m, NULL, key, value);
}

static void read_plain(struct sl_probe_memory *m, const float *key, float *ret)
{
    m->k->state_read(ret, m->s, key, m->m, m->d);
}

static const float *elu_features(struct sl_probe_memory *m, const float *key)
{
    m->k->vscale(m->f, key, sqrtf((float)m->d), m->d);
    m->k->velu1(m->f, m->f, m->d);
    return m->f;
}

static void write_elu(struct sl_probe_memory *m, const float *key, const float *value)
{
    const float *f = elu_features(m, key);
    add_pair(m, NULL, f, value);
    m->k->vadd(m->z, m->z, f, m->m);
}

static void read_elu(struct sl_probe_memory *m, const float *key, float *ret)
{
    const float *f = elu_features(m, key);
    m->k->state_read(ret, m->s, f, m->m, m->d);
    m->k->vscale(ret, ret, 1 / (m->k->dot16(f, m->z, m->m) + EPS_LINEAR), m->d);
}

/* --- Performer ----------------------------------------------------------------------------------
 */

/* W x' in f; |x'|²/2 is returned. */
static float project(struct sl_probe_memory *m, const float *key)
{
    /* √d for the size of the channels, d^(-1/4) of the rule */
    m->k->vscale(m->x, key, sqrtf(sqrtf((float)m->d)), m->d);
    m->k->state_read(m->f, m->projection, m->x, m->d, m->m);
    return m->k->dot16(m->x, m->x, m->d) / 2;
}

static void exp_less(struct sl_probe_memory *m, float less)
{
    for (size_t i = 0; i < m->m; i++)
        m->f[i] -= less;
    m->k->vexp(m->f, m->f, m->m);
}

static void write_softmax(struct sl_probe_memory *m, const float *key, const float *value)
{
    float half = project(m, key), largest = m->k->max(m->f, m->m), old = *m->peak;
    float now = old > largest ? old : largest, shrink = old - now;
    m->k->vexp(&shrink, &shrink, 1);
    for (size_t i = 0; i < m->m; i++)
        m->t[i] = shrink;
    *m->peak = now;
    exp_less(m, half + now);
    m->k->state_step(m->u, m->s, m->t, NULL, NULL, m->f, value, m->f, m->m, m->d);
    m->k->vscale(m->z, m->z, shrink, m->m);
    m->k->vadd(m->z, m->z, m->f, m->m);
    m->k->vadd(m->v_sum, m->v_sum, value, m->d);
}

static void read_softmax(struct sl_probe_memory *m, const float *key, float *ret)
{
    float half = project(m, key);
    exp_less(m, half + m->k->max(m->f, m->m));
    for (size_t i = 0; i < m->m; i++)
        m->f[i] += EPS_SOFTMAX;
    float each = EPS_SOFTMAX * m->k->sum16(m->f, m->m);
    m->k->state_read(ret, m->s, m->f, m->m, m->d);
    float below = m->k->dot16(m->f, m->z, m->m) + each * (float)m->n_written;
    for (size_t i = 0; i < m->d; i++)
        ret[i] = (ret[i] + each * m->v_sum[i]) / below;
}

static const float *relu_features(struct sl_probe_memory *m, const float *key)
{
    (void)project(m, key);
    m->k->vrelu(m->f, m->f, m->m);
    for (size_t i = 0; i < m->m; i++)
        m->f[i] += EPS_RELU;
    return m->f;
}

static void write_relu(struct sl_probe_memory *m, const float *key, const float *value)
{
    const float *f = relu_features(m, key);
    m->k->state_step(m->u, m->s, NULL, NULL, NULL, f, value, f, m->m, m->d);
    m->k->vadd(m->z, m->z, f, m->m);
}

static void read_relu(struct sl_probe_memory *m, const float *key, float *ret)
{
    const float *f = relu_features(m, key);
    m->k->state_read(ret, m->s, f, m->m, m->d);
    m->k->vscale(ret, ret, 1 / m->k->dot16(f, m->z, m->m), m->d);
}

/* --- decays -------------------------------------------------------------------------------------
 */

static void write_decay(struct sl_probe_memory *m, const float *key, const float *value)
{
    add_pair(m, m->decay, key, value);
}

/* RWKV-4: s, z and v_sum are num, den and peak; nothing is addressed by a key. */
static void write_rwkv4(struct sl_probe_memory *m, const float *key, const float *value)
{
    static const float no_bonus[SL_PROBE_SIZE_MAX];
    m->k->vscale(m->x, key, sqrtf((float)m->d), m->d);
    m->k->wkv4(m->u, m->s, m->z, m->v_sum, m->decay, no_bonus, m->x, value, m->d);
}

static void read_rwkv4(struct sl_probe_memory *m, const float *key, float *ret)
{
    (void)key;
    for (size_t i = 0; i < m->d; i++)
        ret[i] = m->s[i] / m->z[i];
}

/* --- erasing ------------------------------------------------------------------------------------
 */

/* u = v - shrink·Sᵀk */
static void correction(struct sl_probe_memory *m, const float *key, const float *value,
                       float shrink)
{
    m->k->state_read(m->u, m->s, key, m->m, m->d);
    m->k->vscale(m->u, m->u, -shrink, m->d);
    m->k->vadd(m->u, m->u, value, m->d);
}

static void write_delta(struct sl_probe_memory *m, const float *key, const float *value)
{
    correction(m, key, value, 1);
    add_pair(m, NULL, key, m->u);
}

static void write_gated_delta(struct sl_probe_memory *m, const float *key, const float *value)
{
    correction(m, key, value, m->decay[0]);
    add_pair(m, m->decay, key, m->u);
}

static void write_rwkv7(struct sl_probe_memory *m, const float *key, const float *value)
{
    m->k->vscale(m->x, key, -1, m->d);
    m->k->state_read(m->u, m->s, m->x, m->m, m->d);
    m->k->state_step(m->t, m->s, m->decay, key, m->u, key, value, key, m->m, m->d);
}

/* --- the table ----------------------------------------------------------------------------------
 */

const struct sl_probe_rule sl_probe_rules[] = {
    {"linear", "linear attention", "S + k v: only adds"},
    {"linear_elu", "linear attention, elu + 1", "S + φ(k) v, a weighted mean"},
    {"performer", "Performer, softmax", "S + φ(k) v, a weighted mean; random features, d ln d"},
    {"performer_relu", "Performer, ReLU", "S + φ(k) v, a weighted mean; random features, d ln d"},
    {"rwkv4", "RWKV-4", "a decaying mean per channel; no keys"},
    {"retnet", "RetNet, Mamba-2", "γ S + k v: one decay"},
    {"gla", "GLA, RWKV-5, RWKV-6", "diag(w) S + k v: a decay per channel"},
    {"delta_net", "DeltaNet", "S + k (v - S k): erases what the key had"},
    {"gated_delta_net", "Gated DeltaNet", "γ S + k (v - γ S k)"},
    {"rwkv7", "RWKV-7", "diag(w) S + k (v - S k): the old value is that before the decay"},
    {0},
};

static const struct rule table[] = {
    {.write = write_linear, .read = read_plain},
    {.write = write_elu, .read = read_elu, .has_z = true},
    {.write = write_softmax, .read = read_softmax, .has_z = true, .by_feature = true},
    {.write = write_relu, .read = read_relu, .has_z = true, .by_feature = true},
    {.write = write_rwkv4, .read = read_rwkv4, .has_z = true},
    {.write = write_decay, .read = read_plain, .decays_alike = true},
    {.write = write_decay, .read = read_plain},
    {.write = write_delta, .read = read_plain},
    {.write = write_gated_delta, .read = read_plain, .decays_alike = true},
    {.write = write_rwkv7, .read = read_plain},
};

enum { N_RULES = sizeof table / sizeof *table };
static_assert(sizeof sl_probe_rules / sizeof *sl_probe_rules == N_RULES + 1, "a row in each table");

/* --- opening ------------------------------------------------------------------------------------
 */

static double gaussian(uint64_t *seed)
{
    double r = sqrt(-2 * log(sl_random_unit(seed)));
    return r * cos(6.283185307179586477 * sl_random_unit(seed));
}

/* Blocks of d orthogonal rows, each as long as a Gaussian vector (the paper's orthogonal features);
 * kept with features along the rows of the memory: [d][m]. */
static void fill_projection(struct sl_probe_memory *m, uint64_t seed)
{
    float *w = m->projection;
    for (size_t f = 0; f < m->m; f++) {
        double length = 0, norm = 0;
        for (size_t i = 0; i < m->d; i++) {
            double g = gaussian(&seed);
            length += g * g;
            w[i * m->m + f] = (float)gaussian(&seed);
        }
        for (size_t o = f / m->d * m->d; o < f; o++) { /* less its part along the earlier ones */
            double along = 0, own = 0;
            for (size_t i = 0; i < m->d; i++) {
                along += (double)w[i * m->m + o] * (double)w[i * m->m + f];
                own += (double)w[i * m->m + o] * (double)w[i * m->m + o];
            }
            for (size_t i = 0; i < m->d; i++)
                w[i * m->m + f] -= (float)(along / own * (double)w[i * m->m + o]);
        }
        for (size_t i = 0; i < m->d; i++)
            norm += (double)w[i * m->m + f] * (double)w[i * m->m + f];
        for (size_t i = 0; i < m->d; i++)
            w[i * m->m + f] *= (float)sqrt(length / norm);
    }
}

/* Decays per token; RWKV-4 wants their logarithms. */
static void fill_decay(struct sl_probe_memory *m)
{
    bool logarithm = m->rule->write == write_rwkv4;
    for (size_t i = 0; i < m->m; i++) {
        double along = m->m > 1 ? 2 * (double)i / (double)(m->m - 1) - 1 : 0;
        double half_life = SL_PROBE_HALF_LIFE * (m->rule->decays_alike ? 1 : pow(16, along));
        double l = -log(2) / half_life;
        m->decay[i] = (float)(logarithm ? l : exp(l));
    }
}

enum sl_code sl_probe_memory_open(struct sl_probe_memory **ret, size_t rule, size_t size,
                                  const char *kernels, uint64_t seed, struct sl_error *err)
{
    const struct sl_kernels *k = sl_kernels_find(kernels);
    if (rule >= N_RULES || size < 2 || size > SL_PROBE_SIZE_MAX || size % 2 != 0 || !k)
        return sl_fail(
            err, SL_E_INVALID_VALUE,
            "no memory of rule %zu with %zu channels on kernels \"%.40s\"; sizes are even "
            "and at most %d",
            rule, size, kernels ? kernels : "", SL_PROBE_SIZE_MAX);
    struct sl_probe_memory *m = sl_calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a probe");
    m->rule = &table[rule];
    m->k = k;
    m->d = size;
    m->m = m->rule->by_feature ? (size_t)((double)size * log((double)size)) : size;
    /* Whole vectors everywhere, so that each begins aligned. */
    size_t d = sl_whole_panels(m->d), f = sl_whole_panels(m->m);
    size_t matrix = sl_whole_panels(m->m * m->d);
    m->n_state = matrix + f + d + SL_PANEL;
    m->memory =
        sl_aligned_calloc((m->n_state + matrix + 3 * f + 2 * d + SL_PANEL) * sizeof *m->memory);
    if (!m->memory) {
        sl_free(m);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a probe of %zu channels", size);
    }
    m->state = m->s = m->memory;
    m->z = m->s + matrix, m->v_sum = m->z + f, m->peak = m->v_sum + d;
    m->projection = m->peak + SL_PANEL, m->decay = m->projection + matrix;
    m->f = m->decay + f, m->t = m->f + f, m->x = m->t + f, m->u = m->x + d;
    if (m->rule->by_feature)
        fill_projection(m, seed);
    fill_decay(m);
    sl_probe_memory_clear(m);
    *ret = m;
    return SL_OK;
}

void sl_probe_memory_close(struct sl_probe_memory *m)
{
    if (!m)
        return;
    sl_free(m->memory);
    sl_free(m);
}

void sl_probe_memory_clear(struct sl_probe_memory *m)
{
    memset(m->state, 0, m->n_state * sizeof *m->state);
    m->n_written = 0;
    *m->peak = NONE;
    for (size_t i = 0; m->rule->write == write_rwkv4 && i < m->d; i++)
        m->v_sum[i] = NONE;
}

void sl_probe_memory_write(struct sl_probe_memory *m, const float *key, const float *value)
{
    m->rule->write(m, key, value);
    m->n_written++;
}

void sl_probe_memory_read(struct sl_probe_memory *m, const float *key, float *ret_value)
{
    m->rule->read(m, key, ret_value);
}

size_t sl_probe_memory_values(const struct sl_probe_memory *m)
{
    if (m->rule->write == write_rwkv4)
        return 3 * m->d;
    bool max = m->rule->write == write_softmax;
    return m->m * m->d + (m->rule->has_z ? m->m : 0) + (max ? m->d + 1 : 0);
}
