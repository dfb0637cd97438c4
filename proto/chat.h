/* chat.h: messages -> the text that a model continues.
 *
 * A template is data: what stands around each role's content, what joins a message to whatever
 * follows it, what ends a reply. The joints stand *between* messages and nothing after the last,
 * which is also what a session's state holds when a stop was cut from it: so a continuation of a
 * session that is not empty begins with the joint after a reply.
 *
 *     first request   "User: hi\n\nAssistant:"           the model goes on: " Hello."
 *     the next one    "\n\nUser: how are you?\n\nAssistant:"
 *
 * No content can forge a turn. The templates of RWKV are text: there, line breaks of every kind
 * become "\n", lines without a character but blanks are dropped, the ends are trimmed; so the
 * separator, a blank line, never comes from a content. (RWKV's own chat code does the same.) Others
 * have marks, most of them special tokens of the model: contents are tokenised as plain text
 * (`contents`, tokenizer.h), and where a mark is no special token a content that holds it is
 * refused. Any thread; allocates in the buffers only. */
#ifndef SLATE_PROTO_CHAT_H
#define SLATE_PROTO_CHAT_H

#include "proto/request.h"
#include "slate/tokenizer.h"

enum { SL_CHAT_STOPS_MAX = 4, SL_CHAT_MARKS_MAX = 6 };

enum sl_chat_cleaning { SL_CHAT_VERBATIM, SL_CHAT_TRIMMED, SL_CHAT_PARAGRAPH };

struct sl_chat_template {
    const char *name; /* "rwkv" */
    struct {          /* by enum sl_chat_role */
        const char *open, *close;
        const char *join; /* before whatever follows */
    } role[3];
    enum sl_chat_cleaning cleaning;
    const char *default_system; /* of a conversation that begins without one; NULL: none */
    bool system_in_user; /* a system message is the first one's beginning; roles take turns, user
                            and assistant */
    const char *stops[SL_CHAT_STOPS_MAX]; /* what ends a reply, besides the end tokens; up to the
                                             first NULL */
    const char *marks[SL_CHAT_MARKS_MAX]; /* what no content may hold, where it is no special token;
                                             up to the first NULL */
    bool drop_space; /* a reply begins with one blank that belongs to the template */
};

/* The table, one row per template:
 *   "rwkv"        World models: a reply may have paragraphs; it ends where the next turn begins
 *   "rwkv-brief"  the embedded model: a reply is one paragraph and ends at a blank line
 *   "chatml"      <|im_start|>user … <|im_end|>
 *   "qwen2"       the same, with a system message where a conversation has none
 *   "llama-2"     [INST] <<SYS>> … <</SYS>> … [/INST]
 *   "plain"       contents, a blank line between two; only the end token ends a reply */
extern const struct sl_chat_template sl_chat_templates[];
extern const size_t sl_n_chat_templates;
const struct sl_chat_template *sl_chat_template_find(const char *name); /* NULL: no such one */

/* What a model of that kind of tokenizer (sl_tokenizer_kind()) has whose files say nothing of a
 * template: RWKV's for a World vocabulary, which is RWKV's as well; else NULL. */
const struct sl_chat_template *sl_chat_template_unsaid(const char *tokenizer_kind);

/* The row that a template in Jinja's language is, as models' files have them (chat_template), or a
 * row's bare name; NULL: none is: chat_jinja.c. Errors: NO_MEMORY. */
SL_NODISCARD enum sl_code sl_chat_template_recognise(const struct sl_chat_template **ret,
                                                     const char *jinja, size_t n,
                                                     struct sl_error *err);

/* Can these messages be rendered? plain_marks: a bit for each of the template's marks that is no
 * special token of the model. Errors: INVALID_VALUE (`messages`: a mark in a content; roles
 * that do not take turns where they must). */
SL_NODISCARD enum sl_code sl_chat_check(const struct sl_chat_template *t,
                                        const struct sl_message *messages, size_t n, bool continues,
                                        uint32_t plain_marks, struct sl_error *err);

/* Appends the messages, which were checked, as a continuation. `continues`: the session has
 * content, a joint comes first. `reply`: ends with what opens a reply, ready to generate; false:
 * they are only read (max_tokens 0, POST /v1/sessions). n ≥ 1. `contents` (may be NULL) gets a
 * struct sl_range for each content: where in b it lies. */
void sl_chat_render(struct sl_buf *b, struct sl_buf *contents, const struct sl_chat_template *t,
                    const struct sl_message *messages, size_t n, bool continues, bool reply);

/* A reply's text as clients see it, a piece at a time: *started begins false. Drops the blank at
 * the start where the template says so: from the text, never from the state. */
struct sl_text sl_chat_reply_text(const struct sl_chat_template *t, bool *started,
                                  struct sl_text piece);

#endif
