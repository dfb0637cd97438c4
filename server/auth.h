/* auth.h: keys, tenants, roles, quotas.
 *
 * The key file has one key per line, `KEY TENANT ROLE[,ROLE]`, separated by white space; '#' begins
 * a comment line. KEY: 8 … 256 visible ASCII characters; TENANT: 1 … 64 of [A-Za-z0-9._-]; ROLE:
 * user, metrics, admin. A tenant may have several keys (so keys are changed without orphaning its
 * sessions); a key stands in one line only. At most 1,024 keys, 1 MiB.
 *
 * A line `quota TENANT NAME=VALUE …` says what a tenant may use (tenants.h): sessions, bytes (4096,
 * 64KiB, 1GiB), running, tokens-per-minute; 0: any number. What it does not name is as the server's
 * options have it. ("quota" is too short to be a key.) One line a tenant.
 *
 * Lines and not JSON: a person writes this file, a comment beside a key says whose it is, and the
 * server need not hold a JSON parser over it.
 *
 * A key is compared as a block of fixed size, without a branch on its bytes, against every key of
 * the file, so that neither the time nor the place of a match tells anything.
 *
 * A set of keys does not change; a reload makes another set and swaps the pointer on the loop's
 * thread (requests copy tenant and roles out). */
#ifndef SLATE_SERVER_AUTH_H
#define SLATE_SERVER_AUTH_H

#include "server/exchange.h"

enum {
    SL_KEYS_MAX = 1024,
    SL_KEY_BYTES_MAX = 256,
    SL_KEY_BYTES_MIN = 8,
    SL_TENANT_BYTES_MAX = 64,
};

#define SL_TENANT_DEFAULT "default" /* where nobody needs a key */

enum sl_quota {
    SL_QUOTA_SESSIONS,
    SL_QUOTA_BYTES,
    SL_QUOTA_RUNNING,
    SL_QUOTA_TOKENS, /* per minute */
    SL_QUOTA_KINDS
};
extern const char *const sl_quota_names[SL_QUOTA_KINDS]; /* as the key file has them */

#define SL_QUOTA_UNSAID UINT64_MAX
#define SL_QUOTA_LARGEST ((uint64_t)1 << 53)
struct sl_quotas {
    uint64_t most[SL_QUOTA_KINDS]; /* 0: any number; of a key file's line also SL_QUOTA_UNSAID */
};

struct sl_keys;

struct sl_identity {
    char tenant[SL_TENANT_BYTES_MAX + 1];
    unsigned roles;
};

/* Reads a key file. Any thread (a reload runs in libuv's pool). *ret_exposed (may be NULL): others
 * than the owner and the group may use the file. Errors: FILE_NOT_FOUND, IO, FILE_CORRUPT (names
 * the line and what is wrong, never the key), TOO_LARGE, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_keys_open(struct sl_keys **ret, const char *path, bool *ret_exposed,
                                       struct sl_error *err);
void sl_keys_close(struct sl_keys *k); /* NULL is fine */
size_t sl_keys_count(const struct sl_keys *k);
const char *sl_keys_tenant(const struct sl_keys *k, size_t i); /* of the i-th key */
/* The tenant's line; NULL: it has none. */
const struct sl_quotas *sl_keys_quotas(const struct sl_keys *k, const char *tenant);
/* A tenant that has a line for its quotas, and no key; NULL: there is none. */
const char *sl_keys_keyless(const struct sl_keys *k);

/* Who sends this Authorization header (NULL: none was sent). keys NULL: nobody needs a key; tenant
 * "default", all roles. Errors: UNAUTHORIZED. */
SL_NODISCARD enum sl_code sl_keys_identify(const struct sl_keys *k, const char *authorization,
                                           struct sl_identity *ret, struct sl_error *err);

/* Is the role there? Errors: FORBIDDEN, names the role. */
SL_NODISCARD enum sl_code sl_identity_require(const struct sl_identity *id, unsigned role,
                                              struct sl_error *err);

#endif
