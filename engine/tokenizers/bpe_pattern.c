/* bpe_pattern.c: regular expressions and literals: see bpe_parts.h.
 *
 * The expressions in a tokenizer.json are Oniguruma's: that is what the tokenizers library hands
 * them to. Here they go to the same library, with the same syntax and encoding, so no class, fold
 * or look-around can mean anything else. (PCRE2 would want a translation: its \s has U+180E, its
 * {n,m}+ is possessive, its $ and ^ are another thing, its classes have no &&.)
 *
 * A file may hold an expression that backtracks without end. A search has a limit of stack; and of
 * retries it has a few for nothing, as nearly all need, and more only from what is left of the
 * text's budget (a fixed number and some for each byte: a run of n blanks may cost n). The library
 * does not say how many it took, so a search is tried again with ever more, and each try is paid
 * for. A text that meets these limits fails, in a time that is linear in its length. Oniguruma's
 * own memory comes from malloc, and its failures are reported as NO_MEMORY. */
#include "engine/tokenizers/bpe_parts.h"

#include <oniguruma.h>
#include <pthread.h>
#include <string.h>

#include "engine/base/mem.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int init_code;

static void init(void)
{
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    init_code = onig_initialize(encodings, 1);
}

enum sl_code sl_bpe_pattern_regex(struct sl_bpe_pattern *p, const char *s, size_t n,
                                  struct sl_error *err)
{
    OnigRegex regex = NULL;
    OnigErrorInfo info = {0};
    const OnigUChar *begin = (const OnigUChar *)s;
    if (n > SL_BPE_PATTERN_MAX)
        return sl_fail(err, SL_E_FILE_CORRUPT, "a regular expression of more than %d bytes",
                       SL_BPE_PATTERN_MAX);
    if (pthread_once(&once, init) || init_code != ONIG_NORMAL)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for regular expressions");
    int rc = onig_new(&regex, begin, begin + n, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                      ONIG_SYNTAX_DEFAULT, &info);
    if (rc == ONIGERR_MEMORY)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a regular expression");
    if (rc != ONIG_NORMAL) {
        OnigUChar why[ONIG_MAX_ERROR_MESSAGE_LEN] = "";
        (void)onig_error_code_to_str(why, rc, &info);
        return sl_fail(err, SL_E_FILE_CORRUPT, "not a regular expression: %s", (const char *)why);
    }
    *p = (struct sl_bpe_pattern){.regex = regex};
    return SL_OK;
}

enum sl_code sl_bpe_pattern_literal(struct sl_bpe_pattern *p, const char *s, size_t n,
                                    struct sl_error *err)
{
    if (n > SL_BPE_PATTERN_MAX)
        return sl_fail(err, SL_E_FILE_CORRUPT, "a pattern of more than %d bytes",
                       SL_BPE_PATTERN_MAX);
    if (n == 0)
        return sl_fail(err, SL_E_FILE_CORRUPT, "an empty pattern");
    unsigned char *text = sl_malloc(n);
    if (!text)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a pattern");
    memcpy(text, s, n);
    *p = (struct sl_bpe_pattern){.text = text, .n = n};
    return SL_OK;
}

void sl_bpe_pattern_done(struct sl_bpe_pattern *p)
{
    if (p->regex)
        onig_free(p->regex);
    sl_free(p->text);
    *p = (struct sl_bpe_pattern){0};
}

enum sl_code sl_bpe_matcher_open(struct sl_bpe_matcher *m, size_t n, struct sl_error *err)
{
    *m = (struct sl_bpe_matcher){.region = onig_region_new(),
                                 .param = onig_new_match_param(),
                                 .retries = SL_BPE_RETRIES + SL_BPE_RETRIES_A_BYTE * (uint64_t)n};
    if (!m->region || !m->param) {
        sl_bpe_matcher_done(m);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a search");
    }
    (void)onig_initialize_match_param(m->param);
    (void)onig_set_match_stack_limit_size_of_match_param(m->param, SL_BPE_STACK_MAX);
    return SL_OK;
}

void sl_bpe_matcher_done(struct sl_bpe_matcher *m)
{
    if (m->region)
        onig_region_free(m->region, 1);
    if (m->param)
        onig_free_match_param(m->param);
    *m = (struct sl_bpe_matcher){0};
}

static bool over_limit(int rc)
{
    return rc == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || rc == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
}

static int search(const struct sl_bpe_search *s, struct sl_bpe_matcher *m)
{
    const unsigned char *end = s->s + s->n;
    unsigned long limit = SL_BPE_RETRIES_FREE;
    for (;;) {
        (void)onig_set_retry_limit_in_match_of_match_param(m->param, limit);
        (void)onig_set_retry_limit_in_search_of_match_param(m->param, limit);
        int rc = onig_search_with_param(s->pattern->regex, s->s, end, s->s + s->at, end, m->region,
                                        ONIG_OPTION_NONE, m->param);
        if (!over_limit(rc) || m->retries < limit * SL_BPE_RETRIES_GROWTH)
            return rc;
        limit *= SL_BPE_RETRIES_GROWTH;
        m->retries -= limit;
    }
}

static enum sl_code find_regex(const struct sl_bpe_search *s, struct sl_bpe_matcher *m,
                               bool *ret_found, struct sl_range *ret, struct sl_error *err)
{
    const OnigRegion *region = m->region;
    int rc = search(s, m);
    *ret_found = rc >= 0;
    if (rc >= 0)
        *ret = (struct sl_range){(size_t)region->beg[0], (size_t)region->end[0]};
    else if (rc == ONIGERR_MEMORY)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a search in a text of %zu bytes", s->n);
    else if (rc != ONIG_MISMATCH)
        return sl_fail(err, SL_E_INVALID_VALUE,
                       "the tokenizer's regular expression needs more retries on this text than "
                       "%d and %d for each byte, or more than %d places of stack",
                       SL_BPE_RETRIES, SL_BPE_RETRIES_A_BYTE, SL_BPE_STACK_MAX);
    return SL_OK;
}

static bool find_literal(const struct sl_bpe_search *s, struct sl_range *ret)
{
    const struct sl_bpe_pattern *p = s->pattern;
    const unsigned char *at = p->n == 1 ? memchr(s->s + s->at, p->text[0], s->n - s->at)
                                        : memmem(s->s + s->at, s->n - s->at, p->text, p->n);
    if (!at)
        return false;
    ret->begin = (size_t)(at - s->s);
    ret->end = ret->begin + p->n;
    return true;
}

/* An empty match right after another match is none; the search goes on a character later. */
enum sl_code sl_bpe_search_next(struct sl_bpe_search *s, struct sl_bpe_matcher *m, bool *ret_found,
                                struct sl_range *ret, struct sl_error *err)
{
    *ret_found = false;
    while (s->at <= s->n) {
        if (!s->pattern->regex) {
            *ret_found = find_literal(s, ret);
        } else {
            enum sl_code c = find_regex(s, m, ret_found, ret, err);
            if (c)
                return c;
        }
        if (!*ret_found)
            break;
        if (ret->begin != ret->end || ret->end != s->last_end) {
            s->at = s->last_end = ret->end;
            return SL_OK;
        }
        size_t step = 1;
        if (s->at < s->n)
            (void)sl_bpe_get_char(s->s + s->at, &step);
        s->at += step;
        *ret_found = false;
    }
    s->at = s->n + 1;
    return SL_OK;
}

enum sl_code sl_bpe_replace(struct sl_bpe_buf *dst, const struct sl_bpe_pattern *p,
                            const void *content, size_t n_content, struct sl_bpe_matcher *m,
                            struct sl_bpe_edges *e, const unsigned char *s, size_t n,
                            struct sl_error *err)
{
    struct sl_bpe_search search = {.pattern = p, .s = s, .n = n, .last_end = SIZE_MAX};
    struct sl_range match;
    size_t done = 0;
    for (;;) {
        bool found = false;
        enum sl_code c = sl_bpe_search_next(&search, m, &found, &match, err);
        if (c)
            return c;
        size_t end = found ? match.begin : n, before = dst->n;
        while (sl_bpe_edge_before(e, found ? end : n + 1))
            sl_bpe_edge_put(e, before + (sl_bpe_edge(e) - done));
        c = sl_bpe_buf_put(dst, s + done, end - done, err);
        if (c || !found)
            return c;
        before = dst->n;
        c = sl_bpe_buf_put(dst, content, n_content, err);
        if (c)
            return c;
        /* A range that ends where a match begins has none of it, if there is any of it. */
        bool is_empty = match.end == match.begin;
        while (sl_bpe_edge_before(e, match.end + is_empty))
            sl_bpe_edge_put(e, sl_bpe_edge_begins(e) || (sl_bpe_edge(e) == match.begin && !is_empty)
                                   ? before
                                   : dst->n);
        done = match.end;
    }
}
