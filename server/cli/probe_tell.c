/* probe_tell.c: what `slate probe model` has found, as tables, as JSON, as charts. */
#include <math.h>
#include <stdio.h>

#include "server/cli/probe_model.h"

static void tell_curve(const char *title, const char *x, const struct sl_probe_curve *c,
                       const char *format)
{
    printf("\n%s\n%24s", title, x);
    for (size_t i = 0; i < c->n; i++)
        printf(" %7.0f", c->x[i]);
    printf("\n%24s", c->name);
    for (size_t i = 0; i < c->n; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        printf(format, c->y[i]);
#pragma GCC diagnostic pop
    }
    printf("\n");
}

static void tell_talk(const struct sl_probe *p)
{
    printf("\nRecall in conversations, %% of %zu right (± %.0f), by tokens between telling and "
           "asking\n%24s",
           p->talk[0].samples, 100 / sqrt((double)p->talk[0].samples), "tokens");
    for (size_t i = 0; i < p->talk[0].n; i++)
        printf(" %7.0f", p->talk[0].x[i]);
    printf("\n");
    for (size_t r = 0; r < SL_TALK_ROWS; r++) {
        printf("%24s", p->talk[r].name);
        for (size_t i = 0; i < p->talk[r].n; i++)
            printf(" %7.1f", 100 * p->talk[r].y[i]);
        printf("\n");
    }
    printf("%24s", "… and still the old");
    for (size_t i = 0; i < p->talk[SL_TALK_FIXED].n; i++)
        printf(" %7.1f", 100 * p->talk[SL_TALK_FIXED].old[i]);
    printf("\n");
}

static void tell_half_lives(const struct sl_probe *p)
{
    printf("\nHalf-lives in tokens, after %zu tokens, over the next %zu; inf: nothing is lost\n",
           p->half_life_at, p->half_life_over);
    for (size_t h = 0; h < p->n_heads; h++) {
        if (h == 0 || p->heads[h].layer != p->heads[h - 1].layer)
            printf("%slayer %3zu:", h ? "\n" : "", p->heads[h].layer);
        printf(" %6.3g", p->heads[h].half_life);
    }
    printf("\n");
}

void sl_probe_tell(const struct sl_probe *p)
{
    const struct sl_model_info *i = p->batch.info;
    printf("%s: %s, %zu layers, width %zu, %zu bytes of state\n", i->name, i->arch, i->n_layers,
           i->d_model, i->state_bytes);
    if (p->has_talk)
        tell_talk(p);
    tell_curve("Needle: share of single pairs of tokens recalled, by tokens after them", "tokens",
               &p->needle, " %7.2f");
    tell_curve("Pairs: share recalled, by pairs of tokens in a row", "pairs", &p->pairs, " %7.2f");
    tell_curve("Growth of the state with its tokens", "tokens", &p->norm, " %7.3g");
    printf("%24s", p->rank.name);
    for (size_t k = 0; k < p->rank.n; k++)
        printf(" %7.2f", p->rank.y[k]);
    printf("\n");
    tell_half_lives(p);
}

static void key_number(struct sl_json_out *w, const char *key, double v, int digits)
{
    sl_out_key(w, key);
    sl_out_fixed(w, v, digits);
}

static void write_talk(struct sl_json_out *w, const struct sl_probe_curve *c, bool with_old)
{
    for (size_t i = 0; i < c->n; i++) {
        sl_out_open(w, '{');
        key_number(w, "distance", c->x[i], 0);
        sl_out_key(w, "kind");
        sl_out_str(w, c->kind);
        sl_out_key(w, "filler");
        sl_out_str(w, c->filler);
        key_number(w, "accuracy", c->y[i], 4);
        if (with_old)
            key_number(w, "old_value", c->old[i], 4);
        key_number(w, "conversations", (double)c->samples, 0);
        sl_out_close(w, '}');
    }
}

static void write_curve(struct sl_json_out *w, const char *key, const char *x, const char *y,
                        const struct sl_probe_curve *c)
{
    sl_out_key(w, key);
    sl_out_open(w, '[');
    for (size_t i = 0; i < c->n; i++) {
        sl_out_open(w, '{');
        key_number(w, x, c->x[i], 0);
        key_number(w, y, c->y[i], 4);
        sl_out_close(w, '}');
    }
    sl_out_close(w, ']');
}

static void write_heads(struct sl_json_out *w, const struct sl_probe *p)
{
    sl_out_key(w, "half_lives");
    sl_out_open(w, '[');
    for (size_t h = 0; h < p->n_heads; h++) {
        sl_out_open(w, '{');
        key_number(w, "layer", (double)p->heads[h].layer, 0);
        key_number(w, "head", (double)p->heads[h].head, 0);
        key_number(w, "tokens", p->heads[h].half_life, 2);
        sl_out_close(w, '}');
    }
    sl_out_close(w, ']');
}

enum sl_code sl_probe_write_json(const struct sl_probe *p, struct sl_error *err)
{
    enum { JSON_MAX = 8 << 20 };
    struct sl_buf b;
    struct sl_json_out w = {.b = &b};
    sl_buf_init(&b, JSON_MAX);
    sl_out_open(&w, '{');
    sl_out_key(&w, "model");
    sl_out_str(&w, p->batch.info->name);
    sl_out_key(&w, "arch");
    sl_out_str(&w, p->batch.info->arch);
    key_number(&w, "state_bytes", (double)p->batch.info->state_bytes, 0);
    if (p->has_talk) {
        sl_out_key(&w, "recall");
        sl_out_open(&w, '[');
        for (size_t r = 0; r < SL_TALK_ROWS; r++)
            write_talk(&w, &p->talk[r], r == SL_TALK_FIXED);
        sl_out_close(&w, ']');
    }
    write_curve(&w, "needle", "distance", "accuracy", &p->needle);
    write_curve(&w, "pairs", "pairs", "accuracy", &p->pairs);
    write_curve(&w, "norm", "tokens", "mean", &p->norm);
    write_curve(&w, "effective_rank", "tokens", "mean", &p->rank);
    write_heads(&w, p);
    sl_out_close(&w, '}');
    enum sl_code c = sl_buf_code(&b, err);
    if (!c)
        printf("%.*s\n", (int)b.len, b.data);
    sl_buf_done(&b);
    return c;
}

static struct sl_plot_series series_of(const struct sl_probe_curve *c)
{
    return (struct sl_plot_series){c->name, c->x, c->y, c->n};
}

enum sl_code sl_probe_write_charts(const struct sl_probe *p, struct sl_error *err)
{
    struct sl_plot_series talk[SL_TALK_ROWS],
        needle = series_of(&p->needle), pairs = series_of(&p->pairs), norm = series_of(&p->norm),
        rank = series_of(&p->rank);
    for (size_t r = 0; r < SL_TALK_ROWS; r++)
        talk[r] = series_of(&p->talk[r]);
    const struct sl_plot plots[] = {
        {"Recall in conversations", "tokens between telling and asking", "share of answers right",
         true, 0, 1, talk, SL_TALK_ROWS},
        {"Needle in a haystack", "tokens after the pair", "share recalled", true, 0, 1, &needle, 1},
        {"Multi-query recall", "pairs of tokens held", "share recalled", true, 0, 1, &pairs, 1},
        {"Norm of the state", "tokens", "Frobenius norm", true, (double)NAN, (double)NAN, &norm, 1},
        {"Effective rank of the state", "tokens", "directions", true, (double)NAN, (double)NAN,
         &rank, 1},
    };
    size_t skip = p->has_talk ? 0 : 1;
    return sl_probe_write_svg(p->opt->svg, plots + skip, sizeof plots / sizeof *plots - skip, err);
}
