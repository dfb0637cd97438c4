/* store_index_test.c: the names of an index, where those who chose them mean it ill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "server/store/index.h"

static const char tenant[] = "default";

/* The next id after *i whose unseeded hash ends in twelve zero bits. */
static void next_alike(unsigned *i, char id[24])
{
    char both[64];
    do {
        snprintf(id, 24, "s%u", (*i)++);
        snprintf(both, sizeof both, "%s/%.23s", tenant, id);
    } while (XXH3_64bits(both, strlen(both)) & 0xfff);
}

static struct sl_ix_session *find(const struct sl_index *ix, const char *id)
{
    return sl_index_find(ix, tenant, strlen(tenant), id, strlen(id));
}

static size_t longest_chain(const struct sl_index *ix)
{
    size_t most = 0;
    for (size_t i = 0; i < ix->n_buckets; i++) {
        size_t n = 0;
        for (const struct sl_ix_session *s = ix->buckets[i]; s; s = s->next)
            n++;
        most = n > most ? n : most;
    }
    return most;
}

/* A thousand names that would all be in one bucket if the hash had no seed are spread as any are.
 */
static void names_chosen_to_meet_are_spread(void **state)
{
    (void)state;
    enum { N = 1000 };
    static char ids[N][24];
    struct sl_index ix = {.seed = 0x5eed5eed5eed5eedu};
    struct sl_ix_session *v[N];
    unsigned at = 0;
    for (size_t i = 0; i < N; i++) {
        next_alike(&at, ids[i]);
        v[i] = sl_index_get(&ix, tenant, strlen(tenant), ids[i], strlen(ids[i]));
        assert_non_null(v[i]);
    }
    assert_true(longest_chain(&ix) < 12);
    for (size_t i = 0; i < N; i++)
        assert_ptr_equal(find(&ix, ids[i]), v[i]);
    for (size_t i = 0; i < N; i++) {
        sl_index_release(&ix, v[i]);
        assert_null(find(&ix, ids[i]));
    }
    assert_int_equal(ix.n_nodes, 0);
    sl_index_done(&ix);
}

/* Where a session's files lie is on the disk: the same under every seed. */
static void a_seed_moves_no_folder(void **state)
{
    (void)state;
    struct sl_index a = {.seed = 1}, b = {.seed = 2};
    struct sl_ix_session *x = sl_index_get(&a, tenant, strlen(tenant), "chat", 4);
    struct sl_ix_session *y = sl_index_get(&b, tenant, strlen(tenant), "chat", 4);
    assert_true(x && y);
    assert_int_equal(x->hash, XXH3_64bits("default/chat", 12));
    assert_int_equal(x->hash, y->hash);
    assert_int_not_equal(x->seeded, y->seeded);
    sl_index_release(&a, x);
    sl_index_release(&b, y);
    sl_index_done(&a);
    sl_index_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_chosen_to_meet_are_spread),
        cmocka_unit_test(a_seed_moves_no_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
