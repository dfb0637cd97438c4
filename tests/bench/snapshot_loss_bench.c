/* snapshot_loss_bench.c: what smaller snapshots cost: bits a token of text that is read after the
 * state was written down and restored.
 *
 * The embedded model reads conversations of its kind. Each is read in three ways: never restored;
 * restored once, at its middle; restored after every 16 tokens, which is what a session has behind
 * it that was often archived. The loss is taken over the second halves. F32 must cost exactly
 * nothing. (The error of the restored values is no measure: what matters is whether the model can
 * still read them.) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/models/embedded.h"
#include "slate/snapshot.h"
#include "tests/support/runner.h"

enum { TOKENS_MAX = 1024, OFTEN = 16 };

static const char *const conversations[] = {
    "User: My name is Clara and I live in Oslo.\n\nAssistant: Nice to meet you, Clara.\n\n"
    "User: I have a dog called Bruno.\n\nAssistant: Bruno is a good name for a dog.\n\n"
    "User: The weather is bad today.\n\nAssistant: I hope it gets better soon.\n\n"
    "User: What is my name?\n\nAssistant: Your name is Clara.\n\n"
    "User: Where do I live?\n\nAssistant: You live in Oslo.\n\n"
    "User: What is my dog called?\n\nAssistant: Your dog is called Bruno.\n\n",
    "User: I am called Peter. My favourite colour is green.\n\nAssistant: Good to know.\n\n"
    "User: I work as a baker.\n\nAssistant: That must be hard work, Peter.\n\n"
    "User: My sister is called Anna.\n\nAssistant: I will remember that.\n\n"
    "User: Actually my favourite colour is blue.\n\nAssistant: Blue, then.\n\n"
    "User: What is my favourite colour?\n\nAssistant: Your favourite colour is blue.\n\n"
    "User: What is my job?\n\nAssistant: You work as a baker.\n\n"
    "User: What is my sister called?\n\nAssistant: Your sister is called Anna.\n\n",
    "User: Hello. My name is Tom and my cat is called Misty.\n\nAssistant: Hello, Tom.\n\n"
    "User: I was born in May.\n\nAssistant: May is a fine month.\n\n"
    "User: I like to drink tea in the morning.\n\nAssistant: Tea is nice.\n\n"
    "User: Yesterday I went to the market and bought apples, bread and a small blue cup.\n\n"
    "Assistant: That sounds like a good day.\n\n"
    "User: What is my cat called?\n\nAssistant: Your cat is called Misty.\n\n"
    "User: When was I born?\n\nAssistant: You were born in May.\n\n"
    "User: What do I like to drink?\n\nAssistant: You like to drink tea.\n\n",
    "User: Tell me a story.\n\nAssistant: Once upon a time there was a small fox who lived near a "
    "river. Every day the fox went down to the water and looked at the fish. One day an old bird "
    "came and asked the fox why it looked so sad.\n\n"
    "User: What did the fox say?\n\nAssistant: The fox said that it had lost its friend. The bird "
    "sat down beside the fox, and they looked at the river together until the sun went down. In "
    "the morning the friend came back, and they were happy.\n\n",
    "User: I am Maria. I moved to Rome last year.\n\nAssistant: Welcome, Maria.\n\n"
    "User: My brother lives in Paris and he has two children.\n\nAssistant: I see.\n\n"
    "User: My favourite food is soup.\n\nAssistant: Soup is good when it is cold.\n\n"
    "User: Where do I live?\n\nAssistant: You live in Rome.\n\n"
    "User: Where does my brother live?\n\nAssistant: Your brother lives in Paris.\n\n"
    "User: What is my favourite food?\n\nAssistant: Your favourite food is soup.\n\n",
    "User: My phone number ends with seven two one.\n\nAssistant: Seven two one. I have it.\n\n"
    "User: I keep my keys in the red box under the stairs.\n\nAssistant: In the red box.\n\n"
    "User: The train leaves at nine.\n\nAssistant: Then be there in time.\n\n"
    "User: Where are my keys?\n\nAssistant: Your keys are in the red box under the stairs.\n\n"
    "User: When does the train leave?\n\nAssistant: The train leaves at nine.\n\n",
};
enum { N_CONVERSATIONS = sizeof conversations / sizeof *conversations };

struct bench {
    struct sl_model *model;
    struct sl_tokenizer *tokenizer;
    struct runner runner;
    size_t state_bytes, file_bytes;
};

static void must(enum sl_code c, const struct sl_error *err)
{
    if (c == SL_OK)
        return;
    fprintf(stderr, "%s: %s\n", sl_code_name(c), err->message);
    exit(1);
}

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
    double bits, worst; /* of one token, against the same without a snapshot */
    size_t n;
};

/* Adds the losses of one conversation's second half. `plain`: what they are without snapshots; read
 * or, with NONE, written. */
static void read_one(struct bench *b, const char *text, enum sl_dtype dtype, size_t every,
                     double *plain, struct loss *ret)
{
    static uint32_t ids[TOKENS_MAX];
    size_t n = sl_tokenizer_encode(b->tokenizer, text, strlen(text), ids);
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
        ret->worst = fmax(ret->worst, fabs(bits - plain[i]));
        ret->n++;
    }
    sl_free(state);
    sl_free(logits);
}

static struct loss read_all(struct bench *b, enum sl_dtype dtype, size_t every,
                            double plain[N_CONVERSATIONS][TOKENS_MAX])
{
    struct loss l = {0, 0, 0};
    for (size_t i = 0; i < N_CONVERSATIONS; i++)
        read_one(b, conversations[i], dtype, every, plain[i], &l);
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
            printf("  %-4s %-26s %.5f  %+.5f   worst token %.4f   %zu bytes\n",
                   sl_dtype_name(dtypes[i]), often ? "every 16 tokens" : "once, at the middle",
                   l.bits, l.bits - never.bits, l.worst, b.file_bytes);
        }
    runner_close(&b.runner);
    sl_tokenizer_close(b.tokenizer);
    sl_model_close(b.model);
    return 0;
}
