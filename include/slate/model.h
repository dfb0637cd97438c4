/* model.h: a recurrent language model, loaded from a file or from the binary itself.
 *
 * A model does not change after it was opened: every function but open and close may be called
 * from any thread. The forward pass is engine.h's business; what is here is loading and facts. */
#ifndef SLATE_MODEL_H
#define SLATE_MODEL_H

#include "slate/err.h"

struct sl_model;

struct sl_model_options {
    const char *path;      /* a .pth or .safetensors file, or a directory with config.json and
                              model.safetensors, its index, or pytorch_model.bin; NULL: the embedded
                              default model */
    enum sl_dtype weights; /* F32, BF16, F16, Q8 or Q4: how matrices are kept, small ones excepted
                              from Q8 and Q4; NONE: as the file has them */
    const char *kernels;   /* "ref", "avx2", "neon", …; NULL: the best this machine can run */
    bool fast;             /* prompts may be read in another form of the rule's recurrence than
                              token by token: equal within rounding only, no longer in bits */
    const char *prefill_mode; /* "recurrent"; with fast also "chunkwise", "parallel"; NULL:
                              recurrent, with fast whichever measures fastest */
    const char *rule;         /* what the file leaves open, "name=value,…", where its rule leaves
                                 anything (an error says what); NULL: the defaults */
};

struct sl_model_info {
    const char *arch; /* "rwkv7" */
    const char *name; /* the file's name without folder and extension, or "slate-tiny" */
    const char *kernels;
    const char *prefill_mode; /* as it was chosen */
    size_t n_layers;
    size_t d_model;
    size_t n_heads;
    size_t head_size;
    size_t d_ffn;
    size_t vocab_size;
    size_t max_tokens;     /* that a session can have consumed: the length of the model's
                              position tables; 0: there is no end */
    enum sl_dtype weights; /* as they are kept */
    char weights_name[24]; /* that; "BF16>F32" where a conversion had narrowed them before */
    uint64_t n_params;     /* elements of the file's tensors that the model uses */
    size_t n_unused;       /* tensors of the file that it does not use */
    size_t state_bytes;    /* one session's state: a slot of the slab */
    size_t weight_bytes;   /* of the packed matrices and what else was copied */
    unsigned char fingerprint[16]; /* XXH3-128 over the source's config and weights; of a file that
                                      was converted, and not changed since, its source's */
};

/* Reads, checks and packs a model. The caller closes *ret, after every engine that uses it.
 * Errors: FILE_NOT_FOUND, IO, FILE_TRUNCATED, FILE_CORRUPT, FILE_UNSUPPORTED; MODEL_UNSUPPORTED
 * (names what the file holds instead); MODEL_INVALID (names the tensor: absent, wrong shape or
 * type, not finite; or the setting: absurd, contradicted); INVALID_VALUE (an option); NO_MEMORY. */
SL_NODISCARD enum sl_code sl_model_open(struct sl_model **ret, const struct sl_model_options *opt,
                                        struct sl_error *err);

void sl_model_close(struct sl_model *m); /* NULL is fine */

const struct sl_model_info *sl_model_info(const struct sl_model *m); /* lives as long as m */

/* The tokenizer that the model's own file holds (GGUF, or converted), which the caller closes; *ret
 * NULL where it holds none. Errors: FILE_CORRUPT, FILE_UNSUPPORTED (names the kind, or what of it
 * is not known here), TOO_LARGE, NO_MEMORY. */
struct sl_tokenizer;
SL_NODISCARD enum sl_code sl_model_tokenizer(struct sl_tokenizer **ret, const struct sl_model *m,
                                             struct sl_error *err);

/* The chat template that its file holds, a text in Jinja's language, or, of a converted file, a
 * name of proto/chat.h; as long as m; NULL: none. */
const char *sl_model_chat_template(const struct sl_model *m);

#endif
