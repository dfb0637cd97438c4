/* snapshots.c: see snapshots.h. */
#include "tests/support/snapshots.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/models/embedded.h"
#include "tests/support/runner.h"

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "snapshots: %s\n", what);
    abort();
}

/* The header alone, as a C string. */
static char *header_of(const struct snapshot_file *f, size_t *ret_n)
{
    uint64_t n;
    memcpy(&n, f->p, sizeof n);
    *ret_n = (size_t)n;
    char *s = sl_strndup((const char *)f->p + 8, *ret_n);
    must(s != NULL, "no memory");
    return s;
}

void snapshots_open(struct snapshots *s, const struct seeded_shape *shape, size_t fed)
{
    struct sl_error err = {0};
    struct sl_model_options opt = {0};
    size_t n;
    *s = (struct snapshots){0};
    if (shape) {
        s->model = seeded_open(shape, NULL, &s->source, &n);
        must(sl_tokenizer_open(&s->tokenizer, "bytes", &err) == SL_OK, err.message);
    } else {
        const void *vocabulary = sl_embedded_vocab_data(&n);
        must(sl_model_open(&s->model, &opt, &err) == SL_OK, err.message);
        must(sl_tokenizer_open_memory(&s->tokenizer, vocabulary, n, "embedded", &err) == SL_OK,
             err.message);
    }
    s->state_bytes = sl_model_info(s->model)->state_bytes;
    s->state = runner_state(s->model);
    s->back = runner_state(s->model);
    struct runner r;
    runner_open(&r, s->model, 1, 8, 1);
    for (size_t i = 0; i < fed; i++) {
        uint32_t token = (uint32_t)((i * 37 + 11) % sl_model_info(s->model)->vocab_size);
        runner_feed(&r, s->state, &token, 1, 1, NULL);
    }
    runner_close(&r);
}

void snapshots_close(struct snapshots *s)
{
    sl_free(s->state);
    sl_free(s->back);
    sl_tokenizer_close(s->tokenizer);
    sl_model_close(s->model);
    free(s->source);
}

struct snapshot_file snapshots_write(const struct snapshots *s, const struct sl_snapshot_info *info)
{
    struct snapshot_file f;
    struct sl_error err = {0};
    enum sl_code c = sl_snapshot_write(s->model, s->tokenizer, s->state, info, &f.p, &f.n, &err);
    must(c == SL_OK, err.message);
    return f;
}

/* Values are checked on their way into the slot: only then may it have changed. */
static bool is_of_values(const struct sl_error *err)
{
    return strstr(err->message, " holds a value that is ") ||
           strstr(err->message, " do not have the digest that ");
}

enum sl_code snapshots_read(const struct snapshots *s, const void *p, size_t n,
                            struct sl_snapshot_info *ret, struct sl_error *err)
{
    struct sl_snapshot_info before;
    struct sl_error own = {.code = SL_OK};
    err = err ? err : &own;
    memset(s->back, 0xa5, s->state_bytes);
    memset(ret, 0x5a, sizeof *ret);
    before = *ret;
    enum sl_code c = sl_snapshot_read(s->model, s->tokenizer, p, n, s->back, ret, err);
    if (c == SL_OK)
        return c;
    const unsigned char *b = s->back;
    for (size_t i = 0; i < s->state_bytes && !is_of_values(err); i++)
        must(b[i] == 0xa5, "a refused snapshot has written to the state");
    must(memcmp(ret, &before, sizeof before) == 0, "a refused snapshot has written its info");
    return c;
}

struct snapshot_file snapshots_edit(const struct snapshot_file *f, const char *from, const char *to)
{
    size_t n;
    char *header = header_of(f, &n);
    char *at = strstr(header, from);
    must(at != NULL, from);
    size_t before = (size_t)(at - header), after = n - before - strlen(from);
    size_t new_n = (before + strlen(to) + after + 7) / 8 * 8, data_n = f->n - 8 - n;
    struct snapshot_file out = {sl_malloc(8 + new_n + data_n), 8 + new_n + data_n};
    must(out.p != NULL, "no memory");
    uint64_t length = new_n;
    memset(out.p, ' ', 8 + new_n);
    memcpy(out.p, &length, 8);
    memcpy(out.p + 8, header, before);
    memcpy(out.p + 8 + before, to, strlen(to));
    memcpy(out.p + 8 + before + strlen(to), at + strlen(from), after);
    memcpy(out.p + 8 + new_n, f->p + 8 + n, data_n);
    sl_free(header);
    return out;
}

struct snapshot_file snapshots_drop(const struct snapshot_file *f, const char *key)
{
    /* An unknown key counts in the digest of the metadata: the entry goes as a whole. Both digests
     * are written last: one after the other, the last without a comma. */
    char entry[64], with_value[128];
    size_t n;
    char *header = header_of(f, &n);
    (void)snprintf(entry, sizeof entry, "\"%s\":\"", key);
    char *at = strstr(header, entry);
    must(at != NULL, key);
    int len = (int)(strlen(entry) + 33); /* 32 digits and a quote */
    if (at[len] == ',')
        (void)snprintf(with_value, sizeof with_value, "%.*s,", len, at);
    else
        (void)snprintf(with_value, sizeof with_value, ",%.*s", len, at);
    sl_free(header);
    return snapshots_edit(f, with_value, "");
}

unsigned char *snapshots_tensor(const struct snapshot_file *f, const char *name, size_t *ret_n)
{
    char key[96];
    size_t n, begin, end;
    char *header = header_of(f, &n);
    (void)snprintf(key, sizeof key, "\"%s\":{", name);
    char *at = strstr(header, key);
    must(at != NULL, name);
    at = strstr(at, "\"data_offsets\":[");
    must(at && sscanf(at, "\"data_offsets\":[%zu,%zu]", &begin, &end) == 2, name);
    sl_free(header);
    *ret_n = end - begin;
    return f->p + 8 + n + begin;
}
