/* process.h: what the system says of a process under test. Failures fail the test. */
#ifndef SLATE_TESTS_PROCESS_H
#define SLATE_TESTS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

size_t process_resident(pid_t pid); /* bytes */
double process_cpu_s(pid_t pid);    /* of all its threads, so far */
size_t process_files(pid_t pid);    /* open descriptors */

/* Do figures tell anything? The sanitizers keep what was freed, and make some things slower than
 * others. */
bool process_figures_count(void);

#endif
