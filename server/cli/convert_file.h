/* convert_file.h: a conversion's bytes become a file: whole, or not at all. Any thread. */
#ifndef SLATE_SERVER_CLI_CONVERT_FILE_H
#define SLATE_SERVER_CLI_CONVERT_FILE_H

#include "server/store/io.h"
#include "slate/convert.h"

/* Writes c to `path`: under a temporary name beside it, checked by opening it again, synced, then
 * renamed, and the folder synced. A file of that name is replaced where `force` is set, and the new
 * one gets its owner, group and mode; but another user's, where this one may give nothing away,
 * becomes this one's. After a failure nothing of it is left, and a file that was there is as it
 * was. Errors: INVALID_VALUE (the path is no .safetensors; a file is there already; it is one that
 * the conversion reads), STORE_FULL, IO (also: owner, group or mode could not be given otherwise),
 * and those of sl_conversion_write() and sl_conversion_seal(). */
SL_NODISCARD enum sl_code sl_convert_file(struct sl_conversion *c, const char *path, bool force,
                                          const struct sl_store_io *io, struct sl_error *err);

#endif
