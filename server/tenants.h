/* tenants.h: whom sessions and turns belong to, what each of them may use, and what it does use.
 *
 * A tenant is made when it is first spoken of (by a key, a session in the store, a request) and
 * stays until the end: keys are few. Its quotas are those of its line in the key file (auth.h),
 * and where that says nothing the options' (--tenant-sessions and so on).
 *
 *   sessions, bytes       what it keeps. Of a store that several servers share the store counts,
 *                         for all of them (store.h); else the registry does, here
 *   running               its turns at once, waiting ones among them, on this server
 *   tokens per minute     read and generated, on this server: a bucket that holds a minute's, and
 *                         fills all the time. A turn takes what it could use at most when it
 *                         begins, and gives back at its end what it did not use
 *
 * Everything is taken before it is used and in one step, on one thread: whatever comes at once, no
 * quota is overshot. What is over a quota when that is lowered stays, and nothing comes to it. One
 * exception: what a turn leaves by an operator's options (--keep-turns, --keep-transcript) is
 * counted, and no turn is refused for it; where that has taken a quota, nothing new is.
 *
 * Running turns and tokens are not counted over a fleet: each server guards its own processor, and
 * a count in the store would outlive the server that was killed with it. So N servers give N times
 * as much. After a restart the bucket is full.
 *
 * Loop's thread only. */
#ifndef SLATE_SERVER_TENANTS_H
#define SLATE_SERVER_TENANTS_H

#include <stdio.h>

#include "server/auth.h"
#include "server/session_index.h"

struct sl_tenant {
    struct sl_tenant *next; /* in its bucket */
    struct sl_quotas quotas;
    struct sl_session_list sessions; /* the registry's */
    uint64_t n_sessions, bytes;      /* that count */
    uint64_t n_running;
    double tokens_left;
    uint64_t filled_ms; /* of the loop: when tokens_left was that */
    uint64_t n_tokens;  /* taken and not given back, since the start */
    uint64_t n_refused[SL_QUOTA_KINDS];
    bool has_key;
    char name[];
};

struct sl_tenants;

/* NULL: no memory. quotas: of who has no others. */
struct sl_tenants *sl_tenants_open(const struct sl_quotas *quotas);
void sl_tenants_close(struct sl_tenants *ts); /* no session is left */

/* The tenant of that name; NULL: no memory. */
struct sl_tenant *sl_tenants_get(struct sl_tenants *ts, const char *name);
/* NULL: nobody has spoken of it. */
struct sl_tenant *sl_tenants_find(const struct sl_tenants *ts, const char *name);

/* What the key file says now; NULL: there is none, and one tenant, "default". Errors: NO_MEMORY;
 * then some have their new quotas, and the others their old ones. */
SL_NODISCARD enum sl_code sl_tenants_set_keys(struct sl_tenants *ts, const struct sl_keys *k,
                                              uint64_t now_ms, struct sl_error *err);

/* Each takes of the quota or says which one it was: QUOTA_EXCEEDED. Nobody's ("": sessions that
 * clients keep themselves) has none. */
SL_NODISCARD enum sl_code sl_tenant_add_session(struct sl_tenant *t, uint64_t bytes,
                                                struct sl_error *err);
void sl_tenant_put_session(struct sl_tenant *t, uint64_t bytes); /* it is there, whatever it is */
void sl_tenant_drop_session(struct sl_tenant *t, uint64_t bytes);
SL_NODISCARD enum sl_code sl_tenant_add_bytes(struct sl_tenant *t, uint64_t bytes,
                                              struct sl_error *err);
void sl_tenant_put_bytes(struct sl_tenant *t, uint64_t bytes); /* they are there, likewise */
void sl_tenant_drop_bytes(struct sl_tenant *t, uint64_t bytes);
/* t NULL in these five: the server's own work, which counts for nobody. */
SL_NODISCARD enum sl_code sl_tenant_begin_turn(struct sl_tenant *t, struct sl_error *err);
void sl_tenant_end_turn(struct sl_tenant *t);
uint64_t sl_tenant_tokens_most(const struct sl_tenant *t); /* at once; UINT64_MAX: any number */
SL_NODISCARD enum sl_code sl_tenant_take_tokens(struct sl_tenant *t, uint64_t n, uint64_t now_ms,
                                                struct sl_error *err);
void sl_tenant_return_tokens(struct sl_tenant *t, uint64_t n, uint64_t now_ms);

/* The store has refused it: `used` of `most`. */
enum sl_code sl_tenant_refused(struct sl_tenant *t, enum sl_quota q, uint64_t used, uint64_t most,
                               struct sl_error *err);

/* slate_tenant_…{tenant="…"}, for the tenants that have a key: there are no more of them than keys.
 * shared: sessions and bytes are not known here. */
void sl_tenants_write_metrics(const struct sl_tenants *ts, bool shared, FILE *f);

#endif
