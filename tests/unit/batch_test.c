/* batch_test.c: who runs in the next step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/batch.h"
#include "tests/support/floats.h"

#define D                                                                                          \
    {                                                                                              \
        SL_BATCH_DECODE, 1, 0, 0                                                                   \
    }
#define P(n)                                                                                       \
    {                                                                                              \
        SL_BATCH_PREFILL, n, 0, n                                                                  \
    }
#define R(n)                                                                                       \
    {                                                                                              \
        SL_BATCH_REPLAY, n, 0, 0                                                                   \
    }

static void test_alone_gets_the_whole_step(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {P(2000)};
    sl_batch_init(&b, 512);
    sl_batch_pick(&b, e, 1);
    assert_int_equal(e[0].take, 512);
}

static void test_decode_and_replay_come_first(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {P(2000), D, R(9), D};
    sl_batch_init(&b, 64);
    sl_batch_pick(&b, e, 4);
    assert_int_equal(e[1].take, 1);
    assert_int_equal(e[3].take, 1);
    assert_int_equal(e[2].take, 9);
    assert_in_range(e[0].take, 16, 32); /* beside decoding, nothing measured yet */
}

/* Measured: 10 ms a step of decode, a quarter for a row of prefill: in 1.5 steps' time fit 20 rows.
 */
static void test_prefill_beside_decode_is_bounded_by_time(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {D, P(2000)};
    sl_batch_init(&b, 512);
    for (int i = 0; i < 50; i++) {
        sl_batch_observe(&b, 1, 0, 10000);
        sl_batch_observe(&b, 0, 100, 25000);
    }
    sl_batch_pick(&b, e, 2);
    assert_int_equal(e[1].take, 20); /* 0.5 · 10 ms / 0.25 ms */
}

static void test_short_prompts_pass_a_long_one(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[] = {P(100000), P(22), P(30)};
    sl_batch_init(&b, 512);
    sl_batch_pick(&b, e, 3);
    assert_int_equal(e[1].take, 22);
    assert_int_equal(e[2].take, 30);
    assert_int_equal(e[0].take, 512 - 52);
}

/* More prompts than rows: within a few steps each has had its share. */
static void test_nobody_starves(void **state)
{
    (void)state;
    enum { N = 40 };
    struct sl_batch b;
    size_t got[N] = {0};
    sl_batch_init(&b, N + 16);
    for (int step = 0; step < 200; step++) {
        struct sl_batch_entry e[N];
        for (size_t i = 0; i < N; i++)
            e[i] = (struct sl_batch_entry){i < 24 ? SL_BATCH_DECODE : SL_BATCH_PREFILL,
                                           i < 24 ? 1 : 1000, 0, 1000};
        sl_batch_pick(&b, e, N);
        for (size_t i = 0; i < N; i++)
            got[i] += e[i].take;
    }
    for (size_t i = 0; i < 24; i++)
        assert_int_equal(got[i], 200);
    for (size_t i = 24; i < N; i++)
        assert_in_range(got[i], 200, 500);
}

/* Whatever is asked: never more than wanted, never more than the step, never nothing at all. */
static void test_bounds_hold_for_random_wishes(void **state)
{
    (void)state;
    uint64_t seed = 7;
    struct sl_batch b;
    sl_batch_init(&b, 48);
    for (int round = 0; round < 20000; round++) {
        struct sl_batch_entry e[32];
        size_t n = 1 + next_random(&seed) % 32, rows = 0;
        for (size_t i = 0; i < n; i++) {
            enum sl_batch_kind kind = (enum sl_batch_kind)(next_random(&seed) % 3);
            e[i] = (struct sl_batch_entry){
                kind, kind == SL_BATCH_DECODE ? 1 : 1 + next_random(&seed) % 70, 9, 70};
        }
        sl_batch_pick(&b, e, n);
        for (size_t i = 0; i < n; i++) {
            assert_in_range(e[i].take, 0, e[i].want);
            if (e[i].kind == SL_BATCH_DECODE)
                assert_int_equal(e[i].take, 1);
            rows += e[i].take;
        }
        assert_in_range(rows, 1, 48);
        sl_batch_observe(&b, rows / 2, rows - rows / 2, (double)(next_random(&seed) % 100000));
    }
}

/* A machine whose step takes 10 ms for what one row needs, 0.4 ms for each decoding row more and
 * 0.6 for each of prefill, and the turns on it. */
enum { TURNS = 40, STEP_ROWS = 512 };

struct machine {
    struct sl_batch b;
    double now_ms;
    struct {
        double came_ms, first_ms, last_ms, longest_ms; /* its first token, its last, and gaps */
        size_t prompt, whole, tokens;                  /* left to read, of so many; generated */
    } turn[TURNS];
    size_t n; /* of them */
};

static void come(struct machine *m, size_t prompt)
{
    m->turn[m->n].came_ms = m->now_ms;
    m->turn[m->n].whole = prompt;
    m->turn[m->n++].prompt = prompt;
}

static void token_of(struct machine *m, size_t i)
{
    if (m->turn[i].tokens++ == 0)
        m->turn[i].first_ms = m->now_ms;
    else if (m->now_ms - m->turn[i].last_ms > m->turn[i].longest_ms)
        m->turn[i].longest_ms = m->now_ms - m->turn[i].last_ms;
    m->turn[i].last_ms = m->now_ms;
}

static void run_step(struct machine *m)
{
    struct sl_batch_entry e[TURNS];
    size_t decode = 0, prefill = 0;
    for (size_t i = 0; i < m->n; i++)
        e[i] = m->turn[i].prompt ? (struct sl_batch_entry){SL_BATCH_PREFILL, m->turn[i].prompt, 0,
                                                           m->turn[i].whole}
                                 : (struct sl_batch_entry){SL_BATCH_DECODE, 1, 0, 0};
    sl_batch_pick(&m->b, e, m->n);
    for (size_t i = 0; i < m->n; i++)
        *(e[i].kind == SL_BATCH_DECODE ? &decode : &prefill) += e[i].take;
    double ms = 10 + 0.4 * (double)decode + 0.6 * (double)prefill;
    m->now_ms += ms;
    sl_batch_observe(&m->b, decode, prefill, 1000 * ms);
    for (size_t i = 0; i < m->n; i++) {
        if (e[i].kind == SL_BATCH_PREFILL)
            m->turn[i].prompt -= e[i].take;
        if (!m->turn[i].prompt)
            token_of(m, i);
    }
}

/* The last first token of 32 prompts that come together, the first of them a step earlier. */
static double burst_ms(bool measured)
{
    struct machine m = {.n = 0};
    sl_batch_init(&m.b, STEP_ROWS);
    for (int i = 0; i < 50 && measured; i++) {
        sl_batch_observe(&m.b, 32, 0, 22800);
        sl_batch_observe(&m.b, 0, 100, 70000);
    }
    come(&m, 22);
    run_step(&m);
    while (m.n < 32)
        come(&m, 22);
    double last = 0;
    while (last == 0) {
        run_step(&m);
        for (size_t i = 0; i < m.n; i++)
            last = m.turn[i].first_ms > last ? m.turn[i].first_ms : last;
        for (size_t i = 0; i < m.n; i++)
            last = m.turn[i].tokens ? last : 0;
    }
    return last;
}

/* Nearly as soon as if none of them generated anything. */
static void test_a_burst_is_read_at_once(void **state)
{
    (void)state;
    double alone = 3 * 10 + 0.6 * 32 * 22; /* the first one's step, 31 · 22 rows in two */
    assert_true(burst_ms(true) <= 1.2 * alone);
    assert_true(burst_ms(false) <= 1.2 * alone);
}

/* One stream, then long prompts beside it: one, and as many as would be a burst were they short. */
static void test_long_prompts_stall_no_stream(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 31; n += 10) {
        struct machine m = {.n = 0};
        sl_batch_init(&m.b, STEP_ROWS);
        come(&m, 22);
        for (int i = 0; i < 48; i++)
            run_step(&m);
        for (size_t i = 0; i < n; i++)
            come(&m, 2000);
        for (size_t left = 1; left;) {
            run_step(&m);
            left = 0;
            for (size_t i = 0; i < m.n; i++)
                left += m.turn[i].prompt;
        }
        double usual = 10 + 0.4 * (double)(n == 1 ? 1 : m.n); /* many come to generate, too */
        assert_true(m.turn[0].longest_ms > usual && m.turn[0].longest_ms <= 2 * usual);
    }
}

/* n that decode, and then a prompt that does not end. */
static void beside_a_long_prompt(struct sl_batch_entry *e, size_t n)
{
    for (size_t i = 0; i < n; i++)
        e[i] = (struct sl_batch_entry){SL_BATCH_DECODE, 1, 0, 0};
    e[n] = (struct sl_batch_entry){SL_BATCH_PREFILL, 100000, 0, 100000};
}

/* A long prompt that is there all the time: its rows follow how many decode beside it, though no
 * step would be without it. */
static void test_long_prompts_follow_the_streams(void **state)
{
    (void)state;
    static const size_t streams[] = {1, 32, 1, 3, 20};
    for (size_t first = 0; first < 2; first++) {
        struct sl_batch b;
        sl_batch_init(&b, STEP_ROWS);
        sl_batch_observe(&b, 0, 22, 22 * 600); /* their own prompts */
        for (size_t phase = first; phase < sizeof streams / sizeof *streams; phase++) {
            size_t n = streams[phase], rows = 0, n_alone = 0;
            double usual_ms = 10 + 0.4 * (double)n;
            for (int step = 0; step < 600; step++) {
                struct sl_batch_entry e[33];
                beside_a_long_prompt(e, n);
                sl_batch_pick(&b, e, n + 1);
                double ms = usual_ms + 0.6 * (double)e[n].take;
                assert_true(step == 0 || ms <= 2.001 * usual_ms);
                sl_batch_observe(&b, n, e[n].take, 1000 * ms);
                rows += e[n].take;
                n_alone += !e[n].take;
            }
            double each = (SL_BATCH_STRETCH - 1) * usual_ms / 0.6; /* rows a step */
            assert_true((double)rows >= 0.97 * 600 * floor(each));
            assert_in_range(n_alone, 1, 600 / SL_BATCH_RENEW + 2);
        }
    }
}

/* The first step that decoding had alone took ten times as long as it does, for whatever reason:
 * prompts beside it, which leave it no other one, have no more rows than are theirs once it was
 * measured again. */
static void test_a_slow_first_step_is_forgotten(void **state)
{
    (void)state;
    struct sl_batch b;
    size_t n_long = 0;
    sl_batch_init(&b, STEP_ROWS);
    sl_batch_observe(&b, 0, 22, 22 * 600);
    sl_batch_observe(&b, 1, 0, 10 * 10400);
    for (int step = 0; step < 3 * SL_BATCH_RENEW; step++) {
        struct sl_batch_entry e[] = {D, P(100000)};
        sl_batch_pick(&b, e, 2);
        double ms = 10.4 + 0.6 * (double)e[1].take;
        n_long += ms > 2.001 * 10.4;
        sl_batch_observe(&b, 1, e[1].take, 1000 * ms);
    }
    assert_in_range(n_long, 1, SL_BATCH_RENEW);
}

/* The same with one that took a third of the time: prompts get the rows that are theirs again, and
 * half as many as there are others until then. */
static void test_a_fast_step_is_forgotten(void **state)
{
    (void)state;
    struct sl_batch b;
    size_t rows = 0, n_alone = 0;
    const double usual_ms = 10 + 0.4 * 32;
    enum { STEPS = 10 * SL_BATCH_RENEW };
    sl_batch_init(&b, STEP_ROWS);
    sl_batch_observe(&b, 0, 22, 22 * 600);
    for (int step = 0; step < STEPS; step++) {
        struct sl_batch_entry e[33];
        beside_a_long_prompt(e, 32);
        sl_batch_pick(&b, e, 33);
        double ms = usual_ms + 0.6 * (double)e[32].take;
        sl_batch_observe(&b, 32, e[32].take, step ? 1000 * ms : 1000 * ms / 3);
        rows += step >= 3 * SL_BATCH_RENEW ? e[32].take : 0;
        n_alone += !e[32].take;
        assert_true(!e[32].take || (double)e[32].take >= (SL_BATCH_STRETCH - 1) * 32);
    }
    double each = floor((SL_BATCH_STRETCH - 1) * usual_ms / 0.6);
    assert_in_range(n_alone, 1, STEPS / SL_BATCH_RENEW + 1);
    assert_true((double)rows >= 0.9 * (STEPS - 3 * SL_BATCH_RENEW) * each);
}

/* Steps of 17 rows say nothing of those of 32. */
static void test_sizes_are_told_apart(void **state)
{
    (void)state;
    struct sl_batch b;
    struct sl_batch_entry e[33];
    sl_batch_init(&b, STEP_ROWS);
    for (int i = 0; i < 50; i++) {
        sl_batch_observe(&b, 32, 0, 22800);
        sl_batch_observe(&b, 17, 0, 8000);
        sl_batch_observe(&b, 1, 0, 4000);
        sl_batch_observe(&b, 0, 100, 60000);
    }
    beside_a_long_prompt(e, 32);
    sl_batch_pick(&b, e, 33);
    assert_int_equal(e[32].take, (size_t)((SL_BATCH_STRETCH - 1) * 22.8 / 0.6));
}

/* However the number of those that decode wanders, prompts pause for few steps. */
static void test_few_steps_are_without_prompts(void **state)
{
    (void)state;
    enum { STEPS = 100 * SL_BATCH_RENEW, MOST = 32, SIZES = 16 };
    struct sl_batch b;
    uint64_t seed = 3;
    size_t n_alone = 0;
    sl_batch_init(&b, STEP_ROWS);
    for (int step = 0; step < STEPS; step++) {
        struct sl_batch_entry e[MOST + 1];
        size_t n = 1 + next_random(&seed) % MOST;
        beside_a_long_prompt(e, n);
        sl_batch_pick(&b, e, n + 1);
        sl_batch_observe(&b, n, e[n].take, 1000 * (10 + 0.4 * (double)n + 0.6 * (double)e[n].take));
        n_alone += !e[n].take;
    }
    assert_in_range(n_alone, SIZES, SIZES + STEPS / SL_BATCH_RENEW);
}

/* Clients that ask again as soon as they were answered. How long each first token and each step
 * took, after the first 500. */
struct loop {
    size_t n_first, n_late, n_steps, n_long; /* late: after 300 ms; long: 1.4 times */
    double first_ms, end_ms;                 /* between which they are counted */
    size_t n_tokens;
};

static void run_closed_loop(struct loop *ret, size_t prompt, size_t tokens)
{
    enum { CLIENTS = 32, STEPS = 3000, WARM = 500 };
    struct machine m = {.n = 0};
    *ret = (struct loop){0};
    sl_batch_init(&m.b, STEP_ROWS);
    for (size_t i = 0; i < CLIENTS; i++)
        come(&m, prompt + i); /* that they do not stay in step */
    for (int step = 0; step < STEPS; step++) {
        double begin = m.now_ms;
        if (step == WARM)
            ret->first_ms = begin;
        run_step(&m);
        ret->n_steps += step >= WARM;
        ret->n_long += step >= WARM && m.now_ms - begin > 1.4 * (10 + 0.4 * CLIENTS);
        for (size_t i = 0; i < m.n; i++) {
            ret->n_tokens += step >= WARM && m.turn[i].last_ms == m.now_ms;
            if (m.turn[i].tokens < tokens + i)
                continue;
            ret->n_first++;
            ret->n_late += m.turn[i].first_ms - m.turn[i].came_ms > 300;
            m.turn[i].tokens = 0;
            m.turn[i].came_ms = m.now_ms;
            m.turn[i].prompt = m.turn[i].whole = prompt;
        }
    }
    ret->end_ms = m.now_ms;
}

/* First tokens come soon, and the steps that read prompts take hardly longer than the others. */
static void test_a_closed_loop_waits_for_no_first_token(void **state)
{
    (void)state;
    struct loop l;
    run_closed_loop(&l, 22, 48);
    assert_true(l.n_first > 1000 && l.n_late < l.n_first / 20);
    assert_true(l.n_long < l.n_steps / 100);
}

/* Prompts that are longer than what is generated: whoever generates does not keep the others from
 * it, which would leave the machine with small steps. */
static void test_long_prompts_are_not_kept_out(void **state)
{
    (void)state;
    struct loop l;
    run_closed_loop(&l, 200, 48);
    double full = 200 * 0.6 / (48 + 15.5) + 0.4 + 10.0 / 32; /* ms a token, 32 at once */
    assert_true((double)l.n_tokens * full >= 0.72 * (l.end_ms - l.first_ms));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_gets_the_whole_step),
        cmocka_unit_test(test_decode_and_replay_come_first),
        cmocka_unit_test(test_prefill_beside_decode_is_bounded_by_time),
        cmocka_unit_test(test_short_prompts_pass_a_long_one),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_bounds_hold_for_random_wishes),
        cmocka_unit_test(test_a_burst_is_read_at_once),
        cmocka_unit_test(test_long_prompts_stall_no_stream),
        cmocka_unit_test(test_long_prompts_follow_the_streams),
        cmocka_unit_test(test_a_slow_first_step_is_forgotten),
        cmocka_unit_test(test_a_fast_step_is_forgotten),
        cmocka_unit_test(test_sizes_are_told_apart),
        cmocka_unit_test(test_few_steps_are_without_prompts),
        cmocka_unit_test(test_a_closed_loop_waits_for_no_first_token),
        cmocka_unit_test(test_long_prompts_are_not_kept_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
