/* kind.h: what a kind of store is made of. One row in store.c's table per kind. */
#ifndef SLATE_SERVER_STORE_KIND_H
#define SLATE_SERVER_STORE_KIND_H

#include "server/store/store.h"

struct sl_store_kind {
    const char *scheme; /* what a spec of this kind begins with: "dir:" */
    const char *usage;  /* "dir:PATH" */
    /* `rest`: the spec behind the scheme. */
    enum sl_code (*open)(struct sl_store **ret, const char *rest,
                         const struct sl_store_options *opt,
                         void (*head)(void *arg, const struct sl_store_head *h), void *arg,
                         struct sl_error *err);
    void (*close)(struct sl_store *st, void (*closed)(void *arg), void *arg);
    void (*put_head)(struct sl_store *st, const struct sl_store_head *h, sl_store_done *cb,
                     void *arg);
    void (*append_turn)(struct sl_store *st, const struct sl_store_key *k,
                        const struct sl_store_turn *t, sl_store_done *cb, void *arg);
    void (*put_snapshot)(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                         const struct sl_store_head *head, unsigned char *data, size_t n,
                         sl_store_done *cb, void *arg);
    /* NULL: a shared store */
    void (*put_answer)(struct sl_store *st, const struct sl_store_key *k,
                       const struct sl_store_answer *a, sl_store_done *cb, void *arg);
    void (*load)(struct sl_store *st, const struct sl_store_key *k, uint64_t version,
                 sl_store_decode *decode, sl_store_loaded *cb, void *arg);
    void (*points)(struct sl_store *st, const struct sl_store_key *k, sl_store_pointed *cb,
                   void *arg);
    void (*put_name)(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                     const char *name, uint64_t version, sl_store_done *cb, void *arg);
    void (*drop_name)(struct sl_store *st, const struct sl_store_key *k, uint64_t now,
                      const char *name, sl_store_done *cb, void *arg);
    void (*remove)(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg);
    void (*stats)(const struct sl_store *st, struct sl_store_stats *ret);
    /* NULL: it is not known here */
    void (*kept_now)(const struct sl_store *st, const struct sl_store_key *k,
                     uint64_t *ret_kept_bytes, uint64_t *ret_n_names);

    /* A shared store's; NULL where `look` is. */
    void (*look)(struct sl_store *st, const char *tenant, const char *id, sl_store_seen *cb,
                 void *arg);
    void (*take)(struct sl_store *st, const char *tenant, const char *id,
                 const char *idempotency_key, enum sl_store_taker taker, sl_store_seen *cb,
                 void *arg);
    void (*renew)(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg);
    void (*release)(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb,
                    void *arg);
    void (*ask)(struct sl_store *st, const char *tenant, const char *id, enum sl_store_ask what,
                uint64_t fence, sl_store_told *cb, void *arg);
    void (*asked)(struct sl_store *st, sl_store_heard *cb, void *arg);
    void (*list)(struct sl_store *st, const char *tenant, const struct sl_list_query *q,
                 sl_store_listed *cb, void *arg);
    void (*sweep)(struct sl_store *st, sl_store_done *cb, void *arg);
    struct sl_stamp (*stamp)(struct sl_store *st);
    uint64_t (*lease_ms)(const struct sl_store *st);
    int64_t (*now)(const struct sl_store *st);
};

/* Every kind's struct begins with it. */
struct sl_store {
    const struct sl_store_kind *kind;
};

/* How a call ended: counted where it says that something is wrong with the store (failures) or with
 * what it keeps of a session (damaged), and not with what was asked of it. The log names a session
 * that is damaged. */
void sl_store_count(struct sl_store_stats *s, const char *tenant, const char *id, enum sl_code c,
                    const struct sl_error *err);

extern const struct sl_store_kind sl_store_dir, sl_store_redis;

#endif
