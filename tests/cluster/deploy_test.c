/* deploy_test.c: the files of deploy/ that no other test runs: what their own programs say of them,
 * and that dashboard, alerts and autoscaler ask for figures that a server has. (compose.yaml and
 * kubernetes.yaml are examples; nothing here can run them, but for the line by which the first
 * makes HAProxy's file.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/config.h"
#include "tests/support/api.h"

/* Runs it with the system's folders in PATH; what it says is told where it fails. */
static void must(const char *fmt, ...)
{
    char command[2000], whole[2200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    snprintf(whole, sizeof whole, "PATH=$PATH:/usr/sbin:/sbin; { %s ; } 2>&1", command);
    FILE *f = popen(whole, "r");
    char said[4000];
    assert_non_null(f);
    size_t n = fread(said, 1, sizeof said - 1, f);
    said[n] = '\0';
    if (pclose(f) != 0)
        fail_msg("%s: %s", command, said);
}

static void make_folder(char dst[600])
{
    const char *build = getenv("SLATE_BUILD");
    snprintf(dst, 600, "%s/cluster/deploy", build ? build : "build/release");
    must("rm -rf '%s' && mkdir -p '%s'", dst, dst);
}

static char *read_file(const char *path)
{
    static char text[200000];
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is not there", path);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

/* With the user and the folders of a machine that has HAProxy as a service left away. */
static void haproxy_takes_its_files(void **state)
{
    (void)state;
    char folder[600];
    make_folder(folder);
    static const char *const files[] = {"haproxy", "haproxy-fleet"};
    for (size_t i = 0; i < 2; i++)
        must("sed -e '/chroot/d' -e 's/bind :8080/bind 127.0.0.1:1/' deploy/%s.cfg > '%s/%s' && "
             "haproxy -c -f '%s/%s'",
             files[i], folder, files[i], folder, files[i]);
}

/* compose.yaml's HAProxy makes its file of ours in a shell: that line is run as it is here, but for
 * the folders, and its names, which are no hosts here. */
static void compose_makes_haproxys_file(void **state)
{
    static const char begin[] = "command: [\"sh\", \"-c\", \"sed ";
    (void)state;
    char folder[600], path[700];
    make_folder(folder);
    const char *line = strstr(read_file("deploy/compose.yaml"), begin);
    assert_non_null(line);
    json_t *words = json_loads(strchr(line, '['), JSON_DISABLE_EOF_CHECK, NULL);
    const char *command = json_string_value(json_array_get(words, 2));
    assert_non_null(command);
    assert_null(strchr(command, '$')); /* that would be compose's */
    snprintf(path, sizeof path, "%s/command", folder);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(command, f) >= 0 && fclose(f) == 0);
    json_decref(words);
    must("cd '%s' && D=$PWD && cd - >/dev/null && sed -e \"s,/etc/slate/,deploy/,; s,/tmp/,$D/,g; "
         "s,exec haproxy,cp $D/haproxy.cfg $D/named \\&\\& "
         "sed -i 's/ [abc]:8080/ 127.0.0.1:8080/; s/bind :/bind 127.0.0.1:/' $D/haproxy.cfg "
         "\\&\\& haproxy -c,\" \"$D/command\" > \"$D/run\" && sh \"$D/run\"",
         folder);
    must("grep -c 'server \\([abc]\\) \\1:8080 *' '%s/named' | grep -qx 9", folder);
    must("! grep -E '127\\.0\\.0\\.1:|/dev/log|^ *(chroot|user|group) ' '%s/named'", folder);
}

static void nginx_takes_its_files(void **state)
{
    (void)state;
    char folder[600];
    make_folder(folder);
    static const char *const files[] = {"nginx", "nginx-fleet"};
    for (size_t i = 0; i < 2; i++)
        must(
            "cd '%s' && D=$PWD && cd - >/dev/null && sed -e \"s,/var/log/nginx,$D,\" -e '/^user/d' "
            "deploy/%s.conf > '%s/%s' && nginx -t -q -p \"$D\" -c '%s' -e stderr -g \"pid "
            "$D/pid;\"",
            folder, files[i], folder, files[i], files[i]);
}

/* The program is not where the unit will find it: the copy names the one that was built. */
static void systemd_takes_its_units(void **state)
{
    (void)state;
    char folder[600];
    const char *build = getenv("SLATE_BUILD");
    make_folder(folder);
    static const char *const files[] = {"slate", "slate-fleet"};
    for (size_t i = 0; i < 2; i++) {
        must(
            "P=$(realpath '%s/slate') && sed -e \"s,/usr/local/bin/slate,$P,\" deploy/%s.service > "
            "'%s/%s.service' && systemd-analyze verify --man=no '%s/%s.service'",
            build ? build : "build/release", files[i], folder, files[i], folder, files[i]);
        must("grep -q '^NoNewPrivileges=yes' deploy/%s.service && grep -q '^ProtectSystem=strict' "
             "deploy/%s.service",
             files[i], files[i]);
        /* An option of the command line would count before the file's variables. */
        must("grep -q '^ExecStart=/usr/local/bin/slate serve$' deploy/%s.service", files[i]);
    }
}

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Is there a line of that name: "NAME 1" or "NAME{…} 1"? */
static bool has_metric(const char *exposed, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = exposed; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '{'))
            return true;
    }
    return false;
}

/* Every name in a file that is one of ours is one that a server has; gives how many there are. */
static size_t check_names(const char *path, const char *exposed)
{
    size_t n_found = 0;
    const char *text = read_file(path);
    for (const char *p = text; *p;) {
        char name[128];
        size_t n = 0;
        while (in_name(p[n]))
            n++;
        bool ours = !strncmp(p, "slate_", 6) || !strncmp(p, "gen_ai_", 7);
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        if (ours && !has_metric(exposed, name))
            fail_msg("%s asks for %s, which no server has", path, name);
        n_found += ours;
        p += n ? n : 1;
    }
    return n_found;
}

/* Dashboard, alerts, autoscaler. */
static void only_figures_are_asked_for_that_there_are(void **state)
{
    (void)state;
    struct api a;
    json_error_t err;
    api_start(&a,
              (const char *const[]){"--tokenizer=bytes", "--model", seeded_bytes_model(), NULL});
    reply_free(expect(post(a.client, "/v1/generate", "{'prompt':'x','max_tokens':1}"), 200));
    struct reply *r = expect(get(a.client, "/metrics"), 200);
    assert_false(has_metric(r->body, "slate_turns"));
    assert_true(check_names("deploy/grafana/slate.json", r->body) > 15);
    assert_true(check_names("deploy/alerts.yaml", r->body) > 6);
    assert_true(check_names("deploy/kubernetes.yaml", r->body) > 0);
    reply_free(r);
    api_stop(&a);
    json_t *board = json_load_file("deploy/grafana/slate.json", 0, &err);
    if (!board)
        fail_msg("deploy/grafana/slate.json: %s", err.text);
    json_decref(board);
}

/* The number behind a text that a file has once. */
static long number_after(const char *path, const char *before)
{
    const char *p = strstr(read_file(path), before);
    if (!p)
        fail_msg("%s has no '%s'", path, before);
    p += strlen(before);
    if (!isdigit((unsigned char)*p))
        fail_msg("%s: no number after '%s'", path, before);
    return strtol(p, NULL, 10);
}

/* What is given to a server to end is more than it may take: the delay, the limit of the drain, 5 s
 * until what still runs is cut, 2 s for last bytes and 1 s for last requests (server.h). */
static void the_time_to_end_is_enough(void **state)
{
    enum { AFTER_S = 5 + 2 + 1, DRAIN_S = 30 /* --drain-timeout's default */ };
    static const char k8s[] = "deploy/kubernetes.yaml", compose[] = "deploy/compose.yaml";
    (void)state;
    assert_true(number_after(k8s, "terminationGracePeriodSeconds: ") >
                number_after(k8s, "command: [sleep, \"") +
                    number_after(k8s, "SLATE_DRAIN_DELAY, value: ") +
                    number_after(k8s, "SLATE_DRAIN_TIMEOUT, value: ") + AFTER_S);
    assert_true(number_after(compose, "stop_grace_period: ") >
                number_after(compose, "SLATE_DRAIN_DELAY: ") +
                    number_after(compose, "SLATE_DRAIN_TIMEOUT: ") + AFTER_S);
    assert_true(number_after("deploy/slate-fleet.service", "TimeoutStopSec=") >
                number_after("deploy/slate-fleet.service", "SLATE_DRAIN_DELAY=") + DRAIN_S +
                    AFTER_S);
    assert_true(number_after("deploy/slate.service", "TimeoutStopSec=") > DRAIN_S + AFTER_S);
}

/* The default of an option that is a size. */
static uint64_t bytes_of(const char *option)
{
    size_t n;
    uint64_t bytes = 0;
    const struct sl_option *o = sl_config_options(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(o[i].name, option) == 0)
            assert_true(sl_option_number(o[i].type, o[i].dflt, &bytes));
    assert_true(bytes > 0);
    return bytes;
}

/* That something is too large Slate says, in the form of its other errors. */
static void nginx_takes_more_than_slate_does(void **state)
{
    static const char *const files[] = {"deploy/nginx.conf", "deploy/nginx-fleet.conf"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        uint64_t most = (uint64_t)number_after(files[i], "client_max_body_size ") << 20;
        assert_true(most > bytes_of("max-upload") && most > bytes_of("max-body"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(haproxy_takes_its_files),
        cmocka_unit_test(compose_makes_haproxys_file),
        cmocka_unit_test(nginx_takes_its_files),
        cmocka_unit_test(systemd_takes_its_units),
        cmocka_unit_test(the_time_to_end_is_enough),
        cmocka_unit_test(nginx_takes_more_than_slate_does),
        cmocka_unit_test(only_figures_are_asked_for_that_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
