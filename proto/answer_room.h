/* answer_room.h: how long the answer to a turn can become at most, before a token of it is known.
 *
 * An answer that is told at once, or kept, has a limit, and a turn that was computed must not fail
 * for it: what could be longer is refused before. So the bound is that of the longest token of the
 * vocabulary, in each place where an answer names one; real answers have a tenth of it. Any
 * thread. */
#ifndef SLATE_PROTO_ANSWER_ROOM_H
#define SLATE_PROTO_ANSWER_ROOM_H

#include "proto/request.h"

/* The longest of the tokens that were added, in bytes of … All zero: none yet. */
struct sl_token_room {
    size_t text; /* … JSON text */
    size_t name; /* … a name in the logprobs of /v1/completions */
    size_t list; /* … a list of its bytes */
};
void sl_token_room_add(struct sl_token_room *r, const unsigned char *bytes, size_t n);

enum { SL_ANSWER_ROOM_FIXED = 64 << 10 }; /* of an answer, whatever its number of tokens */

/* What each token adds at most, with its id and that many alternatives (-1: no log probabilities).
 * Never 0. */
size_t sl_answer_room(const struct sl_token_room *r, enum sl_dialect dialect, int logprobs);

#endif
