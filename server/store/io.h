/* io.h: the system calls of the `dir:` store, as a table that tests replace.
 *
 * Through it a test fails the n-th call with any errno, cuts writes short, and keeps a record of
 * what was synced. Everything is relative to directory descriptors. All but `list` and `now` behave
 * as the call they are named after: -1 and errno on failure. Any thread. */
#ifndef SLATE_SERVER_STORE_IO_H
#define SLATE_SERVER_STORE_IO_H

#include <sys/stat.h>
#include <sys/types.h>

#include "slate/err.h"

/* Called for each entry but "." and "..", in any order; anything but 0 ends the list. */
typedef int sl_io_each(void *arg, const char *name);

struct sl_store_io {
    int (*open)(int dir, const char *name, int flags, mode_t mode);
    /* A file below `dir` to be read, without following a link on the whole way (ELOOP). ENOSYS,
     * EPERM: this system cannot do that in one call. */
    int (*open_below)(int dir, const char *path);
    int (*close)(int fd);
    ssize_t (*pread)(int fd, void *p, size_t n, off_t at);
    ssize_t (*pwrite)(int fd, const void *p, size_t n, off_t at);
    int (*fdatasync)(int fd);
    int (*fsync)(int fd);
    int (*truncate)(int fd, off_t n);
    int (*stat)(int fd, struct stat *ret);
    int (*chown)(int fd, uid_t owner, gid_t group); /* of the file itself, as the next */
    int (*chmod)(int fd, mode_t mode);
    int (*lock)(int fd); /* exclusive, without waiting, until the descriptor is closed */
    int (*mkdir)(int dir, const char *name, mode_t mode);
    int (*rename)(int dir, const char *from, const char *to);
    int (*unlink)(int dir, const char *name);
    int (*list)(int dir, sl_io_each *each, void *arg); /* what `each` returned, 0 at the end */
    int64_t (*now)(void);                              /* Unix time, s */
};

extern const struct sl_store_io sl_store_io_system;

/* A file of a store, for messages: root/name. name NULL: the root itself. */
struct sl_where {
    const char *root, *name;
};

/* "fsync of ROOT/NAME: No space left on device". STORE_FULL where space or quota is used up, else
 * IO. `call` ends in "of", "from" or the like where that reads better; errnum as in errno. */
enum sl_code sl_io_fail(struct sl_error *err, const char *call, struct sl_where w, int errnum);

/* All n bytes, whatever a single call takes. Returns 0 or an errno. */
int sl_io_write(const struct sl_store_io *io, int fd, const void *p, size_t n, uint64_t at);
/* Up to n bytes: fewer only where the file ends. Returns 0 or an errno. */
int sl_io_read(const struct sl_store_io *io, int fd, void *p, size_t n, uint64_t at, size_t *ret_n);
/* -1 and an errno; opens without following links, and closes on exec. */
int sl_io_open(const struct sl_store_io *io, int dir, const char *name, int flags);
int sl_io_open_below(const struct sl_store_io *io, int dir, const char *path); /* to be read */
/* A folder by its path, which may be a link: an operator's choice. */
int sl_io_open_root(const struct sl_store_io *io, const char *path);
int sl_io_open_dir(const struct sl_store_io *io, int dir, const char *name);
/* fsync, fdatasync, not stopped by signals. Return 0 or an errno. */
int sl_io_fsync(const struct sl_store_io *io, int fd);
int sl_io_fdatasync(const struct sl_store_io *io, int fd);

/* Gives a file that was just made (mode 0600 or wider) the owner, group and mode of what it
 * replaces or belongs to, so that who could read that can read this. Returns 0 or an errno: then it
 * has what the process may give, and is open to nobody to whom the other was not. */
int sl_io_make_like(const struct sl_store_io *io, int fd, const struct stat *like);

#ifdef __clang_analyzer__ /* as in slate/err.h */
#define sl_io_fail(...) ((void)(sl_io_fail)(__VA_ARGS__), SL_E_IO)
#endif

#endif
