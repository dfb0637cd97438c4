/* bytes.c: see bytes.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/bytes.h"

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "tests: not enough memory\n");
        abort();
    }
    return p;
}

void bytes_done(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){0};
}

void put(struct bytes *b, const void *p, size_t n)
{
    if (n > b->cap - b->n) {
        b->cap = (b->n + n) * 2;
        b->p = need(realloc(b->p, b->cap));
    }
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
}

void put_text(struct bytes *b, const char *s)
{
    put(b, s, strlen(s));
}

void put_byte(struct bytes *b, unsigned v)
{
    unsigned char c = (unsigned char)v;
    put(b, &c, 1);
}

void put_u16(struct bytes *b, uint64_t v)
{
    put(b, &v, 2);
}

void put_u32(struct bytes *b, uint64_t v)
{
    put(b, &v, 4);
}

void put_u64(struct bytes *b, uint64_t v)
{
    put(b, &v, 8);
}

static void set(struct bytes *b, size_t at, uint64_t v, size_t width)
{
    assert_true(at + width <= b->n);
    memcpy(b->p + at, &v, width);
}

void set_u16(struct bytes *b, size_t at, uint64_t v)
{
    set(b, at, v, 2);
}

void set_u32(struct bytes *b, size_t at, uint64_t v)
{
    set(b, at, v, 4);
}

void set_u64(struct bytes *b, size_t at, uint64_t v)
{
    set(b, at, v, 8);
}

size_t find_text(const struct bytes *b, size_t from, const char *text, size_t n)
{
    const unsigned char *p = memmem(b->p + from, b->n - from, text, n);
    assert_non_null(p);
    return (size_t)(p - b->p);
}

unsigned char *exact_copy(const void *p, size_t n)
{
    unsigned char *copy = need(malloc(n ? n : 1));
    if (n)
        memcpy(copy, p, n);
    return copy;
}

void write_temp(char *path, const char *name, const void *p, size_t n)
{
    char folder[] = "/tmp/slate-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(path, 128, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void remove_temp(const char *path)
{
    char folder[128];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    unlink(path);
    rmdir(folder);
}

void make_safetensors(struct bytes *b, const char *header, size_t data_n)
{
    put_u64(b, strlen(header));
    put_text(b, header);
    for (size_t i = 0; i < data_n; i++)
        put_byte(b, (unsigned)i);
}

/* --- zip ---------------------------------------------------------------------------------------
 */

/* What local and central headers share, from "version needed" to the extra field's length. */
static void put_zip_fields(struct bytes *b, const struct zip_maker *z, const char *name, size_t n,
                           size_t extra_n, bool local)
{
    bool later = local && z->descriptors;
    put_u16(b, z->zip64 ? 45 : 20);
    put_u16(b, z->descriptors ? 0x0808 : 0x0800);
    put_u16(b, 0); /* stored */
    put_u32(b, 0); /* time and date */
    put_u32(b, 0); /* the CRC, which nobody looks at */
    put_u32(b, later ? 0 : z->zip64 ? UINT32_MAX : n);
    put_u32(b, later ? 0 : z->zip64 ? UINT32_MAX : n);
    put_u16(b, strlen(name));
    put_u16(b, extra_n);
}

void zip_add(struct zip_maker *z, const char *name, const void *p, size_t n)
{
    struct bytes *f = &z->file, *d = &z->directory;
    size_t at = f->n, extra_n = z->zip64 && !z->descriptors ? 20 : 0, padding = 0;
    if (z->align) {
        size_t data_at = at + 30 + strlen(name) + extra_n + 4;
        padding = 4 + (z->align - data_at % z->align) % z->align;
    }
    put_text(f, "PK\3\4");
    put_zip_fields(f, z, name, n, extra_n + padding, true);
    put_text(f, name);
    if (extra_n) {
        put_u16(f, 1);
        put_u16(f, 16);
        put_u64(f, n);
        put_u64(f, n);
    }
    if (padding) {
        put_text(f, "FB");
        put_u16(f, padding - 4);
        for (size_t i = 4; i < padding; i++)
            put_byte(f, 'Z');
    }
    put(f, p, n);
    if (z->descriptors) {
        put_text(f, "PK\7\10");
        put_u32(f, 0);
        put_u32(f, n);
        put_u32(f, n);
    }
    put_text(d, "PK\1\2");
    put_u16(d, 20);
    put_zip_fields(d, z, name, n, z->zip64 ? 28 : 0, false);
    put_u16(d, 0); /* comment */
    put_u16(d, 0); /* disk */
    put_u16(d, 0);
    put_u32(d, 0);
    put_u32(d, z->zip64 ? UINT32_MAX : at);
    put_text(d, name);
    if (z->zip64) {
        put_u16(d, 1);
        put_u16(d, 24);
        put_u64(d, n);
        put_u64(d, n);
        put_u64(d, at);
    }
    z->n++;
}

void zip_end(struct zip_maker *z)
{
    struct bytes *f = &z->file;
    size_t at = f->n, n = z->directory.n;
    put(f, z->directory.p, n);
    if (z->zip64) {
        size_t end64 = f->n;
        put_text(f, "PK\6\6");
        put_u64(f, 44);
        put_u16(f, 45);
        put_u16(f, 45);
        put_u64(f, 0); /* disks */
        put_u64(f, z->n);
        put_u64(f, z->n);
        put_u64(f, n);
        put_u64(f, at);
        put_text(f, "PK\6\7");
        put_u32(f, 0);
        put_u64(f, end64);
        put_u32(f, 1);
    }
    put_text(f, "PK\5\6");
    put_u32(f, 0);
    put_u16(f, z->zip64 ? UINT16_MAX : z->n);
    put_u16(f, z->zip64 ? UINT16_MAX : z->n);
    put_u32(f, z->zip64 ? UINT32_MAX : n);
    put_u32(f, z->zip64 ? UINT32_MAX : at);
    put_u16(f, 0);
}

void zip_done(struct zip_maker *z)
{
    bytes_done(&z->file);
    bytes_done(&z->directory);
}

/* --- pickles -----------------------------------------------------------------------------------
 */

void pick_text(struct bytes *b, const char *s)
{
    put_byte(b, 'X');
    put_u32(b, strlen(s));
    put_text(b, s);
}

void pick_int(struct bytes *b, int64_t v)
{
    put_byte(b, 0x8a);
    put_byte(b, 8);
    put_u64(b, (uint64_t)v);
}

void pick_global(struct bytes *b, const char *module, const char *name)
{
    put_byte(b, 'c');
    put_text(b, module);
    put_byte(b, '\n');
    put_text(b, name);
    put_byte(b, '\n');
}

static void begin_storage(struct bytes *b, const char *type, const char *key, int64_t n)
{
    put_byte(b, '(');
    pick_text(b, "storage");
    pick_global(b, "torch", type);
    pick_text(b, key);
    pick_text(b, "cpu");
    pick_int(b, n);
}

void pick_storage(struct bytes *b, const char *type, const char *key, int64_t n, bool legacy)
{
    begin_storage(b, type, key, n);
    put_text(b, legacy ? "NtQ" : "tQ");
}

void pick_storage_view(struct bytes *b, const char *type, const char *key, int64_t n, int64_t at,
                       int64_t length)
{
    begin_storage(b, type, key, n);
    put_byte(b, '(');
    pick_text(b, "view");
    pick_int(b, at);
    pick_int(b, length);
    put_text(b, "ttQ");
}

static void pick_sizes(struct bytes *b, unsigned rank, const int64_t *v)
{
    put_byte(b, '(');
    for (unsigned i = 0; i < rank; i++)
        pick_int(b, v[i]);
    put_byte(b, 't');
}

void pick_tensor(struct bytes *b, const char *type, const char *key, int64_t n, int64_t offset,
                 unsigned rank, const int64_t *shape, const int64_t *stride, bool legacy)
{
    pick_global(b, "torch._utils", "_rebuild_tensor_v2");
    put_byte(b, '(');
    pick_storage(b, type, key, n, legacy);
    pick_int(b, offset);
    pick_sizes(b, rank, shape);
    pick_sizes(b, rank, stride);
    put_byte(b, 0x89); /* requires_grad */
    pick_global(b, "collections", "OrderedDict");
    put_text(b, ")RtR"); /* the hooks; the arguments; the call */
}
