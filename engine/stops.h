/* stops.h: finds the first stop string in a text that arrives in pieces. Private to libslate.
 *
 * The text is a stream of bytes, cut anywhere. It ends at the first byte at which any stop string
 * is complete; where several are complete at that byte the longest one (it began first) is the
 * match, and of equal ones the first in the list. A match may begin anywhere, also in the middle of
 * an attempt that failed: "\n\nUser:" is found in "\n\n\nUser:".
 *
 * What is open: the bytes at the end of the text that could be the beginning of a stop string.
 * They must not be shown yet, and everything before them is safe for ever.
 *
 * One thread at a time. Nothing allocates after open. The strings do not change after it; what a
 * matcher remembers of the text is struct sl_stops_state, which can be copied and written down. */
#ifndef SLATE_ENGINE_STOPS_H
#define SLATE_ENGINE_STOPS_H

#include "slate/engine.h"

struct sl_stops;

/* How many bytes of each stop string the end of the text agrees with. All zero: a new text. */
struct sl_stops_state {
    uint16_t at[SL_STOPS_MAX];
};

/* Copies n ≤ SL_STOPS_MAX strings of 1 … SL_STOP_BYTES_MAX bytes; with none nothing ever matches.
 * The caller closes *ret. Errors: INVALID_VALUE (param "stop"), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_stops_open(struct sl_stops **ret, const struct sl_stop *stops,
                                        size_t n, struct sl_error *err);
void sl_stops_close(struct sl_stops *s); /* NULL is fine */

/* A new text. */
void sl_stops_reset(struct sl_stops *s);

/* The next n bytes of the text. True: a stop string is complete; *ret_used bytes of these n, its
 * last one included, belong to the text, *ret_index says which string and *ret_match_len how long
 * it is (it may have begun in earlier feeds). The matcher is reset then. False: all n bytes were
 * taken and no output is written. */
bool sl_stops_feed(struct sl_stops *s, const unsigned char *bytes, size_t n, size_t *ret_used,
                   size_t *ret_match_len, int *ret_index);

/* How many bytes at the end of the text are open; 0 … the longest string's length - 1. */
size_t sl_stops_open_bytes(const struct sl_stops *s);

/* The state as it is, and back to it. A state that these strings cannot be in (it was damaged) is
 * refused: false, and nothing changes. */
struct sl_stops_state sl_stops_save(const struct sl_stops *s);
SL_NODISCARD bool sl_stops_restore(struct sl_stops *s, const struct sl_stops_state *state);

#endif
