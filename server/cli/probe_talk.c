/* probe_talk.c: see probe_talk.h. */
#include "server/cli/probe_talk.h"

#include <ctype.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/random.h"
#include "engine/models/embedded.h"

enum { FIELDS_MAX = 9 };

struct small {
    struct sl_text user, assistant;
};

/* family and subject say what is told of: two facts that share both contradict each other. */
struct sl_fact {
    struct sl_text family, subject, told, question, answer, value, fixed, new_value;
};

struct sl_talk {
    struct sl_text unsure[FIELDS_MAX];
    size_t n_unsure;
    struct small *small;
    struct sl_fact *facts, *held;
    size_t n_small, n_facts, n_held;
};

/* --- the pieces --------------------------------------------------------------------------------*/

/* The fields of a line, parted by tabs; *s moves behind it. */
static size_t take_line(const char **s, const char *end, struct sl_text v[FIELDS_MAX])
{
    size_t n = 0;
    const char *line_end = memchr(*s, '\n', (size_t)(end - *s));
    line_end = line_end ? line_end : end;
    for (const char *p = *s; n < FIELDS_MAX; n++) {
        const char *tab = memchr(p, '\t', (size_t)(line_end - p));
        v[n] = (struct sl_text){p, (size_t)((tab ? tab : line_end) - p)};
        if (!tab) {
            n++;
            break;
        }
        p = tab + 1;
    }
    *s = line_end < end ? line_end + 1 : end;
    return n;
}

static bool is(struct sl_text t, const char *word)
{
    return t.n == strlen(word) && memcmp(t.s, word, t.n) == 0;
}

static void add_line(struct sl_talk *t, const struct sl_text *v, size_t n)
{
    if (is(v[0], "small") && n == 3) {
        t->small[t->n_small++] = (struct small){v[1], v[2]};
    } else if ((is(v[0], "fact") || is(v[0], "held")) && n == FIELDS_MAX) {
        struct sl_fact f = {v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]};
        if (is(v[0], "fact"))
            t->facts[t->n_facts++] = f;
        else
            t->held[t->n_held++] = f;
    } else {
        for (size_t i = 1; i < n; i++)
            t->unsure[t->n_unsure++] = v[i];
    }
}

enum sl_code sl_talk_open(struct sl_talk **ret, struct sl_error *err)
{
    size_t size, n_lines = 0;
    const char *s = sl_embedded_probe_data(&size), *end = s + size;
    struct sl_talk *t = sl_calloc(1, sizeof *t);
    for (const char *p = s; p < end; p++)
        n_lines += *p == '\n';
    if (t) {
        t->small = sl_calloc(n_lines, sizeof *t->small);
        t->facts = sl_calloc(n_lines, sizeof *t->facts);
        t->held = sl_calloc(n_lines, sizeof *t->held);
    }
    if (!t || !t->small || !t->facts || !t->held) {
        sl_talk_close(t);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for conversations");
    }
    while (s < end) {
        struct sl_text v[FIELDS_MAX];
        size_t n = take_line(&s, end, v);
        add_line(t, v, n);
    }
    *ret = t;
    return SL_OK;
}

void sl_talk_close(struct sl_talk *t)
{
    if (!t)
        return;
    sl_free(t->small);
    sl_free(t->facts);
    sl_free(t->held);
    sl_free(t);
}

/* --- a conversation ----------------------------------------------------------------------------*/

static size_t draw(struct sl_talk_case *c, size_t n)
{
    return (size_t)(sl_random_next(&c->seed) % n);
}

static void put(struct sl_buf *b, struct sl_text t)
{
    sl_buf_put(b, t.s, t.n);
}

static void put_turn(struct sl_buf *b, struct sl_text user, struct sl_text assistant)
{
    sl_buf_puts(b, "User: ");
    put(b, user);
    sl_buf_puts(b, "\n\nAssistant: ");
    put(b, assistant);
    sl_buf_puts(b, "\n\n");
}

static struct sl_text okay(void)
{
    return (struct sl_text){"Okay.", 5};
}

static bool same(struct sl_text a, struct sl_text b)
{
    return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
}

/* Is `word` in the text, with no letter or digit beside it? Capitals count where they are given. */
static bool says(const char *s, size_t n, struct sl_text word)
{
    for (size_t i = 0; word.n && i + word.n <= n; i++) {
        bool begins = i == 0 || !isalnum((unsigned char)s[i - 1]);
        bool ends = i + word.n == n || !isalnum((unsigned char)s[i + word.n]);
        if (begins && ends && memcmp(s + i, word.s, word.n) == 0)
            return true;
    }
    return false;
}

static bool same_matter(const struct sl_fact *f, const struct sl_fact *g)
{
    return same(f->family, g->family) && same(f->subject, g->subject);
}

/* Was another fact of f's family and subject told lately? */
static bool is_known(const struct sl_talk_case *c, const struct sl_fact *f)
{
    size_t n = c->n_told < SL_TALK_LATELY ? c->n_told : SL_TALK_LATELY;
    for (size_t i = 0; i < n; i++)
        if (same_matter(c->lately[i], f))
            return true;
    return false;
}

/* May f be told beside c's fact, without being the same, contradicting it, or giving it away? */
static bool is_apart(const struct sl_talk_case *c, const struct sl_fact *f)
{
    const struct sl_fact *g = c->fact;
    if (same_matter(f, g))
        return false;
    if (g->subject.n && (same(f->value, g->subject) || says(f->told.s, f->told.n, g->subject)))
        return false;
    return !same(f->value, g->value) && !same(f->value, g->new_value);
}

void sl_talk_case_init(struct sl_talk_case *c, const struct sl_talk *t, enum sl_talk_row row,
                       size_t n)
{
    *c = (struct sl_talk_case){.talk = t, .row = row, .seed = n * SL_TALK_ROWS + (size_t)row};
    (void)draw(c, 2);
    c->fact = row == SL_TALK_HELD ? &t->held[draw(c, t->n_held)] : &t->facts[draw(c, t->n_facts)];
}

static void put_small(struct sl_talk_case *c, struct sl_buf *b)
{
    const struct small *s = &c->talk->small[draw(c, c->talk->n_small)];
    put_turn(b, s->user, s->assistant);
}

static void put_fact(struct sl_talk_case *c, struct sl_buf *b)
{
    const struct sl_fact *f;
    do
        f = &c->talk->facts[draw(c, c->talk->n_facts)];
    while (!is_apart(c, f) || is_known(c, f));
    c->lately[c->n_told++ % SL_TALK_LATELY] = f;
    put_turn(b, f->told, okay());
    if (draw(c, 10) < 4)
        put_turn(b, f->question, f->answer);
    if (draw(c, 10) < 3)
        put_small(c, b);
}

void sl_talk_before(struct sl_talk_case *c, struct sl_buf *b)
{
    put_small(c, b);
    put_fact(c, b);
    put_fact(c, b);
    if (c->row != SL_TALK_UNKNOWN)
        put_turn(b, c->fact->told, okay());
}

void sl_talk_fix(struct sl_talk_case *c, struct sl_buf *b)
{
    put_turn(b, c->fact->fixed, okay());
}

void sl_talk_filler(struct sl_talk_case *c, struct sl_buf *b)
{
    if (c->row == SL_TALK_SMALL)
        put_small(c, b);
    else
        put_fact(c, b);
}

void sl_talk_question(struct sl_talk_case *c, struct sl_buf *b)
{
    sl_buf_puts(b, "User: ");
    put(b, c->fact->question);
    sl_buf_puts(b, "\n\nAssistant:");
}

bool sl_talk_is_right(const struct sl_talk_case *c, const char *answer, size_t n, bool *ret_old)
{
    const struct sl_fact *f = c->fact;
    *ret_old = c->row == SL_TALK_FIXED && says(answer, n, f->value);
    for (size_t i = 0; c->row == SL_TALK_UNKNOWN && i < c->talk->n_unsure; i++)
        if (says(answer, n, c->talk->unsure[i]))
            return true;
    if (c->row == SL_TALK_UNKNOWN)
        return false;
    return says(answer, n, c->row == SL_TALK_FIXED ? f->new_value : f->value);
}
