/* tokenizer_test.c: vocabulary files that are well or badly formed, the embedded vocabulary against
 * a search that tries every token at every place, and memory that runs out at any allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/models/embedded.h"
#include "slate/tokenizer.h"

static uint64_t rng_state;

static uint32_t rnd(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

/* --- vocabularies for tests --------------------------------------------------------------------
 */

struct vocab {
    char *text;
    size_t n, room;
};

static void add(struct vocab *v, const char *s, size_t n)
{
    if (v->n + n > v->room) {
        v->room = 2 * (v->n + n);
        v->text = realloc(v->text, v->room);
        assert_non_null(v->text);
    }
    memcpy(v->text + v->n, s, n);
    v->n += n;
}

static void add_text(struct vocab *v, const char *s)
{
    add(v, s, strlen(s));
}

/* Lines 1 … 256: the single bytes as ids 1 … 256. */
static struct vocab single_bytes(void)
{
    struct vocab v = {0};
    for (unsigned i = 0; i < 256; i++) {
        char line[32];
        snprintf(line, sizeof line, "%u b'\\x%02x' 1\n", i + 1, i);
        add_text(&v, line);
    }
    return v;
}

static struct sl_tokenizer *open_vocab(const struct vocab *v)
{
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    if (sl_tokenizer_open_memory(&t, v->text, v->n, "test", &err) != SL_OK)
        fail_msg("%s", err.message);
    return t;
}

/* The single bytes and these lines. */
static struct sl_tokenizer *open_with(const char *lines)
{
    struct vocab v = single_bytes();
    add_text(&v, lines);
    struct sl_tokenizer *t = open_vocab(&v);
    free(v.text);
    return t;
}

static void check_token(const struct sl_tokenizer *t, uint32_t id, const char *bytes, size_t n)
{
    size_t got;
    const unsigned char *b = sl_tokenizer_bytes(t, id, &got);
    assert_non_null(b);
    assert_int_equal(got, n);
    assert_memory_equal(b, bytes, n);
}

#define CHECK_TOKEN(t, id, literal) check_token(t, id, literal, sizeof(literal) - 1)

/* --- literals ----------------------------------------------------------------------------------
 */

/* What repr() writes, and the bytes that Python's encode("utf-8") gives for it. */
static void test_literals(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_with("300 '\\\\\\'\"' 3\n"
                                       "301 \"it's\" 4\n"
                                       "302 '\\n\\r\\t' 3\n"
                                       "303 '\\x80\\xff' 4\n"
                                       "304 b'\\x80\\xff\\x00' 3\n"
                                       "305 '\\u4f60\\u200b' 6\n"
                                       "306 '\\U0001f600' 4\n"
                                       "307 '\xe4\xbd\xa0\xf0\x9f\x98\x80' 7\n"
                                       "308 '  a  b ' 7\n"
                                       "309 b\"it's\\t\" 5\n"
                                       "310 '\t\t' 2\n"
                                       "311 '\\uD7FF\\uE000\\U0010FFFF' 10\n"
                                       "1048575 ' end' 4");
    CHECK_TOKEN(t, 300, "\\'\"");
    CHECK_TOKEN(t, 301, "it's");
    CHECK_TOKEN(t, 302, "\n\r\t");
    CHECK_TOKEN(t, 303, "\xc2\x80\xc3\xbf");
    CHECK_TOKEN(t, 304, "\x80\xff\0");
    CHECK_TOKEN(t, 305, "\xe4\xbd\xa0\xe2\x80\x8b");
    CHECK_TOKEN(t, 306, "\xf0\x9f\x98\x80");
    CHECK_TOKEN(t, 307, "\xe4\xbd\xa0\xf0\x9f\x98\x80");
    CHECK_TOKEN(t, 308, "  a  b ");
    CHECK_TOKEN(t, 309, "it's\t");
    CHECK_TOKEN(t, 310, "\t\t");
    CHECK_TOKEN(t, 311, "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf");
    CHECK_TOKEN(t, 1048575, " end");
    assert_int_equal(sl_tokenizer_size(t), 1048576);
    assert_int_equal(sl_tokenizer_eos(t), 0);
    assert_string_equal(sl_tokenizer_kind(t), "rwkv_world");
    sl_tokenizer_close(t);
}

/* --- refused -----------------------------------------------------------------------------------
 */

static void refused(const struct vocab *v, const char *message)
{
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    assert_int_equal(sl_tokenizer_open_memory(&t, v->text, v->n, "test", &err), SL_E_FILE_CORRUPT);
    assert_null(t);
    assert_string_equal(err.message, message);
}

/* A bad line after the single bytes: it is line 257. */
static void refused_line(const char *line, const char *what)
{
    struct vocab v = single_bytes();
    add_text(&v, line);
    char message[512];
    snprintf(message, sizeof message, "the vocabulary \"test\", line 257: %s", what);
    refused(&v, message);
    add_text(&v, "\n900 'more' 4\n");
    refused(&v, message);
    free(v.text);
}

static void test_bad_lines(void **state)
{
    (void)state;
#define FORM "it is not `id literal length`"
    refused_line("\n", FORM);
    refused_line("abc", FORM);
    refused_line("300 'a'", FORM);
    refused_line("0 'ab' 2", "id 0 ends a text and must not be listed");
    refused_line("-1 'ab' 2", "\"-1\" is not an id from 1 to 1048575");
    refused_line(" 'ab' 2", "\"\" is not an id from 1 to 1048575");
    refused_line("1048576 'ab' 2", "\"1048576\" is not an id from 1 to 1048575");
    refused_line("18446744073709551617 'ab' 2",
                 "\"18446744073709551617\" is not an id from 1 to 1048575");
    refused_line("98 'ab' 2", "id 98 was given on line 98 already");
    refused_line("300 'ab' 3", "token 300 has 2 bytes, but its length is given as \"3\"");
    refused_line("300 'ab' x", "token 300 has 2 bytes, but its length is given as \"x\"");
    refused_line("300 'ab' ", "token 300 has 2 bytes, but its length is given as \"\"");
    refused_line("300 'ab' 4294967298",
                 "token 300 has 2 bytes, but its length is given as \"4294967298\"");
    refused_line("300 '' 0", "token 300 has 0 bytes, 1 to 256 are allowed");
}

static void test_bad_literals(void **state)
{
    (void)state;
    static const struct {
        const char *line, *what;
    } rows[] = {
        {"300 ab 2", "0: a quote should be here"},
        {"300  'ab' 2", "0: a quote should be here"},
        {"300 b 2", "1: a quote should be here"},
        {"300 B'a' 1", "0: a quote should be here"},
        {"300 'ab 2", "3: the closing quote is missing"},
        {"300 'ab\" 2", "4: the closing quote is missing"},
        {"300 'a'b' 2", "3: something follows the closing quote"},
        {"300 'a' 'b' 2", "3: something follows the closing quote"},
        {"300 'a\\", FORM},
        {"300 'a\\ 2", "3: the literal ends in an escape"},
        {"300 'a\\' 2", "4: the closing quote is missing"},
        {"300 '\\q' 1", "2: an escape that is not known here"},
        {"300 '\\0' 1", "2: an escape that is not known here"},
        {"300 '\\N{DIGIT ONE}' 1", "2: an escape that is not known here"},
        {"300 b'\\u0041' 1", "3: an escape that is not known here"},
        {"300 b'\\U00000041' 1", "3: an escape that is not known here"},
        {"300 '\\x4' 1", "4: an escape with too few hexadecimal digits"},
        {"300 '\\x4g' 1", "4: an escape with too few hexadecimal digits"},
        {"300 '\\u123' 1", "6: an escape with too few hexadecimal digits"},
        {"300 '\\U0001F60' 1", "10: an escape with too few hexadecimal digits"},
        {"300 '\\ud800' 3", "7: a surrogate has no UTF-8"},
        {"300 '\\udfff' 3", "7: a surrogate has no UTF-8"},
        {"300 '\\U00110000' 3", "11: a character above U+10FFFF"},
        {"300 '\\Uffffffff' 3", "11: a character above U+10FFFF"},
        {"300 '\xe4\xbd' 2", "1: invalid UTF-8"},
        {"300 '\xff' 1", "1: invalid UTF-8"},
        {"300 b'\xc3\xa9' 2", "2: a byte above 127 that is not escaped"},
        {"300 'a\rb' 3", "2: a control character that is not escaped"},
        {"300 '\x01' 1", "1: a control character that is not escaped"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char what[256];
        if (strcmp(rows[i].what, FORM) == 0)
            snprintf(what, sizeof what, "%s", FORM);
        else
            snprintf(what, sizeof what, "bad literal of token 300, at its byte %s", rows[i].what);
        refused_line(rows[i].line, what);
    }
}

static void test_long_tokens(void **state)
{
    (void)state;
    char line[SL_TOKEN_BYTES_MAX + 32], xs[SL_TOKEN_BYTES_MAX + 2];
    memset(xs, 'x', sizeof xs);
    snprintf(line, sizeof line, "300 '%.*s' %d\n", SL_TOKEN_BYTES_MAX, xs, SL_TOKEN_BYTES_MAX);
    struct sl_tokenizer *t = open_with(line);
    check_token(t, 300, xs, SL_TOKEN_BYTES_MAX);
    /* 256 + 255 x: one long token, then single ones. */
    char text[2 * SL_TOKEN_BYTES_MAX - 1];
    uint32_t ids[sizeof text];
    memset(text, 'x', sizeof text);
    assert_int_equal(sl_tokenizer_encode_part(t, text, sizeof text, ids),
                     1 + SL_TOKEN_BYTES_MAX - 1);
    assert_int_equal(ids[0], 300);
    assert_int_equal(ids[1], 'x' + 1);
    sl_tokenizer_close(t);
    snprintf(line, sizeof line, "300 '%.*s' %d", SL_TOKEN_BYTES_MAX + 1, xs,
             SL_TOKEN_BYTES_MAX + 1);
    refused_line(line, "token 300 has 257 bytes, 1 to 256 are allowed");
}

static void test_missing_byte(void **state)
{
    (void)state;
    struct vocab v = {.text = NULL};
    add_text(&v, "1 'a' 1\n2 'aa' 2\n");
    refused(&v, "the vocabulary \"test\" has no token for the single byte 0x00: not every text "
                "could be encoded");
    v.n = 0;
    refused(&v, "the vocabulary \"test\" has no token for the single byte 0x00: not every text "
                "could be encoded");
    free(v.text);
    v = single_bytes();
    v.n -= strlen("256 b'\\xff' 1\n");
    add_text(&v, "256 '\\xff' 2\n"); /* the character, not the byte */
    refused(&v, "the vocabulary \"test\" has no token for the single byte 0xff: not every text "
                "could be encoded");
    free(v.text);
}

/* --- files -------------------------------------------------------------------------------------
 */

static void test_files(void **state)
{
    (void)state;
    char path[] = "/tmp/slate-vocabulary-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    struct vocab v = single_bytes();
    assert_int_equal(write(fd, v.text, v.n), (ssize_t)v.n);
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    assert_int_equal(sl_tokenizer_open(&t, path, &err), SL_OK);
    assert_int_equal(sl_tokenizer_size(t), 257);
    sl_tokenizer_close(t);
    t = NULL;
    assert_int_equal(ftruncate(fd, (64 << 20) + 1), 0);
    assert_int_equal(sl_tokenizer_open(&t, path, &err), SL_E_TOO_LARGE);
    assert_non_null(strstr(err.message, "larger than 67108864 bytes"));
    assert_non_null(strstr(err.message, path));
    assert_int_equal(sl_tokenizer_open_memory(&t, path, (64 << 20) + 1, "test", &err),
                     SL_E_TOO_LARGE);
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sl_tokenizer_open(&t, path, &err), SL_E_FILE_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(sl_tokenizer_open(&t, "/proc/self", &err), SL_E_FILE_NOT_FOUND);
    assert_string_equal(err.message,
                        "the directory \"/proc/self\" holds neither tokenizer.json nor "
                        "rwkv_vocab_v20230424.txt");
    assert_int_equal(sl_tokenizer_open(&t, "", &err), SL_E_FILE_NOT_FOUND);
    assert_null(t);
    free(v.text);
    sl_tokenizer_close(NULL);
}

/* A directory with the file's usual name in it; a tokenizer.json goes before. */
static void test_directory(void **state)
{
    (void)state;
    char folder[] = "/tmp/slate-vocabulary-XXXXXX", world[64], json[64];
    assert_non_null(mkdtemp(folder));
    snprintf(world, sizeof world, "%s/rwkv_vocab_v20230424.txt", folder);
    snprintf(json, sizeof json, "%s/tokenizer.json", folder);
    struct vocab v = single_bytes();
    FILE *f = fopen(world, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(v.text, 1, v.n, f), v.n);
    fclose(f);
    free(v.text);
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    assert_int_equal(sl_tokenizer_open(&t, folder, &err), SL_OK);
    assert_string_equal(sl_tokenizer_kind(t), "rwkv_world");
    assert_int_equal(sl_tokenizer_begin(t), -1);
    assert_true(sl_tokenizer_is_eos(t, 0));
    assert_int_equal(sl_tokenizer_find(t, "a", 1), -1);
    sl_tokenizer_close(t);
    t = NULL;
    f = fopen(json, "w");
    assert_non_null(f);
    fputs("\n {\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", f);
    fclose(f);
    assert_int_equal(sl_tokenizer_open(&t, folder, &err), SL_OK);
    assert_string_equal(sl_tokenizer_kind(t), "bpe");
    assert_int_equal(sl_tokenizer_find(t, "a", 1), 0);
    sl_tokenizer_close(t);
    assert_int_equal(unlink(json), 0);
    assert_int_equal(unlink(world), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A file without a size in front: read to its end, up to the limit. */
static void test_endless_file(void **state)
{
    (void)state;
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    assert_int_equal(sl_tokenizer_open(&t, "/dev/zero", &err), SL_E_TOO_LARGE);
    assert_int_equal(sl_tokenizer_open(&t, "/dev/null", &err), SL_E_FILE_CORRUPT);
    assert_null(t);
}

/* --- encoding ----------------------------------------------------------------------------------
 */

static void test_bytes(void **state)
{
    (void)state;
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    assert_int_equal(sl_tokenizer_open(&t, "bytes", &err), SL_OK);
    assert_string_equal(sl_tokenizer_kind(t), "bytes");
    assert_int_equal(sl_tokenizer_size(t), 256);
    assert_int_equal(sl_tokenizer_eos(t), -1);
    unsigned char text[256];
    uint32_t ids[256];
    for (unsigned i = 0; i < 256; i++)
        text[i] = (unsigned char)(255 - i);
    assert_int_equal(sl_tokenizer_encode_part(t, text, 256, ids), 256);
    for (unsigned i = 0; i < 256; i++) {
        assert_int_equal(ids[i], 255 - i);
        check_token(t, i, (const char *)&text[255 - i], 1);
    }
    size_t n = 9;
    assert_null(sl_tokenizer_bytes(t, 256, &n));
    assert_int_equal(n, 0);
    assert_int_equal(sl_tokenizer_encode_part(t, NULL, 0, NULL), 0);
    sl_tokenizer_close(t);
}

/* Ids without bytes, holes, and one token under two ids: both decode, the larger one encodes. */
static void test_holes_and_twins(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_with("900 'twin' 4\n500 'twin' 4\n");
    static const uint32_t without[] = {0, 257, 499, 501, 901, UINT32_MAX};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        size_t n = 9;
        assert_null(sl_tokenizer_bytes(t, without[i], &n));
        assert_int_equal(n, 0);
    }
    CHECK_TOKEN(t, 500, "twin");
    CHECK_TOKEN(t, 900, "twin");
    uint32_t ids[8];
    assert_int_equal(sl_tokenizer_encode_part(t, "twintwi", 7, ids), 4);
    assert_int_equal(ids[0], 900);
    assert_int_equal(ids[1], 't' + 1);
    sl_tokenizer_close(t);
}

/* The longest token that matches, or 0. */
static size_t slow_longest(const struct sl_tokenizer *t, const unsigned char *text, size_t n,
                           uint32_t *ret_id)
{
    size_t best = 0;
    for (uint32_t id = 0; id < sl_tokenizer_size(t); id++) {
        size_t len;
        const unsigned char *b = sl_tokenizer_bytes(t, id, &len);
        if (b && len >= best && len <= n && memcmp(b, text, len) == 0) {
            best = len;
            *ret_id = id;
        }
    }
    return best;
}

static void check_encoding(const struct sl_tokenizer *t, const unsigned char *text, size_t n)
{
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    assert_non_null(ids);
    ids[n] = 0xABCDEF;
    size_t n_ids = sl_tokenizer_encode_part(t, text, n, ids), at = 0;
    for (size_t i = 0; i < n_ids; i++) {
        uint32_t id = 0;
        size_t len = slow_longest(t, text + at, n - at, &id);
        assert_int_equal(ids[i], id);
        at += len;
    }
    assert_int_equal(at, n);
    assert_int_equal(ids[n], 0xABCDEF);
    free(ids);
}

/* The embedded vocabulary on random bytes, on its own tokens one after the other, and on those with
 * a byte changed here and there. */
static void test_embedded(void **state)
{
    (void)state;
    size_t n_vocab;
    const void *vocab = sl_embedded_vocab_data(&n_vocab);
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    if (sl_tokenizer_open_memory(&t, vocab, n_vocab, "embedded", &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_int_equal(sl_tokenizer_size(t), 2048);
    rng_state = 11;
    for (size_t i = 0; i < 150; i++) {
        unsigned char text[400];
        size_t n = 0, want = rnd(sizeof text);
        while (i % 3 > 0 && n < want) {
            size_t len;
            const unsigned char *b =
                sl_tokenizer_bytes(t, 1 + rnd((uint32_t)sl_tokenizer_size(t) - 1), &len);
            if (!b || len > want - n)
                break;
            memcpy(text + n, b, len);
            n += len;
        }
        for (; n < want; n++)
            text[n] = (unsigned char)rnd(256);
        for (size_t k = 0; i % 3 == 2 && k < n; k += 1 + rnd(40))
            text[k] = (unsigned char)(' ' + rnd(90));
        check_encoding(t, text, n);
    }
    sl_tokenizer_close(t);
}

/* Vocabularies of random tokens over two letters: all prefixes and near misses there are. */
static void test_random_vocabularies(void **state)
{
    (void)state;
    rng_state = 12;
    for (size_t i = 0; i < 60; i++) {
        struct vocab v = single_bytes();
        for (uint32_t id = 257; id < 257 + 1 + rnd(40); id++) {
            char token[13], line[48];
            int n = 1 + (int)rnd(12);
            for (int k = 0; k < n; k++)
                token[k] = (char)('a' + rnd(2));
            snprintf(line, sizeof line, "%u '%.*s' %d\n", (unsigned)id, n, token, n);
            add_text(&v, line);
        }
        struct sl_tokenizer *t = open_vocab(&v);
        unsigned char text[120];
        for (size_t k = 0; k < sizeof text; k++)
            text[k] = (unsigned char)('a' + rnd(2));
        check_encoding(t, text, sizeof text);
        sl_tokenizer_close(t);
        free(v.text);
    }
}

/* --- fingerprints ------------------------------------------------------------------------------
 */

static void test_fingerprint(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "300 'ab' 2\n", "300 \"ab\" 2\r\n", "300 b'\\x61b' 2", /* the same token */
        "301 'ab' 2\n", "300 'ac' 2\n",     "300 'a' 1\n",     "300 'ab' 2\n301 'ab' 2\n", "",
    };
    unsigned char f[8][16];
    for (size_t i = 0; i < 8; i++) {
        struct sl_tokenizer *t = open_with(lines[i]);
        sl_tokenizer_fingerprint(t, f[i]);
        sl_tokenizer_close(t);
    }
    assert_memory_equal(f[0], f[1], 16);
    assert_memory_equal(f[0], f[2], 16);
    for (size_t i = 2; i < 8; i++) {
        for (size_t k = i + 1; k < 8; k++)
            assert_memory_not_equal(f[i], f[k], 16);
    }
}

/* Pinned: XXH3-128 as the command `xxhsum -H2` gives it for the 256 × (id, 1, byte) of 4, 4 and 1
 * bytes. A change of it would make every snapshot of a bytes model a stranger. */
static void test_fingerprint_of_bytes(void **state)
{
    (void)state;
    struct sl_tokenizer *t = NULL;
    struct sl_error err;
    assert_int_equal(sl_tokenizer_open(&t, "bytes", &err), SL_OK);
    unsigned char f[16];
    char hex[33] = "";
    sl_tokenizer_fingerprint(t, f);
    for (size_t i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", f[i]);
    assert_string_equal(hex, "75d933a920f7f3094e75cf854c16496a");
    sl_tokenizer_close(t);
}

/* --- memory ------------------------------------------------------------------------------------
 */

static void test_no_memory(void **state)
{
    (void)state;
    char path[] = "/tmp/slate-vocabulary-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    struct vocab v = single_bytes();
    add_text(&v, "300 'three hundred' 13\n");
    assert_int_equal(write(fd, v.text, v.n), (ssize_t)v.n);
    close(fd);
    const char *const specs[] = {path, "bytes"};
    for (size_t i = 0; i < 2; i++) {
        int64_t n_failed = 0;
        for (int64_t n = 0; n < 40; n++) {
            struct sl_tokenizer *t = NULL;
            struct sl_error err;
            sl_mem_fail_after(n);
            enum sl_code c = sl_tokenizer_open(&t, specs[i], &err);
            sl_mem_fail_after(-1);
            if (c == SL_OK) { /* it may do without giving back what is too much */
                uint32_t ids[16];
                assert_int_equal(sl_tokenizer_encode_part(t, "three hundred", 13, ids), i ? 13 : 1);
                sl_tokenizer_close(t);
                continue;
            }
            assert_int_equal(n, n_failed);
            n_failed++;
            assert_int_equal(c, SL_E_NO_MEMORY);
            assert_null(t);
        }
        assert_int_equal(n_failed, i ? 2 : 9);
    }
    assert_int_equal(unlink(path), 0);
    free(v.text);
}

static void test_no_allocation(void **state)
{
    (void)state;
    struct sl_tokenizer *t = open_with("300 'ab' 2\n");
    uint64_t before = sl_mem_count();
    uint32_t ids[3];
    size_t n;
    unsigned char f[16];
    assert_int_equal(sl_tokenizer_encode_part(t, "aba", 3, ids), 2);
    assert_non_null(sl_tokenizer_bytes(t, ids[0], &n));
    sl_tokenizer_fingerprint(t, f);
    assert_int_equal(sl_mem_count(), before);
    sl_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_literals),     cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_bad_literals), cmocka_unit_test(test_long_tokens),
        cmocka_unit_test(test_missing_byte), cmocka_unit_test(test_files),
        cmocka_unit_test(test_directory),    cmocka_unit_test(test_endless_file),
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_holes_and_twins),
        cmocka_unit_test(test_embedded),     cmocka_unit_test(test_random_vocabularies),
        cmocka_unit_test(test_fingerprint),  cmocka_unit_test(test_fingerprint_of_bytes),
        cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
