/* batch.c: see batch.h. */
#include "engine/batch.h"

#include <assert.h>
#include <math.h>

/* The fewest rows of prefill that a step has beside decoding ones: fewer are hardly cheaper. */
enum { BESIDE_LEAST = 4, BESIDE_UNMEASURED = 32 };

void sl_batch_init(struct sl_batch *b, size_t max_rows)
{
    *b = (struct sl_batch){.max_rows = max_rows, .n_steps = 1};
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What turns want together. */
struct wishes {
    size_t n_decode, n_prefill, prompt_rows;
};

/* How many times as long the step may take. fit: rows of prefill that take as long as decoding. */
static double stretch(const struct sl_batch *b, const struct wishes *w, double fit)
{
    if (w->n_prefill <= w->n_decode)
        return fmin(SL_BATCH_STRETCH, fmax(SL_BATCH_STRETCH_LEAST,
                                           1 + (double)w->prompt_rows / SL_BATCH_SPREAD / fit));
    double times = SL_BATCH_STRETCH * (double)w->n_prefill / (double)w->n_decode;
    bool burst = w->prompt_rows <= SL_BATCH_BURST_STEPS * b->max_rows;
    return burst ? times : fmin(times, SL_BATCH_STRETCH_MOST);
}

/* Numbers of rows that share a size are so close that their steps take about as long. */
static size_t size_of(size_t n_decode)
{
    enum { SINGLE = 8, OF_DOUBLING = 4 };
    size_t size = SINGLE, from = SINGLE; /* rows of the doubling: above `from`, up to twice that */
    assert(n_decode >= 1);
    if (n_decode <= SINGLE)
        return n_decode - 1;
    for (; n_decode > 2 * from; from *= 2)
        size += OF_DOUBLING;
    size += (n_decode - from - 1) * OF_DOUBLING / from;
    return min_size(size, SL_BATCH_SIZES - 1);
}

/* Whether this step is decoding's alone, for its time to be known: one of a size that was never
 * seen, and of all that were seen one in SL_BATCH_RENEW steps. */
static bool measures(struct sl_batch *b, size_t n_decode)
{
    uint64_t *asked = &b->decode[size_of(n_decode)].asked_at;
    if (*asked) {
        if (b->n_steps - *asked < SL_BATCH_RENEW || b->n_steps - b->renewed < SL_BATCH_RENEW)
            return false;
        b->renewed = b->n_steps;
    }
    *asked = b->n_steps;
    return true;
}

static size_t prefill_budget(const struct sl_batch *b, size_t room, const struct wishes *w)
{
    if (!w->n_decode)
        return room;
    double decode_us = b->decode[size_of(w->n_decode)].us;
    double fit = BESIDE_UNMEASURED / (SL_BATCH_STRETCH - 1); /* into another step's time */
    if (decode_us > 0 && b->prefill_us > 0) /* no row of prefill costs more than one that decodes */
        fit = fmax(decode_us / b->prefill_us, (double)w->n_decode);
    double rows =
        fmax((stretch(b, w, fit) - 1) * fit, fmax(BESIDE_LEAST, fmin(fit, SL_BATCH_BESIDE)));
    return rows > (double)room ? room : (size_t)rows;
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
    b->n_steps++;
    room -= w.n_decode;
    bool alone = true;
    for (size_t i = 0; i < n; i++) {
        if (e[i].kind == SL_BATCH_REPLAY) {
            e[i].take = min_size(e[i].want, room);
            room -= e[i].take;
            alone = false;
        }
    }
    if (!w.n_prefill || !room || (w.n_decode && alone && measures(b, w.n_decode)))
        return;
    size_t budget = prefill_budget(b, room, &w);
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

/* A step of decoding alone. Where prompts leave no other, those that were made for it are few: an
 * average of them would keep for thousands of steps one that was slow by chance, and the least of
 * them one that was fast, so it is the lesser of the last two. */
static void observe_alone(struct sl_batch *b, size_t size, double us)
{
    double *known = &b->decode[size].us, *last = &b->decode[size].last_us;
    if (b->decode[size].asked_at == b->n_steps && *last > 0)
        *known = fmin(us, *last);
    else
        follow(known, us);
    *last = us;
    b->decode[size].asked_at = b->n_steps;
}

void sl_batch_observe(struct sl_batch *b, size_t decode_rows, size_t other_rows, double us)
{
    double before = 0;
    if (decode_rows) {
        size_t size = size_of(decode_rows);
        if (!other_rows) {
            observe_alone(b, size, us);
            return;
        }
        if (!(b->decode[size].us > 0))
            return;
        /* With other rows a step does not take less time than without them. */
        before = b->decode[size].us = fmin(b->decode[size].us, us);
    }
    if (us > before && other_rows >= BESIDE_LEAST)
        follow(&b->prefill_us, (us - before) / (double)other_rows);
}
