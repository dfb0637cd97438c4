/* cli.h: the subcommands of the program `slate`. Each gets the arguments from its own name on
 * (argv[0] is "serve") and returns the exit code; whether its output could be written is not its
 * business (sl_cli_finish()). */
#ifndef SLATE_SERVER_CLI_H
#define SLATE_SERVER_CLI_H

#include "slate/err.h"

struct sl_option_set; /* server/config.h */

enum {
    SL_EXIT_OK = 0,
    SL_EXIT_FAILED = 1, /* while running */
    SL_EXIT_USAGE = 2,
    SL_EXIT_FILE = 3 /* a file that cannot be used */
};

int sl_cli_serve(int argc, char **argv);
int sl_cli_generate(int argc, char **argv);
int sl_cli_inspect(int argc, char **argv);
int sl_cli_convert(int argc, char **argv);
int sl_cli_bench(int argc, char **argv);
int sl_cli_probe(int argc, char **argv);
int sl_cli_sessions(int argc, char **argv);

/* Prints `slate COMMAND: message` to stderr and gives the exit code that belongs to the error. */
int sl_cli_fail(const char *command, const struct sl_error *err);

/* Prints a warning to stderr for each variable that names no option of the command's sets (up to 2)
 * nor of the server: sl_options_each_stray(). */
void sl_cli_warn_strays(const char *command, const struct sl_option_set *sets, size_t n_sets);

/* At the program's end, for every command: what it printed through stdio is written. Where that is
 * not so, it says that and SL_EXIT_OK becomes SL_EXIT_FAILED; else gives rc back. */
int sl_cli_finish(const char *command, int rc);

#endif
