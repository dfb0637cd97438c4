/* tokenizer.h: text <-> token ids.
 *
 * Three kinds: a vocabulary in the form of the RWKV World file (`id literal length` a line, greedy
 * longest match; id 0 ends a text and is not listed), `bytes` (id = byte value, 256 ids, no special
 * token), and BPE from a tokenizer.json of Hugging Face's tokenizers library (or from arrays:
 * engine/tokenizers/bpe.h). Of the first two every byte string can be encoded and decodes to
 * itself; a BPE takes UTF-8 and may normalise it.
 *
 * The bytes of a token are those that it stands for in the middle of a text, so texts can be
 * streamed token by token. Where a file's decoder treats the beginning of a text differently
 * (Llama's drops a blank), that is a second entry for the first token: sl_tokenizer_first_bytes().
 * Encoding knows the beginning of a text, too: what goes on after other text is not given the blank
 * that such files put in front of one.
 *
 * A tokenizer does not change after it was opened (sl_tokenizer_set_ends() belongs to opening):
 * every function but open, set and close may be called from any thread. */
#ifndef SLATE_TOKENIZER_H
#define SLATE_TOKENIZER_H

#include "slate/err.h"

struct sl_tokenizer;

/* No token is longer; a vocabulary with a longer one is refused. */
#define SL_TOKEN_BYTES_MAX 256

/* Tokens that end a text, at most. */
#define SL_TOKENIZER_ENDS_MAX 8

/* `spec`: a file's path (a World vocabulary or a tokenizer.json), a directory that holds
 * tokenizer.json or rwkv_vocab_v20230424.txt, or "bytes". The caller closes *ret.
 * Errors: FILE_NOT_FOUND, IO, TOO_LARGE, FILE_CORRUPT (names the line, or the place in the JSON),
 * FILE_UNSUPPORTED (names what in a tokenizer.json is not known here), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_tokenizer_open(struct sl_tokenizer **ret, const char *spec,
                                            struct sl_error *err);

/* The same from memory, which is not kept; `name` is for messages. */
SL_NODISCARD enum sl_code sl_tokenizer_open_memory(struct sl_tokenizer **ret, const void *data,
                                                   size_t n_bytes, const char *name,
                                                   struct sl_error *err);

/* Does the folder hold a file that sl_tokenizer_open() takes? */
bool sl_tokenizer_is_in(const char *folder);

/* The bytes of the file that a spec names, for whoever keeps them: sl_free() *ret. NULL and 0 of
 * "bytes". Errors: FILE_NOT_FOUND, IO, TOO_LARGE, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_tokenizer_read(const char *spec, unsigned char **ret, size_t *ret_n,
                                            struct sl_error *err);

void sl_tokenizer_close(struct sl_tokenizer *t); /* NULL is fine */

/* "rwkv_world", "bytes" or "bpe". */
const char *sl_tokenizer_kind(const struct sl_tokenizer *t);

/* One more than the largest id that encoding can give. */
size_t sl_tokenizer_size(const struct sl_tokenizer *t);

/* --- beginnings and ends -----------------------------------------------------------------------*/

/* What a tokenizer's own file does not say: the tokens that end a text (n up to
 * SL_TOKENIZER_ENDS_MAX; the first one is sl_tokenizer_eos()) and the one that a text begins with
 * (-1: none). Before the tokenizer is shared. */
void sl_tokenizer_set_ends(struct sl_tokenizer *t, const uint32_t *ids, size_t n);
void sl_tokenizer_set_begin(struct sl_tokenizer *t, int64_t id);

/* The id that ends a text, the first one where there are several, or -1 where there is none. */
int64_t sl_tokenizer_eos(const struct sl_tokenizer *t);
bool sl_tokenizer_is_eos(const struct sl_tokenizer *t, uint32_t id);

/* The id that is put before every text, as the tokenizer's file has it, or -1. */
int64_t sl_tokenizer_begin(const struct sl_tokenizer *t);

/* The id of a token by its text, special ones included, or -1: what a file calls "</s>". Only BPE
 * has such names. */
int64_t sl_tokenizer_find(const struct sl_tokenizer *t, const char *text, size_t n);

/* --- tokens ------------------------------------------------------------------------------------*/

/* XXH3-128 over the tokens' ids and bytes (not over the file: line ends do not matter), and for BPE
 * over the merges and the special tokens too. */
void sl_tokenizer_fingerprint(const struct sl_tokenizer *t, unsigned char ret[16]);

/* The bytes of a token: valid as long as the tokenizer. NULL and 0 for an id without bytes (the
 * end of a text, a special token, a hole in the vocabulary, an id of the model beyond it). */
const unsigned char *sl_tokenizer_bytes(const struct sl_tokenizer *t, uint32_t id, size_t *ret_n);

/* The same of a token that is the first one of a whole text. May be empty (n 0, not NULL) where the
 * token has bytes elsewhere. */
const unsigned char *sl_tokenizer_first_bytes(const struct sl_tokenizer *t, uint32_t id,
                                              size_t *ret_n);

struct sl_token_list { /* all zero: empty; sl_tokenizer_encode() makes room */
    uint32_t *v;
    size_t n, room;
};

SL_NODISCARD enum sl_code sl_token_list_add(struct sl_token_list *l, const uint32_t *ids, size_t n,
                                            struct sl_error *err);
void sl_token_list_done(struct sl_token_list *l); /* all zero is fine */

struct sl_range { /* of bytes: [begin, end) */
    size_t begin, end;
};

struct sl_tokenizer_text {
    const void *s;
    size_t n;
    bool continues; /* other text stands before it: no rule for a text's beginning applies */
    const struct sl_range *verbatim; /* ascending, apart from each other: a user's own text, in */
    size_t n_verbatim;               /* which no special token is looked for */
};

/* Appends the ids of a text to *out. On failure out->n is as it was. Errors: NO_MEMORY;
 * INVALID_VALUE (BPE only: not UTF-8, or its patterns take too long on this text); TOO_LARGE. */
SL_NODISCARD enum sl_code sl_tokenizer_encode(const struct sl_tokenizer *t,
                                              const struct sl_tokenizer_text *text,
                                              struct sl_token_list *out, struct sl_error *err);

/* The ids of a part of a text, n bytes from its middle: their bytes, joined, are the part, or its
 * beginning where no token has the rest. `ids` has room for n. Of BPE n is at most
 * SL_TOKEN_BYTES_MAX, and the whole part lies in one word. Does not allocate, cannot fail. */
size_t sl_tokenizer_encode_part(const struct sl_tokenizer *t, const void *part, size_t n,
                                uint32_t *ids);

#endif
