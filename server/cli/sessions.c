/* sessions.c: `slate sessions check|repair DIR`: a store that no server uses, told about and
 * mended. See server/store/repair.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "server/cli/cli.h"
#include "server/store/repair.h"

static const char usage[] =
    "Usage: slate sessions check DIR\n"
    "       slate sessions repair DIR       (dir:DIR is taken as well)\n"
    "\n"
    "check reads a store (what `slate serve --store dir:DIR` keeps) from its first to its last "
    "byte\n"
    "and says what is damaged, and which sessions that concerns. It changes nothing.\n"
    "\n"
    "repair does the same, and where a server would refuse the store, because a record in the "
    "midst\n"
    "of the log cannot be read, writes the log anew without it. The old log stays beside it. What "
    "was\n"
    "in that record is lost: the report names the sessions that can only be deleted, and those "
    "that\n"
    "may lack their last turn. A damaged header of the log itself is mended where its records "
    "prove\n"
    "what stood in it: then nothing is lost. The new log has the owner, group and mode of the old "
    "one;\n"
    "where this user may not give it those, nothing is changed. Take a copy of the folder first.\n"
    "\n"
    "No server may be using the folder. Exit codes: 0 nothing is damaged, or it was repaired;\n"
    "1 it could not be read (a server has it, a disk failed, it is not there); 2 it is no store;\n"
    "3 it is damaged.\n";

static bool print(void *arg, const char *text)
{
    char clean[700];
    (void)arg;
    sl_utf8_sanitize_text(clean, sizeof clean, text, strlen(text), false);
    return printf("%s\n", clean) > 0 && fflush(stdout) == 0;
}

static int wrong_usage(const char *what)
{
    struct sl_error err;
    (void)sl_fail(&err, SL_E_USAGE, "%s; `slate sessions --help` prints the usage", what);
    return sl_cli_fail("sessions", &err);
}

static int run(const char *path, bool repair)
{
    struct sl_repair_report r;
    struct sl_error err;
    enum sl_code c = sl_store_repair(path, &sl_store_io_system, repair, print, NULL, &r, &err);
    if (c) {
        int code = sl_cli_fail("sessions", &err);
        if (c == SL_E_STORE_CORRUPT)
            return SL_EXIT_FILE;
        return code == SL_EXIT_FILE ? SL_EXIT_FAILED : code;
    }
    uint64_t n_places = r.n_gaps + r.bad_header;
    printf("%" PRIu64 " sessions: %" PRIu64 " damaged, %" PRIu64
           " perhaps without their last turns, %" PRIu64 " with a damaged snapshot; %" PRIu64
           " places in the log of which nothing is known\n",
           r.n_sessions, r.n_damaged, r.n_unsure, r.n_bad_snapshots, n_places);
    bool whole = !r.n_damaged && !r.n_bad_snapshots && !n_places;
    return whole || (repair && n_places) ? SL_EXIT_OK : SL_EXIT_FILE;
}

int sl_cli_sessions(int argc, char **argv)
{
    static const char scheme[] = "dir:";
    if (argc >= 2 && strcmp(argv[argc - 1], "--help") == 0) {
        fputs(usage, stdout);
        return SL_EXIT_OK;
    }
    if (argc != 3)
        return wrong_usage("a command (check or repair) and a folder are needed");
    if (strcmp(argv[1], "check") != 0 && strcmp(argv[1], "repair") != 0)
        return wrong_usage("the command is check or repair");
    bool has_scheme = strncmp(argv[2], scheme, sizeof scheme - 1) == 0;
    return run(argv[2] + (has_scheme ? sizeof scheme - 1 : 0), strcmp(argv[1], "repair") == 0);
}
