/* scenes.c: see scenes.h. */
#include "tests/support/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/cli/cli.h"
#include "tests/support/api.h"
#include "tests/support/inside.h"

enum { TEXT_MAX = 512 << 10 };

char scenes_store[80];
int scene_exit_code;

static char snapshot[INSIDE_BODY_MAX]; /* the tensors of "by" */
static size_t n_snapshot;
static char moved[INSIDE_BODY_MAX]; /* of a session that is not "by" */
static size_t n_moved;

/* --- what there is -----------------------------------------------------------------------------*/

void scene_gone(const char *id)
{
    char path[64];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    assert_true(talk("DELETE", path, ""));
    assert_true(inside.status == 200 || inside.status == 404);
}

/* "name":VALUE of the last reply's JSON, up to a comma or the object's end. */
static void field(const char *name, char *dst, size_t n)
{
    char key[40];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *p = strstr(inside.reply, key);
    assert_non_null(p);
    p += strlen(key);
    snprintf(dst, n, "%.*s", (int)(*p == '{' ? strcspn(p, "}") + 1 : strcspn(p, ",}")), p);
}

/* What a session is: version, tokens, metadata, a checkpoint's name, and what a copy of it says
 * next. */
static void look_at(const char *id, char *ret, size_t n)
{
    char path[64], version[32], seen[32], metadata[64], names[64], text[128];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    assert_true(talk("GET", path, ""));
    if (inside.status == 404) {
        snprintf(ret, n, "%s: none;", id);
        return;
    }
    talk_must("GET", path, "", 200);
    /* A lease that could not be given back is ours alone until it ends by itself. */
    assert_true(strstr(inside.reply, "\"busy\":false") || !strncmp(scenes_store, "redis", 5));
    field("version", version, sizeof version);
    field("tokens_seen", seen, sizeof seen);
    field("metadata", metadata, sizeof metadata);
    snprintf(path, sizeof path, "/v1/sessions/%s/checkpoints", id);
    talk_must("GET", path, "", 200);
    const char *p = strstr(inside.reply, "\"names\":[\"");
    snprintf(names, sizeof names, "%.*s", p ? (int)strcspn(p, "]") : 0, p ? p : "");
    snprintf(path, sizeof path, "/v1/sessions/%s/fork", id);
    talk_must("POST", path, "{\"id\":\"probe\"}", 201);
    talk_must("POST", "/v1/generate",
              "{\"session\":\"probe\",\"prompt\":\"?\",\"max_tokens\":5,\"temperature\":0,"
              "\"ignore_eos\":true,\"return_tokens\":true}",
              200);
    p = strstr(inside.reply, "\"tokens\":[");
    assert_non_null(p);
    snprintf(text, sizeof text, "%.*s", (int)strcspn(p, "]"), p);
    scene_gone("probe");
    snprintf(ret, n, "%s: v%s, %s tokens, %s, %s, %s;", id, version, seen, metadata, names, text);
}

void scenes_look(char ret[LOOK_MAX])
{
    look_at("t", ret, LOOK_MAX / 2);
    look_at("new", ret + strlen(ret), LOOK_MAX / 2);
}

static bool exists(const char *id)
{
    char path[64];
    snprintf(path, sizeof path, "/v1/sessions/%s", id);
    assert_true(talk("GET", path, ""));
    return inside.status == 200;
}

void scenes_put_away(void)
{
    if (exists("t"))
        talk_must("POST", "/v1/sessions/t/pause", "", 200);
    if (exists("new"))
        talk_must("POST", "/v1/sessions/new/pause", "", 200);
}

/* Of a snapshot: what stands behind its header, which tells times. */
static const char *tensors_of(const char *p, size_t *ret_n)
{
    uint64_t header;
    size_t n = *ret_n;
    assert_true(n > sizeof header);
    memcpy(&header, p, sizeof header);
    assert_true(header < n - sizeof header);
    *ret_n = n - sizeof header - (size_t)header;
    return p + sizeof header + header;
}

static const char *snapshot_of_by(size_t *ret_n)
{
    talk_must("GET", "/v1/sessions/by/snapshot", "", 200);
    const char *p = talk_body(ret_n);
    return tensors_of(p, ret_n);
}

bool scenes_by_is_the_same(void)
{
    size_t n;
    const char *p = snapshot_of_by(&n);
    return n == n_snapshot && memcmp(p, snapshot, n) == 0;
}

/* --- requests ----------------------------------------------------------------------------------*/

#define ANY_TURN "\"session\":\"t\",\"prompt\":\"ab\",\"seed\":7,\"ignore_eos\":true"
#define TURN ANY_TURN ",\"max_tokens\":4"

#define JSON "Content-Type: application/json\r\n"

const struct scene scenes[] = {
    {.name = "generate",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":4,\"seed\":1,\"logprobs\":2,\"stop\":[\"zz\"]}"},
    {.name = "stream",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":4,\"seed\":1,\"stream\":true}"},
    {.name = "generate without a seed",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":2,\"return_state\":true}"},
    {.name = "turn", .method = "POST", .path = "/v1/generate", .body = "{" TURN "}"},
    {.name = "turn, streamed",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN ",\"stream\":true}"},
    {.name = "turn with a key",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN "}",
     .lines = JSON "Idempotency-Key: k\r\n",
     .keyed = true},
    {.name = "turn of a stored session",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN "}",
     .before = "pause"},
    {.name = "stream of a stored session with a key",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN ",\"stream\":true}",
     .before = "pause",
     .lines = JSON "Idempotency-Key: k\r\n",
     .keyed = true},
    {.name = "turn that lets a paused one be",
     .method = "POST",
     .path = "/v1/generate",
     .body = "{" TURN "}",
     .before = "held"},
    {.name = "completions",
     .method = "POST",
     .path = "/v1/completions",
     .body = "{\"prompt\":\"Once\",\"max_tokens\":2}"},
    {.name = "chat completions of a session",
     .method = "POST",
     .path = "/v1/chat/completions",
     .body = "{\"session\":\"t\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
             "\"max_tokens\":3,\"seed\":7,\"stream\":true}"},
    {.name = "create",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"prompt\":\"hello\",\"metadata\":{\"a\":1}}"},
    {.name = "create from a session",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"from\":\"t\"}"},
    {.name = "create from a stored session",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"from\":\"t\"}",
     .before = "pause"},
    {.name = "list", .method = "GET", .path = "/v1/sessions?limit=2"},
    {.name = "rebuild", .method = "POST", .path = "/v1/sessions/t/rebuild"},
    {.name = "rebuild of a stored session",
     .method = "POST",
     .path = "/v1/sessions/t/rebuild",
     .before = "pause"},
    {.name = "get", .method = "GET", .path = "/v1/sessions/t"},
    {.name = "memory", .method = "GET", .path = "/v1/sessions/t/memory"},
    {.name = "patch",
     .method = "PATCH",
     .path = "/v1/sessions/t",
     .body = "{\"metadata\":{\"b\":2}}"},
    {.name = "fork", .method = "POST", .path = "/v1/sessions/t/fork", .body = "{\"id\":\"new\"}"},
    {.name = "pause", .method = "POST", .path = "/v1/sessions/t/pause"},
    {.name = "resume", .method = "POST", .path = "/v1/sessions/t/resume", .before = "pause"},
    {.name = "cancel", .method = "POST", .path = "/v1/sessions/t/cancel"},
    {.name = "snapshot", .method = "GET", .path = "/v1/sessions/t/snapshot"},
    {.name = "snapshot of a stored session",
     .method = "GET",
     .path = "/v1/sessions/t/snapshot",
     .before = "pause"},
    {.name = "snapshot of bytes", .method = "GET", .path = "/v1/sessions/t/snapshot?dtype=int8"},
    {.name = "checkpoints", .method = "GET", .path = "/v1/sessions/t/checkpoints"},
    {.name = "rewind",
     .method = "POST",
     .path = "/v1/sessions/t/rewind",
     .body = "{\"version\":2}",
     .before = "turn"},
    {.name = "name",
     .method = "POST",
     .path = "/v1/sessions/t/checkpoints",
     .body = "{\"name\":\"b\"}"},
    {.name = "delete a name",
     .method = "DELETE",
     .path = "/v1/sessions/t/checkpoints/a",
     .before = "name"},
    {.name = "rewind to a name",
     .method = "POST",
     .path = "/v1/sessions/t/rewind",
     .body = "{\"checkpoint\":\"a\"}",
     .before = "name"},
    {.name = "fork at a name",
     .method = "POST",
     .path = "/v1/sessions/t/fork",
     .body = "{\"id\":\"new\",\"checkpoint\":\"a\"}",
     .before = "name"},
    {.name = "create from a name",
     .method = "POST",
     .path = "/v1/sessions",
     .body = "{\"id\":\"new\",\"from\":{\"session\":\"t\",\"checkpoint\":\"a\"},"
             "\"prompt\":\"hello\"}",
     .before = "name"},
    {.name = "restore",
     .method = "PUT",
     .path = "/v1/sessions/new/snapshot",
     .lines = "Content-Type: application/octet-stream\r\n",
     .brings = true},
    {.name = "restore over a session",
     .method = "PUT",
     .path = "/v1/sessions/t/snapshot",
     .lines = "Content-Type: application/octet-stream\r\nIf-Match: *\r\n",
     .brings = true},
    {.name = "delete", .method = "DELETE", .path = "/v1/sessions/t"},
    {.name = "delete a stored session",
     .method = "DELETE",
     .path = "/v1/sessions/t",
     .before = "pause"},
    {.name = "cancel of a running turn",
     .method = "POST",
     .path = "/v1/sessions/t/cancel",
     .finish = "cancelled"},
    {.name = "pause of a running turn",
     .method = "POST",
     .path = "/v1/sessions/t/pause",
     .finish = "paused"},
    {.name = "drain of a running turn", .finish = "paused", .drains = true},
    {.name = "models", .method = "GET", .path = "/v1/models"},
    {.name = "tokenize",
     .method = "POST",
     .path = "/v1/tokenize",
     .body = "{\"text\":\"hello there\"}"},
    {.name = "metrics", .method = "GET", .path = "/metrics"},
};
const size_t n_scenes = sizeof scenes / sizeof *scenes;

static bool ask(const struct scene *sc)
{
    const char *body = sc->body ? sc->body : "";
    if (sc->brings)
        return talk_bytes(sc->method, sc->path, sc->lines, moved, n_moved);
    return talk_bytes(sc->method, sc->path, sc->lines, body, strlen(body));
}

void scene_set_up(const struct scene *sc)
{
    char path[64];
    scene_gone("t");
    scene_gone("new");
    bool held = sc->before && !strcmp(sc->before, "held");
    talk_must("POST", held ? "/v1/sessions/held/fork" : "/v1/sessions/base/fork", "{\"id\":\"t\"}",
              201);
    if (!sc->before || held)
        return;
    if (!strcmp(sc->before, "name"))
        talk_must("POST", "/v1/sessions/t/checkpoints", "{\"name\":\"a\"}", 201);
    if (!strcmp(sc->before, "turn") || !strcmp(sc->before, "name")) {
        talk_must("POST", "/v1/generate", "{" TURN "}", 200);
        return;
    }
    snprintf(path, sizeof path, "/v1/sessions/t/%s", sc->before);
    talk_must("POST", path, "", 200);
}

/* Did all of the answer come? */
static bool is_whole(void)
{
    const char *end = strstr(inside.reply, "\r\n\r\n");
    const char *length = strcasestr(inside.reply, "\r\nContent-Length: ");
    if (!end)
        return false;
    if (length && length < end)
        return inside.n_reply == (size_t)(end + 4 - inside.reply) + strtoul(length + 18, NULL, 10);
    return inside.n_reply > 5 && !memcmp(inside.reply + inside.n_reply - 5, "0\r\n\r\n", 5);
}

enum outcome scene_outcome(void)
{
    bool stream = strstr(inside.reply, "text/event-stream") != NULL;
    if (inside.status == 504 && !strstr(inside.reply, "\"commit_unknown\""))
        fail_msg("a 504 that is no commit_unknown: %.600s", inside.reply);
    if (inside.status == 0 || !is_whole() || strstr(inside.reply, "\"commit_unknown\""))
        return UNKNOWN;
    if (inside.status / 100 == 2 && (!stream || strstr(inside.reply, "data: [DONE]")))
        return DONE;
    if (stream ? !strstr(inside.reply, "{\"error\":{\"message\":\"")
               : inside.status / 100 != 5 || !(strstr(inside.reply, "{\"error\":{\"message\":\"") ||
                                               strstr(inside.reply, "Content-Length: 0\r\n")))
        fail_msg("an answer that a fault does not excuse: %.600s", inside.reply);
    return FAILED;
}

/* --- a turn that runs meanwhile ----------------------------------------------------------------*/

static struct {
    int connection;
    double seen; /* tokens, before it */
    bool told;   /* its text is known */
    size_t n;    /* tokens that it gave */
    char text[TEXT_MAX];
} turn;

static double tokens_seen_by(const char *path)
{
    char seen[32];
    talk_must("GET", path, "", 200);
    field("tokens_seen", seen, sizeof seen);
    return strtod(seen, NULL);
}

/* A text of the last reply, as it stands there, behind what is in dst already. */
static void add_text(char dst[TEXT_MAX])
{
    const char *p = strstr(inside.reply, "\"text\":\"");
    size_t n = 0, before = strlen(dst);
    assert_non_null(p);
    for (p += 8; p[n] != '"'; n++)
        n += p[n] == '\\';
    assert_true(before + n < TEXT_MAX);
    memcpy(dst + before, p, n);
    dst[before + n] = '\0';
}

/* It has read its prompt when this returns, and generates. */
static int begin_turn(const char *body)
{
    int64_t deadline = client_now_ms() + 20000;
    double before = talk_metric("slate_engine_decode_tokens_total");
    int connection = talk_begin("POST", "/v1/generate", body);
    while (talk_metric("slate_engine_decode_tokens_total") == before)
        if (client_now_ms() > deadline)
            fail_msg("a turn does not begin: %s", body);
    return connection;
}

void scene_begin(const struct scene *sc)
{
    if (!sc->finish)
        return;
    turn.seen = tokens_seen_by("/v1/sessions/t");
    turn.connection = begin_turn("{" ANY_TURN ",\"max_tokens\":1000000}");
}

/* Who has no answer does so. With that one others may have been turned away, too, who came in the
 * same moment. */
static void ask_again(const struct scene *sc)
{
    int64_t deadline = client_now_ms() + 20000;
    while (!ask(sc))
        if (client_now_ms() > deadline)
            fail_msg("%s: asked again, there is no answer", sc->name);
    if (inside.status != 200)
        fail_msg("%s: asked again, it is answered with %.600s", sc->name, inside.reply);
}

bool scene_ask(const struct scene *sc)
{
    char finish[64];
    enum outcome o = DONE;
    scene_exit_code = SL_EXIT_OK;
    if (!sc->finish)
        return ask(sc);
    if (sc->drains) {
        scene_exit_code = inside_terminate();
        assert_in_range(scene_exit_code, SL_EXIT_OK, SL_EXIT_FAILED);
    } else {
        o = ask(sc) ? scene_outcome() : UNKNOWN;
        if (o != DONE)
            ask_again(sc);
    }
    bool any = talk_end(turn.connection);
    turn.told = any && scene_outcome() == DONE;
    if (!turn.told && o != DONE)
        fail_msg("%s: one fault, and neither is it answered nor the turn: %.600s", sc->name,
                 inside.reply);
    snprintf(finish, sizeof finish, "\"finish_reason\":\"%s\"", sc->finish);
    if (turn.told && !strstr(inside.reply, finish))
        fail_msg("%s: the turn has not ended so: %.600s", sc->name, inside.reply);
    turn.text[0] = '\0';
    if (turn.told) {
        char n[32];
        field("completion_tokens", n, sizeof n);
        turn.n = strtoul(n, NULL, 10);
        add_text(turn.text);
    }
    return any;
}

void scene_end(const struct scene *sc)
{
    if (sc->drains)
        assert_int_equal(inside_start_again(), 0);
}

bool scene_is_possible(const struct scene *sc)
{
    return !sc->drains || strcmp(scenes_store, "memory") != 0;
}

/* Of what "t" has, those that the turn gave it. */
static size_t tokens_of_turn(void)
{
    double n = tokens_seen_by("/v1/sessions/t") - turn.seen - 2 /* "ab" */;
    assert_true(n > 0);
    return (size_t)n;
}

/* The same turn on another "t", of so many tokens, where nothing ended it. */
static void look_at_twin(size_t n, char ret[LOOK_MAX], char text[TEXT_MAX])
{
    char body[128];
    scene_gone("t");
    talk_must("POST", "/v1/sessions/base/fork", "{\"id\":\"t\"}", 201);
    snprintf(body, sizeof body, "{" ANY_TURN ",\"max_tokens\":%zu}", n);
    talk_must("POST", "/v1/generate", body, 200);
    text[0] = '\0';
    add_text(text);
    scenes_look(ret);
}

/* A turn that was paused goes on, until it is cancelled. */
static void check_goes_on(const char *what)
{
    static char parts[LOOK_MAX], whole[LOOK_MAX], text[TEXT_MAX];
    int connection = begin_turn("{\"session\":\"t\",\"resume\":true}");
    talk_must("POST", "/v1/sessions/t/cancel", "", 200);
    if (!talk_end(connection) || inside.status != 200)
        fail_msg("%s: the paused turn does not go on: %.600s", what, inside.reply);
    add_text(turn.text);
    scenes_look(parts);
    look_at_twin(tokens_of_turn(), whole, text);
    if (turn.told && strcmp(turn.text, text) != 0)
        fail_msg("%s: the text of a paused turn and of its rest:\n%s\nuncut:\n%s", what, turn.text,
                 text);
    if (strcmp(strchr(parts, ','), strchr(whole, ',')) != 0) /* but the version */
        fail_msg("%s: paused, gone on with and cancelled:\n%s\nuncut:\n%s", what, parts, whole);
}

void scene_check_turn(const struct scene *sc, const char *now, const char *what)
{
    static char uncut[LOOK_MAX], text[TEXT_MAX];
    size_t n = tokens_of_turn();
    if (turn.told && n != turn.n)
        fail_msg("%s: the turn was told to have given %zu tokens, the session has %zu", what,
                 turn.n, n);
    if (!strcmp(sc->finish, "paused"))
        check_goes_on(what);
    look_at_twin(n, uncut, text);
    if (strcmp(now, uncut) != 0)
        fail_msg("%s: ended after %zu tokens:\n%s\nuncut:\n%s", what, n, now, uncut);
}

/* --- the server --------------------------------------------------------------------------------*/

static int start_server(const char *store, bool tcp)
{
    static char model[300];
    snprintf(model, sizeof model, "--model=%s", seeded_bytes_model());
    return inside_start(store, tcp,
                        (const char *const[]){model, "--tokenizer=bytes", "--chat-template=plain",
                                              !strcmp(store, "memory") ? "--sessions-in-memory=8"
                                                                       : "--sessions-in-memory=4",
                                              "--threads=1", "--log-level=error", "--keep-turns=2",
                                              "--keep-transcript", "--drain-timeout=0", NULL});
}

/* Its turn is paused, and the last token of that is held for a stop that may come. */
static void make_held(void)
{
    talk_must("POST", "/v1/sessions", "{\"id\":\"held\"}", 201);
    int connection = begin_turn(
        "{\"session\":\"held\",\"prompt\":\"Once\",\"max_tokens\":1000000,\"stop\":[\"QZ\"],"
        "\"logit_bias\":{\"81\":100},\"temperature\":0,\"ignore_eos\":true}");
    talk_must("POST", "/v1/sessions/held/pause", "", 200);
    assert_true(talk_end(connection));
    assert_non_null(strstr(inside.reply, "\"finish_reason\":\"paused\""));
}

int scenes_start(const char *store, bool tcp)
{
    snprintf(scenes_store, sizeof scenes_store, "%s", store);
    if (start_server(store, tcp))
        return -1;
    talk_must("POST", "/v1/sessions",
              "{\"id\":\"base\",\"prompt\":\"hello\",\"metadata\":{\"m\":0}}", 201);
    talk_must("POST", "/v1/sessions", "{\"id\":\"by\",\"prompt\":\"somebody else\"}", 201);
    talk_must("POST", "/v1/generate", "{\"session\":\"base\",\"prompt\":\"x\",\"max_tokens\":3}",
              200);
    const char *p = snapshot_of_by(&n_snapshot);
    memcpy(snapshot, p, n_snapshot);
    talk_must("POST", "/v1/sessions", "{\"id\":\"far\",\"prompt\":\"from far away\"}", 201);
    talk_must("GET", "/v1/sessions/far/snapshot", "", 200);
    p = talk_body(&n_moved);
    memcpy(moved, p, n_moved);
    scene_gone("far");
    make_held();
    return 0;
}
