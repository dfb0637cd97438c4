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

static const struct sl_tokenizer_kind *const kinds[] = {
    &sl_tokenizer_byte_values,
    &sl_tokenizer_rwkv_world,
    NULL,
};

static const struct sl_tokenizer_kind *kind_of(const char *spec)
{
    const struct sl_tokenizer_kind *file = NULL;
    for (size_t i = 0; kinds[i]; i++) {
        if (!kinds[i]->spec)
            file = kinds[i];
        else if (strcmp(kinds[i]->spec, spec) == 0)
            return kinds[i];
    }
    return file;
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
    enum sl_code c = kind->open(t, data, n_bytes, name, err);
    if (c != SL_OK) {
        sl_free(t);
        return c;
    }
    take_fingerprint(t);
    *ret = t;
    return SL_OK;
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

enum sl_code sl_tokenizer_open(struct sl_tokenizer **ret, const char *spec, struct sl_error *err)
{
    const struct sl_tokenizer_kind *kind = kind_of(spec);
    if (kind->spec)
        return open_kind(ret, kind, NULL, 0, spec, err);
    unsigned char *data = NULL;
    size_t n = 0;
    enum sl_code c = read_file(spec, &data, &n, err);
    if (c == SL_OK)
        c = open_kind(ret, kind, data, n, spec, err);
    sl_free(data);
    return c;
}

enum sl_code sl_tokenizer_open_memory(struct sl_tokenizer **ret, const void *data, size_t n_bytes,
                                      const char *name, struct sl_error *err)
{
    if (n_bytes > SL_VOCAB_FILE_BYTES_MAX)
        return too_large(name, err);
    return open_kind(ret, &sl_tokenizer_rwkv_world, data, n_bytes, name, err);
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

int64_t sl_tokenizer_eos(const struct sl_tokenizer *t)
{
    return t->eos;
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

size_t sl_tokenizer_encode(const struct sl_tokenizer *t, const void *text, size_t n, uint32_t *ids)
{
    return t->kind->encode(t, text, n, ids);
}
