/* probe.h: what the two halves of `slate probe` share. Main thread. */
#ifndef SLATE_SERVER_CLI_PROBE_H
#define SLATE_SERVER_CLI_PROBE_H

#include "proto/json_out.h"
#include "server/cli/plot.h"

/* `slate probe rule` and `slate probe model`: argv[0] is the word; an exit code. */
int sl_probe_rule(int argc, char **argv);
int sl_probe_model(int argc, char **argv);

/* A bar on stderr where that is a terminal; done of total; gone when they are equal. */
void sl_probe_progress(size_t done, size_t total, const char *what);

/* Writes charts to a file. Errors: IO (named). */
SL_NODISCARD enum sl_code sl_probe_write_svg(const char *path, const struct sl_plot *plots,
                                             size_t n, struct sl_error *err);

#endif
