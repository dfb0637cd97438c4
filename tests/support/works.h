/* works.h: what http_bench has clients do, and what it measures of it.
 *
 * steady     so many clients in a closed loop: each asks again as soon as it was answered. The
 *            first answers are of different lengths, so that they are not in step (that is
 *            `burst`), and counted is from a quarter of the time on.
 * burst      so many clients at once, from rest: the last first token; and the same with one token
 *            to generate, which is the prefill alone.
 * neighbour  one stream, then a prompt of 2,000 tokens beside it: its longest gap against its usual
 *            one, and against the longest of as many once it is alone again.
 * idle       the server's memory for sessions that nobody uses, beside their states, as a share of
 *            these.
 *
 * Prompts are token ids drawn anew for each request, so that no cache has seen them. One thread;
 * failures end the program. */
#ifndef SLATE_TESTS_WORKS_H
#define SLATE_TESTS_WORKS_H

#include <stddef.h>
#include <stdint.h>

#include "server/cli/limits.h"
#include "tests/support/serving.h"

enum { WORK_CLIENTS_MAX = 1024, WORK_LONG_PROMPT = 2000, WORK_IDLE = 256 };

/* What is measured: RATE and ENGINE tokens a second, OF_ENGINE and ABOVE shares, UNEVEN how many
 * times GAP_50 GAP_99 is, the rest in seconds. ENGINE: of the same mix by the engine alone
 * (direct.h); OF_ENGINE: the server's rate over it. */
enum work_value {
    WORK_RATE,
    WORK_ENGINE,
    WORK_OF_ENGINE,
    WORK_FIRST_50,
    WORK_FIRST_99,
    WORK_GAP_50,
    WORK_GAP_99,
    WORK_UNEVEN,
    WORK_PREFILL,
    WORK_LONGEST,
    WORK_ALONE,
    WORK_USUAL,
    WORK_ABOVE,
    WORK_VALUES
};

/* What a client asks for. */
struct works {
    size_t prompt, tokens; /* of each, how many */
    size_t vocabulary;     /* ids are below it */
    double seconds;        /* of `steady` */
    uint64_t seed;         /* goes on from request to request */
};

/* The ids of one. */
void works_prompt(struct works *w, uint32_t *ids, size_t n);

/* One round of each: its values are added to cell, which has WORK_VALUES. */
void work_steady(struct works *w, const struct serving *server, size_t clients,
                 struct series *cell);
void work_burst(struct works *w, const struct serving *server, size_t clients, struct series *cell);
void work_neighbour(struct works *w, const struct serving *server, struct series *cell);

/* Until Slate's memory grows no more while it answers: a large slab becomes resident behind its
 * start, and takes of the processors meanwhile. Its bytes. */
double work_settle(struct serving *server);

/* On a server of its own with these options, WORK_IDLE sessions. Slate alone: a session of
 * llama.cpp is a slot, and slots are given at the start. So is Slate's slab of states, which is
 * resident from then on: what comes with a session is what it takes beside its state. */
void work_idle(const char *const *options, struct series *cell);

#endif
