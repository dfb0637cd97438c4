/* quant_loss_bench.c: what weights of 8 and 4 bits cost: how far a model's predictions are from
 * those of the same weights in F32.
 *
 *   quant_loss_bench [--models embedded,4x768,0.1b] [--peer-llama BUILD [--peer-runs PROGRAM]]
 *
 * The embedded model reads 40,960 tokens of conversations; seeded ones, which know nothing, tokens
 * of no meaning: 4 layers of 768 channels with 2,048 tokens 10,240 of them, the whole 0.1B shape
 * (12 layers, 65,536 tokens) 2,048. Printed are the mean of the Kullback-Leibler divergence of the
 * next token's distribution and its 99th hundredth, and how often the likeliest token is the same;
 * behind ± the standard errors, and for what is held beside a type of ours the differences, in
 * pairs of the same text, with theirs.
 *
 * Beside ours llama.cpp's Q8_0 and Q4_0: what its quantiser makes of the same weights
 * (tests/support/peer_blocks.h), run by us: its rounding of weights alone is compared, in its
 * favour, for it keeps the scales of inputs, too, in F16. With --peer-llama its llama-quantize
 * makes files of Q8_0, Q4_0, Q4_K and Q6_K (their embedding in blocks as well), which we run as
 * they are; and with --peer-runs it runs them itself. PROGRAM FILE TOKENS LENGTH LOGITS, over its
 * library, is to read sequences of LENGTH tokens (little-endian, 32 bits each), each from the
 * beginning, and to write the logits after each token (F32): a loop over llama_decode(). */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/loss.h"
#include "tests/support/must.h"
#include "tests/support/seeded.h"
#include "tests/support/serving.h"
#include "tests/support/tree.h"

enum { TOKENS_MAX = LOSS_SEQUENCES_MAX * LOSS_LENGTH };

#define FOLDER "build/quant-loss"

static const char *peer, *peer_runs;

struct subject {
    const char *name;
    const unsigned char *file;
    size_t n, vocab, n_tokens;
    uint32_t tokens[TOKENS_MAX];
    float *want; /* log probabilities in F32 */
};

/* --- one line -----------------------------------------------------------------------------------
 */

/* than: what it is held beside; NULL: nothing. */
static void print(const char *name, const struct loss *l, const struct loss *than)
{
    printf("  %-26s %9.6f ± %.6f   %9.6f   %6.2f ± %.2f %%", name, l->kl, l->kl_error, l->kl_99,
           100 * l->same, 100 * l->same_error);
    if (than) {
        double e, d = loss_difference(l->kl_of, than->kl_of, l->n_sequences, &e);
        printf("   %+9.6f ± %.6f", d, e);
        d = loss_difference(l->same_of, than->same_of, l->n_sequences, &e);
        printf("  %+6.2f ± %.2f %%", 100 * d, 100 * e);
    }
    printf("\n");
}

/* Closes m. */
static struct loss measure(const struct subject *s, struct sl_model *m)
{
    float *got = loss_log_probabilities(m, s->tokens, s->n_tokens);
    struct loss l = loss_of(s->want, got, s->n_tokens, s->vocab);
    free(got);
    sl_model_close(m);
    return l;
}

/* --- ours, and the peer's rounding of weights ---------------------------------------------------
 */

static const struct {
    const char *name, *peers;
    enum sl_dtype type;
    const struct peer_blocks *(*blocks)(const char *file);
} types[] = {{"BF16", NULL, SL_DTYPE_BF16, NULL},
             {"Q8", "Q8_0's weights", SL_DTYPE_Q8, peer_q8_0},
             {"Q4", "Q4_0's weights", SL_DTYPE_Q4, peer_q4_0}};

enum { N_TYPES = sizeof types / sizeof *types, OF_Q8 = 1, OF_Q4 = 2 };

static void measure_types(const struct subject *s, struct loss ours[N_TYPES])
{
    for (size_t i = 0; i < N_TYPES; i++) {
        ours[i] = measure(s, loss_open(s->file, s->n, types[i].type));
        print(types[i].name, &ours[i], NULL);
        if (!types[i].peers)
            continue;
        struct bytes gguf = loss_gguf(s->file, s->n, types[i].blocks);
        struct loss its = measure(s, loss_open(gguf.p, gguf.n, SL_DTYPE_NONE));
        print(types[i].peers, &its, &ours[i]);
        bytes_done(&gguf);
    }
}

/* --- the peer's files ---------------------------------------------------------------------------
 */

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "we");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f) != 0)
        serving_die(path);
}

static void run(const char *const *args)
{
    int status;
    pid_t pid = serving_child(args[0], args, -1);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        serving_die(args[0]);
}

static void run_by_peer(const struct subject *s, const char *name, const char *file,
                        const struct loss *than)
{
    char length[8];
    const char *const args[] = {peer_runs, file, FOLDER "/tokens", length, FOLDER "/logits", NULL};
    size_t n = s->n_tokens * s->vocab;
    float *got = must_have(malloc(n * sizeof *got));
    (void)snprintf(length, sizeof length, "%d", LOSS_LENGTH);
    run(args);
    FILE *f = fopen(FOLDER "/logits", "re");
    if (!f || fread(got, sizeof *got, n, f) != n)
        serving_die("--peer-runs: not as many logits as there should be");
    (void)fclose(f);
    loss_normalise(got, s->n_tokens, s->vocab);
    struct loss l = loss_of(s->want, got, s->n_tokens, s->vocab);
    print(name, &l, than);
    free(got);
}

static void measure_peer(const struct subject *s, const struct loss ours[N_TYPES])
{
    static const struct {
        const char *type;
        size_t beside; /* which of ours; 0: its own file, run by us */
    } files[] = {{"F32", 0}, {"Q8_0", OF_Q8}, {"Q4_0", OF_Q4}, {"Q4_K", 0}, {"Q6_K", 0}};
    char program[512], name[64];
    (void)mkdir(FOLDER, 0777);
    struct bytes gguf = loss_gguf(s->file, s->n, NULL);
    write_file(FOLDER "/f32.gguf", gguf.p, gguf.n);
    write_file(FOLDER "/tokens", s->tokens, s->n_tokens * sizeof *s->tokens);
    bytes_done(&gguf);
    serving_find_llama(program, peer, "llama-quantize");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *const args[] = {program, FOLDER "/f32.gguf", FOLDER "/q.gguf", files[i].type,
                                    NULL};
        struct sl_model *m = NULL;
        struct sl_error err;
        run(args);
        const struct sl_model_options opt = {.path = FOLDER "/q.gguf"};
        /* Rows that are no whole blocks of 256 it brings to types that we do not read. */
        bool here = sl_model_open(&m, &opt, &err) == SL_OK;
        struct loss l = {0};
        (void)snprintf(name, sizeof name, "%s file, run by us", files[i].type);
        if (here) {
            l = measure(s, m);
            print(name, &l, files[i].beside ? &ours[files[i].beside] : NULL);
        } else {
            printf("  %-26s %s\n", name, err.message);
        }
        (void)snprintf(name, sizeof name, "%s file, run by it", files[i].type);
        if (peer_runs)
            run_by_peer(s, name, FOLDER "/q.gguf",
                        files[i].beside ? &ours[files[i].beside]
                        : here          ? &l
                                        : NULL);
    }
    remove_tree(FOLDER);
}

/* --- the whole ----------------------------------------------------------------------------------
 */

/* meaning: conversations. */
static void measure_all(struct subject *s, size_t n_tokens, bool meaning)
{
    static struct loss ours[N_TYPES];
    struct sl_model *m = loss_open(s->file, s->n, SL_DTYPE_F32);
    s->vocab = sl_model_info(m)->vocab_size;
    s->n_tokens = n_tokens;
    if (meaning)
        loss_conversations(s->tokens, n_tokens, 0);
    else
        loss_no_meaning(s->tokens, n_tokens, s->vocab);
    s->want = loss_log_probabilities(m, s->tokens, n_tokens);
    sl_model_close(m);
    printf("\n%s, %zu tokens\n  %-26s %20s %13s %15s   %s\n", s->name, n_tokens, "", "mean KL",
           "99 of 100", "same token", "the same, less ours");
    measure_types(s, ours);
    if (peer)
        measure_peer(s, ours);
    free(s->want);
}

static void embedded(struct subject *s)
{
    s->file = sl_embedded_model_data(&s->n);
    measure_all(s, TOKENS_MAX, true);
}

static void seeded(struct subject *s, const struct seeded_shape *shape, size_t n_tokens)
{
    struct seeded list;
    seeded_init(&list, shape);
    unsigned char *bytes = seeded_bytes(&list, &s->n);
    s->file = bytes;
    measure_all(s, n_tokens, false);
    free(bytes);
    seeded_done(&list);
}

static void small(struct subject *s)
{
    struct seeded_shape shape = SEEDED_0_1B;
    shape.n_layers = 4, shape.vocab_size = 2048;
    seeded(s, &shape, 40 * (size_t)LOSS_LENGTH);
}

static void whole(struct subject *s)
{
    const struct seeded_shape shape = SEEDED_0_1B;
    seeded(s, &shape, 8 * (size_t)LOSS_LENGTH);
}

static const struct {
    const char *name, *title;
    void (*measure)(struct subject *s);
} models[] = {{"embedded", "the embedded model", embedded},
              {"4x768", "seeded, 4 x 768", small},
              {"0.1b", "seeded, the 0.1B shape", whole}};

int main(int argc, char **argv)
{
    static const struct option options[] = {{"models", required_argument, NULL, 'm'},
                                            {"peer-llama", required_argument, NULL, 'l'},
                                            {"peer-runs", required_argument, NULL, 'r'},
                                            {0}};
    static struct subject s;
    const char *wanted = "embedded,4x768,0.1b";
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'm')
            wanted = optarg;
        else if (c == 'l')
            peer = optarg;
        else if (c == 'r')
            peer_runs = optarg;
        else
            return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strstr(wanted, models[i].name)) {
            s.name = models[i].title;
            models[i].measure(&s);
        }
    return 0;
}
