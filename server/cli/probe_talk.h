/* probe_talk.h: conversations in which something is told and asked for later, for `slate probe
 * model`. They are put together from the pieces of engine/models/probe.txt, which the embedded
 * model's own generator has drawn from seeds that its training did not have. One thread. */
#ifndef SLATE_SERVER_CLI_PROBE_TALK_H
#define SLATE_SERVER_CLI_PROBE_TALK_H

#include "proto/request.h"

struct sl_talk; /* the pieces */

/* Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_talk_open(struct sl_talk **ret, struct sl_error *err);
void sl_talk_close(struct sl_talk *t); /* NULL is fine */

/* What a conversation is about. */
enum sl_talk_row {
    SL_TALK_SMALL,   /* told; small talk between telling and asking */
    SL_TALK_FACTS,   /* told; other facts between, some of them asked for */
    SL_TALK_FIXED,   /* told, corrected 64 tokens later; other facts between */
    SL_TALK_UNKNOWN, /* never told; other facts before */
    SL_TALK_HELD,    /* told, a name that no training text has; other facts between */
    SL_TALK_ROWS
};

struct sl_fact;

/* Of so many facts told last, no two are of the same family and subject: nobody says his name
 * again and again, another each time. (probe.txt has some 200 families and subjects.) */
enum { SL_TALK_LATELY = 96 };

struct sl_talk_case {
    const struct sl_talk *talk;
    enum sl_talk_row row;
    uint64_t seed;
    const struct sl_fact *fact;                   /* asked for */
    const struct sl_fact *lately[SL_TALK_LATELY]; /* a ring: others, told before and between */
    size_t n_told;
};

/* The n-th conversation of a row; the same n gives the same one. */
void sl_talk_case_init(struct sl_talk_case *c, const struct sl_talk *t, enum sl_talk_row row,
                       size_t n);
/* Some turns, and the telling. FIXED: also what comes before the correction, without it. */
void sl_talk_before(struct sl_talk_case *c, struct sl_buf *b);
/* FIXED: the correction. */
void sl_talk_fix(struct sl_talk_case *c, struct sl_buf *b);
/* One more exchange that has nothing to do with the fact. */
void sl_talk_filler(struct sl_talk_case *c, struct sl_buf *b);
/* The question, up to where the answer begins. */
void sl_talk_question(struct sl_talk_case *c, struct sl_buf *b);

/* Is that the right answer? FIXED: *ret_old: it is the one from before the correction. */
bool sl_talk_is_right(const struct sl_talk_case *c, const char *answer, size_t n, bool *ret_old);

#endif
