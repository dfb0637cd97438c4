/* Continuations: what is written is read back to the bit; each field is checked and named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "proto/continuation.h"
#include "proto/decode.h"
#include "proto/json.h"

enum { VOCAB = 65536 };

static char *text_of(const struct sl_continuation *c, size_t *ret_n)
{
    struct sl_buf b;
    sl_buf_init(&b, 128u << 20);
    sl_continuation_write(&b, c);
    assert_int_equal(sl_buf_code(&b, NULL), SL_OK);
    return sl_buf_take(&b, ret_n);
}

static void read_back(struct sl_continuation *ret, const struct sl_continuation *c)
{
    size_t n;
    char *text = text_of(c, &n);
    struct sl_error err = {0};
    if (sl_continuation_read(ret, text, n, VOCAB, &err) != SL_OK)
        fail_msg("%s in %.*s", err.message, (int)n, text);
    sl_free(text);
}

static void assert_ids(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b)
{
    assert_int_equal(n_a, n_b);
    for (size_t i = 0; i < n_a; i++)
        assert_int_equal(a[i], b[i]);
}

static void assert_same_bits(float a, float b)
{
    assert_memory_equal(&a, &b, sizeof a);
}

static void assert_same_sampling(const struct sl_sampling *a, const struct sl_sampling *b)
{
    assert_same_bits(a->temperature, b->temperature);
    assert_same_bits(a->top_p, b->top_p);
    assert_same_bits(a->min_p, b->min_p);
    assert_same_bits(a->typical_p, b->typical_p);
    assert_same_bits(a->repetition_penalty, b->repetition_penalty);
    assert_same_bits(a->presence_penalty, b->presence_penalty);
    assert_same_bits(a->frequency_penalty, b->frequency_penalty);
    assert_same_bits(a->penalty_decay, b->penalty_decay);
    assert_int_equal(a->top_k, b->top_k);
    assert_int_equal(a->penalty_last_n, b->penalty_last_n);
    assert_true(a->seed == b->seed);
    assert_int_equal(a->n_bias, b->n_bias);
    for (size_t i = 0; i < a->n_bias; i++) {
        assert_int_equal(a->bias[i].token, b->bias[i].token);
        assert_same_bits(a->bias[i].bias, b->bias[i].bias);
    }
}

static void assert_same_paused(const struct sl_paused_turn *a, const struct sl_paused_turn *b)
{
    assert_same_sampling(&a->sampling, &b->sampling);
    assert_true(a->draws == b->draws);
    assert_int_equal(a->max_tokens, b->max_tokens);
    assert_int_equal(a->fewer_will_do, b->fewer_will_do);
    assert_int_equal(a->n_stops, b->n_stops);
    for (size_t i = 0; i < a->n_stops; i++) {
        assert_int_equal(a->stops[i].n, b->stops[i].n);
        assert_memory_equal(a->stops[i].bytes, b->stops[i].bytes, a->stops[i].n);
    }
    assert_ids(a->stop_tokens, a->n_stop_tokens, b->stop_tokens, b->n_stop_tokens);
    assert_int_equal(a->ignore_eos, b->ignore_eos);
    assert_int_equal(a->logprobs, b->logprobs);
    assert_ids(a->generated, a->n_generated, b->generated, b->n_generated);
    assert_int_equal(a->n_held, b->n_held);
    assert_ids(a->ring.tokens, a->ring.n, b->ring.tokens, b->ring.n);
    assert_int_equal(a->n_utf8_tail, b->n_utf8_tail);
    assert_memory_equal(a->utf8_tail, b->utf8_tail, a->n_utf8_tail);
    assert_int_equal(!a->chat_template, !b->chat_template);
    if (a->chat_template)
        assert_string_equal(a->chat_template, b->chat_template);
    assert_int_equal(a->reply_started, b->reply_started);
}

static void assert_same(const struct sl_continuation *a, const struct sl_continuation *b)
{
    assert_ids(a->pending, a->n_pending, b->pending, b->n_pending);
    assert_ids(a->ring.tokens, a->ring.n, b->ring.tokens, b->ring.n);
    assert_int_equal(!a->paused, !b->paused);
    if (a->paused)
        assert_same_paused(a->paused, b->paused);
}

/* A turn that has something in every field, and what it points to. */
static const uint32_t some_ids[] = {0, 1, 65535, 300, 7};
static const unsigned char odd_stop[] = {0xff, 0x00, 0xe2, 0x82};
static const struct sl_stop some_stops[] = {
    {(const unsigned char *)"\n\n", 2},
    {odd_stop, sizeof odd_stop},
    {(const unsigned char *)"a\0b\"\\\x7f", 6},
    {(const unsigned char *)"\xe2\x82\xac", 3},
};
static const struct sl_logit_bias some_bias[] = {{65535, -100.0f}, {0, 0.1f}, {9, 1e-38f}};

static struct sl_paused_turn full_turn(void)
{
    struct sl_paused_turn p = {
        .sampling = SL_SAMPLING_DEFAULT,
        .draws = UINT64_MAX - 1,
        .max_tokens = 1000,
        .fewer_will_do = true,
        .stops = some_stops,
        .n_stops = 4,
        .stop_tokens = some_ids,
        .n_stop_tokens = 3,
        .ignore_eos = true,
        .logprobs = 20,
        .generated = some_ids,
        .n_generated = 5,
        .n_held = 2,
        .ring = {.n = 3, .tokens = {5, 6, 65535}},
        .utf8_tail = {0xe2, 0x82},
        .n_utf8_tail = 2,
        .chat_template = "rwkv-brief",
        .reply_started = true,
    };
    p.sampling.temperature = 0.7f;
    p.sampling.top_k = UINT32_MAX;
    p.sampling.top_p = nextafterf(1, 0);
    p.sampling.min_p = 0x1p-149f;
    p.sampling.typical_p = 1.0f / 3;
    p.sampling.repetition_penalty = 1.1f;
    p.sampling.presence_penalty = -99.99999f;
    p.sampling.frequency_penalty = FLT_MIN;
    p.sampling.penalty_decay = 0.996f;
    p.sampling.penalty_last_n = 1024;
    p.sampling.seed = UINT64_MAX;
    p.sampling.bias = some_bias;
    p.sampling.n_bias = 3;
    return p;
}

static void test_all_fields(void **arg)
{
    (void)arg;
    struct sl_paused_turn p = full_turn();
    struct sl_continuation c = {.pending = some_ids, .n_pending = 5, .paused = &p}, got;
    c.ring.n = SL_PENALTY_LAST_N_MAX;
    for (uint32_t i = 0; i < SL_PENALTY_LAST_N_MAX; i++)
        c.ring.tokens[i] = VOCAB - 1 - i;
    read_back(&got, &c);
    assert_same(&c, &got);
    sl_continuation_done(&got);
}

static void test_least(void **arg)
{
    (void)arg;
    struct sl_paused_turn p = {.sampling = SL_SAMPLING_DEFAULT, .logprobs = -1};
    struct sl_continuation c = {.pending = some_ids, .n_pending = 1, .paused = &p}, got;
    read_back(&got, &c);
    assert_same(&c, &got);
    sl_continuation_done(&got);
    c.paused = NULL;
    size_t n;
    char *text = text_of(&c, &n);
    assert_int_equal(n, strlen("{\"pending\":[0]}"));
    assert_memory_equal(text, "{\"pending\":[0]}", n);
    sl_free(text);
    read_back(&got, &c);
    assert_same(&c, &got);
    sl_continuation_done(&got);
}

/* Floats of every exponent within a setting's range, zeros of both signs, and 64-bit numbers at the
 * edges. */
static void test_numbers(void **arg)
{
    (void)arg;
    struct sl_paused_turn p = {.sampling = SL_SAMPLING_DEFAULT, .logprobs = -1};
    struct sl_continuation c = {.pending = some_ids, .n_pending = 1, .paused = &p}, got;
    const struct sl_logit_bias zeros[] = {{1, -0.0f}, {2, 0.0f}};
    p.sampling.presence_penalty = -0.0f;
    p.sampling.bias = zeros;
    p.sampling.n_bias = 2;
    read_back(&got, &c);
    assert_same(&c, &got);
    sl_continuation_done(&got);
    p.sampling.n_bias = 0;
    uint32_t x = 12345;
    for (uint32_t exponent = 0; exponent <= 132; exponent++) { /* 2^5 … 2^6 */
        for (int i = 0; i < 8; i++) {
            x = x * 1664525 + 1013904223;
            uint32_t u = exponent << 23 | x >> 9;
            float f;
            memcpy(&f, &u, sizeof f);
            p.sampling.temperature = f;
            p.sampling.presence_penalty = -f;
            p.sampling.min_p = f <= 1 ? f : 0;
            p.sampling.seed = i < 4 ? UINT64_MAX - x : x;
            p.draws = i % 2 ? (uint64_t)1 << (exponent % 64) : ((uint64_t)1 << exponent % 64) - 1;
            read_back(&got, &c);
            assert_same(&c, &got);
            sl_continuation_done(&got);
        }
    }
}

/* What a request may say of each setting, at both ends of its range, is written and read again. */
static void test_bounds(void **arg)
{
    (void)arg;
    for (size_t i = 0; i < 2 * SL_SAMPLING_ROWS; i++) {
        const struct sl_json_row *row = &sl_sampling_rows[i / 2];
        struct sl_continuation asked, got;
        struct sl_error err = {0};
        char text[200];
        (void)snprintf(text, sizeof text,
                       "{\"pending\":[1],\"paused\":{\"%s\":%.17g,\"seed\":1,\"draws\":0,"
                       "\"max_tokens\":1}}",
                       row->key, i % 2 ? row->hi : row->lo);
        if (sl_continuation_read(&asked, text, strlen(text), VOCAB, &err) != SL_OK)
            fail_msg("%s in %s", err.message, text);
        read_back(&got, &asked);
        assert_same(&asked, &got);
        sl_continuation_done(&got);
        sl_continuation_done(&asked);
    }
}

static enum sl_code decode(const void *body, size_t n, struct sl_error *err)
{
    struct sl_continuation c;
    enum sl_code code = sl_continuation_read(&c, body, n, 100, err);
    if (code == SL_OK)
        sl_continuation_done(&c);
    return code;
}

#define TURN "{\"pending\":[1,2],\"paused\":{\"seed\":1,\"draws\":0,\"max_tokens\":9"

static void test_refused(void **arg)
{
    (void)arg;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "empty"},
        {"[]", "JSON object"},
        {"{", "not the text of a JSON object"},
        {"{}", "pending must be given"},
        {"{\"pending\":[]}", "at least one"},
        {"{\"pending\":null}", "pending must be given"},
        {"{\"pending\":7}", "pending must be an array"},
        {"{\"pending\":[100]}", "pending[0]"},
        {"{\"pending\":[1,-1]}", "pending[1]"},
        {"{\"pending\":[1.5]}", "pending[0]"},
        {"{\"pending\":[1],\"ring\":[100]}", "ring[0]"},
        {"{\"pending\":[1],\"ring\":1}", "ring must be"},
        {"{\"pending\":[1],\"paused\":[]}", "paused must be"},
        {"{\"pending\":[1],\"paused\":{}}", "seed must be given"},
        {"{\"pending\":[1],\"paused\":{\"seed\":1}}", "draws must be given"},
        {"{\"pending\":[1],\"paused\":{\"seed\":1,\"draws\":1}}", "max_tokens must be given"},
        {"{\"pending\":[1],\"paused\":{\"seed\":-1,\"draws\":1}}", "seed must be"},
        {"{\"pending\":[1],\"paused\":{\"seed\":\"-1\",\"draws\":1}}", "seed must be"},
        {"{\"pending\":[1],\"paused\":{\"seed\":\"\",\"draws\":1}}", "seed must be"},
        {"{\"pending\":[1],\"paused\":{\"seed\":\"01\",\"draws\":1}}", "seed must be"},
        {"{\"pending\":[1],\"paused\":{\"seed\":\"1 \",\"draws\":1}}", "seed must be"},
        {"{\"pending\":[1],\"paused\":{\"seed\":\"18446744073709551616\"}}", "seed must be"},
        {"{\"pending\":[1],\"paused\":{\"seed\":1,\"draws\":\"x\"}}", "draws must be"},
        {TURN ",\"temperature\":-1}}", "temperature must be"},
        {TURN ",\"temperature\":101}}", "temperature must be"},
        {TURN ",\"top_p\":-1}}", "top_p must be"},
        {TURN ",\"repetition_penalty\":0}}", "repetition_penalty must be"},
        {TURN ",\"penalty_last_n\":1025}}", "penalty_last_n must be"},
        {TURN ",\"logit_bias\":[[100,1]]}}", "logit_bias"},
        {TURN ",\"logit_bias\":[[1,101]]}}", "logit_bias"},
        {TURN ",\"max_tokens\":-1}}", "JSON"}, /* twice the same key */
        {TURN ",\"held\":-1}}", "held must be"},
        {TURN ",\"held\":2}}", "held must be less than the number of pending tokens (2), got 2"},
        {"{\"pending\":[1,2,3],\"paused\":{\"seed\":1,\"draws\":1,\"max_tokens\":1,\"held\":2}}",
         "held must be at most max_tokens (1), got 2"},
        {TURN ",\"logprobs\":21}}", "logprobs must be"},
        {TURN ",\"stop\":\"x\"}}", "stop must be an array"},
        {TURN ",\"stop\":[\"\"]}}", "must not be empty"},
        {TURN ",\"stop\":[{}]}}", "hex must be given"},
        {TURN ",\"stop\":[{\"hex\":\"\"}]}}", "must not be empty"},
        {TURN ",\"stop\":[{\"hex\":\"fff\"}]}}", "hex digits"},
        {TURN ",\"stop\":[{\"hex\":\"fG\"}]}}", "hex digits"},
        {TURN ",\"stop\":[1]}}", "stop[] must be a string"},
        {TURN ",\"stop_tokens\":[100]}}", "stop_tokens[0]"},
        {TURN ",\"generated\":[100]}}", "generated[0]"},
        {TURN ",\"ignore_eos\":1}}", "ignore_eos must be"},
        {TURN ",\"fewer_will_do\":1}}", "fewer_will_do must be"},
        {TURN ",\"ring\":[100]}}", "ring[0]"},
        {TURN ",\"utf8_tail\":\"0102030405\"}}", "utf8_tail"},
        {TURN ",\"utf8_tail\":\"0\"}}", "utf8_tail"},
        {TURN ",\"chat_template\":1}}", "chat_template must be"},
        {TURN ",\"reply_started\":\"\"}}", "reply_started must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_error err = {0};
        enum sl_code c = decode(cases[i].text, strlen(cases[i].text), &err);
        if (c != SL_E_SNAPSHOT_CORRUPT || !strstr(err.message, cases[i].message))
            fail_msg("%s gave %s: %s", cases[i].text, sl_code_name(c), err.message);
    }
    struct sl_error err;
    assert_int_equal(decode(TURN "}}", strlen(TURN "}}"), &err), SL_OK);
}

/* More than the most of each list. */
static void test_lists_are_bounded(void **arg)
{
    (void)arg;
    static const struct {
        const char *key, *item;
        size_t max;
    } lists[] = {
        {"stop", "\"x\"", SL_STOPS_MAX},
        {"stop_tokens", "1", SL_STOP_TOKENS_MAX},
        {"ring", "1", SL_PENALTY_LAST_N_MAX},
        {"logit_bias", "[1,1]", SL_LOGIT_BIAS_MAX},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        for (size_t more = 0; more <= 1; more++) {
            struct sl_buf b;
            sl_buf_init(&b, 1u << 20);
            sl_buf_printf(&b, TURN ",\"%s\":[", lists[i].key);
            for (size_t k = 0; k < lists[i].max + more; k++)
                sl_buf_printf(&b, "%s%s", k ? "," : "", lists[i].item);
            sl_buf_puts(&b, "]}}");
            struct sl_error err = {0};
            assert_int_equal(decode(b.data, b.len, &err), more ? SL_E_SNAPSHOT_CORRUPT : SL_OK);
            if (more)
                assert_non_null(strstr(err.message, lists[i].key));
            sl_buf_done(&b);
        }
    }
    char stop[700];
    for (int n = 256; n <= 257; n++) {
        (void)snprintf(stop, sizeof stop, TURN ",\"stop\":[\"%0*d\"]}}", n, 0);
        assert_int_equal(decode(stop, strlen(stop), NULL), n > 256 ? SL_E_SNAPSHOT_CORRUPT : SL_OK);
        (void)snprintf(stop, sizeof stop, TURN ",\"stop\":[{\"hex\":\"%0*d\"}]}}", 2 * n, 0);
        assert_int_equal(decode(stop, strlen(stop), NULL), n > 256 ? SL_E_SNAPSHOT_CORRUPT : SL_OK);
    }
}

/* A prompt of 8 MiB may be as many tokens, all of them pending after a pause; and a turn may have
 * generated as many before one. */
static void test_long(void **arg)
{
    (void)arg;
    enum { MANY = 8 << 20 };
    uint32_t *ids = sl_malloc(MANY * sizeof *ids);
    assert_non_null(ids);
    struct sl_paused_turn p = full_turn();
    static const uint32_t vocab[] = {10, 300, VOCAB};
    for (size_t k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < MANY; i++)
            ids[i] = (i * 2654435761u >> 8) % vocab[k];
        for (size_t i = 1; i < 4; i++) { /* the one, the other, both */
            struct sl_continuation c = {.pending = ids, .paused = &p}, got;
            c.n_pending = i & 1 ? MANY : 5;
            p.generated = ids;
            p.n_generated = i & 2 ? MANY : 5;
            read_back(&got, &c);
            assert_same(&c, &got);
            sl_continuation_done(&got);
        }
    }
    sl_free(ids);
}

struct list_case {
    const char *text, *message; /* NULL: 1, 2 */
};

/* Where in the continuation the ids are. */
static void expect_lists(const struct list_case *cases, size_t n, bool generated)
{
    for (size_t i = 0; i < n; i++) {
        struct sl_continuation c;
        struct sl_error err = {0};
        enum sl_code code =
            sl_continuation_read(&c, cases[i].text, strlen(cases[i].text), 100, &err);
        if (code != (cases[i].message ? SL_E_SNAPSHOT_CORRUPT : SL_OK))
            fail_msg("%s gave %s: %s", cases[i].text, sl_code_name(code), code ? err.message : "");
        if (code) {
            if (!strstr(err.message, cases[i].message))
                fail_msg("%s gave %s", cases[i].text, err.message);
            continue;
        }
        if (generated)
            assert_ids(c.paused->generated, c.paused->n_generated, (const uint32_t[]){1, 2}, 2);
        else
            assert_ids(c.pending, c.n_pending, (const uint32_t[]){1, 2}, 2);
        sl_continuation_done(&c);
    }
}

/* Pending ids as nobody writes them: refused, or read, as any other JSON is. */
static void test_pending(void **arg)
{
    (void)arg;
    static const struct list_case cases[] = {
        {"{\"pending\":[1,2]}", NULL},
        {"{ \"pending\":[1,2]}", NULL},
        {"{\"pending\":[1, 2]}", NULL},
        {"{\"pending\":[1,2] ,\"x\":0}", NULL},
        {"{\"pending\":[1,2], \"x\":0}", NULL},
        {"{\"x\":0,\"pending\":[1,2]}", NULL},
        {"{\"pending\":[1,2.0]}", NULL},
        {"{\"pending\":[1,2]} ", NULL},
        {"{\"pending\":[1,2],}", "not the text of a JSON object"},
        {"{\"pending\":[1,2],\"x\"}", "not the text of a JSON object"},
        {"{\"pending\":[1,2]}}", "not the text of a JSON object"},
        {"{\"pending\":[1,2]", "not the text of a JSON object"},
        {"{\"pending\":[1,2]]}", "not the text of a JSON object"},
        {"{\"pending\":[1,2,]}", "not the text of a JSON object"},
        {"{\"pending\":[1,02]}", "not the text of a JSON object"},
        {"{\"pending\":[1,2],\"pending\":[1,2]}", "not the text of a JSON object"},
        {"{\"pending\":[1,2],\"pending\":null}", "not the text of a JSON object"},
        {"{\"pending\":[1,100]}", "pending[1]"},
        {"{\"pending\":[1,4294967298]}", "pending[1]"},
        {"{\"pending\":[1,18446744073709551618]}", "pending[1]"},
        {"{\"pending\":[1,-2]}", "pending[1]"},
        {"{\"pending\":[]}", "at least one"},
    };
    expect_lists(cases, sizeof cases / sizeof *cases, false);
}

#define PAUSED(rest) "{\"pending\":[1],\"paused\":{\"seed\":1,\"draws\":0,\"max_tokens\":9," rest

/* Likewise what a paused turn has generated; and what only looks like it. */
static void test_generated(void **arg)
{
    (void)arg;
    static const struct list_case cases[] = {
        {PAUSED("\"generated\":[1,2]}}"), NULL},
        {PAUSED("\"generated\": [1,2]}}"), NULL},
        {PAUSED("\"generated\" :[1,2]}}"), NULL},
        {PAUSED("\"generated\":[1 ,2]}}"), NULL},
        {PAUSED("\"generated\":[1,2.0]}}"), NULL},
        {PAUSED("\"gener\\u0061ted\":[1,2]}}"), NULL},
        {PAUSED("\"stop\":[\"\\\"generated\\\":[3]\"],\"generated\":[1,2]}}"), NULL},
        {PAUSED("\"stop\":[\"\\\\\"],\"generated\":[1,2],\"later\":{\"generated\":[3]}}}"), NULL},
        {PAUSED("\"later\":{\"generated\":[3]},\"generated\":[1,2]}}"), NULL},
        {PAUSED("\"later\":[{\"generated\":[3]}],\"generated\":[1,2]},\"generated\":[3]}"), NULL},
        {PAUSED("\"pending\":[100],\"generated\":[1,2]},\"later\":{\"generated\":[3]}}"), NULL},
        {"{\"paused\":{\"generated\":[1,2],\"seed\":1,\"draws\":0,\"max_tokens\":9},"
         "\"pending\":[7]}",
         NULL},
        {PAUSED("\"generated\":[1,2],}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2]]}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2,]}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,02]}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2]"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2],\"generated\":[1,2]}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2],\"gener\\u0061ted\":[]}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2]},\"paused\":{}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,2]}}}"), "not the text of a JSON object"},
        {PAUSED("\"generated\":[1,100]}}"), "generated[1]"},
        {PAUSED("\"generated\":[1,4294967298]}}"), "generated[1]"},
        {PAUSED("\"generated\":[1,-2]}}"), "generated[1]"},
        {PAUSED("\"generated\":{\"1\":2}}}"), "generated must be an array"},
        {"{\"pending\":[1],\"paused\":[\"generated\":[1,2]]}", "not the text of a JSON object"},
        {"[\"pending\":[1]]", "not the text of a JSON object"},
    };
    expect_lists(cases, sizeof cases / sizeof *cases, true);
}

/* What the store has no room for. */
static void test_held(void **arg)
{
    (void)arg;
    enum { MANY = SL_HELD_MAX + 2 };
    uint32_t *ids = sl_calloc(MANY, sizeof *ids);
    assert_non_null(ids);
    for (size_t more = 0; more < 2; more++) {
        struct sl_paused_turn p = {.sampling = SL_SAMPLING_DEFAULT, .logprobs = -1};
        struct sl_continuation c = {.pending = ids, .n_pending = MANY, .paused = &p};
        struct sl_error err = {0};
        size_t n;
        p.n_held = p.max_tokens = SL_HELD_MAX + more;
        char *text = text_of(&c, &n);
        enum sl_code code = decode(text, n, &err);
        assert_int_equal(code, more ? SL_E_SNAPSHOT_CORRUPT : SL_OK);
        if (more)
            assert_non_null(strstr(err.message, "held must be at most 16777215, got 16777216"));
        sl_free(text);
    }
    sl_free(ids);
}

/* Unknown fields are for later versions; numbers may be numbers. */
static void test_tolerant(void **arg)
{
    (void)arg;
    static const char text[] = "{\"pending\":[5],\"later\":{},\"paused\":{\"seed\":7,\"draws\":3,"
                               "\"max_tokens\":1e2,\"new\":[1],\"chat_template\":null}}";
    struct sl_continuation c;
    assert_int_equal(sl_continuation_read(&c, text, sizeof text - 1, VOCAB, NULL), SL_OK);
    assert_int_equal(c.pending[0], 5);
    assert_int_equal(c.paused->sampling.seed, 7);
    assert_int_equal(c.paused->draws, 3);
    assert_int_equal(c.paused->max_tokens, 100);
    assert_int_equal(c.paused->logprobs, -1);
    assert_null(c.paused->chat_template);
    assert_true(c.paused->sampling.temperature == 1.0f);
    sl_continuation_done(&c);
}

static void test_memory(void **arg)
{
    (void)arg;
    struct sl_paused_turn p = full_turn();
    struct sl_continuation c = {.pending = some_ids, .n_pending = 5, .paused = &p}, got;
    size_t n, failed = 0;
    char *text = text_of(&c, &n);
    for (int64_t i = 0;; i++) {
        sl_mem_fail_once(i);
        enum sl_code code = sl_continuation_read(&got, text, n, VOCAB, NULL);
        sl_mem_fail_after(-1);
        if (code == SL_OK)
            break;
        assert_int_equal(code, SL_E_NO_MEMORY);
        failed++;
    }
    assert_true(failed > 10);
    sl_continuation_done(&got);
    sl_free(text);
    struct sl_buf b;
    sl_buf_init(&b, 1u << 20);
    sl_mem_fail_once(0);
    sl_continuation_write(&b, &c);
    sl_mem_fail_after(-1);
    assert_int_equal(sl_buf_code(&b, NULL), SL_E_NO_MEMORY);
    sl_buf_done(&b);
}

/* Cut anywhere it is refused; no byte changed makes it anything but refused or well-formed. */
static void test_damaged(void **arg)
{
    (void)arg;
    struct sl_paused_turn p = full_turn();
    struct sl_continuation c = {.pending = some_ids, .n_pending = 5, .paused = &p}, got;
    size_t n;
    char *text = text_of(&c, &n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(sl_continuation_read(&got, text, i, VOCAB, NULL), SL_E_SNAPSHOT_CORRUPT);
    for (size_t i = 0; i < n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ (1 << bit));
            if (sl_continuation_read(&got, text, n, VOCAB, NULL) == SL_OK) {
                assert_true(got.n_pending >= 1);
                assert_true(!got.paused || got.paused->n_held < got.n_pending);
                sl_continuation_done(&got);
            }
            text[i] = (char)(text[i] ^ (1 << bit));
        }
    }
    sl_free(text);
}

int main(void)
{
    sl_json_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_fields), cmocka_unit_test(test_least),
        cmocka_unit_test(test_numbers),    cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_lists_are_bounded),
        cmocka_unit_test(test_long),       cmocka_unit_test(test_pending),
        cmocka_unit_test(test_generated),  cmocka_unit_test(test_held),
        cmocka_unit_test(test_tolerant),   cmocka_unit_test(test_memory),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
