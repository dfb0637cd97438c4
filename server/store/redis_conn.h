/* redis_conn.h: one connection to Redis, which comes back by itself.
 *
 *   RESOLVING ──> CONNECTING ──> GREETING ──up()──> UP ──down()──> WAITING ──(100 ms … 1 s)──┐
 *       └────────────┴───────────────┴──────────────────down()───────^       <────────────────┘
 *
 * Greeting: AUTH, SELECT, is it a master of a version that is known, does it keep what it
 * acknowledges (`durable`), is what it keeps of a form that is known (`schema`, redis_lua.h), and
 * the scripts are loaded. Each time anew: another server may have taken the address.
 *
 * Commands are hiredis' (0.14, which knows neither time limits nor sizes: both are kept here). No
 * TLS: hiredis 0.14 has none; where the way to Redis is not trusted put a tunnel on it. libuv's
 * adapter of that version stops listening at an error without a word, so there is another one here.
 *
 * Loop's thread only. */
#ifndef SLATE_SERVER_STORE_REDIS_CONN_H
#define SLATE_SERVER_STORE_REDIS_CONN_H

#include <hiredis/async.h>
#include <hiredis/hiredis.h>
#include <uv.h>

#include "slate/err.h"

enum {
    SL_REDIS_PORT = 6379,
    SL_REDIS_HOST_MAX = 253,
    SL_REDIS_DB_MAX = 1u << 20,
    SL_REDIS_SECRET_MAX = 512,             /* bytes of a user's name or password */
    SL_REDIS_REPLY_MAX = 512 << 20,        /* bytes of one reply */
    SL_REDIS_REPLY_ELEMENTS_MAX = 1 << 20, /* of one array in it */
    SL_REDIS_VERSION_MIN = 6,
    SL_REDIS_BACKOFF_MIN_MS = 100,
    SL_REDIS_BACKOFF_MAX_MS = 1000,
    SL_REDIS_SHA_BYTES = 40
};

/* What is called of hiredis, so that tests can make each call fail. */
struct sl_redis_io {
    redisAsyncContext *(*connect)(const char *ip, int port);
    int (*poll_init)(uv_loop_t *loop, uv_poll_t *h, int fd);
    /* Copies what it is given. */
    int (*command)(redisAsyncContext *ac, redisCallbackFn *fn, void *arg, int argc,
                   const char **argv, const size_t *argvlen);
    /* The reply as it is seen; NULL: as if the connection had broken before it came. */
    redisReply *(*reply)(redisReply *r);
};
extern const struct sl_redis_io sl_redis_io_system;

struct sl_rd_address {
    char host[SL_REDIS_HOST_MAX + 1];
    unsigned port, db;
    char user[SL_REDIS_SECRET_MAX + 1], password[SL_REDIS_SECRET_MAX + 1]; /* "": none */
};

/* "//[USER[:PASSWORD]@]HOST[:PORT][/DB]", %XX decoded in user and password; without a password that
 * of SLATE_REDIS_PASSWORD. Errors: USAGE (never tells the password). */
SL_NODISCARD enum sl_code sl_rd_address_parse(struct sl_rd_address *ret, const char *s,
                                              struct sl_error *err);

enum sl_rd_state {
    SL_RD_WAITING,
    SL_RD_RESOLVING,
    SL_RD_CONNECTING,
    SL_RD_GREETING,
    SL_RD_UP,
    SL_RD_CLOSED
};

struct sl_rd_conn {
    uv_loop_t *loop;
    const struct sl_redis_io *io;
    const struct sl_rd_address *address;
    bool durable;
    uint64_t timeout_ms; /* of connecting and greeting */
    unsigned schema;     /* the latest that is known */
    unsigned new_schema; /* of a store that is empty */
    const char *schema_key;
    /* Of it to be loaded, and what Redis calls each afterwards. */
    const char *const *scripts;
    size_t n_scripts;
    char (*shas)[SL_REDIS_SHA_BYTES + 1];
    void (*up)(void *arg);
    void (*down)(void *arg, const struct sl_error *why); /* also of an attempt that failed */
    void *arg;

    enum sl_rd_state state;
    struct sl_error why; /* not UP: what the last attempt ended with; code 0: none did yet */
    uint64_t n_ups;
    redisAsyncContext *ac;
    redisReplyObjectFunctions replies;
    uv_timer_t timer;
    uv_getaddrinfo_t resolve;
    unsigned n_open; /* handles and requests on the loop */
    unsigned n_attempts, backoff_ms;
    size_t n_greeted, n_greetings;
    void (*closed)(void *arg);
};

/* Everything down to arg is set. Begins at once. Errors: INTERNAL. */
SL_NODISCARD enum sl_code sl_rd_conn_open(struct sl_rd_conn *c, struct sl_error *err);
/* `closed` comes from the loop; after it c may go. Replies that are waited for come as NULL before.
 */
void sl_rd_conn_close(struct sl_rd_conn *c, void (*closed)(void *arg));

/* fn gets NULL where the connection ends before the reply. False: it was not sent. UP only. */
typedef void sl_rd_reply(void *arg, redisReply *r);
bool sl_rd_conn_command(struct sl_rd_conn *c, int argc, const char **argv, const size_t *argvlen,
                        redisCallbackFn *fn, void *arg);
/* Ends the connection, such as it is, and begins anew. */
void sl_rd_conn_drop(struct sl_rd_conn *c, const struct sl_error *why);

#endif
