/* text.c: see text.h. */
#include "server/text.h"

#include <string.h>

#include "engine/base/utf8.h"

/* Of the tokens of one piece: no answer that is told at once has more (app.h). A byte becomes three
 * at most. */
#define RAW_BYTES_MAX ((size_t)256 << 20)

void sl_text_stream_init(struct sl_text_stream *ts, const struct sl_tokenizer *tokenizer)
{
    ts->tokenizer = tokenizer;
    ts->begins = false;
    sl_buf_init(&ts->raw, RAW_BYTES_MAX);
    sl_buf_init(&ts->out, 3 * RAW_BYTES_MAX + 1);
}

void sl_text_stream_done(struct sl_text_stream *ts)
{
    sl_buf_done(&ts->raw);
    sl_buf_done(&ts->out);
}

enum sl_code sl_text_stream_add(struct sl_text_stream *ts, const uint32_t *tokens, size_t n,
                                bool last, struct sl_text *ret, struct sl_error *err)
{
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes;
        const unsigned char *bytes = sl_tokenizer_bytes(ts->tokenizer, tokens[i], &n_bytes);
        if (bytes && ts->begins) {
            bytes = sl_tokenizer_first_bytes(ts->tokenizer, tokens[i], &n_bytes);
            ts->begins = false;
        }
        if (n_bytes)
            sl_buf_put(&ts->raw, bytes, n_bytes);
    }
    sl_buf_clear(&ts->out);
    size_t used = 0;
    char *dst = sl_buf_reserve(&ts->out, 3 * ts->raw.len + 1);
    if (dst && ts->raw.len)
        ts->out.len = sl_utf8_repair(dst, ts->raw.data, ts->raw.len, last, &used);
    enum sl_code c = sl_buf_code(&ts->raw, err);
    if (!c)
        c = sl_buf_code(&ts->out, err);
    if (c)
        return c;
    if (used)
        memmove(ts->raw.data, ts->raw.data + used, ts->raw.len - used);
    ts->raw.len -= used;
    *ret = (struct sl_text){.s = ts->out.data, .n = ts->out.len};
    return SL_OK;
}
