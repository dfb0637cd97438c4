/* utf8.c: see utf8.h. */
#include "engine/base/utf8.h"

#include <string.h>

/* The range of a sequence's second byte depends on the first: no overlong forms, no surrogates,
 * nothing above U+10FFFF. */
static size_t sequence(unsigned char first, unsigned char *ret_lo, unsigned char *ret_hi)
{
    *ret_lo = 0x80;
    *ret_hi = 0xBF;
    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    if (first < 0xE0)
        return 2;
    if (first == 0xE0)
        *ret_lo = 0xA0;
    else if (first == 0xED)
        *ret_hi = 0x9F;
    else if (first == 0xF0)
        *ret_lo = 0x90;
    else if (first == 0xF4)
        *ret_hi = 0x8F;
    return first < 0xF0 ? 3 : 4;
}

size_t sl_utf8_char(const unsigned char *s, size_t n, size_t *ret_bad)
{
    unsigned char lo, hi;
    size_t len = sequence(s[0], &lo, &hi);
    *ret_bad = len ? 0 : 1;
    for (size_t i = 1; i < len; i++) {
        if (i == n)
            return 0; /* ends too early */
        if (s[i] < lo || s[i] > hi) {
            *ret_bad = i;
            return 0;
        }
        lo = 0x80;
        hi = 0xBF;
    }
    return len;
}

bool sl_utf8_valid(const void *text, size_t n)
{
    const unsigned char *s = text;
    for (size_t i = 0, bad; i < n;) {
        size_t len = sl_utf8_char(s + i, n - i, &bad);
        if (!len)
            return false;
        i += len;
    }
    return true;
}

static size_t put_replacement(unsigned char *dst)
{
    static const unsigned char replacement[] = {0xEF, 0xBF, 0xBD};
    memcpy(dst, replacement, sizeof replacement);
    return sizeof replacement;
}

size_t sl_utf8_repair(void *dst, const void *src, size_t n, bool last, size_t *ret_used)
{
    const unsigned char *s = src;
    unsigned char *d = dst;
    size_t i = 0, out = 0;
    while (i < n) {
        size_t bad, len = sl_utf8_char(s + i, n - i, &bad);
        if (len) {
            memcpy(d + out, s + i, len);
            out += len;
            i += len;
        } else if (bad || last) {
            out += put_replacement(d + out);
            i += bad ? bad : n - i;
        } else {
            break;
        }
    }
    if (ret_used)
        *ret_used = i;
    return out;
}

void sl_utf8_sanitize_text(char *dst, size_t dst_size, const char *src, size_t n, bool cut)
{
    const unsigned char *s = (const unsigned char *)src;
    size_t room = dst_size - 1, i = 0, out = 0;
    size_t mark = 0; /* where "…" can go: the last border with three bytes left behind it */
    while (i < n) {
        unsigned char c[4];
        size_t bad, len = sl_utf8_char(s + i, n - i, &bad), c_len = len;
        if (!len) {
            c_len = put_replacement(c);
            len = bad ? bad : n - i;
        } else {
            memcpy(c, s + i, len);
            if (len == 1 && (c[0] < 0x20 || c[0] == 0x7F))
                c[0] = '?';
        }
        if (c_len > room - out) {
            cut = true;
            break;
        }
        if (out + 3 <= room)
            mark = out;
        memcpy(dst + out, c, c_len);
        out += c_len;
        i += len;
    }
    if (out + 3 <= room)
        mark = out;
    if (cut && room >= 3) {
        memcpy(dst + mark, "\xE2\x80\xA6", 3);
        out = mark + 3;
    }
    dst[out] = '\0';
}
