/* cli.c: what the subcommands share. */
#include "server/cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "server/config.h"

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

static void warn_stray(void *arg, const char *name)
{
    const char *command = arg;
    char clean[128];
    sl_utf8_sanitize_text(clean, sizeof clean, name, strlen(name), false);
    fprintf(stderr, "slate %s: the variable %s names no option and was ignored\n", command, clean);
}

void sl_cli_warn_strays(const char *command, const struct sl_option_set *sets, size_t n_sets)
{
    enum { SETS_MAX = 2 };
    struct sl_option_set all[SETS_MAX + 1];
    assert(n_sets <= SETS_MAX);
    memcpy(all, sets, n_sets * sizeof *sets);
    all[n_sets] = (struct sl_option_set){0};
    all[n_sets].rows = sl_config_options(&all[n_sets].n);
    sl_options_each_stray(all, n_sets + 1, warn_stray, (void *)(uintptr_t)command);
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
