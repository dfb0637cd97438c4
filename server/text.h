/* text.h: tokens -> valid UTF-8, a piece at a time.
 *
 * The bytes of tokens are joined first and repaired then: a character may be spread over several
 * tokens, and is held back until it is whole. However the tokens are cut into pieces, the pieces
 * joined are the same text (so a stream equals a whole answer). One thread at a time. */
#ifndef SLATE_SERVER_TEXT_H
#define SLATE_SERVER_TEXT_H

#include "proto/request.h"

struct sl_text_stream {
    const struct sl_tokenizer *tokenizer;
    struct sl_buf raw; /* between calls: the up to 3 bytes of a character that is not whole yet */
    struct sl_buf out;
    bool begins; /* the next token with bytes is a whole text's first one: set after init where no
                    text stands before what is read (see tokenizer.h) */
};

void sl_text_stream_init(struct sl_text_stream *ts, const struct sl_tokenizer *tokenizer);
void sl_text_stream_done(struct sl_text_stream *ts);

/* The text that the next n tokens complete, valid until the next call. last: nothing follows; what
 * is unfinished becomes U+FFFD. Errors: NO_MEMORY, TOO_LARGE. */
SL_NODISCARD enum sl_code sl_text_stream_add(struct sl_text_stream *ts, const uint32_t *tokens,
                                             size_t n, bool last, struct sl_text *ret,
                                             struct sl_error *err);

#endif
