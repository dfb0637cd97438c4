/* magic.h: which container a file is, by its first bytes. Private to engine/formats/. */
#ifndef SLATE_FORMATS_MAGIC_H
#define SLATE_FORMATS_MAGIC_H

#include "engine/formats/reader.h"

typedef enum sl_code sl_container_reader(struct sl_reader *r);

/* Names the container and the function that reads it. Fails on anything that is no model file, and
 * says what it is instead where that can be told: FILE_TRUNCATED (too short to tell),
 * FILE_UNSUPPORTED. */
SL_NODISCARD enum sl_code sl_container_of(struct sl_reader *r, const char **ret_container,
                                          sl_container_reader **ret_read);

#endif
