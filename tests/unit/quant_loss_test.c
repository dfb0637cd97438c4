/* quant_loss_test.c: what weights of 8 and 4 bits cost the embedded model's predictions, held to
 * what llama.cpp's types of as many bits cost them. tests/bench/quant_loss_bench.c measures more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "tests/support/loss.h"

enum { TOKENS = 24 * LOSS_LENGTH };

static uint32_t text[TOKENS];
static const unsigned char *file;
static size_t file_n;
static float *want;

static struct loss loss_of_model(struct sl_model *m)
{
    float *got = loss_log_probabilities(m, text, TOKENS);
    struct loss r = loss_of(want, got, TOKENS, sl_model_info(m)->vocab_size);
    free(got);
    sl_model_close(m);
    return r;
}

static struct loss ours(enum sl_dtype type)
{
    return loss_of_model(loss_open(file, file_n, type));
}

static struct loss peers(const struct peer_blocks *(*blocks)(const char *file_name),
                         enum sl_dtype type)
{
    struct bytes gguf = loss_gguf(file, file_n, blocks);
    struct sl_model *m = loss_open(gguf.p, gguf.n, SL_DTYPE_NONE);
    assert_int_equal(sl_model_info(m)->weights, type); /* from its own codes */
    struct loss r = loss_of_model(m);
    bytes_done(&gguf);
    return r;
}

static void assert_no_worse(const struct loss *ours_is, const struct loss *peers_is)
{
    double error,
        more = loss_difference(ours_is->same_of, peers_is->same_of, ours_is->n_sequences, &error);
    print_message("mean divergence %.6f, the peer's %.6f; the likeliest token %.2f %%, %.2f %%\n",
                  ours_is->kl, peers_is->kl, 100 * ours_is->same, 100 * peers_is->same);
    /* the bench's comparison is not of equals */
    assert_true(ours_is->kl > 0 && peers_is->kl > 0);
    assert_true(ours_is->kl <= peers_is->kl);
    assert_true(more >= -2 * error);
}

static void test_q8_loses_no_more_than_q8_0(void **state)
{
    (void)state;
    struct loss q8 = ours(SL_DTYPE_Q8), q8_0 = peers(peer_q8_0, SL_DTYPE_Q8);
    assert_no_worse(&q8, &q8_0);
}

static void test_q4_loses_no_more_than_q4_0(void **state)
{
    (void)state;
    struct loss q4 = ours(SL_DTYPE_Q4), q4_0 = peers(peer_q4_0, SL_DTYPE_Q4_0);
    assert_no_worse(&q4, &q4_0);
}

/* The measure itself: nothing is lost of the same, more with fewer bits. */
static void test_what_is_measured(void **state)
{
    (void)state;
    struct loss same = ours(SL_DTYPE_F32), half = ours(SL_DTYPE_F16), q8 = ours(SL_DTYPE_Q8),
                q4 = ours(SL_DTYPE_Q4);
    assert_true(same.kl == 0 && same.same > 0.9999);
    assert_true(half.kl < q8.kl && q8.kl * 4 < q4.kl);
    assert_true(q4.same < q8.same && q8.same > 0.98);
}

static int set_up(void **state)
{
    (void)state;
    loss_conversations(text, TOKENS, 0);
    file = sl_embedded_model_data(&file_n);
    struct sl_model *m = loss_open(file, file_n, SL_DTYPE_F32);
    want = loss_log_probabilities(m, text, TOKENS);
    sl_model_close(m);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(want);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_measured),
        cmocka_unit_test(test_q8_loses_no_more_than_q8_0),
        cmocka_unit_test(test_q4_loses_no_more_than_q4_0),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
