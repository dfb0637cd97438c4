/* load.h: --model, --tokenizer, --weights, --kernels, --begin-token -> a model and its tokenizer.
 * Shared by the commands that run a model. Any thread. */
#ifndef SLATE_SERVER_CLI_LOAD_H
#define SLATE_SERVER_CLI_LOAD_H

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

#endif
