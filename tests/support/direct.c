/* direct.c: see direct.h. */
#include "tests/support/direct.h"

#include <math.h>

#include "engine/base/mem.h"
#include "engine/base/random.h"

static void must(enum sl_code c, const struct sl_error *err)
{
    if (c)
        serving_die(err->message);
}

void direct_open(struct direct *d, const struct sl_config *config, size_t most)
{
    struct sl_error err;
    *d = (struct direct){.n_states = most};
    must(sl_cli_load(&d->loaded, config, &err), &err);
    must(sl_engine_open(
             &d->engine, d->loaded.model, d->loaded.tokenizer,
             &(struct sl_engine_options){.n_threads = config->threads, .max_running = most}, &err),
         &err);
    d->state_bytes = sl_model_info(d->loaded.model)->state_bytes;
    d->states = sl_huge_alloc(most * d->state_bytes);
    if (!d->states)
        serving_die("no memory for the engine's states");
}

void direct_close(struct direct *d)
{
    sl_engine_close(d->engine);
    sl_cli_load_done(&d->loaded);
    sl_free(d->states);
}

/* Clients in a closed loop. */
struct clients {
    struct works *w;
    struct direct *d;
    double until;
    size_t n_running;
    struct client {
        struct clients *all;
        unsigned char *state;
        size_t n_taken; /* of the turn that runs */
    } client[WORK_CLIENTS_MAX];
    size_t n_tokens; /* taken by all */
};

static void begin_turn(struct client *c, size_t n_tokens)
{
    static uint32_t prompt[WORK_LONG_PROMPT];
    struct works *w = c->all->w;
    struct sl_turn *t;
    struct sl_error err;
    struct sl_turn_spec spec = {.prompt = prompt,
                                .n_prompt = w->prompt,
                                .max_tokens = n_tokens,
                                .sampling = SL_SAMPLING_DEFAULT,
                                .ignore_eos = true,
                                .logprobs = -1,
                                .user = c};
    works_prompt(w, prompt, w->prompt);
    spec.sampling.seed = sl_random_next(&w->seed);
    must(sl_turn_create(c->all->d->engine, &spec, &t, &err), &err);
    must(sl_engine_submit(c->all->d->engine, t, &(struct sl_turn_states){.live = c->state}, &err),
         &err);
    c->n_taken = 0;
    c->all->n_running++;
}

static void on_news(struct sl_turn *t, void *user, void *arg)
{
    struct client *c = user;
    const struct sl_turn_result *r = sl_turn_result(t);
    (void)arg;
    c->all->n_tokens += sl_turn_released(t) - c->n_taken;
    c->n_taken = sl_turn_released(t);
    if (!r)
        return;
    if (r->code)
        serving_die(sl_turn_error(t));
    sl_turn_close(t);
    c->all->n_running--;
    if (bench_now() < c->all->until)
        begin_turn(c, c->all->w->tokens);
}

static void run_until(struct clients *a, double until)
{
    while (bench_now() < until && a->n_running) {
        sl_engine_wait(a->d->engine);
        sl_engine_poll(a->d->engine, on_news, NULL);
    }
}

void direct_steady(struct works *w, struct direct *d, size_t clients, struct series *cell)
{
    static struct clients a;
    const double begin = bench_now();
    a = (struct clients){.w = w, .d = d, .until = begin + w->seconds};
    if (clients > d->n_states)
        serving_die("more clients than the engine was opened for");
    for (size_t i = 0; i < clients; i++) {
        a.client[i].all = &a;
        a.client[i].state = d->states + i * d->state_bytes;
        begin_turn(&a.client[i], 1 + w->tokens * i / clients);
    }
    run_until(&a, begin + w->seconds / 4);
    const double from = bench_now();
    a.n_tokens = 0;
    run_until(&a, a.until);
    series_add(&cell[WORK_ENGINE], (double)a.n_tokens / (bench_now() - from));
    run_until(&a, INFINITY);
}
