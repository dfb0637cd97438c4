/* process.h: what the system says of a process under test. Failures fail the test. */
#ifndef SLATE_TESTS_PROCESS_H
#define SLATE_TESTS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

size_t process_resident(pid_t pid);  /* bytes */
size_t process_peak(pid_t pid);      /* the most of them that there were */
void process_forget_peak(pid_t pid); /* since now */
double process_cpu_s(pid_t pid);     /* of all its threads, so far */
/* The same but for threads of low priority, whose time is what others leave. */
double process_cpu_usual_s(pid_t pid);
size_t process_files(pid_t pid); /* open descriptors */

/* Do figures tell anything? The sanitizers keep what was freed, and make some things slower than
 * others. */
bool process_figures_count(void);

#endif
