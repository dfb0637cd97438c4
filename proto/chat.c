/* chat.c: see chat.h. */
#include "proto/chat.h"

#include <string.h>

#define RWKV_ROLES                                                                                 \
    {                                                                                              \
        [SL_CHAT_SYSTEM] = {"System:", "", "\n\n"}, [SL_CHAT_USER] = {"User:", "", "\n\n"},        \
        [SL_CHAT_ASSISTANT] = {"Assistant:", "", "\n\n"},                                          \
    }
#define CHATML_ROLES                                                                               \
    {                                                                                              \
        [SL_CHAT_SYSTEM] = {"<|im_start|>system\n", "", "<|im_end|>\n"},                           \
        [SL_CHAT_USER] = {"<|im_start|>user\n", "", "<|im_end|>\n"},                               \
        [SL_CHAT_ASSISTANT] = {"<|im_start|>assistant\n", "", "<|im_end|>\n"},                     \
    }
#define CHATML_MARKS                                                                               \
    {                                                                                              \
        "<|im_start|>", "<|im_end|>"                                                               \
    }

const struct sl_chat_template sl_chat_templates[] = {
    {.name = "rwkv",
     .role = RWKV_ROLES,
     .cleaning = SL_CHAT_PARAGRAPH,
     .stops = {"\n\nUser:", "\n\nSystem:", "\n\nAssistant:"},
     .drop_space = true},
    {.name = "rwkv-brief",
     .role = RWKV_ROLES,
     .cleaning = SL_CHAT_PARAGRAPH,
     .stops = {"\n\n"},
     .drop_space = true},
    {.name = "chatml", .role = CHATML_ROLES, .stops = {"<|im_end|>"}, .marks = CHATML_MARKS},
    {.name = "qwen2",
     .role = CHATML_ROLES,
     .default_system = "You are a helpful assistant.",
     .stops = {"<|im_end|>"},
     .marks = CHATML_MARKS},
    {.name = "llama-2",
     .role = {[SL_CHAT_SYSTEM] = {"[INST] <<SYS>>\n", "\n<</SYS>>\n\n", ""},
              [SL_CHAT_USER] = {"[INST] ", " [/INST]", ""},
              [SL_CHAT_ASSISTANT] = {" ", "", " </s><s>"}},
     .cleaning = SL_CHAT_TRIMMED,
     .system_in_user = true,
     .stops = {"</s>"},
     .marks = {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<s>", "</s>"},
     .drop_space = true},
    {.name = "plain", .role = {{"", "", "\n\n"}, {"", "", "\n\n"}, {"", "", "\n\n"}}},
};
const size_t sl_n_chat_templates = sizeof sl_chat_templates / sizeof *sl_chat_templates;

const struct sl_chat_template *sl_chat_template_find(const char *name)
{
    for (size_t i = 0; i < sl_n_chat_templates; i++)
        if (strcmp(sl_chat_templates[i].name, name) == 0)
            return &sl_chat_templates[i];
    return NULL;
}

const struct sl_chat_template *sl_chat_template_unsaid(const char *tokenizer_kind)
{
    bool is_world = strcmp(tokenizer_kind, "rwkv_world") == 0;
    return is_world ? sl_chat_template_find("rwkv") : NULL;
}

static bool is_break(char c)
{
    return c == '\n' || c == '\r';
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\v' || c == '\f';
}

/* From a line break on: over the following lines that hold blanks only. Returns where the next
 * line with something in it begins (its indentation is kept), n at the end. */
static size_t skip_breaks(const char *s, size_t i, size_t n)
{
    size_t line = i;
    for (; i < n && (is_break(s[i]) || is_blank(s[i])); i++)
        if (is_break(s[i]))
            line = i + 1;
    return i == n ? n : line;
}

static bool is_white(char c)
{
    return is_break(c) || is_blank(c);
}

/* One paragraph: see chat.h. */
static void put_paragraph(struct sl_buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t start = i;
        while (i < n && !is_break(s[i]))
            i++;
        sl_buf_put(b, s + start, i - start);
        if (i < n) {
            sl_buf_putc(b, '\n');
            i = skip_breaks(s, i, n);
        }
    }
}

static struct sl_text trimmed(struct sl_text s, bool left)
{
    while (s.n && left && is_white(s.s[0])) {
        s.s++;
        s.n--;
    }
    while (s.n && is_white(s.s[s.n - 1]))
        s.n--;
    return s;
}

/* `inside`: it follows a system message in one turn. */
static void put_content(struct sl_buf *b, struct sl_buf *contents, const struct sl_chat_template *t,
                        const struct sl_message *m, bool inside)
{
    struct sl_text s = m->content;
    bool is_prefix = t->system_in_user && m->role == SL_CHAT_SYSTEM; /* its ends are inner ones */
    if (t->cleaning != SL_CHAT_VERBATIM && !is_prefix)
        s = trimmed(s, !inside);
    if (t->cleaning == SL_CHAT_PARAGRAPH && s.n)
        sl_buf_putc(b, ' ');
    struct sl_range r = {b->len, b->len};
    if (t->cleaning == SL_CHAT_PARAGRAPH)
        put_paragraph(b, s.s, s.n);
    else if (s.n)
        sl_buf_put(b, s.s, s.n);
    r.end = b->len;
    if (contents && r.end > r.begin)
        sl_buf_put(contents, &r, sizeof r);
}

static void put_message(struct sl_buf *b, struct sl_buf *contents, const struct sl_chat_template *t,
                        const struct sl_message *m, bool inside)
{
    if (!inside)
        sl_buf_puts(b, t->role[m->role].open);
    put_content(b, contents, t, m, inside);
    sl_buf_puts(b, t->role[m->role].close);
}

void sl_chat_render(struct sl_buf *b, struct sl_buf *contents, const struct sl_chat_template *t,
                    const struct sl_message *messages, size_t n, bool continues, bool reply)
{
    const char *join = continues ? t->role[SL_CHAT_ASSISTANT].join : "";
    bool inside = false;
    if (t->default_system && !continues && messages[0].role != SL_CHAT_SYSTEM) {
        const struct sl_text s = {t->default_system, strlen(t->default_system)};
        put_message(b, NULL, t, &(const struct sl_message){SL_CHAT_SYSTEM, s}, false);
        join = t->role[SL_CHAT_SYSTEM].join;
    }
    for (size_t i = 0; i < n; i++) {
        sl_buf_puts(b, join);
        put_message(b, contents, t, &messages[i], inside);
        join = t->role[messages[i].role].join;
        inside = t->system_in_user && messages[i].role == SL_CHAT_SYSTEM;
    }
    if (reply) {
        sl_buf_puts(b, join);
        /* A blank of the template's own is the model's to write. */
        const char *open = t->role[SL_CHAT_ASSISTANT].open;
        sl_buf_puts(b, strcmp(open, " ") == 0 ? "" : open);
    }
}

/* --- what cannot be rendered --------------------------------------------------------------------
 */

static bool holds(struct sl_text s, const char *mark)
{
    return s.n && memmem(s.s, s.n, mark, strlen(mark)) != NULL;
}

static enum sl_code check_marks(const struct sl_chat_template *t, const struct sl_message *messages,
                                size_t n, uint32_t plain_marks, struct sl_error *err)
{
    for (size_t k = 0; k < SL_CHAT_MARKS_MAX && t->marks[k]; k++)
        for (size_t i = 0; i < n && plain_marks >> k & 1; i++)
            if (holds(messages[i].content, t->marks[k]))
                return sl_fail_param(err, SL_E_INVALID_VALUE, "messages",
                                     "the content of message %zu holds %s, which the chat template "
                                     "\"%s\" marks turns with",
                                     i, t->marks[k], t->name);
    return SL_OK;
}

enum sl_code sl_chat_check(const struct sl_chat_template *t, const struct sl_message *messages,
                           size_t n, bool continues, uint32_t plain_marks, struct sl_error *err)
{
    enum sl_chat_role next = SL_CHAT_USER;
    for (size_t i = 0; t->system_in_user && i < n; i++) {
        enum sl_chat_role role = messages[i].role;
        if (role == SL_CHAT_SYSTEM && i == 0 && !continues && n > 1)
            continue;
        if (role != next)
            return sl_fail_param(err, SL_E_INVALID_VALUE, "messages",
                                 "with the chat template \"%s\" a conversation is one system "
                                 "message or none, then user and assistant in turn; message %zu "
                                 "is out of turn",
                                 t->name, i);
        next = role == SL_CHAT_USER ? SL_CHAT_ASSISTANT : SL_CHAT_USER;
    }
    return check_marks(t, messages, n, plain_marks, err);
}

struct sl_text sl_chat_reply_text(const struct sl_chat_template *t, bool *started,
                                  struct sl_text piece)
{
    if (!*started && piece.n > 0) {
        *started = true;
        if (t->drop_space && piece.s[0] == ' ') {
            piece.s++;
            piece.n--;
        }
    }
    return piece;
}
