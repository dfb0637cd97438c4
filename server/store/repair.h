/* repair.h: what is wrong with a store, for an operator: `slate sessions check` and `repair`.
 *
 * A server refuses a store whose log has a damaged record header in the midst of valid records: it
 * cannot know whose the record was, and going on would lose an acknowledged turn without a word. An
 * operator may decide so, knowing what is lost. It also refuses a log whose own header is damaged;
 * where the records prove what stood in it (header.c), nothing is lost by going on.
 *
 * The report says, line by line:
 *
 *   - each damaged place, and what it seems to have been (its bytes, not vouched for by their hash)
 *   - each session that is damaged for certain: it can only be deleted
 *   - each session of which no record lies behind the last damaged place: nothing proves that what
 * is there is its last turn
 *   - each snapshot whose file is not what was written
 *
 * Who repairs may be another user than the server's: root. The new log has the old one's owner,
 * group and mode; where that is refused, nothing is changed.
 *
 * Blocking; no server may have the store (its lock is taken). */
#ifndef SLATE_SERVER_STORE_REPAIR_H
#define SLATE_SERVER_STORE_REPAIR_H

#include "server/store/io.h"

struct sl_repair_report {
    bool bad_header; /* of the file; its id is proven */
    uint64_t n_sessions, n_damaged, n_unsure, n_bad_snapshots, n_gaps;
};

/* line: text without a newline, valid during the call; false: it could not be told, and then
 * nothing is repaired, since what is lost would be told by nothing afterwards. With `repair` and
 * damaged places the log is written anew without them, and the old one kept beside it
 * (log.damaged-…). A session whose lost turn is known by its name and version is damaged from then
 * on, never silently older. Errors: those of sl_store_open(), STORE_CORRUPT only where nothing can
 * be read; IO (the report). */
SL_NODISCARD enum sl_code sl_store_repair(const char *path, const struct sl_store_io *io,
                                          bool repair, bool (*line)(void *arg, const char *text),
                                          void *arg, struct sl_repair_report *ret,
                                          struct sl_error *err);

#endif
