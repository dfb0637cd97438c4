/* tensors.c: opening a model file of any container, and the tensors once they are known.
 *
 * A file is mapped, private and read-only; a table of first bytes says which reader gets it, or
 * what it is instead of a model. The reader checks every number and adds tensors that point into
 * the mapping. What is built here (names, the array) lies in an arena and in one growing array, so
 * that closing is a short loop also after a failure half way.
 *
 * A mapping has one weakness that no check can mend: a file that another process cuts while it is
 * mapped raises SIGBUS on access. Model files are replaced by renaming, never by writing into them.
 *
 * Tensors are little-endian in the file and used as they are: this code is for little-endian
 * machines, which is what x86-64 and arm64 are under Linux. */
#include "engine/formats/tensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/formats/arena.h"
#include "engine/formats/coded.h"
#include "engine/formats/hf_dir.h"
#include "engine/formats/magic.h"
#include "engine/formats/reader.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are used in the file's order");

struct opened { /* what sl_tensors.priv points to; it contains the sl_tensors itself */
    struct sl_tensors pub;
    void *map; /* NULL when the bytes are the caller's */
    size_t map_n;
    dev_t device; /* of the file that is mapped */
    ino_t inode;
    struct sl_arena strings;
    struct sl_settings *settings;
    struct sl_tensors **parts; /* whose tensors these are too: sl_tensors_join() */
    size_t n_parts;
    char name[SL_HF_NAME_BYTES];
    size_t cap, meta_cap;
    size_t dense_bytes; /* of all tensors together */
};

static struct opened *opened_of(const struct sl_tensors *t)
{
    return t->priv;
}

/* --- for the readers -------------------------------------------------------------------------- */

static void fail_about(const struct sl_reader *r, enum sl_code c, const char *fmt, va_list ap)
    SL_PRINTF(3, 0);

static void fail_about(const struct sl_reader *r, enum sl_code c, const char *fmt, va_list ap)
{
    char what[sizeof(struct sl_error)];
    int n = vsnprintf(what, sizeof what, fmt, ap);
    /* Of a long path the end says more than the beginning. */
    size_t len = strlen(r->name);
    const char *name = len > 160 ? r->name + (len - 160) : r->name;
    sl_fail(r->err, c, "%s%s: %s", len > 160 ? "…" : "", name, n < 0 ? "" : what);
}

void sl_reader_fail(const struct sl_reader *r, enum sl_code c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_about(r, c, fmt, ap);
    va_end(ap);
}

static const char *copy_string(struct sl_reader *r, const char *s, size_t n)
{
    char *p = sl_reader_alloc(r, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

bool sl_tensor_pack(struct sl_tensor *t, size_t *ret_bytes)
{
    size_t n = 1, bytes;
    for (unsigned i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n))
            return false;
    size_t each = t->block ? sl_block_bytes(t->block) : sl_dtype_size(t->dtype);
    t->n_elements = n;
    if (__builtin_mul_overflow(n / sl_block_weights(t->block), each, &bytes) ||
        bytes > PTRDIFF_MAX || n > PTRDIFF_MAX)
        return false;
    ptrdiff_t step = 1;
    for (unsigned i = t->rank; i-- > 0;) {
        t->stride[i] = step;
        step = n ? step * (ptrdiff_t)t->shape[i] : 0; /* of no elements: nothing to overflow */
    }
    *ret_bytes = bytes;
    return true;
}

static bool is_contiguous(const struct sl_tensor *t)
{
    ptrdiff_t step = 1;
    for (unsigned i = t->rank; i-- > 0;) {
        if (t->shape[i] != 1 && t->stride[i] != step)
            return false;
        step *= (ptrdiff_t)t->shape[i];
    }
    return true;
}

static enum sl_code check_name(struct sl_reader *r, const char *name, size_t n)
{
    if (n > SL_TENSOR_NAME_MAX)
        return SL_READER_FAIL(r, TOO_LARGE,
                              "a tensor's name has %zu bytes (\"%.40s…\"); at most %zu", n, name,
                              SL_TENSOR_NAME_MAX);
    if (memchr(name, '\0', n) || !sl_utf8_valid(name, n))
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "a tensor's name is not UTF-8 without zero bytes: \"%.*s\"",
                              n < 160 ? (int)n : 160, name);
    return SL_OK;
}

/* Room for one more of n elements; the array doubles. */
static void *grown(void *v, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return v;
    size_t want = *cap ? *cap * 2 : 64; /* callers keep n below their limit: no overflow */
    void *p = sl_realloc(v, want, size);
    if (p)
        *cap = want;
    return p;
}

void *sl_reader_alloc(struct sl_reader *r, size_t n)
{
    return sl_arena_alloc(&opened_of(r->t)->strings, n);
}

enum sl_code sl_reader_no_memory(struct sl_reader *r)
{
    if (opened_of(r->t)->strings.full)
        return SL_READER_FAIL(r, TOO_LARGE, "names and metadata take more than %zu bytes",
                              SL_TENSORS_STRINGS_MAX);
    return SL_READER_FAIL(r, NO_MEMORY, "not enough memory for the list of %zu tensors", r->t->n);
}

enum sl_code sl_reader_add(struct sl_reader *r, const struct sl_tensor *t, const char *name,
                           size_t name_n)
{
    struct opened *o = opened_of(r->t);
    enum sl_code c = check_name(r, name, name_n);
    if (c)
        return c;
    if (r->t->n >= SL_TENSORS_MAX)
        return SL_READER_FAIL(r, TOO_LARGE, "more than %zu tensors", SL_TENSORS_MAX);
    if (r->t->n >= r->n / SL_TENSORS_FILE_BYTES_EACH)
        return SL_READER_FAIL(r, TOO_LARGE,
                              "more than %zu tensors, the limit for a file of %zu bytes", r->t->n,
                              r->n);
    struct sl_tensor add = *t;
    size_t bytes, limit = SL_TENSORS_REPEAT_FREE;
    struct sl_tensor packed = add;
    if (!sl_tensor_pack(&packed, &bytes))
        return SL_READER_FAIL(r, FILE_CORRUPT, "the shape of tensor \"%.160s\" overflows", name);
    if (__builtin_mul_overflow(r->n, SL_TENSORS_REPEAT_MAX, &limit) ||
        __builtin_add_overflow(limit, SL_TENSORS_REPEAT_FREE, &limit))
        limit = SIZE_MAX;
    if (bytes > limit - o->dense_bytes)
        return SL_READER_FAIL(
            r, TOO_LARGE,
            "with tensor \"%.160s\" (%zu bytes) the tensors take more than %zu bytes, "
            "the limit for a file of %zu bytes",
            name, bytes, limit, r->n);
    add.n_elements = packed.n_elements;
    add.contiguous = add.n_elements == 0 || is_contiguous(&add);
    if (add.n_elements == 0) {
        memcpy(add.stride, packed.stride, sizeof add.stride);
        add.data = NULL;
    }
    add.name = copy_string(r, name, name_n);
    struct sl_tensor *v = grown(r->t->v, r->t->n, &o->cap, sizeof *v);
    if (v)
        r->t->v = v;
    if (!v || !add.name)
        return sl_reader_no_memory(r);
    v[r->t->n++] = add;
    o->dense_bytes += bytes;
    return SL_OK;
}

enum sl_code sl_reader_add_meta(struct sl_reader *r, const char *key, size_t key_n,
                                const char *value, size_t value_n)
{
    struct opened *o = opened_of(r->t);
    if (r->t->n_meta >= SL_TENSORS_META_MAX)
        return SL_READER_FAIL(r, TOO_LARGE, "more than %zu metadata entries", SL_TENSORS_META_MAX);
    if (key_n > SL_TENSOR_NAME_MAX || value_n > SL_TENSORS_META_BYTES_MAX)
        return SL_READER_FAIL(r, TOO_LARGE,
                              "a metadata entry has %zu + %zu bytes; at most %zu + %zu", key_n,
                              value_n, SL_TENSOR_NAME_MAX, SL_TENSORS_META_BYTES_MAX);
    struct sl_tensor_meta *v = grown(r->t->meta, r->t->n_meta, &o->meta_cap, sizeof *v);
    if (!v)
        return sl_reader_no_memory(r);
    r->t->meta = v;
    struct sl_tensor_meta m = {copy_string(r, key, key_n), copy_string(r, value, value_n)};
    if (!m.key || !m.value)
        return sl_reader_no_memory(r);
    v[r->t->n_meta++] = m;
    return SL_OK;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct sl_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static enum sl_code sort(struct sl_reader *r)
{
    struct sl_tensors *t = r->t;
    if (t->n)
        qsort(t->v, t->n, sizeof *t->v, by_name);
    for (size_t i = 1; i < t->n; i++)
        if (strcmp(t->v[i - 1].name, t->v[i].name) == 0)
            return SL_READER_FAIL(r, FILE_CORRUPT, "two tensors are named \"%.160s\"",
                                  t->v[i].name);
    return SL_OK;
}

/* A converted file brings its config.json. */
static enum sl_code read_own_settings(struct opened *o, const char *path, struct sl_error *err)
{
    const char *text = sl_tensors_meta(&o->pub, SL_TENSORS_CONFIG), *file = strrchr(path, '/');
    char name[SL_HF_NAME_BYTES];
    if (!text || !sl_tensors_meta(&o->pub, SL_TENSORS_CONVERTED))
        return SL_OK;
    (void)snprintf(name, sizeof name, "%.80s: %s", file ? file + 1 : path, SL_TENSORS_CONFIG);
    enum sl_code c = sl_settings_read(&o->settings, text, strlen(text), name, err);
    o->pub.settings = o->settings;
    return c;
}

static struct opened *new_opened(size_t n_bytes)
{
    struct opened *o = sl_calloc(1, sizeof *o);
    if (o) {
        o->strings.limit = SL_TENSORS_STRINGS_MAX;
        o->pub.priv = o;
        o->pub.file_bytes = n_bytes;
    }
    return o;
}

static enum sl_code read_bytes(struct opened *o, const unsigned char *data, size_t n,
                               const char *name, struct sl_error *err)
{
    struct sl_reader r = {.t = &o->pub, .data = data, .n = n, .name = name, .err = err};
    sl_container_reader *read = NULL;
    enum sl_code c = sl_container_of(&r, &o->pub.container, &read);
    if (!c)
        c = read(&r);
    if (!c)
        c = sort(&r);
    if (!c && sl_tensors_meta(&o->pub, SL_TENSORS_CONVERTED)) {
        c = sl_coded_join(&r);
        if (!c)
            c = sort(&r);
    }
    return c ? c : read_own_settings(o, name, err);
}

enum sl_code sl_tensors_open_memory(struct sl_tensors **ret, const void *data, size_t n_bytes,
                                    const char *name, struct sl_error *err)
{
    assert(ret && name && (data || !n_bytes));
    struct opened *o = new_opened(n_bytes);
    if (!o)
        return sl_fail(err, SL_E_NO_MEMORY, "%.160s: not enough memory to open it", name);
    enum sl_code c = read_bytes(o, data, n_bytes, name, err);
    if (c)
        sl_tensors_close(&o->pub);
    else
        *ret = &o->pub;
    return c;
}

static enum sl_code system_error(struct sl_error *err, const char *path, const char *verb)
{
    int e = errno;
    char text[128];
    const char *what = strerror_r(e, text, sizeof text);
    enum sl_code c = e == ENOENT || e == ENOTDIR ? SL_E_FILE_NOT_FOUND
                     : e == ENOMEM               ? SL_E_NO_MEMORY
                                                 : SL_E_IO;
    return sl_fail(err, c, "%.300s: cannot be %s: %s", path, verb, what);
}

static enum sl_code map_file(struct opened *o, int fd, const char *path, struct sl_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return system_error(err, path, "examined");
    if (S_ISDIR(st.st_mode))
        return sl_fail(err, SL_E_FILE_UNSUPPORTED,
                       "%.300s: is a directory; a .safetensors, .pth or .gguf file is needed",
                       path);
    if (!S_ISREG(st.st_mode))
        return sl_fail(
            err, SL_E_FILE_UNSUPPORTED,
            "%.300s: is not a regular file; a .safetensors, .pth or .gguf file is needed", path);
    if (st.st_size < 0 || (uintmax_t)st.st_size > PTRDIFF_MAX)
        return sl_fail(err, SL_E_TOO_LARGE, "%.300s: has %jd bytes; at most %td", path,
                       (intmax_t)st.st_size, PTRDIFF_MAX);
    o->pub.file_bytes = (size_t)st.st_size;
    if (st.st_size == 0)
        return SL_OK; /* what that means is for the table of first bytes to say */
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return system_error(err, path, "mapped");
    o->map = p;
    o->map_n = (size_t)st.st_size;
    o->device = st.st_dev;
    o->inode = st.st_ino;
    return SL_OK;
}

void sl_tensors_settle(struct sl_tensors *t, struct sl_settings *settings, const char *name)
{
    struct opened *o = opened_of(t);
    sl_settings_close(o->settings); /* the folder's are said of its files, too */
    o->settings = settings;
    (void)snprintf(o->name, sizeof o->name, "%s", name);
    t->settings = settings;
    t->name = o->name;
}

static enum sl_code open_folder(struct sl_tensors **ret, const char *path, struct sl_error *err)
{
    struct sl_tensors *t = NULL;
    struct sl_settings *settings = NULL;
    char name[SL_HF_NAME_BYTES];
    enum sl_code c = sl_hf_dir_open(&t, &settings, name, path, err);
    if (c)
        return c;
    if (t->settings || t->refused) {
        c = sl_fail(
            err, SL_E_FILE_UNSUPPORTED,
            "%.300s: its weights are a %s file, which says itself what its config.json says "
            "here: open that file",
            path, t->container);
        sl_settings_close(settings);
        sl_tensors_close(t);
        return c;
    }
    sl_tensors_settle(t, settings, name);
    *ret = t;
    return SL_OK;
}

enum sl_code sl_tensors_open(struct sl_tensors **ret, const char *path, struct sl_error *err)
{
    assert(ret && path);
    enum sl_code c = SL_OK;
    struct opened *o = NULL;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return open_folder(ret, path, err);
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return system_error(err, path, "opened");
    o = new_opened(0);
    if (!o) {
        c = sl_fail(err, SL_E_NO_MEMORY, "%.300s: not enough memory to open it", path);
        goto out;
    }
    c = map_file(o, fd, path, err);
    if (c)
        goto out;
    c = read_bytes(o, o->map ? o->map : (const unsigned char *)"", o->map_n, path, err);
out:
    close(fd);
    if (!c)
        *ret = &o->pub;
    else if (o)
        sl_tensors_close(&o->pub);
    return c;
}

static size_t count_all(struct sl_tensors *const *parts, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += parts[i]->n; /* each at most SL_TENSORS_MAX */
    return all;
}

enum sl_code sl_tensors_join(struct sl_tensors **ret, struct sl_tensors *const *parts, size_t n,
                             const char *name, struct sl_error *err)
{
    assert(n >= 1);
    size_t all = count_all(parts, n);
    if (all > SL_TENSORS_MAX)
        return sl_fail(err, SL_E_TOO_LARGE, "%.160s: more than %zu tensors", name, SL_TENSORS_MAX);
    for (size_t i = 0; i < n; i++)
        if (parts[i]->settings || parts[i]->refused)
            return sl_fail(err, SL_E_FILE_UNSUPPORTED,
                           "%.160s: one of its parts is a %s file, which is a model by itself",
                           name, parts[i]->container);
    struct opened *o = new_opened(0);
    if (o) {
        o->pub.v = sl_calloc(all + 1, sizeof *o->pub.v);
        o->parts = sl_calloc(n, sizeof(struct sl_tensors *));
        o->pub.meta = sl_calloc(parts[0]->n_meta + 1, sizeof *o->pub.meta);
    }
    if (!o || !o->pub.v || !o->parts || !o->pub.meta) {
        if (o)
            sl_tensors_close(&o->pub);
        return sl_fail(err, SL_E_NO_MEMORY, "%.160s: not enough memory for a list of %zu tensors",
                       name, all);
    }
    o->pub.container = parts[0]->container;
    for (size_t i = 0; i < n; i++) {
        if (parts[i]->n)
            memcpy(o->pub.v + o->pub.n, parts[i]->v, parts[i]->n * sizeof *o->pub.v);
        o->pub.n += parts[i]->n;
        o->pub.file_bytes += parts[i]->file_bytes;
    }
    if (parts[0]->n_meta)
        memcpy(o->pub.meta, parts[0]->meta, parts[0]->n_meta * sizeof *o->pub.meta);
    o->pub.n_meta = parts[0]->n_meta;
    struct sl_reader r = {.t = &o->pub, .name = name, .err = err};
    enum sl_code c = sort(&r);
    if (c) {
        sl_tensors_close(&o->pub);
        return c;
    }
    for (; o->n_parts < n; o->n_parts++)
        o->parts[o->n_parts] = parts[o->n_parts];
    *ret = &o->pub;
    return SL_OK;
}

void sl_tensors_close(struct sl_tensors *t)
{
    if (!t)
        return;
    struct opened *o = opened_of(t);
    for (size_t i = 0; o->parts && i < o->n_parts; i++)
        sl_tensors_close(o->parts[i]);
    sl_free(o->parts);
    sl_settings_close(o->settings);
    sl_arena_done(&o->strings);
    sl_free(t->v);
    sl_free(t->meta);
    if (o->map)
        munmap(o->map, o->map_n);
    sl_free(o);
}

const void *sl_tensors_file(const struct sl_tensors *t, size_t *ret_n)
{
    const struct opened *o = opened_of(t);
    *ret_n = o->map_n;
    return o->map;
}

bool sl_tensors_are_of(const struct sl_tensors *t, uint64_t device, uint64_t inode)
{
    const struct opened *o = opened_of(t);
    for (size_t i = 0; i < o->n_parts; i++)
        if (sl_tensors_are_of(o->parts[i], device, inode))
            return true;
    return o->map && o->device == device && o->inode == inode;
}

void sl_tensors_forget(const struct sl_tensors *ts, const void *data, size_t n)
{
    const struct opened *o = opened_of(ts);
    const unsigned char *p = data;
    for (size_t i = 0; i < o->n_parts; i++)
        sl_tensors_forget(o->parts[i], data, n);
    /* Only pages of a file come back with their content; the caller's memory would be lost. */
    if (!o->map || p < (unsigned char *)o->map || p >= (unsigned char *)o->map + o->map_n)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (size_t)(p - (const unsigned char *)o->map), end = begin + n;
    begin = begin / page * page;
    assert(end <= o->map_n);
    madvise((unsigned char *)o->map + begin, end - begin, MADV_DONTNEED);
}

void sl_tensor_forget(const struct sl_tensors *ts, const struct sl_tensor *t)
{
    if (t->n_elements == 0)
        return;
    size_t extent = 1;
    for (unsigned i = 0; i < t->rank; i++)
        extent += (t->shape[i] - 1) * (size_t)t->stride[i];
    sl_tensors_forget(ts, t->data, (size_t)(sl_tensor_at(t, (ptrdiff_t)extent) - t->data));
    if (t->scales)
        sl_tensors_forget(ts, t->scales, sl_tensor_scale_bytes(t));
}
