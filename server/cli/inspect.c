/* inspect.c: `slate inspect FILE` prints what a model file or a session's snapshot holds.
 *
 * One thread; output goes to stdout through stdio.
 * Strings of the file are cleaned before they reach a terminal; in JSON they are escaped. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/converted.h"
#include "engine/formats/tensors.h"
#include "engine/model_priv.h"
#include "proto/buf.h"
#include "proto/json_out.h"
#include "server/cli/cli.h"
#include "server/cli/inspect_session.h"
#include "server/cli/inspect_tokenizer.h"

enum {
    NAME_COLUMN_MAX = 60, /* longer names push their row to the right */
    TEXT_META_MAX = 120,  /* bytes of a metadata value in the text form */
    JSON_MAX = 512 << 20, /* bytes of one piece of JSON; a metadata value is the largest */
    SHAPE_BYTES = SL_TENSOR_RANK_MAX * 22 + 4,
};

static const char usage[] =
    "Usage: slate inspect [--json] FILE|DIR\n"
    "\n"
    "Prints what a .safetensors, .pth or .gguf file holds: container, size, metadata, kind of\n"
    "model, whether it would load, as what and into how much memory, or why not, and its tensors\n"
    "with element type, shape and bytes; the tokenizer and the chat template, where they are "
    "there.\n"
    "Of a directory also what its config.json says; of a session's snapshot also the session, "
    "what\n"
    "is pending, an unfinished turn, and whether it is whole.\n"
    "\n"
    "  --json   print one JSON object instead\n"
    "  --help   print this\n";

struct summary {
    const char *words, *arch;
    const struct sl_tokenizer_view *tokenizer; /* NULL: it is a session's snapshot */
    const struct sl_session_view *session;     /* NULL: it is none, or one that cannot be read */
    uint64_t n_params, n_bytes;
    /* By element type, and by type of block from SL_DTYPE_KINDS on. */
    size_t n[SL_DTYPE_KINDS + SL_BLOCK_COUNT]; /* tensors */
    uint64_t bytes[SL_DTYPE_KINDS + SL_BLOCK_COUNT];
};

static size_t type_of(const struct sl_tensor *t)
{
    return t->block ? SL_DTYPE_KINDS + (size_t)t->block : (size_t)t->dtype;
}

static const char *type_name(size_t type)
{
    return type < SL_DTYPE_KINDS ? sl_dtype_name((enum sl_dtype)type)
                                 : sl_block_name((enum sl_block_type)(type - SL_DTYPE_KINDS));
}

static uint64_t bytes_of(const struct sl_tensor *t)
{
    return sl_tensor_bytes(t) + sl_tensor_scale_bytes(t);
}

static void summarize(const struct sl_tensors *t, const struct sl_session_view *session,
                      struct summary *s)
{
    *s = (struct summary){.session = session};
    s->words = sl_tensors_describe(t, &s->arch);
    if (sl_session_view_fits(t))
        s->words = "a session's snapshot";
    if (session)
        s->arch = sl_session_view_arch(session);
    for (size_t i = 0; i < t->n; i++) {
        if (strcmp(t->v[i].name, SL_CONVERTED_TENSOR) != 0) /* a vocabulary's bytes */
            s->n_params += t->v[i].n_elements;
        s->n_bytes += bytes_of(&t->v[i]);
        s->n[type_of(&t->v[i])]++;
        s->bytes[type_of(&t->v[i])] += bytes_of(&t->v[i]);
    }
}

/* --- text --------------------------------------------------------------------------------------
 */

/* 1234567 as "1,234,567" */
static const char *grouped(uint64_t n, char dst[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n);
    char *d = dst;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            *d++ = ',';
        *d++ = digits[i];
    }
    *d = '\0';
    return dst;
}

/* At most max bytes of a string from the file, safe for a terminal. */
static void print_clean(const char *s, size_t n, size_t max)
{
    char clean[4096]; /* three bytes for each one that is replaced */
    size_t show = n < max ? n : max;
    sl_utf8_sanitize_text(clean, sizeof clean, s, show, show < n);
    fputs(clean, stdout);
}

static void shape_text(const struct sl_tensor *t, char dst[SHAPE_BYTES])
{
    size_t at = 0;
    dst[at++] = '[';
    for (unsigned i = 0; i < t->rank; i++)
        at += (size_t)snprintf(dst + at, SHAPE_BYTES - at, "%s%zu", i ? ", " : "", t->shape[i]);
    dst[at++] = ']';
    dst[at] = '\0';
}

static void print_summary(const char *path, const struct sl_tensors *t, const struct summary *s)
{
    char n[32];
    printf("file        ");
    print_clean(path, strlen(path), 1024);
    printf("\ncontainer   %s\nsize        %s bytes\nmodel       %s\n", t->container,
           grouped(t->file_bytes, n), s->words);
    printf("tensors     %s\n", grouped(t->n, n));
    printf("parameters  %s\n", grouped(s->n_params, n));
    for (size_t d = SL_DTYPE_NONE + 1; d < SL_DTYPE_KINDS + SL_BLOCK_COUNT; d++)
        if (s->n[d])
            printf("type        %s: %s bytes in %zu tensor%s\n", type_name(d),
                   grouped(s->bytes[d], n), s->n[d], s->n[d] == 1 ? "" : "s");
    if (s->session)
        sl_session_view_print(s->session);
    for (size_t i = 0; i < t->n_meta && !s->session; i++) {
        printf("metadata    ");
        print_clean(t->meta[i].key, strlen(t->meta[i].key), TEXT_META_MAX);
        printf(" = ");
        print_clean(t->meta[i].value, strlen(t->meta[i].value), TEXT_META_MAX);
        putchar('\n');
    }
}

/* Would it load, and what would it be? */
static void print_plan(const struct sl_model_plan *p, const struct sl_error *refused)
{
    char n[32];
    const struct sl_config *c = &p->config;
    if (refused) {
        printf("refused     ");
        print_clean(refused->message, strlen(refused->message), strlen(refused->message));
        putchar('\n');
        return;
    }
    printf("loads as    %s: %zu layers, width %zu, %zu heads of %zu, vocabulary %zu", p->title,
           c->n_layers, c->d_model, c->n_heads, c->head_size, c->vocab_size);
    if (c->max_tokens)
        printf(", at most %zu tokens", c->max_tokens);
    printf("\nstate       %s bytes a session", grouped(p->state_bytes, n));
    printf(", %s sessions a GiB\n", grouped(((size_t)1 << 30) / p->state_bytes, n));
    printf("memory      %s bytes of packed weights beside the file\n", grouped(p->weight_bytes, n));
}

/* What a config.json says. Lists and objects are their entries. */
static void print_settings(const struct sl_settings *all)
{
    for (size_t i = 0; all && i < all->n; i++) {
        const struct sl_setting *s = &all->v[i];
        if ((s->kind == SL_SETTING_LIST || s->kind == SL_SETTING_OBJECT) && s->n > 0)
            continue;
        printf("setting     ");
        print_clean(s->key, strlen(s->key), TEXT_META_MAX);
        printf(" = ");
        if (s->kind == SL_SETTING_NUMBER)
            printf("%.10g", s->number);
        else if (s->kind == SL_SETTING_TEXT)
            print_clean(s->text, strlen(s->text), TEXT_META_MAX);
        else if (s->kind == SL_SETTING_BOOL)
            printf("%s", s->flag ? "true" : "false");
        else
            printf("%s", s->kind == SL_SETTING_NULL ? "null" : "(empty)");
        putchar('\n');
    }
}

static void print_table(const struct sl_tensors *t)
{
    size_t width = 4;
    for (size_t i = 0; i < t->n; i++) {
        size_t len = strlen(t->v[i].name);
        width = len > width ? len : width;
    }
    width = width < NAME_COLUMN_MAX ? width : NAME_COLUMN_MAX;
    if (t->n)
        printf("\n%-*s  %-4s  %14s  %s\n", (int)width, "name", "type", "bytes", "shape");
    for (size_t i = 0; i < t->n; i++) {
        const struct sl_tensor *x = &t->v[i];
        char n[32], shape[SHAPE_BYTES];
        size_t len = strlen(x->name);
        shape_text(x, shape);
        print_clean(x->name, len, len);
        printf("%*s  %-4s  %14s  %s%s\n", len < width ? (int)(width - len) : 0, "",
               sl_tensor_type(x), grouped(bytes_of(x), n), shape,
               x->contiguous ? "" : " (strided view)");
    }
}

/* --- JSON --------------------------------------------------------------------------------------
 */

static void member_text(struct sl_json_out *w, const char *key, const char *text)
{
    sl_out_key(w, key);
    sl_out_str(w, text);
}

static void member_uint(struct sl_json_out *w, const char *key, uint64_t u)
{
    sl_out_key(w, key);
    sl_out_uint(w, u);
}

/* Sends what is in the buffer, so that it stays small. */
static enum sl_code flush(struct sl_buf *b, struct sl_error *err)
{
    enum sl_code c = sl_buf_code(b, err);
    if (!c)
        (void)fwrite(b->data, 1, b->len, stdout); /* sl_cli_finish() tells */
    sl_buf_clear(b);
    return c;
}

static void write_setting(struct sl_json_out *w, const struct sl_setting *s)
{
    char number[32];
    sl_out_key_text(w, s->key, strlen(s->key));
    if (s->kind == SL_SETTING_BOOL)
        sl_out_bool(w, s->flag);
    else if (s->kind == SL_SETTING_TEXT)
        sl_out_str(w, s->text);
    else if (s->kind == SL_SETTING_NUMBER && isfinite(s->number))
        sl_out_raw(w, number, (size_t)snprintf(number, sizeof number, "%.17g", s->number));
    else if (s->kind == SL_SETTING_NUMBER) /* JSON has no word for it */
        sl_out_str(w, isnan(s->number) ? "NaN" : s->number > 0 ? "Infinity" : "-Infinity");
    else
        sl_out_null(w);
}

/* "settings": {…}, flat; of lists and objects their entries. */
static enum sl_code write_settings(struct sl_json_out *w, struct sl_buf *b,
                                   const struct sl_settings *all, struct sl_error *err)
{
    enum sl_code c = SL_OK;
    sl_out_key(w, "settings");
    sl_out_open(w, '{');
    for (size_t i = 0; i < all->n && !c; i++) {
        if (all->v[i].kind != SL_SETTING_LIST && all->v[i].kind != SL_SETTING_OBJECT)
            write_setting(w, &all->v[i]);
        c = flush(b, err);
    }
    sl_out_close(w, '}');
    return c;
}

static void write_tensor(struct sl_json_out *w, const struct sl_tensor *x)
{
    sl_out_open(w, '{');
    member_text(w, "name", x->name);
    if (x->origin)
        member_text(w, "origin", x->origin);
    member_text(w, "dtype", sl_tensor_type(x));
    sl_out_key(w, "shape");
    sl_out_open(w, '[');
    for (unsigned i = 0; i < x->rank; i++)
        sl_out_uint(w, x->shape[i]);
    sl_out_close(w, ']');
    member_uint(w, "bytes", bytes_of(x));
    sl_out_key(w, "contiguous");
    sl_out_bool(w, x->contiguous);
    sl_out_close(w, '}');
}

/* "loads": {…}, or "refused": why. */
static void write_plan(struct sl_json_out *w, const struct sl_model_plan *p,
                       const struct sl_error *refused)
{
    const struct sl_config *c = &p->config;
    if (refused) {
        member_text(w, "refused", refused->message);
        return;
    }
    sl_out_key(w, "loads");
    sl_out_open(w, '{');
    member_text(w, "rule", p->title);
    member_uint(w, "n_layers", c->n_layers);
    member_uint(w, "d_model", c->d_model);
    member_uint(w, "n_heads", c->n_heads);
    member_uint(w, "head_size", c->head_size);
    member_uint(w, "vocab_size", c->vocab_size);
    if (c->max_tokens)
        member_uint(w, "max_tokens", c->max_tokens);
    member_uint(w, "state_bytes", p->state_bytes);
    member_uint(w, "sessions_per_gib", ((size_t)1 << 30) / p->state_bytes);
    member_uint(w, "weight_bytes", p->weight_bytes);
    sl_out_close(w, '}');
}

/* plan and refused NULL: a session's snapshot, no model. */
static enum sl_code write_json(const char *path, const struct sl_tensors *t,
                               const struct summary *s, const struct sl_model_plan *plan,
                               const struct sl_error *refused, struct sl_error *err)
{
    struct sl_buf b;
    sl_buf_init(&b, JSON_MAX);
    struct sl_json_out w = {&b, false};
    enum sl_code c = SL_OK;
    sl_out_open(&w, '{');
    sl_out_key(&w, "file");
    size_t path_n = strlen(path), room = path_n * 3 + 1;
    char *clean = sl_malloc(room); /* a path is any bytes */
    if (!clean)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the file's name");
    sl_out_text(&w, clean, sl_utf8_repair(clean, path, path_n, true, NULL));
    sl_free(clean);
    member_text(&w, "container", t->container);
    member_uint(&w, "file_bytes", t->file_bytes);
    member_text(&w, "model", s->words);
    member_text(&w, "arch", s->arch);
    member_uint(&w, "n_tensors", t->n);
    member_uint(&w, "n_params", s->n_params);
    member_uint(&w, "tensor_bytes", s->n_bytes);
    sl_out_key(&w, "metadata");
    sl_out_open(&w, '{');
    for (size_t i = 0; i < t->n_meta && !c; i++) {
        sl_out_key_text(&w, t->meta[i].key, strlen(t->meta[i].key));
        sl_out_str(&w, t->meta[i].value);
        c = flush(&b, err);
    }
    sl_out_close(&w, '}');
    if (t->settings && !c)
        c = write_settings(&w, &b, t->settings, err);
    if (plan)
        write_plan(&w, plan, refused);
    if (s->tokenizer)
        sl_tokenizer_view_write(s->tokenizer, &w);
    if (sl_session_view_fits(t)) {
        sl_out_key(&w, "session");
        if (s->session)
            sl_session_view_write(s->session, &w);
        else
            sl_out_null(&w);
    }
    sl_out_key(&w, "tensors");
    sl_out_open(&w, '[');
    for (size_t i = 0; i < t->n && !c; i++) {
        write_tensor(&w, &t->v[i]);
        c = flush(&b, err);
    }
    sl_out_close(&w, ']');
    sl_out_close(&w, '}');
    sl_buf_putc(&b, '\n');
    if (!c)
        c = flush(&b, err);
    sl_buf_done(&b);
    return c;
}

/* --- the command -------------------------------------------------------------------------------
 */

static int wrong_usage(const char *what, const char *arg)
{
    struct sl_error err;
    sl_fail(&err, SL_E_USAGE, "%s%.200s; `slate inspect --help` prints the usage", what, arg);
    return sl_cli_fail("inspect", &err);
}

static int inspect(const char *path, bool json)
{
    struct sl_error err = {0}, damage = {0}, refusal;
    struct sl_model_plan plan = {0};
    struct sl_tensors *t = NULL;
    struct sl_session_view *session = NULL;
    struct sl_tokenizer_view tokenizer = {.tokenizer = NULL};
    struct summary s;
    enum sl_code c = sl_tensors_open(&t, path, &err), damaged = SL_OK;
    if (c)
        return sl_cli_fail("inspect", &err);
    bool is_session = sl_session_view_fits(t);
    const struct sl_error *refused = NULL;
    if (!is_session && sl_model_plan(&plan, t, path, &refusal))
        refused = &refusal;
    if (is_session)
        damaged = sl_session_view_open(&session, path, t->file_bytes, &damage);
    summarize(t, session, &s);
    if (!is_session) {
        sl_tokenizer_view_open(&tokenizer, t, path);
        s.tokenizer = &tokenizer;
    }
    if (json) {
        c = write_json(path, t, &s, is_session ? NULL : &plan, refused, &err);
    } else {
        print_summary(path, t, &s);
        if (!is_session)
            print_plan(&plan, refused);
        if (!is_session)
            sl_tokenizer_view_print(&tokenizer);
        print_settings(t->settings);
        print_table(t);
    }
    sl_tokenizer_view_close(&tokenizer);
    sl_tensors_close(t);
    sl_session_view_close(session);
    if (c)
        return sl_cli_fail("inspect", &err);
    /* What a damaged snapshot holds is shown before what is wrong with it. */
    return damaged ? sl_cli_fail("inspect", &damage) : SL_EXIT_OK;
}

int sl_cli_inspect(int argc, char **argv)
{
    const char *path = NULL;
    bool json = false, options = true;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        bool option = options && a[0] == '-' && a[1] != '\0';
        if (option && strcmp(a, "--") == 0) {
            options = false;
        } else if (option && (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0)) {
            fputs(usage, stdout);
            return SL_EXIT_OK;
        } else if (option && strcmp(a, "--json") == 0) {
            json = true;
        } else if (option) {
            return wrong_usage("unknown option ", a);
        } else if (path) {
            return wrong_usage("one file at a time: ", a);
        } else {
            path = a;
        }
    }
    if (!path)
        return wrong_usage("which file? slate inspect FILE", "");
    return inspect(path, json);
}
