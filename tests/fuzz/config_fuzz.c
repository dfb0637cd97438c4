/* config_fuzz.c: any bytes as the config.json of a model whose tensors are good.
 *
 * The first byte of an input says which rule's tensors lie beside it (rules.h), the rest is the
 * file. What is read must be a sorted list without holes; what is refused must say why; a model
 * that opens must run: two steps on three tokens give numbers and stay within its memory. */
#include "engine/base/mem.h"
#include "engine/forward.h"
#include "engine/model_priv.h"
#include "tests/fuzz/touch.h"
#include "tests/support/rules.h"

enum { N_MAX = 64 };

static size_t n_rules;
static struct {
    unsigned char *bytes;
    size_t n;
} files[N_MAX];

static void set_up(void)
{
    for (const struct rule *r = rules; r->title; r++) {
        struct seeded s;
        if (!r->settings)
            continue;
        MUST(n_rules < N_MAX);
        r->list(&s);
        files[n_rules].bytes = seeded_bytes(&s, &files[n_rules].n);
        n_rules++;
        seeded_done(&s);
    }
}

static void check_error(enum sl_code c, const struct sl_error *err)
{
    MUST(err->code == c && err->message[0] && memchr(err->message, '\0', sizeof err->message));
    MUST(sl_utf8_valid(err->message, strlen(err->message)));
}

static void check_settings(const struct sl_settings *s)
{
    MUST(s->n <= SL_SETTINGS_MAX && strcmp(s->name, "m/config.json") == 0);
    for (size_t i = 0; i < s->n; i++) {
        const struct sl_setting *e = &s->v[i];
        MUST(strlen(e->key) <= SL_SETTING_KEY_MAX && sl_utf8_valid(e->key, strlen(e->key)));
        MUST(i == 0 || strcmp(s->v[i - 1].key, e->key) < 0);
        MUST(e->kind != SL_SETTING_TEXT || sl_utf8_valid(e->text, strlen(e->text)));
        MUST(sl_settings_find(s, e->key) == e);
    }
}

static void run(const struct sl_model *m)
{
    static const uint32_t tokens[] = {1, 200, 0};
    struct sl_workers *w = NULL;
    struct sl_forward *f = NULL;
    const struct sl_model_info *info = sl_model_info(m);
    MUST(info->vocab_size > 200);
    MUST(sl_workers_open(&w, 1, NULL) == SL_OK);
    MUST(sl_forward_open(&f, m, w, 2, 1, NULL) == SL_OK);
    void *state = sl_aligned_calloc(info->state_bytes);
    float *logits = sl_aligned_calloc(sl_model_logits_stride(m) * sizeof *logits);
    MUST(state && logits);
    sl_model_state_init(m, state);
    struct sl_segment s = {.state = state, .tokens = tokens, .n_tokens = 2};
    sl_forward_run(f, &s, 1);
    s.tokens = tokens + 2, s.n_tokens = 1, s.logits = logits, s.n_logits = 1;
    sl_forward_run(f, &s, 1);
    MUST(((struct sl_state_header *)state)->tokens_seen == 3);
    sl_free(logits);
    sl_free(state);
    sl_forward_close(f);
    sl_workers_close(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_error err = {0};
    struct sl_settings *settings = NULL;
    struct sl_tensors *t = NULL;
    struct sl_model *m = NULL;
    if (n_rules == 0)
        set_up();
    if (size == 0)
        return 0;
    size_t i = data[0] % n_rules;
    enum sl_code c =
        sl_settings_read(&settings, (const char *)data + 1, size - 1, "m/config.json", &err);
    if (c) {
        check_error(c, &err);
        MUST(!settings);
        return 0;
    }
    check_settings(settings);
    MUST(sl_tensors_open_memory(&t, files[i].bytes, files[i].n, "m", NULL) == SL_OK);
    sl_tensors_settle(t, settings, "m/model.safetensors");
    c = sl_model_open_tensors(&m, t, "m", NULL, &err);
    if (c)
        check_error(c, &err);
    else
        run(m);
    sl_model_close(m);
    return 0;
}
