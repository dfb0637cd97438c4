/* literal.c: see literal.h.
 *
 * Understood are the escapes that repr() can produce and the one other that is its equal, \" :
 * \\ \' \" \n \r \t and \xNN in both kinds, \uNNNN and \UNNNNNNNN in a str. In a str \xNN is the
 * character U+00NN, in bytes it is the byte. Everything else that Python would take (octal, \N{..},
 * unknown escapes that stay as they are, adjacent literals) is refused: no vocabulary has it, and a
 * guess would make a wrong token. Every escape is longer than the bytes it stands for, so the
 * result is never longer than the source. */
#include "engine/tokenizers/literal.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/utf8.h"

struct scan {
    const unsigned char *s;
    size_t n, at;
    bool is_bytes;
    unsigned char *dst;
    size_t n_dst;
    const char *why;
};

static bool refuse(struct scan *p, const char *why)
{
    p->why = why;
    return false;
}

static int hex_digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static void put(struct scan *p, uint32_t byte)
{
    p->dst[p->n_dst++] = (unsigned char)byte;
}

static bool put_char(struct scan *p, uint32_t c)
{
    if (c >= 0xD800 && c <= 0xDFFF)
        return refuse(p, "a surrogate has no UTF-8");
    if (c > 0x10FFFF)
        return refuse(p, "a character above U+10FFFF");
    if (c < 0x80) {
        put(p, c);
    } else if (c < 0x800) {
        put(p, 0xC0 | c >> 6);
        put(p, 0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(p, 0xE0 | c >> 12);
        put(p, 0x80 | (c >> 6 & 0x3F));
        put(p, 0x80 | (c & 0x3F));
    } else {
        put(p, 0xF0 | c >> 18);
        put(p, 0x80 | (c >> 12 & 0x3F));
        put(p, 0x80 | (c >> 6 & 0x3F));
        put(p, 0x80 | (c & 0x3F));
    }
    return true;
}

/* The n_digits hexadecimal digits of an escape, whose letter has been read. */
static bool scan_hex(struct scan *p, size_t n_digits)
{
    uint32_t c = 0;
    for (size_t i = 0; i < n_digits; i++) {
        int d = p->at < p->n ? hex_digit(p->s[p->at]) : -1;
        if (d < 0)
            return refuse(p, "an escape with too few hexadecimal digits");
        c = c << 4 | (uint32_t)d;
        p->at++;
    }
    if (!p->is_bytes)
        return put_char(p, c);
    put(p, c);
    return true;
}

static bool scan_escape(struct scan *p)
{
    static const char plain[] = "\\\\''\"\"n\nr\rt\t"; /* letter, what it means, … */
    if (p->at == p->n)
        return refuse(p, "the literal ends in an escape");
    unsigned char letter = p->s[p->at++];
    for (size_t i = 0; i + 1 < sizeof plain; i += 2) {
        if ((unsigned char)plain[i] == letter) {
            put(p, (unsigned char)plain[i + 1]);
            return true;
        }
    }
    if (letter == 'x')
        return scan_hex(p, 2);
    if (letter == 'u' && !p->is_bytes)
        return scan_hex(p, 4);
    if (letter == 'U' && !p->is_bytes)
        return scan_hex(p, 8);
    p->at--;
    return refuse(p, "an escape that is not known here");
}

/* One character that stands for itself. */
static bool scan_plain(struct scan *p)
{
    unsigned char c = p->s[p->at];
    if (c < 0x20 && c != '\t')
        return refuse(p, "a control character that is not escaped");
    if (p->is_bytes && c >= 0x80)
        return refuse(p, "a byte above 127 that is not escaped");
    size_t bad, len = sl_utf8_char(p->s + p->at, p->n - p->at, &bad);
    if (len == 0)
        return refuse(p, "invalid UTF-8");
    memcpy(p->dst + p->n_dst, p->s + p->at, len);
    p->n_dst += len;
    p->at += len;
    return true;
}

static bool scan_literal(struct scan *p)
{
    if (p->at < p->n && p->s[p->at] == 'b') {
        p->is_bytes = true;
        p->at++;
    }
    if (p->at == p->n || (p->s[p->at] != '\'' && p->s[p->at] != '"'))
        return refuse(p, "a quote should be here");
    unsigned char quote = p->s[p->at++];
    while (p->at < p->n && p->s[p->at] != quote) {
        bool ok;
        if (p->s[p->at] == '\\') {
            p->at++;
            ok = scan_escape(p);
        } else {
            ok = scan_plain(p);
        }
        if (!ok)
            return false;
    }
    if (p->at == p->n)
        return refuse(p, "the closing quote is missing");
    p->at++;
    return p->at == p->n || refuse(p, "something follows the closing quote");
}

bool sl_literal_parse(const unsigned char *s, size_t n, unsigned char *dst, size_t *ret_n,
                      const char **ret_why, size_t *ret_at)
{
    struct scan p = {.s = s, .n = n, .dst = dst};
    if (!scan_literal(&p)) {
        *ret_why = p.why;
        *ret_at = p.at;
        return false;
    }
    *ret_n = p.n_dst;
    return true;
}
