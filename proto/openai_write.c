/* openai_write.c: answers and chunks in OpenAI's shapes. See openai.h; decoding is openai.c. */
#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "proto/json_out.h"
#include "proto/openai.h"

/* --- tokens as text --- */

/* A token as the key of an object and in a list of tokens. Whole characters stand for themselves;
 * other bytes as OpenAI wrote them in this format, `bytes:\xe2\x80`, so that two tokens never
 * share a key; an id without bytes as `token_id:0`. */
static void out_token(struct sl_json_out *w, bool as_key, uint32_t id, const struct sl_vocab *v)
{
    char text[4 * SL_TOKEN_BYTES_MAX + 8];
    size_t n = 0, len;
    const unsigned char *s = v->bytes(v->arg, id, &n);
    if (!s || n == 0) {
        len = (size_t)snprintf(text, sizeof text, "token_id:%u", id);
    } else if (sl_utf8_valid(s, n)) {
        memcpy(text, s, n);
        len = n;
    } else {
        len = (size_t)snprintf(text, sizeof text, "bytes:");
        for (size_t i = 0; i < n; i++)
            len += (size_t)snprintf(text + len, sizeof text - len, "\\x%02x", s[i]);
    }
    if (as_key)
        sl_out_key_text(w, text, len);
    else
        sl_out_text(w, text, len);
}

/* Characters that begin in the bytes of a token: all but continuation bytes. */
static size_t token_chars(uint32_t id, const struct sl_vocab *v)
{
    size_t n = 0, chars = 0;
    const unsigned char *s = v->bytes(v->arg, id, &n);
    for (size_t i = 0; s && i < n; i++)
        chars += (s[i] & 0xC0) != 0x80;
    return chars;
}

size_t sl_logprobs_chars(const struct sl_token_logprobs *p, size_t n, const struct sl_vocab *v)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += token_chars(p[i].chosen.token, v);
    return chars;
}

/* --- logprobs --- */

/* The n most likely, and the chosen token where it is not one of them. */
static void out_top_map(struct sl_json_out *w, const struct sl_token_logprobs *p, int n_top,
                        const struct sl_vocab *v)
{
    bool listed = false;
    sl_out_open(w, '{');
    for (int k = 0; k < n_top; k++) {
        listed |= p->top[k].token == p->chosen.token;
        out_token(w, true, p->top[k].token, v);
        sl_out_float(w, p->top[k].logprob);
    }
    if (!listed) {
        out_token(w, true, p->chosen.token, v);
        sl_out_float(w, p->chosen.logprob);
    }
    sl_out_close(w, '}');
}

static void key_completion_logprobs(struct sl_json_out *w, const struct sl_token_logprobs *p,
                                    size_t n, int n_top, size_t offset, const struct sl_vocab *v)
{
    sl_out_key(w, "logprobs");
    if (!p) {
        sl_out_null(w);
        return;
    }
    sl_out_open(w, '{');
    sl_out_key(w, "tokens");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++)
        out_token(w, false, p[i].chosen.token, v);
    sl_out_close(w, ']');
    sl_out_key(w, "token_logprobs");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++)
        sl_out_float(w, p[i].chosen.logprob);
    sl_out_close(w, ']');
    sl_out_key(w, "top_logprobs");
    if (n_top > 0) {
        sl_out_open(w, '[');
        for (size_t i = 0; i < n; i++)
            out_top_map(w, &p[i], n_top, v);
        sl_out_close(w, ']');
    } else {
        sl_out_null(w);
    }
    sl_out_key(w, "text_offset");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++) {
        sl_out_uint(w, offset);
        offset += token_chars(p[i].chosen.token, v);
    }
    sl_out_close(w, ']');
    sl_out_close(w, '}');
}

static void chat_logprob_fields(struct sl_json_out *w, const struct sl_logprob *p,
                                const struct sl_vocab *v)
{
    size_t n = 0;
    const unsigned char *s = v->bytes(v->arg, p->token, &n);
    n = s ? n : 0;
    sl_out_key(w, "token");
    sl_out_bytes(w, s, n);
    sl_out_key(w, "logprob");
    sl_out_float(w, p->logprob);
    sl_out_key(w, "bytes");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++)
        sl_out_uint(w, s[i]);
    sl_out_close(w, ']');
}

static void key_chat_logprobs(struct sl_json_out *w, const struct sl_token_logprobs *p, size_t n,
                              int n_top, const struct sl_vocab *v)
{
    sl_out_key(w, "logprobs");
    if (!p) {
        sl_out_null(w);
        return;
    }
    sl_out_open(w, '{');
    sl_out_key(w, "content");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++) {
        sl_out_open(w, '{');
        chat_logprob_fields(w, &p[i].chosen, v);
        sl_out_key(w, "top_logprobs");
        sl_out_open(w, '[');
        for (int k = 0; k < n_top; k++) {
            sl_out_open(w, '{');
            chat_logprob_fields(w, &p[i].top[k], v);
            sl_out_close(w, '}');
        }
        sl_out_close(w, ']');
        sl_out_close(w, '}');
    }
    sl_out_close(w, ']');
    sl_out_key(w, "refusal");
    sl_out_null(w);
    sl_out_close(w, '}');
}

/* --- what all bodies share --- */

static void begin(struct sl_json_out *w, const char *id, const char *object, int64_t created,
                  const char *model)
{
    sl_out_open(w, '{');
    sl_out_key(w, "id");
    sl_out_str(w, id);
    sl_out_key(w, "object");
    sl_out_str(w, object);
    sl_out_key(w, "created");
    sl_out_int(w, created);
    sl_out_key(w, "model");
    sl_out_str(w, model);
    sl_out_key(w, "system_fingerprint");
    sl_out_null(w);
    sl_out_key(w, "choices");
    sl_out_open(w, '[');
}

static void begin_choice(struct sl_json_out *w)
{
    sl_out_open(w, '{');
    sl_out_key(w, "index");
    sl_out_uint(w, 0);
}

static void end_choice(struct sl_json_out *w, const char *finish)
{
    sl_out_key(w, "finish_reason");
    sl_out_str(w, finish);
    sl_out_close(w, '}');
}

static const char *finish_of(enum sl_finish f)
{
    return f == SL_FINISH_STOP || f == SL_FINISH_EOS ? "stop" : "length";
}

static void key_usage(struct sl_json_out *w, const struct sl_usage *u)
{
    sl_out_key(w, "usage");
    sl_out_open(w, '{');
    sl_out_key(w, "prompt_tokens");
    sl_out_uint(w, u->prompt_tokens);
    sl_out_key(w, "completion_tokens");
    sl_out_uint(w, u->completion_tokens);
    sl_out_key(w, "total_tokens");
    sl_out_uint(w, u->prompt_tokens + u->completion_tokens);
    sl_out_key(w, "prompt_tokens_details");
    sl_out_open(w, '{');
    sl_out_key(w, "cached_tokens");
    sl_out_uint(w, u->cached_tokens);
    sl_out_close(w, '}');
    sl_out_close(w, '}');
}

/* A chunk's end: under include_usage all chunks but the last have "usage":null. */
static void end_chunk(struct sl_json_out *w, bool include_usage)
{
    sl_out_close(w, ']');
    if (include_usage) {
        sl_out_key(w, "usage");
        sl_out_null(w);
    }
    sl_out_close(w, '}');
}

static void write_usage_chunk(struct sl_buf *b, const char *object, const struct sl_result *r)
{
    struct sl_json_out w = {.b = b};
    begin(&w, r->id, object, r->created, r->model);
    sl_out_close(&w, ']');
    key_usage(&w, &r->usage);
    sl_out_close(&w, '}');
}

/* --- /v1/completions --- */

#define COMPLETION "text_completion"

void sl_write_completion(struct sl_buf *b, const struct sl_result *r, const struct sl_vocab *v)
{
    struct sl_json_out w = {.b = b};
    begin(&w, r->id, COMPLETION, r->created, r->model);
    begin_choice(&w);
    sl_out_key(&w, "text");
    sl_out_text(&w, r->text.s, r->text.n);
    key_completion_logprobs(&w, r->logprobs, r->n_logprobs, r->n_top, 0, v);
    end_choice(&w, finish_of(r->finish));
    sl_out_close(&w, ']');
    key_usage(&w, &r->usage);
    sl_out_close(&w, '}');
}

void sl_write_completion_delta(struct sl_buf *b, const struct sl_delta *d, const struct sl_vocab *v)
{
    struct sl_json_out w = {.b = b};
    begin(&w, d->id, COMPLETION, d->created, d->model);
    begin_choice(&w);
    sl_out_key(&w, "text");
    sl_out_text(&w, d->text.s, d->text.n);
    key_completion_logprobs(&w, d->logprobs, d->n_logprobs, d->n_top, d->text_offset, v);
    end_choice(&w, NULL);
    end_chunk(&w, d->include_usage);
}

void sl_write_completion_final(struct sl_buf *b, const struct sl_result *r, bool include_usage)
{
    struct sl_json_out w = {.b = b};
    begin(&w, r->id, COMPLETION, r->created, r->model);
    begin_choice(&w);
    sl_out_key(&w, "text");
    sl_out_text(&w, "", 0);
    sl_out_key(&w, "logprobs");
    sl_out_null(&w);
    end_choice(&w, finish_of(r->finish));
    end_chunk(&w, include_usage);
}

void sl_write_completion_usage(struct sl_buf *b, const struct sl_result *r)
{
    write_usage_chunk(b, COMPLETION, r);
}

/* --- /v1/chat/completions --- */

#define CHAT_CHUNK "chat.completion.chunk"

void sl_write_chat_completion(struct sl_buf *b, const struct sl_result *r, const struct sl_vocab *v)
{
    struct sl_json_out w = {.b = b};
    begin(&w, r->id, "chat.completion", r->created, r->model);
    begin_choice(&w);
    sl_out_key(&w, "message");
    sl_out_open(&w, '{');
    sl_out_key(&w, "role");
    sl_out_str(&w, "assistant");
    sl_out_key(&w, "content");
    sl_out_text(&w, r->text.s, r->text.n);
    sl_out_key(&w, "refusal");
    sl_out_null(&w);
    sl_out_close(&w, '}');
    key_chat_logprobs(&w, r->logprobs, r->n_logprobs, r->n_top, v);
    end_choice(&w, finish_of(r->finish));
    sl_out_close(&w, ']');
    key_usage(&w, &r->usage);
    sl_out_close(&w, '}');
}

void sl_write_chat_first(struct sl_buf *b, const struct sl_delta *d)
{
    struct sl_json_out w = {.b = b};
    begin(&w, d->id, CHAT_CHUNK, d->created, d->model);
    begin_choice(&w);
    sl_out_key(&w, "delta");
    sl_out_open(&w, '{');
    sl_out_key(&w, "role");
    sl_out_str(&w, "assistant");
    sl_out_key(&w, "content");
    sl_out_text(&w, "", 0);
    sl_out_key(&w, "refusal");
    sl_out_null(&w);
    sl_out_close(&w, '}');
    sl_out_key(&w, "logprobs");
    sl_out_null(&w);
    end_choice(&w, NULL);
    end_chunk(&w, d->include_usage);
}

void sl_write_chat_delta(struct sl_buf *b, const struct sl_delta *d, const struct sl_vocab *v)
{
    struct sl_json_out w = {.b = b};
    begin(&w, d->id, CHAT_CHUNK, d->created, d->model);
    begin_choice(&w);
    sl_out_key(&w, "delta");
    sl_out_open(&w, '{');
    sl_out_key(&w, "content");
    sl_out_text(&w, d->text.s, d->text.n);
    sl_out_close(&w, '}');
    key_chat_logprobs(&w, d->logprobs, d->n_logprobs, d->n_top, v);
    end_choice(&w, NULL);
    end_chunk(&w, d->include_usage);
}

void sl_write_chat_final(struct sl_buf *b, const struct sl_result *r, bool include_usage)
{
    struct sl_json_out w = {.b = b};
    begin(&w, r->id, CHAT_CHUNK, r->created, r->model);
    begin_choice(&w);
    sl_out_key(&w, "delta");
    sl_out_open(&w, '{');
    sl_out_close(&w, '}');
    sl_out_key(&w, "logprobs");
    sl_out_null(&w);
    end_choice(&w, finish_of(r->finish));
    end_chunk(&w, include_usage);
}

void sl_write_chat_usage(struct sl_buf *b, const struct sl_result *r)
{
    write_usage_chunk(b, CHAT_CHUNK, r);
}
