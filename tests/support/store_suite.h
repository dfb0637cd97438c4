/* store_suite.h: what every kind of store must do, as tests that run over any of them. */
#ifndef SLATE_TESTS_STORE_SUITE_H
#define SLATE_TESTS_STORE_SUITE_H

#include "tests/support/stores.h"

/* The program's: a new shop, open and empty; and what an error says of a turn that is too large. */
extern struct shop *(*suite_new_shop)(void);
extern const char *suite_too_large;

void suite_life(void **state); /* everything a session can go through */
/* Heads, turns and snapshots in random order; `after` each of the rounds. Frees st. */
void suite_random_changes(struct shop *st, void (*after)(struct shop *st, int round));
/* With keep_turns 2. Frees st. */
void suite_a_name_behind_the_last_turns(struct shop *st);
void suite_conditions_of_turns(void **state);
void suite_conditions_of_heads(void **state);
void suite_conditions_of_snapshots(void **state);
void suite_conditions_of_names(void **state);
void suite_names_hold_no_more(void **state);
void suite_order_within_a_session(void **state);
void suite_calls_from_callbacks(void **state);
void suite_sizes(void **state);

#define STORE_SUITE                                                                                \
    cmocka_unit_test(suite_life), cmocka_unit_test(suite_conditions_of_turns),                     \
        cmocka_unit_test(suite_conditions_of_heads),                                               \
        cmocka_unit_test(suite_conditions_of_snapshots),                                           \
        cmocka_unit_test(suite_conditions_of_names), cmocka_unit_test(suite_names_hold_no_more),   \
        cmocka_unit_test(suite_order_within_a_session),                                            \
        cmocka_unit_test(suite_calls_from_callbacks), cmocka_unit_test(suite_sizes)

/* --- what tests of one kind need too -----------------------------------------------------------*/

void free_shop(struct shop *st);
void check_twice(struct shop *st); /* as it is, and as it is after opening again */
struct sl_store_stats stats_of(const struct shop *st);
/* "3 4 7": what is kept of session 0, now and after opening again. */
void expect_versions(struct shop *st, const char *versions);

/* What one call gave. */
struct got {
    size_t *n_waiting;
    int n_called;
    enum sl_code code;
    struct sl_error err;
};

/* g, to be filled by the call that comes. */
struct got *expect(struct shop *st, struct got *g);
void on_got(void *arg, enum sl_code code, const struct sl_error *err);
void on_got_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err);
/* Waits; it failed with that, and not from inside the call. */
void must_fail(struct shop *st, const struct got *g, enum sl_code code, const char *text);

#endif
