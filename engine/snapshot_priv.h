/* snapshot_priv.h: what the parts of the snapshot code share. Private to engine/snapshot*.c.
 *
 * The format is snapshot.h's business. Limits: a header of SL_SNAPSHOT_HEADER_MAX bytes, which has
 * room for the longest continuation (a million pending tokens), with at most
 * SL_SNAPSHOT_VALUES_MAX JSON values, so that reading a hostile one takes tens of megabytes and no
 * more. */
#ifndef SLATE_ENGINE_SNAPSHOT_PRIV_H
#define SLATE_ENGINE_SNAPSHOT_PRIV_H

#include "engine/formats/tensors.h"
#include "engine/forward.h"
#include "slate/snapshot.h"

#define SL_SNAPSHOT_FORMAT "slate.session"
enum { SL_SNAPSHOT_VERSION = 1 };

#define SL_SNAPSHOT_HEADER_MAX ((size_t)24 << 20)
#define SL_SNAPSHOT_VALUES_MAX ((size_t)1 << 18)
#define SL_SNAPSHOT_TEXT_MAX ((size_t)16 << 20) /* one value of the metadata */

/* Of sl_state_header: the one counter that is no tensor of a mixer's. I64 [1]. */
#define SL_SNAPSHOT_COUNTER "counters.tokens_consumed"
/* The scales of an I8 tensor: F32, its shape without the last axis ([1] where it had one only); a
 * value is its integer times the scale of its row. */
#define SL_SNAPSHOT_SCALE ".scale"

/* --- metadata --- */

enum { SL_SNAPSHOT_HEX = 33 }; /* 16 bytes as hex digits, and a '\0' */
void sl_snapshot_hex(char ret[SL_SNAPSHOT_HEX], const unsigned char bytes[16]);

/* metadata.xxh3: XXH3-128 over key, '\0', value, '\0' of all entries but the two digests, in order
 * of the keys' bytes. Sorts v. */
void sl_snapshot_meta_digest(struct sl_tensor_meta *v, size_t n, unsigned char ret[16]);

#define CORRUPT(err, ...) sl_fail((err), SL_E_SNAPSHOT_CORRUPT, __VA_ARGS__)

/* Whether JSON text holds more than SL_SNAPSHOT_VALUES_MAX values. Each but the first follows a
 * bracket, comma or colon; all of them count, so it may be a few less. */
bool sl_snapshot_too_many_values(const unsigned char *s, size_t n);

/* Reads a file's metadata into ret, but for its texts and what a model is needed for, checks their
 * digest, and sorts them. After it model.arch and model.fingerprint are there. */
SL_NODISCARD enum sl_code sl_snapshot_read_meta(struct sl_tensors *t, struct sl_snapshot_info *ret,
                                                unsigned char fingerprint[16],
                                                struct sl_error *err);
/* The rest, once they are sorted. A value, or NULL where it is absent: */
const char *sl_snapshot_text(const struct sl_tensors *t, const char *key);
/* … as 16 bytes; zeros where it is absent: */
SL_NODISCARD enum sl_code sl_snapshot_read_hex(const struct sl_tensors *t, const char *key,
                                               unsigned char ret[16], struct sl_error *err);
/* … and copies of all texts, in memory of ret's own. */
SL_NODISCARD enum sl_code sl_snapshot_take_texts(const struct sl_tensors *t,
                                                 struct sl_snapshot_info *ret,
                                                 const char **ret_arch, struct sl_error *err);

/* --- tensors of a file --- */

enum sl_snapshot_part { SL_PART_COUNTER, SL_PART_VALUES, SL_PART_SCALES };

struct sl_snapshot_entry {
    char name[80];
    enum sl_snapshot_part part;
    const struct sl_state_tensor *tensor; /* NULL with SL_PART_COUNTER */
    enum sl_dtype dtype;
    unsigned rank;
    size_t shape[4];
    size_t begin, bytes; /* in the data section */
};

/* The tensors that a file of this model has, in the order of their data: I64, then F32, then
 * smaller ones, so that each is aligned. *ret is to be freed with sl_free(). False: no memory. */
bool sl_snapshot_plan(const struct sl_model *m, enum sl_dtype dtype, struct sl_snapshot_entry **ret,
                      size_t *ret_n, size_t *ret_bytes);

size_t sl_state_tensor_elements(const struct sl_state_tensor *t);

/* --- values --- */

/* Values are handled in blocks that stay in the nearest cache. What comes after a block is fetched
 * meanwhile: a state that rests lies in no cache, and loops that wait for each line take twice as
 * long as a copy does. */
enum { SL_SNAPSHOT_BLOCK = 1024 };

static inline void sl_snapshot_prefetch(const void *p, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        __builtin_prefetch((const char *)p + i);
}

/* Packs n floats into a file's type, at dst without alignment; false when one is not finite (or for
 * i8 so large that its row's scale would be refused), and then dst's contents are undefined. bf16
 * rounds to nearest; what would round to infinity becomes the largest bf16. i8 is one row:
 * *ret_scale is its largest magnitude / 127, or 0 where that is no normal number; the row is zeros
 * then. */
bool sl_snapshot_pack_f32(unsigned char *dst, const float *src, size_t n);
bool sl_snapshot_pack_bf16(unsigned char *dst, const float *src, size_t n);
bool sl_snapshot_pack_i8(unsigned char *dst, float *ret_scale, const float *src, size_t n);

/* And back. F32: false when one is not finite; the others are looked at before. */
bool sl_snapshot_unpack_f32(float *dst, const unsigned char *src, size_t n);
void sl_snapshot_unpack_bf16(float *dst, const unsigned char *src, size_t n);
void sl_snapshot_unpack_i8(float *dst, const unsigned char *src, float scale, size_t n);

/* Whether n values of a file, at src without alignment, may be used: finite; for I64 not negative.
 * Scales: finite also after a multiplication. */
bool sl_snapshot_values_good(const unsigned char *src, enum sl_dtype dtype, bool scales, size_t n);

/* The same as a table, one for each instruction set that they are compiled for. */
struct sl_snapshot_loops {
    bool (*pack_f32)(unsigned char *dst, const float *src, size_t n);
    bool (*pack_bf16)(unsigned char *dst, const float *src, size_t n);
    bool (*pack_i8)(unsigned char *dst, float *ret_scale, const float *src, size_t n);
    bool (*unpack_f32)(float *dst, const unsigned char *src, size_t n);
    void (*unpack_bf16)(float *dst, const unsigned char *src, size_t n);
    void (*unpack_i8)(float *dst, const unsigned char *src, float scale, size_t n);
    bool (*values_good)(const unsigned char *src, enum sl_dtype dtype, bool scales, size_t n);
};
extern const struct sl_snapshot_loops sl_snapshot_loops_any;
extern const struct sl_snapshot_loops sl_snapshot_loops_avx2; /* x86-64 only */

#endif
