/* io.c: see io.h. */
#include "server/store/io.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* One read or write; Linux moves no more than this at once. */
enum { PIECE_MAX = 1 << 30 };

static int sys_open(int dir, const char *name, int flags, mode_t mode)
{
    return openat(dir, name, flags, mode);
}

static int sys_open_below(int dir, const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
                           .resolve = RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

static int sys_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB);
}

static int sys_mkdir(int dir, const char *name, mode_t mode)
{
    return mkdirat(dir, name, mode);
}

static int sys_rename(int dir, const char *from, const char *to)
{
    return renameat(dir, from, dir, to);
}

static int sys_unlink(int dir, const char *name)
{
    return unlinkat(dir, name, 0);
}

static int each_entry(DIR *d, sl_io_each *each, void *arg)
{
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d); /* a stream of its own: no other thread has it */
        if (!e)
            return errno ? -1 : 0;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        int rc = each(arg, e->d_name);
        if (rc)
            return rc;
    }
}

static int sys_list(int dir, sl_io_each *each, void *arg)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return -1;
    }
    int rc = each_entry(d, each, arg);
    int e = errno;
    closedir(d);
    errno = e;
    return rc;
}

static int64_t sys_now(void)
{
    return (int64_t)time(NULL);
}

const struct sl_store_io sl_store_io_system = {.open = sys_open,
                                               .open_below = sys_open_below,
                                               .close = close,
                                               .pread = pread,
                                               .pwrite = pwrite,
                                               .fdatasync = fdatasync,
                                               .fsync = fsync,
                                               .truncate = ftruncate,
                                               .stat = fstat,
                                               .chown = fchown,
                                               .chmod = fchmod,
                                               .lock = sys_lock,
                                               .mkdir = sys_mkdir,
                                               .rename = sys_rename,
                                               .unlink = sys_unlink,
                                               .list = sys_list,
                                               .now = sys_now};

enum sl_code(sl_io_fail)(struct sl_error *err, const char *call, struct sl_where w, int errnum)
{
    char text[128];
    bool full = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG;
    /* The GNU one: may give a text of its own instead of using ours. */
    const char *reason = strerror_r(errnum, text, sizeof text);
    return sl_fail(err, full ? SL_E_STORE_FULL : SL_E_IO, "%s %s%s%s: %s", call, w.root,
                   w.name ? "/" : "", w.name ? w.name : "", reason);
}

int sl_io_write(const struct sl_store_io *io, int fd, const void *p, size_t n, uint64_t at)
{
    const unsigned char *from = p;
    while (n > 0) {
        ssize_t k = io->pwrite(fd, from, n < PIECE_MAX ? n : PIECE_MAX, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return errno;
        if (k == 0)
            return EIO; /* a file that takes nothing and says nothing */
        from += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return 0;
}

int sl_io_read(const struct sl_store_io *io, int fd, void *p, size_t n, uint64_t at, size_t *ret_n)
{
    unsigned char *to = p;
    size_t got = 0;
    while (got < n) {
        size_t want = n - got < PIECE_MAX ? n - got : PIECE_MAX;
        ssize_t k = io->pread(fd, to + got, want, (off_t)(at + got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return errno;
        if (k == 0)
            break;
        got += (size_t)k;
    }
    *ret_n = got;
    return 0;
}

static int open_with(const struct sl_store_io *io, int dir, const char *name, int flags)
{
    int fd;
    do
        fd = io->open(dir, name, flags | O_CLOEXEC | O_NONBLOCK, 0600);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int sl_io_open(const struct sl_store_io *io, int dir, const char *name, int flags)
{
    return open_with(io, dir, name, flags | O_NOFOLLOW);
}

int sl_io_open_below(const struct sl_store_io *io, int dir, const char *path)
{
    int fd;
    do
        fd = io->open_below(dir, path);
    while (fd < 0 && errno == EINTR);
    return fd;
}

int sl_io_open_root(const struct sl_store_io *io, const char *path)
{
    return open_with(io, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
}

int sl_io_open_dir(const struct sl_store_io *io, int dir, const char *name)
{
    return sl_io_open(io, dir, name, O_RDONLY | O_DIRECTORY);
}

static int sync_with(int (*call)(int fd), int fd)
{
    int rc;
    do
        rc = call(fd);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? errno : 0;
}

int sl_io_fsync(const struct sl_store_io *io, int fd)
{
    return sync_with(io->fsync, fd);
}

int sl_io_fdatasync(const struct sl_store_io *io, int fd)
{
    return sync_with(io->fdatasync, fd);
}

/* Owner and group before the mode: its bits are for that group. */
int sl_io_make_like(const struct sl_store_io *io, int fd, const struct stat *like)
{
    struct stat st;
    const mode_t all = S_IRWXU | S_IRWXG | S_IRWXO;
    mode_t mode = like->st_mode & all;
    int refused = 0;
    if (io->stat(fd, &st) < 0)
        return errno;
    if (st.st_uid != like->st_uid && io->chown(fd, like->st_uid, (gid_t)-1) < 0)
        refused = errno;
    if (st.st_gid != like->st_gid && io->chown(fd, (uid_t)-1, like->st_gid) < 0) {
        refused = refused ? refused : errno;
        mode &= S_IRWXU;
    }
    if ((st.st_mode & all) != mode && io->chmod(fd, mode) < 0)
        refused = refused ? refused : errno;
    return refused;
}
