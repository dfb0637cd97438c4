/* mem.h: allocation that tests can make fail. All code of the project allocates through these.
 *
 * Any thread. sl_mem_fail_after(n): the n-th allocation from now on (counting from 0) and every
 * later one fails, until sl_mem_fail_after(-1). sl_mem_fail_once(n): only that one. Tests only. */
#ifndef SLATE_BASE_MEM_H
#define SLATE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *sl_malloc(size_t n) __attribute__((malloc, alloc_size(1)));
void *sl_calloc(size_t n, size_t size) __attribute__((malloc, alloc_size(1, 2)));
/* n × size without overflow; NULL frees nothing. */
void *sl_realloc(void *p, size_t n, size_t size);
/* 64-byte aligned and zeroed; freed with sl_free(). */
void *sl_aligned_calloc(size_t n_bytes);
/* For large memory that is read often: starts on a huge page and asks the system for such pages.
 * The contents are undefined; freed with sl_free(). */
void *sl_huge_alloc(size_t n_bytes);
char *sl_strndup(const char *s, size_t n);
char *sl_strdup(const char *s);
void sl_free(void *p);

/* For a library that does not check each allocation of its own and would go on with half a thing:
 * between the two calls, once an allocation of this thread has failed, all later ones fail too.
 * had_all ends the scope: false when one did. Scopes do not nest. */
void sl_mem_all_or_nothing(void);
bool sl_mem_had_all(void);

void sl_mem_fail_after(int64_t n);
void sl_mem_fail_once(int64_t n);
/* Allocations since the program began, of all threads. */
uint64_t sl_mem_count(void);

#endif
