/* index_fuzz.c: any bytes as the model.safetensors.index.json of a folder that holds two good
 * files, a link out of it and a file beside it.
 *
 * What opens must be made of the two files alone and hold what they hold; what is refused must say
 * why, and leave nothing open. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/formats/hf_index.h"
#include "tests/fuzz/touch.h"
#include "tests/support/seeded.h"

enum { PATH_BYTES = 256 };

static char root[] = "/tmp/slate-fuzz-XXXXXX", folder[64];
static bool is_set_up;

/* Three of the one file, one of the other, and one outside. */
static const char *const names[] = {"w", "b", "model.norm.weight", "model.embeddings.weight",
                                    "secret"};
enum { SECRET = 4 };

static void write_file(const char *path, size_t from, size_t n)
{
    struct seeded s = {.seed = 1};
    for (size_t i = from; i < from + n; i++)
        seeded_add(&s, SL_DTYPE_F32, 1, (size_t[]){4}, 0, 1, names[i]);
    seeded_write(&s, path);
    seeded_done(&s);
}

static void join(char ret[PATH_BYTES], const char *dir, const char *file)
{
    (void)snprintf(ret, PATH_BYTES, "%s/%s", dir, file);
}

static void tear_down(void)
{
    static const char *const files[] = {"m/a.safetensors", "m/b.safetensors", "m/l.safetensors",
                                        "c.safetensors"};
    char path[PATH_BYTES];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        join(path, root, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
    (void)rmdir(root);
}

static void set_up(void)
{
    char path[PATH_BYTES];
    MUST(mkdtemp(root));
    (void)snprintf(folder, sizeof folder, "%s/m", root);
    MUST(mkdir(folder, 0700) == 0);
    MUST(atexit(tear_down) == 0);
    join(path, folder, "a.safetensors");
    write_file(path, 0, 3);
    join(path, folder, "b.safetensors");
    write_file(path, 3, 1);
    join(path, root, "c.safetensors"); /* good, and not to be had */
    write_file(path, SECRET, 1);
    join(path, folder, "l.safetensors");
    MUST(symlink("../c.safetensors", path) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_error err = {0};
    struct sl_tensors *t = NULL;
    if (!is_set_up)
        set_up();
    is_set_up = true;
    enum sl_code c = sl_hf_index_open(&t, folder, (const char *)data, size, "m/index", &err);
    MUST((c == SL_OK) == (t != NULL));
    if (c) {
        MUST(err.code == c && err.message[0] && memchr(err.message, '\0', sizeof err.message));
        MUST(sl_utf8_valid(err.message, strlen(err.message)));
        return 0;
    }
    MUST(t->n == 1 || t->n == 3 || t->n == 4); /* b, a, both */
    for (size_t i = 0; i < t->n; i++) {
        size_t k = 0;
        while (k < SECRET && strcmp(names[k], t->v[i].name) != 0)
            k++;
        MUST(k < SECRET && t->v[i].n_elements == 4);
    }
    sl_tensors_close(t);
    return 0;
}
