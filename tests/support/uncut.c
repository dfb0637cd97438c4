/* uncut.c: see uncut.h. */
#include "tests/support/uncut.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

/* --- asking ------------------------------------------------------------------------------------*/

/* Three ways to count what was generated. */
static const char *const penalties[] = {
    "'repetition_penalty':1.3,'penalty_last_n':20,'frequency_penalty':0.2",
    "'presence_penalty':0.4,'frequency_penalty':0.3,'penalty_decay':0.9",
    "'repetition_penalty':1.1,'penalty_decay':0.97,'penalty_last_n':200",
};

static const char *ask(const struct uncut *st, unsigned seed)
{
    static char text[2048];
    snprintf(text, sizeof text,
             "'max_tokens':%d,'temperature':1,'logprobs':3,'return_tokens':true,%s,%s,'seed':%u",
             UNCUT_TOKENS, penalties[seed % 3], st->settings, seed);
    return text;
}

void uncut_create(struct uncut *st, const char *id)
{
    reply_free(expect(
        post(st->node.a.client, "/v1/sessions", "{'id':'%s','prompt':'%s'}", id, st->start), 201));
}

struct call *uncut_begin(struct uncut *st, const char *id, unsigned seed)
{
    char fmt[2400];
    snprintf(fmt, sizeof fmt, "'session':'%%s','prompt':'%%s',%s", ask(st, seed));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    return stream_start(st->node.a.client, fmt, id, st->prompt);
#pragma GCC diagnostic pop
}

struct call *uncut_go_on(struct uncut *st, const char *id)
{
    /* What else is said is not heard: the turn has its settings. */
    return stream_start(st->node.a.client,
                        "'session':'%s','resume':true,'return_tokens':true,'temperature':0", id);
}

struct call *uncut_one_more(struct uncut *st, const char *id, unsigned seed)
{
    char fmt[2400];
    snprintf(fmt, sizeof fmt, "'session':'%%s','prompt':' b',%s", ask(st, seed + 1000));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    return stream_start(st->node.a.client, fmt, id);
#pragma GCC diagnostic pop
}

/* --- the references ----------------------------------------------------------------------------*/

static void make_references(struct uncut *st)
{
    struct call *k[UNCUT_SEEDS];
    char id[32];
    for (unsigned i = 0; i < UNCUT_SEEDS; i++) {
        snprintf(id, sizeof id, "ref-%u", i);
        uncut_create(st, id);
        k[i] = uncut_begin(st, id, i);
    }
    for (unsigned i = 0; i < UNCUT_SEEDS; i++)
        generate_finish(k[i], &st->turn[i]);
    for (unsigned i = 0; i < UNCUT_SEEDS; i++) {
        snprintf(id, sizeof id, "ref-%u", i);
        k[i] = uncut_one_more(st, id, i);
    }
    for (unsigned i = 0; i < UNCUT_SEEDS; i++) {
        generate_finish(k[i], &st->next[i]);
        snprintf(id, sizeof id, "/v1/sessions/ref-%u", i);
        reply_free(expect(del(st->node.a.client, id), 200));
    }
}

void uncut_open(struct uncut *st)
{
    node_init(&st->node, st->name, st->options);
    node_start(&st->node);
    make_references(st);
}

void uncut_close(struct uncut *st)
{
    for (unsigned i = 0; i < UNCUT_SEEDS; i++) {
        gen_done(&st->turn[i]);
        gen_done(&st->next[i]);
    }
    node_done(&st->node);
}

static void compare_to(const struct uncut *st, const char *what, unsigned seed,
                       const struct output *a, const struct output *b)
{
    size_t i = 0;
    while (i < a->n_tokens && i < b->n_tokens && a->tokens[i] == b->tokens[i])
        i++;
    if (i < a->n_tokens || i < b->n_tokens)
        print_error("%s, %s, seed %u: token %zu differs, of %zu and %zu\n", st->name, what, seed, i,
                    a->n_tokens, b->n_tokens);
    output_same(a, b);
}

void uncut_compare(struct uncut *st, const struct parts *p, unsigned seed)
{
    compare_to(st, "interrupted", seed, &p->all, &st->turn[seed].o);
}

void uncut_compare_next(struct uncut *st, const char *id, unsigned seed, struct call *k)
{
    struct gen g;
    char path[64];
    generate_finish(k, &g);
    compare_to(st, "the turn after", seed, &g.o, &st->next[seed].o);
    gen_done(&g);
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    reply_free(expect(del(st->node.a.client, path), 200));
}
