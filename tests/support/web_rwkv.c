/* web_rwkv.c: see web_rwkv.h. */
#include "tests/support/web_rwkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/formats/tensors.h"
#include "tests/support/must.h"

enum { NAME_BYTES = 96 };

static const char *const renames[][2] = {{"time_faaaa", "time_first"}, {"time_maa", "time_mix"}};

/* Any of these in a name. */
static const char *const turns[] = {"w1", "w2", "a1", "a2", "g1", "g2", "v1", "v2", "time_state"};

static void rename_tensor(char ret[NAME_BYTES], const char *name)
{
    (void)snprintf(ret, NAME_BYTES, "%s", name);
    for (size_t i = 0; i < sizeof renames / sizeof *renames; i++) {
        char *at = strstr(ret, renames[i][0]), rest[NAME_BYTES];
        if (!at)
            continue;
        (void)snprintf(rest, sizeof rest, "%s", at + strlen(renames[i][0]));
        (void)snprintf(at, NAME_BYTES - (size_t)(at - ret), "%s%s", renames[i][1], rest);
    }
}

static bool is_turned(const char *name)
{
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
        if (strstr(name, turns[i]))
            return true;
    return false;
}

/* The elements, with the last two axes exchanged where they are in such a file. */
static void write_elements(FILE *f, const struct sl_tensor *t)
{
    size_t each = sl_dtype_size(t->dtype), n = t->n_elements;
    bool turned = is_turned(t->name);
    size_t cols = turned ? t->shape[t->rank - 1] : 1, rows = turned ? t->shape[t->rank - 2] : 1;
    unsigned char *from = must_have(malloc(n * each)), *to = must_have(malloc(n * each));
    sl_tensor_copy(t, from);
    for (size_t i = 0; i < n; i++) {
        size_t matrix = i / (rows * cols), row = i / cols % rows, col = i % cols;
        memcpy(to + ((matrix * cols + col) * rows + row) * each, from + i * each, each);
    }
    if (fwrite(to, each, n, f) != n)
        abort();
    free(from);
    free(to);
}

void web_rwkv_write(const char *from, const char *to)
{
    struct sl_tensors *t = NULL;
    char *json = NULL, name[NAME_BYTES];
    size_t n_json = 0, at = 0;
    if (sl_tensors_open(&t, from, NULL) != SL_OK)
        abort();
    FILE *f = must_have(open_memstream(&json, &n_json));
    fprintf(f, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < t->n; i++) {
        const struct sl_tensor *v = &t->v[i];
        size_t bytes = v->n_elements * sl_dtype_size(v->dtype);
        rename_tensor(name, v->name);
        fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, sl_dtype_name(v->dtype));
        for (unsigned a = 0; a < v->rank; a++) {
            unsigned other = a + 2 < v->rank ? a : 2 * v->rank - 3 - a; /* of the last two */
            fprintf(f, a ? ",%zu" : "%zu", v->shape[is_turned(v->name) ? other : a]);
        }
        fprintf(f, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    fprintf(f, "}");
    if (fclose(f) != 0)
        abort();
    uint64_t n = n_json;
    f = must_have(fopen(to, "wb"));
    if (fwrite(&n, sizeof n, 1, f) != 1 || fwrite(json, 1, n_json, f) != n_json)
        abort();
    for (size_t i = 0; i < t->n; i++)
        write_elements(f, &t->v[i]);
    if (fclose(f) != 0)
        abort();
    free(json);
    sl_tensors_close(t);
}
