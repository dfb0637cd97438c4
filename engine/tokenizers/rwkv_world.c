/* rwkv_world.c: a vocabulary in the form of the RWKV World file, and greedy longest match.
 *
 * The file: `id literal length` a line, LF or CRLF. The literal is what Python's repr() gives for
 * a str ('..' or "..") or for bytes (b'..', b".."); it may hold spaces, so a line is cut at its
 * first and its last one. `length` counts the token's bytes. Id 0 ends a text and is not listed.
 *
 * Refused, with the line: what is not of this form, an id that comes twice, is 0 or above
 * SL_VOCAB_ID_MAX, a token that is empty or longer than SL_TOKEN_BYTES_MAX. Refused as a whole: a
 * vocabulary that lacks one of the 256 single bytes, for then some text could not be encoded. One
 * token under several ids is allowed, as the official tokenizer allows it: each id decodes to it
 * and the largest is the one that encoding gives.
 *
 * Encoding takes at each place the longest token that matches, by a walk down a trie. Its nodes
 * lie breadth first, so the children of a node are neighbours, ordered by their byte: a node is
 * the place of its first child and how many there are, and one byte a node (`labels`) is all that
 * a search looks at. All single bytes being tokens, the root's children are nodes 1 … 256 and need
 * no search. Why not a table of 256 children a node: 150,000 nodes would take 150 MB. Why not a
 * double array: building one takes a search for gaps whose time a hostile file decides. */
#include "engine/tokenizers/kinds.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/literal.h"

struct node {
    uint32_t first; /* its first child */
    uint32_t id;    /* of the token that ends here; 0: none does */
    uint32_t n_children;
};

struct world {
    struct node *nodes; /* nodes[0] is the root */
    unsigned char *labels;
    unsigned char *blob;
    struct sl_token_span *spans;
};

/* A line's token while the file is read. */
struct entry {
    uint32_t id;
    uint32_t offset; /* in the blob */
    uint32_t n;
};

struct reader {
    const char *name; /* the file's, for messages */
    size_t line;      /* counted from 1 */
    unsigned char *blob;
    size_t n_blob;
    struct entry *entries;
    size_t n_entries;
    size_t n_spans; /* that there is room for */
    uint32_t max_id;
    struct sl_error *err;
};

static enum sl_code bad_line(const struct reader *r, const char *fmt, ...) SL_PRINTF(2, 3);

static enum sl_code bad_line(const struct reader *r, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return sl_fail(r->err, SL_E_FILE_CORRUPT, "the vocabulary \"%s\", line %zu: %s", r->name,
                   r->line, what);
}

static enum sl_code no_memory(const char *name, struct sl_error *err)
{
    return sl_fail(err, SL_E_NO_MEMORY, "no memory for the vocabulary \"%s\"", name);
}

/* A decimal number that fills s[0..n), at most `max`. */
static bool read_number(const unsigned char *s, size_t n, uint32_t max, uint32_t *ret)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        x = x * 10 + (uint64_t)(s[i] - '0');
        if (x > max)
            return false;
    }
    *ret = (uint32_t)x;
    return n > 0;
}

/* Makes room for the span of id, which is within its limit. */
static enum sl_code grow_spans(struct reader *r, struct world *w, uint32_t id)
{
    size_t room = r->n_spans ? r->n_spans * 2 : 1024;
    if (room <= id)
        room = (size_t)id + 1;
    struct sl_token_span *grown = sl_realloc(w->spans, room, sizeof *grown);
    if (!grown)
        return no_memory(r->name, r->err);
    memset(grown + r->n_spans, 0, (room - r->n_spans) * sizeof *grown);
    w->spans = grown;
    r->n_spans = room;
    return SL_OK;
}

static enum sl_code check_id(struct reader *r, struct world *w, uint32_t id)
{
    if (id == 0)
        return bad_line(r, "id 0 ends a text and must not be listed");
    if (id >= r->n_spans)
        return grow_spans(r, w, id);
    if (w->spans[id].n == 0)
        return SL_OK;
    size_t i = 0;
    while (r->entries[i].id != id)
        i++;
    return bad_line(r, "id %u was given on line %zu already", (unsigned)id, i + 1);
}

/* Reads one line, without its end. Every line gives one entry. */
static enum sl_code read_line(struct reader *r, struct world *w, const unsigned char *s, size_t n)
{
    const unsigned char *first = memchr(s, ' ', n), *last = memrchr(s, ' ', n);
    if (!first || first == last)
        return bad_line(r, "it is not `id literal length`");
    uint32_t id, length;
    if (!read_number(s, (size_t)(first - s), SL_VOCAB_ID_MAX, &id))
        return bad_line(r, "\"%.*s\" is not an id from 1 to %d",
                        (int)(first - s < 32 ? first - s : 32), (const char *)s,
                        (int)SL_VOCAB_ID_MAX);
    enum sl_code c = check_id(r, w, id);
    if (c != SL_OK)
        return c;
    const unsigned char *literal = first + 1;
    size_t n_literal = (size_t)(last - literal), n_token, at;
    const char *why;
    if (!sl_literal_parse(literal, n_literal, r->blob + r->n_blob, &n_token, &why, &at))
        return bad_line(r, "bad literal of token %u, at its byte %zu: %s", (unsigned)id, at, why);
    if (n_token == 0 || n_token > SL_TOKEN_BYTES_MAX)
        return bad_line(r, "token %u has %zu bytes, 1 to %d are allowed", (unsigned)id, n_token,
                        (int)SL_TOKEN_BYTES_MAX);
    size_t n_number = (size_t)(s + n - (last + 1));
    if (!read_number(last + 1, n_number, UINT32_MAX, &length) || length != n_token)
        return bad_line(r, "token %u has %zu bytes, but its length is given as \"%.*s\"",
                        (unsigned)id, n_token, (int)(n_number < 32 ? n_number : 32),
                        (const char *)(last + 1));
    struct entry e = {.id = id, .offset = (uint32_t)r->n_blob, .n = (uint32_t)n_token};
    r->entries[r->n_entries++] = e;
    w->spans[id] = (struct sl_token_span){.offset = e.offset, .n = e.n};
    r->n_blob += n_token;
    if (id > r->max_id)
        r->max_id = id;
    return SL_OK;
}

static enum sl_code read_lines(struct reader *r, struct world *w, const unsigned char *data,
                               size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes;) {
        const unsigned char *end = memchr(data + at, '\n', n_bytes - at);
        size_t n = end ? (size_t)(end - (data + at)) : n_bytes - at;
        size_t next = at + n + (end != NULL);
        if (n > 0 && data[at + n - 1] == '\r')
            n--;
        r->line++;
        enum sl_code c = read_line(r, w, data + at, n);
        if (c != SL_OK)
            return c;
        at = next;
    }
    return SL_OK;
}

static enum sl_code check_single_bytes(const struct reader *r)
{
    bool there[256] = {false};
    for (size_t i = 0; i < r->n_entries; i++) {
        if (r->entries[i].n == 1)
            there[r->blob[r->entries[i].offset]] = true;
    }
    for (unsigned i = 0; i < 256; i++) {
        if (!there[i])
            return sl_fail(r->err, SL_E_FILE_CORRUPT,
                           "the vocabulary \"%s\" has no token for the single byte 0x%02x: not "
                           "every text could be encoded",
                           r->name, i);
    }
    return SL_OK;
}

static int compare_entries(const void *a, const void *b, void *blob)
{
    const struct entry *x = a, *y = b;
    const unsigned char *bytes = blob;
    int c = memcmp(bytes + x->offset, bytes + y->offset, x->n < y->n ? x->n : y->n);
    if (c != 0)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Nodes of the trie over the sorted entries: the root, and one for every byte of an entry beyond
 * what it has in common with the one before. */
static size_t count_nodes(const struct reader *r)
{
    size_t n = 1;
    for (size_t i = 0; i < r->n_entries; i++) {
        size_t common = 0;
        if (i > 0) {
            const struct entry *a = &r->entries[i - 1], *b = &r->entries[i];
            size_t most = a->n < b->n ? a->n : b->n;
            while (common < most && r->blob[a->offset + common] == r->blob[b->offset + common])
                common++;
        }
        n += r->entries[i].n - common;
    }
    return n;
}

/* The sorted entries that go through a node: they agree in their first `depth` bytes. */
struct range {
    uint32_t begin, end, depth;
};

/* Breadth first: the queue of nodes still to be split is the array of nodes itself. */
static void build_trie(struct world *w, const struct reader *r, struct range *ranges)
{
    size_t n_nodes = 1;
    ranges[0] = (struct range){.begin = 0, .end = (uint32_t)r->n_entries, .depth = 0};
    for (size_t i = 0; i < n_nodes; i++) {
        uint32_t depth = ranges[i].depth, e = ranges[i].begin, end = ranges[i].end;
        struct node *node = &w->nodes[i];
        *node = (struct node){.first = (uint32_t)n_nodes};
        /* Shorter ones come first, and of equal ones the largest id last. */
        for (; e < end && r->entries[e].n == depth; e++)
            node->id = r->entries[e].id;
        while (e < end) {
            unsigned char label = r->blob[r->entries[e].offset + depth];
            uint32_t begin = e;
            while (e < end && r->blob[r->entries[e].offset + depth] == label)
                e++;
            w->labels[n_nodes] = label;
            ranges[n_nodes++] = (struct range){.begin = begin, .end = e, .depth = depth + 1};
            node->n_children++;
        }
    }
}

static enum sl_code make_trie(struct world *w, struct reader *r)
{
    qsort_r(r->entries, r->n_entries, sizeof *r->entries, compare_entries, r->blob);
    size_t n_nodes = count_nodes(r);
    struct range *ranges = sl_malloc(n_nodes * sizeof *ranges);
    w->nodes = sl_malloc(n_nodes * sizeof *w->nodes);
    w->labels = sl_malloc(n_nodes);
    enum sl_code c = SL_OK;
    if (ranges && w->nodes && w->labels)
        build_trie(w, r, ranges);
    else
        c = no_memory(r->name, r->err);
    sl_free(ranges);
    return c;
}

static void world_free(struct world *w)
{
    if (!w)
        return;
    sl_free(w->nodes);
    sl_free(w->labels);
    sl_free(w->blob);
    sl_free(w->spans);
    sl_free(w);
}

/* Gives back what was allocated too much; where that fails it stays. */
static void *shrink(void *p, size_t n, size_t size)
{
    void *q = sl_realloc(p, n, size);
    return q ? q : p;
}

static size_t count_lines(const unsigned char *data, size_t n_bytes)
{
    size_t n = 1;
    for (size_t i = 0; i < n_bytes; i++)
        n += data[i] == '\n';
    return n;
}

static enum sl_code world_open(struct sl_tokenizer *t, const unsigned char *data, size_t n_bytes,
                               const char *name, struct sl_error *err)
{
    struct reader r = {.name = name, .err = err};
    /* A line more than there are ids is refused for its id before it becomes an entry. */
    size_t n_lines = count_lines(data, n_bytes);
    if (n_lines > SL_VOCAB_ID_MAX)
        n_lines = SL_VOCAB_ID_MAX;
    enum sl_code c;
    struct world *w = sl_calloc(1, sizeof *w);
    r.entries = sl_malloc(n_lines * sizeof *r.entries);
    if (!w || !r.entries) {
        c = no_memory(name, err);
        goto out;
    }
    w->blob = r.blob = sl_malloc(n_bytes); /* a token is shorter than its literal */
    if (!w->blob) {
        c = no_memory(name, err);
        goto out;
    }
    c = read_lines(&r, w, data, n_bytes);
    if (c == SL_OK)
        c = check_single_bytes(&r);
    if (c == SL_OK)
        c = make_trie(w, &r);
    if (c != SL_OK)
        goto out;
    t->n_ids = (size_t)r.max_id + 1;
    t->spans = w->spans = shrink(w->spans, t->n_ids, sizeof *w->spans);
    t->blob = w->blob = shrink(w->blob, r.n_blob, 1);
    t->ends[0] = 0;
    t->n_ends = 1;
    t->priv = w;
    w = NULL;
out:
    sl_free(r.entries);
    world_free(w);
    return c;
}

static void world_close(struct sl_tokenizer *t)
{
    world_free(t->priv);
}

/* The child of `node` under `label`, or 0 where there is none. */
static uint32_t find_child(const struct world *w, const struct node *node, unsigned char label)
{
    uint32_t first = node->first, n = node->n_children;
    while (n > 1) {
        uint32_t half = n / 2;
        first += w->labels[first + half] <= label ? half : 0;
        n -= half;
    }
    return n == 1 && w->labels[first] == label ? first : 0;
}

static size_t world_encode_part(const struct sl_tokenizer *t, const unsigned char *text, size_t n,
                                uint32_t *ids)
{
    const struct world *w = t->priv;
    size_t n_ids = 0;
    for (size_t at = 0; at < n;) {
        uint32_t i = 1u + text[at], id = w->nodes[i].id;
        size_t end = at + 1;
        for (size_t k = end; k < n && (i = find_child(w, &w->nodes[i], text[k])) != 0;) {
            k++;
            if (w->nodes[i].id) {
                id = w->nodes[i].id;
                end = k;
            }
        }
        ids[n_ids++] = id;
        at = end;
    }
    return n_ids;
}

const struct sl_tokenizer_kind sl_tokenizer_rwkv_world = {
    .name = "rwkv_world",
    .open = world_open,
    .close = world_close,
    .encode_part = world_encode_part,
};
