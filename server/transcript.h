/* transcript.h: all token ids of a conversation, in order (--keep-transcript): what it takes to
 * read it again with another model. Grows with the conversation, as nothing else of a session does,
 * so it has an end: a longer one is not kept any more. Any thread; nothing is shared. */
#ifndef SLATE_SERVER_TRANSCRIPT_H
#define SLATE_SERVER_TRANSCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "slate/err.h"

enum { SL_TRANSCRIPT_MAX = 2 << 20 /* tokens */ };

struct sl_transcript {
    bool whole; /* it is known from the conversation's beginning; else there is none */
    uint32_t *v;
    size_t n, cap;
};

void sl_transcript_done(struct sl_transcript *t); /* and is none */
/* Room for so many more. False: no memory. */
bool sl_transcript_reserve(struct sl_transcript *t, size_t n);
/* A turn: without its last n_drop tokens, then these. There is room. Where it becomes too long, or
 * was not whole, it is none. */
void sl_transcript_add(struct sl_transcript *t, size_t n_drop, const uint32_t *v, size_t n);
/* `to` is all zero. False: no memory. */
bool sl_transcript_copy(struct sl_transcript *to, const struct sl_transcript *from);

/* Do they end with these? With none only where there are none: a conversation always leaves a token
 * that its state has not read. */
bool sl_tokens_end_with(const uint32_t *all, size_t n_all, const uint32_t *v, size_t n);

/* As a snapshot has it; NULL: no memory. sl_free(). */
char *sl_transcript_text(const struct sl_transcript *t);
/* t is all zero. Errors: SNAPSHOT_CORRUPT (not base64 of ids below vocab_size), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_transcript_read(struct sl_transcript *t, const char *text,
                                             size_t vocab_size, struct sl_error *err);

#endif
