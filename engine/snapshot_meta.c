/* snapshot_meta.c: what a snapshot says of itself: its __metadata__, strings of strings. See
 * snapshot.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/formats/jansson_parse.h"
#include "engine/snapshot_priv.h"

bool sl_snapshot_too_many_values(const unsigned char *s, size_t n)
{
    size_t found = 0;
    bool in_string = false;
    if (n <= SL_SNAPSHOT_VALUES_MAX)
        return false;
    for (size_t i = 0; i < n && found <= SL_SNAPSHOT_VALUES_MAX; i++) {
        if (s[i] == '\\' && in_string)
            i++;
        else if (s[i] == '"')
            in_string = !in_string;
        else if (!in_string && (s[i] == ',' || s[i] == ':' || s[i] == '[' || s[i] == '{'))
            found++;
    }
    return found > SL_SNAPSHOT_VALUES_MAX;
}

/* Once they are sorted. NULL: absent. */
const char *sl_snapshot_text(const struct sl_tensors *t, const char *key)
{
    size_t lo = 0, hi = t->n_meta;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int cmp = strcmp(key, t->meta[mid].key);
        if (cmp == 0)
            return t->meta[mid].value;
        if (cmp < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static enum sl_code need(const struct sl_tensors *t, const char *key, const char **ret,
                         struct sl_error *err)
{
    *ret = sl_snapshot_text(t, key);
    return *ret ? SL_OK : CORRUPT(err, "the snapshot's metadata have no \"%s\"", key);
}

enum sl_code sl_snapshot_read_hex(const struct sl_tensors *t, const char *key,
                                  unsigned char ret[16], struct sl_error *err)
{
    const char *s = sl_snapshot_text(t, key);
    unsigned char bytes[16] = {0};
    size_t n = s ? strlen(s) : 0;
    bool good = n == 32;
    for (size_t i = 0; i < 32 && good; i++) {
        int digit = s[i] >= '0' && s[i] <= '9'   ? s[i] - '0'
                    : s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10
                                                 : -1;
        good = digit >= 0;
        bytes[i / 2] = (unsigned char)(bytes[i / 2] << 4 | (digit & 15));
    }
    if (s && !good)
        return CORRUPT(err, "the snapshot's \"%s\" must be 32 digits 0-9 a-f, got \"%.40s\"", key,
                       s);
    memcpy(ret, bytes, 16); /* absent: zeros */
    return SL_OK;
}

static bool digits(const char **s, unsigned max, uint64_t *ret)
{
    uint64_t v = 0;
    unsigned n = 0;
    for (; **s >= '0' && **s <= '9'; (*s)++, n++) {
        uint64_t d = (uint64_t)(**s - '0');
        if (n == max || v > (UINT64_MAX - d) / 10)
            return false;
        v = v * 10 + d;
    }
    *ret = v;
    return n > 0;
}

/* Up to 2^53: every client's JSON holds it. (From outside less: snapshot_read.c.) */
static enum sl_code read_uint(const struct sl_tensors *t, const char *key, uint64_t *ret,
                              struct sl_error *err)
{
    const char *s = sl_snapshot_text(t, key), *p = s;
    uint64_t v = 0;
    if (s && (!digits(&p, 16, &v) || *p || (s[0] == '0' && s[1]) || v > (uint64_t)1 << 53))
        return CORRUPT(
            err, "the snapshot's \"%s\" must be an integer from 0 to 2^53, got \"%.40s\"", key, s);
    *ret = v; /* absent: 0 */
    return SL_OK;
}

/* Days since 1970-01-01 of a date of the Gregorian calendar. */
static int64_t days_of(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2;
    m += m <= 2 ? 12 : 0; /* March is the first month of a year that ends with February */
    y += 400;             /* none is negative: 146,097 days */
    return 365 * y + y / 4 - y / 100 + y / 400 + (153 * (m - 3) + 2) / 5 + d - 1 - 719468 - 146097;
}

/* "2026-11-29T20:01:02.345Z", with or without a fraction. */
static bool parse_time(const char *s, int64_t *ret_ms)
{
    static const char after[] = "--T::";
    static const unsigned length[] = {4, 2, 2, 2, 2, 2};
    static const uint64_t lo[] = {0, 1, 1, 0, 0, 0}, hi[] = {9999, 12, 31, 23, 59, 60};
    uint64_t v[6], ms = 0;
    for (size_t i = 0; i < 6; i++) {
        const char *from = s;
        if (!digits(&s, length[i], &v[i]) || (size_t)(s - from) != length[i] || v[i] < lo[i] ||
            v[i] > hi[i] || (i < 5 && *s++ != after[i]))
            return false;
    }
    if (*s == '.') {
        s++;
        for (unsigned i = 0; i < 3; i++)
            ms = ms * 10 + (uint64_t)(*s >= '0' && *s <= '9' ? *s++ - '0' : 0);
        while (*s >= '0' && *s <= '9')
            s++;
    }
    int64_t days = days_of((int64_t)v[0], (int64_t)v[1], (int64_t)v[2]);
    *ret_ms =
        ((days * 24 + (int64_t)v[3]) * 60 + (int64_t)v[4]) * 60000 + (int64_t)(v[5] * 1000 + ms);
    return strcmp(s, "Z") == 0;
}

static enum sl_code read_created(const struct sl_tensors *t, int64_t *ret, struct sl_error *err)
{
    const char *s = sl_snapshot_text(t, "created");
    int64_t ms = 0;
    if (s && !parse_time(s, &ms))
        return CORRUPT(err,
                       "the snapshot's \"created\" must be a time in UTC such as "
                       "2026-11-29T20:01:02.345Z, got \"%.40s\"",
                       s);
    *ret = ms;
    return SL_OK;
}

static enum sl_code check_version(const struct sl_tensors *t, struct sl_error *err)
{
    const char *format = sl_snapshot_text(t, "format"), *s = sl_snapshot_text(t, "format_version"),
               *p = s;
    uint64_t v = 0;
    if (!format || strcmp(format, SL_SNAPSHOT_FORMAT) != 0)
        return CORRUPT(err,
                       "this is no session's snapshot: its metadata must have \"format\": \"%s\"",
                       SL_SNAPSHOT_FORMAT);
    if (!s || !digits(&p, 9, &v) || *p || v < 1)
        return CORRUPT(err,
                       "the snapshot's \"format_version\" must be an integer ≥ 1, got \"%.40s\"",
                       s ? s : "");
    if (v > SL_SNAPSHOT_VERSION)
        return sl_fail(err, SL_E_SNAPSHOT_VERSION_UNSUPPORTED,
                       "the snapshot has version %" PRIu64 "; this program reads versions up to %d",
                       v, SL_SNAPSHOT_VERSION);
    return SL_OK;
}

/* Sorts the metadata and holds them to their digest, where there is one. */
static enum sl_code check_meta(struct sl_tensors *t, bool *ret_edited, struct sl_error *err)
{
    unsigned char got[16], want[16];
    sl_snapshot_meta_digest(t->meta, t->n_meta, got);
    enum sl_code c = check_version(t, err); /* first: a later version may have other digests */
    if (!c)
        c = sl_snapshot_read_hex(t, "metadata.xxh3", want, err);
    if (c)
        return c;
    *ret_edited = !sl_snapshot_text(t, "metadata.xxh3") || !sl_snapshot_text(t, "payload.xxh3");
    if (sl_snapshot_text(t, "metadata.xxh3") && memcmp(got, want, 16) != 0)
        return CORRUPT(err,
                       "the snapshot's metadata do not have the digest that they name; whoever "
                       "edits them drops \"metadata.xxh3\"");
    return SL_OK;
}

/* An object that is not too large, so that it can be shown as it is. It may hold what a request's
 * may (json.h): NUL in strings, too. */
static enum sl_code check_session_metadata(const char *s, struct sl_error *err)
{
    size_t n = strlen(s);
    json_error_t e;
    if (n > SL_SNAPSHOT_TEXT_MAX || sl_snapshot_too_many_values((const unsigned char *)s, n))
        return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the snapshot's \"session.metadata\" has more than %zu JSON values",
                       SL_SNAPSHOT_VALUES_MAX);
    json_t *v = sl_jansson_parse(s, n, JSON_ALLOW_NUL, &e);
    bool good = json_is_object(v), no_memory = !v && !*e.text;
    json_decref(v);
    if (no_memory)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for a snapshot's metadata");
    return good ? SL_OK : CORRUPT(err, "the snapshot's \"session.metadata\" is not a JSON object");
}

static const char *copy(char **at, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = memcpy(*at, s, n);
    *at += n;
    return p;
}

/* The strings move into memory of ret's own. */
enum sl_code sl_snapshot_take_texts(const struct sl_tensors *t, struct sl_snapshot_info *ret,
                                    const char **ret_arch, struct sl_error *err)
{
    const char *id = sl_snapshot_text(t, "session.id"),
               *metadata = sl_snapshot_text(t, "session.metadata");
    const char *continuation = sl_snapshot_text(t, "continuation"),
               *transcript = sl_snapshot_text(t, "transcript"),
               *arch = sl_snapshot_text(t, "model.arch");
    const char *type = sl_snapshot_text(t, "model.weights_type"),
               *numerics = sl_snapshot_text(t, "engine.numerics");
    id = id ? id : "";
    size_t n = strlen(id) + 1 + (metadata ? strlen(metadata) + 1 : 0) +
               (continuation ? strlen(continuation) + 1 : 0) +
               (transcript ? strlen(transcript) + 1 : 0) + strlen(arch) + 1;
    ret->text = sl_malloc(n);
    if (!ret->text)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for a snapshot's metadata");
    char *at = ret->text;
    ret->session_id = copy(&at, id);
    ret->metadata = metadata ? copy(&at, metadata) : NULL;
    ret->continuation = continuation ? copy(&at, continuation) : NULL;
    ret->transcript = transcript ? copy(&at, transcript) : NULL;
    *ret_arch = copy(&at, arch);
    (void)snprintf(ret->weights_type, sizeof ret->weights_type, "%s", type ? type : "");
    (void)snprintf(ret->numerics, sizeof ret->numerics, "%s", numerics ? numerics : "");
    return SL_OK;
}

/* All but the texts and what a model is needed for. */
enum sl_code sl_snapshot_read_meta(struct sl_tensors *t, struct sl_snapshot_info *ret,
                                   unsigned char fingerprint[16], struct sl_error *err)
{
    const char *s;
    enum sl_code c = check_meta(t, &ret->edited, err);
    if (!c)
        c = need(t, "model.arch", &s, err);
    if (!c)
        c = need(t, "model.fingerprint", &s, err);
    if (!c)
        c = sl_snapshot_read_hex(t, "model.fingerprint", fingerprint, err);
    if (!c)
        c = sl_snapshot_read_hex(t, "session.incarnation", ret->incarnation, err);
    if (!c)
        c = sl_snapshot_read_hex(t, "tokenizer.fingerprint", ret->tokenizer, err);
    if (!c)
        c = read_uint(t, "session.version", &ret->version, err);
    if (!c)
        c = read_uint(t, "session.tokens_seen", &ret->tokens_seen, err);
    if (!c)
        c = read_created(t, &ret->created_ms, err);
    s = sl_snapshot_text(t, "session.metadata");
    if (!c && s)
        c = check_session_metadata(s, err);
    return c;
}
