/* ending.c: see ending.h.
 *
 * The handler removes by itself instead of setting a flag: a conversion is for seconds in one call
 * that knows of no flag (reading the source, syncing, checking what was written). It calls only
 * what a handler may: unlink, rmdir, raise, _exit. A signal sent to a process is taken by its main
 * thread where that does not block it, so nothing is being noted or made meanwhile. */
#include "server/cli/ending.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static const char *_Atomic notes[SL_ENDING_NOTES]; /* NULL: free */
static pid_t owner; /* a child between fork and exec removes nothing */

static const int numbers[] = {SIGHUP, SIGINT, SIGPIPE, SIGTERM};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

/* Twice: a program of ours that is still running may make a file in a folder just before that would
 * go; once the folder is gone it cannot. */
static void remove_noted(void)
{
    enum { ROUNDS = 2 };
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = SL_ENDING_NOTES; i-- > 0;) {
            const char *path = atomic_load(&notes[i]);
            if (path && unlink(path) != 0 && errno == EISDIR)
                (void)rmdir(path);
        }
}

_Noreturn void sl_ending_by(int number)
{
    sigset_t set;
    (void)signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(number);
    _exit(128 + number); /* process 1 is still here */
}

static void on_signal(int number)
{
    if (getpid() == owner)
        remove_noted();
    sl_ending_by(number);
}

void sl_ending_watch(void)
{
    struct sigaction sa = {.sa_handler = on_signal}, old;
    owner = getpid();
    sigemptyset(&sa.sa_mask);
    for (size_t i = 0; i < N_NUMBERS; i++)
        sigaddset(&sa.sa_mask, numbers[i]);
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &sa, NULL);
    (void)signal(SIGXFSZ, SIG_IGN);
}

void sl_ending_note(const char *path)
{
    size_t i = 0;
    while (i < SL_ENDING_NOTES && atomic_load(&notes[i]))
        i++;
    assert(i < SL_ENDING_NOTES);
    atomic_store(&notes[i], path);
}

void sl_ending_forget(const char *path)
{
    for (size_t i = 0; i < SL_ENDING_NOTES; i++)
        if (atomic_load(&notes[i]) == path)
            atomic_store(&notes[i], NULL);
}
