/* load_finish.c: the second half of loading: one allocation, then every tensor is hashed, checked
 * and packed (load_job.c), and the fingerprint taken. See load.h.
 *
 * Threads take tensors from a common counter, in order of their names; each touches only its own
 * tensors' memory. Which thread took which does not show: the fingerprint is taken over the
 * tensors' digests in order of their names, and the error that is reported is the first one in that
 * order.
 *
 * Fingerprint: XXH3-128 over the architecture's name, then what was chosen and is not the default
 * (load_choice.c), then per tensor that the model uses, sorted by name: name, element type, shape,
 * exponent where there is one, XXH3-128 of the elements (row-major, as the file has them; of
 * blocks, as they lie); then the settings that it asked for, with their values. The container and
 * the type that weights are kept in do not enter. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Inline: the state's size is known then, and it can lie on the stack. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/base/mem.h"
#include "engine/converted.h"
#include "engine/formats/coded.h"
#include "engine/load_priv.h"
#include "engine/workers.h"

enum { THREADS_MAX = 8 };

struct crew {
    struct sl_load *l;
    unsigned char *arena;
    atomic_size_t next;
};

static void crew_part(void *arg, size_t part, size_t n_parts)
{
    (void)part, (void)n_parts;
    struct crew *c = arg;
    size_t i;
    while ((i = atomic_fetch_add(&c->next, 1)) < c->l->n_jobs)
        sl_load_job_run(&c->l->jobs[i], c->l->tensors, c->arena);
}

/* By name; parts of one tensor in the order of the tensor. */
static int by_name(const void *a, const void *b)
{
    const struct sl_load_job *x = a, *y = b;
    int c = strcmp(x->t->name, y->t->name);
    return c ? c : (x->t->data > y->t->data) - (x->t->data < y->t->data);
}

static enum sl_code run_jobs(struct sl_load *l, unsigned char *arena)
{
    size_t n = sl_processors();
    struct sl_workers *w = NULL;
    enum sl_code rc = sl_workers_open(&w, n < THREADS_MAX ? n : THREADS_MAX, l->err);
    if (rc != SL_OK)
        return rc;
    struct crew crew = {.l = l, .arena = arena};
    atomic_init(&crew.next, 0);
    sl_workers_run(w, crew_part, &crew);
    sl_workers_close(w);
    return SL_OK;
}

/* What cannot be used, as the file has it. */
static float bad_value(const struct sl_load_job *j)
{
    const struct sl_tensor *t = j->t;
    float block[SL_BLOCK_WEIGHTS_MAX];
    ptrdiff_t at = 0;
    size_t n = sl_block_weights(t->block), rest = j->bad;
    if (t->block) { /* counted as they lie */
        sl_tensor_values(t, (ptrdiff_t)(rest / n * n), n, block);
        return block[rest % n];
    }
    for (unsigned a = t->rank; a-- > 0; rest /= t->shape[a])
        at += (ptrdiff_t)(rest % t->shape[a]) * t->stride[a];
    sl_tensor_values(t, at, 1, block);
    return block[0];
}

/* The first job's error, in words. */
static void report(struct sl_load *l)
{
    for (size_t i = 0; i < l->n_jobs && l->code == SL_OK; i++) {
        const struct sl_load_job *j = &l->jobs[i];
        if (j->code == SL_E_NO_MEMORY)
            sl_load_fail(l, SL_E_NO_MEMORY, "no memory to read tensor %s", j->t->name);
        if (j->code != SL_E_MODEL_INVALID)
            continue;
        if (j->bad_scale) {
            sl_load_fail(l, SL_E_MODEL_INVALID,
                         "tensor %s%s holds a number that is not finite (element %zu)", j->t->name,
                         sl_coded_suffix(j->t->dtype, SL_BLOCK_NONE), j->bad);
            continue;
        }
        float v = bad_value(j);
        const char *name = j->t->origin ? j->t->origin : j->t->name;
        if (isfinite(v))
            sl_load_fail(l, SL_E_MODEL_INVALID,
                         "tensor %s holds %g (element %zu), too large for %s", name, (double)v,
                         j->bad, sl_dtype_name(j->type));
        else
            sl_load_fail(l, SL_E_MODEL_INVALID,
                         "tensor %s holds %s (element %zu); every weight must be finite", name,
                         isnan(v) ? "NaN"
                         : v > 0  ? "inf"
                                  : "-inf",
                         j->bad);
    }
}

static void update_u64(XXH3_state_t *x, uint64_t v)
{
    unsigned char b[8];
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (unsigned char)(v >> (8 * i));
    XXH3_128bits_update(x, b, sizeof b);
}

static void fingerprint(const struct sl_load *l, const char *arch, unsigned char ret[16])
{
    XXH3_state_t x;
    XXH3_128bits_reset(&x);
    XXH3_128bits_update(&x, arch, strlen(arch) + 1);
    for (size_t i = 0; l->choices && l->choices[i].name; i++) {
        const struct sl_choice *c = &l->choices[i];
        if (l->chosen[i] == 0)
            continue;
        XXH3_128bits_update(&x, c->name, strlen(c->name) + 1);
        XXH3_128bits_update(&x, c->values[l->chosen[i]], strlen(c->values[l->chosen[i]]) + 1);
    }
    for (size_t i = 0; i < l->n_jobs; i++) {
        const struct sl_tensor *t = l->jobs[i].t;
        const char *type = sl_tensor_type(t);
        XXH3_128bits_update(&x, t->name, strlen(t->name) + 1);
        XXH3_128bits_update(&x, type, strlen(type) + 1);
        update_u64(&x, t->rank);
        for (unsigned a = 0; a < t->rank; a++)
            update_u64(&x, t->shape[a]);
        if (t->exponent)
            update_u64(&x, (uint64_t)t->exponent);
        XXH3_128bits_update(&x, l->jobs[i].digest, sizeof l->jobs[i].digest);
    }
    if (l->n_said > 0)
        XXH3_128bits_update(&x, l->said, l->n_said);
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(&x));
    memcpy(ret, c.digest, sizeof c.digest);
}

static void summarise(const struct sl_load *l, struct sl_loaded *ret)
{
    uint64_t n_of[SL_DTYPE_KINDS] = {0};
    for (size_t i = 0; i < l->n_jobs; i++) {
        const struct sl_load_job *j = &l->jobs[i];
        if (j->kind == SL_JOB_MATRIX) /* 5 bits are those of a Q4 model's head */
            n_of[j->type == SL_DTYPE_Q5 ? SL_DTYPE_Q4 : j->type] += j->t->n_elements;
    }
    for (size_t i = 0; i < l->tensors->n; i++) {
        bool used = l->marks[i] == SL_MARK_USED;
        ret->n_params += used ? l->tensors->v[i].n_elements : 0;
        ret->n_unused += !used && strcmp(l->tensors->v[i].name, SL_CONVERTED_TENSOR) != 0;
    }
    for (int t = 0; t < SL_DTYPE_KINDS; t++)
        if (n_of[t] > n_of[ret->weights])
            ret->weights = (enum sl_dtype)t;
    if (l->weights != SL_DTYPE_NONE) /* small matrices stay what they are beside Q8 and Q4 */
        ret->weights = l->weights;
}

enum sl_code sl_load_measure(struct sl_load *l, const char *arch, unsigned char ret[16])
{
    size_t bytes = 0;
    if (l->code != SL_OK)
        return l->code;
    for (size_t i = 0; i < l->n_jobs; i++) {
        struct sl_load_job *j = &l->jobs[i];
        j->copied = j->map != NULL; /* what it gives can only be seen in a copy */
        j->offset = bytes;
        bytes += j->copied ? sl_whole_panels(j->t->n_elements) * sizeof(float) : 0;
    }
    unsigned char *arena = sl_aligned_calloc(bytes);
    if (!arena)
        return sl_fail(l->err, SL_E_NO_MEMORY, "%.160s: no memory to check its values", l->name);
    qsort(l->jobs, l->n_jobs, sizeof *l->jobs, by_name);
    enum sl_code rc = run_jobs(l, arena);
    if (rc == SL_OK)
        report(l);
    if (rc == SL_OK && l->code == SL_OK)
        fingerprint(l, arch, ret);
    sl_free(arena);
    return rc == SL_OK ? l->code : rc;
}

enum sl_code sl_load_finish(struct sl_load *l, const char *arch, struct sl_loaded *ret)
{
    if (l->code != SL_OK)
        return l->code;
    struct sl_loaded got = {.arena_bytes = l->arena_bytes};
    enum sl_code rc;
    got.arena = sl_huge_alloc(l->arena_bytes);
    if (!got.arena)
        return sl_fail(l->err, SL_E_NO_MEMORY, "%.160s: no memory for %zu bytes of weights",
                       l->name, l->arena_bytes);
    qsort(l->jobs, l->n_jobs, sizeof *l->jobs, by_name);
    rc = run_jobs(l, got.arena);
    if (rc != SL_OK)
        goto out;
    report(l);
    rc = l->code;
    if (rc != SL_OK)
        goto out;
    fingerprint(l, arch, got.fingerprint);
    for (size_t i = 0; i < l->n_jobs; i++) {
        const struct sl_load_job *j = &l->jobs[i];
        *j->at = j->copied ? (unsigned char *)got.arena + j->offset : j->t->data;
    }
    summarise(l, &got);
    *ret = got;
    return SL_OK;
out:
    sl_free(got.arena);
    return rc;
}
