/* shaped.c: see shaped.h. */
#include "tests/support/shaped.h"

#include <stdio.h>

#include "engine/base/mem.h"
#include "server/cli/shape_gguf.h"
#include "tests/support/serving.h"

enum { BYTES = 256 /* values of one */ };

/* The file's own texts, but for the single bytes that a vocabulary here has to have. The file has
 * them not: llama.cpp ends a stream at bytes that are no UTF-8, which such a model may say. */
static void write_vocabulary(const char *path, size_t n)
{
    FILE *f = fopen(path, "w");
    for (size_t i = 1; f && i < n; i++)
        if (i <= BYTES)
            fprintf(f, "%zu b'\\x%02zx' 1\n", i, i - 1);
        else
            fprintf(f, "%zu 't%zu' %d\n", i, i, snprintf(NULL, 0, "t%zu", i));
    if (!f || fclose(f))
        serving_die("a shape's vocabulary could not be written");
}

void shaped_write(struct shaped *ret, const char *folder, const char *shape)
{
    const struct sl_shape *s = sl_shape_find(shape);
    struct sl_error err;
    unsigned char *file;
    size_t n;
    if (!s)
        serving_die("--shape: there is none of that name");
    if (s->vocab_size <= 1 + BYTES)
        serving_die("--shape: its vocabulary has no room for all single bytes");
    snprintf(ret->model, sizeof ret->model, "%.64s/F16.gguf", folder);
    snprintf(ret->tokenizer, sizeof ret->tokenizer, "%.64s/vocabulary.txt", folder);
    ret->vocabulary = s->vocab_size;
    if (sl_shape_file(s, &file, &n, &err) || sl_shape_gguf(s, file, n, ret->model, &err))
        serving_die(err.message);
    sl_free(file);
    write_vocabulary(ret->tokenizer, s->vocab_size);
}
