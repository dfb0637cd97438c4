/* seeded.c: see seeded.h. */
#include "tests/support/seeded.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kernels/convert.h"
#include "engine/model_priv.h"
#include "tests/support/must.h"

/* --- the list -----------------------------------------------------------------------------------
 */

static struct seeded_tensor *add(struct seeded *s, enum sl_dtype dtype, unsigned rank,
                                 const size_t *shape, double mean, double spread, const char *fmt,
                                 ...) SL_PRINTF(7, 8);

static struct seeded_tensor *add(struct seeded *s, enum sl_dtype dtype, unsigned rank,
                                 const size_t *shape, double mean, double spread, const char *fmt,
                                 ...)
{
    s->v = must_have(realloc(s->v, (s->n + 1) * sizeof *s->v));
    struct seeded_tensor *t = &s->v[s->n++];
    *t = (struct seeded_tensor){.dtype = dtype,
                                .rank = rank,
                                .mean = (float)mean,
                                .spread = (float)spread,
                                .plant_at = SIZE_MAX};
    memcpy(t->shape, shape, rank * sizeof *shape);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    return t;
}

struct seeded_tensor *seeded_add(struct seeded *s, enum sl_dtype dtype, unsigned rank,
                                 const size_t *shape, double mean, double spread, const char *name)
{
    return add(s, dtype, rank, shape, mean, spread, "%s", name);
}

/* A matrix that keeps the size of what goes through it, times `gain`. */
static void add_matrix(struct seeded *s, const struct seeded_shape *c, size_t rows, size_t cols,
                       size_t n_in, double gain, size_t i, const char *name)
{
    add(s, c->dtype, 2, (size_t[]){rows, cols}, 0, gain / sqrt((double)n_in), "blocks.%zu.%s", i,
        name);
}

static struct seeded_tensor *add_vector(struct seeded *s, const struct seeded_shape *c, double mean,
                                        double spread, size_t i, const char *name)
{
    return add(s, c->dtype, 3, (size_t[]){1, 1, c->d_model}, mean, spread, "blocks.%zu.%s", i,
               name);
}

static void add_norm(struct seeded *s, const struct seeded_shape *c, const char *prefix,
                     const char *name)
{
    add(s, c->dtype, 1, &c->d_model, 1, 0.1, "%s%s.weight", prefix, name);
    add(s, c->dtype, 1, &c->d_model, 0, 0.05, "%s%s.bias", prefix, name);
}

static void add_low_rank(struct seeded *s, const struct seeded_shape *c, size_t i, char letter,
                         size_t rank, double gain)
{
    char name[16];
    (void)snprintf(name, sizeof name, "att.%c1", letter);
    add_matrix(s, c, c->d_model, rank, c->d_model, 1, i, name);
    (void)snprintf(name, sizeof name, "att.%c2", letter);
    add_matrix(s, c, rank, c->d_model, rank, gain, i, name);
}

static void add_layer(struct seeded *s, const struct seeded_shape *c, size_t i)
{
    size_t d = c->d_model;
    char prefix[48], name[16];
    (void)snprintf(prefix, sizeof prefix, "blocks.%zu.", i);
    if (i == 0)
        add_norm(s, c, prefix, "ln0");
    add_norm(s, c, prefix, "ln1");
    add_norm(s, c, prefix, "ln2");
    for (const char *x = "rwkvag"; *x; x++) {
        (void)snprintf(name, sizeof name, "att.x_%c", *x);
        add_vector(s, c, 0.5, 0.28, i, name);
    }
    /* Decays per token from 0.55 to 0.9989: half of it forgotten after 1 … 600 tokens. */
    add_vector(s, c, -2.2, 0.3, i, "att.w0")->ramp = 4;
    add_low_rank(s, c, i, 'w', c->rank_w, 0.5);
    add_vector(s, c, 0, 1, i, "att.a0");
    add_low_rank(s, c, i, 'a', c->rank_a, 1);
    if (i > 0) {
        add_vector(s, c, 0, 1, i, "att.v0");
        add_low_rank(s, c, i, 'v', c->rank_v, 1);
    }
    add_low_rank(s, c, i, 'g', c->rank_g, 2);
    add_vector(s, c, 0.85, 0.1, i, "att.k_k");
    add_vector(s, c, 1, 0.1, i, "att.k_a");
    add(s, c->dtype, 2, (size_t[]){d / c->head_size, c->head_size}, 0, 0.2, "blocks.%zu.att.r_k",
        i);
    add_matrix(s, c, d, d, d, 1, i, "att.receptance.weight");
    add_matrix(s, c, d, d, d, 1, i, "att.key.weight");
    add_matrix(s, c, d, d, d, 1, i, "att.value.weight");
    add_matrix(s, c, d, d, d, 0.5, i, "att.output.weight");
    (void)snprintf(prefix, sizeof prefix, "blocks.%zu.att.", i);
    add_norm(s, c, prefix, "ln_x");
    add_vector(s, c, 0.5, 0.28, i, "ffn.x_k");
    add_matrix(s, c, c->d_ffn, d, d, 1, i, "ffn.key.weight");
    add_matrix(s, c, d, c->d_ffn, c->d_ffn, 0.5, i, "ffn.value.weight");
}

void seeded_init(struct seeded *s, const struct seeded_shape *c)
{
    *s = (struct seeded){.seed = c->seed};
    add(s, c->dtype, 2, (size_t[]){c->vocab_size, c->d_model}, 0, 1, "emb.weight");
    for (size_t i = 0; i < c->n_layers; i++)
        add_layer(s, c, i);
    add_norm(s, c, "", "ln_out");
    add(s, c->dtype, 2, (size_t[]){c->vocab_size, c->d_model}, 0, 2 / sqrt((double)c->d_model),
        "head.weight");
}

void seeded_done(struct seeded *s)
{
    free(s->v);
    *s = (struct seeded){0};
}

struct seeded_tensor *seeded_find(struct seeded *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->v[i].name, name) == 0)
            return &s->v[i];
    return NULL;
}

void seeded_drop(struct seeded *s, const char *name)
{
    struct seeded_tensor *t = must_have(seeded_find(s, name));
    *t = s->v[--s->n];
}

/* --- values -------------------------------------------------------------------------------------
 */

static size_t elements(const struct seeded_tensor *t)
{
    size_t n = 1;
    for (unsigned i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Uniform in [-√3, √3): of standard deviation 1. */
static float value(uint64_t base, size_t i)
{
    uint64_t z = mix(base + i * 0x9e3779b97f4a7c15);
    return ((float)(z >> 40) * 0x1p-23f - 1) * 1.7320508f;
}

static void fill(const struct seeded *s, const struct seeded_tensor *t, unsigned char *dst)
{
    uint64_t base = s->seed;
    for (const char *c = t->values ? t->values : t->name; *c; c++)
        base = mix(base ^ (unsigned char)*c) + 1;
    size_t n = elements(t), last = t->rank ? t->shape[t->rank - 1] : 1;
    for (size_t i = 0; i < n; i++) {
        float x = t->mean + t->spread * value(base, i);
        if (t->ramp != 0 && last > 1)
            x += t->ramp * (2 * (float)(i % last) / (float)(last - 1) - 1);
        x = i == t->plant_at ? t->plant : x;
        uint16_t h = t->dtype == SL_DTYPE_F16 ? sl_f16_from_f32(x) : sl_bf16_from_f32(x);
        if (t->dtype == SL_DTYPE_F32)
            memcpy(dst + i * sizeof x, &x, sizeof x);
        else if (t->dtype == SL_DTYPE_F16 || t->dtype == SL_DTYPE_BF16)
            memcpy(dst + i * sizeof h, &h, sizeof h);
    }
}

/* --- the file -----------------------------------------------------------------------------------
 */

unsigned char *seeded_bytes(const struct seeded *s, size_t *ret_n)
{
    char *json = NULL;
    size_t n_json = 0, at = 0;
    FILE *f = must_have(open_memstream(&json, &n_json));
    fprintf(f, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < s->n; i++) {
        const struct seeded_tensor *t = &s->v[i];
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, sl_dtype_name(t->dtype));
        for (unsigned a = 0; a < t->rank; a++)
            fprintf(f, a ? ",%zu" : "%zu", t->shape[a]);
        size_t bytes = elements(t) * sl_dtype_size(t->dtype);
        fprintf(f, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    fprintf(f, "}");
    if (fclose(f) != 0)
        abort();
    size_t n_header = (n_json + 7) / 8 * 8;
    unsigned char *p = must_have(calloc(1, 8 + n_header + at));
    for (size_t i = 0; i < 8; i++)
        p[i] = (unsigned char)(n_header >> (8 * i));
    memset(p + 8, ' ', n_header);
    memcpy(p + 8, json, n_json);
    free(json);
    *ret_n = 8 + n_header + at;
    at = 8 + n_header;
    for (size_t i = 0; i < s->n; i++) {
        fill(s, &s->v[i], p + at);
        at += elements(&s->v[i]) * sl_dtype_size(s->v[i].dtype);
    }
    return p;
}

void seeded_write(const struct seeded *s, const char *path)
{
    size_t n;
    unsigned char *p = seeded_bytes(s, &n);
    FILE *f = must_have(fopen(path, "wb"));
    if (fwrite(p, 1, n, f) != n || fclose(f) != 0)
        abort();
    free(p);
}

struct sl_model *seeded_open(const struct seeded_shape *shape, const struct sl_model_options *opt,
                             unsigned char **ret_bytes, size_t *ret_n)
{
    struct seeded s;
    struct sl_error err;
    struct sl_model *m = NULL;
    seeded_init(&s, shape);
    *ret_bytes = seeded_bytes(&s, ret_n);
    seeded_done(&s);
    if (sl_model_open_memory(&m, *ret_bytes, *ret_n, "seeded", opt, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    return m;
}
