/* cli_run.h: for tests: a subcommand of `slate`, called in this process; and the program itself. */
#ifndef SLATE_TESTS_CLI_RUN_H
#define SLATE_TESTS_CLI_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Returns the command's exit code; what it printed, on both streams, is in out as a string. */
int cli_run(int (*command)(int argc, char **argv), char *out, size_t room, int argc, char **argv);

/* A process of the program, and its end. */
struct cli_program {
    const char *const *args; /* without the program's own name; up to a NULL */
    int out;                 /* its stdout; 0: /dev/null */
    size_t file_bytes;       /* that a file of its may have; 0: any number */
    bool first;              /* process 1 of processes of its own, as in a container */
    bool ignores_pipes;      /* as some who start programs leave them */
};

/* -1: this system does not let it be the first one. *ret_err: what it says on stderr; to be closed.
 */
pid_t cli_start(const struct cli_program *p, int *ret_err);
/* As fork(), into processes of its own, or -1. */
pid_t cli_fork_first(void);
/* Reads *err up to `text` (NULL: to the end) into a string; false: it ended before that. */
bool cli_read(int err, const char *text, char *ret, size_t room);
/* Its exit code; 256 and the signal that ended it. */
int cli_wait(pid_t pid);
/* All of that: what it said is in ret. */
int cli_end(const struct cli_program *p, char *ret, size_t room);

#endif
