/* direct.h: the engine by itself in this process, with the mix of tokens that clients of a server
 * have it compute: what the server could give at most. No HTTP, no sessions, no text.
 *
 * Turns are submitted and taken by the caller's thread, as the server's loop does; the engine's
 * threads are those that a server's would be. Failures end the program. */
#ifndef SLATE_TESTS_DIRECT_H
#define SLATE_TESTS_DIRECT_H

#include "server/cli/load.h"
#include "slate/engine.h"
#include "tests/support/works.h"

struct direct {
    struct sl_loaded loaded;
    struct sl_engine *engine;
    unsigned char *states; /* n_states of them, in a row */
    size_t n_states, state_bytes;
};

/* The model as `slate serve` with this configuration loads it, and its threads. most: turns at
 * once.
 */
void direct_open(struct direct *d, const struct sl_config *config, size_t most);
void direct_close(struct direct *d);

/* One round of `steady` (works.h): WORK_ENGINE of cell. */
void direct_steady(struct works *w, struct direct *d, size_t clients, struct series *cell);

#endif
