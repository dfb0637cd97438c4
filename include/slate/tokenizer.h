/* tokenizer.h: bytes <-> token ids.
 *
 * Two kinds: a vocabulary in the form of the RWKV World file (`id literal length` a line, greedy
 * longest match; id 0 ends a text and is not listed) and `bytes` (id = byte value, 256 ids, no
 * special token). Every byte string can be encoded and decodes to itself.
 *
 * A tokenizer does not change after it was opened: every function but open and close may be called
 * from any thread, and none of them allocates. */
#ifndef SLATE_TOKENIZER_H
#define SLATE_TOKENIZER_H

#include "slate/err.h"

struct sl_tokenizer;

/* No token is longer; a vocabulary with a longer one is refused. */
#define SL_TOKEN_BYTES_MAX 256

/* `spec`: a vocabulary file's path, or "bytes". The caller closes *ret.
 * Errors: FILE_NOT_FOUND, IO, TOO_LARGE, FILE_CORRUPT (names the line), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_tokenizer_open(struct sl_tokenizer **ret, const char *spec,
                                            struct sl_error *err);

/* The same from memory, which is not kept; `name` is for messages. */
SL_NODISCARD enum sl_code sl_tokenizer_open_memory(struct sl_tokenizer **ret, const void *data,
                                                   size_t n_bytes, const char *name,
                                                   struct sl_error *err);

void sl_tokenizer_close(struct sl_tokenizer *t); /* NULL is fine */

/* "rwkv_world" or "bytes". */
const char *sl_tokenizer_kind(const struct sl_tokenizer *t);

/* One more than the largest id that encoding can give. */
size_t sl_tokenizer_size(const struct sl_tokenizer *t);

/* The id that ends a text (its bytes are empty), or -1 where there is none. */
int64_t sl_tokenizer_eos(const struct sl_tokenizer *t);

/* XXH3-128 over the tokens' ids and bytes (not over the file: line ends do not matter). */
void sl_tokenizer_fingerprint(const struct sl_tokenizer *t, unsigned char ret[16]);

/* The bytes of a token: valid as long as the tokenizer. NULL and 0 for an id without bytes (the
 * end of a text, a hole in the vocabulary, an id of the model beyond it). */
const unsigned char *sl_tokenizer_bytes(const struct sl_tokenizer *t, uint32_t id, size_t *ret_n);

/* Writes the ids of text[0..n) and returns how many. `ids` has room for n of them: a token has at
 * least one byte. Cannot fail. */
size_t sl_tokenizer_encode(const struct sl_tokenizer *t, const void *text, size_t n, uint32_t *ids);

#endif
