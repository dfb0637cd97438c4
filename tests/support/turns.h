/* turns.h: for tests: an engine with states around it, and turns that run to their end. */
#ifndef SLATE_TESTS_TURNS_H
#define SLATE_TESTS_TURNS_H

#include "slate/engine.h"
#include "slate/session.h"

enum { STAND_SLOTS = 256 };

/* Everything that a turn needs. Failures fail the test. */
struct stand {
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    struct sl_engine *engine;
    struct sl_slab *slab;
    size_t state_bytes;
};

/* The embedded model and its vocabulary (path NULL), or a file with the `bytes` tokenizer. */
void stand_open(struct stand *s, const char *path, const struct sl_engine_options *opt);
void stand_open_with(struct stand *s, const struct sl_model_options *model,
                     const struct sl_engine_options *opt);
void stand_close(struct stand *s);

/* What a turn left; the states are the caller's (sl_slab_unref). */
struct outcome {
    struct sl_turn *turn;
    const struct sl_turn_result *result; /* NULL while it runs */
    void *live, *shadow;
};

/* Creates and submits. base NULL: the initial state. spec->user is the outcome's. */
void stand_start(struct stand *s, struct sl_turn_spec *spec, const void *base, struct outcome *o);
/* Polls until all n are done. */
void stand_finish(struct stand *s, struct outcome *o, size_t n);
void stand_run(struct stand *s, struct sl_turn_spec *spec, const void *base, struct outcome *o);
void outcome_done(struct stand *s, struct outcome *o);

/* The text of tokens, allocated with malloc; *ret_n its length. */
unsigned char *stand_text(const struct stand *s, const uint32_t *ids, size_t n, size_t *ret_n);
/* The ids of a C string, allocated with malloc. */
uint32_t *stand_ids(const struct stand *s, const char *text, size_t *ret_n);

#endif
