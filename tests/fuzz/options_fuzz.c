/* options_fuzz.c: what whoever starts a server writes, and what clients send to be held against it.
 * The first byte says what the rest is: lines of a command line; a key file; an Authorization
 * header and a key file; --listen, a Host and an Origin; the address of a Redis.
 *
 * What is refused must say why, in UTF-8, and never tell a key or a password; what is taken must be
 * within what config.h, auth.h, access.h and redis_conn.h promise. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "server/access.h"
#include "server/auth.h"
#include "server/store/redis_conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ARGS_MAX = 16 };

static void check_refusal(enum sl_code c, const struct sl_error *err)
{
    assert(err->code == c && err->message[0]);
    assert(memchr(err->message, '\0', sizeof err->message));
    assert(sl_utf8_valid(err->message, strlen(err->message)));
}

/* The line at *at as a string of its own; NULL: there is none any more. */
static char *line(char **at)
{
    char *s = *at;
    if (!s)
        return NULL;
    char *end = strchr(s, '\n');
    *at = end ? end + 1 : NULL;
    if (end)
        *end = '\0';
    return s;
}

/* --- the command line --------------------------------------------------------------------------*/

static void check_values(const struct sl_option_set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        const struct sl_option *o = &set->rows[i];
        const void *field = (const char *)set->dst + o->offset;
        uint64_t n;
        if (!(o->commands & SL_CMD_SERVE))
            continue;
        if (o->type == SL_OPTION_COUNT || o->type == SL_OPTION_SIZE ||
            o->type == SL_OPTION_DURATION) {
            memcpy(&n, field, sizeof n);
            assert((double)n >= o->min && (double)n <= o->max);
        } else if (o->type == SL_OPTION_REAL) {
            double v;
            memcpy(&v, field, sizeof v);
            assert(v >= o->min && v <= o->max);
        }
    }
}

static void options(char *text)
{
    static struct sl_config config;
    struct sl_option_set set = {.dst = &config};
    struct sl_args args = {0};
    struct sl_error err = {0};
    char *argv[ARGS_MAX + 2] = {"serve"}, *s;
    int argc = 1;
    memset(&config, 0, sizeof config);
    set.rows = sl_config_options(&set.n);
    while (argc <= ARGS_MAX && (s = line(&text)) != NULL)
        argv[argc++] = s;
    enum sl_code c = sl_options_parse(&set, 1, SL_CMD_SERVE, argc, argv, &args, &err);
    if (c) {
        check_refusal(c, &err);
    } else {
        check_values(&set);
        c = sl_config_check(&config, &err);
        if (c)
            check_refusal(c, &err);
    }
    sl_options_done(&set, 1, &args);
}

/* --- keys --------------------------------------------------------------------------------------*/

static void check_identity(const struct sl_identity *id)
{
    assert(id->roles && strlen(id->tenant) >= 1 && strlen(id->tenant) <= SL_TENANT_BYTES_MAX);
}

/* The first word of each line that could be a key must not stand in a message. */
static void tells_no_key(const char *text, size_t n, const char *message)
{
    char word[SL_KEY_BYTES_MAX + 1];
    for (size_t at = 0; at < n;) {
        size_t k = 0;
        while (at + k < n && text[at + k] > ' ' && text[at + k] <= '~')
            k++;
        if (k > 12 && k < sizeof word) { /* shorter ones may be words of the message */
            memcpy(word, text + at, k);
            word[k] = '\0';
            assert(!strstr(message, word));
        }
        at += k;
        while (at < n && text[at] != '\n')
            at++;
        at++;
    }
}

/* authorization NULL: none. */
static void keys(const char *authorization, const char *text, size_t n)
{
    struct sl_keys *k = NULL;
    struct sl_error err = {0};
    struct sl_identity id;
    char path[64];
    int fd = memfd_create("keys", 0);
    assert(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    enum sl_code c = sl_keys_open(&k, path, NULL, &err);
    close(fd);
    assert((c == SL_OK) == (k != NULL));
    if (c) {
        check_refusal(c, &err);
        tells_no_key(text, n, err.message);
        return;
    }
    assert(sl_keys_count(k) >= 1 && sl_keys_count(k) <= SL_KEYS_MAX);
    c = sl_keys_identify(k, authorization, &id, &err);
    if (c)
        assert(c == SL_E_UNAUTHORIZED);
    else
        check_identity(&id);
    sl_keys_close(k);
}

/* --- addresses ---------------------------------------------------------------------------------*/

static void addresses(char *text)
{
    struct sl_config config = {0};
    struct sl_access a = {.config = &config};
    struct sl_error err = {0};
    const char *listen = line(&text), *host = line(&text), *origin = line(&text);
    enum sl_code c = sl_listen_parse(&a.listen, listen ? listen : "", &err);
    if (c) {
        check_refusal(c, &err);
        return;
    }
    assert(a.listen.port <= 65535 && memchr(a.listen.host, '\0', sizeof a.listen.host));
    bool ok = sl_access_host(&a, host);
    enum sl_origin o = sl_access_origin(&a, origin, host);
    assert(o != SL_ORIGIN_CORS); /* none is allowed */
    if (a.listen.kind == SL_LISTEN_UNIX)
        assert(ok);
}

static void redis(const char *text)
{
    static struct sl_rd_address a;
    struct sl_error err = {0};
    enum sl_code c = sl_rd_address_parse(&a, text, &err);
    if (!c) {
        assert(a.port >= 1 && a.port <= 65535 && a.db <= SL_REDIS_DB_MAX && a.host[0]);
        assert(memchr(a.host, '\0', sizeof a.host) && memchr(a.user, '\0', sizeof a.user));
        assert(memchr(a.password, '\0', sizeof a.password));
        return;
    }
    check_refusal(c, &err);
    const char *at = strrchr(text, '@'), *colon = strchr(text + strspn(text, "/"), ':');
    if (at && colon && at > colon + 12) { /* what could be a password is not told */
        char password[64];
        snprintf(password, sizeof password, "%.*s", (int)(at - colon - 1), colon + 1);
        assert(!strstr(err.message, password));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 8192)
        return 0;
    char *text = malloc(size);
    assert(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    char *rest = text;
    switch (data[0] % 5) {
    case 0:
        options(text);
        break;
    case 1:
        keys(NULL, text, size - 1);
        break;
    case 2: {
        const char *authorization = line(&rest);
        keys(authorization, rest ? rest : "", rest ? size - 1 - (size_t)(rest - text) : 0);
        break;
    }
    case 3:
        addresses(text);
        break;
    default:
        redis(text);
    }
    free(text);
    return 0;
}
