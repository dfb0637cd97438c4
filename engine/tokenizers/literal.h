/* literal.h: one Python literal of a str or of bytes, as repr() writes them. Private to
 * engine/tokenizers. No allocation; any thread. */
#ifndef SLATE_TOKENIZERS_LITERAL_H
#define SLATE_TOKENIZERS_LITERAL_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the bytes that the literal s[0..n) stands for (a str's in UTF-8) to dst, which has room
 * for n. False where it is no such literal; then *ret_why says what is wrong (static storage) and
 * *ret_at is the place in s. */
bool sl_literal_parse(const unsigned char *s, size_t n, unsigned char *dst, size_t *ret_n,
                      const char **ret_why, size_t *ret_at);

#endif
