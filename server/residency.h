/* residency.h: which sessions are in memory: places, loads, saves, evictions.
 *
 * A session in memory has a place; there are --sessions-in-memory of them. A session that is used
 * and has none waits for one, in order; the place comes from the least recently used session that
 * is free, after its snapshot is in the store where it was not. Some places are kept free ahead of
 * need, so that a load usually waits for the disk only.
 *
 * A load brings the snapshot's state and makes the tokens of the turns since pending: the next turn
 * feeds them first, which is the replay. So there is no other replay code than the forward pass.
 *
 * Without a store every session has its place for ever, and there are no more sessions than places.
 * Loop's thread only; encoding and decoding run in libuv's pool, on slots that are pinned by a
 * reference. */
#ifndef SLATE_SERVER_RESIDENCY_H
#define SLATE_SERVER_RESIDENCY_H

#include "server/sessions.h"
#include "slate/snapshot.h"

/* Calls back (maybe from inside) when the session is in memory and has a place. Whoever does not
 * hold the lease uses it inside the callback only. Errors: those of sl_store_load() and of
 * sl_snapshot_read(), as STORE_CORRUPT. The session must not be deleted meanwhile: its lease is
 * refused to a delete while anybody waits. */
void sl_sessions_ready(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                       void *arg);

/* The snapshot of the last commit as bytes, for a reader or for the store. The session is in
 * memory; it stays so until the callback. e NULL after an error (NO_MEMORY, INTERNAL). e->data is
 * the callback's (sl_free). */
struct sl_encoded {
    unsigned char *data;
    size_t n;
    uint64_t version;       /* of the commit that it holds */
    struct sl_stamp stamp;  /* likewise */
    uint64_t tokens_seen;   /* then */
    uint64_t replay_tokens; /* of the turns since the last snapshot, up to it */
};
typedef void sl_session_encoded(void *arg, struct sl_session *s, const struct sl_encoded *e,
                                const struct sl_error *err);
void sl_sessions_encode(struct sl_sessions *ss, struct sl_session *s, enum sl_dtype dtype,
                        sl_session_encoded *cb, void *arg);

/* The last commit is in the store as a snapshot. Without a store: at once. */
void sl_sessions_save(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb, void *arg);

/* Saved, then out of memory: its place is free. Errors: SESSION_BUSY, the store's. */
void sl_sessions_evict(struct sl_sessions *ss, struct sl_session *s, sl_session_done *cb,
                       void *arg);

/* Saves all that is not saved (drain), when nobody makes, changes or deletes any more. `flushed`
 * says how many could not be, and why the first could not. */
typedef void sl_sessions_flushed(void *arg, size_t n_failed, const struct sl_error *first);
void sl_sessions_flush(struct sl_sessions *ss, sl_sessions_flushed *flushed, void *arg);

size_t sl_sessions_in_memory(const struct sl_sessions *ss);

struct sl_residency_stats {
    uint64_t loads, saves, evictions, failures;
    uint64_t reread_tokens; /* that loads left to be read */
};
void sl_residency_stats(const struct sl_sessions *ss, struct sl_residency_stats *ret);

#endif
