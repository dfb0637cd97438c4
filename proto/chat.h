/* chat.h: messages -> the text that a model continues.
 *
 * A template is data: what each role is called, what separates two turns, what ends a reply. The
 * text of a conversation is its turns with the separator *between* them and nothing after the
 * last, which is also what a session's state holds when a stop was cut from it: so a continuation
 * of a session that is not empty begins with the separator.
 *
 *     first request   "User: hi\n\nAssistant:"           the model goes on: " Hello."
 *     the next one    "\n\nUser: how are you?\n\nAssistant:"
 *
 * No content can forge a turn: line breaks of every kind become "\n", lines without a character
 * but blanks are dropped, the ends are trimmed; so the separator, a blank line, never comes from a
 * content. (RWKV's own chat code does the same.) Any thread; allocates in the buffer only. */
#ifndef SLATE_PROTO_CHAT_H
#define SLATE_PROTO_CHAT_H

#include "proto/request.h"

enum { SL_CHAT_STOPS_MAX = 4 };

struct sl_chat_template {
    const char *name;                     /* "rwkv" */
    const char *label[3];                 /* by enum sl_chat_role: "System:", … */
    const char *separator;                /* "\n\n" */
    const char *stops[SL_CHAT_STOPS_MAX]; /* what ends a reply, besides the end token; up to the
                                             first NULL */
    bool drop_space; /* a reply begins with one blank that belongs to the template */
};

/* The table, one row per template:
 *   "rwkv"        World models: a reply may have paragraphs; it ends where the next turn begins
 *   "rwkv-brief"  the embedded model: a reply is one paragraph and ends at a blank line  */
extern const struct sl_chat_template sl_chat_templates[];
extern const size_t sl_n_chat_templates;
const struct sl_chat_template *sl_chat_template_find(const char *name); /* NULL: no such one */

/* Appends the messages as a continuation. `continues`: the session has content, the separator
 * comes first. `reply`: ends with "Assistant:", ready to generate; false: they are only read
 * (max_tokens 0, POST /v1/sessions). n ≥ 1. */
void sl_chat_render(struct sl_buf *b, const struct sl_chat_template *t,
                    const struct sl_message *messages, size_t n, bool continues, bool reply);

/* A reply's text as clients see it, a piece at a time: *started begins false. Drops the blank at
 * the start where the template says so: from the text, never from the state. */
struct sl_text sl_chat_reply_text(const struct sl_chat_template *t, bool *started,
                                  struct sl_text piece);

#endif
