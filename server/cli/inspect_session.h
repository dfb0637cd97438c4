/* inspect_session.h: what `slate inspect` says of a session's snapshot, besides its tensors. */
#ifndef SLATE_SERVER_CLI_INSPECT_SESSION_H
#define SLATE_SERVER_CLI_INSPECT_SESSION_H

#include "engine/formats/tensors.h"
#include "proto/json_out.h"

struct sl_session_view;

/* Whether the file says that it is a session's snapshot. */
bool sl_session_view_fits(const struct sl_tensors *t);

/* Reads the file again, whole, and checks it as far as that is possible without its model; *ret is
 * to be closed. Errors: IO, TOO_LARGE, NO_MEMORY, and those of sl_snapshot_describe(). */
SL_NODISCARD enum sl_code sl_session_view_open(struct sl_session_view **ret, const char *path,
                                               size_t n_bytes, struct sl_error *err);
void sl_session_view_close(struct sl_session_view *v); /* NULL is fine */

const char *sl_session_view_arch(const struct sl_session_view *v);

/* Lines for people, to stdout. Texts of the file are cleaned. */
void sl_session_view_print(const struct sl_session_view *v);
/* One JSON object. */
void sl_session_view_write(const struct sl_session_view *v, struct sl_json_out *w);

#endif
