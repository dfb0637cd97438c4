/* load.h: how mixers and blocks say which tensors they are made of. Private to libslate.
 *
 * Loading has two halves. First everything is *declared*: each call looks a tensor up, checks its
 * shape and type, and notes where its packed copy will be. Then sl_load_finish() allocates one
 * piece of memory for all, and packs, checks for values that are not finite, and takes the
 * fingerprint, with some threads. Nothing is packed before everything is known to fit.
 *
 * The first error sticks: after it every call does nothing (and gives zeros), so that a mixer's
 * load is a plain list. Whoever calls it asks sl_load_ok() at the end.
 *
 * Pointers that are filled in (`ret`) must stay where they are until sl_load_finish(); only then do
 * they hold anything. */
#ifndef SLATE_ENGINE_LOAD_H
#define SLATE_ENGINE_LOAD_H

#include "engine/formats/tensors.h"
#include "engine/forward.h"
#include "engine/pass.h"
#include "engine/recur.h"

/* Limits on what a file may ask for. */
enum {
    SL_LAYERS_MAX = 1024,
    SL_D_MODEL_MAX = 65536,
    SL_D_FFN_MAX = 1 << 20,
    SL_HEADS_MAX = 65536,
    SL_HEAD_SIZE_MAX = 4096,
    SL_RANK_MAX = 65536, /* of a low-rank pair */
    SL_TAPS_MAX = 64,    /* of a short convolution */
    SL_VOCAB_MAX = 1 << 24,
    SL_POSITIONS_MAX = 1 << 24
};

/* What mixer, block and ends must agree on. */
struct sl_config {
    size_t n_layers, d_model, n_heads, head_size, d_ffn, vocab_size;
    float norm_eps;    /* of the block's norms; 0: the block's own constant */
    bool tied;         /* the head is the embedding */
    size_t max_tokens; /* positions that the model has; 0: it has no end */
    bool bare;         /* the block's norms have no biases */
    bool no_norm_in;   /* there is no norm on the embedding */
};

/* A name that a loader asks for, and the one that a family of files has instead. One '*' stands for
 * the layer's number, in both or in neither. */
struct sl_rename {
    const char *asked, *file;
    bool transposed; /* a matrix: its last two axes are the other way round */
};

/* Rows of the embedding, in the file's own type and memory. */
struct sl_embedding {
    const unsigned char *rows;
    enum sl_dtype type;       /* NONE where block is not */
    enum sl_block_type block; /* whole ones in a row */
};

/* Something that changes what a model computes and that its file does not say. */
struct sl_choice {
    const char *name;      /* "kernel" */
    const char *what;      /* for people */
    const char *values[4]; /* the first one is the default; the rest up to NULL */
};

enum { SL_CHOICES_MAX = 4 }; /* of a rule */

struct sl_load_job;
struct sl_load_view;

struct sl_load {
    const struct sl_tensors *tensors;
    const char *name;              /* of the file, for messages */
    const struct sl_rename *names; /* the rule's, or what its config() has found the file to need;
                                      ends with a zeroed one; NULL: names are the file's own */
    enum sl_dtype weights;
    struct sl_error *err;
    enum sl_code code; /* the first error */
    struct sl_config config;
    const struct sl_choice *choices;      /* the rule's; NULL: none */
    unsigned char chosen[SL_CHOICES_MAX]; /* indices of values */

    struct sl_load_job *jobs;
    size_t n_jobs, max_jobs;
    size_t arena_bytes;
    struct sl_state_tensor *state;
    size_t n_state, max_state;
    size_t state_bytes;
    size_t scratch_floats, carry_floats, part_floats; /* per row, per row, per part */
    size_t input_groups;                              /* per row, of what quantised matrices read */
    struct sl_recur_shape recurrence;                 /* of its layers; see recur.h */
    unsigned char *marks;                             /* of each tensor: what is done with it */
    struct sl_load_view *views;                       /* parts of tensors that stand for tensors */
    bool quiet; /* settings that are asked for are not written down: see below */
    char *said; /* the settings that were asked for, for the fingerprint */
    size_t n_said, max_said;
};

enum sl_layout {
    SL_OUT_IN, /* [n_out, n_in], as nn.Linear keeps its weight */
    SL_IN_OUT  /* [n_in, n_out], for a model that computes x @ w */
};

static inline bool sl_load_ok(const struct sl_load *l)
{
    return l->code == SL_OK;
}

/* The first error, when there is none yet. */
void sl_load_fail(struct sl_load *l, enum sl_code code, const char *fmt, ...) SL_PRINTF(3, 4);

/* Names are printf formats from here on. Axes of size 1 do not count in shapes: [1, 1, 64] is as
 * good as [64]. */

/* Whether the file has the tensor. No error when not. */
bool sl_load_has(const struct sl_load *l, const char *fmt, ...) SL_PRINTF(2, 3);

/* Reads "name=value,name=value" (NULL: nothing chosen) for l->choices. An error (INVALID_VALUE)
 * where there is no such name or value; it says which there are. */
void sl_load_choose(struct sl_load *l, const char *title, const char *text);
/* The index of the value that was chosen for one of l->choices. */
size_t sl_load_chosen(const struct sl_load *l, const char *name);

/* The number of a tensor's elements; 1 … max, an error otherwise, and then 1. */
size_t sl_load_elements(struct sl_load *l, size_t max, const char *fmt, ...) SL_PRINTF(3, 4);

/* The size of a tensor's axis, counted from its last (0); 1 … max, an error otherwise, and then 1.
 */
size_t sl_load_axis(struct sl_load *l, size_t from_last, size_t max, const char *fmt, ...)
    SL_PRINTF(4, 5);

/* The number of layers that names `prefix`N.… speak of (prefix is "blocks."); an error where one
 * between is missing, or there is none. */
size_t sl_load_count_layers(struct sl_load *l, const char *prefix);

/* A tensor that files may have and that changes nothing: no error that it is not used. */
void sl_load_ignore(struct sl_load *l, const char *fmt, ...) SL_PRINTF(2, 3);

/* Tensors that a file has twice, as `prefix`X and as `of`X: the first ones must be of the type, the
 * shape and the values of the second ones, an error otherwise, and are used by nobody then. */
void sl_load_twins(struct sl_load *l, const char *prefix, const char *of);

/* F32 values: a vector of n, a grid of rows × cols, row-major, or so many grids. */
void sl_load_vector(struct sl_load *l, const float **ret, size_t n, const char *fmt, ...)
    SL_PRINTF(4, 5);
void sl_load_grid(struct sl_load *l, const float **ret, size_t rows, size_t cols, const char *fmt,
                  ...) SL_PRINTF(5, 6);
void sl_load_grids(struct sl_load *l, const float **ret, size_t count, size_t rows, size_t cols,
                   const char *fmt, ...) SL_PRINTF(6, 7);
/* The same grid, kept as cols × rows. */
void sl_load_columns(struct sl_load *l, const float **ret, size_t rows, size_t cols,
                     const char *fmt, ...) SL_PRINTF(5, 6);
/* One row of a grid, as a vector of cols. */
void sl_load_row(struct sl_load *l, const float **ret, size_t row, size_t rows, size_t cols,
                 const char *fmt, ...) SL_PRINTF(6, 7);

/* f turns the n values of the vector or grid that was declared last into what the model computes
 * with, in place, once they are F32. What comes out must be finite too. Pure: any thread. */
void sl_load_map(struct sl_load *l, void (*f)(float *v, size_t n));
void sl_map_one_minus(float *v, size_t n); /* 1 - v */

/* A packed matrix, in the type that was asked for or the tensor's own; F32 for one of blocks. */
void sl_load_matrix(struct sl_load *l, struct sl_matrix *ret, size_t n_out, size_t n_in,
                    enum sl_layout layout, const char *fmt, ...) SL_PRINTF(6, 7);
/* The same for a matrix that is small beside the layer's others (of a low-rank pair, one number a
 * head), or that a mixer multiplies by itself: in the tensor's own type where Q8 or Q4 was asked
 * for. What 8 bits would save there is little, and what is made of its products is sensitive:
 * decays, rates. */
void sl_load_small(struct sl_load *l, struct sl_matrix *ret, size_t n_out, size_t n_in,
                   enum sl_layout layout, const char *fmt, ...) SL_PRINTF(6, 7);
/* The head, [n_out, n_in]: with Q5 codes where Q4 was asked for, for an error of a logit is an
 * error of the answer, which no later layer mends. */
void sl_load_head(struct sl_load *l, struct sl_matrix *ret, size_t n_out, size_t n_in,
                  const char *fmt, ...) SL_PRINTF(5, 6);
/* n_out of the n_stacked outputs of a tensor [n_stacked, n_in], from `first` on. */
void sl_load_stacked(struct sl_load *l, struct sl_matrix *ret, size_t first, size_t n_out,
                     size_t n_stacked, size_t n_in, const char *fmt, ...) SL_PRINTF(7, 8);
/* Matrix i of the `count` that a tensor [count, …, …] holds; small. */
void sl_load_slice(struct sl_load *l, struct sl_matrix *ret, size_t i, size_t count, size_t n_out,
                   size_t n_in, enum sl_layout layout, const char *fmt, ...) SL_PRINTF(8, 9);

void sl_load_embedding(struct sl_load *l, struct sl_embedding *ret, size_t vocab_size,
                       size_t d_model, const char *fmt, ...) SL_PRINTF(5, 6);

/* Declares a tensor of the state and returns its offset. In order of the layers. */
size_t sl_load_state(struct sl_load *l, enum sl_dtype dtype, unsigned rank, const size_t *shape,
                     const char *fmt, ...) SL_PRINTF(5, 6);

/* --- settings: what a config.json says ---
 *
 * Each call names a key, what it means when it is absent (the default of the class that wrote the
 * file), and what it may be. What was asked for, and what it came to, enters the fingerprint, but
 * for sizes that may be null and for what is asked while l->quiet is set: what those decide must
 * show in the tensors' shapes. A file without settings is an error that says so. */

/* Whether the key is there and not null. */
bool sl_load_set(const struct sl_load *l, const char *key);

/* A whole number, 1 … max. `absent` 0: absent and null are good and give 0. */
size_t sl_load_size(struct sl_load *l, const char *key, size_t absent, size_t max);

/* A number, lo … hi. `absent` NaN: absent and null are good and give NaN. */
double sl_load_number(struct sl_load *l, const char *key, double absent, double lo, double hi);

bool sl_load_flag(struct sl_load *l, const char *key, bool absent);

/* The index of a word in `words`, which ends with NULL. absent SIZE_MAX: absent and null are good
 * and give SIZE_MAX. Another word is MODEL_UNSUPPORTED. */
size_t sl_load_choice(struct sl_load *l, const char *key, size_t absent, const char *const *words);

/* A feature that is not served here: an error when the key is there and neither null, false nor an
 * empty list. */
void sl_load_refuse(struct sl_load *l, const char *key, const char *what);

/* The first error, when there is none yet: "retnet/config.json: " and then the text. */
void sl_load_fail_setting(struct sl_load *l, enum sl_code code, const char *fmt, ...)
    SL_PRINTF(3, 4);

/* An error when the file has a tensor that was neither declared nor ignored. */
void sl_load_refuse_rest(struct sl_load *l);

/* What a sublayer's forward will want: floats per row of scratch and per part. The largest wish of
 * all sublayers is kept. */
void sl_load_scratch(struct sl_load *l, size_t row_floats, size_t part_floats);
/* Floats per row that layers hand on within a step; likewise. */
void sl_load_carry(struct sl_load *l, size_t row_floats);

/* The recurrence of the rule's layers has all the forms of forms.h. */
void sl_load_recurrence(struct sl_load *l, const struct sl_recur_shape *shape);

/* What the second half gives. */
struct sl_loaded {
    void *arena; /* sl_free() */
    size_t arena_bytes;
    uint64_t n_params;
    enum sl_dtype weights; /* as asked for, else the type that most elements of matrices have; Q5
                              counts as Q4, whose head it is */
    size_t n_unused;       /* tensors of the file */
    unsigned char fingerprint[16];
};

/* `arch` goes into the fingerprint. Fills every `ret` above in. */
SL_NODISCARD enum sl_code sl_load_finish(struct sl_load *l, const char *arch,
                                         struct sl_loaded *ret);

/* What sl_load_finish() finds wrong, and the fingerprint that it would give, without packing
 * anything. */
SL_NODISCARD enum sl_code sl_load_measure(struct sl_load *l, const char *arch,
                                          unsigned char ret[16]);

/* Frees what declaring took, but not l->state, which the caller takes over. */
void sl_load_done(struct sl_load *l);

#endif
