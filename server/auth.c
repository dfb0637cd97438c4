/* auth.c: see auth.h. */
#include "server/auth.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "server/config.h"

enum {
    FILE_MAX = 1 << 20,
    KEY_WORDS = 3,
    WORDS_MAX = 2 + SL_QUOTA_KINDS /* of a quota's line */
};

const char *const sl_quota_names[SL_QUOTA_KINDS] = {
    [SL_QUOTA_SESSIONS] = "sessions",
    [SL_QUOTA_BYTES] = "bytes",
    [SL_QUOTA_RUNNING] = "running",
    [SL_QUOTA_TOKENS] = "tokens-per-minute",
};

struct key {
    unsigned char bytes[SL_KEY_BYTES_MAX]; /* padded with zeros, which no key holds */
    struct sl_identity identity;
};

struct quota_line {
    char tenant[SL_TENANT_BYTES_MAX + 1];
    struct sl_quotas quotas;
};

struct sl_keys {
    size_t n, cap;
    struct key *v;
    size_t n_quotas;
    struct quota_line *quotas;
};

static const struct {
    const char *name;
    unsigned bit;
} roles[] = {{"user", SL_ROLE_USER}, {"metrics", SL_ROLE_METRICS}, {"admin", SL_ROLE_ADMIN}};

struct word {
    const char *s;
    size_t n;
};

/* --- reading the file ------------------------------------------------------------------------ */

static enum sl_code bad_line(const char *path, size_t line, const char *what, struct sl_error *err)
{
    return sl_fail(err, SL_E_FILE_CORRUPT, "%s, line %zu: %s", path, line, what);
}

static unsigned parse_role(const struct word *w)
{
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strlen(roles[i].name) == w->n && memcmp(roles[i].name, w->s, w->n) == 0)
            return roles[i].bit;
    return 0;
}

/* "user,metrics" as bits; 0: not all of them are roles. */
static unsigned parse_roles(const struct word *w)
{
    unsigned bits = 0;
    const char *s = w->s, *end = w->s + w->n;
    for (;;) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        struct word one = {s, (size_t)((comma ? comma : end) - s)};
        unsigned bit = parse_role(&one);
        if (!bit)
            return 0;
        bits |= bit;
        if (!comma)
            return bits;
        s = comma + 1;
    }
}

static bool is_visible(const struct word *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->s[i] < 0x21 || w->s[i] > 0x7e)
            return false;
    return true;
}

static bool is_tenant(const struct word *w)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    for (size_t i = 0; i < w->n; i++)
        if (!memchr(letters, w->s[i], sizeof letters - 1))
            return false;
    return w->n >= 1 && w->n <= SL_TENANT_BYTES_MAX;
}

/* Splits at spaces and tabs; returns the number of words, at most WORDS_MAX + 1. */
static size_t split(const char *s, size_t n, struct word *words)
{
    size_t count = 0, i = 0;
    while (count <= WORDS_MAX) {
        while (i < n && (s[i] == ' ' || s[i] == '\t'))
            i++;
        size_t begin = i;
        while (i < n && s[i] != ' ' && s[i] != '\t')
            i++;
        if (i == begin)
            return count;
        if (count < WORDS_MAX)
            words[count] = (struct word){s + begin, i - begin};
        count++;
    }
    return count;
}

static enum sl_code append(struct sl_keys *k, const struct key *key, struct sl_error *err)
{
    if (k->n == k->cap) {
        size_t cap = k->cap ? k->cap * 2 : 16;
        struct key *v = sl_realloc(k->v, cap, sizeof *v);
        if (!v)
            return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for %zu keys", cap);
        k->v = v;
        k->cap = cap;
    }
    k->v[k->n++] = *key;
    return SL_OK;
}

/* "NAME=VALUE" into its place; false: it is none, or stands there already. */
static bool parse_quota(const struct word *w, struct sl_quotas *q)
{
    char text[64];
    const char *sign = memchr(w->s, '=', w->n);
    size_t n_name = sign ? (size_t)(sign - w->s) : w->n, n = w->n - n_name;
    if (!sign || n > sizeof text)
        return false;
    memcpy(text, sign + 1, n - 1);
    text[n - 1] = '\0';
    for (size_t i = 0; i < SL_QUOTA_KINDS; i++) {
        if (strlen(sl_quota_names[i]) != n_name || memcmp(sl_quota_names[i], w->s, n_name) != 0)
            continue;
        bool said = q->most[i] != SL_QUOTA_UNSAID;
        enum sl_option_type type = i == SL_QUOTA_BYTES ? SL_OPTION_SIZE : SL_OPTION_COUNT;
        return !said && sl_option_number(type, text, &q->most[i]) && q->most[i] <= SL_QUOTA_LARGEST;
    }
    return false;
}

static enum sl_code parse_quotas(struct sl_keys *k, const struct word *w, size_t words,
                                 const char *path, size_t line, struct sl_error *err)
{
    struct quota_line *v, l = {.tenant = ""};
    if (words < 3 || words > WORDS_MAX || !is_tenant(&w[1]))
        return bad_line(path, line, "a line for quotas must be: quota TENANT NAME=VALUE …", err);
    memcpy(l.tenant, w[1].s, w[1].n);
    for (size_t i = 0; i < SL_QUOTA_KINDS; i++)
        l.quotas.most[i] = SL_QUOTA_UNSAID;
    for (size_t i = 2; i < words; i++)
        if (!parse_quota(&w[i], &l.quotas))
            return bad_line(path, line,
                            "a quota must be one of sessions=N, bytes=SIZE (4096, 64KiB, 1GiB), "
                            "running=N, tokens-per-minute=N, each once, up to 2^53",
                            err);
    if (sl_keys_quotas(k, l.tenant))
        return bad_line(path, line, "this tenant has a line for its quotas already", err);
    if (k->n_quotas == SL_KEYS_MAX)
        return sl_fail(err, SL_E_TOO_LARGE, "%s, line %zu: more than %d quotas, the limit", path,
                       line, (int)SL_KEYS_MAX);
    v = sl_realloc(k->quotas, k->n_quotas + 1, sizeof *v);
    if (!v)
        return sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the quotas");
    k->quotas = v;
    v[k->n_quotas++] = l;
    return SL_OK;
}

static enum sl_code parse_line(struct sl_keys *k, const char *s, size_t n, const char *path,
                               size_t line, struct sl_error *err)
{
    struct word w[WORDS_MAX];
    size_t words = split(s, n, w);
    if (words == 0 || w[0].s[0] == '#')
        return SL_OK;
    if (w[0].n == strlen("quota") && memcmp(w[0].s, "quota", w[0].n) == 0)
        return parse_quotas(k, w, words, path, line, err);
    if (words != KEY_WORDS)
        return bad_line(path, line, "a line must have three words: KEY TENANT ROLE[,ROLE]", err);
    struct key key = {.identity.roles = parse_roles(&w[2])};
    if (w[0].n < SL_KEY_BYTES_MIN || w[0].n > SL_KEY_BYTES_MAX || !is_visible(&w[0]))
        return bad_line(path, line, "a key must have 8 to 256 visible ASCII characters", err);
    if (!is_tenant(&w[1]))
        return bad_line(path, line, "a tenant must have 1 to 64 of [A-Za-z0-9._-]", err);
    if (!key.identity.roles)
        return bad_line(path, line, "the roles must be a comma list of user, metrics, admin", err);
    if (k->n == SL_KEYS_MAX)
        return sl_fail(err, SL_E_TOO_LARGE, "%s, line %zu: more than %d keys, the limit", path,
                       line, (int)SL_KEYS_MAX);
    memcpy(key.bytes, w[0].s, w[0].n);
    memcpy(key.identity.tenant, w[1].s, w[1].n);
    for (size_t i = 0; i < k->n; i++)
        if (memcmp(k->v[i].bytes, key.bytes, sizeof key.bytes) == 0)
            return bad_line(path, line, "this key stands in an earlier line already", err);
    return append(k, &key, err);
}

static enum sl_code parse(struct sl_keys *k, const char *text, size_t n, const char *path,
                          struct sl_error *err)
{
    size_t line = 0;
    for (size_t at = 0; at < n;) {
        const char *s = text + at, *end = memchr(s, '\n', n - at);
        size_t len = end ? (size_t)(end - s) : n - at;
        at += len + 1;
        if (len > 0 && s[len - 1] == '\r')
            len--;
        enum sl_code c = parse_line(k, s, len, path, ++line, err);
        if (c)
            return c;
    }
    if (k->n == 0)
        return sl_fail(err, SL_E_FILE_CORRUPT,
                       "%s holds no key; a line of it is KEY TENANT ROLE[,ROLE]", path);
    return SL_OK;
}

/* The whole file; the caller frees *ret. */
static enum sl_code read_file(const char *path, char **ret, size_t *ret_n, bool *ret_exposed,
                              struct sl_error *err)
{
    struct stat st;
    char *text = NULL;
    enum sl_code c = SL_OK;
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_E_FILE_NOT_FOUND : SL_E_IO,
                       "the key file %s cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        c = sl_fail(err, SL_E_FILE_UNSUPPORTED, "the key file %s is not a regular file", path);
        goto out;
    }
    if (!(text = sl_malloc(FILE_MAX + 1))) {
        c = sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the key file");
        goto out;
    }
    for (ssize_t r = 1; r != 0 && n <= FILE_MAX; n += (size_t)r) {
        r = read(fd, text + n, FILE_MAX + 1 - n);
        if (r < 0) {
            c = sl_fail(err, SL_E_IO, "the key file %s cannot be read: %s", path, strerror(errno));
            goto out;
        }
    }
    if (n > FILE_MAX) {
        c = sl_fail(err, SL_E_TOO_LARGE, "the key file %s has more than %d bytes, the limit", path,
                    (int)FILE_MAX);
        goto out;
    }
    *ret = text;
    *ret_n = n;
    *ret_exposed = (st.st_mode & S_IRWXO) != 0;
    text = NULL;
out:
    sl_free(text);
    close(fd);
    return c;
}

enum sl_code sl_keys_open(struct sl_keys **ret, const char *path, bool *ret_exposed,
                          struct sl_error *err)
{
    char *text = NULL;
    size_t n = 0;
    bool exposed = false;
    enum sl_code c = read_file(path, &text, &n, &exposed, err);
    if (c)
        return c;
    assert(text);
    struct sl_keys *k = sl_calloc(1, sizeof *k);
    c = k ? parse(k, text, n, path, err)
          : sl_fail(err, SL_E_NO_MEMORY, "not enough memory for the keys");
    explicit_bzero(text, n);
    sl_free(text);
    if (c) {
        sl_keys_close(k);
        return c;
    }
    *ret = k;
    if (ret_exposed)
        *ret_exposed = exposed;
    return SL_OK;
}

void sl_keys_close(struct sl_keys *k)
{
    if (!k)
        return;
    if (k->v)
        explicit_bzero(k->v, k->n * sizeof *k->v);
    sl_free(k->v);
    sl_free(k->quotas);
    sl_free(k);
}

size_t sl_keys_count(const struct sl_keys *k)
{
    return k->n;
}

const char *sl_keys_tenant(const struct sl_keys *k, size_t i)
{
    assert(i < k->n);
    return k->v[i].identity.tenant;
}

const struct sl_quotas *sl_keys_quotas(const struct sl_keys *k, const char *tenant)
{
    for (size_t i = 0; i < k->n_quotas; i++)
        if (strcmp(k->quotas[i].tenant, tenant) == 0)
            return &k->quotas[i].quotas;
    return NULL;
}

const char *sl_keys_keyless(const struct sl_keys *k)
{
    for (size_t i = 0; i < k->n_quotas; i++) {
        size_t j = 0;
        while (j < k->n && strcmp(k->v[j].identity.tenant, k->quotas[i].tenant) != 0)
            j++;
        if (j == k->n)
            return k->quotas[i].tenant;
    }
    return NULL;
}

/* --- who is it ------------------------------------------------------------------------------- */

/* 0 when equal; every byte is looked at. */
static unsigned differs(const unsigned char *a, const unsigned char *b)
{
    unsigned d = 0;
    for (size_t i = 0; i < SL_KEY_BYTES_MAX; i++)
        d |= (unsigned)(a[i] ^ b[i]);
    return d;
}

/* Index + 1 of the key, 0 for none: all of them are compared, the match is taken by a mask. */
static size_t find(const struct sl_keys *k, const unsigned char *bytes)
{
    size_t found = 0;
    for (size_t i = 0; i < k->n; i++) {
        size_t mask = (size_t)0 - (size_t)(1 & ((differs(k->v[i].bytes, bytes) - 1) >> 8));
        found |= mask & (i + 1);
    }
    return found;
}

enum sl_code sl_keys_identify(const struct sl_keys *k, const char *authorization,
                              struct sl_identity *ret, struct sl_error *err)
{
    if (!k) {
        *ret = (struct sl_identity){.tenant = SL_TENANT_DEFAULT, .roles = SL_ROLE_ALL};
        return SL_OK;
    }
    if (!authorization)
        return sl_fail(err, SL_E_UNAUTHORIZED,
                       "no key was given; send the header Authorization: Bearer KEY");
    static const char scheme[] = "Bearer ";
    if (strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return sl_fail(err, SL_E_UNAUTHORIZED,
                       "the Authorization header is not of the form Bearer KEY");
    const char *key = authorization + sizeof scheme - 1;
    key += strspn(key, " ");
    unsigned char bytes[SL_KEY_BYTES_MAX] = {0};
    size_t n = strlen(key);
    bool fits = n <= sizeof bytes;
    memcpy(bytes, key, fits ? n : 0);
    size_t found = find(k, bytes); /* an empty block equals no key */
    explicit_bzero(bytes, sizeof bytes);
    if (!found)
        return sl_fail(err, SL_E_UNAUTHORIZED, "the key that was given is not known here");
    *ret = k->v[found - 1].identity;
    return SL_OK;
}

enum sl_code sl_identity_require(const struct sl_identity *id, unsigned role, struct sl_error *err)
{
    if (id->roles & role)
        return SL_OK;
    const char *name = "none";
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (roles[i].bit & role)
            name = roles[i].name;
    return sl_fail(err, SL_E_FORBIDDEN, "this key has not the role '%s' that the route asks for",
                   name);
}
