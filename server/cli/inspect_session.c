/* inspect_session.c: see inspect_session.h. One thread. */
#include "server/cli/inspect_session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "proto/continuation.h"
#include "slate/snapshot.h"

enum { HEX_SIZE = 33, TIME_SIZE = 40, TEXT_MAX = 120, PENDING_SHOWN = 8 };

struct sl_session_view {
    struct sl_snapshot_info info;
    const char *arch;
    unsigned char fingerprint[16];
    struct sl_continuation continuation; /* n_pending 0: there is none */
};

bool sl_session_view_fits(const struct sl_tensors *t)
{
    for (size_t i = 0; i < t->n_meta; i++)
        if (strcmp(t->meta[i].key, "format") == 0)
            return strcmp(t->meta[i].value, "slate.session") == 0;
    return false;
}

/* --- reading --- */

static enum sl_code read_file(unsigned char **ret, const char *path, size_t n, struct sl_error *err)
{
    FILE *f = fopen(path, "re");
    unsigned char *p = sl_malloc(n);
    enum sl_code c = SL_OK;
    if (!p)
        c = sl_fail(err, SL_E_NO_MEMORY, "%.300s: not enough memory for its %zu bytes", path, n);
    else if (!f)
        c = sl_fail(err, SL_E_IO, "%.300s: cannot be opened: %s", path, strerror(errno));
    else if (fread(p, 1, n, f) != n)
        c = sl_fail(err, SL_E_IO, "%.300s: cannot be read: %s", path,
                    ferror(f) ? strerror(errno) : "it became shorter");
    if (f)
        fclose(f);
    if (c)
        sl_free(p);
    else
        *ret = p;
    return c;
}

enum sl_code sl_session_view_open(struct sl_session_view **ret, const char *path, size_t n_bytes,
                                  struct sl_error *err)
{
    unsigned char *file = NULL;
    struct sl_session_view *v = sl_calloc(1, sizeof *v);
    if (!v)
        return sl_fail(err, SL_E_NO_MEMORY, "%.300s: not enough memory", path);
    enum sl_code c = read_file(&file, path, n_bytes, err);
    if (!c)
        c = sl_snapshot_describe(file, n_bytes, &v->info, &v->arch, v->fingerprint, err);
    if (!c && v->info.continuation)
        c = sl_continuation_read(&v->continuation, v->info.continuation,
                                 strlen(v->info.continuation), 0, err);
    sl_free(file);
    if (c)
        sl_session_view_close(v);
    else
        *ret = v;
    return c;
}

void sl_session_view_close(struct sl_session_view *v)
{
    if (!v)
        return;
    sl_continuation_done(&v->continuation);
    sl_free(v->info.text);
    sl_free(v);
}

const char *sl_session_view_arch(const struct sl_session_view *v)
{
    return v->arch;
}

/* --- showing --- */

static const char *hex_of(const unsigned char bytes[16], char dst[HEX_SIZE])
{
    for (size_t i = 0; i < 16; i++)
        (void)snprintf(dst + 2 * i, 3, "%02x", bytes[i]);
    return dst;
}

static const char *time_of(int64_t ms, char dst[TIME_SIZE])
{
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    if (!gmtime_r(&s, &tm) || strftime(dst, TIME_SIZE, "%Y-%m-%d %H:%M:%S UTC", &tm) == 0)
        (void)snprintf(dst, TIME_SIZE, "%" PRId64 " ms", ms);
    return dst;
}

static void print_text(const char *label, const char *s)
{
    char clean[4 * TEXT_MAX];
    size_t n = strlen(s);
    sl_utf8_sanitize_text(clean, sizeof clean, s, n < TEXT_MAX ? n : TEXT_MAX, n > TEXT_MAX);
    printf("%-11s %s\n", label, clean);
}

static void print_pending(const struct sl_continuation *c)
{
    printf("pending     ");
    if (!c->n_pending)
        printf("nothing: the session is empty");
    for (size_t i = 0; i < c->n_pending && i < PENDING_SHOWN; i++)
        printf(i ? ", %" PRIu32 : "token %" PRIu32, c->pending[i]);
    if (c->n_pending > PENDING_SHOWN)
        printf(" … %zu tokens", c->n_pending);
    printf("\n");
}

static void print_paused(const struct sl_paused_turn *p)
{
    printf("paused      a turn: up to %zu tokens to go, %zu of them chosen and held back\n",
           p->max_tokens, p->n_held);
    printf("            seed %" PRIu64 ", %" PRIu64 " numbers drawn, temperature %g\n",
           p->sampling.seed, p->draws, (double)p->sampling.temperature);
    if (p->chat_template)
        print_text("            template", p->chat_template);
}

void sl_session_view_print(const struct sl_session_view *v)
{
    const struct sl_snapshot_info *i = &v->info;
    char hex[HEX_SIZE], created[TIME_SIZE];
    print_text("session", *i->session_id ? i->session_id : "(no id)");
    printf("incarnation %s\nversion     %" PRIu64 "\ntokens seen %" PRIu64 "\n",
           hex_of(i->incarnation, hex), i->version, i->tokens_seen);
    printf("created     %s\n", time_of(i->created_ms, created));
    print_text("of model", v->arch);
    printf("fingerprint %s\n", hex_of(v->fingerprint, hex));
    print_text("weights", i->weights_type);
    print_text("numerics", i->numerics);
    printf("values      %s\n", sl_dtype_name(i->dtype));
    print_pending(&v->continuation);
    if (v->continuation.paused)
        print_paused(v->continuation.paused);
    if (i->edited)
        printf("edited      yes: a digest is absent, so not all of it could be checked\n");
}

static void member_text(struct sl_json_out *w, const char *key, const char *text)
{
    sl_out_key(w, key);
    sl_out_str(w, text);
}

static void member_json(struct sl_json_out *w, const char *key, const char *json)
{
    sl_out_key(w, key);
    sl_out_raw(w, json, strlen(json));
}

void sl_session_view_write(const struct sl_session_view *v, struct sl_json_out *w)
{
    const struct sl_snapshot_info *i = &v->info;
    char hex[HEX_SIZE];
    sl_out_open(w, '{');
    member_text(w, "id", i->session_id);
    member_text(w, "incarnation", hex_of(i->incarnation, hex));
    sl_out_key(w, "version");
    sl_out_uint(w, i->version);
    sl_out_key(w, "tokens_seen");
    sl_out_uint(w, i->tokens_seen);
    sl_out_key(w, "created_ms");
    sl_out_int(w, i->created_ms);
    member_text(w, "arch", v->arch);
    member_text(w, "fingerprint", hex_of(v->fingerprint, hex));
    member_text(w, "weights_type", i->weights_type);
    member_text(w, "numerics", i->numerics);
    member_text(w, "dtype", sl_dtype_name(i->dtype));
    sl_out_key(w, "edited");
    sl_out_bool(w, i->edited);
    member_json(w, "metadata", i->metadata ? i->metadata : "{}");
    member_json(w, "continuation", i->continuation ? i->continuation : "null");
    sl_out_close(w, '}');
}
