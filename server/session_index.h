/* session_index.h: how the registry finds sessions, however many there are.
 *
 *   table   all of them by tenant and id: constant time
 *   list    those of one tenant in the order of their ids: a page costs what is on it
 *   ends    those that will expire, the next one first
 *
 * A million sessions must cost a request no more than ten thousand do, and the loop must never
 * stand still to make room for the next one. So the table grows by one bucket at a time (linear
 * hashing), and a list is cut into blocks of a few hundred pointers, of which an insertion moves
 * one. Nothing but an insertion needs memory. The table's hash has a random seed: clients choose
 * ids, and must not be able to choose them so that they meet.
 *
 * Loop's thread only. The sessions are the caller's. */
#ifndef SLATE_SERVER_SESSION_INDEX_H
#define SLATE_SERVER_SESSION_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_session;
struct sl_tenant;

/* --- by name ------------------------------------------------------------------------------------
 */

struct sl_session_table {
    struct sl_session ***segments; /* of SL_TABLE_SEGMENT buckets each */
    size_t n_segments, n_buckets, n;
    uint64_t seed;
};
enum { SL_TABLE_SEGMENT = 1024 };

void sl_session_table_done(struct sl_session_table *t); /* empty or not */
/* False: no memory. There is none of that name. */
bool sl_session_table_insert(struct sl_session_table *t, struct sl_session *s);
void sl_session_table_remove(struct sl_session_table *t, struct sl_session *s);
struct sl_session *sl_session_table_find(const struct sl_session_table *t,
                                         const struct sl_tenant *owner, const char *id);
/* The first of bucket i (< n_buckets), the others behind it by next_same; NULL: none. Removals
 * leave the other buckets as they are. */
struct sl_session *sl_session_table_at(const struct sl_session_table *t, size_t i);

/* --- in order -----------------------------------------------------------------------------------
 */

struct sl_list_block;
struct sl_session_list {
    struct sl_list_block **v; /* n of cap, in order; none is empty */
    size_t n, cap;
};
struct sl_list_place { /* valid until the list changes */
    size_t block, i;
};

void sl_session_list_done(struct sl_session_list *l);
bool sl_session_list_insert(struct sl_session_list *l, struct sl_session *s); /* false: no memory */
void sl_session_list_remove(struct sl_session_list *l, struct sl_session *s);
/* The first whose id is not below. */
struct sl_list_place sl_session_list_seek(const struct sl_session_list *l, const char *id);
/* What stands there, and on to the next; NULL: the end. */
struct sl_session *sl_session_list_next(const struct sl_session_list *l, struct sl_list_place *at);

/* --- by their end -------------------------------------------------------------------------------
 */

struct sl_session_end {
    int64_t at; /* Unix time, s: not before this it is to be looked at */
    struct sl_session *s;
};
struct sl_session_ends { /* a heap */
    struct sl_session_end *v;
    size_t n, cap;
};

void sl_session_ends_done(struct sl_session_ends *e);
/* Room for so many, so that sl_session_ends_set() needs none. False: no memory. */
bool sl_session_ends_reserve(struct sl_session_ends *e, size_t n);
void sl_session_ends_set(struct sl_session_ends *e, struct sl_session *s, int64_t at);
void sl_session_ends_remove(struct sl_session_ends *e, struct sl_session *s); /* if it is there */
/* The first that is due by `now`; NULL: none. */
struct sl_session *sl_session_ends_due(const struct sl_session_ends *e, int64_t now);

#endif
