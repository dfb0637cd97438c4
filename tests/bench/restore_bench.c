/* restore_bench.c: forks and restores without HTTP: the registry alone, beside memcpy and reads
 * from the page cache.
 *
 *   restore_bench [rounds]                                     (default: 9 rounds; below build/)
 *
 * The state of the 0.1B shape, 2.4 MB, and that of the embedded model, a twelfth of it. A fork is
 * one more reference to a slot, and the first turn on it copies the slot: both together, beside
 * memcpy of a state between two slots. A restore is what the next use of an evicted session waits
 * for: its record and snapshot read from the `dir:` store, checked, and made a state; beside it a
 * read of a file of that size and a memcpy of the state, which is what any way back from a disk has
 * to do. Many states are gone through in turn, more than caches hold. What is compared takes turns;
 * printed are medians, and of each round's ratio. Times but those "a second" are processor time of
 * all threads: all of it is work, and what else runs counts less. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/forward.h"
#include "server/cli/limits.h"
#include "server/residency.h"
#include "tests/support/must.h"
#include "tests/support/seeded.h"
#include "tests/support/tree.h"

enum { N = 32, PLACES = 8, FORKS = 24, AT_ONCE = 4 };

static struct bench {
    uv_loop_t loop;
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    struct sl_tenants *tenants;
    size_t state_bytes, file_n;
    unsigned char *file; /* a snapshot */
    size_t n_waiting;
    struct sl_session *last; /* that a callback told */
} b;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t no_time(void)
{
    return 1700000000;
}

static void on_done(void *arg, struct sl_session *s, const struct sl_error *err)
{
    (void)arg;
    b.n_waiting--;
    b.last = s;
    if (err)
        must(err->code, err);
}

static void settle(void)
{
    while (b.n_waiting)
        uv_run(&b.loop, UV_RUN_ONCE);
}

static struct sl_sessions *open_sessions(struct sl_slab *slab, size_t n_places, const char *store)
{
    static const struct sl_quotas any;
    if (!b.tenants)
        b.tenants = sl_tenants_open(&any);
    struct sl_sessions_options opt = {.model = b.model,
                                      .tokenizer = b.tokenizer,
                                      .slab = slab,
                                      .loop = &b.loop,
                                      .tenants = b.tenants,
                                      .n_places = n_places,
                                      .max_sessions = store ? 1000 : n_places,
                                      .store = store,
                                      .replay_limit = 1000,
                                      .now = no_time};
    struct sl_sessions *ss;
    struct sl_error err;
    must(sl_sessions_open(&ss, &opt, &err), &err);
    return ss;
}

static void restore(struct sl_sessions *ss, size_t i)
{
    char id[32];
    snprintf(id, sizeof id, "s%zu", i);
    b.n_waiting++;
    sl_sessions_restore(ss, "default", NULL, id, 0, (struct sl_text){NULL, 0}, SL_RESTORE_SNAPSHOT,
                        b.file, b.file_n, false, NULL, on_done, NULL);
    settle();
}

static void close_sessions(struct sl_sessions *ss)
{
    sl_sessions_close(ss, NULL, NULL);
    uv_run(&b.loop, UV_RUN_DEFAULT);
}

/* --- forks ---------------------------------------------------------------------------------------
 */

/* Seconds for each; *ret_alone: of the fork without the copy. */
static double run_forks(struct sl_sessions *ss, struct sl_slab *slab, double *ret_alone)
{
    struct sl_session *from, *forks[FORKS];
    struct sl_error err;
    void *slots[FORKS];
    const struct sl_moment as_it_is = {.given = false};
    double alone = 0, begin = now();
    for (size_t i = 0; i < FORKS; i++) {
        char id[32];
        snprintf(id, sizeof id, "s%zu", i % N);
        must(sl_sessions_find(ss, "default", id, &from, &err), &err);
        double t = now();
        b.n_waiting++;
        sl_sessions_fork(ss, from, &as_it_is, NULL, false, 0, (struct sl_text){NULL, 0}, false,
                         false, on_done, NULL);
        settle();
        alone += now() - t;
        forks[i] = b.last;
        slots[i] = must_have(sl_slab_take(slab));
        memcpy(slots[i], forks[i]->state, b.state_bytes);
    }
    double took = now() - begin;
    for (size_t i = 0; i < FORKS; i++) {
        sl_slab_unref(slab, slots[i]);
        b.n_waiting++;
        sl_sessions_delete(ss, forks[i], on_done, NULL);
    }
    settle();
    *ret_alone = alone / FORKS;
    return took / FORKS;
}

static double run_copies(struct sl_sessions *ss, struct sl_slab *slab)
{
    struct sl_session *from;
    struct sl_error err;
    void *slots[FORKS];
    double begin = now();
    for (size_t i = 0; i < FORKS; i++) {
        char id[32];
        snprintf(id, sizeof id, "s%zu", i % N);
        must(sl_sessions_find(ss, "default", id, &from, &err), &err);
        slots[i] = must_have(sl_slab_take(slab));
        memcpy(slots[i], from->state, b.state_bytes);
    }
    double took = now() - begin;
    for (size_t i = 0; i < FORKS; i++)
        sl_slab_unref(slab, slots[i]);
    return took / FORKS;
}

static void bench_forks(size_t rounds)
{
    struct series fork = {0}, alone = {0}, copy = {0}, ratio = {0};
    struct sl_slab *slab;
    struct sl_error err;
    size_t n_places = N + FORKS;
    must(sl_slab_open(&slab, sl_sessions_slots(n_places, true, 0) + FORKS, b.state_bytes, &err),
         &err);
    struct sl_sessions *ss = open_sessions(slab, n_places, NULL);
    for (size_t i = 0; i < N; i++)
        restore(ss, i);
    for (size_t r = 0; r <= rounds; r++) {
        double only, f = run_forks(ss, slab, &only), c = run_copies(ss, slab);
        if (!r)
            continue; /* warms up */
        series_add(&fork, 1e6 * f);
        series_add(&alone, 1e6 * only);
        series_add(&copy, 1e6 * c);
        series_add(&ratio, c / f);
    }
    close_sessions(ss);
    sl_slab_close(slab);
    printf("forks of a state of %zu bytes, µs\n", b.state_bytes);
    printf("  memcpy of the state                  %8.0f\n", series_median(&copy));
    printf("  fork and the copy of its first turn  %8.0f   %3.0f %% of memcpy (%.0f to %.0f)\n",
           series_median(&fork), 100 * series_median(&ratio), 100 * series_quantile(&ratio, 0),
           100 * series_quantile(&ratio, 1));
    printf("  fork alone                           %8.1f\n\n", series_median(&alone));
}

/* --- restores ------------------------------------------------------------------------------------
 */

static double run_restores(struct sl_sessions *ss, size_t at_once, double *ret_wall)
{
    struct sl_session *s;
    struct sl_error err;
    double begin = now(), clock = bench_now();
    for (size_t i = 0; i < N; i++) {
        char id[32];
        snprintf(id, sizeof id, "s%zu", i);
        must(sl_sessions_find(ss, "default", id, &s, &err), &err);
        b.n_waiting++;
        sl_sessions_ready(ss, s, on_done, NULL);
        while (b.n_waiting >= at_once)
            uv_run(&b.loop, UV_RUN_ONCE);
    }
    settle();
    *ret_wall = (bench_now() - clock) / N;
    return (now() - begin) / N;
}

static void plain_path(char path[160], const char *folder, size_t i)
{
    snprintf(path, 160, "%s/plain%zu", folder, i);
}

/* Into memory that was used before, and from there into a state. *ret_read: the read alone. */
static double run_plain(const char *folder, unsigned char *buffer, unsigned char *states,
                        double *ret_read)
{
    char path[160];
    double read = 0, begin = now();
    for (size_t i = 0; i < N; i++) {
        double t = now();
        plain_path(path, folder, i);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || pread(fd, buffer, b.file_n, 0) != (ssize_t)b.file_n)
            abort();
        close(fd);
        read += now() - t;
        memcpy(states + i % PLACES * b.state_bytes, buffer + b.file_n - b.state_bytes,
               b.state_bytes);
    }
    *ret_read = read / N;
    return (now() - begin) / N;
}

static void make_plain(const char *folder)
{
    char path[160];
    for (size_t i = 0; i < N; i++) {
        plain_path(path, folder, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, b.file, b.file_n) != (ssize_t)b.file_n)
            abort();
        close(fd);
    }
}

static void bench_restores(const char *folder, size_t rounds)
{
    struct series one = {0}, rate_1 = {0}, rate_n = {0}, plain = {0}, reading = {0}, ratio = {0};
    char store[160];
    struct sl_slab *slab;
    struct sl_error err;
    unsigned char *buffer = must_have(malloc(b.file_n)),
                  *states = must_have(malloc(PLACES * b.state_bytes));
    must(sl_slab_open(&slab, sl_sessions_slots(PLACES, true, 0), b.state_bytes, &err), &err);
    snprintf(store, sizeof store, "dir:%s/store", folder);
    struct sl_sessions *ss = open_sessions(slab, PLACES, store);
    for (size_t i = 0; i < N; i++)
        restore(ss, i);
    make_plain(folder);
    for (size_t r = 0; r <= rounds; r++) {
        double only, wall_1, wall_n, o = run_restores(ss, 1, &wall_1);
        (void)run_restores(ss, AT_ONCE, &wall_n);
        double p = run_plain(folder, buffer, states, &only);
        if (!r)
            continue;
        series_add(&one, 1e6 * o);
        series_add(&rate_1, 1 / wall_1);
        series_add(&rate_n, 1 / wall_n);
        series_add(&plain, 1e6 * p);
        series_add(&reading, 1e6 * only);
        series_add(&ratio, p / o);
    }
    close_sessions(ss);
    sl_slab_close(slab);
    free(buffer);
    free(states);
    printf("restores of it from the store, µs of processor time each\n");
    printf("  plain read from the page cache       %8.0f\n", series_median(&reading));
    printf("  … and memcpy of the state            %8.0f\n", series_median(&plain));
    printf(
        "  restored                             %8.0f   %3.0f %% of read + memcpy (%.0f to %.0f)\n",
        series_median(&one), 100 * series_median(&ratio), 100 * series_quantile(&ratio, 0),
        100 * series_quantile(&ratio, 1));
    printf("restored a second: one after another %.0f, %d at once %.0f\n", series_median(&rate_1),
           AT_ONCE, series_median(&rate_n));
}

static void make_snapshot(void)
{
    struct sl_error err;
    unsigned char *state = must_have(sl_aligned_calloc(b.state_bytes));
    struct sl_snapshot_info info = {.session_id = "bench",
                                    .version = 1,
                                    .tokens_seen = 100,
                                    .continuation = "{\"pending\":[1]}",
                                    .dtype = SL_DTYPE_F32};
    sl_model_state_init(b.model, state);
    must(sl_snapshot_write(b.model, b.tokenizer, state, &info, &b.file, &b.file_n, &err), &err);
    sl_free(state);
}

/* Snapshot, forks and restores of the model that is open. */
static void bench_model(const char *name, size_t rounds)
{
    char folder[] = "build/restore-bench-XXXXXX";
    if (!mkdtemp(folder))
        abort();
    b.state_bytes = sl_model_info(b.model)->state_bytes;
    make_snapshot();
    printf("%s\n", name);
    bench_forks(rounds);
    bench_restores(folder, rounds);
    remove_tree(folder);
    sl_free(b.file);
    sl_model_close(b.model);
}

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 9, n;
    struct seeded_shape shape = SEEDED_0_1B;
    struct sl_model_options embedded = {.path = NULL};
    struct sl_error err;
    unsigned char *source = NULL;
    if (rounds < 1 || rounds > SERIES_MAX || uv_loop_init(&b.loop)) {
        fprintf(stderr, "usage: restore_bench [rounds 1-15]\n");
        return 2;
    }
    sl_log_setup(SL_LOG_WARN, false);
    must(sl_tokenizer_open(&b.tokenizer, "bytes", &err), &err);
    shape.vocab_size = 256; /* the state does not depend on it, nor on the feed-forward */
    shape.d_ffn = 768;
    b.model = seeded_open(&shape, NULL, &source, &n);
    bench_model("the 0.1B shape", rounds);
    free(source);
    must(sl_model_open(&b.model, &embedded, &err), &err);
    bench_model("\nthe embedded model", rounds);
    sl_tokenizer_close(b.tokenizer);
    return uv_loop_close(&b.loop) ? 1 : 0;
}
