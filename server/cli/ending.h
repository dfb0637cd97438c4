/* ending.h: how a command ends that a signal tells to: what it has begun and not finished is gone.
 *
 * What is left otherwise are gigabytes under a name that nobody knows. In a container the program
 * is process 1, besides, for which the kernel drops each signal that it does not handle, so that
 * nothing but SIGKILL would end it.
 *
 * `slate serve` and `slate generate` have handlers of their own, which replace these. */
#ifndef SLATE_SERVER_CLI_ENDING_H
#define SLATE_SERVER_CLI_ENDING_H

#include "slate/base.h"

enum { SL_ENDING_NOTES = 8 };

/* At the program's start, main thread. From then on SIGHUP, SIGINT, SIGPIPE and SIGTERM (those that
 * were not ignored: `nohup` stays what it is) remove what is noted and end the program as if they
 * were not handled. SIGXFSZ is ignored: a file that may not grow is an error of write(). */
void sl_ending_watch(void);

/* A file, or a folder that is empty once what was noted after it is gone; it need not be there yet.
 * `path` stays the caller's and says where until it is forgotten. At most SL_ENDING_NOTES. One
 * thread.
 */
void sl_ending_note(const char *path);
void sl_ending_forget(const char *path); /* the same pointer; one that is not noted is fine */

/* For handlers of others: ends as a signal that is not handled would. */
_Noreturn void sl_ending_by(int number);

#endif
