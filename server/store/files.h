/* files.h: snapshots as files: where they lie, how they get there whole, how they are found wrong.
 *
 *   sessions/t-TENANT/x/y/ID.INCARNATION.VERSION-NUMBER.safetensors      x, y: a hex digit of a
 * hash
 *
 * A name is never used twice (NUMBER only grows), so that a file which is to be removed late cannot
 * be a new one. Temporary files have `.tmp` behind it. Links are never followed, and only regular
 * files are read. What counts is the log: a file that no record names is a leftover, and one that
 * has not the recorded size and digest is damaged.
 *
 * Everything but sl_files_sweep() runs in libuv's pool. */
#ifndef SLATE_SERVER_STORE_FILES_H
#define SLATE_SERVER_STORE_FILES_H

#include "engine/base/hash.h"
#include "server/store/log.h"

#define SL_SESSIONS_NAME "sessions"

enum { SL_FILE_NAME_SIZE = 256, SL_FILE_PATH_SIZE = 384 };

/* Whose snapshot; texts outlive the call. */
struct sl_file_of {
    const char *tenant, *id;
    unsigned char incarnation[16];
    uint64_t hash; /* of both names: the folder */
};

struct sl_files {
    const struct sl_store_io *io;
    int sessions; /* the folder */
    const char *root;
};

/* Which folders' entries are known to be on the disk: set by the caller from the tenant before, and
 * back into it after a success. */
struct sl_folders {
    bool tenant, fan, leaf;
};
void sl_folders_get(const struct sl_ix_tenant *t, uint64_t hash, struct sl_folders *ret);
void sl_folders_set(struct sl_ix_tenant *t, uint64_t hash, const struct sl_folders *f);

/* Writes the file, synced whole under its name; gives its size and digest in *s (number and version
 * are given). Errors: IO, STORE_FULL. */
SL_NODISCARD enum sl_code sl_file_write(const struct sl_files *fs, const struct sl_file_of *of,
                                        struct sl_folders *folders, const void *data, size_t n,
                                        struct sl_snapfile *s, struct sl_error *err);

/* A file that is being read, a piece at a time, and hashed on the way. */
struct sl_file_reading {
    const struct sl_files *fs;
    const struct sl_snapfile *s;
    int fd;
    unsigned char *p; /* s->size bytes: the first `have` of them are there */
    size_t have;
    struct sl_digest digest;
    char path[SL_FILE_PATH_SIZE]; /* for messages */
};

/* Opens it and looks at its size; its bytes will be in `memory`, which grows where it is too small
 * and must stay. After SL_OK: sl_file_end(). Errors: as sl_file_read(). */
SL_NODISCARD enum sl_code sl_file_begin(struct sl_file_reading *r, const struct sl_files *fs,
                                        const struct sl_file_of *of, const struct sl_snapfile *s,
                                        struct sl_bytes *memory, struct sl_error *err);
/* At least the first `end` bytes are there, *ret_have of them; not verified. An
 * sl_snapshot_source's; arg: the sl_file_reading. Errors: SNAPSHOT_CORRUPT (too short), IO. */
SL_NODISCARD enum sl_code sl_file_need(void *arg, size_t end, size_t *ret_have,
                                       struct sl_error *err);
/* Reads the rest and closes it; SL_OK: all bytes are those that were written. Else nothing that was
 * made of them may be used. Errors: as sl_file_read(). */
SL_NODISCARD enum sl_code sl_file_end(struct sl_file_reading *r, struct sl_error *err);

/* Reads it, verified, into ret's memory, which grows where it is too small (sl_free(ret->p), also
 * after an error). Errors: SNAPSHOT_CORRUPT (names the file and
 * what is wrong), IO, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_file_read(const struct sl_files *fs, const struct sl_file_of *of,
                                       const struct sl_snapfile *s, struct sl_bytes *ret,
                                       struct sl_error *err);

bool sl_file_is_missing(const struct sl_files *fs, const struct sl_file_of *of,
                        const struct sl_snapfile *s);

/* Gone, or not there. Errors: IO. */
SL_NODISCARD enum sl_code sl_file_remove(const struct sl_files *fs, const struct sl_file_of *of,
                                         const struct sl_snapfile *s, struct sl_error *err);

struct sl_sweep {
    uint64_t removed; /* leftovers: temporary files, snapshots that no record names */
    uint64_t foreign; /* names that are none of ours; left alone */
    uint64_t failed;
};
/* At open; marks the earlier snapshots whose files are there. Failures are counted: what could not
 * be removed is harmless. Errors: IO (a folder that cannot be read). */
SL_NODISCARD enum sl_code sl_files_sweep(const struct sl_files *fs, struct sl_index *ix,
                                         struct sl_sweep *ret, struct sl_error *err);

#endif
