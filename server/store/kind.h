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
    void (*load)(struct sl_store *st, const struct sl_store_key *k, sl_store_decode *decode,
                 sl_store_loaded *cb, void *arg);
    void (*remove)(struct sl_store *st, const struct sl_store_key *k, sl_store_done *cb, void *arg);
    void (*stats)(const struct sl_store *st, struct sl_store_stats *ret);
};

/* Every kind's struct begins with it. */
struct sl_store {
    const struct sl_store_kind *kind;
};

extern const struct sl_store_kind sl_store_dir;

#endif
