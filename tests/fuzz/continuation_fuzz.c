/* continuation_fuzz.c: any text as a continuation. What is taken keeps the promises of
 * continuation.h, and written and read again it is written as the same text; so it is when its long
 * lists are not as lists are written, and the JSON parser reads them. */
#include <math.h>

#include "engine/base/mem.h"
#include "proto/continuation.h"
#include "tests/fuzz/touch.h"

enum { VOCAB = 300 };

static void check_ids(const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        MUST(ids[i] < VOCAB);
}

static void check_sampling(const struct sl_sampling *s)
{
    MUST(s->temperature >= 0 && s->temperature <= 100);
    MUST(s->top_p >= 0 && s->top_p <= 1 && s->typical_p >= 0 && s->typical_p <= 1);
    MUST(s->min_p >= 0 && s->min_p <= 1);
    MUST(s->repetition_penalty > 0 && s->repetition_penalty <= 100);
    MUST(fabsf(s->presence_penalty) <= 100 && fabsf(s->frequency_penalty) <= 100);
    MUST(s->penalty_decay >= 0 && s->penalty_decay <= 1);
    MUST(s->penalty_last_n <= SL_PENALTY_LAST_N_MAX && s->n_bias <= SL_LOGIT_BIAS_MAX);
    for (size_t i = 0; i < s->n_bias; i++)
        MUST(s->bias[i].token < VOCAB && fabsf(s->bias[i].bias) <= 100);
}

static void check_paused(const struct sl_paused_turn *p, size_t n_pending)
{
    check_sampling(&p->sampling);
    MUST(p->n_held < n_pending && p->n_held <= p->max_tokens && p->n_held <= SL_HELD_MAX);
    MUST(p->n_stops <= SL_STOPS_MAX && p->n_stop_tokens <= SL_STOP_TOKENS_MAX);
    for (size_t i = 0; i < p->n_stops; i++)
        MUST(p->stops[i].n >= 1 && p->stops[i].n <= SL_STOP_BYTES_MAX && p->stops[i].bytes);
    check_ids(p->stop_tokens, p->n_stop_tokens);
    check_ids(p->generated, p->n_generated);
    MUST(p->ring.n <= SL_PENALTY_LAST_N_MAX);
    check_ids(p->ring.tokens, p->ring.n);
    MUST(p->logprobs >= -1 && p->logprobs <= SL_TOP_LOGPROBS_MAX);
    MUST(p->n_utf8_tail <= sizeof p->utf8_tail);
}

static void write_text(struct sl_buf *b, const struct sl_continuation *c)
{
    sl_buf_init(b, (size_t)64 << 20);
    sl_continuation_write(b, c);
    MUST(b->code == SL_OK && sl_utf8_valid(b->data, b->len));
}

/* The text with a space at the end of each list of ids. */
static void spread(struct sl_buf *b, const struct sl_buf *text)
{
    bool in_string = false;
    sl_buf_init(b, (size_t)128 << 20);
    for (size_t i = 0; i < text->len; i++) {
        char c = text->data[i];
        in_string ^= c == '"';
        if (c == ']' && !in_string)
            sl_buf_puts(b, " ");
        sl_buf_put(b, &c, 1);
        if (c == '\\' && ++i < text->len)
            sl_buf_put(b, text->data + i, 1);
    }
    MUST(b->code == SL_OK);
}

static void must_give(const struct sl_buf *from, const struct sl_buf *text)
{
    struct sl_continuation c;
    struct sl_error err = {0};
    struct sl_buf again;
    MUST(sl_continuation_read(&c, from->data, from->len, VOCAB, &err) == SL_OK);
    write_text(&again, &c);
    MUST(again.len == text->len && memcmp(again.data, text->data, text->len) == 0);
    sl_buf_done(&again);
    sl_continuation_done(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_continuation c = {.n_pending = 0};
    struct sl_error err = {0};
    enum sl_code code = sl_continuation_read(&c, (const char *)data, size, VOCAB, &err);
    if (code != SL_OK) {
        MUST(code == SL_E_SNAPSHOT_CORRUPT && err.code == code && err.message[0]);
        MUST(sl_utf8_valid(err.message, strlen(err.message)));
        MUST(!c.pool.chunks);
        return 0;
    }
    MUST(c.n_pending >= 1 && c.ring.n <= SL_PENALTY_LAST_N_MAX);
    check_ids(c.pending, c.n_pending);
    check_ids(c.ring.tokens, c.ring.n);
    if (c.paused)
        check_paused(c.paused, c.n_pending);
    struct sl_buf text, wide;
    write_text(&text, &c);
    must_give(&text, &text);
    spread(&wide, &text);
    must_give(&wide, &text);
    sl_buf_done(&text);
    sl_buf_done(&wide);
    sl_continuation_done(&c);
    return 0;
}
