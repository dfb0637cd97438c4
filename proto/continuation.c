/* continuation.c: see continuation.h. The numbers of the sampler are read with the table that reads
 * a request's, and written from it: what a request may say, a continuation can hold. */
#include "proto/continuation.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "proto/decode.h"
#include "proto/json_out.h"

enum { TEMPLATE_NAME_MAX = 64 };

/* --- writing --- */

static void write_ids(struct sl_json_out *w, const char *key, const uint32_t *ids, size_t n)
{
    sl_out_key(w, key);
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++)
        sl_out_uint(w, ids[i]);
    sl_out_close(w, ']');
}

static void write_some_ids(struct sl_json_out *w, const char *key, const uint32_t *ids, size_t n)
{
    if (n)
        write_ids(w, key, ids, n);
}

static void write_u64(struct sl_json_out *w, const char *key, uint64_t u)
{
    char text[24];
    struct sl_buf b = {.data = text, .cap = sizeof text, .max = sizeof text};
    struct sl_json_out digits = {&b, false};
    sl_out_uint(&digits, u);
    sl_out_key(w, key);
    sl_out_text(w, text, b.len);
}

static void write_hex(struct sl_json_out *w, const char *key, const unsigned char *s, size_t n)
{
    char text[2 * SL_STOP_BYTES_MAX];
    assert(n <= SL_STOP_BYTES_MAX);
    for (size_t i = 0; i < 2 * n; i++)
        text[i] = "0123456789abcdef"[s[i / 2] >> (i % 2 ? 0 : 4) & 15];
    sl_out_key(w, key);
    sl_out_text(w, text, 2 * n);
}

static void write_sampling(struct sl_json_out *w, const struct sl_sampling *s)
{
    for (size_t i = 0; i < SL_SAMPLING_ROWS; i++) {
        const struct sl_json_row *row = &sl_sampling_rows[i];
        const unsigned char *at = (const unsigned char *)s + row->offset;
        float f;
        uint32_t u;
        sl_out_key(w, row->key);
        if (row->kind == SL_JSON_U32) {
            memcpy(&u, at, sizeof u);
            sl_out_uint(w, u);
        } else {
            memcpy(&f, at, sizeof f);
            assert(isfinite(f));
            sl_out_float(w, f);
        }
    }
    if (s->n_bias) {
        sl_out_key(w, "logit_bias");
        sl_out_open(w, '[');
        for (size_t i = 0; i < s->n_bias; i++) {
            assert(isfinite(s->bias[i].bias));
            sl_out_open(w, '[');
            sl_out_uint(w, s->bias[i].token);
            sl_out_float(w, s->bias[i].bias);
            sl_out_close(w, ']');
        }
        sl_out_close(w, ']');
    }
    write_u64(w, "seed", s->seed);
}

static void write_stops(struct sl_json_out *w, const struct sl_stop *stops, size_t n)
{
    if (!n)
        return;
    sl_out_key(w, "stop");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++) {
        if (sl_utf8_valid(stops[i].bytes, stops[i].n)) {
            sl_out_text(w, (const char *)stops[i].bytes, stops[i].n);
            continue;
        }
        sl_out_open(w, '{');
        write_hex(w, "hex", stops[i].bytes, stops[i].n);
        sl_out_close(w, '}');
    }
    sl_out_close(w, ']');
}

static void write_paused(struct sl_json_out *w, const struct sl_paused_turn *p)
{
    sl_out_open(w, '{');
    write_sampling(w, &p->sampling);
    write_u64(w, "draws", p->draws);
    sl_out_key(w, "max_tokens");
    sl_out_uint(w, p->max_tokens);
    if (p->fewer_will_do) {
        sl_out_key(w, "fewer_will_do");
        sl_out_bool(w, true);
    }
    write_stops(w, p->stops, p->n_stops);
    write_some_ids(w, "stop_tokens", p->stop_tokens, p->n_stop_tokens);
    sl_out_key(w, "ignore_eos");
    sl_out_bool(w, p->ignore_eos);
    if (p->logprobs >= 0) {
        sl_out_key(w, "logprobs");
        sl_out_int(w, p->logprobs);
    }
    write_some_ids(w, "generated", p->generated, p->n_generated);
    sl_out_key(w, "held");
    sl_out_uint(w, p->n_held);
    write_some_ids(w, "ring", p->ring.tokens, p->ring.n);
    if (p->n_utf8_tail)
        write_hex(w, "utf8_tail", p->utf8_tail, p->n_utf8_tail);
    if (p->chat_template) {
        sl_out_key(w, "chat_template");
        sl_out_str(w, p->chat_template);
        sl_out_key(w, "reply_started");
        sl_out_bool(w, p->reply_started);
    }
    sl_out_close(w, '}');
}

static const unsigned char no_model[16];

void sl_continuation_write(struct sl_buf *b, const struct sl_continuation *c)
{
    struct sl_json_out w = {b, false};
    assert(c->n_pending >= 1);
    sl_out_open(&w, '{');
    write_ids(&w, "pending", c->pending, c->n_pending);
    write_some_ids(&w, "ring", c->ring.tokens, c->ring.n);
    if (memcmp(c->model, no_model, sizeof no_model) != 0)
        write_hex(&w, "model", c->model, sizeof c->model);
    if (c->paused) {
        sl_out_key(&w, "paused");
        write_paused(&w, c->paused);
    }
    sl_out_close(&w, '}');
}

/* --- long lists --- */

/* The lists of ids that may be millions long: what is pending (a prompt's, after a pause before it
 * was read) and what a paused turn has generated. One JSON value for each id would be more than a
 * parse has memory for (json.c), so a list that is written as lists are here is read without, and
 * is an empty one for the parser. Any other is the parser's. */
struct long_list {
    size_t begin, end; /* in the text: behind its '[', and its ']'; 0: it is not such a list */
    const uint32_t *ids;
    size_t n;
};
enum { PENDING, GENERATED, LONG_LISTS };

/* Ids from s[from] on, up to a ']' at *ret_end. NULL: they are only counted. */
static bool scan_ids(const char *s, size_t n, size_t from, uint64_t above, uint32_t *ids,
                     size_t *ret_n, size_t *ret_end)
{
    size_t i = from, count = 0;
    for (char after = ','; after == ','; count++) {
        uint64_t id = 0;
        size_t first = i;
        for (; i < n && i - first < 10 && s[i] >= '0' && s[i] <= '9'; i++)
            id = id * 10 + (uint64_t)(s[i] - '0');
        if (i == first || (s[first] == '0' && i - first > 1) || id >= above || i == n)
            return false;
        if (ids)
            ids[count] = (uint32_t)id;
        after = s[i++];
        if (after != ',' && after != ']')
            return false;
    }
    *ret_n = count;
    *ret_end = i - 1;
    return true;
}

static bool is_key(const char *s, size_t n, const char *key)
{
    return n == strlen(key) && memcmp(s, key, n) == 0;
}

/* Finds them by brackets and strings alone: in a text that is no JSON the parser still meets what
 * is wrong, for only whole lists are taken out. So it does a key that comes twice. */
static void find_lists(const char *s, size_t n, uint64_t above, struct long_list lists[LONG_LISTS])
{
    size_t depth = 0;
    bool in_paused = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '{' || s[i] == '[')
            depth++;
        else if (s[i] == '}' || s[i] == ']')
            depth--;
        if (s[i] != '"')
            continue;
        size_t from = ++i;
        while (i < n && s[i] != '"')
            i += s[i] == '\\' ? 2 : 1;
        if (i >= n || n - i < 3 || s[i + 1] != ':')
            continue;
        if (depth == 1)
            in_paused = is_key(s + from, i - from, "paused");
        struct long_list *l = depth == 1 && is_key(s + from, i - from, "pending") ? &lists[PENDING]
                              : depth == 2 && in_paused && is_key(s + from, i - from, "generated")
                                  ? &lists[GENERATED]
                                  : NULL;
        if (!l || l->end || s[i + 2] != '[' || !scan_ids(s, n, i + 3, above, NULL, &l->n, &l->end))
            continue;
        l->begin = i + 3;
        i = l->end;
    }
}

/* Reads them, and leaves the text without. False: no memory. */
static bool take_lists(const char *s, size_t n, uint64_t above, struct sl_pool *pool,
                       struct long_list lists[LONG_LISTS], char *ret_rest, size_t *ret_n)
{
    bool in_order = lists[PENDING].begin < lists[GENERATED].begin;
    size_t at = 0, len = 0;
    for (size_t i = 0; i < LONG_LISTS; i++) {
        struct long_list *l = &lists[in_order ? i : LONG_LISTS - 1 - i];
        if (!l->end)
            continue;
        uint32_t *ids = sl_pool_alloc(pool, l->n, sizeof *ids);
        if (!ids)
            return false;
        (void)scan_ids(s, n, l->begin, above, ids, &l->n, &l->end);
        l->ids = ids;
        memcpy(ret_rest + len, s + at, l->begin - at);
        len += l->begin - at;
        at = l->end;
    }
    memcpy(ret_rest + len, s + at, n - at);
    *ret_n = len + n - at;
    return true;
}

/* The object, and the lists that are not in it. */
static enum sl_code parse_text(json_t **ret, const char *text, size_t n,
                               const struct sl_limits *limits, struct sl_pool *pool,
                               struct long_list lists[LONG_LISTS], struct sl_error *err)
{
    uint64_t above = limits->vocab_size ? limits->vocab_size : UINT32_MAX + UINT64_C(1);
    size_t n_rest = n;
    find_lists(text, n, above, lists);
    for (size_t i = 0; i < LONG_LISTS; i++)
        n_rest -= lists[i].end - lists[i].begin;
    if (n_rest == n)
        return sl_json_parse(ret, text, n, false, err);
    char *rest = sl_malloc(n_rest);
    enum sl_code c = SL_E_NO_MEMORY;
    if (rest && take_lists(text, n, above, pool, lists, rest, &n_rest))
        c = sl_json_parse(ret, rest, n_rest, false, err);
    sl_free(rest);
    return c;
}

/* --- reading --- */

static enum sl_code absent(const struct sl_decode *d, const char *key)
{
    return sl_fail_param(d->err, SL_E_MISSING_FIELD, key, "%s must be given", key);
}

/* Ids under `key`, at most max of them; none where it is absent. */
static enum sl_code read_ids(const struct sl_decode *d, const char *key, size_t max,
                             const uint32_t **ret, size_t *ret_n)
{
    const json_t *v = sl_json_member(d->o, key);
    return v ? sl_decode_tokens(d, v, key, max, SL_E_INVALID_VALUE, ret, ret_n) : SL_OK;
}

/* Ids under `key`: those that were taken out of the text, or what the parser has. */
static enum sl_code read_long(const struct sl_decode *d, const char *key,
                              const struct long_list *taken, const uint32_t **ret, size_t *ret_n)
{
    if (!taken->ids)
        return read_ids(d, key, SIZE_MAX, ret, ret_n);
    *ret = taken->ids;
    *ret_n = taken->n;
    return SL_OK;
}

static enum sl_code read_ring(const struct sl_decode *d, struct sl_penalty_ring *ret)
{
    const uint32_t *ids = NULL;
    size_t n = 0;
    enum sl_code c = read_ids(d, "ring", SL_PENALTY_LAST_N_MAX, &ids, &n);
    ret->n = (uint32_t)n;
    if (n)
        memcpy(ret->tokens, ids, n * sizeof *ids);
    return c;
}

/* A decimal string, or an integer. */
static enum sl_code read_u64(const struct sl_decode *d, const char *key, uint64_t *ret)
{
    const json_t *v = sl_json_member(d->o, key);
    int64_t i = 0;
    if (!v)
        return absent(d, key);
    if (!json_is_string(v)) {
        enum sl_code c = sl_json_int(v, key, 0, INT64_MAX, &i, d->err);
        *ret = (uint64_t)i;
        return c;
    }
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    uint64_t u = 0;
    bool good = n > 0 && (n == 1 || s[0] != '0');
    for (size_t k = 0; k < n && good; k++) {
        uint64_t digit = (uint64_t)(unsigned char)s[k] - '0';
        good = digit <= 9 && u <= (UINT64_MAX - digit) / 10;
        u = u * 10 + digit;
    }
    *ret = u;
    return good
               ? SL_OK
               : sl_fail_param(d->err, SL_E_INVALID_VALUE, key,
                               "%s must be an integer from 0 to 2^64 - 1, got the string \"%.40s\"",
                               key, s);
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Up to max bytes as hex digits. */
static enum sl_code read_hex(const struct sl_decode *d, const json_t *v, const char *path,
                             size_t max, unsigned char *ret, size_t *ret_n)
{
    struct sl_text t = {NULL, 0};
    enum sl_code c = sl_json_text(v, path, 2 * max, SL_E_INVALID_VALUE, &t, d->err);
    if (c != SL_OK)
        return c;
    bool good = t.n % 2 == 0;
    for (size_t i = 0; i + 1 < t.n && good; i += 2) {
        int hi = digit_of(t.s[i]), lo = digit_of(t.s[i + 1]);
        good = hi >= 0 && lo >= 0;
        ret[i / 2] = (unsigned char)((unsigned)hi << 4 | (unsigned)lo);
    }
    *ret_n = t.n / 2;
    return good ? SL_OK
                : sl_fail_param(d->err, SL_E_INVALID_VALUE, path,
                                "%s must be pairs of hex digits 0-9 a-f", path);
}

static enum sl_code read_stop(const struct sl_decode *d, const json_t *v, struct sl_stop *ret)
{
    struct sl_text t = {NULL, 0};
    unsigned char hex[SL_STOP_BYTES_MAX] = {0};
    enum sl_code c;
    if (json_is_object(v)) {
        v = sl_json_member(v, "hex");
        if (!v)
            return absent(d, "stop[].hex");
        c = read_hex(d, v, "stop[].hex", sizeof hex, hex, &t.n);
        t.s = (const char *)hex;
    } else {
        c = sl_json_text(v, "stop[]", SL_STOP_BYTES_MAX, SL_E_INVALID_VALUE, &t, d->err);
    }
    if (c == SL_OK && t.n == 0)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "stop", "a stop string must not be empty");
    if (c != SL_OK)
        return c;
    char *copy = sl_pool_strndup(d->pool, t.s, t.n);
    if (!copy)
        return sl_decode_no_memory(d);
    *ret = (struct sl_stop){(const unsigned char *)copy, t.n};
    return SL_OK;
}

static enum sl_code read_stops(const struct sl_decode *d, struct sl_paused_turn *p)
{
    const json_t *v = sl_json_member(d->o, "stop");
    size_t n = 0;
    enum sl_code c =
        v ? sl_json_array(v, "stop", SL_STOPS_MAX, SL_E_INVALID_VALUE, &n, d->err) : SL_OK;
    if (c != SL_OK || !n)
        return c;
    struct sl_stop *stops = sl_pool_alloc(d->pool, n, sizeof *stops);
    if (!stops)
        return sl_decode_no_memory(d);
    for (size_t i = 0; i < n && c == SL_OK; i++)
        c = read_stop(d, json_array_get(v, i), &stops[i]);
    p->stops = stops;
    p->n_stops = n;
    return c;
}

/* An integer under `key`; *ret is left where it is absent. */
static enum sl_code read_int(const struct sl_decode *d, const char *key, int64_t hi, int64_t *ret)
{
    const json_t *v = sl_json_member(d->o, key);
    return v ? sl_json_int(v, key, 0, hi, ret, d->err) : SL_OK;
}

static enum sl_code read_bool(const struct sl_decode *d, const char *key, bool *ret)
{
    const json_t *v = sl_json_member(d->o, key);
    return v ? sl_json_bool(v, key, ret, d->err) : SL_OK;
}

/* How far its text was given out. */
static enum sl_code read_text_place(const struct sl_decode *d, struct sl_paused_turn *p)
{
    const json_t *v = sl_json_member(d->o, "utf8_tail");
    enum sl_code c =
        v ? read_hex(d, v, "utf8_tail", sizeof p->utf8_tail, p->utf8_tail, &p->n_utf8_tail) : SL_OK;
    v = sl_json_member(d->o, "chat_template");
    if (c == SL_OK && v)
        c = sl_json_cstr(v, "chat_template", TEMPLATE_NAME_MAX, d->pool, &p->chat_template, d->err);
    if (c == SL_OK)
        c = read_bool(d, "reply_started", &p->reply_started);
    return c;
}

static enum sl_code read_counts(const struct sl_decode *d, size_t n_pending,
                                struct sl_paused_turn *p)
{
    int64_t max_tokens = 0, held = 0, logprobs = -1;
    if (!sl_json_member(d->o, "max_tokens"))
        return absent(d, "max_tokens");
    enum sl_code c = read_int(d, "max_tokens", INT64_MAX, &max_tokens);
    if (c == SL_OK)
        c = read_int(d, "held", INT64_MAX, &held);
    if (c == SL_OK)
        c = read_int(d, "logprobs", SL_TOP_LOGPROBS_MAX, &logprobs);
    if (c == SL_OK && held > SL_HELD_MAX)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "held", "held must be at most %d, got %zu",
                          SL_HELD_MAX, (size_t)held);
    if (c == SL_OK && (size_t)held >= n_pending)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "held",
                          "held must be less than the number of pending tokens (%zu), got %zu",
                          n_pending, (size_t)held);
    if (c == SL_OK && held > max_tokens)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "held",
                          "held must be at most max_tokens (%zu), got %zu", (size_t)max_tokens,
                          (size_t)held);
    p->max_tokens = (size_t)max_tokens;
    p->n_held = (size_t)held;
    p->logprobs = (int)logprobs;
    return c;
}

static enum sl_code read_paused(const struct sl_decode *d, const struct long_list *generated,
                                size_t n_pending, struct sl_paused_turn *p)
{
    p->sampling = (struct sl_sampling)SL_SAMPLING_DEFAULT;
    enum sl_code c = sl_json_rows(d->o, sl_sampling_rows, SL_SAMPLING_ROWS, &p->sampling, d->err);
    if (c == SL_OK)
        c = sl_decode_bias(d, &p->sampling);
    if (c == SL_OK)
        c = read_u64(d, "seed", &p->sampling.seed);
    if (c == SL_OK)
        c = read_u64(d, "draws", &p->draws);
    if (c == SL_OK)
        c = read_counts(d, n_pending, p);
    if (c == SL_OK)
        c = read_bool(d, "fewer_will_do", &p->fewer_will_do);
    if (c == SL_OK)
        c = read_stops(d, p);
    if (c == SL_OK)
        c = read_ids(d, "stop_tokens", SL_STOP_TOKENS_MAX, &p->stop_tokens, &p->n_stop_tokens);
    if (c == SL_OK)
        c = read_bool(d, "ignore_eos", &p->ignore_eos);
    if (c == SL_OK)
        c = read_long(d, "generated", generated, &p->generated, &p->n_generated);
    if (c == SL_OK)
        c = read_ring(d, &p->ring);
    if (c == SL_OK)
        c = read_text_place(d, p);
    return c;
}

static enum sl_code read_all(const struct sl_decode *d, const struct long_list lists[LONG_LISTS],
                             struct sl_continuation *r)
{
    if (!sl_json_member(d->o, "pending"))
        return absent(d, "pending");
    enum sl_code c = read_long(d, "pending", &lists[PENDING], &r->pending, &r->n_pending);
    if (c == SL_OK && r->n_pending == 0)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "pending",
                          "pending must hold at least one token id");
    if (c == SL_OK)
        c = read_ring(d, &r->ring);
    const json_t *v = sl_json_member(d->o, "model");
    size_t n = sizeof r->model;
    if (c == SL_OK && v)
        c = read_hex(d, v, "model", sizeof r->model, r->model, &n);
    if (c == SL_OK && n != sizeof r->model)
        c = sl_fail_param(d->err, SL_E_INVALID_VALUE, "model", "model must have 32 hex digits");
    v = sl_json_member(d->o, "paused");
    if (c != SL_OK || !v)
        return c;
    c = sl_json_object(v, "paused", d->err);
    if (c != SL_OK)
        return c;
    struct sl_paused_turn *p = sl_pool_alloc(d->pool, 1, sizeof *p);
    if (!p)
        return sl_decode_no_memory(d);
    struct sl_decode inner = {v, d->limits, d->pool, d->err};
    r->paused = p;
    return read_paused(&inner, &lists[GENERATED], r->n_pending, p);
}

enum sl_code sl_continuation_read(struct sl_continuation *ret, const char *text, size_t n,
                                  size_t vocab_size, struct sl_error *err)
{
    struct sl_continuation r = {.n_pending = 0};
    struct sl_limits limits = {.vocab_size = vocab_size};
    struct sl_error e = {0};
    struct long_list lists[LONG_LISTS] = {{.n = 0}};
    json_t *doc = NULL;
    enum sl_code c = parse_text(&doc, text, n, &limits, &r.pool, lists, &e);
    if (c == SL_OK) {
        struct sl_decode d = {doc, &limits, &r.pool, &e};
        c = read_all(&d, lists, &r);
    }
    json_decref(doc);
    if (c == SL_OK) {
        *ret = r;
        return SL_OK;
    }
    sl_pool_done(&r.pool);
    if (c == SL_E_NO_MEMORY)
        return sl_fail(err, c, "not enough memory for a continuation of %zu bytes", n);
    return sl_fail_param(err, SL_E_SNAPSHOT_CORRUPT, "continuation",
                         doc ? "the snapshot's continuation: %s"
                             : "the snapshot's continuation is "
                               "not the text of a JSON object: %s",
                         e.message);
}

void sl_continuation_done(struct sl_continuation *c)
{
    sl_pool_done(&c->pool);
    *c = (struct sl_continuation){.n_pending = 0};
}
