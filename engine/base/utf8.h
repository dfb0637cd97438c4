/* utf8.h: telling whole characters from broken ones. No allocation; any thread.
 *
 * Broken input is replaced as WHATWG's decoder does it: one U+FFFD for each maximal subpart of an
 * ill-formed sequence (Unicode 15, 3.9, table 3-8). */
#ifndef SLATE_BASE_UTF8_H
#define SLATE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at s, 1 … 4, when it is whole and well formed. Else 0, and *ret_bad is the
 * length of the ill-formed part (≥ 1), or 0 when the n bytes only end too early. n ≥ 1. */
size_t sl_utf8_char(const unsigned char *s, size_t n, size_t *ret_bad);

bool sl_utf8_valid(const void *s, size_t n);

/* Copies src as valid UTF-8 to dst, which has room for 3 · n bytes, and returns the bytes written.
 * *ret_used (may be NULL) is how much of src that was: with `last` false, bytes at the end that
 * could still become a character are left. */
size_t sl_utf8_repair(void *dst, const void *src, size_t n, bool last, size_t *ret_used);

/* A C string for people: repaired, control characters as '?', cut at a character's border to what
 * dst_size holds; "…" at the end where something was cut (or `cut` says so already). */
void sl_utf8_sanitize_text(char *dst, size_t dst_size, const char *src, size_t n, bool cut);

#endif
