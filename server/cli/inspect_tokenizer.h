/* inspect_tokenizer.h: for `slate inspect`: the tokenizer and the chat template that lie in a
 * model's directory, or in its file. One thread. */
#ifndef SLATE_SERVER_CLI_INSPECT_TOKENIZER_H
#define SLATE_SERVER_CLI_INSPECT_TOKENIZER_H

#include "engine/formats/tensors.h"
#include "proto/json_out.h"
#include "slate/tokenizer.h"

struct sl_tokenizer_view {
    struct sl_tokenizer *tokenizer; /* NULL: there is none, or it cannot be used: `refused` */
    const char *chat_template;      /* the name of a known one, "unknown", or NULL: none */
    struct sl_error refused;        /* code SL_OK: nothing was wrong */
};

/* Never fails: what is wrong is part of the view. `path` is what was opened as t. */
void sl_tokenizer_view_open(struct sl_tokenizer_view *v, const struct sl_tensors *t,
                            const char *path);
void sl_tokenizer_view_close(struct sl_tokenizer_view *v);

/* Lines "tokenizer   …" and "template    …". */
void sl_tokenizer_view_print(const struct sl_tokenizer_view *v);
/* "tokenizer": {…} or null, "tokenizer_refused": where it is, "chat_template": a name or null. */
void sl_tokenizer_view_write(const struct sl_tokenizer_view *v, struct sl_json_out *w);

#endif
