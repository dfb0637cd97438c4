/* bpe_added.c: added tokens in a text, leftmost first, of several at one place the longest: see
 * bpe_parts.h.
 *
 * The tokens lie sorted by their text. At each place of a text a range of them is narrowed byte by
 * byte; the ones that end where the range begins are the matches. That costs the logarithm of the
 * number of tokens for each byte that matches, whatever the tokens are, and no table. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/bpe_parts.h"

int sl_bpe_compare(const unsigned char *a, size_t n_a, const unsigned char *b, size_t n_b)
{
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare(const void *a, const void *b)
{
    const struct sl_bpe_added *x = *(const struct sl_bpe_added *const *)a;
    const struct sl_bpe_added *y = *(const struct sl_bpe_added *const *)b;
    return sl_bpe_compare(x->text, x->n_text, y->text, y->n_text);
}

enum sl_code sl_bpe_added_sort(struct sl_bpe_added_set *set, const struct sl_bpe *b,
                               bool normalized, size_t *ret_index, struct sl_error *err)
{
    set->sorted = sl_malloc((b->n_added + 1) * sizeof(void *));
    if (!set->sorted)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for %zu added tokens", b->n_added);
    for (size_t i = 0; i < b->n_added; i++) {
        if (b->added[i].normalized != normalized)
            continue;
        set->sorted[set->n++] = &b->added[i];
        set->has_special |= b->added[i].special;
    }
    qsort(set->sorted, set->n, sizeof(void *), compare);
    for (size_t i = 1; i < set->n; i++) {
        if (compare(&set->sorted[i - 1], &set->sorted[i]) == 0) {
            const struct sl_bpe_added *a = set->sorted[i - 1], *z = set->sorted[i];
            *ret_index = (size_t)((a > z ? a : z) - b->added);
            return sl_fail(err, SL_E_FILE_CORRUPT,
                           "looks for the same text as another one, which has the id %u",
                           (unsigned)(a > z ? z : a)->id);
        }
    }
    size_t k = 0;
    for (unsigned byte = 0; byte <= 256; byte++) {
        while (k < set->n && set->sorted[k]->text[0] < byte)
            k++;
        set->first[byte] = (uint32_t)k;
    }
    return SL_OK;
}

/* Of sorted[lo … hi), whose texts agree in their first `depth` bytes and are longer: those whose
 * next byte is not below `byte`, the first one. */
static size_t lower_bound(const struct sl_bpe_added_set *set, size_t lo, size_t hi, size_t depth,
                          unsigned byte)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (set->sorted[mid]->text[depth] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Of special ones only those of up to n_special bytes. */
static const struct sl_bpe_added *longest_at(const struct sl_bpe_added_set *set,
                                             const unsigned char *s, size_t n, size_t n_special)
{
    const struct sl_bpe_added *best = NULL;
    size_t lo = set->first[s[0]], hi = set->first[s[0] + 1u];
    for (size_t depth = 1; lo < hi; depth++) {
        if (set->sorted[lo]->n_text == depth) {
            if (!set->sorted[lo]->special || depth <= n_special)
                best = set->sorted[lo];
            lo++;
        }
        if (depth == n)
            break;
        lo = lower_bound(set, lo, hi, depth, s[depth]);
        hi = lower_bound(set, lo, hi, depth, s[depth] + 1u);
    }
    return best;
}

/* How many bytes from `begin` on are not verbatim. */
static size_t free_bytes(struct sl_bpe_added_search *s, size_t begin)
{
    while (s->n_verbatim && s->verbatim->end <= begin) {
        s->verbatim++;
        s->n_verbatim--;
    }
    if (!s->n_verbatim)
        return s->n - begin;
    return s->verbatim->begin > begin ? s->verbatim->begin - begin : 0;
}

static size_t char_before(const unsigned char *s, size_t at)
{
    do
        at--;
    while (at > 0 && (s[at] & 0xC0) == 0x80);
    return at;
}

static enum sl_code is_word_char(const struct sl_bpe *b, struct sl_bpe_matcher *m,
                                 const unsigned char *s, bool *ret, struct sl_error *err)
{
    size_t len;
    struct sl_range match;
    (void)sl_bpe_get_char(s, &len);
    struct sl_bpe_search search = {
        .pattern = &b->word_char, .s = s, .n = len, .last_end = SIZE_MAX};
    return sl_bpe_search_next(&search, m, ret, &match, err);
}

static enum sl_code stands_alone(const struct sl_bpe_added_search *s, const struct sl_bpe *b,
                                 struct sl_bpe_matcher *m, size_t begin, size_t end, bool *ret,
                                 struct sl_error *err)
{
    bool left = false, right = false;
    enum sl_code c = SL_OK;
    if (begin > 0)
        c = is_word_char(b, m, s->s + char_before(s->s, begin), &left, err);
    if (!c && end < s->n)
        c = is_word_char(b, m, s->s + end, &right, err);
    *ret = !left && !right;
    return c;
}

static void strip(const struct sl_bpe_added_search *s, const struct sl_bpe_added *a,
                  struct sl_range *r)
{
    size_t len;
    while (a->lstrip && r->begin > s->end) {
        size_t at = char_before(s->s, r->begin);
        if (!sl_bpe_is_white(sl_bpe_get_char(s->s + at, &len)))
            break;
        r->begin = at;
    }
    while (a->rstrip && r->end < s->n && sl_bpe_is_white(sl_bpe_get_char(s->s + r->end, &len)))
        r->end += len;
}

enum sl_code sl_bpe_added_next(struct sl_bpe_added_search *s, const struct sl_bpe *b,
                               struct sl_bpe_matcher *m, const struct sl_bpe_added **ret,
                               struct sl_range *ret_range, struct sl_error *err)
{
    *ret = NULL;
    while (s->set->n && s->at < s->n) {
        size_t begin = s->at;
        if (s->set->first[s->s[begin]] == s->set->first[s->s[begin] + 1u]) {
            s->at++;
            continue;
        }
        const struct sl_bpe_added *a =
            longest_at(s->set, s->s + begin, s->n - begin, free_bytes(s, begin));
        s->at = begin + (a ? a->n_text : 1);
        if (!a)
            continue;
        bool alone = true;
        if (a->single_word) {
            enum sl_code c = stands_alone(s, b, m, begin, s->at, &alone, err);
            if (c)
                return c;
        }
        if (!alone)
            continue;
        struct sl_range r = {begin, s->at};
        strip(s, a, &r);
        s->end = r.end;
        *ret = a;
        *ret_range = r;
        return SL_OK;
    }
    return SL_OK;
}
