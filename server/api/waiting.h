/* waiting.h: an exchange that is answered when a change of a session is durable.
 *
 *     sl_waiting_new(&w, ex, 201, &err);  sl_sessions_fork(…, sl_waiting_done, w);
 *
 * A client that goes meanwhile is not answered; the change happens all the same, but for an upload
 * that waits for a place in memory. Loop's thread. */
#ifndef SLATE_SERVER_API_WAITING_H
#define SLATE_SERVER_API_WAITING_H

#include "server/app.h"

struct sl_waiting {
    struct sl_exchange *ex; /* NULL: the client has gone */
    struct sl_app *app;
    int status;
    char deleted[SL_SESSION_ID_MAX + 1]; /* "": the answer is the session */
    struct sl_restoring restoring;       /* a restore's */
    struct sl_exchange *body;            /* of a client that has gone: its body is being read */
    bool rewound, rebuilt;               /* a rewind's, a rebuild's */
    struct sl_past past;
};

SL_NODISCARD enum sl_code sl_waiting_new(struct sl_waiting **ret, struct sl_exchange *ex,
                                         int status, struct sl_error *err);
/* A sl_session_done: answers and frees. */
void sl_waiting_done(void *arg, struct sl_session *s, const struct sl_error *err);

/* The session's object, with ETag, X-Slate-Session and, for 201, Location. */
void sl_app_reply_session(struct sl_exchange *ex, int status, const struct sl_session *s);

/* What a route on one session begins with: it is found and If-Match holds. */
SL_NODISCARD enum sl_code sl_app_find_named(struct sl_exchange *ex, struct sl_session **ret,
                                            struct sl_error *err);

/* Handlers of snapshots.c, memory.c and checkpoints.c; their rows are in sessions.c. */
void sl_post_pause(struct sl_exchange *ex);
void sl_post_resume(struct sl_exchange *ex);
void sl_get_snapshot(struct sl_exchange *ex);
void sl_put_snapshot(struct sl_exchange *ex);
void sl_get_memory(struct sl_exchange *ex);
void sl_post_rewind(struct sl_exchange *ex);
void sl_post_rebuild(struct sl_exchange *ex);
void sl_get_checkpoints(struct sl_exchange *ex);
void sl_post_checkpoints(struct sl_exchange *ex);
void sl_delete_checkpoint(struct sl_exchange *ex);

#endif
