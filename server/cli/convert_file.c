/* convert_file.c: see convert_file.h.
 *
 * The temporary name ends in random digits, so that two conversions to one name do not write into
 * each other's file (the one that ends last stays), and that none is stopped by what a SIGKILL has
 * left: in a container each of them is process 1, whose number would say nothing. What is left says
 * by its name what it is: ".NAME.DIGITS.part". Other signals leave nothing: ending.h. */
#include "server/cli/convert_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "server/cli/ending.h"

enum {
    FOLDER_BYTES = 3800,
    NAME_MAX_BYTES = 255,
    PATH_BYTES = FOLDER_BYTES + 280,
    MARKS = 23, /* of a temporary name, beside the name itself */
    NAMES = 8   /* that are tried */
};

struct output {
    const struct sl_store_io *io;
    struct sl_where where, where_part; /* for messages */
    char folder[FOLDER_BYTES], name[NAME_MAX_BYTES + 1], part[NAME_MAX_BYTES + 1];
    char part_path[PATH_BYTES];
    int dir, fd; /* -1: not open */
    uint64_t at;
};

static enum sl_code bad_path(const char *path, const char *what, struct sl_error *err)
{
    return sl_fail(err, SL_E_INVALID_VALUE, "%.300s: %s", path, what);
}

/* "models/x.safetensors" -> "models" and "x.safetensors" */
static enum sl_code split(struct output *o, const char *path, struct sl_error *err)
{
    static const char extension[] = ".safetensors";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name), k = sizeof extension - 1;
    int len = slash == path ? snprintf(o->folder, FOLDER_BYTES, "/")
              : slash       ? snprintf(o->folder, FOLDER_BYTES, "%.*s", (int)(slash - path), path)
                            : snprintf(o->folder, FOLDER_BYTES, ".");
    if (n <= k || strcmp(name + n - k, extension) != 0)
        return bad_path(path, "must end in .safetensors, which is what is written", err);
    if (len < 0 || len >= FOLDER_BYTES || n > NAME_MAX_BYTES - MARKS)
        return bad_path(path, "the path is too long", err);
    (void)snprintf(o->name, sizeof o->name, "%s", name);
    o->where = (struct sl_where){o->folder, o->name};
    o->where_part = (struct sl_where){o->folder, o->part};
    return SL_OK;
}

static enum sl_code check_target(const struct sl_conversion *c, const char *path, bool force,
                                 struct sl_error *err)
{
    struct stat st, itself;
    if (lstat(path, &itself) != 0)
        return SL_OK; /* it is not there, or opening its folder says what is wrong */
    if (stat(path, &st) == 0 && sl_conversion_reads(c, st.st_dev, st.st_ino))
        return bad_path(path, "is what is to be converted; give another name", err);
    if (S_ISDIR(itself.st_mode))
        return bad_path(path, "is a folder", err);
    return force ? SL_OK : bad_path(path, "is there already; --force replaces it", err);
}

static enum sl_code take(void *arg, const void *data, size_t n, struct sl_error *err)
{
    struct output *o = arg;
    int e = sl_io_write(o->io, o->fd, data, n, o->at);
    o->at += n;
    return e ? sl_io_fail(err, "write to", o->where_part, e) : SL_OK;
}

static enum sl_code seal(struct output *o, struct sl_conversion *c, struct sl_error *err)
{
    struct sl_conversion_mark marks[SL_CONVERSION_MARKS];
    enum sl_code rc = sl_conversion_seal(c, o->part_path, marks, err);
    for (size_t i = 0; i < SL_CONVERSION_MARKS && rc == SL_OK; i++) {
        int e = sl_io_write(o->io, o->fd, marks[i].text, marks[i].n, marks[i].at);
        if (e)
            rc = sl_io_fail(err, "write to", o->where_part, e);
    }
    if (rc != SL_OK)
        return rc;
    int e = sl_io_fsync(o->io, o->fd);
    return e ? sl_io_fail(err, "fsync of", o->where_part, e) : SL_OK;
}

static enum sl_code name_part(struct output *o, struct sl_error *err)
{
    uint64_t digits;
    if (getrandom(&digits, sizeof digits, 0) != (ssize_t)sizeof digits)
        return sl_fail(err, SL_E_INTERNAL, "no random bits: %s", strerror(errno));
    (void)snprintf(o->part, sizeof o->part, ".%.*s.%016" PRIx64 ".part", NAME_MAX_BYTES - MARKS,
                   o->name, digits);
    (void)snprintf(o->part_path, sizeof o->part_path, "%s/%s", o->folder, o->part);
    return SL_OK;
}

static enum sl_code open_part(struct output *o, struct sl_error *err)
{
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    for (int n = 0; n < NAMES; n++) {
        enum sl_code c = name_part(o, err);
        if (c)
            return c;
        sl_ending_note(o->part_path); /* before it is there, so that no signal falls between */
        do
            o->fd = o->io->open(o->dir, o->part, flags, 0666); /* for others to read, as cp would */
        while (o->fd < 0 && errno == EINTR);
        int e = errno;
        if (o->fd >= 0)
            return SL_OK;
        sl_ending_forget(o->part_path);
        if (e != EEXIST)
            return sl_io_fail(err, "open of", o->where_part, e);
    }
    return sl_io_fail(err, "open of", o->where_part, EEXIST);
}

/* The part becomes whose the file is that it will replace, before anything is in it: root may be
 * converting for the server's user. */
static enum sl_code make_like_replaced(struct output *o, struct sl_error *err)
{
    struct stat st;
    int fd = sl_io_open(o->io, o->dir, o->name, O_PATH); /* a link is not followed, but replaced */
    if (fd < 0)
        return errno == ENOENT ? SL_OK : sl_io_fail(err, "open of", o->where, errno);
    int e = o->io->stat(fd, &st) < 0 ? errno : 0;
    if (o->io->close(fd) < 0 && !e)
        e = errno;
    if (e)
        return sl_io_fail(err, "stat of", o->where, e);
    if (S_ISREG(st.st_mode))
        e = sl_io_make_like(o->io, o->fd, &st);
    if (e == EPERM && geteuid() != 0 && st.st_uid != geteuid())
        e = 0; /* of somebody else's: it becomes his who converts, as with any rename */
    return e ? sl_io_fail(err, "giving owner, group and mode of the file that is replaced to",
                          o->where_part, e)
             : SL_OK;
}

static enum sl_code write_part(struct output *o, struct sl_conversion *c, struct sl_error *err)
{
    enum sl_code rc = make_like_replaced(o, err);
    if (rc == SL_OK)
        rc = sl_conversion_write(c, take, o, err);
    if (rc == SL_OK)
        rc = seal(o, c, err);
    if (o->io->close(o->fd) < 0 && rc == SL_OK)
        rc = sl_io_fail(err, "close of", o->where_part, errno);
    return rc;
}

/* The part is there. */
static enum sl_code make(struct output *o, struct sl_conversion *c, struct sl_error *err)
{
    enum sl_code rc = write_part(o, c, err);
    if (rc == SL_OK && o->io->rename(o->dir, o->part, o->name) != 0)
        rc = sl_io_fail(err, "rename of", o->where_part, errno);
    if (rc != SL_OK)
        (void)o->io->unlink(o->dir, o->part);
    sl_ending_forget(o->part_path);
    if (rc != SL_OK)
        return rc;
    /* The file is whole and in its place; whether a power cut would undo that is what is left to be
     * told. */
    int e = sl_io_fsync(o->io, o->dir);
    return e ? sl_io_fail(err, "fsync of the folder of", o->where, e) : SL_OK;
}

enum sl_code sl_convert_file(struct sl_conversion *c, const char *path, bool force,
                             const struct sl_store_io *io, struct sl_error *err)
{
    struct output o = {.io = io, .dir = -1, .fd = -1};
    enum sl_code rc = split(&o, path, err);
    if (rc == SL_OK)
        rc = check_target(c, path, force, err);
    if (rc != SL_OK)
        return rc;
    o.dir = sl_io_open_root(io, o.folder);
    if (o.dir < 0)
        return sl_io_fail(err, "open of", (struct sl_where){o.folder, NULL}, errno);
    rc = open_part(&o, err);
    if (rc == SL_OK)
        rc = make(&o, c, err);
    io->close(o.dir);
    return rc;
}
