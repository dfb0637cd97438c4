/* redis_answers.h: redis_fuzz.c's values, made of its input: any at all, and what Redis answers as
 * it should be, with some of its parts exchanged. */
#ifndef SLATE_TESTS_REDIS_ANSWERS_H
#define SLATE_TESTS_REDIS_ANSWERS_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/store/redis.h"

enum { DEPTH_MAX = 4, ELEMENTS_MAX = 28, LIMIT = 5, VIEW = 17 };

/* --- the input ---------------------------------------------------------------------------------*/

static const uint8_t *in;
static size_t n_in;

static unsigned take(void)
{
    if (!n_in)
        return 0;
    n_in--;
    return *in++;
}

/* --- values ------------------------------------------------------------------------------------*/

static redisReply *value(int type)
{
    redisReply *r = calloc(1, sizeof *r);
    assert(r);
    r->type = type;
    return r;
}

static redisReply *text(int type, const void *s, size_t n)
{
    redisReply *r = value(type);
    r->str = malloc(n + 1);
    assert(r->str);
    memcpy(r->str, s, n);
    r->str[n] = '\0';
    r->len = n;
    return r;
}

static redisReply *string(const char *s)
{
    return text(REDIS_REPLY_STRING, s, strlen(s));
}

static redisReply *number(uint64_t v)
{
    char s[24];
    snprintf(s, sizeof s, "%llu", (unsigned long long)v);
    return string(s);
}

static redisReply *array(size_t n)
{
    redisReply *r = value(REDIS_REPLY_ARRAY);
    r->elements = n;
    r->element = calloc(n + 1, sizeof(redisReply *));
    assert(r->element);
    return r;
}

static void drop(redisReply *r)
{
    for (size_t i = 0; i < r->elements; i++)
        drop(r->element[i]);
    free(r->element);
    free(r->str);
    free(r);
}

/* Any value. */
static redisReply *any(unsigned depth)
{
    static const char *const words[] = {
        "ok",        "none",       "other",   "exists",
        "version",   "fence",      "busy",    "full",
        "missing",   "",           "-1",      "18446744073709551616",
        "named",     "names",      "unnamed", "unkept",
        "LOADING x", "NOSCRIPT x", "OOM x",   "ERR Error: -READONLY",
        "WRONGTYPE", "ERR ",       "stamp"};
    static const int texts[] = {REDIS_REPLY_STRING, REDIS_REPLY_STATUS, REDIS_REPLY_ERROR};
    unsigned what = take();
    char bytes[64];
    size_t n;
    switch (what % 6) {
    case 0:
        return value(REDIS_REPLY_NIL);
    case 1: {
        redisReply *r = value(REDIS_REPLY_INTEGER);
        r->integer = (long long)take() - 3;
        return r;
    }
    case 2:
        n = what / 6 % sizeof bytes;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)take();
        return text(texts[take() % 3], bytes, n);
    case 3: {
        const char *w = words[take() % (sizeof words / sizeof *words)];
        return text(texts[what / 6 % 3], w, strlen(w));
    }
    case 4:
        return number(take());
    default: {
        redisReply *r = array(depth < DEPTH_MAX ? what / 6 % ELEMENTS_MAX : 0);
        for (size_t i = 0; i < r->elements; i++)
            r->element[i] = any(depth + 1);
        return r;
    }
    }
}

/* r, or any value where the input wants that. */
static redisReply *maybe(redisReply *r)
{
    if (take() % 16 != 15)
        return r;
    drop(r);
    return any(1);
}

/* --- answers as they should be -----------------------------------------------------------------*/

static const char hex32[] = "00112233445566778899aabbccddeeff";

/* What redis_lua.c's view() gives. */
static void fill_view(redisReply *r, const char *word)
{
    static const char *const stamps[] = {"", "0011223344556677.9",
                                         "00112233445566770000000000000009",
                                         "0011223344556677.12345678901234567890123"};
    redisReply *const parts[] = {string(word),
                                 number(1000000 + take()),
                                 string(hex32),
                                 number(take() % 8),
                                 number(take()),
                                 number(take()),
                                 number(take()),
                                 number(take()),
                                 string(take() % 2 ? "{\"a\":1}" : ""),
                                 number(take() % 4),
                                 number(take()),
                                 number(take()),
                                 string(take() % 2 ? "key" : ""),
                                 number(take() % 2),
                                 number(take()),
                                 number(take() % 3),
                                 string(stamps[take() % 4])};
    size_t n = sizeof parts / sizeof *parts;
    assert(r->elements >= n);
    for (size_t i = 0; i < n; i++)
        r->element[i] = maybe(parts[i]);
}

static redisReply *record(const unsigned char *payload, size_t n, uint64_t version, bool turn)
{
    char front[64];
    unsigned char *p = malloc(sizeof front + n);
    uint64_t hash = sl_record_hash(payload, n);
    assert(p);
    int k = turn ? snprintf(front, sizeof front, "%020llu%010u%016llx", (unsigned long long)version,
                            take(), (unsigned long long)hash)
                 : snprintf(front, sizeof front, "%020llu%016llx", (unsigned long long)version,
                            (unsigned long long)hash);
    memcpy(p, front, (size_t)k);
    memcpy(p + k, payload, n);
    if (take() % 16 == 15)
        p[take() % ((size_t)k + n)] ^= (unsigned char)take();
    redisReply *r = text(REDIS_REPLY_STRING, p, (size_t)k + n);
    free(p);
    return r;
}

static redisReply *turn_record(uint64_t version)
{
    const uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct sl_store_turn t = {.version = version, .tokens = tokens, .tokens_seen = take()};
    unsigned char payload[512];
    t.n_tokens = take() % 8;
    t.n_generated = take() % (t.n_tokens + 1);
    t.n_drop = take();
    t.continuation = (struct sl_text){"{}", take() % 3};
    size_t n = sl_turn_payload_size(&t);
    assert(n <= sizeof payload);
    sl_turn_payload_write(payload, &t);
    if (take() % 16 == 15) /* the hash is right of what is wrong */
        payload[take() % n] ^= (unsigned char)take();
    return record(payload, n, version, true);
}

static redisReply *answer_record(uint64_t version)
{
    struct sl_store_answer a = {.idempotency_key = "key", .body = {"body", take() % 5}};
    unsigned char payload[512];
    a.at = (int64_t)take();
    size_t n = sl_answer_payload_size(&a);
    assert(n <= sizeof payload);
    sl_answer_payload_write(payload, &a);
    if (take() % 16 == 15)
        payload[take() % n] ^= (unsigned char)take();
    return record(payload, n, version, false);
}

/* An earlier snapshot: version, N, bytes, digest, tokens, used at. */
static redisReply *kept_record(uint64_t version)
{
    char s[160];
    int n = version ? snprintf(s, sizeof s, "%020llu n0 %u %s %u %u", (unsigned long long)version,
                               take(), hex32, take(), take())
                    : snprintf(s, sizeof s, "%020u - - - - -", 0);
    if (take() % 8 == 7)
        s[take() % (unsigned)n] = (char)take();
    return text(REDIS_REPLY_STRING, s, (size_t)n);
}

static redisReply *name_list(void)
{
    size_t n = take() % 4;
    redisReply *r = array(2 * n + (take() % 16 == 15));
    for (size_t i = 0; i < r->elements; i++) {
        char version[24];
        snprintf(version, sizeof version, "%020u", take() % 8);
        r->element[i] = maybe(string(i % 2 ? version : take() % 4 ? "name" : "not a name"));
    }
    return r;
}

/* What is kept from before the snapshot, which leads to it. */
static void fill_kept(redisReply **e, uint64_t from)
{
    redisReply *snaps = array(take() % 3), *turns = array(take() % 4);
    uint64_t first = from > turns->elements ? from - turns->elements : 0;
    for (size_t i = 0; i < snaps->elements; i++)
        snaps->element[i] = kept_record(first + i * (take() % 3));
    for (size_t i = 0; i < turns->elements; i++)
        turns->element[i] = turn_record(first + i + 1);
    e[0] = maybe(snaps);
    e[1] = maybe(turns);
    e[2] = maybe(number(take()));
    e[3] = maybe(number(take()));
    e[4] = maybe(name_list());
}

static redisReply *whole_load(void)
{
    enum { LOAD = VIEW + 10 };
    redisReply *r = array(LOAD);
    fill_view(r, "ok");
    uint64_t from = 0;
    bool has_snapshot = sl_rd_number(r->element[9], &from) && from > 0;
    redisReply *turns = array(take() % 4), *answers = array(take() % 6);
    for (size_t i = 0; i < turns->elements; i++)
        turns->element[i] = turn_record(from + i + 1);
    for (size_t i = 0; i < answers->elements; i++)
        answers->element[i] = answer_record(from + i);
    if (take() % 8) { /* the version that this gives */
        drop(r->element[3]);
        r->element[3] = number(from + turns->elements);
    }
    r->element[VIEW] = maybe(string(has_snapshot ? "n1" : ""));
    r->element[VIEW + 1] = maybe(number(take()));
    r->element[VIEW + 2] = maybe(string(hex32));
    r->element[VIEW + 3] = maybe(turns);
    r->element[VIEW + 4] = maybe(answers);
    fill_kept(&r->element[VIEW + 5], from);
    return r;
}

static redisReply *whole_list(void)
{
    size_t n = take() % (LIMIT + 2);
    redisReply *r = array(4 + n);
    r->element[0] = string("ok");
    r->element[1] = number(take());
    r->element[2] = maybe(number(take() % 2));
    r->element[3] = maybe(string(take() % 2 ? "last" : ""));
    for (size_t i = 0; i < n; i++) {
        redisReply *v = array(VIEW);
        fill_view(v, take() % 8 ? "id" : "not an id");
        r->element[4 + i] = maybe(v);
    }
    return r;
}

static redisReply *whole_asked(void)
{
    redisReply *r = array(3), *v = array(take() % 4);
    r->element[0] = string("ok");
    r->element[1] = number(take());
    for (size_t i = 0; i < v->elements; i++) {
        char s[64];
        int n = snprintf(s, sizeof s, "%s %u %s/%s", take() % 2 ? "cancel" : "pause", take(),
                         take() % 4 ? "t" : "..", take() % 4 ? "id" : "");
        if (take() % 8 == 7)
            s[take() % (unsigned)n] = (char)take();
        v->element[i] = maybe(text(REDIS_REPLY_STRING, s, (size_t)n));
    }
    r->element[2] = maybe(v);
    return r;
}

static redisReply *whole_told(void)
{
    redisReply *r = array(4);
    r->element[0] = string("ok");
    r->element[1] = number(take());
    r->element[2] = maybe(number(take() % 2));
    r->element[3] = maybe(number(take()));
    return r;
}

static redisReply *answer(void)
{
    unsigned what = take();
    switch (what % 8) {
    case 0: {
        redisReply *r = array(VIEW);
        fill_view(r, what & 64 ? "busy" : "ok");
        return r;
    }
    case 1:
        return whole_load();
    case 2:
        return whole_list();
    case 3:
        return whole_asked();
    case 4:
        return whole_told();
    case 5: /* a piece of a snapshot */
        return text(REDIS_REPLY_STRING, hex32, take() % sizeof hex32);
    default:
        return any(0);
    }
}

#endif
