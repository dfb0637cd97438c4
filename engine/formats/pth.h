/* pth.h: between the three parts of the reader for PyTorch's checkpoints. Private to pth*.c.
 *
 * pth_zip.c finds the records of a zip file, pth_pickle.c runs the restricted pickle machine,
 * pth_globals.c says what the few Python names that it knows do, pth.c puts them together. All
 * values live in one arena that is freed when the tensors have been added. */
#ifndef SLATE_FORMATS_PTH_H
#define SLATE_FORMATS_PTH_H

#include "engine/formats/arena.h"
#include "engine/formats/reader.h"

/* --- the zip container ------------------------------------------------------------------------ */

struct sl_zip_entry {
    const char *name; /* in the mapping: not terminated */
    size_t name_n;
    unsigned method, flags;
    size_t stored_n, n; /* bytes as stored, and unpacked */
    size_t header_at;   /* of the local header */
};

struct sl_zip {
    struct sl_zip_entry *v; /* sorted by name */
    size_t n;
    size_t directory_at; /* where the data must have ended */
};

/* Reads the directory at the file's end. v lies in the arena. */
SL_NODISCARD enum sl_code sl_zip_read(struct sl_reader *r, struct sl_arena *a, struct sl_zip *ret);

/* The entry named prefix + name, or NULL. */
const struct sl_zip_entry *sl_zip_find(const struct sl_zip *z, const char *prefix, size_t prefix_n,
                                       const char *name, size_t name_n);

/* Where an entry's bytes lie. Compressed and encrypted entries are refused. */
SL_NODISCARD enum sl_code sl_zip_data(struct sl_reader *r, const struct sl_zip *z,
                                      const struct sl_zip_entry *e, const unsigned char **ret);

/* --- pickles ---------------------------------------------------------------------------------- */

/* Limits of one checkpoint's pickle. A state dict of 10,000 tensors needs 2 MiB, 10 MiB of arena
 * and 80,000 memo places. */
#define SL_PICKLE_BYTES_MAX ((size_t)64 << 20)
#define SL_PICKLE_ARENA_MAX ((size_t)256 << 20)
#define SL_PICKLE_STACK_MAX ((size_t)1 << 22)
#define SL_PICKLE_MARKS_MAX ((size_t)256)
#define SL_PICKLE_MEMO_MAX ((size_t)1 << 23)
#define SL_PICKLE_DEPTH_MAX 32                 /* of nested dicts and lists */
#define SL_PICKLE_VISITS_MAX ((size_t)1 << 24) /* shared parts count each time */

enum sl_pickle_kind {
    SL_PICKLE_NONE,
    SL_PICKLE_BOOL,
    SL_PICKLE_INT,
    SL_PICKLE_BIG_INT, /* does not fit 64 bits; the value is not kept */
    SL_PICKLE_STRING,
    SL_PICKLE_TUPLE,
    SL_PICKLE_LIST,
    SL_PICKLE_DICT, /* key, value, key, value … */
    SL_PICKLE_GLOBAL,
    SL_PICKLE_STORAGE,
    SL_PICKLE_TENSOR,
    SL_PICKLE_OTHER, /* an ordinary value that no tensor needs: a float, bytes, a set, a device */
};

struct sl_pickle_storage {
    enum sl_dtype dtype; /* NONE: untyped, counted in bytes */
    const char *key;     /* not terminated */
    size_t key_n;
    size_t n_elements;
    const unsigned char *data; /* NULL until it is known where it lies */
};

struct sl_pickle_tensor {
    struct sl_pickle_storage *storage;
    size_t view_at;      /* elements of the storage before the part that is seen (old files) */
    size_t view_n;       /* elements of that part */
    size_t offset;       /* elements, in that part */
    struct sl_tensor as; /* dtype, rank, shape, stride */
};

struct sl_pickle_global;

struct sl_pickle_value {
    enum sl_pickle_kind kind;
    size_t n, cap; /* bytes of a string; items of a tuple, list, dict (both of a pair counted) */
    union {
        int64_t i;
        const char *s; /* not terminated */
        struct sl_pickle_value **v;
        const struct sl_pickle_global *global;
        struct sl_pickle_tensor *tensor; /* of a storage: only storage and view are set */
    } u;
};

struct sl_pickle {
    struct sl_reader *r;
    struct sl_arena *arena;
    const char *what; /* for messages: "data.pkl" */
    /* Says where a storage's data lies, or leaves it open (NULL). */
    enum sl_code (*locate)(struct sl_pickle *m, struct sl_pickle_storage *s);
    void *ctx; /* for locate */
    const unsigned char *begin, *at, *end;
    struct sl_pickle_value **stack;
    size_t n_stack, stack_cap;
    size_t marks[SL_PICKLE_MARKS_MAX]; /* heights of the stack */
    size_t n_marks;
    struct sl_pickle_value **memo;
    size_t n_memo, memo_cap;
    struct sl_pickle_storage **storages; /* all of them, in the order of appearance */
    size_t n_storages, storages_cap;
    const char *op; /* the running opcode's name, for messages; NULL: none runs */
    bool stopped;
};

/* Runs one pickle that begins at data and is at most n bytes long. *ret_used is its length. The
 * stack and the memo begin empty; storages stay. */
SL_NODISCARD enum sl_code sl_pickle_run(struct sl_pickle *m, const unsigned char *data, size_t n,
                                        size_t *ret_used, struct sl_pickle_value **ret);

void sl_pickle_done(struct sl_pickle *m);

/* As SL_READER_FAIL, with the pickle and the place in it before the message. */
#define SL_PICKLE_FAIL(m, code, ...) (sl_pickle_fail((m), SL_E_##code, __VA_ARGS__), SL_E_##code)
void sl_pickle_fail(const struct sl_pickle *m, enum sl_code c, const char *fmt, ...)
    SL_PRINTF(3, 4);
enum sl_code sl_pickle_no_memory(const struct sl_pickle *m);

/* A new value of the arena; NULL when there is no memory. */
struct sl_pickle_value *sl_pickle_new(struct sl_pickle *m, enum sl_pickle_kind kind);

/* --- globals ---------------------------------------------------------------------------------- */

/* The row of an allowed Python name; NULL for any other. */
const struct sl_pickle_global *sl_pickle_global_find(const char *module, size_t module_n,
                                                     const char *name, size_t name_n);

/* What calling g with the tuple args gives. */
SL_NODISCARD enum sl_code sl_pickle_call(struct sl_pickle *m, const struct sl_pickle_global *g,
                                         const struct sl_pickle_value *args,
                                         struct sl_pickle_value **ret);

/* What a persistent id stands for: a storage. */
SL_NODISCARD enum sl_code sl_pickle_persistent(struct sl_pickle *m,
                                               const struct sl_pickle_value *id,
                                               struct sl_pickle_value **ret);

#endif
