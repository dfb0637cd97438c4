/* convert.c: see convert.h.
 *
 * The source is declared as if it were to be loaded, so that each tensor's use is known: a tensor
 * is converted where it is a matrix and nothing else. Vectors and the embedding stay as they are,
 * as they do under `--weights`, and so the converted model computes the same bits as the source
 * with that option.
 *
 * The header is put together with zeros in the place of two marks of fixed length: the fingerprint
 * of the file's own content, which is taken by loading what was written, and whether a value was
 * narrowed, which shows while values are written. */
#include "engine/convert_priv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/formats/gguf_carry.h"
#include "engine/formats/safetensors_text.h"
#include "engine/formats/vocabulary.h"
#include "engine/kernels/kernels.h"
#include "engine/load_priv.h"
#include "engine/model_priv.h"

enum {
    HEADER_MAX = 100000000, /* the format's own limit */
    LATER = 10              /* characters of "narrowed": "yes" or "no", and blanks around it */
};

struct sl_conversion {
    struct sl_tensors *tensors;
    struct sl_conversion_extras extras;
    char *rule;                /* NULL: nothing was chosen */
    unsigned char *vocabulary; /* of a GGUF file; what extras.tokenizer may point to */
    char *source;              /* "gla (safetensors)" */
    const char *arch;
    enum sl_dtype weights; /* of slate.weights; NONE: as they are */
    bool was_narrowed, narrowed, written;
    unsigned char fingerprint[16];
    unsigned char own[16]; /* of the content that was read */
    size_t vocab_size;
    struct sl_conversion_entry *v; /* there is room for the tokenizer */
    size_t n_source;
    size_t n, n_converted, data_n; /* of the file */
    struct sl_header_text header;
    size_t content_at, narrowed_at; /* in the header */
};

/* --- the source -------------------------------------------------------------------------------*/

/* What a tensor of the source becomes. */
struct choice {
    enum sl_dtype type; /* NONE: it is left out */
    size_t n_in;        /* of a matrix whose rows are outputs, else 0 */
    bool blocks;        /* all that it is used for can be had of its own blocks */
};

/* Of each tensor of the source. */
static void choose(const struct sl_conversion *c, const struct sl_load *l, struct choice *v)
{
    const struct sl_tensors *ts = c->tensors;
    bool own = c->weights == SL_DTYPE_NONE || sl_is_quantised(c->weights);
    for (size_t i = 0; i < ts->n; i++) {
        const struct sl_tensor *t = &ts->v[i];
        bool left_out = l->marks[i] == SL_MARK_TWIN || strcmp(t->name, SL_CONVERTED_TENSOR) == 0;
        v[i].type = left_out ? SL_DTYPE_NONE : sl_conversion_plain(t);
        v[i].blocks = own && l->marks[i] == SL_MARK_USED && sl_block_readable(t->block) &&
                      t->contiguous && !t->exponent && t->rank == 2;
    }
    for (int pass = 0; pass < 2; pass++) /* matrices, but what is anything else as well is not */
        for (size_t i = 0; i < l->n_jobs; i++) {
            const struct sl_load_job *j = &l->jobs[i];
            const struct sl_tensor *t = sl_tensors_find(ts, j->t->name);
            bool matrix = j->kind == SL_JOB_MATRIX;
            struct choice *x = &v[t - ts->v];
            if (matrix == (pass == 1))
                continue;
            x->type = matrix ? j->type : sl_conversion_plain(t);
            x->n_in = matrix && j->layout == SL_OUT_IN && !(t->block && sl_tensor_turned(t))
                          ? j->n_in
                          : 0;
            x->blocks =
                x->blocks && (matrix ? j->type == sl_block_kept(t->block) : j->kind == SL_JOB_ROWS);
        }
}

static void name_of(char ret[SL_TENSOR_NAME_MAX + 16], const struct sl_conversion_entry *e)
{
    (void)snprintf(ret, SL_TENSOR_NAME_MAX + 16, "%s%s", e->t ? e->t->name : SL_CONVERTED_TENSOR,
                   sl_conversion_suffix(e));
}

/* What its bytes are a multiple of, and its place in the data: of codes that fill whole scales as
 * much as of scales. */
static size_t unit_of(const struct sl_conversion_entry *e)
{
    size_t size = sl_dtype_size(sl_conversion_dtype(e)), scale = sizeof(uint16_t);
    return e->form == SL_FORM_CODES && e->bytes % scale == 0 ? scale : size;
}

/* Wide elements first, so that each tensor lies at a multiple of its elements' size. Codes are
 * followed by their scales where that allows it, so that both can be made at once. */
static int by_place(const void *a, const void *b)
{
    const struct sl_conversion_entry *x = a, *y = b;
    size_t n = unit_of(x), m = unit_of(y);
    if (n != m)
        return n < m ? 1 : -1;
    int names =
        strcmp(x->t ? x->t->name : SL_CONVERTED_TENSOR, y->t ? y->t->name : SL_CONVERTED_TENSOR);
    return names ? names : (int)x->form - (int)y->form;
}

static void add_entry(struct sl_conversion *c, const struct sl_tensor *t,
                      enum sl_conversion_form form, enum sl_dtype type)
{
    struct sl_conversion_entry *e = &c->v[c->n_source++];
    size_t shape[SL_TENSOR_RANK_MAX];
    *e = (struct sl_conversion_entry){.t = t, .form = form, .type = type};
    unsigned rank = sl_conversion_shape(e, shape);
    e->bytes = sl_dtype_size(sl_conversion_dtype(e));
    for (unsigned i = 0; i < rank; i++)
        e->bytes *= shape[i]; /* not more than the source's elements take */
}

static void add_tensor(struct sl_conversion *c, const struct sl_tensor *t, const struct choice *x)
{
    enum sl_dtype type = x->type;
    if (type == SL_DTYPE_NONE)
        return;
    if (x->blocks) {
        add_entry(c, t, SL_FORM_BLOCKS, type);
        return;
    }
    if (sl_is_quantised(type) && type != t->dtype && !sl_conversion_can_code(t, type, x->n_in))
        type = sl_conversion_plain(t); /* made when it is loaded, of the same values */
    c->n_converted += type != t->dtype || t->exponent;
    if (!sl_is_quantised(type)) {
        add_entry(c, t, SL_FORM_VALUES, type);
        return;
    }
    add_entry(c, t, SL_FORM_SCALES, type);
    add_entry(c, t, SL_FORM_CODES, type);
}

static enum sl_code list_entries(struct sl_conversion *c, const struct sl_load *l,
                                 struct sl_error *err)
{
    const struct sl_tensors *ts = c->tensors;
    struct choice *v = sl_calloc(ts->n + 1, sizeof *v);
    c->v = sl_calloc(2 * ts->n + 1, sizeof *c->v);
    if (!v || !c->v) {
        sl_free(v);
        return sl_fail(err, SL_E_NO_MEMORY, "%.160s: no memory for its list of tensors", l->name);
    }
    choose(c, l, v);
    for (size_t i = 0; i < ts->n; i++)
        add_tensor(c, &ts->v[i], &v[i]);
    sl_free(v);
    return SL_OK;
}

/* What a GGUF file says of its tokens. */
static enum sl_code take_vocabulary(struct sl_conversion *c, const char *name, struct sl_error *err)
{
    size_t n;
    const void *file = sl_tensors_file(c->tensors, &n);
    if (!c->tensors->vocabulary || !file)
        return SL_OK;
    c->extras.chat_template = c->tensors->vocabulary->chat_template;
    c->extras.tokenizer_kind = "gguf";
    enum sl_code rc = sl_gguf_carry(&c->vocabulary, &c->extras.n_tokenizer, file, n, name, err);
    c->extras.tokenizer = c->vocabulary;
    return rc;
}

static void take_over(struct sl_conversion *c, const struct sl_converted *from)
{
    c->extras = (struct sl_conversion_extras){.tokenizer_kind = from->tokenizer_kind,
                                              .tokenizer = from->tokenizer,
                                              .n_tokenizer = from->n_tokenizer,
                                              .begin_token = from->begin_token,
                                              .end_tokens = from->end_tokens,
                                              .chat_template = from->chat_template};
    c->was_narrowed = c->narrowed = from->narrowed;
    if (c->weights == SL_DTYPE_NONE)
        c->weights = from->weights;
}

static enum sl_code check_again(const struct sl_conversion *c, const struct sl_converted *from,
                                const char *name, struct sl_error *err)
{
    if (!from->narrowed || c->weights == from->weights)
        return SL_OK;
    return sl_fail(
        err, SL_E_INVALID_VALUE,
        "%.160s: its matrices were narrowed to %s by an earlier conversion; to have them "
        "as %s convert what that was made from",
        name, sl_dtype_name(from->weights), sl_dtype_name(c->weights));
}

/* "a=b,c=d": what was chosen before, then what is chosen now. */
static enum sl_code join_rules(struct sl_conversion *c, const char *before, const char *now,
                               struct sl_error *err)
{
    if (!before && !now)
        return SL_OK;
    size_t n = (before ? strlen(before) : 0) + (now ? strlen(now) : 0) + 2;
    c->rule = sl_malloc(n);
    if (!c->rule)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a conversion");
    (void)snprintf(c->rule, n, "%s%s%s", before ? before : "", before && now ? "," : "",
                   now ? now : "");
    return SL_OK;
}

static enum sl_code check_texts(const struct sl_conversion_extras *x, struct sl_error *err)
{
    const struct {
        const char *what, *text;
    } row[] = {{"the tokenizer's kind", x->tokenizer_kind},
               {"the begin token", x->begin_token},
               {"the list of end tokens", x->end_tokens},
               {"the chat template", x->chat_template}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (row[i].text && !sl_utf8_valid(row[i].text, strlen(row[i].text)))
            return sl_fail(err, SL_E_INVALID_VALUE, "%s is not UTF-8", row[i].what);
        if (row[i].text && strlen(row[i].text) > SL_SETTINGS_BYTES_MAX)
            return sl_fail(err, SL_E_TOO_LARGE, "%s has more than %zu bytes", row[i].what,
                           SL_SETTINGS_BYTES_MAX);
    }
    return SL_OK;
}

/* Where everything lies in the file. */
static void lay_out(struct sl_conversion *c)
{
    c->n = c->n_source;
    c->data_n = 0;
    if (c->extras.tokenizer)
        c->v[c->n++] =
            (struct sl_conversion_entry){.type = SL_DTYPE_U8, .bytes = c->extras.n_tokenizer};
    qsort(c->v, c->n, sizeof *c->v, by_place);
    for (size_t i = 0; i < c->n; i++) {
        c->v[i].begin = c->data_n;
        c->data_n += c->v[i].bytes;
    }
}

/* --- the header -------------------------------------------------------------------------------*/

static void put_meta(struct sl_header_text *h, const char *key, const char *value)
{
    if (!value)
        return;
    sl_header_put_text(h, ",");
    sl_header_put_quoted(h, key);
    sl_header_put_text(h, ":");
    sl_header_put_quoted(h, value);
}

static enum sl_code make_header(struct sl_conversion *c, struct sl_error *err)
{
    static const char zeros[] = "00000000000000000000000000000000";
    struct sl_header_text *h = &c->header;
    char fingerprint[SL_CONVERTED_HEX + 1];
    const struct sl_settings *s = c->tensors->settings;
    sl_free(h->p);
    *h = (struct sl_header_text){.max = HEADER_MAX};
    sl_converted_hex(fingerprint, c->fingerprint);
    sl_header_put_text(h, "{\"__metadata__\":{\"format\":\"pt\"");
    put_meta(h, SL_TENSORS_CONVERTED, SL_CONVERTED_VERSION);
    put_meta(h, "slate.source", c->source);
    put_meta(h, "slate.fingerprint", fingerprint);
    sl_header_put_text(h, ",\"slate.content\":\"");
    c->content_at = h->n;
    sl_header_put_text(h, zeros);
    sl_header_put_text(h, "\",\"slate.narrowed\":");
    c->narrowed_at = h->n;
    sl_header_put(h, "\"no\"      ", LATER);
    put_meta(h, "slate.weights", c->weights == SL_DTYPE_NONE ? NULL : sl_dtype_name(c->weights));
    put_meta(h, SL_TENSORS_CONFIG, s ? s->text : NULL);
    put_meta(h, "slate.rule", c->rule);
    put_meta(h, "slate.tokenizer", c->extras.tokenizer_kind);
    put_meta(h, "slate.begin_token", c->extras.begin_token);
    put_meta(h, "slate.end_tokens", c->extras.end_tokens);
    put_meta(h, "slate.chat_template", c->extras.chat_template);
    sl_header_put_text(h, "}");
    for (size_t i = 0; i < c->n; i++) {
        const struct sl_conversion_entry *e = &c->v[i];
        char name[SL_TENSOR_NAME_MAX + 16];
        size_t shape[SL_TENSOR_RANK_MAX];
        unsigned rank = sl_conversion_shape(e, shape);
        name_of(name, e);
        sl_header_put_tensor(h, name, sl_conversion_dtype(e), rank, shape, e->begin, e->bytes);
    }
    sl_header_put_text(h, "}");
    sl_header_pad(h);
    if (h->code == SL_E_NO_MEMORY)
        return sl_fail(err, h->code, "no memory for the header of the file");
    if (h->code)
        return sl_fail(err, h->code,
                       "names and settings take more than %d bytes, the format's "
                       "limit for a header",
                       (int)HEADER_MAX);
    return SL_OK;
}

/* --- opening ----------------------------------------------------------------------------------*/

/* "models/gla/" -> "gla" */
static size_t last_part(const char *path, const char **ret)
{
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    *ret = path + begin;
    return end - begin;
}

static enum sl_code name_source(struct sl_conversion *c, const char *path, struct sl_error *err)
{
    const char *part;
    size_t n = last_part(path, &part), room = 3 * n + 64;
    char *raw = sl_malloc(room);
    c->source = sl_malloc(3 * room + 1);
    if (!raw || !c->source) {
        sl_free(raw);
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a conversion");
    }
    int len = snprintf(raw, room, "%.*s (%s)", (int)n, part, c->tensors->container);
    assert(len > 0 && (size_t)len < room);
    size_t used; /* a path is any bytes */
    c->source[sl_utf8_repair(c->source, raw, (size_t)len, true, &used)] = '\0';
    sl_free(raw);
    return SL_OK;
}

static enum sl_code read_source(struct sl_conversion *c, const struct sl_conversion_options *opt,
                                struct sl_error *err)
{
    struct sl_model m = {.tensors = c->tensors};
    struct sl_load l;
    const char *file;
    (void)last_part(opt->path, &file);
    enum sl_code rc = sl_model_declare(
        &m, &l, file, &(struct sl_model_options){.weights = c->weights, .rule = opt->rule}, err);
    if (rc == SL_OK) {
        take_over(c, &m.converted);
        rc = check_again(c, &m.converted, l.name, err);
    }
    if (rc == SL_OK)
        rc = take_vocabulary(c, l.name, err);
    if (rc == SL_OK)
        rc = join_rules(c, m.converted.rule, opt->rule, err);
    if (rc == SL_OK)
        rc = list_entries(c, &l, err);
    if (rc == SL_OK)
        rc = sl_load_measure(&l, m.mixer->arch, c->own);
    if (rc == SL_OK) {
        memcpy(c->fingerprint, sl_converted_fingerprint(&m.converted, c->own), sizeof c->own);
        c->arch = m.mixer->arch;
        c->vocab_size = l.config.vocab_size;
    }
    sl_model_declared(&m, &l);
    return rc;
}

enum sl_code sl_conversion_open(struct sl_conversion **ret, const struct sl_conversion_options *opt,
                                struct sl_error *err)
{
    enum sl_dtype w = opt->weights;
    if (w != SL_DTYPE_NONE && w != SL_DTYPE_F32 && w != SL_DTYPE_BF16 && w != SL_DTYPE_F16 &&
        w != SL_DTYPE_Q8 && w != SL_DTYPE_Q4)
        return sl_fail(err, SL_E_INVALID_VALUE,
                       "a model can be converted to F32, BF16, F16, Q8 or Q4, not to %s",
                       sl_dtype_name(w));
    struct sl_conversion *c = sl_calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a conversion");
    c->weights = w;
    enum sl_code rc = sl_tensors_open(&c->tensors, opt->path, err);
    if (rc == SL_OK)
        rc = name_source(c, opt->path, err);
    if (rc == SL_OK)
        rc = read_source(c, opt, err);
    if (rc == SL_OK)
        *ret = c;
    else
        sl_conversion_close(c);
    return rc;
}

void sl_conversion_close(struct sl_conversion *c)
{
    if (!c)
        return;
    sl_tensors_close(c->tensors);
    sl_free(c->vocabulary);
    sl_free(c->rule);
    sl_free(c->source);
    sl_free(c->v);
    sl_free(c->header.p);
    sl_free(c);
}

void sl_conversion_info(const struct sl_conversion *c, struct sl_conversion_info *ret)
{
    *ret = (struct sl_conversion_info){.arch = c->arch,
                                       .container = c->tensors->container,
                                       .vocab_size = c->vocab_size,
                                       .extras = c->extras,
                                       .n_converted = c->n_converted,
                                       .bytes = 8 + c->header.n + c->data_n,
                                       .narrowed = c->narrowed};
    memcpy(ret->fingerprint, c->fingerprint, sizeof ret->fingerprint);
}

enum sl_code sl_conversion_carry(struct sl_conversion *c, const struct sl_conversion_extras *extras,
                                 struct sl_error *err)
{
    struct sl_conversion_extras *x = &c->extras;
    enum sl_code rc = check_texts(extras, err);
    if (rc != SL_OK)
        return rc;
    if (extras->tokenizer_kind) {
        const char *template = x->chat_template;
        *x = *extras;
        x->chat_template = template;
        x->tokenizer_kind = *extras->tokenizer_kind ? extras->tokenizer_kind : NULL;
    }
    x->begin_token = extras->begin_token ? extras->begin_token : x->begin_token;
    x->end_tokens = extras->end_tokens ? extras->end_tokens : x->end_tokens;
    x->chat_template = extras->chat_template ? extras->chat_template : x->chat_template;
    return SL_OK;
}

bool sl_conversion_reads(const struct sl_conversion *c, uint64_t device, uint64_t inode)
{
    return sl_tensors_are_of(c->tensors, device, inode);
}

/* --- writing ----------------------------------------------------------------------------------*/

/* Whoever opens the file will: so now, before gigabytes are written. */
static enum sl_code try_tokenizer(const struct sl_conversion *c, struct sl_error *err)
{
    const struct sl_conversion_extras *x = &c->extras;
    const struct sl_converted carried = {.tokenizer_kind = x->tokenizer_kind,
                                         .tokenizer = x->tokenizer,
                                         .n_tokenizer = x->n_tokenizer,
                                         .begin_token = x->begin_token,
                                         .end_tokens = x->end_tokens};
    struct sl_tokenizer *t = NULL;
    enum sl_code rc = SL_OK;
    if (x->tokenizer_kind)
        rc = sl_converted_tokenizer(&t, &carried, "the tokenizer", c->vocab_size, err);
    sl_tokenizer_close(t);
    return rc;
}

enum sl_code sl_conversion_write(struct sl_conversion *c, sl_conversion_sink *sink, void *arg,
                                 struct sl_error *err)
{
    struct sl_conversion_put w = {.source = c->tensors,
                                  .tokenizer = c->extras.tokenizer,
                                  .sink = sink,
                                  .arg = arg,
                                  .err = err,
                                  .narrowed = c->was_narrowed};
    unsigned char length[8];
    assert(c->n == 0); /* once */
    enum sl_code rc = try_tokenizer(c, err);
    if (rc != SL_OK)
        return rc;
    lay_out(c);
    rc = make_header(c, err);
    uint64_t n = c->header.n;
    for (size_t i = 0; i < sizeof length; i++)
        length[i] = (unsigned char)(n >> (8 * i));
    if (rc == SL_OK)
        rc = sink(arg, length, sizeof length, err);
    if (rc == SL_OK)
        rc = sink(arg, c->header.p, c->header.n, err);
    for (size_t i = 0; i < c->n && rc == SL_OK; i++)
        rc = sl_conversion_put(&w, &c->v[i]);
    sl_conversion_put_done(&w);
    c->narrowed = w.narrowed;
    c->written = rc == SL_OK;
    return rc;
}

/* --- sealing ----------------------------------------------------------------------------------*/

static enum sl_code measure_written(const char *path, unsigned char ret[16], struct sl_error *err)
{
    struct sl_tensors *t = NULL;
    struct sl_load l;
    enum sl_code rc = sl_tensors_open(&t, path, err);
    if (rc != SL_OK)
        return rc;
    struct sl_model m = {.tensors = t};
    rc = sl_model_declare(&m, &l, "the converted file", &(struct sl_model_options){0}, err);
    if (rc == SL_OK)
        rc = sl_load_measure(&l, m.mixer->arch, ret);
    sl_model_declared(&m, &l);
    sl_tensors_close(t);
    return rc;
}

enum sl_code sl_conversion_seal(struct sl_conversion *c, const char *path,
                                struct sl_conversion_mark ret[SL_CONVERSION_MARKS],
                                struct sl_error *err)
{
    unsigned char content[16];
    assert(c->written);
    enum sl_code rc = measure_written(path, content, err);
    if (rc != SL_OK)
        return rc;
    if (c->n_converted == 0 && memcmp(content, c->own, sizeof content) != 0)
        return sl_fail(err, SL_E_INTERNAL, "%.160s does not hold what was written into it", path);
    ret[0] = (struct sl_conversion_mark){.at = 8 + c->content_at, .n = SL_CONVERTED_HEX};
    sl_converted_hex(ret[0].text, content);
    ret[1] = (struct sl_conversion_mark){.at = 8 + c->narrowed_at, .n = LATER};
    (void)snprintf(ret[1].text, sizeof ret[1].text, "%-*s", LATER,
                   c->narrowed ? "\"yes\"" : "\"no\"");
    return SL_OK;
}
