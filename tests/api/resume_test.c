/* resume_test.c: promise 3 through HTTP: a turn that was interrupted goes on as if nothing had
 * been.
 *
 * Each case has a reference (uncut.h): the same turn on a session of its own, never interrupted,
 * and one turn more. Interrupted are: by a pause as soon as a token has arrived, again and again;
 * by a pause at every length that a turn can have, 32 sessions at once; by a drain, 32 sessions at
 * once, which are at different tokens; by kill -9 likewise (then nothing was committed, and the
 * turn is sent again). What goes on does so in another process with another number of threads,
 * after a drain or a kill also with other kernels. Text, tokens, log probabilities and how it ends
 * must be the reference's, and so must one turn more.
 *
 * The settings make it hard: temperature 1, penalties of all kinds, stop strings of which some
 * candidate is open after most tokens, and text of one- to three-byte characters that comes byte by
 * byte. The reference itself says that they do: the test asks for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/seeded.h"
#include "tests/support/uncut.h"

enum { SESSIONS = 32 };

/* How many of 32 turns an interruption has to meet (of those of `bytes` most are short), and how
 * often a scene is played for it. */
enum { ENOUGH = SESSIONS / 4, TRIES = 6 };

/* --- what is asked for -------------------------------------------------------------------------*/

static const char *seeded_model(void)
{
    static char path[512];
    static const struct seeded_shape shape = {.n_layers = 4,
                                              .d_model = 256,
                                              .head_size = 32,
                                              .d_ffn = 896,
                                              .vocab_size = 256,
                                              .rank_w = 16,
                                              .rank_a = 16,
                                              .rank_v = 8,
                                              .rank_g = 32,
                                              .dtype = SL_DTYPE_F32,
                                              .seed = 5};
    const char *build = getenv("SLATE_BUILD");
    struct seeded s;
    if (*path)
        return path;
    snprintf(path, sizeof path, "%s/tests/resume-seeded.safetensors",
             build ? build : "build/release");
    seeded_init(&s, &shape);
    seeded_write(&s, path);
    seeded_done(&s);
    return path;
}

static struct uncut embedded = {
    .name = "embedded",
    .options = (const char *const[]){"--sessions-in-memory=80", "--drain-timeout=0s", NULL},
    .start = "Once upon a time",
    .prompt = " there was",
    /* Most tokens end with the first byte of one of them. */
    .settings = "'top_p':0.97,'ignore_eos':true,'stop':['e@','d@','s@','t@','y@','a@','n@','r@',"
                "'. B','. M','o@','g@','k@','l@','m@','h@']",
};

static struct uncut bytes = {
    .name = "bytes",
    .start = "abc",
    .prompt = "\xE2\x82\xAC and \xC3\xA9",
    /* a, b, and the bytes of é, ì and €: characters that come in pieces, whole ones and broken
       ones. */
    .settings = "'logit_bias':{'97':33,'98':33,'195':32,'169':28,'226':32,'130':30,'172':30},"
                "'stop':['aaaaa','bbbbb','ababa','b\xC3\xAC"
                "b\xC3\xAC','aabb\xE2\x82\xAC','a\xC3\xAC"
                "baa','\xE2\x82\xAC\xE2\x82\xAC','b\xE2\x82\xAC"
                "b']",
};

/* --- the references ----------------------------------------------------------------------------*/

/* Is it as hard as it is meant to be? */
static void check_references(const struct uncut *st)
{
    size_t n_long = 0, n_stopped = 0, n_multibyte = 0, n_broken = 0;
    for (unsigned i = 0; i < UNCUT_SEEDS; i++) {
        const struct output *o = &st->turn[i].o;
        bool stopped = !strcmp(str_at(o->final, "finish_reason"), "stop");
        n_stopped += stopped && o->n_tokens > 8;
        n_long += !stopped && o->n_tokens == UNCUT_TOKENS;
        n_multibyte += strstr(o->text, "\xC3\xAC") || strstr(o->text, "\xE2\x82\xAC");
        n_broken += strstr(o->text, "\xEF\xBF\xBD") != NULL;
    }
    print_message("%s: of %d references %zu run to the end, %zu are stopped, %zu have characters "
                  "of several bytes, %zu broken ones\n",
                  st->name, UNCUT_SEEDS, n_long, n_stopped, n_multibyte, n_broken);
    assert_true(n_long >= 8);
    if (st == &bytes)
        assert_true(n_stopped >= 4 && n_multibyte >= 16 && n_broken >= 16);
}

/* Which lengths a turn was interrupted at, over all tests of a stand. */
static bool seen[UNCUT_TOKENS + 1];
static size_t n_seen;
static size_t n_resumed, n_open; /* parts that went on, and those of them with a stop candidate */

/* What goes on feeds the newest token and each that it gives but the last, and more only where an
 * open candidate has to be found again. */
static void note_resumed(const struct parts *p, size_t n_before)
{
    n_resumed++;
    n_open +=
        (size_t)int_at(p->all.final, "timings.computed_tokens") > p->all.n_tokens - n_before + 1;
}

static void note(size_t at)
{
    if (at <= UNCUT_TOKENS && !seen[at]) {
        seen[at] = true;
        n_seen++;
    }
}

/* --- pauses ------------------------------------------------------------------------------------*/

/* Pauses what runs on the session once n more tokens have come; both replies are there then. */
static void pause_at(struct uncut *st, const char *id, struct call *k, size_t n, struct parts *p)
{
    stream_until(k, n);
    struct call *pause = pause_start(st->node.a.client, id);
    size_t n_before = p->all.n_tokens;
    bool resumed = p->n > 0;
    struct reply *r = call_finish(k);
    parts_add(p, r);
    if (resumed)
        note_resumed(p, n_before);
    r = expect(call_finish(pause), 200);
    assert_string_equal(str_at(r->json, "residency"), "store");
    reply_free(r);
    if (parts_paused(p))
        note(p->all.n_tokens);
}

/* Paused after each token or so, from the first to the last; sometimes also before any is new. In
 * between the process goes, once by SIGTERM, once by SIGKILL. */
static void pause_again_and_again(struct uncut *st, unsigned seed)
{
    struct parts p;
    parts_init(&p);
    uncut_create(st, "chain");
    pause_at(st, "chain", uncut_begin(st, "chain", seed), 1, &p);
    while (parts_paused(&p)) {
        if (p.n % 12 == 5) {
            if (p.n % 24 == 5)
                node_kill(&st->node);
            else
                node_stop(&st->node);
            node_start(&st->node);
        }
        pause_at(st, "chain", uncut_go_on(st, "chain"), p.n % 5 ? 1 : 0, &p);
    }
    print_message("%s, seed %u: %zu parts\n", st->name, seed, p.n);
    assert_true(p.n > 8);
    uncut_compare(st, &p, seed);
    parts_done(&p);
    uncut_compare_next(st, "chain", seed, uncut_one_more(st, "chain", seed));
}

/* 32 sessions at once, each paused so many tokens later than the one before; all go on at once in
 * another process. How many were met: on a busy machine turns may be over before their pauses
 * arrive. */
static size_t pause_all(struct uncut *st, size_t offset, size_t apart)
{
    static struct parts p[SESSIONS];
    struct call *k[SESSIONS], *pause[SESSIONS];
    char id[32];
    for (unsigned i = 0; i < SESSIONS; i++) {
        snprintf(id, sizeof id, "p%u", i);
        parts_init(&p[i]);
        uncut_create(st, id);
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        snprintf(id, sizeof id, "p%u", i);
        k[i] = uncut_begin(st, id, i);
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        snprintf(id, sizeof id, "p%u", i);
        stream_until(k[i], apart * i + offset);
        pause[i] = pause_start(st->node.a.client, id);
    }
    size_t n_paused = 0;
    for (unsigned i = 0; i < SESSIONS; i++) {
        parts_add(&p[i], call_finish(k[i]));
        reply_free(expect(call_finish(pause[i]), 200));
        n_paused += parts_paused(&p[i]);
        if (parts_paused(&p[i]))
            note(p[i].all.n_tokens);
    }
    print_message("%s: %zu of %d paused\n", st->name, n_paused, SESSIONS);
    node_stop(&st->node);
    node_start(&st->node);
    for (unsigned i = 0; i < SESSIONS; i++) {
        snprintf(id, sizeof id, "p%u", i);
        k[i] = parts_paused(&p[i]) ? uncut_go_on(st, id) : NULL;
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        if (k[i])
            parts_add(&p[i], call_finish(k[i]));
        uncut_compare(st, &p[i], i);
        parts_done(&p[i]);
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        snprintf(id, sizeof id, "p%u", i);
        k[i] = uncut_one_more(st, id, i);
    }
    for (unsigned i = 0; i < SESSIONS; i++) {
        snprintf(id, sizeof id, "p%u", i);
        uncut_compare_next(st, id, i, k[i]);
    }
    return n_paused;
}

/* --- drain and kill ----------------------------------------------------------------------------*/

/* Turns on n sessions, each begun when the one before has given a few tokens: they are at different
 * lengths when it happens. */
static void stagger(struct uncut *st, struct call **k, unsigned first, unsigned n, size_t apart)
{
    char id[32];
    for (unsigned i = 0; i < n; i++) {
        snprintf(id, sizeof id, "x%u", i);
        uncut_create(st, id);
    }
    for (unsigned i = 0; i < n; i++) {
        snprintf(id, sizeof id, "x%u", i);
        k[i] = uncut_begin(st, id, (first + i) % UNCUT_SEEDS);
        stream_until(k[i], apart);
    }
}

static void finish_all(struct uncut *st, struct parts *p, struct call **k, unsigned first,
                       unsigned n)
{
    char id[32];
    for (unsigned i = 0; i < n; i++) {
        if (k[i])
            parts_add(&p[i], call_finish(k[i]));
        if (p[i].n)
            uncut_compare(st, &p[i], (first + i) % UNCUT_SEEDS);
        parts_done(&p[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        snprintf(id, sizeof id, "x%u", i);
        k[i] = uncut_one_more(st, id, (first + i) % UNCUT_SEEDS);
    }
    for (unsigned i = 0; i < n; i++) {
        snprintf(id, sizeof id, "x%u", i);
        uncut_compare_next(st, id, (first + i) % UNCUT_SEEDS, k[i]);
    }
}

/* How many turns the drain met: on a busy machine all may be over before the signal arrives. */
static size_t drain(struct uncut *st, unsigned first, unsigned n, size_t apart)
{
    static struct parts p[SESSIONS];
    struct call *k[SESSIONS];
    size_t n_paused = 0;
    char id[32];
    stagger(st, k, first, n, apart);
    node_signal(&st->node, SIGTERM);
    for (unsigned i = 0; i < n; i++) {
        parts_init(&p[i]);
        parts_add(&p[i], call_finish(k[i]));
        n_paused += parts_paused(&p[i]);
        if (parts_paused(&p[i]))
            note(p[i].all.n_tokens);
    }
    node_wait(&st->node, SIGTERM);
    print_message("%s: %zu of %u interrupted by the drain\n", st->name, n_paused, n);
    st->node.slow = false;
    node_start(&st->node);
    for (unsigned i = 0; i < n; i++) {
        snprintf(id, sizeof id, "x%u", i);
        k[i] = parts_paused(&p[i]) ? uncut_go_on(st, id) : NULL;
    }
    finish_all(st, p, k, first, n);
    return n_paused;
}

/* Whose end did not arrive: it was committed or it was not, nothing between. If it was not, it is
 * sent again; if it was, only what follows can be compared. How many the signal met. */
static size_t killed(struct uncut *st, unsigned first, unsigned n, size_t apart)
{
    static struct parts p[SESSIONS];
    struct call *k[SESSIONS];
    bool whole[SESSIONS];
    size_t n_killed = 0, n_committed = 0;
    char id[32];
    stagger(st, k, first, n, apart);
    node_signal(&st->node, SIGKILL);
    for (unsigned i = 0; i < n; i++) {
        struct reply *r = call_finish(k[i]);
        size_t arrived = stream_tokens(r);
        whole[i] = r->whole && r->done;
        parts_init(&p[i]);
        if (whole[i])
            parts_add(&p[i], r);
        else
            reply_free(r);
        n_killed += !whole[i];
        if (!whole[i])
            note(arrived);
    }
    node_wait(&st->node, SIGKILL);
    print_message("%s: %zu of %u interrupted by SIGKILL\n", st->name, n_killed, n);
    st->node.slow = false;
    node_start(&st->node);
    for (unsigned i = 0; i < n; i++) {
        snprintf(id, sizeof id, "x%u", i);
        int64_t v = session_version(st->node.a.client, id);
        assert_true(v == 2 || (v == 1 && !whole[i]));
        k[i] = v == 2 ? NULL : uncut_begin(st, id, (first + i) % UNCUT_SEEDS);
        n_committed += v == 2 && !whole[i];
    }
    print_message("%s: %zu of these were committed\n", st->name, n_committed);
    finish_all(st, p, k, first, n);
    return n_killed;
}

/* --- the tests ---------------------------------------------------------------------------------*/

static int start(struct uncut *st)
{
    uncut_open(st);
    memset(seen, 0, sizeof seen);
    n_seen = n_resumed = n_open = 0;
    return 0;
}

static int start_embedded(void **state)
{
    *state = &embedded;
    return start(&embedded);
}

static int start_bytes(void **state)
{
    static const char *options[8] = {"--sessions-in-memory=80", "--drain-timeout=0s",
                                     "--tokenizer=bytes", "--model"};
    options[4] = seeded_model();
    bytes.options = options;
    *state = &bytes;
    return start(&bytes);
}

static int stop(void **state)
{
    uncut_close(*state);
    return 0;
}

/* A seed whose turn runs to its end. */
static unsigned a_long_one(const struct uncut *st)
{
    unsigned seed = 0;
    while (st->turn[seed].o.n_tokens < UNCUT_TOKENS)
        seed++;
    return seed;
}

static void references(void **state)
{
    check_references(*state);
}

/* So slow that what interrupts a turn meets the token that it aims at, whatever else the machine
 * does. (Under the thread sanitizer the program is slow by itself.) */
static void set_slow(struct uncut *st, bool slow)
{
#if defined(__SANITIZE_THREAD__)
    slow = false;
#endif
    if (st->node.slow == slow)
        return;
    node_stop(&st->node);
    st->node.slow = slow;
    node_start(&st->node);
}

static void paused_after_every_token(void **state)
{
    set_slow(*state, true);
    for (unsigned seed = 0; seed < 2; seed++)
        pause_again_and_again(*state, seed);
}

static void paused_32_at_once(void **state)
{
    size_t n = 0;
    set_slow(*state, false);
    for (size_t r = 0; r < TRIES && (r < 2 || n < 2 * (size_t)ENOUGH); r++)
        n += pause_all(*state, 1 + r % 2, r < 2 ? 2 : 0); /* then as early as can be */
    assert_true(n >= 2 * (size_t)ENOUGH);
}

static void drained_1(void **state)
{
    set_slow(*state, true);
    assert_true(drain(*state, a_long_one(*state), 1, 20) == 1);
}

static void drained_32_at_once(void **state)
{
    size_t n = 0;
    for (size_t i = 0; i < TRIES && n < ENOUGH; i++) {
        set_slow(*state, true);
        n = drain(*state, 0, SESSIONS, 1);
    }
    assert_true(n >= ENOUGH);
}

static void killed_1(void **state)
{
    set_slow(*state, true);
    assert_true(killed(*state, a_long_one(*state), 1, 30) == 1);
}

static void killed_32_at_once(void **state)
{
    size_t n = 0;
    for (size_t i = 0; i < TRIES && n < ENOUGH; i++) {
        set_slow(*state, true);
        n = killed(*state, 0, SESSIONS, 1);
    }
    assert_true(n >= ENOUGH);
}

/* Aims at the lengths that are still missing. A few tokens come while a pause is on its way. */
static void fill_in(struct uncut *st)
{
    size_t lag = 1, n_tries = 0;
    for (size_t want = UNCUT_TOKENS - 1; want > 0; want--) {
        if (seen[want] || n_tries == UNCUT_TOKENS / 2)
            continue;
        struct parts p;
        unsigned seed = (unsigned)(n_tries++ % UNCUT_SEEDS);
        parts_init(&p);
        uncut_create(st, "aimed");
        size_t ask_at = want > lag ? want - lag : 0;
        pause_at(st, "aimed", uncut_begin(st, "aimed", seed), ask_at, &p);
        if (parts_paused(&p)) {
            lag = p.all.n_tokens - ask_at;
            parts_add(&p, call_finish(uncut_go_on(st, "aimed")));
        }
        uncut_compare(st, &p, seed);
        parts_done(&p);
        uncut_compare_next(st, "aimed", seed, uncut_one_more(st, "aimed", seed));
    }
}

static void every_length(void **state)
{
    struct uncut *st = *state;
    char missing[4 * UNCUT_TOKENS + 8] = "";
    set_slow(st, true);
    fill_in(st);
    for (size_t at = 1; at < UNCUT_TOKENS; at++)
        if (!seen[at])
            snprintf(missing + strlen(missing), sizeof missing - strlen(missing), " %zu", at);
    print_message("%s: interrupted at %zu different lengths; never at%s\n", st->name, n_seen,
                  *missing ? missing : " none");
    print_message("%s: %zu parts went on, %zu of them with an open stop candidate\n", st->name,
                  n_resumed, n_open);
    assert_true(n_seen >= UNCUT_TOKENS / 2);
    assert_true(n_open >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references),         cmocka_unit_test(paused_after_every_token),
        cmocka_unit_test(paused_32_at_once),  cmocka_unit_test(drained_1),
        cmocka_unit_test(drained_32_at_once), cmocka_unit_test(killed_1),
        cmocka_unit_test(killed_32_at_once),  cmocka_unit_test(every_length),
    };
    int a = cmocka_run_group_tests_name("resume, bytes", tests, start_bytes, stop);
    int b = cmocka_run_group_tests_name("resume, embedded", tests, start_embedded, stop);
    return a + b;
}
