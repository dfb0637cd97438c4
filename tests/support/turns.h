/* turns.h: for tests: an engine with states around it, and turns that run to their end. */
#ifndef SLATE_TESTS_TURNS_H
#define SLATE_TESTS_TURNS_H

#include "engine/forward.h"
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

/* A spec that reads begin token and text, with a state kept. The ids are the caller's to free. */
struct sl_turn_spec stand_spec(const struct stand *s, const char *text, size_t max_tokens,
                               uint32_t **ret_ids);
/* prompt + tokens fed by a turn that generates nothing: what a rested state must be equal to. */
void stand_fed(struct stand *s, const struct sl_turn_spec *like, const void *base,
               const uint32_t *tokens, size_t n, struct outcome *o);
/* Is the turn's state that of a session which was fed its prompt and its tokens? */
void assert_at_rest(struct stand *s, const struct sl_turn_spec *spec, const void *base,
                    const struct outcome *o);

/* The logits after each token of a sequence, one token a step, on one thread. */
struct plain {
    struct sl_workers *workers;
    struct sl_forward *forward;
    void *state;
    float *logits;
    size_t vocab;
};
void plain_open(struct plain *p, const struct stand *s);
void plain_feed(struct plain *p, uint32_t token);
void plain_close(struct plain *p);
size_t plain_argmax(const float *x, size_t n);
/* Are these the log probabilities that its logits give? */
void assert_logprobs(const struct plain *p, const struct sl_token_logprobs *lp, uint32_t token);

#endif
