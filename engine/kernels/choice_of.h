/* choice_of.h: what passes over a row of logits (engine/sampler.h), for one instruction set: a part
 * of vector_of.h, which says what is there to be used. Private to kernels/; included by it alone.
 */

static void tops(float *top, const float *x, size_t n)
{
    enum { REGISTERS = SL_TOPS / LANES };
    size_t i = 0;
    for (; i + SL_TOPS <= n; i += SL_TOPS) {
        vec best = v_load(x + i);
        uints nan = (uints)(best != best);
        for (int j = 1; j < REGISTERS; j++) {
            vec v = v_load(x + i + (size_t)j * LANES);
            best = v_max(best, v);
            nan |= (uints)(v != v);
        }
        top[i / SL_TOPS] = v_any(nan) ? NAN : v_largest(best) + 0.0F;
    }
    if (i < n)
        top[i / SL_TOPS] = max(x + i, n - i);
}

/* exp1 from SL_WEIGH_MIN to 88, where each power of two is a normal number, and 0 below; there the
 * way to it is computed, too, and leads to nothing that is used. */
static inline vec weigh1(vec t)
{
    vec k, p = exp_rest(t, &k);
    vec power = (vec)(((uints)k - (uint32_t)(SL_EXP_MAGIC_BITS - 127)) << 23U);
    return v_if_less(t, v_all(SL_WEIGH_MIN), v_all(0), p * power);
}

/* For sums by SUM16 of what is written on the way. */
#define WRITE_WHOLE(p, v) written(p, LANES, v)
#define WRITE_PART(p, v) written(p, left, v)

static ALWAYS_INLINE vec written(float *y, size_t left, vec v)
{
    if (left >= LANES)
        v_store(y, v);
    else
        v_store_first(y, left, v);
    return v;
}

static float weigh_at_1(float *y, const float *x, float m, size_t n)
{
#define ADDED(acc, LOAD, i) ((acc) + WRITE_##LOAD(y + (i), weigh1(LOAD(x + (i)) - m)))
    SUM16(n, ADDED)
#undef ADDED
}

static float weigh(float *y, const float *x, float m, float temperature, size_t n)
{
    if (temperature == 1)
        return weigh_at_1(y, x, m, n);
#define ADDED(acc, LOAD, i)                                                                        \
    ((acc) + WRITE_##LOAD(y + (i), weigh1((LOAD(x + (i)) - m) / temperature)))
    SUM16(n, ADDED)
#undef ADDED
}

static float drop(float *y, const float *key, float least, size_t n)
{
#define KEPT(k, v) v_if_less(k, v_all(least), v_all(0), v)
#define ADDED(acc, LOAD, i) ((acc) + WRITE_##LOAD(y + (i), KEPT(LOAD(key + (i)), LOAD(y + (i)))))
    SUM16(n, ADDED)
#undef ADDED
}

/* The last items of a list, fewer than a register, to the end of a part. */
static size_t pack_last(float *p, uints mask, vec v)
{
    float packed[LANES];
    size_t n = v_pack(packed, mask, v);
    memcpy(p, packed, n * sizeof *p);
    return n;
}

/* The part that part() makes. */
struct list {
    float *key, *w; /* NULL: not to be written */
    size_t n;
};

/* A register of items, or its first lanes: what is counted to l, what lies inside to the part. */
static ALWAYS_INLINE void part_some(struct list *list, wide l[2], vec key, vec w, size_t lanes,
                                    vec low, vec high)
{
    const vec none = v_all(0), all = (vec) ~(uints)none;
    uints above = (uints)v_if_less(key, high, none, all);
    uints inside = (uints)v_if_less(key, low, none, all) & ~above;
    if (lanes < LANES) {
        above = (uints)v_keep_first(lanes, (vec)above, none);
        inside = (uints)v_keep_first(lanes, (vec)inside, none);
    }
    vec counted = (vec)((uints)w & above);
    l[0] += v_widen_low(counted);
    l[1] += v_widen_high(counted);
    if (!list->key)
        return;
    if (list->w)
        (void)(lanes < LANES ? pack_last(list->w + list->n, inside, w)
                             : v_pack(list->w + list->n, inside, w));
    list->n += lanes < LANES ? pack_last(list->key + list->n, inside, key)
                             : v_pack(list->key + list->n, inside, key);
}

static ALWAYS_INLINE double part_of(float *part_key, float *part_w, size_t *ret_n, const float *key,
                                    const float *w, size_t n, float low, float high)
{
    const vec from = v_all(low), to = v_all(high);
    struct list list = {part_key, part_w, 0};
    wide l[2 * SUMS];
    size_t i = 0;
    for (int j = 0; j < 2 * SUMS; j++)
        l[j] = (wide){0};
    for (; i + SL_PANEL <= n; i += SL_PANEL)
        for (size_t j = 0; j < SUMS; j++)
            part_some(&list, l + 2 * j, v_load(key + i + j * LANES),
                      w ? v_load(w + i + j * LANES) : v_all(1), LANES, from, to);
    for (size_t j = 0; i < n; j++, i += LANES) {
        size_t lanes = n - i < LANES ? n - i : LANES;
        part_some(&list, l + 2 * j, load_lanes(key + i, lanes),
                  w ? load_lanes(w + i, lanes) : v_all(1), lanes, from, to);
    }
    *ret_n = list.n;
    double sums[SL_PANEL];
    memcpy(sums, l, sizeof sums);
    for (size_t half = SL_PANEL / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++)
            sums[j] += sums[j + half];
    return sums[0];
}

/* Each way on its own, for the compiler to leave out what it does without. */
static double part(float *part_key, float *part_w, size_t *ret_n, const float *key, const float *w,
                   size_t n, float low, float high)
{
    if (!part_key)
        return w ? part_of(NULL, NULL, ret_n, key, w, n, low, high)
                 : part_of(NULL, NULL, ret_n, key, NULL, n, low, high);
    if (!part_w)
        return w ? part_of(part_key, NULL, ret_n, key, w, n, low, high)
                 : part_of(part_key, NULL, ret_n, key, NULL, n, low, high);
    return part_of(part_key, part_w, ret_n, key, w, n, low, high);
}
