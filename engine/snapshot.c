/* snapshot.c: what writing and reading snapshots share: which tensors a file has, and the digest of
 * its metadata. See snapshot.h for the format. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/base/mem.h"
#include "engine/model_priv.h"
#include "engine/snapshot_priv.h"

/* All kernels give the same bits (kernels.h), on every machine, so only the contract has a name:
 * a change of the order of additions or of a polynomial counts its number up. The forms of
 * --numerics fast are not one contract: each has its name. With quantised weights the codes that
 * are made of the file's are part of the contract, and have a number of their own. */
const char *sl_numerics(const struct sl_model *m)
{
#define OF_FORMS(x)                                                                                \
    {                                                                                              \
        "slate-1 exact" x, "slate-1 fast chunkwise" x, "slate-1 fast parallel" x                   \
    }
    static const char *const plain[SL_FORM_COUNT] = OF_FORMS("");
    static const char *const names[][SL_FORM_COUNT] = {
        [SL_DTYPE_Q8] = OF_FORMS(", q8-2"),     [SL_DTYPE_Q4] = OF_FORMS(", q4-2"),
        [SL_DTYPE_Q4_0] = OF_FORMS(", q4_0-1"), [SL_DTYPE_Q4_K] = OF_FORMS(", q4_k-1"),
        [SL_DTYPE_Q6_K] = OF_FORMS(", q6_k-1"),
    };
#undef OF_FORMS
    enum sl_dtype t = m->info.weights;
    return (sl_is_quantised(t) ? names[t] : plain)[m->form];
}

void sl_snapshot_hex(char ret[SL_SNAPSHOT_HEX], const unsigned char bytes[16])
{
    for (size_t i = 0; i < 32; i++)
        ret[i] = "0123456789abcdef"[bytes[i / 2] >> (i % 2 ? 0 : 4) & 15];
    ret[32] = '\0';
}

static int by_key(const void *a, const void *b)
{
    const struct sl_tensor_meta *x = a, *y = b;
    return strcmp(x->key, y->key);
}

void sl_snapshot_meta_digest(struct sl_tensor_meta *v, size_t n, unsigned char ret[16])
{
    XXH3_state_t x;
    XXH3_128bits_reset(&x);
    if (n)
        qsort(v, n, sizeof *v, by_key);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(v[i].key, "metadata.xxh3") == 0 || strcmp(v[i].key, "payload.xxh3") == 0)
            continue;
        XXH3_128bits_update(&x, v[i].key, strlen(v[i].key) + 1);
        XXH3_128bits_update(&x, v[i].value, strlen(v[i].value) + 1);
    }
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(&x));
    memcpy(ret, c.digest, sizeof c.digest);
}

size_t sl_state_tensor_elements(const struct sl_state_tensor *t)
{
    size_t n = 1;
    for (unsigned i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

/* --- the plan of a file --- */

static void add_counter(struct sl_snapshot_entry *e)
{
    *e = (struct sl_snapshot_entry){.name = SL_SNAPSHOT_COUNTER,
                                    .part = SL_PART_COUNTER,
                                    .dtype = SL_DTYPE_I64,
                                    .rank = 1,
                                    .shape = {1},
                                    .bytes = 8};
}

static void add_values(struct sl_snapshot_entry *e, const struct sl_state_tensor *t,
                       enum sl_dtype dtype)
{
    *e = (struct sl_snapshot_entry){
        .part = SL_PART_VALUES, .tensor = t, .dtype = dtype, .rank = t->rank};
    memcpy(e->name, t->name, sizeof t->name);
    memcpy(e->shape, t->shape, sizeof e->shape);
    e->bytes = sl_state_tensor_elements(t) * sl_dtype_size(dtype);
}

static void add_scales(struct sl_snapshot_entry *e, const struct sl_state_tensor *t)
{
    *e = (struct sl_snapshot_entry){
        .part = SL_PART_SCALES, .tensor = t, .dtype = SL_DTYPE_F32, .rank = t->rank - 1};
    (void)snprintf(e->name, sizeof e->name, "%s" SL_SNAPSHOT_SCALE, t->name);
    memcpy(e->shape, t->shape, sizeof e->shape);
    if (t->rank == 1)
        e->rank = 1, e->shape[0] = 1;
    e->bytes = sizeof(float);
    for (unsigned i = 0; i < e->rank; i++)
        e->bytes *= e->shape[i];
}

bool sl_snapshot_plan(const struct sl_model *m, enum sl_dtype dtype, struct sl_snapshot_entry **ret,
                      size_t *ret_n, size_t *ret_bytes)
{
    assert(dtype == SL_DTYPE_F32 || dtype == SL_DTYPE_BF16 || dtype == SL_DTYPE_I8);
    size_t n_state, n = 0, at = 0;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n_state);
    struct sl_snapshot_entry *v = sl_calloc(2 * n_state + 1, sizeof *v);
    if (!v)
        return false;
    add_counter(&v[n++]);
    for (size_t i = 0; i < n_state; i++)
        if (t[i].dtype == SL_DTYPE_I64)
            add_values(&v[n++], &t[i], SL_DTYPE_I64);
    for (size_t i = 0; i < n_state && dtype == SL_DTYPE_I8; i++)
        if (t[i].dtype == SL_DTYPE_F32)
            add_scales(&v[n++], &t[i]);
    for (size_t i = 0; i < n_state; i++)
        if (t[i].dtype == SL_DTYPE_F32)
            add_values(&v[n++], &t[i], dtype);
    for (size_t i = 0; i < n; i++) {
        v[i].begin = at;
        at += v[i].bytes; /* below SIZE_MAX: state_bytes is, and this is at most five times it */
    }
    *ret = v;
    *ret_n = n;
    *ret_bytes = at;
    return true;
}

size_t sl_snapshot_bytes_max(const struct sl_model *m)
{
    /* As F32 it has at most what a slot has. As I8 with scales it has more only where rows are of
     * one value: five bytes for four. */
    return 8 + SL_SNAPSHOT_HEADER_MAX + sl_model_info(m)->state_bytes / 4 * 5 + 8;
}

bool sl_model_state_is_finite(const struct sl_model *m, const void *state)
{
    size_t n;
    const struct sl_state_tensor *t = sl_model_state_tensors(m, &n);
    for (size_t i = 0; i < n; i++)
        if (t[i].dtype == SL_DTYPE_F32 &&
            !sl_snapshot_values_good((const unsigned char *)state + t[i].offset, SL_DTYPE_F32,
                                     false, sl_state_tensor_elements(&t[i])))
            return false;
    return true;
}
