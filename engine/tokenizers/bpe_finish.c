/* bpe_finish.c: what follows from a tokenizer's parts once they are read: see bpe_parts.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/bpe_parts.h"

static const char word_char[] = "[" SL_BPE_WORD "]";

static enum sl_code no_memory(struct sl_error *err)
{
    return sl_fail(err, SL_E_NO_MEMORY, "no memory for a tokenizer");
}

/* What an added token looks like in a text. */
static enum sl_code find_text(const struct sl_bpe *b, struct sl_bpe_added *a,
                              struct sl_bpe_matcher *m, struct sl_bpe_buf bufs[2],
                              struct sl_error *err)
{
    const unsigned char *s = a->content;
    size_t n = a->n_content;
    enum sl_code c = SL_OK;
    if (a->normalized)
        c = sl_bpe_normalise(b, m, bufs, false, NULL, s, n, &s, &n, err);
    if (c)
        return c;
    if (n == 0)
        return sl_fail(err, SL_E_FILE_CORRUPT, "the normaliser leaves nothing of it");
    a->text = sl_malloc(n);
    if (!a->text)
        return no_memory(err);
    memcpy(a->text, s, n);
    a->n_text = n;
    return SL_OK;
}

static enum sl_code finish_added(struct sl_bpe *b, size_t *ret_index, struct sl_error *err)
{
    struct sl_bpe_matcher m;
    struct sl_bpe_buf bufs[2] = {{0}};
    bool has_single_word = false;
    enum sl_code c = sl_bpe_matcher_open(&m, b->vocab.n_blob, err);
    for (size_t i = 0; !c && i < b->n_added; i++) {
        *ret_index = i;
        has_single_word |= b->added[i].single_word;
        c = find_text(b, &b->added[i], &m, bufs, err);
        if (b->added[i].id >= b->n_ids)
            b->n_ids = (size_t)b->added[i].id + 1;
    }
    if (!c)
        c = sl_bpe_added_sort(&b->raw, b, false, ret_index, err);
    if (!c)
        c = sl_bpe_added_sort(&b->normalised, b, true, ret_index, err);
    if (!c && has_single_word)
        c = sl_bpe_pattern_regex(&b->word_char, word_char, strlen(word_char), err);
    sl_bpe_matcher_done(&m);
    sl_bpe_buf_done(&bufs[0]);
    sl_bpe_buf_done(&bufs[1]);
    return c;
}

/* Only where no splitter makes the words short, and where a part of a word is not another thing
 * than a word. */
static bool wants_seams(const struct sl_bpe *b)
{
    const struct sl_bpe_vocab *v = &b->vocab;
    if (v->ignore_merges || v->n_prefix || v->n_suffix)
        return false;
    for (size_t i = 0; i < b->n_splits; i++)
        if (b->splits[i].pattern.regex || b->splits[i].pattern.text)
            return false;
    return true;
}

enum sl_code sl_bpe_finish(struct sl_tokenizer *t, struct sl_bpe *b, const char **ret_place,
                           size_t *ret_index, struct sl_error *err)
{
    uint32_t id = 0;
    b->n_ids = b->vocab.n_ids;
    *ret_place = "added_tokens";
    enum sl_code c = finish_added(b, ret_index, err);
    if (c)
        return c;
    *ret_place = "model";
    *ret_index = SIZE_MAX;
    if (wants_seams(b))
        c = sl_bpe_seams_make(&b->vocab, err);
    if (c)
        return c;
    *ret_place = "id";
    c = sl_bpe_decode_all(t, b, &id, err);
    *ret_index = id;
    if (c)
        return c;
    if (t->begin >= (int64_t)b->n_ids) {
        *ret_place = "post_processor";
        *ret_index = SIZE_MAX;
        return sl_fail(err, SL_E_FILE_CORRUPT,
                       "the token before a text has the id %d, and there "
                       "are %zu",
                       (int)t->begin, b->n_ids);
    }
    t->priv = b;
    return SL_OK;
}

void sl_bpe_free(struct sl_bpe *b)
{
    if (!b)
        return;
    sl_bpe_vocab_done(&b->vocab);
    for (size_t i = 0; i < b->n_normals; i++) {
        sl_bpe_pattern_done(&b->normals[i].pattern);
        sl_free(b->normals[i].content);
    }
    for (size_t i = 0; i < b->n_splits; i++)
        sl_bpe_pattern_done(&b->splits[i].pattern);
    for (size_t i = 0; i < b->n_decodes; i++) {
        sl_bpe_pattern_done(&b->decodes[i].pattern);
        sl_free(b->decodes[i].content);
    }
    for (size_t i = 0; i < b->n_added; i++) {
        sl_free(b->added[i].content);
        sl_free(b->added[i].text);
    }
    sl_free(b->added);
    sl_free(b->raw.sorted);
    sl_free(b->normalised.sorted);
    sl_bpe_pattern_done(&b->word_char);
    sl_free(b->blob);
    sl_free(b->spans);
    sl_free(b->first_spans);
    sl_free(b);
}
