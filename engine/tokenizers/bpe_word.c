/* bpe_word.c: one word -> ids: see bpe_parts.h. The algorithm is Sennrich et al. 2016 (Neural
 * Machine Translation of Rare Words with Subword Units), with the merge of the lowest rank first
 * and, of equal ones, the leftmost.
 *
 * A word's characters become symbols: the token that is the character (with the prefix or suffix
 * where the file has one), else byte tokens, else the unknown token. Short words, nearly all, look
 * for the best pair by a walk over a row of ranks: O(n²), and faster than any queue. Longer ones
 * keep a queue of possible merges, O(n log n): an entry that no longer fits what stands at its
 * place (another merge came first) is dropped when it comes up. There are at most n - 1 entries at
 * the start, and each merge takes one and adds two: never more than 2 n. */
#include <assert.h>
#include <string.h>

#include "engine/tokenizers/bpe_parts.h"

enum { SHORT = 24 };

/* --- characters -> symbols ----------------------------------------------------------------------
 */

struct spell {
    const struct sl_bpe_vocab *v;
    struct sl_bpe_symbol *symbols;
    size_t n;
    bool unk_open; /* an unknown token is still to be put */
};

static void put(struct spell *p, uint32_t id)
{
    p->symbols[p->n++].id = id;
}

static void close_unk(struct spell *p)
{
    if (p->unk_open)
        put(p, p->v->unk);
    p->unk_open = false;
}

static bool put_bytes(struct spell *p, const unsigned char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p->v->bytes[s[i]] == SL_BPE_NONE)
            return false;
    for (size_t i = 0; i < n; i++)
        put(p, p->v->bytes[s[i]]);
    return true;
}

/* As the tokenizers library has it: byte tokens do not close an unknown token that is open. */
static void put_unknown(struct spell *p, const unsigned char *s, size_t n)
{
    if (p->v->byte_fallback && put_bytes(p, s, n))
        return;
    if (p->v->unk == SL_BPE_NONE)
        return; /* such characters vanish */
    if (!p->v->fuse_unk)
        close_unk(p);
    p->unk_open = true;
}

static void put_affixed(struct spell *p, const unsigned char *s, size_t len, bool first, bool last)
{
    const struct sl_bpe_vocab *v = p->v;
    unsigned char all[2 * SL_TOKEN_BYTES_MAX + 4];
    size_t n = 0;
    if (!first && v->n_prefix) {
        memcpy(all, v->prefix, v->n_prefix);
        n = v->n_prefix;
    }
    memcpy(all + n, s, len);
    n += len;
    if (last && v->n_suffix) {
        memcpy(all + n, v->suffix, v->n_suffix);
        n += v->n_suffix;
    }
    uint32_t id = sl_bpe_vocab_find(v, all, n);
    if (id == SL_BPE_NONE) {
        put_unknown(p, all, n);
        return;
    }
    close_unk(p);
    put(p, id);
}

static size_t spell(const struct sl_bpe_vocab *v, const unsigned char *s, size_t n,
                    struct sl_bpe_symbol *symbols)
{
    struct spell p = {.v = v, .symbols = symbols};
    bool affixed = v->n_prefix || v->n_suffix;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = sl_bpe_get_char(s + i, &len);
        if (affixed) {
            put_affixed(&p, s + i, len, i == 0, i + len == n);
            continue;
        }
        uint32_t id = c < 0x800 ? v->chars[c] : sl_bpe_vocab_find(v, s + i, len);
        if (id == SL_BPE_NONE) {
            put_unknown(&p, s + i, len);
        } else {
            close_unk(&p);
            put(&p, id);
        }
    }
    close_unk(&p);
    return p.n;
}

size_t sl_bpe_symbols_max(const struct sl_bpe_vocab *v, size_t n)
{
    return n * (1 + v->n_prefix) + v->n_suffix;
}

/* --- short words --------------------------------------------------------------------------------
 */

static uint32_t rank_of(const struct sl_bpe_vocab *v, const uint32_t *ids)
{
    const struct sl_bpe_merge *m = sl_bpe_merges_find(v, ids[0], ids[1]);
    return m ? m->rank : SL_BPE_NONE;
}

static size_t merge_short(const struct sl_bpe_vocab *v, uint32_t *ids, size_t n)
{
    uint32_t ranks[SHORT];
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(v, ids + i);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == SL_BPE_NONE)
            break;
        ids[best] = sl_bpe_merges_find(v, ids[best], ids[best + 1])->id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) {
            memmove(ranks + best + 1, ranks + best + 2, (n - best - 2) * sizeof *ranks);
            ranks[best] = rank_of(v, ids + best);
        }
        if (best > 0)
            ranks[best - 1] = rank_of(v, ids + best - 1);
    }
    return n;
}

/* --- long words ---------------------------------------------------------------------------------
 */

struct queue {
    struct sl_bpe_entry *v; /* a binary heap */
    size_t n;
};

static bool before(struct sl_bpe_entry a, struct sl_bpe_entry b)
{
    return a.rank < b.rank || (a.rank == b.rank && a.pos < b.pos);
}

static void sift_down(struct queue *q, size_t i)
{
    struct sl_bpe_entry e = q->v[i];
    for (size_t k; (k = 2 * i + 1) < q->n; i = k) {
        k += k + 1 < q->n && before(q->v[k + 1], q->v[k]);
        if (!before(q->v[k], e))
            break;
        q->v[i] = q->v[k];
    }
    q->v[i] = e;
}

static void push(struct queue *q, const struct sl_bpe_merge *m, uint32_t pos)
{
    struct sl_bpe_entry e = {.rank = m->rank, .pos = pos, .id = m->id};
    size_t i = q->n++;
    while (i > 0 && before(e, q->v[(i - 1) / 2])) {
        q->v[i] = q->v[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    q->v[i] = e;
}

static struct sl_bpe_entry pop(struct queue *q)
{
    struct sl_bpe_entry e = q->v[0];
    q->v[0] = q->v[--q->n];
    if (q->n)
        sift_down(q, 0);
    return e;
}

static void fill_queue(struct queue *q, const struct sl_bpe_vocab *v, struct sl_bpe_symbol *s,
                       size_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        s[i].prev = i ? i - 1 : SL_BPE_NONE;
        s[i].next = i + 1 < n ? i + 1 : SL_BPE_NONE;
        const struct sl_bpe_merge *m =
            i + 1 < n ? sl_bpe_merges_find(v, s[i].id, s[i + 1].id) : NULL;
        if (m)
            q->v[q->n++] = (struct sl_bpe_entry){.rank = m->rank, .pos = i, .id = m->id};
    }
    for (size_t i = q->n / 2; i-- > 0;)
        sift_down(q, i);
}

static void push_pair(struct queue *q, const struct sl_bpe_vocab *v, const struct sl_bpe_symbol *s,
                      uint32_t left, uint32_t right)
{
    const struct sl_bpe_merge *m = sl_bpe_merges_find(v, s[left].id, s[right].id);
    if (m)
        push(q, m, left);
}

static size_t merge_long(const struct sl_bpe_vocab *v, struct sl_bpe_space *space, size_t n,
                         uint32_t *ids)
{
    struct queue q = {.v = space->queue};
    struct sl_bpe_symbol *s = space->symbols;
    fill_queue(&q, v, s, n);
    while (q.n) {
        struct sl_bpe_entry e = pop(&q);
        uint32_t i = e.pos, k = s[i].next;
        if (s[i].id == SL_BPE_NONE || k == SL_BPE_NONE)
            continue;
        const struct sl_bpe_merge *m = sl_bpe_merges_find(v, s[i].id, s[k].id);
        if (!m || m->id != e.id)
            continue;
        s[i].id = e.id;
        s[i].next = s[k].next;
        s[k].id = SL_BPE_NONE; /* gone */
        if (s[i].next != SL_BPE_NONE) {
            s[s[i].next].prev = i;
            push_pair(&q, v, s, i, s[i].next);
        }
        if (s[i].prev != SL_BPE_NONE)
            push_pair(&q, v, s, s[i].prev, i);
        assert(q.n <= 2 * n);
    }
    size_t n_ids = 0;
    for (uint32_t i = 0; i != SL_BPE_NONE; i = s[i].next)
        ids[n_ids++] = s[i].id;
    return n_ids;
}

size_t sl_bpe_merge_word(const struct sl_bpe_vocab *v, const unsigned char *s, size_t n,
                         struct sl_bpe_space *space, uint32_t *ids)
{
    if (v->ignore_merges) {
        uint32_t id = sl_bpe_vocab_find(v, s, n);
        if (id != SL_BPE_NONE) {
            ids[0] = id;
            return 1;
        }
    }
    size_t n_symbols = spell(v, s, n, space->symbols);
    assert(n_symbols <= space->room);
    if (n_symbols > SHORT)
        return merge_long(v, space, n_symbols, ids);
    for (size_t i = 0; i < n_symbols; i++)
        ids[i] = space->symbols[i].id;
    return merge_short(v, ids, n_symbols);
}
