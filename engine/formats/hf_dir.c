/* hf_dir.c: see hf_dir.h. Weights are looked for by the names that the libraries write, a row each,
 * the first one that is there. */
#include "engine/formats/hf_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/formats/hf_index.h"

enum { PATH_BYTES = 4096, INDEX_BYTES_MAX = 16 << 20 };

static const struct weights {
    const char *file;
    bool is_index; /* of several files: hf_index.h */
} weights[] = {
    {"model.safetensors", false},
    {"model.safetensors.index.json", true},
    {"pytorch_model.bin", false}, /* a .pth file under another name */
    {"pytorch_model.bin.index.json", true},
};

static enum sl_code join(char ret[PATH_BYTES], const char *folder, const char *file,
                         struct sl_error *err)
{
    int n = snprintf(ret, PATH_BYTES, "%s/%s", folder, file);
    if (n < 0 || n >= PATH_BYTES)
        return sl_fail(err, SL_E_TOO_LARGE, "%.160s…: a path of at most %d bytes is possible",
                       folder, PATH_BYTES - 1);
    return SL_OK;
}

/* The weights that are there, and their path. */
static enum sl_code find_weights(char ret[PATH_BYTES], const struct weights **ret_row,
                                 const char *folder, struct sl_error *err)
{
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        enum sl_code c = join(ret, folder, weights[i].file, err);
        if (c)
            return c;
        struct stat st;
        if (stat(ret, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        *ret_row = &weights[i];
        return SL_OK;
    }
    return sl_fail(
        err, SL_E_FILE_UNSUPPORTED,
        "%.200s: is a directory without model.safetensors; a .safetensors, .pth or .gguf "
        "file is needed, or a directory with config.json and model.safetensors, pytorch_model.bin, "
        "or the index of several such files",
        folder);
}

static enum sl_code read_error(const char *path, struct sl_error *err)
{
    int e = errno;
    char text[128];
    return sl_fail(err, e == ENOENT ? SL_E_FILE_NOT_FOUND : SL_E_IO, "%.300s: cannot be read: %s",
                   path, strerror_r(e, text, sizeof text));
}

/* All of a file of at most `max` bytes; one more shows that it is longer. */
static enum sl_code read_text(const char *path, size_t max, char **ret, size_t *ret_n,
                              struct sl_error *err)
{
    enum sl_code c = SL_OK;
    char *text = NULL;
    size_t n = 0;
    ssize_t got = 1;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return read_error(path, err);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        c = sl_fail(err, SL_E_FILE_UNSUPPORTED, "%.300s: is not a regular file", path);
        goto out;
    }
    text = sl_malloc(max + 1);
    if (!text) {
        c = sl_fail(err, SL_E_NO_MEMORY, "%.300s: not enough memory to read it", path);
        goto out;
    }
    while (n < max + 1 && got > 0) {
        got = read(fd, text + n, max + 1 - n);
        n += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        c = read_error(path, err);
out:
    close(fd);
    if (c) {
        sl_free(text);
        return c;
    }
    *ret = text;
    *ret_n = n;
    return SL_OK;
}

/* "models/retnet/" and "config.json" -> "retnet/config.json" */
static void short_path(char dst[SL_HF_NAME_BYTES], const char *folder, const char *file)
{
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    if (end - begin > SL_HF_NAME_BYTES / 2) /* of a long name its beginning */
        end = begin + SL_HF_NAME_BYTES / 2;
    (void)snprintf(dst, SL_HF_NAME_BYTES, "%.*s/%s", (int)(end - begin), folder + begin, file);
}

static enum sl_code read_settings(struct sl_settings **ret, const char *folder, const char *file,
                                  struct sl_error *err)
{
    char path[PATH_BYTES], name[SL_HF_NAME_BYTES];
    char *text = NULL;
    size_t n = 0;
    enum sl_code c = join(path, folder, file, err);
    if (!c)
        c = read_text(path, SL_SETTINGS_BYTES_MAX, &text, &n, err);
    if (c)
        return c;
    short_path(name, folder, file);
    c = sl_settings_read(ret, text, n, name, err);
    sl_free(text);
    return c;
}

static bool is_there(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

enum sl_code sl_hf_dir_text(char **ret, size_t *ret_n, const char *folder, const char *file,
                            size_t max, struct sl_error *err)
{
    char path[PATH_BYTES];
    *ret = NULL;
    enum sl_code c = join(path, folder, file, err);
    if (c || !is_there(path))
        return c;
    c = read_text(path, max, ret, ret_n, err);
    if (!c && *ret_n > max) {
        sl_free(*ret);
        *ret = NULL;
        c = sl_fail(err, SL_E_TOO_LARGE, "%.300s: has more than %zu bytes", path, max);
    }
    if (!c)
        (*ret)[*ret_n] = '\0'; /* read_text() had room for one more */
    return c;
}

enum sl_code sl_hf_dir_settings(struct sl_settings **ret, const char *folder, const char *file,
                                struct sl_error *err)
{
    char path[PATH_BYTES];
    *ret = NULL;
    enum sl_code c = join(path, folder, file, err);
    return c || !is_there(path) ? c : read_settings(ret, folder, file, err);
}

static enum sl_code open_index(struct sl_tensors **ret, const char *folder, const char *path,
                               const char *name, struct sl_error *err)
{
    char *text = NULL;
    size_t n = 0;
    enum sl_code c = read_text(path, INDEX_BYTES_MAX, &text, &n, err);
    if (!c && n > INDEX_BYTES_MAX)
        c = sl_fail(err, SL_E_TOO_LARGE, "%s: has more than %d bytes", name, INDEX_BYTES_MAX);
    if (!c)
        c = sl_hf_index_open(ret, folder, text, n, name, err);
    sl_free(text);
    return c;
}

enum sl_code sl_hf_dir_open(struct sl_tensors **ret, struct sl_settings **ret_settings,
                            char ret_name[SL_HF_NAME_BYTES], const char *path, struct sl_error *err)
{
    char full[PATH_BYTES];
    const struct weights *row = NULL;
    struct sl_settings *settings = NULL;
    enum sl_code c = find_weights(full, &row, path, err);
    if (!c)
        c = read_settings(&settings, path, "config.json", err);
    if (c)
        return c;
    short_path(ret_name, path, row->file);
    c = row->is_index ? open_index(ret, path, full, ret_name, err)
                      : sl_tensors_open(ret, full, err);
    if (c) {
        sl_settings_close(settings);
        return c;
    }
    *ret_settings = settings;
    return SL_OK;
}
