/* converted.h: what `slate convert` writes beside the weights, and how it is read back. Private to
 * libslate.
 *
 * A converted file is a safetensors file with the names, shapes and values of its source. What else
 * a model needs stands in its __metadata__, strings as always there:
 *
 *   format               "pt": what the transformers library asks for
 *   slate.model          "1": the version of this list; a later one is refused
 *   slate.source         the file or folder it was made from, and its container
 *   slate.fingerprint    32 hex digits: the fingerprint of the source
 *   slate.content        likewise: what this file's own tensors, settings and choices give
 *   slate.weights        "F32", "BF16", "F16", "Q8", "Q4": the type that matrices were converted
 *                        to; absent where they are as the source has them
 *   slate.narrowed       "yes" where a matrix has lost something by that, else "no"
 *   slate.config         the text of config.json, where the source has one
 *   slate.rule           "name=value,…": what the source leaves open (sl_model_options.rule)
 *   slate.tokenizer      the tokenizer's kind: "bytes", or what its file is, whose bytes are the
 *                        U8 tensor slate.tokenizer [n]: "rwkv_world", "bpe" (a tokenizer.json), or
 *                        "gguf" (the vocabulary of a GGUF file: gguf_carry.h)
 *   slate.begin_token    the id that a text begins with, or "none"
 *   slate.end_tokens     the ids that end a text, "2,5", or ""
 *   slate.chat_template  a template's name, or its text
 *
 * Tensors whose names end so belong to the tensor before the dot (formats/coded.h):
 *
 *   NAME.q8_scales       F16 [rows, ceil(n / 32)]; NAME is I8 [rows, n] then: weight [r][k] is
 *                        NAME[r][k] · scale[r][k / 32]
 *   NAME.q4_scales       likewise; NAME is U8 [rows, n / 2]: the low four bits of byte i of a row
 *                        are the code of k = 2i, the high ones of 2i + 1, and the weight is
 *                        level[code] · scale[r][k / 32] with the levels -16, -13, -11, -9, -7,
 *                        -5, -3, -1, 0, 2, 4, 6, 8, 10, 12, 15
 *   NAME.q5_scales       likewise; NAME is U8 [rows, n / 8 * 5]: of five bytes the first four hold
 *                        the low four bits of eight codes, as above, and bit i of the fifth is the
 *                        highest of the i-th; the weight is (code - 16) · scale[r][k / 32]
 *   NAME.q8_0_blocks     and .q4_0_blocks, .q4_k_blocks, .q6_k_blocks: U8 [rows, bytes of a row],
 *                        a GGUF file's blocks as they were there (formats/ggml_blocks.h); no NAME
 *
 * Codes and scales are those that `--weights q8` and q4 make of the source. With "Q4" the head is
 * in codes of 5 bits, as there. A matrix that cannot be written so (rows of Q4 of an odd length,
 * of Q5 of one that is no multiple of 8) stands as the source has it, and is quantised when it is
 * loaded.
 *
 * The vocabulary is a tensor and not a string because it has megabytes: metadata is parsed whenever
 * anybody opens the file, and some readers take headers of a few megabytes only.
 *
 * A converted model is its source, under the source's fingerprint: snapshots, stores and journals
 * go on. That is true only as long as the file holds what was written: whoever edits tensors keeps
 * the metadata, usually. So slate.fingerprint counts only where slate.content is what the file
 * really gives; an edited file is another model, with the fingerprint of its own content. A
 * narrowed model differs from its source as `--weights` makes it differ, and says so in the same
 * way: by the weights' type, which snapshots carry and a restore compares. */
#ifndef SLATE_ENGINE_CONVERTED_H
#define SLATE_ENGINE_CONVERTED_H

#include "engine/formats/tensors.h"
#include "slate/tokenizer.h"

#define SL_CONVERTED_TENSOR "slate.tokenizer"
#define SL_CONVERTED_VERSION "1"

enum { SL_CONVERTED_HEX = 32 };

struct sl_converted {
    bool is; /* else all below is empty */
    bool has_fingerprint, narrowed;
    unsigned char fingerprint[16], content[16];
    enum sl_dtype weights;
    const char *rule, *chat_template; /* NULL: none */
    const char *tokenizer_kind;       /* NULL: none */
    const unsigned char *tokenizer;   /* in the tensor */
    size_t n_tokenizer;
    const char *begin_token, *end_tokens; /* NULL: not said */
};

/* Opens the tokenizer that c, which has one, carries; the caller closes it. `name` is for messages,
 * ids are below vocab_size. Errors: FILE_CORRUPT, those of opening its file. */
SL_NODISCARD enum sl_code sl_converted_tokenizer(struct sl_tokenizer **ret,
                                                 const struct sl_converted *c, const char *name,
                                                 size_t vocab_size, struct sl_error *err);

/* Texts and bytes point into t. Errors: FILE_CORRUPT (names the key), FILE_UNSUPPORTED (a later
 * version). */
SL_NODISCARD enum sl_code sl_converted_read(struct sl_converted *ret, const struct sl_tensors *t,
                                            const char *file, struct sl_error *err);

/* The tokenizer that a file holds: what c, which was read from t, carries, else t's vocabulary; the
 * caller closes it. *ret NULL: neither is there. Ids of the first are below vocab_size. Errors:
 * those of sl_converted_tokenizer() and sl_vocabulary_open(). */
SL_NODISCARD enum sl_code sl_file_tokenizer(struct sl_tokenizer **ret, const struct sl_tensors *t,
                                            const struct sl_converted *c, const char *name,
                                            size_t vocab_size, struct sl_error *err);

/* And its chat template: a text in Jinja's language, or, of a converted file, a name of
 * proto/chat.h; as long as t; NULL: none. */
const char *sl_file_chat_template(const struct sl_tensors *t, const struct sl_converted *c);

/* What the file's model counts as: the source's fingerprint, where `own`, the one of its content,
 * is what was written. */
const unsigned char *sl_converted_fingerprint(const struct sl_converted *c,
                                              const unsigned char own[16]);

void sl_converted_hex(char ret[SL_CONVERTED_HEX + 1], const unsigned char bytes[16]);

#endif
