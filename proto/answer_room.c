/* answer_room.c: see answer_room.h. What is written is in response.c and openai_write.c. */
#include "proto/answer_room.h"

#include <assert.h>

#include "engine/base/utf8.h"
#include "proto/json_out.h"

#define LENGTH(text) (sizeof(text) - 1)
#define ID "4294967295"
#define LOGPROB "-1.17549435e-38"

/* Of each token with log probabilities: how often one of them is told besides the alternatives, in
 * what, and what else there is once. */
static const struct {
    size_t more, each, once;
    bool names, lists;
} rows[] = {
    [SL_DIALECT_SLATE] = {1, LENGTH("{\"token_id\":" ID ",\"text\":\"\",\"logprob\":" LOGPROB "},"),
                          LENGTH(",\"top\":[]"), false, false},
    /* In `tokens`, and once more where it is none of the n most likely. */
    [SL_DIALECT_COMPLETIONS] = {2, LENGTH("\"\":" LOGPROB ","), LENGTH(LOGPROB ",{}," ID ID ","),
                                true, false},
    [SL_DIALECT_CHAT] = {1, LENGTH("{\"token\":\"\",\"logprob\":" LOGPROB ",\"bytes\":[]},"),
                         LENGTH(",\"top_logprobs\":[]"), false, true},
};

static void raise(size_t *to, size_t n)
{
    if (n > *to)
        *to = n;
}

void sl_token_room_add(struct sl_token_room *r, const unsigned char *bytes, size_t n)
{
    char text[3 * SL_TOKEN_BYTES_MAX];
    size_t list = 0;
    assert(n <= SL_TOKEN_BYTES_MAX);
    if (!n) {
        raise(&r->name, LENGTH("token_id:" ID));
        return;
    }
    size_t len = sl_out_length(text, sl_utf8_repair(text, bytes, n, true, NULL));
    for (size_t i = 0; i < n; i++)
        list += bytes[i] < 10 ? LENGTH("9,") : bytes[i] < 100 ? LENGTH("99,") : LENGTH("255,");
    bool valid = sl_utf8_valid(bytes, n);
    raise(&r->text, len);
    raise(&r->name, valid ? len : LENGTH("bytes:") + n * LENGTH("\\\\xff"));
    raise(&r->list, list);
}

size_t sl_answer_room(const struct sl_token_room *r, enum sl_dialect dialect, int logprobs)
{
    assert((size_t)dialect < sizeof rows / sizeof *rows && logprobs <= SL_TOP_LOGPROBS_MAX);
    size_t n = r->text + LENGTH(ID ",");
    if (logprobs < 0)
        return n;
    size_t each = rows[dialect].each + (rows[dialect].names ? r->name : r->text);
    if (rows[dialect].lists)
        each += r->list;
    return n + rows[dialect].once + (rows[dialect].more + (size_t)logprobs) * each;
}
