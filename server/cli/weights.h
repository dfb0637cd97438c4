/* weights.h: the types that weights can be kept in, by their names on the command line. Any thread.
 */
#ifndef SLATE_SERVER_CLI_WEIGHTS_H
#define SLATE_SERVER_CLI_WEIGHTS_H

#include "slate/base.h"
#include "slate/err.h"

/* "f32", …, of the option that is named; NULL: none. Errors: USAGE. */
SL_NODISCARD enum sl_code sl_cli_weights(const char *option, const char *name, enum sl_dtype *ret,
                                         struct sl_error *err);

#endif
