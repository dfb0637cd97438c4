/* cli_run.c: see cli_run.h. */
#include "tests/support/cli_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

pid_t cli_fork_first(void)
{
    int flags = CLONE_NEWPID | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
    return (pid_t)syscall(SYS_clone, (unsigned long)flags | SIGCHLD, 0, 0, 0, 0);
}

static _Noreturn void become(const struct cli_program *p, const char *const *argv, int err)
{
    int null = open("/dev/null", O_RDWR);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(null, STDIN_FILENO);
    dup2(p->out ? p->out : null, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (p->file_bytes)
        (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){p->file_bytes, p->file_bytes});
    if (p->ignores_pipes)
        (void)signal(SIGPIPE, SIG_IGN);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

pid_t cli_start(const struct cli_program *p, int *ret_err)
{
    enum { ARGS_MAX = 16 };
    static char program[512];
    const char *argv[ARGS_MAX + 2] = {program}, *build = getenv("SLATE_BUILD");
    int err[2];
    (void)snprintf(program, sizeof program, "%s/slate", build ? build : "build/release");
    for (size_t n = 0; p->args[n]; n++) {
        assert_true(n < ARGS_MAX);
        argv[n + 1] = p->args[n];
    }
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = p->first ? cli_fork_first() : fork();
    if (pid == 0)
        become(p, argv, err[1]);
    assert_true(pid > 0 || p->first);
    close(err[1]);
    *ret_err = err[0];
    if (pid < 0)
        close(err[0]);
    return pid;
}

bool cli_read(int err, const char *text, char *ret, size_t room)
{
    size_t n = 0;
    for (ret[0] = '\0'; !text || !strstr(ret, text); ret[n] = '\0') {
        ssize_t k = read(err, ret + n, room - 1 - n);
        if (k <= 0)
            return !text;
        n += (size_t)k;
    }
    return true;
}

int cli_wait(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int cli_end(const struct cli_program *p, char *ret, size_t room)
{
    int err;
    pid_t pid = cli_start(p, &err);
    assert_true(pid > 0);
    assert_true(cli_read(err, NULL, ret, room));
    close(err);
    return cli_wait(pid);
}
