/* index.h: what the store knows of every session without reading a file: heads, where their records
 * lie in the log, which snapshot is theirs.
 *
 * One function applies a record, both when the log is read at open and when one has been written:
 * memory and disk cannot differ in what a record means. Applying allocates nothing, so that what is
 * on the disk can always be taken into memory.
 *
 *   tenants ──> names, and which of their folders are known to be on the disk
 *   buckets ──> sessions ──> entries: turns since the snapshot, and older ones that are kept to
 *                       │            rewind to, or for their answers, in the order of their
 * versions └──> kept: earlier snapshots, in the same order
 *
 * With keep_turns the last so many versions stay within reach: each is an earlier snapshot and the
 * turns since it. An earlier snapshot goes when the one after it is old enough to stand for all
 * versions that are kept, and with it the turns up to that one. So a session never has more than
 * keep_turns of them, and most have one or two. A version with a name stays within reach, however
 * old it is: for each name at most one snapshot more, and the turns from there to it.
 *
 * Owner: the loop's thread. A rewrite's slice, in libuv's pool, reads sessions and sets `moved_to`;
 * no record is applied meanwhile. */
#ifndef SLATE_SERVER_STORE_INDEX_H
#define SLATE_SERVER_STORE_INDEX_H

#include "server/store/record.h"

enum { SL_ANSWER_LIFE_S = 86400, SL_STORE_LEAVES = 256 /* 16 × 16 folders a tenant */ };

bool sl_answer_expired(int64_t answered_at, int64_t now);

struct sl_op;

struct sl_ix_tenant {
    struct sl_ix_tenant *next;
    size_t name_n;
    bool synced;         /* its folder's entry in the one above */
    bool fan_synced[16]; /* likewise one and two levels down */
    unsigned char leaf_synced[SL_STORE_LEAVES / 8];
    char name[SL_TENANT_MAX + 1];
};

/* Where a record lies. size 0: there is none. */
struct sl_place {
    uint64_t at;
    uint64_t moved_to; /* a rewrite's: where it lies in the new log; 0: it is not in there */
    uint32_t size, moved_size;
};

struct sl_ix_entry {
    struct sl_ix_entry *next;
    struct sl_place place;
    uint64_t version, tokens_seen;
    int64_t answered_at, used_at;
    uint32_t n_tokens;
    uint32_t answer_n; /* bytes of the answer's payload */
    bool turn;         /* since the snapshot */
    bool kept;         /* before it, since an earlier one that is kept */
    bool answer;       /* one of those kept */
};

/* An earlier snapshot; or a file that nobody needs any more. */
struct sl_ix_snap {
    struct sl_ix_snap *next;
    struct sl_snapfile file; /* number 0: none; the session was empty (version 0) */
    struct sl_place place;   /* of a record that says so; size 0: it was in a HEAD */
    uint64_t tokens_seen;
    int64_t used_at;
    bool found; /* files.c's: at open, its file was seen */
};

/* What a version is called. */
struct sl_ix_name {
    struct sl_ix_name *next;
    struct sl_place place;
    uint64_t version;
    char name[SL_SESSION_ID_MAX + 1];
};

struct sl_ix_session {
    struct sl_ix_session *next; /* in its bucket */
    uint64_t hash;              /* of both names, on every machine the same: files.h's folder */
    uint64_t seeded;            /* likewise, with the index's seed: its bucket */
    struct sl_ix_tenant *tenant;
    struct sl_op *ops, *last_op; /* what was asked for, in order; the first one is being done */
    bool exists;                 /* false: a place to wait in; nothing below is meaningful */
    unsigned char incarnation[16];
    uint32_t log_number; /* of the log that its places are in: the index's, or the one before */
    uint32_t in_rewrite; /* its place in the list of the rewrite that is under way, from 1 on; 0: it
                            is newer than that. Else: any */
    uint64_t version, tokens_seen;
    int64_t created_at, used_at, ttl_s;
    uint32_t metadata_n;    /* in the record at `head` */
    struct sl_place head;   /* HEAD */
    struct sl_place snapat; /* SNAP; size 0: it was in the HEAD */
    struct sl_snapfile snap;
    uint64_t snap_tokens; /* seen at it */
    int64_t snap_used_at;
    struct sl_ix_snap *kept, *last_kept;
    struct sl_ix_name *names; /* by version */
    size_t n_names;
    struct sl_ix_entry *entries, *last_entry;
    size_t n_turns, n_answers;
    uint64_t replay_tokens;
    uint64_t live;           /* bytes of its records */
    struct sl_place damaged; /* a record that cannot be read, or BROKEN: nothing but a delete is
                                possible */
    size_t id_n;
    char id[];
};

struct sl_moved;
struct sl_index {
    struct sl_ix_session **buckets;
    size_t n_buckets; /* a power of two; 0: none yet */
    uint64_t seed;    /* drawn at open: clients name sessions, and none may know which names meet in
                         one bucket */
    size_t n_nodes, n_sessions;
    struct sl_ix_tenant *tenants;
    uint64_t live;           /* bytes of all records that are needed */
    uint64_t snapshot_bytes; /* in files */
    uint64_t keep_turns;     /* versions before the last that stay within reach; set at the start */
    uint64_t last_number;    /* the largest of a snapshot's file */

    bool walked; /* somebody goes through the buckets by and by: their number stays */
    bool moving; /* not every session's places are in the log of this number yet */
    uint32_t log_number;
    struct sl_moved *moves;
    size_t n_moves, n_settled; /* buckets */
};

void sl_index_done(struct sl_index *ix);
void sl_index_free_entries(struct sl_ix_session *s); /* and its names */

/* The session, or a new place for it (exists false); NULL: no memory. */
struct sl_ix_session *sl_index_get(struct sl_index *ix, const char *tenant, size_t tenant_n,
                                   const char *id, size_t id_n);
/* NULL: there is none, nor a place. */
struct sl_ix_session *sl_index_find(const struct sl_index *ix, const char *tenant, size_t tenant_n,
                                    const char *id, size_t id_n);
/* Frees the place when there is no session and nothing waits in it. */
void sl_index_release(struct sl_index *ix, struct sl_ix_session *s);

/* Calls each(arg, s) for every session there is; each may not change the index. Stops at false. */
bool sl_index_each(const struct sl_index *ix, bool (*each)(void *arg, struct sl_ix_session *s),
                   void *arg);

/* What a record of some kind may need to be taken in: all that is not NULL is needed. */
struct sl_ix_room {
    struct sl_ix_entry *entry;
    struct sl_ix_snap *snap;
    struct sl_ix_name *name;
};
static inline bool sl_index_wants_entry(enum sl_record_kind k)
{
    return k == SL_RECORD_TURN || k == SL_RECORD_ANSWER || k == SL_RECORD_KEPT_TURN;
}
static inline bool sl_index_wants_snap(enum sl_record_kind k)
{
    return k == SL_RECORD_HEAD || k == SL_RECORD_SNAP || k == SL_RECORD_DELETE ||
           k == SL_RECORD_KEPT;
}
static inline bool sl_index_wants_name(enum sl_record_kind k)
{
    return k == SL_RECORD_NAME;
}
bool sl_index_make_room(struct sl_ix_room *ret, enum sl_record_kind k); /* false: no memory */
void sl_index_free_room(struct sl_ix_room *room);

/* What a record does. `payload`: at least its fixed part, of a name all. `room` was made for its
 * kind, and is taken over. *ret_old: the snapshot files that are not needed any more, the caller's
 * to free. False: the record contradicts what came before it, and nothing was changed. */
bool sl_index_apply(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                    const unsigned char *payload, uint64_t at, struct sl_ix_room *room,
                    struct sl_ix_snap **ret_old);
void sl_index_free_snaps(struct sl_ix_snap *v);

/* How the session at `version` is had: a snapshot, and the turns after it. False: not any more. */
bool sl_index_reach(const struct sl_ix_session *s, uint64_t version, struct sl_snapfile *ret);
/* The versions that are within reach, oldest first, the last one among them: fills v, which has
 * room for sl_index_count_points(), and says how many there are. */
size_t sl_index_count_points(const struct sl_ix_session *s);
size_t sl_index_points(const struct sl_ix_session *s, struct sl_store_point *v);
/* Is there a name for a version that is had from this earlier snapshot? */
bool sl_index_is_named(const struct sl_ix_session *s, const struct sl_ix_snap *x);
const struct sl_ix_name *sl_index_find_name(const struct sl_ix_session *s, const char *name);
/* Fills v, which has room for s->n_names, by version. */
void sl_index_names(const struct sl_ix_session *s, struct sl_store_name *v);
/* Of the files of earlier snapshots. */
uint64_t sl_index_kept_bytes(const struct sl_ix_session *s);

/* A record at `at` cannot be read: the session, which it may have made, is damaged. */
void sl_index_damage(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                     uint64_t at);

/* A record that a rewrite has copied by itself. */
struct sl_moved {
    uint64_t at, to; /* in the old log and in the new one */
    uint32_t size;
};
/* After a rewrite: every place is where it was moved to; else where one of the n moves says (they
 * are in the order of `at`); what was not moved is dropped. Takes over v (sl_free). It is written
 * down for each session when something is asked of it, or by and by: so many buckets at a time;
 * false: it is done. Not while another is not done. */
void sl_index_move(struct sl_index *ix, struct sl_moved *v, size_t n);
void sl_index_settle(struct sl_index *ix, struct sl_ix_session *s);
bool sl_index_settle_some(struct sl_index *ix, size_t n_buckets);
void sl_index_moved(struct sl_index *ix, struct sl_moved *v, size_t n); /* all at once */

/* After an open: earlier snapshots whose files were not found are none. (They had been removed
 * already, and the log still speaks of them: it was opened with a smaller keep_turns before.) */
void sl_index_forget_missing(struct sl_index *ix);

/* The head as the record at s->head would be if it were written now. */
void sl_index_head(const struct sl_ix_session *s, struct sl_head_payload *ret);
/* The same as of the last snapshot. */
void sl_index_snap_head(const struct sl_ix_session *s, struct sl_head_payload *ret);

#endif
