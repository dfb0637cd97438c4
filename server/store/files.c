/* files.c: see files.h. */
#include "server/store/files.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

static const char temporary[] = ".tmp";

enum { PIECE = 1 << 18 };

/* The way from `sessions` to a file. */
struct way {
    char tenant[SL_TENANT_MAX + 3];
    char fan[2], leaf[2];
    char name[SL_FILE_NAME_SIZE];
    char path[SL_FILE_PATH_SIZE]; /* below the root, for messages */
};

static unsigned leaf_of(uint64_t hash)
{
    return (unsigned)(hash >> 56);
}

void sl_folders_get(const struct sl_ix_tenant *t, uint64_t hash, struct sl_folders *ret)
{
    unsigned i = leaf_of(hash);
    *ret = (struct sl_folders){.tenant = t->synced,
                               .fan = t->fan_synced[i / 16],
                               .leaf = (t->leaf_synced[i / 8] >> (i % 8)) & 1};
}

void sl_folders_set(struct sl_ix_tenant *t, uint64_t hash, const struct sl_folders *f)
{
    unsigned i = leaf_of(hash);
    t->synced |= f->tenant;
    t->fan_synced[i / 16] |= f->fan;
    if (f->leaf)
        t->leaf_synced[i / 8] = (unsigned char)(t->leaf_synced[i / 8] | 1u << (i % 8));
}

static void hex(char ret[33], const unsigned char v[16])
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < 16; i++) {
        ret[2 * i] = digit[v[i] >> 4];
        ret[2 * i + 1] = digit[v[i] & 15];
    }
    ret[32] = '\0';
}

static void find_way(struct way *ret, const struct sl_file_of *of, const struct sl_snapfile *s)
{
    static const char digit[] = "0123456789abcdef";
    unsigned i = leaf_of(of->hash);
    char incarnation[33];
    hex(incarnation, of->incarnation);
    snprintf(ret->tenant, sizeof ret->tenant, "t-%s", of->tenant);
    ret->fan[0] = digit[i / 16];
    ret->leaf[0] = digit[i % 16];
    ret->fan[1] = ret->leaf[1] = '\0';
    int n = snprintf(ret->name, sizeof ret->name, "%s.%s.%" PRIu64 "-%" PRIu64 ".safetensors",
                     of->id, incarnation, s->version, s->number);
    assert(n > 0 && (size_t)n + sizeof temporary <= sizeof ret->name);
    snprintf(ret->path, sizeof ret->path, SL_SESSIONS_NAME "/%s/%s/%s/%s", ret->tenant, ret->fan,
             ret->leaf, ret->name);
}

static struct sl_where where(const struct sl_files *fs, const struct way *w)
{
    return (struct sl_where){fs->root, w->path};
}

/* The folder `name` in `dir`, made where it is missing when `synced` is given; then its entry is on
 * the disk, too. -1 and errno on failure. */
static int enter(const struct sl_files *fs, int dir, const char *name, bool *synced)
{
    int fd = sl_io_open_dir(fs->io, dir, name);
    if (fd < 0 && errno == ENOENT && synced) {
        *synced = false;
        if (fs->io->mkdir(dir, name, 0700) < 0 && errno != EEXIST)
            return -1;
        fd = sl_io_open_dir(fs->io, dir, name);
    }
    if (fd < 0 || !synced || *synced)
        return fd;
    int e = sl_io_fsync(fs->io, dir);
    if (e) {
        fs->io->close(fd);
        errno = e;
        return -1;
    }
    *synced = true;
    return fd;
}

/* The folder where the file is; folders NULL: only when it is there. -1 and errno. */
static int enter_way(const struct sl_files *fs, const struct way *w, struct sl_folders *folders)
{
    const char *const names[] = {w->tenant, w->fan, w->leaf};
    bool *const synced[] = {folders ? &folders->tenant : NULL, folders ? &folders->fan : NULL,
                            folders ? &folders->leaf : NULL};
    int dir = fs->sessions;
    for (int i = 0; i < 3; i++) {
        int fd = enter(fs, dir, names[i], synced[i]);
        int e = errno;
        if (dir != fs->sessions)
            fs->io->close(dir);
        errno = e;
        if (fd < 0)
            return -1;
        dir = fd;
    }
    return dir;
}

/* All n bytes, and their digest on the way, while a piece is in the processor's cache: one pass
 * over the memory instead of two. 0 or an errno. */
static int write_pieces(const struct sl_files *fs, int fd, const unsigned char *p, size_t n,
                        unsigned char digest[16])
{
    struct sl_digest state;
    sl_digest_begin(&state);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t k = n - at < PIECE ? n - at : PIECE;
        sl_digest_add(&state, p + at, k);
        int e = sl_io_write(fs->io, fd, p + at, k, at);
        if (e)
            return e;
    }
    sl_digest_end(&state, digest);
    return 0;
}

/* The bytes under a temporary name, synced. */
static enum sl_code write_temporary(const struct sl_files *fs, const struct way *w, int dir,
                                    const char *name, const void *data, size_t n,
                                    struct sl_snapfile *s, struct sl_error *err)
{
    if (fs->io->unlink(dir, name) < 0 && errno != ENOENT)
        return sl_io_fail(err, "unlink of a leftover of", where(fs, w), errno);
    int fd = sl_io_open(fs->io, dir, name, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0)
        return sl_io_fail(err, "open of", where(fs, w), errno);
    const char *call = "write to";
    int e = write_pieces(fs, fd, data, n, s->digest);
    if (!e) {
        call = "fsync of";
        e = sl_io_fsync(fs->io, fd);
    }
    if (fs->io->close(fd) < 0 && !e) {
        call = "close of";
        e = errno;
    }
    return e ? sl_io_fail(err, call, where(fs, w), e) : SL_OK;
}

static enum sl_code write_in(const struct sl_files *fs, const struct way *w, int dir,
                             const void *data, size_t n, struct sl_snapfile *s,
                             struct sl_error *err)
{
    char name[SL_FILE_NAME_SIZE + sizeof temporary];
    snprintf(name, sizeof name, "%s%s", w->name, temporary);
    enum sl_code c = write_temporary(fs, w, dir, name, data, n, s, err);
    bool renamed = false;
    if (!c) {
        renamed = fs->io->rename(dir, name, w->name) == 0;
        if (!renamed)
            c = sl_io_fail(err, "rename of", where(fs, w), errno);
    }
    if (!c) {
        int e = sl_io_fsync(fs->io, dir);
        if (e)
            c = sl_io_fail(err, "fsync of the folder of", where(fs, w), e);
    }
    if (c) /* if that fails, too, the next open removes it */
        fs->io->unlink(dir, renamed ? w->name : name);
    return c;
}

enum sl_code sl_file_write(const struct sl_files *fs, const struct sl_file_of *of,
                           struct sl_folders *folders, const void *data, size_t n,
                           struct sl_snapfile *s, struct sl_error *err)
{
    struct way w;
    assert(s->number > 0);
    s->size = n;
    find_way(&w, of, s);
    int dir = enter_way(fs, &w, folders);
    if (dir < 0)
        return sl_io_fail(err, "making the folder of", where(fs, &w), errno);
    enum sl_code c = write_in(fs, &w, dir, data, n, s, err);
    fs->io->close(dir);
    return c;
}

/* --- reading -------------------------------------------------------------------------------------
 */

static enum sl_code corrupt(const struct sl_file_reading *r, const char *what, struct sl_error *err)
{
    return sl_fail(err, SL_E_SNAPSHOT_CORRUPT, "%s/%s: %s", r->fs->root, r->path, what);
}

static enum sl_code other_bytes(const struct sl_file_reading *r, struct sl_error *err)
{
    return corrupt(r, "is damaged: its bytes are not those that were written", err);
}

static struct sl_where where_read(const struct sl_file_reading *r)
{
    return (struct sl_where){r->fs->root, r->path};
}

static enum sl_code check_size(struct sl_file_reading *r, struct sl_error *err)
{
    struct stat st;
    char text[128];
    if (r->fs->io->stat(r->fd, &st) < 0)
        return sl_io_fail(err, "stat of", where_read(r), errno);
    if (!S_ISREG(st.st_mode))
        return corrupt(r, "is not a regular file", err);
    if ((uint64_t)st.st_size == r->s->size)
        return SL_OK;
    snprintf(text, sizeof text, "is damaged: it has %" PRIu64 " bytes; %" PRIu64 " were written",
             (uint64_t)st.st_size, r->s->size);
    return corrupt(r, text, err);
}

/* Folder by folder. -1 and errno. */
static int open_on_foot(const struct sl_files *fs, const struct way *w)
{
    int dir = enter_way(fs, w, NULL);
    int fd = dir < 0 ? -1 : sl_io_open(fs->io, dir, w->name, O_RDONLY);
    int e = errno;
    if (dir >= 0)
        fs->io->close(dir);
    errno = e;
    return fd;
}

static enum sl_code open_file(struct sl_file_reading *r, const struct way *w, struct sl_error *err)
{
    r->fd = sl_io_open_below(r->fs->io, r->fs->sessions, w->path + sizeof SL_SESSIONS_NAME);
    if (r->fd < 0 && (errno == ENOSYS || errno == EPERM))
        r->fd = open_on_foot(r->fs, w);
    int e = errno;
    if (r->fd >= 0)
        return SL_OK;
    if (e == ENOENT)
        return corrupt(r, "is missing", err);
    if (e == ELOOP || e == ENOTDIR)
        return corrupt(r, "is a link or lies behind one, or behind a file: not followed", err);
    return sl_io_fail(err, "open of", where_read(r), e);
}

enum sl_code sl_file_begin(struct sl_file_reading *r, const struct sl_files *fs,
                           const struct sl_file_of *of, const struct sl_snapfile *s,
                           struct sl_bytes *memory, struct sl_error *err)
{
    struct way w;
    find_way(&w, of, s);
    r->fs = fs;
    r->s = s;
    r->have = 0;
    memcpy(r->path, w.path, sizeof r->path);
    sl_digest_begin(&r->digest);
    enum sl_code c = open_file(r, &w, err);
    if (c)
        return c;
    c = check_size(r, err);
    if (!c && !sl_bytes_reserve(memory, (size_t)s->size))
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a snapshot of %" PRIu64 " bytes", s->size);
    r->p = memory->p;
    if (c)
        fs->io->close(r->fd);
    return c;
}

enum sl_code sl_file_need(void *arg, size_t end, size_t *ret_have, struct sl_error *err)
{
    struct sl_file_reading *r = arg;
    size_t n = (size_t)r->s->size;
    assert(end <= n);
    while (r->have < end) {
        size_t piece = n - r->have < PIECE ? n - r->have : PIECE, got = 0;
        int e = sl_io_read(r->fs->io, r->fd, r->p + r->have, piece, r->have, &got);
        if (e)
            return sl_io_fail(err, "read from", where_read(r), e);
        if (got < piece)
            return other_bytes(r, err);
        sl_digest_add(&r->digest, r->p + r->have, piece);
        r->have += piece;
    }
    *ret_have = r->have;
    return SL_OK;
}

enum sl_code sl_file_end(struct sl_file_reading *r, struct sl_error *err)
{
    unsigned char digest[16];
    size_t have;
    enum sl_code c = sl_file_need(r, (size_t)r->s->size, &have, err);
    r->fs->io->close(r->fd);
    if (c)
        return c;
    sl_digest_end(&r->digest, digest);
    return memcmp(digest, r->s->digest, sizeof digest) == 0 ? SL_OK : other_bytes(r, err);
}

enum sl_code sl_file_read(const struct sl_files *fs, const struct sl_file_of *of,
                          const struct sl_snapfile *s, struct sl_bytes *ret, struct sl_error *err)
{
    struct sl_file_reading r;
    enum sl_code c = sl_file_begin(&r, fs, of, s, ret, err);
    return c ? c : sl_file_end(&r, err);
}

bool sl_file_is_missing(const struct sl_files *fs, const struct sl_file_of *of,
                        const struct sl_snapfile *s)
{
    struct way w;
    find_way(&w, of, s);
    int fd = open_on_foot(fs, &w), e = errno;
    if (fd >= 0)
        fs->io->close(fd);
    return fd < 0 && e == ENOENT;
}

enum sl_code sl_file_remove(const struct sl_files *fs, const struct sl_file_of *of,
                            const struct sl_snapfile *s, struct sl_error *err)
{
    struct way w;
    find_way(&w, of, s);
    int dir = enter_way(fs, &w, NULL);
    int e = dir < 0 || fs->io->unlink(dir, w.name) < 0 ? errno : 0;
    if (dir >= 0)
        fs->io->close(dir);
    return e && e != ENOENT ? sl_io_fail(err, "unlink of", where(fs, &w), e) : SL_OK;
}

/* --- leftovers -----------------------------------------------------------------------------------
 */

struct sweep {
    const struct sl_files *fs;
    struct sl_index *ix;
    struct sl_sweep *ret;
    struct sl_error *err;
    enum sl_code code;
    int dir; /* of the entries that are being listed */
    const char *tenant;
    unsigned depth, place; /* hex digits so far */
};

static bool hex_digit(char c, unsigned *ret)
{
    if (c >= '0' && c <= '9')
        *ret = (unsigned)(c - '0');
    else if (c >= 'a' && c <= 'f')
        *ret = (unsigned)(c - 'a') + 10;
    else
        return false;
    return true;
}

/* How many of the n characters before s + n are decimal digits. */
static size_t digits_before(const char *s, size_t n)
{
    size_t k = 0;
    while (k < n && s[n - 1 - k] >= '0' && s[n - 1 - k] <= '9')
        k++;
    return k;
}

/* Is `name` of our making: ID.INCARNATION.VERSION-NUMBER.safetensors, perhaps with .tmp? Gives the
 * id's length and the incarnation. */
static bool parse_name(const char *name, bool *ret_temporary, size_t *ret_id_n,
                       unsigned char incarnation[16])
{
    static const char ending[] = ".safetensors";
    size_t n = strlen(name), e = sizeof ending - 1, t = sizeof temporary - 1;
    *ret_temporary = n > t && strcmp(name + n - t, temporary) == 0;
    if (*ret_temporary)
        n -= t;
    if (n <= e || memcmp(name + n - e, ending, e) != 0)
        return false;
    n -= e;
    size_t number_n = digits_before(name, n);
    if (!number_n || n - number_n < 1 || name[n - number_n - 1] != '-')
        return false;
    n -= number_n + 1;
    size_t version_n = digits_before(name, n);
    if (!version_n || n - version_n < 35 || name[n - version_n - 1] != '.')
        return false;
    n -= version_n + 33;
    for (size_t i = 0; i < 16; i++) {
        unsigned a, b;
        if (!hex_digit(name[n + 2 * i], &a) || !hex_digit(name[n + 2 * i + 1], &b))
            return false;
        incarnation[i] = (unsigned char)(16 * a + b);
    }
    if (name[n - 1] != '.' || !sl_session_id_valid(name, n - 1))
        return false;
    *ret_id_n = n - 1;
    return true;
}

static bool is_file(const struct sl_ix_session *s, const struct sl_snapfile *file, const char *name)
{
    struct sl_file_of of = {.tenant = s->tenant->name, .id = s->id, .hash = s->hash};
    struct way way;
    memcpy(of.incarnation, s->incarnation, 16);
    find_way(&way, &of, file);
    return file->number && strcmp(way.name, name) == 0;
}

/* Does a record name it? Files of a damaged session are kept: they may be what is left of it. */
static bool is_needed(const struct sweep *w, const char *name, size_t id_n,
                      const unsigned char incarnation[16])
{
    struct sl_ix_session *s = sl_index_find(w->ix, w->tenant, strlen(w->tenant), name, id_n);
    if (!s || !s->exists || memcmp(s->incarnation, incarnation, 16) != 0)
        return false;
    if (s->damaged.size)
        return true;
    if (leaf_of(s->hash) != w->place)
        return false;
    for (struct sl_ix_snap *x = s->kept; x; x = x->next)
        if (is_file(s, &x->file, name))
            return x->found = true;
    return is_file(s, &s->snap, name);
}

static int sweep_file(void *arg, const char *name)
{
    struct sweep *w = arg;
    unsigned char incarnation[16];
    bool is_temporary;
    size_t id_n;
    if (!parse_name(name, &is_temporary, &id_n, incarnation))
        w->ret->foreign++;
    else if (!is_temporary && is_needed(w, name, id_n, incarnation))
        ;
    else if (w->fs->io->unlink(w->dir, name) < 0)
        w->ret->failed++;
    else
        w->ret->removed++;
    return 0;
}

static int sweep_folder(struct sweep *w, const char *name, sl_io_each *each);

static int sweep_leaf(void *arg, const char *name)
{
    struct sweep *w = arg;
    unsigned digit, place = w->place;
    if (!hex_digit(name[0], &digit) || name[1] != '\0') {
        w->ret->foreign++;
        return 0;
    }
    w->place = 16 * place + digit;
    w->depth++;
    int rc = sweep_folder(w, name, w->depth == 2 ? sweep_file : sweep_leaf);
    w->depth--;
    w->place = place;
    return rc;
}

static int sweep_tenant(void *arg, const char *name)
{
    struct sweep *w = arg;
    if (strncmp(name, "t-", 2) != 0 || !sl_tenant_valid(name + 2, strlen(name + 2))) {
        w->ret->foreign++;
        return 0;
    }
    w->tenant = name + 2;
    w->depth = w->place = 0;
    return sweep_folder(w, name, sweep_leaf);
}

/* Lists the folder `name` in w->dir. */
static int sweep_folder(struct sweep *w, const char *name, sl_io_each *each)
{
    int above = w->dir;
    int dir = sl_io_open_dir(w->fs->io, above, name);
    if (dir < 0 && (errno == ENOTDIR || errno == ELOOP)) {
        w->ret->foreign++;
        return 0;
    }
    w->dir = dir;
    int rc = dir < 0 ? -1 : w->fs->io->list(dir, each, w);
    if (rc < 0 && !w->code)
        w->code = sl_io_fail(w->err, "reading the folder",
                             (struct sl_where){w->fs->root, SL_SESSIONS_NAME}, errno);
    if (dir >= 0)
        w->fs->io->close(dir);
    w->dir = above;
    return rc;
}

enum sl_code sl_files_sweep(const struct sl_files *fs, struct sl_index *ix, struct sl_sweep *ret,
                            struct sl_error *err)
{
    *ret = (struct sl_sweep){0};
    struct sweep w = {.fs = fs, .ix = ix, .ret = ret, .err = err, .dir = fs->sessions};
    if (fs->io->list(fs->sessions, sweep_tenant, &w) < 0 && !w.code)
        w.code = sl_io_fail(err, "reading the folder",
                            (struct sl_where){fs->root, SL_SESSIONS_NAME}, errno);
    return w.code;
}
