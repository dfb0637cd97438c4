/* process.h: what the system says of a process under test. Failures fail the test. */
#ifndef SLATE_TESTS_PROCESS_H
#define SLATE_TESTS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

size_t process_resident(pid_t pid); /* bytes */
double process_cpu_s(pid_t pid);    /* of all its threads, so far */
size_t process_files(pid_t pid);    /* open descriptors */

/* Says the resident size how much a process holds? The sanitizers keep what was freed. */
bool process_memory_counts(void);

#endif
