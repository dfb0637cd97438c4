/* main.c: the program `slate`: finds the subcommand, hands it its arguments. */
#include <stdio.h>
#include <string.h>

#include "server/cli/cli.h"
#include "server/cli/ending.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"serve", sl_cli_serve, "answer HTTP requests"},
    {"generate", sl_cli_generate, "continue a text in the terminal"},
    {"inspect", sl_cli_inspect, "say what a model file holds"},
    {"convert", sl_cli_convert, "make one file of a model, its settings and its tokenizer"},
    {"sessions", sl_cli_sessions, "check or repair a store that no server uses"},
    {"probe", sl_cli_probe, "measure how good a memory is"},
    {"bench", sl_cli_bench, "measure what things cost on this machine"},
};

static void usage(FILE *f)
{
    fprintf(f, "usage: slate COMMAND [OPTION]…\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\nslate COMMAND --help lists a command's options; slate --version says which "
               "program this is.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return SL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return sl_cli_finish(argv[1], SL_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("slate " SL_VERSION "\n");
        return sl_cli_finish(argv[1], SL_EXIT_OK);
    }
    sl_ending_watch();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return sl_cli_finish(argv[1], commands[i].run(argc - 1, argv + 1));
    fprintf(stderr, "slate: there is no command '%s'; slate --help lists them\n", argv[1]);
    return SL_EXIT_USAGE;
}
