/* chat_jinja.c: which of our templates a template in Jinja's language is.
 *
 * The language is not run. A template is known or it is not: its text, without what has no meaning
 * in it, has one of the digests below. No meaning has white space between the words of a tag, the
 * kind of quotes, how a line break is spelled in a string, a comment, and white space around tags
 * where Jinja itself drops it (the marks {%- and -%}, and, as the library that reads these files
 * sets it, a line break after a block and the blanks before one). Everything else has: two
 * templates with the same digest give the same text. (That RWKV's puts token 0 before a
 * conversation is the tokenizer's to know: tokenizers/beside.c.) What makes a template of ours the
 * same as one of these was found by hand, and chat_test.c holds it to texts that the original gave.
 */
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "engine/base/mem.h"
#include "proto/chat.h"

/* XXH3-128 of the normal form, and the template. */
static const struct known {
    const char *digest;
    const char *name;
} known[] = {
    {"dffab648511df17f123b19bf5f422ebe", "chatml"},
    {"976b0ace5f84cd74f678d14c70291fe8", "chatml"},
    {"9629b3d8ae825c068a41cb35180ef2c7", "chatml"},
    {"e0372a1b96810428b842096a3a88faa9", "qwen2"},
    {"74a58728d221efe6b2944651467965e5", "llama-2"},
    {"a85c0a6e3c27ccd58d17d3989efc8065", "llama-2"},
    {"b8b9896ec3f4daeb01c6b48bea744c9f", "rwkv"},
    {"e91b4680733b7dcca859e4966eb186da", "rwkv"}, /* of RWKV-7 in Hugging Face's folders */
    {"3b1e86789981b7ec83283d746c92bc10", "rwkv"}, /* the word rwkv-world, in GGUF files */
};

struct scan {
    const char *s;
    size_t n, at;
    char *out; /* has room for n bytes and a few more */
    size_t n_out;
    size_t text_from; /* in out: where the plain text after the last tag begins */
    bool trim_next;   /* the last tag said so */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_white(char c)
{
    return is_blank(c) || c == '\n' || c == '\r';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_at(const struct scan *p, const char *text)
{
    size_t k = strlen(text);
    return p->n - p->at >= k && memcmp(p->s + p->at, text, k) == 0;
}

static void put(struct scan *p, char c)
{
    p->out[p->n_out++] = c;
}

/* Plain text in front of a tag loses its end: all white space, or the blanks of a line that holds
 * nothing else. */
static void trim_text(struct scan *p, bool all, bool block)
{
    size_t end = p->n_out;
    if (all) {
        while (end > p->text_from && is_white(p->out[end - 1]))
            end--;
    } else if (block) {
        size_t k = end;
        while (k > p->text_from && is_blank(p->out[k - 1]))
            k--;
        if (k > p->text_from ? p->out[k - 1] == '\n' : p->text_from == 0)
            end = k;
    }
    p->n_out = end;
}

/* A string, from its quote on, as 0x01 … 0x02. */
static bool scan_string(struct scan *p)
{
    char quote = p->s[p->at++];
    put(p, 1);
    while (p->at < p->n && p->s[p->at] != quote) {
        char c = p->s[p->at++];
        if (c == '\\' && p->at < p->n) {
            c = p->s[p->at++];
            if (c == 'n')
                c = '\n';
            else if (c != '\\' && c != '\'' && c != '"')
                return false; /* an escape that none of the known ones has */
        }
        put(p, c);
    }
    put(p, 2);
    return p->at++ < p->n;
}

/* From "{{" or "{%" to behind its end. */
static bool scan_tag(struct scan *p)
{
    bool block = p->s[p->at + 1] == '%';
    const char *close = block ? "%}" : "}}";
    bool trim = p->at + 2 < p->n && p->s[p->at + 2] == '-';
    trim_text(p, trim, block);
    put(p, '{');
    put(p, block ? '%' : '{');
    p->at += trim ? 3 : 2;
    bool gap = false;
    for (;;) {
        if (p->at >= p->n)
            return false;
        bool minus = p->s[p->at] == '-';
        p->at += minus;
        if (is_at(p, close))
            break;
        p->at -= minus;
        char c = p->s[p->at];
        if (is_white(c)) {
            gap = true;
            p->at++;
        } else if (c == '\'' || c == '"') {
            if (!scan_string(p))
                return false;
            gap = false;
        } else {
            if (gap && is_word(c) && is_word(p->out[p->n_out - 1]))
                put(p, ' ');
            gap = false;
            put(p, c);
            p->at++;
        }
    }
    p->trim_next = p->at > 0 && p->s[p->at - 1] == '-';
    put(p, close[0]);
    put(p, close[1]);
    p->at += 2;
    if (block && !p->trim_next && p->at < p->n && p->s[p->at] == '\n')
        p->at++;
    p->text_from = p->n_out;
    return true;
}

static bool scan_comment(struct scan *p)
{
    trim_text(p, p->at + 2 < p->n && p->s[p->at + 2] == '-', true);
    const char *end = memmem(p->s + p->at, p->n - p->at, "#}", 2);
    if (!end)
        return false;
    p->at = (size_t)(end - p->s) + 2;
    p->trim_next = end[-1] == '-';
    if (!p->trim_next && p->at < p->n && p->s[p->at] == '\n')
        p->at++;
    p->text_from = p->n_out;
    return true;
}

/* False: not of the language, as far as it is looked at. */
static bool normalise(struct scan *p)
{
    while (p->at < p->n) {
        if (is_at(p, "{#")) {
            if (!scan_comment(p))
                return false;
        } else if (is_at(p, "{{") || is_at(p, "{%")) {
            p->trim_next = false;
            if (!scan_tag(p))
                return false;
        } else if (p->trim_next && is_white(p->s[p->at])) {
            p->at++;
        } else {
            p->trim_next = false;
            put(p, p->s[p->at++]);
        }
    }
    if (p->n_out > p->text_from && p->out[p->n_out - 1] == '\n')
        p->n_out--; /* the file's last line break */
    return true;
}

enum sl_code sl_chat_template_recognise(const struct sl_chat_template **ret, const char *jinja,
                                        size_t n, struct sl_error *err)
{
    char hex[2 * 16 + 1] = "";
    *ret = NULL;
    for (size_t i = 0; i < sl_n_chat_templates; i++) {
        const char *name = sl_chat_templates[i].name;
        if (strlen(name) == n && memcmp(name, jinja, n) == 0)
            *ret = &sl_chat_templates[i];
    }
    if (*ret)
        return SL_OK;
    /* A tag of four bytes stays one; a string gains nothing. */
    struct scan p = {.s = jinja, .n = n, .out = sl_malloc(n + 16)};
    if (!p.out)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a chat template of %zu bytes", n);
    if (normalise(&p)) {
        XXH128_canonical_t c;
        XXH128_canonicalFromHash(&c, XXH3_128bits(p.out, p.n_out));
        for (size_t i = 0; i < sizeof c.digest; i++)
            snprintf(hex + 2 * i, 3, "%02x", c.digest[i]);
        for (size_t i = 0; i < sizeof known / sizeof *known && !*ret; i++)
            if (strcmp(known[i].digest, hex) == 0)
                *ret = sl_chat_template_find(known[i].name);
    }
    sl_free(p.out);
    return SL_OK;
}
