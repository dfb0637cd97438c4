/* peer.c: see peer.h.
 *
 * What the programs print, on both streams, comes through one pipe: lines that begin with '{' are
 * results, the last line that there was says why one failed. */
#include "server/cli/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "proto/json.h"
#include "server/cli/ending.h"
#include "server/cli/limits.h"
#include "server/cli/shape_gguf.h"

enum {
    PATH_BYTES = 1024,
    LIST_BYTES = 256,
    OUTPUT_MAX = 1 << 20,
    SECONDS_MAX = 600,
    DECODE_TOKENS = 32 /* steps of a measurement */
};

static const struct type {
    const char *ours, *theirs;
    bool given; /* it is the file that is written */
} types[] = {
    {"f16", "F16", true},  {"bf16", "F16", true}, {"f32", "F32", false},
    {"q8", "Q8_0", false}, {"q4", "Q4_0", false},
};
enum { N_TYPES = sizeof types / sizeof *types };

struct sl_peer {
    char bench[PATH_BYTES], quantise[PATH_BYTES], folder[PATH_BYTES];
    char files[N_TYPES][PATH_BYTES]; /* "FOLDER/Q8_0.gguf"; two types may share one */
    size_t threads;
};

static const struct type *find_type(const char *ours)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (strcmp(types[i].ours, ours) == 0)
            return &types[i];
    return NULL;
}

const char *sl_peer_type(const char *weights)
{
    const struct type *t = find_type(weights);
    return t ? t->theirs : NULL;
}

/* --- its programs -------------------------------------------------------------------------------
 */

static enum sl_code find_program(char ret[PATH_BYTES], const char *build, const char *name,
                                 struct sl_error *err)
{
    static const char *const places[] = {"", "bin/"};
    struct stat st;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int n = snprintf(ret, PATH_BYTES, "%s/%s%s", build, places[i], name);
        if (n > 0 && n < PATH_BYTES && stat(ret, &st) == 0 && S_ISREG(st.st_mode) &&
            access(ret, X_OK) == 0)
            return SL_OK;
    }
    return sl_fail(err, SL_E_USAGE, "--peer-llama %.200s: there is no program %s, nor bin/%s",
                   build, name, name);
}

static const char tunables[] = "GLIBC_TUNABLES";

bool sl_peer_tune(void)
{
    return !getenv(tunables) && setenv(tunables, "glibc.malloc.hugetlb=1", 0) == 0;
}

void sl_peer_untune(bool tuned)
{
    if (tuned)
        (void)unsetenv(tunables);
}

/* Ends when this program does. */
static pid_t start(const char *const *args, int out)
{
    bool tuned = sl_peer_tune();
    pid_t pid = fork();
    if (pid != 0) {
        sl_peer_untune(tuned);
        return pid;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGXFSZ, SIG_DFL); /* what is ignored would stay so */
    int null = open("/dev/null", O_RDONLY);
    (void)dup2(null, STDIN_FILENO);
    (void)dup2(out, STDOUT_FILENO);
    (void)dup2(out, STDERR_FILENO);
    execv(args[0], (char *const *)(uintptr_t)args);
    _exit(127);
}

/* Until it closes its end. False: it takes too long. What is beyond the limit is dropped. */
static bool read_all(int fd, struct sl_buf *out)
{
    double deadline = bench_now() + SECONDS_MAX;
    char piece[4096];
    for (;;) {
        double left = deadline - bench_now();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = left > 0 ? poll(&p, 1, (int)(left * 1000) + 1) : 0;
        ssize_t n = ready > 0 ? read(fd, piece, sizeof piece) : -1;
        if (ready == 0)
            return false;
        if (ready > 0 && n == 0)
            return true;
        if (n < 0 && errno != EINTR)
            return true; /* how it ended says the rest */
        if (n > 0)
            sl_buf_put(out, piece, (size_t)n);
    }
}

static enum sl_code failed(const char *const *args, const char *how, int status,
                           const struct sl_buf *out, struct sl_error *err)
{
    size_t end = out->len, begin;
    while (end > 0 && out->data[end - 1] == '\n')
        end--;
    for (begin = end; begin > 0 && out->data[begin - 1] != '\n';)
        begin--;
    size_t n = end - begin < 200 ? end - begin : 200;
    return sl_fail(err, SL_E_INTERNAL, "%.200s %s%d: %.*s", args[0], how, status, (int)n,
                   n ? out->data + begin : "");
}

static enum sl_code run(const char *const *args, struct sl_buf *out, struct sl_error *err)
{
    int fds[2], status = 0;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return sl_fail(err, SL_E_IO, "no pipe: %s", strerror(errno));
    pid_t pid = start(args, fds[1]);
    (void)close(fds[1]);
    if (pid < 0) {
        (void)close(fds[0]);
        return sl_fail(err, SL_E_IO, "%.200s cannot be started: %s", args[0], strerror(errno));
    }
    bool ended = read_all(fds[0], out);
    (void)close(fds[0]);
    if (!ended)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    enum sl_code c = sl_buf_code(out, err);
    if (c)
        return c;
    if (!ended)
        return failed(args, "was ended after seconds: ", SECONDS_MAX, out, err);
    if (WIFSIGNALED(status))
        return failed(args, "ended by signal ", WTERMSIG(status), out, err);
    if (WEXITSTATUS(status) != 0)
        return failed(args, "ended with status ", WEXITSTATUS(status), out, err);
    return SL_OK;
}

/* --- its files ----------------------------------------------------------------------------------
 */

static void remove_files(struct sl_peer *p)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        (void)unlink(p->files[i]);
        sl_ending_forget(p->files[i]);
    }
    (void)rmdir(p->folder);
    sl_ending_forget(p->folder);
}

static void note_files(struct sl_peer *p)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        (void)snprintf(p->files[i], PATH_BYTES, "%.*s/%s.gguf", PATH_BYTES - 32, p->folder,
                       types[i].theirs);
        sl_ending_note(p->files[i]);
    }
}

static enum sl_code open_folder(struct sl_peer *p, struct sl_error *err)
{
    const char *base = getenv("TMPDIR");
    if (!base || !*base)
        base = "/tmp";
    int n = snprintf(p->folder, PATH_BYTES, "%s/slate-bench-XXXXXX", base);
    if (n < 0 || n >= PATH_BYTES - 32)
        return sl_fail(err, SL_E_IO, "TMPDIR: the path is too long");
    sl_ending_note(p->folder); /* mkdtemp() has each name in it before that is made */
    if (!mkdtemp(p->folder)) {
        enum sl_code c =
            sl_fail(err, SL_E_IO, "%.300s cannot be made: %s", p->folder, strerror(errno));
        sl_ending_forget(p->folder);
        p->folder[0] = '\0';
        return c;
    }
    note_files(p);
    return SL_OK;
}

enum sl_code sl_peer_open(struct sl_peer **ret, const char *build, const struct sl_shape *s,
                          const unsigned char *file, size_t n, size_t threads, struct sl_error *err)
{
    struct sl_peer *p = sl_calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for the peer");
    p->threads = threads;
    enum sl_code c = find_program(p->bench, build, "llama-batched-bench", err);
    if (!c)
        c = find_program(p->quantise, build, "llama-quantize", err);
    if (!c)
        c = open_folder(p, err);
    if (!c)
        c = sl_shape_gguf(s, file, n, p->files[0], err);
    if (c)
        sl_peer_close(p);
    else
        *ret = p;
    return c;
}

void sl_peer_close(struct sl_peer *p)
{
    if (p && p->folder[0])
        remove_files(p);
    sl_free(p);
}

/* The file of a type; made where it is not there yet. */
static enum sl_code need_file(const struct sl_peer *p, const struct type *t, const char **ret_path,
                              struct sl_error *err)
{
    const char *path = p->files[t - types];
    struct stat st;
    *ret_path = path;
    if (t->given || stat(path, &st) == 0)
        return SL_OK;
    const char *const args[] = {p->quantise, "--pure", p->files[0], path, t->theirs, NULL};
    struct sl_buf out;
    sl_buf_init(&out, OUTPUT_MAX);
    enum sl_code c = run(args, &out, err);
    if (!c && stat(path, &st) != 0)
        c = failed(args, "wrote no file, status ", 0, &out, err);
    sl_buf_done(&out);
    return c;
}

/* --- measuring ----------------------------------------------------------------------------------
 */

/* The best of the lines that tell of steps of `batch` sessions; 0: none does. */
static double speed_in(const struct sl_buf *out, size_t batch, const char *key)
{
    double best = 0;
    for (size_t at = 0, n; at < out->len; at += n + 1) {
        const char *line = out->data + at, *end = memchr(line, '\n', out->len - at);
        n = end ? (size_t)(end - line) : out->len - at;
        json_t *doc = NULL;
        if (n == 0 || line[0] != '{' || sl_json_parse(&doc, line, n, false, NULL))
            continue;
        const json_t *pl = sl_json_member(doc, "pl"), *v = sl_json_member(doc, key);
        int64_t sessions = 0;
        float speed = 0;
        if (pl && v && !sl_json_int(pl, "pl", 0, INT32_MAX, &sessions, NULL) &&
            !sl_json_float(v, key, 0, 1e9, &speed, NULL) && (size_t)sessions == batch &&
            (double)speed > best)
            best = (double)speed;
        json_decref(doc);
    }
    return best;
}

/* A run with prompts of `prompt` tokens and `steps` steps, for batches given as a list. */
static enum sl_code bench(const struct sl_peer *p, const char *model, const char *prompt,
                          size_t context, size_t steps, const char *batches, struct sl_buf *out,
                          struct sl_error *err)
{
    char threads[24], c[24], tokens[24];
    (void)snprintf(threads, sizeof threads, "%zu", p->threads);
    (void)snprintf(c, sizeof c, "%zu", context);
    (void)snprintf(tokens, sizeof tokens, "%zu", steps);
    const char *const args[] = {p->bench,
                                "-m",
                                model,
                                "-t",
                                threads,
                                "-tb",
                                threads,
                                "-c",
                                c,
                                "-npp",
                                prompt,
                                "-ntg",
                                tokens,
                                "-npl",
                                batches,
                                "--no-mmap",
                                "--output-format",
                                "jsonl",
                                NULL};
    return run(args, out, err);
}

static enum sl_code missing(const struct sl_peer *p, const char *what, size_t n,
                            struct sl_error *err)
{
    return sl_fail(err, SL_E_INTERNAL, "%.200s told nothing of %s %zu", p->bench, what, n);
}

static enum sl_code decode(const struct sl_peer *p, const char *model, const size_t *batch,
                           size_t n, double *ret, struct sl_error *err)
{
    enum { PROMPT = 4 };
    char list[LIST_BYTES] = "";
    size_t most = 1;
    for (size_t i = 0, len = 0; i < n && len < sizeof list; i++) {
        len += (size_t)snprintf(list + len, sizeof list - len, i ? ",%zu" : "%zu", batch[i]);
        most = batch[i] > most ? batch[i] : most;
    }
    struct sl_buf out;
    sl_buf_init(&out, OUTPUT_MAX);
    enum sl_code c =
        bench(p, model, "4", most * (PROMPT + DECODE_TOKENS) + 256, DECODE_TOKENS, list, &out, err);
    for (size_t i = 0; i < n && !c; i++) {
        ret[i] = speed_in(&out, batch[i], "speed_tg");
        if (!(ret[i] > 0))
            c = missing(p, "a decode batch of", batch[i], err);
    }
    sl_buf_done(&out);
    return c;
}

/* Twice in one process; the first time it may still be getting its memory. */
static enum sl_code prefill(const struct sl_peer *p, const char *model, size_t prompt, double *ret,
                            struct sl_error *err)
{
    char list[LIST_BYTES];
    (void)snprintf(list, sizeof list, "%zu,%zu", prompt, prompt);
    struct sl_buf out;
    sl_buf_init(&out, OUTPUT_MAX);
    enum sl_code c = bench(p, model, list, prompt + 256, 1, "1", &out, err);
    if (!c) {
        *ret = speed_in(&out, 1, "speed_pp");
        if (!(*ret > 0))
            c = missing(p, "a prompt of", prompt, err);
    }
    sl_buf_done(&out);
    return c;
}

enum sl_code sl_peer_measure(struct sl_peer *p, const char *weights, const size_t *batch, size_t n,
                             size_t prompt, double *ret, struct sl_error *err)
{
    const struct type *t = find_type(weights);
    const char *path;
    if (!t)
        return sl_fail(err, SL_E_USAGE, "the peer has nothing like %.20s", weights);
    enum sl_code c = need_file(p, t, &path, err);
    if (!c && n)
        c = decode(p, path, batch, n, ret, err);
    if (!c && prompt)
        c = prefill(p, path, prompt, &ret[n], err);
    return c;
}
