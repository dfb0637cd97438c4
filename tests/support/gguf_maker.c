/* gguf_maker.c: see gguf_maker.h. */
#include "tests/support/gguf_maker.h"

#include <string.h>

static void put_string(struct bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put_text(b, s);
}

static void begin_key(struct gguf_maker *g, const char *key, uint32_t type)
{
    put_string(&g->keys, key);
    put_u32(&g->keys, type);
    g->n_keys++;
}

void gguf_u32(struct gguf_maker *g, const char *key, uint32_t v)
{
    begin_key(g, key, MAKE_U32);
    put_u32(&g->keys, v);
}

void gguf_f32(struct gguf_maker *g, const char *key, float v)
{
    begin_key(g, key, MAKE_F32);
    put(&g->keys, &v, sizeof v);
}

void gguf_bool(struct gguf_maker *g, const char *key, bool v)
{
    begin_key(g, key, MAKE_BOOL);
    put_byte(&g->keys, v);
}

void gguf_text(struct gguf_maker *g, const char *key, const char *v)
{
    begin_key(g, key, MAKE_STRING);
    put_string(&g->keys, v);
}

void gguf_texts(struct gguf_maker *g, const char *key, const char *const *v, size_t n)
{
    begin_key(g, key, MAKE_ARRAY);
    put_u32(&g->keys, MAKE_STRING);
    put_u64(&g->keys, n);
    for (size_t i = 0; i < n; i++)
        put_string(&g->keys, v[i]);
}

void gguf_words(struct gguf_maker *g, const char *key, uint32_t type, const void *v, size_t n)
{
    begin_key(g, key, MAKE_ARRAY);
    put_u32(&g->keys, type);
    put_u64(&g->keys, n);
    put(&g->keys, v, n * 4);
}

static size_t alignment(const struct gguf_maker *g)
{
    return g->alignment ? g->alignment : 32;
}

void gguf_tensor(struct gguf_maker *g, const char *name, uint32_t type, unsigned rank,
                 const size_t *shape, const void *data, size_t n)
{
    while (g->data.n % alignment(g))
        put_byte(&g->data, 0);
    put_string(&g->infos, name);
    put_u32(&g->infos, rank);
    for (unsigned i = rank; i-- > 0;)
        put_u64(&g->infos, shape[i]);
    put_u32(&g->infos, type);
    put_u64(&g->infos, g->data.n);
    put(&g->data, data, n);
    g->n_tensors++;
}

void gguf_end(const struct gguf_maker *g, struct bytes *file)
{
    size_t begin = file->n;
    put_text(file, "GGUF");
    put_u32(file, g->version ? g->version : 3);
    put_u64(file, g->n_tensors);
    put_u64(file, g->n_keys);
    if (g->keys.n)
        put(file, g->keys.p, g->keys.n);
    if (g->infos.n)
        put(file, g->infos.p, g->infos.n);
    while ((file->n - begin) % alignment(g))
        put_byte(file, 0);
    if (g->data.n)
        put(file, g->data.p, g->data.n);
}

void gguf_done(struct gguf_maker *g)
{
    bytes_done(&g->keys);
    bytes_done(&g->infos);
    bytes_done(&g->data);
    *g = (struct gguf_maker){0};
}
