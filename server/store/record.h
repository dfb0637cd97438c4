/* record.h: the log's bytes: what a record looks like, to write and to read. Pure code.
 *
 * All numbers are little-endian. The file:
 *
 *     0  header of the file, 64 bytes: "SLATELOG", u32 format, u32 0, u64 id of this log (random),
 *        zeros, u64 XXH3-64 of the 56 bytes before
 *    64  records, each at a multiple of 8:
 *
 *          0  u32 magic "SLRC"        16  u64 version           48  u64 XXH3-64 of the payload
 *          4  u8  kind                24  u8[16] incarnation    56  u64 XXH3-64 of bytes 0 … 55
 *          5  u8  bytes of tenant     40  u64 batch                 and the names
 *          6  u8  bytes of id
 *          7  u8  0                   64  tenant, id, payload, zeros up to a multiple of 8
 *          8  u32 bytes of payload
 *         12  u32 0
 *
 * The header's hash is seeded with the log's id and the record's offset: a record is valid in its
 * own place only, so that neither a block of another file nor one written astray is taken for one.
 * Names stand in every record and under the header's hash, so that a damaged payload is known to
 * belong to a session.
 *
 * `batch` is the offset of the first record that was written and synced together with this one. A
 * batch is written after the one before it was synced: that is what tells a torn end (nothing of a
 * later batch lies behind it) from damage to what had been acknowledged. */
#ifndef SLATE_SERVER_STORE_RECORD_H
#define SLATE_SERVER_STORE_RECORD_H

#include "server/store/store.h"

enum sl_record_kind {
    SL_RECORD_HEAD = 1, /* the head whole, and which snapshot: create, patch, restore */
    SL_RECORD_TURN,     /* one more turn; version: after it */
    SL_RECORD_SNAP,     /* the state at `version` is in a file; turns up to it are dropped */
    SL_RECORD_ANSWER,   /* of turn `version`, which is dropped or was never written; for a retry */
    SL_RECORD_DELETE,
    SL_RECORD_BROKEN, /* what there was of this session was damaged before a rewrite: text */
    SL_RECORD_MARK,   /* of no session: everything before it was valid and synced */
    SL_RECORD_KEPT, /* an earlier snapshot, of `version`, that is kept to rewind to; a rewrite's */
    SL_RECORD_KEPT_TURN, /* a turn that the snapshot holds, kept for the same; a rewrite's */
    SL_RECORD_NAME,   /* `version` has a name, and is kept; in a rewrite before what leads there */
    SL_RECORD_UNNAME, /* and has not any more */
    SL_RECORD_KINDS
};

enum {
    SL_LOG_FORMAT = 1,
    SL_LOG_HEADER = 64,    /* bytes of the file's header */
    SL_RECORD_HEADER = 64, /* bytes without the names */
    SL_RECORD_NAMES_MAX = 64 + SL_SESSION_ID_MAX,
    SL_RECORD_PAYLOAD_MAX = 256 << 20,
    SL_HEAD_BYTES = 80,                           /* payload of HEAD, without metadata */
    SL_SNAP_BYTES = 32,                           /* payload of SNAP */
    SL_KEPT_BYTES = 48,                           /* payload of KEPT */
    SL_TURN_BYTES = 40,                           /* payload of TURN, without what varies */
    SL_ANSWER_BYTES = 32,                         /* an answer, without what varies */
    SL_NAME_BYTES_MAX = 4 + SL_SESSION_ID_MAX + 1 /* payload of NAME and UNNAME */
};

struct sl_record {
    enum sl_record_kind kind;
    const char *tenant, *id; /* not ended by '\0' */
    size_t tenant_n, id_n;
    unsigned char incarnation[16];
    uint64_t version;
    uint64_t batch;
    uint64_t payload_hash;
    size_t payload_n;
};

/* A snapshot's file. number 0: there is none. */
struct sl_snapfile {
    uint64_t version;
    uint64_t number; /* makes the name unique: no two writes ever share one */
    uint64_t size;
    unsigned char digest[16]; /* XXH3-128 */
};

/* [A-Za-z0-9._-], 1 … 64 of them. */
bool sl_tenant_valid(const char *s, size_t n);

void sl_log_header_write(unsigned char ret[SL_LOG_HEADER], uint64_t log_id);
/* Errors: STORE_CORRUPT, FILE_UNSUPPORTED; `path` is for them. */
SL_NODISCARD enum sl_code sl_log_header_read(const unsigned char *p, size_t n, const char *path,
                                             uint64_t *ret_log_id, struct sl_error *err);

/* What a header says that may be damaged. */
uint64_t sl_log_header_id(const unsigned char p[SL_LOG_HEADER]);
uint32_t sl_log_header_format(const unsigned char p[SL_LOG_HEADER]);

/* Bytes in the log, and where in them the payload begins. */
size_t sl_record_size(const struct sl_record *r);
size_t sl_record_payload_at(const struct sl_record *r);
uint64_t sl_record_hash(const void *payload, size_t n);

/* Writes sl_record_size() bytes; payload_hash is computed. */
void sl_record_write(unsigned char *dst, const struct sl_record *r, const void *payload,
                     uint64_t log_id, uint64_t at);

/* Does p begin as a record does? Nothing is checked. */
bool sl_record_looks(const unsigned char *p);

/* The header and names at p, of which n bytes are there; false: they are no valid record at `at`.
 * ret's names point into p. The payload is not looked at. */
bool sl_record_read(struct sl_record *ret, const unsigned char *p, size_t n, uint64_t log_id,
                    uint64_t at);

/* --- payloads ------------------------------------------------------------------------------------
 *
 * `_read` functions take the first bytes of a payload and its length, and say whether all lengths
 * in it fit; they do not look behind the fixed part, so it may be all there is in memory. */

/* HEAD: u64 tokens_seen, i64 created_at, i64 used_at, i64 ttl_s, u64 snapshot's version, number,
 * size, u8[16] its digest, u32 bytes of metadata, u32 0; then metadata and '\0'. */
struct sl_head_payload {
    uint64_t tokens_seen;
    int64_t created_at, used_at, ttl_s;
    struct sl_snapfile snap;
    uint32_t metadata_n;
};
size_t sl_head_payload_size(size_t metadata_n);
void sl_head_payload_write(unsigned char *dst, const struct sl_head_payload *h);
bool sl_head_payload_read(struct sl_head_payload *ret, const unsigned char *p, size_t n);

/* SNAP: u64 number, size, u8[16] digest. Its version is the record's. */
void sl_snap_payload_write(unsigned char *dst, const struct sl_snapfile *s);
bool sl_snap_payload_read(struct sl_snapfile *ret, const unsigned char *p, size_t n,
                          uint64_t version);

/* KEPT: as SNAP (number 0: the session was empty then), u64 tokens_seen, i64 used_at. */
struct sl_kept_payload {
    struct sl_snapfile snap;
    uint64_t tokens_seen;
    int64_t used_at;
};
void sl_kept_payload_write(unsigned char *dst, const struct sl_kept_payload *k);
bool sl_kept_payload_read(struct sl_kept_payload *ret, const unsigned char *p, size_t n,
                          uint64_t version);

/* NAME, UNNAME: u32 bytes of the name; the name and '\0'. Its version is the record's. Read writes
 * to ret, which has room for the longest. */
size_t sl_name_payload_write(unsigned char dst[SL_NAME_BYTES_MAX], const char *name);
bool sl_name_payload_read(char ret[SL_SESSION_ID_MAX + 1], const unsigned char *p, size_t n);

/* ANSWER: i64 at, u8[16] request_hash, u32 bytes of key and of body; then key '\0' body '\0'. */
struct sl_answer_payload {
    int64_t at;
    unsigned char request_hash[16];
    uint32_t key_n, body_n;
};
size_t sl_answer_payload_size(const struct sl_store_answer *a); /* SIZE_MAX: too large */
void sl_answer_payload_write(unsigned char *dst, const struct sl_store_answer *a);
bool sl_answer_payload_read(struct sl_answer_payload *ret, const unsigned char *p, size_t n);
/* With the whole payload there; texts point into it. */
void sl_answer_decode(struct sl_store_answer *ret, const unsigned char *p, uint64_t version);

/* TURN: u64 tokens_seen, i64 used_at, u32 tokens, bytes of continuation, u8 is there an answer, u8
 * and u16 tokens of before that it drops (the u8 counts 65,536 each; earlier versions wrote 0), u32
 * generated tokens, i64 the answer's time; then the tokens, the continuation and '\0', zeros up to
 * a multiple of 8, and the answer as above. */
struct sl_turn_payload {
    uint64_t tokens_seen;
    int64_t used_at;
    uint32_t n_tokens, continuation_n;
    bool has_answer;
    int64_t answered_at;
    size_t answer_offset; /* in the payload */
    uint32_t answer_n;    /* bytes; 0: there is none */
};
size_t sl_turn_payload_size(const struct sl_store_turn *t); /* SIZE_MAX: too large */
void sl_turn_payload_write(unsigned char *dst, const struct sl_store_turn *t);
bool sl_turn_payload_read(struct sl_turn_payload *ret, const unsigned char *p, size_t n);
/* With the whole payload there, at a multiple of 4; turns its tokens into the host's order, so
 * once. Texts point into it; answer NULL. */
void sl_turn_decode(struct sl_store_turn *ret, unsigned char *p, uint64_t version);

#endif
