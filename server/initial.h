/* initial.h: the initial states that a server was given (--initial-state): what new sessions begin
 * with, and what `from` can name.
 *
 * A state of this kind is data like any prompt: a session that began with it holds it in its first
 * snapshot, and goes on with it on a server that was not given it. Read at start; after that
 * nothing changes: any thread. */
#ifndef SLATE_SERVER_INITIAL_H
#define SLATE_SERVER_INITIAL_H

#include "server/config.h"
#include "slate/snapshot.h"

enum {
    SL_INITIAL_STATES_MAX = 64,
    SL_INITIAL_NAME_MAX = 64 /* bytes of [A-Za-z0-9._-], not beginning with a dot */
};

struct sl_initial_states;

/* `given`: "FILE" is what every new session begins with, "NAME=FILE" what sessions may ask for by
 * that name. The caller closes *ret. Errors: USAGE (twice, too many, a name that is none), those of
 * sl_initial_state_open(). */
SL_NODISCARD enum sl_code sl_initial_states_open(struct sl_initial_states **ret,
                                                 const struct sl_model *m,
                                                 const struct sl_strings *given,
                                                 struct sl_error *err);
void sl_initial_states_close(struct sl_initial_states *s); /* NULL is fine */

/* state_bytes of the model, 64-byte aligned; as long as s. NULL: there is none (s may be NULL). */
const void *sl_initial_states_default(const struct sl_initial_states *s);

/* *ret NULL: the model's own beginning, which is called "none". Errors: INVALID_VALUE (names the
 * field, and those that there are). */
SL_NODISCARD enum sl_code sl_initial_states_find(const struct sl_initial_states *s,
                                                 const char *name, const char *field,
                                                 const void **ret, struct sl_error *err);

/* Names that sessions may ask for, in the order given; as long as s. */
const char *const *sl_initial_states_names(const struct sl_initial_states *s, size_t *ret_n);

#endif
