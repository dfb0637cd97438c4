/* disk.h: a disk that fails, stutters and loses power: system calls for the `dir:` store.
 *
 * Calls go to real files below one folder. Syncs are not made but written down: what each file held
 * and which entries each folder had at its last sync. At a power cut everything stops (each call
 * fails from then on), and disk_salvage() lays out what would be found afterwards.
 *
 * One disk at a time; calls may come from any thread. */
#ifndef SLATE_TESTS_DISK_H
#define SLATE_TESTS_DISK_H

#include "server/store/io.h"

extern const struct sl_store_io disk_io;

enum disk_survivors {
    DISK_SYNCED, /* only what was synced */
    DISK_ALL,    /* everything that was written: as after a kill -9 */
    DISK_SOME    /* what was synced, and by chance some of the rest: entries, sizes, sectors */
};

/* Begins anew; `folder` must be empty, and counts as synced. */
void disk_begin(const char *folder);
void disk_end(void); /* frees; calls work as before, without records */

/* The n-th call from now on (from 0) fails with errnum, once. -1: none. */
void disk_fail_at(int64_t n, int errnum);
/* All calls but reads, stats and closes fail with errnum, until it is 0. */
void disk_refuse_writes(int errnum);
/* Syncs alone. */
void disk_refuse_syncs(int errnum);
/* The n-th call from now on and all after it are not made: the power is gone. -1: never, and it
 * comes back. */
void disk_cut_at(int64_t n);
bool disk_is_cut(void);
/* A write moves at most n bytes at once; 0: all. */
void disk_short_writes(size_t n);
/* Every second call that may be interrupted is. */
void disk_interrupt(bool on);
/* Unix time that is told; 0: the real one. */
void disk_set_time(int64_t t);

uint64_t disk_calls(void);  /* so far */
uint64_t disk_failed(void); /* made to fail so far */
uint64_t disk_open_files(void);

/* After a cut: what has survived is laid out in `folder`, which must be empty. */
void disk_salvage(const char *folder, enum disk_survivors which, uint64_t seed);

#endif
