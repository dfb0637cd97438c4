/* longwork.h: what clients can make as long as they like: reading the JSON of large bodies,
 * tokenising long texts. On one thread of its own, at a low priority.
 *
 * Not on the loop's thread, where all other clients would wait for it. Nor in libuv's pool: a few
 * of these would fill its threads, and the store writes in there, so that every turn's commit would
 * wait. And one after the other at a low priority, so that the engine and the loop keep the
 * processors: what is long takes longer then, what is short does not.
 *
 * The order is a fair queue's: a job's turn comes after as much other work, in bytes, as it brings
 * itself. A text of 100 KB does not wait for ten bodies of 16 MB, which still get their turn.
 *
 * Loop's thread, but for `work`. */
#ifndef SLATE_SERVER_LONGWORK_H
#define SLATE_SERVER_LONGWORK_H

#include <uv.h>

#include "slate/err.h"

enum { SL_LONG_BYTES = 64 * 1024 }; /* above this it is long */

struct sl_longwork;

struct sl_long_job {
    void (*work)(struct sl_long_job *j); /* the thread's; nobody else touches the job meanwhile */
    void (*done)(struct sl_long_job *j); /* from the loop; the job is the caller's again */
    /* The module's own: */
    struct sl_long_job *next;
    uint64_t turn;
};

SL_NODISCARD enum sl_code sl_longwork_open(struct sl_longwork **ret, uv_loop_t *loop,
                                           struct sl_error *err);
/* size: of the work, in bytes. It cannot fail. The loop runs on while there is a job. */
void sl_longwork_add(struct sl_longwork *w, struct sl_long_job *j, size_t size);
/* Before all that wait: what takes no time worth counting and gives memory back. */
void sl_longwork_add_first(struct sl_longwork *w, struct sl_long_job *j);
/* Takes back a job that was not begun: `done` is not called. false: it was; `done` will be. */
bool sl_longwork_remove(struct sl_longwork *w, struct sl_long_job *j);
/* No job is left. The loop must run once more for its handle to close. NULL is fine. */
void sl_longwork_close(struct sl_longwork *w);

#endif
