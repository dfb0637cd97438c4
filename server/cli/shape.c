/* shape.c: see shape.h. One table says what a layer is made of; the file's header and its values
 * are written from it in the same order. */
#include "server/cli/shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/kernels/convert.h"
#include "proto/json_out.h"

enum { HEADER_MAX = 1 << 20, NAME_MAX_BYTES = 64 };

static const struct sl_shape shapes[] = {
    {"rwkv7-0.1b", 12, 768, 64, 3072, 65536, 64, 64, 32, 128},
    {"rwkv7-0.4b", 24, 1024, 64, 4096, 65536, 64, 64, 32, 128},
    {"rwkv7-1.5b", 24, 2048, 64, 8192, 65536, 96, 96, 64, 256},
    {"rwkv7-tiny", 2, 64, 32, 96, 256, 8, 8, 8, 16}, /* for trying the command out */
};

const struct sl_shape *sl_shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

void sl_shape_names(char *dst, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && len < n; i++)
        len += (size_t)snprintf(dst + len, n - len, i ? ", %s" : "%s", shapes[i].name);
}

/* --- what there is ------------------------------------------------------------------------------
 */

struct row {
    const char *name; /* after "blocks.N."; of the ends: the whole name */
    char axes[3];     /* d: width, f: of the feed-forward, v: vocabulary, h: heads, n: of a head,
                         W, A, V, G: ranks; a space: no second axis */
    float mean, spread;
    float ramp;  /* added: -ramp … +ramp along the vector */
    char inputs; /* the axis whose root divides the spread; 0: none */
};

static const struct row ends[] = {
    {"emb.weight", "vd", 0, 1, 0, 0},
    {"blocks.0.ln0.weight", "d ", 1, 0.1f, 0, 0},
    {"blocks.0.ln0.bias", "d ", 0, 0.05f, 0, 0},
    {"ln_out.weight", "d ", 1, 0.1f, 0, 0},
    {"ln_out.bias", "d ", 0, 0.05f, 0, 0},
    {"head.weight", "vd", 0, 2, 0, 'd'},
};

static const struct row layer[] = {
    {"ln1.weight", "d ", 1, 0.1f, 0, 0},
    {"ln1.bias", "d ", 0, 0.05f, 0, 0},
    {"ln2.weight", "d ", 1, 0.1f, 0, 0},
    {"ln2.bias", "d ", 0, 0.05f, 0, 0},
    {"att.x_r", "d ", 0.5f, 0.28f, 0, 0},
    {"att.x_w", "d ", 0.5f, 0.28f, 0, 0},
    {"att.x_k", "d ", 0.5f, 0.28f, 0, 0},
    {"att.x_v", "d ", 0.5f, 0.28f, 0, 0},
    {"att.x_a", "d ", 0.5f, 0.28f, 0, 0},
    {"att.x_g", "d ", 0.5f, 0.28f, 0, 0},
    {"att.w0", "d ", -2.2f, 0.3f, 4, 0},
    {"att.w1", "dW", 0, 1, 0, 'd'},
    {"att.w2", "Wd", 0, 0.5f, 0, 'W'},
    {"att.a0", "d ", 0, 1, 0, 0},
    {"att.a1", "dA", 0, 1, 0, 'd'},
    {"att.a2", "Ad", 0, 1, 0, 'A'},
    {"att.v0", "d ", 0, 1, 0, 0},
    {"att.v1", "dV", 0, 1, 0, 'd'},
    {"att.v2", "Vd", 0, 1, 0, 'V'},
    {"att.g1", "dG", 0, 1, 0, 'd'},
    {"att.g2", "Gd", 0, 2, 0, 'G'},
    {"att.k_k", "d ", 0.85f, 0.1f, 0, 0},
    {"att.k_a", "d ", 1, 0.1f, 0, 0},
    {"att.r_k", "hn", 0, 0.2f, 0, 0},
    {"att.receptance.weight", "dd", 0, 1, 0, 'd'},
    {"att.key.weight", "dd", 0, 1, 0, 'd'},
    {"att.value.weight", "dd", 0, 1, 0, 'd'},
    {"att.output.weight", "dd", 0, 0.5f, 0, 'd'},
    {"att.ln_x.weight", "d ", 1, 0.1f, 0, 0},
    {"att.ln_x.bias", "d ", 0, 0.05f, 0, 0},
    {"ffn.x_k", "d ", 0.5f, 0.28f, 0, 0},
    {"ffn.key.weight", "fd", 0, 1, 0, 'd'},
    {"ffn.value.weight", "df", 0, 0.5f, 0, 'f'},
};

enum { N_ENDS = sizeof ends / sizeof *ends, N_LAYER = sizeof layer / sizeof *layer };

static size_t axis(const struct sl_shape *s, char c)
{
    switch (c) {
    case 'd':
        return s->d_model;
    case 'f':
        return s->d_ffn;
    case 'v':
        return s->vocab_size;
    case 'h':
        return s->d_model / s->head_size;
    case 'n':
        return s->head_size;
    case 'W':
        return s->rank_w;
    case 'A':
        return s->rank_a;
    case 'V':
        return s->rank_v;
    case 'G':
        return s->rank_g;
    default:
        return 1;
    }
}

static size_t n_tensors(const struct sl_shape *s)
{
    return N_ENDS + s->n_layers * N_LAYER;
}

/* The i-th tensor, and its name. */
static const struct row *tensor(size_t i, char name[NAME_MAX_BYTES])
{
    if (i < N_ENDS) {
        (void)snprintf(name, NAME_MAX_BYTES, "%s", ends[i].name);
        return &ends[i];
    }
    const struct row *r = &layer[(i - N_ENDS) % N_LAYER];
    (void)snprintf(name, NAME_MAX_BYTES, "blocks.%zu.%s", (i - N_ENDS) / N_LAYER, r->name);
    return r;
}

/* --- the file -----------------------------------------------------------------------------------
 */

static void write_header(const struct sl_shape *s, struct sl_json_out *w, size_t *ret_bytes)
{
    size_t at = 0;
    sl_out_open(w, '{');
    for (size_t i = 0; i < n_tensors(s); i++) {
        char name[NAME_MAX_BYTES];
        const struct row *r = tensor(i, name);
        size_t rows = axis(s, r->axes[0]), cols = axis(s, r->axes[1]);
        sl_out_key(w, name);
        sl_out_open(w, '{');
        sl_out_key(w, "dtype");
        sl_out_str(w, "F16");
        sl_out_key(w, "shape");
        sl_out_open(w, '[');
        sl_out_uint(w, rows);
        if (r->axes[1] != ' ')
            sl_out_uint(w, cols);
        sl_out_close(w, ']');
        sl_out_key(w, "data_offsets");
        sl_out_open(w, '[');
        sl_out_uint(w, at);
        at += rows * cols * sizeof(uint16_t);
        sl_out_uint(w, at);
        sl_out_close(w, ']');
        sl_out_close(w, '}');
    }
    sl_out_close(w, '}');
    *ret_bytes = at;
}

/* SplitMix64, to a number in [-√3, √3): of standard deviation 1. */
static float next(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return ((float)((z ^ z >> 31) >> 40) * 0x1p-23f - 1) * 1.7320508f;
}

static size_t write_values(const struct sl_shape *s, const struct row *r, unsigned char *dst,
                           uint64_t *seed)
{
    size_t n = axis(s, r->axes[0]) * axis(s, r->axes[1]);
    float spread = r->inputs ? r->spread / sqrtf((float)axis(s, r->inputs)) : r->spread;
    float slope = n > 1 ? 2 * r->ramp / (float)(n - 1) : 0;
    for (size_t i = 0; i < n; i++) {
        float x = r->mean - r->ramp + slope * (float)i + spread * next(seed);
        uint16_t h = sl_f16_from_f32(x);
        memcpy(dst + i * sizeof h, &h, sizeof h);
    }
    return n * sizeof(uint16_t);
}

enum sl_code sl_shape_file(const struct sl_shape *s, unsigned char **ret, size_t *ret_n,
                           struct sl_error *err)
{
    struct sl_buf b;
    sl_buf_init(&b, HEADER_MAX);
    struct sl_json_out w = {.b = &b};
    size_t bytes;
    uint64_t seed = 1;
    write_header(s, &w, &bytes);
    enum sl_code c = sl_buf_code(&b, err);
    if (c)
        goto out;
    size_t header = (b.len + 7) / 8 * 8, at = 8 + header;
    unsigned char *p = sl_malloc(at + bytes);
    if (!p) {
        c = sl_fail(err, SL_E_NO_MEMORY, "no memory for a model of %zu bytes", bytes);
        goto out;
    }
    for (size_t i = 0; i < 8; i++)
        p[i] = (unsigned char)(header >> (8 * i));
    memset(p + 8, ' ', header);
    memcpy(p + 8, b.data, b.len);
    for (size_t i = 0; i < n_tensors(s); i++) {
        char name[NAME_MAX_BYTES];
        at += write_values(s, tensor(i, name), p + at, &seed);
    }
    *ret = p;
    *ret_n = at;
out:
    sl_buf_done(&b);
    return c;
}
