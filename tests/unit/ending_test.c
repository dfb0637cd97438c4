/* ending_test.c: a command that a signal ends leaves nothing of what it had begun, also as process
 * 1 of a container. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/cli/ending.h"
#include "tests/support/cli_run.h"
#include "tests/support/conversion.h"
#include "tests/support/seeded.h"
#include "tests/support/snapshots.h"

enum { TEXT = 8192, SIGNALLED = 256, CASES_MAX = 200 };

static const int numbers[] = {SIGHUP, SIGINT, SIGPIPE, SIGTERM};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

/* Paths are kept apart: conversion_path() has room for some. */
static char folder[128], file[160], other[160];

static int set_up(void **state)
{
    int rc = conversion_set_up(state);
    (void)snprintf(folder, sizeof folder, "%s", conversion_path("begun"));
    (void)snprintf(file, sizeof file, "%s/half", folder);
    (void)snprintf(other, sizeof other, "%s/other", folder);
    return rc;
}

static void make(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Without `name` in it (NULL: any), entries of the folder of all tests. */
static size_t entries(const char *name)
{
    size_t n = 0;
    char path[160];
    (void)snprintf(path, sizeof path, "%s", conversion_path("."));
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
             (!name || strstr(e->d_name, name));
    closedir(d);
    return n;
}

/* --- the signals ------------------------------------------------------------------------------ */

/* In a child: a folder with two files, noted. */
static void begin(void)
{
    sl_ending_watch();
    sl_ending_note(folder);
    (void)mkdir(folder, 0700);
    sl_ending_note(file);
    sl_ending_note(other);
    make(file);
    make(other);
}

static void test_each_signal(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            begin();
            (void)raise(numbers[i]);
            _exit(0);
        }
        assert_int_equal(cli_wait(pid), SIGNALLED + numbers[i]);
        assert_false(is_there(folder));
    }
}

/* For it the kernel has no default action. */
static void test_process_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        pid_t pid = cli_fork_first();
        if (pid < 0)
            skip();
        if (pid == 0) {
            begin();
            (void)kill(getpid(), numbers[i]);
            _exit(0);
        }
        assert_int_equal(cli_wait(pid), 128 + numbers[i]);
        assert_false(is_there(folder));
    }
}

static void test_what_is_finished_stays(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        begin();
        sl_ending_forget(file);
        (void)raise(SIGTERM);
        _exit(0);
    }
    assert_int_equal(cli_wait(pid), SIGNALLED + SIGTERM);
    assert_true(is_there(file));
    assert_false(is_there(other));
}

/* `nohup`, and what a shell starts in the background. */
static void test_what_was_ignored_stays_so(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGHUP, SIG_IGN);
        begin();
        (void)raise(SIGHUP);
        _exit(7);
    }
    assert_int_equal(cli_wait(pid), 7);
    assert_true(is_there(file));
}

/* A program that is being started is one of ours until it runs. */
static void test_a_child_removes_nothing(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        begin();
        pid_t child = fork();
        if (child == 0) {
            (void)raise(SIGTERM);
            _exit(0);
        }
        _exit(cli_wait(child) == SIGNALLED + SIGTERM ? 7 : 8);
    }
    assert_int_equal(cli_wait(pid), 7);
    assert_true(is_there(file));
}

/* What is noted before the folder that it is in is gone when that is tried again. */
static void test_the_order_of_notes(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        sl_ending_watch();
        (void)mkdir(folder, 0700);
        make(file);
        sl_ending_note(file);
        sl_ending_note(folder);
        (void)raise(SIGINT);
        _exit(0);
    }
    assert_int_equal(cli_wait(pid), SIGNALLED + SIGINT);
    assert_false(is_there(folder));
}

/* --- a conversion ----------------------------------------------------------------------------- */

static int64_t left = -1; /* calls and ends of calls until the signal; -1: none */
static size_t refusals;   /* of new files, because there is one of the name */

static void tick(void)
{
    if (left >= 0 && left-- == 0)
        (void)raise(SIGTERM);
}

static int told_open(int dir, const char *name, int flags, mode_t mode)
{
    tick();
    if (refusals && (flags & O_CREAT)) {
        refusals--;
        errno = EEXIST;
        return -1;
    }
    int fd = sl_store_io_system.open(dir, name, flags, mode);
    tick();
    return fd;
}

static ssize_t told_pwrite(int fd, const void *p, size_t n, off_t at)
{
    tick();
    ssize_t k = sl_store_io_system.pwrite(fd, p, n, at);
    tick();
    return k;
}

static int told_fsync(int fd)
{
    tick();
    int rc = sl_store_io_system.fsync(fd);
    tick();
    return rc;
}

static int told_rename(int dir, const char *from, const char *to)
{
    tick();
    int rc = sl_store_io_system.rename(dir, from, to);
    tick();
    return rc;
}

static struct sl_store_io told_io(void)
{
    struct sl_store_io io = sl_store_io_system;
    io.open = told_open;
    io.pwrite = told_pwrite;
    io.fsync = told_fsync;
    io.rename = told_rename;
    return io;
}

static void write_tiny(const char *path)
{
    struct seeded s;
    struct seeded_shape shape = SNAPSHOT_TINY;
    seeded_init(&s, &shape);
    seeded_write(&s, path);
    seeded_done(&s);
}

/* The signal comes at each call and behind it: the whole file, or nothing. */
static void test_a_conversion(void **state)
{
    (void)state;
    const struct sl_store_io io = told_io();
    char in[128], out[128];
    (void)snprintf(in, sizeof in, "%s", conversion_path("in.safetensors"));
    (void)snprintf(out, sizeof out, "%s", conversion_path("out.safetensors"));
    write_tiny(in);
    conversion_must(in, out, SL_DTYPE_F16, NULL);
    size_t whole = conversion_bytes(out), n_half = 0, n_whole = 0;
    for (int64_t n = 0, rc = -1; rc != 0; n++) {
        assert_true(n < CASES_MAX);
        (void)unlink(out);
        pid_t pid = fork();
        if (pid == 0) {
            struct sl_error err;
            left = n;
            sl_ending_watch();
            _exit(conversion(in, out, SL_DTYPE_F16, NULL, NULL, &io, &err) ? 9 : 0);
        }
        rc = cli_wait(pid);
        assert_true(rc == 0 || rc == SIGNALLED + SIGTERM);
        assert_int_equal(entries("part"), 0);
        if (is_there(out))
            assert_int_equal(conversion_bytes(out), whole);
        n_half += !is_there(out);
        n_whole += rc != 0 && is_there(out);
    }
    assert_true(n_half > 20 && n_whole >= 2);
}

/* It has the number of this process, as in a container always. */
static void test_a_part_that_was_left(void **state)
{
    (void)state;
    char in[128], out[128], name[64];
    (void)snprintf(in, sizeof in, "%s", conversion_path("in.safetensors"));
    (void)snprintf(out, sizeof out, "%s", conversion_path("out.safetensors"));
    (void)snprintf(name, sizeof name, ".out.safetensors.%d.part", (int)getpid());
    write_tiny(in);
    make(conversion_path(name));
    conversion_must(in, out, SL_DTYPE_F16, NULL);
    assert_int_equal(entries("part"), 1);
}

/* Whatever there is, another name is tried; and the message says what could not be made. */
static void test_names_that_are_taken(void **state)
{
    (void)state;
    const struct sl_store_io io = told_io();
    struct sl_error err;
    char in[128], out[128];
    (void)snprintf(in, sizeof in, "%s", conversion_path("in.safetensors"));
    (void)snprintf(out, sizeof out, "%s", conversion_path("out.safetensors"));
    write_tiny(in);
    refusals = 3;
    assert_int_equal(conversion(in, out, SL_DTYPE_F16, NULL, NULL, &io, &err), SL_OK);
    refusals = 1000;
    assert_int_equal(conversion(in, out, SL_DTYPE_F16, NULL, NULL, &io, &err), SL_E_IO);
    assert_non_null(strstr(err.message, ".part: File exists"));
    assert_true(refusals > 900);
    refusals = 0;
}

/* --- the program ------------------------------------------------------------------------------ */

/* A limit of the shell's, or of the unit's. */
static void test_a_file_that_may_not_grow(void **state)
{
    (void)state;
    char in[128], out[128], text[TEXT];
    (void)snprintf(in, sizeof in, "%s", conversion_path("in.safetensors"));
    (void)snprintf(out, sizeof out, "%s", conversion_path("out.safetensors"));
    write_tiny(in);
    const char *const args[] = {"convert", "--tokenizer=bytes", in, out, NULL};
    struct cli_program p = {.args = args, .file_bytes = 4096};
    assert_int_equal(cli_end(&p, text, sizeof text), 1);
    if (!strstr(text, ".part: File too large"))
        fail_msg("it says: %s", text);
    assert_int_equal(entries(NULL), 1);
    p.file_bytes = 0;
    assert_int_equal(cli_end(&p, text, sizeof text), 0);
    assert_int_equal(entries(NULL), 2);
}

static void write_script(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    assert_true(fprintf(f, "#!/bin/sh\n%s\n", text) > 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(name, 0700), 0);
}

/* A peer that tells when it runs, with its model there, and does not end. */
static int open_peer(void)
{
    char begun[160], text[400];
    (void)snprintf(begun, sizeof begun, "%s", conversion_path("begun.fifo"));
    (void)snprintf(text, sizeof text, "[ -s $2 ] && echo runs >%s\nexec tail -f /dev/null", begun);
    write_script(conversion_path("llama-batched-bench"), text);
    write_script(conversion_path("llama-quantize"), "exit 1");
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(setenv("TMPDIR", folder, 1), 0);
    assert_int_equal(mkfifo(begun, 0600), 0);
    int fd = open(begun, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* The files that the peer reads go with the program that made them. */
static void a_peer(int number, bool first, int want)
{
    char option[160], said[TEXT] = "";
    int begun = open_peer(), err;
    (void)snprintf(option, sizeof option, "--peer-llama=%s", conversion_path("."));
    const char *const args[] = {
        "bench", "--shape=rwkv7-tiny", "--weights=f16", "--batch=1", "--rounds", "1", option, NULL};
    pid_t pid = cli_start(&(struct cli_program){.args = args, .first = first}, &err);
    if (pid < 0) {
        close(begun);
        skip();
    }
    struct pollfd polled[] = {{.fd = begun, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    assert_true(poll(polled, 2, -1) > 0);
    if (!(polled[0].revents & POLLIN)) {
        (void)cli_read(err, NULL, said, sizeof said);
        fail_msg("the peer does not run: %s", said);
    }
    assert_int_equal(kill(pid, number), 0);
    assert_int_equal(cli_wait(pid), want);
    close(begun);
    close(err);
    assert_int_equal(unsetenv("TMPDIR"), 0);
    if (rmdir(folder) != 0)
        fail_msg("files are left: %s", strerror(errno));
}

static void test_a_bench_with_a_peer(void **state)
{
    (void)state;
    a_peer(SIGINT, false, SIGNALLED + SIGINT);
}

static void test_a_bench_as_process_one(void **state)
{
    (void)state;
    a_peer(SIGTERM, true, 128 + SIGTERM);
}

/* The second signal ends a server at once. */
static void test_a_server_as_process_one(void **state)
{
    (void)state;
    char said[TEXT];
    int err;
    const char *const args[] = {"serve", "--listen=127.0.0.1:0", "--drain-delay=600s", NULL};
    pid_t pid = cli_start(&(struct cli_program){.args = args, .first = true}, &err);
    if (pid < 0)
        skip();
    assert_true(cli_read(err, "model loaded", said, sizeof said));
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_true(cli_read(err, "leaving", said, sizeof said));
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(cli_wait(pid), 128 + SIGTERM);
    close(err);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, conversion_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_each_signal),
        TEST(test_process_one),
        TEST(test_what_is_finished_stays),
        TEST(test_what_was_ignored_stays_so),
        TEST(test_a_child_removes_nothing),
        TEST(test_the_order_of_notes),
        TEST(test_a_conversion),
        TEST(test_a_part_that_was_left),
        TEST(test_names_that_are_taken),
        TEST(test_a_file_that_may_not_grow),
        TEST(test_a_bench_with_a_peer),
        TEST(test_a_bench_as_process_one),
        TEST(test_a_server_as_process_one),
    };
    /* Who runs tests in the background may have some of them ignored, which would be inherited. */
    for (size_t i = 0; i < N_NUMBERS; i++)
        (void)signal(numbers[i], SIG_DFL);
    return cmocka_run_group_tests_name("ending", tests, NULL, NULL);
}
