/* shape_gguf.c: see shape_gguf.h.
 *
 * Names, shapes and types are those of llama.cpp's converter: matrices that a model uses as x @ w
 * are turned, the six mixes of a layer lie in one tensor, r_k is flat, and the first layer has
 * dummies where the others mix in the first layer's values. The file is written in order, first
 * what there is and where, then the data, by two walks over one table. */
#include "server/cli/shape_gguf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/formats/tensors.h"
#include "engine/kernels/convert.h"
#include "proto/buf.h"

enum { ALIGNMENT = 32, NAME_MAX_BYTES = 64, HEAD_MAX = 64 << 20 };
enum { U32 = 4, F32_VALUE = 6, STRING = 8, ARRAY = 9, I32 = 5 }; /* types of values */
enum { F32 = 0, F16 = 1 };                                       /* types of tensors */

/* Vectors are F32 in every case. */
enum how {
    SAME,
    FLAT,        /* as a vector */
    JOINED,      /* the six mixes, as vectors one after the other */
    TURNED,      /* its axes exchanged */
    TURNED_WIDE, /* and in F32 */
};

struct row {
    const char *ours, *file; /* of layers: after "blocks.N." and "blk.N." */
    enum how how;
};

static const struct row ends[] = {
    {"emb.weight", "token_embd.weight", SAME},
    {"blocks.0.ln0.weight", "token_embd_norm.weight", SAME},
    {"blocks.0.ln0.bias", "token_embd_norm.bias", SAME},
    {"ln_out.weight", "output_norm.weight", SAME},
    {"ln_out.bias", "output_norm.bias", SAME},
    {"head.weight", "output.weight", SAME},
};

static const struct row layer[] = {
    {"ln1.weight", "attn_norm.weight", SAME},
    {"ln1.bias", "attn_norm.bias", SAME},
    {"ln2.weight", "attn_norm_2.weight", SAME},
    {"ln2.bias", "attn_norm_2.bias", SAME},
    {"att.x_", "time_mix_lerp_fused.weight", JOINED},
    {"att.w0", "time_mix_w0.weight", SAME},
    {"att.w1", "time_mix_w1.weight", TURNED_WIDE},
    {"att.w2", "time_mix_w2.weight", TURNED_WIDE},
    {"att.a0", "time_mix_a0.weight", SAME},
    {"att.a1", "time_mix_a1.weight", TURNED},
    {"att.a2", "time_mix_a2.weight", TURNED},
    {"att.v0", "time_mix_v0.weight", SAME},
    {"att.v1", "time_mix_v1.weight", TURNED},
    {"att.v2", "time_mix_v2.weight", TURNED},
    {"att.g1", "time_mix_g1.weight", TURNED},
    {"att.g2", "time_mix_g2.weight", TURNED},
    {"att.k_k", "time_mix_k_k.weight", SAME},
    {"att.k_a", "time_mix_k_a.weight", SAME},
    {"att.r_k", "time_mix_r_k.weight", FLAT},
    {"att.receptance.weight", "time_mix_receptance.weight", SAME},
    {"att.key.weight", "time_mix_key.weight", SAME},
    {"att.value.weight", "time_mix_value.weight", SAME},
    {"att.output.weight", "time_mix_output.weight", SAME},
    {"att.ln_x.weight", "time_mix_ln.weight", SAME},
    {"att.ln_x.bias", "time_mix_ln.bias", SAME},
    {"ffn.x_k", "channel_mix_lerp_k.weight", SAME},
    {"ffn.key.weight", "channel_mix_key.weight", SAME},
    {"ffn.value.weight", "channel_mix_value.weight", SAME},
};

static const char mixes[] = "rwkvag";

enum {
    N_ENDS = sizeof ends / sizeof *ends,
    N_LAYER = sizeof layer / sizeof *layer,
    N_MIXES = sizeof mixes - 1
};

/* A tensor of the file, and the parts of ours that it is made of. */
struct item {
    const struct row *row;
    char name[NAME_MAX_BYTES];
    const struct sl_tensor *parts[N_MIXES];
    size_t n_parts, rows, cols; /* of a part; a vector: cols 1 */
};

struct job {
    const struct sl_shape *s;
    const struct sl_tensors *t;
    FILE *f;
};

static size_t n_items(const struct sl_shape *s)
{
    return N_ENDS + s->n_layers * N_LAYER;
}

/* The one that is called so in a layer, with a letter behind it where it is one of the mixes. */
static const struct sl_tensor *find(const struct job *j, size_t block, const char *name,
                                    const char *letter, bool mix)
{
    char ours[NAME_MAX_BYTES];
    (void)snprintf(ours, sizeof ours, "blocks.%zu.%s%.*s", block, name, (int)mix, letter);
    return sl_tensors_find(j->t, ours);
}

/* In the first layer, where there is nothing to mix in, the converter puts a0, a1, a2 for v0, v1,
 * v2. */
static const char *name_in(size_t block, const char *ours)
{
    static const char *const dummies[][2] = {
        {"att.v0", "att.a0"}, {"att.v1", "att.a1"}, {"att.v2", "att.a2"}};
    for (size_t i = 0; block == 0 && i < sizeof dummies / sizeof *dummies; i++)
        if (strcmp(dummies[i][0], ours) == 0)
            return dummies[i][1];
    return ours;
}

static struct item item(const struct job *j, size_t i)
{
    struct item r = {.n_parts = 1};
    if (i < N_ENDS) {
        r.row = &ends[i];
        (void)snprintf(r.name, sizeof r.name, "%s", r.row->file);
        r.parts[0] = sl_tensors_find(j->t, r.row->ours);
    } else {
        size_t block = (i - N_ENDS) / N_LAYER;
        r.row = &layer[(i - N_ENDS) % N_LAYER];
        (void)snprintf(r.name, sizeof r.name, "blk.%zu.%s", block, r.row->file);
        r.n_parts = r.row->how == JOINED ? N_MIXES : 1;
        for (size_t k = 0; k < r.n_parts; k++)
            r.parts[k] =
                find(j, block, name_in(block, r.row->ours), mixes + k, r.row->how == JOINED);
    }
    const struct sl_tensor *t = r.parts[0];
    bool flat = t->rank == 1 || r.row->how == FLAT;
    r.rows = flat ? t->n_elements : t->shape[0];
    r.cols = flat ? 1 : t->shape[1];
    return r;
}

static bool is_turned(const struct item *t)
{
    return t->row->how == TURNED || t->row->how == TURNED_WIDE;
}

static uint32_t type_of(const struct item *t)
{
    return t->row->how == TURNED_WIDE || t->cols == 1 ? F32 : F16;
}

static uint64_t bytes_of(const struct item *t)
{
    return (uint64_t)t->n_parts * t->rows * t->cols * (type_of(t) == F32 ? 4 : 2);
}

/* --- what there is ------------------------------------------------------------------------------
 */

static void put_u32(struct sl_buf *b, uint32_t v)
{
    sl_buf_put(b, &v, sizeof v);
}

static void put_u64(struct sl_buf *b, uint64_t v)
{
    sl_buf_put(b, &v, sizeof v);
}

static void put_string(struct sl_buf *b, const char *s)
{
    put_u64(b, strlen(s));
    sl_buf_puts(b, s);
}

static void put_key(struct sl_buf *b, const char *key, uint32_t type)
{
    put_string(b, key);
    put_u32(b, type);
}

static void put_number(struct sl_buf *b, const char *key, size_t v)
{
    put_key(b, key, U32);
    put_u32(b, (uint32_t)v);
}

static void put_text(struct sl_buf *b, const char *key, const char *v)
{
    put_key(b, key, STRING);
    put_string(b, v);
}

/* Token 0 ends texts. */
static void put_vocabulary(struct sl_buf *b, size_t n)
{
    put_text(b, "tokenizer.ggml.model", "rwkv");
    put_key(b, "tokenizer.ggml.tokens", ARRAY);
    put_u32(b, STRING);
    put_u64(b, n);
    for (size_t i = 0; i < n; i++) {
        char text[24];
        (void)snprintf(text, sizeof text, "t%zu", i);
        put_string(b, text);
    }
    put_key(b, "tokenizer.ggml.token_type", ARRAY);
    put_u32(b, I32);
    put_u64(b, n);
    for (size_t i = 0; i < n; i++)
        put_u32(b, i == 0 ? 3 : 1); /* a control token, normal ones */
    put_number(b, "tokenizer.ggml.bos_token_id", 0);
    put_number(b, "tokenizer.ggml.eos_token_id", 0);
}

enum { N_KEYS = 19 };

static void put_keys(struct sl_buf *b, const struct sl_shape *s)
{
    float epsilon = 1e-5f;
    put_text(b, "general.architecture", "rwkv7");
    put_text(b, "general.name", s->name);
    put_number(b, "general.file_type", 1); /* mostly F16 */
    put_number(b, "rwkv7.context_length", 1 << 20);
    put_number(b, "rwkv7.block_count", s->n_layers);
    put_number(b, "rwkv7.embedding_length", s->d_model);
    put_number(b, "rwkv7.feed_forward_length", s->d_ffn);
    put_number(b, "rwkv7.attention.head_count", 0);
    put_number(b, "rwkv7.wkv.head_size", s->head_size);
    put_key(b, "rwkv7.attention.layer_norm_epsilon", F32_VALUE);
    sl_buf_put(b, &epsilon, sizeof epsilon);
    put_number(b, "rwkv7.attention.decay_lora_rank", s->rank_w);
    put_number(b, "rwkv7.attention.iclr_lora_rank", s->rank_a);
    put_number(b, "rwkv7.attention.value_residual_mix_lora_rank", s->rank_v);
    put_number(b, "rwkv7.attention.gate_lora_rank", s->rank_g);
    put_vocabulary(b, s->vocab_size);
}

/* Axes, the innermost first, and where the data lies. */
static void put_info(struct sl_buf *b, const struct item *t, uint64_t at)
{
    size_t inner = t->cols == 1 || is_turned(t) ? t->rows : t->cols;
    size_t outer = is_turned(t) ? t->cols : t->rows;
    put_string(b, t->name);
    put_u32(b, t->n_parts > 1 ? 4 : t->cols > 1 ? 2 : 1);
    put_u64(b, inner);
    if (t->n_parts > 1) {
        put_u64(b, 1);
        put_u64(b, 1);
        put_u64(b, t->n_parts);
    } else if (t->cols > 1) {
        put_u64(b, outer);
    }
    put_u32(b, type_of(t));
    put_u64(b, at);
}

static enum sl_code write_head(struct job *j, struct sl_error *err)
{
    static const char zeros[ALIGNMENT];
    struct sl_buf b;
    sl_buf_init(&b, HEAD_MAX);
    sl_buf_puts(&b, "GGUF");
    put_u32(&b, 3);
    put_u64(&b, n_items(j->s));
    put_u64(&b, N_KEYS);
    put_keys(&b, j->s);
    for (size_t i = 0, at = 0; i < n_items(j->s); i++) {
        struct item t = item(j, i);
        put_info(&b, &t, at);
        at += (bytes_of(&t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    sl_buf_put(&b, zeros, (ALIGNMENT - b.len % ALIGNMENT) % ALIGNMENT);
    enum sl_code c = sl_buf_code(&b, err);
    if (!c)
        (void)fwrite(b.data, 1, b.len, j->f); /* ferror() at the end */
    sl_buf_done(&b);
    return c;
}

/* --- the data -----------------------------------------------------------------------------------
 */

static void write_value(FILE *f, uint32_t type, float v)
{
    uint16_t h = sl_f16_from_f32(v);
    (void)fwrite(type == F32 ? (const void *)&v : &h, type == F32 ? sizeof v : sizeof h, 1, f);
}

/* v: room for a part. */
static void write_data(struct job *j, const struct item *t, float *v)
{
    static const char zeros[ALIGNMENT];
    const size_t n = t->rows * t->cols, outer = is_turned(t) ? t->cols : 1;
    for (size_t k = 0; k < t->n_parts; k++) {
        sl_tensor_values(t->parts[k], 0, n, v);
        for (size_t i = 0; i < n; i++)
            write_value(j->f, type_of(t), v[i % (n / outer) * outer + i / (n / outer)]);
    }
    (void)fwrite(zeros, 1, (size_t)(-bytes_of(t) % ALIGNMENT), j->f);
}

static enum sl_code write_all(struct job *j, struct sl_error *err)
{
    size_t most = 0;
    for (size_t i = 0; i < n_items(j->s); i++) {
        struct item t = item(j, i);
        most = t.rows * t.cols > most ? t.rows * t.cols : most;
    }
    float *v = sl_calloc(most, sizeof *v);
    if (!v)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a matrix of %zu numbers", most);
    enum sl_code c = write_head(j, err);
    for (size_t i = 0; !c && i < n_items(j->s); i++) {
        struct item t = item(j, i);
        write_data(j, &t, v);
    }
    sl_free(v);
    return c;
}

enum sl_code sl_shape_gguf(const struct sl_shape *s, const unsigned char *file, size_t n,
                           const char *path, struct sl_error *err)
{
    struct job j = {.s = s};
    struct sl_tensors *t = NULL;
    enum sl_code c = sl_tensors_open_memory(&t, file, n, s->name, err);
    if (c)
        return c;
    j.t = t;
    j.f = fopen(path, "we");
    if (!j.f) {
        c = sl_fail(err, SL_E_IO, "%.300s: cannot be written: %s", path, strerror(errno));
        goto out;
    }
    c = write_all(&j, err);
    errno = 0;
    bool bad = ferror(j.f) != 0;
    if ((fclose(j.f) != 0 || bad) && !c)
        c = sl_fail(err, SL_E_IO, "%.300s: cannot be written: %s", path,
                    errno ? strerror(errno) : "an earlier write failed");
    if (c)
        (void)unlink(path);
out:
    sl_tensors_close(t);
    return c;
}
