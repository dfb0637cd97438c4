/* log.h: lines to stderr. For the program only: library code never logs.
 *
 * One line per event, either text, `2026-01-31T12:00:00.000Z info listening address=127.0.0.1:80`,
 * or a JSON object with the same keys. Values are typed, so that no caller builds or escapes text:
 *
 *     sl_log(SL_LOG_WARN, "keys were not reloaded", SL_LS("file", path), SL_LI("line", n));
 *
 * Never bodies, prompts or keys. Any thread (a line is one write(2)); lines are cut at 2 KiB. */
#ifndef SLATE_BASE_LOG_H
#define SLATE_BASE_LOG_H

#include "slate/base.h"

enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG };

enum sl_log_kind { SL_LOG_END, SL_LOG_STRING, SL_LOG_INTEGER, SL_LOG_REAL };

struct sl_log_field {
    enum sl_log_kind kind;
    const char *key;
    const char *s;
    int64_t i;
    double d;
};

#define SL_LS(k, v) ((struct sl_log_field){.kind = SL_LOG_STRING, .key = (k), .s = (v)})
#define SL_LI(k, v) ((struct sl_log_field){.kind = SL_LOG_INTEGER, .key = (k), .i = (int64_t)(v)})
#define SL_LD(k, v) ((struct sl_log_field){.kind = SL_LOG_REAL, .key = (k), .d = (v)})
#define SL_LEND ((struct sl_log_field){.kind = SL_LOG_END})

/* Before the first line and the first thread; the default is INFO and text. */
void sl_log_setup(enum sl_log_level level, bool json);
bool sl_log_on(enum sl_log_level level);

/* event: a short literal. */
#define sl_log(level, event, ...)                                                                  \
    sl_log_fields((level), (event), (const struct sl_log_field[]){__VA_ARGS__, SL_LEND})
void sl_log_fields(enum sl_log_level level, const char *event, const struct sl_log_field *fields);

/* The same into a buffer, without time and newline: for tests. Returns the length. */
size_t sl_log_format(char *dst, size_t dst_size, bool json, const char *time,
                     enum sl_log_level level, const char *event, const struct sl_log_field *fields);

#endif
