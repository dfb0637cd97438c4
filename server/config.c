/* config.c: the table of the server's options, and what it takes more than one row to check. The
 * mechanism is in options.c. */
#include "server/config.h"

#include <string.h>

#include "server/access.h"
#include "server/sessions.h"

#define AT(field) offsetof(struct sl_config, field)
#define ALL (SL_CMD_SERVE | SL_CMD_GENERATE | SL_CMD_PROBE)

enum { KIB = 1024, MIB = 1024 * 1024, SECOND = 1000, MINUTE = 60 * 1000, HOUR = 3600 * 1000 };
#define GIB (1024.0 * MIB)
#define DAY (24.0 * HOUR)

static const struct sl_option options[] = {
    /* the model */
    {"model", SL_OPTION_STRING, AT(model), NULL, 0, 0, NULL, "FILE|DIR",
     "The model: an RWKV .pth or .safetensors file, a .gguf file of RWKV-6, RWKV-7 or Mamba-2, or "
     "a directory with config.json and model.safetensors of a flash-linear-attention model, or "
     "what "
     "slate convert made of one of them. Without it the embedded model serves.",
     ALL},
    {"tokenizer", SL_OPTION_STRING, AT(tokenizer), NULL, 0, 0, NULL, "FILE|DIR|bytes",
     "The vocabulary: a tokenizer.json, an RWKV World vocabulary file, a directory that holds one, "
     "or the word bytes (one token per byte). Without it what lies in the model's directory or in "
     "its .gguf or converted file; the embedded model brings its own.",
     ALL},
    {"weights", SL_OPTION_STRING, AT(weights), NULL, 0, 0, NULL, "f32|bf16|f16|q8|q4",
     "How matrices are kept in memory. q8 and q4: integers of 8 and 4 bits (of the head 8 and 5) "
     "with a scale for every 32 of them, for a half and a quarter of the memory and the faster "
     "steps that go with it; small matrices stay as they are. Without it as the file has them, a "
     ".gguf file's quantised blocks, too.",
     ALL},
    {"kernels", SL_OPTION_STRING, AT(kernels), NULL, 0, 0, NULL, "NAME",
     "Which arithmetic kernels run: ref; avx2, avx2vnni, avx512, avx512vnni; neon, neondot. "
     "Without it the fastest that this machine can run. All give the same bits.",
     ALL},
    {"initial-state", SL_OPTION_TEXTS, AT(initial_states), NULL, 0, 0, NULL, "[NAME=]FILE",
     "A state-tuned file of RWKV-5, 6 or 7 (.pth or .safetensors with blocks.N.att.time_state): "
     "every new session begins with it. With a NAME only those that ask for it: "
     "{\"from\":{\"initial_state_name\":\"NAME\"}}.",
     SL_CMD_SERVE | SL_CMD_GENERATE},
    {"rule", SL_OPTION_STRING, AT(rule), NULL, 0, 0, NULL, "NAME=VALUE,...",
     "What the model's file does not say of its memory rule. Performer: kernel=softmax|relu, "
     "stabiliser=max|none. RWKV-5: ln_x_eps=64e-5|1e-5. First values are the defaults.",
     ALL},
    {"numerics", SL_OPTION_CHOICE, AT(numerics), "exact", 0, 0, "exact|fast", NULL,
     "exact: the same bits alone and in a batch, for any batch, chunk and thread count. fast: "
     "prompts may be read in another form of the rule (--prefill-mode), equal within rounding "
     "only; "
     "then a replay after a crash is equal within rounding, too.",
     ALL},
    {"prefill-mode", SL_OPTION_STRING, AT(prefill_mode), NULL, 0, 0, NULL,
     "recurrent|chunkwise|parallel",
     "How prompts are read. With --numerics exact: recurrent. With fast, without it: whichever "
     "measures fastest at start (slate bench --modes shows all).",
     ALL},
    {"threads", SL_OPTION_COUNT, AT(threads), "0", 0, 1024, NULL, "N",
     "Threads that compute; 0: one per core.", ALL},
    {"begin-token", SL_OPTION_STRING, AT(begin_token), NULL, 0, 0, NULL, "ID|eos|none",
     "A token that is fed to an empty session first: its id, or the tokenizer's end token. Without "
     "it the one that the tokenizer's file, or an RWKV World folder's chat template, puts before a "
     "text, if any; the embedded model has its own.",
     ALL},
    {"model-name", SL_OPTION_LIST, AT(model_names), NULL, 0, 0, NULL, "NAME",
     "A name that requests may give in `model`; the first is what responses say. Without it the "
     "file's name.",
     SL_CMD_SERVE},
    {"chat-template", SL_OPTION_STRING, AT(chat_template), NULL, 0, 0, NULL, "NAME",
     "How messages become text: rwkv, rwkv-brief, chatml, qwen2, llama-2, plain. Without it what "
     "the model's files say, where that is one of these, and rwkv with a World vocabulary where "
     "they say nothing; else requests with messages are refused.",
     SL_CMD_SERVE},
    /* sessions and admission */
    {"store", SL_OPTION_STRING, AT(store), "dir:slate-data", 0, 0, NULL,
     "dir:PATH|redis://HOST:PORT|memory",
     "Where sessions live: a folder, which this server has for itself; Redis, which several "
     "servers "
     "share (redis://USER:PASSWORD@HOST:PORT/DB; the password also from SLATE_REDIS_PASSWORD); or "
     "memory: they end with the process.",
     SL_CMD_SERVE},
    {"store-timeout", SL_OPTION_DURATION, AT(store_timeout_ms), "5s", 100, 600e3, NULL, "TIME",
     "redis://: how long one call may take, reconnecting among it; then a 503.", SL_CMD_SERVE},
    {"lease", SL_OPTION_DURATION, AT(lease_ms), "15s", 1000, 600e3, NULL, "TIME",
     "redis://: how long a session stays with a server that says nothing any more. It is renewed "
     "three times in that; twice --store-timeout at least.",
     SL_CMD_SERVE},
    {"durability", SL_OPTION_CHOICE, AT(durability), "turn", 0, 0, "turn|drain", NULL,
     "When a session is written: turn: whatever a client was told is on disk; drain: at a pause, "
     "when memory gets short, and at the end of the process. With redis:// every turn is written; "
     "turn: a Redis that may lose what it acknowledged is refused; drain: it is not.",
     SL_CMD_SERVE},
    {"replay-limit", SL_OPTION_COUNT, AT(replay_limit), "0", 0, 1e9, NULL, "N",
     "Tokens that a session may have to read again when it is loaded; with more a snapshot is "
     "written. 0: what a quarter of a second reads, measured at start. With redis:// one is also "
     "written after a turn whose server had to read more again than writing one costs (64 MiB "
     "cost as much as so many tokens).",
     SL_CMD_SERVE},
    {"keep-turns", SL_OPTION_COUNT, AT(keep_turns), "0", 0, SL_KEEP_TURNS_MAX, NULL, "N",
     "Turns of each session that can be taken back (POST …/rewind). With --store memory each is a "
     "state in memory; else it needs --durability turn (or redis://), and each session has at most "
     "so many earlier snapshots in the store, most have one or two (more where turns land on "
     "changing servers).",
     SL_CMD_SERVE},
    {"max-checkpoints", SL_OPTION_COUNT, AT(max_checkpoints), "16", 1, SL_NAMES_MAX, NULL, "N",
     "Named checkpoints that a session may have (POST …/checkpoints). Each is kept until it is "
     "deleted: an earlier snapshot in the store, with --store memory a state in memory.",
     SL_CMD_SERVE},
    {"keep-transcript", SL_OPTION_BOOL, AT(keep_transcript), "false", 0, 0, NULL, NULL,
     "Keep all token ids of each session, so that it can be rebuilt by another model of the same "
     "tokenizer (POST …/rebuild). They are in its snapshots, which grow by 5.4 bytes for each.",
     SL_CMD_SERVE},
    {"max-sessions", SL_OPTION_COUNT, AT(max_sessions), "1000000", 1, 1e9, NULL, "N",
     "Sessions, in memory and in the store; one more is a 503.", SL_CMD_SERVE},
    {"sessions-in-memory", SL_OPTION_COUNT, AT(sessions_in_memory), "0", 0, 10e6, NULL, "N",
     "Sessions whose states are in memory; 0: as many as --memory holds, and where that is not "
     "given either at most 1,024.",
     SL_CMD_SERVE},
    {"memory", SL_OPTION_SIZE, AT(memory), "0", 0, 1024 * 1024 * GIB, NULL, "SIZE",
     "Memory for states, those of turns among them; 0: a quarter of what is available, "
     "at most 4 GiB.",
     SL_CMD_SERVE},
    {"max-running", SL_OPTION_COUNT, AT(max_running), "32", 1, 4096, NULL, "N",
     "Turns that run at once.", SL_CMD_SERVE},
    {"max-waiting", SL_OPTION_COUNT, AT(max_waiting), "256", 0, 1e6, NULL, "N",
     "Turns beyond those of --max-running that wait for their place, their session or their text's "
     "tokens; one more is a 503.",
     SL_CMD_SERVE},
    {"max-queued-prefill", SL_OPTION_COUNT, AT(max_queued_prefill), "1048576", 1, 1e12, NULL, "N",
     "Prompt tokens of all turns that are not read yet; more is a 503, one prompt of more a 413.",
     SL_CMD_SERVE},
    {"max-tokens-limit", SL_OPTION_COUNT, AT(max_tokens_limit), "1048576", 0, 1e9, NULL, "N",
     "The largest max_tokens of a turn.", SL_CMD_SERVE},
    {"default-max-tokens", SL_OPTION_COUNT, AT(default_max_tokens), "512", 0, 1e9, NULL, "N",
     "max_tokens of a turn that says nothing (on /v1/completions 16).", SL_CMD_SERVE},
    {"session-ttl", SL_OPTION_DURATION, AT(session_ttl_ms), "0", 0, 1e9 * SECOND, NULL, "TIME",
     "How long a session lives after its last use, where its creation says nothing (ttl_s); 0: for "
     "ever. A running turn is never cut.",
     SL_CMD_SERVE},
    {"tenant-sessions", SL_OPTION_COUNT, AT(tenant_sessions), "0", 0, 1e15, NULL, "N",
     "Sessions that a tenant may have, where the key file says nothing of it (quota TENANT "
     "sessions=N); one more is a 429. 0: any number.",
     SL_CMD_SERVE},
    {"tenant-bytes", SL_OPTION_SIZE, AT(tenant_bytes), "0", 0, 1e15, NULL, "SIZE",
     "The same for the bytes of all its sessions: states, metadata, answers kept for retries, "
     "earlier versions, checkpoints, transcripts (quota TENANT bytes=SIZE).",
     SL_CMD_SERVE},
    {"tenant-running", SL_OPTION_COUNT, AT(tenant_running), "0", 0, 1e6, NULL, "N",
     "The same for its turns at once, waiting ones among them (quota TENANT running=N). Each "
     "server "
     "of a fleet counts by itself.",
     SL_CMD_SERVE},
    {"tenant-tokens-per-minute", SL_OPTION_COUNT, AT(tenant_tokens), "0", 0, 1e15, NULL, "N",
     "The same for tokens read and generated (quota TENANT tokens-per-minute=N); a turn must find "
     "its prompt and max_tokens left, and gives back what it did not use. Each server of a fleet "
     "counts by itself.",
     SL_CMD_SERVE},
    /* access */
    {"listen", SL_OPTION_STRING, AT(listen), "127.0.0.1:8080", 0, 0, NULL, "ADDR:PORT|unix:PATH",
     "Where to listen. Port 0 takes a free one and prints it.", SL_CMD_SERVE},
    {"api-keys", SL_OPTION_STRING, AT(api_keys), NULL, 0, 0, NULL, "FILE",
     "Keys, one a line: KEY TENANT ROLE[,ROLE], roles user, metrics, admin; and quotas: quota "
     "TENANT "
     "sessions=N bytes=SIZE running=N tokens-per-minute=N, as many of them as wanted. Read again "
     "at "
     "SIGHUP. Without it nobody needs a key.",
     SL_CMD_SERVE},
    {"cors", SL_OPTION_LIST, AT(cors), NULL, 0, 0, NULL, "ORIGIN",
     "An origin (https://app.example), or *, whose pages may call this server.", SL_CMD_SERVE},
    {"allowed-hosts", SL_OPTION_LIST, AT(allowed_hosts), NULL, 0, 0, NULL, "NAME",
     "A name, .domain or * that the Host header may give besides loopback names and the address "
     "listened on.",
     SL_CMD_SERVE},
    {"insecure", SL_OPTION_BOOL, AT(insecure), "false", 0, 0, NULL, NULL,
     "Allows an address that others can reach without --api-keys.", SL_CMD_SERVE},
    /* HTTP limits */
    {"max-connections", SL_OPTION_COUNT, AT(max_connections), "1024", 1, 100000, NULL, "N",
     "Open connections. One more takes the place of the one that has waited longest for its "
     "client; "
     "where all are being answered it gets a 503.",
     SL_CMD_SERVE},
    {"max-header", SL_OPTION_SIZE, AT(max_header), "64KiB", KIB, MIB, NULL, "SIZE",
     "A request's line and headers together (431).", SL_CMD_SERVE},
    {"max-uri", SL_OPTION_SIZE, AT(max_uri), "8KiB", 64, MIB, NULL, "SIZE",
     "A request's target (414).", SL_CMD_SERVE},
    {"max-body", SL_OPTION_SIZE, AT(max_body), "16MiB", KIB, GIB, NULL, "SIZE",
     "A request's body (413).", SL_CMD_SERVE},
    {"max-upload", SL_OPTION_SIZE, AT(max_upload), "256MiB", KIB, GIB, NULL, "SIZE",
     "A snapshot's bytes in a request (413).", SL_CMD_SERVE},
    {"max-body-memory", SL_OPTION_SIZE, AT(max_body_memory), "512MiB", 64 * KIB, 1024 * GIB, NULL,
     "SIZE",
     "All bodies held at once (503), those that wait for a place in memory among them; the last "
     "eighth of it is for those of up to 64 KiB.",
     SL_CMD_SERVE},
    {"read-ahead", SL_OPTION_SIZE, AT(read_ahead), "64KiB", KIB, 16 * MIB, NULL, "SIZE",
     "What is kept of a client's following requests while one is answered.", SL_CMD_SERVE},
    {"header-timeout", SL_OPTION_DURATION, AT(header_timeout_ms), "15s", 10, HOUR, NULL, "TIME",
     "Time for a request's head, from its first byte or the connection's start (408).",
     SL_CMD_SERVE},
    {"body-timeout", SL_OPTION_DURATION, AT(body_timeout_ms), "120s", 10, DAY, NULL, "TIME",
     "Time for a request's body (408).", SL_CMD_SERVE},
    {"idle-timeout", SL_OPTION_DURATION, AT(idle_timeout_ms), "120s", 10, DAY, NULL, "TIME",
     "Time that a connection stays open between two requests.", SL_CMD_SERVE},
    {"write-timeout", SL_OPTION_DURATION, AT(write_timeout_ms), "60s", 10, DAY, NULL, "TIME",
     "Time after which a client that takes nothing of its response is disconnected.", SL_CMD_SERVE},
    {"write-rate", SL_OPTION_SIZE, AT(write_rate), "1KiB", 0, GIB, NULL, "SIZE",
     "Bytes a second that a client must take of a response that waits for it, on average over "
     "--write-timeout; one that takes fewer is disconnected.",
     SL_CMD_SERVE},
    {"write-high", SL_OPTION_SIZE, AT(write_high), "256KiB", KIB, GIB, NULL, "SIZE",
     "Bytes waiting for a slow client at which its turn is no longer drawn from.", SL_CMD_SERVE},
    {"write-low", SL_OPTION_SIZE, AT(write_low), "64KiB", 0, GIB, NULL, "SIZE",
     "Bytes waiting at which it goes on.", SL_CMD_SERVE},
    {"max-write-memory", SL_OPTION_SIZE, AT(max_write_memory), "512MiB", 64 * KIB, 1024 * GIB, NULL,
     "SIZE",
     "What waits for all clients together. Above it the one that takes the least is disconnected, "
     "then the next.",
     SL_CMD_SERVE},
    /* operations */
    {"ping-interval", SL_OPTION_DURATION, AT(ping_interval_ms), "15s", 10, HOUR, NULL, "TIME",
     "Time without data after which a stream carries a comment.", SL_CMD_SERVE},
    {"drain-delay", SL_OPTION_DURATION, AT(drain_delay_ms), "0", 0, 600e3, NULL, "TIME",
     "How long after SIGTERM everything is still served, while /readyz says 503 already: until "
     "balancers that ask it send nothing here any more. Then the drain begins.",
     SL_CMD_SERVE},
    {"drain-timeout", SL_OPTION_DURATION, AT(drain_timeout_ms), "30s", 0, DAY, NULL, "TIME",
     "Time for running turns to finish after SIGTERM.", SL_CMD_SERVE},
    {"log-level", SL_OPTION_CHOICE, AT(log_level), "info", 0, 0, "error|warn|info|debug", NULL,
     "What is logged to stderr.", SL_CMD_SERVE},
    {"log-format", SL_OPTION_CHOICE, AT(log_format), "text", 0, 0, "text|json", NULL,
     "How it is logged.", SL_CMD_SERVE},
};

const struct sl_option *sl_config_options(size_t *ret_n)
{
    *ret_n = sizeof options / sizeof *options;
    return options;
}

enum sl_code sl_config_check(const struct sl_config *c, struct sl_error *err)
{
    struct sl_listen l;
    enum sl_code code = sl_listen_parse(&l, c->listen, err);
    if (code)
        return code;
    if (!l.loopback && !c->api_keys && !c->insecure)
        return sl_fail(err, SL_E_USAGE,
                       "--listen %s can be reached by others, and without keys everybody may do "
                       "everything: give --api-keys FILE, or --insecure if that is what you want",
                       c->listen);
    if (c->write_low >= c->write_high)
        return sl_fail(err, SL_E_USAGE,
                       "--write-low (%llu bytes) must be below --write-high (%llu bytes)",
                       (unsigned long long)c->write_low, (unsigned long long)c->write_high);
    if (c->max_uri >= c->max_header)
        return sl_fail(err, SL_E_USAGE,
                       "--max-uri (%llu bytes) must be below --max-header (%llu bytes)",
                       (unsigned long long)c->max_uri, (unsigned long long)c->max_header);
    uint64_t large = c->max_body_memory - c->max_body_memory / 8; /* see sl_exchange_take_body() */
    if (c->max_upload > large)
        return sl_fail(err, SL_E_USAGE,
                       "--max-upload (%llu bytes) must not be above seven eighths of "
                       "--max-body-memory (%llu bytes)",
                       (unsigned long long)c->max_upload, (unsigned long long)c->max_body_memory);
    if (c->max_body > large)
        return sl_fail(err, SL_E_USAGE,
                       "--max-body (%llu bytes) must not be above seven eighths of "
                       "--max-body-memory (%llu bytes)",
                       (unsigned long long)c->max_body, (unsigned long long)c->max_body_memory);
    if (c->default_max_tokens > c->max_tokens_limit)
        return sl_fail(err, SL_E_USAGE,
                       "--default-max-tokens (%llu) must not be above --max-tokens-limit (%llu)",
                       (unsigned long long)c->default_max_tokens,
                       (unsigned long long)c->max_tokens_limit);
    if (c->lease_ms < 2 * c->store_timeout_ms) /* a renewal that failed can be tried once more */
        return sl_fail(err, SL_E_USAGE,
                       "--lease (%llu ms) must be twice --store-timeout (%llu ms) at least",
                       (unsigned long long)c->lease_ms, (unsigned long long)c->store_timeout_ms);
    if (c->keep_turns && c->durability != SL_DURABILITY_TURN && strncmp(c->store, "dir:", 4) == 0)
        return sl_fail(
            err, SL_E_USAGE,
            "--keep-turns %llu needs --durability turn: earlier turns are in the store's "
            "log, where `drain` writes none",
            (unsigned long long)c->keep_turns);
    return SL_OK;
}
