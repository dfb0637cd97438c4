/* state_of.h: the kernels of states, for one instruction set: a part of vector_of.h, which says
 * what is there to be used. Private to kernels/; included by it alone.
 *
 * Columns of a state (values) do not depend on each other, and an output is the sum over its
 * column's keys in order. Three ways through a head's state keep to that order:
 *
 *   step     one token. A block of columns is walked from the first key to the last with the sums
 *            in registers: several registers of columns, then half as many, then one, then what is
 *            left (a head of the usual size is whole blocks).
 *   reread   tokens whose rule reads the state before it writes (delta rules, RWKV-7): as a step,
 *            and what the next token has to read is summed up on the way, from the elements that
 *            were just written: one pass for each token. Where there are registers for it (REREAD);
 *            else a token is a read and a step.
 *   hold     tokens of a rule that only adds: a few keys of a few columns stay in registers while
 *            all tokens go by; the outputs' partial sums wait in memory for the next keys. (Where a
 *            state also decays a step is bound by its multiplications, and this gains nothing.)
 *
 * With the last token of each call the same place of the head that lies behind this one is asked
 * for: decoding reads each state once in a step, from memory, and that is what a step of many
 * sessions would wait for. Where no head lies behind, nothing comes of it. */

enum { READ_WIDE = 64 / LANES, REREAD_WIDE = 4, HOLD_WIDE = 2, HOLD_MIN = 8 };

/* For columns v = 0 … n_v - 1: CALL(registers, columns of the last one). */
#define FOR_BLOCKS(wide, CALL)                                                                     \
    size_t v = 0;                                                                                  \
    for (; v + (size_t)(wide)*LANES <= n_v; v += (size_t)(wide)*LANES)                             \
        CALL(wide, LANES);                                                                         \
    for (; v + (size_t)(wide) / 2 * LANES <= n_v; v += (size_t)(wide) / 2 * LANES)                 \
        CALL((wide) / 2, LANES);                                                                   \
    for (; v + LANES <= n_v; v += LANES)                                                           \
        CALL(1, LANES);                                                                            \
    if (v < n_v)                                                                                   \
        CALL(1, n_v - v);

static ALWAYS_INLINE vec load_lanes(const float *p, const size_t lanes)
{
    return lanes == LANES ? v_load(p) : v_load_first(p, lanes);
}

static ALWAYS_INLINE void store_lanes(float *p, const size_t lanes, vec v)
{
    if (lanes == LANES)
        v_store(p, v);
    else
        v_store_first(p, lanes, v);
}

static ALWAYS_INLINE void load_block(vec *v, const int width, const float *p, const size_t lanes)
{
#pragma GCC unroll 16
    for (int j = 0; j < width; j++)
        v[j] = load_lanes(p + (ptrdiff_t)LANES * j, lanes);
}

static ALWAYS_INLINE void store_block(float *p, const int width, const vec *v, const size_t lanes)
{
#pragma GCC unroll 16
    for (int j = 0; j < width; j++)
        store_lanes(p + (ptrdiff_t)LANES * j, lanes, v[j]);
}

static ALWAYS_INLINE void zero_block(vec *v, const int width)
{
#pragma GCC unroll 16
    for (int j = 0; j < width; j++)
        v[j] = v_all(0);
}

/* --- reading --- */

static ALWAYS_INLINE void sum_block(vec *acc, const int width, const size_t lanes, const float *s,
                                    const float *q, size_t n_k, size_t n_v)
{
    zero_block(acc, width);
    for (size_t k = 0; k < n_k; k++, s += n_v) {
        const vec qk = v_all(q[k]);
#pragma GCC unroll 16
        for (int j = 0; j < width; j++)
            acc[j] = v_fma(load_lanes(s + (ptrdiff_t)LANES * j, lanes), qk, acc[j]);
    }
}

static ALWAYS_INLINE void read_block(const int width, const size_t lanes, float *out,
                                     const float *s, const float *q, size_t n_k, size_t n_v)
{
    vec acc[READ_WIDE];
    sum_block(acc, width, lanes, s, q, n_k, n_v);
    store_block(out, width, acc, lanes);
}

static void state_read(float *out, const float *s, const float *q, size_t n_k, size_t n_v)
{
#define READ(width, lanes) read_block(width, lanes, out + v, s + v, q, n_k, n_v)
    FOR_BLOCKS(READ_WIDE, READ)
}

/* --- step and reread --- */

/* One token's vectors by key; those that its rule has not are NULL. */
struct by_key {
    const float *key, *q, *decay, *b, *bonus;
    size_t decay_step; /* 0: one decay for all keys */
    const float *next; /* what the next token reads with */
};

/* What is made of each element: x ⊙ decay, + b aᵀ, + key valᵀ; or the rule with a bonus. */
struct rule {
    bool decays, adds, has_bonus;
    bool rereads; /* there is a next token, which reads */
    bool last;    /* there is none: what lies behind this head is asked for */
};

static ALWAYS_INLINE void step_block(const int width, const size_t lanes, const struct rule rule,
                                     float *s, const struct by_key *t, size_t n_k, size_t n_v,
                                     const vec *val, const vec *a, vec *acc, vec *next)
{
    const size_t head = n_k * n_v;
    zero_block(acc, width);
    if (rule.rereads)
        zero_block(next, width);
    for (size_t k = 0; k < n_k; k++, s += n_v) {
        /* Loaded before anything is stored: as far as the compiler knows, a store changes them. */
        const vec key = v_all(t->key[k]), q = v_all(t->q[k]);
        const vec decay = v_all(rule.decays ? t->decay[k * t->decay_step] : 1);
        const vec b = v_all(rule.adds ? t->b[k] : 0);
        const vec reads = v_all(rule.rereads ? t->next[k] : 0);
        const vec now = key * v_all(rule.has_bonus ? t->bonus[k] : 1);
        if (rule.last)
            for (int j = 0; j < width * LANES; j += SL_PANEL)
                __builtin_prefetch(s + head + j, 1, 2);
#pragma GCC unroll 16
        for (int j = 0; j < width; j++) {
            vec x = load_lanes(s + (ptrdiff_t)LANES * j, lanes);
            if (rule.has_bonus)
                acc[j] = v_fma(v_fma(now, val[j], x), q, acc[j]);
            if (rule.decays)
                x = x * decay;
            if (rule.adds)
                x = v_fma(b, a[j], x);
            x = v_fma(key, val[j], x);
            store_lanes(s + (ptrdiff_t)LANES * j, lanes, x);
            if (!rule.has_bonus)
                acc[j] = v_fma(x, q, acc[j]);
            if (rule.rereads)
                next[j] = v_fma(x, reads, next[j]);
        }
    }
}

static ALWAYS_INLINE void step_alone(const int width, const size_t lanes, const struct rule rule,
                                     float *out, float *s, const struct by_key *t,
                                     const float *values, const float *adds, size_t n_k, size_t n_v)
{
    vec acc[WIDE], a[WIDE], val[WIDE];
    load_block(val, width, values, lanes);
    if (rule.adds)
        load_block(a, width, adds, lanes);
    else
        zero_block(a, width);
    step_block(width, lanes, rule, s, t, n_k, n_v, val, a, acc, NULL);
    store_block(out, width, acc, lanes);
}

static void state_step(float *out, float *s, const float *decay, const float *b, const float *a,
                       const float *key, const float *val, const float *q, size_t n_k, size_t n_v)
{
    assert(!a == !b);
    const struct by_key t = {.key = key, .q = q, .decay = decay, .b = b, .decay_step = 1};
#define STEP(d, more, width, lanes)                                                                \
    step_alone(width, lanes, (struct rule){.decays = d, .adds = more, .last = true}, out + v,      \
               s + v, &t, val + v, more ? a + v : NULL, n_k, n_v)
#define DECAY_AND_ADD(width, lanes) STEP(true, true, width, lanes)
#define DECAY(width, lanes) STEP(true, false, width, lanes)
#define NEITHER_OR_ADD(width, lanes) STEP(false, (a != NULL), width, lanes)
    if (decay && a) {
        FOR_BLOCKS(WIDE, DECAY_AND_ADD)
    } else if (decay) {
        FOR_BLOCKS(WIDE, DECAY)
    } else {
        FOR_BLOCKS(WIDE, NEITHER_OR_ADD)
    }
}

static ALWAYS_INLINE struct by_key token_of(const struct sl_state_run *r, size_t t)
{
    return (struct by_key){
        .key = r->key + t * r->ld_key,
        .q = r->q + t * r->ld_q,
        .decay = r->decay ? r->decay + t * r->ld_decay : NULL,
        .b = r->b ? r->b + t * r->ld_b : NULL,
        .bonus = r->bonus,
        .decay_step = r->one_decay ? 0 : 1,
        .next = r->read && t + 1 < r->n ? r->read + (t + 1) * r->ld_read : NULL,
    };
}

/* What a delta rule writes, of what its key reads. */
static ALWAYS_INLINE vec corrected(vec read, vec val, float decay, float beta)
{
    return (read * -decay + val) * beta;
}

static ALWAYS_INLINE void reread_block(const int width, const size_t lanes, const bool decays,
                                       const bool erases, float *s, const struct sl_state_run *r,
                                       size_t v)
{
    vec acc[REREAD_WIDE], read[REREAD_WIDE], a[REREAD_WIDE], val[REREAD_WIDE];
    sum_block(read, width, lanes, s, r->read, r->n_k, r->n_v);
    for (size_t t = 0; t < r->n; t++) {
        const struct by_key x = token_of(r, t);
        load_block(val, width, r->val + t * r->ld_val + v, lanes);
#pragma GCC unroll 16
        for (int j = 0; j < width; j++) {
            a[j] = read[j];
            if (!erases)
                val[j] = corrected(read[j], val[j], decays ? *x.decay : 1, r->beta[t * r->ld_beta]);
        }
        if (t + 1 < r->n)
            step_block(width, lanes,
                       (struct rule){.decays = decays, .adds = erases, .rereads = true}, s, &x,
                       r->n_k, r->n_v, val, a, acc, read);
        else
            step_block(width, lanes, (struct rule){.decays = decays, .adds = erases, .last = true},
                       s, &x, r->n_k, r->n_v, val, a, acc, NULL);
        store_block(r->out + t * r->ld_out + v, width, acc, lanes);
    }
}

static void reread(float *s, const struct sl_state_run *r)
{
    const size_t n_v = r->n_v;
#define ERASE(width, lanes) reread_block(width, lanes, true, true, s + v, r, v)
#define GATED_DELTA(width, lanes) reread_block(width, lanes, true, false, s + v, r, v)
#define DELTA(width, lanes) reread_block(width, lanes, false, false, s + v, r, v)
    if (r->b) {
        FOR_BLOCKS(REREAD_WIDE, ERASE)
    } else if (r->decay) {
        FOR_BLOCKS(REREAD_WIDE, GATED_DELTA)
    } else {
        FOR_BLOCKS(REREAD_WIDE, DELTA)
    }
}

/* --- hold --- */

static ALWAYS_INLINE void hold_rows(const int rows, const int width, const size_t lanes, float *s,
                                    const struct sl_state_run *r, size_t k, size_t v)
{
    vec x[HOLD_ROWS][HOLD_WIDE], acc[HOLD_WIDE], val[HOLD_WIDE];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        load_block(x[i], width, s + (k + (size_t)i) * r->n_v, lanes);
    for (size_t t = 0; t < r->n; t++) {
        const float *key = r->key + t * r->ld_key + k, *q = r->q + t * r->ld_q + k;
        float *out = r->out + t * r->ld_out + v;
        load_block(val, width, r->val + t * r->ld_val + v, lanes);
        if (k == 0)
            zero_block(acc, width);
        else
            load_block(acc, width, out, lanes);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
            for (int j = 0; j < width; j++) {
                x[i][j] = v_fma(v_all(key[i]), val[j], x[i][j]);
                acc[j] = v_fma(x[i][j], v_all(q[i]), acc[j]);
            }
        }
        store_block(out, width, acc, lanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        store_block(s + (k + (size_t)i) * r->n_v, width, x[i], lanes);
}

static ALWAYS_INLINE void hold_block(const int width, const size_t lanes, float *s,
                                     const struct sl_state_run *r, size_t v)
{
    size_t k = 0;
    for (; k + HOLD_ROWS <= r->n_k; k += HOLD_ROWS)
        hold_rows(HOLD_ROWS, width, lanes, s, r, k, v);
    for (; k < r->n_k; k++)
        hold_rows(1, width, lanes, s, r, k, v);
}

static void hold(float *s, const struct sl_state_run *r)
{
    const size_t n_v = r->n_v;
#define HOLD(width, lanes) hold_block(width, lanes, s + v, r, v)
    FOR_BLOCKS(HOLD_WIDE, HOLD)
}

/* --- any number of tokens --- */

static ALWAYS_INLINE void correct_block(const int width, const size_t lanes, float *y,
                                        const float *val, float decay, float beta)
{
    for (int j = 0; j < width; j++, y += LANES, val += LANES)
        store_lanes(y, lanes, corrected(load_lanes(y, lanes), load_lanes(val, lanes), decay, beta));
}

/* Token i, of a rule that reads before it writes. What it reads waits in its output's place. */
static void read_and_step(float *s, const struct sl_state_run *r, size_t i)
{
    const size_t n_k = r->n_k, n_v = r->n_v;
    const struct by_key t = token_of(r, i);
    const float *val = r->val + i * r->ld_val, one = t.decay ? *t.decay : 1;
    float *out = r->out + i * r->ld_out;
    state_read(out, s, r->read + i * r->ld_read, n_k, n_v);
#define CORRECT(width, lanes)                                                                      \
    correct_block(width, lanes, out + v, val + v, one, r->beta[i * r->ld_beta])
#define STEP_ERASE(width, lanes)                                                                   \
    step_alone(width, lanes, (struct rule){.decays = true, .adds = true, .last = true}, out + v,   \
               s + v, &t, val + v, out + v, n_k, n_v)
#define STEP_DELTA(width, lanes)                                                                   \
    step_alone(width, lanes, (struct rule){.decays = t.decay != NULL, .last = true}, out + v,      \
               s + v, &t, out + v, NULL, n_k, n_v)
    if (r->b) {
        FOR_BLOCKS(WIDE, STEP_ERASE)
        return;
    }
    {FOR_BLOCKS(WIDE, CORRECT)} FOR_BLOCKS(WIDE, STEP_DELTA)
}

/* Token i, of another rule. */
static ALWAYS_INLINE void step_token(float *s, const struct sl_state_run *r, size_t i,
                                     const bool last)
{
    const size_t n_k = r->n_k, n_v = r->n_v;
    const struct by_key t = token_of(r, i);
    const float *val = r->val + i * r->ld_val;
    float *out = r->out + i * r->ld_out;
#define ONE(d, has, width, lanes)                                                                  \
    step_alone(width, lanes, (struct rule){.decays = d, .has_bonus = has, .last = last}, out + v,  \
               s + v, &t, val + v, NULL, n_k, n_v)
#define ONE_BONUS(width, lanes) ONE(true, true, width, lanes)
#define ONE_DECAY(width, lanes) ONE(true, false, width, lanes)
#define ONE_ALL(width, lanes) ONE(false, false, width, lanes)
    if (r->bonus) {
        FOR_BLOCKS(WIDE, ONE_BONUS)
    } else if (r->decay) {
        FOR_BLOCKS(WIDE, ONE_DECAY)
    } else {
        FOR_BLOCKS(WIDE, ONE_ALL)
    }
}

static void state_run(float *s, const struct sl_state_run *r)
{
    assert(sl_state_run_is_valid(r));
    if (r->read && REREAD && r->n > 1) {
        reread(s, r);
    } else if (r->read) {
        for (size_t i = 0; i < r->n; i++)
            read_and_step(s, r, i);
    } else if (!r->decay && r->n >= HOLD_MIN) {
        hold(s, r);
    } else {
        for (size_t i = 0; i + 1 < r->n; i++)
            step_token(s, r, i, false);
        step_token(s, r, r->n - 1, true);
    }
}
