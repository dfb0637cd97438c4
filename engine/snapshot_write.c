/* snapshot_write.c: a state -> a safetensors file in memory. See snapshot.h.
 *
 * The header is put together first, with zeros in the place of the data's digest, because its
 * length says where the data begins. Then the values are copied in blocks that stay in the cache:
 * each is checked, packed and hashed while it is there, so that the memory is read and written
 * once. The same state and info give the same bytes. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/formats/safetensors_text.h"
#include "engine/snapshot_priv.h"

/* --- the header --- */

enum { N_META = 17, SMALL_TEXT = 40 };

/* The strings that are made for the metadata. */
struct made {
    char fingerprint[SL_SNAPSHOT_HEX], tokenizer[SL_SNAPSHOT_HEX], incarnation[SL_SNAPSHOT_HEX];
    char digest[SL_SNAPSHOT_HEX];
    char format_version[SMALL_TEXT], version[SMALL_TEXT], tokens_seen[SMALL_TEXT];
    char created[SMALL_TEXT];
    struct sl_tensor_meta meta[N_META];
    size_t n_meta;
};

static void add(struct made *k, const char *key, const char *value)
{
    assert(k->n_meta < N_META);
    k->meta[k->n_meta++] = (struct sl_tensor_meta){key, value};
}

static void created_text(char ret[SMALL_TEXT], int64_t ms)
{
    struct tm tm;
    time_t s = (time_t)(ms / 1000 - (ms % 1000 < 0));
    int rest = (int)(ms - (int64_t)s * 1000);
    if (!gmtime_r(&s, &tm) || tm.tm_year > 9999 - 1900 || tm.tm_year < -1900)
        s = 0, rest = 0, gmtime_r(&s, &tm);
    /* strftime() writes the year 485 with three digits. */
    size_t n = (size_t)snprintf(ret, SMALL_TEXT, "%04d", tm.tm_year + 1900);
    n += strftime(ret + n, SMALL_TEXT - n, "-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(ret + n, SMALL_TEXT - n, ".%03dZ", rest);
}

static void make_meta(struct made *k, const struct sl_model *m, const struct sl_tokenizer *tok,
                      const struct sl_snapshot_info *info)
{
    const struct sl_model_info *mi = sl_model_info(m);
    unsigned char fp[16];
    sl_tokenizer_fingerprint(tok, fp);
    sl_snapshot_hex(k->tokenizer, fp);
    sl_snapshot_hex(k->fingerprint, mi->fingerprint);
    sl_snapshot_hex(k->incarnation, info->incarnation);
    (void)snprintf(k->format_version, SMALL_TEXT, "%d", SL_SNAPSHOT_VERSION);
    (void)snprintf(k->version, SMALL_TEXT, "%" PRIu64, info->version);
    (void)snprintf(k->tokens_seen, SMALL_TEXT, "%" PRIu64, info->tokens_seen);
    created_text(k->created, info->created_ms);
    add(k, "format", SL_SNAPSHOT_FORMAT);
    add(k, "format_version", k->format_version);
    add(k, "model.arch", mi->arch);
    add(k, "model.fingerprint", k->fingerprint);
    add(k, "model.weights_type", mi->weights_name);
    add(k, "engine.numerics", sl_numerics(m));
    add(k, "tokenizer.fingerprint", k->tokenizer);
    add(k, "session.id", info->session_id ? info->session_id : "");
    add(k, "session.incarnation", k->incarnation);
    add(k, "session.version", k->version);
    add(k, "session.tokens_seen", k->tokens_seen);
    add(k, "session.metadata", info->metadata ? info->metadata : "{}");
    add(k, "state.dtype", sl_dtype_name(info->dtype));
    add(k, "created", k->created);
    if (info->continuation)
        add(k, "continuation", info->continuation);
    if (info->transcript)
        add(k, "transcript", info->transcript);
    unsigned char digest[16];
    sl_snapshot_meta_digest(k->meta, k->n_meta, digest); /* and brings them in order */
    sl_snapshot_hex(k->digest, digest);
    add(k, "metadata.xxh3", k->digest);
}

/* The header, padded so that the data begins at a multiple of 8. *ret_digest_at: where the 32
 * digits of the data's digest go, in t. */
static void put_header(struct sl_header_text *t, const struct made *k,
                       const struct sl_snapshot_entry *e, size_t n_entries, size_t *ret_digest_at)
{
    static const char zeros[] = "00000000000000000000000000000000";
    sl_header_put_text(t, "{\"__metadata__\":{");
    for (size_t i = 0; i < k->n_meta; i++) {
        sl_header_put_quoted(t, k->meta[i].key);
        sl_header_put_text(t, ":");
        sl_header_put_quoted(t, k->meta[i].value);
        sl_header_put_text(t, ",");
    }
    sl_header_put_text(t, "\"payload.xxh3\":\"");
    *ret_digest_at = t->n;
    sl_header_put_text(t, zeros);
    sl_header_put_text(t, "\"}");
    for (size_t i = 0; i < n_entries; i++)
        sl_header_put_tensor(t, e[i].name, e[i].dtype, e[i].rank, e[i].shape, e[i].begin,
                             e[i].bytes);
    sl_header_put_text(t, "}");
    sl_header_pad(t);
}

/* --- the data --- */

struct out {
    const unsigned char *state;
    unsigned char *data;     /* the section's start */
    struct sl_digest digest; /* of its first `hashed` bytes */
    size_t hashed;
    struct sl_error *err;
};

static void hash(struct out *o, size_t end)
{
    sl_digest_add(&o->digest, o->data + o->hashed, end - o->hashed);
    o->hashed = end;
}

static enum sl_code not_finite(const struct out *o, const struct sl_snapshot_entry *e)
{
    return sl_fail(o->err, SL_E_MODEL_NOT_FINITE,
                   "%s of the state holds a value that is not finite%s; it cannot be written down",
                   e->name, e->dtype == SL_DTYPE_I8 ? ", or beyond 3e38, too large for I8" : "");
}

static size_t block(size_t left)
{
    return left < SL_SNAPSHOT_BLOCK ? left : SL_SNAPSHOT_BLOCK;
}

static enum sl_code write_values(struct out *o, const struct sl_snapshot_entry *e)
{
    const float *src = (const float *)(const void *)(o->state + e->tensor->offset);
    unsigned char *dst = o->data + e->begin;
    size_t n = sl_state_tensor_elements(e->tensor), size = sl_dtype_size(e->dtype);
    for (size_t i = 0, part; i < n; i += part) {
        part = block(n - i);
        sl_snapshot_prefetch(src + i + part, block(n - i - part) * sizeof *src);
        bool good = e->dtype == SL_DTYPE_F32 ? sl_snapshot_pack_f32(dst + i * size, src + i, part)
                                             : sl_snapshot_pack_bf16(dst + i * size, src + i, part);
        if (!good)
            return not_finite(o, e);
        hash(o, e->begin + (i + part) * size);
    }
    return SL_OK;
}

/* The integers and the scales lie apart, so they are hashed when all are written. */
static enum sl_code write_rows(struct out *o, const struct sl_snapshot_entry *e,
                               const struct sl_snapshot_entry *scales)
{
    const float *src = (const float *)(const void *)(o->state + e->tensor->offset);
    size_t row = e->shape[e->rank - 1], n = sl_state_tensor_elements(e->tensor);
    assert(scales->part == SL_PART_SCALES && scales->tensor == e->tensor);
    for (size_t i = 0; i < n; i += row) {
        float scale;
        if (!sl_snapshot_pack_i8(o->data + e->begin + i, &scale, src + i, row))
            return not_finite(o, e);
        memcpy(o->data + scales->begin + i / row * sizeof scale, &scale, sizeof scale);
    }
    return SL_OK;
}

static void write_integers(struct out *o, const struct sl_snapshot_entry *e)
{
    const struct sl_state_header *h = (const void *)o->state;
    if (e->part == SL_PART_COUNTER)
        memcpy(o->data + e->begin, &h->tokens_seen, e->bytes);
    else
        memcpy(o->data + e->begin, o->state + e->tensor->offset, e->bytes);
    hash(o, e->begin + e->bytes);
}

static enum sl_code write_data(struct out *o, const struct sl_snapshot_entry *v, size_t n)
{
    enum sl_code c = SL_OK;
    size_t scales = 0; /* in the order of the tensors that they belong to */
    while (scales < n && v[scales].part != SL_PART_SCALES)
        scales++;
    for (size_t i = 0; i < n && c == SL_OK; i++) {
        if (v[i].dtype == SL_DTYPE_I64)
            write_integers(o, &v[i]);
        else if (v[i].dtype == SL_DTYPE_I8)
            c = write_rows(o, &v[i], &v[scales++]);
        else if (v[i].part == SL_PART_VALUES)
            c = write_values(o, &v[i]);
    }
    if (c == SL_OK)
        hash(o, v[n - 1].begin + v[n - 1].bytes);
    return c;
}

/* --- all of it --- */

static enum sl_code fail_text(const struct sl_header_text *t, struct sl_error *err)
{
    if (t->code == SL_E_NO_MEMORY)
        return sl_fail(err, t->code, "not enough memory for a snapshot");
    return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                   "the session's pending tokens and metadata take more than the %zu "
                   "bytes that a snapshot's header may have",
                   SL_SNAPSHOT_HEADER_MAX);
}

static enum sl_code check_texts(const struct sl_snapshot_info *info, struct sl_error *err)
{
    size_t n = info->continuation ? strlen(info->continuation) : 0;
    size_t meta_n = info->metadata ? strlen(info->metadata) : 0;
    size_t said_n = info->transcript ? strlen(info->transcript) : 0;
    assert(!info->session_id || sl_utf8_valid(info->session_id, strlen(info->session_id)));
    assert(!info->metadata || sl_utf8_valid(info->metadata, meta_n));
    assert(!info->continuation || sl_utf8_valid(info->continuation, n));
    if (n > SL_SNAPSHOT_TEXT_MAX || meta_n > SL_SNAPSHOT_TEXT_MAX)
        return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the session's %s takes %zu bytes; a snapshot has room for %zu",
                       n > meta_n ? "continuation" : "metadata", n > meta_n ? n : meta_n,
                       SL_SNAPSHOT_TEXT_MAX);
    if (said_n > SL_SNAPSHOT_TEXT_MAX)
        return sl_fail(err, SL_E_SNAPSHOT_TOO_LARGE,
                       "the session's transcript takes %zu bytes; a snapshot has room for %zu",
                       said_n, SL_SNAPSHOT_TEXT_MAX);
    return SL_OK;
}

enum sl_code sl_snapshot_write(const struct sl_model *m, const struct sl_tokenizer *t,
                               const void *state, const struct sl_snapshot_info *info,
                               unsigned char **ret, size_t *ret_n, struct sl_error *err)
{
    struct sl_snapshot_entry *plan = NULL;
    struct sl_header_text header = {.max = SL_SNAPSHOT_HEADER_MAX};
    unsigned char *file = NULL;
    size_t n_plan, data_n, digest_at = 0;
    struct made k = {.n_meta = 0};
    enum sl_code c = check_texts(info, err);
    if (c)
        goto out;
    if (!sl_snapshot_plan(m, info->dtype, &plan, &n_plan, &data_n)) {
        c = sl_fail(err, SL_E_NO_MEMORY, "not enough memory for a snapshot");
        goto out;
    }
    make_meta(&k, m, t, info);
    put_header(&header, &k, plan, n_plan, &digest_at);
    if (header.code) {
        c = fail_text(&header, err);
        goto out;
    }
    file = sl_malloc(8 + header.n + data_n);
    if (!file) {
        c = sl_fail(err, SL_E_NO_MEMORY, "not enough memory for a snapshot of %zu bytes",
                    8 + header.n + data_n);
        goto out;
    }
    uint64_t header_n = header.n;
    memcpy(file, &header_n, 8);
    memcpy(file + 8, header.p, header.n);
    struct out o = {.state = state, .data = file + 8 + header.n, .err = err};
    sl_digest_begin(&o.digest);
    c = write_data(&o, plan, n_plan);
    if (c)
        goto out;
    unsigned char digest[SL_DIGEST_BYTES];
    char hex[SL_SNAPSHOT_HEX];
    sl_digest_end(&o.digest, digest);
    sl_snapshot_hex(hex, digest);
    memcpy(file + 8 + digest_at, hex, 32);
    *ret = file;
    *ret_n = 8 + header.n + data_n;
    file = NULL;
out:
    sl_free(file);
    sl_free(header.p);
    sl_free(plan);
    return c;
}
