/* memory.c: see memory.h.
 *
 * Half-lives: in every rule the next state is linear in the last one, given the tokens' keys and
 * decays, and these do not depend on the layer's own matrices. So the difference of two states that
 * were fed alike is A_n … A_1 times what it was at first, whatever its size, as long as only one
 * layer was disturbed: the layers above see other inputs then. Hence one copy of the state per
 * layer, all in one batch beside the undisturbed one. */
#include "slate/memory.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/blas.h"
#include "engine/model_priv.h"

/* The matrices of one tensor of the state; n 0: it holds none. */
struct matrices {
    const struct sl_state_tensor *t;
    size_t layer, n, rows, cols;
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static struct matrices matrices_of(const struct sl_state_tensor *t)
{
    struct matrices v = {.t = t};
    bool is_matrix = t->rank == 3 && strstr(t->name, ".mixer.");
    if (t->dtype != SL_DTYPE_F32 || !(is_matrix || ends_with(t->name, ".mixer.num")))
        return v;
    for (const char *s = t->name + strlen("layers."); *s >= '0' && *s <= '9'; s++)
        v.layer = 10 * v.layer + (size_t)(*s - '0');
    v.cols = t->shape[t->rank - 1];
    v.rows = t->rank > 1 ? t->shape[t->rank - 2] : 1;
    v.n = t->rank > 2 ? t->shape[0] : 1;
    return v;
}

size_t sl_memory_heads(const struct sl_model *m)
{
    size_t n, heads = 0;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    for (size_t i = 0; i < n; i++)
        heads += matrices_of(&t[i]).n;
    return heads;
}

static float *matrix_at(const struct matrices *v, const void *state, size_t head)
{
    const unsigned char *p = (const unsigned char *)state + v->t->offset;
    return (float *)(uintptr_t)p + head * v->rows * v->cols;
}

/* --- norm and rank -----------------------------------------------------------------------------*/

/* e^H of the shares of n values ≥ 0. */
static double effective_rank(const double *v, size_t n)
{
    double sum = 0, entropy = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    for (size_t i = 0; i < n; i++)
        if (v[i] > 0)
            entropy -= v[i] / sum * log(v[i] / sum);
    return sum > 0 ? exp(entropy) : 0;
}

static enum sl_code measure_one(const struct matrices *v, const void *state, size_t head,
                                double *copy, double *values, struct sl_memory_head *ret,
                                struct sl_error *err)
{
    const float *x = matrix_at(v, state, head);
    size_t n = v->rows * v->cols, side = v->rows < v->cols ? v->rows : v->cols;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        copy[i] = (double)x[i];
        sum += copy[i] * copy[i];
    }
    if (!isfinite(sum))
        return sl_fail(err, SL_E_MODEL_NOT_FINITE,
                       "layer %zu, head %zu of the state holds a value that is no number", v->layer,
                       head);
    if (!sl_singular_values(values, copy, v->rows, v->cols))
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the singular values of a state");
    *ret = (struct sl_memory_head){.layer = v->layer,
                                   .head = head,
                                   .rows = v->rows,
                                   .cols = v->cols,
                                   .norm = sqrt(sum),
                                   .effective_rank = effective_rank(values, side),
                                   .half_life = (double)NAN};
    return SL_OK;
}

enum sl_code sl_memory_measure(const struct sl_model *m, const void *state,
                               struct sl_memory_head *ret, struct sl_error *err)
{
    size_t n, most = 0;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    for (size_t i = 0; i < n; i++) {
        struct matrices v = matrices_of(&t[i]);
        most = v.n && v.rows * v.cols > most ? v.rows * v.cols : most;
    }
    double *copy = sl_malloc(2 * most * sizeof *copy);
    if (!copy)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to measure a state");
    sl_blas_init();
    enum sl_code c = SL_OK;
    for (size_t i = 0; i < n && !c; i++) {
        struct matrices v = matrices_of(&t[i]);
        for (size_t h = 0; h < v.n && !c; h++)
            c = measure_one(&v, state, h, copy, copy + most, ret++, err);
    }
    sl_free(copy);
    return c;
}

/* --- half-lives --------------------------------------------------------------------------------*/

/* The undisturbed state, then one copy for each layer. */
struct copies {
    const struct sl_model *m;
    size_t n, bytes;
    unsigned char *states;
    float *logits;
    struct sl_segment *segments;
    struct sl_workers *workers;
    struct sl_forward *forward;
};

static void copies_done(struct copies *c)
{
    sl_forward_close(c->forward);
    sl_workers_close(c->workers);
    sl_free(c->segments);
    sl_free(c->logits);
    sl_free(c->states);
}

static enum sl_code copies_init(struct copies *c, const struct sl_model *m, const void *state,
                                struct sl_error *err)
{
    *c = (struct copies){.m = m, .n = m->info.n_layers + 1, .bytes = m->info.state_bytes};
    c->bytes = (c->bytes + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    c->states = sl_aligned_calloc(c->n * c->bytes);
    c->logits = sl_aligned_calloc(sl_model_logits_stride(m) * sizeof *c->logits);
    c->segments = sl_calloc(c->n, sizeof *c->segments);
    if (!c->states || !c->logits || !c->segments)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu copies of a state", c->n);
    enum sl_code rc = sl_workers_open(&c->workers, 1, err);
    if (!rc)
        rc = sl_forward_open(&c->forward, m, c->workers, c->n, c->n, err);
    for (size_t i = 0; i < c->n; i++)
        memcpy(c->states + i * c->bytes, state, m->info.state_bytes);
    return rc;
}

/* Adds to each matrix numbers of its own size, or of size 1 where it is zero, of either sign. */
static void disturb(const struct matrices *v, void *state)
{
    uint32_t seed = 1;
    for (size_t h = 0; h < v->n; h++) {
        float *x = matrix_at(v, state, h);
        size_t n = v->rows * v->cols;
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
        float size = sum > 0 ? (float)sqrt(sum / (double)n) : 1;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] += size * ((float)(seed >> 8) * 0x1p-23f - 1);
        }
    }
}

static double distance(const struct matrices *v, size_t head, const void *a, const void *b)
{
    const float *x = matrix_at(v, a, head), *y = matrix_at(v, b, head);
    double sum = 0;
    for (size_t i = 0; i < v->rows * v->cols; i++)
        sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sqrt(sum);
}

/* What is left of one matrix's disturbance. */
struct trace {
    double first;
    double left; /* of it, after `at` tokens; at 0: not seen yet */
    size_t at;
};

/* Below this share a disturbance is too small to be told from rounding. */
#define LEFT_MIN 1e-3

static void look(const struct copies *c, struct trace *v, size_t at)
{
    size_t n_tensors;
    const struct sl_state_tensor *t = sl_model_state_tensors(c->m, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        struct matrices x = matrices_of(&t[i]);
        for (size_t h = 0; h < x.n; h++, v++) {
            double d = distance(&x, h, c->states, c->states + (x.layer + 1) * c->bytes);
            if (at == 0)
                v->first = d;
            else if (v->at == 0 || d / v->first >= LEFT_MIN)
                *v = (struct trace){v->first, d / v->first, at};
        }
    }
}

/* left = 2^(-at / half-life). What is lost in rounding is not lost by the rule. */
static double half_life_of(const struct trace *v)
{
    if (!isfinite(v->left))
        return (double)NAN;
    if (v->left >= 1 - 1e-5)
        return (double)INFINITY;
    return v->left > 0 ? -(double)v->at / log2(v->left) : 0;
}

static void feed(struct copies *c, const uint32_t *tokens, size_t n_tokens, size_t n,
                 struct trace *v)
{
    uint32_t token;
    for (size_t k = 0; k < c->n; k++)
        c->segments[k] =
            (struct sl_segment){.state = c->states + k * c->bytes, .tokens = &token, .n_tokens = 1};
    c->segments[0].logits = c->logits;
    c->segments[0].n_logits = 1;
    for (size_t i = 0; i < n; i++) {
        if (i < n_tokens)
            token = tokens[i];
        sl_forward_run(c->forward, c->segments, c->n);
        if (i + 1 == n || (i & (i + 1)) == 0) /* after 1, 2, 4, … tokens */
            look(c, v, i + 1);
        token = 0;
        for (uint32_t k = 1; k < c->m->info.vocab_size; k++)
            token = c->logits[k] > c->logits[token] ? k : token;
    }
}

enum sl_code sl_memory_half_lives(const struct sl_model *m, const void *state,
                                  const uint32_t *tokens, size_t n_tokens, size_t n,
                                  struct sl_memory_head *ret, struct sl_error *err)
{
    assert(n_tokens >= 1);
    if (n > sl_model_room(m, state))
        return sl_fail(err, SL_E_CONTEXT_EXCEEDED,
                       "half-lives over %zu tokens: the model has %zu more positions", n,
                       sl_model_room(m, state));
    struct copies c;
    size_t n_tensors;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n_tensors);
    size_t n_heads = sl_memory_heads(m);
    struct trace *v = sl_calloc(n_heads, sizeof *v);
    if (!v)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to measure a state");
    enum sl_code rc = copies_init(&c, m, state, err);
    if (!rc) {
        for (size_t i = 0; i < n_tensors; i++) {
            struct matrices x = matrices_of(&t[i]);
            if (x.n)
                disturb(&x, c.states + (x.layer + 1) * c.bytes);
        }
        look(&c, v, 0);
        feed(&c, tokens, n_tokens, n, v);
        for (size_t h = 0; h < n_heads; h++)
            ret[h].half_life = half_life_of(&v[h]);
    }
    copies_done(&c);
    sl_free(v);
    return rc;
}
