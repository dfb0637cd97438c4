/* histories.c: see histories.h. */
#include "tests/support/histories.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/node.h"

enum { AT_ONCE = 16, DEPTH_MAX = 256 };

void histories_init(struct histories *hs, struct client *oracle)
{
    *hs = (struct histories){.oracle = oracle};
}

void histories_done(struct histories *hs)
{
    while (hs->newest) {
        struct history *h = hs->newest;
        hs->newest = h->older;
        free(h->tokens);
        free(h->logprobs);
        free(h);
    }
}

void history_body(char dst[320], const char *session, unsigned seed, size_t max_tokens, bool stream)
{
    int n = snprintf(dst, 320,
                     "{\"session\":\"%.32s\",\"prompt\":\"say %u\",\"seed\":%u,\"max_tokens\":%zu,"
                     "\"temperature\":%d,\"frequency_penalty\":0.3,\"penalty_last_n\":20,"
                     "\"ignore_eos\":true,\"logprobs\":1,\"return_tokens\":true,\"stream\":%s}",
                     session, seed, seed, max_tokens, seed % 4 ? 1 : 0, stream ? "true" : "false");
    assert_in_range(n, 1, 319);
}

/* --- the tree ----------------------------------------------------------------------------------*/

static struct history *add(struct histories *hs, const struct history *parent, unsigned seed,
                           size_t max_tokens)
{
    struct history *h = calloc(1, sizeof *h);
    assert_non_null(h);
    *h = (struct history){.parent = parent,
                          .depth = parent ? parent->depth + 1 : 1,
                          .seed = seed,
                          .max_tokens = max_tokens,
                          .older = hs->newest};
    assert_true(h->depth < DEPTH_MAX);
    hs->newest = h;
    return h;
}

static void append(struct history *h, const uint32_t *tokens, const double *logprobs, size_t n)
{
    h->tokens = realloc(h->tokens, (h->n + n + 1) * sizeof *h->tokens);
    h->logprobs = realloc(h->logprobs, (h->n + n + 1) * sizeof *h->logprobs);
    assert_true(h->tokens && h->logprobs);
    for (size_t i = 0; i < n; i++) {
        h->tokens[h->n] = tokens[i];
        h->logprobs[h->n++] = logprobs[i];
    }
    h->is_told = true;
    assert_true(h->n <= h->max_tokens);
}

static void take(struct history *h, const struct reply *r)
{
    struct output o;
    output_of(r, &o);
    double *p = calloc(o.n_tokens + 1, sizeof *p);
    assert_non_null(p);
    assert_int_equal(json_array_size(o.logprobs), o.n_tokens);
    for (size_t i = 0; i < o.n_tokens; i++)
        p[i] = num_at(json_array_get(o.logprobs, i), "logprob");
    append(h, o.tokens, p, o.n_tokens);
    free(p);
    output_done(&o);
}

const struct history *history_add(struct histories *hs, const struct history *parent, unsigned seed,
                                  size_t max_tokens, const struct reply *r)
{
    struct history *h = add(hs, parent, seed, max_tokens);
    if (r)
        take(h, r);
    return h;
}

const struct history *history_resumed(struct histories *hs, const struct history *paused,
                                      const struct reply *r)
{
    struct history *h = add(hs, paused->parent, paused->seed, paused->max_tokens);
    assert_true(paused->is_told);
    append(h, paused->tokens, paused->logprobs, paused->n);
    take(h, r);
    return h;
}

/* --- the oracle --------------------------------------------------------------------------------*/

/* One session there, and the turns it is told. */
struct replay {
    char id[24];
    struct history *turns[DEPTH_MAX];
    size_t n;
    struct call *call;
};

static void compare(const struct replay *p, struct history *h, struct reply *r)
{
    struct history got = {.max_tokens = h->max_tokens};
    take(&got, expect(r, 200));
    if (h->is_told && !h->checked) {
        size_t i = 0;
        while (i < h->n && i < got.n && h->tokens[i] == got.tokens[i] &&
               h->logprobs[i] == got.logprobs[i])
            i++;
        if (i < h->n || h->n != got.n)
            fail_msg(
                "turn %zu of %zu (seed %u) gave %zu tokens; told without interruption it gives "
                "%zu, and another one at %zu (oracle's session %s)",
                h->depth, p->n, h->seed, h->n, got.n, i, p->id);
    }
    h->checked = true;
    free(got.tokens);
    free(got.logprobs);
    reply_free(r);
}

/* The turns up to h; those that others go on from are marked as looked at with it. */
static void begin(struct histories *hs, struct replay *p, struct history *h)
{
    memset(p, 0, sizeof *p);
    snprintf(p->id, sizeof p->id, "r%zu", hs->n_sessions++);
    p->n = h->depth;
    for (size_t i = h->depth; h; h = (struct history *)(uintptr_t)h->parent)
        p->turns[--i] = h;
    reply_free(expect(post(hs->oracle, "/v1/sessions", "{'id':'%s'}", p->id), 201));
}

static void run(struct histories *hs, struct replay *all, size_t n)
{
    char body[320];
    for (size_t t = 0; t < DEPTH_MAX; t++) {
        for (size_t i = 0; i < n; i++) {
            if (t >= all[i].n)
                continue;
            const struct history *h = all[i].turns[t];
            history_body(body, all[i].id, h->seed, h->is_told ? h->n : h->max_tokens, false);
            all[i].call = call_start(hs->oracle, "POST", "/v1/generate", NULL, body, strlen(body));
        }
        for (size_t i = 0; i < n; i++)
            if (t < all[i].n)
                compare(&all[i], all[i].turns[t], call_finish(all[i].call));
    }
    for (size_t i = 0; i < n; i++) {
        reply_free(expect(del(hs->oracle, session_path(all[i].id, "")), 200));
        hs->n_checked += all[i].n;
    }
}

static bool goes_on_unchecked(const struct histories *hs, const struct history *h)
{
    for (const struct history *o = hs->newest; o && o != h; o = o->older)
        if (o->parent == h && !o->checked)
            return true;
    return false;
}

void histories_check(struct histories *hs)
{
    static struct replay all[AT_ONCE];
    size_t n = 0;
    /* Newest first: what is on their way is checked with them. */
    for (struct history *h = hs->newest; h; h = h->older) {
        if (h->checked || goes_on_unchecked(hs, h))
            continue;
        begin(hs, &all[n++], h);
        if (n == AT_ONCE) {
            run(hs, all, n);
            n = 0;
        }
    }
    run(hs, all, n);
}
