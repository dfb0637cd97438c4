/* coded.c: see coded.h. Shapes are checked against each other here; values are looked at when a
 * model is loaded. */
#include "engine/formats/coded.h"

#include <assert.h>
#include <string.h>

#include "engine/kernels/kernels.h"

static const struct form {
    const char *suffix;
    enum sl_dtype type, codes; /* NONE of blocks */
    enum sl_block_type block;
} forms[] = {{".q8_scales", SL_DTYPE_Q8, SL_DTYPE_I8, SL_BLOCK_NONE},
             {".q5_scales", SL_DTYPE_Q5, SL_DTYPE_U8, SL_BLOCK_NONE},
             {".q4_scales", SL_DTYPE_Q4, SL_DTYPE_U8, SL_BLOCK_NONE},
             {".q8_0_blocks", SL_DTYPE_NONE, SL_DTYPE_NONE, SL_BLOCK_Q8_0},
             {".q4_0_blocks", SL_DTYPE_NONE, SL_DTYPE_NONE, SL_BLOCK_Q4_0},
             {".q4_k_blocks", SL_DTYPE_NONE, SL_DTYPE_NONE, SL_BLOCK_Q4_K},
             {".q6_k_blocks", SL_DTYPE_NONE, SL_DTYPE_NONE, SL_BLOCK_Q6_K}};

enum { FORMS = sizeof forms / sizeof *forms };

const char *sl_coded_suffix(enum sl_dtype type, enum sl_block_type block)
{
    size_t i = 0;
    while (i < FORMS && (block ? forms[i].block != block : forms[i].type != type))
        i++;
    assert(i < FORMS);
    return forms[i].suffix;
}

/* NULL: an ordinary tensor. */
static const struct form *form_of(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < FORMS; i++) {
        size_t len = strlen(forms[i].suffix);
        if (n > len && strcmp(name + n - len, forms[i].suffix) == 0)
            return &forms[i];
    }
    return NULL;
}

/* "NAME.q8_scales" -> "NAME", in the list's memory; NULL: none. */
static char *base_of(struct sl_reader *r, const char *name, const struct form *f)
{
    size_t n = strlen(name) - strlen(f->suffix);
    char *p = sl_reader_alloc(r, n + 1);
    if (!p)
        return NULL;
    memcpy(p, name, n);
    p[n] = '\0';
    return p;
}

/* Of two axes, with something in it. */
static enum sl_code check(struct sl_reader *r, const struct sl_tensor *t, enum sl_dtype dtype)
{
    if (t->dtype == dtype && t->rank == 2 && t->n_elements > 0)
        return SL_OK;
    return SL_READER_FAIL(r, FILE_CORRUPT,
                          "tensor \"%.160s\" is %s with %u axes and %zu elements; it must be %s "
                          "with two axes",
                          t->name, sl_tensor_type(t), t->rank, t->n_elements, sl_dtype_name(dtype));
}

/* The tensor as what it stands for. */
static enum sl_code become(struct sl_reader *r, struct sl_tensor *t, size_t columns)
{
    size_t bytes;
    t->shape[1] = columns;
    if (!sl_tensor_pack(t, &bytes))
        return SL_READER_FAIL(r, FILE_CORRUPT, "the shape of tensor \"%.160s\" overflows", t->name);
    t->contiguous = true;
    return SL_OK;
}

/* Of rows of so many bytes. False: not whole ones, or too many. */
static bool count_codes(enum sl_dtype type, size_t bytes, size_t *ret)
{
    if (type == SL_DTYPE_Q8) {
        *ret = bytes;
        return true;
    }
    size_t some = type == SL_DTYPE_Q4 ? 1 : 5, codes = type == SL_DTYPE_Q4 ? 2 : 8;
    return bytes % some == 0 && !__builtin_mul_overflow(bytes / some, codes, ret);
}

/* Scales find their codes, and have no name of their own any more. */
static enum sl_code join_scales(struct sl_reader *r, struct sl_tensor *s, const struct form *f)
{
    char *name = base_of(r, s->name, f);
    if (!name)
        return sl_reader_no_memory(r);
    /* Found in the list that r may change. */
    struct sl_tensor *t = (struct sl_tensor *)sl_tensors_find(r->t, name);
    if (!t)
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "tensor \"%.160s\" is there, but not the codes that it is for",
                              s->name);
    enum sl_code c = check(r, s, SL_DTYPE_F16);
    if (!c)
        c = check(r, t, f->codes);
    if (c)
        return c;
    size_t columns;
    if (!count_codes(f->type, t->shape[1], &columns) || s->shape[0] != t->shape[0] ||
        s->shape[1] != sl_groups(columns))
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "tensor \"%.160s\" has the shape [%zu, %zu], which does not fit the "
                              "codes' [%zu, %zu]",
                              s->name, s->shape[0], s->shape[1], t->shape[0], t->shape[1]);
    t->dtype = f->type;
    t->scales = s->data;
    s->rank = SL_TENSOR_RANK_MAX + 1; /* for drop() */
    return become(r, t, columns);
}

static enum sl_code join_blocks(struct sl_reader *r, struct sl_tensor *t, const struct form *f)
{
    size_t bytes = sl_block_bytes(f->block), columns;
    char *name = base_of(r, t->name, f);
    if (!name)
        return sl_reader_no_memory(r);
    enum sl_code c = check(r, t, SL_DTYPE_U8);
    if (c)
        return c;
    if (t->shape[1] % bytes != 0 ||
        __builtin_mul_overflow(t->shape[1] / bytes, sl_block_weights(f->block), &columns))
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "tensor \"%.160s\" has rows of %zu bytes, no whole number of %s's "
                              "blocks of %zu",
                              t->name, t->shape[1], sl_block_name(f->block), bytes);
    t->origin = t->name;
    t->name = name;
    t->dtype = SL_DTYPE_NONE;
    t->block = f->block;
    return become(r, t, columns);
}

static void drop(struct sl_tensors *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i].rank <= SL_TENSOR_RANK_MAX)
            t->v[n++] = t->v[i];
    t->n = n;
}

enum sl_code sl_coded_join(struct sl_reader *r)
{
    struct sl_tensors *t = r->t;
    enum sl_code c = SL_OK;
    for (int blocks = 0; blocks < 2; blocks++) /* names stay in order while scales are joined */
        for (size_t i = 0; i < t->n && !c; i++) {
            struct sl_tensor *x = &t->v[i];
            const struct form *f = x->rank <= SL_TENSOR_RANK_MAX ? form_of(x->name) : NULL;
            if (f && (f->block != SL_BLOCK_NONE) == (blocks == 1))
                c = blocks ? join_blocks(r, x, f) : join_scales(r, x, f);
        }
    if (!c)
        drop(t);
    return c;
}
