/* deploy_test.c: the files of deploy/ that no other test runs: what their own programs say of them,
 * and that the dashboard asks for figures that there are. (compose.yaml and kubernetes.yaml are
 * examples; nothing here can run them.) */
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
    }
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

/* Every name in an expression that is one of ours is one that /metrics has. */
static size_t check_names(const char *expr, const char *known)
{
    size_t n_found = 0;
    for (const char *p = expr; *p;) {
        char name[128];
        size_t n = 0;
        while (p[n] && (isalnum((unsigned char)p[n]) || p[n] == '_'))
            n++;
        if (n == 0) {
            p++;
            continue;
        }
        bool ours = !strncmp(p, "slate_", 6) || !strncmp(p, "gen_ai_", 7);
        static const char bucket[] = "_bucket";
        size_t n_name = n;
        if (n > sizeof bucket && !strncmp(p + n - (sizeof bucket - 1), bucket, sizeof bucket - 1))
            n_name -= sizeof bucket - 1;
        snprintf(name, sizeof name, "%.*s", (int)n_name, p);
        if (ours && !strstr(known, name))
            fail_msg("the dashboard asks for %s, which there is not", name);
        n_found += ours;
        p += n;
    }
    return n_found;
}

static void the_dashboard_asks_for_what_there_is(void **state)
{
    (void)state;
    char known[200000];
    size_t n = 0, i, k;
    json_error_t err;
    const json_t *panel, *target;
    snprintf(known, sizeof known, "%s", read_file("server/metrics.h"));
    snprintf(known + strlen(known), sizeof known - strlen(known), "%s",
             read_file("server/metrics.c"));
    json_t *board = json_load_file("deploy/grafana/slate.json", 0, &err);
    if (!board)
        fail_msg("deploy/grafana/slate.json: %s", err.text);
    json_array_foreach(json_object_get(board, "panels"), i, panel)
        json_array_foreach(json_object_get(panel, "targets"), k, target) n +=
        check_names(json_string_value(json_object_get(target, "expr")), known);
    assert_true(n > 15);
    json_decref(board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(haproxy_takes_its_files),
        cmocka_unit_test(nginx_takes_its_files),
        cmocka_unit_test(systemd_takes_its_units),
        cmocka_unit_test(the_dashboard_asks_for_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
