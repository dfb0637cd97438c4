/* probe.c: `slate probe`: how good a memory is. The flaw of recurrent models is silent: the state
 * fills, and precision fades. Here it can be seen before a model is chosen. */
#include "server/cli/probe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/cli/cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} halves[] = {
    {"rule", sl_probe_rule, "the memory rules without a model: errors by number of pairs"},
    {"model", sl_probe_model, "what a model recalls, by distance and by number of facts"},
};

static void usage(FILE *f)
{
    fprintf(f, "usage: slate probe WHAT [OPTION]…\n\n");
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        fprintf(f, "  %-8s %s\n", halves[i].name, halves[i].help);
    fprintf(f, "\nslate probe WHAT --help lists the options.\n");
}

int sl_cli_probe(int argc, char **argv)
{
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return SL_EXIT_OK;
    }
    for (size_t i = 0; argc > 1 && i < sizeof halves / sizeof *halves; i++)
        if (strcmp(argv[1], halves[i].name) == 0)
            return halves[i].run(argc - 1, argv + 1);
    if (argc > 1)
        fprintf(stderr, "slate probe: '%s' cannot be probed\n", argv[1]);
    usage(stderr);
    return SL_EXIT_USAGE;
}

void sl_probe_progress(size_t done, size_t total, const char *what)
{
    enum { WIDTH = 40 };
    static const char bar[WIDTH + 1] = "########################################";
    if (!isatty(STDERR_FILENO))
        return;
    int filled = total ? (int)(done * WIDTH / total) : WIDTH;
    if (done < total)
        fprintf(stderr, "\r[%-*.*s] %3zu %%  %-32s", WIDTH, filled, bar, done * 100 / total, what);
    else
        fprintf(stderr, "\r%*s\r", WIDTH + 44, "");
    fflush(stderr);
}

enum sl_code sl_probe_write_svg(const char *path, const struct sl_plot *plots, size_t n,
                                struct sl_error *err)
{
    enum { SVG_MAX = 4 << 20 };
    struct sl_buf b;
    sl_buf_init(&b, SVG_MAX);
    sl_plots_svg(&b, plots, n);
    enum sl_code c = sl_buf_code(&b, err);
    FILE *f = c ? NULL : fopen(path, "w");
    if (!c && !f)
        c = sl_fail(err, SL_E_IO, "%s cannot be written: %s", path, strerror(errno));
    if (f) {
        bool written = fwrite(b.data, 1, b.len, f) == b.len;
        if ((fclose(f) != 0 || !written) && !c)
            c = sl_fail(err, SL_E_IO, "%s cannot be written: %s", path, strerror(errno));
    }
    sl_buf_done(&b);
    return c;
}
