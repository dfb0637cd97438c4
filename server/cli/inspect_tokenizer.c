/* inspect_tokenizer.c: see inspect_tokenizer.h. */
#include "server/cli/inspect_tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/converted.h"
#include "proto/chat.h"
#include "server/cli/load.h"

static enum sl_code name_template(struct sl_tokenizer_view *v, const char *text, size_t n)
{
    const struct sl_chat_template *t = NULL;
    enum sl_code c = sl_chat_template_recognise(&t, text, n, &v->refused);
    if (!c)
        v->chat_template = t ? t->name : "unknown";
    return c;
}

static void name_unsaid(struct sl_tokenizer_view *v, const struct sl_tokenizer *tokenizer)
{
    const struct sl_chat_template *t = sl_chat_template_unsaid(sl_tokenizer_kind(tokenizer));
    v->chat_template = t ? t->name : NULL;
}

/* As `slate serve --model PATH` does it. */
void sl_tokenizer_view_open(struct sl_tokenizer_view *v, const struct sl_tensors *t,
                            const char *path)
{
    struct sl_loaded found = {.tokenizer = NULL};
    struct sl_converted converted;
    const char *spec;
    *v = (struct sl_tokenizer_view){.refused = {.code = SL_OK}};
    enum sl_code c = sl_cli_tokenizer(&found, path, NULL, &spec, &v->refused);
    if (!c)
        c = sl_converted_read(&converted, t, path, &v->refused);
    if (!c && !found.tokenizer)
        c = sl_file_tokenizer(&found.tokenizer, t, &converted, path, SIZE_MAX, &v->refused);
    const char *own = c ? NULL : sl_file_chat_template(t, &converted);
    if (!c && found.chat_template)
        c = name_template(v, found.chat_template, found.n_chat_template);
    else if (!c && own)
        c = name_template(v, own, strlen(own));
    else if (!c && found.tokenizer)
        name_unsaid(v, found.tokenizer);
    if (!c) {
        v->tokenizer = found.tokenizer;
        found.tokenizer = NULL;
    }
    sl_cli_load_done(&found);
}

void sl_tokenizer_view_close(struct sl_tokenizer_view *v)
{
    sl_tokenizer_close(v->tokenizer);
    v->tokenizer = NULL;
}

static void print_ends(const struct sl_tokenizer *t)
{
    const char *before = "; ends with ";
    if (sl_tokenizer_begin(t) >= 0)
        printf("; begins with %" PRId64, sl_tokenizer_begin(t));
    for (uint32_t id = 0; id < sl_tokenizer_size(t); id++) {
        if (!sl_tokenizer_is_eos(t, id))
            continue;
        printf("%s%" PRIu32, before, id);
        before = ", ";
    }
}

void sl_tokenizer_view_print(const struct sl_tokenizer_view *v)
{
    if (v->refused.code)
        printf("tokenizer   refused: %s\n", v->refused.message);
    if (v->tokenizer) {
        printf("tokenizer   %s, %zu ids", sl_tokenizer_kind(v->tokenizer),
               sl_tokenizer_size(v->tokenizer));
        print_ends(v->tokenizer);
        putchar('\n');
    }
    if (v->chat_template && strcmp(v->chat_template, "unknown") == 0)
        printf("template    not known here: requests with messages want --chat-template\n");
    else if (v->chat_template)
        printf("template    %s\n", v->chat_template);
}

static void write_ends(const struct sl_tokenizer *t, struct sl_json_out *w)
{
    sl_out_key(w, "begin_token");
    if (sl_tokenizer_begin(t) >= 0)
        sl_out_uint(w, (uint64_t)sl_tokenizer_begin(t));
    else
        sl_out_null(w);
    sl_out_key(w, "end_tokens");
    sl_out_open(w, '[');
    for (uint32_t id = 0; id < sl_tokenizer_size(t); id++)
        if (sl_tokenizer_is_eos(t, id))
            sl_out_uint(w, id);
    sl_out_close(w, ']');
}

void sl_tokenizer_view_write(const struct sl_tokenizer_view *v, struct sl_json_out *w)
{
    sl_out_key(w, "tokenizer");
    if (v->tokenizer) {
        sl_out_open(w, '{');
        sl_out_key(w, "kind");
        sl_out_str(w, sl_tokenizer_kind(v->tokenizer));
        sl_out_key(w, "size");
        sl_out_uint(w, sl_tokenizer_size(v->tokenizer));
        write_ends(v->tokenizer, w);
        sl_out_close(w, '}');
    } else {
        sl_out_null(w);
    }
    if (v->refused.code) {
        sl_out_key(w, "tokenizer_refused");
        sl_out_str(w, v->refused.message);
    }
    sl_out_key(w, "chat_template");
    sl_out_str(w, v->chat_template);
}
