/* config_test.c: options from the command line and the environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "server/config.h"

enum { ARGS_MAX = 16 };

static struct sl_config config;
static struct sl_args args;
static struct sl_error err;

static struct sl_option_set set(void)
{
    size_t n;
    const struct sl_option *rows = sl_config_options(&n);
    return (struct sl_option_set){rows, n, &config};
}

/* Parses `serve WORDS…`, split at spaces. */
static enum sl_code parse(const char *words)
{
    static char copy[1024];
    char *argv[ARGS_MAX + 1] = {(char[]){"serve"}};
    int argc = 1;
    struct sl_option_set s = set();
    snprintf(copy, sizeof copy, "%s", words);
    for (char *p = copy; *p;) {
        assert_true(argc < ARGS_MAX);
        argv[argc++] = p;
        p += strcspn(p, " ");
        if (*p)
            *p++ = '\0';
    }
    memset(&err, 0, sizeof err);
    return sl_options_parse(&s, 1, SL_CMD_SERVE, argc, argv, &args, &err);
}

static void done(void)
{
    struct sl_option_set s = set();
    sl_options_done(&s, 1, &args);
}

static void expect_error(const char *words, const char *part, const char *part2)
{
    assert_int_equal(parse(words), SL_E_USAGE);
    if (!strstr(err.message, part) || !strstr(err.message, part2))
        fail_msg("'%s' must name '%s' and '%s', but: %s", words, part, part2, err.message);
    done();
}

static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(parse(""), SL_OK);
    assert_string_equal(config.listen, "127.0.0.1:8080");
    assert_null(config.model);
    assert_int_equal(config.idle_timeout_ms, 120000);
    assert_int_equal(config.max_body, 16 * 1024 * 1024);
    assert_int_equal(config.max_running, 32);
    assert_int_equal(config.log_level, 2); /* info */
    assert_false(config.insecure);
    assert_int_equal(config.cors.n, 0);
    assert_int_equal(args.n_rest, 0);
    assert_int_equal(sl_config_check(&config, &err), SL_OK);
    done();
}

static void test_values(void **state)
{
    (void)state;
    assert_int_equal(parse("--listen 127.0.0.1:0 --max-body=3KiB --idle-timeout 500ms --insecure "
                           "--log-format=json --model-name a,b --model-name c in --threads 7"),
                     SL_OK);
    assert_string_equal(config.listen, "127.0.0.1:0");
    assert_int_equal(config.max_body, 3072);
    assert_int_equal(config.idle_timeout_ms, 500);
    assert_true(config.insecure);
    assert_int_equal(config.log_format, SL_LOG_JSON);
    assert_int_equal(config.model_names.n, 3);
    assert_string_equal(config.model_names.v[0], "a");
    assert_string_equal(config.model_names.v[1], "b");
    assert_string_equal(config.model_names.v[2], "c");
    assert_int_equal(config.threads, 7);
    assert_int_equal(args.n_rest, 1);
    assert_string_equal(args.rest[0], "in");
    done();
    assert_int_equal(parse("--no-insecure --help -- --model"), SL_OK);
    assert_false(config.insecure);
    assert_true(args.help);
    assert_string_equal(args.rest[0], "--model");
    done();
}

static void test_units(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        uint64_t body, idle;
    } rows[] = {
        {"--max-body 4096", 4096, 120000},          {"--max-body 4096B", 4096, 120000},
        {"--max-body 1GiB", 1u << 30, 120000},      {"--max-body 64KB", 64000, 120000},
        {"--max-body 2MB", 2000000, 120000},        {"--idle-timeout 2h", 16 << 20, 7200000},
        {"--idle-timeout 3m", 16 << 20, 180000},    {"--idle-timeout 10ms", 16 << 20, 10},
        {"--idle-timeout 24h", 16 << 20, 86400000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(parse(rows[i].words), SL_OK);
        assert_int_equal(config.max_body, rows[i].body);
        assert_int_equal(config.idle_timeout_ms, rows[i].idle);
        done();
    }
    assert_int_equal(parse("--drain-timeout 0 --write-low 0"), SL_OK); /* 0 needs no unit */
    assert_int_equal(config.drain_timeout_ms, 0);
    done();
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("--nonsense", "--nonsense", "not known");
    expect_error("--nonsense=1", "'--nonsense'", "not known");
    expect_error("-x", "'-x'", "not known");
    expect_error("--max-body", "--max-body", "SIZE");
    expect_error("--max-body 1TiB", "--max-body: 1TiB", "1KiB to 1GiB");
    expect_error("--max-body 99999999999999999999999", "--max-body", "1KiB to 1GiB");
    expect_error("--max-body 99999999999999999TiB", "--max-body", "1KiB to 1GiB");
    expect_error("--max-body 1023", "--max-body: 1023", "1KiB to 1GiB");
    expect_error("--max-body 1kib", "'1kib'", "64KiB");
    expect_error("--max-body -1", "'-1'", "--max-body");
    expect_error("--max-body=", "''", "--max-body");
    expect_error("--max-body 1.5MiB", "'1.5MiB'", "--max-body");
    expect_error("--idle-timeout 5", "'5'", "120s");
    expect_error("--idle-timeout 9ms", "--idle-timeout: 9ms", "10ms to 24h");
    expect_error("--max-running 0", "--max-running: 0", "1 to 4096");
    expect_error("--max-running 4x", "'4x'", "a number");
    expect_error("--max-running 0x10", "'0x10'", "a number");
    expect_error("--insecure=maybe", "'maybe'", "true nor false");
    expect_error("--no-insecure=1", "--no-insecure", "no value");
    expect_error("--no-model", "--no-model", "not known");
    expect_error("--log-level loud", "'loud'", "error|warn|info|debug");
    expect_error("--log-level inf", "'inf'", "error|warn|info|debug");
    expect_error("--listen=", "--listen", "empty");
}

static void test_environment(void **state)
{
    (void)state;
    setenv("SLATE_LISTEN", "[::1]:99", 1);
    setenv("SLATE_MODEL_NAME", "x,y", 1);
    setenv("SLATE_INSECURE", "true", 1);
    setenv("SLATE_MAX_BODY", "2KiB", 1);
    assert_int_equal(parse("--max-body 4KiB"), SL_OK);
    assert_string_equal(config.listen, "[::1]:99");
    assert_int_equal(config.model_names.n, 2);
    assert_true(config.insecure);
    assert_int_equal(config.max_body, 4096); /* the command line wins */
    done();
    assert_int_equal(parse("--model-name z --no-insecure"), SL_OK);
    assert_int_equal(config.model_names.n, 1); /* … over the whole list */
    assert_false(config.insecure);
    assert_int_equal(config.max_body, 2048);
    done();
    setenv("SLATE_MAX_BODY", "lots", 1);
    expect_error("", "SLATE_MAX_BODY", "'lots'");
    setenv("SLATE_MAX_BODY", "", 1); /* empty: not given */
    assert_int_equal(parse(""), SL_OK);
    assert_int_equal(config.max_body, 16 << 20);
    done();
    unsetenv("SLATE_LISTEN");
    unsetenv("SLATE_MODEL_NAME");
    unsetenv("SLATE_INSECURE");
    unsetenv("SLATE_MAX_BODY");
}

static char strays[512];

static void take_stray(void *arg, const char *name)
{
    size_t n = strlen(strays);
    assert_null(arg);
    snprintf(strays + n, sizeof strays - n, "%s ", name);
}

/* "" or "NAME ": what is told of it. */
static const char *stray(const char *name, const char *value)
{
    struct sl_option_set s = set();
    strays[0] = '\0';
    setenv(name, value, 1);
    sl_options_each_stray(&s, 1, take_stray, NULL);
    unsetenv(name);
    return strays;
}

/* What Kubernetes' documentation ("Discovering services", "Environment variables") and Docker's
 * ("Legacy container links") give as examples, for a service of this name. */
static void test_variables_that_name_no_option(void **state)
{
    (void)state;
    static const char *const told[][2] = {
        {"SLATE_MAX_SESSION", "5"},    {"SLATE_PORT", "8080"},      {"SLATE_HTTP_PORT", "8080"},
        {"SLATE_PORT_NUMBER", "1"},    {"SLATE_PORT_80", "1"},      {"SLATE_PORT_80_TCPX", "1"},
        {"SLATE_SERVICE_HOSTS", "x"},  {"SLATE_listen", "[::1]:1"}, {"SLATE_", "x"},
        {"SLATE_NO_INSECURE", "true"}, {"SLATE_BUILDS", "x"}};
    static const char *const untold[][2] = {{"SLATE_MAX_SESSIONS", "5"},
                                            {"SLATE_MAX_SESSION", ""},
                                            {"SLATES_LISTEN", "x"},
                                            {"SLATE_REDIS_PASSWORD", "secret"},
                                            {"SLATE_BUILD", "build/release"},
                                            {"SLATE_SERVICE_HOST", "10.0.0.11"},
                                            {"SLATE_SERVICE_PORT", "6379"},
                                            {"SLATE_SERVICE_PORT_HTTP", "80"},
                                            {"SLATE_PORT", "tcp://10.0.0.11:6379"},
                                            {"SLATE_PORT_6379_TCP", "tcp://10.0.0.11:6379"},
                                            {"SLATE_PORT_6379_TCP_PROTO", "tcp"},
                                            {"SLATE_PORT_6379_UDP_PORT", "6379"},
                                            {"SLATE_PORT_6379_SCTP_ADDR", "10.0.0.11"},
                                            {"SLATE_REDIS_SERVICE_HOST", "10.0.0.11"},
                                            {"SLATE_REDIS_PORT_6379_TCP_ADDR", "10.0.0.11"}};
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s ", told[i][0]);
        assert_string_equal(stray(told[i][0], told[i][1]), name);
    }
    for (size_t i = 0; i < sizeof untold / sizeof *untold; i++)
        assert_string_equal(stray(untold[i][0], untold[i][1]), "");
    char longer[300] = "SLATE_";
    memset(longer + 6, 'X', sizeof longer - 7);
    assert_int_equal(strspn(stray(longer, "1"), "SLATE_X"), 127); /* cut */
}

static void expect_verdict(const char *words, const char *part)
{
    assert_int_equal(parse(words), SL_OK);
    if (!part) {
        assert_int_equal(sl_config_check(&config, &err), SL_OK);
    } else {
        assert_int_equal(sl_config_check(&config, &err), SL_E_USAGE);
        assert_non_null(strstr(err.message, part));
    }
    done();
}

static void test_checks_across_options(void **state)
{
    (void)state;
    expect_verdict("--listen 0.0.0.0:80", "--insecure");
    expect_verdict("--listen [::]:80", "--api-keys");
    expect_verdict("--listen 192.0.2.1:80", "192.0.2.1:80");
    expect_verdict("--listen 0.0.0.0:80 --insecure", NULL);
    expect_verdict("--listen 0.0.0.0:80 --api-keys f", NULL);
    expect_verdict("--listen unix:/x", NULL);
    expect_verdict("--listen [::1]:80", NULL);
    expect_verdict("--listen nowhere", "nowhere");
    expect_verdict("--write-low 256KiB", "--write-high");
    expect_verdict("--max-uri 64KiB", "--max-header");
    expect_verdict("--max-body 1GiB", "--max-body-memory");
    expect_verdict("--max-upload 449MiB", "--max-body-memory"); /* seven eighths of 512 MiB */
    expect_verdict("--max-upload 448MiB", NULL);
    expect_verdict("--max-tokens-limit 10", "--default-max-tokens");
    expect_verdict("--lease 9s", "--store-timeout (5000 ms)");
    expect_verdict("--lease 10s", NULL);
}

/* Two tables, one of them a command's own; options of other commands are not known. */
static void test_sets(void **state)
{
    (void)state;
    static struct own {
        const char *prompt;
        double temperature;
    } own;
    static const struct sl_option rows[] = {
        {"prompt", SL_OPTION_STRING, offsetof(struct own, prompt), NULL, 0, 0, NULL, "TEXT", "p",
         SL_CMD_GENERATE},
        {"temperature", SL_OPTION_REAL, offsetof(struct own, temperature), "1", 0, 100, NULL, "X",
         "t", SL_CMD_GENERATE},
    };
    struct sl_option_set sets[] = {set(), {rows, 2, &own}};
    char *argv[] = {"generate", "--prompt", "--x", "--temperature=0.25", "--threads", "3", NULL};
    assert_int_equal(sl_options_parse(sets, 2, SL_CMD_GENERATE, 6, argv, &args, &err), SL_OK);
    assert_string_equal(own.prompt, "--x");
    assert_true(own.temperature == 0.25);
    assert_int_equal(config.threads, 3);
    assert_string_equal(config.listen, "127.0.0.1:8080"); /* its default all the same */
    sl_options_done(sets, 2, &args);
    static const char *const bad[] = {"--listen=x",        "--temperature=101",
                                      "--temperature=nan", "--temperature=1e999",
                                      "--temperature=",    "--temperature=1x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char word[64];
        char *v[] = {"generate", word, NULL};
        snprintf(word, sizeof word, "%s", bad[i]);
        assert_int_equal(sl_options_parse(sets, 2, SL_CMD_GENERATE, 2, v, &args, &err), SL_E_USAGE);
        sl_options_done(sets, 2, &args);
    }
}

/* Every row has what --help and the error messages need, and a default that is in its range. */
static void test_the_table(void **state)
{
    (void)state;
    size_t n;
    const struct sl_option *rows = sl_config_options(&n);
    for (size_t i = 0; i < n; i++) {
        const struct sl_option *o = &rows[i];
        assert_true(o->commands != 0 && o->help && strlen(o->help) > 10);
        assert_true(o->arg || o->choices || o->type == SL_OPTION_BOOL);
        assert_int_equal(strspn(o->name, "abcdefghijklmnopqrstuvwxyz0123456789-"), strlen(o->name));
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(o->name, rows[j].name);
            assert_int_not_equal(o->offset, rows[j].offset);
        }
        char words[256];
        if (!o->dflt)
            continue;
        snprintf(words, sizeof words, "--%s=%s", o->name, o->dflt);
        assert_int_equal(parse(words), SL_OK);
        done();
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 7; n++) {
        sl_mem_fail_after(n);
        enum sl_code c = parse("--cors a,b --cors c");
        sl_mem_fail_after(-1);
        assert_int_equal(c, SL_E_NO_MEMORY);
        done();
    }
    assert_int_equal(parse("--cors a,b --cors c"), SL_OK);
    done();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_values),
        cmocka_unit_test(test_units),       cmocka_unit_test(test_errors),
        cmocka_unit_test(test_environment), cmocka_unit_test(test_checks_across_options),
        cmocka_unit_test(test_sets),        cmocka_unit_test(test_the_table),
        cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_variables_that_name_no_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
