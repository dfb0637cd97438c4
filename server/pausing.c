/* pausing.c: what a paused turn leaves behind, so that it can go on byte for byte: see
 * proto/continuation.h. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "server/turns_priv.h"

enum { TAIL_MAX = 3 };

/* The last bytes of the text that was released, at most TAIL_MAX, and how many there are in all. */
static size_t last_bytes(const struct sl_run *r, size_t n_released, unsigned char last[TAIL_MAX],
                         size_t *ret_total)
{
    const struct sl_paused_turn *before = r->continuation.paused;
    const uint32_t *tokens = sl_turn_tokens(r->turn);
    unsigned char text[TAIL_MAX];
    size_t n = 0, total = 0, len;
    for (size_t i = n_released; i-- > 0;) {
        const unsigned char *bytes = sl_tokenizer_bytes(r->ts->tokenizer, tokens[i], &len);
        total += len;
        for (size_t k = len; k-- > 0 && n < TAIL_MAX;)
            text[n++] = bytes[k];
    }
    for (size_t k = before ? before->n_utf8_tail : 0; k-- > 0; total++)
        if (n < TAIL_MAX)
            text[n++] = before->utf8_tail[k];
    for (size_t i = 0; i < n; i++)
        last[i] = text[n - 1 - i];
    *ret_total = total;
    return n;
}

/* How many bytes at the end are the beginning of a character: its first byte decides alone, for no
 * other byte can begin one there. */
static size_t unfinished(const unsigned char *last, size_t n)
{
    for (size_t len = 1; len <= n; len++) {
        size_t bad;
        const unsigned char *s = last + n - len;
        if (*s >= 0xC0)
            return !sl_utf8_char(s, len, &bad) && !bad ? len : 0;
    }
    return 0;
}

enum sl_code sl_run_leave_paused(const struct sl_run *r, const struct sl_turn_result *t,
                                 struct sl_paused_turn *ret, uint32_t **ret_generated,
                                 struct sl_error *err)
{
    const struct sl_paused_turn *before = r->continuation.paused;
    const struct sl_run_spec *s = &r->spec;
    size_t n_released = t->n_tokens - t->n_held, n_before = before ? before->n_generated : 0;
    uint32_t *generated = sl_malloc((n_before + n_released) * sizeof *generated);
    if (!generated)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a paused turn");
    if (n_before)
        memcpy(generated, before->generated, n_before * sizeof *generated);
    memcpy(generated + n_before, sl_turn_tokens(r->turn), n_released * sizeof *generated);
    unsigned char last[TAIL_MAX];
    size_t total, n_last = last_bytes(r, n_released, last, &total);
    *ret = (struct sl_paused_turn){.sampling = s->sampling,
                                   .draws = t->draws,
                                   .max_tokens = s->max_tokens - n_released,
                                   .fewer_will_do = s->fewer_will_do,
                                   .stops = s->stops,
                                   .n_stops = s->n_stops,
                                   .stop_tokens = s->stop_tokens,
                                   .n_stop_tokens = s->n_stop_tokens,
                                   .ignore_eos = s->ignore_eos,
                                   .logprobs = s->logprobs,
                                   .generated = generated,
                                   .n_generated = n_before + n_released,
                                   .n_held = t->n_held,
                                   .n_utf8_tail = unfinished(last, n_last),
                                   .chat_template = s->chat_template};
    memcpy(ret->utf8_tail, last + n_last - ret->n_utf8_tail, ret->n_utf8_tail);
    ret->reply_started = (before && before->reply_started) || total > ret->n_utf8_tail;
    const struct sl_penalty_ring *ring = sl_run_ring_before(r);
    if (ring)
        ret->ring = *ring;
    *ret_generated = generated;
    return SL_OK;
}
