/* batch.h: who runs in the next step. Policy only, no maths, no states; the engine thread's.
 *
 * Every decoding turn gets its one row first: its client waits for the next token. Replays after a
 * cut come next: their clients wait for the last event. What is left of the step goes to prefill,
 * in equal shares and what those leave over, starting at another turn each time, so that a long
 * prompt stalls nobody and nobody starves.
 *
 * Beside decoding rows prefill is limited, so that the step takes about SL_BATCH_STRETCH_LEAST
 * times as long as without it, up to SL_BATCH_STRETCH times where the prompts would take more than
 * SL_BATCH_SPREAD steps then (a prompt read in few long steps makes the silences between tokens
 * uneven, and its client no happier), and beside a few rows twice as long for up to SL_BATCH_BESIDE
 * rows. Where more turns read than decode, it may take as many times longer as they are more, up to
 * SL_BATCH_STRETCH_MOST: else a few that decode would keep all others from it. A burst is let
 * through at once: where the prompts of those that are more fit in SL_BATCH_BURST_STEPS steps,
 * there is no SL_BATCH_STRETCH_MOST. What a step costs is measured as the server runs: where
 * prompts leave no step to decoding alone, one is taken from them every SL_BATCH_RENEW steps, and
 * when as many decode as did not before. How the work is cut changes no result (promise 2), only
 * latencies. */
#ifndef SLATE_ENGINE_BATCH_H
#define SLATE_ENGINE_BATCH_H

#include "slate/base.h"

#define SL_BATCH_STRETCH_LEAST 1.3
#define SL_BATCH_STRETCH 1.5
#define SL_BATCH_STRETCH_MOST 2.5
enum {
    SL_BATCH_SPREAD = 6, /* steps */
    SL_BATCH_BURST_STEPS = 2,
    SL_BATCH_BESIDE = 8,
    SL_BATCH_RENEW = 64,
    SL_BATCH_SIZES = 44 /* of decode rows: 1 … 8, then four for each doubling, up to 4096 */
};

enum sl_batch_kind { SL_BATCH_DECODE, SL_BATCH_REPLAY, SL_BATCH_PREFILL };

/* One running turn: what it wants, and what it gets. */
struct sl_batch_entry {
    enum sl_batch_kind kind;
    size_t want;  /* rows, ≥ 1; 1 for DECODE */
    size_t take;  /* out: rows in this step; 0: it waits */
    size_t whole; /* PREFILL: rows of the prompt, those that were read among them */
};

struct sl_batch {
    size_t max_rows;
    size_t cursor;     /* which prefill turn is first next time, counted among them */
    uint64_t n_steps;  /* picked */
    uint64_t renewed;  /* of them, when a size that was known was asked for last */
    double prefill_us; /* what a row of prefill adds; 0: not measured yet */
    struct {
        double us;         /* a step of so many decode rows alone; 0: not measured yet */
        double last_us;    /* the last one */
        uint64_t asked_at; /* of n_steps, when one was last seen or made; 0: never */
    } decode[SL_BATCH_SIZES];
};

void sl_batch_init(struct sl_batch *b, size_t max_rows);

/* Fills in every take; n ≤ max_rows. At least one take is > 0 when n > 0. */
void sl_batch_pick(struct sl_batch *b, struct sl_batch_entry *e, size_t n);

/* A step of that many rows took us microseconds. */
void sl_batch_observe(struct sl_batch *b, size_t decode_rows, size_t other_rows, double us);

#endif
