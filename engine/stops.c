/* stops.c: see stops.h. One automaton of Knuth, Morris and Pratt (1977) for each string.
 *
 * For each string, fail[k] is the length of the longest proper prefix of it that also ends its
 * first k bytes; `at` is the longest prefix that ends the text. A byte costs amortised constant
 * time a string. A few automata instead of one of Aho and Corasick: the strings are few, and each
 * one's own `at` is what open_bytes() and the choice of the longest need anyway.
 *
 * The longest `at` is exactly the number of open bytes: a suffix of the text that begins a string
 * is by definition no longer than that string's `at`. */
#include "engine/stops.h"

#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"

struct pattern {
    const unsigned char *bytes; /* in `storage` */
    uint16_t *fail;             /* n of them: fail[k] for k = 0 … n - 1, fail[0] unused */
    size_t n;
};

struct sl_stops {
    struct sl_stops_state state;
    size_t n;
    struct pattern patterns[SL_STOPS_MAX];
    uint16_t storage[]; /* the failure tables, then the strings */
};

static enum sl_code check(const struct sl_stop *stops, size_t n, struct sl_error *err)
{
    if (n > SL_STOPS_MAX)
        return sl_fail_param(err, SL_E_INVALID_VALUE, "stop",
                             "%zu stop strings were given, at most %d are allowed", n,
                             (int)SL_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (stops[i].n == 0 || stops[i].n > SL_STOP_BYTES_MAX)
            return sl_fail_param(err, SL_E_INVALID_VALUE, "stop",
                                 "stop string %zu has %zu bytes, 1 to %d are allowed", i,
                                 stops[i].n, (int)SL_STOP_BYTES_MAX);
    }
    return SL_OK;
}

static void fill_fail(struct pattern *p)
{
    size_t k = 0;
    p->fail[0] = 0;
    for (size_t i = 1; i < p->n; i++) {
        p->fail[i] = (uint16_t)k;
        while (k > 0 && p->bytes[i] != p->bytes[k])
            k = p->fail[k];
        k += p->bytes[i] == p->bytes[k];
    }
}

enum sl_code sl_stops_open(struct sl_stops **ret, const struct sl_stop *stops, size_t n,
                           struct sl_error *err)
{
    enum sl_code c = check(stops, n, err);
    if (c != SL_OK)
        return c;
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += stops[i].n;
    struct sl_stops *s = sl_calloc(1, sizeof *s + total * (sizeof *s->storage + 1));
    if (!s)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu stop strings", n);
    uint16_t *fail = s->storage;
    unsigned char *bytes = (unsigned char *)(s->storage + total);
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        memcpy(bytes, stops[i].bytes, stops[i].n);
        s->patterns[i] = (struct pattern){.bytes = bytes, .fail = fail, .n = stops[i].n};
        fill_fail(&s->patterns[i]);
        bytes += stops[i].n;
        fail += stops[i].n;
    }
    *ret = s;
    return SL_OK;
}

void sl_stops_close(struct sl_stops *s)
{
    sl_free(s);
}

void sl_stops_reset(struct sl_stops *s)
{
    s->state = (struct sl_stops_state){0};
}

/* The longest prefix of the pattern that ends the text with `byte` added to it. */
static size_t advance(const struct pattern *p, size_t at, unsigned char byte)
{
    assert(at < p->n);
    while (at > 0 && p->bytes[at] != byte)
        at = p->fail[at];
    return at + (p->bytes[at] == byte);
}

bool sl_stops_feed(struct sl_stops *s, const unsigned char *bytes, size_t n, size_t *ret_used,
                   size_t *ret_match_len, int *ret_index)
{
    for (size_t i = 0; i < n; i++) {
        size_t match_len = 0, index = 0;
        for (size_t k = 0; k < s->n; k++) {
            const struct pattern *p = &s->patterns[k];
            size_t at = advance(p, s->state.at[k], bytes[i]);
            s->state.at[k] = (uint16_t)at;
            if (at == p->n && at > match_len) {
                match_len = at;
                index = k;
            }
        }
        if (match_len > 0) {
            sl_stops_reset(s);
            *ret_used = i + 1;
            *ret_match_len = match_len;
            *ret_index = (int)index;
            return true;
        }
    }
    return false;
}

size_t sl_stops_open_bytes(const struct sl_stops *s)
{
    size_t most = 0;
    for (size_t k = 0; k < s->n; k++) {
        if (s->state.at[k] > most)
            most = s->state.at[k];
    }
    return most;
}

struct sl_stops_state sl_stops_save(const struct sl_stops *s)
{
    return s->state;
}

bool sl_stops_restore(struct sl_stops *s, const struct sl_stops_state *state)
{
    for (size_t k = 0; k < SL_STOPS_MAX; k++) {
        if (k < s->n ? state->at[k] >= s->patterns[k].n : state->at[k] != 0)
            return false;
    }
    s->state = *state;
    return true;
}
