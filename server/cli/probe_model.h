/* probe_model.h: what `slate probe model` has found, between measuring (probe_model.c) and telling
 * (probe_tell.c). */
#ifndef SLATE_SERVER_CLI_PROBE_MODEL_H
#define SLATE_SERVER_CLI_PROBE_MODEL_H

#include "server/cli/probe.h"
#include "server/cli/probe_batch.h"
#include "server/cli/probe_talk.h"
#include "slate/memory.h"

enum { SL_PROBE_POINTS_MAX = 16, SL_PROBE_HALF_LIFE_AT = 256, SL_PROBE_HALF_LIFE_OVER = 64 };

struct sl_probe_options {
    uint64_t conversations, sequences, max_distance;
    bool json;
    const char *svg;
};

/* One line of a chart and a table. */
struct sl_probe_curve {
    const char *name, *kind, *filler; /* for people, and in JSON */
    size_t n;
    double x[SL_PROBE_POINTS_MAX], y[SL_PROBE_POINTS_MAX];
    double old[SL_PROBE_POINTS_MAX]; /* FIXED: share of answers with the value from before */
    size_t samples;
};

struct sl_probe {
    const struct sl_probe_options *opt;
    struct sl_loaded loaded;
    struct sl_probe_batch batch;
    struct sl_probe_curve talk[SL_TALK_ROWS], needle, pairs, norm, rank;
    bool has_talk;
    struct sl_memory_head *heads; /* with half-lives */
    size_t n_heads;
    size_t half_life_at, half_life_over; /* tokens before, and fed for it */
    size_t done, total;                  /* steps of the progress bar */
};

/* Tables to stdout. */
void sl_probe_tell(const struct sl_probe *p);
/* One object to stdout. */
SL_NODISCARD enum sl_code sl_probe_write_json(const struct sl_probe *p, struct sl_error *err);
/* Charts to opt->svg. */
SL_NODISCARD enum sl_code sl_probe_write_charts(const struct sl_probe *p, struct sl_error *err);

#endif
