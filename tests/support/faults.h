/* faults.h: a shop (stores.h) on a disk that fails (disk.h): what tests of it share.
 *
 * Failures fail the test. */
#ifndef SLATE_TESTS_FAULTS_H
#define SLATE_TESTS_FAULTS_H

#include "tests/support/disk.h"
#include "tests/support/stores.h"

/* Allocated, on a new disk; not opened. slice_bytes: of a rewrite, 0: the default. */
struct shop *faults_shop(uint64_t rewrite_bytes, size_t slice_bytes);
void faults_done(struct shop *st); /* it is closed; the disk ends */

/* What was injected, and what the messages must say of it. */
struct faults {
    enum sl_code code; /* SL_OK: nothing, or a cut */
    const char *text;
    size_t n_errors; /* seen */
};
void faults_told(struct faults *in, enum sl_code code, const char *message);

/* Opens; false: the power is gone. A failure that happens once does not happen again. */
bool faults_open(struct shop *st, struct faults *in);
/* Waits; false: the power is gone. */
bool faults_settle(struct shop *st, struct faults *in);
/* Everything is as the model has it, and is so again after it was closed and opened. Closes it. */
void faults_check(struct shop *st);
/* Opens what a power cut now would leave; it must be right, and everything goes on. go_on: some
 * more changes, waited for; false: some failed. NULL: none. */
void faults_salvaged(struct shop *st, enum disk_survivors which, uint64_t seed,
                     bool (*go_on)(struct shop *st));

/* Commits may gather in one batch more or less than when the n calls were counted, so that the last
 * few of them are not reached. */
bool faults_late(int64_t i, int64_t n);

#endif
