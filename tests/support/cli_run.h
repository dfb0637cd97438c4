/* cli_run.h: for tests: a subcommand of `slate`, called in this process. */
#ifndef SLATE_TESTS_CLI_RUN_H
#define SLATE_TESTS_CLI_RUN_H

#include <stddef.h>

/* Returns the command's exit code; what it printed, on both streams, is in out as a string. */
int cli_run(int (*command)(int argc, char **argv), char *out, size_t room, int argc, char **argv);

#endif
