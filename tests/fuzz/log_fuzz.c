/* log_fuzz.c: the log of the `dir:` store. The first byte says how many versions are kept and how
 * the rest is read: as the bytes of a log, or as a list of records that are laid out with the right
 * hashes (so that what they say is tried, too, and not only that they are whole).
 *
 * What could be read must be sound, must be the same when read again without the torn end, and must
 * be the same after a rewrite. Files are in memory. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "server/store/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* --- files in memory: descriptors are indices ----------------------------------------------------
 */

enum { FILES = 2, FILE_MAX = 1 << 18, FOLDER = 100 };

static struct {
    unsigned char *p;
    size_t n;
} files[FILES];

static int mem_open(int dir, const char *name, int flags, mode_t mode)
{
    (void)dir;
    (void)mode;
    assert(strcmp(name, SL_LOG_NEW_NAME) == 0 && flags & O_EXCL);
    files[1].n = 0;
    return 1;
}

static int mem_close(int fd)
{
    (void)fd;
    return 0;
}

static ssize_t mem_pread(int fd, void *p, size_t n, off_t at)
{
    size_t from = (size_t)at, k = from < files[fd].n ? files[fd].n - from : 0;
    k = k < n ? k : n;
    if (k)
        memcpy(p, files[fd].p + from, k);
    return (ssize_t)k;
}

static ssize_t mem_pwrite(int fd, const void *p, size_t n, off_t at)
{
    if ((size_t)at + n > FILE_MAX) {
        errno = ENOSPC;
        return -1;
    }
    memcpy(files[fd].p + at, p, n);
    if ((size_t)at + n > files[fd].n)
        files[fd].n = (size_t)at + n;
    return (ssize_t)n;
}

static int mem_sync(int fd)
{
    (void)fd;
    return 0;
}

static int mem_stat(int fd, struct stat *ret)
{
    *ret = (struct stat){.st_mode = S_IFREG, .st_size = (off_t)files[fd].n};
    return 0;
}

static int mem_rename(int dir, const char *from, const char *to)
{
    (void)dir;
    (void)from;
    (void)to;
    return 0;
}

static int mem_unlink(int dir, const char *name)
{
    (void)dir;
    (void)name;
    errno = ENOENT;
    return -1;
}

static int64_t mem_now(void)
{
    return 0;
}

static const struct sl_store_io mem_io = {.open = mem_open,
                                          .close = mem_close,
                                          .pread = mem_pread,
                                          .pwrite = mem_pwrite,
                                          .fdatasync = mem_sync,
                                          .fsync = mem_sync,
                                          .stat = mem_stat,
                                          .rename = mem_rename,
                                          .unlink = mem_unlink,
                                          .now = mem_now};

static const struct sl_log_place place = {&mem_io, FOLDER, "fuzz"};

/* --- a log from a list of records ----------------------------------------------------------------
 */

struct input {
    const uint8_t *p;
    size_t n;
};

static unsigned take(struct input *in)
{
    if (!in->n)
        return 0;
    in->n--;
    return *in->p++;
}

static void take_bytes(struct input *in, void *p, size_t n)
{
    memset(p, 0, n);
    size_t k = n < in->n ? n : in->n;
    if (k)
        memcpy(p, in->p, k);
    in->p += k;
    in->n -= k;
}

static size_t head_payload(struct input *in, unsigned char *p, uint64_t version)
{
    struct sl_head_payload h = {.tokens_seen = take(in),
                                .created_at = (int64_t)take(in),
                                .used_at = (int64_t)take(in) * 3600,
                                .ttl_s = take(in)};
    h.metadata_n = take(in) % 8;
    h.snap.number = take(in);
    h.snap.version = h.snap.number % 3 ? version : take(in);
    h.snap.size = take(in);
    sl_head_payload_write(p, &h);
    take_bytes(in, p + SL_HEAD_BYTES, h.metadata_n + 1);
    return sl_head_payload_size(h.metadata_n);
}

static size_t turn_payload(struct input *in, unsigned char *p, uint64_t version)
{
    uint32_t tokens[8];
    char text[8];
    struct sl_store_answer a = {.idempotency_key = "key", .at = (int64_t)take(in) * 3600};
    struct sl_store_turn t = {
        .version = version, .tokens_seen = take(in), .used_at = a.at, .tokens = tokens};
    t.n_tokens = take(in) % 8;
    t.n_generated = take(in) % (t.n_tokens + 1);
    t.n_drop = take(in);
    take_bytes(in, tokens, sizeof tokens);
    take_bytes(in, text, sizeof text);
    t.continuation = (struct sl_text){text, take(in) % 8};
    a.body = t.continuation;
    t.answer = take(in) % 2 ? &a : NULL;
    sl_turn_payload_write(p, &t);
    return sl_turn_payload_size(&t);
}

static size_t payload_of(struct input *in, enum sl_record_kind kind, uint64_t version,
                         unsigned char p[512])
{
    struct sl_store_answer a = {.idempotency_key = "k", .body = {"x", 1}};
    struct sl_snapfile s = {.size = 9};
    struct sl_kept_payload k = {.snap = {.version = version, .number = version, .size = 9}};
    static const char *const names[] = {"x", "y", "a-long.er_name"};
    switch (kind) {
    case SL_RECORD_HEAD:
        return head_payload(in, p, version);
    case SL_RECORD_TURN:
    case SL_RECORD_KEPT_TURN:
        return turn_payload(in, p, version);
    case SL_RECORD_SNAP:
        s.number = take(in);
        sl_snap_payload_write(p, &s);
        return SL_SNAP_BYTES;
    case SL_RECORD_ANSWER:
        a.at = (int64_t)take(in) * 3600;
        sl_answer_payload_write(p, &a);
        return sl_answer_payload_size(&a);
    case SL_RECORD_KEPT:
        sl_kept_payload_write(p, &k);
        return SL_KEPT_BYTES;
    case SL_RECORD_NAME:
    case SL_RECORD_UNNAME:
        return sl_name_payload_write(p, names[take(in) % 3]);
    case SL_RECORD_BROKEN:
        memcpy(p, "why", 4);
        return 4;
    default:
        return 0;
    }
}

static void lay_out(struct input *in)
{
    static const char *const ids[] = {"a", "b", "c", "a-long.er_id"};
    const uint64_t log_id = 77;
    uint64_t batch = SL_LOG_HEADER;
    sl_log_header_write(files[0].p, log_id);
    files[0].n = SL_LOG_HEADER;
    while (in->n && files[0].n < FILE_MAX / 4) {
        unsigned char payload[512];
        unsigned what = take(in), who = take(in);
        struct sl_record r = {.kind = (enum sl_record_kind)(1 + what % (SL_RECORD_KINDS - 1)),
                              .tenant = "t",
                              .tenant_n = 1,
                              .id = ids[who % 4],
                              .id_n = strlen(ids[who % 4]),
                              .version = take(in)};
        r.incarnation[5] = (unsigned char)(who / 4 % 2);
        if (r.kind == SL_RECORD_MARK)
            r.tenant_n = r.id_n = 0;
        r.payload_n = payload_of(in, r.kind, r.version, payload);
        if (what & 32) { /* any payload at all */
            r.payload_n = take(in);
            take_bytes(in, payload, r.payload_n);
        }
        uint64_t at = files[0].n;
        if (who & 64)
            batch = at;
        r.batch = batch;
        sl_record_write(files[0].p + at, &r, payload, log_id, at);
        files[0].n += sl_record_size(&r);
        if (what & 64) /* damaged after all */
            files[0].p[at + take(in) % sl_record_size(&r)] ^= (unsigned char)take(in);
    }
    files[0].n -= take(in) % 64 % files[0].n;
}

/* --- what must hold ------------------------------------------------------------------------------
 */

/* Is the record there, whole, and whose it should be? */
static void check_place(const struct sl_log_file *f, const struct sl_ix_session *s,
                        const struct sl_place *p)
{
    struct sl_owner owner = {s->tenant->name, s->id, s->incarnation};
    struct sl_bytes b = {0};
    struct sl_record r;
    unsigned char *payload;
    struct sl_error err;
    if (p->size)
        assert(sl_log_fetch(&place, f, &owner, p, &b, &r, &payload, &err) == SL_OK);
    sl_free(b.p);
}

struct totals {
    const struct sl_log_file *log;
    uint64_t n, live;
};

/* Earlier snapshots and names, each in the order of versions. Returns the bytes of their records.
 */
static uint64_t check_kept(const struct sl_log_file *log, const struct sl_ix_session *s)
{
    uint64_t bytes = 0, names = 0;
    for (const struct sl_ix_snap *x = s->kept; x; x = x->next) {
        assert(x->file.version < (x->next ? x->next->file.version : s->snap.version));
        assert((x == s->last_kept) == (x->next == NULL));
        check_place(log, s, &x->place);
        bytes += x->place.size;
    }
    for (const struct sl_ix_name *x = s->names; x; x = x->next, names++) {
        assert(!x->next || x->version <= x->next->version);
        assert(sl_index_find_name(s, x->name) == x);
        check_place(log, s, &x->place);
        bytes += x->place.size;
    }
    assert(names == s->n_names && (s->kept || !s->last_kept));
    return bytes;
}

static bool check_session(void *arg, struct sl_ix_session *s)
{
    struct totals *t = arg;
    size_t turns = 0, answers = 0;
    uint64_t live = s->head.size + s->snapat.size + (uint64_t)s->damaged.size, replay = 0;
    uint64_t version = s->snap.version, last = 0;
    live += check_kept(t->log, s);
    for (struct sl_ix_entry *e = s->entries; e; e = e->next) {
        assert(e->turn || e->kept || e->answer);
        assert(e->version > last);
        last = e->version;
        if (e->turn)
            assert(e->version == ++version);
        else
            assert(!turns && e->version <= s->snap.version);
        turns += e->turn;
        answers += e->answer;
        replay += e->turn ? e->n_tokens : 0;
        live += e->place.size;
        check_place(t->log, s, &e->place);
        assert((e == s->last_entry) == (e->next == NULL));
    }
    assert(turns == s->n_turns && answers == s->n_answers && answers <= SL_STORE_ANSWERS_MAX);
    assert(replay == s->replay_tokens && live == s->live);
    assert(s->damaged.size || (s->head.size && version == s->version));
    check_place(t->log, s, &s->head);
    check_place(t->log, s, &s->snapat);
    t->n++;
    t->live += live;
    return true;
}

static void check_index(const struct sl_index *ix, int fd, uint64_t log_id)
{
    struct sl_log_file log = {.fd = fd, .id = log_id};
    struct totals t = {.log = &log};
    sl_index_each(ix, check_session, &t);
    assert(t.n == ix->n_sessions && t.live == ix->live && ix->n_nodes == ix->n_sessions);
}

/* Is each session of one index in the other, and the same? */
static bool check_equal(void *arg, struct sl_ix_session *s)
{
    const struct sl_index *other = arg;
    struct sl_ix_session *o =
        sl_index_find(other, s->tenant->name, s->tenant->name_n, s->id, s->id_n);
    assert(o && o->exists && memcmp(o->incarnation, s->incarnation, 16) == 0);
    assert(o->version == s->version && (o->damaged.size != 0) == (s->damaged.size != 0));
    if (s->damaged.size)
        return true;
    assert(o->tokens_seen == s->tokens_seen && o->created_at == s->created_at);
    assert(o->used_at == s->used_at && o->ttl_s == s->ttl_s && o->metadata_n == s->metadata_n);
    assert(memcmp(&o->snap, &s->snap, sizeof s->snap) == 0);
    assert(o->n_turns == s->n_turns && o->replay_tokens == s->replay_tokens);
    const struct sl_ix_entry *b = o->entries;
    for (const struct sl_ix_entry *a = s->entries; a; a = a->next, b = b->next)
        assert(b && a->version == b->version && a->turn == b->turn && a->kept == b->kept &&
               a->answer == b->answer && a->answered_at == b->answered_at);
    assert(!b);
    const struct sl_ix_snap *y = o->kept;
    for (const struct sl_ix_snap *x = s->kept; x; x = x->next, y = y->next)
        assert(y && memcmp(&x->file, &y->file, sizeof x->file) == 0 &&
               x->tokens_seen == y->tokens_seen && x->used_at == y->used_at);
    assert(!y && o->n_names == s->n_names);
    for (const struct sl_ix_name *x = s->names; x; x = x->next) {
        const struct sl_ix_name *z = sl_index_find_name(o, x->name);
        assert(z && z->version == x->version);
    }
    return true;
}

static void must_equal(const struct sl_index *a, struct sl_index *b)
{
    assert(a->n_sessions == b->n_sessions);
    sl_index_each(a, check_equal, b);
}

/* Rewritten, the log says the same; and so does the memory. */
static void check_rewrite(struct sl_index *ix, uint64_t log_id)
{
    struct sl_log_file log = {.fd = 0, .id = log_id};
    struct sl_rewrite w = {.lp = place, .old = &log};
    struct sl_index again = {.keep_turns = ix->keep_turns};
    struct sl_log_scan scan;
    struct sl_error err;
    assert(sl_rewrite_begin(&w, ix) == SL_OK);
    sl_rewrite_run(&w);
    sl_rewrite_done(&w);
    if (w.code) {
        assert(w.code == SL_E_STORE_FULL && w.fd < 0);
        return;
    }
    assert(w.n_damaged == 0); /* it was all read just now */
    sl_index_moved(ix, NULL, 0);
    check_index(ix, 1, w.id);
    assert(sl_log_scan(&place, 1, &again, &scan, &err) == SL_OK);
    assert(scan.end == scan.size && scan.end == w.end && scan.marked && scan.log_id == w.id);
    check_index(&again, 1, w.id);
    must_equal(ix, &again);
    must_equal(&again, ix);
    sl_index_done(&again);
}

static void on_header(void *arg)
{
    (void)arg;
}

static enum sl_code on_gap(void *arg, uint64_t from, uint64_t to, const unsigned char *p, size_t n)
{
    uint64_t *last = arg;
    (void)p;
    assert(from < to && from % 8 == 0 && to % 8 == 0 && from >= *last && n >= 1);
    *last = to;
    return SL_OK;
}

/* As a repair reads it, over what a server refuses; rewritten, it is a log like any other. (An id
 * that has to be found is for unit tests: it takes a second.) */
static void check_repair(uint64_t keep_turns)
{
    struct sl_index ix = {.keep_turns = keep_turns};
    struct sl_log_scan scan;
    struct sl_error err;
    uint64_t last = 0, id;
    const struct sl_log_bridge bridge = {on_header, on_gap, &last};
    if (sl_log_header_read(files[0].p, files[0].n, "fuzz/log", &id, &err))
        return;
    enum sl_code c = sl_log_scan_over(&place, 0, &ix, &bridge, &scan, &err);
    assert(c == SL_OK && last > 0 && last < scan.size && scan.log_id == id);
    check_rewrite(&ix, scan.log_id);
    sl_index_done(&ix);
}

static void check_log(uint64_t keep_turns)
{
    struct sl_index ix = {.keep_turns = keep_turns}, again = ix;
    struct sl_log_scan scan, scan_again;
    struct sl_error err = {0};
    enum sl_code c = sl_log_scan(&place, 0, &ix, &scan, &err);
    if (c) {
        assert(c == SL_E_STORE_CORRUPT || c == SL_E_FILE_UNSUPPORTED);
        assert(err.code == c && strncmp(err.message, "fuzz/log: ", 10) == 0);
        assert(sl_utf8_valid(err.message, strlen(err.message)));
        check_repair(keep_turns);
    } else {
        assert(scan.end <= scan.size && scan.size == files[0].n);
        check_index(&ix, 0, scan.log_id);
        if (scan.end + SL_RECORD_HEADER > FILE_MAX)
            return;
        /* As the store goes on: the torn end is cut, and what was found is marked as such. */
        struct sl_record mark = {.kind = SL_RECORD_MARK, .batch = scan.end};
        sl_record_write(files[0].p + scan.end, &mark, NULL, scan.log_id, scan.end);
        files[0].n = (size_t)scan.end + SL_RECORD_HEADER;
        c = sl_log_scan(&place, 0, &again, &scan_again, &err);
        assert(c == SL_OK && scan_again.end == files[0].n);
        must_equal(&ix, &again);
        check_rewrite(&ix, scan.log_id);
    }
    sl_index_done(&again);
    sl_index_done(&ix);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > FILE_MAX / 4)
        return 0;
    for (size_t i = 0; i < FILES; i++) {
        if (!files[i].p)
            files[i].p = calloc(1, FILE_MAX); /* kept until the end */
        assert(files[i].p);
    }
    if (data[0] % 2) {
        struct input in = {data + 1, size - 1};
        lay_out(&in);
    } else {
        memcpy(files[0].p, data + 1, size - 1);
        files[0].n = size - 1;
    }
    check_log(data[0] / 2 % 4);
    return 0;
}
