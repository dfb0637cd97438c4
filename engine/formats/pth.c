/* pth.c: PyTorch's checkpoints, the zip files of today and the plain ones of before 2020.
 *
 * A zip file has one folder with data.pkl (the pickle of the saved object) and a record data/KEY
 * for each storage; byteorder, version, .format_version, .storage_alignment and .data/ are ignored
 * but for a big-endian byteorder. An old file is a chain: the pickles of a magic number, of the
 * protocol's version (1001), of what machine wrote it, of the object, of the list of storage keys;
 * then per key a 64-bit count of elements and the elements.
 *
 * The object is a dict, mostly. All tensors in it are taken, also those in nested dicts and lists;
 * the names of the way to one are joined by dots. Other values are passed over. The walk is bounded
 * in depth and in steps, because a pickle's values may contain each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/pth.h"

enum { LEGACY_PROTOCOL = 1001, LEGACY_PICKLES = 5 };

/* --- from values to tensors ------------------------------------------------------------------- */

struct walk {
    struct sl_pickle *m;
    char name[SL_TENSOR_NAME_MAX + 1];
    size_t name_n;
    size_t n_visits;
};

/* Elements from the first one used to the end of the last, or false when that overflows. */
static bool extent_of(const struct sl_tensor *t, size_t *ret)
{
    size_t extent = 1, step;
    for (unsigned i = 0; i < t->rank; i++) {
        if (t->shape[i] == 0) {
            *ret = 0;
            return true;
        }
        if (__builtin_mul_overflow(t->shape[i] - 1, (size_t)t->stride[i], &step) ||
            __builtin_add_overflow(extent, step, &extent))
            return false;
    }
    *ret = extent;
    return true;
}

static enum sl_code add_tensor(struct walk *w, const struct sl_pickle_tensor *t)
{
    struct sl_reader *r = w->m->r;
    struct sl_tensor as = t->as;
    size_t extent, size = sl_dtype_size(as.dtype);
    /* An untyped storage and its views are counted in bytes, what is seen of them in elements. */
    size_t unit = t->storage->dtype ? size : 1, n = t->view_n / (size / unit);
    if (!extent_of(&as, &extent) || (extent && (t->offset > n || extent > n - t->offset)))
        return SL_READER_FAIL(r, FILE_CORRUPT,
                              "tensor \"%.160s\" (offset %zu, shape and strides of %u dimensions) "
                              "reaches beyond its storage of %zu elements",
                              w->name, t->offset, as.rank, n);
    if (extent) {
        if (!t->storage->data)
            return SL_READER_FAIL(r, FILE_CORRUPT,
                                  "the storage \"%.*s\" of tensor \"%.160s\" is "
                                  "missing",
                                  t->storage->key_n < 80 ? (int)t->storage->key_n : 80,
                                  t->storage->key, w->name);
        as.data = t->storage->data + t->view_at * unit + t->offset * size;
    }
    return sl_reader_add(r, &as, w->name, w->name_n);
}

/* Appends a key to the name. *ret_ok: whether it is one that can be part of a name. */
static enum sl_code push_name(struct walk *w, const struct sl_pickle_value *key, bool *ret_ok)
{
    char digits[24];
    const char *s = digits;
    size_t n, dot = w->name_n != 0;
    *ret_ok = key->kind == SL_PICKLE_STRING || key->kind == SL_PICKLE_INT;
    if (key->kind == SL_PICKLE_STRING) {
        s = key->u.s;
        n = key->n;
    } else {
        n = (size_t)snprintf(digits, sizeof digits, "%jd",
                             (intmax_t)(key->kind == SL_PICKLE_INT ? key->u.i : 0));
    }
    if (n > SL_TENSOR_NAME_MAX - w->name_n - dot)
        return SL_READER_FAIL(w->m->r, TOO_LARGE,
                              "a name under \"%.100s\" is longer than %zu bytes", w->name,
                              SL_TENSOR_NAME_MAX);
    if (dot)
        w->name[w->name_n++] = '.';
    if (n)
        memcpy(w->name + w->name_n, s, n);
    w->name_n += n;
    w->name[w->name_n] = '\0';
    return SL_OK;
}

static bool is_container(const struct sl_pickle_value *v)
{
    return v->kind == SL_PICKLE_DICT || v->kind == SL_PICKLE_LIST || v->kind == SL_PICKLE_TUPLE;
}

static enum sl_code walk_value(struct walk *w, const struct sl_pickle_value *v, unsigned depth);

static enum sl_code walk_item(struct walk *w, const struct sl_pickle_value *key,
                              const struct sl_pickle_value *v, unsigned depth)
{
    if (v->kind != SL_PICKLE_TENSOR && !is_container(v))
        return SL_OK;
    size_t name_n = w->name_n;
    bool ok;
    enum sl_code c = push_name(w, key, &ok);
    if (c)
        return c;
    if (v->kind != SL_PICKLE_TENSOR)
        c = walk_value(w, v, depth + 1);
    else if (ok)
        c = add_tensor(w, v->u.tensor);
    else
        c = SL_READER_FAIL(w->m->r, FILE_UNSUPPORTED,
                           "a tensor under \"%.160s\" has a key that is neither a string nor an "
                           "integer",
                           w->name);
    w->name_n = name_n;
    w->name[name_n] = '\0';
    return c;
}

static enum sl_code walk_value(struct walk *w, const struct sl_pickle_value *v, unsigned depth)
{
    if (depth > SL_PICKLE_DEPTH_MAX)
        return SL_READER_FAIL(w->m->r, TOO_LARGE,
                              "dicts and lists are nested more than %d deep at \"%.160s\"",
                              SL_PICKLE_DEPTH_MAX, w->name);
    size_t step = v->kind == SL_PICKLE_DICT ? 2 : 1;
    for (size_t i = 0; i < v->n; i += step) {
        if (++w->n_visits > SL_PICKLE_VISITS_MAX)
            return SL_READER_FAIL(w->m->r, TOO_LARGE, "more than %zu values", SL_PICKLE_VISITS_MAX);
        const struct sl_pickle_value place = {.kind = SL_PICKLE_INT, .u.i = (int64_t)i};
        enum sl_code c = step == 2 ? walk_item(w, v->u.v[i], v->u.v[i + 1], depth)
                                   : walk_item(w, &place, v->u.v[i], depth);
        if (c)
            return c;
    }
    return SL_OK;
}

static enum sl_code add_tensors(struct sl_pickle *m, const struct sl_pickle_value *root)
{
    if (!is_container(root))
        return SL_READER_FAIL(m->r, FILE_UNSUPPORTED, "holds %s instead of a dict of named tensors",
                              root->kind == SL_PICKLE_TENSOR ? "one tensor without a name"
                                                             : "one plain value");
    struct walk *w = sl_arena_alloc(m->arena, sizeof *w);
    if (!w)
        return sl_pickle_no_memory(m);
    w->m = m;
    return walk_value(w, root, 0);
}

/* --- zip files -------------------------------------------------------------------------------- */

struct zip_file {
    struct sl_zip zip;
    const char *folder; /* "archive/" */
    size_t folder_n;
};

static const struct sl_zip_entry *record(const struct zip_file *f, const char *name)
{
    return sl_zip_find(&f->zip, f->folder, f->folder_n, name, strlen(name));
}

/* The folder at the top that has a data.pkl. */
static enum sl_code find_folder(struct sl_reader *r, struct zip_file *f)
{
    static const char wanted[] = "/data.pkl";
    const size_t wanted_n = sizeof wanted - 1;
    for (size_t i = 0; i < f->zip.n; i++) {
        const struct sl_zip_entry *e = &f->zip.v[i];
        const char *slash = memchr(e->name, '/', e->name_n);
        if (!slash || (size_t)(slash - e->name) + wanted_n != e->name_n ||
            memcmp(slash, wanted, wanted_n) != 0)
            continue;
        if (f->folder)
            return SL_READER_FAIL(r, FILE_CORRUPT,
                                  "has two data.pkl records, in the folders "
                                  "\"%.*s\" and \"%.*s\"",
                                  f->folder_n < 80 ? (int)f->folder_n : 80, f->folder,
                                  slash - e->name < 80 ? (int)(slash - e->name) : 80, e->name);
        f->folder = e->name;
        f->folder_n = (size_t)(slash - e->name) + 1;
    }
    if (f->folder)
        return SL_OK;
    const struct sl_zip_entry none = {.name = "", .name_n = 0}, *e = f->zip.n ? f->zip.v : &none;
    return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                          "is a zip file but no PyTorch checkpoint: none of its %zu records is "
                          "named FOLDER/data.pkl (one is \"%.*s\")",
                          f->zip.n, e->name_n < 80 ? (int)e->name_n : 80, e->name);
}

static enum sl_code check_byteorder(struct sl_reader *r, const struct zip_file *f)
{
    const struct sl_zip_entry *e = record(f, "byteorder");
    const unsigned char *p = NULL;
    if (!e)
        return SL_OK; /* older files have none and are little-endian */
    enum sl_code c = sl_zip_data(r, &f->zip, e, &p);
    if (c || (e->n == 6 && memcmp(p, "little", 6) == 0))
        return c;
    return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                          "its byte order is \"%.*s\"; only \"little\" is supported",
                          e->n < 16 ? (int)e->n : 16, (const char *)p);
}

/* A record's header is a few bytes, but the system maps what lies around it in the page cache, and
 * that of a thousand records together is much of the file. */
static void forget_around(const struct sl_reader *r, size_t at)
{
    enum { AROUND = 1 << 20 };
    size_t begin = at > AROUND ? at - AROUND : 0, end = r->n - at > AROUND ? at + AROUND : r->n;
    sl_tensors_forget(r->t, r->data + begin, end - begin);
}

static enum sl_code locate_record(struct sl_pickle *m, struct sl_pickle_storage *s)
{
    const struct zip_file *f = m->ctx;
    static const char data[] = "data/";
    char name[sizeof data + SL_TENSOR_NAME_MAX];
    const unsigned char *p = NULL;
    memcpy(name, data, sizeof data - 1);
    memcpy(name + sizeof data - 1, s->key, s->key_n); /* its length was checked */
    const struct sl_zip_entry *e =
        sl_zip_find(&f->zip, f->folder, f->folder_n, name, sizeof data - 1 + s->key_n);
    if (!e)
        return s->n_elements
                   ? SL_PICKLE_FAIL(m, FILE_CORRUPT, "the storage's record data/%.*s is missing",
                                    s->key_n < 80 ? (int)s->key_n : 80, s->key)
                   : SL_OK;
    enum sl_code c = sl_zip_data(m->r, &f->zip, e, &p);
    if (c)
        return c;
    forget_around(m->r, e->header_at);
    size_t size = s->dtype ? sl_dtype_size(s->dtype) : 1;
    if (s->n_elements > e->n / size)
        return SL_PICKLE_FAIL(m, FILE_CORRUPT,
                              "a storage of %zu elements of %zu bytes does not fit its record "
                              "data/%.*s of %zu bytes",
                              s->n_elements, size, s->key_n < 80 ? (int)s->key_n : 80, s->key,
                              e->n);
    s->data = p;
    return SL_OK;
}

static enum sl_code read_zip(struct sl_reader *r, struct sl_pickle *m, struct zip_file *f)
{
    enum sl_code c = sl_zip_read(r, m->arena, &f->zip);
    if (!c)
        c = find_folder(r, f);
    if (!c && record(f, "constants.pkl"))
        c = SL_READER_FAIL(r, FILE_UNSUPPORTED,
                           "is a TorchScript program; a checkpoint (a state dict) is needed");
    if (!c)
        c = check_byteorder(r, f);
    if (c)
        return c;
    const struct sl_zip_entry *e = record(f, "data.pkl");
    const unsigned char *p = NULL;
    size_t used = 0;
    struct sl_pickle_value *root = NULL;
    c = sl_zip_data(r, &f->zip, e, &p);
    if (!c)
        c = sl_pickle_run(m, p, e->n, &used, &root);
    return c ? c : add_tensors(m, root);
}

enum sl_code sl_pth_zip_read(struct sl_reader *r)
{
    struct sl_arena arena = {.limit = SL_PICKLE_ARENA_MAX};
    struct zip_file f = {0};
    struct sl_pickle m = {
        .r = r, .arena = &arena, .what = "data.pkl", .locate = locate_record, .ctx = &f};
    enum sl_code c = read_zip(r, &m, &f);
    sl_pickle_done(&m);
    sl_arena_done(&arena);
    return c;
}

/* --- old files -------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    const struct sl_pickle_storage *x = *(struct sl_pickle_storage *const *)a;
    const struct sl_pickle_storage *y = *(struct sl_pickle_storage *const *)b;
    int cmp = memcmp(x->key, y->key, x->key_n < y->key_n ? x->key_n : y->key_n);
    return cmp ? cmp : (x->key_n > y->key_n) - (x->key_n < y->key_n);
}

/* The run of storages (sorted by key) that have this key: each mention of a storage made one. */
static struct sl_pickle_storage **find_run(struct sl_pickle *m, const struct sl_pickle_value *key,
                                           size_t *ret_n)
{
    struct sl_pickle_storage probe = {.key = key->u.s, .key_n = key->n}, *p = &probe;
    size_t lo = 0, hi = m->n_storages;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (by_key(&m->storages[mid], &p) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (hi = lo; hi < m->n_storages && by_key(&m->storages[hi], &p) == 0; hi++)
        ;
    *ret_n = hi - lo;
    return hi > lo ? m->storages + lo : NULL;
}

/* One storage's count and elements, at *at; *at goes behind them. */
static enum sl_code read_storage(struct sl_pickle *m, const struct sl_pickle_value *key, size_t *at)
{
    struct sl_reader *r = m->r;
    if (key->kind != SL_PICKLE_STRING)
        return SL_READER_FAIL(r, FILE_CORRUPT, "a storage's key is no string");
    int shown = key->n < 80 ? (int)key->n : 80;
    size_t n_run, n_bytes;
    struct sl_pickle_storage **run = find_run(m, key, &n_run);
    if (!n_run)
        return SL_READER_FAIL(r, FILE_CORRUPT, "the storage \"%.*s\" belongs to no tensor", shown,
                              key->u.s);
    if (run[0]->data)
        return SL_READER_FAIL(r, FILE_CORRUPT, "the storage \"%.*s\" is listed twice", shown,
                              key->u.s);
    uint64_t count;
    if (r->n - *at < sizeof count)
        return SL_READER_FAIL(r, FILE_TRUNCATED, "ends before the storage \"%.*s\"", shown,
                              key->u.s);
    memcpy(&count, r->data + *at, sizeof count);
    *at += sizeof count;
    size_t size = run[0]->dtype ? sl_dtype_size(run[0]->dtype) : 1;
    for (size_t i = 0; i < n_run; i++)
        if (run[i]->n_elements != count || run[i]->dtype != run[0]->dtype)
            return SL_READER_FAIL(r, FILE_CORRUPT,
                                  "the storage \"%.*s\" has %ju elements of %s here and %zu of %s "
                                  "in the pickle",
                                  shown, key->u.s, (uintmax_t)count, sl_dtype_name(run[0]->dtype),
                                  run[i]->n_elements, sl_dtype_name(run[i]->dtype));
    if (__builtin_mul_overflow((size_t)count, size, &n_bytes) || n_bytes > r->n - *at)
        return SL_READER_FAIL(r, FILE_TRUNCATED,
                              "the storage \"%.*s\" has %ju elements of %zu bytes, but %zu bytes "
                              "follow",
                              shown, key->u.s, (uintmax_t)count, size, r->n - *at);
    for (size_t i = 0; i < n_run; i++)
        run[i]->data = r->data + *at;
    *at += n_bytes;
    return SL_OK;
}

/* What the writing machine said of itself: {…, 'little_endian': True, …} */
static enum sl_code check_machine(struct sl_reader *r, const struct sl_pickle_value *v)
{
    static const char wanted[] = "little_endian";
    const struct sl_pickle_value *little = NULL;
    for (size_t i = 0; v->kind == SL_PICKLE_DICT && i < v->n; i += 2)
        if (v->u.v[i]->kind == SL_PICKLE_STRING && v->u.v[i]->n == sizeof wanted - 1 &&
            memcmp(v->u.v[i]->u.s, wanted, sizeof wanted - 1) == 0)
            little = v->u.v[i + 1];
    if (!little || little->kind != SL_PICKLE_BOOL)
        return SL_READER_FAIL(r, FILE_CORRUPT, "does not say whether it is little-endian");
    if (!little->u.i)
        return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                              "its byte order is \"big\"; only \"little\" is supported");
    return SL_OK;
}

static enum sl_code read_legacy(struct sl_reader *r, struct sl_pickle *m)
{
    static const char *const what[LEGACY_PICKLES] = {"the magic number", "the protocol's version",
                                                     "the machine's description", "the pickle",
                                                     "the list of storages"};
    struct sl_pickle_value *v[LEGACY_PICKLES];
    size_t at = 0, used = 0;
    for (size_t i = 0; i < LEGACY_PICKLES; i++, at += used) {
        m->what = what[i];
        enum sl_code c = sl_pickle_run(m, r->data + at, r->n - at, &used, &v[i]);
        if (c)
            return c;
    }
    if (v[1]->kind != SL_PICKLE_INT || v[1]->u.i != LEGACY_PROTOCOL)
        return SL_READER_FAIL(r, FILE_UNSUPPORTED, "the protocol's version is not %d, the only one",
                              LEGACY_PROTOCOL);
    enum sl_code c = check_machine(r, v[2]);
    if (c)
        return c;
    if (v[4]->kind != SL_PICKLE_LIST)
        return SL_READER_FAIL(r, FILE_CORRUPT, "the list of storages is no list");
    if (m->n_storages)
        qsort(m->storages, m->n_storages, sizeof(struct sl_pickle_storage *), by_key);
    for (size_t i = 0; i < v[4]->n && !c; i++)
        c = read_storage(m, v[4]->u.v[i], &at);
    return c ? c : add_tensors(m, v[3]);
}

enum sl_code sl_pth_legacy_read(struct sl_reader *r)
{
    struct sl_arena arena = {.limit = SL_PICKLE_ARENA_MAX};
    struct sl_pickle m = {.r = r, .arena = &arena};
    enum sl_code c = read_legacy(r, &m);
    sl_pickle_done(&m);
    sl_arena_done(&arena);
    return c;
}
