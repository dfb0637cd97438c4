/* told.c: see told.h. */
#include "tests/support/told.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

enum { OUTPUT_TOKENS = 5, SESSIONS_MAX = 64 };

void told_body(char dst[TOLD_BODY], const char *id, unsigned seed)
{
    snprintf(dst, TOLD_BODY,
             "{\"session\":\"%.15s\",\"prompt\":\"say %u.\",\"seed\":%u,\"max_tokens\":%d,"
             "\"ignore_eos\":true,\"logprobs\":1,\"return_tokens\":true}",
             id, seed, seed, OUTPUT_TOKENS);
}

void told_turn(struct told *t, unsigned seed, struct reply *r)
{
    assert_true(t->n_turns < TOLD_TURNS_MAX);
    struct gen *g = &t->turns[t->n_turns].g;
    t->turns[t->n_turns++].seed = seed;
    *g = (struct gen){.r = r};
    if (r)
        output_of(r, &g->o);
    t->version++;
}

static struct told *nth(struct told *first, size_t stride, size_t i)
{
    return (struct told *)(void *)((char *)first + i * stride);
}

void told_compare(struct told *first, size_t stride, size_t n, struct client *mirror)
{
    assert_true(n <= SESSIONS_MAX);
    for (size_t turn = 0; turn < TOLD_TURNS_MAX; turn++) {
        struct call *k[SESSIONS_MAX] = {0};
        for (size_t i = 0; i < n; i++) {
            const struct told *t = nth(first, stride, i);
            char body[TOLD_BODY];
            if (turn >= t->n_turns)
                continue;
            told_body(body, t->id, t->turns[turn].seed);
            k[i] = call_start(mirror, "POST", "/v1/generate", NULL, body, strlen(body));
        }
        for (size_t i = 0; i < n; i++) {
            const struct told *t = nth(first, stride, i);
            struct gen want;
            if (!k[i])
                continue;
            generate_finish(k[i], &want);
            if (t->turns[turn].g.r)
                output_same(&t->turns[turn].g.o, &want.o);
            gen_done(&want);
        }
    }
    for (size_t i = 0; i < n; i++)
        told_forget(nth(first, stride, i));
}

void told_forget(struct told *t)
{
    for (size_t i = 0; i < t->n_turns; i++)
        gen_done(&t->turns[i].g);
    t->n_turns = 0;
}
