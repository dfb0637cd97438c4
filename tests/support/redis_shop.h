/* redis_shop.h: shops (stores.h) on one real Redis, and what servers do there with leases. */
#ifndef SLATE_TESTS_REDIS_SHOP_H
#define SLATE_TESTS_REDIS_SHOP_H

#include "tests/support/redis.h"
#include "tests/support/store_suite.h"

/* The program's Redis: for a group's set-up and tear-down. */
extern struct redis redis;
int start_redis(void **unused);
int end_redis(void **unused);

/* What is asked here is answered, however much else the machine has to do. */
extern const struct sl_store_options redis_options;

/* Open, on an empty Redis. */
struct shop *new_redis_shop(void);
struct shop *new_redis_shop_keeping(uint64_t keep_turns);
/* Another server on the same Redis. */
struct shop *other_redis_shop(void);
struct shop *other_redis_shop_with(const struct sl_store_options *opt);

/* One call each, waited for. */
struct seen {
    struct shop *st;
    struct sl_store_view view;
    char held_key[64];
    enum sl_code code;
    bool has_view;
};
void on_seen(void *arg, const struct sl_store_view *v, const struct sl_error *err);
struct seen look(struct shop *st, const struct sl_store_key *k);
struct seen take(struct shop *st, const struct sl_store_key *k, const char *key);
enum sl_code turn(struct shop *st, const struct sl_store_key *k, uint64_t version);
enum sl_code renew(struct shop *st, const struct sl_store_key *k);
enum sl_code release(struct shop *st, const struct sl_store_key *k);

#endif
