/* dir.c: opening and closing a folder as a store.
 *
 *   PATH/format     "slate.store 1": what this is. Written last when a store is made
 *   PATH/lock       held (flock) while a server has it; its process id inside
 *   PATH/log        log.h
 *   PATH/sessions/  files.h
 *
 * A folder that holds other things is refused, not written into; and where a part of a store is
 * missing, nothing is made anew in its place: sessions would vanish without a word.
 *
 * Opening reads the log once and lists the snapshots; it opens none of them, so that ten thousand
 * sessions are ready in the blink of an eye. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/store/dir.h"

#define FORMAT_NAME "format"
#define FORMAT_NEW_NAME "format.new"
#define LOCK_NAME "lock"

static const char format_text[] = "slate.store 1\n";

static struct sl_where at(const struct sl_dir *d, const char *name)
{
    return (struct sl_where){d->path, name};
}

/* --- the folder ----------------------------------------------------------------------------------
 */

/* Puts the entry of the store's folder on the disk. Where the folder above may not be read, someone
 * else made this one in it. */
static enum sl_code sync_above(struct sl_dir *d, struct sl_error *err)
{
    char above[4096];
    size_t n = strlen(d->path);
    while (n > 1 && d->path[n - 1] == '/')
        n--;
    while (n > 0 && d->path[n - 1] != '/')
        n--;
    if (n >= sizeof above)
        return sl_io_fail(err, "open of the folder above", at(d, NULL), ENAMETOOLONG);
    memcpy(above, d->path, n);
    memcpy(above + n, ".", 2);
    int fd = sl_io_open_root(d->io, above);
    if (fd < 0 && errno == EACCES)
        return SL_OK;
    if (fd < 0)
        return sl_io_fail(err, "open of the folder above", at(d, NULL), errno);
    int e = sl_io_fsync(d->io, fd);
    d->io->close(fd);
    return e ? sl_io_fail(err, "fsync of the folder above", at(d, NULL), e) : SL_OK;
}

static enum sl_code open_root(struct sl_dir *d, struct sl_error *err)
{
    d->root = sl_io_open_root(d->io, d->path);
    if (d->root < 0 && errno == ENOENT) {
        if (d->io->mkdir(AT_FDCWD, d->path, 0700) < 0 && errno != EEXIST)
            return sl_io_fail(err, "mkdir of", at(d, NULL), errno);
        d->root = sl_io_open_root(d->io, d->path);
    }
    return d->root < 0 ? sl_io_fail(err, "open of", at(d, NULL), errno) : SL_OK;
}

struct content {
    bool format, log, other;
    char name[64]; /* of the first thing that is none of ours */
};

static int note(void *arg, const char *name)
{
    static const char *const ours[] = {LOCK_NAME, SL_LOG_NEW_NAME, SL_SESSIONS_NAME,
                                       FORMAT_NEW_NAME};
    struct content *c = arg;
    bool is_ours = false;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        is_ours |= strcmp(name, ours[i]) == 0;
    if (strcmp(name, FORMAT_NAME) == 0)
        c->format = true;
    else if (strcmp(name, SL_LOG_NAME) == 0)
        c->log = true;
    else if (!is_ours && !c->other) {
        c->other = true;
        snprintf(c->name, sizeof c->name, "%s", name);
    }
    return 0;
}

static enum sl_code look(struct sl_dir *d, struct content *ret, struct sl_error *err)
{
    *ret = (struct content){0};
    if (d->io->list(d->root, note, ret) < 0)
        return sl_io_fail(err, "reading the folder", at(d, NULL), errno);
    if (ret->other && !ret->format)
        return sl_fail(err, SL_E_USAGE,
                       "%s: holds other things ('%s') and is no store; give an empty folder, or "
                       "one that does not exist yet",
                       d->path, ret->name);
    return SL_OK;
}

static enum sl_code locked(struct sl_dir *d, struct sl_error *err)
{
    char text[24] = "";
    size_t n = 0;
    if (sl_io_read(d->io, d->lock, text, sizeof text - 1, 0, &n) != 0)
        n = 0;
    text[strspn(text, "0123456789")] = '\0';
    return sl_fail(err, SL_E_STORE_LOCKED, "%s: another server has this store (%s%s)", d->path,
                   text[0] ? "process " : "its process is not known", text);
}

static enum sl_code take_lock(struct sl_dir *d, struct sl_error *err)
{
    char text[24];
    d->lock = sl_io_open(d->io, d->root, LOCK_NAME, O_RDWR | O_CREAT);
    if (d->lock < 0)
        return sl_io_fail(err, "open of", at(d, LOCK_NAME), errno);
    if (d->io->lock(d->lock) < 0)
        return errno == EWOULDBLOCK ? locked(d, err)
                                    : sl_io_fail(err, "flock of", at(d, LOCK_NAME), errno);
    /* Only for the message above: a full disk must not keep a server from reading its sessions. */
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (d->io->truncate(d->lock, 0) == 0)
        (void)!sl_io_write(d->io, d->lock, text, (size_t)n, 0);
    return SL_OK;
}

/* Where it is missing (in a copy of a store), the command that makes it may not be of the server's
 * user, who must be able to open it. */
static enum sl_code make_lock(struct sl_dir *d, struct sl_error *err)
{
    struct stat like;
    int format = sl_io_open(d->io, d->root, FORMAT_NAME, O_RDONLY);
    int e = format < 0 || d->io->stat(format, &like) < 0 ? errno : 0;
    if (format >= 0)
        d->io->close(format);
    if (e)
        return sl_io_fail(err, "stat of", at(d, FORMAT_NAME), e);
    int fd = sl_io_open(d->io, d->root, LOCK_NAME, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0)
        return errno == EEXIST ? SL_OK : sl_io_fail(err, "open of", at(d, LOCK_NAME), errno);
    e = sl_io_make_like(d->io, fd, &like);
    d->io->close(fd);
    if (!e)
        return SL_OK;
    (void)d->io->unlink(d->root, LOCK_NAME);
    return sl_io_fail(err, "giving owner, group and mode of the store to", at(d, LOCK_NAME), e);
}

/* --- making a store ------------------------------------------------------------------------------
 */

static int any(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return 1;
}

static enum sl_code no_format(struct sl_dir *d, const char *what, struct sl_error *err)
{
    return sl_fail(err, SL_E_STORE_CORRUPT,
                   "%s/%s: is missing, but there %s; nothing was made in its place", d->path,
                   FORMAT_NAME, what);
}

/* What is there without `format` may only be what an interrupted make_store() left. */
static enum sl_code check_unmade(struct sl_dir *d, const struct content *content,
                                 struct sl_error *err)
{
    struct stat st;
    int rc = d->io->list(d->files.sessions, any, NULL);
    if (rc < 0)
        return sl_io_fail(err, "reading the folder", at(d, SL_SESSIONS_NAME), errno);
    if (rc > 0)
        return no_format(d, "are files in " SL_SESSIONS_NAME, err);
    if (!content->log)
        return SL_OK;
    int fd = sl_io_open(d->io, d->root, SL_LOG_NAME, O_RDONLY);
    if (fd < 0)
        return sl_io_fail(err, "open of", at(d, SL_LOG_NAME), errno);
    int e = d->io->stat(fd, &st) < 0 ? errno : 0;
    d->io->close(fd);
    if (e)
        return sl_io_fail(err, "stat of", at(d, SL_LOG_NAME), e);
    return st.st_size > SL_LOG_HEADER + SL_RECORD_HEADER ? no_format(d, "is a log", err) : SL_OK;
}

static enum sl_code write_format(struct sl_dir *d, struct sl_error *err)
{
    /* A new file, not one of which a sync has failed before. */
    if (d->io->unlink(d->root, FORMAT_NEW_NAME) < 0 && errno != ENOENT)
        return sl_io_fail(err, "unlink of", at(d, FORMAT_NEW_NAME), errno);
    int fd = sl_io_open(d->io, d->root, FORMAT_NEW_NAME, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0)
        return sl_io_fail(err, "open of", at(d, FORMAT_NEW_NAME), errno);
    int e = sl_io_write(d->io, fd, format_text, sizeof format_text - 1, 0);
    if (!e)
        e = sl_io_fsync(d->io, fd);
    if (d->io->close(fd) < 0 && !e)
        e = errno;
    if (e)
        return sl_io_fail(err, "writing", at(d, FORMAT_NEW_NAME), e);
    if (d->io->rename(d->root, FORMAT_NEW_NAME, FORMAT_NAME) < 0)
        return sl_io_fail(err, "rename of", at(d, FORMAT_NEW_NAME), errno);
    e = sl_io_fsync(d->io, d->root);
    return e ? sl_io_fail(err, "fsync of", at(d, NULL), e) : SL_OK;
}

static enum sl_code open_sessions(struct sl_dir *d, bool make, struct sl_error *err)
{
    if (make && d->io->mkdir(d->root, SL_SESSIONS_NAME, 0700) < 0 && errno != EEXIST)
        return sl_io_fail(err, "mkdir of", at(d, SL_SESSIONS_NAME), errno);
    d->files.sessions = sl_io_open_dir(d->io, d->root, SL_SESSIONS_NAME);
    if (d->files.sessions < 0 && errno == ENOENT)
        return sl_fail(err, SL_E_STORE_CORRUPT, "%s/%s: is missing", d->path, SL_SESSIONS_NAME);
    return d->files.sessions < 0 ? sl_io_fail(err, "open of", at(d, SL_SESSIONS_NAME), errno)
                                 : SL_OK;
}

static enum sl_code make_store(struct sl_dir *d, const struct content *content,
                               struct sl_error *err)
{
    enum sl_code c = open_sessions(d, true, err);
    if (!c)
        c = check_unmade(d, content, err);
    if (!c)
        c = sync_above(d, err);
    if (c)
        return c;
    struct sl_rewrite w = {.lp = d->place};
    sl_rewrite_run(&w); /* an empty log; syncs the folder, `sessions` in it, too */
    sl_rewrite_done(&w);
    if (w.code) {
        *err = w.err;
        return w.code;
    }
    d->io->close(w.fd);
    return write_format(d, err);
}

static enum sl_code check_format(struct sl_dir *d, struct sl_error *err)
{
    char text[64] = "";
    size_t n = 0;
    int fd = sl_io_open(d->io, d->root, FORMAT_NAME, O_RDONLY);
    if (fd < 0)
        return sl_io_fail(err, "open of", at(d, FORMAT_NAME), errno);
    int e = sl_io_read(d->io, fd, text, sizeof text - 1, 0, &n);
    d->io->close(fd);
    if (e)
        return sl_io_fail(err, "read from", at(d, FORMAT_NAME), e);
    if (strcmp(text, format_text) == 0)
        return SL_OK;
    return sl_fail(err, SL_E_FILE_UNSUPPORTED,
                   "%s/%s: says '%.*s'; this version of slate knows '%.*s'", d->path, FORMAT_NAME,
                   (int)strcspn(text, "\n"), text, (int)sizeof format_text - 2, format_text);
}

/* --- recovery ------------------------------------------------------------------------------------
 */

static bool tell_damage(void *arg, struct sl_ix_session *s)
{
    const struct sl_dir *d = arg;
    if (s->damaged.size)
        sl_log(SL_LOG_ERROR, "a session is damaged and can only be deleted",
               SL_LS("tenant", s->tenant->name), SL_LS("session", s->id), SL_LS("store", d->path),
               SL_LI("log_offset", s->damaged.at));
    return true;
}

/* A server that was killed may have left what it had not synced: a rewritten log's name, records.
 * From now on they are shown, so they must stay. */
static enum sl_code sync_found(struct sl_dir *d, struct sl_error *err)
{
    int e = sl_io_fdatasync(d->io, d->log->fd);
    return e ? sl_io_fail(err, "fdatasync of", at(d, SL_LOG_NAME), e) : SL_OK;
}

static enum sl_code read_log(struct sl_dir *d, struct sl_error *err)
{
    struct sl_log_scan scan;
    d->log = sl_calloc(1, sizeof *d->log);
    if (!d->log)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to open %s", d->path);
    *d->log = (struct sl_log_file){.refs = 1};
    d->log->fd = sl_io_open(d->io, d->root, SL_LOG_NAME, O_RDWR);
    if (d->log->fd < 0 && errno == ENOENT)
        return sl_fail(err, SL_E_STORE_CORRUPT, "%s/%s: is missing; nothing was made in its place",
                       d->path, SL_LOG_NAME);
    if (d->log->fd < 0)
        return sl_io_fail(err, "open of", at(d, SL_LOG_NAME), errno);
    enum sl_code c = sl_log_scan(&d->place, d->log->fd, &d->ix, &scan, err);
    if (c)
        return c;
    bool torn = scan.end < scan.size;
    if (torn)
        sl_log(SL_LOG_WARN, "the store's log had a torn end, which was cut off",
               SL_LS("store", d->path), SL_LI("offset", scan.end),
               SL_LI("bytes", scan.size - scan.end));
    c = torn ? sl_log_cut(&d->place, d->log->fd, scan.end, err) : sync_found(d, err);
    int e = c ? 0 : sl_io_fsync(d->io, d->root);
    if (e)
        c = sl_io_fail(err, "fsync of", at(d, NULL), e);
    d->log->id = scan.log_id;
    d->log_end = scan.end;
    d->marked = scan.marked;
    if (scan.n_damaged)
        sl_index_each(&d->ix, tell_damage, d);
    return c;
}

/* Leftovers of a crash. Failing to remove them does no harm. */
static enum sl_code sweep(struct sl_dir *d, struct sl_error *err)
{
    struct sl_sweep s;
    enum sl_code c = sl_files_sweep(&d->files, &d->ix, &s, err);
    if (!c)
        sl_index_forget_missing(&d->ix);
    if (!c && (s.removed || s.failed || s.foreign))
        sl_log(s.foreign || s.failed ? SL_LOG_WARN : SL_LOG_INFO, "leftovers in the store",
               SL_LS("store", d->path), SL_LI("removed", s.removed), SL_LI("not_removed", s.failed),
               SL_LI("foreign", s.foreign));
    d->last_number = d->ix.last_number;
    return c;
}

struct telling {
    struct sl_dir *d;
    void (*head)(void *arg, const struct sl_store_head *h);
    void *arg;
    struct sl_bytes memory;
    struct sl_error *err;
    enum sl_code code;
};

static bool tell_head(void *arg, struct sl_ix_session *s)
{
    struct telling *t = arg;
    struct sl_store_head h;
    struct sl_owner owner = {s->tenant->name, s->id, s->incarnation};
    sl_dir_head(s, &h);
    if (h.metadata.n) {
        struct sl_record r;
        unsigned char *payload;
        t->code = sl_log_fetch(&t->d->place, t->d->log, &owner, &s->head, &t->memory, &r, &payload,
                               t->err);
        if (t->code)
            return false;
        h.metadata.s = (const char *)payload + SL_HEAD_BYTES;
    }
    t->head(t->arg, &h);
    return true;
}

static enum sl_code tell_heads(struct sl_dir *d,
                               void (*head)(void *arg, const struct sl_store_head *h), void *arg,
                               struct sl_error *err)
{
    struct telling t = {.d = d, .head = head, .arg = arg, .err = err};
    if (head)
        sl_index_each(&d->ix, tell_head, &t);
    sl_free(t.memory.p);
    return t.code;
}

/* --- open and close ------------------------------------------------------------------------------
 */

static enum sl_code open_all(struct sl_dir *d, struct sl_error *err)
{
    struct content content;
    enum sl_code c = open_root(d, err);
    d->place = (struct sl_log_place){d->io, d->root, d->path};
    if (!c)
        c = look(d, &content, err);
    if (!c)
        c = take_lock(d, err);
    if (!c) /* another server may have made it just now */
        c = look(d, &content, err);
    if (c)
        return c;
    c = content.format ? open_sessions(d, false, err) : make_store(d, &content, err);
    if (!c)
        c = check_format(d, err);
    if (!c)
        c = read_log(d, err);
    if (!c)
        c = sweep(d, err);
    if (!c && !d->marked)
        sl_dir_mark(d);
    return c;
}

static struct sl_dir *new_dir(const char *path, const struct sl_store_options *opt,
                              const struct sl_store_io *io)
{
    struct sl_dir *d = sl_calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->base.kind = &sl_store_dir;
    d->io = io;
    d->root = d->lock = -1;
    d->loop = opt->loop;
    d->rewrite_bytes = opt->log_rewrite_bytes ? opt->log_rewrite_bytes : SL_STORE_REWRITE_BYTES;
    d->rewrite_slice = opt->log_slice_bytes;
    d->ix.keep_turns = opt->keep_turns;
    d->max_names = opt->max_names ? opt->max_names : SL_STORE_NAMES;
    enum { N_QUEUES = 8 };
    struct sl_queue *const queues[N_QUEUES] = {&d->arrivals, &d->to_write, &d->to_file,
                                               &d->to_load,  &d->finished, &d->to_trash,
                                               &d->trash,    &d->batch.ops};
    for (size_t i = 0; i < N_QUEUES; i++)
        sl_queue_init(queues[i]);
    d->path = sl_strdup(path);
    d->files = (struct sl_files){.io = io, .sessions = -1, .root = d->path};
    d->starved = sl_calloc(SL_STORE_RESERVE, sizeof *d->starved);
    if (!d->path || !d->starved) {
        sl_dir_free(d);
        return NULL;
    }
    return d;
}

void sl_dir_free(struct sl_dir *d)
{
    assert(!d->log || d->log->refs == 1);
    if (d->log && d->log->fd >= 0)
        d->io->close(d->log->fd);
    sl_free(d->log);
    if (d->files.sessions >= 0)
        d->io->close(d->files.sessions);
    if (d->lock >= 0)
        d->io->close(d->lock);
    if (d->root >= 0)
        d->io->close(d->root);
    sl_index_done(&d->ix);
    sl_free(d->batch.out.p);
    sl_free(d->starved);
    for (size_t i = 0; i < SL_STORE_SPARES; i++)
        sl_free(d->spares[i].p);
    sl_free(d->path);
    sl_free(d);
}

enum sl_code sl_dir_open(struct sl_store **ret, const char *path,
                         const struct sl_store_options *opt, const struct sl_store_io *io,
                         void (*head)(void *arg, const struct sl_store_head *h), void *arg,
                         struct sl_error *err)
{
    struct sl_error own;
    if (!err)
        err = &own;
    if (path[0] == '\0')
        return sl_fail(err, SL_E_USAGE, "a store 'dir:' needs a folder: dir:PATH");
    struct sl_dir *d = new_dir(path, opt, io);
    if (!d)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to open %s", path);
    enum sl_code c = SL_OK;
    if (getrandom(&d->ix.seed, sizeof d->ix.seed, 0) != (ssize_t)sizeof d->ix.seed)
        c = sl_fail(err, SL_E_INTERNAL, "no random bits: %s", strerror(errno));
    if (!c)
        c = open_all(d, err);
    if (!c)
        c = tell_heads(d, head, arg, err);
    if (!c && uv_async_init(d->loop, &d->wake, sl_dir_wake) != 0)
        c = sl_fail(err, SL_E_INTERNAL, "no handle on the loop for the store");
    if (c) {
        sl_dir_free(d);
        return c;
    }
    d->wake.data = d;
    *ret = &d->base;
    return SL_OK;
}

enum sl_code sl_dir_open_folder(struct sl_dir **ret, const char *path, const struct sl_store_io *io,
                                struct sl_error *err)
{
    const struct sl_store_options opt = {.spec = "", .keep_turns = UINT64_MAX}; /* all there is */
    struct content content;
    struct sl_dir *d = new_dir(path, &opt, io);
    if (!d)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory to open %s", path);
    d->root = sl_io_open_root(io, path);
    d->place = (struct sl_log_place){io, d->root, d->path};
    enum sl_code c = d->root < 0 ? sl_io_fail(err, "open of", at(d, NULL), errno) : SL_OK;
    if (!c)
        c = look(d, &content, err);
    if (!c && !content.format)
        c = sl_fail(err, SL_E_USAGE, "%s: is no store: it has no file '%s'", path, FORMAT_NAME);
    if (!c)
        c = make_lock(d, err);
    if (!c)
        c = take_lock(d, err);
    if (!c)
        c = open_sessions(d, false, err);
    if (!c)
        c = check_format(d, err);
    if (c)
        sl_dir_free(d);
    else
        *ret = d;
    return c;
}

static enum sl_code kind_open(struct sl_store **ret, const char *rest,
                              const struct sl_store_options *opt,
                              void (*head)(void *arg, const struct sl_store_head *h), void *arg,
                              struct sl_error *err)
{
    return sl_dir_open(ret, rest, opt, &sl_store_io_system, head, arg, err);
}

static void kind_close(struct sl_store *st, void (*closed)(void *arg), void *arg)
{
    struct sl_dir *d = (struct sl_dir *)(void *)st;
    assert(d->state == SL_DIR_OPEN);
    d->state = SL_DIR_CLOSING;
    d->closed = closed;
    d->closed_arg = arg;
    uv_async_send(&d->wake);
}

static void kind_stats(const struct sl_store *st, struct sl_store_stats *ret)
{
    const struct sl_dir *d = (const struct sl_dir *)(const void *)st;
    *ret = d->stats;
    ret->sessions = d->ix.n_sessions;
    ret->log_bytes = d->log_end;
    ret->live_log_bytes = d->ix.live;
    ret->snapshot_bytes = d->ix.snapshot_bytes;
    ret->read_only = d->broken;
}

static void kept_now(const struct sl_store *st, const struct sl_store_key *k,
                     uint64_t *ret_kept_bytes, uint64_t *ret_n_names)
{
    const struct sl_dir *d = (const struct sl_dir *)(const void *)st;
    const struct sl_ix_session *s =
        sl_index_find(&d->ix, k->tenant, strlen(k->tenant), k->id, strlen(k->id));
    if (!s || !s->exists)
        return;
    *ret_kept_bytes = sl_index_kept_bytes(s);
    *ret_n_names = s->n_names;
}

const struct sl_store_kind sl_store_dir = {.scheme = "dir:",
                                           .usage = "dir:PATH",
                                           .open = kind_open,
                                           .close = kind_close,
                                           .put_head = sl_dir_put_head,
                                           .append_turn = sl_dir_append_turn,
                                           .put_snapshot = sl_dir_put_snapshot,
                                           .put_answer = sl_dir_put_answer,
                                           .load = sl_dir_load,
                                           .points = sl_dir_points,
                                           .put_name = sl_dir_put_name,
                                           .drop_name = sl_dir_drop_name,
                                           .remove = sl_dir_remove,
                                           .stats = kind_stats,
                                           .kept_now = kept_now};
