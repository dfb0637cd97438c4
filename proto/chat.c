/* chat.c: see chat.h. */
#include "proto/chat.h"

#include <string.h>

const struct sl_chat_template sl_chat_templates[] = {
    {.name = "rwkv",
     .label = {[SL_CHAT_SYSTEM] = "System:",
               [SL_CHAT_USER] = "User:",
               [SL_CHAT_ASSISTANT] = "Assistant:"},
     .separator = "\n\n",
     .stops = {"\n\nUser:", "\n\nSystem:", "\n\nAssistant:"},
     .drop_space = true},
    {.name = "rwkv-brief",
     .label = {[SL_CHAT_SYSTEM] = "System:",
               [SL_CHAT_USER] = "User:",
               [SL_CHAT_ASSISTANT] = "Assistant:"},
     .separator = "\n\n",
     .stops = {"\n\n"},
     .drop_space = true},
};
const size_t sl_n_chat_templates = sizeof sl_chat_templates / sizeof *sl_chat_templates;

const struct sl_chat_template *sl_chat_template_find(const char *name)
{
    for (size_t i = 0; i < sl_n_chat_templates; i++)
        if (strcmp(sl_chat_templates[i].name, name) == 0)
            return &sl_chat_templates[i];
    return NULL;
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

static void put_content(struct sl_buf *b, struct sl_text t)
{
    const char *s = t.s;
    size_t i = 0, n = t.n;
    while (i < n && (is_break(s[i]) || is_blank(s[i])))
        i++;
    while (n > i && (is_break(s[n - 1]) || is_blank(s[n - 1])))
        n--;
    if (i < n)
        sl_buf_putc(b, ' ');
    while (i < n) {
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

void sl_chat_render(struct sl_buf *b, const struct sl_chat_template *t,
                    const struct sl_message *messages, size_t n, bool continues, bool reply)
{
    for (size_t i = 0; i < n; i++) {
        if (i > 0 || continues)
            sl_buf_puts(b, t->separator);
        sl_buf_puts(b, t->label[messages[i].role]);
        put_content(b, messages[i].content);
    }
    if (reply) {
        sl_buf_puts(b, t->separator);
        sl_buf_puts(b, t->label[SL_CHAT_ASSISTANT]);
    }
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
