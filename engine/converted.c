/* converted.c: see converted.h. */
#include "engine/converted.h"

#include <stdio.h>
#include <string.h>

void sl_converted_hex(char ret[SL_CONVERTED_HEX + 1], const unsigned char bytes[16])
{
    for (size_t i = 0; i < 16; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

static bool parse_hex(const char *s, unsigned char ret[16])
{
    size_t n = strlen(s);
    for (size_t i = 0; n == SL_CONVERTED_HEX && i < n; i++) {
        int digit = s[i] >= '0' && s[i] <= '9'   ? s[i] - '0'
                    : s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10
                                                 : -1;
        if (digit < 0)
            return false;
        ret[i / 2] = (unsigned char)((i % 2 ? ret[i / 2] << 4 : 0) | digit);
    }
    return n == SL_CONVERTED_HEX;
}

static bool parse_type(const char *s, enum sl_dtype *ret)
{
    static const enum sl_dtype types[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_F16, SL_DTYPE_Q8,
                                          SL_DTYPE_Q4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(s, sl_dtype_name(types[i])) == 0) {
            *ret = types[i];
            return true;
        }
    return false;
}

static enum sl_code corrupt(const char *file, const char *key, const char *value, const char *want,
                            struct sl_error *err)
{
    return sl_fail(err, SL_E_FILE_CORRUPT, "%.160s: %s in its metadata is \"%.40s\"; it can be %s",
                   file, key, value, want);
}

static enum sl_code read_tokenizer(struct sl_converted *c, const struct sl_tensors *t,
                                   const char *file, struct sl_error *err)
{
    const struct sl_tensor *x = sl_tensors_find(t, SL_CONVERTED_TENSOR);
    c->tokenizer_kind = sl_tensors_meta(t, "slate.tokenizer");
    if (!x)
        return SL_OK;
    if (!c->tokenizer_kind || x->dtype != SL_DTYPE_U8 || x->rank != 1 || !x->contiguous)
        return sl_fail(err, SL_E_FILE_CORRUPT,
                       "%.160s: tensor %s must be U8 on one axis, and its kind be said in the "
                       "metadata",
                       file, SL_CONVERTED_TENSOR);
    c->tokenizer = x->data;
    c->n_tokenizer = x->n_elements;
    return SL_OK;
}

enum sl_code sl_converted_read(struct sl_converted *ret, const struct sl_tensors *t,
                               const char *file, struct sl_error *err)
{
    static const char digits[] = "32 digits 0-9 a-f";
    const char *version = sl_tensors_meta(t, SL_TENSORS_CONVERTED);
    struct sl_converted c = {.is = version != NULL};
    *ret = c;
    if (!version)
        return SL_OK;
    if (strcmp(version, SL_CONVERTED_VERSION) != 0)
        return sl_fail(err, SL_E_FILE_UNSUPPORTED,
                       "%.160s: was converted in version %.40s of the form; this program reads %s",
                       file, version, SL_CONVERTED_VERSION);
    const char *fingerprint = sl_tensors_meta(t, "slate.fingerprint"),
               *content = sl_tensors_meta(t, "slate.content"),
               *weights = sl_tensors_meta(t, "slate.weights"),
               *narrowed = sl_tensors_meta(t, "slate.narrowed");
    if (fingerprint && !parse_hex(fingerprint, c.fingerprint))
        return corrupt(file, "slate.fingerprint", fingerprint, digits, err);
    if (content && !parse_hex(content, c.content))
        return corrupt(file, "slate.content", content, digits, err);
    if (weights && !parse_type(weights, &c.weights))
        return corrupt(file, "slate.weights", weights, "F32, BF16, F16, Q8 or Q4", err);
    if (narrowed && strcmp(narrowed, "yes") != 0 && strcmp(narrowed, "no") != 0)
        return corrupt(file, "slate.narrowed", narrowed, "yes or no", err);
    c.has_fingerprint = fingerprint && content;
    c.narrowed = narrowed && *narrowed == 'y' && weights;
    c.rule = sl_tensors_meta(t, "slate.rule");
    c.chat_template = sl_tensors_meta(t, "slate.chat_template");
    c.begin_token = sl_tensors_meta(t, "slate.begin_token");
    c.end_tokens = sl_tensors_meta(t, "slate.end_tokens");
    enum sl_code code = read_tokenizer(&c, t, file, err);
    if (!code)
        *ret = c;
    return code;
}

const unsigned char *sl_converted_fingerprint(const struct sl_converted *c,
                                              const unsigned char own[16])
{
    return c->has_fingerprint && memcmp(c->content, own, sizeof c->content) == 0 ? c->fingerprint
                                                                                 : own;
}
