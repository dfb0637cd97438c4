/* jansson_parse.h: JSON text -> jansson's values, for readers of files. Private to libslate; any
 * thread. */
#ifndef SLATE_FORMATS_JANSSON_PARSE_H
#define SLATE_FORMATS_JANSSON_PARSE_H

#include <jansson.h>

/* The caller's (json_decref()), duplicate keys refused; flags: jansson's, besides. NULL:
 * ret_error->text says what is wrong with the text; it is empty exactly when memory ran out. */
json_t *sl_jansson_parse(const char *s, size_t n, size_t flags, json_error_t *ret_error);

#endif
