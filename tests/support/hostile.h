/* hostile.h: what the tests of hostile clients share: their servers, crowds of foes that all get
 * in, and how long and how strict a run is. */
#ifndef SLATE_TESTS_HOSTILE_H
#define SLATE_TESTS_HOSTILE_H

#include "tests/support/attack.h"
#include "tests/support/foes.h"
#include "tests/support/server.h"

#define JSON "Content-Type: application/json\r\n"
#define N(a) (sizeof(a) / sizeof *(a))

enum { WAIT_MS = 20000 };

/* PROGRAM [CONNECTIONS [TESTS]]: with a number the run is judged by 90 %, with one above 1,000 it
 * is longer, too; TESTS is a pattern of cmocka's. Asks for as many descriptors as there may be. */
void hostile_begin(int argc, char **argv);

/* How many idle connections there are to be; 1,000, until it is told otherwise. */
extern size_t hostile_idle;
/* The test is skipped where there are too few descriptors for them. */
void hostile_skip_without_descriptors(void);

/* It logs next to nothing, for nobody reads it meanwhile; and it is ready. */
struct server *hostile_start(const char *const *options);
double hostile_resident_mib(const struct server *s);
void hostile_session(const struct server *s, const char *id);

/* Asks until the metric has that value. false: it has another one after WAIT_MS. */
bool hostile_metric_is(const struct server *s, const char *name, double value);

/* A text around n times `part`, as the body of a POST /v1/generate. Its bytes are the caller's. */
struct foe_text hostile_post(const char *begin, const char *part, size_t n, const char *end);

/* So many connections that say nothing, every one of which the server has accepted. They come in
 * lots, each of which has room among those that the kernel has not yet given to the server (4,096):
 * what it drops there it may forget, and a client that says nothing never learns of it. */
struct crowd;
struct crowd *crowd_open(const struct server *s, size_t n, size_t lot);
size_t crowd_size(const struct crowd *c); /* how many are still open */
void crowd_close(struct crowd *c);

#endif
