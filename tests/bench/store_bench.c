/* store_bench.c: the `dir:` store beside what the disk and the memory do without it.
 *
 *   store_bench [rounds] [sessions] [turns|snapshots|loads|opening]     (default: 5 rounds, 10,000
 *                                                                  sessions, all; below build/)
 *
 * Turns: appended by 1 and by 32 sessions that each wait for their own, with syncs and without, and
 * beside them a plain loop of write and fdatasync: what the disk can sync. Snapshots: put, beside
 * write + fsync of a plain file and memcpy of the same bytes. Loads: beside a plain read of the
 * file from the page cache. Opening: with many sessions, their snapshots small and large; and
 * what commits wait while the log is rewritten. What is
 * compared takes turns, round by round; printed are medians. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/cli/limits.h"
#include "server/store/dir.h"
#include "tests/support/tree.h"

enum { WRITERS = 32, TURN_TOKENS = 64, TURN_TEXT = 700 };

static struct bench {
    uv_loop_t loop;
    struct sl_store *store;
    char path[128];
    size_t rounds, sessions;
    uint64_t rewrite_bytes;
} b;

static void die(const char *what)
{
    fprintf(stderr, "store_bench: %s\n", what);
    exit(1);
}

static int no_sync(int fd)
{
    (void)fd;
    return 0;
}

/* The system without its syncs. */
static struct sl_store_io lazy;

static void open_store(const struct sl_store_io *io)
{
    struct sl_store_options opt = {.loop = &b.loop, .log_rewrite_bytes = b.rewrite_bytes};
    struct sl_error err;
    if (sl_dir_open(&b.store, b.path, &opt, io, NULL, NULL, &err))
        die(err.message);
}

static void close_store(void)
{
    sl_store_close(b.store, NULL, NULL);
    uv_run(&b.loop, UV_RUN_DEFAULT);
}

static struct sl_store_key key_of(size_t i)
{
    static char ids[2 * WRITERS][32];
    char *id = ids[i % (size_t)(2 * WRITERS)];
    snprintf(id, sizeof ids[0], "session-%zu", i);
    return (struct sl_store_key){.tenant = "default", .id = id, .incarnation = {1}};
}

static size_t n_waiting;

static void on_done(void *arg, enum sl_code code, const struct sl_error *err)
{
    (void)arg;
    n_waiting--;
    if (code)
        die(err->message);
}

static void settle(void)
{
    while (n_waiting)
        uv_run(&b.loop, UV_RUN_ONCE);
}

static void create(size_t i)
{
    struct sl_store_head h = {.key = key_of(i)};
    n_waiting++;
    sl_store_put_head(b.store, &h, on_done, NULL);
}

/* --- turns ---------------------------------------------------------------------------------------
 */

static struct writer {
    size_t i;
    uint64_t version;
} writers[WRITERS];
static size_t turns_left;

static void on_turn(void *arg, enum sl_code code, const struct sl_error *err);

static void append(struct writer *w)
{
    static uint32_t tokens[TURN_TOKENS];
    static char text[TURN_TEXT + 1];
    memset(text, 'x', TURN_TEXT);
    struct sl_store_key k = key_of(w->i);
    struct sl_store_turn t = {.version = ++w->version,
                              .tokens = tokens,
                              .n_tokens = TURN_TOKENS,
                              .continuation = {text, TURN_TEXT}};
    turns_left--;
    n_waiting++;
    sl_store_append_turn(b.store, &k, &t, on_turn, w);
}

static void on_turn(void *arg, enum sl_code code, const struct sl_error *err)
{
    on_done(NULL, code, err);
    if (turns_left)
        append(arg);
}

/* Turns a second. */
static double run_turns(const struct sl_store_io *io, size_t n_writers, size_t n)
{
    remove_tree(b.path);
    open_store(io);
    for (size_t i = 0; i < n_writers; i++) {
        writers[i] = (struct writer){.i = i};
        create(i);
    }
    settle();
    double start = bench_now();
    turns_left = n;
    for (size_t i = 0; i < n_writers; i++)
        append(&writers[i]);
    settle();
    double s = bench_now() - start;
    close_store();
    return (double)n / s;
}

/* Plain appends of a turn's bytes, each synced, a second. */
static double run_syncs(size_t n)
{
    static char record[1100];
    char path[160];
    snprintf(path, sizeof path, "%s.plain", b.path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path);
    double start = bench_now();
    for (size_t i = 0; i < n; i++)
        if (pwrite(fd, record, sizeof record, (off_t)(i * sizeof record)) < 0 || fdatasync(fd) < 0)
            die(path);
    double s = bench_now() - start;
    close(fd);
    unlink(path);
    return (double)n / s;
}

static void bench_turns(void)
{
    struct series plain = {0}, one = {0}, many = {0}, one_lazy = {0}, many_lazy = {0};
    for (size_t r = 0; r < b.rounds; r++) {
        series_add(&plain, run_syncs(200));
        series_add(&one, run_turns(&sl_store_io_system, 1, 200));
        series_add(&many, run_turns(&sl_store_io_system, WRITERS, 3200));
        series_add(&one_lazy, run_turns(&lazy, 1, 2000));
        series_add(&many_lazy, run_turns(&lazy, WRITERS, 16000));
    }
    double limit = series_median(&plain);
    printf("turns of 64 tokens, 1 KB each, a second\n");
    printf("  plain write + fdatasync, one after another     %9.0f\n", limit);
    printf("  1 session, synced                              %9.0f   %.2f of plain\n",
           series_median(&one), series_median(&one) / limit);
    printf("  32 sessions, synced                            %9.0f   %.1f of plain\n",
           series_median(&many), series_median(&many) / limit);
    printf("  1 session, not synced                          %9.0f\n", series_median(&one_lazy));
    printf("  32 sessions, not synced                        %9.0f\n\n", series_median(&many_lazy));
}

/* --- snapshots -----------------------------------------------------------------------------------
 */

static unsigned char *some_bytes(size_t n)
{
    unsigned char *p = sl_malloc(n);
    if (!p)
        die("no memory");
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 2654435761u >> 24);
    return p;
}

static void put(size_t i, uint64_t version, unsigned char *p, size_t n)
{
    struct sl_store_key k = key_of(i);
    struct sl_store_head h = {.key = k, .version = version};
    n_waiting++;
    sl_store_put_snapshot(b.store, &k, version, &h, p, n, on_done, NULL);
}

/* MB/s of n bytes put again and again; two sessions at once. */
static double run_puts(const struct sl_store_io *io, size_t n, size_t times)
{
    unsigned char **v = calloc(times, sizeof(unsigned char *));
    if (!v)
        die("no memory");
    for (size_t i = 0; i < times; i++)
        v[i] = some_bytes(n);
    remove_tree(b.path);
    open_store(io);
    put(0, 1, some_bytes(n), n); /* the folders */
    put(1, 1, some_bytes(n), n);
    settle();
    double start = bench_now();
    for (size_t i = 0; i < times; i++)
        put(i % 2, 2 + i / 2, v[i], n);
    settle();
    double s = bench_now() - start;
    close_store();
    free((void *)v);
    return 1e-6 * (double)(n * times) / s;
}

/* The same with plain files: other bytes each time, and the last two stay, as the store has it. */
static double run_plain_files(size_t n, size_t times, bool sync)
{
    unsigned char **v = calloc(times, sizeof(unsigned char *));
    char path[160];
    if (!v)
        die("no memory");
    for (size_t i = 0; i < times; i++)
        v[i] = some_bytes(n);
    double start = bench_now();
    for (size_t i = 0; i < times + 2; i++) {
        if (i >= 2) {
            snprintf(path, sizeof path, "%s.plain%zu", b.path, i - 2);
            unlink(path);
        }
        if (i >= times)
            continue;
        snprintf(path, sizeof path, "%s.plain%zu", b.path, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, v[i], n) != (ssize_t)n || (sync && fsync(fd) < 0))
            die(path);
        close(fd);
        sl_free(v[i]);
    }
    double s = bench_now() - start;
    free((void *)v);
    return 1e-6 * (double)(n * times) / s;
}

static double run_memcpy(size_t n, size_t times)
{
    unsigned char *from = some_bytes(n), *to = some_bytes(n);
    volatile unsigned char sink = 0;
    double start = bench_now();
    for (size_t i = 0; i < times; i++) {
        memcpy(to, from, n);
        sink = to[i % n];
        from[i % n] = sink;
    }
    double s = bench_now() - start;
    sl_free(from);
    sl_free(to);
    return 1e-6 * (double)(n * times) / s;
}

static void bench_puts(void)
{
    static const struct {
        size_t n, times;
        const char *name;
    } sizes[] = {{200000, 40, "0.2 MB"}, {2430000, 20, "2.4 MB"}, {16000000, 6, "16 MB"}};
    printf("snapshots put, MB/s                synced  plain+fsync     not synced  plain     "
           "memcpy\n");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k].n, times = sizes[k].times;
        struct series a = {0}, c = {0}, d = {0}, e = {0}, f = {0};
        for (size_t r = 0; r < b.rounds; r++) {
            series_add(&a, run_puts(&sl_store_io_system, n, times));
            series_add(&c, run_plain_files(n, times, true));
            series_add(&d, run_puts(&lazy, n, times));
            series_add(&e, run_plain_files(n, times, false));
            series_add(&f, run_memcpy(n, 4 * times));
        }
        printf("  %-28s %10.0f %12.0f %14.0f %6.0f %10.0f\n", sizes[k].name, series_median(&a),
               series_median(&c), series_median(&d), series_median(&e), series_median(&f));
    }
    printf("\n");
}

/* --- loads ---------------------------------------------------------------------------------------
 */

static struct loader {
    size_t next;
} loaders[8];
static size_t loads_left, n_loadable;

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err);

static void load(struct loader *l)
{
    struct sl_store_key k = key_of(l->next % n_loadable);
    l->next += sizeof loaders / sizeof *loaders;
    loads_left--;
    n_waiting++;
    sl_store_load(b.store, &k, NULL, on_loaded, l);
}

static void on_loaded(void *arg, const struct sl_store_record *r, const struct sl_error *err)
{
    n_waiting--;
    if (!r)
        die(err->message);
    if (loads_left)
        load(arg);
}

static double run_loads(size_t at_once, size_t n)
{
    double start = bench_now();
    loads_left = n;
    for (size_t i = 0; i < at_once; i++) {
        loaders[i].next = i;
        load(&loaders[i]);
    }
    settle();
    return (double)n / (bench_now() - start);
}

static void plain_path(char path[160], size_t i)
{
    snprintf(path, 160, "%s.plain%zu", b.path, i);
}

/* As many files as there are sessions to load: the same few bytes again and again would come from
 * the processor's caches. */
static void make_plain_files(size_t size, size_t n)
{
    char path[160];
    unsigned char *p = some_bytes(size);
    for (size_t i = 0; i < n; i++) {
        plain_path(path, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, p, size) != (ssize_t)size)
            die(path);
        close(fd);
    }
    sl_free(p);
}

static void remove_plain_files(size_t n)
{
    char path[160];
    for (size_t i = 0; i < n; i++) {
        plain_path(path, i);
        unlink(path);
    }
}

/* Plain reads of files of that size, a second. */
static double run_plain_reads(size_t size, size_t n)
{
    char path[160];
    double start = bench_now();
    for (size_t i = 0; i < n; i++) {
        plain_path(path, i % n_loadable);
        unsigned char *q = sl_malloc(size);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (!q || fd < 0 || pread(fd, q, size, 0) != (ssize_t)size)
            die(path);
        close(fd);
        sl_free(q);
    }
    return (double)n / (bench_now() - start);
}

static void make_sessions(size_t n, size_t size, size_t turns)
{
    remove_tree(b.path);
    open_store(&lazy);
    for (size_t i = 0; i < n; i++) {
        put(i, 1, some_bytes(size), size);
        struct writer w = {.i = i, .version = 1};
        turns_left = turns;
        for (size_t k = 0; k < turns; k++) {
            turns_left = 1; /* appended here, not by the callback */
            append(&w);
        }
        turns_left = 0;
        if (i % 16 == 15)
            settle();
    }
    settle();
}

static void bench_loads(void)
{
    static const struct {
        size_t size, n;
        const char *name;
    } sizes[] = {{4000, 4000, "4 KB"}, {200000, 2000, "0.2 MB"}, {2430000, 200, "2.4 MB"}};
    printf("loads a second, snapshot and 8 turns        one by one     8 at once    plain read\n");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct series a = {0}, c = {0}, d = {0};
        n_loadable = WRITERS;
        make_sessions(n_loadable, sizes[k].size, 8);
        make_plain_files(sizes[k].size, n_loadable);
        for (size_t r = 0; r < b.rounds; r++) {
            series_add(&a, run_loads(1, sizes[k].n));
            series_add(&c, run_loads(8, sizes[k].n));
            series_add(&d, run_plain_reads(sizes[k].size, sizes[k].n));
        }
        close_store();
        remove_plain_files(n_loadable);
        printf("  %-42s %10.0f %13.0f %13.0f\n", sizes[k].name, series_median(&a),
               series_median(&c), series_median(&d));
    }
    printf("\n");
}

/* --- opening -------------------------------------------------------------------------------------
 */

static void bench_open(void)
{
    static const size_t sizes[] = {4000, 200000};
    printf("opening with %zu sessions of 4 turns, ms\n", b.sessions);
    for (size_t k = 0; k < 2; k++) {
        struct series s = {0};
        make_sessions(b.sessions, sizes[k], 4);
        struct sl_store_stats stats;
        sl_store_stats(b.store, &stats);
        close_store();
        for (size_t r = 0; r < b.rounds; r++) {
            double start = bench_now();
            open_store(&sl_store_io_system);
            series_add(&s, 1e3 * (bench_now() - start));
            close_store();
        }
        printf("  snapshots of %6zu bytes, a log of %5.1f MB      %9.1f\n", sizes[k],
               1e-6 * (double)stats.log_bytes, series_median(&s));
    }
}

/* What commits wait while sessions are deleted, one after another, until the log is rewritten: the
 * longest while it goes on beside them, and before. */
static void bench_rewrite(void)
{
    struct sl_store_stats before, after;
    double longest = 0, usual = 0;
    size_t n_beside = 0;
    b.rewrite_bytes = 1; /* as soon as half of it is dead */
    sync();              /* what made it is not to be waited for */
    open_store(&sl_store_io_system);
    sl_store_stats(b.store, &before);
    after = before;
    for (size_t i = 0; i < b.sessions && !after.rewrites; i++) {
        struct sl_store_key k = key_of(i);
        bool beside = ((struct sl_dir *)(void *)b.store)->rewriting;
        double start = bench_now();
        n_waiting++;
        sl_store_remove(b.store, &k, on_done, NULL);
        settle();
        double s = bench_now() - start;
        double *most = beside ? &longest : &usual;
        *most = s > *most ? s : *most;
        n_beside += beside;
        sl_store_stats(b.store, &after);
    }
    close_store();
    printf("  rewriting it when half is dead, %5.1f MB left   %9.1f   (the longest that one of %zu "
           "commits waited; before: %.1f)\n",
           1e-6 * (double)after.log_bytes, 1e3 * longest, n_beside, 1e3 * usual);
}

static void bench_opening(void)
{
    bench_open();
    bench_rewrite();
}

/* One row for each part. */
static const struct part {
    const char *name;
    void (*run)(void);
} parts[] = {{"turns", bench_turns},
             {"snapshots", bench_puts},
             {"loads", bench_loads},
             {"opening", bench_opening}};

int main(int argc, char **argv)
{
    b.rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 5;
    b.sessions = argc > 2 ? strtoul(argv[2], NULL, 10) : 10000;
    if (b.rounds < 1 || b.rounds > SERIES_MAX || b.sessions < 1)
        die("usage: store_bench [rounds 1-15] [sessions] [turns|snapshots|loads|opening]");
    lazy = sl_store_io_system;
    lazy.fsync = lazy.fdatasync = no_sync;
    sl_log_setup(SL_LOG_WARN, false);
    char folder[] = "build/store-bench-XXXXXX";
    if (!mkdtemp(folder) || uv_loop_init(&b.loop))
        die("no folder build/, or no loop");
    snprintf(b.path, sizeof b.path, "%s/store", folder);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc < 4 || strcmp(argv[3], parts[i].name) == 0)
            parts[i].run();
    remove_tree(folder);
    return uv_loop_close(&b.loop) ? 1 : 0;
}
