/* decode.c: see decode.h. */
#include "proto/decode.h"

#include <stdio.h>
#include <string.h>

enum sl_code sl_decode_no_memory(const struct sl_decode *d)
{
    return sl_fail(d->err, SL_E_NO_MEMORY, "not enough memory for the request");
}

enum sl_code sl_decode_text(const struct sl_decode *d, const json_t *v, const char *path,
                            struct sl_text *ret)
{
    struct sl_text t = {NULL, 0};
    enum sl_code c = sl_json_text(v, path, d->limits->prompt_bytes, SL_E_TOO_LARGE, &t, d->err);
    if (c != SL_OK)
        return c;
    t.s = sl_pool_strndup(d->pool, t.s, t.n);
    if (!t.s)
        return sl_decode_no_memory(d);
    *ret = t;
    return SL_OK;
}

/* The path is put together only where it is needed: a prompt may have a million ids. */
static enum sl_code read_token(const struct sl_decode *d, const json_t *v, const char *path,
                               size_t i, uint32_t *ret)
{
    int64_t hi =
        (int64_t)(d->limits->vocab_size ? d->limits->vocab_size : UINT32_MAX + UINT64_C(1));
    json_int_t given = json_integer_value(v);
    if (json_is_integer(v) && given >= 0 && given < hi) {
        *ret = (uint32_t)given;
        return SL_OK;
    }
    char item[SL_PATH_SIZE];
    int64_t id = 0;
    snprintf(item, sizeof item, "%s[%zu]", path, i);
    enum sl_code c = sl_json_int(v, item, 0, hi - 1, &id, d->err);
    if (c == SL_OK)
        *ret = (uint32_t)id;
    return c;
}

enum sl_code sl_decode_tokens(const struct sl_decode *d, const json_t *v, const char *path,
                              size_t max, enum sl_code over, const uint32_t **ret, size_t *ret_n)
{
    size_t n;
    enum sl_code c = sl_json_array(v, path, max, over, &n, d->err);
    if (c != SL_OK)
        return c;
    uint32_t *ids = sl_pool_alloc(d->pool, n, sizeof *ids);
    if (!ids)
        return sl_decode_no_memory(d);
    for (size_t i = 0; i < n; i++) {
        c = read_token(d, json_array_get(v, i), path, i, &ids[i]);
        if (c != SL_OK)
            return c;
    }
    *ret = ids;
    *ret_n = n;
    return SL_OK;
}

enum sl_code sl_decode_prompt(const struct sl_decode *d, const json_t *v, struct sl_input *ret)
{
    if (json_is_string(v)) {
        ret->kind = SL_INPUT_TEXT;
        return sl_decode_text(d, v, "prompt", &ret->text);
    }
    if (!json_is_array(v))
        return sl_json_wrong_type(v, "prompt", "a string or an array of token ids", d->err);
    ret->kind = SL_INPUT_TOKENS;
    return sl_decode_tokens(d, v, "prompt", d->limits->prompt_tokens, SL_E_TOO_LARGE, &ret->tokens,
                            &ret->n_tokens);
}

enum sl_code sl_decode_id(const struct sl_decode *d, const char *key, const char **ret)
{
    const json_t *v = sl_json_member(d->o, key);
    if (!v)
        return SL_OK;
    if (!json_is_string(v))
        return sl_json_wrong_type(v, key, "a session's id, a string", d->err);
    enum sl_code c = sl_session_id_check(json_string_value(v), json_string_length(v), key, d->err);
    if (c != SL_OK)
        return c;
    return sl_json_cstr(v, key, SL_SESSION_ID_MAX, d->pool, ret, d->err);
}

enum sl_code sl_decode_model(const struct sl_decode *d, const char **ret)
{
    const json_t *v = sl_json_member(d->o, "model");
    return v ? sl_json_cstr(v, "model", SL_MODEL_NAME_MAX, d->pool, ret, d->err) : SL_OK;
}

enum sl_code sl_decode_max_tokens(const struct sl_decode *d, const char *key,
                                  struct sl_generate_request *r)
{
    const json_t *v = sl_json_member(d->o, key);
    int64_t n = 0, most = (int64_t)d->limits->max_tokens;
    enum sl_code c = v ? sl_json_int(v, key, -1, most, &n, d->err) : SL_OK;
    if (c == SL_OK && v) {
        r->max_tokens = (size_t)(n < 0 ? most : n);
        r->fewer_will_do = n < 0;
    }
    return c;
}

/* --- base64 --- */

static int sextet(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

size_t sl_base64_decode(unsigned char *out, const unsigned char *s, size_t n, size_t *ret_bad)
{
    size_t pad = n && s[n - 1] == '=' ? n > 1 && s[n - 2] == '=' ? 2 : 1 : 0;
    size_t len = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        int x = i < n - pad ? sextet(s[i]) : 0;
        *ret_bad = i;
        if (x < 0)
            return SIZE_MAX;
        bits = bits << 6 | (uint32_t)x;
        if (i % 4 < 3)
            continue;
        size_t keep = i + 1 == n ? 3 - pad : 3;
        if (keep < 3 && bits & (keep == 2 ? 0xFFu : 0xFFFFu))
            return SIZE_MAX;
        for (size_t k = 0; k < keep; k++)
            out[len++] = (unsigned char)(bits >> (16 - 8 * k));
        bits = 0;
    }
    return len;
}

enum sl_code sl_decode_base64(const struct sl_decode *d, const json_t *v, const char *path,
                              const unsigned char **ret, size_t *ret_n)
{
    struct sl_text t = {NULL, 0};
    size_t max = d->limits->state_bytes / 3 * 4 + 4, bad = 0;
    enum sl_code c = sl_json_text(v, path, max, SL_E_TOO_LARGE, &t, d->err);
    if (c != SL_OK)
        return c;
    if (t.n == 0 || t.n % 4 != 0)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, path,
                             "%s must be base64: its length must be a multiple of 4 and not 0, "
                             "got %zu characters",
                             path, t.n);
    unsigned char *bytes = sl_pool_alloc(d->pool, t.n / 4, 3);
    if (!bytes)
        return sl_decode_no_memory(d);
    size_t n = sl_base64_decode(bytes, (const unsigned char *)t.s, t.n, &bad);
    if (n == SIZE_MAX)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, path,
                             "%s must be base64 (A-Z a-z 0-9 + / and = at the end); it is not at "
                             "character %zu",
                             path, bad);
    *ret = bytes;
    *ret_n = n;
    return SL_OK;
}

/* --- what ends a turn --- */

static enum sl_code read_stop(const struct sl_decode *d, const json_t *v, const char *path,
                              struct sl_stop *ret)
{
    struct sl_text t = {NULL, 0};
    enum sl_code c = sl_json_text(v, path, SL_STOP_BYTES_MAX, SL_E_INVALID_VALUE, &t, d->err);
    if (c != SL_OK)
        return c;
    if (t.n == 0)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, path, "%s must not be an empty string",
                             path);
    char *copy = sl_pool_strndup(d->pool, t.s, t.n);
    if (!copy)
        return sl_decode_no_memory(d);
    *ret = (struct sl_stop){(unsigned char *)copy, t.n};
    return SL_OK;
}

static enum sl_code read_stops(const struct sl_decode *d, struct sl_generate_request *r)
{
    const json_t *v = sl_json_member(d->o, "stop");
    size_t n = 1;
    enum sl_code c = SL_OK;
    if (!v)
        return SL_OK;
    if (!json_is_string(v) && !json_is_array(v))
        return sl_json_wrong_type(v, "stop", "a string or an array of strings", d->err);
    if (json_is_array(v))
        c = sl_json_array(v, "stop", SL_REQUEST_STOPS_MAX, SL_E_INVALID_VALUE, &n, d->err);
    if (c != SL_OK)
        return c;
    struct sl_stop *stops = sl_pool_alloc(d->pool, n, sizeof *stops);
    if (!stops)
        return sl_decode_no_memory(d);
    if (json_is_string(v))
        c = read_stop(d, v, "stop", stops);
    for (size_t i = 0; json_is_array(v) && i < n && c == SL_OK; i++) {
        char path[SL_PATH_SIZE];
        snprintf(path, sizeof path, "stop[%zu]", i);
        c = read_stop(d, json_array_get(v, i), path, &stops[i]);
    }
    r->stops = stops;
    r->n_stops = n;
    return c;
}

/* --- logit_bias: {"id": bias} or [[id, bias], …] --- */

static enum sl_code read_bias_pair(const struct sl_decode *d, const json_t *pair, size_t i,
                                   struct sl_logit_bias *ret)
{
    char path[SL_PATH_SIZE];
    snprintf(path, sizeof path, "logit_bias[%zu]", i);
    if (!json_is_array(pair) || json_array_size(pair) != 2)
        return sl_json_wrong_type(pair, path, "a pair [token id, bias]", d->err);
    enum sl_code c = read_token(d, json_array_get(pair, 0), path, 0, &ret->token);
    if (c != SL_OK)
        return c;
    snprintf(path, sizeof path, "logit_bias[%zu][1]", i);
    return sl_json_float(json_array_get(pair, 1), path, -100, 100, &ret->bias, d->err);
}

/* A key of the object: decimal digits without a sign or leading zeros. */
static bool parse_id(const char *s, uint64_t end, uint32_t *ret)
{
    uint64_t id = 0;
    size_t n = strlen(s);
    if (n == 0 || n > 10 || (s[0] == '0' && n > 1))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        id = id * 10 + (uint64_t)(s[i] - '0');
    }
    *ret = (uint32_t)id;
    return id < end;
}

static enum sl_code read_bias_entry(const struct sl_decode *d, const char *key, const json_t *v,
                                    struct sl_logit_bias *ret)
{
    uint64_t end = d->limits->vocab_size ? d->limits->vocab_size : UINT32_MAX + UINT64_C(1);
    char path[SL_PATH_SIZE];
    snprintf(path, sizeof path, "logit_bias.%.24s", key);
    if (!parse_id(key, end, &ret->token))
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, path,
                             "a key of logit_bias must be a token id from 0 to %llu, got \"%.40s\"",
                             (unsigned long long)(end - 1), key);
    return sl_json_float(v, path, -100, 100, &ret->bias, d->err);
}

enum sl_code sl_decode_bias(const struct sl_decode *d, struct sl_sampling *ret)
{
    const json_t *v = sl_json_member(d->o, "logit_bias");
    if (!v)
        return SL_OK;
    if (!json_is_object(v) && !json_is_array(v))
        return sl_json_wrong_type(v, "logit_bias",
                                  "an object {\"token id\": bias} or an array [[token id, bias]]",
                                  d->err);
    size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v), i = 0;
    if (n > SL_LOGIT_BIAS_MAX)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, "logit_bias",
                             "logit_bias has %zu entries; at most %d are allowed", n,
                             SL_LOGIT_BIAS_MAX);
    struct sl_logit_bias *bias = sl_pool_alloc(d->pool, n, sizeof *bias);
    if (!bias)
        return sl_decode_no_memory(d);
    enum sl_code c = SL_OK;
    for (; json_is_array(v) && i < n && c == SL_OK; i++)
        c = read_bias_pair(d, json_array_get(v, i), i, &bias[i]);
    json_t *o = (json_t *)v; /* jansson's iterators want it so; nothing is written */
    for (void *it = json_object_iter(o); it && c == SL_OK; it = json_object_iter_next(o, it))
        c = read_bias_entry(d, json_object_iter_key(it), json_object_iter_value(it), &bias[i++]);
    ret->bias = bias;
    ret->n_bias = n;
    return c;
}

/* --- the turn --- */

#define AT(field) offsetof(struct sl_sampling, field)
const struct sl_json_row sl_sampling_rows[SL_SAMPLING_ROWS] = {
    {"temperature", AT(temperature), 0, 100, SL_JSON_FLOAT},
    {"top_k", AT(top_k), -1, UINT32_MAX, SL_JSON_U32}, /* -1, as others say it: all */
    {"top_p", AT(top_p), 0, 1, SL_JSON_FLOAT},
    {"min_p", AT(min_p), 0, 1, SL_JSON_FLOAT},
    {"typical_p", AT(typical_p), 0, 1, SL_JSON_FLOAT},
    /* not nearer to 0: a logit divided by it stays finite */
    {"repetition_penalty", AT(repetition_penalty), 0.01, 100, SL_JSON_FLOAT},
    {"presence_penalty", AT(presence_penalty), -100, 100, SL_JSON_FLOAT},
    {"frequency_penalty", AT(frequency_penalty), -100, 100, SL_JSON_FLOAT},
    {"penalty_decay", AT(penalty_decay), 0, 1, SL_JSON_FLOAT},
    {"penalty_last_n", AT(penalty_last_n), 0, SL_PENALTY_LAST_N_MAX, SL_JSON_U32},
};
#undef AT

#define AT(field) offsetof(struct sl_generate_request, field)
static const struct sl_json_row rows[] = {
    {"ignore_eos", AT(ignore_eos), 0, 0, SL_JSON_BOOL},
    {"stream", AT(stream), 0, 0, SL_JSON_BOOL},
};
#undef AT

static enum sl_code read_stream_options(const struct sl_decode *d, struct sl_generate_request *r)
{
    const json_t *v = sl_json_member(d->o, "stream_options");
    if (!v)
        return SL_OK;
    enum sl_code c = sl_json_object(v, "stream_options", d->err);
    if (c != SL_OK)
        return c;
    v = sl_json_member(v, "include_usage");
    return v ? sl_json_bool(v, "stream_options.include_usage", &r->include_usage, d->err) : SL_OK;
}

static enum sl_code read_seed_and_time(const struct sl_decode *d, struct sl_generate_request *r)
{
    const json_t *v = sl_json_member(d->o, "seed");
    int64_t seed = 0;
    enum sl_code c = v ? sl_json_int(v, "seed", -1, INT64_MAX, &seed, d->err) : SL_OK;
    if (c != SL_OK)
        return c;
    r->has_seed = v && seed >= 0; /* -1, as others say it: none */
    r->sampling.seed = r->has_seed ? (uint64_t)seed : 0;
    v = sl_json_member(d->o, "max_time_ms");
    return v ? sl_json_int(v, "max_time_ms", 0, d->limits->max_time_ms, &r->max_time_ms, d->err)
             : SL_OK;
}

static enum sl_code read_on_disconnect(const struct sl_decode *d, struct sl_generate_request *r)
{
    static const char *const words[] = {"rollback", "commit", "continue"};
    const json_t *v = sl_json_member(d->o, "on_disconnect");
    size_t i = 0;
    enum sl_code c = v ? sl_json_enum(v, "on_disconnect", words, 3, &i, d->err) : SL_OK;
    if (c == SL_OK)
        r->on_disconnect = (enum sl_on_disconnect)i;
    return c;
}

enum sl_code sl_decode_turn(const struct sl_decode *d, struct sl_generate_request *r)
{
    r->sampling = (struct sl_sampling)SL_SAMPLING_DEFAULT;
    r->max_tokens = d->limits->default_max_tokens;
    r->fewer_will_do = true;
    r->logprobs = -1;
    enum sl_code c = sl_decode_model(d, &r->model);
    if (c == SL_OK)
        c = sl_decode_id(d, "session", &r->session);
    if (c == SL_OK)
        c = sl_json_rows(d->o, sl_sampling_rows, SL_SAMPLING_ROWS, &r->sampling, d->err);
    if (c == SL_OK)
        c = sl_json_rows(d->o, rows, sizeof rows / sizeof *rows, r, d->err);
    if (c == SL_OK)
        c = read_stops(d, r);
    const json_t *v = sl_json_member(d->o, "stop_tokens");
    if (c == SL_OK && v)
        c = sl_decode_tokens(d, v, "stop_tokens", SL_STOP_TOKENS_MAX, SL_E_INVALID_VALUE,
                             &r->stop_tokens, &r->n_stop_tokens);
    if (c == SL_OK)
        c = read_on_disconnect(d, r);
    if (c == SL_OK)
        c = sl_decode_bias(d, &r->sampling);
    if (c == SL_OK)
        c = read_seed_and_time(d, r);
    if (c == SL_OK)
        c = read_stream_options(d, r);
    return c;
}
