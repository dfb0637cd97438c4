/* hf_index.c: see hf_index.h.
 *
 * "weight_map" maps each tensor to a file. The files are opened in the order of their names, so
 * that what is wrong is the same at every try.
 *
 * An index comes with a download, and must not make a server read other files of the machine: a
 * name stays in the folder, and so does what it links to. One layout has links out of the folder
 * and is everywhere: Hugging Face's cache, whose snapshots/REVISION/ is a folder of links into
 * blobs/ beside snapshots/. */
#include "engine/formats/hf_index.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/formats/jansson_parse.h"

enum { FILES_MAX = 1024, PATH_BYTES = 4096, FILE_NAME_MAX = 255 };

struct index {
    const char *folder, *name; /* name: of the index, for messages */
    const json_t *map;         /* "weight_map" */
    const char **files;        /* the different ones, sorted */
    size_t n_files;
    struct sl_tensors **parts; /* beside them */
    struct sl_error *err;
};

#define INDEX_FAIL(x, code, ...) index_fail((x), SL_E_##code, __VA_ARGS__)

static enum sl_code index_fail(const struct index *x, enum sl_code code, const char *fmt, ...)
    SL_PRINTF(3, 4);

static enum sl_code index_fail(const struct index *x, enum sl_code code, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return sl_fail(x->err, code, "%s: %s", x->name, what);
}

static enum sl_code check_file(const struct index *x, const char *tensor, const json_t *v)
{
    const char *file = json_string_value(v);
    if (!file)
        return INDEX_FAIL(x, FILE_CORRUPT, "the file of tensor \"%.160s\" is no string", tensor);
    size_t n = json_string_length(v);
    if (n == 0 || n > FILE_NAME_MAX || strlen(file) != n || file[0] == '.' || strchr(file, '/'))
        return INDEX_FAIL(
            x, FILE_CORRUPT,
            "the file of tensor \"%.160s\" is \"%.80s\"; it must be the name of a file "
            "beside the index",
            tensor, file);
    return SL_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different files of the map. */
static enum sl_code list_files(struct index *x)
{
    const char *tensor;
    json_t *v;
    size_t n = 0;
    x->files = sl_calloc(json_object_size(x->map) + 1, sizeof *x->files);
    if (!x->files)
        return INDEX_FAIL(x, NO_MEMORY, "not enough memory for its list of files");
    json_object_foreach((json_t *)(uintptr_t)x->map, tensor, v)
    {
        enum sl_code c = check_file(x, tensor, v);
        if (c)
            return c;
        x->files[n++] = json_string_value(v);
    }
    if (n == 0)
        return INDEX_FAIL(x, FILE_CORRUPT, "\"weight_map\" names no tensor");
    qsort(x->files, n, sizeof *x->files, by_text);
    for (size_t i = 0; i < n; i++)
        if (x->n_files == 0 || strcmp(x->files[i], x->files[x->n_files - 1]) != 0)
            x->files[x->n_files++] = x->files[i];
    if (x->n_files > FILES_MAX)
        return INDEX_FAIL(x, TOO_LARGE, "it names %zu files; at most %d", x->n_files, FILES_MAX);
    return SL_OK;
}

static bool lies_in(const char *path, const char *folder, size_t n)
{
    return strncmp(path, folder, n) == 0 && path[n] == '/';
}

/* The length of what is left of a path without its last `parts` parts; 0: it has no more. */
static size_t above(const char *path, size_t parts)
{
    size_t n = strlen(path);
    for (; parts > 0 && n > 0; parts--)
        while (n > 0 && path[--n] != '/')
            ;
    return n;
}

/* Where links lead is in the folder, or in the blobs/ of a cache whose snapshots/ the folder is in.
 * A path that leads nowhere is for its opening to complain of. */
static enum sl_code check_link(const struct index *x, const char *file, const char *path)
{
    static const char snapshots[] = "/snapshots", blobs[] = "/blobs";
    char folder[PATH_BYTES], target[PATH_BYTES], cache[PATH_BYTES + sizeof blobs];
    if (!realpath(x->folder, folder) || !realpath(path, target))
        return SL_OK;
    size_t n = strlen(folder) > 1 ? strlen(folder) : 0, parent = above(folder, 1),
           root = above(folder, 2);
    if (lies_in(target, folder, n))
        return SL_OK;
    (void)snprintf(cache, sizeof cache, "%.*s%s", (int)root, folder, blobs);
    if (parent - root == sizeof snapshots - 1 &&
        memcmp(folder + root, snapshots, parent - root) == 0 &&
        lies_in(target, cache, strlen(cache)))
        return SL_OK;
    return INDEX_FAIL(x, FILE_CORRUPT,
                      "\"%.80s\" is a link to %.160s, outside of the folder of the index", file,
                      target);
}

static enum sl_code open_files(struct index *x)
{
    char path[PATH_BYTES];
    x->parts = sl_calloc(x->n_files, sizeof(struct sl_tensors *));
    if (!x->parts)
        return INDEX_FAIL(x, NO_MEMORY, "not enough memory for its list of files");
    for (size_t i = 0; i < x->n_files; i++) {
        int n = snprintf(path, sizeof path, "%s/%s", x->folder, x->files[i]);
        if (n < 0 || (size_t)n >= sizeof path)
            return INDEX_FAIL(x, TOO_LARGE, "a path of at most %d bytes is possible",
                              PATH_BYTES - 1);
        struct stat st;
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            return INDEX_FAIL(x, FILE_CORRUPT, "\"%.80s\" is a folder", x->files[i]);
        enum sl_code c = check_link(x, x->files[i], path);
        if (!c)
            c = sl_tensors_open(&x->parts[i], path, x->err);
        if (c)
            return c;
    }
    return SL_OK;
}

/* What the files hold is what the map says. */
static enum sl_code compare(const struct index *x)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_files; i++)
        for (size_t k = 0; k < x->parts[i]->n; k++, n++) {
            const char *tensor = x->parts[i]->v[k].name;
            const char *file = json_string_value(json_object_get(x->map, tensor));
            if (!file)
                return INDEX_FAIL(x, FILE_CORRUPT,
                                  "%.80s holds a tensor that it does not name: \"%.160s\"",
                                  x->files[i], tensor);
            if (strcmp(file, x->files[i]) != 0)
                return INDEX_FAIL(x, FILE_CORRUPT,
                                  "tensor \"%.160s\" is said to be in %.80s, and is in %.80s",
                                  tensor, file, x->files[i]);
        }
    if (n == json_object_size(x->map))
        return SL_OK;
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)x->map, tensor, v)
    {
        size_t i = 0;
        while (strcmp(x->files[i], json_string_value(v)) != 0)
            i++;
        if (!sl_tensors_find(x->parts[i], tensor))
            return INDEX_FAIL(x, FILE_CORRUPT, "%.80s does not hold tensor \"%.160s\"", x->files[i],
                              tensor);
    }
    return SL_OK;
}

static enum sl_code open_all(struct index *x, const json_t *doc, struct sl_tensors **ret)
{
    x->map = json_object_get(doc, "weight_map");
    if (!json_is_object(x->map))
        return INDEX_FAIL(x, FILE_CORRUPT, "it has no object \"weight_map\"");
    enum sl_code c = list_files(x);
    if (!c)
        c = open_files(x);
    if (!c)
        c = compare(x);
    return c ? c : sl_tensors_join(ret, x->parts, x->n_files, x->name, x->err);
}

enum sl_code sl_hf_index_open(struct sl_tensors **ret, const char *folder, const char *text,
                              size_t n, const char *index_name, struct sl_error *err)
{
    struct index x = {.folder = folder, .name = index_name, .err = err};
    json_error_t e;
    enum sl_code c;
    json_t *doc = sl_jansson_parse(text, n, 0, &e);
    if (!doc && !*e.text)
        c = INDEX_FAIL(&x, NO_MEMORY, "not enough memory to read it");
    else if (!json_is_object(doc))
        c = INDEX_FAIL(&x, FILE_CORRUPT, "is not a JSON object: %s",
                       doc ? "another value" : e.text);
    else
        c = open_all(&x, doc, ret);
    for (size_t i = 0; c && x.parts && i < x.n_files; i++)
        sl_tensors_close(x.parts[i]);
    sl_free(x.parts);
    sl_free(x.files);
    json_decref(doc);
    return c;
}
