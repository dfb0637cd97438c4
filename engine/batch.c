/* batch.c: see batch.h. */
#include "engine/batch.h"

#include <assert.h>

enum { BESIDE_MIN = 8, BESIDE_UNMEASURED = 32 };

void sl_batch_init(struct sl_batch *b, size_t max_rows)
{
    *b = (struct sl_batch){.max_rows = max_rows};
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What turns want together. */
struct wishes {
    size_t n_decode, n_prefill, prompt_rows;
};

static double stretch(const struct sl_batch *b, const struct wishes *w)
{
    if (w->n_prefill <= w->n_decode || w->prompt_rows > SL_BATCH_BURST_STEPS * b->max_rows)
        return SL_BATCH_STRETCH;
    return SL_BATCH_STRETCH * (double)w->n_prefill / (double)w->n_decode;
}

static size_t prefill_budget(const struct sl_batch *b, size_t room, const struct wishes *w)
{
    if (!w->n_decode)
        return room;
    double more = stretch(b, w) - 1;
    double rows = more * (BESIDE_UNMEASURED / (SL_BATCH_STRETCH - 1));
    if (b->decode_us > 0 && b->prefill_us > 0)
        rows = more * b->decode_us / b->prefill_us;
    size_t budget = rows > (double)room ? room : (size_t)rows;
    return min_size(budget < BESIDE_MIN ? BESIDE_MIN : budget, room);
}

/* The prefill turns in order from the cursor: each up to `share` rows on top of what it has. */
static size_t give(struct sl_batch_entry *e, size_t n, size_t first, size_t budget, size_t share)
{
    for (size_t k = 0; k < n && budget; k++) {
        struct sl_batch_entry *x = &e[(first + k) % n];
        if (x->kind != SL_BATCH_PREFILL)
            continue;
        size_t rows = min_size(min_size(x->want - x->take, share), budget);
        x->take += rows;
        budget -= rows;
    }
    return budget;
}

void sl_batch_pick(struct sl_batch *b, struct sl_batch_entry *e, size_t n)
{
    assert(n <= b->max_rows);
    size_t room = b->max_rows;
    struct wishes w = {0};
    for (size_t i = 0; i < n; i++) {
        assert(e[i].want >= 1);
        e[i].take = e[i].kind == SL_BATCH_DECODE ? 1 : 0;
        w.n_decode += e[i].kind == SL_BATCH_DECODE;
        if (e[i].kind != SL_BATCH_PREFILL)
            continue;
        w.n_prefill++;
        w.prompt_rows += min_size(e[i].whole, SIZE_MAX - w.prompt_rows);
    }
    room -= w.n_decode;
    for (size_t i = 0; i < n; i++) {
        if (e[i].kind == SL_BATCH_REPLAY) {
            e[i].take = min_size(e[i].want, room);
            room -= e[i].take;
        }
    }
    size_t budget = prefill_budget(b, room, &w);
    if (!w.n_prefill || !budget)
        return;
    size_t nth = b->cursor++ % w.n_prefill, first = 0;
    for (size_t i = 0, seen = 0; i < n; i++)
        if (e[i].kind == SL_BATCH_PREFILL && seen++ == nth)
            first = i;
    size_t share = budget / w.n_prefill;
    budget = give(e, n, first, budget, share ? share : 1);
    give(e, n, first, budget, budget);
}

static void follow(double *average, double now)
{
    *average = *average > 0 ? *average + (now - *average) / 8 : now;
}

void sl_batch_observe(struct sl_batch *b, size_t decode_rows, size_t other_rows, double us)
{
    if (!other_rows)
        follow(&b->decode_us, us);
    else if (!decode_rows && other_rows >= BESIDE_MIN)
        follow(&b->prefill_us, us / (double)other_rows);
    else if (b->decode_us > 0 && us > b->decode_us && other_rows >= BESIDE_MIN)
        follow(&b->prefill_us, (us - b->decode_us) / (double)other_rows);
}
