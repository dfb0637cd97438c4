/* log.c: see log.h.
 *
 * A line is put together on the stack and written with one write(2). A reader of stderr that has
 * stopped must not stop the server: where the pipe has no room the line is dropped and counted, and
 * the next line that gets through says how many were lost. (A line is shorter than PIPE_BUF, so
 * that poll's answer holds for all of it.) */
#include "engine/base/log.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/utf8.h"

enum { LINE_MAX_BYTES = 2048, TAIL = 2 /* '}' and newline */ };

static struct {
    enum sl_log_level level;
    bool json;
    _Atomic uint64_t lost;
} sink = {.level = SL_LOG_INFO};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void sl_log_setup(enum sl_log_level level, bool json)
{
    sink.level = level;
    sink.json = json;
}

bool sl_log_on(enum sl_log_level level)
{
    return level <= sink.level;
}

struct line {
    char *dst;
    size_t n, max; /* max: what may be used */
    bool cut;      /* something did not fit */
};

static void put(struct line *l, const char *s, size_t n)
{
    if (n > l->max - l->n) {
        n = l->max - l->n;
        l->cut = true;
    }
    memcpy(l->dst + l->n, s, n);
    l->n += n;
}

/* A JSON string's inside, or a quoted text's: the same escapes do for both. Never half a character
 * or half an escape: what does not fit is left out. */
static void put_escaped(struct line *l, const char *s)
{
    char clean[512];
    sl_utf8_sanitize_text(clean, sizeof clean, s, strlen(s), false);
    for (const char *p = clean; *p;) {
        size_t bad, k = sl_utf8_char((const unsigned char *)p, strlen(p), &bad);
        bool escape = *p == '"' || *p == '\\';
        if (k == 0 || k + escape > l->max - l->n) {
            l->cut = true;
            return;
        }
        if (escape)
            put(l, "\\", 1);
        put(l, p, k);
        p += k;
    }
}

static bool is_plain(const char *s)
{
    return *s && s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                             "-._~:/{}[]@+%,")] == '\0';
}

static void put_string(struct line *l, const char *s, bool quoted)
{
    if (!quoted) {
        put(l, s, strlen(s));
        return;
    }
    size_t max = l->max;
    if (max - l->n < 2) {
        l->cut = true;
        return;
    }
    put(l, "\"", 1);
    l->max--; /* the closing quote has its place */
    put_escaped(l, s);
    l->max = max;
    put(l, "\"", 1);
}

static void put_value(struct line *l, const struct sl_log_field *f, bool json)
{
    char number[40];
    const char *s = f->s ? f->s : "";
    switch (f->kind) {
    case SL_LOG_STRING:
        put_string(l, s, json || !is_plain(s));
        return;
    case SL_LOG_INTEGER:
        snprintf(number, sizeof number, "%lld", (long long)f->i);
        break;
    case SL_LOG_REAL:
        snprintf(number, sizeof number, f->d - f->d == 0 ? "%.3f" : "0", f->d);
        break;
    case SL_LOG_END:
        return;
    }
    put(l, number, strlen(number));
}

/* A field that does not fit whole is left out, with those after it. */
static bool put_field(struct line *l, const struct sl_log_field *f, bool json)
{
    size_t begin = l->n;
    put(l, json ? ",\"" : " ", json ? 2 : 1);
    put(l, f->key, strlen(f->key));
    put(l, json ? "\":" : "=", json ? 2 : 1);
    put_value(l, f, json);
    if (l->cut)
        l->n = begin;
    return !l->cut;
}

size_t sl_log_format(char *dst, size_t dst_size, bool json, const char *time,
                     enum sl_log_level level, const char *event, const struct sl_log_field *fields)
{
    struct line l = {.dst = dst, .max = dst_size - TAIL};
    if (json) {
        put(&l, "{\"time\":\"", 9);
        put(&l, time, strlen(time));
        put(&l, "\",\"level\":\"", 11);
        put(&l, level_names[level], strlen(level_names[level]));
        put(&l, "\",\"event\":", 10);
        put_string(&l, event, true);
    } else {
        put(&l, time, strlen(time));
        put(&l, " ", 1);
        put(&l, level_names[level], strlen(level_names[level]));
        put(&l, " ", 1);
        put_string(&l, event, !is_plain(event));
    }
    for (const struct sl_log_field *f = fields; f->kind != SL_LOG_END; f++)
        if (!put_field(&l, f, json))
            break;
    if (json)
        dst[l.n++] = '}';
    dst[l.n] = '\0';
    return l.n;
}

static void now_text(char *dst, size_t dst_size)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(dst, dst_size, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(dst + n, dst_size - n, ".%03dZ", (int)(ts.tv_nsec / 1000000));
}

void sl_log_fields(enum sl_log_level level, const char *event, const struct sl_log_field *fields)
{
    if (!sl_log_on(level))
        return;
    char line[LINE_MAX_BYTES], time[40];
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&p, 1, 0) == 0 || !(p.revents & POLLOUT)) {
        atomic_fetch_add(&sink.lost, 1);
        return;
    }
    now_text(time, sizeof time);
    uint64_t lost = atomic_exchange(&sink.lost, 0);
    if (lost) {
        const struct sl_log_field f[] = {SL_LI("lines", lost), SL_LEND};
        size_t n = sl_log_format(line, sizeof line / 4, sink.json, time, SL_LOG_WARN,
                                 "log lines were lost", f);
        line[n++] = '\n';
        (void)!write(STDERR_FILENO, line, n);
    }
    size_t n = sl_log_format(line, sizeof line, sink.json, time, level, event, fields);
    line[n++] = '\n';
    (void)!write(STDERR_FILENO, line, n);
}
