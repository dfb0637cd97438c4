/* settings.h: what a model says of itself beside its tensors: keys and values of a config.json (or
 * of another container's key table). Private to libslate.
 *
 * Everything is flat: the list [0.0, 1.0] under "dt_limit" is the entries "dt_limit"
 * (SL_SETTING_LIST, n = 2), "dt_limit.0" and "dt_limit.1"; objects likewise. JSON as Python writes
 * it, that is, with the bare words Infinity, -Infinity and NaN, or {"__float__": "Infinity"} for
 * them. What a key means, and which values it may have, is for its reader to say: load.h. After
 * reading nothing changes: any thread. */
#ifndef SLATE_FORMATS_SETTINGS_H
#define SLATE_FORMATS_SETTINGS_H

#include "slate/err.h"

/* Limits, far above what models have. */
#define SL_SETTINGS_BYTES_MAX ((size_t)1 << 20)
#define SL_SETTINGS_MAX ((size_t)1 << 15)
#define SL_SETTINGS_DEPTH_MAX 16
#define SL_SETTING_KEY_MAX ((size_t)255)

enum sl_setting_kind {
    SL_SETTING_NULL,
    SL_SETTING_BOOL,
    SL_SETTING_NUMBER,
    SL_SETTING_TEXT,
    SL_SETTING_LIST,
    SL_SETTING_OBJECT
};

struct sl_setting {
    const char *key;
    enum sl_setting_kind kind;
    bool flag;        /* of a BOOL */
    double number;    /* of a NUMBER; may be infinite or NaN */
    const char *text; /* of a TEXT; UTF-8 */
    size_t n;         /* of a LIST or OBJECT: how many it holds */
};

struct sl_settings {
    const char *name;     /* of the file, for messages: "retnet/config.json" */
    struct sl_setting *v; /* sorted by key */
    size_t n;
    const char *text; /* the JSON that was read, n_text bytes and a NUL */
    size_t n_text;
    void *priv;
};

/* Reads n bytes of JSON, an object; `name` is copied. The caller closes *ret. Errors: FILE_CORRUPT
 * (with the line), TOO_LARGE, NO_MEMORY. */
SL_NODISCARD enum sl_code sl_settings_read(struct sl_settings **ret, const char *text, size_t n,
                                           const char *name, struct sl_error *err);

void sl_settings_close(struct sl_settings *s); /* NULL is fine */

/* NULL when the key is absent. */
const struct sl_setting *sl_settings_find(const struct sl_settings *s, const char *key);

#endif
