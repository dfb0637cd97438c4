/* config.h: options of the command line and the environment, from one table.
 *
 * A row gives name, type, default, range and help text; parsing, checking, --help and the
 * environment variable (SLATE_ and the name in capitals: SLATE_LISTEN) follow from it. The command
 * line wins over the environment, which wins over the default. `--name value` and `--name=value`;
 * a bool is `--name`, `--no-name` or `--name=true|false`. A variable that names no option is no
 * error, since others may have made it, but is warned of (sl_options_each_stray()).
 *
 * A command may have options of its own (generate: --prompt) in a table of its own with a struct of
 * its own: parsing takes several sets. Values are strings of argv or the environment, or copies
 * that sl_options_done() frees. Main thread, at start. */
#ifndef SLATE_SERVER_CONFIG_H
#define SLATE_SERVER_CONFIG_H

#include "slate/err.h"

/* --- the mechanism -----------------------------------------------------------------------------*/

enum sl_option_type {                   /* what the field at the row's offset is */
                      SL_OPTION_STRING, /* const char *; NULL where there is no default */
                      SL_OPTION_LIST,   /* struct sl_strings: repeatable, and comma-separated */
                      SL_OPTION_TEXTS,  /* struct sl_strings: repeatable, each taken as it is */
                      SL_OPTION_COUNT,  /* uint64_t */
                      SL_OPTION_SIZE, /* uint64_t, bytes: 4096, 64KiB, 8MiB, 1GiB, 64KB (1000), … */
                      SL_OPTION_DURATION, /* uint64_t, milliseconds: 500ms, 120s, 5m, 1h */
                      SL_OPTION_REAL,     /* double */
                      SL_OPTION_BOOL,     /* bool */
                      SL_OPTION_CHOICE    /* int: index in choices */
};

struct sl_strings {
    const char **v;
    size_t n;
};

struct sl_option {
    const char *name; /* "max-body" */
    enum sl_option_type type;
    size_t offset;       /* of the field in the set's struct */
    const char *dflt;    /* as it would be typed; NULL: none */
    double min, max;     /* inclusive; numbers only. Exact up to 2^53 */
    const char *choices; /* CHOICE: "text|json" */
    const char *arg;     /* "ADDR:PORT", for --help */
    const char *help;
    unsigned commands; /* SL_CMD_… bits: which commands have it */
};

struct sl_option_set {
    const struct sl_option *rows;
    size_t n;
    void *dst; /* the struct that the offsets belong to */
};

enum {
    SL_CMD_SERVE = 1,
    SL_CMD_GENERATE = 2,
    SL_CMD_INSPECT = 4,
    SL_CMD_BENCH = 8,
    SL_CMD_PROBE = 16,
    SL_CMD_CONVERT = 32
};

struct sl_args { /* what parsing found besides options */
    bool help;
    const char **rest; /* arguments that are no options, into argv */
    size_t n_rest;
};

/* Fills every set's struct: defaults, then environment, then argv[1 …]. After an error the sets may
 * be half filled; sl_options_done() is still needed. Errors: USAGE (an unknown option, a value
 * that is missing, malformed or out of range; the message names the option or variable, what was
 * given and what is allowed), NO_MEMORY. */
SL_NODISCARD enum sl_code sl_options_parse(const struct sl_option_set *sets, size_t n_sets,
                                           unsigned command, int argc, char **argv,
                                           struct sl_args *ret, struct sl_error *err);
void sl_options_done(const struct sl_option_set *sets, size_t n_sets, struct sl_args *args);

/* Tells the variables of the environment that begin with SLATE_, are not empty and name no option
 * of the sets, whatever command has it: what was mistyped would do nothing without a word. Not
 * those that are read elsewhere, and not those that Kubernetes and Docker make of a service whose
 * name begins with "slate". name: up to the '=', valid during the call. */
void sl_options_each_stray(const struct sl_option_set *sets, size_t n_sets,
                           void (*each)(void *arg, const char *name), void *arg);

/* A number as an option of that type (COUNT, SIZE, DURATION) would be given; false: it is none. */
bool sl_option_number(enum sl_option_type type, const char *s, uint64_t *ret);

/* The options of a command with defaults, ranges and variables, to stdout. */
void sl_options_help(const struct sl_option_set *sets, size_t n_sets, unsigned command);

/* --- the server's options ----------------------------------------------------------------------*/

enum { SL_LOG_TEXT, SL_LOG_JSON };            /* log_format */
enum { SL_NUMERICS_EXACT, SL_NUMERICS_FAST }; /* numerics */

struct sl_config {
    /* the model */
    const char *model;     /* NULL: the embedded one */
    const char *tokenizer; /* NULL: the model's own; "bytes"; or a file */
    struct sl_strings model_names;
    const char *weights;              /* NULL, "f32", "bf16", "f16", "q8", "q4" */
    const char *kernels;              /* NULL, or a name that sl_kernels_find() knows */
    struct sl_strings initial_states; /* see initial.h */
    const char *rule;                 /* NULL, or "name=value,…": see sl_model_options */
    int numerics;                     /* enum SL_NUMERICS_… */
    const char *prefill_mode;         /* NULL, or a name of model.h */
    uint64_t threads;                 /* 0: one per core */
    const char *begin_token; /* NULL: the model's habit; "none"; or a token id in decimal */
    const char *chat_template;
    /* sessions and admission */
    const char *store;                   /* "dir:PATH", "redis://…", "memory" */
    uint64_t store_timeout_ms, lease_ms; /* redis:// */
    int durability;                      /* enum sl_durability */
    uint64_t replay_limit;               /* tokens; 0: measured at start */
    uint64_t keep_turns, max_checkpoints;
    bool keep_transcript;
    uint64_t max_sessions;
    uint64_t sessions_in_memory; /* 0: from the memory budget */
    uint64_t memory;             /* bytes for states; 0: see serve.c */
    uint64_t max_running;
    uint64_t max_waiting;
    uint64_t max_queued_prefill;
    uint64_t max_tokens_limit;
    uint64_t default_max_tokens;
    uint64_t session_ttl_ms;                /* 0: never */
    uint64_t tenant_sessions, tenant_bytes; /* quotas of a tenant that has no others */
    uint64_t tenant_running, tenant_tokens; /* 0: any number */
    /* access */
    const char *listen; /* "127.0.0.1:8080", "[::1]:0", "unix:PATH" */
    const char *api_keys;
    struct sl_strings cors;
    struct sl_strings allowed_hosts;
    bool insecure;
    /* HTTP limits */
    uint64_t max_connections;
    uint64_t max_header;
    uint64_t max_uri;
    uint64_t max_body;
    uint64_t max_upload;      /* of a snapshot's body */
    uint64_t max_body_memory; /* of all bodies being received or held together */
    uint64_t read_ahead;      /* bytes of following requests kept while one runs */
    uint64_t header_timeout_ms;
    uint64_t body_timeout_ms;
    uint64_t idle_timeout_ms;
    uint64_t write_timeout_ms;
    uint64_t write_rate; /* bytes a second */
    uint64_t write_high;
    uint64_t max_write_memory; /* of all responses that wait for their clients together */
    uint64_t write_low;
    /* operations */
    uint64_t drain_delay_ms;
    uint64_t drain_timeout_ms;
    uint64_t ping_interval_ms;
    int log_level; /* enum sl_log_level */
    int log_format;
};

/* The table of struct sl_config. */
const struct sl_option *sl_config_options(size_t *ret_n);

/* What no single row can check: low mark below high mark, keys or --insecure for addresses that are
 * not loopback, a listen address that can be understood. Errors: USAGE. */
SL_NODISCARD enum sl_code sl_config_check(const struct sl_config *c, struct sl_error *err);

#endif
