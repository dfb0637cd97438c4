/* messages.c: the `messages` of a request: roles and contents as OpenAI's clients send them.
 *
 * A content is a string, null (or absent), or an array of parts. Parts of text are joined by a
 * line break; a part of any other type (an image, a refusal) is refused by name, because dropping
 * it would answer a question that was not asked. For the same reason a message that carries tool
 * calls is refused. */
#include <stdio.h>
#include <string.h>

#include "proto/decode.h"

/* All contents together have at most prompt_bytes; *left counts them down. */
static enum sl_code take_budget(const struct sl_decode *d, const char *path, size_t n, size_t *left)
{
    if (n > *left)
        return sl_fail_param(d->err, SL_E_TOO_LARGE, path,
                             "the messages' contents have more than %zu bytes, which is the limit",
                             d->limits->prompt_bytes);
    *left -= n;
    return SL_OK;
}

static enum sl_code part_text(const struct sl_decode *d, const json_t *part, size_t message,
                              size_t i, struct sl_text *ret)
{
    char path[SL_PATH_SIZE];
    int at = snprintf(path, sizeof path, "messages[%zu].content[%zu]", message, i);
    enum sl_code c = sl_json_object(part, path, d->err);
    if (c != SL_OK)
        return c;
    const json_t *type = sl_json_member(part, "type");
    const json_t *text = sl_json_member(part, "text");
    snprintf(path + at, sizeof path - (size_t)at, ".type");
    if (!type)
        return sl_fail_param(d->err, SL_E_MISSING_FIELD, path, "%s is missing; it must be \"text\"",
                             path);
    if (!json_is_string(type))
        return sl_json_wrong_type(type, path, "\"text\"", d->err);
    if (json_string_length(type) != 4 || strcmp(json_string_value(type), "text") != 0)
        return sl_fail_param(d->err, SL_E_UNSUPPORTED, path,
                             "%s is \"%.40s\"; only parts of type \"text\" are supported", path,
                             json_string_value(type));
    snprintf(path + at, sizeof path - (size_t)at, ".text");
    if (!text)
        return sl_fail_param(d->err, SL_E_MISSING_FIELD, path, "%s is missing", path);
    return sl_json_text(text, path, d->limits->prompt_bytes, SL_E_TOO_LARGE, ret, d->err);
}

static enum sl_code join_parts(const struct sl_decode *d, const json_t *v, size_t message,
                               const char *path, size_t *left, struct sl_text *ret)
{
    size_t n = 0;
    enum sl_code c = SL_OK;
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct sl_text t = {NULL, 0};
        c = part_text(d, json_array_get(v, i), message, i, &t);
        if (c == SL_OK)
            c = take_budget(d, path, t.n + (i > 0), left);
        if (c != SL_OK)
            return c;
        n += t.n + (i > 0);
    }
    char *s = sl_pool_alloc(d->pool, n + 1, 1), *at = s;
    if (!s)
        return sl_decode_no_memory(d);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *text = sl_json_member(json_array_get(v, i), "text");
        if (i > 0)
            *at++ = '\n';
        memcpy(at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *ret = (struct sl_text){s, n};
    return SL_OK;
}

static enum sl_code read_content(const struct sl_decode *d, const json_t *v, size_t message,
                                 size_t *left, struct sl_text *ret)
{
    char path[SL_PATH_SIZE];
    snprintf(path, sizeof path, "messages[%zu].content", message);
    if (v && json_is_array(v))
        return join_parts(d, v, message, path, left, ret);
    if (v && !json_is_string(v))
        return sl_json_wrong_type(v, path, "a string, null or an array of parts", d->err);
    const char *s = v ? json_string_value(v) : "";
    size_t n = v ? json_string_length(v) : 0;
    enum sl_code c = take_budget(d, path, n, left);
    if (c != SL_OK)
        return c;
    s = sl_pool_strndup(d->pool, s, n);
    if (!s)
        return sl_decode_no_memory(d);
    *ret = (struct sl_text){s, n};
    return SL_OK;
}

static enum sl_code read_role(const struct sl_decode *d, const json_t *v, size_t message,
                              enum sl_chat_role *ret)
{
    static const char *const words[] = {"system", "developer", "user", "assistant"};
    static const enum sl_chat_role roles[] = {SL_CHAT_SYSTEM, SL_CHAT_SYSTEM, SL_CHAT_USER,
                                              SL_CHAT_ASSISTANT};
    char path[SL_PATH_SIZE];
    size_t i = 0;
    snprintf(path, sizeof path, "messages[%zu].role", message);
    if (!v)
        return sl_fail_param(d->err, SL_E_MISSING_FIELD, path,
                             "%s is missing; it must be \"system\", \"developer\", \"user\" or "
                             "\"assistant\"",
                             path);
    enum sl_code c = sl_json_enum(v, path, words, sizeof words / sizeof *words, &i, d->err);
    if (c == SL_OK)
        *ret = roles[i];
    return c;
}

static enum sl_code refuse_calls(const struct sl_decode *d, const json_t *v, size_t message)
{
    static const char *const keys[] = {"tool_calls", "function_call", "audio"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *call = sl_json_member(v, keys[i]);
        if (!call || (json_is_array(call) && json_array_size(call) == 0))
            continue;
        char path[SL_PATH_SIZE];
        snprintf(path, sizeof path, "messages[%zu].%s", message, keys[i]);
        return sl_fail_param(d->err, SL_E_UNSUPPORTED, path, "%s is not supported", path);
    }
    return SL_OK;
}

enum sl_code sl_decode_messages(const struct sl_decode *d, const json_t *v, struct sl_input *ret)
{
    size_t n, left = d->limits->prompt_bytes;
    enum sl_code c = sl_json_array(v, "messages", d->limits->messages, SL_E_TOO_LARGE, &n, d->err);
    if (c != SL_OK)
        return c;
    if (n == 0)
        return sl_fail_param(d->err, SL_E_INVALID_VALUE, "messages",
                             "messages must hold at least one message");
    struct sl_message *m = sl_pool_alloc(d->pool, n, sizeof *m);
    if (!m)
        return sl_decode_no_memory(d);
    for (size_t i = 0; i < n && c == SL_OK; i++) {
        const json_t *item = json_array_get(v, i);
        char path[SL_PATH_SIZE];
        snprintf(path, sizeof path, "messages[%zu]", i);
        c = sl_json_object(item, path, d->err);
        if (c == SL_OK)
            c = read_role(d, sl_json_member(item, "role"), i, &m[i].role);
        if (c == SL_OK)
            c = refuse_calls(d, item, i);
        if (c == SL_OK)
            c = read_content(d, sl_json_member(item, "content"), i, &left, &m[i].content);
    }
    ret->kind = SL_INPUT_MESSAGES;
    ret->messages = m;
    ret->n_messages = n;
    return c;
}
