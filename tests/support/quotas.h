/* quotas.h: for tests of quotas: a server over a store of each kind, with a tenant a that may use
 * only so much, a tenant b that may use all, and a key for figures. Failures fail the test. */
#ifndef SLATE_TESTS_QUOTAS_H
#define SLATE_TESTS_QUOTAS_H

#include "tests/support/node.h"
#include "tests/support/redis.h"

#define KEY_A "Authorization: Bearer key-of-tenant-a"
#define KEY_B "Authorization: Bearer key-of-tenant-b"
#define KEY_FIGURES "Authorization: Bearer key-for-figures"

struct quotas {
    struct api api; /* its client is tenant a's */
    struct node node;
    struct redis redis;
    const char *kind;       /* of the store */
    const char *options[2]; /* more of the server's; NULL: none */
};
extern struct quotas quotas;

/* Set-ups of a test: which kind of store; and its tear-down. */
int with_memory(void **state);
int with_dir(void **state);
int with_redis(void **state);
int quotas_stop(void **state);

/* line: what tenant a may use, as in a key file ("sessions=3 bytes=1GiB"). */
void quotas_start(const char *line);
/* The same over a folder, where the server has been ended (node.h). */
void quotas_start_again(void);
/* The key file says so from now on, and the server has read it. */
void set_quota(const char *name, long long n);

/* 429, with the quota's name; retry: must there be a Retry-After, and how long at most? Frees r. */
#define over(r, quota, retry) over_at((r), (quota), (retry), __FILE__, __LINE__)
void over_at(struct reply *r, const char *quota, long retry, const char *file, int line);

/* A metric's value; and asking until it is that. */
double figure(const char *name);
void until_figure(const char *name, double value);

/* Is it 201? Else it fails the test, or must be over the quota. They free r. */
void made(struct reply *r);
bool made_or_over(struct reply *r, const char *quota);

/* Of tenant a: deletes a session, which must be there; how many there are. */
void gone(const char *id);
size_t listed(void);

#endif
