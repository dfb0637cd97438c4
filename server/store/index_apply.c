/* index_apply.c: what records do to what is known of a session, and where they lie after a rewrite.
 * See index.h. */
#include <assert.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/store/index.h"

/* --- what records do -----------------------------------------------------------------------------
 */

static void count_live(struct sl_index *ix, struct sl_ix_session *s, int64_t by)
{
    s->live += (uint64_t)by;
    ix->live += (uint64_t)by;
}

static void set_place(struct sl_index *ix, struct sl_ix_session *s, struct sl_place *p, uint64_t at,
                      size_t size)
{
    count_live(ix, s, (int64_t)size - (int64_t)p->size);
    *p = (struct sl_place){.at = at, .size = (uint32_t)size};
}

static void drop_snap(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap *x,
                      struct sl_ix_snap **ret_old)
{
    count_live(ix, s, -(int64_t)x->place.size);
    ix->snapshot_bytes -= x->file.size;
    x->next = *ret_old;
    *ret_old = x;
}

static void keep_snap(struct sl_ix_session *s, struct sl_ix_snap *x)
{
    x->next = NULL;
    *(s->last_kept ? &s->last_kept->next : &s->kept) = x;
    s->last_kept = x;
}

/* Seen at a version between the last snapshot's and now. */
static void look_at(const struct sl_ix_session *s, uint64_t version, uint64_t *ret_tokens,
                    int64_t *ret_used_at)
{
    const struct sl_ix_entry *e = s->entries;
    while (e && (e->version != version || (!e->turn && !e->kept)))
        e = e->next;
    bool last = version == s->version;
    *ret_tokens = last ? s->tokens_seen : e ? e->tokens_seen : s->snap_tokens;
    *ret_used_at = last ? s->used_at : e ? e->used_at : s->snap_used_at;
}

/* The snapshot's file is `snap` from now on, its record at `place`; `x` becomes the one before. */
static void set_snap(struct sl_index *ix, struct sl_ix_session *s, const struct sl_snapfile *snap,
                     struct sl_place place, struct sl_ix_snap *x, struct sl_ix_snap **ret_old)
{
    *x = (struct sl_ix_snap){.file = s->snap,
                             .place = s->snapat,
                             .tokens_seen = s->snap_tokens,
                             .used_at = s->snap_used_at};
    look_at(s, snap->version, &s->snap_tokens, &s->snap_used_at);
    if (x->file.number == snap->number || x->file.version == snap->version)
        drop_snap(ix, s, x, ret_old);
    else
        keep_snap(s, x);
    if (x->file.number == snap->number)
        x->file = (struct sl_snapfile){0}; /* it is needed: the head alone has changed */
    s->snap = *snap;
    ix->snapshot_bytes += snap->size;
    s->snapat = place;
    count_live(ix, s, place.size);
    if (snap->number > ix->last_number)
        ix->last_number = snap->number;
}

/* The oldest version that keep_turns holds within reach. */
static uint64_t first_kept(const struct sl_index *ix, const struct sl_ix_session *s)
{
    return s->version > ix->keep_turns ? s->version - ix->keep_turns : 0;
}

static uint64_t version_after(const struct sl_ix_session *s, const struct sl_ix_snap *x)
{
    return x->next ? x->next->file.version : s->snap.version;
}

/* *ret: the last version with a name that is had from x. False: there is none. */
static bool last_named(const struct sl_ix_session *s, const struct sl_ix_snap *x, uint64_t *ret)
{
    uint64_t next = version_after(s, x);
    bool any = false;
    for (const struct sl_ix_name *n = s->names; n && n->version < next; n = n->next) {
        if (n->version < x->file.version)
            continue;
        *ret = n->version;
        any = true;
    }
    return any;
}

bool sl_index_is_named(const struct sl_ix_session *s, const struct sl_ix_snap *x)
{
    uint64_t version;
    return last_named(s, x, &version);
}

/* Up to which version the turns since x are kept; 0: none of them. */
static uint64_t turns_until(const struct sl_index *ix, const struct sl_ix_session *s,
                            const struct sl_ix_snap *x)
{
    uint64_t next = version_after(s, x), until = 0;
    if (next > first_kept(ix, s))
        return next;
    return last_named(s, x, &until) ? until : 0;
}

/* Earlier snapshots without which every version that is kept is within reach. True: turns may have
 * become free. */
static bool sweep_kept(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap **ret_old)
{
    uint64_t first = first_kept(ix, s);
    struct sl_ix_snap **p = &s->kept, *before = NULL, *x;
    bool changed = false;
    while ((x = *p) && version_after(s, x) <= first) {
        if (sl_index_is_named(s, x)) {
            changed |= version_after(s, x) == first; /* the turns behind the name go now */
            before = x;
            p = &x->next;
            continue;
        }
        *p = x->next;
        if (s->last_kept == x)
            s->last_kept = before;
        drop_snap(ix, s, x, ret_old);
        changed = true;
    }
    return changed;
}

/* Times come from disks and clocks: any value. */
bool sl_answer_expired(int64_t answered_at, int64_t now)
{
    int64_t age;
    return !__builtin_sub_overflow(now, answered_at, &age) && age > SL_ANSWER_LIFE_S;
}

/* Drops the entries that are neither a turn since a snapshot nor an answer to be kept. Age is
 * reckoned from the newest answer: what is dropped depends on the records alone. */
static void sweep_entries(struct sl_index *ix, struct sl_ix_session *s)
{
    int64_t now = 0;
    for (const struct sl_ix_entry *x = s->entries; x; x = x->next)
        now = x->answer ? x->answered_at : now;
    size_t too_many = s->n_answers > SL_STORE_ANSWERS_MAX ? s->n_answers - SL_STORE_ANSWERS_MAX : 0;
    struct sl_ix_entry **p = &s->entries, *e;
    s->last_entry = NULL;
    s->n_turns = s->n_answers = 0;
    s->replay_tokens = 0;
    const struct sl_ix_snap *base = NULL, *after = s->kept;
    uint64_t until = 0;
    while ((e = *p)) {
        for (; after && after->file.version < e->version; after = after->next) {
            base = after;
            until = turns_until(ix, s, base);
        }
        if (e->answer && (too_many || sl_answer_expired(e->answered_at, now))) {
            e->answer = false;
            too_many -= too_many > 0;
        }
        e->kept = (e->turn || e->kept) && e->version <= s->snap.version && e->version <= until;
        e->turn = e->turn && e->version > s->snap.version;
        if (!e->turn && !e->kept && !e->answer) {
            count_live(ix, s, -(int64_t)e->place.size);
            *p = e->next;
            sl_free(e);
            continue;
        }
        s->n_turns += e->turn;
        s->n_answers += e->answer;
        s->replay_tokens += e->turn ? e->n_tokens : 0;
        s->last_entry = e;
        p = &e->next;
    }
}

static void add_entry(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_entry *e)
{
    e->next = NULL;
    if (s->last_entry)
        s->last_entry->next = e;
    else
        s->entries = e;
    s->last_entry = e;
    s->n_turns += e->turn;
    s->n_answers += e->answer;
    s->replay_tokens += e->turn ? e->n_tokens : 0;
    count_live(ix, s, e->place.size);
}

static void sweep_all(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap **ret_old)
{
    sweep_kept(ix, s, ret_old);
    sweep_entries(ix, s);
}

static bool apply_head(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, uint64_t at, struct sl_ix_snap *x,
                       struct sl_ix_snap **ret_old)
{
    struct sl_head_payload h;
    bool made = false;
    if (!sl_head_payload_read(&h, payload, r->payload_n) || h.snap.version > r->version)
        return false;
    if (s->exists) {
        bool patch = r->version == s->version && h.snap.version == s->snap.version &&
                     h.snap.number == s->snap.number;
        bool restore =
            r->version >= s->version && h.snap.number != 0 && h.snap.version == r->version;
        if (memcmp(s->incarnation, r->incarnation, 16) != 0 || (!patch && !restore))
            return false;
    } else if (h.snap.version != r->version) {
        return false; /* turns before it would be missing */
    } else {
        s->exists = true;
        memcpy(s->incarnation, r->incarnation, 16);
        ix->n_sessions++;
        made = true;
    }
    s->version = r->version;
    s->tokens_seen = h.tokens_seen;
    s->created_at = h.created_at;
    s->used_at = h.used_at;
    s->ttl_s = h.ttl_s;
    s->metadata_n = h.metadata_n;
    if (made)
        s->snap = (struct sl_snapfile){.number = h.snap.number}; /* there is none before it */
    set_snap(ix, s, &h.snap, (struct sl_place){0}, x, ret_old);
    set_place(ix, s, &s->head, at, sl_record_size(r));
    sweep_all(ix, s, ret_old);
    return true;
}

static void take_turn(struct sl_ix_entry *e, const struct sl_turn_payload *t)
{
    e->n_tokens = t->n_tokens;
    e->tokens_seen = t->tokens_seen;
    e->used_at = t->used_at;
    e->answer = t->has_answer;
    e->answered_at = t->answered_at;
    e->answer_n = t->answer_n;
}

static bool apply_turn(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, struct sl_ix_entry *e,
                       struct sl_ix_snap **ret_old)
{
    struct sl_turn_payload t;
    if (!sl_turn_payload_read(&t, payload, r->payload_n) || s->version == UINT64_MAX ||
        r->version != s->version + 1)
        return false;
    take_turn(e, &t);
    e->turn = true;
    s->version = r->version;
    s->tokens_seen = t.tokens_seen;
    s->used_at = t.used_at;
    add_entry(ix, s, e);
    if (sweep_kept(ix, s, ret_old) || e->answer)
        sweep_entries(ix, s);
    return true;
}

static bool is_behind(const struct sl_ix_session *s, const struct sl_record *r)
{
    return r->version >= 1 && r->version <= s->snap.version && !s->n_turns &&
           (!s->last_entry || s->last_entry->version < r->version);
}

static bool apply_kept_turn(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                            const unsigned char *payload, struct sl_ix_entry *e)
{
    struct sl_turn_payload t;
    if (!sl_turn_payload_read(&t, payload, r->payload_n) || !is_behind(s, r))
        return false;
    take_turn(e, &t);
    e->kept = true;
    add_entry(ix, s, e);
    sweep_entries(ix, s);
    return true;
}

static bool apply_kept(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, uint64_t at, struct sl_ix_snap *x,
                       struct sl_ix_snap **ret_old)
{
    struct sl_kept_payload k;
    if (!sl_kept_payload_read(&k, payload, r->payload_n, r->version) ||
        r->version >= s->snap.version || (s->last_kept && s->last_kept->file.version >= r->version))
        return false;
    *x = (struct sl_ix_snap){.file = k.snap, .tokens_seen = k.tokens_seen, .used_at = k.used_at};
    set_place(ix, s, &x->place, at, sl_record_size(r));
    ix->snapshot_bytes += k.snap.size;
    if (k.snap.number > ix->last_number)
        ix->last_number = k.snap.number;
    keep_snap(s, x);
    sweep_all(ix, s, ret_old);
    return true;
}

static bool apply_answer(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                         const unsigned char *payload, struct sl_ix_entry *e)
{
    struct sl_answer_payload a;
    if (!sl_answer_payload_read(&a, payload, r->payload_n) || !is_behind(s, r))
        return false;
    e->answer = true;
    e->answered_at = a.at;
    e->answer_n = (uint32_t)r->payload_n;
    add_entry(ix, s, e);
    sweep_entries(ix, s);
    return true;
}

static bool apply_snap(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, uint64_t at, struct sl_ix_snap *x,
                       struct sl_ix_snap **ret_old)
{
    struct sl_snapfile snap;
    if (!sl_snap_payload_read(&snap, payload, r->payload_n, r->version) ||
        r->version > s->version || r->version < s->snap.version)
        return false;
    const struct sl_place place = {.at = at, .size = (uint32_t)sl_record_size(r)};
    set_snap(ix, s, &snap, place, x, ret_old);
    sweep_all(ix, s, ret_old);
    return true;
}

/* In the log as it was written the version is there already; in one that a rewrite made it comes
 * later, so that what leads there is not dropped on the way. */
static bool apply_name(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                       const unsigned char *payload, uint64_t at, struct sl_ix_name *x)
{
    struct sl_ix_name **p = &s->names;
    if (!sl_name_payload_read(x->name, payload, r->payload_n) || sl_index_find_name(s, x->name))
        return false;
    x->version = r->version;
    while (*p && (*p)->version <= x->version)
        p = &(*p)->next;
    x->next = *p;
    *p = x;
    s->n_names++;
    x->place = (struct sl_place){0};
    set_place(ix, s, &x->place, at, sl_record_size(r));
    return true;
}

static bool apply_unname(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                         const unsigned char *payload, struct sl_ix_snap **ret_old)
{
    char name[SL_SESSION_ID_MAX + 1];
    struct sl_ix_name **p = &s->names, *x;
    if (!sl_name_payload_read(name, payload, r->payload_n))
        return false;
    while ((x = *p) && strcmp(x->name, name) != 0)
        p = &x->next;
    if (!x || x->version != r->version)
        return false;
    *p = x->next;
    s->n_names--;
    count_live(ix, s, -(int64_t)x->place.size);
    sl_free(x);
    sweep_all(ix, s, ret_old);
    return true;
}

static void apply_delete(struct sl_index *ix, struct sl_ix_session *s, struct sl_ix_snap *x,
                         struct sl_ix_snap **ret_old)
{
    *x = (struct sl_ix_snap){.file = s->snap};
    keep_snap(s, x);
    while ((x = s->kept)) {
        s->kept = x->next;
        drop_snap(ix, s, x, ret_old);
    }
    s->last_kept = NULL;
    ix->n_sessions--;
    ix->live -= s->live;
    sl_index_free_entries(s);
    s->exists = false;
    s->in_rewrite = 0;
    s->live = 0;
    s->snap = (struct sl_snapfile){0};
    s->head = s->snapat = s->damaged = (struct sl_place){0};
}

bool sl_index_apply(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                    const unsigned char *payload, uint64_t at, struct sl_ix_room *room,
                    struct sl_ix_snap **ret_old)
{
    struct sl_ix_entry *e = room->entry;
    struct sl_ix_snap *x = room->snap;
    *ret_old = NULL;
    sl_index_settle(ix, s);
    bool same = s->exists && memcmp(s->incarnation, r->incarnation, 16) == 0;
    bool ok = false;
    assert((e != NULL) == sl_index_wants_entry(r->kind));
    assert((x != NULL) == sl_index_wants_snap(r->kind));
    assert((room->name != NULL) == sl_index_wants_name(r->kind));
    if (e)
        *e = (struct sl_ix_entry){.place = {.at = at, .size = (uint32_t)sl_record_size(r)},
                                  .version = r->version};
    switch (r->kind) {
    case SL_RECORD_HEAD:
        ok = apply_head(ix, s, r, payload, at, x, ret_old);
        break;
    case SL_RECORD_TURN:
        ok = same && apply_turn(ix, s, r, payload, e, ret_old);
        break;
    case SL_RECORD_ANSWER:
        ok = same && apply_answer(ix, s, r, payload, e);
        break;
    case SL_RECORD_SNAP:
        ok = same && apply_snap(ix, s, r, payload, at, x, ret_old);
        break;
    case SL_RECORD_DELETE:
        if (same)
            apply_delete(ix, s, x, ret_old);
        ok = same;
        break;
    case SL_RECORD_KEPT:
        ok = same && apply_kept(ix, s, r, payload, at, x, ret_old);
        break;
    case SL_RECORD_KEPT_TURN:
        ok = same && apply_kept_turn(ix, s, r, payload, e);
        break;
    case SL_RECORD_NAME:
        ok = same && apply_name(ix, s, r, payload, at, room->name);
        break;
    case SL_RECORD_UNNAME:
        ok = same && apply_unname(ix, s, r, payload, ret_old);
        break;
    case SL_RECORD_BROKEN:
        sl_index_damage(ix, s, r, at);
        ok = true;
        break;
    default:
        break;
    }
    if (!ok)
        sl_index_free_room(room);
    *room = (struct sl_ix_room){NULL, NULL, NULL};
    return ok;
}

void sl_index_damage(struct sl_index *ix, struct sl_ix_session *s, const struct sl_record *r,
                     uint64_t at)
{
    sl_index_settle(ix, s);
    if (!s->exists) {
        s->exists = true;
        memcpy(s->incarnation, r->incarnation, 16);
        s->version = s->tokens_seen = 0;
        s->created_at = s->used_at = s->ttl_s = 0;
        s->metadata_n = 0;
        ix->n_sessions++;
    }
    if (r->version > s->version)
        s->version = r->version;
    if (!s->damaged.size)
        set_place(ix, s, &s->damaged, at, sl_record_size(r));
}

/* --- after a rewrite -----------------------------------------------------------------------------
 *
 * Every record lies elsewhere then. With a million sessions it takes a good part of a second to
 * write that down for each, so it is done some at a time, and at once for a session that something
 * is asked of: sessions know of which log their places are.
 */

static const struct sl_moved *find_move(const struct sl_index *ix, uint64_t at)
{
    size_t begin = 0, end = ix->n_moves;
    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        if (ix->moves[middle].at == at)
            return &ix->moves[middle];
        if (ix->moves[middle].at < at)
            begin = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

static void move(struct sl_index *ix, struct sl_ix_session *s, struct sl_place *p)
{
    const struct sl_moved *x = p->size && !p->moved_to ? find_move(ix, p->at) : NULL;
    if (x)
        set_place(ix, s, p, x->to, x->size);
    else
        set_place(ix, s, p, p->moved_to, p->moved_to ? p->moved_size : 0);
}

void sl_index_settle(struct sl_index *ix, struct sl_ix_session *s)
{
    if (s->log_number == ix->log_number)
        return;
    s->log_number = ix->log_number;
    if (!s->exists)
        return;
    move(ix, s, &s->head);
    move(ix, s, &s->snapat);
    move(ix, s, &s->damaged);
    for (struct sl_ix_snap *x = s->kept; x; x = x->next)
        move(ix, s, &x->place);
    for (struct sl_ix_name *x = s->names; x; x = x->next)
        move(ix, s, &x->place);
    for (struct sl_ix_entry *e = s->entries; e; e = e->next) {
        move(ix, s, &e->place);
        e->answer = e->answer && e->place.size;
        assert((!e->turn && !e->kept) || e->place.size || s->damaged.size);
    }
    sweep_entries(ix, s);
}

void sl_index_move(struct sl_index *ix, struct sl_moved *v, size_t n)
{
    assert(!ix->moving && !ix->walked);
    ix->moves = v;
    ix->n_moves = n;
    ix->n_settled = 0;
    ix->log_number++;
    ix->moving = ix->walked = true;
}

bool sl_index_settle_some(struct sl_index *ix, size_t n_buckets)
{
    if (!ix->moving)
        return false;
    for (; n_buckets && ix->n_settled < ix->n_buckets; n_buckets--, ix->n_settled++)
        for (struct sl_ix_session *s = ix->buckets[ix->n_settled]; s; s = s->next)
            sl_index_settle(ix, s);
    if (ix->n_settled < ix->n_buckets)
        return true;
    sl_free(ix->moves);
    ix->moves = NULL;
    ix->n_moves = 0;
    ix->moving = ix->walked = false;
    return false;
}

void sl_index_moved(struct sl_index *ix, struct sl_moved *v, size_t n)
{
    sl_index_move(ix, v, n);
    sl_index_settle_some(ix, SIZE_MAX);
}

static void forget_missing(struct sl_index *ix, struct sl_ix_session *s)
{
    struct sl_ix_snap **p = &s->kept, *old = NULL, *x;
    s->last_kept = NULL;
    while ((x = *p)) {
        /* What a name needs must be there: that it is not is told when it is read. */
        if (!x->file.number || x->found || sl_index_is_named(s, x)) {
            s->last_kept = x;
            p = &x->next;
            continue;
        }
        *p = x->next;
        drop_snap(ix, s, x, &old);
    }
    if (old && s->exists)
        sweep_entries(ix, s);
    sl_index_free_snaps(old);
}

void sl_index_forget_missing(struct sl_index *ix)
{
    for (size_t i = 0; i < ix->n_buckets; i++)
        for (struct sl_ix_session *s = ix->buckets[i]; s; s = s->next)
            forget_missing(ix, s);
}
