/* tables.h: the tables of kernels, for tests that hold each beside the scalar one. */
#ifndef SLATE_TESTS_TABLES_H
#define SLATE_TESTS_TABLES_H

#include "engine/kernels/kernels.h"

/* Every table that runs here but `ref`; NULL for `ref`: with it. */
#define FOR_TABLES(k, ref)                                                                         \
    for (const char *const *name_ = sl_kernels_names(); *name_; name_++)                           \
        for (const struct sl_kernels *k = sl_kernels_find(*name_); k && k != (ref); k = NULL)

/* A test for the list of each program that goes through them: it is skipped, and says why, where
 * there are tables that this processor cannot run. */
void every_table_runs_here(void **state);

#endif
