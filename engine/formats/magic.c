/* magic.c: a table of first bytes, for the containers that are read and for those that people try.
 *
 * Safetensors has no magic of its own: eight bytes of header length, then '{'. The format allows
 * 100,000,000 bytes of header, so the upper four bytes of the length are zero; together with the
 * brace that is asked first, because a length can spell another format's magic. */
#include "engine/formats/magic.h"

#include <string.h>
#include <strings.h>

struct magic {
    const char *bytes;
    size_t n;
    size_t at;
    const char *container;     /* NULL: nothing that is read here */
    sl_container_reader *read; /* NULL likewise */
    const char *instead;       /* what it is */
};

#define M(bytes) bytes, sizeof(bytes) - 1
static const struct magic magics[] = {
    {M("PK\3\4"), 0, "pth (zip)", sl_pth_zip_read, NULL},
    {M("PK\5\6"), 0, NULL, NULL, "an empty zip file"},
    {M("PK\7\10"), 0, NULL, NULL, "a part of a split zip file"},
    /* the pickle of 0x1950a86a20f9469cfc6c, protocols 2 and 3 */
    {M("\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), 0, "pth (legacy)",
     sl_pth_legacy_read, NULL},
    {M("\x80\3\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."), 0, "pth (legacy)",
     sl_pth_legacy_read, NULL},
    {M("\x80\2"), 0, NULL, NULL, "a Python pickle that torch.save did not write"},
    {M("\x80\3"), 0, NULL, NULL, "a Python pickle that torch.save did not write"},
    {M("\x80\4\x95"), 0, NULL, NULL, "a Python pickle that torch.save did not write"},
    {M("\x80\5\x95"), 0, NULL, NULL, "a Python pickle that torch.save did not write"},
    {M("GGUF"), 0, "gguf", sl_gguf_read, NULL},
    {M("lmgg"), 0, NULL, NULL, "an old GGML file"},
    {M("fmgg"), 0, NULL, NULL, "an old GGML file (GGMF, as rwkv.cpp writes it)"},
    {M("tjgg"), 0, NULL, NULL, "an old GGML file (GGJT)"},
    {M("version https://git-lfs"), 0, NULL, NULL,
     "a Git LFS pointer, a text that stands for a file which was not downloaded"},
    {M("\x89HDF\r\n"), 0, NULL, NULL, "an HDF5 file"},
    {M("\x93NUMPY"), 0, NULL, NULL, "a NumPy array"},
    {M("\x1f\x8b"), 0, NULL, NULL, "a gzip-compressed file"},
    {M("\x28\xb5\x2f\xfd"), 0, NULL, NULL, "a zstd-compressed file"},
    {M("\xfd"
       "7zXZ"),
     0, NULL, NULL, "an xz-compressed file"},
    {M("BZh"), 0, NULL, NULL, "a bzip2-compressed file"},
    {M("7z\xbc\xaf\x27\x1c"), 0, NULL, NULL, "a 7z archive"},
    {M("Rar!"), 0, NULL, NULL, "a RAR archive"},
    {M("%PDF-"), 0, NULL, NULL, "a PDF"},
    {M("\x7f"
       "ELF"),
     0, NULL, NULL, "a program or library (ELF)"},
    {M("TFL3"), 4, NULL, NULL, "a TensorFlow Lite file"},
    {M("ustar"), 257, NULL, NULL, "a tar archive"},
};

static size_t skip_space(const struct sl_reader *r)
{
    size_t i = r->n >= 3 && memcmp(r->data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (i < r->n && i < 512 && strchr(" \t\r\n", r->data[i]) && r->data[i])
        i++;
    return i;
}

/* What a text file is, or NULL. */
static const char *text_kind(const struct sl_reader *r)
{
    static const struct {
        const char *begin, *kind;
    } kinds[] = {
        {"<!doctype html", "an HTML page, perhaps from a failed download"},
        {"<html", "an HTML page, perhaps from a failed download"},
        {"<?xml", "an XML file"},
        {"{", "a JSON file"},
        {"[", "a JSON file"},
    };
    size_t i = skip_space(r);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t len = strlen(kinds[k].begin);
        if (r->n - i >= len && strncasecmp((const char *)r->data + i, kinds[k].begin, len) == 0)
            return kinds[k].kind;
    }
    return NULL;
}

static enum sl_code unknown(struct sl_reader *r)
{
    const char *text = text_kind(r);
    if (text)
        return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                              "is %s; a .safetensors, .pth or .gguf file is needed", text);
    if (r->n < 16)
        return SL_READER_FAIL(r, FILE_TRUNCATED, "has only %zu bytes; no model file is that short",
                              r->n);
    return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                          "is no .safetensors, .pth or .gguf file (it begins with the bytes "
                          "%02x %02x %02x %02x %02x %02x %02x %02x)",
                          r->data[0], r->data[1], r->data[2], r->data[3], r->data[4], r->data[5],
                          r->data[6], r->data[7]);
}

static bool is_safetensors(const struct sl_reader *r)
{
    return r->n >= 9 && r->data[8] == '{' && memcmp(r->data + 4, "\0\0\0\0", 4) == 0;
}

enum sl_code sl_container_of(struct sl_reader *r, const char **ret_container,
                             sl_container_reader **ret_read)
{
    if (r->n == 0)
        return SL_READER_FAIL(r, FILE_TRUNCATED, "is empty");
    bool safetensors = is_safetensors(r);
    for (size_t i = 0; i < sizeof magics / sizeof *magics && !safetensors; i++) {
        const struct magic *m = &magics[i];
        if (r->n < m->at + m->n || memcmp(r->data + m->at, m->bytes, m->n) != 0)
            continue;
        if (!m->read)
            return SL_READER_FAIL(r, FILE_UNSUPPORTED,
                                  "is %s; a .safetensors, .pth or .gguf file is needed",
                                  m->instead);
        *ret_container = m->container;
        *ret_read = m->read;
        return SL_OK;
    }
    /* A length above the format's limit: its reader says so. */
    if (!safetensors && !(r->n >= 9 && r->data[8] == '{' && r->data[0] != '{'))
        return unknown(r);
    *ret_container = "safetensors";
    *ret_read = sl_safetensors_read;
    return SL_OK;
}
