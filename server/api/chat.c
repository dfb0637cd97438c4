/* chat.c: which chat template the model has, and messages as text: see app.h. */
#include <string.h>

#include "server/app.h"

enum { AROUND_A_MESSAGE = 256 }; /* bytes that a template puts there at most */

int64_t sl_app_special_token(const struct sl_app *app, const char *text)
{
    size_t n;
    int64_t id = sl_tokenizer_find(app->tokenizer, text, strlen(text));
    return id >= 0 && !sl_tokenizer_bytes(app->tokenizer, (uint32_t)id, &n) ? id : -1;
}

static void find_marks(struct sl_app *app)
{
    app->plain_marks = 0;
    for (size_t i = 0; app->chat && i < SL_CHAT_MARKS_MAX && app->chat->marks[i]; i++)
        if (sl_app_special_token(app, app->chat->marks[i]) < 0)
            app->plain_marks |= 1u << i;
}

enum sl_code sl_app_choose_chat(struct sl_app *app, const char *jinja, size_t n, bool embedded,
                                struct sl_error *err)
{
    const char *name = app->config->chat_template;
    enum sl_code c = SL_OK;
    if (name)
        app->chat = sl_chat_template_find(name);
    else if (embedded)
        app->chat = sl_chat_template_find("rwkv-brief");
    else if (jinja && (app->chat = sl_chat_template_find(jinja)))
        ; /* a converted file may have the name of one */
    else if (jinja)
        c = sl_chat_template_recognise(&app->chat, jinja, n, err);
    else
        app->chat = sl_chat_template_unsaid(sl_tokenizer_kind(app->tokenizer));
    app->chat_unknown = jinja && !app->chat;
    find_marks(app);
    return c;
}

enum sl_code sl_app_has_chat(const struct sl_app *app, struct sl_error *err)
{
    if (app->chat)
        return SL_OK;
    return sl_fail_param(err, SL_E_UNSUPPORTED, "messages",
                         "%s; the server's option --chat-template names one (GET /v1/models says "
                         "which is used), or send a prompt",
                         app->chat_unknown
                             ? "the model's chat template is none of those that are known here"
                             : "the model's files have no chat template");
}

enum sl_code sl_app_render(const struct sl_app *app, const struct sl_input *in, bool continues,
                           bool reply, struct sl_rendered *ret, struct sl_error *err)
{
    size_t n = in->n_messages;
    *ret = (struct sl_rendered){.text = in->text};
    sl_buf_init(&ret->own, app->limits.prompt_bytes + app->limits.messages * AROUND_A_MESSAGE);
    sl_buf_init(&ret->ranges, (n + 1) * sizeof(struct sl_range));
    if (in->kind != SL_INPUT_MESSAGES)
        return SL_OK;
    enum sl_code c = sl_app_has_chat(app, err);
    if (!c)
        c = sl_chat_check(app->chat, in->messages, n, continues, app->plain_marks, err);
    if (c)
        return c;
    sl_chat_render(&ret->own, &ret->ranges, app->chat, in->messages, n, continues, reply);
    ret->text = (struct sl_text){.s = ret->own.data, .n = ret->own.len};
    ret->contents = (const struct sl_range *)(const void *)ret->ranges.data;
    ret->n_contents = ret->ranges.len / sizeof *ret->contents;
    c = sl_buf_code(&ret->own, err);
    return c ? c : sl_buf_code(&ret->ranges, err);
}

void sl_rendered_done(struct sl_rendered *r)
{
    sl_buf_done(&r->own);
    sl_buf_done(&r->ranges);
}
