/* tokenizer.c: the public functions of tokenizer.h over a table of kinds.
 *
 * A file is read whole (its size has a limit) and handed to the kind; nothing of it is kept. The
 * fingerprint is taken here, over the table of tokens, so that it means the same for every kind:
 * for each id with bytes, in ascending order, id and length as 32-bit little-endian numbers and
 * the bytes. */
#include "engine/tokenizers/kinds.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* for a hash state on the stack */
#include <xxhash.h>

#include "engine/base/mem.h"

enum { PATH_BYTES = 4096 };

static const struct sl_tokenizer_kind *const kinds[] = {
    &sl_tokenizer_byte_values,
    &sl_tokenizer_bpe,
    &sl_tokenizer_rwkv_world,
    NULL,
};

/* What a directory may hold, the first one that is there. */
static const char *const files[] = {"tokenizer.json", "rwkv_vocab_v20230424.txt"};

/* The kind that a word names, or NULL. */
static const struct sl_tokenizer_kind *kind_named(const char *spec)
{
    for (size_t i = 0; kinds[i]; i++)
        if (kinds[i]->spec && strcmp(kinds[i]->spec, spec) == 0)
            return kinds[i];
    return NULL;
}

static const struct sl_tokenizer_kind *kind_of(const unsigned char *data, size_t n)
{
    const struct sl_tokenizer_kind *any = &sl_tokenizer_rwkv_world; /* which knows no mark */
    for (size_t i = 0; kinds[i]; i++)
        if (kinds[i]->knows && kinds[i]->knows(data, n))
            return kinds[i];
    return any;
}

static void put_u32(unsigned char *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(x >> 8 * i);
}

static void take_fingerprint(struct sl_tokenizer *t)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    for (size_t id = 0; id < t->n_ids; id++) {
        struct sl_token_span s = t->spans[id];
        if (s.n == 0)
            continue;
        unsigned char head[8];
        put_u32(head, (uint32_t)id);
        put_u32(head + 4, s.n);
        XXH3_128bits_update(&state, head, sizeof head);
        XXH3_128bits_update(&state, t->blob + s.offset, s.n);
    }
    if (t->kind->fingerprint)
        t->kind->fingerprint(t, &state);
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(&state));
    static_assert(sizeof c.digest == sizeof t->fingerprint, "128 bits");
    memcpy(t->fingerprint, c.digest, sizeof t->fingerprint);
}

static enum sl_code open_kind(struct sl_tokenizer **ret, const struct sl_tokenizer_kind *kind,
                              const void *data, size_t n_bytes, const char *name,
                              struct sl_error *err)
{
    struct sl_tokenizer *t = sl_calloc(1, sizeof *t);
    if (!t)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the tokenizer \"%s\"", name);
    t->kind = kind;
    t->begin = -1;
    enum sl_code c = kind->open(t, data, n_bytes, name, err);
    if (c != SL_OK) {
        sl_free(t);
        return c;
    }
    take_fingerprint(t);
    *ret = t;
    return SL_OK;
}

void sl_tokenizer_finish(struct sl_tokenizer *t)
{
    take_fingerprint(t);
}

static enum sl_code too_large(const char *name, struct sl_error *err)
{
    return sl_fail(err, SL_E_TOO_LARGE,
                   "the vocabulary file \"%s\" is larger than %d bytes, the most that is read",
                   name, (int)SL_VOCAB_FILE_BYTES_MAX);
}

/* Reads what is left of fd, up to the limit: a pipe has no size to ask for. */
static enum sl_code read_rest(int fd, const char *path, unsigned char **ret, size_t *ret_n,
                              struct sl_error *err)
{
    unsigned char *data = NULL;
    size_t n = 0, room = 0;
    enum sl_code c = SL_OK;
    for (;;) {
        if (n == room) {
            if (room > SL_VOCAB_FILE_BYTES_MAX) {
                c = too_large(path, err);
                goto out;
            }
            room = room ? room * 2 : 1 << 21;
            if (room > SL_VOCAB_FILE_BYTES_MAX)
                room = SL_VOCAB_FILE_BYTES_MAX + 1;
            unsigned char *grown = sl_realloc(data, room, 1);
            if (!grown) {
                c = sl_fail(err, SL_E_NO_MEMORY, "no memory to read the vocabulary file \"%s\"",
                            path);
                goto out;
            }
            data = grown;
        }
        ssize_t got = read(fd, data + n, room - n);
        if (got == 0)
            break;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            c = sl_fail(err, SL_E_IO, "reading the vocabulary file \"%s\" failed: %s", path,
                        strerror(errno));
            goto out;
        }
        n += (size_t)got;
    }
    *ret = data;
    *ret_n = n;
    data = NULL;
out:
    sl_free(data);
    return c;
}

static enum sl_code read_file(const char *path, unsigned char **ret, size_t *ret_n,
                              struct sl_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return sl_fail(err, absent ? SL_E_FILE_NOT_FOUND : SL_E_IO,
                       "the vocabulary file \"%s\" cannot be opened: %s", path, strerror(errno));
    }
    struct stat st;
    enum sl_code c;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > SL_VOCAB_FILE_BYTES_MAX)
        c = too_large(path, err);
    else
        c = read_rest(fd, path, ret, ret_n, err);
    close(fd);
    return c;
}

static enum sl_code open_file(struct sl_tokenizer **ret, const char *path, struct sl_error *err)
{
    unsigned char *data = NULL;
    size_t n = 0;
    enum sl_code c = read_file(path, &data, &n, err);
    if (c == SL_OK)
        c = open_kind(ret, kind_of(data, n), data, n, path, err);
    sl_free(data);
    return c;
}

/* `file` "": the folder is the path. */
static enum sl_code put_path(char ret[PATH_BYTES], const char *folder, const char *file,
                             struct sl_error *err)
{
    int n = snprintf(ret, PATH_BYTES, "%s%s%s", folder, *file ? "/" : "", file);
    if (n < 0 || n >= PATH_BYTES)
        return sl_fail(err, SL_E_TOO_LARGE, "%.160s…: a path of at most %d bytes is possible",
                       folder, PATH_BYTES - 1);
    return SL_OK;
}

static enum sl_code find_in(char ret[PATH_BYTES], const char *folder, struct sl_error *err)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        enum sl_code c = put_path(ret, folder, files[i], err);
        if (c || access(ret, F_OK) == 0)
            return c;
    }
    return sl_fail(err, SL_E_FILE_NOT_FOUND, "the directory \"%.300s\" holds neither %s nor %s",
                   folder, files[0], files[1]);
}

/* The file that a path leads to: itself, or what lies in it where it is a directory. */
static enum sl_code find_file(char ret[PATH_BYTES], const char *spec, struct sl_error *err)
{
    struct stat st;
    bool folder = stat(spec, &st) == 0 && S_ISDIR(st.st_mode);
    return folder ? find_in(ret, spec, err) : put_path(ret, spec, "", err);
}

bool sl_tokenizer_is_in(const char *folder)
{
    char path[PATH_BYTES];
    struct sl_error none;
    return find_in(path, folder, &none) == SL_OK;
}

enum sl_code sl_tokenizer_open(struct sl_tokenizer **ret, const char *spec, struct sl_error *err)
{
    const struct sl_tokenizer_kind *kind = kind_named(spec);
    char path[PATH_BYTES];
    if (kind)
        return open_kind(ret, kind, NULL, 0, spec, err);
    enum sl_code c = find_file(path, spec, err);
    return c ? c : open_file(ret, path, err);
}

enum sl_code sl_tokenizer_read(const char *spec, unsigned char **ret, size_t *ret_n,
                               struct sl_error *err)
{
    char path[PATH_BYTES];
    if (kind_named(spec)) {
        *ret = NULL;
        *ret_n = 0;
        return SL_OK;
    }
    enum sl_code c = find_file(path, spec, err);
    return c ? c : read_file(path, ret, ret_n, err);
}

enum sl_code sl_tokenizer_open_memory(struct sl_tokenizer **ret, const void *data, size_t n_bytes,
                                      const char *name, struct sl_error *err)
{
    if (n_bytes > SL_VOCAB_FILE_BYTES_MAX)
        return too_large(name, err);
    return open_kind(ret, kind_of(data, n_bytes), data, n_bytes, name, err);
}

void sl_tokenizer_close(struct sl_tokenizer *t)
{
    if (!t)
        return;
    t->kind->close(t);
    sl_free(t);
}

const char *sl_tokenizer_kind(const struct sl_tokenizer *t)
{
    return t->kind->name;
}

size_t sl_tokenizer_size(const struct sl_tokenizer *t)
{
    return t->n_ids;
}

void sl_tokenizer_set_ends(struct sl_tokenizer *t, const uint32_t *ids, size_t n)
{
    assert(n <= SL_TOKENIZER_ENDS_MAX);
    for (size_t i = 0; i < n; i++)
        t->ends[i] = ids[i];
    t->n_ends = n;
}

void sl_tokenizer_set_begin(struct sl_tokenizer *t, int64_t id)
{
    t->begin = id;
}

int64_t sl_tokenizer_eos(const struct sl_tokenizer *t)
{
    return t->n_ends ? (int64_t)t->ends[0] : -1;
}

bool sl_tokenizer_is_eos(const struct sl_tokenizer *t, uint32_t id)
{
    for (size_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return true;
    return false;
}

int64_t sl_tokenizer_begin(const struct sl_tokenizer *t)
{
    return t->begin;
}

int64_t sl_tokenizer_find(const struct sl_tokenizer *t, const char *text, size_t n)
{
    return t->kind->find ? t->kind->find(t, text, n) : -1;
}

void sl_tokenizer_fingerprint(const struct sl_tokenizer *t, unsigned char ret[16])
{
    memcpy(ret, t->fingerprint, sizeof t->fingerprint);
}

const unsigned char *sl_tokenizer_bytes(const struct sl_tokenizer *t, uint32_t id, size_t *ret_n)
{
    if (id >= t->n_ids || t->spans[id].n == 0) {
        *ret_n = 0;
        return NULL;
    }
    *ret_n = t->spans[id].n;
    return t->blob + t->spans[id].offset;
}

const unsigned char *sl_tokenizer_first_bytes(const struct sl_tokenizer *t, uint32_t id,
                                              size_t *ret_n)
{
    const unsigned char *bytes = sl_tokenizer_bytes(t, id, ret_n);
    if (!bytes || !t->first_spans)
        return bytes;
    *ret_n = t->first_spans[id].n;
    return t->blob + t->first_spans[id].offset;
}

/* --- encoding -----------------------------------------------------------------------------------
 */

void sl_token_list_done(struct sl_token_list *l)
{
    sl_free(l->v);
    *l = (struct sl_token_list){0};
}

enum sl_code sl_token_list_reserve(struct sl_token_list *l, size_t n, struct sl_error *err)
{
    if (l->room - l->n >= n)
        return SL_OK;
    size_t room = l->room + l->room / 2;
    if (n > SIZE_MAX / sizeof *l->v - l->n)
        return sl_fail(err, SL_E_TOO_LARGE, "a text of more tokens than fit in memory");
    if (room < l->n + n)
        room = l->n + n;
    uint32_t *v = sl_realloc(l->v, room, sizeof *v);
    if (!v)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu tokens", room);
    l->v = v;
    l->room = room;
    return SL_OK;
}

enum sl_code sl_token_list_add(struct sl_token_list *l, const uint32_t *ids, size_t n,
                               struct sl_error *err)
{
    enum sl_code c = sl_token_list_reserve(l, n, err);
    if (!c && n)
        memcpy(l->v + l->n, ids, n * sizeof *ids);
    l->n += c ? 0 : n;
    return c;
}

enum sl_code sl_tokenizer_encode(const struct sl_tokenizer *t, const struct sl_tokenizer_text *text,
                                 struct sl_token_list *out, struct sl_error *err)
{
    if (text->n == 0)
        return SL_OK;
    if (t->kind->encode) {
        size_t n = out->n;
        enum sl_code c = t->kind->encode(t, text, out, err);
        if (c)
            out->n = n;
        return c;
    }
    enum sl_code c = sl_token_list_reserve(out, text->n, err);
    if (c)
        return c;
    out->n += t->kind->encode_part(t, text->s, text->n, out->v + out->n);
    return SL_OK;
}

size_t sl_tokenizer_encode_part(const struct sl_tokenizer *t, const void *part, size_t n,
                                uint32_t *ids)
{
    return t->kind->encode_part(t, part, n, ids);
}
