/* rwkv_arrays.c: see rwkv_arrays.h.
 *
 * Its tokens are what Python's repr() gives for bytes, without the quotes: that is, the literals of
 * the World file. So the file's lines are written out and read as any such file is, with all that
 * is checked there; a single quote may stand bare where Python had chosen the double ones. Tokens
 * that are no text (the end at id 0, unused ids) have no line. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/tokenizers/rwkv_arrays.h"

/* An id, blanks, b'', a length and a line's end. */
enum { LINE_BYTES = 48 };

/* The literal's inside to dst, which has room for twice the bytes; the token's length. */
static size_t write_literal(char *dst, size_t *ret_n, struct sl_bpe_text t)
{
    size_t n = 0, length = 0;
    for (size_t i = 0; i < t.n; i++, length++) {
        if (t.s[i] == '\'')
            dst[n++] = '\\';
        dst[n++] = t.s[i];
        if (t.s[i] != '\\' || i + 1 == t.n)
            continue;
        dst[n++] = t.s[++i];
        for (size_t k = 0; t.s[i] == 'x' && k < 2 && i + 1 + k < t.n; k++)
            dst[n++] = t.s[i + 1 + k];
        i += t.s[i] == 'x' ? (t.n - 1 - i < 2 ? t.n - 1 - i : 2) : 0;
    }
    *ret_n = n;
    return length;
}

static size_t write_lines(char *dst, const struct sl_bpe_arrays *a)
{
    size_t n = 0, literal;
    for (size_t i = 1; i < a->n_tokens; i++) {
        if (a->types && a->types[i] != SL_BPE_NORMAL && a->types[i] != SL_BPE_USER_DEFINED)
            continue;
        n += (size_t)snprintf(dst + n, LINE_BYTES, "%zu b'", i);
        size_t length = write_literal(dst + n, &literal, a->tokens[i]);
        n += literal;
        n += (size_t)snprintf(dst + n, LINE_BYTES, "' %zu\n", length);
    }
    return n;
}

enum sl_code sl_tokenizer_open_rwkv(struct sl_tokenizer **ret, const struct sl_bpe_arrays *a,
                                    const char *name, struct sl_error *err)
{
    size_t bytes = 1;
    for (size_t i = 0; i < a->n_tokens; i++) {
        if (memchr(a->tokens[i].s, '\n', a->tokens[i].n))
            return sl_fail(err, SL_E_FILE_CORRUPT,
                           "the vocabulary \"%s\": token %zu has a line's end that is not escaped",
                           name, i);
        bytes += LINE_BYTES + 2 * a->tokens[i].n; /* of tokens that lie in a file: no overflow */
    }
    if (a->n_tokens > 0 && a->types && a->types[0] == SL_BPE_NORMAL)
        return sl_fail(err, SL_E_FILE_UNSUPPORTED,
                       "the vocabulary \"%s\": token 0 is text; it must be the end of one", name);
    char *text = sl_malloc(bytes);
    if (!text)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the vocabulary \"%s\"", name);
    enum sl_code c = sl_tokenizer_open_memory(ret, text, write_lines(text, a), name, err);
    sl_free(text);
    if (c)
        return c;
    if (a->n_ends)
        sl_tokenizer_set_ends(*ret, a->ends, a->n_ends);
    sl_tokenizer_set_begin(*ret, a->begin);
    return SL_OK;
}
