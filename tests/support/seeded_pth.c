/* seeded_pth.c: see seeded_pth.h. */
#include "tests/support/seeded_pth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/bytes.h"

static size_t elements(const struct seeded_tensor *t)
{
    size_t n = 1;
    for (unsigned i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static void pick_entry(struct bytes *b, const struct seeded_tensor *t, size_t i)
{
    char key[32];
    int64_t shape[4], stride[4], step = 1;
    for (unsigned a = t->rank; a-- > 0; step *= shape[a]) {
        shape[a] = (int64_t)t->shape[a];
        stride[a] = step;
    }
    (void)snprintf(key, sizeof key, "%zu", i);
    pick_text(b, t->name);
    pick_tensor(b,
                t->dtype == SL_DTYPE_F32   ? "FloatStorage"
                : t->dtype == SL_DTYPE_F16 ? "HalfStorage"
                                           : "BFloat16Storage",
                key, (int64_t)elements(t), 0, t->rank, shape, stride, false);
    put_byte(b, 's');
}

void seeded_write_pth(const struct seeded *s, const char *path)
{
    struct zip_maker z = {.align = 64};
    struct bytes pickle = {0};
    size_t n, header;
    unsigned char *all = seeded_bytes(s, &n);
    memcpy(&header, all, sizeof header);
    const unsigned char *at = all + 8 + header;
    put_text(&pickle, "\x80\2}");
    for (size_t i = 0; i < s->n; i++)
        pick_entry(&pickle, &s->v[i], i);
    put_byte(&pickle, '.');
    zip_add(&z, "m/data.pkl", pickle.p, pickle.n);
    for (size_t i = 0; i < s->n; i++) {
        char name[32];
        size_t bytes = elements(&s->v[i]) * sl_dtype_size(s->v[i].dtype);
        (void)snprintf(name, sizeof name, "m/data/%zu", i);
        zip_add(&z, name, at, bytes);
        at += bytes;
    }
    zip_end(&z);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(z.file.p, 1, z.file.n, f) != z.file.n || fclose(f) != 0)
        abort();
    zip_done(&z);
    bytes_done(&pickle);
    free(all);
}
