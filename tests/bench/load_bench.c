/* load_bench.c: what loading a model takes: time from the page cache, and memory at its highest.
 *
 *   load_bench [rounds]                        (default: 5 rounds; some 3 GB below build/)
 *
 * A model of the 0.4B shape (24 layers of 1,024 channels, RWKV-7, seeded, F16) as .safetensors, as
 * .pth, and converted from that: as it is, to codes of 8 bits, of 4. Each load is a process of its
 * own, which opens the model and tells its wall time and the most memory that it ever had (VmHWM:
 * pages of a mapped file count while they are mapped). The conversion is measured likewise, and a
 * server with the converted file: until it is ready, and until the first token of the first
 * request, both from the start of its process. Beside loads what cannot be avoided: the file read
 * from the page cache through one buffer by as many threads, and as much memory written as the file
 * has. Printed are medians. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/workers.h"
#include "server/cli/convert_file.h"
#include "server/cli/limits.h"
#include "server/cli/weights.h"
#include "tests/support/must.h"
#include "tests/support/seeded_pth.h"
#include "tests/support/serving.h"
#include "tests/support/tree.h"

#define SHAPE_0_4B                                                                                 \
    {                                                                                              \
        .n_layers = 24, .d_model = 1024, .head_size = 64, .d_ffn = 4096, .vocab_size = 65536,      \
        .rank_w = 64, .rank_a = 64, .rank_v = 32, .rank_g = 128, .dtype = SL_DTYPE_F16, .seed = 1  \
    }

enum { PIECE = 1 << 20 };

static size_t highest(void)
{
    char line[256];
    size_t kib = 0;
    FILE *f = must_have(fopen("/proc/self/status", "r"));
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %zu kB", &kib) == 1)
            break;
    fclose(f);
    return kib * 1024;
}

static double cpu_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- in a process of its own ---------------------------------------------------------------------
 */

struct told {
    double seconds, cpu;   /* wall; of all threads */
    size_t bytes, weights; /* at the highest; of the packed weights */
};

static int load_one(const char *path, int to)
{
    struct sl_model *m = NULL;
    struct sl_error err;
    struct told t = {.seconds = bench_now()};
    if (sl_model_open(&m, &(struct sl_model_options){.path = path}, &err)) {
        fprintf(stderr, "load_bench: %s\n", err.message);
        return 1;
    }
    t.seconds = bench_now() - t.seconds;
    t.cpu = cpu_time();
    t.bytes = highest();
    t.weights = sl_model_info(m)->weight_bytes;
    sl_model_close(m);
    return write(to, &t, sizeof t) == sizeof t ? 0 : 1;
}

static int convert_one(const char *path, const char *out, const char *type, int to)
{
    struct sl_conversion *c = NULL;
    struct sl_error err;
    struct sl_conversion_options opt = {.path = path};
    const struct sl_conversion_extras bytes = {.tokenizer_kind = "bytes"};
    struct told t = {.seconds = bench_now()};
    if (sl_cli_weights("type", *type ? type : NULL, &opt.weights, &err) ||
        sl_conversion_open(&c, &opt, &err) || sl_conversion_carry(c, &bytes, &err) ||
        sl_convert_file(c, out, true, &sl_store_io_system, &err)) {
        fprintf(stderr, "load_bench: %s\n", err.message);
        return 1;
    }
    t.seconds = bench_now() - t.seconds;
    t.cpu = cpu_time();
    t.bytes = highest();
    sl_conversion_close(c);
    return write(to, &t, sizeof t) == sizeof t ? 0 : 1;
}

struct reading {
    int fd;
    size_t n;
};

static void read_part(void *arg, size_t part, size_t n_parts)
{
    struct reading *r = arg;
    size_t at, end;
    unsigned char *buf = must_have(malloc(PIECE));
    sl_work_range(r->n, PIECE, part, n_parts, &at, &end);
    for (ssize_t n; at < end && (n = pread(r->fd, buf, PIECE, (off_t)at)) > 0;)
        at += (size_t)n;
    free(buf);
}

static void write_part(void *arg, size_t part, size_t n_parts)
{
    unsigned char *p = *(unsigned char **)arg;
    size_t at, end;
    sl_work_range(((size_t *)arg)[1], PIECE, part, n_parts, &at, &end);
    memset(p + at, 1, end - at);
}

/* The bound: the file read, and the memory of the weights written. */
static int read_one(const char *path, int to)
{
    struct stat st;
    struct sl_workers *w = NULL;
    struct reading r = {.fd = open(path, O_RDONLY)};
    struct told t = {.seconds = bench_now()};
    if (r.fd < 0 || fstat(r.fd, &st) != 0 || sl_workers_open(&w, sl_processors(), NULL))
        return 1;
    r.n = (size_t)st.st_size;
    sl_workers_run(w, read_part, &r);
    struct {
        void *p;
        size_t n;
    } memory = {must_have(sl_huge_alloc(r.n)), r.n};
    sl_workers_run(w, write_part, &memory);
    t.seconds = bench_now() - t.seconds;
    t.cpu = cpu_time();
    t.bytes = highest();
    sl_free(memory.p);
    sl_workers_close(w);
    close(r.fd);
    return write(to, &t, sizeof t) == sizeof t ? 0 : 1;
}

/* --- the whole -----------------------------------------------------------------------------------
 */

static char *self;

static struct told run(const char *what, const char *path, const char *more, const char *type)
{
    int fds[2], status;
    struct told t;
    if (pipe(fds) != 0)
        abort();
    pid_t pid = fork();
    if (pid == 0) {
        char fd[16];
        (void)snprintf(fd, sizeof fd, "%d", fds[1]);
        execl("/proc/self/exe", self, what, path, fd, more, type, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    if (pid < 0 || read(fds[0], &t, sizeof t) != sizeof t || waitpid(pid, &status, 0) != pid ||
        status != 0) {
        fprintf(stderr, "load_bench: %s of %s failed\n", what, path);
        exit(1);
    }
    close(fds[0]);
    return t;
}

static void measure(const char *title, const char *path, size_t rounds)
{
    struct series load = {0}, cpu = {0}, bound = {0}, bound_cpu = {0}, high = {0};
    struct stat st;
    struct told t = {0};
    if (stat(path, &st) != 0)
        abort();
    (void)run("--read", path, NULL, NULL); /* into the page cache */
    for (size_t i = 0; i < rounds; i++) {
        t = run("--read", path, NULL, NULL);
        series_add(&bound, t.seconds);
        series_add(&bound_cpu, t.cpu);
        t = run("--load", path, NULL, NULL);
        series_add(&load, t.seconds);
        series_add(&cpu, t.cpu);
        series_add(&high, (double)t.bytes / (double)st.st_size);
    }
    printf("%-14s %6.1f MB  %.3f s, %.3f s of processors  (reading and writing as much: %.3f, "
           "%.3f)  memory %.3f x the file, weights %.3f\n",
           title, (double)st.st_size * 1e-6, series_median(&load), series_median(&cpu),
           series_median(&bound), series_median(&bound_cpu), series_median(&high),
           (double)t.weights / (double)st.st_size);
    (void)fflush(stdout);
}

static void convert(const char *from, const char *to, const char *type)
{
    struct stat st;
    struct told t = run("--convert", from, to, type);
    if (stat(from, &st) != 0)
        abort();
    printf("%-14s %6.1f MB  %.3f s, %.3f s of processors  memory %.3f x the file\n",
           *type ? type : "conversion", (double)st.st_size * 1e-6, t.seconds, t.cpu,
           (double)t.bytes / (double)st.st_size);
    (void)fflush(stdout);
}

static void serve(const char *path, size_t rounds)
{
    const char *const options[] = {"--model", path, "--store", "memory", NULL};
    struct series ready = {0}, first = {0};
    for (size_t i = 0; i < rounds; i++) {
        struct serving s;
        struct answer a;
        serving_start(&s, options);
        serving_must(&s, &a, "/v1/generate", "{\"prompt\":\"a\",\"max_tokens\":1}");
        series_add(&ready, s.ready_s);
        series_add(&first, s.ready_s + a.seconds);
        serving_end(&s, SIGTERM);
    }
    printf("%-14s ready %.3f s after its start, the first token after %.3f s\n", "served",
           series_median(&ready), series_median(&first));
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 4 && strcmp(argv[1], "--load") == 0)
        return load_one(argv[2], (int)strtol(argv[3], NULL, 10));
    if (argc == 6 && strcmp(argv[1], "--convert") == 0)
        return convert_one(argv[2], argv[4], argv[5], (int)strtol(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "--read") == 0)
        return read_one(argv[2], (int)strtol(argv[3], NULL, 10));
    size_t rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 5;
    rounds = rounds < 1 ? 1 : rounds > SERIES_MAX ? SERIES_MAX : rounds;
    char folder[] = "build/load-bench-XXXXXX", safetensors[64], pth[64], converted[64];
    struct seeded s;
    if (!mkdtemp(folder)) {
        perror("load_bench: build/");
        return 1;
    }
    (void)snprintf(safetensors, sizeof safetensors, "%s/m.safetensors", folder);
    (void)snprintf(pth, sizeof pth, "%s/m.pth", folder);
    (void)snprintf(converted, sizeof converted, "%s/converted.safetensors", folder);
    seeded_init(&s, &(struct seeded_shape)SHAPE_0_4B);
    seeded_write(&s, safetensors);
    seeded_write_pth(&s, pth);
    seeded_done(&s);
    measure(".safetensors", safetensors, rounds);
    measure(".pth", pth, rounds);
    static const char *const types[] = {"", "q8", "q4"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        convert(pth, converted, types[i]);
        measure("converted", converted, rounds);
        serve(converted, rounds);
    }
    remove_tree(folder);
    return 0;
}
