/* convert.c: `slate convert IN OUT.safetensors`: one file of a model, its settings, its tokenizer
 * and its chat template. What stands in it: engine/converted.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "server/cli/cli.h"
#include "server/cli/convert_file.h"
#include "server/cli/load.h"

struct options {
    const char *type, *tokenizer, *rule, *begin_token, *chat_template;
    bool force;
};

static const char usage[] =
    "Usage: slate convert [OPTION]… IN OUT.safetensors\n"
    "\n"
    "Makes one file of a model in any form that `slate serve --model` takes: its weights under "
    "the\n"
    "names and in the shapes that they have, its settings, its tokenizer and its chat template.\n"
    "`slate serve --model OUT.safetensors` needs nothing else. The model stays the same one:\n"
    "sessions and snapshots of IN go on with OUT. IN is read a tensor at a time.\n"
    "\n";

#define AT(field) offsetof(struct options, field)
static const struct sl_option rows[] = {
    {.name = "type",
     .type = SL_OPTION_STRING,
     .offset = AT(type),
     .arg = "f32|bf16|f16|q8|q4",
     .help = "The type of matrices. Vectors and the embedding stay as they are, so that OUT gives "
             "the bits of IN under serve's --weights. Without it as IN has them, a .gguf file's "
             "quantised blocks, too.",
     .commands = SL_CMD_CONVERT},
    {.name = "tokenizer",
     .type = SL_OPTION_STRING,
     .offset = AT(tokenizer),
     .arg = "FILE|DIR|bytes|none",
     .help = "The tokenizer to put in, as serve's --tokenizer; none: OUT will need the option. "
             "Without it the one that IN has.",
     .commands = SL_CMD_CONVERT},
    {.name = "begin-token",
     .type = SL_OPTION_STRING,
     .offset = AT(begin_token),
     .arg = "ID|eos|none",
     .help = "Put in what serve's --begin-token says.",
     .commands = SL_CMD_CONVERT},
    {.name = "chat-template",
     .type = SL_OPTION_STRING,
     .offset = AT(chat_template),
     .arg = "NAME",
     .help = "Put in what serve's --chat-template says.",
     .commands = SL_CMD_CONVERT},
    {.name = "rule",
     .type = SL_OPTION_STRING,
     .offset = AT(rule),
     .arg = "NAME=VALUE,...",
     .help = "Put in what serve's --rule says: what IN leaves open of its memory rule.",
     .commands = SL_CMD_CONVERT},
    {.name = "force",
     .type = SL_OPTION_BOOL,
     .offset = AT(force),
     .dflt = "false",
     .help = "Replace OUT where it is there already. The new file has its owner, group and mode, "
             "as far as this user may give them.",
     .commands = SL_CMD_CONVERT},
};

/* What is put into the file besides the model's own. */
struct luggage {
    struct sl_conversion_extras extras;
    struct sl_loaded found; /* its tokenizer and chat template */
    unsigned char *bytes;
    char begin[24], ends[SL_TOKENIZER_ENDS_MAX * 12];
};

static void luggage_done(struct luggage *l)
{
    sl_cli_load_done(&l->found);
    sl_free(l->bytes);
}

static bool is(const char *given, const char *word)
{
    return given && strcmp(given, word) == 0;
}

static void write_ends(struct luggage *l, const struct sl_tokenizer *t, size_t vocab_size)
{
    int64_t first = sl_tokenizer_eos(t);
    size_t n = 0;
    for (int64_t i = -1; i < (int64_t)vocab_size && first >= 0; i++) {
        int64_t id = i < 0 ? first : i; /* the first one first */
        if (i != first && sl_tokenizer_is_eos(t, (uint32_t)id) && n < sizeof l->ends)
            n +=
                (size_t)snprintf(l->ends + n, sizeof l->ends - n, n ? ",%" PRId64 : "%" PRId64, id);
    }
    l->extras.end_tokens = l->ends;
}

/* A tokenizer with its file, its ends and its beginning. */
static enum sl_code take_tokenizer(struct luggage *l, const char *spec, size_t vocab_size,
                                   struct sl_error *err)
{
    const struct sl_tokenizer *t = l->found.tokenizer;
    int64_t begin = sl_tokenizer_begin(t);
    enum sl_code c = sl_tokenizer_read(spec, &l->bytes, &l->extras.n_tokenizer, err);
    if (c)
        return c;
    l->extras.tokenizer_kind = sl_tokenizer_kind(t);
    l->extras.tokenizer = l->bytes;
    write_ends(l, t, vocab_size);
    (void)snprintf(l->begin, sizeof l->begin, begin < 0 ? "none" : "%" PRId64, begin);
    l->extras.begin_token = l->begin;
    if (sl_tokenizer_size(t) > vocab_size)
        fprintf(stderr, "slate convert: the tokenizer has %zu ids, the model knows %zu\n",
                sl_tokenizer_size(t), vocab_size);
    return SL_OK;
}

/* As `slate serve --model IN` would find it; what IN's own file holds is there already. */
static enum sl_code find_tokenizer(struct luggage *l, const struct options *opt, const char *in,
                                   const struct sl_conversion_info *info, struct sl_error *err)
{
    const char *spec;
    if (is(opt->tokenizer, "none")) {
        l->extras.tokenizer_kind = "";
        return SL_OK;
    }
    enum sl_code c = sl_cli_tokenizer(&l->found, in, opt->tokenizer, &spec, err);
    if (!c && spec)
        return take_tokenizer(l, spec, info->vocab_size, err);
    if (c || info->extras.tokenizer_kind)
        return c;
    if (info->vocab_size > 256)
        return sl_cli_no_tokenizer(info->vocab_size, err);
    c = sl_tokenizer_open(&l->found.tokenizer, "bytes", err);
    return c ? c : take_tokenizer(l, "bytes", info->vocab_size, err);
}

static enum sl_code pack(struct luggage *l, const struct options *opt, const char *in,
                         const struct sl_conversion_info *info, struct sl_error *err)
{
    int64_t begin = -1;
    enum sl_code c = find_tokenizer(l, opt, in, info, err);
    if (!c && is(opt->begin_token, "eos") && !l->found.tokenizer)
        return sl_fail(err, SL_E_USAGE, "--begin-token eos: give --tokenizer, too, or the id");
    if (!c && opt->begin_token)
        c = sl_cli_begin_token(opt->begin_token, l->found.tokenizer, info->vocab_size, &begin, err);
    if (!c && opt->begin_token) {
        (void)snprintf(l->begin, sizeof l->begin, begin < 0 ? "none" : "%" PRId64, begin);
        l->extras.begin_token = l->begin;
    }
    if (!c)
        c = sl_cli_chat_template(opt->chat_template, err);
    l->extras.chat_template = opt->chat_template ? opt->chat_template : l->found.chat_template;
    return c;
}

static void tell(const struct sl_conversion *c, const char *out)
{
    struct sl_conversion_info i;
    sl_conversion_info(c, &i);
    printf("%s: %s, %" PRIu64 " bytes, fingerprint ", out, i.arch, i.bytes);
    for (size_t k = 0; k < sizeof i.fingerprint; k++)
        printf("%02x", i.fingerprint[k]);
    printf("\ntokenizer %s; ", i.extras.tokenizer_kind ? i.extras.tokenizer_kind : "none");
    if (i.n_converted)
        printf("%zu matrices converted%s\n", i.n_converted, i.narrowed ? ", with rounding" : "");
    else
        printf("values as they were\n");
}

static enum sl_code convert(const struct options *opt, const char *in, const char *out,
                            struct sl_error *err)
{
    struct sl_conversion_options how = {.path = in, .rule = opt->rule};
    struct sl_conversion_info info;
    struct sl_conversion *c = NULL;
    struct luggage l = {0};
    enum sl_code rc = sl_cli_weights("type", opt->type, &how.weights, err);
    if (!rc)
        rc = sl_conversion_open(&c, &how, err);
    if (rc)
        return rc;
    sl_conversion_info(c, &info);
    rc = pack(&l, opt, in, &info, err);
    if (!rc)
        rc = sl_conversion_carry(c, &l.extras, err);
    if (!rc)
        rc = sl_convert_file(c, out, opt->force, &sl_store_io_system, err);
    if (!rc)
        tell(c, out);
    sl_conversion_close(c);
    luggage_done(&l);
    return rc;
}

int sl_cli_convert(int argc, char **argv)
{
    struct options opt = {0};
    struct sl_option_set set = {.rows = rows, .n = sizeof rows / sizeof *rows, .dst = &opt};
    struct sl_args args = {0};
    struct sl_error err;
    enum sl_code c = sl_options_parse(&set, 1, SL_CMD_CONVERT, argc, argv, &args, &err);
    bool help = !c && args.help;
    if (help) {
        fputs(usage, stdout);
        sl_options_help(&set, 1, SL_CMD_CONVERT);
    }
    if (!c && !help && args.n_rest != 2)
        c = sl_fail(&err, SL_E_USAGE,
                    "what is to be converted, and the file to be written: slate convert IN "
                    "OUT.safetensors; slate convert --help prints the usage");
    if (!c && !help)
        sl_cli_warn_strays("convert", &set, 1);
    if (!c && !help)
        c = convert(&opt, args.rest[0], args.rest[1], &err);
    sl_options_done(&set, 1, &args);
    return c ? sl_cli_fail("convert", &err) : SL_EXIT_OK;
}
