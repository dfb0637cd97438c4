/* snapshot.h: a session written down: a safetensors file that anyone can open.
 *
 * Tensors: what the model's mixers declare, by name (layers.3.mixer.state [H, K, V], …), and
 * counters.tokens_consumed I64 [1]. F32 unless the file was asked for smaller; counters I64. BF16
 * is rounded to nearest. I8: each row of the last axis has a scale, its largest magnitude / 127, in
 * a tensor NAME.scale, F32, of the shape without that axis ([1] for a vector); a value is its
 * integer times its row's scale. A file may mix the three. What else a session needs is in
 * __metadata__, whose values are strings:
 *
 *   format "slate.session", format_version "1"; a reader of version N reads every earlier one
 *   model.arch, model.fingerprint        32 hex digits: XXH3-128 over the source config and weights
 *   model.weights_type, engine.numerics  how it was computed; a difference is accepted and reported
 *   tokenizer.fingerprint                likewise
 *   session.id, .incarnation, .version, .tokens_seen, .metadata    on upload they inform
 *   continuation                         JSON: what has not been consumed, an unfinished turn
 *   transcript                           base64 of all token ids so far, u32 little-endian: only
 * where a server keeps them (--keep-transcript) state.dtype                          "F32", "BF16"
 * or "I8": what was asked for created                              RFC 3339, UTC payload.xxh3
 * XXH3-128 of the data section metadata.xxh3                        XXH3-128 over key, NUL, value,
 * NUL of all the others, in order of the keys' bytes
 *
 * Whoever edits tensors drops payload.xxh3; whoever edits metadata drops metadata.xxh3: what is
 * absent is not checked, and `edited` says so. Required of the others are format, format_version,
 * model.arch and model.fingerprint.
 *
 * Reading checks everything against the loaded model: length, JSON, names, types, shapes, offsets,
 * finiteness, digest. Whoever replaces a live state reads into another slot first. Any thread;
 * nothing here keeps what it is given. */
#ifndef SLATE_SNAPSHOT_H
#define SLATE_SNAPSHOT_H

#include "slate/model.h"
#include "slate/tokenizer.h"

/* Texts point into memory of the caller (write) or of the snapshot's `text` (read). */
struct sl_snapshot_info {
    const char *session_id;        /* "" where there is none */
    unsigned char incarnation[16]; /* all zero where there is none */
    uint64_t version;
    uint64_t tokens_seen;     /* of the conversation, what is pending among them */
    const char *metadata;     /* JSON text of an object; NULL: {} */
    const char *continuation; /* JSON text; NULL: nothing is pending, the session is empty */
    const char *transcript;   /* base64 text; NULL: none. Not looked into here */
    int64_t created_ms;       /* Unix time */
    enum sl_dtype dtype;      /* of the state's tensors: F32, BF16, or I8 with scales */

    /* Read only: how it differs from what is loaded. The model is the same, or reading fails. */
    bool other_weights_type; /* bits will differ: equal within rounding only */
    bool other_numerics;
    bool other_tokenizer;        /* the ids may mean other texts */
    bool edited;                 /* one of the two digests was absent */
    unsigned char tokenizer[16]; /* its fingerprint; all zero where there is none */
    char weights_type[24];
    char numerics[64];
    char *text; /* owns the strings; sl_free() it */
};

/* How this build and these kernels compute: what engine.numerics says. Equal strings mean equal
 * bits. */
const char *sl_numerics(const struct sl_model *m);

/* Encodes `state` (info->state_bytes of the model, 64-byte aligned, at rest). The same state and
 * info give the same bytes. *ret is allocated: sl_free() it. Errors: NO_MEMORY, MODEL_NOT_FINITE (a
 * value of the state: no reader would take it), SNAPSHOT_TOO_LARGE (metadata or continuation of
 * more than 16 MiB). */
SL_NODISCARD enum sl_code sl_snapshot_write(const struct sl_model *m, const struct sl_tokenizer *t,
                                            const void *state, const struct sl_snapshot_info *info,
                                            unsigned char **ret, size_t *ret_n,
                                            struct sl_error *err);

/* Checks all of it on the way into `state`: a slot that nobody else reads, and that nobody may read
 * after an error, when it may hold a part of what was refused. *ret is written after a success
 * only. Counts beyond 2^52 are refused: a session must be able to go on from them, and be read
 * again. Errors: SNAPSHOT_CORRUPT (names the place), SNAPSHOT_MODEL_MISMATCH (names both),
 * SNAPSHOT_VERSION_UNSUPPORTED, SNAPSHOT_TOO_LARGE, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_snapshot_read(const struct sl_model *m, const struct sl_tokenizer *t,
                                           const void *data, size_t n, void *state,
                                           struct sl_snapshot_info *ret, struct sl_error *err);

/* Bytes that arrive while they are read, from one who vouches for them: a store that compares a
 * digest of all of them with its own record, and throws the state away where it differs. So
 * payload.xxh3 is not reckoned a second time, and counts may be larger (2^53; tensors' 2^63), but
 * everything else is checked as above. Never for
 * bytes from outside. A piece is decoded while it lies in a cache. */
struct sl_snapshot_source {
    /* At least the first `end` bytes are there afterwards (end ≤ n): *ret_have of them, ≤ n. Its
     * errors are the reader's. */
    enum sl_code (*need)(void *arg, size_t end, size_t *ret_have, struct sl_error *err);
    void *arg;
};

/* The same from a source; `data`: where its n bytes arrive. */
SL_NODISCARD enum sl_code sl_snapshot_read_from(const struct sl_model *m,
                                                const struct sl_tokenizer *t, const void *data,
                                                size_t n, const struct sl_snapshot_source *source,
                                                void *state, struct sl_snapshot_info *ret,
                                                struct sl_error *err);

/* What a file says of itself, without a model: for `slate inspect`. ret->text owns the strings;
 * *ret_arch points into it. Errors as above, but MODEL_MISMATCH. */
SL_NODISCARD enum sl_code sl_snapshot_describe(const void *data, size_t n,
                                               struct sl_snapshot_info *ret, const char **ret_arch,
                                               unsigned char ret_fingerprint[16],
                                               struct sl_error *err);

/* The same of the metadata alone, of which the digest must be there and right: the data may be
 * damaged. */
SL_NODISCARD enum sl_code sl_snapshot_texts(const void *data, size_t n,
                                            struct sl_snapshot_info *ret, struct sl_error *err);

/* The largest snapshot that this model can have, with room for the longest header (24 MiB): what an
 * upload is limited to. */
size_t sl_snapshot_bytes_max(const struct sl_model *m);

/* BlinkDL's state-tuned files (.pth or .safetensors with blocks.N.att.time_state [H][value][key],
 * as he stores them; a prefix may stand before the names): an initial state. Other tensors of the
 * file are ignored. `state` is written when all is checked. Errors: as sl_tensors_open();
 * MODEL_INVALID naming the tensor; UNSUPPORTED: this model's memory is no such matrix. */
SL_NODISCARD enum sl_code sl_initial_state_read(const struct sl_model *m, const void *data,
                                                size_t n, const char *name, void *state,
                                                struct sl_error *err);

/* The same from a file on disk. */
SL_NODISCARD enum sl_code sl_initial_state_open(const struct sl_model *m, const char *path,
                                                void *state, struct sl_error *err);

#endif
