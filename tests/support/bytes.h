/* bytes.h: building files in memory, byte by byte: plain bytes, zip archives, pickles.
 *
 * Failing to get memory ends the test program; tests that make allocations fail build their files
 * before. Nothing here goes through engine/base/mem.h. */
#ifndef SLATE_TESTS_BYTES_H
#define SLATE_TESTS_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    unsigned char *p;
    size_t n, cap;
};

void bytes_done(struct bytes *b);
void put(struct bytes *b, const void *p, size_t n);
void put_text(struct bytes *b, const char *s); /* without its end */
void put_byte(struct bytes *b, unsigned v);
void put_u16(struct bytes *b, uint64_t v); /* little-endian, the low bits of v */
void put_u32(struct bytes *b, uint64_t v);
void put_u64(struct bytes *b, uint64_t v);
void set_u16(struct bytes *b, size_t at, uint64_t v);
void set_u32(struct bytes *b, size_t at, uint64_t v);
void set_u64(struct bytes *b, size_t at, uint64_t v);

/* Where text lies in b, from `from` on; fails the test when it does not. */
size_t find_text(const struct bytes *b, size_t from, const char *text, size_t n);

/* A copy of exactly n bytes, so that a sanitizer sees one byte too many; to be freed. */
unsigned char *exact_copy(const void *p, size_t n);

/* Writes a file into a new temporary folder; path has room for 128 bytes. */
void write_temp(char *path, const char *name, const void *p, size_t n);
void remove_temp(const char *path); /* the file and its folder */

/* A safetensors file of this header and so many bytes of data, which count 0, 1, 2, … */
void make_safetensors(struct bytes *b, const char *header, size_t data_n);

/* --- zip: stored records ------------------------------------------------------------------------
 */

struct zip_maker {
    struct bytes file, directory;
    size_t n;
    bool descriptors; /* sizes follow the data; the local header has zeros */
    bool zip64;       /* every size and offset in 64-bit fields */
    size_t align;     /* of the data, by an extra field; 0: none */
};

void zip_add(struct zip_maker *z, const char *name, const void *p, size_t n);
void zip_end(struct zip_maker *z); /* z->file is the archive then */
void zip_done(struct zip_maker *z);

/* --- pickles ------------------------------------------------------------------------------------
 */

void pick_text(struct bytes *b, const char *s); /* BINUNICODE */
void pick_int(struct bytes *b, int64_t v);      /* LONG1 of eight bytes */
void pick_global(struct bytes *b, const char *module, const char *name);
/* BINPERSID of ('storage', torch.TYPE, key, 'cpu', n); legacy files have a None besides. */
void pick_storage(struct bytes *b, const char *type, const char *key, int64_t n, bool legacy);
/* The same with a view, ('view', at, length). */
void pick_storage_view(struct bytes *b, const char *type, const char *key, int64_t n, int64_t at,
                       int64_t length);
/* _rebuild_tensor_v2 over such a storage; shape and stride have rank entries. */
void pick_tensor(struct bytes *b, const char *type, const char *key, int64_t n, int64_t offset,
                 unsigned rank, const int64_t *shape, const int64_t *stride, bool legacy);

#endif
