/* tensors.h: a model file as named tensors, whatever its container. Private to libslate.
 *
 * The file is mapped, and a tensor's data points into the mapping where the layout allows (always,
 * for .safetensors and stored .pth records). Nothing in a file is executed; every number in it is
 * checked against the file's size before it is used. After open nothing changes: any thread. */
#ifndef SLATE_FORMATS_TENSORS_H
#define SLATE_FORMATS_TENSORS_H

#include "engine/formats/ggml_blocks.h"
#include "engine/formats/settings.h"

enum { SL_TENSOR_RANK_MAX = 8 };

struct sl_vocabulary;

struct sl_tensor {
    const char *name;   /* UTF-8, unique in the file */
    const char *origin; /* what the file calls it, where the reader gave it another name; or NULL */
    enum sl_dtype dtype;
    /* Not SL_BLOCK_NONE: the elements lie in blocks of weights, dtype is SL_DTYPE_NONE, and strides
     * and offsets count elements still; the axis of stride 1 is a whole number of blocks. */
    enum sl_block_type block;
    int exponent;  /* values are the elements times 2^exponent */
    unsigned rank; /* 0: a scalar */
    size_t shape[SL_TENSOR_RANK_MAX];
    ptrdiff_t stride[SL_TENSOR_RANK_MAX]; /* in elements; torch tensors may be views */
    const unsigned char *data;            /* the element at index 0, 0, …; little-endian; may be
                                             unaligned; NULL when n_elements is 0 */
    /* dtype Q8, Q5 or Q4, of two axes: rows of codes at data (sl_code_bytes() each, kernels.h), and
     * of scales here: F16, one for 32 elements of a row, unaligned. Else NULL. */
    const unsigned char *scales;
    size_t n_elements;
    bool contiguous; /* row-major without gaps */
};

/* The element type: "F32", "Q4_K", …. Static storage. */
const char *sl_tensor_type(const struct sl_tensor *t);

/* What its elements take, densely packed; without scales, which take sl_tensor_scale_bytes(). */
size_t sl_tensor_bytes(const struct sl_tensor *t);
size_t sl_tensor_scale_bytes(const struct sl_tensor *t);

/* Where the element lies that is `at` from the first one, in elements of the data; with blocks, it
 * is one that begins a block, with scales one that begins a row. */
const unsigned char *sl_tensor_at(const struct sl_tensor *t, ptrdiff_t at);

/* y[n]: the values of n elements from there on, side by side in the data; exact, but that F64 is
 * rounded. Of blocks that can be read, whole ones. */
void sl_tensor_values(const struct sl_tensor *t, ptrdiff_t at, size_t n, float *y);

/* A matrix (axes of size 1 do not count) that is another one, row-major without gaps, with its axes
 * exchanged. */
bool sl_tensor_turned(const struct sl_tensor *t);

struct sl_tensor_meta { /* strings that the file says of itself (safetensors' __metadata__) */
    const char *key;
    const char *value;
};

struct sl_tensors {
    const char *container; /* "safetensors", "pth (zip)", "pth (legacy)", "gguf" */
    struct sl_tensor *v;   /* sorted by name */
    size_t n;
    struct sl_tensor_meta *meta;
    size_t n_meta;
    size_t file_bytes;
    const char *name;                   /* of the file, where it lies in a directory that was
                                           opened: "retnet/model.safetensors"; else NULL */
    const struct sl_settings *settings; /* what else the directory (or a GGUF or converted file)
                                           says of the model, or NULL */
    const struct sl_vocabulary
        *vocabulary;      /* vocabulary.h; NULL: the file says nothing of tokens */
    const char *refused;  /* why no model can be made of it, where the reader knows
                             that already; or NULL. Names are the file's own then */
    enum sl_code refusal; /* MODEL_UNSUPPORTED or MODEL_INVALID, likewise */
    void *priv;
};

/* Opens a file and says what it holds; the container is told by its first bytes. A directory in
 * Hugging Face's layout is opened as its weights with its settings. The caller closes *ret. Errors:
 * FILE_NOT_FOUND, IO, FILE_TRUNCATED, FILE_CORRUPT, FILE_UNSUPPORTED, TOO_LARGE, NO_MEMORY; the
 * message names the file, the place, what was found and what is allowed. */
SL_NODISCARD enum sl_code sl_tensors_open(struct sl_tensors **ret, const char *path,
                                          struct sl_error *err);

/* The same on bytes in memory, which must outlive *ret; `name` is for messages. */
SL_NODISCARD enum sl_code sl_tensors_open_memory(struct sl_tensors **ret, const void *data,
                                                 size_t n_bytes, const char *name,
                                                 struct sl_error *err);

void sl_tensors_close(struct sl_tensors *t); /* NULL is fine */

/* n lists as one, which owns them from then on (the array stays the caller's); metadata and
 * container are the first one's. `name` is for messages. Errors: NO_MEMORY, TOO_LARGE, FILE_CORRUPT
 * (two have a tensor of one name), FILE_UNSUPPORTED (one says what model it is); then nothing was
 * taken. */
SL_NODISCARD enum sl_code sl_tensors_join(struct sl_tensors **ret, struct sl_tensors *const *parts,
                                          size_t n, const char *name, struct sl_error *err);

/* Settings for tensors that have none yet, as if they lay in one directory; t owns them then.
 * `name` is of the weights' file, cut where it is long. */
void sl_tensors_settle(struct sl_tensors *t, struct sl_settings *settings, const char *name);

const struct sl_tensor *sl_tensors_find(const struct sl_tensors *t, const char *name);

/* The value of a string that the file says of itself, or NULL. */
const char *sl_tensors_meta(const struct sl_tensors *t, const char *key);

/* Whether that file on disk, as stat() tells it, is what the tensors were read from, or a part. */
bool sl_tensors_are_of(const struct sl_tensors *t, uint64_t device, uint64_t inode);

/* The bytes of the file that is mapped; NULL where there is none, or are several. */
const void *sl_tensors_file(const struct sl_tensors *t, size_t *ret_n);

/* A converted file (engine/converted.h) keeps the text of its config.json under this key; it is
 * read as the settings of its tensors. */
#define SL_TENSORS_CONFIG "slate.config"
#define SL_TENSORS_CONVERTED "slate.model"

/* Copies all elements, row-major and densely packed, in the tensor's own type; exponents are left
 * aside. Blocks only where the tensor is contiguous. */
void sl_tensor_copy(const struct sl_tensor *t, void *dst);

/* Gives the mapped pages of a tensor's data, or of n bytes of it, back to the system (they return
 * when touched). */
void sl_tensor_forget(const struct sl_tensors *ts, const struct sl_tensor *t);
void sl_tensors_forget(const struct sl_tensors *ts, const void *data, size_t n);

/* What kind of model these names and shapes are, in words for a message: "RWKV-6", "a Llama-like
 * transformer", "GPT-2", …; "an unknown model" at the last. Static storage. Sets *ret_arch (may be
 * NULL) to the architecture's short name ("rwkv4" … "rwkv7", "performer", …) or to NULL. */
const char *sl_tensors_describe(const struct sl_tensors *t, const char **ret_arch);

#endif
