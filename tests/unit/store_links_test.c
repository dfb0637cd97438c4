/* store_links_test.c: symbolic links in the folder of a `dir:` store, in the place of each kind of
 * file and folder that is in it. None is followed, neither to read what someone put elsewhere nor
 * to write there: what it points to stays as it was, and with the right thing back in its place
 * everything is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "tests/support/stores.h"

enum { SIZE = 300 };

static struct shop *st;
static char snapshot[512]; /* the path of one, from the store's folder on */

static int find_snapshot(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    (void)s;
    (void)ftw;
    if (type == FTW_F && strstr(path, ".safetensors"))
        snprintf(snapshot, sizeof snapshot, "%s", path + strlen(st->path) + 1);
    return 0;
}

/* A store with turns and snapshots of a few sessions; it is open. */
static int setup(void **state)
{
    (void)state;
    st = calloc(1, sizeof *st);
    shop_init(st, &sl_store_io_system, 2000);
    shop_must_open(st);
    for (size_t i = 0; i < 3; i++) {
        do_create(st, i);
        do_turn(st, i, true);
        do_snapshot(st, i, SIZE);
        do_turn(st, i, false);
    }
    shop_run(st);
    assert_int_equal(st->n_failed, 0);
    assert_int_equal(nftw(st->path, find_snapshot, 8, FTW_PHYS), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (st->store)
        shop_close(st);
    shop_done(st);
    free(st);
    return 0;
}

static void below(const char *name, char ret[1024])
{
    snprintf(ret, 1024, "%s/%s", st->path, name);
}

/* Outside of the store. */
static void aside(const char *name, char ret[1024])
{
    char folder[512];
    shop_folder(st, folder, sizeof folder);
    snprintf(ret, 1024, "%s/%s", folder, name);
}

static uint64_t sum;

static int add_file(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    (void)ftw;
    uint64_t v = (uint64_t)s->st_size * 31 + (uint64_t)s->st_ino * 7 + (uint64_t)type;
    v += (uint64_t)s->st_mtim.tv_sec * 1000000007 + (uint64_t)s->st_mtim.tv_nsec * 13;
    for (const char *p = path; *p; p++)
        v = v * 131 + (unsigned char)*p;
    sum += v;
    return 0;
}

/* Changes when anything below the path does. */
static uint64_t print_of(const char *path)
{
    sum = 0;
    assert_int_equal(nftw(path, add_file, 8, FTW_PHYS), 0);
    return sum;
}

/* Puts a link in the place of what is called so; gives where that lies now. */
static void replace(const char *name, char where[1024])
{
    char path[1024];
    below(name, path);
    aside("aside", where);
    assert_int_equal(rename(path, where), 0);
    assert_int_equal(symlink(where, path), 0);
}

static void put_back(const char *name, const char *where)
{
    char path[1024];
    below(name, path);
    assert_int_equal(unlink(path), 0); /* it is the link still */
    assert_int_equal(rename(where, path), 0);
}

/* What is opened with the store: it does not open. */
static void test_what_is_opened_at_the_start(void **state)
{
    (void)state;
    static const char *const names[] = {"lock", "log", "format", "sessions"};
    shop_close(st);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char where[1024];
        struct sl_error err = {0};
        replace(names[i], where);
        uint64_t before = print_of(where);
        enum sl_code c = shop_open(st, &err);
        if (c == SL_OK)
            fail_msg("it was opened through a link in the place of '%s'", names[i]);
        if (!strstr(err.message, names[i]))
            fail_msg("a link in the place of '%s': %s", names[i], err.message);
        assert_true(print_of(where) == before);
        put_back(names[i], where);
    }
    shop_must_open(st);
    assert_int_equal(shop_check(st), 0);
}

/* Each folder on the way to a snapshot below the one that the store holds open, and the snapshot:
 * it is neither read nor written through the link. */
static void test_the_way_to_a_snapshot(void **state)
{
    (void)state;
    char *slash = strchr(snapshot, '/');
    do {
        slash = strchr(slash + 1, '/');
        char name[512], where[1024];
        snprintf(name, sizeof name, "%.*s",
                 (int)(slash ? slash - snapshot : (ptrdiff_t)strlen(snapshot)), snapshot);
        replace(name, where);
        uint64_t before = print_of(where);
        size_t failed = st->n_failed, wrong = 0;
        struct sl_error err;
        for (size_t i = 0; i < 3; i++)
            wrong += shop_load(st, i, &err) != SL_OK;
        if (wrong == 0)
            fail_msg("it was read through a link in the place of '%s'", name);
        for (size_t i = 0; i < 3 && slash; i++)
            do_snapshot(st, i, SIZE);
        shop_run(st);
        if (slash && st->n_failed == failed)
            fail_msg("it was written through a link in the place of '%s'", name);
        if (print_of(where) != before)
            fail_msg("what a link in the place of '%s' points to was changed", name);
        put_back(name, where);
        assert_int_equal(shop_check(st), 0);
    } while (slash);
}

/* Names that a file is written under before it takes its place: whoever puts a link there first
 * does not get the store to write elsewhere. */
static void test_names_that_are_written_to(void **state)
{
    (void)state;
    static const char *const names[] = {"log.new", "format.new"};
    static const char text[] = "not the store's";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024], victim[1024], got[sizeof text] = "";
        below(names[i], path);
        aside("victim", victim);
        FILE *f = fopen(victim, "w");
        assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
        (void)unlink(path);
        assert_int_equal(symlink(victim, path), 0);
        uint64_t before = print_of(victim);
        for (size_t k = 0; k < 30; k++) /* the log is rewritten meanwhile */
            do_turn(st, k % 3, true);
        shop_run(st);
        for (size_t k = 0; k < 3; k++)
            do_snapshot(st, k, SIZE);
        shop_run(st);
        shop_close(st);
        shop_must_open(st); /* and looked through at the start */
        assert_int_equal(shop_check(st), 0);
        assert_true(print_of(victim) == before);
        f = fopen(victim, "r");
        assert_true(f && fgets(got, sizeof got, f) && fclose(f) == 0);
        assert_string_equal(got, text);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_what_is_opened_at_the_start),
        T(test_the_way_to_a_snapshot),
        T(test_names_that_are_written_to),
    };
    sl_log_setup(SL_LOG_ERROR, false);
    stores_quiet = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
