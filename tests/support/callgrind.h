/* callgrind.h: instructions of calls of one function, counted by valgrind's callgrind on the test's
 * own program. */
#ifndef SLATE_TESTS_CALLGRIND_H
#define SLATE_TESTS_CALLGRIND_H

#include <stddef.h>
#include <stdint.h>

/* Skips the test, and says so, where there is no valgrind or a sanitizer is in the way. `what`:
 * "constant work". */
void callgrind_or_skip(const char *what);

/* The instructions of the first n calls of `function`, which must not be inlined, in a run of this
 * program with the one argument "measure". That run must exit with 0. */
void callgrind_count(const char *function, uint64_t *ret, size_t n);

#endif
