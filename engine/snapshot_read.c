/* snapshot_read.c: a safetensors file in memory -> a state. See snapshot.h.
 *
 * The file comes from anyone. First all that it says is checked: the container
 * (formats/safetensors.c), its metadata and their digest, that it is this model's, each tensor's
 * name, type and shape. Then comes one walk over the data: a block is hashed, its values are
 * checked, and it is copied into the slot, while it lies in the nearest cache; a second walk would
 * fetch it from memory again, and take as long as the copy itself. (From a source it is read a
 * piece at a time on this walk, and hashed there: snapshot.h.) So the slot of a file that is
 * refused for a value or its digest holds a part of it, and its caller must give a slot that nobody
 * reads (snapshot.h).
 *
 * What the metadata says of the session (id, version …) informs and is the caller's to judge; the
 * texts are valid UTF-8, session.metadata is a JSON object. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/snapshot_priv.h"

/* --- where the bytes come from --- */

struct input {
    const unsigned char *data;
    size_t n, have;                          /* have: of the n bytes are there */
    const struct sl_snapshot_source *source; /* NULL: all are */
};

static enum sl_code need(struct input *in, size_t end, struct sl_error *err)
{
    if (end <= in->have)
        return SL_OK;
    assert(in->source && end <= in->n);
    enum sl_code c = in->source->need(in->source->arg, end, &in->have, err);
    assert(c || (in->have >= end && in->have <= in->n));
    return c;
}

/* --- the container --- */

static enum sl_code check_header(struct input *in, struct sl_error *err)
{
    const unsigned char *data = in->data;
    size_t n = in->n;
    uint64_t header_n;
    enum sl_code c = need(in, n < 9 ? n : 9, err);
    if (c)
        return c;
    if (n < 9)
        return CORRUPT(err,
                       "the snapshot has only %zu bytes; it must begin with 8 bytes of length "
                       "and a JSON header",
                       n);
    memcpy(&header_n, data, 8);
    if (data[8] != '{')
        return CORRUPT(err,
                       "this is no snapshot: a safetensors file has '{' as its ninth byte, "
                       "and this is 0x%02x",
                       data[8]);
    if (header_n > n - 8)
        return CORRUPT(err, "the snapshot's header has %" PRIu64 " bytes, but only %zu follow",
                       header_n, n - 8);
    if (header_n > SL_SNAPSHOT_HEADER_MAX)
        return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the snapshot's header has %" PRIu64 " bytes; at most %zu are allowed",
                       header_n, SL_SNAPSHOT_HEADER_MAX);
    c = need(in, 8 + (size_t)header_n, err);
    if (c)
        return c;
    if (sl_snapshot_too_many_values(data + 8, (size_t)header_n))
        return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the snapshot's header holds more than %zu JSON values",
                       SL_SNAPSHOT_VALUES_MAX);
    return SL_OK;
}

/* Looks at nothing behind the header. */
static enum sl_code open_file(struct sl_tensors **ret, struct input *in, struct sl_error *err)
{
    enum sl_code c = check_header(in, err);
    if (c)
        return c;
    struct sl_error e;
    c = sl_tensors_open_memory(ret, in->data, in->n, "the snapshot", &e);
    if (c)
        return sl_fail(err, c == SL_E_NO_MEMORY ? c : SL_E_SNAPSHOT_CORRUPT, "%s", e.message);
    return SL_OK;
}

/* --- the data --- */

/* A tensor of the file, and where its values go. */
struct place {
    const struct sl_tensor *tensor;
    unsigned char *to;              /* in the slot; NULL: they are only checked */
    const struct sl_tensor *scales; /* of an I8 tensor that goes to the slot */
    bool is_scales;
};

static bool has_ending(const char *name, const char *ending)
{
    size_t n = strlen(name), k = strlen(ending);
    return n > k && strcmp(name + n - k, ending) == 0;
}

static int by_data(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->tensor->data > y->tensor->data) - (x->tensor->data < y->tensor->data);
}

static size_t block(size_t left)
{
    return left < SL_SNAPSHOT_BLOCK ? left : SL_SNAPSHOT_BLOCK;
}

/* n values of an I8 tensor from number i on: they may begin and end within rows. */
static void put_rows(const struct place *p, size_t i, size_t n)
{
    const struct sl_tensor *x = p->tensor;
    size_t row = x->shape[x->rank - 1];
    float *dst = (float *)(void *)p->to;
    for (size_t end = i + n, part; i < end; i += part) {
        float scale;
        memcpy(&scale, p->scales->data + i / row * sizeof scale, sizeof scale);
        part = row - i % row < end - i ? row - i % row : end - i;
        sl_snapshot_unpack_i8(dst + i, x->data + i, scale, part);
    }
}

/* n values from number i on: false when one may not be used. */
static bool put_values(const struct place *p, size_t i, size_t n)
{
    const struct sl_tensor *x = p->tensor;
    size_t size = sl_dtype_size(x->dtype);
    if (p->to && x->dtype == SL_DTYPE_F32)
        return sl_snapshot_unpack_f32((float *)(void *)p->to + i, x->data + i * size, n);
    if (!sl_snapshot_values_good(x->data + i * size, x->dtype, p->is_scales, n))
        return false;
    if (!p->to)
        return true;
    if (x->dtype == SL_DTYPE_BF16)
        sl_snapshot_unpack_bf16((float *)(void *)p->to + i, x->data + i * size, n);
    else if (x->dtype == SL_DTYPE_I8)
        put_rows(p, i, n);
    else
        memcpy(p->to + i * size, x->data + i * size, n * size);
    return true;
}

/* All bytes of a tensor are there. */
static enum sl_code need_all(struct input *in, const struct sl_tensor *t, struct sl_error *err)
{
    if (t->n_elements == 0)
        return SL_OK;
    return need(in, (size_t)(t->data - in->data) + t->n_elements * sl_dtype_size(t->dtype), err);
}

/* digest NULL: none is taken. */
static enum sl_code take_tensor(struct input *in, const struct place *p, struct sl_digest *digest,
                                struct sl_error *err)
{
    const struct sl_tensor *t = p->tensor;
    size_t size = sl_dtype_size(t->dtype), n = t->n_elements;
    enum sl_code c = p->scales ? need_all(in, p->scales, err) : SL_OK;
    for (size_t i = 0, part; !c && i < n; i += part) {
        const unsigned char *at = t->data + i * size;
        part = block(n - i);
        c = need(in, (size_t)(at - in->data) + part * size, err);
        if (c)
            break;
        sl_snapshot_prefetch(at + part * size, block(n - i - part) * size);
        if (digest)
            sl_digest_add(digest, at, part * size);
        if (!put_values(p, i, part))
            return CORRUPT(err, "the snapshot's tensor \"%.80s\" holds a value that is %s", t->name,
                           t->dtype == SL_DTYPE_I64 ? "negative" : "not finite");
    }
    return c;
}

/* Every value may be used, and the data have the digest that the file names (unless their source
 * sees to that); they go where `v` says: in one walk over the data section, which the tensors cover
 * without a gap. Sorts v. */
static enum sl_code take_values(struct input *in, const struct sl_tensors *t, struct place *v,
                                struct sl_error *err)
{
    unsigned char want[16], got[16];
    enum sl_code c = sl_snapshot_read_hex(t, "payload.xxh3", want, err);
    if (c)
        return c;
    if (t->n)
        qsort(v, t->n, sizeof *v, by_data);
    struct sl_digest x;
    sl_digest_begin(&x);
    for (size_t i = 0; !c && i < t->n; i++)
        c = take_tensor(in, &v[i], in->source ? NULL : &x, err);
    if (c || in->source)
        return c;
    sl_digest_end(&x, got);
    if (sl_snapshot_text(t, "payload.xxh3") && memcmp(got, want, 16) != 0)
        return CORRUPT(err, "the snapshot's data do not have the digest that its metadata name; "
                            "whoever edits them drops \"payload.xxh3\"");
    return SL_OK;
}

/* The file's tensors, to be checked. NULL: no memory. */
static struct place *list_tensors(const struct sl_tensors *t, struct sl_error *err)
{
    struct place *v = sl_calloc(t->n, sizeof *v);
    if (!v)
        (void)sl_fail(err, SL_E_NO_MEMORY, "not enough memory for a snapshot's %zu tensors", t->n);
    for (size_t i = 0; v && i < t->n; i++)
        v[i] = (struct place){.tensor = &t->v[i],
                              .is_scales = has_ending(t->v[i].name, SL_SNAPSHOT_SCALE)};
    return v;
}

static enum sl_code check_values(struct input *in, const struct sl_tensors *t, struct sl_error *err)
{
    struct place *v = list_tensors(t, err);
    enum sl_code c = v ? take_values(in, t, v, err) : SL_E_NO_MEMORY;
    sl_free(v);
    return c;
}

/* --- tensors against a model --- */

enum { SHAPE_TEXT = 96 };

static void shape_text(char ret[SHAPE_TEXT], unsigned rank, const size_t *shape)
{
    size_t n = 0;
    ret[0] = '\0';
    for (unsigned i = 0; i < rank && n < SHAPE_TEXT - 24; i++)
        n += (size_t)snprintf(ret + n, SHAPE_TEXT - n, "%s%zu", i ? ", " : "", shape[i]);
}

static enum sl_code check_shape(const struct sl_tensor *x, unsigned rank, const size_t *shape,
                                struct sl_error *err)
{
    if (x->rank == rank && memcmp(x->shape, shape, rank * sizeof *shape) == 0)
        return SL_OK;
    char given[SHAPE_TEXT], wanted[SHAPE_TEXT];
    shape_text(given, x->rank, x->shape);
    shape_text(wanted, rank, shape);
    return CORRUPT(err, "the snapshot's tensor \"%.80s\" has the shape [%s]; this model needs [%s]",
                   x->name, given, wanted);
}

static enum sl_code need_tensor(const struct sl_tensors *t, const char *name,
                                const struct sl_tensor **ret, struct sl_error *err)
{
    *ret = sl_tensors_find(t, name);
    return *ret ? SL_OK : CORRUPT(err, "the snapshot has no tensor \"%s\"", name);
}

static enum sl_code need_dtype(const struct sl_tensor *x, enum sl_dtype dtype, struct sl_error *err)
{
    if (x->dtype == dtype)
        return SL_OK;
    return CORRUPT(err, "the snapshot's tensor \"%.80s\" has the type %s; it must be %s", x->name,
                   sl_dtype_name(x->dtype), sl_dtype_name(dtype));
}

/* One tensor of the state and what belongs to it: their number is added to *n. */
static enum sl_code check_tensor(const struct sl_tensors *t, const struct sl_state_tensor *s,
                                 enum sl_dtype *smallest, size_t *n, struct sl_error *err)
{
    const struct sl_tensor *x = NULL, *scales = NULL;
    enum sl_code c = need_tensor(t, s->name, &x, err);
    if (!c && s->dtype == SL_DTYPE_I64)
        c = need_dtype(x, SL_DTYPE_I64, err);
    else if (!c && x->dtype != SL_DTYPE_F32 && x->dtype != SL_DTYPE_BF16 && x->dtype != SL_DTYPE_I8)
        c = CORRUPT(err,
                    "the snapshot's tensor \"%s\" has the type %s; it can be F32, BF16, or I8 with "
                    "scales",
                    s->name, sl_dtype_name(x->dtype));
    if (!c)
        c = check_shape(x, s->rank, s->shape, err);
    *n += 1;
    if (c || x->dtype != SL_DTYPE_I8) {
        if (!c && x->dtype == SL_DTYPE_BF16 && *smallest == SL_DTYPE_F32)
            *smallest = SL_DTYPE_BF16;
        return c;
    }
    char name[sizeof s->name + sizeof SL_SNAPSHOT_SCALE];
    (void)snprintf(name, sizeof name, "%s" SL_SNAPSHOT_SCALE, s->name);
    c = need_tensor(t, name, &scales, err);
    if (!c)
        c = need_dtype(scales, SL_DTYPE_F32, err);
    if (!c)
        c = check_shape(scales, s->rank > 1 ? s->rank - 1 : 1,
                        s->rank > 1 ? s->shape : (const size_t[]){1}, err);
    *n += 1;
    *smallest = SL_DTYPE_I8;
    return c;
}

static bool belongs(const struct sl_model *m, const struct sl_tensors *t, const char *name)
{
    size_t n;
    const struct sl_state_tensor *s = sl_model_state_tensors(m, &n);
    if (strcmp(name, SL_SNAPSHOT_COUNTER) == 0)
        return true;
    for (size_t i = 0; i < n; i++) {
        size_t k = strlen(s[i].name);
        if (strncmp(name, s[i].name, k) != 0)
            continue;
        const struct sl_tensor *x = sl_tensors_find(t, s[i].name);
        if (name[k] == '\0' ||
            (strcmp(name + k, SL_SNAPSHOT_SCALE) == 0 && x && x->dtype == SL_DTYPE_I8))
            return true;
    }
    return false;
}

/* The file's tensors are this model's: all of them, no others. */
static enum sl_code check_tensors(const struct sl_model *m, const struct sl_tensors *t,
                                  enum sl_dtype *ret_dtype, struct sl_error *err)
{
    const struct sl_tensor *counter = NULL;
    size_t n_state, n = 1;
    const struct sl_state_tensor *s = sl_model_state_tensors(m, &n_state);
    enum sl_code c = need_tensor(t, SL_SNAPSHOT_COUNTER, &counter, err);
    if (!c)
        c = need_dtype(counter, SL_DTYPE_I64, err);
    if (!c)
        c = check_shape(counter, 1, (const size_t[]){1}, err);
    *ret_dtype = SL_DTYPE_F32;
    for (size_t i = 0; i < n_state && !c; i++)
        c = check_tensor(t, &s[i], ret_dtype, &n, err);
    for (size_t i = 0; i < t->n && !c && n != t->n; i++)
        if (!belongs(m, t, t->v[i].name))
            c = CORRUPT(err, "the snapshot's tensor \"%.80s\" is none of this model's",
                        t->v[i].name);
    return c;
}

static enum sl_code check_model(const struct sl_model *m, const char *arch,
                                const unsigned char fingerprint[16], struct sl_error *err)
{
    const struct sl_model_info *mi = sl_model_info(m);
    char given[SL_SNAPSHOT_HEX], loaded[SL_SNAPSHOT_HEX];
    if (strcmp(arch, mi->arch) == 0 && memcmp(fingerprint, mi->fingerprint, 16) == 0)
        return SL_OK;
    sl_snapshot_hex(given, fingerprint);
    sl_snapshot_hex(loaded, mi->fingerprint);
    return sl_fail(err, SL_E_SNAPSHOT_MODEL_MISMATCH,
                   "the snapshot is of the model %.40s %s; the loaded one is %s %s (%.80s)", arch,
                   given, mi->arch, loaded, mi->name);
}

/* How it was computed, against what is loaded. */
static enum sl_code compare(const struct sl_model *m, const struct sl_tokenizer *tok,
                            const struct sl_tensors *t, struct sl_snapshot_info *ret,
                            struct sl_error *err)
{
    unsigned char given[16], loaded[16];
    enum sl_code c = sl_snapshot_read_hex(t, "tokenizer.fingerprint", given, err);
    if (c)
        return c;
    const char *type = sl_snapshot_text(t, "model.weights_type"),
               *numerics = sl_snapshot_text(t, "engine.numerics");
    sl_tokenizer_fingerprint(tok, loaded);
    ret->other_weights_type = !type || strcmp(type, sl_model_info(m)->weights_name) != 0;
    ret->other_numerics = !numerics || strcmp(numerics, sl_numerics(m)) != 0;
    ret->other_tokenizer =
        !sl_snapshot_text(t, "tokenizer.fingerprint") || memcmp(given, loaded, sizeof given) != 0;
    return SL_OK;
}

/* --- into the state --- */

/* What is no tensor's: the counter, and zeros between the tensors, as in the initial state. */
static void fill_rest(const struct sl_model *m, const struct sl_tensors *t, unsigned char *state)
{
    size_t n, at = sizeof(struct sl_state_header);
    const struct sl_state_tensor *s = sl_model_state_tensors(m, &n);
    struct sl_state_header h = {0};
    memcpy(&h.tokens_seen, sl_tensors_find(t, SL_SNAPSHOT_COUNTER)->data, sizeof h.tokens_seen);
    memcpy(state, &h, sizeof h);
    for (size_t i = 0; i < n; i++) {
        memset(state + at, 0, s[i].offset - at);
        at = s[i].offset + sl_state_tensor_elements(&s[i]) * sl_dtype_size(s[i].dtype);
    }
    memset(state + at, 0, sl_model_info(m)->state_bytes - at);
}

/* The values of a file whose tensors are this model's: every byte of the slot is written. */
static enum sl_code take_state(const struct sl_model *m, struct input *in,
                               const struct sl_tensors *t, void *state, struct sl_error *err)
{
    size_t n;
    const struct sl_state_tensor *s = sl_model_state_tensors(m, &n);
    struct place *v = list_tensors(t, err);
    if (!v)
        return SL_E_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        const struct sl_tensor *x = sl_tensors_find(t, s[i].name);
        struct place *p = &v[x - t->v];
        char name[sizeof s->name + sizeof SL_SNAPSHOT_SCALE];
        p->to = (unsigned char *)state + s[i].offset;
        if (x->dtype != SL_DTYPE_I8)
            continue;
        (void)snprintf(name, sizeof name, "%s" SL_SNAPSHOT_SCALE, s[i].name);
        p->scales = sl_tensors_find(t, name);
    }
    enum sl_code c = take_values(in, t, v, err);
    sl_free(v);
    if (!c)
        fill_rest(m, t, state);
    return c;
}

/* A counter beyond a model's last position is of no session of it. */
static enum sl_code check_counter(const struct sl_model *m, const struct sl_tensors *t,
                                  struct sl_error *err)
{
    uint64_t seen;
    size_t max = sl_model_info(m)->max_tokens;
    memcpy(&seen, sl_tensors_find(t, SL_SNAPSHOT_COUNTER)->data, sizeof seen);
    if (!max || seen <= max)
        return SL_OK;
    return CORRUPT(err,
                   "the snapshot's tensor \"" SL_SNAPSHOT_COUNTER "\" holds %" PRIu64
                   "; this model has %zu positions",
                   seen, max);
}

static bool counts_beyond(const struct sl_tensor *x, int64_t most)
{
    int64_t v = 0;
    for (size_t i = 0; x->dtype == SL_DTYPE_I64 && v <= most && i < x->n_elements; i++)
        memcpy(&v, x->data + i * sizeof v, sizeof v);
    return v > most;
}

/* What comes from outside must leave room to be counted on from: else its session would come to
 * numbers that nobody reads any more, when it is in the store. */
static enum sl_code check_room(const struct sl_tensors *t, const struct sl_snapshot_info *info,
                               struct sl_error *err)
{
    const uint64_t most = (uint64_t)1 << 52;
    const char *what = info->version > most       ? "session.version"
                       : info->tokens_seen > most ? "session.tokens_seen"
                                                  : NULL;
    for (size_t i = 0; i < t->n && !what; i++)
        if (counts_beyond(&t->v[i], (int64_t)most))
            what = t->v[i].name;
    return what ? CORRUPT(err, "the snapshot's \"%.80s\" must be at most 2^52", what) : SL_OK;
}

/* --- all of it --- */

static enum sl_code read_all(const struct sl_model *m, const struct sl_tokenizer *t,
                             struct input *in, void *state, struct sl_snapshot_info *ret,
                             struct sl_error *err)
{
    struct sl_tensors *f = NULL;
    struct sl_snapshot_info info = {.text = NULL};
    unsigned char fingerprint[16];
    const char *arch;
    enum sl_code c = SL_OK;
    if (in->n > sl_snapshot_bytes_max(m))
        return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the snapshot has %zu bytes; one of this model has at most %zu", in->n,
                       sl_snapshot_bytes_max(m));
    c = open_file(&f, in, err);
    if (c)
        goto out;
    c = sl_snapshot_read_meta(f, &info, fingerprint, err);
    if (!c)
        c = check_model(m, sl_snapshot_text(f, "model.arch"), fingerprint, err);
    if (!c)
        c = compare(m, t, f, &info, err);
    if (!c)
        c = check_tensors(m, f, &info.dtype, err);
    if (!c)
        c = check_counter(m, f, err);
    if (!c && !in->source)
        c = check_room(f, &info, err);
    if (!c)
        c = sl_snapshot_take_texts(f, &info, &arch, err);
    if (!c)
        c = take_state(m, in, f, state, err);
    if (c) {
        sl_free(info.text);
        goto out;
    }
    *ret = info;
out:
    sl_tensors_close(f);
    return c;
}

enum sl_code sl_snapshot_read(const struct sl_model *m, const struct sl_tokenizer *t,
                              const void *data, size_t n, void *state, struct sl_snapshot_info *ret,
                              struct sl_error *err)
{
    struct input in = {.data = data, .n = n, .have = n};
    return read_all(m, t, &in, state, ret, err);
}

enum sl_code sl_snapshot_read_from(const struct sl_model *m, const struct sl_tokenizer *t,
                                   const void *data, size_t n,
                                   const struct sl_snapshot_source *source, void *state,
                                   struct sl_snapshot_info *ret, struct sl_error *err)
{
    struct input in = {.data = data, .n = n, .source = source};
    return read_all(m, t, &in, state, ret, err);
}

/* Without a model there are no shapes to hold them to. */
static enum sl_code check_types(const struct sl_tensors *t, enum sl_dtype *ret_dtype,
                                struct sl_error *err)
{
    *ret_dtype = SL_DTYPE_F32;
    for (size_t i = 0; i < t->n; i++) {
        enum sl_dtype d = t->v[i].dtype;
        if (d != SL_DTYPE_F32 && d != SL_DTYPE_BF16 && d != SL_DTYPE_I8 && d != SL_DTYPE_I64)
            return CORRUPT(err,
                           "the snapshot's tensor \"%.80s\" has the type %s; a snapshot has F32, "
                           "BF16, I8 and I64",
                           t->v[i].name, sl_dtype_name(d));
        if (d == SL_DTYPE_I8 || (d == SL_DTYPE_BF16 && *ret_dtype == SL_DTYPE_F32))
            *ret_dtype = d;
    }
    return SL_OK;
}

/* Without a model. whole: the values are checked, too; else the metadata must have their digest. */
static enum sl_code describe(const void *data, size_t n, bool whole, struct sl_snapshot_info *ret,
                             const char **ret_arch, unsigned char ret_fingerprint[16],
                             struct sl_error *err)
{
    struct sl_tensors *f = NULL;
    struct sl_snapshot_info info = {.text = NULL};
    unsigned char fingerprint[16];
    const char *arch;
    struct input in = {.data = data, .n = n, .have = n};
    enum sl_code c = open_file(&f, &in, err);
    if (!c)
        c = sl_snapshot_read_meta(f, &info, fingerprint, err);
    if (!c && whole)
        c = check_types(f, &info.dtype, err);
    if (!c && whole)
        c = check_values(&in, f, err);
    if (!c && !whole && !sl_snapshot_text(f, "metadata.xxh3"))
        c = CORRUPT(err, "the snapshot's metadata have no \"metadata.xxh3\"");
    if (!c)
        c = sl_snapshot_take_texts(f, &info, &arch, err);
    if (!c) {
        *ret = info;
        *ret_arch = arch;
        memcpy(ret_fingerprint, fingerprint, sizeof fingerprint);
    }
    sl_tensors_close(f);
    return c;
}

enum sl_code sl_snapshot_describe(const void *data, size_t n, struct sl_snapshot_info *ret,
                                  const char **ret_arch, unsigned char ret_fingerprint[16],
                                  struct sl_error *err)
{
    return describe(data, n, true, ret, ret_arch, ret_fingerprint, err);
}

enum sl_code sl_snapshot_texts(const void *data, size_t n, struct sl_snapshot_info *ret,
                               struct sl_error *err)
{
    unsigned char fingerprint[16];
    const char *arch;
    return describe(data, n, false, ret, &arch, fingerprint, err);
}
