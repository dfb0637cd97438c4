/* cli_run.c: see cli_run.h. */
#include "tests/support/cli_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/bytes.h"

int cli_run(int (*command)(int argc, char **argv), char *out, size_t room, int argc, char **argv)
{
    char path[128];
    write_temp(path, "out", "", 0);
    fflush(NULL);
    int saved[2] = {dup(1), dup(2)}, fd = open(path, O_WRONLY | O_TRUNC);
    dup2(fd, 1);
    dup2(fd, 2);
    int rc = command(argc, argv);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i + 1);
        close(saved[i]);
    }
    close(fd);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    out[fread(out, 1, room - 1, f)] = '\0';
    fclose(f);
    remove_temp(path);
    return rc;
}
