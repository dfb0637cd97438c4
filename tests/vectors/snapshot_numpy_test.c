/* Snapshots in NumPy: a script of a page (snapshot.py) reads what is written here, value by value;
 * what it changes and writes is read here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/forward.h"
#include "tests/support/bytes.h"
#include "tests/support/runner.h"
#include "tests/support/snapshots.h"

enum { PATH_SIZE = 128, COMMAND_SIZE = 1024, LINE_SIZE = 1024 };

static const char *python; /* one that has NumPy */
static struct snapshots tiny;

static const struct sl_snapshot_info info_f32 = {
    .session_id = "numpy",
    .version = 5,
    .tokens_seen = 41,
    .metadata = "{\"name\":\"\xc3\xa4 \\\"quoted\\\"\"}",
    .continuation = "{\"pending\":[7]}",
    .created_ms = 1780272000123,
    .dtype = SL_DTYPE_F32,
};

static void need_python(void)
{
    if (python)
        return;
    print_message("skipped: 1 case of a NumPy reader: no python3 here has numpy\n");
    skip();
}

/* Runs `python3 snapshot.py ARGUMENTS` and gives its output to be read; pclose() it. */
static FILE *script(const char *arguments)
{
    char command[COMMAND_SIZE];
    (void)snprintf(command, sizeof command, "%s tests/vectors/snapshot.py %s", python, arguments);
    (void)fflush(stdout);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    return f;
}

static void run_script(const char *arguments)
{
    FILE *f = script(arguments);
    assert_int_equal(fgetc(f), EOF);
    assert_int_equal(pclose(f), 0);
}

static struct snapshot_file load(const char *path)
{
    struct snapshot_file out = {malloc(1 << 20), 0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    out.n = fread(out.p, 1, 1 << 20, f);
    fclose(f);
    return out;
}

static const float *values_at(const void *state, const char *name)
{
    const struct sl_state_tensor *t = runner_tensor(tiny.model, name);
    assert_non_null(t);
    return (const float *)(const void *)((const unsigned char *)state + t->offset);
}

/* --- NumPy reads --- */

static void check_meta_line(const char *key, const char *hex)
{
    static const struct {
        const char *key, *value;
    } want[] = {
        {"format", "slate.session"},
        {"format_version", "1"},
        {"model.arch", "rwkv7"},
        {"session.id", "numpy"},
        {"session.version", "5"},
        {"session.tokens_seen", "41"},
        {"session.metadata", "{\"name\":\"\xc3\xa4 \\\"quoted\\\"\"}"},
        {"continuation", "{\"pending\":[7]}"},
        {"created", "2026-06-01T00:00:00.123Z"},
    };
    char text[256] = "";
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        if (strcmp(key, want[i].key) != 0)
            continue;
        for (size_t k = 0; want[i].value[k]; k++)
            (void)snprintf(text + 2 * k, 3, "%02x", (unsigned char)want[i].value[k]);
        assert_string_equal(hex, text);
    }
}

/* Every value that the script prints is the one that the reader here gives. */
static void check_dump(enum sl_dtype dtype)
{
    struct sl_snapshot_info info = info_f32, got;
    char path[PATH_SIZE], arguments[PATH_SIZE + 16], line[LINE_SIZE], name[96], rest[512];
    size_t n_meta = 0, n_tensors = 0, n_values = 0, at;
    float v;
    info.dtype = dtype;
    struct snapshot_file f = snapshots_write(&tiny, &info);
    assert_int_equal(snapshots_read(&tiny, f.p, f.n, &got, NULL), SL_OK);
    write_temp(path, "a.safetensors", f.p, f.n);
    (void)snprintf(arguments, sizeof arguments, "dump %s", path);
    FILE *out = script(arguments);
    while (fgets(line, sizeof line, out)) {
        if (sscanf(line, "meta %95s %511s", name, rest) == 2) {
            check_meta_line(name, rest);
            n_meta++;
        } else if (sscanf(line, "tensor %95s %511s", name, rest) == 2) {
            n_tensors++;
        } else if (sscanf(line, "value %95s %zu %a", name, &at, &v) == 3) {
            if (strcmp(name, "counters.tokens_consumed") == 0)
                assert_true(v == 40.0f);
            else
                assert_memory_equal(&v, values_at(tiny.back, name) + at, sizeof v);
            n_values++;
        } else {
            fail_msg("%s", line);
        }
    }
    assert_int_equal(pclose(out), 0);
    assert_int_equal(n_meta, 17);
    assert_int_equal(n_tensors, dtype == SL_DTYPE_I8 ? 13 : 7);
    assert_int_equal(n_values, 321);
    remove_temp(path);
    sl_free(got.text);
    sl_free(f.p);
}

static void test_numpy_reads(void **arg)
{
    (void)arg;
    need_python();
    check_dump(SL_DTYPE_F32);
    check_dump(SL_DTYPE_BF16);
    check_dump(SL_DTYPE_I8);
}

/* --- NumPy changes --- */

/* Runs a command with the paths of a written snapshot and of a file beside it, which it returns. */
static struct snapshot_file changed(const char *command, const char *arguments)
{
    char path[PATH_SIZE], target[PATH_SIZE + 8], all[COMMAND_SIZE - 64];
    struct snapshot_file f = snapshots_write(&tiny, &info_f32);
    write_temp(path, "a.safetensors", f.p, f.n);
    (void)snprintf(target, sizeof target, "%s.new", path);
    (void)snprintf(all, sizeof all, "%s %s %s %s", command, path, target, arguments);
    run_script(all);
    struct snapshot_file out = load(target);
    (void)remove(target);
    remove_temp(path);
    sl_free(f.p);
    return out;
}

static void test_edit(void **arg)
{
    (void)arg;
    need_python();
    /* head 1, key 2, value 3 */
    struct snapshot_file f = changed("edit", "layers.1.mixer.state 83 -0.375");
    struct sl_snapshot_info got;
    struct sl_error err = {0};
    if (snapshots_read(&tiny, f.p, f.n, &got, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_true(got.edited);
    assert_string_equal(got.session_id, "numpy");
    assert_string_equal(got.metadata, info_f32.metadata);
    float *edited = (float *)values_at(tiny.back, "layers.1.mixer.state");
    assert_true(edited[(1 * 8 + 2) * 8 + 3] == -0.375f);
    edited[83] = values_at(tiny.state, "layers.1.mixer.state")[83];
    assert_memory_equal(tiny.back, tiny.state, tiny.state_bytes);
    sl_free(got.text);
    free(f.p);
}

static void test_not_finite(void **arg)
{
    (void)arg;
    need_python();
    struct snapshot_file f = changed("edit", "layers.0.ffn.shift 3 nan");
    struct sl_snapshot_info got;
    struct sl_error err = {0};
    assert_int_equal(snapshots_read(&tiny, f.p, f.n, &got, &err), SL_E_SNAPSHOT_CORRUPT);
    assert_non_null(strstr(err.message, "\"layers.0.ffn.shift\" holds a value that is not finite"));
    free(f.p);
}

static void test_metadata(void **arg)
{
    (void)arg;
    need_python();
    struct snapshot_file f = changed("meta", "session.metadata '{\"a\":1}'");
    struct sl_snapshot_info got;
    struct sl_error err = {0};
    if (snapshots_read(&tiny, f.p, f.n, &got, &err) != SL_OK)
        fail_msg("%s", err.message);
    assert_true(got.edited);
    assert_string_equal(got.metadata, "{\"a\":1}");
    assert_memory_equal(tiny.back, tiny.state, tiny.state_bytes);
    sl_free(got.text);
    free(f.p);
}

/* Two memories become one. */
static void test_average(void **arg)
{
    (void)arg;
    need_python();
    struct seeded_shape shape = SNAPSHOT_TINY;
    struct snapshots other;
    char one[PATH_SIZE], two[PATH_SIZE], target[PATH_SIZE + 8], all[COMMAND_SIZE - 64];
    snapshots_open(&other, &shape, 17);
    struct snapshot_file a = snapshots_write(&tiny, &info_f32);
    struct snapshot_file b = snapshots_write(&other, &info_f32);
    write_temp(one, "a.safetensors", a.p, a.n);
    write_temp(two, "b.safetensors", b.p, b.n);
    (void)snprintf(target, sizeof target, "%s.new", one);
    (void)snprintf(all, sizeof all, "average %s %s %s", one, two, target);
    run_script(all);
    struct snapshot_file f = load(target);
    struct sl_snapshot_info got;
    assert_int_equal(snapshots_read(&tiny, f.p, f.n, &got, NULL), SL_OK);
    const float *x = values_at(tiny.state, "layers.1.mixer.state");
    const float *y = values_at(other.state, "layers.1.mixer.state");
    const float *z = values_at(tiny.back, "layers.1.mixer.state");
    assert_memory_not_equal(x, y, 128 * sizeof *x);
    for (size_t i = 0; i < 128; i++)
        assert_true(z[i] == (x[i] + y[i]) / 2);
    (void)remove(target);
    remove_temp(one);
    remove_temp(two);
    sl_free(got.text);
    sl_free(a.p);
    sl_free(b.p);
    free(f.p);
    snapshots_close(&other);
}

static int set_up(void **arg)
{
    (void)arg;
    static const char *const names[] = {"python3", "/usr/bin/python3"};
    struct seeded_shape shape = SNAPSHOT_TINY;
    snapshots_open(&tiny, &shape, 40);
    for (size_t i = 0; i < 2 && !python; i++) {
        char command[COMMAND_SIZE];
        (void)snprintf(command, sizeof command, "%s -c 'import numpy' 2>/dev/null", names[i]);
        if (system(command) == 0)
            python = names[i];
    }
    return 0;
}

static int tear_down(void **arg)
{
    (void)arg;
    snapshots_close(&tiny);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numpy_reads), cmocka_unit_test(test_edit),
        cmocka_unit_test(test_not_finite),  cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_average),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
