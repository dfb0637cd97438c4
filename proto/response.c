/* response.c: see response.h. */
#include "proto/response.h"

#include <stdio.h>
#include <string.h>

#include "proto/json_out.h"

static void key_str(struct sl_json_out *w, const char *key, const char *s)
{
    sl_out_key(w, key);
    sl_out_str(w, s);
}

static void key_text(struct sl_json_out *w, const char *key, struct sl_text t)
{
    sl_out_key(w, key);
    if (t.s)
        sl_out_text(w, t.s, t.n);
    else
        sl_out_null(w);
}

static void key_uint(struct sl_json_out *w, const char *key, uint64_t u)
{
    sl_out_key(w, key);
    sl_out_uint(w, u);
}

static void key_tokens(struct sl_json_out *w, const uint32_t *tokens, size_t n)
{
    sl_out_key(w, "tokens");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++)
        sl_out_uint(w, tokens[i]);
    sl_out_close(w, ']');
}

static void logprob_fields(struct sl_json_out *w, const struct sl_logprob *p,
                           const struct sl_vocab *v)
{
    size_t n = 0;
    const unsigned char *bytes = v->bytes(v->arg, p->token, &n);
    key_uint(w, "token_id", p->token);
    sl_out_key(w, "text");
    sl_out_bytes(w, bytes, bytes ? n : 0);
    sl_out_key(w, "logprob");
    sl_out_float(w, p->logprob);
}

static void key_logprobs(struct sl_json_out *w, const struct sl_token_logprobs *p, size_t n,
                         int n_top, const struct sl_vocab *v)
{
    sl_out_key(w, "logprobs");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n; i++) {
        sl_out_open(w, '{');
        logprob_fields(w, &p[i].chosen, v);
        sl_out_key(w, "top");
        sl_out_open(w, '[');
        for (int k = 0; k < n_top; k++) {
            sl_out_open(w, '{');
            logprob_fields(w, &p[i].top[k], v);
            sl_out_close(w, '}');
        }
        sl_out_close(w, ']');
        sl_out_close(w, '}');
    }
    sl_out_close(w, ']');
}

static void key_usage(struct sl_json_out *w, const struct sl_usage *u)
{
    sl_out_key(w, "usage");
    sl_out_open(w, '{');
    key_uint(w, "prompt_tokens", u->prompt_tokens);
    key_uint(w, "cached_tokens", u->cached_tokens);
    key_uint(w, "completion_tokens", u->completion_tokens);
    key_uint(w, "total_tokens", u->prompt_tokens + u->completion_tokens);
    sl_out_close(w, '}');
}

static void key_ms(struct sl_json_out *w, const char *key, int64_t us)
{
    sl_out_key(w, key);
    sl_out_fixed(w, (double)us / 1000, 3);
}

/* 0 where no time passed or nothing was done. */
static void key_rate(struct sl_json_out *w, const char *key, uint64_t tokens, int64_t us)
{
    sl_out_key(w, key);
    sl_out_fixed(w, us > 0 ? (double)tokens * 1e6 / (double)us : 0, 3);
}

static void key_timings(struct sl_json_out *w, const struct sl_timings *t)
{
    sl_out_key(w, "timings");
    sl_out_open(w, '{');
    key_ms(w, "queue_ms", t->queue_us);
    key_ms(w, "prefill_ms", t->prefill_us);
    key_ms(w, "decode_ms", t->decode_us);
    key_rate(w, "prefill_tps", t->prefill_tokens, t->prefill_us);
    key_rate(w, "decode_tps", t->decode_tokens, t->decode_us);
    key_uint(w, "computed_tokens", t->computed_tokens);
    sl_out_close(w, '}');
}

static void write_result(struct sl_buf *b, const struct sl_result *r, bool usage,
                         const struct sl_vocab *v)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "id", r->id);
    key_str(&w, "model", r->model);
    key_str(&w, "session", r->session);
    sl_out_key(&w, "version");
    if (r->session)
        sl_out_uint(&w, r->version);
    else
        sl_out_null(&w);
    key_text(&w, "text", r->text);
    key_uint(&w, "seed", r->seed);
    key_str(&w, "finish_reason", sl_proto_finish(r->finish));
    key_text(&w, "stop_sequence", r->stop_sequence);
    if (r->tokens)
        key_tokens(&w, r->tokens, r->n_tokens);
    if (r->logprobs)
        key_logprobs(&w, r->logprobs, r->n_logprobs, r->n_top, v);
    if (usage)
        key_usage(&w, &r->usage);
    key_timings(&w, &r->timings);
    if (r->state.s)
        key_text(&w, "state", r->state);
    sl_out_close(&w, '}');
}

const char *sl_proto_finish(enum sl_finish f)
{
    static const char *const words[] = {
        [SL_FINISH_STOP] = "stop",     [SL_FINISH_LENGTH] = "length",
        [SL_FINISH_EOS] = "eos",       [SL_FINISH_CANCELLED] = "cancelled",
        [SL_FINISH_PAUSED] = "paused", [SL_FINISH_TIMEOUT] = "timeout",
    };
    return (size_t)f < sizeof words / sizeof *words ? words[f] : NULL;
}

void sl_write_generate(struct sl_buf *b, const struct sl_result *r, const struct sl_vocab *v)
{
    write_result(b, r, true, v);
}

void sl_write_generate_final(struct sl_buf *b, const struct sl_result *r, bool include_usage,
                             const struct sl_vocab *v)
{
    write_result(b, r, include_usage, v);
}

void sl_write_generate_event(struct sl_buf *b, const struct sl_delta *d, const struct sl_vocab *v)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "id", d->id);
    sl_out_key(&w, "text");
    sl_out_text(&w, d->text.s, d->text.n);
    if (d->tokens)
        key_tokens(&w, d->tokens, d->n_tokens);
    if (d->logprobs)
        key_logprobs(&w, d->logprobs, d->n_logprobs, d->n_top, v);
    sl_out_close(&w, '}');
}

void sl_write_error(struct sl_buf *b, const struct sl_error *err)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    sl_out_key(&w, "error");
    sl_out_open(&w, '{');
    key_str(&w, "message", err->message[0] ? err->message : sl_code_text(err->code));
    key_str(&w, "type", sl_code_type(err->code));
    key_str(&w, "param", err->param[0] ? err->param : NULL);
    key_str(&w, "code", sl_code_name(err->code));
    sl_out_close(&w, '}');
    sl_out_close(&w, '}');
}

/* --- sessions --- */

static void session_fields(struct sl_json_out *w, const struct sl_session_view *s)
{
    sl_out_open(w, '{');
    key_str(w, "id", s->id);
    key_str(w, "object", "session");
    key_str(w, "model", s->model);
    key_uint(w, "version", s->version);
    key_uint(w, "tokens_seen", s->tokens_seen);
    key_str(w, "residency", s->in_memory ? "memory" : "store");
    sl_out_key(w, "busy");
    sl_out_bool(w, s->busy);
    key_uint(w, "bytes", s->bytes);
    key_uint(w, "kept_bytes", s->kept_bytes);
    sl_out_key(w, "created_at");
    sl_out_int(w, s->created_at);
    sl_out_key(w, "used_at");
    sl_out_int(w, s->used_at);
    sl_out_key(w, "expires_at");
    if (s->expires_at)
        sl_out_int(w, s->expires_at);
    else
        sl_out_null(w);
    sl_out_key(w, "ttl_s");
    sl_out_int(w, s->ttl_s);
    sl_out_key(w, "metadata");
    if (s->metadata.s)
        sl_out_raw(w, s->metadata.s, s->metadata.n);
    else
        sl_out_raw(w, "{}", 2);
    if (s->rewound)
        key_uint(w, "rewound_to", s->rewound_to);
    if (s->rewound || s->rebuilt)
        key_uint(w, "replayed_tokens", s->replayed_tokens);
    sl_out_close(w, '}');
}

void sl_write_session(struct sl_buf *b, const struct sl_session_view *s)
{
    struct sl_json_out w = {.b = b};
    session_fields(&w, s);
}

void sl_write_session_list_begin(struct sl_buf *b)
{
    sl_buf_puts(b, "{\"object\":\"list\",\"data\":[");
}

void sl_write_session_list_item(struct sl_buf *b, size_t i, const struct sl_session_view *s)
{
    struct sl_json_out w = {.b = b, .comma = i > 0};
    session_fields(&w, s);
}

void sl_write_session_list_end(struct sl_buf *b, bool has_more, const char *last_id)
{
    struct sl_json_out w = {.b = b};
    sl_out_close(&w, ']');
    sl_out_key(&w, "has_more");
    sl_out_bool(&w, has_more);
    key_str(&w, "last_id", last_id);
    sl_out_close(&w, '}');
}

static void checkpoint_fields(struct sl_json_out *w, const struct sl_checkpoint_view *v)
{
    key_uint(w, "version", v->version);
    key_uint(w, "tokens_seen", v->tokens_seen);
    sl_out_key(w, "at");
    sl_out_int(w, v->at);
}

static void key_names(struct sl_json_out *w, uint64_t version,
                      const struct sl_checkpoint_name *names, size_t n_names)
{
    sl_out_key(w, "names");
    sl_out_open(w, '[');
    for (size_t i = 0; i < n_names; i++)
        if (names[i].version == version)
            sl_out_text(w, names[i].name, strlen(names[i].name));
    sl_out_close(w, ']');
}

void sl_write_checkpoint(struct sl_buf *b, const char *id, const char *name,
                         const struct sl_checkpoint_view *v)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "object", "checkpoint");
    key_str(&w, "session", id);
    key_str(&w, "name", name);
    if (v) {
        checkpoint_fields(&w, v);
    } else {
        sl_out_key(&w, "deleted");
        sl_out_bool(&w, true);
    }
    sl_out_close(&w, '}');
}

void sl_write_checkpoints(struct sl_buf *b, const char *id, const struct sl_checkpoint_view *v,
                          size_t n, const struct sl_checkpoint_name *names, size_t n_names)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "object", "list");
    key_str(&w, "session", id);
    sl_out_key(&w, "data");
    sl_out_open(&w, '[');
    for (size_t i = 0; i < n; i++) {
        sl_out_open(&w, '{');
        key_str(&w, "object", "checkpoint");
        checkpoint_fields(&w, &v[i]);
        sl_out_key(&w, "current");
        sl_out_bool(&w, i + 1 == n);
        key_names(&w, v[i].version, names, n_names);
        sl_out_close(&w, '}');
    }
    sl_out_close(&w, ']');
    sl_out_close(&w, '}');
}

static void write_flag(struct sl_buf *b, const char *id, const char *key, bool value)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "id", id);
    key_str(&w, "object", "session");
    sl_out_key(&w, key);
    sl_out_bool(&w, value);
    sl_out_close(&w, '}');
}

void sl_write_session_deleted(struct sl_buf *b, const char *id)
{
    write_flag(b, id, "deleted", true);
}

void sl_write_session_cancelled(struct sl_buf *b, const char *id, bool cancelled)
{
    write_flag(b, id, "cancelled", cancelled);
}

/* Not finite: the half-life of what is never lost. */
static void write_head(struct sl_json_out *w, const struct sl_memory_head *h, bool has_half_life)
{
    sl_out_open(w, '{');
    key_uint(w, "layer", h->layer);
    key_uint(w, "head", h->head);
    key_uint(w, "rows", h->rows);
    key_uint(w, "cols", h->cols);
    sl_out_key(w, "norm");
    sl_out_float(w, (float)h->norm);
    sl_out_key(w, "effective_rank");
    sl_out_fixed(w, h->effective_rank, 3);
    if (has_half_life) {
        sl_out_key(w, "half_life");
        sl_out_fixed(w, h->half_life, 2);
    }
    sl_out_close(w, '}');
}

void sl_write_memory(struct sl_buf *b, const struct sl_memory_view *v)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "session", v->session);
    key_uint(&w, "version", v->version);
    key_uint(&w, "tokens_seen", v->tokens_seen);
    key_uint(&w, "state_bytes", v->state_bytes);
    if (v->half_life_over)
        key_uint(&w, "half_life_over", v->half_life_over);
    sl_out_key(&w, "heads");
    sl_out_open(&w, '[');
    for (size_t i = 0; i < v->n_heads; i++)
        write_head(&w, &v->heads[i], v->half_life_over > 0);
    sl_out_close(&w, ']');
    sl_out_close(&w, '}');
}

/* --- models --- */

static const char *dtype_word(enum sl_dtype t)
{
    switch (t) {
    case SL_DTYPE_F32:
        return "f32";
    case SL_DTYPE_F16:
        return "f16";
    case SL_DTYPE_BF16:
        return "bf16";
    case SL_DTYPE_Q8:
        return "q8";
    case SL_DTYPE_Q4:
        return "q4";
    case SL_DTYPE_Q4_0:
        return "q4_0";
    case SL_DTYPE_Q4_K:
        return "q4_k";
    case SL_DTYPE_Q6_K:
        return "q6_k";
    default:
        return NULL;
    }
}

static void model_fields(struct sl_json_out *w, const struct sl_model_view *m)
{
    const struct sl_model_info *info = m->info;
    char hex[2 * sizeof info->fingerprint + 1];
    for (size_t i = 0; i < sizeof info->fingerprint; i++)
        snprintf(hex + 2 * i, 3, "%02x", info->fingerprint[i]);
    sl_out_open(w, '{');
    key_str(w, "id", m->id);
    key_str(w, "object", "model");
    sl_out_key(w, "created");
    sl_out_int(w, m->created);
    key_str(w, "owned_by", "slate");
    key_str(w, "arch", info->arch);
    key_str(w, "weights", dtype_word(info->weights));
    key_str(w, "kernels", info->kernels);
    key_uint(w, "parameters", info->n_params);
    key_uint(w, "n_layers", info->n_layers);
    key_uint(w, "d_model", info->d_model);
    key_uint(w, "vocab_size", info->vocab_size);
    key_uint(w, "state_bytes", info->state_bytes);
    sl_out_key(w, "max_tokens");
    if (info->max_tokens)
        sl_out_uint(w, info->max_tokens);
    else
        sl_out_null(w);
    key_str(w, "fingerprint", hex);
    key_str(w, "tokenizer", m->tokenizer);
    key_str(w, "chat_template", m->chat_template);
    sl_out_key(w, "initial_states");
    sl_out_open(w, '[');
    for (size_t i = 0; i < m->n_initial_states; i++)
        sl_out_str(w, m->initial_states[i]);
    sl_out_close(w, ']');
    sl_out_close(w, '}');
}

void sl_write_model(struct sl_buf *b, const struct sl_model_view *m)
{
    struct sl_json_out w = {.b = b};
    model_fields(&w, m);
}

void sl_write_model_list(struct sl_buf *b, const struct sl_model_view *m, size_t n)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "object", "list");
    sl_out_key(&w, "data");
    sl_out_open(&w, '[');
    for (size_t i = 0; i < n; i++)
        model_fields(&w, &m[i]);
    sl_out_close(&w, ']');
    sl_out_close(&w, '}');
}

/* --- the rest --- */

void sl_write_tokenized(struct sl_buf *b, const uint32_t *tokens, size_t n)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_tokens(&w, tokens, n);
    key_uint(&w, "count", n);
    sl_out_close(&w, '}');
}

void sl_write_detokenized(struct sl_buf *b, const char *text, size_t n)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    sl_out_key(&w, "text");
    sl_out_text(&w, text, n);
    sl_out_close(&w, '}');
}

void sl_write_status(struct sl_buf *b, const char *status)
{
    struct sl_json_out w = {.b = b};
    sl_out_open(&w, '{');
    key_str(&w, "status", status);
    sl_out_close(&w, '}');
}
