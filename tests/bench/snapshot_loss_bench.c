/* snapshot_loss_bench.c: what smaller snapshots cost: bits a token of text that is read after the
 * state was written down and restored.
 *
 * The embedded model reads conversations of its kind. Each is read in three ways: never restored;
 * restored once, at its middle; restored after every 16 tokens, which is what a session has behind
 * it that was often archived. The loss is taken over the second halves; beside the difference
 * stands its standard error over the tokens. F32 must cost exactly nothing. (The error of the
 * restored values is no measure: what matters is whether the model can still read them.) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/models/embedded.h"
#include "slate/snapshot.h"
#include "tests/support/must.h"
#include "tests/support/runner.h"

enum { TOKENS_MAX = 1024, OFTEN = 16 };

/* Each is told five facts, small talk between, and asked for them. The words are drawn by the
 * number of the conversation. */
static const char *const names[] = {"Clara", "Peter", "Tom", "Maria", "Anna", "Leo", "Ruth"};
static const char *const cities[] = {"Oslo", "Rome", "Paris", "Lima", "York"};
static const char *const pets[] = {"dog", "cat", "rabbit"};
static const char *const pet_names[] = {"Bruno", "Misty", "Rex", "Luna"};
static const char *const colours[] = {"green", "blue", "red", "white", "yellow", "black"};
static const char *const jobs[] = {"baker", "teacher", "pilot", "nurse", "painter"};
static const char *const talk[] = {
    "User: The weather is bad today.\n\nAssistant: I hope it gets better soon.\n\n",
    "User: Yesterday I went to the market and bought apples, bread and a small cup.\n\n"
    "Assistant: That sounds like a good day.\n\n",
    "User: Tell me a story.\n\nAssistant: Once upon a time there was a small fox who lived near a "
    "river. Every day the fox went down to the water and looked at the fish.\n\n",
    "User: I am a little tired.\n\nAssistant: Then you should rest.\n\n",
};

enum { N_CONVERSATIONS = 60, TEXT_MAX = 2048 };

#define PICK(words, i) (words)[(i) % (sizeof(words) / sizeof *(words))]

static void write_conversation(char ret[TEXT_MAX], size_t i)
{
    const char *name = PICK(names, i), *city = PICK(cities, i), *pet = PICK(pets, i);
    const char *pet_name = PICK(pet_names, i), *colour = PICK(colours, i), *job = PICK(jobs, i / 5);
    (void)snprintf(ret, TEXT_MAX,
                   "User: My name is %s and I live in %s.\n\nAssistant: Nice to meet you, %s.\n\n"
                   "User: I have a %s called %s.\n\nAssistant: %s is a good name for a %s.\n\n"
                   "%sUser: My favourite colour is %s.\n\nAssistant: Good to know.\n\n"
                   "User: I work as a %s.\n\nAssistant: I will remember that.\n\n%s"
                   "User: What is my name?\n\nAssistant: Your name is %s.\n\n"
                   "User: Where do I live?\n\nAssistant: You live in %s.\n\n"
                   "User: What is my %s called?\n\nAssistant: Your %s is called %s.\n\n"
                   "User: What is my favourite colour?\n\nAssistant: Your favourite colour is %s."
                   "\n\nUser: What is my job?\n\nAssistant: You are a %s.\n\n",
                   name, city, name, pet, pet_name, pet_name, pet, PICK(talk, i), colour, job,
                   PICK(talk, i / 4), name, city, pet, pet, pet_name, colour, job);
}

struct bench {
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    struct runner runner;
    size_t state_bytes, file_bytes;
};

/* The state as it comes out of a snapshot of this type; NONE: left alone. */
static void restore(struct bench *b, void *state, enum sl_dtype dtype)
{
    struct sl_snapshot_info info = {.dtype = dtype}, got;
    struct sl_error err;
    unsigned char *file;
    if (dtype == SL_DTYPE_NONE)
        return;
    must(sl_snapshot_write(b->model, b->tokenizer, state, &info, &file, &b->file_bytes, &err),
         &err);
    memset(state, 0xff, b->state_bytes);
    must(sl_snapshot_read(b->model, b->tokenizer, file, b->file_bytes, state, &got, &err), &err);
    sl_free(got.text);
    sl_free(file);
}

static double bits_of(const float *logits, size_t n, uint32_t token)
{
    double most = (double)logits[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        most = fmax(most, (double)logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return (most + log(sum) - (double)logits[token]) / log(2);
}

struct loss {
    double bits;                /* a token */
    double difference, squares; /* to the same without a snapshot: the sum, and of squares */
    double worst;               /* of one token */
    size_t n;
};

/* Adds the losses of one conversation's second half. `plain`: what they are without snapshots; read
 * or, with NONE, written. */
static void read_one(struct bench *b, const char *text, enum sl_dtype dtype, size_t every,
                     double *plain, struct loss *ret)
{
    static uint32_t ids[TOKENS_MAX];
    size_t n = sl_tokenizer_encode_part(b->tokenizer, text, strlen(text), ids);
    size_t vocab = sl_model_info(b->model)->vocab_size;
    void *state = runner_state(b->model);
    float *logits = runner_logits(b->model, 1);
    for (size_t i = 0; i + 1 < n; i++) {
        if (every ? i && i % every == 0 : i == n / 2)
            restore(b, state, dtype);
        runner_feed(&b->runner, state, &ids[i], 1, 1, logits);
        if (i < n / 2)
            continue;
        double bits = bits_of(logits, vocab, ids[i + 1]);
        if (dtype == SL_DTYPE_NONE)
            plain[i] = bits;
        ret->bits += bits;
        ret->difference += bits - plain[i];
        ret->squares += (bits - plain[i]) * (bits - plain[i]);
        ret->worst = fmax(ret->worst, fabs(bits - plain[i]));
        ret->n++;
    }
    sl_free(state);
    sl_free(logits);
}

static struct loss read_all(struct bench *b, enum sl_dtype dtype, size_t every,
                            double plain[N_CONVERSATIONS][TOKENS_MAX])
{
    struct loss l = {.n = 0};
    char text[TEXT_MAX];
    for (size_t i = 0; i < N_CONVERSATIONS; i++) {
        write_conversation(text, i);
        read_one(b, text, dtype, every, plain[i], &l);
    }
    l.bits /= (double)l.n;
    return l;
}

int main(void)
{
    static double plain[N_CONVERSATIONS][TOKENS_MAX];
    static const enum sl_dtype dtypes[] = {SL_DTYPE_F32, SL_DTYPE_BF16, SL_DTYPE_I8};
    struct bench b = {.model = NULL};
    struct sl_model_options opt = {0};
    struct sl_error err;
    size_t n;
    const void *vocabulary = sl_embedded_vocab_data(&n);
    must(sl_model_open(&b.model, &opt, &err), &err);
    must(sl_tokenizer_open_memory(&b.tokenizer, vocabulary, n, "embedded", &err), &err);
    b.state_bytes = sl_model_info(b.model)->state_bytes;
    runner_open(&b.runner, b.model, 1, 1, 1);
    struct loss never = read_all(&b, SL_DTYPE_NONE, 0, plain);
    printf("loss over the second halves of %d conversations (%zu tokens), embedded model\n",
           N_CONVERSATIONS, never.n);
    printf("  never restored                  %.5f bits a token\n", never.bits);
    for (size_t i = 0; i < 3; i++)
        for (size_t often = 0; often <= OFTEN; often += OFTEN) {
            struct loss l = read_all(&b, dtypes[i], often, plain);
            double mean = l.difference / (double)l.n;
            double error = sqrt((l.squares / (double)l.n - mean * mean) / (double)l.n);
            printf("  %-4s %-26s %.5f  %+.5f ± %.5f   worst token %.4f   %zu bytes\n",
                   sl_dtype_name(dtypes[i]), often ? "every 16 tokens" : "once, at the middle",
                   l.bits, mean, error, l.worst, b.file_bytes);
            if (dtypes[i] == SL_DTYPE_F32 && l.worst != 0) {
                fprintf(stderr, "an F32 snapshot is not exact\n");
                return 1;
            }
        }
    runner_close(&b.runner);
    sl_tokenizer_close(b.tokenizer);
    sl_model_close(b.model);
    return 0;
}
