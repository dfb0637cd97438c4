/* disk.c: see disk.h. Inodes are known by their numbers; a descriptor is kept for each, so that no
 * number is given to another file while the disk is in use. */
#include "tests/support/disk.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECTOR = 512, INODES_MAX = 4096 };

struct entry {
    char name[256];
    ino_t ino;
};

/* What a file or folder was at its last sync. */
struct inode {
    ino_t ino;
    int held; /* a descriptor */
    bool folder;
    unsigned char *data; /* of a file */
    size_t n;
    unsigned char *lost; /* what it held when a sync failed */
    size_t n_lost;
    struct entry *entries; /* of a folder */
    size_t n_entries;
};

static struct {
    pthread_mutex_t lock;
    bool recording;
    char folder[256];
    struct inode inodes[INODES_MAX];
    size_t n_inodes;
    uint64_t calls, failed, open_files;
    int64_t fail_at, cut_at; /* of `calls`; -1: never */
    int fail_errno, write_errno, sync_errno;
    bool cut, interrupt;
    uint64_t interrupts;
    size_t short_writes;
    int64_t time;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .fail_at = -1, .cut_at = -1};

enum call { READS, WRITES, SYNCS };

/* Under the lock. 0: the call is made. */
static int verdict(enum call kind, bool interruptible)
{
    uint64_t n = disk.calls++;
    if (disk.cut_at >= 0 && n >= (uint64_t)disk.cut_at)
        disk.cut = true;
    if (disk.cut)
        return EIO;
    if (disk.fail_at >= 0 && n == (uint64_t)disk.fail_at) {
        disk.failed++;
        return disk.fail_errno;
    }
    if (kind != READS && disk.write_errno)
        return disk.write_errno;
    if (kind == SYNCS && disk.sync_errno)
        return disk.sync_errno;
    if (disk.interrupt && interruptible && disk.interrupts++ % 2 == 0)
        return EINTR;
    return 0;
}

static int begin(enum call kind, bool interruptible)
{
    pthread_mutex_lock(&disk.lock);
    return verdict(kind, interruptible);
}

/* Ends a call that `begin` has begun; e: its errno. */
static int end(int rc, int e)
{
    pthread_mutex_unlock(&disk.lock);
    errno = e;
    return e ? -1 : rc;
}

/* --- records -------------------------------------------------------------------------------------
 */

static void *need(void *p)
{
    if (!p)
        abort();
    return p;
}

static struct inode *find(ino_t ino)
{
    for (size_t i = 0; i < disk.n_inodes; i++)
        if (disk.inodes[i].ino == ino)
            return &disk.inodes[i];
    return NULL;
}

static int reopen(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    if (again < 0)
        abort();
    return again;
}

/* The record of an open file; it is made where there is none. */
static struct inode *know(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        abort();
    struct inode *x = find(st.st_ino);
    if (x)
        return x;
    assert(disk.n_inodes < INODES_MAX);
    x = &disk.inodes[disk.n_inodes++];
    /* Another opening of the file: a copy would keep the lock on it. */
    *x = (struct inode){.ino = st.st_ino, .held = reopen(fd), .folder = S_ISDIR(st.st_mode)};
    return x;
}

static unsigned char *content(int fd, size_t *ret_n)
{
    int again = reopen(fd);
    struct stat st;
    if (fstat(again, &st) != 0)
        abort();
    unsigned char *p = need(malloc((size_t)st.st_size + 1));
    if (pread(again, p, (size_t)st.st_size, 0) != st.st_size)
        abort();
    close(again);
    *ret_n = (size_t)st.st_size;
    return p;
}

static struct entry *list_entries(int fd, size_t *ret_n)
{
    DIR *d = need(fdopendir(reopen(fd)));
    struct entry *v = NULL;
    size_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        v = need(realloc(v, (n + 1) * sizeof *v));
        v[n].ino = e->d_ino;
        snprintf(v[n].name, sizeof v[n].name, "%s", e->d_name);
        n++;
    }
    closedir(d);
    *ret_n = n;
    return v;
}

/* After a sync that failed, the system holds for clean what it did not write: no later sync writes
 * a sector that was not written to since. */
static void lose_sectors(const struct inode *x, unsigned char *now, size_t n_now)
{
    for (size_t at = 0; at < x->n_lost && at < n_now; at += SECTOR) {
        size_t k = n_now - at < SECTOR ? n_now - at : SECTOR;
        if (at + k > x->n_lost || memcmp(now + at, x->lost + at, k) != 0)
            continue;
        memset(now + at, 0, k);
        if (x->n > at)
            memcpy(now + at, x->data + at, x->n - at < k ? x->n - at : k);
    }
}

static void record_sync(int fd)
{
    if (!disk.recording)
        return;
    struct inode *x = know(fd);
    if (x->folder) {
        free(x->entries);
        x->entries = list_entries(fd, &x->n_entries);
    } else {
        size_t n;
        unsigned char *p = content(fd, &n);
        lose_sectors(x, p, n);
        free(x->data);
        x->data = p;
        x->n = n;
    }
}

static void record_failed_sync(int fd)
{
    struct inode *x = disk.recording ? know(fd) : NULL;
    if (!x || x->folder)
        return;
    free(x->lost);
    x->lost = content(fd, &x->n_lost);
}

/* --- the calls -----------------------------------------------------------------------------------
 */

static int disk_open(int dir, const char *name, int flags, mode_t mode)
{
    int e = begin(flags & (O_CREAT | O_WRONLY | O_RDWR) ? WRITES : READS, true), fd = -1;
    if (!e) {
        fd = openat(dir, name, flags, mode);
        e = fd < 0 ? errno : 0;
        if (fd >= 0) {
            disk.open_files++;
            if (disk.recording)
                know(fd);
        }
    }
    return end(fd, e);
}

static int disk_open_below(int dir, const char *path)
{
    int e = begin(READS, true), fd = -1;
    if (!e) {
        fd = sl_store_io_system.open_below(dir, path);
        e = fd < 0 ? errno : 0;
        if (fd >= 0) {
            disk.open_files++;
            if (disk.recording)
                know(fd);
        }
    }
    return end(fd, e);
}

static int disk_close(int fd)
{
    int e = begin(READS, false);
    close(fd); /* also when it is told that it failed: that is how Linux does it */
    disk.open_files--;
    return end(0, e);
}

static ssize_t disk_pread(int fd, void *p, size_t n, off_t at)
{
    int e = begin(READS, true);
    ssize_t k = e ? -1 : pread(fd, p, n, at);
    if (!e && k < 0)
        e = errno;
    (void)end(0, e);
    return k;
}

static ssize_t disk_pwrite(int fd, const void *p, size_t n, off_t at)
{
    int e = begin(WRITES, true);
    if (disk.short_writes && n > disk.short_writes)
        n = disk.short_writes;
    ssize_t k = e ? -1 : pwrite(fd, p, n, at);
    if (!e && k < 0)
        e = errno;
    (void)end(0, e);
    return k;
}

static int disk_sync(int fd)
{
    int e = begin(SYNCS, true);
    if (!e)
        record_sync(fd);
    else if (e != EINTR && !disk.cut)
        record_failed_sync(fd);
    return end(0, e);
}

static int disk_truncate(int fd, off_t n)
{
    int e = begin(WRITES, false);
    if (!e && ftruncate(fd, n) < 0)
        e = errno;
    return end(0, e);
}

static int disk_stat(int fd, struct stat *ret)
{
    int e = begin(READS, false);
    if (!e && fstat(fd, ret) < 0)
        e = errno;
    return end(0, e);
}

/* What survives has the owner and mode of who lays it out: of that nothing is kept. */
static int disk_chown(int fd, uid_t owner, gid_t group)
{
    int e = begin(WRITES, false);
    if (!e && fchown(fd, owner, group) < 0)
        e = errno;
    return end(0, e);
}

static int disk_chmod(int fd, mode_t mode)
{
    int e = begin(WRITES, false);
    if (!e && fchmod(fd, mode) < 0)
        e = errno;
    return end(0, e);
}

static int disk_lock(int fd)
{
    int e = begin(READS, false);
    if (!e && sl_store_io_system.lock(fd) < 0)
        e = errno;
    return end(0, e);
}

static int disk_mkdir(int dir, const char *name, mode_t mode)
{
    int e = begin(WRITES, false);
    if (!e && mkdirat(dir, name, mode) < 0)
        e = errno;
    return end(0, e);
}

static int disk_rename(int dir, const char *from, const char *to)
{
    int e = begin(WRITES, false);
    if (!e && renameat(dir, from, dir, to) < 0)
        e = errno;
    return end(0, e);
}

static int disk_unlink(int dir, const char *name)
{
    int e = begin(WRITES, false);
    if (!e && unlinkat(dir, name, 0) < 0)
        e = errno;
    return end(0, e);
}

static int disk_list(int dir, sl_io_each *each, void *arg)
{
    int e = begin(READS, false);
    (void)end(0, e); /* `each` makes calls */
    return e ? -1 : sl_store_io_system.list(dir, each, arg);
}

static int64_t disk_now(void)
{
    pthread_mutex_lock(&disk.lock);
    int64_t t = disk.time;
    pthread_mutex_unlock(&disk.lock);
    return t ? t : sl_store_io_system.now();
}

const struct sl_store_io disk_io = {.open = disk_open,
                                    .open_below = disk_open_below,
                                    .close = disk_close,
                                    .pread = disk_pread,
                                    .pwrite = disk_pwrite,
                                    .fdatasync = disk_sync,
                                    .fsync = disk_sync,
                                    .truncate = disk_truncate,
                                    .stat = disk_stat,
                                    .chown = disk_chown,
                                    .chmod = disk_chmod,
                                    .lock = disk_lock,
                                    .mkdir = disk_mkdir,
                                    .rename = disk_rename,
                                    .unlink = disk_unlink,
                                    .list = disk_list,
                                    .now = disk_now};

/* --- what a test says ----------------------------------------------------------------------------
 */

static void forget(void)
{
    for (size_t i = 0; i < disk.n_inodes; i++) {
        close(disk.inodes[i].held);
        free(disk.inodes[i].data);
        free(disk.inodes[i].lost);
        free(disk.inodes[i].entries);
    }
    disk.n_inodes = 0;
}

void disk_end(void)
{
    pthread_mutex_lock(&disk.lock);
    forget();
    disk.recording = disk.cut = disk.interrupt = false;
    disk.fail_at = disk.cut_at = -1;
    disk.write_errno = disk.sync_errno = 0;
    disk.short_writes = 0;
    disk.time = 0;
    disk.calls = disk.failed = 0;
    pthread_mutex_unlock(&disk.lock);
}

void disk_begin(const char *folder)
{
    disk_end();
    pthread_mutex_lock(&disk.lock);
    snprintf(disk.folder, sizeof disk.folder, "%s", folder);
    disk.recording = true;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        abort();
    record_sync(fd);
    close(fd);
    pthread_mutex_unlock(&disk.lock);
}

#define SET(statement)                                                                             \
    do {                                                                                           \
        pthread_mutex_lock(&disk.lock);                                                            \
        statement;                                                                                 \
        pthread_mutex_unlock(&disk.lock);                                                          \
    } while (0)

void disk_fail_at(int64_t n, int errnum)
{
    SET(disk.fail_at = n < 0 ? -1 : (int64_t)disk.calls + n; disk.fail_errno = errnum);
}

void disk_refuse_writes(int errnum)
{
    SET(disk.write_errno = errnum);
}

void disk_refuse_syncs(int errnum)
{
    SET(disk.sync_errno = errnum);
}

void disk_cut_at(int64_t n)
{
    SET(disk.cut_at = n < 0 ? -1 : (int64_t)disk.calls + n; disk.cut = disk.cut && n >= 0);
}

bool disk_is_cut(void)
{
    bool v;
    SET(v = disk.cut);
    return v;
}

void disk_short_writes(size_t n)
{
    SET(disk.short_writes = n);
}

void disk_interrupt(bool on)
{
    SET(disk.interrupt = on);
}

void disk_set_time(int64_t t)
{
    SET(disk.time = t);
}

uint64_t disk_calls(void)
{
    uint64_t v;
    SET(v = disk.calls);
    return v;
}

uint64_t disk_failed(void)
{
    uint64_t v;
    SET(v = disk.failed);
    return v;
}

uint64_t disk_open_files(void)
{
    uint64_t v;
    SET(v = disk.open_files);
    return v;
}

/* --- after a cut ---------------------------------------------------------------------------------
 */

struct chance {
    enum disk_survivors which;
    uint64_t x;
};

/* Does this unsynced thing survive? */
static bool survives(struct chance *c)
{
    if (c->which != DISK_SOME)
        return c->which == DISK_ALL;
    uint64_t z = (c->x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) & 1;
}

static void write_file(int dir, const char *name, const unsigned char *p, size_t n)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || pwrite(fd, p, n, 0) != (ssize_t)n)
        abort();
    close(fd);
}

/* Sector by sector what was synced or what was written; what is neither is zeros. */
static void salvage_file(const struct inode *x, int dir, const char *name, struct chance *c)
{
    size_t n_now, n;
    unsigned char *now = content(x->held, &n_now);
    n = survives(c) ? n_now : x->n;
    unsigned char *p = need(calloc(n + 1, 1));
    for (size_t at = 0; at < n; at += SECTOR) {
        size_t k = n - at < SECTOR ? n - at : SECTOR;
        const unsigned char *from = survives(c) ? now : x->data;
        size_t have = from == now ? n_now : x->n;
        if (from && have > at)
            memcpy(p + at, from + at, have - at < k ? have - at : k);
    }
    write_file(dir, name, p, n);
    free(p);
    free(now);
}

static const struct entry *entry_of(const struct entry *v, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(v[i].name, name) == 0)
            return &v[i];
    return NULL;
}

static void salvage_folder(const struct inode *x, int to, struct chance *c);

static void salvage_entry(const struct entry *e, int to, struct chance *c)
{
    const struct inode *x = e ? find(e->ino) : NULL;
    if (!x)
        return; /* it is not there, or nobody has ever opened it */
    if (!x->folder) {
        salvage_file(x, to, e->name, c);
        return;
    }
    if (mkdirat(to, e->name, 0700) != 0)
        abort();
    int below = openat(to, e->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (below < 0)
        abort();
    salvage_folder(x, below, c);
    close(below);
}

static void salvage_folder(const struct inode *x, int to, struct chance *c)
{
    size_t n_now;
    struct entry *now = list_entries(x->held, &n_now);
    for (size_t i = 0; i < n_now; i++) {
        const struct entry *old = entry_of(x->entries, x->n_entries, now[i].name);
        bool same = old && old->ino == now[i].ino;
        salvage_entry(same || survives(c) ? &now[i] : old, to, c);
    }
    for (size_t i = 0; i < x->n_entries; i++)
        if (!entry_of(now, n_now, x->entries[i].name) && !survives(c))
            salvage_entry(&x->entries[i], to, c); /* its removal was not synced */
    free(now);
}

void disk_salvage(const char *folder, enum disk_survivors which, uint64_t seed)
{
    struct chance c = {which, seed};
    pthread_mutex_lock(&disk.lock);
    int from = open(disk.folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int to = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0 || to < 0)
        abort();
    salvage_folder(know(from), to, &c);
    close(from);
    close(to);
    pthread_mutex_unlock(&disk.lock);
}
