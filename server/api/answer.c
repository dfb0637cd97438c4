/* answer.c: what a turn has given -> the bytes of its response, in the dialect of its route.
 *
 * Whole and streamed answers take their text through one function (take), so that they are the same
 * text. An event carries what has gathered since the last one: while the client does not take more
 * (back-pressure) nothing is taken from the turn, where waiting costs no memory. */
#include <assert.h>

#include "proto/openai.h"
#include "server/api/generation.h"

enum { EVENT_TOKENS_MAX = 4096 }; /* of one event: bounds the buffer with log probabilities */

/* --- the dialects ----------------------------------------------------------------------------- */

static void completion_final(struct sl_buf *b, const struct sl_result *r, bool include_usage,
                             const struct sl_vocab *v)
{
    (void)v;
    sl_write_completion_final(b, r, include_usage);
}

static void chat_final(struct sl_buf *b, const struct sl_result *r, bool include_usage,
                       const struct sl_vocab *v)
{
    (void)v;
    sl_write_chat_final(b, r, include_usage);
}

const struct sl_dialect_row sl_dialects[] = {
    [SL_DIALECT_SLATE] = {"gen-", sl_generate_decode, sl_write_generate, NULL,
                          sl_write_generate_event, sl_write_generate_final, NULL},
    [SL_DIALECT_COMPLETIONS] = {"cmpl-", sl_completions_decode, sl_write_completion, NULL,
                                sl_write_completion_delta, completion_final,
                                sl_write_completion_usage},
    [SL_DIALECT_CHAT] = {"chatcmpl-", sl_chat_completions_decode, sl_write_chat_completion,
                         sl_write_chat_first, sl_write_chat_delta, chat_final, sl_write_chat_usage},
};

/* --- what there is to tell -------------------------------------------------------------------- */

/* A list that was asked for and is empty is not NULL. */
static const uint32_t no_tokens[1];
static const struct sl_token_logprobs no_logprobs[1];

static const uint32_t *tokens_of(const struct sl_generation *g)
{
    const struct sl_turn *t = sl_run_turn(g->run);
    return t ? sl_turn_tokens(t) : no_tokens;
}

static const struct sl_token_logprobs *logprobs_of(const struct sl_generation *g)
{
    const struct sl_turn *t = sl_run_turn(g->run);
    const struct sl_token_logprobs *lp = t ? sl_turn_logprobs(t) : NULL;
    return lp ? lp : no_logprobs;
}

static size_t n_available(const struct sl_generation *g)
{
    if (g->over)
        return sl_run_result(g->run)->n_tokens;
    const struct sl_turn *t = sl_run_turn(g->run);
    return t ? sl_turn_released(t) : 0;
}

/* Takes the next n tokens and gives what an event of them says. */
static enum sl_code take(struct sl_generation *g, size_t n, bool last, struct sl_delta *ret,
                         struct sl_error *err)
{
    struct sl_text piece;
    const uint32_t *tokens = tokens_of(g) + g->n_taken;
    /* A paused turn's unfinished character goes on when it is resumed. */
    bool ends = last && !(g->over && sl_run_result(g->run)->finish == SL_FINISH_PAUSED);
    enum sl_code c = sl_text_stream_add(&g->text, tokens, n, ends, &piece, err);
    if (c)
        return c;
    if (g->chat)
        piece = sl_chat_reply_text(g->chat, &g->reply_started, piece);
    *ret = (struct sl_delta){
        .id = g->id,
        .model = g->app->model_names[0],
        .text = piece.n ? piece : (struct sl_text){.s = "", .n = 0},
        .created = g->created,
        .text_offset = g->text_offset,
        .include_usage = g->req.include_usage,
        .n_top = g->req.logprobs,
    };
    if (g->req.return_tokens) {
        ret->tokens = tokens;
        ret->n_tokens = n;
    }
    if (g->req.logprobs >= 0) {
        ret->logprobs = logprobs_of(g) + g->n_taken;
        ret->n_logprobs = n;
        g->text_offset += sl_logprobs_chars(ret->logprobs, n, &g->app->vocab);
    }
    g->n_taken += n;
    g->text_ended = last;
    return SL_OK;
}

/* Everything but text, tokens and logprobs. After the run's end. */
static void fill_result(const struct sl_generation *g, struct sl_result *r)
{
    const struct sl_run_result *res = sl_run_result(g->run);
    *r = (struct sl_result){
        .id = g->id,
        .model = g->app->model_names[0],
        .session = g->session[0] ? g->session : NULL,
        .version = res->version,
        .text = {.s = "", .n = 0},
        .seed = g->req.sampling.seed,
        .finish = res->finish,
        .n_top = g->req.logprobs,
        .usage = {.prompt_tokens = res->prompt_tokens, .completion_tokens = res->n_tokens},
        .timings = res->timings,
        .created = g->created,
    };
    if (g->req.return_state && g->state.len)
        r->state = (struct sl_text){.s = g->state.data, .n = g->state.len};
    if (res->stop_index >= 0) {
        const struct sl_stop *s = &g->stops[res->stop_index];
        r->stop_sequence = (struct sl_text){.s = (const char *)s->bytes, .n = s->n};
    }
}

/* --- whole ------------------------------------------------------------------------------------ */

void sl_answer_whole(struct sl_generation *g)
{
    struct sl_delta all;
    struct sl_error err;
    size_t n = n_available(g);
    if (take(g, n, true, &all, &err)) {
        sl_answer_fail(g, &err);
        return;
    }
    struct sl_result r;
    fill_result(g, &r);
    r.text = all.text;
    r.tokens = all.tokens;
    r.n_tokens = all.n_tokens;
    r.logprobs = all.logprobs;
    r.n_logprobs = all.n_logprobs;
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    g->dialect->whole(&b, &r, &g->app->vocab);
    sl_app_tell_differences(g->ex, &g->restoring.info);
    if (r.session)
        sl_app_session_headers_of(g->ex, g->session, g->incarnation, r.version);
    sl_app_reply_json(g->ex, 200, &b);
    g->ex = NULL;
}

void sl_answer_body(const struct sl_generation *g, struct sl_buf *b)
{
    struct sl_generation all = *g; /* as if nothing had been taken */
    struct sl_delta d;
    struct sl_error err;
    const struct sl_paused_turn *before = sl_run_paused(g->run);
    all.over = true;
    all.n_taken = 0;
    all.text_offset = 0;
    all.reply_started = before && before->reply_started;
    sl_text_stream_init(&all.text, g->app->tokenizer);
    all.text.begins = g->text_begins;
    if (before)
        sl_buf_put(&all.text.raw, before->utf8_tail, before->n_utf8_tail);
    enum sl_code c = take(&all, sl_run_result(g->run)->n_tokens, true, &d, &err);
    if (c) {
        b->code = c;
    } else {
        struct sl_result r;
        fill_result(&all, &r);
        r.text = d.text;
        r.tokens = d.tokens;
        r.n_tokens = d.n_tokens;
        r.logprobs = d.logprobs;
        r.n_logprobs = d.n_logprobs;
        g->dialect->whole(b, &r, &g->app->vocab);
    }
    sl_text_stream_done(&all.text);
}

/* --- streamed --------------------------------------------------------------------------------- */

/* Writes the buffer's events, or gives its error; empties it. */
static enum sl_code send_buf(struct sl_generation *g, struct sl_buf *b, struct sl_error *err)
{
    enum sl_code c = sl_buf_code(b, err);
    if (!c)
        (void)sl_exchange_write(g->ex, b->data, b->len);
    sl_buf_done(b);
    return c;
}

void sl_answer_open_stream(struct sl_exchange *ex)
{
    sl_exchange_add_header(ex, "Cache-Control", "no-store");
    sl_exchange_stream(ex, 200, SL_SSE_CONTENT_TYPE, ": ping\n\n");
}

void sl_answer_begin(struct sl_generation *g)
{
    if (g->streaming)
        return;
    g->streaming = true;
    if (g->has_timer)
        uv_timer_stop(&g->head_timer);
    sl_app_tell_differences(g->ex, &g->restoring.info);
    sl_answer_open_stream(g->ex);
    if (!g->dialect->first)
        return;
    struct sl_delta d = {.id = g->id,
                         .model = g->app->model_names[0],
                         .text = {.s = "", .n = 0},
                         .created = g->created,
                         .include_usage = g->req.include_usage};
    struct sl_buf b;
    struct sl_error err;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_sse_begin(&b);
    g->dialect->first(&b, &d);
    sl_sse_end(&b);
    if (send_buf(g, &b, &err))
        sl_answer_fail(g, &err);
}

void sl_answer_fail(struct sl_generation *g, const struct sl_error *err)
{
    struct sl_exchange *ex = g->ex;
    g->ex = NULL;
    if (!g->streaming) {
        sl_exchange_fail(ex, err);
        return;
    }
    struct sl_buf b;
    struct sl_error own;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_sse_begin(&b);
    sl_write_error(&b, sl_exchange_told(ex, err, &own));
    sl_sse_end(&b);
    bool told = !sl_buf_code(&b, NULL);
    if (told)
        (void)sl_exchange_write(ex, b.data, b.len);
    sl_buf_done(&b);
    if (told)
        sl_exchange_end(ex);
    else
        sl_exchange_cut(ex);
}

/* One event of the next n tokens, where it says anything. */
static enum sl_code send_delta(struct sl_generation *g, size_t n, bool last, struct sl_error *err)
{
    struct sl_delta d;
    enum sl_code c = take(g, n, last, &d, err);
    if (c)
        return c;
    if (!d.text.n && !d.n_tokens && !d.n_logprobs)
        return SL_OK;
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_sse_begin(&b);
    g->dialect->delta(&b, &d, &g->app->vocab);
    sl_sse_end(&b);
    return send_buf(g, &b, err);
}

static enum sl_code send_end(struct sl_generation *g, struct sl_error *err)
{
    struct sl_result r;
    fill_result(g, &r);
    if (g->req.return_tokens)
        r.tokens = no_tokens;
    if (g->req.logprobs >= 0)
        r.logprobs = no_logprobs;
    struct sl_buf b;
    sl_buf_init(&b, SL_RESPONSE_BYTES_MAX);
    sl_sse_begin(&b);
    g->dialect->final(&b, &r, g->req.include_usage, &g->app->vocab);
    sl_sse_end(&b);
    if (g->dialect->usage && g->req.include_usage) {
        sl_sse_begin(&b);
        g->dialect->usage(&b, &r);
        sl_sse_end(&b);
    }
    sl_sse_done(&b);
    return send_buf(g, &b, err);
}

bool sl_answer_stream(struct sl_generation *g)
{
    struct sl_error err;
    size_t n = n_available(g);
    bool over = g->over && !g->awaits_state;
    if (n == g->n_taken && !over)
        return false;
    sl_answer_begin(g);
    while (g->ex && (g->n_taken < n || (over && !g->text_ended))) {
        if (!sl_exchange_is_writable(g->ex)) {
            (void)sl_exchange_write(g->ex, "", 0); /* asks for `writable`, whatever filled it */
            return false;
        }
        size_t left = n - g->n_taken, some = left < EVENT_TOKENS_MAX ? left : EVENT_TOKENS_MAX;
        if (send_delta(g, some, over && some == left, &err))
            sl_answer_fail(g, &err);
    }
    if (g->ex && over) {
        if (send_end(g, &err)) {
            sl_answer_fail(g, &err);
        } else {
            sl_exchange_end(g->ex);
            g->ex = NULL;
        }
    }
    return !g->ex;
}
