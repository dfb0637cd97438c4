/* cli.c: what the subcommands share. */
#include "server/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int exit_code(enum sl_code c)
{
    switch (c) {
    case SL_E_USAGE:
    case SL_E_INVALID_VALUE:
        return SL_EXIT_USAGE;
    case SL_E_IO:
    case SL_E_FILE_NOT_FOUND:
    case SL_E_FILE_TRUNCATED:
    case SL_E_FILE_CORRUPT:
    case SL_E_FILE_UNSUPPORTED:
    case SL_E_MODEL_UNSUPPORTED:
    case SL_E_MODEL_INVALID:
    case SL_E_TOO_LARGE:
    case SL_E_SNAPSHOT_CORRUPT:
    case SL_E_SNAPSHOT_VERSION_UNSUPPORTED:
    case SL_E_SNAPSHOT_TOO_LARGE:
        return SL_EXIT_FILE;
    default:
        return SL_EXIT_FAILED;
    }
}

int sl_cli_fail(const char *command, const struct sl_error *err)
{
    fprintf(stderr, "slate %s: %s\n", command, err->message);
    return exit_code(err->code);
}

int sl_cli_finish(const char *command, int rc)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return rc;
    fprintf(stderr, "slate %s: standard output cannot be written%s%s\n", command, errno ? ": " : "",
            errno ? strerror(errno) : "");
    return rc ? rc : SL_EXIT_FAILED; /* what else was wrong is told, too */
}
