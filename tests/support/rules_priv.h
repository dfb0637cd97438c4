/* rules_priv.h: lists of tensors for rules.c's table that lie in files of their own. */
#ifndef SLATE_TESTS_RULES_PRIV_H
#define SLATE_TESTS_RULES_PRIV_H

#include "tests/support/rules.h"

/* BlinkDL's files */
void rules_rwkv4(struct seeded *s);
void rules_rwkv5_0(struct seeded *s); /* no gate, one decay per head */
void rules_rwkv5_1(struct seeded *s); /* a gate, one decay per head */
void rules_rwkv5_2(struct seeded *s); /* a gate, decays per channel */
void rules_rwkv6(struct seeded *s);

/* performer-pytorch's */
void rules_performer(struct seeded *s);      /* the usual one: with rotary positions */
void rules_performer_more(struct seeded *s); /* learned positions, biases */

#endif
