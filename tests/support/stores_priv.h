/* stores_priv.h: the model of a shop (stores.h), for stores.c. Any thread; nothing is kept. */
#ifndef SLATE_TESTS_STORES_PRIV_H
#define SLATE_TESTS_STORES_PRIV_H

#include "tests/support/stores.h"

enum { TURN_TOKENS = 40, TURN_BODY = 300 };

/* A turn as the store is given it; `turn` and `answer` point into it. */
struct turn_content {
    uint32_t tokens[TURN_TOKENS];
    char continuation[64], key[32];
    unsigned char body[TURN_BODY];
    struct sl_store_answer answer;
    struct sl_store_turn turn;
};
void shop_turn(struct turn_content *c, const struct model_turn *t, int64_t at);
size_t shop_n_tokens(uint64_t seed); /* of that turn */

void shop_fill(unsigned char *p, size_t n, uint64_t seed);
/* JSON, and its length; seed 0: none. */
size_t shop_metadata(char ret[64], uint64_t seed);
/* sl_free(); NULL: no memory (a test makes allocations fail). */
unsigned char *shop_snapshot(uint64_t seed, size_t n);

/* Of the i-th session. */
void shop_name(size_t i, const char **ret_tenant, char ret_id[32]);

/* Was anything written that leads there? */
bool shop_was_written(const struct model_session *m, uint64_t version);

/* What a change makes of a session. */
void shop_apply(struct model_session *m, const struct model_op *op);

bool shop_same_turn(const struct sl_store_turn *t, const struct sl_store_turn *want);
/* NULL: as the model has it; else what differs. */
const char *shop_compare_head(const struct model_session *m, const struct sl_store_head *h);
const char *shop_compare(const struct shop *st, const struct model_session *m,
                         const struct sl_store_record *r);

#endif
