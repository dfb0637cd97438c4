/* repair.c: see repair.h. */
#include "server/store/repair.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "server/store/dir.h"

/* What a damaged record seems to have been. */
struct guess {
    bool named;
    enum sl_record_kind kind;
    uint64_t version, at;
    char tenant[SL_TENANT_MAX + 1], id[SL_SESSION_ID_MAX + 1];
};

struct repair {
    struct sl_dir *d;
    bool (*line)(void *arg, const char *text);
    void *arg;
    bool unheard; /* a line could not be told */
    struct sl_repair_report *report;
    struct sl_error *err;
    struct guess *guesses; /* one for each gap */
    size_t cap;
    uint64_t last_gap; /* where the last one ends */
    struct sl_bytes snapshot;
};

SL_PRINTF(2, 3) static void tell(struct repair *k, const char *fmt, ...)
{
    char text[640];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!k->line(k->arg, text))
        k->unheard = true;
}

static uint64_t u64_at(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* record.h's layout, unproven. */
static void guess(struct guess *g, const unsigned char *p, size_t n)
{
    size_t tenant_n, id_n;
    if (n < SL_RECORD_HEADER)
        return;
    tenant_n = p[5];
    id_n = p[6];
    const char *names = (const char *)p + SL_RECORD_HEADER;
    if (tenant_n > SL_TENANT_MAX || id_n > SL_SESSION_ID_MAX || p[4] < SL_RECORD_HEAD ||
        p[4] >= SL_RECORD_KINDS || p[4] == SL_RECORD_MARK ||
        n < SL_RECORD_HEADER + tenant_n + id_n || !sl_tenant_valid(names, tenant_n) ||
        !sl_session_id_valid(names + tenant_n, id_n))
        return;
    g->named = true;
    g->kind = (enum sl_record_kind)p[4];
    g->version = u64_at(p + 16);
    memcpy(g->tenant, names, tenant_n);
    memcpy(g->id, names + tenant_n, id_n);
}

static const char *kind_text(enum sl_record_kind k)
{
    static const char *const text[SL_RECORD_KINDS] = {[SL_RECORD_HEAD] = "the head",
                                                      [SL_RECORD_TURN] = "a turn",
                                                      [SL_RECORD_SNAP] = "the snapshot",
                                                      [SL_RECORD_ANSWER] = "a kept answer",
                                                      [SL_RECORD_DELETE] = "the deletion",
                                                      [SL_RECORD_BROKEN] = "a note of damage",
                                                      [SL_RECORD_KEPT] = "an earlier snapshot",
                                                      [SL_RECORD_KEPT_TURN] = "an earlier turn",
                                                      [SL_RECORD_NAME] = "a checkpoint's name",
                                                      [SL_RECORD_UNNAME] =
                                                          "the end of a checkpoint"};
    return text[k] ? text[k] : "something";
}

static void on_header(void *arg)
{
    struct repair *k = arg;
    k->report->bad_header = true;
    tell(k,
         "log, bytes 0 to %d: its header is damaged; what stood in it is proven, and no session "
         "lost anything by it",
         SL_LOG_HEADER);
}

static enum sl_code on_gap(void *arg, uint64_t from, uint64_t to, const unsigned char *p, size_t n)
{
    struct repair *k = arg;
    if (k->report->n_gaps == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 16;
        struct guess *v = sl_realloc(k->guesses, cap, sizeof *v);
        if (!v)
            return sl_fail(k->err, SL_E_NO_MEMORY, "no memory for a list of damaged places");
        k->guesses = v;
        k->cap = cap;
    }
    struct guess *g = &k->guesses[k->report->n_gaps++];
    *g = (struct guess){.at = from};
    guess(g, p, n < to - from ? n : (size_t)(to - from));
    k->last_gap = to;
    if (g->named)
        tell(k,
             "log, bytes %" PRIu64 " to %" PRIu64 ": damaged; it seems to be %s of session '%s' "
             "(tenant %s), version %" PRIu64,
             from, to, kind_text(g->kind), g->id, g->tenant, g->version);
    else
        tell(k, "log, bytes %" PRIu64 " to %" PRIu64 ": damaged; what it was cannot be told", from,
             to);
    return SL_OK;
}

/* Lost is what a record would have changed. Where the session is as that record found it, nothing
 * that follows will show it: so it is damaged from now on. */
static void hold_to(struct repair *k, const struct guess *g)
{
    struct sl_ix_session *s =
        g->named ? sl_index_find(&k->d->ix, g->tenant, strlen(g->tenant), g->id, strlen(g->id))
                 : NULL;
    if (!s || !s->exists || s->damaged.size || s->version == UINT64_MAX)
        return;
    if (!(g->kind == SL_RECORD_TURN && g->version == s->version + 1) &&
        !(g->kind == SL_RECORD_HEAD && g->version > s->version))
        return;
    struct sl_record r = {.kind = g->kind,
                          .tenant = g->tenant,
                          .id = g->id,
                          .tenant_n = strlen(g->tenant),
                          .id_n = strlen(g->id),
                          .version = g->version};
    memcpy(r.incarnation, s->incarnation, sizeof r.incarnation);
    sl_index_damage(&k->d->ix, s, &r, g->at);
}

static uint64_t last_place(const struct sl_ix_session *s)
{
    uint64_t last = s->head.at > s->snapat.at ? s->head.at : s->snapat.at;
    for (const struct sl_ix_entry *e = s->entries; e; e = e->next)
        last = e->place.at > last ? e->place.at : last;
    for (const struct sl_ix_snap *x = s->kept; x; x = x->next)
        last = x->place.at > last ? x->place.at : last;
    for (const struct sl_ix_name *x = s->names; x; x = x->next)
        last = x->place.at > last ? x->place.at : last;
    return last;
}

static void check_snapshot(struct repair *k, const struct sl_ix_session *s,
                           const struct sl_snapfile *file, bool needed)
{
    struct sl_file_of of = {.tenant = s->tenant->name, .id = s->id, .hash = s->hash};
    struct sl_error err;
    if (!file->number)
        return;
    memcpy(of.incarnation, s->incarnation, sizeof of.incarnation);
    if (!needed && sl_file_is_missing(&k->d->files, &of, file))
        return; /* it was not kept any more: a server knows how many versions are */
    if (!sl_file_read(&k->d->files, &of, file, &k->snapshot, &err))
        return;
    k->report->n_bad_snapshots++;
    tell(k, "session '%s' (tenant %s): %s: %s", s->id, s->tenant->name,
         file == &s->snap ? "its snapshot" : "an earlier snapshot, kept to rewind to", err.message);
}

static bool check_session(void *arg, struct sl_ix_session *s)
{
    struct repair *k = arg;
    k->report->n_sessions++;
    if (s->damaged.size) {
        k->report->n_damaged++;
        tell(k,
             "session '%s' (tenant %s): damaged (log, offset %" PRIu64 "); it can only be deleted",
             s->id, s->tenant->name, s->damaged.at);
        return true;
    }
    if (last_place(s) < k->last_gap) {
        k->report->n_unsure++;
        tell(k,
             "session '%s' (tenant %s): at version %" PRIu64
             "; nothing behind the damage proves that "
             "this is its last turn, or that it was not deleted",
             s->id, s->tenant->name, s->version);
    }
    check_snapshot(k, s, &s->snap, true);
    for (const struct sl_ix_snap *x = s->kept; x; x = x->next)
        check_snapshot(k, s, &x->file, sl_index_is_named(s, x));
    return true;
}

static enum sl_code read_log(struct repair *k)
{
    struct sl_dir *d = k->d;
    struct sl_log_scan scan;
    const struct sl_log_bridge bridge = {on_header, on_gap, k};
    d->log = sl_calloc(1, sizeof *d->log);
    if (!d->log)
        return sl_fail(k->err, SL_E_NO_MEMORY, "no memory to open %s", d->path);
    *d->log = (struct sl_log_file){.refs = 1};
    d->log->fd = sl_io_open(d->io, d->root, SL_LOG_NAME, O_RDWR);
    if (d->log->fd < 0)
        return sl_io_fail(k->err, "open of", (struct sl_where){d->path, SL_LOG_NAME}, errno);
    enum sl_code c = sl_log_scan_over(&d->place, d->log->fd, &d->ix, &bridge, &scan, k->err);
    if (c)
        return c;
    d->log->id = scan.log_id;
    if (scan.end < scan.size)
        tell(k,
             "log: the last %" PRIu64
             " bytes are a torn end, which was never acknowledged; a server "
             "cuts it off",
             scan.size - scan.end);
    for (size_t i = 0; i < k->report->n_gaps; i++)
        hold_to(k, &k->guesses[i]);
    sl_index_each(&d->ix, check_session, k);
    return SL_OK;
}

static enum sl_code write_anew(struct repair *k)
{
    struct sl_dir *d = k->d;
    char kept[64];
    struct sl_rewrite w = {.lp = d->place, .old = d->log, .now = d->io->now(), .by_other = true};
    snprintf(kept, sizeof kept, "log.damaged-%016" PRIx64, d->log->id);
    bool linked = linkat(d->root, SL_LOG_NAME, d->root, kept, 0) == 0;
    if (!linked && errno != EEXIST)
        return sl_io_fail(k->err, "keeping the old log as", (struct sl_where){d->path, kept},
                          errno);
    w.code = sl_rewrite_begin(&w, &d->ix);
    sl_rewrite_run(&w); /* syncs the folder, too */
    sl_rewrite_done(&w);
    if (w.code) {
        *k->err = w.err;
        if (linked && !w.renamed)
            (void)d->io->unlink(d->root, kept);
        return w.code;
    }
    d->io->close(w.fd);
    tell(k, "the log was written anew without what is damaged; the old one is kept as %s", kept);
    return SL_OK;
}

enum sl_code sl_store_repair(const char *path, const struct sl_store_io *io, bool repair,
                             bool (*line)(void *arg, const char *text), void *arg,
                             struct sl_repair_report *ret, struct sl_error *err)
{
    struct repair k = {.line = line, .arg = arg, .report = ret, .err = err};
    *ret = (struct sl_repair_report){0};
    enum sl_code c = sl_dir_open_folder(&k.d, path, io, err);
    if (c)
        return c;
    c = read_log(&k);
    bool wanted = !c && repair && (ret->n_gaps || ret->bad_header);
    if (wanted && k.unheard)
        c = sl_fail(err, SL_E_IO, "%s: what would be lost cannot be told; nothing was changed",
                    path);
    else if (wanted)
        c = write_anew(&k);
    sl_free(k.guesses);
    sl_free(k.snapshot.p);
    sl_dir_free(k.d);
    return c;
}
