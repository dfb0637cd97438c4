/* load.h: --model, --tokenizer, --weights, --kernels, --begin-token -> a model and its tokenizer.
 * Shared by the commands that run a model. Any thread. */
#ifndef SLATE_SERVER_CLI_LOAD_H
#define SLATE_SERVER_CLI_LOAD_H

#include "server/cli/weights.h"
#include "server/config.h"
#include "slate/model.h"
#include "slate/tokenizer.h"

struct sl_loaded {
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    int64_t begin_token; /* -1: none */
    bool embedded;       /* the model is the one inside the program */
    char *chat_template; /* what the tokenizer's folder or the model's file has, in Jinja's
                            language; NULL: nothing */
    size_t n_chat_template;
};

/* The tokenizer, where not given, is the embedded model's own vocabulary, what lies in the model's
 * directory (tokenizer.json, rwkv_vocab_v20230424.txt) or file (GGUF), or bytes for a model of up
 * to 256 tokens. End and begin tokens come from the files beside it: beside.h. Errors: USAGE (what
 * no default can be found for, a begin token that the model does not have), those of
 * sl_tokenizer_open() and sl_model_open(). */
SL_NODISCARD enum sl_code sl_cli_load(struct sl_loaded *ret, const struct sl_config *config,
                                      struct sl_error *err);
void sl_cli_load_done(struct sl_loaded *l); /* all zero is fine */

/* Of that: the tokenizer that was named, or lies in the model's directory, with what lies beside
 * it: l->tokenizer and l->chat_template, which were NULL. *ret_spec: where it was found, of the two
 * texts one, or NULL: nowhere. */
SL_NODISCARD enum sl_code sl_cli_tokenizer(struct sl_loaded *l, const char *model,
                                           const char *tokenizer, const char **ret_spec,
                                           struct sl_error *err);

/* "eos", "none" (-1) or a token's id, of a model of that many. Errors: USAGE. */
SL_NODISCARD enum sl_code sl_cli_begin_token(const char *s, const struct sl_tokenizer *t,
                                             size_t vocab_size, int64_t *ret, struct sl_error *err);

/* A name of proto/chat.h, or NULL, told before a model is loaded. Errors: USAGE. */
SL_NODISCARD enum sl_code sl_cli_chat_template(const char *name, struct sl_error *err);

/* What a model of so many tokens is to be given where nothing says which. USAGE. */
enum sl_code sl_cli_no_tokenizer(size_t vocab_size, struct sl_error *err);

#endif
