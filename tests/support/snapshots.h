/* snapshots.h: for tests of snapshots: a tiny model with a state that has seen something, and files
 * taken apart and put together again. Failures fail the test. */
#ifndef SLATE_TESTS_SNAPSHOTS_H
#define SLATE_TESTS_SNAPSHOTS_H

#include "slate/snapshot.h"
#include "tests/support/seeded.h"

/* Two layers of two heads of 8: a state of 320 values. The golden files are of it: do not change.
 */
#define SNAPSHOT_TINY                                                                              \
    {                                                                                              \
        .n_layers = 2, .d_model = 16, .head_size = 8, .d_ffn = 24, .vocab_size = 256, .rank_w = 4, \
        .rank_a = 4, .rank_v = 4, .rank_g = 4, .dtype = SL_DTYPE_F32, .seed = 11                   \
    }

struct snapshots {
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    unsigned char *source; /* what a seeded model is made from */
    void *state;           /* after `fed` tokens */
    void *back;            /* a slot to read into */
    size_t state_bytes;
};

/* A seeded model with the tokenizer `bytes`; shape NULL: the embedded model with its own. */
void snapshots_open(struct snapshots *s, const struct seeded_shape *shape, size_t fed);
void snapshots_close(struct snapshots *s);

struct snapshot_file {
    unsigned char *p; /* sl_free() */
    size_t n;
};

struct snapshot_file snapshots_write(const struct snapshots *s,
                                     const struct sl_snapshot_info *info);

/* Fills the slot with 0xA5 and reads. After an error *ret must be as it was, and the slot, too, but
 * where a value or the data's digest was refused. */
enum sl_code snapshots_read(const struct snapshots *s, const void *p, size_t n,
                            struct sl_snapshot_info *ret, struct sl_error *err);

/* The file with the first `from` in its header replaced by `to`, padded anew. The data stay. */
struct snapshot_file snapshots_edit(const struct snapshot_file *f, const char *from,
                                    const char *to);
/* The same with a metadata entry's key renamed, so that it is absent: "payload.xxh3". */
struct snapshot_file snapshots_drop(const struct snapshot_file *f, const char *key);

/* Where the data of a tensor lie in a file. */
unsigned char *snapshots_tensor(const struct snapshot_file *f, const char *name, size_t *ret_n);

#endif
