/* honest.h: eight honest clients in a closed loop, and how much they get done.
 *
 * Each asks one request after the other: a short generation alone and on a session, a stream, the
 * session's description, tokens of a text; every fifth of them on a new connection, so that a
 * server that lets nobody new in shows it. One thread, the caller's; each answer must be the
 * expected one, else the test ends with what came instead. */
#ifndef SLATE_TESTS_HONEST_H
#define SLATE_TESTS_HONEST_H

#include <stddef.h>

struct honest;

/* Makes their sessions on the server at 127.0.0.1:port. */
struct honest *honest_open(unsigned port);
void honest_close(struct honest *h); /* NULL is fine */

/* Requests answered per second, over n of them or so many milliseconds, whichever are less. How
 * many they were: *ret_answered (may be NULL). */
double honest_slice(struct honest *h, size_t n, unsigned ms, size_t *ret_answered);

/* Of those that were asked since the last call: how many found their kept connection closed, and
 * were asked again on a new one, as any client does. */
size_t honest_reconnects(struct honest *h);

#endif
