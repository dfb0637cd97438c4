/* load.c: declaring what a model is made of. See load.h. */
#include "engine/load.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/load_priv.h"

enum { NAME_BYTES = 96, SHAPE_BYTES = 96 };

/* --- errors -------------------------------------------------------------------------------------
 */

void sl_load_fail(struct sl_load *l, enum sl_code code, const char *fmt, ...)
{
    if (l->code != SL_OK)
        return;
    char what[sizeof l->err->message];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    l->code = sl_fail(l->err, code, "%.160s: %s", l->name, n < 0 ? "" : what);
}

static void shape_text(char ret[SHAPE_BYTES], const size_t *shape, size_t rank)
{
    size_t len = 0;
    ret[len++] = '[';
    for (size_t i = 0; i < rank && len < SHAPE_BYTES - 32; i++)
        len += (size_t)snprintf(ret + len, SHAPE_BYTES - len, i ? ", %zu" : "%zu", shape[i]);
    (void)snprintf(ret + len, SHAPE_BYTES - len, "]");
}

/* --- looking up ---------------------------------------------------------------------------------
 */

/* The name that was asked for -> the file's, in place. Whether its axes are the other way round. */
static bool rename_for(const struct sl_load *l, char name[NAME_BYTES])
{
    for (const struct sl_rename *r = l->names; r && r->asked; r++) {
        const char *star = strchr(r->asked, '*'), *to = strchr(r->file, '*');
        if (!star) {
            if (strcmp(r->asked, name) != 0)
                continue;
            (void)snprintf(name, NAME_BYTES, "%s", r->file);
            return r->transposed;
        }
        size_t head = (size_t)(star - r->asked), digits;
        if (strncmp(r->asked, name, head) != 0)
            continue;
        digits = strspn(name + head, "0123456789");
        if (digits == 0 || strcmp(star + 1, name + head + digits) != 0)
            continue;
        char number[NAME_BYTES];
        (void)snprintf(number, sizeof number, "%.*s", (int)digits, name + head);
        int n =
            snprintf(name, NAME_BYTES, "%.*s%s%s", (int)(to - r->file), r->file, number, to + 1);
        assert(n > 0 && n < NAME_BYTES);
        return r->transposed;
    }
    return false;
}

/* Defines `turned`. */
#define FORMAT_NAME(l, name, fmt)                                                                  \
    va_list ap_;                                                                                   \
    va_start(ap_, fmt);                                                                            \
    int n_ = vsnprintf((name), NAME_BYTES, (fmt), ap_);                                            \
    va_end(ap_);                                                                                   \
    assert(n_ > 0 && n_ < NAME_BYTES);                                                             \
    const bool turned = rename_for(l, name)

/* What the file calls it. */
static const char *label(const struct sl_tensor *t)
{
    return t->origin ? t->origin : t->name;
}

static void mark(struct sl_load *l, const struct sl_tensor *t, unsigned char what)
{
    unsigned char *m = &l->marks[t - l->tensors->v];
    *m = *m > what ? *m : what;
}

bool sl_load_has(const struct sl_load *l, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    (void)turned;
    return sl_tensors_find(l->tensors, name) != NULL;
}

static const struct sl_tensor *need(struct sl_load *l, const char *name)
{
    if (l->code != SL_OK)
        return NULL;
    const struct sl_tensor *t = sl_tensors_find(l->tensors, name);
    if (!t)
        sl_load_fail(l, SL_E_MODEL_INVALID, "tensor %s is absent", name);
    return t;
}

void sl_load_ignore(struct sl_load *l, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    (void)turned;
    const struct sl_tensor *t = sl_tensors_find(l->tensors, name);
    if (t)
        mark(l, t, SL_MARK_IGNORED);
}

void sl_load_refuse_rest(struct sl_load *l)
{
    for (size_t i = 0; sl_load_ok(l) && i < l->tensors->n; i++)
        if (l->marks[i] == SL_MARK_NONE)
            sl_load_fail(l, SL_E_MODEL_INVALID,
                         "tensor %.160s is no part of the model that %s describes",
                         label(&l->tensors->v[i]),
                         l->tensors->settings ? l->tensors->settings->name : "the file");
}

/* Types that values are read from; codes where those can be multiplied. */
static bool is_usable(const struct sl_tensor *t, bool codes)
{
    return t->dtype == SL_DTYPE_F32 || t->dtype == SL_DTYPE_F16 || t->dtype == SL_DTYPE_BF16 ||
           sl_block_readable(t->block) || (codes && t->scales);
}

/* A tensor of this shape and a type that can be used, or NULL. */
static const struct sl_tensor *need_typed(struct sl_load *l, const char *name, size_t rank,
                                          const size_t *shape, bool codes)
{
    const struct sl_tensor *t = need(l, name);
    if (!t)
        return NULL;
    size_t i = 0, j = 0;
    for (;;) {
        while (i < t->rank && t->shape[i] == 1)
            i++;
        while (j < rank && shape[j] == 1)
            j++;
        if (i == t->rank || j == rank || t->shape[i] != shape[j])
            break;
        i++, j++;
    }
    if (i < t->rank || j < rank) {
        char given[SHAPE_BYTES], wanted[SHAPE_BYTES];
        shape_text(given, t->shape, t->rank);
        shape_text(wanted, shape, rank);
        sl_load_fail(l, SL_E_MODEL_INVALID, "tensor %s has the shape %s; the model needs %s", name,
                     given, wanted);
        return NULL;
    }
    if (!is_usable(t, codes)) {
        sl_load_fail(
            l, SL_E_MODEL_INVALID,
            "tensor %s has the type %s%s; weights can be F32, F16 or BF16, or in a GGUF file "
            "Q8_0, Q4_0, Q4_K or Q6_K",
            label(t), sl_tensor_type(t),
            t->dtype == SL_DTYPE_I8 || t->dtype == SL_DTYPE_U8 ? " and no scales" : "");
        return NULL;
    }
    mark(l, t, SL_MARK_USED);
    return t;
}

static const struct sl_tensor *need_shape(struct sl_load *l, const char *name, size_t rank,
                                          const size_t *shape)
{
    return need_typed(l, name, rank, shape, false);
}

size_t sl_load_axis(struct sl_load *l, size_t from_last, size_t max, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    const struct sl_tensor *t = need(l, name);
    if (!t)
        return 1;
    if (turned && t->rank >= 2 && from_last < 2)
        from_last = 1 - from_last;
    if (from_last >= t->rank) {
        sl_load_fail(l, SL_E_MODEL_INVALID, "tensor %s has %u axes; the model needs %zu", name,
                     t->rank, from_last + 1);
        return 1;
    }
    size_t n = t->shape[t->rank - 1 - from_last];
    if (n >= 1 && n <= max)
        return n;
    char given[SHAPE_BYTES];
    shape_text(given, t->shape, t->rank);
    sl_load_fail(l, SL_E_MODEL_INVALID, "tensor %s has the shape %s; axis %zu may be 1 to %zu",
                 name, given, t->rank - 1 - from_last, max);
    return 1;
}

size_t sl_load_elements(struct sl_load *l, size_t max, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    (void)turned;
    const struct sl_tensor *t = need(l, name);
    if (!t || (t->n_elements >= 1 && t->n_elements <= max))
        return t ? t->n_elements : 1;
    sl_load_fail(l, SL_E_MODEL_INVALID, "tensor %s has %zu elements; it may have 1 to %zu", name,
                 t->n_elements, max);
    return 1;
}

/* The N of "prefixN." at the start of a name; false when there is none. SIZE_MAX: a huge one. */
static bool layer_of(const char *name, const char *prefix, size_t *ret)
{
    size_t len = strlen(prefix), n = 0;
    if (strncmp(name, prefix, len) != 0)
        return false;
    const char *s = name + len;
    if (*s < '0' || *s > '9' || (s[0] == '0' && s[1] != '.'))
        return false;
    for (; *s >= '0' && *s <= '9'; s++)
        n = n > SL_LAYERS_MAX ? SIZE_MAX : n * 10 + (size_t)(*s - '0');
    *ret = n;
    return *s == '.';
}

size_t sl_load_count_layers(struct sl_load *l, const char *prefix)
{
    bool seen[SL_LAYERS_MAX] = {false};
    size_t n = 0, i;
    for (size_t t = 0; t < l->tensors->n; t++) {
        if (!layer_of(l->tensors->v[t].name, prefix, &i))
            continue;
        if (i >= SL_LAYERS_MAX) {
            sl_load_fail(l, SL_E_MODEL_INVALID, "tensor %.80s: at most %d layers are possible",
                         l->tensors->v[t].name, SL_LAYERS_MAX);
            return 1;
        }
        seen[i] = true;
        n = n > i + 1 ? n : i + 1;
    }
    for (i = 0; i < n; i++)
        if (!seen[i])
            sl_load_fail(l, SL_E_MODEL_INVALID,
                         "layer %zu (%s%zu.*) is absent, but layer %zu is there", i, prefix, i,
                         n - 1);
    if (n == 0)
        sl_load_fail(l, SL_E_MODEL_INVALID, "there are no layers (%s0.*)", prefix);
    return n > 0 ? n : 1;
}

/* --- declaring ----------------------------------------------------------------------------------
 */

/* `v` grown to hold one more of n, or NULL with the error noted. */
static void *grown(struct sl_load *l, void *v, size_t n, size_t *max, size_t size)
{
    if (n < *max)
        return v;
    size_t more = *max ? *max * 2 : 64;
    void *p = sl_realloc(v, more, size);
    if (!p) {
        sl_load_fail(l, SL_E_NO_MEMORY, "no memory for its list of %zu tensors", more);
        return NULL;
    }
    *max = more;
    return p;
}

/* Room in the arena, 64-byte aligned. */
static size_t reserve(struct sl_load *l, size_t bytes)
{
    size_t at = l->arena_bytes;
    if (bytes > SIZE_MAX / 2 - at) {
        sl_load_fail(l, SL_E_MODEL_INVALID, "its weights do not fit in any memory");
        return 0;
    }
    l->arena_bytes += (bytes + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    return at;
}

static void add_job(struct sl_load *l, const struct sl_load_job *job, size_t bytes)
{
    struct sl_load_job *v = grown(l, l->jobs, l->n_jobs, &l->max_jobs, sizeof *v);
    if (!v)
        return;
    l->jobs = v;
    v[l->n_jobs] = *job;
    if (job->copied)
        v[l->n_jobs].offset = reserve(l, bytes);
    l->n_jobs++;
}

static void add_values(struct sl_load *l, const float **ret, const struct sl_tensor *t)
{
    const struct sl_load_job job = {.t = t,
                                    .kind = SL_JOB_F32,
                                    .type = SL_DTYPE_F32,
                                    .copied = true,
                                    .at = (const void **)(void *)ret};
    /* Whole vectors may be read: there is always room for the last one. */
    add_job(l, &job, sl_whole_panels(t->n_elements) * sizeof(float));
}

void sl_load_vector(struct sl_load *l, const float **ret, size_t n, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    (void)turned;
    const struct sl_tensor *t = need_shape(l, name, 1, &n);
    if (t)
        add_values(l, ret, t);
}

void sl_load_grid(struct sl_load *l, const float **ret, size_t rows, size_t cols, const char *fmt,
                  ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    assert(!turned);
    const struct sl_tensor *t = need_shape(l, name, 2, (size_t[]){rows, cols});
    if (t)
        add_values(l, ret, t);
}

void sl_load_grids(struct sl_load *l, const float **ret, size_t count, size_t rows, size_t cols,
                   const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    assert(!turned);
    const struct sl_tensor *t = need_shape(l, name, 3, (size_t[]){count, rows, cols});
    if (t)
        add_values(l, ret, t);
}

void sl_load_map(struct sl_load *l, void (*f)(float *v, size_t n))
{
    if (l->code != SL_OK)
        return;
    assert(l->n_jobs > 0 && l->jobs[l->n_jobs - 1].kind == SL_JOB_F32);
    l->jobs[l->n_jobs - 1].map = f;
}

void sl_map_one_minus(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = 1 - v[i];
}

void sl_load_columns(struct sl_load *l, const float **ret, size_t rows, size_t cols,
                     const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    assert(!turned);
    const struct sl_tensor *t = need_shape(l, name, 2, (size_t[]){rows, cols});
    if (!t)
        return;
    const struct sl_load_job job = {.t = t,
                                    .kind = SL_JOB_COLUMNS,
                                    .type = SL_DTYPE_F32,
                                    .n_out = rows,
                                    .n_in = cols,
                                    .copied = true,
                                    .at = (const void **)(void *)ret};
    add_job(l, &job, sl_whole_panels(t->n_elements) * sizeof(float));
}

/* Rows [first, first + n) of a grid, as a tensor; NULL after an error. */
static const struct sl_tensor *part_of(struct sl_load *l, const struct sl_tensor *t, size_t first,
                                       size_t n, size_t rows)
{
    unsigned axis = 0; /* axes of size 1 do not count */
    while (axis + 1 < t->rank && t->shape[axis] != rows)
        axis++;
    assert(t->rank > 0 && t->shape[axis] == rows && first + n <= rows);
    struct sl_load_view *v = sl_calloc(1, sizeof *v);
    if (!v) {
        sl_load_fail(l, SL_E_NO_MEMORY, "no memory for its list of tensors");
        return NULL;
    }
    v->t = *t;
    v->t.shape[axis] = n;
    v->t.n_elements = t->n_elements / rows * n;
    v->t.data = sl_tensor_at(t, (ptrdiff_t)first * t->stride[axis]);
    if (t->scales)
        v->t.scales = t->scales + sl_tensor_scale_bytes(t) / rows * first;
    v->next = l->views;
    l->views = v;
    return &v->t;
}

void sl_load_row(struct sl_load *l, const float **ret, size_t row, size_t rows, size_t cols,
                 const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    assert(!turned);
    const struct sl_tensor *t = need_shape(l, name, 2, (size_t[]){rows, cols});
    t = t ? part_of(l, t, row, 1, rows) : NULL;
    if (t)
        add_values(l, ret, t);
}

/* How a matrix is kept that nothing was asked for: as it is. Blocks are multiplied as they are;
 * those of small matrices, and what has an exponent, become the values that they stand for. */
static enum sl_dtype own_type(const struct sl_tensor *t, bool small)
{
    if (!t->block)
        return t->dtype;
    return small || t->exponent ? SL_DTYPE_F32 : sl_block_kept(t->block);
}

static enum sl_layout turn(enum sl_layout layout, bool turned)
{
    return (layout == SL_OUT_IN) == turned ? SL_IN_OUT : SL_OUT_IN;
}

/* Of a tensor that was found good; NULL: of none. Sizes are there also then, for sums of them. */
static void add_matrix(struct sl_load *l, struct sl_matrix *ret, size_t n_out, size_t n_in,
                       enum sl_layout layout, enum sl_dtype type, bool small,
                       const struct sl_tensor *t)
{
    *ret = (struct sl_matrix){.n_out = n_out, .n_in = n_in};
    if (!t)
        return;
    ret->type = type != SL_DTYPE_NONE ? type : own_type(t, small);
    /* Blocks lie along the rows of what was written, so that is what is packed. */
    layout = turn(layout, t->block && sl_tensor_turned(t));
    const struct sl_load_job job = {.t = t,
                                    .kind = SL_JOB_MATRIX,
                                    .type = ret->type,
                                    .n_out = n_out,
                                    .n_in = n_in,
                                    .layout = layout,
                                    .copied = true,
                                    .at = &ret->panels};
    add_job(l, &job, sl_pack_bytes(ret->type, n_out, n_in));
    if (!sl_is_quantised(ret->type))
        return;
    size_t d = l->config.d_model, groups = sl_groups(n_in);
    groups = groups > SL_INPUTS_MAX * sl_groups(d) ? groups : SL_INPUTS_MAX * sl_groups(d);
    groups = (groups + SL_GROUPS_ALIGN - 1) / SL_GROUPS_ALIGN * SL_GROUPS_ALIGN;
    l->input_groups = l->input_groups > groups ? l->input_groups : groups;
}

static enum sl_dtype small_type(const struct sl_load *l)
{
    return sl_is_quantised(l->weights) ? SL_DTYPE_NONE : l->weights;
}

/* Either layout's shape. Rows of codes are outputs. */
static const struct sl_tensor *need_matrix(struct sl_load *l, const char *name, size_t n_out,
                                           size_t n_in, enum sl_layout layout, bool small)
{
    size_t shape[2] = {layout == SL_OUT_IN ? n_out : n_in, layout == SL_OUT_IN ? n_in : n_out};
    const struct sl_tensor *t = sl_tensors_find(l->tensors, name);
    /* Where axes of size 1 do not count, a row could be a column. */
    bool codes = !small && layout == SL_OUT_IN && t && t->rank == 2 && t->shape[1] == n_in;
    return need_typed(l, name, 2, shape, codes);
}

void sl_load_matrix(struct sl_load *l, struct sl_matrix *ret, size_t n_out, size_t n_in,
                    enum sl_layout layout, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    layout = turn(layout, turned);
    add_matrix(l, ret, n_out, n_in, layout, l->weights, false,
               need_matrix(l, name, n_out, n_in, layout, false));
}

void sl_load_small(struct sl_load *l, struct sl_matrix *ret, size_t n_out, size_t n_in,
                   enum sl_layout layout, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    layout = turn(layout, turned);
    add_matrix(l, ret, n_out, n_in, layout, small_type(l), true,
               need_matrix(l, name, n_out, n_in, layout, true));
}

void sl_load_head(struct sl_load *l, struct sl_matrix *ret, size_t n_out, size_t n_in,
                  const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    enum sl_layout layout = turn(SL_OUT_IN, turned);
    add_matrix(l, ret, n_out, n_in, layout, l->weights == SL_DTYPE_Q4 ? SL_DTYPE_Q5 : l->weights,
               false, need_matrix(l, name, n_out, n_in, layout, false));
}

void sl_load_stacked(struct sl_load *l, struct sl_matrix *ret, size_t first, size_t n_out,
                     size_t n_stacked, size_t n_in, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    assert(!turned);
    const struct sl_tensor *t = need_matrix(l, name, n_stacked, n_in, SL_OUT_IN, false);
    t = t ? part_of(l, t, first, n_out, n_stacked) : NULL;
    add_matrix(l, ret, n_out, n_in, SL_OUT_IN, l->weights, false, t);
}

void sl_load_slice(struct sl_load *l, struct sl_matrix *ret, size_t i, size_t count, size_t n_out,
                   size_t n_in, enum sl_layout layout, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    layout = turn(layout, turned);
    size_t rows = layout == SL_OUT_IN ? n_out : n_in, cols = layout == SL_OUT_IN ? n_in : n_out;
    const struct sl_tensor *t = need_shape(l, name, 3, (size_t[]){count, rows, cols});
    t = t ? part_of(l, t, i, 1, count) : NULL;
    add_matrix(l, ret, n_out, n_in, layout, small_type(l), true, t);
}

void sl_load_embedding(struct sl_load *l, struct sl_embedding *ret, size_t vocab_size,
                       size_t d_model, const char *fmt, ...)
{
    char name[NAME_BYTES];
    FORMAT_NAME(l, name, fmt);
    (void)turned;
    const struct sl_tensor *t = need_shape(l, name, 2, (size_t[]){vocab_size, d_model});
    if (!t)
        return;
    ret->type = t->dtype;
    ret->block = t->block;
    assert(t->exponent == 0);
    const struct sl_load_job job = {.t = t,
                                    .kind = SL_JOB_ROWS,
                                    .type = t->block ? SL_DTYPE_F32 : t->dtype,
                                    .copied = !t->contiguous,
                                    .at = (const void **)(void *)&ret->rows};
    add_job(l, &job, sl_tensor_bytes(t));
}

size_t sl_load_state(struct sl_load *l, enum sl_dtype dtype, unsigned rank, const size_t *shape,
                     const char *fmt, ...)
{
    if (l->code != SL_OK)
        return 0;
    assert(rank >= 1 && rank <= 4 && (dtype == SL_DTYPE_F32 || dtype == SL_DTYPE_I64));
    struct sl_state_tensor *v = grown(l, l->state, l->n_state, &l->max_state, sizeof *v);
    if (!v)
        return 0;
    l->state = v;
    struct sl_state_tensor *t = &v[l->n_state++];
    *t = (struct sl_state_tensor){.dtype = dtype, .rank = rank};
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    assert(n > 0 && (size_t)n < sizeof t->name);
    size_t bytes = sl_dtype_size(dtype);
    for (unsigned i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        bytes *= shape[i]; /* every axis is below load.h's limits: at most 2^16 · 2^12 · 2^12 · 8 */
    }
    t->offset = l->state_bytes;
    l->state_bytes += (bytes + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    return t->offset;
}

void sl_load_scratch(struct sl_load *l, size_t row_floats, size_t part_floats)
{
    l->scratch_floats = l->scratch_floats > row_floats ? l->scratch_floats : row_floats;
    l->part_floats = l->part_floats > part_floats ? l->part_floats : part_floats;
}

void sl_load_recurrence(struct sl_load *l, const struct sl_recur_shape *shape)
{
    l->recurrence = *shape;
}

void sl_load_carry(struct sl_load *l, size_t row_floats)
{
    l->carry_floats = l->carry_floats > row_floats ? l->carry_floats : row_floats;
}

void sl_load_done(struct sl_load *l)
{
    while (l->views) {
        struct sl_load_view *next = l->views->next;
        sl_free(l->views);
        l->views = next;
    }
    sl_free(l->said);
    sl_free(l->marks);
    sl_free(l->jobs);
    l->said = NULL;
    l->marks = NULL;
    l->jobs = NULL;
    l->n_jobs = l->max_jobs = 0;
}
