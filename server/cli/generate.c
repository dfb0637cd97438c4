/* generate.c: `slate generate`: one prompt, streamed to the terminal.
 *
 * The engine is used as it is, without libuv: its wake-up and SIGINT both write to one eventfd, on
 * which the main thread sleeps. (sl_engine_wait() would not see the signal while a long prompt is
 * read.) Text goes out as the server would send it: whole characters only. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "server/cli/cli.h"
#include "server/cli/ending.h"
#include "server/cli/load.h"
#include "server/initial.h"
#include "server/text.h"

enum { MAX_TOKENS = 1 << 20 }; /* largest --max-tokens */

struct options {
    const char *prompt;
    uint64_t max_tokens;
    double temperature, top_p;
    uint64_t top_k;
    const char *seed;
    struct sl_strings stop;
};

static const struct sl_option rows[] = {
    {.name = "prompt",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, prompt),
     .arg = "TEXT",
     .help = "What the model continues.",
     .commands = SL_CMD_GENERATE},
    {.name = "max-tokens",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, max_tokens),
     .dflt = "256",
     .min = 0,
     .max = MAX_TOKENS,
     .arg = "N",
     .help = "Tokens to generate at most.",
     .commands = SL_CMD_GENERATE},
    {.name = "temperature",
     .type = SL_OPTION_REAL,
     .offset = offsetof(struct options, temperature),
     .dflt = "1",
     .min = 0,
     .max = 100,
     .arg = "T",
     .help = "0: always the most likely token.",
     .commands = SL_CMD_GENERATE},
    {.name = "top-p",
     .type = SL_OPTION_REAL,
     .offset = offsetof(struct options, top_p),
     .dflt = "1",
     .min = 1e-6,
     .max = 1,
     .arg = "P",
     .help = "Draws from the smallest set of tokens that has this probability.",
     .commands = SL_CMD_GENERATE},
    {.name = "top-k",
     .type = SL_OPTION_COUNT,
     .offset = offsetof(struct options, top_k),
     .dflt = "0",
     .min = 0,
     .max = UINT32_MAX,
     .arg = "K",
     .help = "Draws from the K most likely tokens; 0: from all.",
     .commands = SL_CMD_GENERATE},
    {.name = "seed",
     .type = SL_OPTION_STRING,
     .offset = offsetof(struct options, seed),
     .arg = "N",
     .help = "Of the random numbers, 0 to 2^64-1. Without it one is drawn.",
     .commands = SL_CMD_GENERATE},
    {.name = "stop",
     .type = SL_OPTION_TEXTS,
     .offset = offsetof(struct options, stop),
     .arg = "TEXT",
     .help = "Ends the text, and is cut from it.",
     .commands = SL_CMD_GENERATE},
};

struct job {
    const struct options *opt;
    struct sl_loaded loaded;
    struct sl_engine *engine;
    struct sl_turn *turn;
    bool is_submitted, is_over;
    void *state;
    struct sl_initial_states *initial;
    struct sl_text_stream text;
    size_t n_shown;
    bool is_unwritten; /* stdout took no more */
    enum sl_code code; /* why the turn was given up */
    struct sl_error err;
};

/* --- waking up -------------------------------------------------------------------------------- */

/* What a signal handler can reach. */
static int wake_fd = -1;
static volatile sig_atomic_t interrupted;

static void wake(void *arg)
{
    (void)arg;
    uint64_t one = 1;
    ssize_t n = write(wake_fd, &one, sizeof one); /* can only fail where it is awake already */
    (void)n;
}

static void on_interrupt(int sig)
{
    int saved = errno;
    if (interrupted)
        sl_ending_by(sig);
    interrupted = 1;
    wake(NULL);
    errno = saved;
}

static enum sl_code sleep_until_woken(struct sl_error *err)
{
    uint64_t n;
    while (read(wake_fd, &n, sizeof n) < 0)
        if (errno != EINTR)
            return sl_fail(err, SL_E_IO, "waiting for the engine: %s", strerror(errno));
    return SL_OK;
}

/* The first Ctrl-C ends the text, a second one the process. */
static enum sl_code prepare_waking(struct sl_error *err)
{
    struct sigaction sa = {.sa_handler = on_interrupt};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    wake_fd = eventfd(0, EFD_CLOEXEC);
    if (wake_fd < 0)
        return sl_fail(err, SL_E_IO, "eventfd: %s", strerror(errno));
    sigemptyset(&sa.sa_mask);
    sigemptyset(&ignore.sa_mask);
    /* A reader that has gone is a failed write, told like any other. */
    if (sigaction(SIGINT, &sa, NULL) || sigaction(SIGPIPE, &ignore, NULL))
        return sl_fail(err, SL_E_IO, "sigaction: %s", strerror(errno));
    return SL_OK;
}

/* --- text out --------------------------------------------------------------------------------- */

static enum sl_code write_all(struct job *j, const char *s, size_t n, struct sl_error *err)
{
    while (n) {
        ssize_t k = write(STDOUT_FILENO, s, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            j->is_unwritten = true;
            return sl_fail(err, SL_E_IO, "the text cannot be written: %s", strerror(errno));
        }
        s += k;
        n -= (size_t)k;
    }
    return SL_OK;
}

static enum sl_code show(struct job *j, bool last, struct sl_error *err)
{
    struct sl_text text;
    size_t n = sl_turn_released(j->turn);
    const uint32_t *tokens = sl_turn_tokens(j->turn) + j->n_shown;
    enum sl_code c = sl_text_stream_add(&j->text, tokens, n - j->n_shown, last, &text, err);
    if (c)
        return c;
    j->n_shown = n;
    return write_all(j, text.s, text.n, err);
}

static void on_news(struct sl_turn *t, void *user, void *arg)
{
    struct job *j = user;
    const struct sl_turn_result *r = sl_turn_result(t);
    (void)arg;
    j->is_over = r != NULL;
    if (j->code)
        return;
    if (r && r->code)
        j->code = sl_fail(&j->err, r->code, "%s", sl_turn_error(t));
    else
        j->code = show(j, j->is_over, &j->err);
    if (j->code && !j->is_over)
        sl_engine_cancel(j->engine, t, SL_FINISH_CANCELLED);
}

static enum sl_code run_turn(struct job *j, struct sl_error *err)
{
    while (!j->is_over) {
        enum sl_code c = sleep_until_woken(err);
        if (c)
            return c;
        if (interrupted)
            sl_engine_cancel(j->engine, j->turn, SL_FINISH_CANCELLED);
        sl_engine_poll(j->engine, on_news, NULL);
    }
    if (j->code) {
        *err = j->err;
        return j->code;
    }
    return write_all(j, "\n", 1, err);
}

/* --- the turn --------------------------------------------------------------------------------- */

static enum sl_code find_seed(const char *s, uint64_t *ret, struct sl_error *err)
{
    uint64_t v = 0;
    const char *p = s;
    if (!s) {
        if (getrandom(&v, sizeof v, 0) != (ssize_t)sizeof v)
            return sl_fail(err, SL_E_INTERNAL, "no random bits: %s", strerror(errno));
        *ret = v >> 1;
        return SL_OK;
    }
    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (v > (UINT64_MAX - digit) / 10)
            break;
        v = v * 10 + digit;
    }
    if (p == s || *p)
        return sl_fail(err, SL_E_USAGE, "--seed %s: allowed is 0 to %llu", s,
                       (unsigned long long)UINT64_MAX);
    *ret = v;
    return SL_OK;
}

static enum sl_code find_stops(const struct sl_strings *list, struct sl_stop *stops,
                               struct sl_error *err)
{
    if (list->n > SL_STOPS_MAX)
        return sl_fail(err, SL_E_USAGE, "%zu times --stop; up to %d are allowed", list->n,
                       SL_STOPS_MAX);
    for (size_t i = 0; i < list->n; i++) {
        size_t n = strlen(list->v[i]);
        if (!n || n > SL_STOP_BYTES_MAX)
            return sl_fail(err, SL_E_USAGE, "--stop has %zu bytes; allowed are 1 to %d", n,
                           SL_STOP_BYTES_MAX);
        stops[i] = (struct sl_stop){.bytes = (const unsigned char *)list->v[i], .n = n};
    }
    return SL_OK;
}

static enum sl_code fill_spec(struct job *j, struct sl_turn_spec *spec, struct sl_stop *stops,
                              struct sl_error *err)
{
    const struct options *o = j->opt;
    struct sl_sampling sampling = SL_SAMPLING_DEFAULT;
    sampling.temperature = (float)o->temperature;
    sampling.top_p = (float)o->top_p;
    sampling.top_k = (uint32_t)o->top_k;
    enum sl_code c = find_seed(o->seed, &sampling.seed, err);
    if (!c)
        c = find_stops(&o->stop, stops, err);
    if (!c)
        *spec = (struct sl_turn_spec){.max_tokens = o->max_tokens,
                                      .sampling = sampling,
                                      .stops = stops,
                                      .n_stops = o->stop.n,
                                      .logprobs = -1,
                                      .user = j};
    return c;
}

static enum sl_code submit(struct job *j, struct sl_turn_spec *spec, struct sl_error *err)
{
    const char *prompt = j->opt->prompt;
    const struct sl_tokenizer_text text = {.s = prompt, .n = strlen(prompt)};
    struct sl_token_list ids = {0};
    enum sl_code c = SL_OK;
    j->state = sl_aligned_calloc(sl_model_info(j->loaded.model)->state_bytes);
    if (!j->state)
        return sl_fail(err, SL_E_NO_MEMORY, "no memory for a state");
    if (j->loaded.begin_token >= 0)
        c = sl_token_list_add(&ids, &(uint32_t){(uint32_t)j->loaded.begin_token}, 1, err);
    if (!c)
        c = sl_tokenizer_encode(j->loaded.tokenizer, &text, &ids, err);
    spec->prompt = ids.v;
    spec->n_prompt = ids.n;
    if (!c)
        c = sl_turn_create(j->engine, spec, &j->turn, err);
    sl_token_list_done(&ids);
    struct sl_turn_states states = {.base = sl_initial_states_default(j->initial),
                                    .live = j->state};
    if (!c)
        c = sl_engine_submit(j->engine, j->turn, &states, err);
    j->is_submitted = c == SL_OK;
    return c;
}

static enum sl_code generate(struct job *j, const struct sl_config *config, struct sl_error *err)
{
    struct sl_turn_spec spec;
    struct sl_stop stops[SL_STOPS_MAX];
    enum sl_code c = fill_spec(j, &spec, stops, err);
    if (!c)
        c = prepare_waking(err);
    if (!c)
        c = sl_cli_load(&j->loaded, config, err);
    if (!c)
        c = sl_initial_states_open(&j->initial, j->loaded.model, &config->initial_states, err);
    size_t n_named = 0;
    (void)sl_initial_states_names(j->initial, &n_named);
    if (!c && n_named)
        c = sl_fail(err, SL_E_USAGE,
                    "--initial-state NAME=FILE is for sessions that ask for it; here it is FILE");
    if (c)
        return c;
    sl_text_stream_init(&j->text, j->loaded.tokenizer);
    j->text.begins = !*j->opt->prompt;
    struct sl_engine_options opt = {.n_threads = config->threads, .max_running = 1, .wake = wake};
    c = sl_engine_open(&j->engine, j->loaded.model, j->loaded.tokenizer, &opt, err);
    if (!c)
        c = submit(j, &spec, err);
    if (!c)
        c = run_turn(j, err);
    return c;
}

static void job_done(struct job *j)
{
    sl_engine_close(j->engine);
    sl_turn_close(j->turn);
    sl_text_stream_done(&j->text);
    sl_free(j->state);
    sl_initial_states_close(j->initial);
    sl_cli_load_done(&j->loaded);
    if (wake_fd >= 0)
        close(wake_fd);
}

int sl_cli_generate(int argc, char **argv)
{
    struct sl_config config = {0};
    struct options options = {0};
    struct sl_option_set sets[] = {{.rows = rows, .n = sizeof rows / sizeof *rows, .dst = &options},
                                   {.dst = &config}};
    struct sl_args args = {0};
    struct sl_error err;
    struct job j = {.opt = &options};
    int rc = SL_EXIT_OK;
    sets[1].rows = sl_config_options(&sets[1].n);
    enum sl_code c = sl_options_parse(sets, 2, SL_CMD_GENERATE, argc, argv, &args, &err);
    if (!c && args.help) {
        sl_options_help(sets, 2, SL_CMD_GENERATE);
        goto out;
    }
    if (!c && args.n_rest)
        c = sl_fail(&err, SL_E_USAGE, "'%s' is no option; see slate generate --help", args.rest[0]);
    if (!c && !options.prompt)
        c = sl_fail(&err, SL_E_USAGE, "--prompt TEXT is needed; see slate generate --help");
    if (!c)
        sl_cli_warn_strays("generate", sets, 2);
    if (!c)
        c = generate(&j, &config, &err);
    if (c)
        rc = sl_cli_fail("generate", &err);
    if (j.is_unwritten)
        rc = SL_EXIT_FAILED; /* not a file that was to be read */
    job_done(&j);
out:
    sl_options_done(sets, 2, &args);
    return rc;
}
