/* record.c: see record.h. */
#include "server/store/record.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#include "proto/continuation.h"

static const unsigned char file_magic[8] = {'S', 'L', 'A', 'T', 'E', 'L', 'O', 'G'};
static const unsigned char record_magic[4] = {'S', 'L', 'R', 'C'};

static void set_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

static void set_u64(unsigned char *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t get_u16(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint64_t get_u64(const unsigned char *p)
{
    return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static size_t round_up_8(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

bool sl_tenant_valid(const char *s, size_t n)
{
    if (n < 1 || n > SL_TENANT_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!word && c != '.' && c != '_' && c != '-')
            return false;
    }
    return true;
}

/* --- the file's header ---------------------------------------------------------------------------
 */

void sl_log_header_write(unsigned char ret[SL_LOG_HEADER], uint64_t log_id)
{
    memset(ret, 0, SL_LOG_HEADER);
    memcpy(ret, file_magic, sizeof file_magic);
    set_u32(ret + 8, SL_LOG_FORMAT);
    set_u64(ret + 16, log_id);
    set_u64(ret + 56, XXH3_64bits(ret, 56));
}

enum sl_code sl_log_header_read(const unsigned char *p, size_t n, const char *path,
                                uint64_t *ret_log_id, struct sl_error *err)
{
    if (n < SL_LOG_HEADER)
        return sl_fail(err, SL_E_STORE_CORRUPT, "%s: ends after %zu bytes, where its header has %d",
                       path, n, SL_LOG_HEADER);
    if (memcmp(p, file_magic, sizeof file_magic) != 0)
        return sl_fail(err, SL_E_STORE_CORRUPT, "%s: is no log of a store (offset 0)", path);
    if (get_u64(p + 56) != XXH3_64bits(p, 56))
        return sl_fail(err, SL_E_STORE_CORRUPT, "%s: its header (offset 0) is damaged", path);
    if (sl_log_header_format(p) != SL_LOG_FORMAT)
        return sl_fail(err, SL_E_FILE_UNSUPPORTED,
                       "%s: is of format %u; this version of slate reads %d", path,
                       (unsigned)sl_log_header_format(p), SL_LOG_FORMAT);
    *ret_log_id = sl_log_header_id(p);
    return SL_OK;
}

uint64_t sl_log_header_id(const unsigned char p[SL_LOG_HEADER])
{
    return get_u64(p + 16);
}

uint32_t sl_log_header_format(const unsigned char p[SL_LOG_HEADER])
{
    return get_u32(p + 8);
}

/* --- records -------------------------------------------------------------------------------------
 */

size_t sl_record_payload_at(const struct sl_record *r)
{
    return SL_RECORD_HEADER + r->tenant_n + r->id_n;
}

size_t sl_record_size(const struct sl_record *r)
{
    return round_up_8(sl_record_payload_at(r) + r->payload_n);
}

uint64_t sl_record_hash(const void *payload, size_t n)
{
    return XXH3_64bits(payload, n);
}

/* Of bytes 0 … 55 and the names. */
static uint64_t header_hash(const unsigned char *p, size_t names_n, uint64_t log_id, uint64_t at)
{
    unsigned char joined[56 + SL_RECORD_NAMES_MAX];
    assert(names_n <= SL_RECORD_NAMES_MAX);
    memcpy(joined, p, 56);
    memcpy(joined + 56, p + SL_RECORD_HEADER, names_n);
    return XXH3_64bits_withSeed(joined, 56 + names_n, log_id + at);
}

void sl_record_write(unsigned char *dst, const struct sl_record *r, const void *payload,
                     uint64_t log_id, uint64_t at)
{
    size_t payload_at = sl_record_payload_at(r), size = sl_record_size(r);
    assert(at % 8 == 0 && r->tenant_n <= SL_TENANT_MAX && r->id_n <= SL_SESSION_ID_MAX);
    assert(r->payload_n <= SL_RECORD_PAYLOAD_MAX);
    memset(dst, 0, SL_RECORD_HEADER);
    memcpy(dst, record_magic, sizeof record_magic);
    dst[4] = (unsigned char)r->kind;
    dst[5] = (unsigned char)r->tenant_n;
    dst[6] = (unsigned char)r->id_n;
    set_u32(dst + 8, (uint32_t)r->payload_n);
    set_u64(dst + 16, r->version);
    memcpy(dst + 24, r->incarnation, 16);
    set_u64(dst + 40, r->batch);
    set_u64(dst + 48, sl_record_hash(payload, r->payload_n));
    if (r->tenant_n)
        memcpy(dst + SL_RECORD_HEADER, r->tenant, r->tenant_n);
    if (r->id_n)
        memcpy(dst + SL_RECORD_HEADER + r->tenant_n, r->id, r->id_n);
    if (r->payload_n)
        memcpy(dst + payload_at, payload, r->payload_n);
    memset(dst + payload_at + r->payload_n, 0, size - payload_at - r->payload_n);
    set_u64(dst + 56, header_hash(dst, r->tenant_n + r->id_n, log_id, at));
}

bool sl_record_looks(const unsigned char *p)
{
    return memcmp(p, record_magic, sizeof record_magic) == 0;
}

bool sl_record_read(struct sl_record *ret, const unsigned char *p, size_t n, uint64_t log_id,
                    uint64_t at)
{
    if (n < SL_RECORD_HEADER || !sl_record_looks(p))
        return false;
    size_t tenant_n = p[5], id_n = p[6];
    if (tenant_n > SL_TENANT_MAX || id_n > SL_SESSION_ID_MAX ||
        n < SL_RECORD_HEADER + tenant_n + id_n)
        return false;
    if (get_u64(p + 56) != header_hash(p, tenant_n + id_n, log_id, at))
        return false;
    struct sl_record r = {.kind = (enum sl_record_kind)p[4],
                          .tenant = (const char *)p + SL_RECORD_HEADER,
                          .id = (const char *)p + SL_RECORD_HEADER + tenant_n,
                          .tenant_n = tenant_n,
                          .id_n = id_n,
                          .version = get_u64(p + 16),
                          .batch = get_u64(p + 40),
                          .payload_hash = get_u64(p + 48),
                          .payload_n = get_u32(p + 8)};
    memcpy(r.incarnation, p + 24, 16);
    bool nameless = r.kind == SL_RECORD_MARK;
    if (p[4] < SL_RECORD_HEAD || p[4] >= SL_RECORD_KINDS || r.batch > at ||
        r.payload_n > SL_RECORD_PAYLOAD_MAX)
        return false;
    if (nameless ? tenant_n || id_n
                 : !sl_tenant_valid(r.tenant, tenant_n) || !sl_session_id_valid(r.id, id_n))
        return false;
    *ret = r;
    return true;
}

/* --- payloads ------------------------------------------------------------------------------------
 */

size_t sl_head_payload_size(size_t metadata_n)
{
    return metadata_n < SL_RECORD_PAYLOAD_MAX - SL_HEAD_BYTES ? SL_HEAD_BYTES + metadata_n + 1
                                                              : SIZE_MAX;
}

void sl_head_payload_write(unsigned char *dst, const struct sl_head_payload *h)
{
    set_u64(dst, h->tokens_seen);
    set_u64(dst + 8, (uint64_t)h->created_at);
    set_u64(dst + 16, (uint64_t)h->used_at);
    set_u64(dst + 24, (uint64_t)h->ttl_s);
    set_u64(dst + 32, h->snap.version);
    set_u64(dst + 40, h->snap.number);
    set_u64(dst + 48, h->snap.size);
    memcpy(dst + 56, h->snap.digest, 16);
    set_u32(dst + 72, h->metadata_n);
    set_u32(dst + 76, 0);
}

bool sl_head_payload_read(struct sl_head_payload *ret, const unsigned char *p, size_t n)
{
    if (n < SL_HEAD_BYTES + 1)
        return false;
    struct sl_head_payload h = {
        .tokens_seen = get_u64(p),
        .created_at = (int64_t)get_u64(p + 8),
        .used_at = (int64_t)get_u64(p + 16),
        .ttl_s = (int64_t)get_u64(p + 24),
        .snap = {.version = get_u64(p + 32), .number = get_u64(p + 40), .size = get_u64(p + 48)},
        .metadata_n = get_u32(p + 72)};
    memcpy(h.snap.digest, p + 56, 16);
    bool none = h.snap.number == 0;
    if (n != sl_head_payload_size(h.metadata_n) || none != (h.snap.version == 0) ||
        (none && h.snap.size))
        return false;
    *ret = h;
    return true;
}

void sl_snap_payload_write(unsigned char *dst, const struct sl_snapfile *s)
{
    set_u64(dst, s->number);
    set_u64(dst + 8, s->size);
    memcpy(dst + 16, s->digest, 16);
}

bool sl_snap_payload_read(struct sl_snapfile *ret, const unsigned char *p, size_t n,
                          uint64_t version)
{
    if (n != SL_SNAP_BYTES || version == 0 || get_u64(p) == 0)
        return false;
    *ret = (struct sl_snapfile){.version = version, .number = get_u64(p), .size = get_u64(p + 8)};
    memcpy(ret->digest, p + 16, 16);
    return true;
}

void sl_kept_payload_write(unsigned char *dst, const struct sl_kept_payload *k)
{
    sl_snap_payload_write(dst, &k->snap);
    set_u64(dst + SL_SNAP_BYTES, k->tokens_seen);
    set_u64(dst + SL_SNAP_BYTES + 8, (uint64_t)k->used_at);
}

bool sl_kept_payload_read(struct sl_kept_payload *ret, const unsigned char *p, size_t n,
                          uint64_t version)
{
    struct sl_kept_payload k = {.snap = {.version = version}};
    if (n != SL_KEPT_BYTES ||
        (version ? !sl_snap_payload_read(&k.snap, p, SL_SNAP_BYTES, version) : get_u64(p) != 0))
        return false;
    k.tokens_seen = get_u64(p + SL_SNAP_BYTES);
    k.used_at = (int64_t)get_u64(p + SL_SNAP_BYTES + 8);
    *ret = k;
    return true;
}

size_t sl_name_payload_write(unsigned char dst[SL_NAME_BYTES_MAX], const char *name)
{
    size_t n = strlen(name);
    assert(n <= SL_SESSION_ID_MAX);
    set_u32(dst, (uint32_t)n);
    memcpy(dst + 4, name, n + 1);
    return 4 + n + 1;
}

bool sl_name_payload_read(char ret[SL_SESSION_ID_MAX + 1], const unsigned char *p, size_t n)
{
    if (n < 4 + 1 || n > SL_NAME_BYTES_MAX || get_u32(p) != n - 4 - 1 || p[n - 1] != '\0' ||
        !sl_session_id_valid((const char *)p + 4, n - 4 - 1))
        return false;
    memcpy(ret, p + 4, n - 4);
    return true;
}

size_t sl_answer_payload_size(const struct sl_store_answer *a)
{
    size_t key_n = strlen(a->idempotency_key);
    if (key_n > SL_RECORD_PAYLOAD_MAX / 4 || a->body.n > SL_RECORD_PAYLOAD_MAX / 2)
        return SIZE_MAX;
    return SL_ANSWER_BYTES + key_n + 1 + a->body.n + 1;
}

void sl_answer_payload_write(unsigned char *dst, const struct sl_store_answer *a)
{
    size_t key_n = strlen(a->idempotency_key);
    set_u64(dst, (uint64_t)a->at);
    memcpy(dst + 8, a->request_hash, 16);
    set_u32(dst + 24, (uint32_t)key_n);
    set_u32(dst + 28, (uint32_t)a->body.n);
    dst += SL_ANSWER_BYTES;
    memcpy(dst, a->idempotency_key, key_n + 1);
    dst += key_n + 1;
    if (a->body.n)
        memcpy(dst, a->body.s, a->body.n);
    dst[a->body.n] = '\0';
}

bool sl_answer_payload_read(struct sl_answer_payload *ret, const unsigned char *p, size_t n)
{
    if (n < SL_ANSWER_BYTES + 2)
        return false;
    struct sl_answer_payload a = {
        .at = (int64_t)get_u64(p), .key_n = get_u32(p + 24), .body_n = get_u32(p + 28)};
    memcpy(a.request_hash, p + 8, 16);
    if (n - SL_ANSWER_BYTES - 2 != (uint64_t)a.key_n + a.body_n)
        return false;
    *ret = a;
    return true;
}

void sl_answer_decode(struct sl_store_answer *ret, const unsigned char *p, uint64_t version)
{
    uint32_t key_n = get_u32(p + 24);
    *ret = (struct sl_store_answer){
        .idempotency_key = (const char *)p + SL_ANSWER_BYTES,
        .at = (int64_t)get_u64(p),
        .version = version,
        .body = {(const char *)p + SL_ANSWER_BYTES + key_n + 1, get_u32(p + 28)}};
    memcpy(ret->request_hash, p + 8, 16);
}

/* Where the answer begins, which is where the payload ends when there is none. */
static uint64_t turn_end(uint64_t n_tokens, uint64_t continuation_n)
{
    return (SL_TURN_BYTES + n_tokens * sizeof(uint32_t) + continuation_n + 1 + 7) & ~(uint64_t)7;
}

size_t sl_turn_payload_size(const struct sl_store_turn *t)
{
    if (t->n_tokens > SL_RECORD_PAYLOAD_MAX / 16 || t->continuation.n > SL_RECORD_PAYLOAD_MAX / 4 ||
        t->n_drop > SL_HELD_MAX || t->n_generated > t->n_tokens)
        return SIZE_MAX;
    size_t n = (size_t)turn_end(t->n_tokens, t->continuation.n);
    if (!t->answer)
        return n;
    size_t answer_n = sl_answer_payload_size(t->answer);
    return answer_n <= SL_RECORD_PAYLOAD_MAX - n ? n + answer_n : SIZE_MAX;
}

void sl_turn_payload_write(unsigned char *dst, const struct sl_store_turn *t)
{
    size_t end = (size_t)turn_end(t->n_tokens, t->continuation.n);
    unsigned char *p = dst;
    memset(p, 0, SL_TURN_BYTES);
    set_u64(p, t->tokens_seen);
    set_u64(p + 8, (uint64_t)t->used_at);
    set_u32(p + 16, (uint32_t)t->n_tokens);
    set_u32(p + 20, (uint32_t)t->continuation.n);
    p[24] = t->answer != NULL;
    p[25] = (unsigned char)(t->n_drop >> 16);
    p[26] = (unsigned char)t->n_drop;
    p[27] = (unsigned char)(t->n_drop >> 8);
    set_u32(p + 28, (uint32_t)t->n_generated);
    if (t->answer)
        set_u64(p + 32, (uint64_t)t->answer->at);
    p += SL_TURN_BYTES;
    for (size_t i = 0; i < t->n_tokens; i++, p += 4)
        set_u32(p, t->tokens[i]);
    if (t->continuation.n)
        memcpy(p, t->continuation.s, t->continuation.n);
    p += t->continuation.n;
    memset(p, 0, (size_t)(dst + end - p));
    if (t->answer)
        sl_answer_payload_write(dst + end, t->answer);
}

bool sl_turn_payload_read(struct sl_turn_payload *ret, const unsigned char *p, size_t n)
{
    if (n < SL_TURN_BYTES)
        return false;
    struct sl_turn_payload t = {.tokens_seen = get_u64(p),
                                .used_at = (int64_t)get_u64(p + 8),
                                .n_tokens = get_u32(p + 16),
                                .continuation_n = get_u32(p + 20),
                                .has_answer = p[24] == 1,
                                .answered_at = (int64_t)get_u64(p + 32)};
    uint64_t end = turn_end(t.n_tokens, t.continuation_n);
    if (p[24] > 1 || get_u32(p + 28) > t.n_tokens || end > n ||
        (t.has_answer ? n - end < SL_ANSWER_BYTES + 2 : n != end))
        return false;
    t.answer_offset = (size_t)end;
    t.answer_n = (uint32_t)(n - end);
    *ret = t;
    return true;
}

void sl_turn_decode(struct sl_store_turn *ret, unsigned char *p, uint64_t version)
{
    uint32_t n = get_u32(p + 16);
    unsigned char *tokens = p + SL_TURN_BYTES;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = get_u32(tokens + 4 * i);
        memcpy(tokens + 4 * i, &v, sizeof v);
    }
    *ret = (struct sl_store_turn){
        .version = version,
        .tokens_seen = get_u64(p),
        .used_at = (int64_t)get_u64(p + 8),
        .n_drop = get_u16(p + 26) | (size_t)p[25] << 16,
        .n_generated = get_u32(p + 28),
        .tokens = (const uint32_t *)(const void *)tokens,
        .n_tokens = n,
        .continuation = {(const char *)tokens + 4 * (size_t)n, get_u32(p + 20)}};
}
